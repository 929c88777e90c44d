"""Write docs/cli.md: the help of every verb, as `recompose` prints it.

python scripts/docs_cli.py [--check]
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

from composer_replication.cli.main import VERBS, run
from composer_replication.cli.problems import DONE

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
HEAD = """# Commands

Written by `python scripts/docs_cli.py`; a test fails if it is stale. `recompose init` lists the
settings and what they mean.

Exit codes: 0 done, 1 a problem you can fix, 2 usage, 3 stopped by a health rule, 4 budget reached,
17 another replica has this one's slot.
With `--json`, stdout contains one JSON object and nothing else. An error is
`{"error": {"what", "where", "fix", "exit_code"}}`.
"""


def help_of(*argv: str) -> str:
    """The help text of a command line, 100 columns wide."""
    os.environ["COLUMNS"] = "100"
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        if run([*argv, "--help"]) != DONE:
            raise SystemExit(f"docs_cli: recompose {' '.join(argv)} --help failed")
    return "\n".join(line.rstrip() for line in text.getvalue().strip().splitlines())


def page() -> str:
    """The whole page."""
    parts = [HEAD, f"```\n{help_of()}\n```\n"]
    parts += [f"## {verb}\n```\n{help_of(verb)}\n```\n" for verb in VERBS]
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write the page, or check it; returns the exit code."""
    text = page()
    if "--check" in arguments:
        if PAGE.exists() and PAGE.read_text("utf-8") == text:
            return 0
        print("docs_cli: docs/cli.md is stale; run: python scripts/docs_cli.py")
        return 1
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
