"""The largest forward that a run's examples and pairs can make, as the memory model counts it."""

from __future__ import annotations

from collections.abc import Sequence

from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.tokens.tree import Forest
from composer_replication.training.draws.packing import (
    Micro,
    gradient_rows,
    pack_micro_batches,
    session_trees,
)
from composer_replication.training.forwards.channels import loss_rows
from composer_replication.training.memory.memory_model import StepSize


def step_size(examples: Sequence[TrainingExample], pairs: Sequence[PreferencePair]) -> StepSize:
    """The size of one forward over these, in layout tree.

    Example: a session of 100 tokens with a pair of 8 tokens a side, of which one is the session's
    own, has 108 tokens.
    """
    rows = [row for item in (*examples, *pairs) for row in gradient_rows(item)]
    plan = Forest.grow(rows).over(range(len(rows)))
    views = [(e, view) for e in examples for view in e.hints]
    return StepSize(
        tokens=plan.size,
        lm=sum(b - a for e in examples for a, b in e.lm_spans),
        hinted=sum(len(view.target_ids) for _, view in views),
        sides=sum(p.num_response_tokens for p in pairs),
        actions=sum(b - a for e in examples for a, b in (action.span for action in e.actions)),
        hint_tokens=sum(len(view.hint_ids) + len(view.target_ids) for _, view in views),
        below_hints=sum(max((v.span[0] for v in e.hints), default=0) for e in examples),
        copied_keys=sum(chain.span.depth for chain in plan.chains if chain.above),
    )


def largest_forward(
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair],
    settings: TrainSettings,
) -> StepSize | None:
    """The size of the largest forward of a step that draws the longest examples and the pairs of
    their sessions; None if nothing is drawn. Every item must fit into train.micro_tokens.

    Example: examples of 4,096 tokens, train.micro_tokens = 8192 -> .tokens is about 8,192
    """
    rows = loss_rows(examples, settings)
    longest = sorted(rows, key=lambda e: -len(e.ids))[: settings.batch_examples]
    wanted = pairs if settings.preference.weight else ()
    sessions = {e.session_id for e in longest}
    drawn = [p for p in wanted if p.session_id in sessions or not rows]
    drawn += sorted(wanted, key=lambda p: -len(p.prefix_ids) - p.num_response_tokens)[:1]
    unique = list({p.id: p for p in drawn}.values())
    trees = session_trees(longest, unique, micro_tokens=settings.micro_tokens)
    micros: list[Micro] = pack_micro_batches(trees, micro_tokens=settings.micro_tokens)
    return max((step_size(*micro) for micro in micros), key=lambda size: size.tokens, default=None)
