"""What the terminal shows: plain lines, tables and boxes, with untrusted text made harmless.

Human text goes to stdout, problems to stderr; with --json stdout holds one JSON object and nothing
else. Nothing here parses rich markup: styles are given as arguments, so a log that contains "[red]"
shows "[red]".
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from composer_replication.core.harmless import harmless, one_line


def rich_console(*, stderr: bool = False) -> Console:
    """A console that never interprets markup and honours NO_COLOR and pipes (a pipe is 100 columns
    wide, not 80)."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 100
    return Console(
        stderr=stderr, markup=False, emoji=False, highlight=False, width=width, soft_wrap=False
    )


def is_main_rank() -> bool:
    """Whether this process speaks: alone, or the first of those that torchrun or accelerate
    started."""
    return os.environ.get("RANK", "0") == "0"


@dataclass(slots=True)
class Screen:
    """Where a verb says things. `quiet` keeps only what was written; `json` keeps only the final
    object, with `about` in it."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    console: Console = field(default_factory=rich_console)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def colour(self) -> bool:
        """Whether colours reach the reader: a terminal, and no NO_COLOR."""
        return self.console.color_system is not None and not self.console.no_color

    def line(self, text: str = "", *, style: str = "") -> None:
        """One line for people, with empty ones before it where it begins with line ends; left out
        by --quiet and --json."""
        if not (self.json or self.quiet):
            content = text.lstrip("\n")
            self.console.print(
                Text(text[: len(text) - len(content)] + one_line(content), style=style),
                soft_wrap=True,
            )

    def detail(self, text: str) -> None:
        """A line that only --verbose shows."""
        if self.verbose:
            self.line(text, style="dim")

    def show(self, renderable: Any) -> None:
        """A rich renderable for people; its texts must have passed `harmless`."""
        if not (self.json or self.quiet):
            self.console.print(renderable)

    def table(self, rows: Iterable[Sequence[object]], *, head: Sequence[str]) -> None:
        """A table without frames; numbers are set to the right.

        Example: table([("unknown_tool", 37)], head=("kind", "sites"))
        """
        if self.json or self.quiet:
            return
        cells = [[one_line(str(cell)) for cell in row] for row in rows]
        right = [
            bool(cells) and all(re.fullmatch(r"-?[\d ]*\.?\d*", row[i]) for row in cells)
            for i in range(len(head))
        ]
        # in a pipe a row stays one line, so that it can be searched
        if not self.console.is_terminal:
            self.console.print("\n".join(_aligned([list(head), *cells], right)), soft_wrap=True)
            return
        view = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for name, to_right in zip(head, right, strict=True):
            view.add_column(name, justify="right" if to_right else "left", overflow="fold")
        for row in cells:
            view.add_row(*(Text(cell) for cell in row))
        self.console.print(view)

    def wrote(self, path: object, note: str = "") -> None:
        """What was written; shown by --quiet too."""
        if not self.json:
            message = Text.assemble(
                (" wrote  ", "green"),
                one_line(str(path)),
                (f"  {one_line(note)}" if note else "", "dim"),
            )
            self.console.print(message, soft_wrap=True)

    def next(self, command: str) -> None:
        """The command that comes next."""
        if not (self.json or self.quiet):
            self.console.print(
                Text.assemble((" next   ", "cyan"), (one_line(command), "bold")), soft_wrap=True
            )

    def result(self, value: Mapping[str, Any]) -> None:
        """The one JSON object of --json; lone surrogates are escaped."""
        if self.json:
            sys.stdout.write(
                json.dumps(
                    _finite({**value, **self.about}), ensure_ascii=True, indent=1, allow_nan=False
                )
                + "\n"
            )
            sys.stdout.flush()


def _finite(value: Any) -> Any:
    """A value without NaN and infinities, which JSON does not have: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(right))]
    return [
        "  ".join(
            c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]


def problem_box(title: str, *, what: str, where: str = "", fix: str = "") -> Panel:
    """What happened, where, and what to do about it."""
    body = Text()
    if where:
        body.append(one_line(where) + "\n", style="bold")
    body.append(harmless(what))
    if fix:
        body.append("\n" + harmless(fix), style="green")
    return Panel(body, title=title, title_align="left", border_style="red", expand=True)
