"""`rollouts.env` by path: the environment of docs/rollouts.md trains through the command line, and
the refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.rundir import RunDir, sha256_of
from composer_replication.rollouts.envs.env import EnvMetadata
from composer_replication.rollouts.task_source import open_world
from tests.cli.workspace import files, recompose

pytestmark = pytest.mark.train
ROOT = Path(__file__).parents[2]
REWARD = "return float(self.read and self.number in self.said)"
SETTINGS = """
[student]
model = "./student"
[rollouts]
env = "envs/guess.py:Guess"
groups = 2
group_size = 3
max_new_tokens = 12
[train]
steps = 1
policy = { weight = 1.0 }
lm_ce = { weight = 0.0 }
hint = { weight = 0.0 }
health = { monitor_tasks = 2, kl_episodes = 2 }
"""


def example() -> str:
    """The code of docs/rollouts.md."""
    page = (ROOT / "docs" / "rollouts.md").read_text("utf-8").split("## Your own environment")[1]
    return page.split("```python\n")[1].split("```")[0]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a student that writes messages with an end, the settings, and the page's
    environment under envs/."""
    shutil.copytree(ROOT / "examples" / "workshop_student", tmp_path / "student")
    (tmp_path / "recompose.toml").write_text(SETTINGS, "utf-8")
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "guess.py").write_text(example(), "utf-8")
    return tmp_path


def test_the_pages_environment_is_trained_in_and_resumed_and_an_edited_file_is_refused(
    work: Path,
) -> None:
    env = work / "envs" / "guess.py"
    assert REWARD in example()
    # no student here is able to solve it
    env.write_text(example().replace(REWARD, "return (sum(map(ord, self.said)) % 7) / 6"), "utf-8")
    (work / "elsewhere").mkdir()
    at = ("-c", str(work / "recompose.toml"), "-o", str(work / "out"))
    result = recompose("train", *at, "--name", "x", "--json", cwd=work / "elsewhere")
    assert result.code == 0, result.err
    assert result.value["statuses"]["policy"] == "active"
    run = work / "out" / "runs" / "x"
    (step_metrics,) = [
        json.loads(text) for text in (run / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    assert (
        step_metrics["rollouts/episodes"] == 6
        and 0 < step_metrics["rollouts/success"] < 1
        and step_metrics["health/monitor"] >= 0
    )
    played = [
        json.loads(text)
        for path in sorted((run / "samples").glob("*.jsonl"))
        for text in path.read_text("utf-8").splitlines()
    ]
    assert "Which number stands in number.txt?" in json.dumps(played) and "train-" in json.dumps(
        played
    )
    assert json.loads((run / "resolved.json").read_bytes())["rollouts"]["env"] == f"{env}:Guess"
    inputs = {
        i["path"]: i["sha256"]
        for i in json.loads((run / "data" / "manifest.json").read_bytes())["inputs"]
    }
    assert inputs == {str(env): sha256_of(env)}
    more = ("train", *at, "--resume", str(run), "--accept-changes")
    RunDir(run).update(state="stopped:interrupted")  # between its last checkpoint and its end
    result = recompose(*more, cwd=work)
    assert result.code == 0, result.err
    env.write_text(example(), "utf-8")
    result = recompose(*more, "--train.steps", "2", cwd=work)
    assert result.code == 1 and "the file of your own environment has changed" in " ".join(
        result.err.split()
    )
    assert len((run / "metrics.jsonl").read_text("utf-8").splitlines()) == 1


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("worksop", "neither 'workshop' nor"),
        ("envs/none.py:Guess", "no file"),
        ("envs/guess.py:Guesses", "has no function 'Guesses'"),
        ("envs/breaks.py:make", "raised ZeroDivisionError"),
        (
            "envs/made.py:no_env",
            (
                "gave dict, which is no environment: it lacks open(), reply(), reward(),"
                " measures(), close(), task_id"
            ),
        ),
        ("envs/made.py:raising", "raised KeyError: 'x' on seed"),
        ("no_such_package_x:make", "cannot import 'no_such_package_x'"),
    ],
)
def test_what_cannot_be_played_in_is_named_before_a_run_exists(
    work: Path, env: str, message: str
) -> None:
    (work / "envs" / "breaks.py").write_text("1 / 0\n", "utf-8")
    (work / "envs" / "made.py").write_text(
        "def no_env(seed, *, split):\n    return {}\n\n\ndef raising(seed, *, split):\n    return"
        " {}['x']\n",
        "utf-8",
    )
    files_before = files(work)
    result = recompose("train", "--rollouts.env", env, "--dry-run", cwd=work)
    assert result.code != 0 and message in " ".join(result.err.replace("│", " ").split()), (
        result.err
    )
    assert "rollouts.env" in result.err and files(work) - files_before == set()


