"""Write files privately and atomically, and clean up after killed processes.

    with atomic_writer(path) as stream:                # appears at `path` when the block ends
        stream.write("...")
    with scratch_folder(path) as scratch:              # for what a library writes
        model.save(scratch)
        move_into_place(scratch, path)
    append_text(path, "one line\\n"); make_folder(path); remove_leftovers(work)

Invariants:
- Files are 0600 and folders 0700 whatever the umask: an agent's logs hold all that its user sees.
- An unfinished file is called .NAME.PID-TOKEN.part and is locked until its process ends, however it
  ends. A scratch that nobody locks is therefore a leftover, and `remove_leftovers` never removes
  what a live process writes, in whatever container that runs.
- Symbolic links are not written through.
- A file that appears under its name is on the disk (fsync of the file, then of the folder): after a
  power cut it is the old one or the new one. Appended lines are not, until `sync` is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TextIO

from composer_replication.core.errors import ComposerError, DataError, UnwrittenError
from composer_replication.core.git_tree import leak_of

try:
    import fcntl
except ImportError:  # no locks on this system: leftovers are then recognised by dead process ids
    fcntl = None

FILE, FOLDER = 0o600, 0o700
_SCRATCH = re.compile(r"\..+\.(\d+)(-[0-9a-f]{6})?\.(?:part|unscanned)", re.ASCII)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_LINK_AGE_S = 60.0
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_SYNCHRONIZE, _NO_SUCH_PROCESS, _STILL_RUNS = 0x100000, 87, 0x102
_OURS = re.compile(
    r"(sessions|sites|site_answers|site_verdicts|hints|answers|reader_answers|preferences|anchors"
    r"|curated|dropped)\.jsonl"
    r"|\w+\.meta\.json|owner\.json|(ingest|audit|replay|replay_plan|curate)\.json|redaction\.key"
    r"|ledger\.sqlite3.*|report\.html|examples|exports|runs|reference|\.(?!git).+"
)
IGNORE = "# Sessions, answers and weights: not for a repository. Written by recompose.\n*\n"


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, for their owner only; existing ones are unchanged."""
    missing: list[Path] = []
    for path in (folder, *folder.parents):
        if path.exists():
            break
        missing.append(path)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            path.mkdir(FOLDER)
            path.chmod(FOLDER)  # mkdir's mode passes through the umask


def make_work(folder: Path) -> None:
    """Make a work folder with a .gitignore, so that nothing in it gets into a commit.

    No .gitignore is written into a folder that holds files of other programs. Raises DataError if
    git would commit what is written there: it tracks the folder, or does not ignore it.
    """
    if not folder.exists():
        make_folder(folder)
    reason = leak_of(folder)
    tracked = reason.startswith("git tracks")
    if (
        not tracked
        and not (folder / ".gitignore").exists()
        and all(_OURS.fullmatch(path.name) for path in folder.iterdir())
    ):
        write_text(folder / ".gitignore", IGNORE)
        reason = ""
    if reason:
        message = f"sessions would be written where they can get into a commit: {reason}"
        fix = (
            "take a folder of its own: -o recompose; or have git ignore this one: write * into"
            f" {folder / '.gitignore'}"
        )
        untrack = f"; what is tracked: git rm -r --cached {folder}" if tracked else ""
        raise DataError(message, where=str(folder), fix=fix + untrack)


@contextmanager
def explain_full_disk(path: Path, *, need: int) -> Iterator[None]:
    """Turn a full disk into an UnwrittenError with the path and the bytes needed and free there."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL or isinstance(error, ComposerError):
            raise
        existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        message = (
            f"{error.strerror}: about {need / 1e6:.1f} MB are needed,"
            f" {shutil.disk_usage(existing).free / 1e6:.1f} MB are free"
        )
        fix = (
            "make room there and run it again, or take a folder on another disk: -o FOLDER; what"
            " stood there before is as it was"
        )
        raise UnwrittenError(message, where=str(path.absolute()), fix=fix) from error


def open_private(path: Path, flags: int) -> int:
    """Open a file, made with mode 0600 if it is missing; raises OSError for a symbolic link."""
    descriptor = os.open(path, flags | os.O_CREAT | _NO_LINK, FILE)
    with contextlib.suppress(PermissionError):  # somebody else's file: its owner says who reads it
        if os.fstat(descriptor).st_mode & 0o777 != FILE and hasattr(os, "fchmod"):
            os.fchmod(descriptor, FILE)
    return descriptor


def append_text(path: Path, text: str) -> None:
    """Append whole lines in one write, so that no reader or second writer sees a mixture.

    On a full disk either everything is written, or nothing, and OSError is raised.
    """
    descriptor, raw, written = (
        open_private(path, os.O_WRONLY | os.O_APPEND),
        text.encode("utf-8"),
        0,
    )
    before = os.fstat(descriptor).st_size
    try:
        while written < len(raw):  # a disk that is almost full takes a part
            written += os.write(descriptor, raw[written:])
    except OSError as error:
        if os.fstat(descriptor).st_size == before + written:
            os.ftruncate(descriptor, before)
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Force a file, or the entries of a folder, onto the disk; a missing path is skipped."""
    # PermissionError: Windows cannot open folders.
    with contextlib.suppress(FileNotFoundError, PermissionError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_all(folder: Path) -> None:
    """Call `sync` on everything in a folder and on the folder; symbolic links are skipped."""
    for path in (*sorted(folder.rglob("*")), folder):
        if not path.is_symlink():
            sync(path)


@contextmanager
def scratch_file(path: Path) -> Iterator[tuple[FileIO, Path]]:
    """Yield (file, path) of a new, locked file beside `path`; removed at the end of the block
    unless it was renamed."""
    make_folder(path.parent)
    while True:
        scratch = _name(path)
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, FILE)
        if _held(descriptor):
            break
    with FileIO(descriptor, "w") as file:
        try:
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, FILE)
            yield file, scratch
        finally:
            _close_unlockable(file)
            scratch.unlink(missing_ok=True)


