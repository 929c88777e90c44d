"""A training run whose messages a server writes: hand-overs, versions, staleness, and the cost of a
misbehaving server."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from composer_replication.core.config.rollout_settings import RolloutSettings
from composer_replication.core.errors import ConfigError, DataError, StoppedError
from composer_replication.core.rundir import RunDir
from composer_replication.rollouts.served import Completion, GenerationRequest
from composer_replication.training import loop as loop_module
from composer_replication.training.loop import train
from composer_replication.training.on_policy.generator import Generator, log_prob_gap, publish
from tests.rollouts.small_world import message_ids
from tests.training.serving import Engine, serving
from tests.training.small_student import make_run
from tests.training.taught import CALM, PAIRS, live, live_config, renderer, taught_student


def config(
    url: str,
    folder: Path,
    *,
    train_settings: dict[str, Any] | None = None,
    server: dict[str, Any] | None = None,
    **rollouts: Any,
) -> Any:
    settings_value = {
        "url": url,
        "model": "taught",
        "weights_dir": str(folder),
        "timeout_s": 20.0,
        **(server or {}),
    }
    settings = {
        "steps": 2,
        "policy": {"weight": 1.0, "importance_cap": 2.0},
        **(train_settings or {}),
    }
    return live_config(train=settings, generator="served", server=settings_value, **rollouts)


def run_training(
    folder: Path, engine: Engine, *, student: Any = None, **settings: Any
) -> tuple[RunDir, Any]:
    with serving(engine) as url:
        run_config = config(url, engine.folder, **settings)
        run, student = make_run(folder, run_config), student or taught_student()
        train(run_config, student=student, run=run, live=live(run_config), pairs=PAIRS)
    return run, student


def handovers(run: RunDir, kind: str = "handover") -> list[dict[str, Any]]:
    return [event for event in run.events() if event["kind"] == kind]


def spy(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The examples of each step."""
    recorded: list[Any] = []
    original = loop_module.train_step

    def noting(trainer: Any, inputs: Any, **options: Any) -> Any:
        recorded.append([e for e in inputs.examples if e.origin == "student"])
        return original(trainer, inputs, **options)

    monkeypatch.setattr(loop_module, "train_step", noting)
    return recorded


# ---- a run ----


def test_a_run_trains_on_the_ids_and_log_probs_that_the_server_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, steps_seen = Engine(tmp_path / "served"), spy(monkeypatch)
    server_logprobs: dict[tuple[int, ...], list[float]] = {}

    def keep(asked: Any, answer: Any) -> Any:
        server_logprobs[(*asked["prompt"], *answer["choices"][0]["token_ids"])] = answer["choices"][
            0
        ]["logprobs"]["token_logprobs"]
        return answer

    engine.change = keep
    run, student = run_training(tmp_path, engine)
    assert [e["version"] for e in handovers(run)] == [0, 1] and engine.loads == 2
    assert all(e["gap"] < 1e-4 for e in handovers(run))
    actions = [(e, a) for step in steps_seen for e in step for a in e.actions]
    assert len(actions) > 8
    assert all(server_logprobs[tuple(e.ids[: a.span[1]])] == list(a.logprobs) for e, a in actions)
    assert {metrics["policy/status"] for metrics in run.metrics()} == {"active"} and run.metrics()[
        -1
    ]["rollouts/stale"] == 0
    paths = [path for path, _ in engine.asked]
    assert paths.count("/collective_rpc") == paths.count("/reset_prefix_cache") == 2
    assert not torch.equal(
        *(
            dict(m.named_parameters())["model.norm.weight"].detach()
            for m in (engine.model, student.model)
        )
    )


def test_the_server_holds_the_weights_of_the_step_when_it_writes(tmp_path: Path) -> None:
    """The second step of a run samples from the weights after the first, not from those of the
    start."""
    held: list[dict[str, torch.Tensor]] = []
    engine = Engine(tmp_path / "served")

    def keep(asked: Any, answer: Any) -> Any:
        if len(held) < engine.loads:
            held.append({n: p.detach().clone() for n, p in engine.model.named_parameters()})
        return answer

    engine.change = keep
    run, _ = run_training(
        tmp_path, engine, train_settings={"checkpoint_every": 1, "keep_checkpoints": 9}
    )
    for step in (0, 1):
        saved = AutoModelForCausalLM.from_pretrained(str(run.checkpoint(step)), dtype=torch.float32)
        assert all(torch.equal(held[step][n], p) for n, p in saved.named_parameters())


