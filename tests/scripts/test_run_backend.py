"""A backend's stage says what ran, and is never green because nothing did."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import run_backend  # noqa: E402


def junit(folder: Path, *cases: str) -> Path:
    file = folder / "result.xml"
    body = "".join(f"<testcase classname='t' name='n'>{case}</testcase>" for case in cases)
    file.write_text(f"<testsuites><testsuite>{body}</testsuite></testsuites>", "utf-8")
    return file


@pytest.mark.parametrize(
    ("cases", "line"),
    [
        (["", ""], "verl: ran 2 tests in 84 s"),
        (
            ["", "<skipped message='no checkout'/>"],
            "verl: ran 1 test in 84 s; 1 not run (no checkout)",
        ),
        (["<skipped message='no verl'/>"], "verl: no test"),
        ([], "verl: no test"),
    ],
)
def test_the_closing_line_counts_what_ran(tmp_path: Path, cases: list[str], line: str) -> None:
    file = junit(tmp_path, *cases)
    assert run_backend.closing_line("verl", junit=file, seconds=84.2) == line


def stand_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, cases: list[str], code: int
) -> None:
    monkeypatch.setattr(run_backend, "ROOT", tmp_path)
    monkeypatch.setattr(run_backend, "NAMES", ("s3", "verl"))
    monkeypatch.setattr(run_backend.run_peers, "install", lambda folder, pins: "")

    def run(command: list[str], **kwargs: object) -> object:
        (tmp_path / "build").mkdir(exist_ok=True)
        junit(tmp_path, *cases).rename(tmp_path / "build" / "backend_verl.xml")
        return type("Done", (), {"returncode": code})()

    monkeypatch.setattr(run_backend.subprocess, "run", run)


@pytest.mark.parametrize(
    ("cases", "code", "exit_code"),
    [([""], 0, 0), (["<skipped message='x'/>"], 0, 1), ([""], 1, 1)],
)
def test_a_stage_whose_tests_were_all_skipped_is_red(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cases: list[str],
    code: int,
    exit_code: int,
) -> None:
    stand_in(monkeypatch, tmp_path, cases=cases, code=code)
    assert run_backend.main(["verl"]) == exit_code


def test_packages_that_cannot_be_had_are_said_and_are_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_backend, "NAMES", ("s3", "verl"))
    monkeypatch.setattr(run_backend.run_peers, "install", lambda folder, pins: "no index")
    assert run_backend.main(["verl"]) == 0
    assert capsys.readouterr().out == "verl: not installed (no index)\n"


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_backend.main(["vrel"]) == 2
    assert "requirements/backend_vrel.txt" in capsys.readouterr().out


def test_each_runs_as_soon_as_it_is_installed_and_none_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second is installed while the first runs, and its own failure is told as its own."""
    monkeypatch.setattr(run_backend, "NAMES", ("s3", "verl"))
    there, ran, second = list[str](), list[tuple[str, str]](), threading.Event()

    def install(folder: Path, pins: Path) -> str:
        there.append(folder.name)
        if folder.name == ".venv-verl":
            second.set()
            return "no index"
        return ""

    def run_one(name: str, problem: str) -> int:
        assert f".venv-{name}" in there
        assert second.wait(10), "the next one waits for the tests of the first"
        ran.append((name, problem))
        return int(not problem)

    monkeypatch.setattr(run_backend.run_peers, "install", install)
    monkeypatch.setattr(run_backend, "run_one", run_one)
    assert run_backend.main(["s3", "verl"]) == 1
    assert ran == [("s3", ""), ("verl", "no index")]
