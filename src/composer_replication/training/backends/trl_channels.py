"""The hint and preference channels beside TRL's policy loss: their values on captured hidden
states, and the sums of a step.

TRL pads prompts on the left, so position j of a row's unpadded ids is column `offset + j`.
Shapes: B rows, T padded length, N loss tokens, P pairs, D hidden size, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.channel_names import CHANNELS, Channel
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import AlignmentError, ConfigError
from composer_replication.losses.channel import ChannelLoss
from composer_replication.losses.fused import fused_logprobs
from composer_replication.models.forward import Head, decoder_of, head_of
from composer_replication.tokens.batch import Batch, Counts, Rows, Targets
from composer_replication.training.forwards.hinting import hint_loss
from composer_replication.training.forwards.pairs import Sides, pair_values, score_responses
from composer_replication.training.forwards.reference import Reference
from composer_replication.training.run.health import ChannelStep

TOKENS, LOSS, SQUARES, INPUTS = range(4)


@contextmanager
def capture_hidden(model: Any) -> Iterator[list[Tensor]]:
    """The final hidden states of every forward in this block; they stay connected to the model.

    with capture_hidden(model) as captured:
        loss = trainer.compute_loss(...)
    captured[0]                             # (B, T, D)
    """
    captured: list[Tensor] = []
    handle = decoder_of(model).register_forward_hook(
        lambda module, inputs, out: captured.append(out.last_hidden_state)
    )
    try:
        yield captured
    finally:
        handle.remove()


def shift_to_padding(targets: Targets, *, ids_BT: Tensor, offset_B: Tensor) -> Targets:
    """Targets of unpadded rows, moved to their positions in left-padded ones; raises AlignmentError
    if another token is there."""
    position_N = targets.position_N + offset_B[targets.row_N]
    if not torch.equal(ids_BT[targets.row_N, position_N], targets.ids_N):
        raise AlignmentError(
            "the padded batch does not hold the ids of the hint's target where they should be"
        )
    return replace(targets, position_N=position_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """The student, the models that score without a gradient, and the settings of the channels.

    Raises ConfigError for a hint setting that this backend does not have.
    """

    model: Any
    references: Mapping[Channel, Reference]
    settings: TrainSettings

    def __post_init__(self) -> None:
        hint = self.settings.hint
        rules = (
            (hint.teacher in ("ema", "trust_region"), "teacher", "use frozen or live"),
            (hint.combination != "additive", "combination", "use additive"),
            (hint.contrast, "contrast", "set it to false"),
            (hint.focus != "message", "focus", 'set it to "message"'),
            (hint.difficulty, "difficulty", "set it to false"),
            (hint.importance_clip > 0, "importance_clip", "set it to 0"),
            (
                hint.divergence == "taid" and hint.taid.schedule != "fixed",
                "taid.schedule",
                "use fixed",
            ),
        )
        for is_broken, name, fix in rules if hint.weight else ():
            if is_broken:
                raise ConfigError(
                    f"the TRL backend has no hint.{name} of this kind",
                    where=f"train.hint.{name}",
                    fix=fix,
                )

    def hint(
        self, batch: Batch, hidden_BTD: Tensor, places: Targets, *, counts: Counts
    ) -> ChannelLoss:
        """The hint loss at every token of the views, on the hidden states of the policy's forward;
        `places` are the target tokens in it."""
        hint = self.settings.hint
        teacher = self._score("hint", batch.teacher, batch.hint_teacher)
        student = (places.predictors(hidden_BTD), head_of(self.model))
        return hint_loss(hint, student, [teacher], batch, counts=counts, taid_t=hint.taid.t_start)

    def preference(self, batch: Batch, hidden_BTD: Tensor, *, global_pairs: int) -> ChannelLoss:
        """The loss of every pair, with log-probs at temperature 1, whatever the sampling
        temperature."""
        settings = self.settings.preference

        def sides(hidden_ND: Tensor, head: Head) -> Sides:
            logp_N = fused_logprobs(hidden_ND, head, batch.response.ids_N, head_gradient="backward")
            return score_responses(
                settings, logp_N, batch.response.item_N, num_pairs=batch.num_pairs
            )

        reference = sides(*self._score("preference", batch.pair, batch.response))
        policy = sides(batch.response.predictors(hidden_BTD), head_of(self.model))
        pair_losses = pair_values(settings, policy, reference)
        return ChannelLoss(
            name="preference",
            values=pair_losses.values_P,
            tokens=len(batch.response),
            global_units=global_pairs,
            metrics=pair_losses.metrics,
        )

    def _score(self, name: Channel, rows: Rows, targets: Targets) -> tuple[Tensor, Head]:
        """Hidden states that predict the targets, and the head, of a model that gets no
        gradient."""
        reference = self.references[name]
        hidden_ND = reference.predictors(rows, targets, max_tokens=self.settings.micro_tokens)
        return hidden_ND, reference.head()


def new_sums(device: torch.device) -> Tensor:
    """Tokens, loss, squared gradient norm and inputs of every channel (C, 4), at zero."""
    return torch.zeros(len(CHANNELS), 4, dtype=torch.float64, device=device)


def channel_steps(sums: Tensor, *, expected: Mapping[Channel, int]) -> dict[Channel, ChannelStep]:
    """The measurements of a step, from the sums over its micro-batches and ranks; raises
    AlignmentError if another number of tokens reached a loss than was counted."""
    steps: dict[Channel, ChannelStep] = {}
    for name, (tokens, loss, squares, inputs) in zip(CHANNELS, sums.tolist(), strict=True):
        if name in expected and int(tokens) != expected[name]:
            raise AlignmentError(
                f"channel {name}: {int(tokens)} tokens reached the loss, {expected[name]} were"
                " counted beforehand"
            )
        steps[name] = ChannelStep(
            inputs=int(inputs), tokens=int(tokens), loss=loss, grad_norm=math.sqrt(squares)
        )
    return steps


def only_forward(captured: Sequence[Tensor]) -> Tensor:
    """The hidden states of the one forward that was made; raises AlignmentError if there were none
    or several, so that no wrong one is taken."""
    if len(captured) != 1:
        raise AlignmentError(
            f"TRL's loss made {len(captured)} forward passes, not one: its hidden states cannot be"
            " told apart"
        )
    return captured[0]