def test_between_hand_overs_rollouts_carry_the_older_version(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "served")
    run, _ = run_training(
        tmp_path, engine, train_settings={"steps": 4}, refresh_every=2, max_staleness=1
    )
    assert [e["version"] for e in handovers(run)] == [0, 2] and engine.loads == 2
    assert [metrics["rollouts/stale"] for metrics in run.metrics()] == [0] * 4
    assert "active" in [
        metrics["policy/status"] for metrics in run.metrics()[1::2]
    ]  # those one step old


def test_failed_hand_overs_make_rollouts_stale_and_stale_ones_are_counted_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server loads the first weights, then none: an age of one step is allowed, two are not."""
    engine, steps_seen = Engine(tmp_path / "served"), spy(monkeypatch)
    engine.refuse = lambda path, body: 503 if path == "/collective_rpc" and engine.loads else 200
    run, _ = run_training(tmp_path, engine, train_settings={"steps": 4}, max_staleness=1)
    assert [metrics["rollouts/stale"] for metrics in run.metrics()] == [0, 0, 8, 8]
    assert [bool(step) for step in steps_seen] == [True, True, False, False]
    assert [metrics["policy/tokens"] > 0 for metrics in run.metrics()] == [True, True, False, False]
    assert [e["version"] for e in handovers(run)] == [0]
    assert [(e["version"], "503" in e["reason"]) for e in handovers(run, "handover_failed")] == [
        (0, True)
    ] * 3


def test_a_server_that_keeps_its_weights_serves_until_they_are_too_old(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "served")
    publish(taught_student(), engine.folder)
    engine.load()
    run, _ = run_training(
        tmp_path, engine, train_settings={"steps": 3}, server={"handover": "none"}, max_staleness=1
    )
    assert [metrics["rollouts/stale"] for metrics in run.metrics()] == [0, 0, 8]
    assert [path for path, _ in engine.asked if path != "/v1/completions"] == []


# ---- a server that misbehaves ----


def change_with(**changes: Any) -> Callable[[Any, Any], Any]:
    def change(asked: Any, answer: Any) -> Any:
        answer["choices"][0] |= changes
        return answer

    return change


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("does not return token ids", change_with(token_ids=None)),
        ("a log-prob for each sampled token", change_with(logprobs=None)),
        ("other ids than it was given", change_with(prompt_token_ids=[1, 2])),
    ],
)
def test_a_server_of_another_kind_ends_the_run_by_name_before_its_first_step(
    message: str, change: Callable[[Any, Any], Any], tmp_path: Path
) -> None:
    engine = Engine(tmp_path / "served", change=change)
    with pytest.raises(DataError, match=message):
        run_training(tmp_path, engine)
    assert RunDir(next((tmp_path / "runs").glob("20*"))).metrics() == []


def test_other_weights_than_those_handed_over_are_named(tmp_path: Path) -> None:
    class Deaf(Engine):
        def load(self) -> None:
            if self.model is None:
                super().load()
                held: Any = self.model
                with torch.no_grad():
                    held.model.norm.weight.mul_(0.5)

    with pytest.raises(
        DataError,
        match=(
            r"log-probs are .* nats from those of the weights that it should hold, max_gap is 0\.1"
        ),
    ):
        run_training(tmp_path, Deaf(tmp_path / "served"))


def test_a_first_hand_over_that_fails_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    engine = Engine(
        tmp_path / "served", refuse=lambda path, body: 404 if path == "/collective_rpc" else 200
    )
    with pytest.raises(DataError, match="did not take the weights: HTTPError: HTTP Error 404"):
        run_training(tmp_path, engine)


def test_requests_that_hang_cost_their_rollouts_and_not_the_run(tmp_path: Path) -> None:
    """A message that never comes costs its rollout: it is counted, and reaches neither the policy
    nor the group's mean."""
    script = [message_ids(renderer(), text) for text in ("depth is 3", "no idea")]
    hung: list[int] = []

    def write(body: Any) -> tuple[list[int], list[float]]:
        ids = script[body["seed"] % 2][: body["max_tokens"]]
        return ids, [-0.7] * len(ids)

    def slow(asked: Any, answer: Any) -> Any:
        if asked["max_tokens"] == 40 and asked["seed"] % 5 == 0:
            hung.append(asked["seed"])
            threading.Event().wait(9.0)
        return answer

    engine = Engine(tmp_path / "served", write=write, change=slow)
    run, _ = run_training(
        tmp_path,
        engine,
        server={"timeout_s": 3.0, "max_gap": 99.0},
        train_settings={"steps": 3, "health": {**CALM, "max_lost": 1.0}},
    )
    lines, lost = run.metrics(), [e for e in run.events() if e["kind"] == "lost"]
    assert len(lines) == 3 and run.info()["state"] == "done" and hung
    assert (
        sum(metrics["rollouts/unwritten"] for metrics in lines)
        == len(hung)
        == sum(e["no_message"] for e in lost)
    )
    assert all(metrics["rollouts/lost"] == metrics["rollouts/unwritten"] / 8 for metrics in lines)
    assert lost[0]["words"] == ["no answer within 3 s"] and lost[0]["of"] == 8
    assert any(metrics["policy/tokens"] > 0 for metrics in lines if metrics["rollouts/unwritten"])


