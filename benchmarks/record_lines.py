"""JSON with one record a line, so that a changed number is one changed line in a diff.

record_lines({"rows": [{"name": "after", "success": 0.6}]}, depth=2)
# {
#  "rows": [
#   {"name": "after", "success": 0.6}
#  ]
# }
"""

from __future__ import annotations

import json
from typing import Any


def record_lines(value: Any, *, depth: int) -> str:
    """The JSON of a value: containers are opened down to `depth`; each deeper value is on one line.

    >>> print(record_lines({"b": [1, 2], "a": {}}, depth=1))
    {
     "b": [1, 2],
     "a": {}
    }
    """
    return _text(value, depth=depth, indent="")


def _text(value: Any, *, depth: int, indent: str) -> str:
    if not depth or not isinstance(value, dict | list) or not value:
        return json.dumps(value)
    inner = indent + " "
    if isinstance(value, dict):
        lines = [
            f"{inner}{json.dumps(key)}: {_text(item, depth=depth - 1, indent=inner)}"
            for key, item in value.items()
        ]
    else:
        lines = [inner + _text(item, depth=depth - 1, indent=inner) for item in value]
    start, end = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return "\n".join([start, ",\n".join(lines), indent + end])
