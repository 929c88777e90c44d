"""Runs with live rollouts: the inputs of a step, the files of a run, resuming, stopping and rolling
back."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from composer_replication.core.codec import read_hints, read_sessions
from composer_replication.core.errors import ConfigError, DataError, StoppedError
from composer_replication.core.rundir import RunDir
from composer_replication.models.load_student import Student
from composer_replication.report.html import unpacked
from composer_replication.report.rollout_sites import NOT_KEPT
from composer_replication.report.run_page import run_page
from composer_replication.report.run_report import run_report
from composer_replication.rollouts.task_source import TaskSource
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training import loop as loop_module
from composer_replication.training.draws.batch_sampler import Sampler
from composer_replication.training.forwards.reference import frozen_reference
from composer_replication.training.inputs import StepInputs
from composer_replication.training.loop import train
from composer_replication.training.on_policy import live as live_module
from composer_replication.training.on_policy import rollout_metrics as rollout_metrics_module
from composer_replication.training.on_policy.rewards import sampled_example, start_kl
from composer_replication.training.on_policy.rollout_metrics import Drift, measure_drift
from composer_replication.training.run import rollback as rollback_module
from composer_replication.training.run import token_probe
from composer_replication.training.run.run_logger import RunLogger
from composer_replication.training.run.state import make_trainer
from composer_replication.workshop.demonstrators import text_turn
from tests.training.scripted import (
    careless_sample,
    live_config,
    make_live,
    perfect_sample,
    scripted,
    tiny_student,
    workshop,
)
from tests.training.small_student import (
    make_config,
    make_example,
    make_pair,
    make_run,
    make_student,
)
from tests.training.test_resume import same

ANCHORED = [
    dataclasses.replace(make_example(50 + i, hints=1), anchored=((10, 14),)) for i in range(3)
]
PAIRS = [make_pair(i) for i in range(4)]


@pytest.fixture(scope="module")
def world() -> Iterator[TaskSource]:
    with workshop() as opened:
        yield opened


@pytest.fixture(autouse=True)
def played_by_the_careless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "sample_rollouts", careless_sample)


def run_training(
    folder: Path,
    world: TaskSource,
    *,
    run: RunDir | None = None,
    train_settings: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Any, Student]:
    """Train the tiny student; (result, student)."""
    config = live_config(train=train_settings, groups=3, group_size=3)
    student = tiny_student()
    run = make_run(folder, config)
    return (
        train(config, student=student, run=run, live=make_live(world, config), **options),
        student,
    )


def weights(student: Student) -> list[torch.Tensor]:
    return [p.detach().clone() for p in student.model.parameters()]


def all_equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# ---- the inputs of a step ----


def spy(
    monkeypatch: pytest.MonkeyPatch,
) -> list[tuple[list[TrainingExample], list[PreferencePair], int | None]]:
    recorded: list[Any] = []
    original = loop_module.train_step

    def noting(trainer: Any, inputs: StepInputs, **options: Any) -> dict[str, Any]:
        recorded.append((inputs.examples, inputs.pairs, inputs.num_rollouts))
        return original(trainer, inputs, **options)

    monkeypatch.setattr(loop_module, "train_step", noting)
    return recorded


def test_a_step_is_rollouts_anchors_and_pairs(
    tmp_path: Path, world: TaskSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_seen = spy(monkeypatch)
    preference = {"weight": 1.0, "batch_pairs": 3, "batch_anchors": 2}
    result, _ = run_training(
        tmp_path,
        world,
        train_settings={"steps": 1, "preference": preference},
        examples=ANCHORED,
        pairs=PAIRS,
    )
    assert result.statuses == {
        "policy": "active",
        "lm_ce": "off",
        "hint": "active",
        "preference": "active",
    }
    for examples, pairs, num_rollouts in steps_seen:
        rollout_examples, imported = (
            [e for e in examples if e.origin == "student"],
            [e for e in examples if e.origin == "trace"],
        )
        assert num_rollouts == 9 >= len(rollout_examples) > 0 and len(pairs) == 3
        assert len(imported) == 2 and all(
            e.anchored and not e.hints and not e.lm_spans for e in imported
        )


def test_imported_examples_come_back_with_a_weight_of_lm_ce(
    tmp_path: Path, world: TaskSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_seen = spy(monkeypatch)
    logs = [make_example(i, hints=i % 2) for i in range(6)]
    result, _ = run_training(
        tmp_path,
        world,
        train_settings={"steps": 1, "lm_ce": {"weight": 1.0}, "batch_examples": 4},
        examples=logs,
    )
    imported = [e for e in steps_seen[0][0] if e.origin == "trace"]
    assert len(imported) == 4 and result.statuses["lm_ce"] == "active"
    assert all(e.lm_spans == () for e in steps_seen[0][0] if e.origin == "student")


def test_the_policy_needs_an_environment_and_a_run_needs_something(tmp_path: Path) -> None:
    config = make_config(policy={"weight": 1.0})
    with pytest.raises(ConfigError, match=r"channel policy has weight 1\.0, but nothing is played"):
        train(
            config,
            student=make_student(),
            examples=[make_example(0)],
            run=make_run(tmp_path, config),
        )
    with pytest.raises(DataError, match="nothing to train on"):
        train(make_config(), student=make_student(), run=make_run(tmp_path, config, name="b"))


# ---- the files of a run ----


def test_the_page_of_a_live_run_shows_its_rollouts_token_by_token_under_their_hints(
    tmp_path: Path, world: TaskSource
) -> None:
    result, _ = run_training(
        tmp_path, world, train_settings={"steps": 1}, examples=ANCHORED, pairs=PAIRS
    )
    view = run_report(result.run.path)
    ids = list(view["watched"]["sites"])
    assert ids and [rollout_site["site"]["id"] for rollout_site in view["rollout_sites"]] == ids
    page = run_page(view)
    (packed,) = unpacked(page)
    articles = json.loads(packed)["articles"]
    assert len(articles) == len(ids)
    assert all(NOT_KEPT not in article and 'class="hint"' in article for article in articles)
    assert all(re.search(r'class="t f[1-9] l\d"', article) for article in articles)
    hint_of_site = {
        hint.site_id: hint.text for hint in read_hints(result.run.watched_dir / "hints.jsonl")
    }
    assert [rollout_site["hint"] for rollout_site in view["rollout_sites"]] == [
        hint_of_site[name] for name in ids
    ]
    assert all(
        rollout_site["message"]["role"] == "assistant" and rollout_site["message"]["blocks"]
        for rollout_site in view["rollout_sites"]
    )


def test_a_live_run_writes_facts_samples_and_tables(tmp_path: Path, world: TaskSource) -> None:
    result, _ = run_training(
        tmp_path,
        world,
        train_settings={
            "steps": 5,
            "health": {"monitor_tasks": 5, "monitor_every": 3, "kl_episodes": 4},
        },
    )
    run: RunDir = result.run
    lines = run.metrics()
    for metrics in lines:
        assert {
            "rollouts/success",
            "rollouts/flat",
            "rollouts/unresolvable",
            "health/kl",
            "health/entropy",
            "sites/used",
        } <= metrics.keys()
        assert ("health/monitor" in metrics) == (metrics["step"] in (1, 4)) and metrics[
            "rollouts/episodes"
        ] == 9
    assert (
        lines[0]["health/kl"] == pytest.approx(0, abs=1e-9)
        and 0 < lines[2]["health/kl"] < 1
        and lines[0]["health/entropy"] > 1
    )
    assert result.metrics["rollouts/success"] == lines[-1]["rollouts/success"]
    assert [step for step, _ in run.samples()] == [0, 2, 4] and [
        s for s, _ in run.token_tables()
    ] == [0, 5]
    episodes = list(read_sessions(run.samples()[1][1]))
    assert (
        len(episodes) == 3
        and {e.origin for e in episodes} == {"student"}
        and all(e.id.startswith("step-2:") for e in episodes)
    )
    first, last = (json.loads(run.tokens(step).read_text("utf-8"))["sites"] for step in (0, 5))
    assert first and [row["site_id"] for row in first] == [row["site_id"] for row in last]
    assert (
        all(row["site_id"].startswith("step-0:") for row in first)
        and first[0]["student"] != last[0]["student"]
    )
    assert [(e["step"], e["good"]) for e in run.events() if e["kind"] == "checkpoint"] == [
        (0, True),
        (2, True),
        (4, True),
        (5, True),
    ]


# ---- resume ----


def test_a_resumed_live_run_repeats_the_killed_one(
    tmp_path: Path, world: TaskSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real sampler, whose ids depend on the weights: the imported examples move them, as a
    random student makes no mistakes."""
    monkeypatch.undo()
    logs = [make_example(i, hints=0) for i in range(4)]
    config = live_config(
        train={
            "steps": 5,
            "lm_ce": {"weight": 1.0},
            "starved_steps": 9,
            "learning_rate": 3e-2,
            "health": {"monitor_tasks": 0, "max_kl": 99.0},
        },
        groups=2,
        group_size=2,
        max_new_tokens=8,
        max_context_tokens=2048,
    )

    def launch(
        folder: str, *, kill: bool = False, run: RunDir | None = None
    ) -> tuple[RunDir, Student]:
        def interrupt(metrics: dict[str, Any]) -> None:
            if kill and metrics["step"] == 3:
                raise KeyboardInterrupt

        run, student, resume = (
            run or make_run(tmp_path / folder, config),
            tiny_student(),
            run is not None,
        )
        live = make_live(world, config)
        if kill:
            with pytest.raises(KeyboardInterrupt):
                train(config, student=student, examples=logs, run=run, live=live, on_step=interrupt)
        else:
            train(config, student=student, examples=logs, run=run, live=live, resume=resume)
        return run, student

    uninterrupted, student = launch("whole")
    killed, _ = launch("killed", kill=True)
    resumed, resumed_student = launch("killed", run=killed)
    assert [same(step_metrics) for step_metrics in resumed.metrics()] == [
        same(step_metrics) for step_metrics in uninterrupted.metrics()
    ]
    assert all_equal(weights(student), weights(resumed_student))
    assert len({step_metrics["rollouts/entropy"] for step_metrics in uninterrupted.metrics()}) == 5
    assert [e["step"] for e in resumed.events() if e["kind"] == "resume"] == [2]
    assert (resumed.path / "samples" / "step_000004.jsonl").read_bytes() == (
        uninterrupted.path / "samples" / "step_000004.jsonl"
    ).read_bytes()


