"""Which code the numbers depend on: a hash of what the files say, without comments, docstrings and
layout.

    code_sha256(root)                    recorded with every trained arm, and with the evaluation
    stale(root, evidence)                -> ["the code has changed since level 1 was trained (after, hint): training/step.py, ..."]

A file that changed need not have changed a number; whether it has is known only by training again.
So a stale arm is told, not an error.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
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
"""What finds, hints, pairs, trains, plays and judges; what reads logs, asks other models, checks
settings or prints is not here."""
LEFT_OUT = ("guide.py", "backends/")
"""Names of the earlier framework, and other trainers: no arm runs them but the TRL arms, which name
their commit."""
PACKAGE = Path("src/composer_replication")
SHOWN = 6


def code_files(root: Path) -> dict[str, str]:
    """File below the package -> the first 12 digits of its hash."""
    paths = sorted(path for room in ROOMS for path in (root / PACKAGE / room).rglob("*.py"))
    names = {path: path.relative_to(root / PACKAGE).as_posix() for path in paths}
    return {
        name: _digest(path.read_text("utf-8"))[:12]
        for path, name in names.items()
        if not any(part in name for part in LEFT_OUT)
    }


def code_sha256(root: Path) -> str:
    """One hash of all of them."""
    return hashlib.sha256(
        "\n".join(f"{name} {digest}" for name, digest in code_files(root).items()).encode()
    ).hexdigest()


def _digest(text: str) -> str:
    """A hash of the syntax tree without docstrings.

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
    """A line per level: which arms were trained by other code than this, and which files differ
    from those that played them."""
    now, then = code_files(root), evidence["about"].get("code", {})
    changed = [name for name in sorted(now.keys() | then.keys()) if now.get(name) != then.get(name)]
    current_sha256 = code_sha256(root)
    files = f"{', '.join(changed[:SHOWN])}{f' and {len(changed) - SHOWN} more' if len(changed) > SHOWN else ''}"
    for level, numbers in sorted(evidence["levels"].items()):
        arms = [
            name
            for name, arm in numbers["arms"].items()
            if any(run.get("code_sha256") != current_sha256 for run in arm["runs"].values())
        ]
        if arms:
            since = f"; changed since they were played: {files}" if files else ""
            yield f"level {level}: trained by other code than this: {', '.join(arms)}{since}"
