"""Files are readable by their owner only whatever the umask, are written whole or not at all, and a
killed writer leaves no leftovers."""

from __future__ import annotations

import ast
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from composer_replication.core.errors import DataError
from composer_replication.core.files import (
    append_text,
    atomic_writer,
    is_alive,
    make_work,
    move_into_place,
    open_private,
    remove_leftovers,
    save_folder,
    scratch_folder,
)
from composer_replication.core.git_tree import leak_of
from composer_replication.core.pseudonyms import store_key
from composer_replication.core.rundir import create_run, sweep_work
from composer_replication.data.teachers.ledger import Ledger

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "composer_replication"
WRITES = {
    "write_text",
    "write_bytes",
    "mkdir",
    "makedirs",
    "save_pretrained",
    "NamedTemporaryFile",
    "mkstemp",
    "copyfile",
    "copytree",
}
OWN_HOME = {"core/files.py"}
EXCUSED = {
    "core/rundir.py": (
        "claims a folder for a run: mkdir decides between two that start at once; its mode is set"
        " there"
    ),
    "models/pretrained_folder.py": "writes into a folder that its caller made and makes private",
    "training/on_policy/generator.py": "weights for a server, which may run as another user",
    "cli/train_replicas.py": "copies folders of a run inside its own private folder",
    "training/backends/verl_run.py": "in the run's folder or a temporary one, its owner's",
    "training/diloco/blob_store.py": "a store that replicas of several users may share",
    "repositories/checkout.py": "copies files into private folders, with their modes",
    "cli/serve_episodes.py": "copies the tree into the episode's folder, which is its owner's",
    "repositories/judging/judge_room.py": "inside a TemporaryDirectory, which is its owner's",
    "repositories/sandbox/episode_tree.py": "inside a TemporaryDirectory, which is its owner's",
    "repositories/sandbox/bubblewrap.py": "a file in memory",
    "repositories/sandbox/podman.py": "in a container's root folder, inside a TemporaryDirectory",
    "repositories/sandbox/episode_room.py": "inside the sandbox, in a tree in memory",
    "repositories/python/pytest_worker.py": "inside the sandbox, in a tree in memory",
    "repositories/sandbox/tree_sandbox_child.py": "puts the sandbox's root together, in memory",
    "data/curate/data_juicer.py": "inside a TemporaryDirectory, which is its owner's",
}


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o177])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def open_to_others(folder: Path) -> list[str]:
    """List everything in and below a folder that others could read."""
    return [
        str(path)
        for path in (folder, *folder.rglob("*"))
        if not path.is_symlink() and path.stat().st_mode & 0o077
    ]


def test_every_writer_writes_for_its_owner_only(tmp_path: Path, umask: int) -> None:
    work = tmp_path / "recompose"
    make_work(work)
    with atomic_writer(work / "deep" / "er" / "a.jsonl") as stream:
        # before it is whole, too
        assert {mode(path) for path in (work / "deep" / "er").iterdir()} == {0o600}
        stream.write("text")
    append_text(work / "log", "one\n")
    store_key(work)
    save_folder(work / "tokenizer", lambda folder: (Path(folder) / "vocab.json").write_text("{}"))
    with Ledger(work / "ledger.sqlite3", max_usd=0.0):
        assert open_to_others(work) == []
    run = create_run(work / "runs", resolved={}, command="recompose train", seed=1, name="a")
    with run.attempt() as number:
        run.add_log("said", attempt=number)
        run.add_metrics({"step": 0})
        (run.path / "of_a_library").mkdir(exist_ok=True)
        (run.path / "of_a_library" / "state.json").write_text("{}")
    assert open_to_others(work) == [] and mode(work) == 0o700 and mode(run.metrics_jsonl) == 0o600


def test_a_file_that_others_could_read_is_closed_to_them_when_it_is_written_again(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("old\n")
        (tmp_path / name).chmod(0o664)
    append_text(tmp_path / "a", "new\n")
    with atomic_writer(tmp_path / "b") as stream:
        stream.write("new")
    assert (
        mode(tmp_path / "a") == mode(tmp_path / "b") == 0o600
        and (tmp_path / "a").read_text() == "old\nnew\n"
    )


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("mine")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="symbolic link"):
        append_text(tmp_path / "metrics.jsonl", "{}\n")
    with pytest.raises(OSError, match="symbolic link"):
        open_private(tmp_path / "metrics.jsonl", os.O_RDWR)
    with atomic_writer(tmp_path / "metrics.jsonl") as stream:
        stream.write("new")
    assert (tmp_path / "theirs").read_text() == "mine" and not (
        tmp_path / "metrics.jsonl"
    ).is_symlink()


