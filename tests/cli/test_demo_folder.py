"""`demo` touches no folder that holds anything but a demo, reads no settings but its flags, and
leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from composer_replication.cli import demo_controls
from composer_replication.cli.demo_controls import Controls
from composer_replication.cli.demo_settings import SETTINGS
from composer_replication.cli.demo_student import check_folder
from composer_replication.core.errors import ConfigError
from tests.cli.workspace import files, recompose

LOOP = "import time; time.sleep(60)"
TERMINATED = """
import sys, time
from pathlib import Path
from composer_replication.cli import main, demo_controls
def run(argv, **_):
    settings, log = Path("x.toml"), Path(sys.argv[1])
    with demo_controls.Controls(settings, {"a": (), "b": ()}, log=log) as controls:
        while not controls._children:
            time.sleep(0.01)
        try:
            print(controls._children[0].pid, flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            raise
demo_controls.PROGRAM = (sys.executable, "-c", "import time; time.sleep(60)")
main.run = run
main.main()
"""


@pytest.mark.parametrize("settings", ["seed = 3\n", None])
def test_a_folder_of_somebody_is_refused_and_left_as_it_is(
    tmp_path: Path, settings: str | None
) -> None:
    mine = tmp_path / "mine"
    (mine / "logs").mkdir(parents=True)
    (mine / "logs" / "app.log").write_text("precious", "utf-8")
    if settings is not None:
        (mine / "recompose.toml").write_text(settings, "utf-8")
    before = {name: (mine / name).read_text("utf-8") for name in files(mine)}
    result = recompose("demo", "-o", "mine", "--logs-only", "--logs", "2", cwd=tmp_path)
    assert (
        result.code == 1
        and "mine holds files that no demo made" in result.err
        and "choose another folder with -o" in result.err
    )
    assert {name: (mine / name).read_text("utf-8") for name in files(mine)} == before


@pytest.mark.parametrize(
    "flags", [("--work_dir", "other"), ("--student.model", "tiny"), ("--ingest.logs", "mine")]
)
def test_settings_that_the_demo_chooses_itself_are_refused(
    tmp_path: Path, flags: tuple[str, str]
) -> None:
    result = recompose("demo", "--logs-only", "--logs", "2", *flags, cwd=tmp_path)
    assert result.code == 2 and flags[0] in result.err and "-o names another folder" in result.err
    assert not list(tmp_path.iterdir())


def test_a_new_folder_an_empty_one_and_that_of_a_demo_are_taken(tmp_path: Path) -> None:
    config = tmp_path / "demo" / "recompose.toml"
    check_folder(config.parent, config)
    config.parent.mkdir()
    check_folder(config.parent, config)
    config.write_text(SETTINGS.format(seed=7, student="s", steps=2), "utf-8")
    (config.parent / "logs").mkdir()
    check_folder(config.parent, config)
    config.write_text("\n" + config.read_text("utf-8"), "utf-8")
    with pytest.raises(ConfigError, match="no demo made"):
        check_folder(config.parent, config)


@pytest.mark.train
def test_settings_outside_the_demo_choose_nothing(tmp_path: Path) -> None:
    (tmp_path / "recompose.toml").write_text("seed = 123\n", "utf-8")
    assert recompose("demo", "--logs-only", "--logs", "2", cwd=tmp_path).code == 0
    assert "\nseed = 7\n" in (tmp_path / "demo" / "recompose.toml").read_text("utf-8")
    assert recompose("demo", "--logs-only", "--logs", "2", "--seed", "11", cwd=tmp_path).code == 0
    assert "\nseed = 11\n" in (tmp_path / "demo" / "recompose.toml").read_text("utf-8")


def test_a_settings_file_given_to_the_demo_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "recompose.toml").write_text("seed = 123\n", "utf-8")
    result = recompose("demo", "-c", "recompose.toml", cwd=tmp_path)
    assert (
        result.code == 2
        and "reads no other file" in result.err
        and files(tmp_path) == {"recompose.toml"}
    )


def test_leaving_the_controls_leaves_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_controls, "PROGRAM", (sys.executable, "-c", LOOP))
    with Controls(tmp_path / "c.toml", {"a": (), "b": ()}, log=tmp_path / "log") as controls:
        while not controls._children:
            time.sleep(0.01)
    # the second was never started
    assert [child.poll() for child in controls._children] == [-signal.SIGTERM]


def test_no_child_starts_once_the_controls_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block is left at the worst moment: while the first child is being started, which takes a
    while."""
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def slow(program: list[str], **more: object) -> subprocess.Popen[bytes]:
        entered.append(True)
        time.sleep(0.3)
        started.append(popen([sys.executable, "-c", LOOP]))
        return started[-1]

    entered: list[bool] = []
    monkeypatch.setattr(demo_controls.subprocess, "Popen", slow)
    began = time.monotonic()
    with Controls(tmp_path / "c.toml", {"a": (), "b": ()}, log=tmp_path / "log"):
        while not entered:
            time.sleep(0.01)
    assert time.monotonic() - began < 30
    assert [child.poll() for child in started] == [-signal.SIGTERM]


def test_sigterm_ends_the_controls_as_ctrl_c_does(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", TERMINATED, str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    control = int(child.stdout.readline())
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=30)
    assert out == "interrupted\n" and child.returncode not in (0, -signal.SIGTERM)
    with pytest.raises(ProcessLookupError):
        os.kill(control, 0)
