"""Policy and anchors in a step, the slow average, and empty steps: against plain forwards of single
rows."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication.core.channel_names import CHANNELS, Channel
from composer_replication.core.errors import AlignmentError, DataError
from composer_replication.tokens.batch import collate, micro_batches
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training.forwards.channels import channel_losses, loss_rows
from composer_replication.training.inputs import StepInputs
from composer_replication.training.loop import train
from composer_replication.training.run.checkpoint import load_extra
from composer_replication.training.run.health import ChannelStep
from composer_replication.training.run.state import Trainer
from composer_replication.training.step import accumulate, step_counts, train_step
from tests.training.small_student import (
    make_config,
    make_example,
    make_pair,
    make_rollout,
    make_run,
    make_student,
    small_model,
    start_trainer,
)
from tests.training.test_channels import log_softmax, perturbed, plain_logits

ROLLOUTS = [
    make_rollout(0, advantage=0.75, length=24, hints=1, lm=False),
    make_rollout(1, advantage=-0.25, anchored=True, length=31, hints=2, lm=False),
    make_rollout(2, advantage=0.5, spans=((2, 20),), length=25, hints=0, lm=False),
    make_rollout(3, advantage=0.0, anchored=True, length=22, hints=0, lm=False),
]
PAIRS = [make_pair(0), make_pair(1, prefix=11, chosen=2, rejected=9)]
LIVE: dict[str, Any] = {
    "lm_ce": {"weight": 0.0},
    "policy": {"weight": 1.0},
    "preference": {"weight": 1.0, "anchor": 3.0},
}
ONLY_POLICY: dict[str, Any] = {
    "lm_ce": {"weight": 0.0},
    "hint": {"weight": 0.0},
    "policy": {"weight": 1.0},
}


def measured(
    trainer: Trainer,
    examples: list[TrainingExample],
    pairs: list[PreferencePair],
    *,
    num_rollouts: int | None = None,
) -> dict[Channel, ChannelStep]:
    counts = step_counts(StepInputs(examples, pairs, num_rollouts=num_rollouts))
    return accumulate(
        trainer, micro_batches(examples, pairs, micro_tokens=10_000), counts, scales=None
    )


def logprob(model: Any, ids: tuple[int, ...], span: tuple[int, int]) -> list[float]:
    logp = log_softmax(plain_logits(model, ids))
    return [float(logp[j - 1, ids[j]]) for j in range(*span)]


def policy_by_hand(
    model: Any, examples: list[TrainingExample], *, clip: float, num_rollouts: int
) -> float:
    """Token by token, with the two sides of the clip written out."""
    total = 0.0
    for e in examples:
        for action in e.actions:
            for now, then in zip(logprob(model, e.ids, action.span), action.logprobs, strict=True):
                ratio = math.exp(now - then)
                bound = min(ratio, 1 + clip) if action.advantage > 0 else max(ratio, 1 - clip)
                total -= bound * action.advantage
    return total / num_rollouts


# ---- policy ----


@pytest.mark.parametrize("clip", [0.2, 5.0])
def test_the_policy_is_a_sum_over_tokens_per_rollout_with_a_stale_sampler(clip: float) -> None:
    trainer = perturbed(
        start_trainer(
            make_config(**{**LIVE, "policy": {"weight": 1.0, "clip": clip}}), make_student()
        )
    )
    for num_rollouts in (3, 4, 12):
        losses = measured(trainer, ROLLOUTS, [], num_rollouts=num_rollouts)["policy"]
        expected = policy_by_hand(
            trainer.models.student.model, ROLLOUTS, clip=clip, num_rollouts=num_rollouts
        )
        assert losses.loss == pytest.approx(expected, rel=1e-5)
        assert (losses.inputs, losses.tokens) == (3, 6 + 6 + 18)  # the fourth has no advantage
    # None: the three with an advantage
    assert measured(trainer, ROLLOUTS, [])["policy"].loss == pytest.approx(4 * expected)


def test_on_policy_the_gradient_is_advantage_times_that_of_the_log_prob() -> None:
    """Sampled by the model itself: the loss of a rollout is -A times its tokens, its gradient -A
    times that of their log-probs."""
    trainer = perturbed(start_trainer(make_config(**ONLY_POLICY), make_student()))
    model, examples = trainer.models.student.model, []
    for e in ROLLOUTS[:3]:
        fresh = [
            dataclasses.replace(a, logprobs=tuple(logprob(model, e.ids, a.span))) for a in e.actions
        ]
        examples.append(dataclasses.replace(e, actions=tuple(fresh)))
    weighted = torch.zeros(())
    for e in examples:
        logp = model(input_ids=torch.tensor([e.ids])).logits[0].log_softmax(-1)
        for action in e.actions:
            weighted = (
                weighted
                - action.advantage
                * torch.stack([logp[j - 1, e.ids[j]] for j in range(*action.span)]).sum()
            )
    expected = torch.autograd.grad(weighted / 6, trainer.trainable())
    losses, _ = channel_losses(
        trainer.models,
        collate(examples, pad_id=0),
        step_counts(StepInputs(examples, [], num_rollouts=6)),
    )
    (loss,) = losses
    gradients = torch.autograd.grad(loss.mean_part(), trainer.trainable())
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(gradients, expected, strict=True))
    assert loss.mean_part().item() == pytest.approx(-(0.75 * 6 - 0.25 * 6 + 0.5 * 18) / 6, rel=1e-4)


def test_steps_make_good_messages_likelier_and_bad_ones_rarer() -> None:
    student = make_student()
    good, bad = make_example(0, hints=0, lm=False), make_example(1, hints=0, lm=False)
    good_and_bad = [
        make_rollout(i, advantage=a, hints=0, lm=False) for i, a in ((0, 0.5), (1, -0.5))
    ]
    before = [sum(logprob(student.model, e.ids, (10, 13))) for e in (good, bad)]
    trainer = start_trainer(make_config(steps=20, **ONLY_POLICY), student)
    for step in range(6):
        assert (
            train_step(trainer, StepInputs(good_and_bad, []), step=step)["policy/status"]
            == "active"
        )
    after = [sum(logprob(student.model, e.ids, (10, 13))) for e in (good, bad)]
    assert after[0] > before[0] + 0.1 and after[1] < before[1] - 0.1


def test_fewer_rollouts_than_have_an_advantage_are_an_error() -> None:
    with pytest.raises(
        AlignmentError, match="3 examples have an action with an advantage, but only 2"
    ):
        train_step(
            start_trainer(make_config(**LIVE), make_student()),
            StepInputs(ROLLOUTS, [], num_rollouts=2),
            step=0,
        )


def test_the_clipped_share_is_told() -> None:
    """Under a sampler that gave every token exp(-9), each ratio is far above 1: clipped where the
    advantage is positive."""
    trainer = start_trainer(make_config(**ONLY_POLICY), make_student())
    stale = [
        dataclasses.replace(a, logprobs=(-9.0,) * len(a.logprobs)) for a in ROLLOUTS[0].actions
    ]
    far = dataclasses.replace(
        ROLLOUTS[0], actions=(stale[0], dataclasses.replace(stale[1], advantage=-1.0))
    )
    metrics = train_step(trainer, StepInputs([far], []), step=0)
    assert metrics["policy/clipped"] == 0.5 and metrics["policy/status"] == "active"
    metrics = train_step(
        trainer, StepInputs([dataclasses.replace(far, actions=(stale[0],))], []), step=1
    )
    assert metrics["policy/clipped"] == 1.0 and metrics["policy/status"] == "dead"


# ---- a step without inputs for a channel, or for any ----


def flat(example: TrainingExample) -> TrainingExample:
    return dataclasses.replace(
        example, actions=tuple(dataclasses.replace(a, advantage=0.0) for a in example.actions)
    )


def test_flat_groups_exhaust_the_policy_and_move_nothing() -> None:
    """Not even the optimiser's moments move: the next step with an advantage has the effect it
    would have had at once."""
    finals = []
    for between in (0, 2):
        trainer = start_trainer(
            make_config(steps=9, weight_decay=0.1, warmup_steps=0, **ONLY_POLICY), make_student()
        )
        train_step(trainer, StepInputs(ROLLOUTS, []), step=0)
        weights = [p.detach().clone() for p in trainer.trainable()]
        for _ in range(between):
            metrics = train_step(
                trainer, StepInputs([flat(e) for e in ROLLOUTS], [], num_rollouts=4), step=1
            )
            assert (metrics["policy/status"], metrics["policy/tokens"], metrics["policy/loss"]) == (
                "exhausted",
                0,
                None,
            )
            assert (
                metrics["grad_norm"] == 0
                and metrics["loss"] == 0
                and "policy/clipped" not in metrics
            )
            assert all(torch.equal(a, b) for a, b in zip(weights, trainer.trainable(), strict=True))
        train_step(trainer, StepInputs(ROLLOUTS, []), step=1)
        finals.append([p.detach().clone() for p in trainer.trainable()])
    assert all(torch.equal(a, b) for a, b in zip(*finals, strict=True))


def test_a_step_without_anything_says_so() -> None:
    trainer = start_trainer(
        make_config(hint={"teacher": "ema"}, **LIVE | {"lm_ce": {"weight": 1.0}}), make_student()
    )
    before = [p.detach().clone() for p in trainer.trainable()]
    for examples in ([], [flat(make_rollout(0, hints=0, lm=False))]):
        metrics = train_step(trainer, StepInputs(examples, [], num_rollouts=6), step=0)
        assert [metrics[f"{name}/status"] for name in CHANNELS] == ["starved"] * 4 and metrics[
            "loss"
        ] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.trainable(), strict=True))
    metrics = train_step(trainer, StepInputs([ROLLOUTS[0], make_example(1)], PAIRS), step=1)
    assert [metrics[f"{name}/status"] for name in CHANNELS] == ["active"] * 4


# ---- anchors and clones ----


def nll(model: Any, examples: list[TrainingExample]) -> float:
    values = [-x for e in examples for span in e.anchored for x in logprob(model, e.ids, span)]
    return sum(values) / len(values)


def test_preference_is_the_mean_over_pairs_plus_anchors_per_token() -> None:
    trainer = perturbed(start_trainer(make_config(**LIVE), make_student()))
    two_pairs, pairs = (
        measured(trainer, ROLLOUTS, PAIRS)["preference"],
        measured(trainer, [], PAIRS)["preference"],
    )
    assert two_pairs.loss == pytest.approx(
        pairs.loss + 3.0 * nll(trainer.models.student.model, ROLLOUTS), rel=1e-5
    )
    assert (two_pairs.inputs, two_pairs.tokens, pairs.inputs, pairs.tokens) == (4, 26, 2, 20)
    one_pair = (
        measured(trainer, ROLLOUTS, PAIRS[:1])["preference"],
        measured(trainer, [], PAIRS[:1])["preference"],
    )
    # whatever the number of pairs
    assert one_pair[0].loss - one_pair[1].loss == pytest.approx(
        two_pairs.loss - pairs.loss, rel=1e-5
    )


def test_anchors_alone_train_and_weight_0_leaves_them_out() -> None:
    trainer = perturbed(start_trainer(make_config(**LIVE), make_student()))
    alone = measured(trainer, ROLLOUTS, [])["preference"]
    assert alone.loss == pytest.approx(3.0 * nll(trainer.models.student.model, ROLLOUTS), rel=1e-5)
    assert (alone.inputs, alone.tokens) == (2, 6) and alone.grad_norm > 0 and alone.metrics == {}
    metrics = train_step(trainer, StepInputs([ROLLOUTS[3]], []), step=0)
    assert metrics["preference/status"] == "active" and metrics["policy/status"] == "starved"
    without = start_trainer(
        make_config(**LIVE | {"preference": {"weight": 1.0, "anchor": 0.0}}), make_student()
    )
    pair_loss = measured(without, ROLLOUTS, [])["preference"]
    assert (pair_loss.inputs, pair_loss.tokens, pair_loss.loss) == (0, 0, 0.0)


def test_accuracy_and_log_ratio_of_pairs() -> None:
    trainer = perturbed(start_trainer(make_config(**LIVE), make_student()))
    start, gains, right = small_model(), [], []
    for p in PAIRS:
        n = len(p.prefix_ids)
        gain = [
            sum(logprob(trainer.models.student.model, p.prefix_ids + side, (n, n + len(side))))
            - sum(logprob(start, p.prefix_ids + side, (n, n + len(side))))
            for side in (p.chosen_ids, p.rejected_ids)
        ]
        gains.append(gain[0])
        right.append(gain[0] > gain[1])
    pair_metrics = measured(trainer, ROLLOUTS, PAIRS)["preference"].metrics
    assert pair_metrics["accuracy"] == sum(right) / 2 and pair_metrics[
        "chosen_logratio"
    ] == pytest.approx(sum(gains) / 2, abs=1e-5)
    swapped = [
        dataclasses.replace(p, chosen_ids=p.rejected_ids, rejected_ids=p.chosen_ids) for p in PAIRS
    ]
    assert (
        measured(trainer, [], swapped)["preference"].metrics["accuracy"]
        == 1 - pair_metrics["accuracy"]
    )


def test_clone_is_the_cross_entropy_of_the_chosen_side_alone() -> None:
    trainer = perturbed(
        start_trainer(
            make_config(**LIVE | {"preference": {"weight": 1.0, "objective": "clone"}}),
            make_student(),
        )
    )
    assert "preference" not in trainer.models.references
    model = trainer.models.student.model
    values = [
        -x
        for p in PAIRS
        for x in logprob(
            model,
            p.prefix_ids + p.chosen_ids,
            (len(p.prefix_ids), len(p.prefix_ids + p.chosen_ids)),
        )
    ]
    losses = measured(trainer, [], PAIRS)["preference"]
    assert (
        losses.loss == pytest.approx(sum(values) / 6, rel=1e-5)
        and (losses.inputs, losses.tokens) == (2, 6)
        and not losses.metrics
    )
    others = [dataclasses.replace(p, rejected_ids=(7, 7, 7)) for p in PAIRS]
    assert measured(trainer, [], others)["preference"].loss == pytest.approx(losses.loss, rel=1e-6)
    with_anchors = measured(trainer, ROLLOUTS, PAIRS)["preference"].loss
    assert with_anchors == pytest.approx(losses.loss + 10.0 * nll(model, ROLLOUTS), rel=1e-5)


# ---- rows end with their last loss token ----


def test_cutting_rows_changes_no_value() -> None:
    examples = [*ROLLOUTS, make_example(7, hints=0, lm=False), make_example(8, hints=0)]
    trainer = perturbed(start_trainer(make_config(**LIVE), make_student()))
    rows = loss_rows(examples, trainer.settings)
    # lm_ce is off: e8 has no loss token
    assert [(e.id, len(e.ids)) for e in rows] == [("e0", 24), ("e1", 31), ("e2", 20), ("e3", 17)]
    counts = step_counts(StepInputs(examples, PAIRS))
    parts = [
        accumulate(trainer, micro_batches(part, PAIRS, micro_tokens=9999), counts, scales=None)
        for part in (examples, rows)
    ]
    for name in CHANNELS:
        assert parts[0][name].loss == pytest.approx(parts[1][name].loss, rel=1e-5)
        assert parts[0][name].grad_norm == pytest.approx(parts[1][name].grad_norm, rel=1e-5)
        assert parts[0][name].tokens == parts[1][name].tokens
    only_policy = loss_rows(examples, make_config(**ONLY_POLICY).train)
    assert [(e.id, len(e.ids), len(e.hints), e.anchored) for e in only_policy] == [
        ("e0", 13, 0, ()),
        ("e1", 13, 0, ()),
        ("e2", 20, 0, ()),
    ]


# ---- the slow average ----


def test_the_slow_average_starts_at_the_student_and_moves_by_its_share() -> None:
    trainer = start_trainer(
        make_config(hint={"teacher": "ema", "ema": 0.25}, learning_rate=1e-2), make_student()
    )
    teacher = trainer.models.references["hint"].model
    expected = [p.detach().clone() for p in small_model().parameters()]
    assert teacher is not trainer.models.student.model and all(
        torch.equal(a, b) for a, b in zip(expected, teacher.parameters(), strict=True)
    )
    for step in range(3):
        train_step(trainer, StepInputs([make_example(i) for i in range(3)], []), step=step)
        expected = [
            0.75 * old + 0.25 * new.detach()
            for old, new in zip(expected, trainer.trainable(), strict=True)
        ]
        for mean, averaged, new in zip(
            expected, teacher.parameters(), trainer.trainable(), strict=True
        ):
            assert torch.allclose(mean, averaged, atol=1e-7) and not torch.equal(averaged, new)
    assert all(not p.requires_grad and p.grad is None for p in teacher.parameters())


def test_the_slow_average_is_what_the_hint_is_scored_with(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = perturbed(start_trainer(make_config(hint={"teacher": "ema"}), make_student()))
    frozen = perturbed(start_trainer(make_config(), make_student()))
    examples = [make_example(i) for i in range(3)]
    assert (
        measured(trainer, examples, [])["hint"].loss == measured(frozen, examples, [])["hint"].loss
    )
    for _ in range(20):
        trainer.models.references["hint"].update(trainer.models.student.model)
    live = perturbed(start_trainer(make_config(hint={"teacher": "live"}), make_student()))
    losses = [measured(t, examples, [])["hint"].loss for t in (trainer, frozen, live)]
    assert abs(losses[0] - losses[1]) > 1e-3 and abs(losses[0] - losses[2]) > 1e-4


def test_a_bfloat16_student_has_a_slow_average_that_moves() -> None:
    """In bfloat16 a step of 1e-4 would be lost beside a weight of 1."""
    student = make_student()
    student.model.bfloat16()
    reference = start_trainer(make_config(hint={"teacher": "ema"}), student).models.references[
        "hint"
    ]
    with torch.no_grad():
        student.model.model.norm.weight.fill_(1.0078125)  # the next number above 1
    for _ in range(3):
        reference.update(student.model)
    assert float(reference.model.model.norm.weight[0]) == pytest.approx(
        1 + 0.0078125 * (1 - 0.95**3), rel=1e-6
    )


def test_the_slow_average_is_in_the_checkpoint_and_nothing_else_is_accepted(tmp_path: Path) -> None:
    config = make_config(steps=2, hint={"teacher": "ema"})
    run, examples = make_run(tmp_path, config), [make_example(i) for i in range(3)]
    train(config, student=make_student(), examples=examples, run=run)
    tensors = load_extra(run.checkpoint(2))
    trainer = start_trainer(config, make_student())
    assert tensors.keys() == trainer.models.extra_tensors().keys() and all(
        name.startswith("hint/") for name in tensors
    )
    trainer.models.load_extra_tensors(tensors)
    for name, tensor in trainer.models.extra_tensors().items():
        assert torch.equal(tensor, tensors[name])
    assert any(
        not torch.equal(start, tensors[name])
        for name, start in start_trainer(config, make_student()).models.extra_tensors().items()
    )
    with pytest.raises(DataError, match="slow average"):
        trainer.models.load_extra_tensors({})
    with pytest.raises(DataError, match="slow average"):
        frozen = make_config(steps=3)
        train(
            frozen,
            student=make_student(),
            examples=examples,
            run=run,
            resume=True,
            accept_changes=True,
        )
