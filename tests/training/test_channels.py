"""The result of each channel: values and gradients against plain forwards of single rows, and zero
everywhere else."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from composer_replication.losses.fused import fused_divergence, fused_logprobs
from composer_replication.models.forward import scoring
from composer_replication.models.load_student import Student
from composer_replication.tokens.batch import collate, count, micro_batches
from composer_replication.tokens.example import HintView, TrainingExample
from composer_replication.training.forwards.channels import channel_losses
from composer_replication.training.inputs import StepInputs
from composer_replication.training.run.state import Trainer
from composer_replication.training.step import accumulate, train_step
from tests.training.small_student import (
    WordTokenizer,
    gradients,
    make_config,
    make_example,
    make_pair,
    make_rollout,
    make_student,
    small_model,
    start_trainer,
)

EXAMPLES = [
    make_example(0, length=20, hints=1),
    make_example(1, length=31, hints=2),
    make_example(2, length=25, hints=0),
]
PAIRS = [make_pair(0), make_pair(1, prefix=11, chosen=2, rejected=9)]
ALL = {"preference": {"weight": 1.0}}


def plain_logits(model, ids: tuple[int, ...]) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].double().numpy()


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def perturbed(trainer: Trainer) -> Trainer:
    """Move the student away from its frozen start, so that every channel has a gradient."""
    torch.manual_seed(5)
    with torch.no_grad():
        for p in trainer.trainable():
            p.add_(0.05 * torch.randn_like(p))
    return trainer


def by_hand(
    student, start, examples, pairs, *, beta=0.5, temperature=1.0, dpo_beta=0.1, smoothing=0.0
) -> dict[str, float]:
    """The three means from unpadded single rows and textbook formulae."""
    ce, jsd = [], []
    for e in examples:
        logp = log_softmax(plain_logits(student, e.ids))
        ce += [-logp[j - 1, e.ids[j]] for a, b in e.lm_spans for j in range(a, b)]
        for v in e.hints:
            a, b = v.span
            teacher_ids = e.ids[: v.at] + v.hint_ids + e.ids[v.at : b]
            s = log_softmax(plain_logits(student, e.ids[:b])[a - 1 : b - 1] / temperature)
            shift = len(v.hint_ids)
            t = log_softmax(
                plain_logits(start, teacher_ids)[a - 1 + shift : b - 1 + shift] / temperature
            )
            m = np.log((1 - beta) * np.exp(s) + beta * np.exp(t))
            raw = beta * (np.exp(t) * (t - m)).sum(-1) + (1 - beta) * (np.exp(s) * (s - m)).sum(-1)
            jsd += list(raw / (beta * (1 - beta)))
    dpo = []
    for p in pairs:
        margin = 0.0
        for model, sign in ((student, 1), (start, -1)):
            for side, way in ((p.chosen_ids, 1), (p.rejected_ids, -1)):
                ids, n = p.prefix_ids + side, len(p.prefix_ids)
                logp = log_softmax(plain_logits(model, ids))
                margin += sign * way * sum(logp[j - 1, ids[j]] for j in range(n, len(ids)))
        right, wrong = (math.log1p(math.exp(-way * dpo_beta * margin)) for way in (1, -1))
        dpo.append((1 - smoothing) * right + smoothing * wrong)
    return {
        "lm_ce": float(np.mean(ce)),
        "hint": float(np.mean(jsd)),
        "preference": float(np.mean(dpo)),
    }


@pytest.mark.parametrize("layout", ["tree", "rows"])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_means_equal_plain_forwards_of_single_rows(family: str, layout: str) -> None:
    trainer = perturbed(
        start_trainer(make_config(**ALL, layout=layout), make_student(family=family))
    )
    expected = by_hand(trainer.models.student.model, small_model(family=family), EXAMPLES, PAIRS)
    losses = accumulate(
        trainer,
        micro_batches(EXAMPLES, PAIRS, micro_tokens=10_000),
        count(EXAMPLES, PAIRS),
        scales=None,
    )
    for name, value in expected.items():
        assert losses[name].loss == pytest.approx(value, rel=2e-5), name
        assert losses[name].tokens == {"lm_ce": 15, "hint": 9, "preference": 20}[name]


def test_the_settings_reach_the_formulae() -> None:
    settings = {
        "hint": {"beta": 0.2, "temperature": 3.0},
        "preference": {"weight": 1.0, "beta": 0.7, "label_smoothing": 0.3},
    }
    trainer = perturbed(start_trainer(make_config(**settings), make_student()))
    options = {"beta": 0.2, "temperature": 3.0, "dpo_beta": 0.7, "smoothing": 0.3}
    expected = by_hand(trainer.models.student.model, small_model(), EXAMPLES, PAIRS, **options)
    losses = accumulate(
        trainer,
        micro_batches(EXAMPLES, PAIRS, micro_tokens=10_000),
        count(EXAMPLES, PAIRS),
        scales=None,
    )
    for name, value in expected.items():
        assert losses[name].loss == pytest.approx(value, rel=5e-5), name


@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_the_gradients_are_those_of_those_means(layout: str) -> None:
    """A directional derivative of the by-hand means, per channel, against the accumulated
    gradient."""
    trainer = perturbed(start_trainer(make_config(**ALL, layout=layout), make_student()))
    model, start = trainer.models.student.model, small_model()
    torch.manual_seed(0)
    direction = [torch.randn_like(p) for p in trainer.trainable()]
    for name in ("lm_ce", "hint", "preference"):
        grads = gradients(trainer, EXAMPLES, PAIRS, {name: 1.0})
        slope = sum(
            float((g.double() * d.double()).sum()) for g, d in zip(grads, direction, strict=True)
        )
        ends, h = [], 2e-4
        for sign in (1, -1):
            with torch.no_grad():
                for p, d in zip(trainer.trainable(), direction, strict=True):
                    p.add_(sign * h * d)
            ends.append(by_hand(model, start, EXAMPLES, PAIRS)[name])
            with torch.no_grad():
                for p, d in zip(trainer.trainable(), direction, strict=True):
                    p.sub_(sign * h * d)
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-2), name


def test_dpo_starts_at_log_two() -> None:
    trainer = start_trainer(make_config(**ALL), make_student())
    losses = accumulate(
        trainer, micro_batches([], PAIRS, micro_tokens=999), count([], PAIRS), scales=None
    )
    assert (
        losses["preference"].loss == pytest.approx(math.log(2), abs=1e-7)
        and losses["preference"].grad_norm > 0
    )


@pytest.mark.parametrize("channel", ["lm_ce", "hint"])
def test_the_gradient_is_exactly_zero_off_the_span(channel: str) -> None:
    """At the hidden states, only the predictors of the span; at the embedded inputs, nothing from
    the last target on."""
    weights = {"lm_ce": {"weight": 0.0}, "hint": {"weight": 0.0}, channel: {"weight": 1.0}}
    trainer = perturbed(start_trainer(make_config(**weights), make_student()))
    example = make_example(3, length=30, hints=0, lm=False)
    a, b = 12, 17
    view = HintView(
        site_id="s", kind="k", at=9, hint_ids=(5, 6, 7), span=(a, b), target_ids=example.ids[a:b]
    )
    example = dataclasses.replace(
        example, **({"hints": (view,)} if channel == "hint" else {"lm_spans": ((a, b),)})
    )
    embedded: list[torch.Tensor] = []
    handle = trainer.models.student.model.get_input_embeddings().register_forward_hook(
        lambda m, i, o: embedded.append(o)
    )
    losses, hidden = channel_losses(trainer.models, collate([example], pad_id=0), count([example]))
    handle.remove()
    input_grad, hidden_grad = torch.autograd.grad(losses[0].mean_part(), [embedded[-1], hidden[0]])
    touched = hidden_grad[0].abs().sum(-1) > 0
    assert touched.nonzero()[:, 0].tolist() == list(range(a - 1, b - 1))
    assert bool((input_grad[0, b - 1 :] == 0).all()) and bool(
        (input_grad[0, : b - 1].abs().sum(-1) > 0).all()
    )


def test_only_loss_positions_are_projected(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []

    def counted(fused):
        def run(hidden_ND, head, *args, **kwargs):
            assert hidden_ND.ndim == 2
            rows.extend(
                [hidden_ND.shape[0]]
                if fused is fused_logprobs
                else [hidden_ND.shape[0], args[0].shape[0]]
            )
            return fused(hidden_ND, head, *args, **kwargs)

        return run

    monkeypatch.setattr(
        "composer_replication.training.forwards.channels.fused_logprobs", counted(fused_logprobs)
    )
    monkeypatch.setattr(
        "composer_replication.training.forwards.hinting.fused_divergence", counted(fused_divergence)
    )
    trainer = start_trainer(make_config(**ALL), make_student())
    channel_losses(trainer.models, collate(EXAMPLES, PAIRS, pad_id=0), count(EXAMPLES, PAIRS))
    assert sorted(rows) == sorted([9, 15, 9, 20, 20])  # teacher, lm_ce, student, reference, policy


# ---- invariances ----


@pytest.mark.parametrize("name", ["policy", "lm_ce", "hint", "preference"])
def test_one_batch_equals_the_sum_over_any_split(name: str) -> None:
    examples = [
        make_rollout(
            i, anchored=i > 1, advantage=i - 2.5, length=18 + 5 * i, hints=i % 3, lm=i != 2
        )
        for i in range(6)
    ]
    pairs = [make_pair(i, prefix=4 + 3 * i) for i in range(3)]
    trainer = perturbed(
        start_trainer(make_config(policy={"weight": 1.0, "clip": 9.0}, **ALL), make_student())
    )
    unsplit = gradients(trainer, examples, pairs, {name: 1.0}, micro_tokens=100_000)
    for micro_tokens in (60, 95, 140):
        parts = gradients(trainer, examples, pairs, {name: 1.0}, micro_tokens=micro_tokens)
        scale = max(float(g.abs().max()) for g in unsplit)
        assert max(
            float((a - b).abs().max()) for a, b in zip(unsplit, parts, strict=True)
        ) <= 1e-6 * max(1.0, scale)
    assert len(micro_batches(examples, pairs, micro_tokens=60)) > 3


def test_a_mean_per_micro_batch_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above is able to fail: dividing by the micro-batch's own count changes the
    gradient."""
    examples = [
        make_example(0, length=20),
        dataclasses.replace(make_example(1, length=40), lm_spans=((2, 30),)),
    ]
    trainer = start_trainer(make_config(), make_student())
    unsplit = gradients(trainer, examples, [], {"lm_ce": 1.0}, micro_tokens=100_000)
    monkeypatch.setattr(
        "composer_replication.losses.channel.ChannelLoss.mean_part", lambda self: self.values.mean()
    )
    parts = gradients(trainer, examples, [], {"lm_ce": 1.0}, micro_tokens=44)
    assert max(float((a - b).abs().max()) for a, b in zip(unsplit, parts, strict=True)) > 1e-3


