"""The workshop's rules: its rewards, its answers, and the sites that our own detectors find in
it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from composer_replication.core.config.data_settings import HintsSettings, SitesSettings
from composer_replication.core.errors import SessionError
from composer_replication.core.trace import Opaque, Text, ToolCall, Turn
from composer_replication.data.hints.write import write_hints
from composer_replication.data.sites.find_sites import find_sites
from composer_replication.rollouts.envs.env import Env
from composer_replication.workshop.demonstrators import oracle
from composer_replication.workshop.episodes import env_at, play, session_of
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import Task, make_task
from composer_replication.workshop.workshop_env import MALFORMED, WorkshopEnv


def says(*blocks: Any) -> Turn:
    return Turn(
        role="assistant",
        author="test",
        blocks=tuple(Text(b) if isinstance(b, str) else b for b in blocks),
    )


def calls(name: str, call_id: str = "c", **arguments: Any) -> Turn:
    return says(ToolCall(call_id, name, arguments))


def started(task: Task, sandbox: Sandbox, slack: int = 9) -> WorkshopEnv:
    env = WorkshopEnv(task, sandbox=sandbox, slack=slack)
    env.open()
    return env


def answer(env: WorkshopEnv, turn: Turn) -> tuple[str, bool | None]:
    """Text and error flag of the single result."""
    result = env.reply(turn).turns[0].results[0]
    return result.text, result.is_error


def edit(env: WorkshopEnv, path: str, old: str, new: str) -> tuple[str, bool | None]:
    """Read and replace with this task's own names."""
    tools = env.task.tools
    answer(env, calls(tools.reader, path=path))
    return answer(env, calls(tools.editor, **{"path": path, tools.old: old, tools.new: new}))


def solve(env: WorkshopEnv) -> None:
    for target in env.task.targets:
        assert edit(env, target.path, target.before, target.after) == ("ok", False)


def test_it_is_an_env(sandbox: Sandbox) -> None:
    env: Env = WorkshopEnv(make_task(1), sandbox=sandbox)
    opening = env.open()
    assert [t.role for t in opening.turns] == ["system", "user"]
    assert len(opening.tools) == 5 and all(t.parameters["type"] == "object" for t in opening.tools)
    env.close()
    env.close()
    assert env.reward() == 0.0


def test_a_perfect_episode_is_worth_one(sandbox: Sandbox) -> None:
    env = started(make_task(2, kind="set"), sandbox)
    solve(env)
    assert answer(env, calls("run_tests")) == ("All tests passed.", False)
    assert env.reward() == 0.0  # not yet finished
    assert env.reply(says("Done.")).done
    assert env.reward() == 1.0


def test_a_hidden_failure_is_worth_nothing(sandbox: Sandbox) -> None:
    """The visible test passes, the tests were run, the player claims to be done - and one hidden
    point is wrong."""
    env = started(make_task(4, kind="fix"), sandbox)
    target, check = env.task.targets[0], env.task.visible[0]
    head = target.before.partition("return")[0]
    assert edit(env, target.path, target.before, f"{head}return {check.expected}") == ("ok", False)
    assert answer(env, calls("run_tests")) == ("All tests passed.", False)
    env.reply(says("Done."))
    assert not env.task.changed_elsewhere(env.files)
    assert env.reward() == 0.0


def test_a_change_elsewhere_is_worth_nothing(sandbox: Sandbox) -> None:
    """A comment in another file passes every test and still violates the task."""
    env = started(make_task(2, kind="set"), sandbox)
    solve(env)
    other_path = next(p for p in env.files if p not in {t.path for t in env.task.targets})
    line = env.files[other_path].splitlines()[0]
    assert edit(env, other_path, line, f"{line}  # seen") == ("ok", False)
    assert answer(env, calls("run_tests")) == ("All tests passed.", False)
    env.reply(says("Done."))
    assert env.reward() == 0.0


def test_tests_that_ran_before_the_last_edit_do_not_count(sandbox: Sandbox) -> None:
    env = started(make_task(2, kind="set"), sandbox)
    answer(env, calls("run_tests"))
    solve(env)
    env.reply(says("Done."))
    assert env.tally.untested and env.reward() == 0.0


