"""Inside a sandbox, on a player's code: call one function with each of some arguments.

A file by itself; no test, no expected value and no pytest is in the room. One JSON
object on stdin, one JSON line a call on the descriptor JUDGE_FD:

    {"import_root": ".", "module": "shop.cart", "function": "total", "calls": ["([1, 2],), {}"]}
 -> ["value", "3", "(([1, 2],), {})"]       # or "items", "raises", "other"; the arguments after it

With "draws": true (on the original) a call that drew random numbers gives ["drawn"]. What it writes
is the player's word; it is compared outside.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import os
import sys
from typing import Any

MOST_ITEMS = 1000


def outcome_of(function: Any, text: str) -> list[str]:
    """How a call ended, with the arguments as they are after it."""
    arguments, options = ast.literal_eval(text)
    try:
        result = function(*arguments, **options)
        if hasattr(result, "__next__"):
            ended = ["items", repr(list(itertools.islice(result, MOST_ITEMS)))]
        else:
            ended = ["value", repr(result)]
    except Exception as error:  # noqa: BLE001  (whatever the player's code raises is its answer)
        return ["raises", type(error).__name__, ""]
    return [*ended, repr((arguments, options))]


def serve_calls() -> None:
    """Answer every call."""
    request = json.loads(sys.stdin.read())
    out = int(os.environ["JUDGE_FD"])
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    draws_from = importlib.import_module("random_draws").note_draws() if request["draws"] else None
    sys.path[:1] = [os.path.normpath(f"/repo/{request['import_root']}"), "/repo", "/metadata"]
    os.chdir("/repo")
    module = importlib.import_module(request["module"])
    function = getattr(module, request["function"])
    for text in request["calls"]:
        drawn = draws_from() if draws_from else bool
        outcome = outcome_of(function, text)
        data = json.dumps(["drawn"] if drawn() else outcome).encode() + b"\n"
        while data:
            data = data[os.write(out, data) :]
    os._exit(0)


if __name__ == "__main__":
    serve_calls()
