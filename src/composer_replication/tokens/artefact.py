"""The data set on disk: examples.jsonl, pairs.jsonl, skipped.jsonl and meta.json.

It is written in one pass and checked again on reading. The files of a refused build can be looked
at, but not trained on: its meta.json says why it was refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.core.errors import ComposerError, DataError
from composer_replication.core.files import atomic_writer
from composer_replication.core.jsonl import dumps, read_lines, write_json
from composer_replication.tokens.dataset import Item
from composer_replication.tokens.example import (
    PreferencePair,
    TrainingExample,
    example_from_json,
    example_to_json,
    pair_from_json,
    pair_to_json,
)
from composer_replication.tokens.skipped import Skipped

SCHEMA = 1
EXAMPLES, PAIRS, SKIPPED, META = "examples.jsonl", "pairs.jsonl", "skipped.jsonl", "meta.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """The counts of a build: examples, hint views, pairs, tokens, and skips by "channel/reason".

    `hinted_sites` are the failing calls whose hints the views hold. `context_kept` of
    `context_available` tokens are above the mistaken messages; `views_with_evidence` have every
    turn in their window that the hint or the call refers to (`views_that_refer` refer to any at
    all). `effective_views` = (sum n)^2 / sum n^2 over views of n target tokens: the number of
    equally long views that would share a mean over tokens in the same way.
    """

    examples: int
    pairs: int
    views: int
    views_by_kind: Mapping[str, int]
    views_by_rendering: Mapping[str, int]
    trained_messages: int
    tokens: int
    trained_tokens: int
    target_tokens: int
    anchors: int
    anchored_tokens: int
    longest: int
    skipped: Mapping[str, int]
    hinted_sites: int = 0
    context_kept: int = 0
    context_available: int = 0
    views_that_refer: int = 0
    views_with_evidence: int = 0
    effective_views: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A data set read back: every example and pair has passed its constructor's checks again."""

    examples: tuple[TrainingExample, ...]
    pairs: tuple[PreferencePair, ...]
    meta: Mapping[str, Any]


def count_items(items: Iterable[Item], *, into: Counter[str]) -> Iterator[Item]:
    """Pass items on and count them in `into`, under the names that `build_report` reads."""
    for item in items:
        if isinstance(item, Skipped):
            into[f"skipped {item.channel}/{item.reason}"] += item.count
        elif isinstance(item, PreferencePair):
            into["pairs"] += 1
        else:
            into["examples"] += 1
            into["tokens"] += len(item.ids)
            into["longest"] = max(into["longest"], len(item.ids))
            into["trained_messages"] += len(item.lm_spans)
            into["trained_tokens"] += sum(b - a for a, b in item.lm_spans)
            into["anchors"] += len(item.anchored)
            into["anchored_tokens"] += sum(b - a for a, b in item.anchored)
            for view in item.hints:
                into["views"] += 1
                into["hinted_sites"] += len(view.site_ids)
                into["target_tokens"] += len(view.target_ids)
                into["target_squares"] += len(view.target_ids) ** 2
                if (context := view.context) is not None:
                    into["context_kept"] += context.kept
                    into["context_available"] += context.available
                    into["views_that_refer"] += bool(context.refers_to)
                    into["views_with_evidence"] += not context.lost
                into[f"kind {view.kind}"] += 1
                into[f"rendering {view.rendering}"] += 1
        yield item


def build_report(counts: Counter[str]) -> BuildReport:
    """The counts of `count_items` as a report."""

    def counts_below(prefix: str) -> dict[str, int]:
        return {
            name.removeprefix(prefix): n
            for name, n in sorted(counts.items())
            if name.startswith(prefix)
        }

    numbers = (
        "examples",
        "pairs",
        "views",
        "trained_messages",
        "tokens",
        "trained_tokens",
        "target_tokens",
        "anchors",
        "anchored_tokens",
        "longest",
        "hinted_sites",
        "context_kept",
        "context_available",
        "views_that_refer",
        "views_with_evidence",
    )
    squares = counts["target_squares"]
    return BuildReport(
        **{name: counts[name] for name in numbers},
        views_by_kind=counts_below("kind "),
        views_by_rendering=counts_below("rendering "),
        skipped=counts_below("skipped "),
        effective_views=round(counts["target_tokens"] ** 2 / squares, 2) if squares else 0.0,
    )


