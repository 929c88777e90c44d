"""Walls that podman puts up: a container without an image, for each room its own.

    return run_podman(spec, _serve)     # podman runs `_serve` behind its walls

Standard library only. Its root is an empty folder; what a specification lists is mounted read-only
(tree_sandbox_child.py), the tree goes in as an archive. There is no network, no right, podman's
filter of system calls is on, and memory is limited for all processes together by a control group,
where podman may set one. The room's descriptors go in by number. A container is no child of the
process that asked for it: it ends by itself when a socket to that process closes.
Options: podman-run(1), version 4.3.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

from composer_replication.repositories.sandbox.bubblewrap import (
    hidden_places,
    holds_tree,
    in_memory,
    package_sources,
    start_inside,
    tree_archive,
)
from composer_replication.repositories.sandbox.tree_sandbox_child import (
    LINKS,
    NOBODY,
    REFUSED,
    REPO,
    Room,
    exit_code,
    refuse_walls,
    runs_as_root,
)

_START = (
    # the sources are read as a file of a number, out of the way of those that the room needs
    "import sys, fcntl; sys.path.insert(0, '/proc/self/fd/%%d' %% fcntl.fcntl(%d, 0, %d));"
    f" from {__name__} import start_in_container; start_in_container(%r, %r, %r)"
)
_FIRST, _FREE = 3, 600
"""The first descriptor that podman passes on, and where copies are out of its way."""
WRITABLE = ("/tmp", REPO)


def run_podman(spec: dict[str, Any], inside: Callable[[Room], NoReturn]) -> int:
    """Run `inside` in a container; returns its exit code, or the one for walls that cannot be put
    up, with podman's words on stderr."""
    ours, theirs = socket.socketpair()
    sources, tree = in_memory(package_sources()), in_memory(tree_archive(spec["tree"], owner=0))
    carried = [sources, in_memory(json.dumps(spec).encode()), tree, theirs.fileno()]
    passed = [number for number in _inheritable() if number not in carried]
    place = {number: _FIRST + i for i, number in enumerate((*carried, 0, 1, 2, *passed))}
    _prepare(spec["podman"]["root"])
    podman = os.fork()
    if not podman:
        _become_podman(spec, inside, place, carried)
    theirs.close()
    code = exit_code(os.waitpid(podman, 0)[1])
    started = False
    with suppress(OSError):
        started = bool(ours.recv(1, socket.MSG_DONTWAIT))
    return code if started else REFUSED  # podman has said why


def _inheritable() -> list[int]:
    """The descriptors that this process was given for its program."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    return sorted(n for n in numbers if n > 2 and os.path.exists(f"/proc/self/fd/{n}") and _kept(n))


def _kept(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:  # the folder that was listed
        return False


def _prepare(root: str) -> None:
    """What a root folder needs besides mounts, which find or make their places: links, and the
    places of folders that anybody may write to, whose modes runc takes over."""
    for name, target in LINKS.items():
        with suppress(FileExistsError):
            os.symlink(target, f"{root}/{name}")
    for path in WRITABLE:
        with suppress(FileExistsError):
            os.mkdir(root + path)
        os.chmod(root + path, 0o1777)


def _become_podman(
    spec: dict[str, Any],
    inside: Callable[[Room], NoReturn],
    place: dict[int, int],
    carried: list[int],
) -> NoReturn:
    try:
        # copies first: a descriptor's place may be another's number
        copies = {fcntl.fcntl(n, fcntl.F_DUPFD, _FREE): to for n, to in place.items()}
        for copy, target in copies.items():
            os.dup2(copy, target, inheritable=True)
            os.close(copy)
        os.closerange(_FIRST + len(place), _FREE)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):
            os.dup2(nothing, number)
        back = {to: number for number, to in place.items() if number not in carried}
        code = _START % (
            place[carried[0]],
            _FREE,
            [place[number] for number in carried[1:]],
            back,
            f"{inside.__module__}:{inside.__name__}",
        )
        engine = spec["podman"]
        command = [engine["path"], *podman_options(spec, kept=len(place)), spec["python"]]
        os.execve(engine["path"], [*command, "-I", "-S", "-B", "-c", code], engine["env"])
    except OSError as error:
        os._exit(refuse_walls(f"podman: {error}"))


def podman_options(spec: dict[str, Any], *, kept: int) -> Iterator[str]:
    """The options of `podman` for a specification, with its root at the end."""
    yield from ("--log-level", "error", "--events-backend", "none", "run", "--rm")
    yield from ("--log-driver", "none", "--sig-proxy=false", f"--preserve-fds={kept}")
    yield from ("--network", "none", "--no-hosts", "--hostname", "sandbox", "--passwd=false")
    yield from ("--cap-drop", "all", "--security-opt", "no-new-privileges")
    yield from ("--security-opt", "mask=/sys", "--systemd=false", "--workdir", "/")
    if runs_as_root():
        yield from ("--user", f"{NOBODY}:{NOBODY}")
    memory = f"{spec['memory_mb'] + spec['tree_mb']}m"
    yield from ("--memory", memory, "--memory-swap", memory)
    yield from ("--pids-limit", str(spec["processes"] + 1))
    yield from ("--ulimit", "nofile=1024:1024", "--ulimit", "core=0:0")
    yield from ("--ulimit", f"nproc={spec['processes']}:{spec['processes']}")
    size = f"size={spec['tree_mb']}m"
    yield from ("--read-only", "--read-only-tmpfs=false", "--shm-size", f"{spec['tree_mb']}m")
    for path in WRITABLE[: 1 if holds_tree(spec) else 2]:
        yield from ("--tmpfs", f"{path}:rw,exec,nosuid,nodev,notmpcopyup,{size},mode=1777")
    for outside, inner in spec["read_only"]:
        yield from ("--volume", f"{outside}:{inner}:ro,bind")
    for path, is_folder in hidden_places(spec):
        if is_folder:
            yield from ("--tmpfs", f"{path}:ro,notmpcopyup,size=4k")
        else:
            yield from ("--volume", f"/dev/null:{path}:ro,bind")
    yield from ("--rootfs", spec["podman"]["root"])


def start_in_container(carried: list[int], back: dict[int, int], function: str) -> NoReturn:
    """Put the descriptors back to their numbers, end with the process outside, and go on as in
    bubblewrap's walls."""
    spec, tree, alive = (fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _FREE) for number in carried)
    copies = {fcntl.fcntl(place, fcntl.F_DUPFD, _FREE): number for place, number in back.items()}
    os.closerange(_FIRST, _FREE)
    for copy, number in copies.items():
        os.dup2(copy, number, inheritable=True)
        os.close(copy)
    _end_with(alive)
    module, _, name = function.partition(":")
    start_inside(int(sys.path[0].rpartition("/")[2]), spec, tree, module, name)


def _end_with(alive: int) -> None:
    """End this process, and with it all of its namespace, when the other end of a socket closes."""
    signal.signal(signal.SIGIO, lambda *_: os._exit(1))
    fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(
        alive, fcntl.F_SETFL, fcntl.fcntl(alive, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK
    )
    try:
        os.write(alive, b"x")
        closed = os.read(alive, 1) == b""
    except BlockingIOError:
        closed = False
    except OSError:
        closed = True
    if closed:
        os._exit(1)
