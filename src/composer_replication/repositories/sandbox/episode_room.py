"""The inside of an EpisodeTree: the first process behind the walls, which does what the player's
tools ask for.

Standard library only. It has no rights beyond those of the player's commands, so nothing that it
is asked for reaches further than they do; as the first process of its namespace it cannot be killed
from inside. `launch_rooms` forks one for each episode. Requests and answers are JSON lines:

    {"do": "run", "command": "ls", "cwd": "/repo", "limit_s": 30, "most": 30000}
 -> {"code": 0, "late": false, "out": "...", "err": "", "cwd": "/repo", "dropped": 0}
    {"do": "read", "path": "/repo/a.py", "most": 1000000}   -> {"text": "...", "time": 1.5}
    {"do": "write", "path": "/repo/a.py", "text": "..."}    -> {"time": 1.5}
    {"do": "look", "path": "/repo", "pattern": "*.py"}      -> {"files": ["/repo/a.py", ...]}
    {"do": "search", "path": "/repo", "pattern": "total", "glob": "*.py", "flags": "i",
     "before": 0, "after": 0}       -> {"files": [["/repo/a.py", [[1, "total = 0", true]]], ...]}
    {"do": "hashes"}                                        -> {"hashes": {"a.py": "..."}}

A failure is {"error": "ENOENT"}. "hashes" ends every other process first: what it says is final.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from composer_replication.core import isolation
from composer_replication.repositories.sandbox.path_patterns import path_regex
from composer_replication.repositories.sandbox.tree_sandbox_child import (
    REPO,
    Room,
    drop_rights,
    exit_code,
    fix_addresses,
    refuse_walls,
    set_limits,
)
from composer_replication.repositories.sandbox.walls import behind_walls

_SHELL = 'eval "$1" && pwd -P >&3'
_SEARCH_S = 20.0
_MOST_FILES, _MOST_HITS = 20_000, 20_000
_MOST_BYTES = 4 << 20
_VERSIONING, _KERNEL = frozenset((".git", ".svn", ".hg")), frozenset(("proc", "dev"))


def launch_rooms(descriptor: int) -> int:
    """Fork a room for each specification that comes through a socket, with the descriptors of its
    input, output and errors; returns when the socket closes. An interpreter takes longer to start
    than a room."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as host:
        while True:
            message, passed, _, _ = socket.recv_fds(host, 16, 4)
            if not message:
                return 0
            child = os.fork()
            if not child:
                host.close()
                _become_room(passed)
            ended = os.pidfd_open(child)
            socket.send_fds(host, [b"ok"], [ended])
            for number in (*passed, ended):
                os.close(number)


def _become_room(passed: list[int]) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        specification, conversation, errors = passed
        for number, target in ((conversation, 0), (conversation, 1), (errors, 2)):
            os.dup2(number, target)
        os.close(conversation)
        os.close(errors)
        code = behind_walls(specification, _serve)
    finally:
        os._exit(code)


