"""Draw the picture of the README: a few messages of an example of the demo, as `recompose show
example` prints them.

    python scripts/token_view.py demo e003 --turns 4 9

Run it after `make demo`; it writes docs/token_view.svg.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console

from composer_replication.cli.show_tokens import example_parts, example_view
from composer_replication.tokens.artefact import load_dataset
from composer_replication.tokens.hf import load_tokenizer

ROOT = Path(__file__).resolve().parent.parent
TITLE = "recompose show example"


def token_view(work: Path, ordinal: int, *, turns: tuple[int, int]) -> str:
    """An SVG of the messages `turns` (first and last) of the example with that number."""
    example = load_dataset(work / "examples").examples[ordinal - 1]
    view = example_view(
        example, load_tokenizer(str(work / "examples" / "tokenizer")), number=ordinal
    )
    first, last = turns
    shown = [turn for turn in view["turns"] if first <= turn["turn"] <= last]
    start = shown[0]["start"]  # earlier messages are left out, so positions count from here
    view["turns"] = [
        {**turn, "start": turn["start"] - start, "end": turn["end"] - start} for turn in shown
    ]
    view["hints"] = [
        {**hint, "at": hint["at"] - start} for hint in view["hints"] if hint["at"] >= start
    ]
    view["tokens"] = view["tokens"][start : shown[-1]["end"]]
    view["counts"] = Counter(token["loss"] for token in view["tokens"])
    console = Console(record=True, width=88, force_terminal=True, file=io.StringIO())
    for part in example_parts(view, colour=True, full=False):
        console.print(part)
    svg = console.export_svg(title=TITLE)
    # Without @font-face, a page that shows the picture fetches no font from a server.
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def main(arguments: list[str]) -> int:
    """Write the picture; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path, help="a work folder with examples, e.g. demo")
    parser.add_argument("example", help="its number, e.g. e003")
    parser.add_argument("--turns", type=int, nargs=2, default=(4, 9), help="first and last message")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "token_view.svg")
    options = parser.parse_args(arguments)
    first, last = options.turns
    options.out.write_text(
        token_view(options.work, int(options.example.lstrip("e")), turns=(first, last)), "utf-8"
    )
    print(f"token view: wrote {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
