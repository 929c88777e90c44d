"""Run recipes with operators that only real data-juicer has: mappers, simhash, perplexity, ...

    judged = curate_foreign(engine, load_recipe("mine.yaml", foreign=True), pairs)
    judged.pairs[0]                  # the pair, rewritten by the mappers
    judged.dropped[0]                # why it was dropped, or None
    judged.rewritten                 # how many messages each mapper changed

Operators run in the order of the recipe. A filter reads each message by itself: its text if it
makes no call ("text_key: text" = all of it). A mapper rewrites the text of a message, also beside
calls, but never a call: a line of JSON that is rewritten is another call. A deduplicator or
selector sees one text per pair: the end of the state and both messages, or the message that its
text_key names. If an operator needs a model or a package that is not there (it is given no way to
install), the error is data-juicer's own.
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
    """The pairs after the recipe, why each was dropped (None = kept), and rewrites by mapper."""

    recipe: Recipe
    pairs: list[Pair]
    dropped: list[Dropped | None]
    rewritten: Counter[str] = field(default_factory=Counter)

    def undropped(self) -> Iterator[tuple[int, Pair]]:
        """Yield (index, pair) of the pairs that are not dropped so far."""
        return (
            (n, pair)
            for n, (pair, dropped) in enumerate(zip(self.pairs, self.dropped, strict=True))
            if dropped is None
        )

    def drop(self, number: int, reason: str, detail: str) -> None:
        """Record that an operator drops a pair."""
        self.dropped[number] = Dropped(pair_id=self.pairs[number].id, reason=reason, detail=detail)

    def curator(self) -> Curator:
        """Return a curator whose report counts these pairs."""
        counting = Curator(Recipe(name=self.recipe.name, steps=()))
        counting.idle = tuple(
            step.name for step in self.recipe.steps if step.name == "chat_template_filter"
        )
        for pair, dropped in zip(self.pairs, self.dropped, strict=True):
            if dropped is None:
                counting.judge(pair)
            else:
                counting.counts[dropped.reason] += 1
        return counting


def curate_foreign(engine: DataJuicer, recipe: Recipe, pairs: Sequence[Pair]) -> DataJuicerResult:
    """Judge and rewrite pairs, operator by operator.

    Raises ConfigError if data-juicer is missing, DataError if it fails.
    """
    engine.check()
    judged = DataJuicerResult(recipe=recipe, pairs=list(pairs), dropped=[None] * len(pairs))
    for group, group_steps in groupby(recipe.steps, key=_execution_group):
        steps = tuple(group_steps)
        if group == "ours":
            curator = Curator(Recipe(name=recipe.name, steps=steps))
            for number, pair in list(judged.undropped()):
                judged.dropped[number] = curator.judge(pair)
        elif group == "pairs":
            for step in steps:
                _run_on_pairs(engine, step, judged)
        else:
            _run_on_messages(engine, steps, judged)
    return judged


def _execution_group(step: RecipeStep) -> str | tuple[str, str]:
    """Return how a step runs: our code, on texts of whole pairs, or on (column, side)."""
    if not step.foreign and step.name not in STATISTICS:
        return "ours"
    if step.name.endswith(MAPPER):
        # One mapper per run, so that its rewrites can be counted.
        return f"prose {step.name}", step.side
    return "pairs" if not step.name.endswith("_filter") else (column_of(step), step.side)


def _run_on_pairs(engine: DataJuicer, step: RecipeStep, judged: DataJuicerResult) -> None:
    rows = []
    for number, pair in judged.undropped():
        texts = [side.text for _, side in pair.sides_of(step.side)]
        rows.append(
            {"text": "\n".join(texts if step.side else [pair.tail, *texts]), "pair": number}
        )
    kept_numbers = {row["pair"] for row in _filter_rows(engine, rows, [step])}
    for row in rows:
        if row["pair"] not in kept_numbers:
            judged.drop(row["pair"], step.name, "by its text")


def _run_on_messages(
    engine: DataJuicer, steps: Sequence[RecipeStep], judged: DataJuicerResult
) -> None:
    column, mapper = column_of(steps[0]), steps[0].name.endswith(MAPPER)
    sides = [
        (number, name, side)
        for number, pair in judged.undropped()
        for name, side in pair.sides_of(steps[0].side)
    ]
    texts = [
        (number, name, _text_for(side, "prose" if mapper else column))
        for number, name, side in sides
    ]
    rows = [
        {"text": text, "pair": number, "side": name}
        for number, name, text in texts
        if text is not None
    ]
    names = ", ".join(step.name for step in steps)
    new_texts: dict[tuple[int, str], str] = {}
    for row in _filter_rows(engine, rows, steps):
        if new_texts.setdefault((row["pair"], row["side"]), row["text"]) is not row["text"]:
            raise DataError(
                f"{names} makes several messages of one",
                where=judged.recipe.name,
                fix="leave it out: a pair has two messages",
            )
    for row in rows:
        key = row["pair"], row["side"]
        if judged.dropped[row["pair"]] is not None:
            continue
        if key not in new_texts:
            judged.drop(row["pair"], names, row["side"])
        elif new_texts[key] != row["text"]:
            judged.rewritten[names] += 1
            judged.pairs[row["pair"]] = _rewrite(
                judged.pairs[row["pair"]], row["side"], new_texts[key]
            )
            if (
                not new_texts[key].strip()
                and not getattr(judged.pairs[row["pair"]], row["side"]).calls
            ):
                judged.drop(row["pair"], names, f"{row['side']}: nothing is left of it")


def _text_for(side: PairSide, column: str) -> str | None:
    """Return what an operator reads of a message, or None if the message has no such text."""
    if column == "prose":
        return side.prose or None
    return side.text if column == "text" else None if side.calls else side.words


def _filter_rows(
    engine: DataJuicer, rows: list[dict[str, Any]], steps: Iterable[RecipeStep]
) -> list[dict[str, Any]]:
    return engine.filter_rows(rows, [operator_of(step) for step in steps]) if rows else []


def _rewrite(pair: Pair, name: str, text: str) -> Pair:
    """Return a pair with another text in one of its messages, noted in the provenance."""
    old_turn: Turn = getattr(pair, name).turn
    text_blocks = (Text(text),) if text else ()
    turn = replace(
        old_turn,
        blocks=(*text_blocks, *(block for block in old_turn.blocks if not isinstance(block, Text))),
    )
    side = {name: side_of(turn, comparison=ComparisonContext(offered=frozenset(pair.tools)))}
    evidence: Mapping[str, Any] = pair.preference.evidence
    new_evidence = {**evidence, "rewritten": sorted({*evidence.get("rewritten", ()), name})}
    return replace(
        pair, preference=replace(pair.preference, evidence=new_evidence, **{name: turn}), **side
    )