def test_a_work_folder_keeps_itself_out_of_a_repository(tmp_path: Path) -> None:
    make_work(tmp_path / "recompose")
    assert "\n*\n" in (tmp_path / "recompose" / ".gitignore").read_text()
    (tmp_path / "recompose" / ".gitignore").unlink()
    append_text(tmp_path / "recompose" / "sessions.jsonl", "{}\n")
    make_work(tmp_path / "recompose")
    assert "\n*\n" in (tmp_path / "recompose" / ".gitignore").read_text()
    # a folder with other things in it: no repository here, so nothing is said, and no rule is
    # written
    make_work(tmp_path)
    assert not (tmp_path / ".gitignore").exists()
    create_run(tmp_path / "live" / "runs", resolved={}, command="", seed=1)
    assert (tmp_path / "live" / ".gitignore").exists() and not (
        tmp_path / "live" / "runs" / ".gitignore"
    ).exists()


def test_git_sees_nothing_of_it(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    make_work(tmp_path / "recompose")
    append_text(tmp_path / "recompose" / "sessions.jsonl", "{}\n")
    status = subprocess.run(
        ["git", "status", "--porcelain", "-uall"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert status.stdout == ""


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("place", [".", "src", "recompose"])
def test_a_folder_of_a_repository_is_no_work_folder(tmp_path: Path, place: str) -> None:
    work = tmp_path / place
    work.mkdir(exist_ok=True)
    (work / "main.py").write_text("")
    git(tmp_path, "init", "-q")
    for tracked in (False, True):
        if tracked:
            git(tmp_path, "add", ".")
            (work / "main.py").unlink()  # it is still tracked
        with pytest.raises(DataError, match="can get into a commit") as caught:
            make_work(work)
        assert ("git tracks" in caught.value.what) == (tracked and place != ".")
        assert {path.name for path in work.iterdir()} <= {"main.py", ".git", "notes.txt"}
        (work / "notes.txt").write_text("")


@pytest.mark.parametrize("version", ["2", "4"])
def test_a_committed_store_is_found_in_every_index(tmp_path: Path, version: str) -> None:
    git(tmp_path, "init", "-q")
    for name in ("a/one", "recompose/.gitignore", "recompose/sessions.jsonl", "z/two"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("*\n")
    git(tmp_path, "add", "-f", ".")
    git(tmp_path, "update-index", "--index-version", version)
    with pytest.raises(DataError, match=r"git tracks recompose/sessions\.jsonl"):
        make_work(tmp_path / "recompose")
    git(tmp_path, "rm", "-q", "--cached", "recompose/sessions.jsonl")
    make_work(tmp_path / "recompose")  # its .gitignore may be committed


@pytest.mark.parametrize(
    ("rules", "ignored"),
    [
        ("/work/\n", True),
        ("work\n", True),
        ("wor*\n", True),
        ("*\n", True),
        ("work\n!work\n", False),
        ("# work\n", False),
        ("work2\n", False),
    ],
)
def test_the_rules_of_the_repository_are_read_as_git_reads_them(
    tmp_path: Path, rules: str, ignored: bool
) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "main.py").write_text("")
    (tmp_path / ".gitignore").write_text(rules)
    assert (
        "work" not in git(tmp_path, "status", "--porcelain", "-uall").replace(".gitignore", "")
    ) == ignored
    assert (leak_of(tmp_path / "work") == "") == ignored


def test_an_ignored_folder_without_a_rule_of_its_own_gets_one(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "recompose").mkdir()
    make_work(tmp_path / "recompose")
    append_text(tmp_path / "recompose" / "sessions.jsonl", "{}\n")
    assert git(tmp_path, "status", "--porcelain", "-uall") == ""


def hold(folder: str, ready: multiprocessing.synchronize.Event) -> None:  # type: ignore[name-defined]
    """Begin a file and a folder, and never finish them."""
    with (
        atomic_writer(Path(folder) / "sessions.jsonl") as stream,
        scratch_folder(Path(folder) / "examples" / "tokenizer"),
    ):
        stream.write("half")
        stream.flush()
        ready.set()
        time.sleep(600)


def test_leftovers_of_a_killed_process_go_and_those_of_a_live_one_stay(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    writer = context.Process(target=hold, args=(str(tmp_path), ready), daemon=True)
    writer.start()
    assert ready.wait(60) and writer.pid
    halves = {path.name for path in tmp_path.rglob("*.part")}
    assert (
        len(halves) == 2
        and sweep_work(tmp_path) == []
        and {path.name for path in tmp_path.rglob("*.part")} == halves
    )
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    assert set(sweep_work(tmp_path)) == halves and not list(tmp_path.rglob("*.part"))


def test_a_process_of_the_same_number_is_not_taken_for_the_one_that_died(tmp_path: Path) -> None:
    """In a container each process may get the previous one's number, so the lock decides, not the
    number."""
    (tmp_path / f".sessions.jsonl.{os.getpid()}-0a1b2c.part").write_text("half")
    (tmp_path / f".tokenizer.{os.getpid()}-0a1b2c.part").mkdir()
    assert len(remove_leftovers(tmp_path)) == 2 and not list(tmp_path.iterdir())


def test_leftovers_of_the_earlier_version_go_too(tmp_path: Path) -> None:
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    parent = os.getppid()
    for name in (
        f".a.jsonl.{dead}.part",
        f".sessions.jsonl.{dead}.unscanned",
        f".sessions.jsonl.{dead}.unscanned.{dead}.part",
    ):
        (tmp_path / name).write_text("half")
    for name in (f".a.jsonl.{parent}.part", ".notes.part", "a.part", ".gitignore"):
        (tmp_path / name).write_text("not ours to judge")
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        f".a.jsonl.{parent}.part",
        ".notes.part",
        "a.part",
        ".gitignore",
    }


def test_a_launch_removes_what_the_last_one_left(tmp_path: Path) -> None:
    run = create_run(tmp_path / "runs", resolved={}, command="", seed=1, name="a")
    (run.path / "tokens").mkdir()
    (run.path / "tokens" / f".step_000001.json.{os.getpid()}-0a1b2c.part").write_text("half")
    with run.attempt():
        assert not list(run.path.rglob("*.part"))


def test_half_a_checkpoint_goes_with_its_run_and_stays_with_one_that_is_alive(
    tmp_path: Path,
) -> None:
    dead = create_run(tmp_path / "runs", resolved={}, command="", seed=1, name="dead")
    alive = create_run(tmp_path / "runs", resolved={}, command="", seed=1, name="alive")
    for run, pid in ((dead, 2**22 + 5), (alive, os.getpid())):
        run.update(state="running", pid=pid)
        (run.checkpoints_dir / ".step_000002.part").mkdir(parents=True)
    assert sweep_work(tmp_path) == [".step_000002.part"]
    assert (
        not (dead.checkpoints_dir / ".step_000002.part").exists()
        and (alive.checkpoints_dir / ".step_000002.part").exists()
    )


def test_what_fails_leaves_the_old_and_nothing_half(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.json").write_text("old")

    def save(folder: str) -> None:
        (Path(folder) / "vocab.json").write_text("new")
        if not (tmp_path / "may").exists():
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save_folder(tmp_path / "tokenizer", save)
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer"] and (
        tmp_path / "tokenizer" / "vocab.json"
    ).read_text() == "old"
    (tmp_path / "may").touch()
    save_folder(tmp_path / "tokenizer", save)
    assert (tmp_path / "tokenizer" / "vocab.json").read_text() == "new" and not list(
        tmp_path.glob(".*")
    )


def test_a_scratch_that_is_held_is_the_owners_before_it_is_whole(tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "x") as scratch:
        (scratch / "y").write_text("text")
        assert mode(scratch) == 0o700 and remove_leftovers(tmp_path) == []
        move_into_place(scratch, tmp_path / "x")
    assert mode(tmp_path / "x" / "y") == 0o600


def writers(path: Path) -> Iterator[str]:
    """Yield the calls in a file that write to the disk directly."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        # a bare name is a function of core/files.py
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        modes = [
            value.value
            for value in values
            if isinstance(value, ast.Constant) and isinstance(value.value, str)
        ]
        if name in WRITES or (
            name == "open" and any(set(m) & set("wax+") and set(m) <= set("rwaxbt+") for m in modes)
        ):
            yield f"line {node.lineno}: {name}"


def test_no_file_of_the_package_writes_by_itself() -> None:
    """Every writer goes through core/files.py, so that none forgets to restrict access to the
    owner."""
    calls_by_file: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name not in OWN_HOME and "workshop/" not in name and (calls := list(writers(path))):
            calls_by_file[name] = calls
    assert {name: calls for name, calls in calls_by_file.items() if name not in EXCUSED} == {}
    assert set(EXCUSED) <= calls_by_file.keys()


@pytest.mark.parametrize(
    ("process", "error", "waited", "alive"),
    [
        (8, 0, 0x102, True),  # it still runs
        (8, 0, 0, False),  # it has ended, and somebody holds it open
        (0, 87, 0, False),  # there is no such process
        (0, 5, 0, True),  # somebody else's: access denied
    ],
)
def test_on_windows_a_process_is_asked_for_and_gets_no_signal(
    process: int, error: int, waited: int, alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """os.kill with 0 sends a Ctrl-C there. The calls are kernel32's, which are not here."""

    class Kernel:
        closed: ClassVar[list[int]] = []

        def OpenProcess(self, access: int, inherit: bool, pid: int) -> int:
            assert (access, inherit, pid) == (0x100000, False, 4711)
            return process

        def WaitForSingleObject(self, handle: int, milliseconds: int) -> int:
            assert (handle, milliseconds) == (process, 0)
            return waited

        def CloseHandle(self, handle: int) -> None:
            self.closed.append(handle)

    monkeypatch.setattr(ctypes, "WinDLL", lambda name, use_last_error: Kernel(), raising=False)
    monkeypatch.setattr(ctypes, "get_last_error", lambda: error, raising=False)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal"))
    monkeypatch.setattr(sys, "platform", "win32")
    assert is_alive(4711) is alive
    assert Kernel.closed == ([process] if process else [])
