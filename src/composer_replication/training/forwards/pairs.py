"""The preference objectives by their names (train.preference.objective), on log-probs of whole
responses.

    name        of each response      reference   loss of a pair
    dpo         sum of log-probs      the start   -log sigmoid(beta margin), smoothed
    dpo_norm    mean                  the start   the same
    ipo         mean                  the start   (margin - 1 / (2 beta))^2
    simpo       mean                  none        -log sigmoid(beta margin - gamma), smoothed

The margin is the difference of the log-ratios chosen - rejected, for simpo of the means themselves.
Log-probs are taken at temperature 1, whatever the sampling temperature of the policy. Formulae:
losses/preference.py. Shapes: P pairs, N tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from composer_replication.core.config.train_settings import PreferenceSettings
from composer_replication.core.errors import AlignmentError
from composer_replication.losses.preference import (
    dpo,
    ipo,
    margins,
    sequence_logprobs,
    sequence_mean_logprobs,
    simpo,
)

Sides = tuple[Tensor, Tensor]
"""(chosen_P, rejected_P)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairValues:
    """The unreduced loss of each pair, and its metrics: whether the chosen side scores higher, and
    how far it moved from the reference."""

    values_P: Tensor
    metrics: Mapping[str, Tensor]


def score_responses(
    settings: PreferenceSettings, logp_N: Tensor, item_N: Tensor, *, num_pairs: int
) -> Sides:
    """The score of each response, first the chosen ones: the sum of its log-probs for dpo, their
    mean for the other objectives."""
    reduce = sequence_logprobs if settings.objective == "dpo" else sequence_mean_logprobs
    scores = reduce(logp_N, item_N, num_sequences=2 * num_pairs)
    return scores[:num_pairs], scores[num_pairs:]


def pair_values(settings: PreferenceSettings, policy: Sides, reference: Sides | None) -> PairValues:
    """The loss of each pair under the objective; raises AlignmentError if it needs a reference and
    there is none."""
    beta, smoothing = settings.beta, settings.label_smoothing
    if not settings.has_reference:
        values_P = simpo(*policy, beta=beta, gamma=settings.gamma, label_smoothing=smoothing)
        return PairValues(
            values_P=values_P, metrics={"accuracy": (policy[0] - policy[1]).detach() > 0}
        )
    if reference is None:
        raise AlignmentError(f"{settings.objective} without the reference's log-probs")
    metrics = {
        "accuracy": margins(*policy, *reference).detach() > 0,
        "chosen_logratio": (policy[0] - reference[0]).detach(),
    }
    if settings.objective == "ipo":
        return PairValues(values_P=ipo(*policy, *reference, beta=beta), metrics=metrics)
    return PairValues(
        values_P=dpo(*policy, *reference, beta=beta, label_smoothing=smoothing), metrics=metrics
    )