def _close_unlockable(file: FileIO) -> None:
    """Close a scratch file before it is renamed or removed, where nobody can lock it: Windows
    refuses both for an open file. Elsewhere it stays locked until it has its name."""
    if fcntl is None:
        file.close()


@contextmanager
def atomic_writer(path: Path) -> Iterator[TextIO]:
    """Open a file for writing that appears at `path` only if the block ends without an error."""
    with scratch_file(path) as (file, scratch):
        try:
            with os.fdopen(
                file.fileno(), "w", encoding="utf-8", newline="\n", closefd=False
            ) as stream:
                yield stream
            os.fsync(file.fileno())
        except OSError as error:
            if error.errno in _FULL and error.filename is None:  # a stream does not know its path
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise
        _close_unlockable(file)
        os.replace(scratch, path)
        sync(path.parent)


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Yield a new, locked folder beside `path`; removed at the end of the block unless
    `move_into_place` has renamed it."""
    make_folder(path.parent)
    while True:
        scratch = _name(path)
        scratch.mkdir(FOLDER)
        scratch.chmod(FOLDER)
        descriptor = os.open(scratch, os.O_RDONLY | _NO_LINK) if fcntl is not None else None
        if descriptor is None or _held(descriptor):
            break
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def save_folder(path: Path, save: Callable[[str], object]) -> None:
    """Let a library save into a folder that appears as `path` once it is complete.

    Example: save_folder(Path("examples/tokenizer"), tokenizer.save_pretrained)
    """
    with scratch_folder(path) as scratch:
        save(str(scratch))
        move_into_place(scratch, path)


def write_text(path: Path, text: str) -> None:
    """Write a text atomically."""
    with atomic_writer(path) as stream:
        stream.write(text)


def move_into_place(scratch: Path, path: Path) -> None:
    """Make a scratch folder, or a file in one, replace `path`, readable by its owner only."""
    make_private(scratch)
    sync_all(scratch) if scratch.is_dir() else sync(scratch)
    if path.is_dir() and not path.is_symlink():
        with scratch_folder(path) as aside:
            os.replace(path, aside / "old")
            os.replace(scratch, path)
    else:
        os.replace(scratch, path)
    sync(path.parent)


def make_private(path: Path) -> None:
    """Make a file, or everything in a folder, accessible to its owner only; links are skipped."""
    for entry in (path, *(path.rglob("*") if path.is_dir() else ())):
        with contextlib.suppress(PermissionError):
            if not entry.is_symlink():
                entry.chmod(FOLDER if entry.is_dir() else FILE)


def remove_leftovers(folder: Path, *, deep: bool = False) -> list[str]:
    """Remove what killed processes left in a folder (`deep`: also below it); returns the names.

    Example: remove_leftovers(Path("recompose")) -> [".sessions.jsonl.4711-0c1f3a.part"]
    """
    hidden = sorted(folder.rglob(".*") if deep else folder.glob(".*")) if folder.is_dir() else []
    scratches = [(path, name) for path in hidden if (name := _SCRATCH.fullmatch(path.name))]
    return [
        path.name
        for path, name in scratches
        if _take_away(path, int(name[1]), locks=name[2] is not None)
    ]


def _name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(3)}.part")


def _held(descriptor: int) -> bool:
    """Lock a file that was just made; False if another process's clean-up removed it before."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:  # a file system without locks: nobody can sweep it either
        return True
    if os.fstat(descriptor).st_nlink:
        return True
    os.close(descriptor)
    return False


def _take_away(path: Path, pid: int, *, locks: bool) -> bool:
    """Remove a scratch unless a process holds it; True if it was removed.

    The lock is kept until the scratch is gone, so that no process can start to use it meanwhile.
    """
    if path.is_symlink():  # it cannot be locked, but exists for a moment only
        return time.time() - path.lstat().st_mtime > _LINK_AGE_S and _removed(path)
    # Files of an earlier version were not locked; an earlier process had our process id.
    if not locks and pid == os.getpid():
        return _removed(path)
    if fcntl is None or not locks:
        return not is_alive(pid) and _removed(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_LINK)
    except OSError:
        return False  # gone by now, or not ours
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _removed(path)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _removed(path: Path) -> bool:
    try:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except OSError:
        return False
    return True


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs, or may run: in doubt True."""
    if sys.platform == "win32":  # os.kill would send it a Ctrl-C
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        process = kernel.OpenProcess(_SYNCHRONIZE, False, pid)
        if not process:
            return ctypes.get_last_error() != _NO_SUCH_PROCESS
        try:
            return kernel.WaitForSingleObject(process, 0) == _STILL_RUNS
        finally:
            kernel.CloseHandle(process)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # another user's process, or not a process id of this machine
    return True
