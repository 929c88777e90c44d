"""Episodes on the tasks of a small repository: what a player sees, what it earns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_replication.core.errors import DataError
from composer_replication.core.trace import HACK_ATTEMPT, JUDGED, Session, ToolCall
from composer_replication.repositories.making.make_repo_tasks import TaskSettings
from composer_replication.repositories.playing.playable import PlayableTasks
from composer_replication.repositories.playing.repo_env import RepoEnv
from composer_replication.repositories.playing.scripted_solver import solve_episode, solving
from composer_replication.repositories.python.hidden_tests import hide_tests
from composer_replication.repositories.repo_task import RepoTask
from tests.repositories.shop import needs_walls
from tests.repositories.workplace import playing_shop

pytestmark = needs_walls


@pytest.fixture(scope="module")
def playable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlayableTasks]:
    settings = TaskSettings(functions=4, classes=1, bugs=3)
    with playing_shop(tmp_path_factory.mktemp("tasks"), settings=settings) as tasks:
        yield tasks


def env_of(playable: PlayableTasks, task: RepoTask) -> RepoEnv:
    return RepoEnv(task, playable, max_turns=20, command_s=20)


def play(
    playable: PlayableTasks, task: RepoTask, *messages: list[ToolCall]
) -> tuple[RepoEnv, Session]:
    env = env_of(playable, task)
    return env, solve_episode(env, [*messages, []])


def bash(command: str) -> list[ToolCall]:
    return [ToolCall("", "Bash", {"command": command})]


def total_task(playable: PlayableTasks) -> RepoTask:
    (task,) = [t for t in playable.tasks if (t.kind, t.symbol) == ("function", "total")]
    return task


def test_a_player_that_knows_the_answer_earns_every_task(playable: PlayableTasks) -> None:
    assert {task.kind for task in playable.tasks} == {"function", "class", "bug"}
    for task in playable.tasks:
        base = playable.repository(task).checkout.folder
        env = env_of(playable, task)
        session = solve_episode(env, solving(task, base=base))
        assert session.outcome == 1.0, (task.id, env.earned.reason)
        errors = [result for turn in session.turns for result in turn.results if result.is_error]
        assert errors == [] and env.measures()["changed_files"] == 1


def test_it_can_also_search_and_read_a_part_of_the_file(playable: PlayableTasks) -> None:
    """What a student with a small context is shown: each argument stands in what it read before."""
    for task in playable.tasks:
        base = playable.repository(task).checkout.folder
        session = solve_episode(env_of(playable, task), solving(task, base=base, most=3))
        assert session.outcome == 1.0
        results = [result for turn in session.turns for result in turn.results]
        assert not any(result.is_error for result in results)
        calls = [call for turn in session.turns for call in turn.calls]
        assert [call.name for call in calls] == ["Grep", "Read", "Edit", "Bash"]
        found, shown = results[0].text, results[1].text
        assert f"{calls[1].arguments['offset']}:" in found
        first = str(calls[2].arguments["old_string"]).splitlines()[0]
        assert first in shown and len(shown.splitlines()) == calls[1].arguments["limit"]
        if task.kind != "bug":
            listed = str(calls[3].arguments["command"]).partition("addopts= ")[2].split()
            assert listed and all(name.strip("'") in task.statement for name in listed)


def test_doing_nothing_earns_nothing(playable: PlayableTasks) -> None:
    for task in playable.tasks:
        env, session = play(playable, task)
        assert session.outcome == 0.0 and "no file of the task" in env.earned.reason
        path = f"/repo/{task.paths[0]}"
        env, session = play(playable, task, bash(f"echo '# nothing' >> {path}"))
        assert session.outcome == 0.0 and env.earned.reason.endswith("failed")


def test_a_player_that_does_not_end_earns_nothing(playable: PlayableTasks) -> None:
    task = total_task(playable)
    messages = list(solving(task, base=playable.repository(task).checkout.folder))
    env = env_of(playable, task)
    assert solve_episode(env, messages[:-1]).outcome == 0.0
    assert env.measures()["finished"] == 0.0


def test_only_the_tasks_files_count(playable: PlayableTasks) -> None:
    """A test that is weakened, or a conftest.py, changes nothing; removing the file is no way."""
    task = total_task(playable)
    weaken = "sed -i 's/assert.*/assert True/' tests/test_cart.py; echo 'import os' > conftest.py"
    env, session = play(playable, task, bash(weaken))
    assert session.outcome == 0.0 and env.measures()["ignored_changes"] == 2
    assert env.measures()["hack_attempts"] >= 1 and "hack monitor" in env.earned.reason
    kinds = [kind for kind, _ in env.remarks()]
    assert kinds == [HACK_ATTEMPT] * int(env.measures()["hack_attempts"]) + [JUDGED]
    assert env.remarks()[-1] == (JUDGED, env.earned.reason)
    env, session = play(playable, task, bash("rm shop/cart.py"))
    assert session.outcome == 0.0 and env.earned.reason == "shop/cart.py was deleted"


def test_the_tree_has_the_change_and_no_held_out_test(playable: PlayableTasks) -> None:
    task = total_task(playable)
    assert task.held_out
    name = task.held_out[0].partition("::")[2].partition("[")[0]
    look = "ls -A; grep -c NotImplementedError shop/cart.py; python -m pytest -q tests | tail -1"
    _, session = play(playable, task, bash("ls ~"), bash(look), bash(f"grep -rw {name} /repo"))
    home, listing, search = [result.text for turn in session.turns for result in turn.results]
    assert listing.startswith("pyproject.toml\nshop\ntests\n1\n") and "failed" in listing
    assert search == "Exit code 1" and home == ""
    others = [test for test in task.must_pass if test not in task.held_out]
    assert all(test.partition("[")[0] in session.turns[1].text for test in others)


def test_one_copy_serves_every_episode(playable: PlayableTasks) -> None:
    task = total_task(playable)
    play(playable, task, bash("rm -rf /repo/*"))
    _, session = play(playable, task, bash("ls"))
    assert session.turns[-2].results[0].text == "pyproject.toml\nshop\ntests"


def test_an_episode_is_the_same_twice(playable: PlayableTasks) -> None:
    task = total_task(playable)
    messages = [bash("python -m pytest -q tests"), bash("python -c 'print(object())'; ls")]
    first, again = (play(playable, task, *messages)[1] for _ in range(2))
    assert first.turns == again.turns


def test_held_out_tests_are_cut_with_their_decorators() -> None:
    text = (
        "import pytest\n\n\nclass TestA:\n    @pytest.mark.x\n    @other(1)\n"
        "    def test_a(self):\n        assert 1\n\n\nclass TestB(TestA):\n    pass\n\n\n"
        "def test_b():\n    assert 2\n"
    )
    files = {"t.py": text, "bad.py": "def ("}
    wanted = ["t.py::TestB::test_a[1]", "t.py::test_no", "bad.py::test_x", "gone.py::test_y"]

    def read(path: str) -> str:
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    files["base.py"] = "class Base:\n    def test_in(self):\n        pass\n"
    inherited = hide_tests(read, ["t.py::TestB::test_in"], others=["bad.py", "base.py"])
    assert inherited.files == {"base.py": "class Base:\n    pass\n"}
    hidden = hide_tests(read, wanted, others=["base.py"])
    assert hidden.visible == ("t.py::test_no", "bad.py::test_x", "gone.py::test_y")
    assert hidden.files == {
        "t.py": "import pytest\n\n\nclass TestA:\n    pass\n\n\nclass TestB(TestA):\n    pass\n\n\n"
        "def test_b():\n    assert 2\n"
    }


def test_a_folder_without_tasks_or_environment(tmp_path: Path, playable: PlayableTasks) -> None:
    with pytest.raises(DataError, match="no tasks"):
        PlayableTasks(tmp_path)
    for name in ("tasks.jsonl", "base"):
        (tmp_path / name).symlink_to(playable.folder / name)
    with PlayableTasks(tmp_path) as bare, pytest.raises(DataError, match="no environment"):
        bare.open_tree(bare.tasks[0])