def write_dataset(
    folder: Path,
    items: Iterable[Item],
    *,
    meta: Mapping[str, Any],
    judge: Callable[[BuildReport], ComposerError | None] = lambda report: None,
) -> BuildReport:
    """Write items as they come, holding one at a time.

    `meta` (from `Renderer.describe`, and the settings) is written next to the counts, with the
    error for which `judge` refuses the build, if it does: `load_dataset` raises it.
    """
    counts: Counter[str] = Counter()
    with (
        atomic_writer(folder / EXAMPLES) as examples,
        atomic_writer(folder / PAIRS) as pairs,
        atomic_writer(folder / SKIPPED) as skipped,
    ):
        for item in count_items(items, into=counts):
            if isinstance(item, TrainingExample):
                examples.write(dumps(example_to_json(item)) + "\n")
            elif isinstance(item, PreferencePair):
                pairs.write(dumps(pair_to_json(item)) + "\n")
            else:
                skipped.write(
                    dumps({k: v for k, v in dataclasses.asdict(item).items() if v}) + "\n"
                )
    report = build_report(counts)
    error = judge(report)
    refused = {} if error is None else {"refused": {"what": error.what, "fix": error.fix}}
    write_json(
        folder / META,
        {"schema": SCHEMA, **meta, "counts": dataclasses.asdict(report), **refused},
    )
    return report


def load_dataset(
    folder: Path, *, tokenizer_sha256: str | None = None, allow_refused: bool = False
) -> Dataset:
    """Read a data set back.

    Raises DataError for another schema, for counts that do not match, or if it was built for
    another tokenizer; also if its build was refused, unless it is only to be looked at
    (`allow_refused`).
    """
    meta = _read_meta(folder / META)
    if meta.get("schema") != SCHEMA:
        raise DataError(
            f"schema {meta.get('schema')!r}, this version reads {SCHEMA}",
            where=str(folder),
            fix="run `recompose build` again",
        )
    if (refused := meta.get("refused")) and not allow_refused:
        raise DataError(
            f"the build of these examples was refused: {refused['what']}",
            where=str(folder),
            fix=refused.get("fix", "run `recompose build` again"),  # earlier builds noted no remedy
        )
    if tokenizer_sha256 is not None and meta.get("tokenizer_sha256") != tokenizer_sha256:
        raise DataError(
            "the examples were built for another tokenizer",
            where=str(folder),
            fix="run `recompose build` again with this student",
        )
    examples = tuple(example_from_json(value) for _, value in read_lines(folder / EXAMPLES))
    pairs = tuple(pair_from_json(value) for _, value in read_lines(folder / PAIRS))
    counts = meta.get("counts", {})
    if (len(examples), len(pairs)) != (counts.get("examples"), counts.get("pairs")):
        raise DataError(
            f"{len(examples)} examples and {len(pairs)} pairs, but meta.json counts"
            f" {counts.get('examples')} and {counts.get('pairs')}",
            where=str(folder),
            fix="run `recompose build` again",
        )
    return Dataset(examples=examples, pairs=pairs, meta=meta)


def _read_meta(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise DataError(f"no file {path}", fix="run `recompose build` first")
    try:
        meta = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"not JSON: {error}", where=str(path), fix="run `recompose build` again"
        ) from error
    if not isinstance(meta, dict):
        raise DataError("not a JSON object", where=str(path), fix="run `recompose build` again")
    return meta
