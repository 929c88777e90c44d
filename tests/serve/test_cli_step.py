"""One policy and hint step on the sessions of real agent programs equals the step on those that our
own sampler makes of the same conversations."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from composer_replication.core.trace import Session, ToolResult, Turn
from composer_replication.models.load_student import Student
from composer_replication.rollouts.chat_format import ChatFormat
from composer_replication.rollouts.envs.env import Opening, Reply
from composer_replication.rollouts.episode import Episode, Rollout
from composer_replication.rollouts.groups import Group, Groups
from composer_replication.rollouts.sampling import EpisodeLimits
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.tokens.example import HintView
from composer_replication.training.on_policy.live import LiveStep, RolloutSource
from tests.rollouts.small_world import tiny
from tests.serve.clients import QWEN
from tests.serve.test_serve_recorded import replay
from tests.serve.test_serve_step import check_same_step, step_on
from tests.training.scripted import live_config, workshop

PROGRAMS = ("claude_code", "codex", "mini_swe_agent", "opencode")
NO_TOOL = "<tool_use_error>Error: No such tool available: NoSuchTool</tool_use_error>"
SCRUBBED = {"claude_code": {"text defdf46c": NO_TOOL}}
"""What Claude Code answered to a call of a tool that it does not have."""
SETTINGS = live_config(max_context_tokens=40_000, train={"micro_tokens": 40_000})


class AsRecorded:
    """An environment that answers what the program answered in a session."""

    def __init__(self, session: Session, *, task_id: str) -> None:
        self.task_id, self.max_turns = task_id, 1000
        self._tools = session.tools
        is_student = [turn.role == "assistant" for turn in session.turns]
        first = is_student.index(True)
        self._opening, self._turns = session.turns[:first], list(session.turns[first:])

    def open(self) -> Opening:
        return Opening(turns=self._opening, tools=self._tools)

    def reply(self, turn: Turn) -> Reply:
        recorded, *behind = self._turns
        num = len(list(itertools.takewhile(lambda t: t.role != "assistant", behind)))
        self._turns = behind[num:]
        ids = {a.id: b.id for a, b in zip(recorded.calls, turn.calls, strict=True)}
        return Reply(turns=tuple(_renamed(t, ids) for t in behind[:num]), done=not self._turns)

    def reward(self) -> float:
        return 0.0

    def measures(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        pass


def _renamed(turn: Turn, ids: Mapping[str, str]) -> Turn:
    """The turn with its results named after the sampler's calls."""
    blocks = tuple(
        dataclasses.replace(b, call_id=ids[b.call_id]) if isinstance(b, ToolResult) else b
        for b in turn.blocks
    )
    return dataclasses.replace(turn, blocks=blocks)


def by_our_sampler(played: Rollout) -> Rollout:
    """The same conversation as an episode of our own: the student writes the same ids."""
    session = played.session
    episode = Episode(
        AsRecorded(session, task_id=played.task_id),
        chat_format=ChatFormat.of(QWEN, author="tiny"),
        name=session.id,
        seed=0,
        stats=SamplingStats(),
        limits=EpisodeLimits(max_result_chars=100_000),
    )
    for _, turn in session.assistant_turns():
        assert turn.sampled is not None and episode.ended is None
        episode.take(
            turn.sampled.ids, turn.sampled.logprobs, ended=True, max_context_tokens=100_000
        )
    (rollout,) = episode.finish()
    return dataclasses.replace(
        rollout,
        session=dataclasses.replace(rollout.session, outcome=session.outcome),
        version=played.version,
        episode=played.episode,
    )


def student() -> Student:
    """Random weights, the same each time."""
    model = tiny(len(QWEN.tokenizer), max_position_embeddings=40_000)  # one for all callers
    return Student(name="tiny", model=copy.deepcopy(model), tokenizer=QWEN.tokenizer)


def step_of_settings(live_step: LiveStep) -> tuple[dict[str, Any], list[torch.Tensor]]:
    return step_on(live_step, config=SETTINGS, student=student())


def unnamed(view: HintView) -> str:
    """A view without its site's name, which holds the id of a call: the endpoint mints those."""
    return repr(view).replace(view.site_id, "")


def groups_of(rollouts: Sequence[Rollout]) -> Groups:
    return Groups(groups=(Group("calc", tuple(rollouts)),), flat=(), num_extra=0)


def played_sessions() -> list[Rollout]:
    """Every conversation of the four programs; Codex's failed."""
    return [
        dataclasses.replace(
            rollout,
            task_id="calc",
            version=0,
            episode=name,
            session=dataclasses.replace(
                rollout.session,
                id=f"{name}:{number}",
                outcome=rollout.session.outcome and float(name != "codex"),
            ),
        )
        for name in PROGRAMS
        for number, rollout in enumerate(replay(name, words=SCRUBBED.get(name, {}))[1])
    ]


def step_of(rollouts: Sequence[Rollout]) -> LiveStep:
    with workshop() as world:
        source = RolloutSource(config=SETTINGS, renderer=QWEN, task_source=world)
        return source.examples(groups_of(rollouts), step=0)


def test_one_step_is_the_same_as_on_sessions_of_our_own_sampler() -> None:
    played = [rollout for rollout in played_sessions() if not rollout.session.copied]
    assert {rollout.episode for rollout in played} == set(PROGRAMS)
    own = [by_our_sampler(rollout) for rollout in played]
    for mine, theirs in zip(own, played, strict=True):
        assert mine.ids == theirs.ids and mine.reward == theirs.reward
    ours, theirs = step_of(own), step_of(played)
    assert ours.examples and any(example.hints for example in ours.examples)
    for mine, other in zip(ours.examples, theirs.examples, strict=True):
        assert mine.ids == other.ids and mine.actions == other.actions
        assert list(map(unnamed, mine.hints)) == list(map(unnamed, other.hints))
    check_same_step(step_of_settings(ours), step_of_settings(theirs))


def test_each_conversation_of_an_episode_is_trained_on_and_the_episode_counts_once() -> None:
    """A subagent, a summary and what followed it, a dropped answer: more examples than episodes."""
    live_step = step_of(played_sessions())
    rewarded = [r.session for r in live_step.rollouts if r.session.outcome is not None]
    sampled = sum(
        len(turn.sampled.ids)
        for session in rewarded
        for number, turn in session.assistant_turns()
        if turn.sampled is not None and number >= session.copied
    )
    with_action = [example for example in live_step.examples if example.actions]
    assert live_step.num_rollouts == len(PROGRAMS) < len(with_action) == len(rewarded)
    metrics, _ = step_of_settings(live_step)
    assert metrics["policy/tokens"] == sampled
