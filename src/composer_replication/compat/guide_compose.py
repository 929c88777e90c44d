"""The earlier guide's `compose_loss`: the sum of three terms of one batch.

    batch = ComposerDataCollator(tokenizer, config)(examples, pairs)
    parts = compose_loss(model, batch, alpha_sdpo=0.1, beta_replay=0.05, reference=start)
    parts.total.backward()

    total = lm_ce + alpha_sdpo * sdpo_jsd + beta_replay * trace_replay_dpo

Differences from the guide: the hint term compares the tokens of the mistaken message at their own
positions on either side; a term with a weight and no input raises instead of being 0; DPO needs a
reference (a model, or its log-probs); sdpo_wrapper="taid" needs a taid_t. Means are over this batch
alone. `recompose train` and `train` use training/step.py, which counts tokens over the whole step.

Shapes: B rows, T length, H hints, N tokens, P pairs, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from composer_replication.compat.guide_collator import guide_keys
from composer_replication.core.errors import AlignmentError, ConfigError, DataError
from composer_replication.losses.entropy import eopd_soft_gate
from composer_replication.losses.fused import fused_divergence, fused_logprobs, fused_rows
from composer_replication.losses.preference import (
    dpo,
    sequence_logprobs,
    sequence_mean_logprobs,
    simpo,
)
from composer_replication.losses.taid import share_of, taid
from composer_replication.models.forward import final_hidden, head_of, predictors, scoring
from composer_replication.tokens.batch import Batch

_REFERENCE = ("ref_logprobs", "ref_logps")  # the guide's name, and a shorter one
# Rows of ids (B, T), and row and position of each of N loss tokens.
Ids = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossComponents:
    """The terms of `compose_loss`: unweighted means of this batch; constant 0 if the weight is 0.

    Example: LossComponents(total=<2.31>, lm_ce=<2.30>, sdpo_jsd=<0.08>, trace_replay_dpo=<0.69>)
    """

    total: Tensor
    lm_ce: Tensor
    sdpo_jsd: Tensor
    trace_replay_dpo: Tensor


def compose_loss(
    model: Any,
    batch: Mapping[str, Tensor] | Batch,
    *,
    alpha_sdpo: float = 0.1,
    beta_replay: float = 0.05,
    dpo_variant: Literal["dpo", "simpo"] = "dpo",
    simpo_beta: float = 2.0,
    simpo_gamma: float = 1.0,
    sdpo_wrapper: Literal["none", "taid", "entropy_opd"] = "none",
    taid_t: float | Tensor | None = None,
    entropy_opd_h_max: float | None = None,
    jsd_beta: float = 0.5,
    dpo_beta: float = 0.1,
    reference: Any = None,
) -> LossComponents:
    """Return the terms of a batch of `ComposerDataCollator` or `collate`, with gradient to `model`.

    The hint term is the raw JSD between the model and itself with the hint in its context (without
    gradient), on the tokens of the mistaken message; "taid" and "entropy_opd" replace it by TAID's
    or the guide's gated loss. `reference` is DPO's reference model; without it a model with
    adapters is compared with its base model, and for others the batch must hold
    dpo_{chosen,rejected}_ref_logprobs (P,).
    Raises DataError for a weighted term without inputs, AlignmentError if both sides of a hint do
    not hold the same ids, ConfigError for invalid options.
    """
    _check(alpha_sdpo, beta_replay, dpo_variant, sdpo_wrapper)
    _check_numbers(
        jsd_beta=jsd_beta,
        positive={
            "dpo_beta": dpo_beta,
            "simpo_beta": simpo_beta,
            "entropy_opd_h_max": entropy_opd_h_max,
        },
    )
    taid_share = _taid_share(sdpo_wrapper, taid_t)
    tensors = guide_keys(batch) if isinstance(batch, Batch) else batch
    head = head_of(model)
    student_BT = _need(tensors, "input_ids", "lm_ce")
    hidden_BTD = final_hidden(model, student_BT)
    row_N, position_N = _mask_positions(
        _need(tensors, "response_mask", "lm_ce"), student_BT, "lm_ce"
    )
    lm_ce = -fused_logprobs(
        predictors(hidden_BTD, row_N, position_N), head, student_BT[row_N, position_N]
    ).mean()

    zero = lm_ce.new_zeros(())
    hint = preference = zero
    if alpha_sdpo:
        options = {
            "wrapper": sdpo_wrapper,
            "t": taid_share,
            "h_max": entropy_opd_h_max,
            "beta": jsd_beta,
        }
        hint = _hint_term(model, tensors, hidden_BTD, **options)
    if beta_replay:
        sides = _pair_sides(tensors)
        if dpo_variant == "simpo":
            chosen_P, rejected_P = (_pair_logprobs(model, side, mean=True) for side in sides)
            preference = simpo(chosen_P, rejected_P, beta=simpo_beta, gamma=simpo_gamma).mean()
        else:
            reference_logps = _reference_logps(model, tensors, sides, reference)
            chosen_P, rejected_P = (_pair_logprobs(model, side, mean=False) for side in sides)
            preference = dpo(chosen_P, rejected_P, *reference_logps, beta=dpo_beta).mean()
    total = lm_ce + alpha_sdpo * hint + beta_replay * preference
    return LossComponents(total=total, lm_ce=lm_ce, sdpo_jsd=hint, trace_replay_dpo=preference)


def _check(alpha_sdpo: float, beta_replay: float, dpo_variant: str, sdpo_wrapper: str) -> None:
    if not (alpha_sdpo >= 0 and beta_replay >= 0):
        raise ConfigError(
            f"negative weights: alpha_sdpo {alpha_sdpo}, beta_replay {beta_replay}",
            where="compose_loss",
        )
    if dpo_variant not in ("dpo", "simpo"):
        raise ConfigError(
            f"unknown dpo_variant {dpo_variant!r}", where="compose_loss", fix="use dpo or simpo"
        )
    if sdpo_wrapper not in ("none", "taid", "entropy_opd"):
        raise ConfigError(
            f"unknown sdpo_wrapper {sdpo_wrapper!r}",
            where="compose_loss",
            fix="use none, taid or entropy_opd",
        )


def _check_numbers(*, jsd_beta: float, positive: Mapping[str, float | None]) -> None:
    if not 0.0 <= jsd_beta <= 1.0:
        raise ConfigError(f"jsd_beta must be within 0 and 1, not {jsd_beta}", where="compose_loss")
    for name, value in positive.items():
        if value is not None and not value > 0.0:
            raise ConfigError(f"{name} must be positive, not {value}", where="compose_loss")


def _taid_share(sdpo_wrapper: str, taid_t: float | Tensor | None) -> float:
    """Return TAID's t as a number, 0 if the wrapper is another one."""
    if sdpo_wrapper != "taid":
        return 0.0
    fix = "give TAIDScheduler.t, which you update each step"
    if taid_t is None:
        raise ConfigError("sdpo_wrapper='taid' without taid_t", where="compose_loss", fix=fix)
    try:
        return share_of(taid_t)
    except ValueError as error:
        raise ConfigError(f"taid_t: {error}", where="compose_loss", fix=fix) from error