def test_a_resumed_run_watches_the_sites_it_began_with(tmp_path: Path, world: TaskSource) -> None:
    def interrupt(metrics: dict[str, Any]) -> None:
        if metrics["step"] == 3:
            raise KeyboardInterrupt

    config = live_config(groups=2)
    run = make_run(tmp_path, config)
    with pytest.raises(KeyboardInterrupt):
        train(
            config,
            student=tiny_student(),
            run=run,
            live=make_live(world, config),
            on_step=interrupt,
        )
    train(config, student=tiny_student(), run=run, live=make_live(world, config), resume=True)
    first, last = (json.loads(run.tokens(step).read_text("utf-8"))["sites"] for step in (0, 4))
    assert first and [row["site_id"] for row in first] == [row["site_id"] for row in last]


def test_a_run_killed_while_it_chooses_what_to_watch_chooses_again(
    tmp_path: Path, world: TaskSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first mistakes come after the first checkpoint, so the resumed run keeps its sites."""

    def late(model: Any, envs: Any, *, label: str = "", **kwargs: Any) -> Any:
        sample = careless_sample if label.startswith("step-2:") else perfect_sample
        return sample(model, envs, label=label, **kwargs)

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(live_module, "sample_rollouts", late)
    config = live_config(groups=2, train={"steps": 3})
    run = make_run(tmp_path, config)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(token_probe, "token_table", killed)
        train(config, student=tiny_student(), run=run, live=make_live(world, config))
    assert [step for step, _ in run.checkpoints()] == [0, 2] and not run.token_tables()
    train(config, student=tiny_student(), run=run, live=make_live(world, config), resume=True)
    assert [step for step, _ in run.token_tables()] == [2, 3]


def test_other_rollouts_are_another_run(tmp_path: Path, world: TaskSource) -> None:
    result, _ = run_training(tmp_path, world, train_settings={"steps": 2})
    config = live_config(train={"steps": 2}, groups=4, group_size=3)
    with pytest.raises(ConfigError, match=r"rollouts\.groups: 3 -> 4"):
        train(
            config,
            student=tiny_student(),
            run=result.run,
            live=make_live(world, config),
            resume=True,
        )


# ---- stopped and put back ----


def planted(values: list[float]) -> Callable[..., Drift]:
    """Replaces `drift`: one value per call; a run calls it before each step and before each
    checkpoint except that of the start."""
    left = list(values)
    return lambda *a, **k: Drift(kl=left.pop(0), entropy=1.0, tokens=9)


def test_a_broken_rule_puts_the_last_good_weights_back(
    tmp_path: Path, world: TaskSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints after 2 steps (good) and 4 (past half of the limit); the rule breaks before the
    fifth step."""
    monkeypatch.setattr(
        rollback_module, "measure_drift", planted([0.0, 0.01, 0.02, 0.02, 0.1, 0.2, 0.5])
    )
    config = live_config(train={"steps": 9, "keep_checkpoints": 1}, groups=2)
    run, student = make_run(tmp_path, config), tiny_student()
    with pytest.raises(
        StoppedError,
        match=r"health rule 'kl' after 4 steps: .* 0\.5 nats .* the weights after 2 steps",
    ) as caught:
        train(config, student=student, run=run, live=make_live(world, config))
    assert (
        caught.value.exit_code == 3
        and run.info()["state"] == "stopped:kl"
        and len(run.metrics()) == 4
    )
    assert [step for step, _ in run.checkpoints()] == [2]
    saved = load_file(str(run.checkpoint(2) / "model.safetensors"))
    later = load_file(str(run.checkpoints_dir / "rejected_step_000004" / "model.safetensors"))
    weights = {n: p for n, p in student.model.named_parameters() if n in saved}
    assert weights and all(torch.equal(saved[n], p) for n, p in weights.items())
    assert any(not torch.equal(saved[n], later[n]) for n in weights)
    (event,) = (e for e in run.events() if e["kind"] == "restored")
    assert (event["rule"], event["value"], event["limit"], event["restored"], event["step"]) == (
        "kl",
        0.5,
        0.3,
        2,
        4,
    )
    assert event["set_aside"] == ["rejected_step_000004"]
    checkpoints = [e for e in run.events() if e["kind"] == "checkpoint"]
    assert [(e["step"], e["good"]) for e in checkpoints] == [(0, True), (2, True), (4, False)]
    # of the weights that were written, not of those before
    assert [e.get("health/kl") for e in checkpoints] == [None, 0.02, 0.2]


def test_the_start_is_good_where_nothing_else_is(
    tmp_path: Path, world: TaskSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback_module, "measure_drift", planted([0.0, 0.2, 0.2, 0.2, 0.2, 0.4]))
    config = live_config(train={"steps": 9}, groups=2)
    run, student = make_run(tmp_path, config), tiny_student()
    with pytest.raises(StoppedError, match="the weights after 0 steps"):
        train(config, student=student, run=run, live=make_live(world, config))
    assert all_equal(weights(student), weights(tiny_student())) and [
        step for step, _ in run.checkpoints()
    ] == [0]


def test_weights_that_break_a_rule_never_become_a_checkpoint(
    tmp_path: Path, world: TaskSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of the last step, which no further rollouts would look at."""
    monkeypatch.setattr(
        rollback_module, "measure_drift", planted([0.0, 0.01, 0.02, 0.02, 0.03, 0.9])
    )
    config = live_config(groups=2)
    run = make_run(tmp_path, config)
    with pytest.raises(StoppedError, match="'kl' after 4 steps"):
        train(config, student=tiny_student(), run=run, live=make_live(world, config))
    assert [step for step, _ in run.checkpoints()] == [0, 2] and len(run.metrics()) == 4


def test_a_monitor_that_falls_stops_the_run(
    tmp_path: Path, world: TaskSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []

    def sample(model: Any, envs: Any, *, label: str = "", **kwargs: Any) -> Any:
        if label != "monitor:":
            return careless_sample(model, envs, label=label, **kwargs)
        calls.append(tuple(env.task_id for env in envs))
        return (perfect_sample if len(calls) < 2 else silent)(model, envs, label=label, **kwargs)

    silent = scripted(lambda env, rng: text_turn("Done.", author="x"))
    monkeypatch.setattr(live_module, "sample_rollouts", sample)
    health = {"monitor_tasks": 6, "monitor_every": 3, "kl_episodes": 2}
    with pytest.raises(
        StoppedError,
        match=r"'monitor' after 3 steps: success on 6 monitor tasks fell from 1.000 to 0.000",
    ):
        run_training(tmp_path, world, train_settings={"steps": 8, "health": health})
    assert (
        len(calls) == 2
        and calls[0] == calls[1]
        and all(name.startswith("workshop-monitor-") for name in calls[0])
    )


# ---- the sampler ----


def test_anchors_do_not_change_what_else_is_drawn() -> None:
    plain = [make_example(i, hints=i % 2) for i in range(9)]
    anchored = [
        dataclasses.replace(e, anchored=((10, 14),)) if i % 3 == 0 else e
        for i, e in enumerate(plain)
    ]
    without = Sampler(examples=plain, pairs=PAIRS, batch_examples=4, seed=3)
    with_anchors = Sampler(
        examples=anchored, pairs=PAIRS, batch_examples=4, seed=3, batch_anchors=2
    )
    for step in range(6):
        drawn, pairs = with_anchors.step(step)
        assert (drawn[:4], pairs) == without.step(step)
        assert [bool(e.anchored) for e in drawn] == [False] * 4 + [True] * 2
        assert all(not e.lm_spans and not e.hints for e in drawn[4:])
    assert Sampler(examples=anchored, batch_examples=4, seed=3).step(1)[0] == without.step(1)[0]
    assert (
        len(Sampler(examples=anchored, batch_examples=4, seed=3, batch_anchors=9).step(0)[0])
        == 4 + 3
    )


def test_all_windows_of_a_session_bring_their_anchors() -> None:
    windows = [
        dataclasses.replace(make_example(i), session_id=f"s{i // 2}", anchored=((10, 14),))
        for i in range(8)
    ]
    drawn, _ = Sampler(
        examples=windows, batch_examples=4, seed=1, batch_anchors=2, imported=False
    ).step(0)
    assert len(drawn) == 4 and len({e.session_id for e in drawn}) == 2


def test_so_many_pairs_as_asked_for() -> None:
    _, pairs = Sampler(
        examples=[], pairs=PAIRS, batch_examples=2, seed=1, batch_pairs=3, imported=False
    ).step(0)
    assert len(pairs) == 3


def test_the_kl_of_the_reward_is_measured_to_the_start_and_not_to_the_policy(
    world: TaskSource, tmp_path: Path
) -> None:
    """Measured to the live weights it would be about 0 however far the policy has moved: a penalty
    without effect."""
    config = live_config(train={"policy": {"weight": 1.0, "kl": 0.1}})
    student = tiny_student()
    trainer = make_trainer(config, student=student, accelerator=Accelerator())
    run_logger = RunLogger(run=make_run(tmp_path, config), main=True)
    rollback = rollback_module.Rollback.of(
        trainer, live=make_live(world, config), run_logger=run_logger
    )
    live_step = make_live(world, config).collect(None, step=0, kl=rollback.start_kl)
    start = frozen_reference(student)
    with torch.no_grad():
        for parameter in student.model.parameters():
            parameter.mul_(1.5)
    place = {"pad_id": student.pad_id, "max_tokens": config.train.micro_tokens, "device": "cpu"}
    to_start, to_policy = (
        start_kl(model, live_step.rollouts, **place) for model in (start, frozen_reference(student))
    )
    assert rollback.start_kl(live_step.rollouts) == pytest.approx(to_start)
    assert any(abs(to_start[name] - to_policy[name]) > 1.0 for name in to_start)


def test_drift_is_the_kl_of_the_student_to_its_start_and_the_students_entropy(
    world: TaskSource,
) -> None:
    """Turned, or with the start's entropy, the numbers that stop a run would be those of another
    model."""
    live_step = make_live(world, live_config(groups=2, group_size=2)).collect(None, step=0)
    student = tiny_student()
    start = frozen_reference(student)
    with torch.no_grad():
        for parameter in student.model.parameters():
            parameter.mul_(1.3)
    measured = measure_drift(
        frozen_reference(student),
        start,
        live_step.rollouts,
        episodes=4,
        pad_id=0,
        max_tokens=8192,
        device="cpu",
    )
    kl, entropy, tokens = 0.0, 0.0, 0
    for example in map(sampled_example, live_step.rollouts):
        with torch.no_grad():
            models = (student.model.eval(), start.model)
            now_TV, then_TV = (
                model(torch.tensor([example.ids])).logits[0].double().log_softmax(-1)
                for model in models
            )
        for position in (p for span in example.lm_spans for p in range(*span)):
            now_V, then_V = now_TV[position - 1], then_TV[position - 1]
            kl += float((now_V.exp() * (now_V - then_V)).sum())
            entropy -= float((now_V.exp() * now_V).sum())
            tokens += 1
    assert measured.tokens == tokens > 0
    assert (measured.kl, measured.entropy) == (
        pytest.approx(kl / tokens, rel=1e-4),
        pytest.approx(entropy / tokens, rel=1e-4),
    )


def test_drift_is_measured_on_episodes_of_the_whole_step(
    monkeypatch: pytest.MonkeyPatch, world: TaskSource
) -> None:
    """Rollouts are ordered by group: the first few belong to one or two tasks and do not represent
    the others."""
    live_step = make_live(world, live_config(groups=3, group_size=4)).collect(None, step=0)
    recorded: list[str] = []

    def noting(rollout: Any) -> TrainingExample:
        recorded.append(rollout.task_id)
        return sampled_example(rollout)

    monkeypatch.setattr(rollout_metrics_module, "sampled_example", noting)
    student = tiny_student()
    measure_drift(
        frozen_reference(student),
        frozen_reference(student),
        live_step.rollouts,
        episodes=4,
        pad_id=0,
        max_tokens=8192,
        device="cpu",
    )
    assert (
        len(recorded) == 4
        and set(recorded) == {rollout.task_id for rollout in live_step.rollouts}
        and len(set(recorded)) == 3
    )
