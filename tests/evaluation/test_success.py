"""Who plays what, unaided: tasks outside training, no hint anywhere, and equal episodes for equal
seeds."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.rollout_settings import EvaluateSettings
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.trace import HARNESS, HUMAN, Segment, Text, ToolCall, ToolSpec, Turn
from composer_replication.evaluation.success import (
    EpisodeResult,
    check_split,
    episode_result,
    evaluation_tasks,
    is_success,
    play_tasks,
)
from composer_replication.rollouts.envs.env import Opening, Reply
from composer_replication.rollouts.task_source import open_world
from composer_replication.tokens.renderer import Renderer
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import Task, make_task, make_tasks
from composer_replication.workshop.workshop_env import WorkshopEnv
from tests.evaluation.small_judge import (
    LIMITS,
    SETTINGS,
    played_by,
    silent,
    solver,
    source_in,
    student,
    tokenizer,
    unseen_task,
)
from tests.rollouts.small_world import Parrot, message_ids

HINT = "Reminder: the reader is called look_at."
RENDERER = Renderer.for_tokenizer(tokenizer())


def play_it(
    sandbox: Sandbox, *, seed: int = 3, model: Any = None, tasks: int = 10, make: Any = WorkshopEnv
) -> list[EpisodeResult]:
    settings = SETTINGS.model_copy(update={"tasks": tasks})
    model = student().model if model is None else model
    limits = (
        LIMITS
        if not isinstance(model, Parrot)
        else LIMITS.model_copy(update={"max_new_tokens": 200, "batch_episodes": 1})
    )
    return play_tasks(
        model,
        renderer=RENDERER,
        settings=settings,
        limits=limits,
        seed=seed,
        source=source_in(sandbox, make=make),
    )


def reading_parrot() -> Parrot:
    """Reads the file of the first task with the right name, then claims that it is done."""
    (task,) = make_tasks(1, seed=stage_seed(3, "evaluate"), split="heldout")
    reads = Turn(
        role="assistant",
        author="m",
        blocks=(ToolCall("x", task.tools.reader, {"path": task.targets[0].path}),),
    )
    reply = Turn(role="assistant", author="m", blocks=(Text("Done."),))
    return Parrot(len(tokenizer()), [message_ids(RENDERER, reads), message_ids(RENDERER, reply)])


def test_the_tasks_are_those_of_the_seed_and_as_they_were_made(sandbox: Sandbox) -> None:
    expected = make_tasks(10, seed=stage_seed(3, "evaluate"), split="heldout")
    with open_world("workshop") as source:
        tasks, others = (evaluation_tasks(SETTINGS, seed=n, source=source) for n in (3, 4))
        assert [cast(WorkshopEnv, task.make()).task for task in tasks] == expected
        assert [(t.id, t.kind, t.split) for t in tasks] == [
            (t.id, t.kind, t.split) for t in expected
        ]
        assert [task.id for task in tasks] != [task.id for task in others]
        settings = EvaluateSettings(tasks=3, split="words")
        in_words = evaluation_tasks(settings, seed=3, source=source)
    assert len({task.id for task in expected}) == 10 and {task.split for task in expected} == {
        "heldout"
    }
    assert {task.split for task in in_words} == {"words"}


def test_an_environment_without_unseen_tasks_is_not_judged(sandbox: Sandbox) -> None:
    source = replace(source_in(sandbox), name="mine.py:make", unseen=None)
    with pytest.raises(ConfigError, match=r"'mine\.py:make' has no unseen tasks"):
        evaluation_tasks(SETTINGS, seed=3, source=source)


def test_a_training_task_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(ConfigError, match="is a training task"):
        settings = SETTINGS.model_copy(update={"split": "train"})
        evaluation_tasks(settings, seed=3, source=source_in(sandbox))
    mixed = [*make_tasks(2, seed=1, split="heldout"), make_task(1, split="train")]
    tasks = [unseen_task(task, sandbox) for task in mixed]
    with pytest.raises(ConfigError, match="is a training task"):
        check_split(tasks)
    task, (played, *_) = tasks[-1], played_by(solver, sandbox, tasks=1)
    with pytest.raises(ConfigError, match="is a training task"):
        episode_result(task, played.session, measures=played.measures, ended="done")


def test_a_student_reads_the_task_and_its_own_results_only(sandbox: Sandbox) -> None:
    for task, played in zip(
        make_tasks(10, seed=stage_seed(3, "evaluate"), split="heldout"),
        play_it(sandbox),
        strict=True,
    ):
        assert played.task_id == task.id and played.kind == task.kind
        system, request, *later_turns = played.session.turns
        assert (system.role, request.text) == (
            "system",
            task.prompt,
        ) and played.session.tools == task.tools.specs()
        assert {turn.role for turn in later_turns} <= {"assistant", "tool", "user"} and not any(
            turn.tag == "hint" for turn in later_turns
        )
        assert played.tokens == sum(len(turn.sampled.ids) for turn in later_turns if turn.sampled)
    assert not [name for name in inspect.signature(play_tasks).parameters if "hint" in name]


def test_the_same_seed_gives_the_same_episodes_and_another_does_not(sandbox: Sandbox) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first = play_it(sandbox)
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        assert play_it(sandbox) == first
    finally:
        torch.set_num_threads(threads)
    assert [p.session.turns for p in play_it(sandbox, seed=4)] != [p.session.turns for p in first]
    assert [p.session.turns for p in play_it(sandbox, model=student(seed=8).model)] != [
        p.session.turns for p in first
    ]


def test_the_entropy_is_that_of_what_was_sampled(sandbox: Sandbox) -> None:
    """Random weights know nothing: nearly the logarithm of the vocabulary."""
    for played in play_it(sandbox, tasks=2):
        logprobs = [
            x for turn in played.session.turns if turn.sampled for x in turn.sampled.logprobs
        ]
        assert played.entropy == pytest.approx(-sum(logprobs) / len(logprobs))
        assert 0.8 < played.entropy / torch.tensor(float(len(tokenizer()))).log().item() < 1.2


class HintedOpening(WorkshopEnv):
    def open(self) -> Opening:
        opening = super().open()
        hint = Turn(role="system", author=HARNESS, blocks=(Text(HINT),))
        return replace(opening, turns=(*opening.turns, hint))


class HintedRequest(WorkshopEnv):
    def open(self) -> Opening:
        opening = super().open()
        system, request = opening.turns
        return replace(
            opening, turns=(system, replace(request, blocks=(Text(f"{request.text}\n{HINT}"),)))
        )


class HintedResult(WorkshopEnv):
    def reply(self, turn: Turn) -> Reply:
        reply = super().reply(turn)
        hinted = tuple(
            replace(t, blocks=tuple(replace(b, text=f"{b.text}\n{HINT}") for b in t.results))
            for t in reply.turns
        )
        return replace(reply, turns=hinted)


class Generous(WorkshopEnv):
    def reward(self) -> float:
        return 1.0


@pytest.mark.parametrize("kind", [HintedOpening, HintedRequest, HintedResult, Generous])
def test_an_episode_with_a_hint_or_another_reward_is_refused(kind: Any, sandbox: Sandbox) -> None:
    (alone,) = play_it(sandbox, model=reading_parrot(), tasks=1)
    assert [turn.role for turn in alone.session.turns] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ] and not is_success(alone)
    envs = list[WorkshopEnv]()

    def hinted_once(task: Task, **more: Any) -> WorkshopEnv:
        """The environment that plays the episode has the hint; those that check it have none."""
        envs.append((WorkshopEnv if envs else kind)(task, **more))
        return envs[-1]

    with pytest.raises(
        DataError, match=r"the replayed episode has other|differs from the environment's answer"
    ):
        play_it(sandbox, model=reading_parrot(), tasks=1, make=hinted_once)


def test_help_in_a_finished_session_is_seen_by_role_and_author(sandbox: Sandbox) -> None:
    (task,) = evaluation_tasks(EvaluateSettings(tasks=1), seed=1, source=source_in(sandbox))
    (fine,) = played_by(solver, sandbox, tasks=1)
    turns = fine.session.turns
    extra = [
        Turn(role="system", author=HARNESS, blocks=(Text(HINT),), tag="hint"),
        Turn(role="user", author=HUMAN, blocks=(Text(HINT),)),
        Turn(role="assistant", author="another model", blocks=(Text(HINT),)),
        replace(turns[3], tag="reminder"),
    ]
    length = (Segment(start=0, end=len(turns) + 1),)
    helped = [
        replace(fine.session, turns=(*turns[:4], turn, *turns[4:]), segments=length)
        for turn in extra
    ]
    longer = replace(turns[1], blocks=(Text(turns[1].text + HINT),))
    helped.append(replace(fine.session, turns=(turns[0], longer, *turns[2:])))
    helped.append(
        replace(
            fine.session, tools=(*fine.session.tools, ToolSpec(name="look_at", description=HINT))
        )
    )
    episode_result(task, fine.session, measures=fine.measures, ended="done")
    for session in helped:
        with pytest.raises(
            DataError,
            match=r"does not belong to the episode|does not begin with the unchanged task",
        ):
            episode_result(task, session, measures=fine.measures, ended="done")


def test_success_is_finished_and_right(sandbox: Sandbox) -> None:
    right, wrong = played_by(solver, sandbox, tasks=5), played_by(silent, sandbox, tasks=5)
    assert all(map(is_success, right)) and not any(map(is_success, wrong))
    for ended in ("max_turns", "max_context"):
        assert not is_success(replace(right[0], ended=ended))
    assert not is_success(replace(right[0], reward=0.99))