def test_a_seed_is_a_task_and_no_task_is_both_trained_on_and_watched(work: Path) -> None:
    path = work / "envs" / "guess.py"
    with open_world(f"{path}:Guess") as world:
        first, again, another_task = (next(world.train(seed)) for seed in (1, 1, 2))
        assert first().task_id == first().task_id == again().task_id != another_task().task_id
        assert first() is not first() and len({make().task_id for make in world.monitor(1, 5)}) == 5
        before = world.sha256()
    path.write_text(example().replace('f"{split}-{seed}"', '"one"'), "utf-8")
    with open_world(f"{path}:Guess") as world:
        assert world.sha256() != before
        next(world.train(1))()
        (watched,) = world.monitor(1, 1)
        with pytest.raises(DataError, match="both trained on and watched"):
            watched()


def test_a_task_that_fails_later_ends_the_run_with_the_line_that_failed(work: Path) -> None:
    path: Any = work / "envs" / "late.py"
    path.write_text("def make(seed, *, split):\n    raise OSError('disk')\n", "utf-8")
    with (
        open_world(f"{path}:make") as world,
        pytest.raises(
            ConfigError, match=r"raised OSError: disk on seed \d+, split 'train'.*late.py:2"
        ),
    ):
        next(world.train(1))()


def test_an_environment_says_its_families_and_notes(work: Path) -> None:
    env_source = """
from composer_replication.rollouts.envs.env import EnvMetadata, MistakeFamily

Guess.env_metadata = EnvMetadata(
    families=(MistakeFamily(name="blind", title="without reading\\x1b"),),
    notes=("one in a hundred",),
)
"""
    path = work / "envs" / "guess.py"
    with open_world(f"{path}:Guess") as source:
        assert source.metadata == EnvMetadata()
    path.write_text(example() + env_source, "utf-8")
    with open_world(f"{path}:Guess") as source:
        (family,) = source.metadata.families
        assert (family.open, family.made, family.title) == (
            "blind_open",
            "blind_made",
            "without reading\u241b",
        )
        assert source.metadata.notes == ("one in a hundred",)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ("{'render_modes': []}", "the metadata is dict, not an EnvMetadata"),
        ("EnvMetadata(notes='x')", "the notes are str, not a tuple"),
        ("EnvMetadata(levels={'a': 'x'})", "a level is not a number"),
        ("EnvMetadata(families=('A',))", "a family of mistakes is str"),
        ("EnvMetadata(families=(MistakeFamily(name='a b'),))", "'a b', not an identifier"),
        ("EnvMetadata(families=(MistakeFamily(name='A'),) * 2)", "have the same name"),
    ],
)
def test_metadata_of_another_form_is_named(work: Path, metadata: str, message: str) -> None:
    path = work / "envs" / "guess.py"
    more = "from composer_replication.rollouts.envs.env import EnvMetadata, MistakeFamily\n"
    path.write_text(f"{example()}\n{more}Guess.env_metadata = {metadata}\n", "utf-8")
    with pytest.raises(ConfigError, match=message), open_world(f"{path}:Guess"):
        pass


OPENER = """
import itertools
from functools import partial

from composer_replication.rollouts.task_source import TaskSource, task_source

@task_source
def tasks():
    with open(LOG, "a") as log:
        log.write("opened ")
    yield TaskSource(
        name="mine",
        train=lambda seed: (partial(Guess, n, split="train") for n in itertools.count(seed)),
        monitor=lambda seed, count: [partial(Guess, n, split=WATCHED) for n in range(count)],
    )
    with open(LOG, "a") as log:
        log.write("closed")


@task_source
def nothing():
    yield {}


@task_source
def broken():
    yield TaskSource(name="mine", train=lambda seed: iter([1 / 0]), monitor=lambda seed, count: [])
"""


