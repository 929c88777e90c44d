"""Keep files and functions small: 800 lines a file, 140 lines a function, 180 lines a verb's file.

python scripts/caps.py    prints every file and function over its cap; exits with 1 if any is
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_CAP, FUNCTION_CAP, VERB_CAP, INIT_CAP = 800, 140, 180, 120
FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py"}
FOLDERS = ("src", "tests", "scripts", "benchmarks")
# Files of cli/ that are not verbs.
CLI_SHARED = {
    "main.py",
    "console.py",
    "job.py",
    "render_terminal.py",
    "train_text.py",
    "trusting.py",
    "next_step.py",
}


def cap_of(path: Path) -> int:
    """The largest number of lines that a file of this kind may have."""
    if path.name == "__init__.py":
        return INIT_CAP
    is_verb = path.parent.name == "cli" and "src" in path.parts and path.name not in CLI_SHARED
    return VERB_CAP if is_verb else FILE_CAP


def over_caps(path: Path) -> Iterator[str]:
    """One line for the file and for each of its functions that is over its cap."""
    text = path.read_text("utf-8")
    lines = len(text.splitlines())
    cap = cap_of(path)
    if lines > cap:
        yield f"{path}:1: {lines} lines, the cap is {cap}"
    if path.name in FORBIDDEN_NAMES:
        yield f"{path}:1: a file needs a noun for a name, not {path.name}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_CAP:
                yield (
                    f"{path}:{node.lineno}: {node.name} has {length} lines, the cap is"
                    f" {FUNCTION_CAP}"
                )


def main(root: Path) -> int:
    """Check every Python file of the repository; returns the exit code."""
    files = sorted(p for folder in FOLDERS for p in (root / folder).rglob("*.py"))
    problems = [
        line
        for path in files
        for line in over_caps(path.relative_to(root) if root == Path.cwd() else path)
    ]
    print(
        "\n".join(problems)
        or f"caps: {len(files)} files, all within {FILE_CAP} lines and {FUNCTION_CAP} lines a"
        " function"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
