"""Recipes with operators that only real data-juicer has: mappers, simhash, perplexity and the like,
run in the order of the recipe.

    judged = curate_foreign(engine, load_recipe("mine.yaml", foreign=True), pairs)
    judged.pairs[0]                  # the pair, or what the mappers made of it; judged.dropped[0] says why it is gone, or None
    judged.rewritten                 # how many messages each mapper changed

A filter reads each message by itself, what it says where it calls nothing ("text_key: text" = all
of it). A mapper rewrites what a message says, beside its calls too, and never a call: a line of
JSON that is rewritten is another call. A deduplicator or selector sees one text per pair: the end
of the state and both messages, or the message that its text_key names. What an operator needs and
cannot have there (a model, a package: it is given no way to install) is data-juicer's error, with
its words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.core.trace import Text, Turn
from composer_replication.data.curate.curator import Curator, Dropped
from composer_replication.data.curate.data_juicer import DataJuicer, column_of, operator_of
from composer_replication.data.curate.pair import Pair, PairSide, side_of
from composer_replication.data.curate.recipe import MAPPER, Recipe, RecipeStep
from composer_replication.data.curate.statistics import STATISTICS
from composer_replication.data.replay.actions import ComparisonContext


@dataclass(slots=True)
class DataJuicerResult:
    """The pairs as they are after the recipe, and beside each why it was dropped, or None;
    `rewritten` counts messages by mapper."""

    recipe: Recipe
    pairs: list[Pair]
    dropped: list[Dropped | None]
    rewritten: Counter[str] = field(default_factory=Counter)

    def alive(self) -> Iterator[tuple[int, Pair]]:
        """Those that nothing was found against yet, with their numbers."""
        return (
            (n, pair)
            for n, (pair, dropped) in enumerate(zip(self.pairs, self.dropped, strict=True))
            if dropped is None
        )

    def drop(self, number: int, reason: str, detail: str) -> None:
        """Note what dropped a pair."""
        self.dropped[number] = Dropped(pair_id=self.pairs[number].id, reason=reason, detail=detail)

    def curator(self) -> Curator:
        """A curator that has seen what came of it, for its report."""
        told = Curator(Recipe(name=self.recipe.name, steps=()))
        told.idle = tuple(
            step.name for step in self.recipe.steps if step.name == "chat_template_filter"
        )
        for pair, dropped in zip(self.pairs, self.dropped, strict=True):
            if dropped is None:
                told.judge(pair)
            else:
                told.counts[dropped.reason] += 1
        return told


def curate_foreign(engine: DataJuicer, recipe: Recipe, pairs: Sequence[Pair]) -> DataJuicerResult:
    """Judge and rewrite pairs, operator after operator; raises ConfigError where data-juicer is not
    there, DataError where it fails."""
    engine.check()
    judged = DataJuicerResult(recipe=recipe, pairs=list(pairs), dropped=[None] * len(pairs))
    for how, run in groupby(recipe.steps, key=_how):
        steps = tuple(run)
        if how == "ours":
            curator = Curator(Recipe(name=recipe.name, steps=steps))
            for number, pair in list(judged.alive()):
                judged.dropped[number] = curator.judge(pair)
        elif how == "pairs":
            for step in steps:
                _by_pair(engine, step, judged)
        else:
            _by_message(engine, steps, judged)
    return judged


def _how(step: RecipeStep) -> str | tuple[str, str]:
    """How a step runs: by our own code, over texts of whole pairs, or over messages (what is read
    of which side)."""
    if not step.foreign and step.name not in STATISTICS:
        return "ours"
    if step.name.endswith(MAPPER):
        # one mapper a run: it is told how many messages it changed
        return f"prose {step.name}", step.side
    return "pairs" if not step.name.endswith("_filter") else (column_of(step), step.side)


def _by_pair(engine: DataJuicer, step: RecipeStep, judged: DataJuicerResult) -> None:
    rows = []
    for number, pair in judged.alive():
        texts = [side.text for _, side in pair.sides_of(step.side)]
        rows.append(
            {"text": "\n".join(texts if step.side else [pair.tail, *texts]), "pair": number}
        )
    left = {row["pair"] for row in _kept(engine, rows, [step])}
    for row in rows:
        if row["pair"] not in left:
            judged.drop(row["pair"], step.name, "by its text")


def _by_message(engine: DataJuicer, steps: Sequence[RecipeStep], judged: DataJuicerResult) -> None:
    column, mapper = column_of(steps[0]), steps[0].name.endswith(MAPPER)
    sides = [
        (number, name, side)
        for number, pair in judged.alive()
        for name, side in pair.sides_of(steps[0].side)
    ]
    texts = [
        (number, name, _read(side, "prose" if mapper else column)) for number, name, side in sides
    ]
    rows = [
        {"text": text, "pair": number, "side": name}
        for number, name, text in texts
        if text is not None
    ]
    names = ", ".join(step.name for step in steps)
    left: dict[tuple[int, str], str] = {}
    for row in _kept(engine, rows, steps):
        if left.setdefault((row["pair"], row["side"]), row["text"]) is not row["text"]:
            raise DataError(
                f"{names} makes several messages of one",
                where=judged.recipe.name,
                fix="leave it out: a pair has two messages",
            )
    for row in rows:
        place = row["pair"], row["side"]
        if judged.dropped[row["pair"]] is not None:
            continue
        if place not in left:
            judged.drop(row["pair"], names, row["side"])
        elif left[place] != row["text"]:
            judged.rewritten[names] += 1
            judged.pairs[row["pair"]] = _rewritten(
                judged.pairs[row["pair"]], row["side"], left[place]
            )
            if (
                not left[place].strip()
                and not getattr(judged.pairs[row["pair"]], row["side"]).calls
            ):
                judged.drop(row["pair"], names, f"{row['side']}: nothing is left of it")


def _read(side: PairSide, column: str) -> str | None:
    """What an operator reads of a message; None where there is nothing of that sort."""
    if column == "prose":
        return side.prose or None
    return side.text if column == "text" else None if side.calls else side.words


def _kept(
    engine: DataJuicer, rows: list[dict[str, Any]], steps: Iterable[RecipeStep]
) -> list[dict[str, Any]]:
    return engine.filter_rows(rows, [operator_of(step) for step in steps]) if rows else []


def _rewritten(pair: Pair, name: str, text: str) -> Pair:
    """A pair with other words in one of its messages; the provenance says so."""
    old: Turn = getattr(pair, name).turn
    said = (Text(text),) if text else ()
    turn = replace(
        old, blocks=(*said, *(block for block in old.blocks if not isinstance(block, Text)))
    )
    side = {name: side_of(turn, comparison=ComparisonContext(offered=frozenset(pair.tools)))}
    evidence: Mapping[str, Any] = pair.preference.evidence
    told = {**evidence, "rewritten": sorted({*evidence.get("rewritten", ()), name})}
    return replace(pair, preference=replace(pair.preference, evidence=told, **{name: turn}), **side)
