"""Inside a sandbox, on a player's code: take the steps of scripts (handle_recorder.py).

A file by itself; no test, no expected value and no pytest is in the room. One JSON object on stdin,
one JSON line a script on the descriptor JUDGE_FD: an outcome for each step.

    {"import_root": ".", "modules": ["shop.cart"], "attributes": ["prices"], "scripts": ["[...]"]}
 -> [["at"], ["value", "shop.cart.Cart{prices=[]}", "()"], ["raises", "KeyError"], ["none"], ...]

Each script has a process of its own, so that none sees what another left. With "draws": true (on
the original) a step after which random numbers had been drawn gives ["drawn"]. What is written is
the player's word; it is compared outside.
"""

from __future__ import annotations

import ast
import datetime
import decimal
import fractions
import importlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

MOST_ITEMS, DEPTH, LONGEST_TEXT = 500, 5, 100_000
SCRIPT_CPU_S, SCRIPT_S = 4.0, 30
_LITERAL = (type(None), bool, int, float, str, bytes)
_KNOWN = (datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal)
_KNOWN += (fractions.Fraction, range, complex, bytearray)
_HOLDERS: tuple[Any, ...] = (dict, list, tuple, set, frozenset, str, bytes, int, float)


class ScriptPlayer:
    """Takes the steps of one script; `handles` are the objects that they gave, `drawn` says whether
    they drew random numbers."""

    def __init__(self, attributes: list[str], drawn: Callable[[], bool] = bool) -> None:
        self.attributes = attributes
        self.drawn = drawn
        self.handles: dict[int, Any] = {}

    def outcomes(self, text: str) -> list[list[str]]:
        """How each step ended, and the state of all objects at the end."""
        rows: list[list[str]] = []
        for number, *step in ast.literal_eval(text):
            row = self._ended(number, step)
            rows.append(["drawn"] if self.drawn() else row)
        states = [self.described(value, fresh=True) for value in list(self.handles.values())]
        return [*rows, ["drawn"] if self.drawn() else ["state", *states]]

    def _ended(self, number: int, step: list[Any]) -> list[str]:
        try:
            return self._taken(number, step)
        except KeyError as error:
            return ["none"] if error.args == ("no handle",) else ["raises", "KeyError"]
        except Exception as error:  # noqa: BLE001  (whatever the code raises is its answer)
            return ["raises", type(error).__name__]

    def _taken(self, number: int, step: list[Any]) -> list[str]:
        match step:
            case ["at", module, name]:
                value = importlib.import_module(module)
                for part in name.split("."):
                    value = getattr(value, part)
                self.handles[number] = value
                return ["at"]
            case ["call", target, name, positional, named]:
                function = self.decoded(target)
                values, options = self.decoded(positional), self.decoded(named)
                if name:
                    function = getattr(function, name)
                value = function(*values, **options)
                return self._kept(number, value, self.described((values, options)))
            case ["get", target, name]:
                return self._kept(number, getattr(self.decoded(target), name), "")
            case ["set", target, name, value]:
                setattr(self.decoded(target), name, self.decoded(value))
                return ["value", "None", ""]
            case _:
                return ["none"]

    def _kept(self, number: int, value: Any, after: str) -> list[str]:
        text = self.described(value)
        if not any(value is other for other in self.handles.values()):
            self.handles[number] = value
        return ["value", text, after]

    def decoded(self, value: Any) -> Any:
        """A literal with the objects in the places of their handles."""
        match value:
            case complex():
                if int(value.imag) not in self.handles:
                    raise KeyError("no handle")
                return self.handles[int(value.imag)]
            case list() | tuple():
                return type(value)(self.decoded(item) for item in value)
            case dict():
                return {self.decoded(k): self.decoded(v) for k, v in value.items()}
            case _:
                return value

    def described(self, value: Any, depth: int = 0, *, fresh: bool = False) -> str:
        """What can be seen of a value: a literal, or its type with what the tests look at."""
        kind = type(value)
        if kind in _LITERAL:
            return repr(value)
        if depth > DEPTH:
            return "..."
        if not fresh:
            for number, other in self.handles.items():
                if other is value:
                    return f"<{number}>"
        inside = depth + 1
        if kind is list or kind is tuple:
            ends = "[]" if kind is list else "()"
            items = [self.described(item, inside) for item in value[:MOST_ITEMS]]
            comma = "," if kind is tuple and len(items) == 1 else ""
            return ends[0] + ", ".join(items) + comma + ends[1]
        if kind is dict:
            rows = list(value.items())[:MOST_ITEMS]
            pairs = [f"{self.described(k, inside)}: {self.described(v, inside)}" for k, v in rows]
            return f"{{{', '.join(pairs)}}}"
        if kind is set or kind is frozenset:
            return f"{kind.__name__}({sorted(self.described(v, inside) for v in value)})"
        if isinstance(value, type):
            return f"class {_name(value)}"
        if isinstance(value, _KNOWN):
            return f"{_name(kind)}: {value!r}"
        if hasattr(value, "__next__"):
            items = [self.described(v, inside) for v in itertools.islice(value, MOST_ITEMS)]
            return f"items [{', '.join(items)}]"
        if callable(value) and not hasattr(value, "__dict__"):
            return "callable"
        return self._object(value, inside)

    def _object(self, value: Any, depth: int) -> str:
        holders = [holder for holder in _HOLDERS if isinstance(value, holder)]
        parts = [self.described(holder(value), depth) for holder in holders[:1]]
        for name in self.attributes:
            try:
                seen = getattr(value, name)
            except Exception:  # noqa: BLE001  (it has none, or cannot say)
                continue
            if not callable(seen):
                parts.append(f"{name}={self.described(seen, depth)}")
        return f"{_name(type(value))}{{{', '.join(parts)}}}"


def _name(kind: type) -> str:
    """A class's name; private and local ones have none that a solution would have to keep."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    return "object" if "<" in name or "._" in name else name


def play_script(script: str, player: ScriptPlayer, out: int) -> None:
    """Play one script and end."""
    signal.setitimer(signal.ITIMER_PROF, SCRIPT_CPU_S)
    signal.alarm(SCRIPT_S)
    data = json.dumps(player.outcomes(script))[:LONGEST_TEXT].encode()
    while data:
        data = data[os.write(out, data) :]


def serve_scripts() -> None:
    """Answer every script, in a process each."""
    request = json.loads(sys.stdin.read())
    out = int(os.environ["JUDGE_FD"])
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    draws_from = importlib.import_module("random_draws").note_draws() if request["draws"] else None
    sys.path[:1] = [os.path.normpath(f"/repo/{request['import_root']}"), "/repo", "/metadata"]
    os.chdir("/repo")
    for name in request["modules"]:
        importlib.import_module(name)
    for script in request["scripts"]:
        child = os.fork()
        if not child:
            try:
                drawn = draws_from() if draws_from else bool
                play_script(script, ScriptPlayer(request["attributes"], drawn), out)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.write(out, b"\n")
    os._exit(0)


if __name__ == "__main__":
    serve_scripts()
