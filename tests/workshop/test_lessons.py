"""Lessons: a right hint keeps the player from one mistake, a foreign one changes nothing, both are
rendered as in the hint channel."""

from __future__ import annotations

import random
from functools import partial

import pytest

from composer_replication.core.config.data_settings import HintsSettings, SitesSettings
from composer_replication.core.trace import Turn
from composer_replication.data.hints.write import write_hints
from composer_replication.data.sites.find_sites import find_sites
from composer_replication.workshop.demonstrators import Habits, careless, oracle
from composer_replication.workshop.episodes import play
from composer_replication.workshop.lessons import (
    HINTED,
    Lesson,
    LessonTests,
    hint_text,
    make_lesson,
)
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import make_task, make_tasks
from composer_replication.workshop.vocabulary import (
    LEGACY_READER,
    LEGACY_STYLE,
    toolset_is_held_out,
)
from composer_replication.workshop.workshop_env import WorkshopEnv

LESSONS = [make_lesson(f"test:{i}", habits=Habits(), tests=LessonTests()) for i in range(400)]


def own_hints(lesson: Lesson) -> set[str]:
    """Every text that is a right hint in the lesson's own session."""
    return {_text_of(lesson, kind) for kind in HINTED}


def _text_of(lesson: Lesson, kind: str) -> str:
    names = [tool.name for tool in lesson.tools]
    if kind == "unknown_tool":
        return f"Reminder: available tools: {', '.join(names)}."
    editor = next(tool for tool in lesson.tools if len(tool.parameters["properties"]) == 3)
    fields = ", ".join(f"{name}: string (required)" for name in editor.parameters["properties"])
    return f"Reminder: the tool {editor.name} takes {fields}."


def below_hints() -> list[tuple[Lesson, str, Turn]]:
    """(lesson, hint, the message below it)."""
    return [
        (lesson, turn.text, lesson.turns[i + 1])
        for lesson in LESSONS
        for i, turn in enumerate(lesson.turns)
        if turn.tag == "hint"
    ]


def is_mistake(lesson: Lesson, message: Turn, kind: str) -> bool:
    """Whether a message calls a tool that is not offered, or one with arguments that it does not
    take."""
    offered = {tool.name: set(tool.parameters["properties"]) for tool in lesson.tools}
    wrong_name = any(call.name not in offered for call in message.calls)
    wrong_arguments = any(
        call.name in offered and set(call.arguments) != offered[call.name] for call in message.calls
    )
    return wrong_name if kind == "unknown_tool" else wrong_arguments


@pytest.mark.parametrize("kind", HINTED)
def test_below_its_own_hint_that_mistake_is_not_made(kind: str) -> None:
    messages = [
        (lesson, message)
        for lesson, hint, message in below_hints()
        if hint == _text_of(lesson, kind)
    ]
    assert len(messages) > 30
    assert not any(is_mistake(lesson, message, kind) for lesson, message in messages)


@pytest.mark.parametrize("kind", HINTED)
def test_below_a_foreign_hint_behaviour_is_as_without_any(kind: str) -> None:
    foreign = [
        (lesson, message)
        for lesson, hint, message in below_hints()
        if hint not in own_hints(lesson)
    ]
    lured = [(lesson, message) for lesson, message in foreign if _invites(lesson, message, kind)]
    assert len(lured) > 8
    # The habit is certain at first sight; only after the same error is it mostly given up.
    first = [
        (lesson, message) for lesson, message in lured if not _erred_before(lesson, message, kind)
    ]
    assert first and all(is_mistake(lesson, message, kind) for lesson, message in first)


def _invites(lesson: Lesson, message: Turn, kind: str) -> bool:
    """Whether the habit would be wrong in this message: it reads, or edits, with names that differ
    from the habit's."""
    offered = {tool.name for tool in lesson.tools}
    if kind == "unknown_tool":
        reads = any(set(call.arguments) == {"path"} for call in message.calls)
        return reads and LEGACY_READER not in offered
    editor = next(tool for tool in lesson.tools if len(tool.parameters["properties"]) == 3)
    return (
        any(len(call.arguments) == 3 for call in message.calls)
        and tuple(editor.parameters["properties"])[1:] != LEGACY_STYLE
    )


def _erred_before(lesson: Lesson, message: Turn, kind: str) -> bool:
    before = lesson.turns[: lesson.turns.index(message)]
    error_text = "No such tool" if kind == "unknown_tool" else "InputValidationError"
    return any(error_text in result.text for turn in before for result in turn.results)


def test_the_hints_are_those_that_the_hint_channel_writes(sandbox: Sandbox) -> None:
    met: set[str] = set()
    for task in make_tasks(40, seed=3):
        session = play(
            WorkshopEnv(task, sandbox=sandbox, slack=3),
            partial(careless, rng=random.Random(0), habits=Habits()),
        )
        sites = find_sites(session, settings=SitesSettings())
        kinds = {site.id: site.kind for site in sites}
        for hint in write_hints(session, sites, settings=HintsSettings()).hints:
            if kinds[hint.site_id] in HINTED:
                met.add(kinds[hint.site_id])
                assert hint.text == hint_text(kinds[hint.site_id], task.tools)
    assert met == set(HINTED)


def test_lessons_are_training_tasks_and_the_same_for_a_seed() -> None:
    again = make_lesson("test:3", habits=Habits(), tests=LessonTests())
    assert again == LESSONS[3] != LESSONS[4]
    assert all(
        make_task(f"lesson:test:{i}").split == "train"
        and not toolset_is_held_out(make_task(f"lesson:test:{i}").tools)
        for i in range(50)
    )


def test_the_reckoner_says_what_the_sandbox_says(sandbox: Sandbox) -> None:
    for kind in ("fix", "both"):
        for number in range(6):
            sessions = [
                play(WorkshopEnv(make_task(number, kind=kind), sandbox=tests), oracle)
                for tests in (sandbox, LessonTests())
            ]
            assert sessions[0] == sessions[1] and sessions[0].outcome == 1.0


def test_the_reckoner_refuses_lines_that_no_task_holds() -> None:
    with pytest.raises(ValueError, match="not a line"):
        LessonTests().run({"a.py": "x = open('/etc/passwd')\n"}, [("a.py", "x")])


def test_led_lessons_go_past_the_habits_and_do_not_train_what_they_replaced() -> None:
    """At a message in which a certain habit would be wrong, the right message is context only; all
    others are learned."""
    led = [
        make_lesson(f"led:{i}", habits=Habits(), tests=LessonTests(), led=1.0) for i in range(80)
    ]
    assert sum(bool(lesson.untrained) for lesson in led) > 60
    for lesson in led:
        tools = {tool.description: tool for tool in lesson.tools}
        reader, editor = tools["Read a file."], tools["Replace a text in a file."]
        habits: set[str] = set() if reader.name == LEGACY_READER else {reader.name}
        habits |= (
            set() if tuple(editor.parameters["properties"])[1:] == LEGACY_STYLE else {editor.name}
        )
        spoken = [i for i, turn in enumerate(lesson.turns) if turn.role == "assistant"]
        called = {i: lesson.turns[i].calls[0].name for i in spoken if lesson.turns[i].calls}
        listed_by_habit = {
            i for i in spoken[:1] if called.get(i) == tools["Find lines that hold a text."].name
        }
        assert (
            lesson.untrained
            == {i for i, name in called.items() if name in habits} | listed_by_habit
        )
        assert tools["List the files."].name not in called.values()
        assert not any(is_mistake(lesson, lesson.turns[i], kind) for i in spoken for kind in HINTED)
