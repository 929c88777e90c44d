"""`compose_loss` against a naive computation from full logits, and its refusals."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import composer_replication
from composer_replication import compose_loss
from composer_replication.compat.guide_collator import guide_keys
from composer_replication.compat.guide_losses import generalized_jsd_loss, taid_loss
from composer_replication.core.errors import AlignmentError, ConfigError, DataError
from composer_replication.tokens.batch import collate
from tests.training.small_student import make_example, make_pair, small_model

EXAMPLES = [
    make_example(0, hints=2),
    make_example(1, length=30, hints=0),
    make_example(2, length=27, hints=1),
]
PAIRS = [make_pair(0), make_pair(1, prefix=9, chosen=2)]
PAD = 3  # also a token of the text


@pytest.fixture
def model() -> Any:
    return small_model().double()


@pytest.fixture
def start(model: Any) -> Any:
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.mul_(1.05)
    return moved


def batch() -> dict[str, Tensor]:
    return guide_keys(collate(EXAMPLES, PAIRS, pad_id=PAD))


def logits_of(model: Any, ids: tuple[int, ...]) -> Tensor:
    """All logits of one unpadded row."""
    return model(input_ids=torch.tensor([ids])).logits[0]


def naive(
    model: Any, start: Any, *, variant: str = "dpo", wrapper: str = "none", t: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """The three terms, row by row without padding, from whole logits; the targets are read from the
    examples, not from a batch."""
    ce, ours, theirs = [], [], []
    for example in EXAMPLES:
        logits = logits_of(model, example.ids)
        for a, b in example.lm_spans:
            ce.append(
                F.cross_entropy(
                    logits[a - 1 : b - 1], torch.tensor(example.ids[a:b]), reduction="none"
                )
            )
        for view in example.hints:
            (a, b), (c, d) = view.span, example.teacher_span(view)
            ours.append(logits[a - 1 : b - 1])
            theirs.append(logits_of(model, example.teacher_ids(view))[c - 1 : d - 1].detach())
    student, teacher = torch.cat(ours), torch.cat(theirs)
    if wrapper == "taid":
        mixed = torch.softmax((1 - t) * student.detach() + t * teacher, -1)
        hint = -(mixed * torch.log_softmax(student, -1)).sum(-1).mean()
    else:
        p, q = torch.softmax(student, -1), torch.softmax(teacher, -1)
        m = 0.5 * (p + q)
        hint = (0.5 * (q * (q / m).log()).sum(-1) + 0.5 * (p * (p / m).log()).sum(-1)).mean()

    def side(scored: Any, prefix: tuple[int, ...], reply: tuple[int, ...]) -> Tensor:
        logp = torch.log_softmax(logits_of(scored, prefix + reply), -1)
        picked = logp[
            torch.arange(len(prefix) - 1, len(prefix) + len(reply) - 1), torch.tensor(reply)
        ]
        return picked.mean() if variant == "simpo" else picked.sum()

    losses = []
    for pair in PAIRS:
        chosen, rejected = (
            side(model, pair.prefix_ids, reply) for reply in (pair.chosen_ids, pair.rejected_ids)
        )
        if variant == "simpo":
            losses.append(-F.logsigmoid(2.0 * (chosen - rejected) - 1.0))
        else:
            with torch.no_grad():
                base = side(start, pair.prefix_ids, pair.chosen_ids) - side(
                    start, pair.prefix_ids, pair.rejected_ids
                )
            losses.append(-F.logsigmoid(0.1 * (chosen - rejected - base)))
    return torch.cat(ce).mean(), hint, torch.stack(losses).mean()


def grads(model: Any, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize(
    ("variant", "wrapper"), [("dpo", "none"), ("simpo", "none"), ("dpo", "taid")]
)
@pytest.mark.parametrize("typed", [False, True])
def test_terms_and_every_gradient_equal_whole_logits(
    model: Any, start: Any, variant: Any, wrapper: Any, typed: bool
) -> None:
    tensors = collate(EXAMPLES, PAIRS, pad_id=PAD) if typed else batch()
    options = {
        "dpo_variant": variant,
        "sdpo_wrapper": wrapper,
        "taid_t": 0.3 if wrapper == "taid" else None,
    }
    parts = compose_loss(
        model, tensors, alpha_sdpo=0.4, beta_replay=0.3, reference=start, **options
    )
    expected = naive(model, start, variant=variant, wrapper=wrapper, t=0.3)
    for got, want in zip(
        (parts.lm_ce, parts.sdpo_jsd, parts.trace_replay_dpo), expected, strict=True
    ):
        assert got.item() == pytest.approx(want.item(), rel=1e-9) and got.item() > 0
        for ours, theirs in zip(grads_of(model, got), grads_of(model, want), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-7, atol=1e-11)
    assert parts.total.item() == pytest.approx(
        sum(w * e.item() for w, e in zip((1, 0.4, 0.3), expected, strict=True)), rel=1e-9
    )


def grads_of(model: Any, loss: Tensor) -> list[Tensor]:
    gradients = torch.autograd.grad(
        loss, list(model.parameters()), retain_graph=True, allow_unused=True
    )
    return [
        torch.zeros_like(p) if g is None else g
        for g, p in zip(gradients, model.parameters(), strict=True)
    ]


def test_what_padding_holds_changes_nothing(model: Any, start: Any) -> None:
    ours = compose_loss(model, guide_keys(collate(EXAMPLES, PAIRS, pad_id=PAD)), reference=start)
    other_padding = compose_loss(
        model, guide_keys(collate(EXAMPLES, PAIRS, pad_id=7)), reference=start
    )
    assert ours.total.item() == other_padding.total.item()


def test_the_gated_wrapper_is_another_loss(model: Any, start: Any) -> None:
    gated = compose_loss(model, batch(), sdpo_wrapper="entropy_opd", reference=start)
    open_wide = compose_loss(
        model, batch(), sdpo_wrapper="entropy_opd", entropy_opd_h_max=1e-6, reference=start
    )
    forward = compose_loss(model, batch(), jsd_beta=0.0, reference=start)
    assert (
        open_wide.sdpo_jsd.item()
        == pytest.approx(forward.sdpo_jsd.item(), rel=1e-9)
        != gated.sdpo_jsd.item()
    )


def test_a_term_with_a_weight_and_no_input_raises(model: Any, start: Any) -> None:
    only_text = guide_keys(collate([EXAMPLES[1]], (), pad_id=PAD))
    with pytest.raises(DataError, match="sdpo_jsd has a weight, but no hint"):
        compose_loss(model, only_text, beta_replay=0.0)
    with pytest.raises(DataError, match="trace_replay_dpo has a weight, but no token"):
        compose_loss(model, only_text, alpha_sdpo=0.0, reference=start)
    without = {k: v for k, v in only_text.items() if not k.startswith(("dpo", "sdpo"))}
    with pytest.raises(DataError, match="holds no sdpo_row"):
        compose_loss(model, without, beta_replay=0.0)
    parts = compose_loss(model, without, alpha_sdpo=0.0, beta_replay=0.0)
    assert (
        parts.total.item() == parts.lm_ce.item()
        and parts.sdpo_jsd.item() == parts.trace_replay_dpo.item() == 0.0
    )
    with pytest.raises(DataError, match="lm_ce has a weight, but no token"):
        compose_loss(
            model,
            {**without, "response_mask": torch.zeros_like(without["input_ids"])},
            alpha_sdpo=0.0,
            beta_replay=0.0,
        )


def changed(batch: Mapping[str, Tensor], **tensors: Tensor) -> dict[str, Tensor]:
    return {**batch, **tensors}


def test_what_does_not_line_up_raises(model: Any, start: Any) -> None:
    tensors = batch()
    shifted = torch.where(
        tensors["teacher_response_idx"] >= 0, tensors["teacher_response_idx"] - 1, -100
    )
    with pytest.raises(AlignmentError, match="same target ids"):
        compose_loss(model, changed(tensors, teacher_response_idx=shifted), reference=start)
    with pytest.raises(AlignmentError, match="0 and 1 only"):
        compose_loss(
            model,
            changed(tensors, response_mask=torch.where(tensors["response_mask"] == 1, 1, -100)),
            reference=start,
        )
    with pytest.raises(AlignmentError, match="a mask of"):
        compose_loss(
            model, changed(tensors, response_mask=tensors["response_mask"][:, 1:]), reference=start
        )
    with pytest.raises(AlignmentError, match="do not line up"):
        compose_loss(model, changed(tensors, sdpo_row=tensors["sdpo_row"][:1]), reference=start)
    with pytest.raises(AlignmentError, match="chosen rows"):
        less = {
            f"dpo_chosen_{k}": tensors[f"dpo_chosen_{k}"][:1]
            for k in ("input_ids", "response_mask")
        }
        compose_loss(model, changed(tensors, **less), reference=start)


def test_positions_and_log_probs_that_do_not_fit_raise(model: Any, start: Any) -> None:
    tensors = batch()
    first = torch.where(
        torch.arange(tensors["teacher_response_idx"].shape[1])[None] == 0,
        0,
        tensors["teacher_response_idx"],
    )
    with pytest.raises(AlignmentError, match="position 0"):
        compose_loss(model, changed(tensors, teacher_response_idx=first), reference=start)
    fewer = tensors["teacher_response_idx"].clone()
    fewer[0, -1] = -1 if fewer[0, -1] >= 0 else fewer[0, -1]
    fewer[0, 0] = -1
    with pytest.raises(AlignmentError, match="one side has more tokens"):
        compose_loss(model, changed(tensors, teacher_response_idx=fewer), reference=start)
    for shape in ((1,), (2, 1)):
        known = {f"dpo_{side}_ref_logps": torch.zeros(shape) for side in ("chosen", "rejected")}
        with pytest.raises(AlignmentError, match="for 2 pairs"):
            compose_loss(model, changed(tensors, **known))


def test_options_that_cannot_be_used_raise(model: Any, start: Any) -> None:
    for options, message in (
        ({"sdpo_wrapper": "taid"}, "without taid_t"),
        ({"sdpo_wrapper": "tiad"}, "unknown sdpo_wrapper"),
        ({"dpo_variant": "kto"}, "unknown dpo_variant"),
        ({"alpha_sdpo": -1.0}, "negative weights"),
        ({"beta_replay": torch.nan}, "negative weights"),
        ({"sdpo_wrapper": "taid", "taid_t": 2.0}, "t must be a number within 0 and 1, not 2.0"),
        ({"sdpo_wrapper": "taid", "taid_t": torch.tensor([0.1, 0.2])}, "t must be a number"),
        ({"jsd_beta": 1.5}, "jsd_beta must be within 0 and 1"),
        ({"dpo_beta": 0.0}, "dpo_beta must be positive"),
        ({"dpo_variant": "simpo", "simpo_beta": -1.0}, "simpo_beta must be positive"),
        (
            {"sdpo_wrapper": "entropy_opd", "entropy_opd_h_max": 0.0},
            "entropy_opd_h_max must be positive",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            compose_loss(model, batch(), reference=start, **options)
    with pytest.raises(ConfigError, match="nothing to compare"):
        compose_loss(model, batch())


def test_t_may_be_a_tensor_of_one_number(model: Any, start: Any) -> None:
    options = {"sdpo_wrapper": "taid", "reference": start}
    as_tensor, as_number = (
        compose_loss(model, batch(), taid_t=t, **options) for t in (torch.tensor(0.25), 0.25)
    )
    assert as_tensor.sdpo_jsd.item() == as_number.sdpo_jsd.item()


def test_reference_log_probs_may_come_with_the_batch(model: Any, start: Any) -> None:
    at_start = compose_loss(model, batch(), reference=model)
    assert at_start.trace_replay_dpo.item() == pytest.approx(0.6931471805599453)
    with torch.no_grad():
        rows = [(p.prefix_ids, side) for p in PAIRS for side in (p.chosen_ids, p.rejected_ids)]
        sums = []
        for prefix, side in rows:
            logp = torch.log_softmax(logits_of(start, prefix + side), -1)
            sums.append(
                logp[
                    torch.arange(len(prefix) - 1, len(prefix) + len(side) - 1), torch.tensor(side)
                ].sum()
            )
    known = {
        "dpo_chosen_ref_logprobs": torch.stack(sums[::2]),
        "dpo_rejected_ref_logprobs": torch.stack(sums[1::2]),
    }
    with_model, with_numbers = (
        compose_loss(model, batch(), reference=start),
        compose_loss(model, changed(batch(), **known)),
    )
    assert with_numbers.trace_replay_dpo.item() == pytest.approx(
        with_model.trace_replay_dpo.item(), rel=1e-10
    )


# ---- the functions of compat/guide_losses.py: what their published golden cases (tests/losses) do
# not say ----


def test_shapes_masks_and_t_are_checked() -> None:
    z, mask = torch.zeros(2, 3, 5), torch.ones(2, 3)
    for call, message in (
        (lambda: generalized_jsd_loss(z, z[:, :2]), "do not match"),
        (lambda: generalized_jsd_loss(z, z, labels=torch.zeros(2, 4)), "do not match"),
        (lambda: taid_loss(z, z, mask[:1], 0.4), "do not match"),
        (lambda: taid_loss(z, z, torch.full((2, 3), -100.0), 0.4), "0 and 1 only"),
        (
            lambda: taid_loss(z, z, mask, None),
            "t must be a number",
        ),  # pyright: ignore[reportArgumentType]
        (
            lambda: composer_replication.simpo_loss(torch.zeros(2), torch.zeros(3)),
            "do not make pairs",
        ),
        (
            lambda: composer_replication.simpo_loss(torch.tensor([torch.nan]), torch.zeros(1)),
            "response empty",
        ),
        (
            lambda: composer_replication.entropy_aware_opd_loss(z, z, mask, gate="hard"),
            "gate is",
        ),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_an_empty_mask_gives_zero_with_a_zero_gradient() -> None:
    z = torch.randn(2, 3, 5, requires_grad=True)
    nothing = torch.zeros(2, 3)
    for loss in (
        generalized_jsd_loss(z, torch.randn(2, 3, 5), labels=torch.full((2, 3), -100)),
        taid_loss(z, torch.randn(2, 3, 5), nothing, 0.4),
        composer_replication.entropy_aware_opd_loss(z, torch.randn(2, 3, 5), nothing),
    ):
        (grad,) = torch.autograd.grad(loss, z)
        assert loss.item() == 0.0 and not grad.any()


def test_the_schedule_takes_no_step_without_a_site_for_an_update() -> None:
    schedule, twin = (
        composer_replication.TAIDScheduler(1000),
        composer_replication.TAIDScheduler(1000),
    )
    for step, loss in enumerate([2.0, 1.8, 0.0, 1.7, 1.6]):
        schedule.update_t(loss, step)
        if loss:
            twin.update_t(loss, step)
    assert schedule.t == twin.t > 0.4
    linear = composer_replication.TAIDScheduler(10, disable_adaptive=True)
    assert [round(linear.update_t(torch.tensor(1.0), step), 2) for step in (0, 5, 10)] == [
        0.4,
        0.7,
        1.0,
    ]