def test_a_server_that_goes_away_is_named_and_the_run_can_go_on_later(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "served")
    engine.refuse = lambda path, body: 503 if engine.loads > 1 else 200
    with pytest.raises((DataError, StoppedError), match="gave no completion: HTTP 503"):
        run_training(tmp_path, engine, train_settings={"steps": 3, "checkpoint_every": 1})
    run = RunDir(next((tmp_path / "runs").glob("20*")))
    assert [metrics["step"] for metrics in run.metrics()] == [1]
    again = Engine(tmp_path / "served")
    with serving(again) as url:
        longer_config = config(
            url, again.folder, train_settings={"steps": 3, "checkpoint_every": 1}
        )
        train(
            longer_config,
            student=taught_student(),
            run=run,
            live=live(longer_config),
            pairs=PAIRS,
            resume=True,
            accept_changes=True,
        )
    assert [metrics["step"] for metrics in run.metrics()] == [1, 2, 3] and [
        e["version"] for e in handovers(run)
    ] == [0, 1, 2]


# ---- parts ----


def test_a_published_folder_is_the_student_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    student = taught_student()
    publish(student, tmp_path / "w")
    before = {p.name for p in (tmp_path / "w").iterdir()}
    publish(student, tmp_path / "w")
    assert {p.name for p in (tmp_path / "w").iterdir()} == before and ".part" not in before
    loaded = AutoModelForCausalLM.from_pretrained(str(tmp_path / "w"), dtype=torch.float32)
    parameters = dict(student.model.named_parameters())
    assert all(
        torch.equal(p, parameters[n]) for n, p in loaded.named_parameters() if n in parameters
    )


def test_the_gap_is_the_mean_distance_of_log_probs() -> None:
    student, prompt = taught_student(), GenerationRequest(ids=(3, 4), max_tokens=2, seed=0)
    with torch.no_grad():
        logp = student.model(input_ids=torch.tensor([[3, 4, 5, 6]])).logits[0].log_softmax(-1)
    new_logprobs = [float(logp[1, 5]), float(logp[2, 6])]
    assert log_prob_gap(
        student, prompt, Completion(ids=[5, 6], logprobs=new_logprobs)
    ) == pytest.approx(0.0, abs=1e-5)
    away = Completion(ids=[5, 6], logprobs=[new_logprobs[0] - 0.5, new_logprobs[1] + 0.1])
    assert log_prob_gap(student, prompt, away) == pytest.approx(0.3, abs=1e-5)
    assert math.isfinite(log_prob_gap(student, prompt, away))


@pytest.mark.parametrize(
    ("message", "rollouts"),
    [
        ("needs server.url", {"generator": "served"}),
        (
            "needs server.url",
            {"generator": "served", "server": {"url": "http://a/v1", "model": "m"}},
        ),
        ("refresh_every is about a served generator", {"refresh_every": 2}),
        (
            "up to 3 steps old",
            {
                "generator": "served",
                "refresh_every": 4,
                "server": {"url": "http://a/v1", "model": "m", "weights_dir": "w"},
            },
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(message: str, rollouts: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=message):
        RolloutSettings.model_validate(rollouts)


def test_what_a_server_cannot_do_for_a_run_is_refused() -> None:
    settings = RolloutSettings.model_validate(
        {"generator": "served", "server": {"url": "http://a/v1", "model": "m", "weights_dir": "w"}}
    )
    with pytest.raises(ConfigError, match="several ranks"):
        Generator.of(settings, lora=False, ranks=2)
    with pytest.raises(ConfigError, match="not for a LoRA student"):
        Generator.of(settings, lora=True, ranks=1)
    assert Generator.of(RolloutSettings(), lora=True, ranks=4) is None


def test_an_adapter_is_handed_over_in_place(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "w")
    with serving(engine) as url:
        settings = config(url, engine.folder, server={"handover": "adapter"}).rollouts
        Generator(settings=settings)._load_weights()
    ((path, body),) = engine.asked
    assert path == "/v1/load_lora_adapter"
    assert body == {"lora_name": "taught", "lora_path": str(engine.folder), "load_inplace": True}
