"""The health rules on a live policy with TRL's rollouts: their inputs, and that each of them ends a
run. Only the runs need TRL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication.core.errors import DataError, StoppedError
from composer_replication.core.trace import ToolCall
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.backends import trl_rollback
from composer_replication.training.backends.trl_rollback import (
    LOST,
    FailureRecordingTools,
    as_rollout,
    as_step,
    record_failures,
)
from composer_replication.training.backends.trl_rollouts import record_rollout
from composer_replication.training.on_policy import rollout_metrics
from composer_replication.training.on_policy.live import RolloutSource
from composer_replication.training.on_policy.rollout_metrics import Drift
from composer_replication.training.run import rollback as rollback_module
from composer_replication.workshop.as_tools import OVER, TOOLS, WorkshopTools, task_row
from composer_replication.workshop.lessons import LessonTests
from composer_replication.workshop.sandbox import SandboxRun
from tests.backends.test_trl_rollouts import EPISODE, MISSING, answered, assistant_message, played
from tests.backends.test_trl_tools import SEED, solve

pytestmark = pytest.mark.train
STUDENT = str(Path(__file__).resolve().parents[2] / "examples" / "workshop_student")


class Failing:
    """A sandbox that raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def run(self, files: Mapping[str, str], asked: Sequence[tuple[str, str]]) -> SandboxRun:
        raise self.error


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer.for_tokenizer(load_tokenizer(STUDENT))


def begun(sandbox: Any = None) -> Any:
    env: Any = record_failures(WorkshopTools)(**{"sandbox": sandbox or LessonTests()})
    env.reset(**task_row(SEED))
    return env


def recorded_rollout(
    renderer: Renderer,
    messages: Sequence[dict[str, Any]],
    env: FailureRecordingTools | None = None,
    **more: Any,
) -> Any:
    rollout = replace(played(renderer, messages), **more)
    recorded = record_rollout(rollout, renderer=renderer, tools=TOOLS.specs(), author="student")
    ids = (*rollout.prompt_ids, *rollout.completion_ids)
    ends = frozenset(renderer.codec.control.values())
    return as_rollout(recorded, env or begun(), name=rollout.name, ids=ids, end_ids=ends)


def test_what_the_environment_raises_costs_its_rollout_alone() -> None:
    lost = begun(Failing(OSError("no more processes")))
    assert lost.run_tests() == LOST and lost.list_files() == OVER
    assert lost.failure == "OSError: no more processes" and lost.get_reward() == 0.0
    lost.reset(**task_row(SEED))
    assert lost.failure == ""
    good = begun()
    assert solve(good) == 1.0 and good.failure == ""


def test_an_error_of_this_package_is_not_swallowed() -> None:
    """TRL makes words for the model of whatever a tool raises; the run must end, as in the
    reference loop."""
    env = begun(Failing(DataError("the sandbox is not safe")))
    with pytest.raises(DataError, match="not safe"):
        env.run_tests()
    with pytest.raises(DataError, match="not safe"):
        env.get_reward()


def test_only_the_tools_of_the_environment_are_offered() -> None:
    public = {
        name
        for name, value in vars(FailureRecordingTools).items()
        if callable(value) and not name.startswith("_")
    }
    assert public == {"reset", "get_reward"}


def test_a_rollout_is_read_as_the_reference_loop_reads_its_own(renderer: Renderer) -> None:
    rollout = recorded_rollout(
        renderer,
        [
            assistant_message(("view_file", {"path": "a.py"})),
            answered("view_file", "x = 1"),
            assistant_message(text="Done."),
        ],
    )
    wrote = [turn.sampled.ids for turn in rollout.session.turns if turn.sampled]
    rendered = renderer.render(rollout.session.turns, tools=TOOLS.specs())
    assert rollout.ids == rendered.ids[: len(rollout.ids)] and rollout.ended == "done"
    for turn, ids in zip(
        (t for t in rollout.session.turns if t.role == "assistant"), wrote, strict=True
    ):
        assert rollout.ids[turn.context_tokens : turn.context_tokens + len(ids)] == ids
    assert (
        recorded_rollout(renderer, [assistant_message(("view_file", {"path": "a.py"}))]).ended
        == "max_turns"
    )
    cut = played(renderer, [assistant_message(text="Done.")])
    assert (
        recorded_rollout(
            renderer,
            [assistant_message(text="Done.")],
            completion_ids=cut.completion_ids[:-1],
            tool_mask=cut.tool_mask[:-1],
        ).ended
        == "max_context"
    )


def test_a_lost_rollout_and_a_wrong_name_are_counted(renderer: Renderer) -> None:
    lost = begun(Failing(OSError("gone")))
    lost.run_tests()
    read = [
        assistant_message(("read_file", {"path": "a.py"})),
        answered("read_file", "{'error': 'Tool read_file not found.'}"),
        assistant_message(text="Done."),
    ]
    wrong, failed = (
        recorded_rollout(renderer, read),
        recorded_rollout(renderer, [assistant_message(text="Done.")], lost, name="r1"),
    )
    assert failed.ended == "env_error" and failed.reward == 0.0 and failed.measures == {}
    assert (
        wrong.measures["A_made"] == 1.0
        and recorded_rollout(renderer, [assistant_message(text="Done.")]).measures["A_made"] == 0.0
    )
    step = as_step([wrong, failed], group_size=2, scaled=False)
    assert (
        step.metrics["rollouts/lost"] == 0.5
        and step.metrics["rollouts/flat"] == 1.0
        and step.num_rollouts == 2
    )
    assert (
        step.metrics["rollouts/advantage_spread"] == 0.0 and "rollouts/entropy" not in step.metrics
    )


