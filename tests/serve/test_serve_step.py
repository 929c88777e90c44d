"""One step on sessions that an agent program played equals the step on those of the sampler."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from composer_replication.core.config.root import Config
from composer_replication.models.load_student import Student
from composer_replication.rollouts.chat_format import ChatFormat
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.groups import Group, Groups
from composer_replication.serve.recorded_sessions import played_rollouts
from composer_replication.serve.student_writers import ScriptedWriter
from composer_replication.training.inputs import StepInputs
from composer_replication.training.on_policy import live as live_module
from composer_replication.training.on_policy.live import LiveStep, RolloutSource, group_advantages
from composer_replication.training.step import train_step
from tests.serve.clients import AnthropicClient, playing
from tests.training.scripted import (
    careless_sample,
    live_config,
    make_live,
    renderer,
    tiny_student,
    workshop,
)
from tests.training.small_student import start_trainer


@pytest.fixture(scope="module")
def source_and_groups() -> Iterator[tuple[RolloutSource, Groups]]:
    """Groups of rollouts with mistakes and different rewards."""
    with workshop() as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_module, "sample_rollouts", careless_sample)
        source = make_live(world, live_config())
        yield source, source.sample(None, step=0, version=0)


def replayed(rollout: Rollout) -> Rollout:
    """The same episode through the endpoint: the student writes the same ids, a client that speaks
    Anthropic's messages brings the same results."""
    session, render = rollout.session, renderer()
    sampled = [turn.sampled for turn in session.turns if turn.sampled is not None]
    logprobs = iter([list(s.logprobs) for s in sampled])
    writer = ScriptedWriter(
        chat_format=ChatFormat.of(render, author="tiny"),
        messages=[s.ids for s in sampled],
        score=lambda prompt_ids, ids: next(logprobs),
        version=rollout.version,
    )
    tools = [
        {"name": t.name, "description": t.description, "input_schema": dict(t.parameters)}
        for t in session.tools
    ]
    with playing(writer, name=session.id, render=render, task_id=rollout.task_id) as (record, url):
        client = AnthropicClient(url, tools, system="")
        minted: dict[str, str] = {}
        results: list[tuple[str, str, bool]] = []
        for turn in session.turns:
            if turn.role == "system":
                client.system = turn.text
            elif turn.role == "user":
                client.say(turn.text)
            elif turn.role == "tool":
                (result,) = turn.results
                results.append((minted[result.call_id], result.text, bool(result.is_error)))
            else:
                if results:
                    client.results(*results)
                    results = []
                calls = [block for block in client.ask() if block["type"] == "tool_use"]
                assert len(calls) == len(turn.calls)
                for call, block in zip(turn.calls, calls, strict=True):
                    minted[call.id] = block["id"]
        if results:  # what followed the last message: the program shows it to nobody
            client.results(*results)
        (played,) = played_rollouts(record, reward=rollout.reward)
    return dataclasses.replace(played, measures=rollout.measures)


def step_on(
    live_step: LiveStep, *, config: Config | None = None, student: Student | None = None
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """The metrics and the weights of one step of a fresh student."""
    trainer = start_trainer(config or live_config(), student or tiny_student())
    inputs = StepInputs.of([], [], live_step=live_step)
    metrics = train_step(trainer, inputs, step=0)
    metrics.pop("step_s")
    return metrics, [p.detach().clone() for p in trainer.trainable()]


def check_same_step(
    ours: tuple[dict[str, Any], list[torch.Tensor]],
    theirs: tuple[dict[str, Any], list[torch.Tensor]],
) -> None:
    """Two steps trained both channels, and are equal bit for bit."""
    (metrics, weights), (their_metrics, their_weights) = ours, theirs
    assert metrics == their_metrics and metrics["policy/tokens"] > 0 and metrics["hint/tokens"] > 0
    assert all(torch.equal(a, b) for a, b in zip(weights, their_weights, strict=True))


def test_one_step_is_the_same_on_both(source_and_groups: tuple[RolloutSource, Groups]) -> None:
    source, groups = source_and_groups
    through_endpoint = Groups(
        groups=tuple(Group(g.task_id, tuple(map(replayed, g.rollouts))) for g in groups.groups),
        flat=tuple(Group(g.task_id, tuple(map(replayed, g.rollouts))) for g in groups.flat),
        num_extra=groups.num_extra,
    )
    ours, theirs = source.examples(groups, step=0), source.examples(through_endpoint, step=0)
    assert ours.examples and any(e.hints for e in ours.examples)
    for mine, other in zip(ours.examples, theirs.examples, strict=True):
        assert mine.ids == other.ids and mine.actions == other.actions
        assert [(v.at, v.hint_ids, v.span) for v in mine.hints] == [
            (v.at, v.hint_ids, v.span) for v in other.hints
        ]
    check_same_step(step_on(ours), step_on(theirs))


def test_every_conversation_of_an_episode_has_its_reward_and_counts_once(
    source_and_groups: tuple[RolloutSource, Groups],
) -> None:
    """A chain of a summary and what followed it: one reward, one advantage, one of the group."""
    _, groups = source_and_groups
    group = groups.groups[0]
    first, *others = (dataclasses.replace(r, episode=r.session.id) for r in group.rollouts)
    later = dataclasses.replace(
        first, session=dataclasses.replace(first.session, id=f"{first.session.id}.1")
    )
    side = dataclasses.replace(
        first, session=dataclasses.replace(first.session, id="side", outcome=None)
    )
    chained = Group(group.task_id, (first, later, side, *others))
    alone = group_advantages(Groups(groups=(group,), flat=(), num_extra=0), placebos=(), seed=0)
    together = group_advantages(
        Groups(groups=(chained,), flat=(), num_extra=0), placebos=(), seed=0
    )
    assert together == {**alone, later.session.id: alone[first.session.id]}
    step = LiveStep(examples=(), rollouts=chained.rollouts, metrics={})
    assert step.num_rollouts == len(group.rollouts)
