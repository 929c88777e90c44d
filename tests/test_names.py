"""One name, one thing: docs/glossary.md, and names that are unique over the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

GUIDE_PATHS = "compat/paths"  # the module paths of the earlier guide have its names


def package_files(root: Path) -> list[Path]:
    return sorted(
        p
        for p in (root / "src" / "composer_replication").rglob("*.py")
        if GUIDE_PATHS not in p.as_posix()
    )


def repeated(places: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def definitions(files: list[Path]) -> dict[str, list[str]]:
    """Classes, and public functions, of the top level of each file."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in files:
        for node in ast.parse(path.read_text("utf-8")).body:
            public = isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef
            ) and not node.name.startswith("_")
            if public or isinstance(node, ast.ClassDef):
                places[node.name].append(path.name)
    return places


def banned_names(glossary: str) -> set[str]:
    """The words of the last column of the glossary's tables."""
    rows = [
        [cell.strip() for cell in line.strip("|\n ").split("|")]
        for line in glossary.splitlines()
        if line.startswith("|")
    ]
    return {
        word
        for row in rows
        if len(row) == 4
        for word in row[3].split(", ")
        if word.isidentifier() and word != "not"
    }


def identifiers(text: str) -> set[str]:
    names = set[str]()
    for node in ast.walk(ast.parse(text)):
        match node:
            case (
                ast.Name(id=name)
                | ast.Attribute(attr=name)
                | ast.arg(arg=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                names.add(name)
            case ast.alias(name=name, asname=asname):
                names.add(asname or name.rpartition(".")[2])
            case ast.keyword(arg=str(name)):
                names.add(name)
            case _:
                pass
    return names


def test_no_class_and_no_public_function_has_two_homes(repository_root: Path) -> None:
    assert repeated(definitions(package_files(repository_root))) == {}


def constants(files: list[Path]) -> dict[str, list[str]]:
    """Public constants of the top level, as "NAME = value": the files that write the same."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in files:
        for node in ast.parse(path.read_text("utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                targets = [node.target]
            for target in targets:
                name = ast.unparse(target)
                if name.isidentifier() and not name.startswith("_") and name.upper() == name:
                    value = node.value  # pyright: ignore[reportAttributeAccessIssue]
                    places[f"{name} = {ast.unparse(value)}"].append(path.name)
    return places


COINCIDENCES = {"T", "SCHEMA", "MAX_BYTES", "MAX_DEPTH", "MIN_CHARS"}
"""Constants of different things that have the same name and, today, the same value."""


def test_no_constant_is_written_twice(repository_root: Path) -> None:
    """One name with one value in two files is one thing with two homes."""
    twice = repeated(constants(package_files(repository_root)))
    assert {name for name in twice if name.split(" = ")[0] not in COINCIDENCES} == set()


def test_a_constant_written_twice_is_seen(tmp_path: Path) -> None:
    for name, text in (("a.py", "SIZES = (1, 2)\n"), ("b.py", "SIZES: tuple = (1, 2)\n")):
        (tmp_path / name).write_text(text, "utf-8")
    assert set(repeated(constants(sorted(tmp_path.glob("*.py"))))) == {"SIZES = (1, 2)"}


def test_no_two_files_have_one_name(repository_root: Path) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in package_files(repository_root):
        places[path.name].append(path.as_posix())
    assert set(repeated(places)) <= {"__init__.py", "__main__.py"}


def test_no_banned_word_of_the_glossary_is_an_identifier(repository_root: Path) -> None:
    banned = banned_names((repository_root / "docs" / "glossary.md").read_text("utf-8"))
    assert len(banned) >= 40
    offending = {
        path.name: names
        for path in package_files(repository_root)
        if (names := identifiers(path.read_text("utf-8")) & banned)
    }
    assert offending == {}


BEFORE_A_NOUN = {"both", "one", "own", "whole"}
"""Banned words that may begin a function's name, as they count or limit the noun that follows."""


def banned_beginnings(text: str, banned: set[str]) -> set[str]:
    """The functions and methods whose name begins with a banned word, as in `say_plan`."""
    functions = {
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    first = {name: name.lstrip("_").partition("_") for name in functions}
    return {
        name
        for name, (word, _, noun) in first.items()
        if word in banned and not (noun and word in BEFORE_A_NOUN)
    }


def test_no_function_begins_with_a_banned_word(repository_root: Path) -> None:
    banned = banned_names((repository_root / "docs" / "glossary.md").read_text("utf-8"))
    offending = {
        path.name: names
        for path in package_files(repository_root)
        if (names := banned_beginnings(path.read_text("utf-8"), banned))
    }
    assert offending == {}


def test_a_function_that_begins_with_a_banned_word_is_seen() -> None:
    text = "class A:\n def _say_plan(self): ...\nasync def say(): ...\ndef _one(): ...\n"
    harmless = "def saying(): ...\ndef one_line(): ...\ndef plan_say(): ...\n"
    assert banned_beginnings(text + harmless, {"say", "one"}) == {"_say_plan", "say", "_one"}


@pytest.mark.parametrize(
    "text",
    [
        "class Crew: ...",
        "Crew = 1",
        "def f(Crew): ...",
        "a.Crew",
        "def Crew(): ...",
        "async def Crew(): ...",
        "import a as Crew",
        "from a import Crew",
        "f(Crew=1)",
    ],
    ids=["class", "value", "argument", "field", "def", "async", "alias", "import", "keyword"],
)
def test_a_banned_word_is_seen(text: str) -> None:
    assert "Crew" in identifiers(text) and banned_names("| pool | threads | | Crew |") == {"Crew"}


def test_a_second_home_is_seen(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(
            "class Plan: ...\ndef plan(): ...\ndef _plan(): ...\n", "utf-8"
        )
    assert set(repeated(definitions(sorted(tmp_path.glob("*.py"))))) == {"Plan", "plan"}
