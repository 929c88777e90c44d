"""Write the table of docs/backends.md: what each backend hosts, by the registry.

python scripts/docs_backends.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from composer_replication.training.backends.registry import BACKENDS, FEATURES, Backend

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "backends.md"
BEGIN, END = "<!-- written by `python scripts/docs_backends.py` -->", "<!-- end -->"


def table() -> str:
    """The rows of the page: a feature per line, a trainer per column, then the rest."""
    trainers = [backend for backend in BACKENDS.values() if backend.kind == "trainer"]
    lines = [
        f"| | {' | '.join(_title(backend) for backend in trainers)} |",
        f"|---|{'---|' * len(trainers)}",
    ]
    lines += [
        f"| {heading} | {' | '.join(backend.hosts.get(key, '-') for backend in trainers)} |"
        for key, heading in FEATURES.items()
    ]
    limits = [f"- **{backend.name}**: {backend.limit}." for backend in trainers if backend.limit]
    environments = [
        f"- **{backend.name}** ({backend.tested}): {backend.limit}."
        for backend in BACKENDS.values()
        if backend.kind == "environments"
    ]
    executors = [
        f"- {backend.kind} **{backend.name}** ({backend.tested}): {backend.limit}."
        for backend in BACKENDS.values()
        if backend.kind in ("executor", "engine")
    ]
    return "\n".join([*lines, "", *limits, *environments, *executors])


def _title(backend: Backend) -> str:
    page = PAGE.parent / "backends" / f"{backend.name}.md"
    name = f"[{backend.name}](backends/{backend.name}.md)" if page.exists() else backend.name
    return f"{name} {backend.tested}".strip()


def page_text() -> str:
    """The page with its table written anew."""
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


def main(arguments: list[str]) -> int:
    """Write the page, or with --check say whether it is stale (exit code 1)."""
    text = page_text()
    if "--check" in arguments:
        if text != PAGE.read_text("utf-8"):
            print("docs/backends.md is stale: run python scripts/docs_backends.py")
            return 1
        return 0
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
