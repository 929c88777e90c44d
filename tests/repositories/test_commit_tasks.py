"""Commits whose tests import a name that the package does not have yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from composer_replication.repositories.environment import TestEnvironment
from composer_replication.repositories.judged import JudgedEpisode, JudgedRepository
from composer_replication.repositories.judging.judge import judge_episode
from composer_replication.repositories.judging.judge_room import open_repository
from composer_replication.repositories.making import commit_gates
from composer_replication.repositories.making.attempts import TaskAttempt
from composer_replication.repositories.making.gates import earns
from composer_replication.repositories.making.history import (
    commits_with_tests,
    make_history_tasks,
)
from composer_replication.repositories.python.name_stubs import with_stubs
from composer_replication.repositories.python.pytest_runner import PytestRunner
from composer_replication.repositories.repo_task import RepoTask, read_tasks
from tests.repositories.shop import CART, TESTS, git, make_shop, needs_walls, this_environment

DISCOUNT = '''

def discount(prices, percent):
    """What is left to pay."""
    left = total(prices) * (100 - percent)
    return left / 100
'''
CART_WITH_DISCOUNT = CART.replace("\n\ndef cheapest", f"{DISCOUNT}\n\ndef cheapest")
TESTS_WITH_DISCOUNT = (
    TESTS.replace("import Cart, cheapest, total", "import Cart, cheapest, discount, total")
    + """

def test_discount():
    assert discount([10, 10], 50) == 10


def test_a_full_discount():
    assert discount([10], 100) == 0


def test_an_old_function():
    assert total([]) == 0
"""
)
NEW = ["tests/test_cart.py::test_a_full_discount", "tests/test_cart.py::test_discount"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCommit:
    """What became of a commit, and where."""

    attempt: TaskAttempt
    folder: Path
    environment: TestEnvironment

    @property
    def task(self) -> RepoTask:
        """The one task."""
        (task,) = read_tasks(self.folder / "tasks.jsonl")
        return task

    @property
    def base(self) -> Path:
        """The files of the commit."""
        (base,) = (self.folder / "base").iterdir()
        return base

    def judged(self, cart: str) -> JudgedEpisode:
        """The judge's word on an episode that left this module."""
        repository: JudgedRepository = open_repository(
            self.task, folder=self.folder, environment=self.environment
        )
        return judge_episode(self.task, repository=repository, changed={"shop/cart.py": cart})


def make_commit(
    folder: Path,
    *,
    cart: str = CART_WITH_DISCOUNT,
    tests: str = TESTS_WITH_DISCOUNT,
) -> MadeCommit:
    """Commit a change to the shop, and try to make a task of it."""
    shop = make_shop(folder / "shop")
    git(shop, "init", "-q")
    git(shop, "add", "-A")
    git(shop, "commit", "-qm", "Start")
    make_shop(shop, cart=cart, tests=tests)
    git(shop, "commit", "-qam", "Discounts")
    environment = this_environment(shop, folder / "environment")
    (attempt,) = make_history_tasks(shop, environment, name="shop", target=folder / "out", wanted=1)
    return MadeCommit(attempt=attempt, folder=folder / "out", environment=environment)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeCommit:
    """A commit that adds a function; the test file that imports it has older tests too."""
    return make_commit(tmp_path_factory.mktemp("commit"))


@needs_walls
def test_a_commit_whose_tests_import_a_new_name_becomes_a_task(made: MadeCommit) -> None:
    assert made.attempt.refused == ""
    task = made.task
    assert task.must_pass == NEW
    kept = {name.partition("[")[0].partition("::")[2] for name in task.must_keep}
    old = {"test_total", "test_tax", "test_cheapest", "test_cart", "test_other"}
    assert kept == {*old, "test_an_old_function"}  # and not the flaky one
    assert "tests/test_cart.py cannot be imported yet, so none of its tests" in task.statement
    assert "test_discount" in task.statement and "test_tax" not in task.statement
    assert task.changed_files(made.base) == {"shop/cart.py": CART}


@needs_walls
def test_neither_nothing_nor_a_stub_earns_and_the_commit_does(made: MadeCommit) -> None:
    task = made.task
    asked = {"must_pass": task.must_pass, "must_keep": task.must_keep}
    python = made.environment.program
    with PytestRunner(tree=made.base, python=python, import_root=".") as runner:
        assert earns(runner, files=task.changed_files(made.base), **asked).reward == 0.0
        assert earns(runner, files={}, **asked).reward == 1.0
        stub = {"shop/cart.py": with_stubs(CART, CART_WITH_DISCOUNT)}
        run = runner.run(tests=[*task.must_pass, *task.must_keep], files=stub)
        assert {name for name, end in run.outcomes.items() if end != "passed"} == set(NEW)


@needs_walls
@pytest.mark.parametrize(
    ("cart", "reward", "reason"),
    [
        (CART_WITH_DISCOUNT, 1.0, ""),
        (CART + "\n", 0.0, "test"),
        (with_stubs(CART, CART_WITH_DISCOUNT), 0.0, "test"),
        (CART + "\ndiscount = None\n", 0.0, "test"),
        (CART + "\n\ndef discount(prices, percent):\n    return 10\n", 0.0, "test"),
        (
            "def discount(prices, percent):\n    return sum(prices) * (100 - percent) / 100\n",
            0.0,
            "test",
        ),
    ],
    ids=["the commit", "nothing", "a stub", "none", "one answer", "the old code is gone"],
)
def test_the_judge_replays_such_a_task(
    made: MadeCommit, cart: str, reward: float, reason: str
) -> None:
    judged = made.judged(cart)
    assert judged.reward == reward, judged.reason
    assert reason in judged.reason


