"""The programs from npm are installed once for their lock file, and never half."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import npm_programs  # noqa: E402

NPM = """\
#!/bin/sh
echo run >> {log}
{fails}
mkdir -p node_modules/.bin
printf '#!/bin/sh\\n{program}\\n' > node_modules/.bin/codex
chmod +x node_modules/.bin/codex
"""
Machine = Callable[..., None]
"""Puts node and a stand-in of npm on the PATH."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A checkout whose stage wants codex, and a PATH with a stand-in of npm."""
    monkeypatch.setattr(npm_programs, "ROOT", tmp_path)
    write_lock(tmp_path, version="1.0")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")

    def make(*, fails: str = "", program: str = "exit 0") -> None:
        npm = NPM.format(log=tmp_path / "log", fails=fails, program=program)
        for name, text in (("npm", npm), ("node", "#!/bin/sh\n")):
            (bin_folder / name).write_text(text, "utf-8")
            (bin_folder / name).chmod(0o755)

    return make


def write_lock(folder: Path, *, version: str) -> None:
    pins = folder / "requirements" / "npm_agents"
    pins.mkdir(parents=True, exist_ok=True)
    wanted = {"dependencies": {"@openai/codex": version}}
    package = {"version": version, "bin": {"codex": "bin/codex.js"}}
    lock = {"packages": {"": wanted, "node_modules/@openai/codex": package}}
    (pins / "package.json").write_text(json.dumps(wanted), "utf-8")
    (pins / "package-lock.json").write_text(json.dumps(lock), "utf-8")


def num_runs(folder: Path) -> int:
    return len((folder / "log").read_text("utf-8").splitlines())


def test_they_are_installed_once_until_the_lock_file_changes(
    tmp_path: Path, machine: Machine
) -> None:
    machine()
    assert npm_programs.names("agents") == ("codex",)
    assert npm_programs.bin_folder("agents") is None
    assert [npm_programs.install("agents") for _ in range(2)] == ["", ""]
    place = npm_programs.bin_folder("agents")
    assert place is not None and (place / "codex").exists()
    assert num_runs(tmp_path) == 1
    write_lock(tmp_path, version="1.1")
    assert npm_programs.bin_folder("agents") is None
    assert npm_programs.install("agents") == "" and num_runs(tmp_path) == 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"fails": "echo npm warn old >&2; echo npm error gone >&2; exit 1"}, "npm error gone"),
        ({"program": "exit 3"}, "codex does not start: exit code 3"),
    ],
)
def test_a_failure_leaves_nothing_behind(
    tmp_path: Path, machine: Machine, options: dict[str, str], why: str
) -> None:
    machine(**options)
    assert npm_programs.install("agents") == why
    assert npm_programs.bin_folder("agents") is None
    assert not (tmp_path / ".npm-agents").exists()


@pytest.mark.usefixtures("machine")
def test_a_machine_without_npm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert npm_programs.install("agents") == "no node and no npm on the PATH"


@pytest.mark.usefixtures("machine")
def test_a_backend_without_programs_needs_no_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert npm_programs.names("verl") == () and npm_programs.install("verl") == ""
    assert npm_programs.bin_folder("verl") is None


def test_the_committed_lock_file_names_no_registry() -> None:
    text = (ROOT / "requirements" / "npm_agents" / "package-lock.json").read_text("utf-8")
    assert '"resolved"' not in text and "://" not in text