def test_who_does_not_say_done_gets_nothing(sandbox: Sandbox) -> None:
    env = started(make_task(2, kind="change"), sandbox, slack=-1)
    for turn in (0, 1, 2):
        reply = env.reply(oracle(env))
        # the last results are given, so that sites have their evidence
        assert reply.turns and reply.done == (turn == 2)
    assert env.test_report().all_pass and env.tested
    assert env.reward() == 0.0
    with pytest.raises(SessionError, match="over"):
        env.reply(says("Done."))


def test_an_unopened_episode_answers_nothing(sandbox: Sandbox) -> None:
    with pytest.raises(SessionError, match="not opened"):
        WorkshopEnv(make_task(2), sandbox=sandbox).reply(says("Done."))


def test_one_wasted_call_costs_the_reward(sandbox: Sandbox) -> None:
    for seed in range(12):
        env = started(make_task(seed), sandbox, slack=0)
        answer(env, calls("list_files"))
        while not env.done:
            env.reply(oracle(env))
        assert env.reward() == 0.0


def test_calls_in_one_message_cost_as_much_as_in_many(sandbox: Sandbox) -> None:
    env = started(make_task(2, kind="change"), sandbox, slack=0)
    reply = env.reply(says(*(ToolCall(f"c{i}", "list_files", {}) for i in range(6))))
    assert (
        reply.done
        and [r.is_error for t in reply.turns for r in t.results] == [False] * 4 + [True] * 2
    )
    assert [r.call_id for t in reply.turns for r in t.results] == [f"c{i}" for i in range(6)]
    assert env.tally.detours == 4


def test_a_failing_test_is_shown_and_is_no_error(sandbox: Sandbox) -> None:
    env = started(make_task(4, kind="fix"), sandbox)
    text, is_error = answer(env, calls("run_tests"))
    assert text == f"FAILED {env.task.visible[0].text}" and is_error is False
    target = env.task.targets[0]
    edit(env, target.path, target.before, "def broken(")
    assert "SyntaxError" in answer(env, calls("run_tests"))[0]


def test_hidden_tests_are_never_shown(sandbox: Sandbox) -> None:
    env = started(make_task(4, kind="fix"), sandbox)
    target = env.task.targets[0]
    edit(env, target.path, target.before, "pass")
    text = answer(env, calls("run_tests"))[0]
    assert (
        all(check.expression not in text for check in env.task.hidden)
        and len(text.splitlines()) == 1
    )


def mistakes(task: Task) -> dict[str, list[Turn]]:
    """Kind of mistake -> messages, the last of which makes it."""
    tools, target = task.tools, task.targets[0]
    read = calls(tools.reader, "r", path=target.path)

    def change(old: Any, new: Any, path: str = target.path) -> Turn:
        return calls(tools.editor, **{"path": path, tools.old: old, tools.new: new})

    wrong = ("old", "new") if (tools.old, tools.new) != ("old", "new") else ("find", "replace")
    return {
        "unknown_tool": [calls("reed_file", path=target.path)],
        "bad_arguments": [
            read,
            calls(
                tools.editor, **dict(zip(("path", *wrong), (target.path, "a", "b"), strict=True))
            ),
        ],
        "file_missing": [calls(tools.reader, path="nowhere.py")],
        "edit_not_read": [change(target.before, target.after)],
        "edit_no_match": [read, change("no such line", target.after)],
        "edit_no_change": [read, change(target.before, target.before)],
        "edit_multi_match": [read, change("=", "==")],
    }


@pytest.mark.parametrize("kind", mistakes(make_task(1, kind="set")))
def test_our_own_detectors_name_every_error(sandbox: Sandbox, kind: str) -> None:
    env = started(make_task(1, kind="set"), sandbox)
    turns = list(WorkshopEnv(env.task, sandbox=sandbox).open().turns)
    for turn in mistakes(env.task)[kind]:
        turns += [turn, *env.reply(turn).turns]
    env.reply(says("Done."))
    sites = find_sites(session_of(env, [*turns, says("Done.")]), settings=SitesSettings())
    assert [(s.kind, s.category, s.turn, s.flagged) for s in sites] == [
        (kind, "mistake", len(turns) - 2, True)
    ]
    assert env.tally.errors == {kind: 1}