def _need(tensors: Mapping[str, Tensor], key: str, term: str) -> Tensor:
    if key not in tensors:
        raise DataError(
            f"the term {term} has a weight, but the batch holds no {key}",
            where="compose_loss",
            fix="set its weight to 0",
        )
    return tensors[key]


def _mask_positions(mask_BT: Tensor, ids_BT: Tensor, term: str) -> tuple[Tensor, Tensor]:
    """Return row and position of each token in a mask of 0 and 1."""
    if mask_BT.shape != ids_BT.shape:
        raise AlignmentError(
            f"a mask of {tuple(mask_BT.shape)} for ids of {tuple(ids_BT.shape)}", where=term
        )
    if not bool(((mask_BT == 0) | (mask_BT == 1)).all()):
        raise AlignmentError("a mask holds 0 and 1 only: a -100 would turn the sign", where=term)
    row_N, position_N = mask_BT.nonzero(as_tuple=True)
    if not len(row_N):
        raise DataError(
            f"the term {term} has a weight, but no token is in its mask",
            where="compose_loss",
            fix="set its weight to 0",
        )
    if int(position_N.min()) == 0:
        raise AlignmentError("a mask begins at position 0, which nothing predicts", where=term)
    return row_N, position_N


def _hint_term(
    model: Any,
    tensors: Mapping[str, Tensor],
    hidden_BTD: Tensor,
    *,
    wrapper: str,
    t: float,
    h_max: float | None,
    beta: float,
) -> Tensor:
    """Return the mean over the tokens of all mistaken messages."""
    term = "sdpo_jsd"
    student_BT, teacher_BT = (
        _need(tensors, "input_ids", term),
        _need(tensors, "ctx_teacher_input_ids", term),
    )
    student_index_HN, teacher_index_HN = (
        _need(tensors, "student_response_idx", term),
        _need(tensors, "teacher_response_idx", term),
    )
    sites_H = _need(tensors, "sdpo_row", term)
    if student_index_HN.shape != teacher_index_HN.shape or not len(sites_H) == len(
        student_index_HN
    ) == len(teacher_BT):
        shapes = (
            f"{tuple(student_index_HN.shape)}, {tuple(teacher_index_HN.shape)},"
            f" {len(sites_H)} sites, {len(teacher_BT)} teacher rows"
        )
        raise AlignmentError(f"student and teacher do not line up: {shapes}", where=term)
    if not torch.equal(student_index_HN >= 0, teacher_index_HN >= 0):
        raise AlignmentError(
            "student and teacher do not line up: one side has more tokens than the other",
            where=term,
        )
    hint_N, token_N = (student_index_HN >= 0).nonzero(as_tuple=True)
    if not len(hint_N):
        raise DataError(
            f"the term {term} has a weight, but no hint is in the batch",
            where="compose_loss",
            fix="set alpha_sdpo to 0",
        )
    row_N, student_position_N, teacher_position_N = (
        sites_H[hint_N],
        student_index_HN[hint_N, token_N],
        teacher_index_HN[hint_N, token_N],
    )
    if int(torch.minimum(student_position_N, teacher_position_N).min()) == 0:
        raise AlignmentError("a target begins at position 0, which nothing predicts", where=term)
    if not torch.equal(
        student_BT[row_N, student_position_N], teacher_BT[hint_N, teacher_position_N]
    ):
        raise AlignmentError("student and teacher do not hold the same target ids", where=term)
    head = head_of(model)
    with scoring(model):
        teacher_ND = predictors(final_hidden(model, teacher_BT), hint_N, teacher_position_N)
    student_ND = predictors(hidden_BTD, row_N, student_position_N)
    if wrapper == "none":
        return fused_divergence(
            student_ND, head, teacher_ND, head, divergence="jsd", beta=beta, raw=True
        ).mean()
    if wrapper == "taid":
        return fused_rows(lambda s, z: taid(s, z, t=t), student_ND, head, teacher_ND, head).mean()
    return fused_rows(
        lambda s, z: eopd_soft_gate(s, z, h_max=h_max), student_ND, head, teacher_ND, head
    ).mean()


