"""Sessions with everything in them: sites with hints, pairs whose rejected side is the session's
own turn, anchors, sampled messages."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.channel_names import CHANNELS, Channel
from composer_replication.core.config.root import Config
from composer_replication.models.load_student import Student
from composer_replication.tokens.example import (
    HintView,
    PreferencePair,
    SampledMessage,
    Span,
    TrainingExample,
)
from composer_replication.training.draws.packing import Micro, pack_micro_batches, session_trees
from composer_replication.training.inputs import StepInputs
from composer_replication.training.run.health import ChannelStep
from composer_replication.training.run.state import Trainer
from composer_replication.training.step import accumulate, step_counts
from tests.training.small_student import VOCAB, make_config, start_trainer

Session = tuple[list[TrainingExample], list[PreferencePair]]
SETTINGS: dict[str, Any] = {
    "policy": {"weight": 1.0, "clip": 9.0},
    "hint": {"weight": 1.0, "teacher": "live"},
    "preference": {"weight": 1.0},
    "micro_tokens": 100_000,
}


def make_session(number: int, *, turns: int = 6, repeated: bool = False) -> Session:
    """One window of `turns` messages: each is trained, sampled, anchored or mistaken; some have a
    chosen answer in their place.

    The first pair has a separate context, as after a template that rewrote history. With `repeated`
    there are few different ids, so that branches share more than their prefixes.
    """
    rng = random.Random(number)
    high = 4 if repeated else VOCAB

    def draw(least: int, most: int) -> tuple[int, ...]:
        return tuple(rng.randrange(2, high) for _ in range(rng.randint(least, most)))

    ids: tuple[int, ...] = draw(3, 6)
    trained: list[Span] = []
    anchored: list[Span] = []
    actions: list[SampledMessage] = []
    views: list[tuple[int, tuple[int, ...], Span]] = []
    pairs: list[PreferencePair] = []
    for turn in range(turns):
        context = draw(2, 4)
        at = len(ids) + rng.randrange(len(context))
        ids += context
        a, body = len(ids), draw(2, 5)
        kind = ("trained", "hint", "action", "anchored", "pair", "both")[(turn + number) % 6]
        ids += body
        span = (a, len(ids))
        if kind in ("trained", "anchored"):
            (trained if kind == "trained" else anchored).append(span)
        if kind in ("hint", "both"):
            views.append((at, draw(2, 5), span))
        if kind == "action":
            actions.append(
                SampledMessage(
                    span=span,
                    logprobs=tuple(-3.5 + rng.gauss(0, 0.3) for _ in body),
                    advantage=rng.choice((-0.5, 0.75)),
                )
            )
        if kind in ("pair", "both"):
            name, chosen = f"s{number}:{turn}", draw(2, 5)
            prefix = ids[:a] if pairs else draw(2, 3) + ids[:a]
            if chosen != body:
                pairs.append(
                    PreferencePair(
                        id=name,
                        session_id=f"s{number}",
                        prefix_ids=prefix,
                        chosen_ids=chosen,
                        rejected_ids=body,
                    )
                )
    hints = tuple(
        HintView(
            site_id=f"s{number}:{at}:c",
            kind="bad_args",
            at=at,
            hint_ids=hint,
            span=(a, b),
            target_ids=ids[a:b],
        )
        for at, hint, (a, b) in views
    )
    example = TrainingExample(
        id=f"e{number}",
        session_id=f"s{number}",
        ids=ids,
        lm_spans=tuple(trained),
        hints=hints,
        actions=tuple(actions),
        anchored=tuple(anchored),
    )
    return [example], pairs


def sessions(*numbers: int, **kwargs: Any) -> Session:
    """The examples and pairs of several sessions."""
    logs = [make_session(number, **kwargs) for number in numbers]
    return [e for examples, _ in logs for e in examples], [p for _, pairs in logs for p in pairs]


def trainer_of(student: Student, layout: str, **train: Any) -> Trainer:
    """A trainer in a layout whose student has moved away from its start, equally in every
    layout."""
    config: Config = make_config(**{**SETTINGS, **train, "layout": layout})
    trainer = start_trainer(config, student)
    # a tree that is not exact would be found out and become rows
    assert trainer.models.layout == layout, trainer.models.why_rows
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in trainer.trainable():
            parameter.add_(
                0.05 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            )
    return trainer


def outcome(
    trainer: Trainer, data: Session, scales: dict[Channel, float] | None = None
) -> tuple[dict[Channel, ChannelStep], list[Tensor]]:
    """The losses of each channel, and every parameter's gradient of the scaled sum."""
    examples, pairs = data
    limit = trainer.settings.micro_tokens
    micros: list[Micro] = pack_micro_batches(
        session_trees(examples, pairs, micro_tokens=limit), micro_tokens=limit
    )
    trainer.optimiser.zero_grad()
    every: dict[Channel, float] = {name: 1.0 + k for k, name in enumerate(CHANNELS)}
    losses = accumulate(
        trainer, micros, step_counts(StepInputs(examples, pairs)), scales=scales or every
    )
    gradients = [
        torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in trainer.trainable()
    ]
    trainer.optimiser.zero_grad()
    return losses, gradients
