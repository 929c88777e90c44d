"""A language is an interface: tasks of a second one are made, judged and played like Python's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import dumps
from composer_replication.core.trace import Session, ToolCall
from composer_replication.repositories.checkout import read_checkout
from composer_replication.repositories.environment import read_environment
from composer_replication.repositories.judging.original_check import check_originals
from composer_replication.repositories.known_languages import LANGUAGES
from composer_replication.repositories.making.history import make_history_tasks
from composer_replication.repositories.making.make_repo_tasks import TaskSettings, make_repo_tasks
from composer_replication.repositories.playing.playable import PlayableTasks
from composer_replication.repositories.playing.repo_env import RepoEnv
from composer_replication.repositories.playing.scripted_solver import solve_episode, solving
from composer_replication.repositories.repo_task import RepoTask, read_tasks, task_line
from composer_replication.repositories.task_language import language_named
from tests.repositories import shell_language
from tests.repositories.shell_language import MONEY, SHELL, UNGUARDED, make_money
from tests.repositories.shop import git, needs_walls

MONEY_PATH = "/repo/lib/money.sh"


@pytest.fixture(scope="module")
def shell() -> Iterator[None]:
    """The language is known while these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LANGUAGES, "shell", f"{shell_language.__name__}:SHELL")
        yield


@pytest.fixture(scope="module")
def playable(shell: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlayableTasks]:
    """The tasks of a small repository of shell scripts."""
    place = tmp_path_factory.mktemp("money")
    folder, repository = place / "tasks", make_money(place / "money")
    checkout = read_checkout(repository, language="shell")
    environment = SHELL.make_environment(checkout, folder=folder / "environments" / "money")
    settings = TaskSettings(functions=2, classes=1, bugs=1)
    attempts = list(make_repo_tasks(checkout, environment, folder=folder, settings=settings))
    assert [attempt.refused for attempt in attempts] == ["", "", ""]
    with PlayableTasks(folder) as tasks:
        yield tasks


def play(playable: PlayableTasks, task: RepoTask, *messages: list[ToolCall]) -> Session:
    env = RepoEnv(task, playable, max_turns=9, command_s=20)
    return solve_episode(env, [*messages, []])


def bash(command: str) -> list[ToolCall]:
    return [ToolCall("", "Bash", {"command": command})]


def total_task(playable: PlayableTasks) -> RepoTask:
    (task,) = [t for t in playable.tasks if (t.kind, t.symbol) == ("function", "total")]
    return task


@needs_walls
def test_a_second_language_passes_the_gates(playable: PlayableTasks) -> None:
    tasks = {(task.kind, task.symbol): task for task in playable.tasks}
    assert set(tasks) == {("function", "total"), ("function", "cheapest"), ("bug", "total")}
    task = tasks["function", "total"]
    assert task.language == "shell" and task.removed["lib/money.sh"][0].startswith("    sum=0\n")
    names = [f"tests/test_{name}.sh::main" for name in ("none", "one", "three", "two")]
    assert task.must_pass == names and len(task.held_out) == 1
    assert "tests/test_cheapest.sh::main" in task.must_keep
    assert task.statement.startswith("`total()` in lib/money.sh is not written yet: its body")
    assert "Its docstring says: Add up prices." in task.statement


@needs_walls
def test_the_original_earns_and_nothing_else_does(playable: PlayableTasks) -> None:
    for task in playable.tasks:
        base = playable.repository(task).checkout.folder
        env = RepoEnv(task, playable, max_turns=9, command_s=20)
        session = solve_episode(env, solving(task, base=base))
        assert session.outcome == 1.0, env.earned.reason
        assert not any(result.is_error for turn in session.turns for result in turn.results)
        assert play(playable, task).outcome == 0.0
        assert play(playable, task, bash(f"echo '# done' >> {MONEY_PATH}")).outcome == 0.0


@needs_walls
def test_what_a_player_is_told_and_sees_is_the_languages(playable: PlayableTasks) -> None:
    task = total_task(playable)
    hidden = task.held_out[0].partition("::")[0]
    session = play(playable, task, bash(f"wc -c < {hidden}; sh tests/test_one.sh || echo failed"))
    assert "a repository of shell at /repo" in session.turns[0].text
    assert f"`{SHELL.run_tests}` runs its tests" in session.turns[0].text
    assert session.turns[-2].results[0].text == "0\nfailed"


