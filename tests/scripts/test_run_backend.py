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


def programs(folder: Path, *names: str) -> str:
    """A folder for the PATH."""
    for name in names:
        (folder / name).write_text("#!/bin/sh\n", "utf-8")
        (folder / name).chmod(0o755)
    return str(folder)


def ran(program: str) -> str:
    return f"<properties><property name='program' value='{program}'/></properties>"


@pytest.mark.parametrize(
    ("there", "cases", "line"),
    [
        (("mini", "codex"), [ran("mini"), ran("codex")], "; ran: mini, codex"),
        (("mini",), [ran("mini"), ""], "; ran: mini; not installed: codex"),
        ((), [""], "; not installed: mini, codex"),
        (("mini", "codex"), [ran("mini")], "; ran: mini; no test: codex"),
        (
            ("mini", "codex"),
            [ran("mini"), f"{ran('codex')}<skipped message='no walls'/>"],
            "; 1 not run (no walls); ran: mini; no test: codex",
        ),
    ],
)
def test_the_closing_line_names_each_program(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: tuple[str, ...],
    cases: list[str],
    line: str,
) -> None:
    monkeypatch.setattr(run_backend, "PROGRAMS", {"agents": ("mini", "codex")})
    found = run_backend.closing_line(
        "agents", junit=junit(tmp_path, *cases), seconds=8, path=programs(tmp_path, *there)
    )
    assert found.partition(" in 8 s")[2] == line


@pytest.mark.parametrize(("there", "exit_code"), [((), 0), (("codex",), 1)])
def test_a_program_that_is_there_and_runs_in_no_test_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], exit_code: int
) -> None:
    stand_in(monkeypatch, tmp_path, cases=[""], code=0)
    monkeypatch.setattr(run_backend, "PROGRAMS", {"verl": ("codex",)})
    monkeypatch.setenv("PATH", programs(tmp_path, *there))
    assert run_backend.main(["verl"]) == exit_code


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


def test_programs_that_cannot_be_had_are_said_and_the_other_tests_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_backend.run_peers, "install", lambda folder, pins: "")
    monkeypatch.setattr(run_backend.npm_programs, "install", lambda name: "no npm on the PATH")
    assert run_backend.install("agents") == ""
    said = "agents: not installed: claude, codex, opencode (no npm on the PATH)\n"
    assert capsys.readouterr().out == said


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