def _pair_sides(tensors: Mapping[str, Tensor]) -> tuple[Ids, Ids]:
    """Return chosen and rejected rows with the positions of their response tokens."""
    term = "trace_replay_dpo"
    sides = []
    for side in ("chosen", "rejected"):
        ids_PT = _need(tensors, f"dpo_{side}_input_ids", term)
        sides.append(
            (
                ids_PT,
                *_mask_positions(_need(tensors, f"dpo_{side}_response_mask", term), ids_PT, term),
            )
        )
    if len(sides[0][0]) != len(sides[1][0]):
        raise AlignmentError(
            f"{len(sides[0][0])} chosen rows and {len(sides[1][0])} rejected ones", where=term
        )
    return sides[0], sides[1]


def _pair_logprobs(model: Any, side: Ids, *, mean: bool) -> Tensor:
    """Return the sum (or mean) of the response's log-probs, per pair."""
    ids_PT, row_N, position_N = side
    hidden_ND = predictors(final_hidden(model, ids_PT), row_N, position_N)
    logp_N = fused_logprobs(
        hidden_ND, head_of(model), ids_PT[row_N, position_N], head_gradient="backward"
    )
    return (sequence_mean_logprobs if mean else sequence_logprobs)(
        logp_N, row_N, num_sequences=len(ids_PT)
    )


def _reference_logps(
    model: Any, tensors: Mapping[str, Tensor], sides: tuple[Ids, Ids], reference: Any
) -> tuple[Tensor, Tensor]:
    """Return the log-probs of both sides under the reference, without gradient."""
    term = "trace_replay_dpo"
    name = next((name for name in _REFERENCE if f"dpo_chosen_{name}" in tensors), None)
    if reference is None and name is not None:
        chosen_P, rejected_P = (
            _need(tensors, f"dpo_{side}_{name}", term) for side in ("chosen", "rejected")
        )
        for logp_P in (chosen_P, rejected_P):
            if logp_P.shape != (len(sides[0][0]),):
                raise AlignmentError(
                    f"reference log-probs of {tuple(logp_P.shape)} for {len(sides[0][0])} pairs",
                    where=term,
                )
        return chosen_P, rejected_P
    with_adapters = reference is not None
    if not with_adapters and not hasattr(model, "disable_adapter"):
        fix = "give reference=<the model at the start>, or dpo_variant='simpo', which needs none"
        raise ConfigError(
            "DPO has nothing to compare the model with", where="compose_loss", fix=fix
        )
    scoring_model = reference if with_adapters else model
    with scoring(scoring_model, adapters=with_adapters):
        return _pair_logprobs(scoring_model, sides[0], mean=False), _pair_logprobs(
            scoring_model, sides[1], mean=False
        )