def test_examples_without_hints_leave_the_hint_channel_as_it_is() -> None:
    trainer = perturbed(start_trainer(make_config(), make_student()))
    alone = gradients(trainer, EXAMPLES[:2], [], {"hint": 1.0})
    padded = gradients(
        trainer, [*EXAMPLES[:2], make_example(9, length=64, hints=0)], [], {"hint": 1.0}
    )
    assert max(float((a - b).abs().max()) for a, b in zip(alone, padded, strict=True)) <= 1e-6


def test_a_later_site_does_not_change_an_earlier_one() -> None:
    """Two views of one example give the sum of the two taken alone: no view sees the other's
    hint."""
    trainer = perturbed(start_trainer(make_config(), make_student()))
    two_sites = EXAMPLES[1]
    alone = [
        gradients(trainer, [dataclasses.replace(two_sites, hints=(v,))], [], {"hint": 1.0})
        for v in two_sites.hints
    ]
    together = gradients(trainer, [two_sites], [], {"hint": 1.0})
    for of_first, of_second, sum_ in zip(*alone, together, strict=True):
        assert torch.allclose(0.5 * of_first + 0.5 * of_second, sum_, atol=1e-6)


def test_pad_equal_to_eos_changes_nothing() -> None:
    """The text holds the pad id; the end token at the end of a span keeps its gradient."""
    eos = 1
    ids = (5, 6, eos, 7, 8, 9, eos, 10, 11, eos)
    example = TrainingExample(
        id="e",
        session_id="s",
        ids=ids,
        lm_spans=((1, 3),),
        hints=(
            HintView(
                site_id="s", kind="k", at=5, hint_ids=(eos, 12), span=(5, 7), target_ids=ids[5:7]
            ),
        ),
    )
    batch = [example, make_example(1, length=30, low=0)]
    lines = []
    for pad in (0, eos, 39):
        student = Student(name="t", model=small_model(), tokenizer=WordTokenizer(pad_token_id=pad))
        trainer = perturbed(start_trainer(make_config(**ALL), student))
        metrics = train_step(trainer, StepInputs(batch, PAIRS), step=0)
        metrics.pop("step_s")
        lines.append((metrics, [p.detach().clone() for p in trainer.trainable()]))
    for metrics, weights in lines[1:]:
        assert metrics == lines[0][0]
        assert all(torch.equal(a, b) for a, b in zip(weights, lines[0][1], strict=True))
    trainer = perturbed(start_trainer(make_config(), make_student()))
    losses, hidden = channel_losses(
        trainer.models, collate([example], pad_id=eos), count([example])
    )
    grads = [
        torch.autograd.grad(loss.mean_part(), hidden[0], retain_graph=True)[0][0].abs().sum(-1)
        for loss in losses
    ]
    assert grads[0][1] > 0 and grads[1][5] > 0  # the predictors of the two end tokens at 2 and 6


