"""A complete run: learning, health, balance, settings, and its files."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from composer_replication.core.channel_names import CHANNELS, Channel
from composer_replication.core.config.student_settings import LoraSettings, StudentSettings
from composer_replication.core.errors import AlignmentError, ConfigError, DataError, StoppedError
from composer_replication.losses.channel import ChannelLoss
from composer_replication.losses.divergence import jsd
from composer_replication.losses.fused import fused_divergence
from composer_replication.losses.total import total_loss
from composer_replication.models.load_student import Student, load_student
from composer_replication.tokens.batch import count, micro_batches
from composer_replication.tokens.example import PreferencePair
from composer_replication.training import step as step_module
from composer_replication.training.inputs import StepInputs
from composer_replication.training.loop import train
from composer_replication.training.run.checkpoint import training_settings
from composer_replication.training.run.state import Trainer
from composer_replication.training.step import accumulate, measure_channels, train_step
from tests.training.small_student import (
    WordTokenizer,
    gradients,
    make_config,
    make_example,
    make_pair,
    make_run,
    make_student,
    small_model,
    start_trainer,
)

EXAMPLES = [make_example(i, length=20 + 3 * i, hints=i % 3) for i in range(7)]
PAIRS = [make_pair(0), make_pair(1)]
ALL = {"preference": {"weight": 1.0}}
TRACE: tuple[Channel, ...] = ("lm_ce", "hint", "preference")
ONLY_HINT = {"lm_ce": {"weight": 0.0}}


def losses_of(
    trainer: Trainer, examples: list, pairs: Sequence[PreferencePair] = ()
) -> dict[str, float]:
    micros = micro_batches(examples, pairs, micro_tokens=10_000)
    return {
        name: channel_loss.loss
        for name, channel_loss in accumulate(
            trainer, micros, count(examples, pairs), scales=None
        ).items()
    }


def loud_student() -> Student:
    """A louder start, so that hints change the teacher by more than noise."""
    student = make_student()
    with torch.no_grad():
        for p in student.model.parameters():
            p.mul_(3.0) if p.ndim > 1 else None
    return student


def test_two_alternating_batches_both_get_better_at_their_own_tokens() -> None:
    """Each batch at its own loss tokens, against its value before, and against a batch of the same
    kind that is never trained on."""
    config = make_config(steps=60, learning_rate=3e-3, **ONLY_HINT)
    trainer = start_trainer(config, loud_student())
    batches = [
        [make_example(10 * k + i, length=24, hints=1, lm=False) for i in range(3)] for k in range(3)
    ]
    before = [losses_of(trainer, batch)["hint"] for batch in batches]
    for step in range(50):
        train_step(trainer, StepInputs(batches[step % 2], []), step=step)
    after = [losses_of(trainer, batch)["hint"] for batch in batches]
    for k in (0, 1):
        assert after[k] < 0.5 * before[k], (k, before, after)
        assert after[k] / before[k] < 0.6 * after[2] / before[2], (
            "no better than on tokens it never saw"
        )


def test_lm_ce_learns_its_own_tokens_and_leaves_the_targets_alone() -> None:
    config = make_config(steps=60, learning_rate=3e-3, hint={"weight": 0.0})
    trainer = start_trainer(config, make_student())
    batches = [[make_example(10 * k + i, length=24, hints=0) for i in range(3)] for k in range(3)]
    before = [losses_of(trainer, batch)["lm_ce"] for batch in batches]
    for step in range(48):
        train_step(trainer, StepInputs(batches[step % 2], []), step=step)
    after = [losses_of(trainer, batch)["lm_ce"] for batch in batches]
    assert after[0] < 0.5 * before[0] and after[1] < 0.5 * before[1]
    assert after[2] > 0.8 * before[2]  # random ids: nothing to learn about them elsewhere


def test_preferences_learn_their_own_pairs() -> None:
    config = make_config(
        steps=60, learning_rate=3e-3, lm_ce={"weight": 0.0}, hint={"weight": 0.0}, **ALL
    )
    trainer = start_trainer(config, make_student())
    batches = [[make_pair(10 * k + i) for i in range(3)] for k in range(3)]
    before = [losses_of(trainer, [], batch)["preference"] for batch in batches]
    for step in range(40):
        train_step(trainer, StepInputs([], batches[step % 2]), step=step)
    after = [losses_of(trainer, [], batch)["preference"] for batch in batches]
    assert before == pytest.approx([math.log(2)] * 3)  # policy = reference
    assert after[0] < 0.5 * before[0] and after[1] < 0.5 * before[1]
    assert after[2] > 0.8 * before[2]  # random ids: nothing to learn about them elsewhere


def test_all_three_channels_together_learn_their_own_tokens() -> None:
    """Two alternating batches of all channels, each against its value before and against the third
    batch, never trained on."""
    config = make_config(steps=80, learning_rate=3e-3, **ALL)
    trainer = start_trainer(config, loud_student())
    batches = [
        (
            [make_example(10 * k + i, length=24, hints=1) for i in range(3)],
            [make_pair(10 * k + i) for i in range(3)],
        )
        for k in range(3)
    ]
    before = [losses_of(trainer, *batch) for batch in batches]
    for step in range(60):
        train_step(trainer, StepInputs(*batches[step % 2]), step=step)
    after = [losses_of(trainer, *batch) for batch in batches]
    for name in ("lm_ce", "hint", "preference"):
        ratios = [new[name] / old[name] for new, old in zip(after, before, strict=True)]
        assert max(ratios[:2]) < 0.6 and max(ratios[:2]) < 0.7 * ratios[2], (name, ratios)


# ---- the files of a run ----


def test_a_run_writes_its_directory(tmp_path: Path) -> None:
    config, recorded, events = make_config(steps=5, **ALL), [], []
    run = make_run(tmp_path, config)
    result = train(
        config,
        student=make_student(),
        examples=EXAMPLES,
        pairs=PAIRS,
        run=run,
        on_step=recorded.append,
        on_event=events.append,
    )
    assert (
        result.statuses
        == {
            "policy": "off",
            "lm_ce": "active",
            "hint": "active",
            "preference": "active",
        }
        and result.steps == 5
    )
    lines = run.metrics()
    assert (
        [metrics["step"] for metrics in lines]
        == [1, 2, 3, 4, 5]
        == [metrics["step"] for metrics in recorded]
    )
    for metrics in lines:
        for channel in ("lm_ce", "hint", "preference"):
            assert metrics[f"{channel}/status"] == "active" and metrics[f"{channel}/tokens"] > 0
            assert metrics[f"{channel}/grad_norm"] > 0 and math.isfinite(metrics[f"{channel}/loss"])
        assert ("hint/grad_norm_parameters" in metrics) == (
            metrics["step"] in (1, 4)
        )  # grad_every = 3
    assert [step for step, _ in run.checkpoints()] == [
        2,
        4,
        5,
    ] and result.checkpoint == run.checkpoint(5)
    assert (
        [e["kind"] for e in run.events()]
        == ["start", "checkpoint", "checkpoint", "checkpoint"]
        == [e["kind"] for e in events]
    )
    assert run.info()["state"] == "done" and "step step=5" in run.log(1).read_text(encoding="utf-8")


def test_watched_sites_are_the_models_own_log_probs(tmp_path: Path) -> None:
    config = make_config(steps=3, learning_rate=1e-2)
    run, student = make_run(tmp_path, config), make_student()
    train(config, student=student, examples=EXAMPLES, run=run)
    first, last = (
        json.loads(run.tokens(step).read_text(encoding="utf-8"))["sites"] for step in (0, 3)
    )
    by_site = {v.site_id: (e, v) for e in EXAMPLES for v in e.hints}
    assert {row["kind"] for row in first} == {"unknown_tool", "bad_args"}
    for table, model, teacher in (
        (first, small_model(), small_model()),
        (last, student.model, small_model()),
    ):
        for row in table:
            example, view = by_site[row["site_id"]]
            assert row["ids"] == list(view.target_ids) and row["texts"] == [
                f"w{i}" for i in view.target_ids
            ]
            logits = {}
            for name, net, ids in (
                ("student", model, example.student_ids(view)),
                ("teacher", teacher, example.teacher_ids(view)),
            ):
                with torch.no_grad():
                    logp = net(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
                n = len(row["ids"])
                logits[name] = logp[len(ids) - n - 1 : len(ids) - 1]
                expected = [
                    float(logp[len(ids) - n - 1 + k, ids[len(ids) - n + k]]) for k in range(n)
                ]
                assert row[name] == pytest.approx(expected, abs=2e-5)
            apart = jsd(logits["student"], logits["teacher"], beta=0.5)
            assert (
                row["measure"] == "jsd"
                and row["divergence"] == pytest.approx(apart.tolist(), abs=2e-5)
                and max(row["divergence"]) > 0
            )
    assert first[0]["student"] != last[0]["student"] and first[0]["teacher"] == last[0]["teacher"]


def test_the_checkpoint_is_a_model_that_transformers_loads(tmp_path: Path) -> None:
    config = make_config(steps=2)
    run, student = make_run(tmp_path, config), make_student()
    result = train(config, student=student, examples=EXAMPLES, run=run)
    loaded = AutoModelForCausalLM.from_pretrained(str(result.checkpoint))
    ids = torch.tensor([[3, 4, 5, 6]])
    assert torch.equal(loaded(input_ids=ids).logits, student.model.eval()(input_ids=ids).logits)


def test_nothing_to_train_on_and_a_used_run_are_errors(tmp_path: Path) -> None:
    config = make_config(steps=1)
    run = make_run(tmp_path, config)
    with pytest.raises(DataError, match="nothing to train on"):
        train(config, student=make_student(), examples=[], run=run)
    train(config, student=make_student(), examples=EXAMPLES, run=run)
    with pytest.raises(DataError, match="taken steps already"):
        train(config, student=make_student(), examples=EXAMPLES, run=run)


def test_what_cannot_fit_stops_before_the_first_step(tmp_path: Path) -> None:
    config = make_config(steps=2, micro_tokens=30)
    run = make_run(tmp_path, config)
    with pytest.raises(
        ConfigError,
        match="the teacher row of s5:0:c in example e5 is the longest item and needs 39 tokens",
    ):
        train(config, student=make_student(), examples=EXAMPLES, run=run)
    assert run.events() == [] and run.metrics() == []


# ---- health ----


def test_a_starved_channel_warns_at_once_and_stops_the_run(tmp_path: Path) -> None:
    config = make_config(steps=20, starved_steps=3)
    run = make_run(tmp_path, config)
    without = [dataclasses.replace(e, hints=()) for e in EXAMPLES]
    with pytest.raises(StoppedError, match="hint was starved at step 3") as caught:
        train(config, student=make_student(), examples=without, run=run)
    assert caught.value.exit_code == 3
    events = run.events()
    assert [
        (e["kind"], e.get("step"), e.get("channel")) for e in events if e["kind"] == "starved"
    ] == [("starved", 1, "hint")]
    assert len(run.metrics()) == 3 and run.metrics()[-1]["hint/loss"] is None
    assert run.info()["state"] == "stopped:starved" and events[-1]["kind"] == "stopped"


def test_a_detached_hint_loss_is_dead_and_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def detached(*args, **kwargs):
        return fused_divergence(*args, **kwargs).detach()

    monkeypatch.setattr("composer_replication.training.forwards.hinting.fused_divergence", detached)
    config = make_config(steps=20, starved_steps=2)
    run = make_run(tmp_path, config)
    with pytest.raises(StoppedError, match="hint was dead at step 2") as caught:
        train(config, student=make_student(), examples=EXAMPLES, run=run)
    assert caught.value.exit_code == 3
    metrics = run.metrics()[-1]
    assert (
        metrics["hint/status"] == "dead"
        and metrics["hint/tokens"] > 0
        and metrics["hint/loss"] > 0
        and metrics["hint/grad_norm"] == 0
    )
    assert metrics["lm_ce/status"] == "active" and run.info()["state"] == "stopped:dead"


def test_only_a_detached_hint_loss_does_not_crash_the_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "composer_replication.training.forwards.hinting.fused_divergence",
        lambda *g, **k: fused_divergence(*g, **k).detach(),
    )
    metrics = train_step(
        start_trainer(make_config(**ONLY_HINT), make_student()), StepInputs(EXAMPLES, []), step=0
    )
    assert metrics["hint/status"] == "dead" and metrics["grad_norm"] == 0


def test_exhausted_is_fine() -> None:
    """After it was active, a step without a hint view is no reason to stop."""
    trainer = start_trainer(make_config(starved_steps=1), make_student())
    assert train_step(trainer, StepInputs(EXAMPLES, []), step=0)["hint/status"] == "active"
    for step in (1, 2, 3):
        metrics = train_step(trainer, StepInputs([make_example(50, hints=0)], []), step=step)
        assert metrics["hint/status"] == "exhausted" and metrics["hint/tokens"] == 0


def test_an_off_channel_is_off_and_costs_nothing() -> None:
    trainer = start_trainer(make_config(hint={"weight": 0.0}), make_student())
    assert "hint" not in trainer.models.references
    metrics = train_step(trainer, StepInputs(EXAMPLES, PAIRS), step=0)
    assert (
        metrics["hint/status"],
        metrics["hint/tokens"],
        metrics["hint/loss"],
        metrics["hint/scale"],
    ) == (
        "off",
        0,
        None,
        0.0,
    )
    assert metrics["preference/status"] == "off"


def test_tokens_lost_on_the_way_to_the_loss_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from composer_replication.training import step as module

    def losing(examples, pairs=(), *, pad_id):
        batch = original(examples, pairs, pad_id=pad_id)
        shortened = {
            n: getattr(batch.lm, n)[:-1] for n in ("row_N", "position_N", "ids_N", "item_N")
        }
        return dataclasses.replace(batch, lm=dataclasses.replace(batch.lm, **shortened))

    original = module.collate
    monkeypatch.setattr(module, "collate", losing)
    with pytest.raises(AlignmentError, match="lm_ce: 34 tokens reached the loss, 35 were counted"):
        train_step(start_trainer(make_config(), make_student()), StepInputs(EXAMPLES, []), step=0)


def test_a_step_that_is_not_finite_stops_before_it_is_taken() -> None:
    trainer = start_trainer(make_config(), make_student())
    with torch.no_grad():
        trainer.trainable()[0][3] = torch.nan
    before = [p.detach().clone() for p in trainer.trainable()[1:]]
    with pytest.raises(StoppedError, match="not finite"):
        train_step(trainer, StepInputs(EXAMPLES, []), step=0)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.trainable()[1:], strict=True))


# ---- weights, balance, gradient norms ----


def test_balanced_weights_are_shares_of_the_hidden_gradient() -> None:
    trainer = start_trainer(make_config(hint={"weight": 0.5}, **ALL), make_student())
    metrics = train_step(trainer, StepInputs(EXAMPLES, PAIRS), step=0)
    for name, weight in (("lm_ce", 1.0), ("hint", 0.5), ("preference", 1.0)):
        assert metrics[f"{name}/scale"] * metrics[f"{name}/grad_norm"] == pytest.approx(
            weight, rel=1e-5
        )
    first = metrics["hint/grad_norm"]
    metrics = train_step(trainer, StepInputs(EXAMPLES, PAIRS), step=1)
    # the second norm counts from the next step on
    assert metrics["hint/scale"] * first == pytest.approx(0.5)
    expected = (0.9 * first + metrics["hint/grad_norm"]) / 1.9
    assert first != pytest.approx(metrics["hint/grad_norm"], rel=1e-4)
    assert train_step(trainer, StepInputs(EXAMPLES, PAIRS), step=2)["hint/scale"] == pytest.approx(
        0.5 / expected
    )


def test_raw_sums_keep_the_weights() -> None:
    trainer = start_trainer(
        make_config(balance="none", hint={"weight": 2.0}, **ALL), make_student()
    )
    metrics = train_step(trainer, StepInputs(EXAMPLES, PAIRS), step=0)
    assert [metrics[f"{n}/scale"] for n in ("lm_ce", "hint", "preference")] == [1.0, 2.0, 1.0]
    expected = metrics["lm_ce/loss"] + 2 * metrics["hint/loss"] + metrics["preference/loss"]
    assert metrics["loss"] == pytest.approx(expected, rel=1e-6)


def test_the_sum_has_the_sum_of_the_channels_gradients() -> None:
    trainer = start_trainer(make_config(**ALL), make_student())
    scales = {"lm_ce": 1.5, "hint": 40.0, "preference": 0.5}
    total = gradients(trainer, EXAMPLES, PAIRS, scales)
    alone = [gradients(trainer, EXAMPLES, PAIRS, {name: scale}) for name, scale in scales.items()]
    for total_gradient, *parts in zip(total, *alone, strict=True):
        assert torch.allclose(total_gradient, sum(parts), atol=2e-6)


def test_parameter_norms_are_those_of_each_channel_alone() -> None:
    trainer = start_trainer(make_config(**ALL), make_student())
    expected = {
        n: math.sqrt(
            sum(float(g.square().sum()) for g in gradients(trainer, EXAMPLES, PAIRS, {n: 1.0}))
        )
        for n in TRACE
    }
    metrics = train_step(trainer, StepInputs(EXAMPLES, PAIRS), step=0)
    for name, norm in expected.items():
        assert metrics[f"{name}/grad_norm_parameters"] == pytest.approx(norm, rel=1e-5)


def test_measuring_more_often_does_not_change_training(tmp_path: Path) -> None:
    finals = []
    for grad_every in (1, 100):
        config = make_config(steps=3, grad_every=grad_every)
        student = make_student(dropout=0.2)
        train(config, student=student, examples=EXAMPLES, run=make_run(tmp_path, config))
        finals.append([p.detach().clone() for p in student.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*finals, strict=True))


@pytest.mark.parametrize("divergence", ["kl(student, teacher)", "kl(teacher, student)"])
def test_each_divergence_trains_and_differs(divergence: str) -> None:
    start = {}
    for name in (divergence, "jsd"):
        trainer = start_trainer(
            make_config(hint={"divergence": name, "temperature": 2.0}), make_student()
        )
        start[name] = train_step(trainer, StepInputs(EXAMPLES, []), step=0)["hint/loss"]
    # one curvature
    assert start[divergence] != start["jsd"] and start[divergence] == pytest.approx(
        start["jsd"], rel=0.2
    )


def test_the_step_uses_the_rate_of_the_plan_and_the_clipped_gradient() -> None:
    """In Adam's first step each weight moves by the rate; the first moment holds a tenth of the
    clipped gradient."""
    trainer = start_trainer(
        make_config(learning_rate=1e-3, warmup_steps=4, max_grad_norm=0.5), make_student()
    )
    before = [p.detach().clone() for p in trainer.trainable()]
    metrics = train_step(trainer, StepInputs(EXAMPLES, []), step=0)
    moved = torch.cat(
        [(p - b).detach().abs().flatten() for p, b in zip(trainer.trainable(), before, strict=True)]
    )
    assert metrics["lr"] == pytest.approx(2.5e-4) and float(moved.max()) == pytest.approx(
        2.5e-4, rel=1e-2
    )
    moment = math.sqrt(
        sum(float(state["exp_avg"].square().sum()) for state in trainer.optimiser.state.values())
    )
    assert metrics["grad_norm"] > 1.0 and moment == pytest.approx(0.1 * 0.5, rel=1e-3)


# ---- devices ----


def test_measuring_never_mixes_devices() -> None:
    """Everything on "meta", which refuses a CPU tensor among its own as CUDA does: also a loss that
    is detached, and a trunk it misses."""
    hidden, unused = (torch.ones(2, 3, device="meta", requires_grad=True) for _ in range(2))
    attached = ChannelLoss(name="hint", values=hidden.square().sum(-1), tokens=2, global_units=2)
    detached = dataclasses.replace(attached, name="lm_ce", values=torch.ones(4, device="meta"))
    sums = torch.zeros(len(CHANNELS), 3, dtype=torch.float64, device="meta")
    measure_channels(sums, [attached, detached], [unused, hidden])
    measure_channels(sums, [attached], [unused])
    total = total_loss([attached, detached], {"lm_ce": 1.0, "hint": 2.0})
    total.backward()
    assert sums.device.type == total.device.type == "meta" and hidden.grad is not None


def test_what_is_measured_of_a_channel() -> None:
    sums, hidden = (
        torch.zeros(len(CHANNELS), 3, dtype=torch.float64),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True),
    )
    part = ChannelLoss(name="hint", values=hidden.square().sum(-1), tokens=7, global_units=4)
    measure_channels(sums, [part, part], [torch.zeros(1, requires_grad=True), hidden])
    # mean = 30 / 4, gradient = hidden / 2, squared norm = 30 / 4
    assert dict(zip(CHANNELS, sums.tolist(), strict=True)) == {
        **{name: [0, 0, 0] for name in CHANNELS},
        "hint": [14, 15, 15],
    }


# ---- LoRA ----


def test_lora_trains_only_adapters_and_its_teacher_is_the_start(tmp_path: Path) -> None:
    base = tmp_path / "base"
    small_model().save_pretrained(str(base))
    settings = StudentSettings(model=str(base), lora=LoraSettings(rank=2, alpha=8))
    student = load_student(settings, tokenizer=WordTokenizer(), seed=3)
    frozen = {
        n: p.detach().clone() for n, p in student.model.named_parameters() if not p.requires_grad
    }
    config = make_config(steps=3, learning_rate=1e-2, **ALL)
    run = make_run(tmp_path, config)
    result = train(config, student=student, examples=EXAMPLES, pairs=PAIRS, run=run)
    assert {result.statuses[name] for name in TRACE} == {
        "active"
    } and 0 < student.num_trainable < student.num_parameters / 3
    assert all(
        torch.equal(frozen[n], p) for n, p in student.model.named_parameters() if n in frozen
    )
    last = json.loads(run.tokens(3).read_text(encoding="utf-8"))["sites"]
    first = json.loads(run.tokens(0).read_text(encoding="utf-8"))["sites"]
    assert [row["teacher"] for row in first] == [row["teacher"] for row in last]
    assert [row["student"] for row in first] != [row["student"] for row in last]
    saved = load_file(str(run.checkpoint(3) / "adapter_model.safetensors"))
    assert saved and all("lora_" in name for name in saved)


def test_the_parts_of_a_step_are_counted_over_all_its_passes(tmp_path: Path) -> None:
    """The passes of one step had one name, and the count began again with each."""
    work: list[tuple[str, ...]] = []
    phases: list[Callable[[], str]] = []
    forwards = step_module.run_passes

    def seen(*args: Any) -> Any:
        part, name, left = phases[-1]().split(", ")
        work.append((part, name, left))
        return forwards(*args)

    config = make_config(steps=2, probe_sites=0, **ALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "run_passes", seen)
        run = make_run(tmp_path, config)
        train(
            config,
            student=make_student(),
            examples=EXAMPLES,
            pairs=PAIRS,
            run=run,
            on_progress=phases.append,
        )
    first_step = work[: next(i for i in range(1, len(work)) if work[i][0].startswith("part 1 "))]
    assert [part for part, _, _ in first_step] == [
        f"part {n} of {len(first_step)}" for n in range(1, len(first_step) + 1)
    ]
    assert list(dict.fromkeys(name for _, name, _ in first_step)) == [
        "first norms",
        "norm of lm_ce",
        "norm of hint",
        "norm of preference",
        "backward",
    ]
    measuring = [left == "eta measuring" for _, _, left in first_step]
    assert measuring == [True] + [False] * (len(first_step) - 1)
    assert {name for _, name, _ in work[len(first_step) :]} == {"backward"}, "means are kept"


@pytest.mark.parametrize(("sites", "probed"), [(0, set[int]()), (1, {0, 1})])
def test_the_token_probe_looks_at_as_many_sites_as_are_set(
    tmp_path: Path, sites: int, probed: set[int]
) -> None:
    phases: list[str] = []
    config = make_config(steps=1, probe_sites=sites, **ALL)
    train(
        config,
        student=make_student(),
        examples=EXAMPLES,
        pairs=PAIRS,
        run=(run := make_run(tmp_path, config)),
        on_progress=lambda phase: phases.append(phase()),
    )
    assert {step for step, _ in run.token_tables()} == probed
    assert sum(phase.startswith("token probe: 0 of") for phase in phases) == len(probed)
    # it only looks: a run may be resumed with another number
    assert "probe_sites" not in training_settings(config)["train"]
