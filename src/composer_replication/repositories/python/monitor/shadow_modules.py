"""New modules that are imported in the place of the standard library's or pytest's.

    shadowed_module("random.py", {"shop/__init__.py", "tests/test_cart.py"})        # "random"
    shadowed_module("shop/random.py", {"shop/__init__.py"})                         # ""

A folder with an `__init__.py` hands its modules out under its own name alone; every other folder
may be on `sys.path`, ahead of what is installed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container

RUNNER = frozenset(
    ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "exceptiongroup", "tomli")
) | {"pygments", "colorama", "coverage", "hypothesis", "xdist", "execnet", "typing_extensions"}
"""What pytest and its common plugins import."""
NO_SHADOW = frozenset(("test", "tests", "this", "antigravity", "__main__"))
"""Names of the standard library that people give to their own scripts, and nobody imports."""
_TOP = re.compile(
    r"(?P<folder>(?:.*/)?)(?P<name>\w+)(?:\.py|\.pyc|(?:\.[\w-]+)?\.so|/__init__\.py)", re.ASCII
)


def shadowed_module(path: str, files: Container[str]) -> str:
    """The module that a new file stands in for; "" if it stands in for none."""
    match = _TOP.fullmatch(path)
    if match is None:
        return ""
    name, folder = match["name"], match["folder"]
    if name in NO_SHADOW or f"{folder}__init__.py" in files:
        return ""
    return name if name in RUNNER or name in sys.stdlib_module_names else ""