def test_a_generator_holds_something_open_for_the_run(work: Path) -> None:
    path = work / "envs" / "guess.py"
    log, text = work / "log.txt", OPENER.replace("LOG", repr(str(work / "log.txt")))
    path.write_text(example() + text.replace("WATCHED", "'monitor'"), "utf-8")
    with open_world(f"{path}:tasks") as source:
        stream = source.train(3)
        assert [next(stream)().task_id, next(stream)().task_id] == ["train-3", "train-4"]
        assert [make().task_id for make in source.monitor(1, 2)] == ["monitor-0", "monitor-1"]
        assert source.name == f"{path}:tasks" and source.sources == (path,) and source.sha256()
        assert log.read_text("utf-8") == "opened "
    assert log.read_text("utf-8") == "opened closed"
    with pytest.raises(ConfigError, match="yielded dict, not a TaskSource"):
        open_world(f"{path}:nothing").__enter__()
    with (
        open_world(f"{path}:broken") as source,
        pytest.raises(ConfigError, match=r"raised ZeroDivisionError.*on the tasks of the"),
    ):
        next(source.train(1))
    path.write_text(example() + text.replace("WATCHED", "'train'"), "utf-8")
    with open_world(f"{path}:tasks") as source:
        next(source.train(0))()
        with pytest.raises(DataError, match="both trained on and watched"):
            source.monitor(1, 1)[0]()


def trained(work: Path) -> None:
    env = work / "envs" / "guess.py"
    env.write_text(example().replace(REWARD, "return (sum(map(ord, self.said)) % 7) / 6"), "utf-8")
    at = ("-c", str(work / "recompose.toml"), "-o", str(work / "out"))
    result = recompose("train", *at, "--name", "x", cwd=work)
    assert result.code == 0, result.err


def test_evaluate_plays_the_environment_that_the_run_was_trained_in(work: Path) -> None:
    trained(work)
    at = ("-c", str(work / "recompose.toml"), "-o", str(work / "out"), "--evaluate.samples", "200")
    result = recompose("evaluate", "x", *at, "--evaluate.tasks", "5", "--json", cwd=work)
    assert result.code == 0, result.err
    rows = {row["name"]: row for row in result.value["rows"]}
    assert rows["after"]["n"] == 5 and result.value["split"] == "monitor"
    assert any("envs/guess.py:Guess" in note for note in result.value["notes"])
    sessions = (work / "out" / "runs" / "x" / "evaluation" / "after.jsonl").read_text("utf-8")
    assert sessions.count("Which number stands in number.txt?") == 5
    assert "train-" not in sessions

    # settings that do not name it: a run folder may come from anywhere, so its file is not run
    other = recompose(
        "evaluate", "x", *at, "--evaluate.tasks", "2", "--rollouts.env", "", "--json", cwd=work
    )
    assert other.code == 0, other.err
    assert result.value["env"].endswith("envs/guess.py:Guess")
    assert other.value["env"] == "the built-in workshop"
    assert any("do not show how the student does" in note for note in other.value["notes"])


def test_too_few_tasks_are_counted_before_anything_is_played(work: Path) -> None:
    trained(work)
    env = work / "envs" / "guess.py"
    at = ("-c", str(work / "recompose.toml"), "-o", str(work / "out"))
    assert 'self.task_id = f"{split}-{seed}"' in env.read_text("utf-8")
    few = env.read_text("utf-8").replace('f"{split}-{seed}"', 'f"{split}-{seed % 3}"')
    env.write_text(few, "utf-8")
    result = recompose("evaluate", "x", *at, "--evaluate.tasks", "5", cwd=work)
    assert result.code == 1
    assert "3 different tasks in 100 draws" in " ".join(result.err.split())


def test_an_environment_that_answers_differently_twice_is_refused(work: Path) -> None:
    trained(work)
    env = work / "envs" / "guess.py"
    at = ("-c", str(work / "recompose.toml"), "-o", str(work / "out"))
    code = "import itertools\nTIMES = itertools.count()\n" + env.read_text("utf-8")
    changed = code.replace(
        "return (sum(map(ord, self.said)) % 7) / 6", "return next(TIMES) % 2 / 1"
    )
    assert changed != code
    env.write_text(changed, "utf-8")
    result = recompose("evaluate", "x", *at, "--evaluate.tasks", "5", cwd=work)
    assert result.code == 1
    assert "must answer the same calls in the same way twice" in " ".join(result.err.split())
