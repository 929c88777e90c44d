"""A fingerprint of the code that the numbers depend on: a hash of the syntax trees, without
comments, docstrings and layout.

    code_sha256(root)          recorded with every trained arm, and with the evaluation
    stale(root, evidence)
        -> "level 1: trained by other code than this: after, hint; changed since ..."

A changed file need not change a number, which only another training can show. So a stale arm is
reported and is not an error.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOMS = (
    "data/curate",
    "data/hints",
    "data/replay",
    "data/sites",
    "evaluation",
    "losses",
    "models",
    "rollouts",
    "tokens",
    "training",
    "workshop",
)
"""The folders that find sites, write hints, make pairs, train, play and evaluate. Folders that read
logs, ask other models, check settings or print are left out."""
LEFT_OUT = ("guide.py", "backends/")
"""Names of the earlier framework, and other trainers: only the TRL arms run them, and those record
their commit."""
PACKAGE = Path("src/composer_replication")
MAX_LISTED = 6


def code_files(root: Path) -> dict[str, str]:
    """Path below the package -> the first 12 digits of the file's hash."""
    paths = sorted(path for room in ROOMS for path in (root / PACKAGE / room).rglob("*.py"))
    names = {path: path.relative_to(root / PACKAGE).as_posix() for path in paths}
    return {
        name: _digest(path.read_text("utf-8"))[:12]
        for path, name in names.items()
        if not any(part in name for part in LEFT_OUT)
    }


def code_sha256(root: Path) -> str:
    """One hash of all these files."""
    return hashlib.sha256(
        "\n".join(f"{name} {digest}" for name, digest in code_files(root).items()).encode()
    ).hexdigest()


@cache
def _digest(text: str) -> str:
    """A hash of the syntax tree without docstrings; kept, since a check asks several times.

    >>> _digest("def f():\\n    'one'\\n    return 1  # why") == _digest("def f(): return 1")
    True
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [
                s
                for s in body
                if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
            ]  # type: ignore[attr-defined]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def stale(root: Path, evidence: Mapping[str, Any]) -> Iterator[str]:
    """One line per level: the arms that were trained by other code than this, and the files that
    have changed since the arms were played."""
    now, then = code_files(root), evidence["about"].get("code", {})
    changed = [name for name in sorted(now.keys() | then.keys()) if now.get(name) != then.get(name)]
    current_sha256 = code_sha256(root)
    num_more = len(changed) - MAX_LISTED
    files = ", ".join(changed[:MAX_LISTED]) + (f" and {num_more} more" if num_more > 0 else "")
    for level, numbers in sorted(evidence["levels"].items()):
        arms = [
            name
            for name, arm in numbers["arms"].items()
            if any(run.get("code_sha256") != current_sha256 for run in arm["runs"].values())
        ]
        if arms:
            since = f"; changed since they were played: {files}" if files else ""
            yield f"level {level}: trained by other code than this: {', '.join(arms)}{since}"
