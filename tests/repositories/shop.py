"""A small repository with tests, for tests of tasks; and the interpreter that runs its tests."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from composer_replication.core.errors import SandboxError
from composer_replication.repositories.checkout import read_checkout
from composer_replication.repositories.environment import TestEnvironment
from composer_replication.repositories.making.make_repo_tasks import PACKAGES
from composer_replication.repositories.python.python_environment import make_environment
from composer_replication.repositories.sandbox.tree_sandbox import TreeSandbox

CART = '''"""A cart."""


def total(prices, tax=0):
    """Add up prices.

    A second paragraph that no statement needs.
    """
    amount = 0
    for price in prices:
        amount = amount + price
    return amount + tax


def cheapest(prices):
    """The lowest price, or None."""
    lowest = None
    for price in prices:
        if lowest is None or price < lowest:
            lowest = price
    return lowest


class Cart:
    """Holds prices."""

    def __init__(self):
        """Start empty."""
        self.prices = []

    def add(self, price):
        """Put a price in."""
        self.prices.append(price)
        return self

    def total(self):
        """What all costs."""
        result = total(self.prices)
        return result


def unused(value):
    doubled = value * 2
    return doubled
'''
TESTS = """import os
import random

import pytest

from shop.cart import Cart, cheapest, total


@pytest.mark.parametrize("prices", [[1], [1, 2], [5, 5]])
def test_total(prices):
    assert total(prices) == sum(prices)


def test_tax():
    assert total([1], tax=2) == 3


def test_cheapest():
    assert cheapest([3, 1, 2]) == 1


def test_cart():
    assert Cart().add(2).add(3).total() == 5


@pytest.mark.parametrize("number", range(8))
def test_other(number):
    assert number >= 0


def test_flaky():
    path = "/tmp/ran"
    ran = os.path.exists(path)
    open(path, "w").close()
    assert not ran
"""
PYPROJECT = '[project]\nname = "shop"\nversion = "1.2"\n'


def make_shop(folder: Path, *, cart: str = CART, tests: str = TESTS) -> Path:
    """Write the repository."""
    for path, text in (
        ("shop/__init__.py", ""),
        ("shop/cart.py", cart),
        ("tests/test_cart.py", tests),
        ("pyproject.toml", PYPROJECT),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def this_environment(shop: Path, folder: Path) -> TestEnvironment:
    """The interpreter that has pytest and coverage, also where these tests run in an environment
    that borrows them. Its packages count as read and without an answer: reading them takes most of
    a minute."""
    owner = Path(pytest.__file__).parents[4] / "bin" / "python"
    python = str(owner) if owner.exists() else sys.executable
    environment = make_environment(read_checkout(shop), folder=folder, program=python)
    (environment.metadata / PACKAGES).write_text("", encoding="ascii")
    return environment


@functools.cache
def no_walls() -> str:
    """Why a TreeSandbox cannot run here; "" if it can.

    Only what the kernel refuses counts: any other error of the side inside is a failure.
    """
    try:
        TreeSandbox().check()
    except SandboxError as error:
        if not re.match(
            r"sandbox: (namespaces|root folder|rights): |no namespaces on ", error.what
        ):
            raise
        return error.what
    return ""


needs_walls = pytest.mark.skipif(
    bool(no_walls()), reason=f"this machine has no sandbox of trees: {no_walls()}"
)


def git(folder: Path, *arguments: str) -> None:
    """Run git as nobody in particular."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)