def _serve(room: Room) -> NoReturn:
    try:
        drop_rights(room)
        isolation.die_with_parent(room.libc)  # a change of user takes the first one back
        # its memory and descriptors are no files
        room.libc.prctl(isolation.PR_SET_DUMPABLE, 0, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which never reaches a first process
        os.chdir(REPO)
    except OSError as error:
        os._exit(refuse_walls(f"rights: {error}"))
    sys.stdout.write("{}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_answer(room, json.loads(line))) + "\n")
        sys.stdout.flush()
        _reap()
    os._exit(0)


def _answer(room: Room, request: dict[str, Any]) -> dict[str, Any]:
    handlers: dict[str, Callable[..., dict[str, Any]]] = {
        "run": _run,
        "read": _read,
        "write": _write,
        "look": _look,
        "search": _search,
        "hashes": _hashes,
    }
    try:
        return handlers[request.pop("do")](room, **request)
    except OSError as error:
        return {"error": errno.errorcode.get(error.errno or 0, "EIO")}
    except (re.error, ValueError, MemoryError) as error:
        return {"error": str(error) or type(error).__name__}


def _reap() -> None:
    """Take leave of the orphans, which fall to the first process."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


class _Drain:
    """Reads a pipe; keeps its beginning, counts the rest."""

    def __init__(self, descriptor: int, most: int) -> None:
        self.descriptor, self.most, self.dropped = descriptor, most, 0
        self._kept = bytearray()
        os.set_blocking(descriptor, False)

    def read(self) -> bool:
        """Read what is there; False at the end of the pipe."""
        try:
            part = os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            return True
        room = max(0, self.most - len(self._kept))
        self._kept += part[:room]
        self.dropped += len(part) - len(part[:room])
        return bool(part)

    def text(self) -> str:
        return self._kept.decode("utf-8", errors="replace")


def _run(room: Room, *, command: str, cwd: str, limit_s: float, most: int) -> dict[str, Any]:
    """Run a line of shell; what it leaves in the background goes on."""
    pipes = [os.pipe() for _ in range(3)]  # stdout, stderr, the folder that the shell ends in
    child = os.fork()
    if not child:
        _become_shell(room, command, cwd, [writing for _, writing in pipes])
    for _, writing in pipes:
        os.close(writing)
    drains = [_Drain(reading, most) for reading, _ in pipes]
    late = not _await(child, drains, end=time.monotonic() + limit_s)
    if late:
        _kill(child)
    status = os.waitpid(child, 0)[1]
    for drain in drains:
        os.close(drain.descriptor)
    out, err, folder = drains
    return {
        "code": exit_code(status),
        "late": late,
        "out": out.text(),
        "err": err.text(),
        "cwd": folder.text().rstrip("\n") or cwd,
        "dropped": out.dropped + err.dropped,
    }


def _become_shell(room: Room, command: str, cwd: str, pipes: list[int]) -> NoReturn:
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, writing in enumerate(pipes, start=1):
            os.dup2(writing, number)
        os.closerange(4, 1024)
        set_limits(room.spec)
        fix_addresses(room)  # the same episode prints the same twice
        os.chdir(cwd)
        shell = "/usr/bin/bash" if os.path.exists("/usr/bin/bash") else "/bin/sh"
        os.execve(shell, [shell, "-c", _SHELL, "bash", command], room.spec["env"])
    except OSError as error:
        os._exit(refuse_walls(str(error)))


def _await(child: int, drains: list[_Drain], *, end: float) -> bool:
    """Read until the child ends; False if it does not end in time."""
    ended = os.pidfd_open(child)
    reading = {drain.descriptor: drain for drain in drains}
    try:
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([ended, *reading], [], [], left)
            for descriptor in ready:
                if descriptor in reading and not reading[descriptor].read():
                    del reading[descriptor]
            if ready == [ended]:  # all that it wrote was read
                return True
            if ended in ready and not reading.keys() & set(ready):
                return True
        return False
    finally:
        os.close(ended)


def _kill(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)


def _open_file(path: str) -> int:
    """Open a plain file; a device or a pipe could block for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode) or facts.st_dev == os.stat("/proc").st_dev:
        os.close(descriptor)
        raise OSError(errno.EISDIR if stat.S_ISDIR(facts.st_mode) else errno.EINVAL, path)
    return descriptor


def _content(path: str, most: int) -> bytes:
    with open(_open_file(path), "rb") as file:
        return file.read(most)


def _read(room: Room, *, path: str, most: int) -> dict[str, Any]:
    with open(_open_file(path), "rb") as file:
        facts = os.fstat(file.fileno())
        if facts.st_size > most:
            return {"error": "EFBIG", "size": facts.st_size}
        content = file.read(most)
    text = content.decode("utf-8", errors="replace")
    return {"text": text, "time": facts.st_mtime_ns, "binary": b"\0" in content[:8192]}


def _write(room: Room, *, path: str, text: str) -> dict[str, Any]:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    with open(descriptor, "w", newline="", encoding="utf-8", errors="replace") as file:
        os.ftruncate(descriptor, 0)
        file.write(text)
        file.flush()
        return {"time": os.fstat(descriptor).st_mtime_ns}


def _files(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """The plain files of a folder, or the one that is named."""
    facts = os.stat(top)
    if stat.S_ISREG(facts.st_mode):
        yield top, facts
        return
    count = 0
    for parent, folders, names in os.walk(top):
        left_out = _KERNEL if parent == "/" else _VERSIONING
        folders[:] = sorted(name for name in folders if name not in left_out)
        for name in sorted(names):
            path = os.path.join(parent, name)
            try:
                facts = os.lstat(path)
            except FileNotFoundError:  # a command in the background took it away
                continue
            if stat.S_ISREG(facts.st_mode):
                count += 1
                if count > _MOST_FILES:
                    return
                yield path, facts


def _look(room: Room, *, path: str, pattern: str) -> dict[str, Any]:
    wanted = path_regex(pattern)
    kept = [
        (facts.st_mtime_ns, name)
        for name, facts in _files(path)
        if wanted.fullmatch(os.path.relpath(name, path))
    ]
    return {"files": [name for _, name in sorted(kept)]}


def _search(room: Room, **request: Any) -> dict[str, Any]:
    """Search in a fork with a limit: a pattern may take for ever."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            set_limits(room.spec)
            with open(writing, "w", encoding="utf-8") as file:
                try:
                    answer = _matches(**request)
                except OSError as error:
                    answer = {"error": errno.errorcode.get(error.errno or 0, "EIO")}
                except re.error as error:
                    answer = {"error": f"regex: {error}"}
                file.write(json.dumps(answer))
        finally:
            os._exit(0)
    os.close(writing)
    drain = _Drain(reading, 8 * _MOST_BYTES)
    late = not _await(child, [drain], end=time.monotonic() + _SEARCH_S)
    if late:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    try:
        return {"error": "ETIMEDOUT"} if late else json.loads(drain.text())
    except ValueError:
        return {"error": "EFBIG"}


def _matches(
    *, path: str, pattern: str, glob: str, flags: str, before: int, after: int
) -> dict[str, Any]:
    options = (re.IGNORECASE if "i" in flags else 0) | re.MULTILINE
    wanted = re.compile(pattern, options | (re.DOTALL if "s" in flags else 0))
    names = path_regex(glob) if glob else None
    files: list[tuple[int, str, list[tuple[int, str, bool]]]] = []
    hits = 0
    for name, facts in _files(path):
        if names is not None and not names.fullmatch(os.path.relpath(name, path)):
            continue
        try:
            content = _content(name, _MOST_BYTES)
        except OSError:
            continue
        if b"\0" in content[:8192]:
            continue
        text = content.decode("utf-8", errors="replace")
        rows = _rows(text, wanted, before=before, after=after, multiline="s" in flags)
        hits += len(rows)
        if rows:
            files.append((facts.st_mtime_ns, name, rows))
        if hits > _MOST_HITS:
            break
    return {"files": [(name, rows) for _, name, rows in files], "times": [t for t, _, _ in files]}


def _rows(
    text: str, wanted: re.Pattern[str], *, before: int, after: int, multiline: bool
) -> list[tuple[int, str, bool]]:
    """The lines that match, with those around them: (number, text, whether it matches)."""
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    if multiline:
        matched: set[int] = set()
        for match in wanted.finditer(text):
            first = text.count("\n", 0, match.start())
            last = text.count("\n", 0, max(match.start(), match.end() - 1))
            matched.update(range(first, last + 1))
    else:
        matched = {n for n, line in enumerate(lines) if wanted.search(line)}
    shown = {m for n in matched for m in range(n - before, n + after + 1) if 0 <= m < len(lines)}
    return [(n + 1, lines[n], n in matched) for n in sorted(shown)]


def _hashes(room: Room) -> dict[str, Any]:
    """End every other process, and hash the files of the tree; a link has its target as content."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    hashes: dict[str, str] = {}
    for parent, folders, names in os.walk(REPO):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        folders[:] = [name for name in folders if name not in links]
        for name in (*names, *links):
            path = os.path.join(parent, name)
            content = _plain_content(path, room.spec["file_mb"] << 20)
            hashes[os.path.relpath(path, REPO)] = hashlib.sha256(content).hexdigest()
            if len(hashes) > 2 * _MOST_FILES:
                return {"error": "EFBIG"}
    return {"hashes": hashes}


def _plain_content(path: str, most: int) -> bytes:
    """The content of a file, or words for what is none, which equal no file of the host."""
    if os.path.islink(path):
        return b"link " + os.fsencode(os.readlink(path))
    try:
        return _content(path, most)
    except OSError as error:
        return f"no file: {error.errno}".encode()