def test_hints_name_the_right_reader_and_the_right_arguments(sandbox: Sandbox) -> None:
    task = next(
        t
        for t in (make_task(i, kind="set") for i in range(99))
        if t.tools.reader != "read_file" and t.tools.old != "old"
    )
    env, turns = started(task, sandbox), []
    for turn in (
        calls("read_file", "a", path="x.py"),
        calls(task.tools.editor, "b", path="x.py", old="a", new="b"),
        says("Done."),
    ):
        turns += [turn, *env.reply(turn).turns]
    session = session_of(env, turns)
    report = write_hints(
        session, find_sites(session, settings=SitesSettings()), settings=HintsSettings()
    )
    first, second = report.hints
    assert task.tools.reader in first.text and "read_file" not in first.text
    assert (
        task.tools.editor in second.text and f"{task.tools.old}: string (required)" in second.text
    )


def test_wrong_types_and_extra_arguments_are_bad_arguments(sandbox: Sandbox) -> None:
    env = started(make_task(1), sandbox)
    reader = env.task.tools.reader
    wrong: tuple[dict[str, Any], ...] = (
        {},
        {"path": 3},
        {"path": "a", "limit": "3"},
        {"path": None},
    )
    for arguments in wrong:
        text, is_error = answer(env, calls(reader, **arguments))
        assert "InputValidationError" in text and is_error
    assert env.tally.errors["bad_arguments"] == 4 and env.tally.valid_calls == 0


@pytest.mark.parametrize(
    "turn",
    [
        says(Opaque(MALFORMED, '{"name": ')),
        says('<tool_call>\n{"name": "read'),
        says("Hm.", Opaque(MALFORMED, "x")),
    ],
)
def test_a_malformed_call_is_answered_and_does_not_end_the_episode(
    sandbox: Sandbox, turn: Turn
) -> None:
    env = started(make_task(1), sandbox, slack=0)
    reply = env.reply(turn)
    assert (
        not reply.done
        and "not valid JSON" in reply.turns[0].text
        and reply.turns[0].author == "harness"
    )
    assert env.tally.errors["malformed"] == 1 and not env.finished
    for _ in range(env.max_turns - 1):
        reply = env.reply(turn)
    assert reply.done and env.reward() == 0.0


def test_tests_really_run_once_per_state(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[dict[str, str]] = []
    real = sandbox.run
    monkeypatch.setattr(
        sandbox, "run", lambda files, asked: runs.append(dict(files)) or real(files, asked)
    )
    env = WorkshopEnv(make_task(4, kind="fix"), sandbox=sandbox)
    assert play(env, oracle).outcome == 1.0
    assert runs == [dict(env.task.files), env.files]
    assert play(WorkshopEnv(env.task, sandbox=sandbox), oracle).outcome == 1.0
    assert len(runs) == 4  # another episode asks again: episodes share no state


def test_an_episode_can_be_taken_up_in_the_middle(sandbox: Sandbox) -> None:
    task = make_task(9, kind="both")
    session = play(WorkshopEnv(task, sandbox=sandbox), oracle)
    assert (
        session.outcome == 1.0
        and session.repository == "workshop/train"
        and session.tools_origin == "log"
    )
    for index, turn in session.assistant_turns():
        assert oracle(env_at(task, session.turns[:index], sandbox=sandbox)) == turn
    with pytest.raises(SessionError, match="not what this task answers"):
        env_at(make_task(10, kind="both"), session.turns[:4], sandbox=sandbox)


def test_expected_values_never_enter_the_sandbox(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    real = sandbox.run
    monkeypatch.setattr(
        sandbox, "run", lambda files, asked: sent.append((files, asked)) or real(files, asked)
    )
    env = started(make_task(4, kind="fix"), sandbox)
    env.test_report()
    [(files, asked)] = sent
    assert files == dict(env.task.files)
    assert asked[:1] == [(check.path, check.expression) for check in env.task.visible]
    assert {(check.path, check.expression) for check in env.task.hidden} <= set(asked)
    # a name, or a call with two numbers that any operator could be asked for
    for _, expression in asked:
        assert re.fullmatch(r"[a-z]+(\(\d+, \d+\))?", expression)
