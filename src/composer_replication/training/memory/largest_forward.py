"""The largest micro-batch that a run's examples and pairs make, as the memory model counts it.

    size = largest_forward(sampler, config.train, need=lambda size: memory_need(...).total)

Steps are drawn and cut as the run draws and cuts them, so nothing is bounded or guessed: which
examples meet in one forward is known before it begins (draws/batch_sampler.py is a function of seed
and step).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.tokens.batch import micro_batches
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.tokens.tree import Forest, ForestBuilder
from composer_replication.training.draws.batch_sampler import Sampler, share
from composer_replication.training.draws.forked import without_views
from composer_replication.training.draws.packing import (
    Micro,
    assign_to_ranks,
    gradient_rows,
    pack_micro_batches,
    session_trees,
)
from composer_replication.training.forwards.channels import loss_rows
from composer_replication.training.forwards.passes import slices
from composer_replication.training.inputs import nulled_data
from composer_replication.training.memory.memory_model import StepSize

Row = tuple[int, ...]


def step_size(
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair],
    settings: TrainSettings,
) -> StepSize:
    """The size of one micro-batch of these, in the layout of the settings.

    Example: a session of 100 tokens with a pair of 8 tokens a side, of which one is the session's
    own, has 108 tokens as a tree; as rows 100, and 2 x 50 if the pair's prefix has 42.
    """
    views = [(e, view) for e in examples for view in e.hints]
    rows_of_hints = [e.teacher_ids(view) for e, view in views]
    # another site's hint, of about the same length, is drawn for each view
    rows_of_hints *= 1 + (settings.hint.contrast and len(views) > 1)
    pair_rows = [row for pair in pairs for row in _sides(pair, settings)]
    forwards = _of_rows if settings.layout == "rows" else _of_trees
    return StepSize(
        **forwards([e.ids for e in examples], pair_rows, rows_of_hints, settings.micro_tokens),
        lm=sum(b - a for e in examples for a, b in e.lm_spans),
        hinted=sum(len(view.target_ids) for _, view in views),
        sides=sum(p.num_response_tokens for p in pairs),
        actions=sum(b - a for e in examples for a, b in (action.span for action in e.actions)),
        anchors=sum(b - a for e in examples for a, b in e.anchored),
    )


def _sides(pair: PreferencePair, settings: TrainSettings) -> list[Row]:
    """The rows of a pair that are read: without a rejected side its chosen one alone."""
    return gradient_rows(pair)[: 1 + settings.preference.both_sides]


def _of_trees(
    rows: Sequence[Row], pair_rows: Sequence[Row], hint_rows: Sequence[Row], micro_tokens: int
) -> dict[str, Any]:
    """One forward, and the hints as branches of it."""
    trunk = [*rows, *pair_rows]
    forest = Forest.grow([*trunk, *hint_rows])
    plan = forest.over(range(len(trunk)))
    below, _ = forest.part_of(plan, range(len(trunk), len(forest.paths)))
    return {
        "tokens": plan.size,
        "hint_tokens": _largest_slice(hint_rows, trunk, micro_tokens),
        "below_hints": below.size,
        "read_alone": _largest_slice(hint_rows, [], micro_tokens),
        "copied_keys": sum(chain.span.depth for chain in plan.chains if chain.above),
        "longest": max(map(len, trunk), default=0),
    }


def _largest_slice(rows: Sequence[Row], known: Sequence[Row], micro_tokens: int) -> int:
    """New tokens of the largest forward that reads these rows."""
    largest = 0
    for part in slices(rows, known=known, max_tokens=micro_tokens):
        builder = ForestBuilder()
        for row in known:
            builder.add(row)
        before = builder.tokens
        for number in part:
            builder.add(rows[number])
        largest = max(largest, builder.tokens - before)
    return largest


def _of_rows(
    rows: Sequence[Row], pair_rows: Sequence[Row], hint_rows: Sequence[Row], micro_tokens: int
) -> dict[str, Any]:
    """Two forwards of padded rows, and those of the hints' rows in slices."""
    forwards = tuple(n for n in map(_padded, (rows, pair_rows)) if n)
    alone, part = 0, list[Row]()
    for row in hint_rows:  # as models/forward.py cuts them
        if part and _padded([*part, row]) > micro_tokens:
            part = []
        part.append(row)
        alone = max(alone, _padded(part))
    return {
        "tokens": sum(forwards),
        "forwards": forwards,
        "hint_tokens": alone,
        "read_alone": alone,
        "longest": max(map(len, (*rows, *pair_rows)), default=0),
    }


def _padded(rows: Sequence[Row]) -> int:
    """Tokens of rows, each as long as the longest."""
    return len(rows) * max(map(len, rows), default=0)


def largest_forward(
    sampler: Sampler,
    settings: TrainSettings,
    *,
    need: Callable[[StepSize], float],
    ranks: int = 1,
    hidden_size: int = 1,
) -> StepSize | None:
    """The micro-batch that needs the most, by `need`, of all steps of a run that draws by
    `sampler`, on any of so many ranks; None if nothing is drawn.

    Every item must fit into train.micro_tokens. Example: 8 examples of 4,096 tokens a step,
    train.micro_tokens = 8192 -> .tokens is about 8,192
    """
    found: dict[frozenset[str], StepSize] = {}
    for step in range(settings.steps):
        examples, pairs = sampler.step(step)
        for micro in micros_of_a_step(
            examples, pairs, settings, ranks=ranks, pair_weight=1 / (6 * hidden_size)
        ):
            name = frozenset(item.id for part in micro for item in part)
            if name not in found:
                found[name] = step_size(*micro, settings)
    return max(found.values(), key=need, default=None)


def largest_of_a_run(
    config: Config,
    *,
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair],
    need: Callable[[StepSize], float],
    ranks: int = 1,
    hidden_size: int = 1,
) -> StepSize:
    """`largest_forward` of these settings and imported data; what the student plays or writes
    itself (rollouts.env, train.fork) fills at most a whole train.micro_tokens."""
    is_live, settings, size = bool(config.rollouts.env), config.train, None
    if examples or pairs:
        examples = without_views(examples) if settings.fork else examples
        data = nulled_data(config, examples=examples, pairs=pairs, is_live=is_live)
        sampler, options = data.sampler(config), {"ranks": ranks, "hidden_size": hidden_size}
        size = largest_forward(sampler, settings, need=need, **options)
    full = StepSize.full_window(settings.micro_tokens)
    if size is not None and not is_live and not settings.fork:
        return size
    return max(full, size or full, key=need)


def micros_of_a_step(
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair],
    settings: TrainSettings,
    *,
    ranks: int,
    pair_weight: float,
) -> Iterator[Micro]:
    """The micro-batches of a step, those of all ranks."""
    limit = settings.micro_tokens
    if settings.hint.weight and settings.hint.focus == "decision":
        examples = [example.focused() if example.hints else example for example in examples]
    rows = loss_rows(examples, settings)
    if settings.layout == "rows":
        for rank in range(ranks):
            mine = share(rows, rank=rank, world=ranks)
            its_pairs = share(pairs, rank=rank, world=ranks)
            yield from micro_batches(mine, its_pairs, micro_tokens=limit)
        return
    pairs = pairs if settings.preference.weight else []
    trees = session_trees(rows, pairs, micro_tokens=limit)
    for part in assign_to_ranks(trees, ranks=ranks, pair_weight=pair_weight):
        yield from pack_micro_batches(part, micro_tokens=limit)
