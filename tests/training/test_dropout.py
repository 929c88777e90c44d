"""A student with dropout is trained with it, and every forward without gradient has none, in either
layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from composer_replication.compat import guide_compose as guide
from composer_replication.losses.fused import fused_divergence
from composer_replication.losses.preference import dpo
from composer_replication.models.forward import final_hidden, scoring
from composer_replication.tokens.batch import collate, count
from composer_replication.training.forwards import channels, hinting, pairs
from composer_replication.training.inputs import StepInputs
from composer_replication.training.run.state import Trainer
from composer_replication.training.step import train_step
from tests.training.small_student import (
    make_config,
    make_example,
    make_pair,
    make_student,
    small_model,
    start_trainer,
)
from tests.training.test_channels import log_softmax, perturbed, plain_logits

EXAMPLES = [make_example(0, length=20, hints=1), make_example(1, length=31, hints=2)]
PAIRS = [make_pair(0), make_pair(1, prefix=11, chosen=2, rejected=9)]
LAYOUTS = pytest.mark.parametrize("layout", ["tree", "rows"])


def trainer_with(layout: str, **train: Any) -> Trainer:
    settings = {"preference": {"weight": 1.0}, "layout": layout, **train}
    return perturbed(start_trainer(make_config(**settings), make_student(dropout=0.5)))


def scored(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, *, seed: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """(the teacher's hidden states, the reference's log-probs of both sides, every value of the
    student), after seeding."""
    recorded: dict[str, Tensor] = {}

    def hint(
        student_ND: Tensor, head: Any, teacher_ND: Tensor, teacher_head: Any, **kwargs: Any
    ) -> Tensor:
        recorded["teacher"] = teacher_ND
        return fused_divergence(student_ND, head, teacher_ND, teacher_head, **kwargs)

    def couple(
        chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, **kwargs: Any
    ) -> Tensor:
        recorded["reference"] = torch.cat([ref_chosen, ref_rejected])
        return dpo(chosen, rejected, ref_chosen, ref_rejected, **kwargs)

    monkeypatch.setattr(hinting, "fused_divergence", hint)
    monkeypatch.setattr(pairs, "dpo", couple)
    torch.manual_seed(seed)
    batch = collate(EXAMPLES, PAIRS, pad_id=0)
    losses, _ = channels.channel_losses(trainer.models, batch, count(EXAMPLES, PAIRS))
    return recorded["teacher"], recorded["reference"], [loss.values.detach() for loss in losses]


@LAYOUTS
@pytest.mark.parametrize("teacher", ["live", "frozen", "ema"])
def test_teacher_and_reference_have_none_and_the_student_has(
    teacher: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_with(layout, hint={"teacher": teacher})
    teacher_ND, reference_2P, values = scored(trainer, monkeypatch, seed=1)
    again_ND, again_2P, others = scored(trainer, monkeypatch, seed=2)
    assert torch.equal(teacher_ND, again_ND) and torch.equal(reference_2P, again_2P)
    assert all(not torch.allclose(a, b, rtol=1e-3) for a, b in zip(values, others, strict=True))
    assert all(
        torch.equal(a, b)
        for a, b in zip(values, scored(trainer, monkeypatch, seed=1)[2], strict=True)
    )

    def own_hidden(ids: tuple[int, ...]) -> Tensor:
        with trainer.models.references["hint"].scoring() as model:
            return final_hidden(model, torch.tensor([ids]))[0]

    places = [(e.teacher_ids(v), e.teacher_span(v)) for e in EXAMPLES for v in e.hints]
    expected_ND = torch.cat([own_hidden(ids)[a - 1 : b - 1] for ids, (a, b) in places])
    assert torch.allclose(teacher_ND, expected_ND, rtol=1e-4, atol=1e-5)
    start, sums = small_model().eval(), []
    for side in ("chosen_ids", "rejected_ids"):
        for pair in PAIRS:
            n, ids = len(pair.prefix_ids), pair.prefix_ids + getattr(pair, side)
            logp = log_softmax(plain_logits(start, ids))
            sums.append(sum(logp[j - 1, ids[j]] for j in range(n, len(ids))))
    assert reference_2P.tolist() == pytest.approx(sums, rel=1e-5)


def test_the_student_is_a_plain_forward_in_training_mode() -> None:
    """One row, the same random numbers: the values depend on the dropout of that forward and on no
    other."""
    trainer = trainer_with("rows", hint={"weight": 0.0}, preference={"weight": 0.0})
    example = make_example(3, length=24, hints=0)
    torch.manual_seed(7)
    (loss,), _ = channels.channel_losses(
        trainer.models, collate([example], pad_id=0), count([example])
    )
    torch.manual_seed(7)
    logp = log_softmax(plain_logits(trainer.models.student.model, example.ids))
    assert loss.values.tolist() == pytest.approx(
        [-logp[j - 1, example.ids[j]] for j in range(4, 9)], rel=1e-5
    )


@LAYOUTS
def test_every_pass_of_a_step_sees_the_same_dropout(layout: str) -> None:
    """A step that also measures each channel over the parameters trains on the very numbers of a
    step that does not."""
    lines = [
        train_step(trainer_with(layout, grad_every=every), StepInputs(EXAMPLES, PAIRS), step=1)
        for every in (1, 2)
    ]
    assert "hint/grad_norm_parameters" in lines[0] and "hint/grad_norm_parameters" not in lines[1]
    for key in (
        "loss",
        "grad_norm",
        "hint/loss",
        "hint/grad_norm",
        "lm_ce/loss",
        "preference/loss",
    ):
        assert lines[0][key] == lines[1][key]
    next_step = train_step(trainer_with(layout), StepInputs(EXAMPLES, PAIRS), step=2)
    assert next_step["lm_ce/loss"] != lines[0]["lm_ce/loss"]


def test_compose_loss_asks_teacher_and_reference_without_dropout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[Tensor] = []

    def hint(
        student_ND: Tensor, head: Any, teacher_ND: Tensor, teacher_head: Any, **kwargs: Any
    ) -> Tensor:
        recorded.append(teacher_ND)
        return fused_divergence(student_ND, head, teacher_ND, teacher_head, **kwargs)

    def couple(
        chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, **kwargs: Any
    ) -> Tensor:
        recorded.append(torch.stack([ref_chosen, ref_rejected]))
        return dpo(chosen, rejected, ref_chosen, ref_rejected, **kwargs)

    monkeypatch.setattr(guide, "fused_divergence", hint)
    monkeypatch.setattr(guide, "dpo", couple)
    model, start, totals = small_model(dropout=0.5).train(), small_model(dropout=0.5).train(), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        totals.append(
            guide.compose_loss(
                model, collate(EXAMPLES, PAIRS, pad_id=0), reference=start
            ).total.item()
        )
    assert (
        torch.equal(recorded[0], recorded[2])
        and torch.equal(recorded[1], recorded[3])
        and totals[0] != totals[1]
    )
    assert (
        not any(tensor.requires_grad for tensor in recorded) and model.training and start.training
    )


def test_another_seed_is_another_dropout_and_the_same_seed_the_same() -> None:
    def first_loss(seed: int) -> float:
        trainer = trainer_with("tree")
        trainer.config = trainer.config.model_copy(update={"seed": seed})
        return train_step(trainer, StepInputs(EXAMPLES, PAIRS), step=0)["loss"]

    assert first_loss(3) == first_loss(3) != first_loss(4)


def test_scoring_leaves_every_module_in_its_own_mode() -> None:
    model = small_model(dropout=0.5).train()
    model.model.layers[0].self_attn.eval()  # frozen by its owner
    before = [module.training for module in model.modules()]
    for _ in range(2):
        with scoring(model):
            assert not any(module.training for module in model.modules())
        assert [module.training for module in model.modules()] == before and len(set(before)) == 2
    inner = nn.Sequential(nn.Dropout(), nn.Linear(2, 2)).eval()
    inner[0].train()
    with scoring(inner):
        assert not inner[0].training
    assert inner[0].training and not inner.training
