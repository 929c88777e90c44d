"""Terminal output: plain lines, tables and boxes, with untrusted text made harmless.

Text for people goes to stdout, problems to stderr; with --json, stdout holds exactly one JSON
object. Nothing here parses rich markup: styles are arguments, so a log that contains "[red]" shows
"[red]".
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

LABEL_WIDTH = 12


def rich_console(*, stderr: bool = False) -> Console:
    """A console without markup that honours NO_COLOR; a pipe is 100 columns wide, not 80."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 100
    return Console(
        stderr=stderr, markup=False, emoji=False, highlight=False, width=width, soft_wrap=False
    )


def is_main_rank() -> bool:
    """Whether this process prints: the only one, or rank 0 under torchrun or accelerate."""
    return os.environ.get("RANK", "0") == "0"


@dataclass(slots=True)
class Screen:
    """The output of a verb; `quiet` shows only what was written, `json` only the final object.

    `about` is merged into that object.
    """

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    console: Console = field(default_factory=rich_console)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def colour(self) -> bool:
        """Whether colours are shown: on a terminal, unless NO_COLOR is set."""
        return self.console.color_system is not None and not self.console.no_color

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print a line, unless --quiet or --json; line breaks at its start become empty lines."""
        if not (self.json or self.quiet):
            content = text.lstrip("\n")
            self.console.print(
                Text(text[: len(text) - len(content)] + one_line(content), style=style),
                soft_wrap=True,
            )

    def labelled(self, label: str, text: str, *, style: str = "") -> None:
        """Print a text beside its label, indented where a terminal wraps it; in a pipe, one line.

        Example: labelled("cost", "They cost 136k tokens ...")
        """
        if self.json or self.quiet:
            return
        if not self.console.is_terminal:
            self.line(f" {label:<{LABEL_WIDTH}}  {text}", style=style)
            return
        view = Table.grid(padding=(0, 2, 0, 0))
        view.add_column(width=LABEL_WIDTH + 1)
        view.add_column(overflow="fold")
        view.add_row(Text(f" {one_line(label)}", style="cyan"), Text(one_line(text), style=style))
        self.console.print(view)

    def detail(self, text: str) -> None:
        """Print a line with --verbose only."""
        if self.verbose:
            self.line(text, style="dim")

    def show(self, renderable: Any) -> None:
        """Print a rich renderable; its texts must have passed through `harmless`."""
        if not (self.json or self.quiet):
            self.console.print(renderable)

    def table(self, rows: Iterable[Sequence[object]], *, head: Sequence[str]) -> None:
        """Print a table without frames; columns of numbers are right-aligned.

        Example: table([("unknown_tool", 37)], head=("kind", "sites"))
        """
        if self.json or self.quiet:
            return
        cells = [[one_line(str(cell)) for cell in row] for row in rows]
        right = [
            bool(cells) and all(re.fullmatch(r"-?[\d ]*\.?\d*", row[i]) for row in cells)
            for i in range(len(head))
        ]
        # in a pipe each row is one line, so that grep finds it
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
        """Print a path that was written; --quiet shows it too."""
        if not self.json:
            message = Text.assemble(
                (" wrote  ", "green"),
                one_line(str(path)),
                (f"  {one_line(note)}" if note else "", "dim"),
            )
            self.console.print(message, soft_wrap=True)

    def next(self, command: str) -> None:
        """Print the next command."""
        if not (self.json or self.quiet):
            self.console.print(
                Text.assemble((" next   ", "cyan"), (one_line(command), "bold")), soft_wrap=True
            )

    def result(self, value: Mapping[str, Any]) -> None:
        """Print the JSON object of --json in ASCII, which escapes lone surrogates."""
        if self.json:
            sys.stdout.write(
                json.dumps(
                    _finite({**value, **self.about}), ensure_ascii=True, indent=1, allow_nan=False
                )
                + "\n"
            )
            sys.stdout.flush()


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Format rows as lines with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(right))]
    return [
        "  ".join(
            c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]


def problem_box(title: str, *, what: str, where: str = "", fix: str = "") -> Panel:
    """A box with what happened, where, and how to fix it."""
    body = Text()
    if where:
        body.append(one_line(where) + "\n", style="bold")
    body.append(harmless(what))
    if fix:
        body.append("\n" + harmless(fix), style="green")
    return Panel(body, title=title, title_align="left", border_style="red", expand=True)
