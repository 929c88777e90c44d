"""Tasks of a small repository: the gates, the same tasks twice, a run that goes on after a stop."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import read_lines
from composer_replication.repositories.checkout import read_checkout
from composer_replication.repositories.edits import apply_edits
from composer_replication.repositories.making import gates
from composer_replication.repositories.making.attempts import TaskAttempt, tidy_tasks
from composer_replication.repositories.making.gates import earns, hold_out
from composer_replication.repositories.making.history import (
    commits_with_tests,
    line_edits,
    make_history_tasks,
)
from composer_replication.repositories.making.make_repo_tasks import TaskSettings, make_repo_tasks
from composer_replication.repositories.making.statement import gives_away, list_tests
from composer_replication.repositories.making.survey import survey_tests
from composer_replication.repositories.making.vendored import holds_answer, index_packages
from composer_replication.repositories.python.pytest_runner import PytestRunner
from composer_replication.repositories.python.python_environment import dependencies
from composer_replication.repositories.python.python_language import PYTHON
from composer_replication.repositories.repo_task import RepoTask, read_tasks
from composer_replication.repositories.sandbox.test_runner import TestRun
from tests.repositories.shop import CART, TESTS, git, make_shop, needs_walls, this_environment

SETTINGS = TaskSettings(functions=4, classes=1, bugs=4)


def make(shop: Path, folder: Path, *, settings: TaskSettings = SETTINGS) -> list[TaskAttempt]:
    environment = this_environment(shop, folder / "environment")
    checkout = read_checkout(shop)
    return list(make_repo_tasks(checkout, environment, folder=folder, settings=settings))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[TaskAttempt]]:
    """A repository, the folder of its tasks, the attempts."""
    place = tmp_path_factory.mktemp("tasks")
    shop = make_shop(place / "shop")
    return shop, place / "out", make(shop, place / "out")


Made = tuple[Path, Path, list[TaskAttempt]]


@needs_walls
def test_removed_code_and_mistakes_become_tasks(made: Made) -> None:
    _, folder, attempts = made
    tasks = {(task.kind, task.symbol): task for task in read_tasks(folder / "tasks.jsonl")}
    counts = Counter(attempt.kind for attempt in attempts if not attempt.refused)
    assert counts == {"bug": 4, "function": 4, "class": 1}
    total = tasks["function", "total"]
    assert set(total.must_pass) == {
        *(f"tests/test_cart.py::test_total[prices{n}]" for n in range(3)),
        "tests/test_cart.py::test_tax",
        "tests/test_cart.py::test_cart",
    }
    assert "tests/test_cart.py::test_cheapest" in total.must_keep
    assert "Add up prices." in total.statement and "second paragraph" not in total.statement
    assert not any(symbol == "unused" for _, symbol in tasks)
    hidden = {(task.statement, name) for task in tasks.values() for name in task.held_out}
    assert hidden and all(name.partition("[")[0] not in text for text, name in hidden)


@needs_walls
def test_a_test_that_does_not_always_pass_is_in_no_task(made: Made) -> None:
    _, folder, _ = made
    tests = {
        test
        for task in read_tasks(folder / "tasks.jsonl")
        for test in (*task.must_pass, *task.must_keep)
    }
    assert "tests/test_cart.py::test_other[3]" in tests
    assert "tests/test_cart.py::test_flaky" not in tests


@needs_walls
def test_nothing_earns_nothing_and_the_original_earns_one(made: Made) -> None:
    shop, folder, _ = made
    (base,) = (folder / "base").iterdir()
    environment = this_environment(shop, folder / "environment")
    with PytestRunner(tree=base, python=environment.program, import_root=".") as runner:
        for task in read_tasks(folder / "tasks.jsonl"):
            asked = {"must_pass": task.must_pass, "must_keep": task.must_keep}
            changed = task.changed_files(base)
            assert earns(runner, files=changed, **asked).reward == 0.0
            assert earns(runner, files={}, **asked).reward == 1.0


@needs_walls
def test_the_same_repository_gives_the_same_tasks(made: Made, tmp_path: Path) -> None:
    shop, folder, _ = made
    make(shop, tmp_path)
    assert [plain(task) for task in read_tasks(tmp_path / "tasks.jsonl")] == [
        plain(task) for task in read_tasks(folder / "tasks.jsonl")
    ]


def plain(task: RepoTask) -> object:
    """A task without what a clock measured."""
    return {name: getattr(task, name) for name in RepoTask.__slots__ if name != "cpu_s"}


@needs_walls
def test_a_stopped_run_goes_on(made: Made, tmp_path: Path) -> None:
    shop, folder, attempts = made
    environment = this_environment(shop, tmp_path / "environment")
    first = make_repo_tasks(read_checkout(shop), environment, folder=tmp_path, settings=SETTINGS)
    stopped = [next(first), next(first)]
    first.close()
    assert [attempt.id for attempt in stopped] == [attempt.id for attempt in attempts[:2]]
    again = make(shop, tmp_path)
    assert [attempt.id for attempt in again] == [attempt.id for attempt in attempts]
    assert again[0].cpu_s == stopped[0].cpu_s  # taken from the file, not run again
    lines = [value["id"] for _, value in read_lines(tmp_path / "attempts.jsonl")]
    assert lines == [attempt.id for attempt in attempts]
    assert len(tidy_tasks(tmp_path)) == len(read_tasks(folder / "tasks.jsonl"))


@needs_walls
def test_a_task_whose_tests_need_another_test_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "OTHERS", 0)
    # test_b passes only after test_a, which the change does not touch
    tests = (
        "import os\nfrom shop.cart import total\n"
        "def test_a():\n    open('/tmp/a', 'w').close()\n"
        "def test_b():\n    assert os.path.exists('/tmp/a') and total([1, 2]) == 3\n"
        "    os.remove('/tmp/a')\n"
        "def test_c():\n    pass\n"
    )
    shop = make_shop(tmp_path / "shop", tests=tests)
    attempts = make(shop, tmp_path / "out", settings=TaskSettings(functions=1, classes=0, bugs=0))
    assert attempts[0].refused.startswith("the original earns nothing: tests/test_cart.py::test_b")


@needs_walls
def test_a_repository_without_passing_tests_is_named(tmp_path: Path) -> None:
    shop = make_shop(tmp_path / "shop", tests="def test_a():\n    assert False\n")
    with pytest.raises(DataError, match="none of its 1 tests passes 3 times"):
        make(shop, tmp_path / "out")


@needs_walls
@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        (
            "shop/__init__.py",
            "from ._version import version\n",
            "tests/test_cart.py: ModuleNotFoundError: No module named 'shop._version'",
        ),
        ("tests/test_cart.py", "def test_a(:\n", "tests/test_cart.py: SyntaxError: invalid syntax"),
        ("tests/conftest.py", "import nosuch\n", "pytest cannot load a conftest.py"),
    ],
)
def test_what_keeps_the_tests_from_running_is_said(
    tmp_path: Path, path: str, text: str, reason: str
) -> None:
    shop = make_shop(tmp_path / "shop")
    (shop / path).write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        make(shop, tmp_path / "out")
    assert f"files cannot be collected; {reason}" in str(caught.value)


@needs_walls
def test_a_docstring_with_the_answer_makes_no_task(tmp_path: Path) -> None:
    cart = CART.replace("Add up prices.", "Do `for price in prices: ` amount = amount + price too")
    shop = make_shop(tmp_path / "shop", cart=cart)
    attempts = make(shop, tmp_path / "out", settings=TaskSettings(functions=4, classes=0, bugs=0))
    refused = [attempt.refused for attempt in attempts if attempt.refused]
    assert "the docstring gives the answer away" in refused


@needs_walls
def test_a_function_with_a_twin_in_another_file_makes_no_task(tmp_path: Path) -> None:
    shop = make_shop(tmp_path / "shop")
    start, end = CART.index("def cheapest"), CART.index("class Cart")
    twin = CART[start:end].replace("cheapest", "least").replace("The lowest price", "The least")
    (shop / "shop" / "legacy.py").write_text(f'"""Older."""\n\n\n{twin}', encoding="utf-8")
    attempts = make(shop, tmp_path / "out", settings=TaskSettings(functions=4, classes=1, bugs=4))
    refused = [attempt.refused for attempt in attempts if attempt.refused]
    assert refused.count("the repository holds the answer elsewhere") == 1
    symbols = {(t.kind, t.symbol) for t in read_tasks(tmp_path / "out" / "tasks.jsonl")}
    assert ("function", "cheapest") not in symbols
    assert ("function", "total") in symbols


@needs_walls
def test_a_commit_becomes_a_task(tmp_path: Path) -> None:
    wrong = CART.replace("return amount + tax", "return amount")
    shop = make_shop(tmp_path / "shop", cart=wrong, tests=TESTS.replace("test_tax", "skip_tax"))
    git(shop, "init", "-q")
    git(shop, "add", "-A")
    git(shop, "commit", "-qm", "Start")
    make_shop(shop)
    git(shop, "commit", "-qam", "Totals know taxes")
    (commit,) = commits_with_tests(shop, most=5)
    assert (commit.subject, commit.sources) == ("Totals know taxes", ("shop/cart.py",))
    environment = this_environment(shop, tmp_path / "environment")
    out = tmp_path / "out"
    (attempt,) = make_history_tasks(shop, environment, name="shop", target=out, wanted=3)
    assert attempt.refused == ""
    (task,) = read_tasks(out / "tasks.jsonl")
    assert task.kind == "history" and task.must_pass == ["tests/test_cart.py::test_tax"]
    assert task.removed == {"shop/cart.py": ["    return amount + tax\n"]}
    assert task.statement.startswith("Totals know taxes.\nThese tests fail now")
    assert "return amount\n" in task.changed_files(next((out / "base").iterdir()))["shop/cart.py"]


class LateRunner:
    """A runner whose runs of these numbers do not end."""

    def __init__(self, *late: int) -> None:
        self.cpu_s, self.late, self.limits = 0.0, late, list[float]()

    def __enter__(self) -> LateRunner:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, *, limit_s: float = 60.0, **_: object) -> TestRun:
        """Passes one test, or is too late."""
        self.limits.append(limit_s)
        return TestRun(
            outcomes={"a.py::t": "passed"},
            durations={},
            collected=1,
            errors=0,
            ended=len(self.limits) - 1 not in self.late,
            cpu_s=0.0,
            wall_s=0.0,
        )


@pytest.mark.parametrize(
    ("late", "words"), [((0,), "in 1 of 3 runs, only the one that counts"), ((0, 1), "in 2 of 3")]
)
def test_a_suite_that_takes_too_long_is_named(
    tmp_path: Path, late: tuple[int, ...], words: str
) -> None:
    checkout = read_checkout(make_shop(tmp_path / "shop"))
    assert survey_tests(LateRunner(), checkout).steady == ("a.py::t",)
    runner = LateRunner(*late)
    with pytest.raises(DataError, match=words):
        survey_tests(runner, checkout)
    assert runner.limits == [900.0, 300.0, 300.0]  # counting lines makes tests slower


@needs_walls
def test_a_survey_says_which_tests_run_a_line(tmp_path: Path) -> None:
    shop = make_shop(tmp_path / "shop")
    environment = this_environment(shop, tmp_path / "environment")
    with PytestRunner(tree=shop, python=environment.program, import_root=".") as runner:
        survey = survey_tests(runner, read_checkout(shop))
    line = CART.splitlines().index("    lowest = None") + 1
    assert survey.tests_of("shop/cart.py", [line]) == ["tests/test_cart.py::test_cheapest"]
    assert survey.left_out == {"tests/test_cart.py::test_flaky": "flaky"}


def test_only_files_of_the_repository_are_taken(tmp_path: Path) -> None:
    shop = make_shop(tmp_path / "shop")
    for path in ("shop/__pycache__/cart.pyc", ".mypy_cache/x.json", "build/lib/shop/cart.py"):
        (shop / path).parent.mkdir(parents=True, exist_ok=True)
        (shop / path).write_text("x", encoding="utf-8")
    before = read_checkout(shop)
    assert set(before.files) == {
        "pyproject.toml",
        "shop/__init__.py",
        "shop/cart.py",
        "tests/test_cart.py",
    }
    (shop / "shop/cart.py").write_text(CART + "\n", encoding="utf-8")
    assert read_checkout(shop).sha256 != before.sha256


@pytest.mark.parametrize(("remove", "what"), [("tests", "no tests"), ("shop", "no Python files")])
def test_a_folder_that_gives_no_tasks_is_named(tmp_path: Path, remove: str, what: str) -> None:
    import shutil

    shop = make_shop(tmp_path / "shop")
    shutil.rmtree(shop / remove)
    with pytest.raises(DataError, match=what):
        read_checkout(shop)


def test_dependencies_are_those_of_the_project_and_its_tests(tmp_path: Path) -> None:
    shop = make_shop(tmp_path / "shop")
    (shop / "pyproject.toml").write_text(
        '[project]\nname = "shop"\nversion = "1"\ndependencies = ["tax>=1"]\n'
        '[project.optional-dependencies]\ntest = ["hypothesis", "shop[extra]"]\ndocs = ["x"]\n'
        '[dependency-groups]\ndev = ["tool", {include-group = "docs"}]\n',
        encoding="utf-8",
    )
    assert dependencies(read_checkout(shop)) == ["hypothesis", "tax>=1", "tool"]


def test_an_answer_that_another_package_holds_is_found(tmp_path: Path) -> None:
    vendored = "if True:\n" + "\n".join(f"  {line}  # copied" for line in CART.splitlines())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "copy.py").write_text(vendored, encoding="utf-8")
    cache = tmp_path / "packages.txt"
    index = index_packages(PYTHON, [tmp_path / "other" / "copy.py"], cache=cache)
    body = "amount = 0\nfor price in prices:\n    amount = amount + price\nreturn amount"
    assert holds_answer(index, PYTHON, [body])
    assert not holds_answer(index, PYTHON, [body.replace("amount + price", "price + amount")])
    assert index_packages(PYTHON, [], cache=cache) == index


def test_hidden_tests_are_whole_functions() -> None:
    tests = [f"a.py::t{n}[{case}]" for n in range(8) for case in range(2)]
    hidden = hold_out(tests, seed="x")
    assert len(hidden) == 4 and hidden == hold_out(tests, seed="x") != hold_out(tests, seed="y")
    assert len({name.partition("[")[0] for name in hidden}) == 2


def test_edits_of_lines_give_the_other_text() -> None:
    text, target = "a\nbé\nc\n", "a\nc\nd\n"
    assert apply_edits(text, line_edits(text, target)) == target


def test_statements_name_tests_and_no_answer() -> None:
    assert list_tests([f"a.py::t{n}" for n in range(9)]).splitlines()[-1] == "- and 3 more"
    code = "    result = [item for item in cart if item]\n    return result\n"
    assert gives_away("Use  `result = [item for item in cart if item]`.", [code])
    assert gives_away("Return result.", [code]) == ""


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "a"}) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"tasks\.jsonl:1"):
        read_tasks(tmp_path / "tasks.jsonl")