@needs_walls
def test_a_language_without_a_monitor_is_still_read_from_outside(playable: PlayableTasks) -> None:
    """Calls and tests are read, and the pristine tests judge; what code does is not seen."""
    task = total_task(playable)
    answer = list(solving(task, base=playable.repository(task).checkout.folder))[:-1]
    for command in (
        "echo true > tests/test_one.sh",
        "rm tests/test_one.sh",
        "cat /proc/1/environ",
        "git show HEAD~1:lib/money.sh",
    ):
        session = play(playable, task, *answer, bash(command))
        assert session.outcome == 0.0, command
    cheat = bash(f"sed -i 's/return 1/exit 0/' {MONEY_PATH}; echo 'exit 0' >> {MONEY_PATH}")
    assert play(playable, task, cheat).outcome == 1.0  # what `unguarded` says


@needs_walls
def test_a_language_without_a_judge_writes_its_risk_on_each_task(playable: PlayableTasks) -> None:
    checked = list(check_originals(playable.folder))
    assert [row.refused for row in checked] == [""] * 3
    assert {task.residual_risk for task in read_tasks(playable.folder / "tasks.jsonl")} == {
        UNGUARDED
    }


@needs_walls
def test_a_commit_in_a_second_language_becomes_a_task(shell: None, tmp_path: Path) -> None:
    folder = make_money(tmp_path / "money", money=MONEY.replace("sum + price", "sum - price"))
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "Start")
    make_money(folder)
    for name, check in (("two", '"$(total 4 6)" = 10'), ("echo", "a = a"), ("true", "1 = 1")):
        test = folder / "tests" / f"test_{name}.sh"
        test.write_text(f". lib/money.sh\n[ {check} ]\n", encoding="utf-8")
    git(folder, "commit", "-qam", "Totals add")
    environment = SHELL.make_environment(
        read_checkout(folder, language="shell"), folder=tmp_path / "environment"
    )
    (attempt,) = make_history_tasks(
        folder, environment, name="money", target=tmp_path / "out", wanted=1, language="shell"
    )
    (task,) = read_tasks(tmp_path / "out" / "tasks.jsonl")
    assert attempt.refused == "" and (task.kind, task.language) == ("history", "shell")
    assert task.must_pass == ["tests/test_two.sh::main"]


@pytest.mark.parametrize(("judge", "monitor"), [(True, False), (False, True), (False, False)])
def test_a_language_that_nothing_guards_has_to_say_so(
    judge: bool, monitor: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = language_named("python")

    class Silent(shell_language.ShellLanguage):
        unguarded = ""

    Silent.judge = python.judge if judge else None
    Silent.monitor = python.monitor if monitor else None
    monkeypatch.setattr(shell_language, "SHELL", Silent())
    monkeypatch.setitem(LANGUAGES, "shell", f"{shell_language.__name__}:SHELL")
    checkout = read_checkout(make_money(tmp_path / "money"), language="shell")
    environment = SHELL.make_environment(checkout, folder=tmp_path / "environment")
    lacking = {(True, False): "no monitor", (False, True): "no judge"}
    words = lacking.get((judge, monitor), "no judge and no monitor")
    with pytest.raises(DataError, match=f"'shell' has {words}, and does not say so"):
        next(make_repo_tasks(checkout, environment, folder=tmp_path, settings=TaskSettings()))


def a_task() -> RepoTask:
    return RepoTask(
        id="shop-1",
        repository="shop",
        base="0" * 64,
        kind="bug",
        symbol="total",
        detail="",
        edits={},
        removed={},
        statement="",
        must_pass=[],
        must_keep=[],
        held_out=[],
        difficulty=1,
        cpu_s=0.1,
    )


def test_a_line_that_names_no_language_is_pythons(tmp_path: Path) -> None:
    """As written before a line named one."""
    line = task_line(a_task())
    assert line.pop("language") == "python"
    (tmp_path / "tasks.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    assert read_tasks(tmp_path / "tasks.jsonl") == [a_task()]


def test_a_line_of_an_unknown_language_is_named(tmp_path: Path) -> None:
    lines = [dumps(task_line(task)) for task in (a_task(), replace(a_task(), language="cobol"))]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"no language 'cobol' \(at .*tasks\.jsonl:2\); known: py"):
        read_tasks(tmp_path / "tasks.jsonl")
    with pytest.raises(DataError, match="no language 'cobol'"):
        read_checkout(tmp_path, language="cobol")
    with pytest.raises(DataError, match="no environment"):
        read_environment(tmp_path)
