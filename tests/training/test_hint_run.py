"""Hint controls over a whole run: TAID's schedule and its resume, the stop rule on clips, refusals,
and preference objectives by name."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from composer_replication.core.config.hint_settings import HintSettings
from composer_replication.core.config.student_settings import LoraSettings, StudentSettings
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ConfigError, StoppedError
from composer_replication.models.forward import final_hidden, project
from composer_replication.models.load_student import Student, load_student
from composer_replication.tokens.example import PreferencePair
from composer_replication.training.backends.trl_channels import Scorer
from composer_replication.training.forwards.reference import averaged_reference
from composer_replication.training.inputs import StepInputs
from composer_replication.training.loop import train
from composer_replication.training.run.health import ChannelStep, Health
from composer_replication.training.step import train_step
from tests.models.tree_models import gap, make
from tests.training.small_student import (
    WordTokenizer,
    make_config,
    make_example,
    make_pair,
    make_run,
    make_student,
    small_model,
    start_trainer,
)
from tests.training.trees import outcome, trainer_of

TAID: dict[str, Any] = {
    "weight": 1.0,
    "divergence": "taid",
    "teacher": "frozen",
    "taid": {"alpha": 0.3, "t_start": 0.3},
}
EXAMPLES = [make_example(i, length=20 + 3 * i, hints=1) for i in range(4)]


class Killed(Exception):
    """Ends a launch of a test in the middle."""


# ---- TAID ----


def test_taid_moves_with_the_steps_mean_and_a_step_without_a_site_leaves_it_alone() -> None:
    trainer = start_trainer(make_config(steps=10, hint=TAID, lm_ce={"weight": 1.0}), make_student())
    bare = [dataclasses.replace(e, hints=()) for e in EXAMPLES]
    lines = [
        train_step(trainer, StepInputs(batch, []), step=step)
        for step, batch in enumerate([EXAMPLES, EXAMPLES, bare, EXAMPLES])
    ]
    ts = [metrics["hint/taid_t"] for metrics in lines]
    # the first step only sets the reference value, the third has no site
    assert ts[0] == ts[1] == 0.3 < ts[2] == ts[3]
    change = (lines[0]["hint/raw"] - lines[1]["hint/raw"]) / lines[0]["hint/raw"]
    gain = 0.3 * torch.sigmoid(torch.tensor(0.01 * change)).item() * 0.7
    assert gain > 0.7 / 10 and ts[2] == pytest.approx(0.3 + gain, rel=1e-6)
    assert (
        trainer.models.taid is not None
        and abs(trainer.models.taid.momentum) < 1.0
        and trainer.models.taid.t > ts[3]
    )


@pytest.mark.parametrize(
    ("schedule", "expected"), [("fixed", [0.3, 0.3, 0.3]), ("linear", [0.3, 0.3, 0.37])]
)
def test_taids_other_schedules(schedule: str, expected: list[float]) -> None:
    hint = {**TAID, "taid": {"schedule": schedule, "t_start": 0.3}}
    trainer = start_trainer(make_config(steps=10, hint=hint), make_student())
    shares = [
        train_step(trainer, StepInputs(EXAMPLES, []), step=step)["hint/taid_t"] for step in range(3)
    ]
    assert shares == pytest.approx(expected)


def test_a_killed_taid_run_goes_on_as_the_whole_one_did(tmp_path: Path) -> None:
    config = make_config(steps=5, hint=TAID, batch_examples=4, checkpoint_every=2)

    def stop(metrics: dict[str, Any]) -> None:
        if metrics["step"] == 3:
            raise Killed

    uninterrupted = make_run(tmp_path, config, name="whole")
    train(config, student=make_student(), examples=EXAMPLES, run=uninterrupted)
    killed = make_run(tmp_path, config, name="killed")
    with pytest.raises(Killed):
        train(config, student=make_student(), examples=EXAMPLES, run=killed, on_step=stop)
    train(config, student=make_student(), examples=EXAMPLES, run=killed, resume=True)
    resumed_metrics, expected = (
        [(step_metrics["hint/taid_t"], step_metrics["loss"]) for step_metrics in run.metrics()]
        for run in (killed, uninterrupted)
    )
    assert resumed_metrics == expected and len({t for t, _ in expected}) == 4


def test_every_step_of_a_contrast_keeps_its_views(tmp_path: Path) -> None:
    """One view a step: its other hint comes from the data set."""
    config = make_config(steps=3, batch_examples=1, hint={"weight": 1.0, "contrast": True})
    run = make_run(tmp_path, config)
    train(config, student=make_student(), examples=EXAMPLES, run=run)
    assert [m["hint/no_donor"] for m in run.metrics()] == [0, 0, 0]
    assert all(m["hint/status"] == "active" for m in run.metrics())


# ---- the teacher that starts from the student ----


def test_the_slow_average_starts_at_the_student_not_at_its_base(tmp_path: Path) -> None:
    small_model().save_pretrained(str(tmp_path / "base"))
    settings = StudentSettings(model=str(tmp_path / "base"), lora=LoraSettings(rank=2, alpha=8))
    student = load_student(settings, tokenizer=WordTokenizer(), seed=3)
    with torch.no_grad():
        for parameter in student.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3)  # a warm start
    ids = torch.tensor([EXAMPLES[0].ids])
    with averaged_reference(student, ema=0.1).scoring() as model:
        teacher = project(model, final_hidden(model, ids)[0])
    with torch.no_grad():
        teacher_logits = project(student.model.eval(), final_hidden(student.model, ids)[0])
        with student.model.disable_adapter():
            base = project(student.model, final_hidden(student.model, ids)[0])
    assert torch.allclose(teacher, teacher_logits, atol=1e-5) and not torch.allclose(
        teacher, base, atol=1e-2
    )


# ---- stop rules ----


def test_a_run_stops_where_the_clip_is_the_signal() -> None:
    hint = {
        "weight": 1.0,
        "divergence": "kl(student, teacher)",
        "teacher": "live",
        "token_clip": 1e-9,
    }
    trainer = start_trainer(
        make_config(hint=hint, starved_steps=3, health={"max_clipped": 0.8}), make_student()
    )
    with pytest.raises(StoppedError) as caught:
        for step in range(4):
            metrics = train_step(trainer, StepInputs(EXAMPLES, []), step=step)
            assert metrics["hint/clipped"] == 1.0
    assert step == 2 and caught.value.where == "clipped"


def test_credit_at_its_bound_warns_at_once_and_stops_later() -> None:
    health = Health(
        weights={"policy": 1.0, "lm_ce": 0.0, "hint": 1.0, "preference": 0.0},
        max_bad_steps=2,
        max_clipped=0.9,
    )

    def step(share: float) -> dict[Any, ChannelStep]:
        alive = {"inputs": 1, "tokens": 9, "loss": 0.1, "grad_norm": 0.1}
        return {
            n: ChannelStep(**alive, metrics={"bounded": share} if n == "hint" else {})
            for n in ("policy", "lm_ce", "hint", "preference")
        }

    statuses = health.update_statuses(step(0.95))
    (warning,) = health.warnings(statuses)
    assert warning["status"] == "clipped" and "bound" in warning["fix"]
    again = Health(weights=health.weights, max_bad_steps=2, max_clipped=0.9)
    again.restore(health.state())
    statuses = again.update_statuses(step(0.95))
    with pytest.raises(StoppedError, match="2 steps in a row"):
        again.check(statuses, step=2)
    again.check(again.update_statuses(step(0.5)), step=3)


# ---- refusals ----


@pytest.mark.parametrize(
    ("unread", "by"),
    [
        ({"ema": 0.3}, 'teacher = "ema"'),
        ({"trust": 0.3, "teacher": "live"}, 'teacher = "trust_region"'),
        ({"beta": 0.2, "divergence": "taid"}, 'divergence = "jsd"'),
        ({"taid": {"t_start": 0.1}}, 'divergence = "taid"'),
        ({"entropy": {"tau": 0.1}}, 'divergence = "eopd" or "soft_gate"'),
        ({"top_k": 5}, 'estimator = "top_k"'),
        ({"bound": 0.2}, 'combination = "bounded"'),
        ({"dead_zone": 0.2}, 'combination = "advantage" or "bounded"'),
    ],
)
def test_a_control_that_nothing_would_read_is_refused(unread: dict[str, Any], by: str) -> None:
    with pytest.raises(ValueError, match=f"only read with {by}"):
        HintSettings.model_validate(unread)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hint": {"divergence": "taid", "estimator": "top_k"}}, "set estimator = full"),
        ({"hint": {"divergence": "eopd", "entry_clip": 0.1}}, "set entry_clip = 0"),
        ({"hint": {"estimator": "sampled_token"}}, 'set divergence = "kl.student, teacher."'),
        (
            {
                "hint": {
                    "estimator": "sampled_token",
                    "divergence": "kl(student, teacher)",
                    "token_clip": 1.0,
                }
            },
            "set token_clip = 0",
        ),
        (
            {"hint": {"combination": "convex", "weight": 1.5}, "policy": {"weight": 1.0}},
            "lower weight",
        ),
        ({"hint": {"combination": "convex", "weight": 0.5}}, "set policy.weight"),
        (
            {"hint": {"combination": "bounded", "token_clip": 0.1}, "policy": {"weight": 1.0}},
            "token_clip would not be read",
        ),
        (
            {"hint": {"combination": "advantage"}, "policy": {"weight": 1.0}, "fork": True},
            "or fork = false",
        ),
        ({"hint": {"difficulty": True}, "fork": True}, "set hint.difficulty = false"),
        ({"preference": {"objective": "ipo", "label_smoothing": 0.1}}, "set label_smoothing = 0"),
    ],
)
def test_what_cannot_go_together_is_refused_with_its_remedy(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainSettings.model_validate(settings)


@pytest.mark.parametrize(
    "hint",
    [
        {"teacher": "trust_region"},
        {"contrast": True},
        {"divergence": "taid"},
        {"combination": "bounded"},
        {"importance_clip": 2.0},
    ],
)
def test_the_trl_scorer_refuses_what_it_does_not_host(hint: dict[str, Any]) -> None:
    settings = TrainSettings.model_validate({"hint": hint, "policy": {"weight": 1.0}})
    with pytest.raises(ConfigError, match=f"hint.{next(iter(hint))}|taid.schedule"):
        Scorer(model=None, references={}, settings=settings)


# ---- preference objectives ----

PAIRS = [make_pair(1, chosen=4, rejected=6), make_pair(2, chosen=7, rejected=3)]


def log_sigmoid(x: Tensor) -> Tensor:
    return -(1 + (-x).exp()).log()


def direct_pairs(settings: Any, model: Any, start: Any) -> tuple[Tensor, list[Tensor]]:
    """The mean over pairs from the plain log-probs of each side."""

    def response(model: Any, pair: PreferencePair, side: tuple[int, ...]) -> Tensor:
        n = len(pair.prefix_ids)
        log = model(input_ids=torch.tensor([pair.prefix_ids + side])).logits[0].log_softmax(-1)
        logprobs = log[torch.arange(n - 1, n + len(side) - 1), torch.tensor(side)]
        return logprobs.sum() if settings.objective == "dpo" else logprobs.mean()

    values = []
    for pair in PAIRS:
        won, lost = (response(model, pair, side) for side in (pair.chosen_ids, pair.rejected_ids))
        with torch.no_grad():
            ref_won, ref_lost = (
                response(start, pair, side) for side in (pair.chosen_ids, pair.rejected_ids)
            )
        margin, e = (won - ref_won) - (lost - ref_lost), settings.label_smoothing
        z = (
            settings.beta * (won - lost) - settings.gamma
            if settings.objective == "simpo"
            else settings.beta * margin
        )
        smooth = -(1 - e) * log_sigmoid(z) - e * log_sigmoid(-z)
        values.append(
            (margin - 1 / (2 * settings.beta)) ** 2 if settings.objective == "ipo" else smooth
        )
    mean = torch.stack(values).mean()
    return mean.detach(), list(torch.autograd.grad(mean, list(model.parameters())))


@pytest.mark.parametrize(
    "preference",
    [
        {"objective": "dpo", "label_smoothing": 0.1},
        {"objective": "dpo_norm", "beta": 2.0, "label_smoothing": 0.1},
        {"objective": "ipo", "beta": 0.4},
        {"objective": "simpo", "beta": 2.0, "gamma": 0.7},
    ],
    ids=lambda case: case["objective"],
)
def test_pair_objectives_are_the_direct_computation(preference: dict[str, Any]) -> None:
    grads_by_layout = []
    for layout in ("tree", "rows"):
        student = Student(name="test", model=make("qwen3").double(), tokenizer=WordTokenizer())
        start = copy.deepcopy(student.model).eval()
        trainer = trainer_of(
            student, layout, preference={"weight": 1.0, "anchor": 0.0, **preference}
        )
        value, gradient = direct_pairs(
            trainer.settings.preference, trainer.models.student.model.eval(), start
        )
        steps, grads = outcome(trainer, ([], PAIRS), {"preference": 1.0})
        assert steps["preference"].loss == pytest.approx(float(value), rel=1e-6) and steps[
            "preference"
        ].metrics["accuracy"] in (0.0, 0.5, 1.0)
        assert gap(grads, gradient) <= 2e-6
        assert ("preference" in trainer.models.references) == (preference["objective"] != "simpo")
        grads_by_layout.append(grads)
    assert gap(*grads_by_layout) <= 1e-6
