"""What an original does after it drew a random number is chance: no replay compares it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from composer_replication.repositories.checkout import read_checkout
from composer_replication.repositories.judged import JudgedRepository
from composer_replication.repositories.python.judging import random_draws
from composer_replication.repositories.python.judging.call_replay import record_calls
from composer_replication.repositories.python.judging.handle_replay import record_scripts
from composer_replication.repositories.python.python_changes import PythonSource, deletion
from composer_replication.repositories.repo_task import RepoTask
from tests.repositories.shop import make_shop, needs_walls, this_environment

WAYS = {
    "random.choice([1])": True,
    "random.random()": True,
    "random.getrandbits(1)": True,
    "random.shuffle([1, 2])": True,
    "random.Random(5).choice([1])": True,
    "random.Random(5).random()": True,
    "random.SystemRandom().random()": True,
    "secrets.token_bytes(1)": True,
    "uuid.uuid4()": True,
    "os.urandom(1)": True,
    "random.Random(5)": False,
    "sorted([2, 1])": False,
}
PATH = "shop/cart.py"
HAT = '''import random


def pick(names):
    """One of some names."""
    return random.choice(names)


def longest(names):
    """The longest name."""
    return max(names, key=len)


class Hat:
    """Names in a hat."""

    def __init__(self):
        self.names = []

    def put(self, name):
        """Put a name in; how many there are."""
        self.names.append(name)
        return len(self.names)

    def draw(self):
        """Take a name out."""
        return self.names.pop(random.randrange(len(self.names)))
'''
TESTS = """from shop.cart import Hat, longest, pick


def test_pick():
    for name in ("ann", "bob", "cyd", "dee"):
        assert pick([name]) == name


def test_longest():
    for name in ("anna", "bobby", "cydney", "deedee"):
        assert longest([name, "x"]) == name


def test_put():
    hat = Hat()
    assert hat.put("ann") == 1
    assert hat.put("bob") == 2


def test_draw():
    hat = Hat()
    hat.put("ann")
    assert hat.draw() == "ann"
    hat.put("bob")
    hat.put("bob")
    assert hat.draw() == "bob"
"""


def test_every_way_to_draw_is_noticed_and_nothing_else() -> None:
    program = f"""
import json, os, random, secrets, sys, uuid
sys.path.insert(0, {str(Path(random_draws.__file__).parent)!r})
import random_draws
draws_from, seen = random_draws.note_draws(), {{}}
for way in {list(WAYS)!r}:
    drawn = draws_from()
    eval(way)
    seen[way] = drawn()
print(json.dumps(seen))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(ran.stdout) == WAYS


@pytest.fixture(scope="module")
def hat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgedRepository]:
    """The package with the hat, ready to be judged."""
    place = tmp_path_factory.mktemp("hat")
    folder = make_shop(place / "shop", cart=HAT, tests=TESTS)
    environment = this_environment(folder, place / "environment")
    yield JudgedRepository(
        checkout=read_checkout(folder), environment=environment, cache=place / "cache"
    )


def removed(symbol: str, *tests: str) -> RepoTask:
    """The task to write a function of the hat again."""
    source = PythonSource(HAT)
    (found,) = [one for one in source.symbols() if one.name == symbol]
    task = RepoTask(
        id=f"hat-{symbol}",
        repository="shop",
        base="",
        kind="function",
        symbol=symbol,
        detail="",
        edits={PATH: deletion(source, found) or []},
        removed={},
        statement="",
        must_pass=[f"tests/test_cart.py::{name}" for name in tests],
        must_keep=[],
        held_out=[],
        difficulty=1,
        cpu_s=0.0,
    )
    return replace(task, removed={PATH: []})


@needs_walls
def test_calls_that_draw_are_not_replayed_and_the_others_are(hat: JudgedRepository) -> None:
    drawn = record_calls(removed("pick", "test_pick"), hat, limit_s=60)
    assert (drawn.calls, drawn.fresh) == ({}, {}) and drawn.reason
    assert len(record_calls(removed("longest", "test_longest"), hat, limit_s=60).calls) == 4


@needs_walls
def test_the_steps_of_a_script_are_compared_up_to_the_first_draw(hat: JudgedRepository) -> None:
    task = removed("Hat.put", "test_put", "test_draw")
    recording = record_scripts(task, hat, limit_s=60)
    assert not recording.reason
    drawing = {text: rows for text, rows in recording.scripts.items() if "'draw'" in text}
    ((text, rows),) = drawing.items()
    first = next(n for n, row in enumerate(rows) if row is None)
    assert "'draw'" in text.split("), (")[first] and any(row and row[1:2] == ["1"] for row in rows)
    assert all(row is None for row in rows[first:])
    (other,) = [rows for text, rows in recording.scripts.items() if text not in drawing]
    assert None not in other