# ---- the models that score without gradient ----


def test_the_frozen_teacher_has_no_gradient_and_never_moves() -> None:
    trainer = start_trainer(make_config(**ALL), make_student())
    teacher = trainer.models.references["hint"].model
    assert (
        teacher is trainer.models.references["preference"].model
        and teacher is not trainer.models.student.model
    )
    before = [p.clone() for p in teacher.parameters()]
    start = [p.detach().clone() for p in trainer.trainable()]
    for step in range(3):
        train_step(trainer, StepInputs(EXAMPLES, PAIRS), step=step)
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, teacher.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(start, trainer.trainable(), strict=True))


def test_the_live_teacher_is_the_student_itself() -> None:
    trainer = perturbed(start_trainer(make_config(hint={"teacher": "live"}), make_student()))
    assert (
        trainer.models.references["hint"].model is trainer.models.student.model
        and "preference" not in trainer.models.references
    )
    expected = by_hand(
        trainer.models.student.model, trainer.models.student.model, EXAMPLES, [make_pair(0)]
    )
    losses = accumulate(
        trainer, micro_batches(EXAMPLES, [], micro_tokens=999), count(EXAMPLES), scales=None
    )
    assert (
        losses["hint"].loss == pytest.approx(expected["hint"], rel=1e-4)
        and losses["hint"].grad_norm > 0
    )