@needs_walls
def test_a_file_that_stubs_do_not_open_makes_no_task(tmp_path: Path) -> None:
    """Nobody knows which of its tests fail by themselves."""
    tests = TESTS_WITH_DISCOUNT + "\n\nHALF = discount([10], 50)\n"
    attempt = make_commit(tmp_path, tests=tests).attempt
    assert attempt.refused == commit_gates.NO_STUBS


@needs_walls
def test_a_commit_whose_tests_pass_with_a_stub_makes_no_task(tmp_path: Path) -> None:
    tests = TESTS.replace("import Cart", "import SHOP, Cart")
    attempt = make_commit(tmp_path, cart=f'{CART}\nSHOP = "corner"\n', tests=tests).attempt
    assert attempt.refused == "no test fails"


@needs_walls
def test_a_case_that_is_not_there_before_a_commit_must_pass(tmp_path: Path) -> None:
    """A test that is made for each item of a new collection has no id before."""
    tests = TESTS.replace("import Cart", "import CODES, Cart") + (
        "\n\n@pytest.mark.parametrize('code', CODES)\n"
        "def test_code(code):\n    assert CODES[code] == total([1])\n"
    )
    made = make_commit(tmp_path, cart=f'{CART}\nCODES = {{"a": 1, "b": 1}}\n', tests=tests)
    assert made.attempt.refused == ""
    assert made.task.must_pass == [f"tests/test_cart.py::test_code[{c}]" for c in ("a", "b")]


@needs_walls
def test_most_of_a_file_may_fail_before_a_commit(tmp_path: Path) -> None:
    renamed = CART.replace("def total(prices", "def amount(prices")
    renamed = renamed.replace("= total(self.prices", "= amount(self.prices")
    tests = TESTS.replace("import Cart, cheapest, total", "import Cart, amount, cheapest").replace(
        " total(", " amount("
    )
    tests = tests.replace("range(8)", "range(1)")
    made = make_commit(tmp_path, cart=renamed, tests=tests)
    assert made.attempt.refused == ""
    assert len(made.task.must_pass) == 4 and len(made.task.must_keep) == 3


def test_a_merge_is_one_commit_with_the_title_of_its_request(tmp_path: Path) -> None:
    shop = make_shop(tmp_path / "shop")
    git(shop, "init", "-q", "-b", "main")
    git(shop, "add", "-A")
    git(shop, "commit", "-qm", "Start")
    for number, message in enumerate(
        ("Merge pull request #1 from a/b\n\nDiscounts\n\nAs asked for.", "Merge branch 'b2'")
    ):
        git(shop, "checkout", "-qb", f"b{number}")
        for change in ("one", "two"):
            for path in ("shop/cart.py", "tests/test_cart.py"):
                text = (shop / path).read_text("utf-8")
                (shop / path).write_text(f"{text}# {number} {change}\n", "utf-8")
            git(shop, "commit", "-qam", change)
        git(shop, "checkout", "-q", "main")
        git(shop, "merge", "-q", "--no-ff", f"b{number}", "-m", message)
    (merged,) = commits_with_tests(shop, most=9)  # the other merge says nothing
    assert (merged.subject, merged.sources) == ("Discounts", ("shop/cart.py",))
    assert merged.tests == ("tests/test_cart.py",)


BEFORE = 'from a import b\n__all__ = ["f"]\ndef f(): return 1\n'


@pytest.mark.parametrize(
    ("after", "added"),
    [
        ("def f(): return 2\n", ""),
        ("async def g(x): return 2\n", "def g(*_, **__):\n    raise NotImplementedError"),
        ("class E(ValueError):\n    code = 1\n", "class E(ValueError):\n    pass"),
        ("class E(b.C, New[int], metaclass=M): ...\n", "class E(b.C):\n    pass"),
        ("class A: x = 1\nclass B(A): y = 1\n", "class A:\n    pass\nclass B(A):\n    pass"),
        ("X: int = 3\n", "X = None"),
        ("X: list[int] = [3]\nY = {1: 2}\n", "X = []\nY = {}"),
        ("X = {1}\nY = frozenset([1])\nZ = 1, 2\n", "X = set()\nY = frozenset()\nZ = ()"),
        ("if f:\n    X, (Y, *Z) = g()\n", "X = None\nY = None\nZ = None"),
        (
            "try:\n    import c.d\nexcept ImportError:\n    c = 1\n",
            "try:\n    import c.d\nexcept ImportError:\n    c = None",
        ),
        (
            "from .c import d as e\n",
            "try:\n    from .c import d as e\nexcept ImportError:\n    e = None",
        ),
        ("from __future__ import annotations\nfrom c import *\n", ""),
        ("def f(:\n", ""),
    ],
)
def test_a_stub_binds_each_new_name_and_says_nothing_else(after: str, added: str) -> None:
    text = with_stubs(BEFORE, after)
    assert text.startswith(BEFORE)
    names, _, exports = text.removeprefix(BEFORE).rpartition("__all__ = ")
    assert names.strip() == added
    assert bool(exports) == bool(added)
    compile(text, "module", "exec")


def test_stubs_are_exported_where_a_module_says_what_it_exports() -> None:
    assert with_stubs('__all__ = ["f"]\n', "def g(): ...\n").endswith("\n__all__ = [*__all__, 'g']")
    assert "__all__" not in with_stubs("f = 1\n", '__all__ = ["g"]\ndef g(): ...\n')