def test_unresolvable_calls_and_the_spread_of_rewards_are_those_of_the_rules(
    renderer: Renderer,
) -> None:
    solved = begun()
    solve(solved)
    gone = answered("view_file", "<tool_use_error>File does not exist.</tool_use_error>")
    first = recorded_rollout(
        renderer,
        [
            assistant_message(("view_file", {"path": "gone.py"})),
            gone,
            assistant_message(text="Done."),
        ],
        solved,
    )
    messages = [
        assistant_message(("str_replace", {"path": "a.py"})),
        answered("str_replace", MISSING),
        assistant_message(text="Done."),
    ]
    second = recorded_rollout(renderer, messages, name="r1")
    step = as_step([first, second], group_size=2, scaled=False)
    assert step.metrics["rollouts/unresolvable"] == 0.5
    assert (
        step.metrics["rollouts/success"] == 0.5 and step.metrics["rollouts/advantage_spread"] == 1.0
    )
    assert as_step([first, second], group_size=2, scaled=True).metrics[
        "rollouts/advantage_spread"
    ] == pytest.approx(2**0.5, rel=1e-3)


def test_what_could_not_be_recorded_still_counts_as_a_rollout() -> None:
    empty = [
        as_rollout(None, begun(), name=name, ids=(1, 2), end_ids=frozenset({2})) for name in "xy"
    ]
    assert as_step(empty, group_size=2, scaled=False).metrics["rollouts/episodes"] == 2


def drifting(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter((0.0, 9.0))
    monkeypatch.setattr(
        rollback_module,
        "measure_drift",
        lambda *a, **k: Drift(kl=next(values), entropy=1.0, tokens=1),
    )


def unresolvable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_metrics, "unresolvable_calls", lambda session: -1.0)


def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        FailureRecordingTools,
        "_call",
        lambda env, name, arguments: env._record_failure(lambda: 1 / 0, LOST),
    )
    monkeypatch.setattr(
        FailureRecordingTools, "get_reward", lambda env: env._record_failure(lambda: 1 / 0, 0.0)
    )


def forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter((1.0, 0.0))
    monkeypatch.setattr(RolloutSource, "monitor", lambda live, model, *, stats: (next(values),) * 8)


RULES = {
    "kl": drifting,
    "unresolvable": unresolvable,
    "environment": failing,
    "monitor": forgetting,
}


@pytest.mark.usefixtures("needs_trl")
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_ends_a_run_of_trl_and_puts_the_weights_back(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.backends.test_trl_trainer import run_once

    RULES[rule](monkeypatch)
    start: dict[str, Any] = {}
    limits = {
        "monitor_tasks": 8 if rule == "monitor" else 0,
        "monitor_every": 1,
        "max_unresolvable": 0.1 if rule == "unresolvable" else 1.0,
    }
    with pytest.raises(StoppedError, match=f"health rule '{rule}'") as caught:
        run_once(tmp_path, train={"health": limits, "steps": 4, "checkpoint_every": 4}, heard=start)
    assert caught.value.exit_code == 3 and "the weights after 0 steps were put back" in str(
        caught.value
    )
    student = start.pop("student")
    assert start.keys() and all(
        torch.equal(tensor, student.model.state_dict()[name]) for name, tensor in start.items()
    )


@pytest.mark.usefixtures("needs_trl")
def test_a_step_that_is_not_finite_ends_the_run_before_it_is_taken(tmp_path: Path) -> None:
    from tests.backends.frozen import REWARDS, trained

    with pytest.raises(StoppedError, match="step 1 is not finite") as caught:
        trained("policy", tmp_path, rewards=(float("inf"), *REWARDS[1:]))
    assert caught.value.where == "not_finite"


@pytest.mark.usefixtures("needs_trl")
def test_a_step_without_a_gradient_moves_nothing(tmp_path: Path) -> None:
    """Without a reset, the optimiser moments of the first step would keep moving the weights."""
    from tests.backends.frozen import move, start_model, trained

    trainer, _ = trained("policy", tmp_path, steps=2, rewards=(0.5,) * 8, weight_decay=0.5)
    expected = start_model()
    move(expected)
    assert all(
        torch.equal(a, b)
        for a, b in zip(trainer.model.parameters(), expected.parameters(), strict=True)
    )


def test_the_session_of_a_sample_has_no_log_probs(renderer: Renderer) -> None:
    turns = trl_rollback.storable_session(recorded_rollout(renderer, EPISODE).session).turns
    assert all(turn.sampled is None for turn in turns) and any(
        isinstance(b, ToolCall) for t in turns for b in t.blocks
    )
