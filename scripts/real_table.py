"""Write build/real/table.json from what the tests of `make real` counted, and check
docs/real_models.md against it, or write the page.

    python scripts/real_table.py             exit code 1 if the page is stale; writes table.json only
    python scripts/real_table.py --write     writes docs/real_models.md too

Without the public sessions the tests count nothing: then there is nothing to check the page against,
and that is said.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import real_models

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "real_models.md"
CHECKS = (
    "recognised",
    "as its file",
    "round trip",
    "targets",
    "teacher",
    "borders",
    "official",
    "whole conversations",
)
ROWS = 10
"""Families on a real tokenizer (tests/real/real_tokenizers.py): a table with fewer is of a part of
the tests, and not compared with the page."""
HEAD = """# Real tokenizers and real weights

<!-- written by scripts/real_table.py from what the tests of `make real` counted: do not edit -->
`make real` downloads two small language models and six tokenizers from packages, and makes Hugging Face folders of them in `build/real`
(scripts/real_models.py; hashes are pinned). It runs every template family that has a real tokenizer there over the public sessions. For
the other families (Qwen3.5 and 3.6, GLM, Mistral) no package contains the tokenizer. They are tested on tiny tokenizers with the same control tokens.

One test (tests/real/test_whole_path.py) takes SmolLM2 (as `chatml-tools`, windows of 1,024 tokens) and Gemma 3 270M (base, `gemma`,
bfloat16 - float32 where the processor emulates it -, windows of 768) through the whole pipeline: ingest, sites, hints, build, one or two LoRA steps (and one of all weights of SmolLM2),
`evaluate --logs`, the audit, export, and an answer in plain transformers. This shows that the pipeline runs, not that
anything is learnt.

"""
LEGEND = """
Each row is one family on one tokenizer. Texts, messages and hints are tests: all of them have to pass. The other columns are counts. The last two compare
with the official template; a difference there is not a failure, and is explained below.

- **recognised**: how `student.template = "auto"` recognises the family. "text": by the text of the template, and also by what it renders if a comment has changed the text. "named": the family has to
  be named in `student.template`. Qwen3's own template serves two families, so the other one has to be named; SmolLM2's own template cannot write tool calls.
- **texts**: every text of the sessions gives the same ids as the library of tokenizer.json, and is recovered from its ids.
- **messages**: the message's own tokens decode to the message that the test expects, end with the family's end token, and follow
  the exact header.
- **space stripped**: messages whose leading line breaks are dropped, as the official template drops them.
- **hints**: the teacher's ids are the student's with one insertion. Without the insertion, the text is the rendering without the hint.
- **merges**: message boundaries at which encoding the whole text in one go would merge two characters across the boundary into one token. Prompt and message
  are encoded separately, as they are when a student samples, so such a boundary changes nothing. Without such a boundary, the ids equal those of encoding in one go.
- **official, message**: messages that are exactly what the official template writes.
- **conversation**: whole segments that are. This is promised
  for families whose official template rewrites nothing.
"""
TRIED = """
What official templates do to messages of these sessions, and ours do not:

"""


def read_results(folder: Path) -> list[dict[str, Any]]:
    """What the tests counted, in one order."""
    lines = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    return sorted(lines, key=lambda x: (x["family"], x["tokenizer"], x["template"], x["check"]))


def rows_of(results: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """(family, tokenizer, template) -> check -> counts."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in results:
        key = (line["family"], line["tokenizer"].removeprefix("tokenizer-"), line["template"])
        rows.setdefault(key, {})[line["check"]] = line["counts"]
    return rows


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole}"


def table_of(rows: Mapping[tuple[str, str, str], Mapping[str, Any]]) -> str:
    """The table, then what the official templates do otherwise."""
    names = ("family", "tokenizer", "template", "recognised", "texts", "tokens", "messages")
    names += ("space stripped", "hints", "merges", "official, message", "conversation")
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    reasons: list[str] = []
    for (family, tokenizer, template), checks in rows.items():
        by = checks["recognised"]["by"].replace("name", "named")
        targets, teacher = checks["targets"], checks["teacher"]
        official, whole = checks.get("official"), checks.get("whole conversations")
        texts = checks["round trip"]["texts"]
        cells = [
            family,
            tokenizer,
            template,
            by,
            _of(min(texts, checks["as its file"]["texts"]), texts),
            f"{targets['tokens']:,}",
            _of(targets["messages"], targets["messages"]),
            str(targets["leading_space"]),
            _of(teacher["views"], teacher["hints"]),
            _of(checks["borders"].get("merges", 0), checks["borders"]["borders"]),
            _of(official["equal"], official["messages"]) if official else "-",
            _of(whole["equal"], whole["segments"]) if whole else "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        others = {k: n for k, n in (official or {}).items() if k not in ("messages", "equal")}
        if others:
            said = "; ".join(f"{n} x {reason}" for reason, n in sorted(others.items()))
            reasons.append(f"- {family} ({template}): {said}")
        if whole and whole.get("thoughts"):
            reasons.append(
                f"- {family} ({template}), conversations: {whole['thoughts']} x takes the think"
                " blocks from messages that something follows, and nothing else"
            )
    return "\n".join(lines) + "\n" + LEGEND + TRIED + "\n".join(reasons) + "\n"


def licences() -> str:
    """The packages and what may be done with what is in them."""
    lines = ["", "| folder | packages | licence of what is inside |", "|---|---|---|"]
    for name, folder in real_models.FOLDERS.items():
        packages = ", ".join(f"{p.index}: {p.name} {p.version}" for p in folder.packages)
        lines.append(f"| {name} | {packages} | {folder.licence} |")
    return "\n".join(lines) + "\n"


def page_of(results: Sequence[Mapping[str, Any]]) -> str:
    """The whole page."""
    return HEAD + table_of(rows_of(results)) + licences()


def main(arguments: Sequence[str] | None = None) -> int:
    """Write table.json; check or write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--cache", type=Path, default=real_models.CACHE)
    parser.add_argument("--write", action="store_true", help="write docs/real_models.md")
    given = parser.parse_args(arguments)
    results = read_results(given.cache / "results")
    table = given.cache / "table.json"
    table.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if len(rows_of(results)) < ROWS:
        print("real: the tests counted too little to check docs/real_models.md against")
        return 0
    page = page_of(results)
    if given.write:
        PAGE.write_text(page, "utf-8")
    elif not PAGE.exists() or PAGE.read_text("utf-8") != page:
        print(f"real: {PAGE.relative_to(ROOT)} is stale: make real-page writes it anew")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
