"""The policy loss that prime-rl's trainer imports: one function of one sequence.

    [loss]
    type = "custom"
    import_path = "composer_replication.training.backends.prime_rl_loss.loss_fn"
    kwargs = { dppo_mask_high = 0.2, dppo_mask_low = 0.2, kl_tau = 1e-3 }

prime-rl calls it for the `rl` component alone, with the tokens of that component in `loss_mask`,
and divides the sum by their number over all ranks. The other two channels are prime-rl's own
components, fed by the weight streams of training/backends/prime_rl_samples.py: the hint is
`ref_kl`, the preference a signed `ce`. Nothing of prime-rl is imported: LossInputs is read by the
names of its fields, and LossOutputs has its two. Shapes: T tokens of a sequence, N of them trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from composer_replication.core.errors import AlignmentError, ConfigError
from composer_replication.losses.sampled import kl_estimate
from composer_replication.losses.trust_region import (
    KL_TAU,
    dppo,
    dppo_symmetric,
    outside_region,
)

Mask = Literal["dppo", "ipo"]
_STREAMS = ("inference_logprobs", "ref_logprobs", "advantages", "loss_mask", "loss_weights")


class LossInputs(Protocol):
    """What prime-rl hands to a custom loss: one value per token of one sequence."""

    @property
    def trainer_logprobs(self) -> Tensor:
        """Log-probs of the tokens under the weights that are trained, with gradient."""
        ...

    @property
    def inference_logprobs(self) -> Tensor:
        """Log-probs of the server that sampled them."""
        ...

    @property
    def ref_logprobs(self) -> Tensor | None:
        """Log-probs of the reference; None if the sample has none."""
        ...

    @property
    def advantages(self) -> Tensor:
        """Advantages."""
        ...

    @property
    def loss_mask(self) -> Tensor:
        """Which tokens the component trains."""
        ...

    @property
    def loss_weights(self) -> Tensor | None:
        """The component's weight stream; None = 1 everywhere."""
        ...


@dataclass(frozen=True, slots=True)
class LossOutputs:
    """The sum over the sequence's tokens, and metrics; prime-rl divides and averages."""

    loss: Tensor
    metrics: Mapping[str, Tensor]


def loss_fn(
    inputs: LossInputs,
    *,
    alpha_sdpo: float = 0.0,
    beta_dpo: float = 0.0,
    dppo_mask_high: float = 0.2,
    dppo_mask_low: float = 0.2,
    adv_tau: float = 1.0,
    kl_tau: float = KL_TAU,
    mask: Mask = "dppo",
    ipo_threshold: float = 0.1,
) -> LossOutputs:
    """DPPO (or prime-rl's `ipo`: `mask`) of one sequence: -keep * adv_tau * A * r + kl_tau * (log
    r)^2, summed over its tokens.

    Formulae: losses/trust_region.py. The guide's `alpha_sdpo` and `beta_dpo` stay 0: a token
    without an advantage never reaches this function, and neither does the other side of a pair.
    Raises AlignmentError unless every stream is one value per token, ConfigError for a weight.
    """
    _refuse_weights(alpha_sdpo=alpha_sdpo, beta_dpo=beta_dpo, mask=mask)
    check_shapes(inputs)
    trained_T = inputs.loss_mask
    logp_N, sampled_N = inputs.trainer_logprobs[trained_T], inputs.inference_logprobs[trained_T]
    advantage_N = adv_tau * inputs.advantages[trained_T]
    if mask == "ipo":
        values_N = dppo_symmetric(
            logp_N, sampled_N, advantage_N, threshold=ipo_threshold, kl_tau=kl_tau
        )
        moved_N = logp_N.detach().exp() - sampled_N.exp()
        dropped_N = moved_N.abs() > ipo_threshold
    else:
        bounds = {"mask_low": dppo_mask_low, "mask_high": dppo_mask_high}
        values_N = dppo(logp_N, sampled_N, advantage_N, **bounds, kl_tau=kl_tau)
        dropped_N = outside_region(logp_N, sampled_N, advantage_N, **bounds)
    if inputs.loss_weights is not None:
        values_N = values_N * inputs.loss_weights[trained_T]
    return LossOutputs(values_N.sum(), _metrics(logp_N, sampled_N, advantage_N, dropped_N))


def check_shapes(inputs: LossInputs) -> None:
    """Raise AlignmentError unless every stream of a sample is 1-D and as long as its log-probs, and
    the mask is one of booleans."""
    shape = tuple(inputs.trainer_logprobs.shape)
    if len(shape) != 1:
        raise AlignmentError(
            f"trainer_logprobs has shape {shape}; the loss is of one sequence, so it has one axis",
            where="LossInputs",
            fix="pass one sequence at a time, as prime-rl's compute_loss does",
        )
    for name in _STREAMS:
        stream = getattr(inputs, name)
        if stream is not None and tuple(stream.shape) != shape:
            raise AlignmentError(
                f"{name} has shape {tuple(stream.shape)}, trainer_logprobs {shape}",
                where="LossInputs",
            )
    if inputs.loss_mask.dtype != torch.bool:
        raise AlignmentError(
            f"loss_mask is {inputs.loss_mask.dtype}, not bool: it would pick tokens by index",
            where="LossInputs",
        )


def _refuse_weights(*, alpha_sdpo: float, beta_dpo: float, mask: str) -> None:
    """Raise ConfigError for the weights that belong to other components."""
    rules = (
        (
            alpha_sdpo != 0,
            "alpha_sdpo",
            "the hint channel is prime-rl's ref_kl component: tokens of flat groups never reach"
            " the custom loss",
            "set train.hint.weight: prime_rl_samples.step_samples puts it into ref_kl_weights",
        ),
        (
            beta_dpo != 0,
            "beta_dpo",
            "the preference channel is prime-rl's ce component: a custom loss sees one side of a"
            " pair at a time",
            "set train.preference.weight: prime_rl_samples.step_samples puts it into ce_weights",
        ),
        (mask not in ("dppo", "ipo"), "mask", f"no mask {mask!r}", 'use "dppo" or "ipo"'),
    )
    for is_broken, where, problem, fix in rules:
        if is_broken:
            raise ConfigError(problem, where=f"trainer.loss.kwargs.{where}", fix=fix)


def _metrics(
    logp_N: Tensor, sampled_N: Tensor, advantage_N: Tensor, dropped_N: Tensor
) -> dict[str, Tensor]:
    """Shares of the dropped tokens and the mismatch of trainer and server (k3), as scalars."""
    k3_N = kl_estimate(sampled_N, logp_N.detach(), kind="k3")
    return {
        "is_masked": _mean(dropped_N),
        "is_masked_high": _mean(dropped_N & (advantage_N > 0)),
        "is_masked_low": _mean(dropped_N & (advantage_N < 0)),
        "masked_mismatch_kl": _mean(k3_N[dropped_N]),
        "unmasked_mismatch_kl": _mean(k3_N[~dropped_N]),
    }


def _mean(values_N: Tensor) -> Tensor:
    """The mean, 0 for no value."""
    return values_N.float().sum() / max(values_N.numel(), 1)