@pytest.mark.parametrize("teacher", ["live", "frozen"])
def test_a_step_asks_its_teacher_without_dropout_or_gradient(
    teacher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[torch.Tensor] = []

    def spying(student_ND, head, teacher_ND, teacher_head, **kwargs):
        recorded.append(teacher_ND)
        return fused_divergence(student_ND, head, teacher_ND, teacher_head, **kwargs)

    monkeypatch.setattr("composer_replication.training.forwards.hinting.fused_divergence", spying)
    trainer = start_trainer(make_config(hint={"teacher": teacher}), make_student(dropout=0.5))
    for seed in (1, 2):
        torch.manual_seed(seed)
        losses, _ = channel_losses(trainer.models, collate(EXAMPLES, pad_id=0), count(EXAMPLES))
    assert (
        torch.equal(recorded[0], recorded[1])
        and not recorded[0].requires_grad
        and losses[1].values.requires_grad
    )


def test_dropout_is_off_in_the_teacher_and_on_in_the_student() -> None:
    trainer = start_trainer(make_config(hint={"teacher": "live"}), make_student(dropout=0.5))
    model = trainer.models.student.model
    ids_BT = torch.arange(2, 20)[None]

    def hidden() -> torch.Tensor:
        return model.get_decoder()(input_ids=ids_BT, use_cache=False).last_hidden_state

    with trainer.models.references["hint"].scoring():
        assert torch.equal(hidden(), hidden()) and not hidden().requires_grad
    assert model.training and not torch.equal(hidden(), hidden())
    with pytest.raises(ZeroDivisionError), scoring(model):
        _ = 1 / 0
    assert model.training
