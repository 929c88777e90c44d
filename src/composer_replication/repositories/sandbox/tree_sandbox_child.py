"""The inside of a TreeSandbox: put up the walls, then run one program behind them.

Standard library only, started as `python -I -S -B`; the specification is one JSON object, read
from a descriptor, because a program can see the arguments of the first process:

    {"program": ["/usr/bin/python3", "-c", "..."], "env": {...}, "cwd": "/repo",
     "read_only": [["/outside", "/inside"], ...], "hidden": ["/inside/pip", ...],
     "tree": "/outside/tree" or null, "tree_mb": 256, "overlay": false, "files": {"a.py": "..."},
     "cpu_s": 60, "memory_mb": 2048, "processes": 256, "file_mb": 64,
     "python": "/usr/bin/python3", "bwrap": "" or "/usr/bin/bwrap", "loopback": false,
     "podman": null or {"path": "/usr/bin/podman", "root": "/outside/empty", "env": {...}}}

The program gets a copy of `tree` at /repo, in memory, which it may change and which is gone with
it; with "overlay" only what it changes is in memory. "files" replace those of the tree. It has no
network (with "loopback" its own 127.0.0.1, which leads nowhere), sees none of the host's files but
`read_only`, and when it ends, every process that it started ends too: the first process of a PID
namespace takes the others along.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from ctypes import CDLL
from typing import Any, NamedTuple, NoReturn

from composer_replication.core import isolation

NOBODY = 65534
"""User and group of the program if this runs as root: root is exempt from RLIMIT_NPROC."""
REPO = "/repo"
"""Where a program finds the tree."""
ROOM = "/tmp"
"""Where the new root is put together, in a mount namespace of its own."""
MS_BIND = 4096
_DEVICES = ("null", "zero", "full", "random", "urandom")
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
"""Links of the new root."""
REFUSED = 125
"""The exit code for walls that cannot be put up; the reason is the last line of stderr."""
_NO_RANDOM_ADDRESSES = 0x0040000
MAX_INODES = 100_000
"""Most files and folders of an overlay's changes."""


class Room(NamedTuple):
    """What the first process behind the walls knows: the kernel, its specification, and whether it
    runs as root, without a user namespace."""

    libc: CDLL
    machine: isolation.Machine
    spec: dict[str, Any]
    as_root: bool


def behind_namespaces(spec: dict[str, Any], inside: Callable[[Room], NoReturn]) -> int:
    """Put up the walls of a specification and do `inside` as their first process, still with all
    its rights; returns its exit code."""
    libc = isolation.kernel()
    room = Room(libc, isolation.this_machine(), spec, runs_as_root())
    try:
        if room.as_root:  # without a user namespace: the tree belongs to NOBODY
            _enter_as_root(libc)
        else:
            isolation.enter_namespaces(libc)
    except OSError as error:
        return refuse_walls(f"namespaces: {error}")
    process = os.fork()
    if process:
        return exit_code(os.waitpid(process, 0)[1])
    isolation.die_with_parent(libc)
    try:
        if spec.get("loopback"):
            isolation.raise_loopback()
        _make_root(room)
    except OSError as error:
        os._exit(refuse_walls(f"root folder: {error}"))
    inside(room)


def runs_as_root() -> bool:
    """Whether the walls are put up without a user namespace."""
    return os.getuid() == 0


def run_in_room(room: Room) -> NoReturn:
    """Run the program of a specification to its end."""
    program = os.fork()
    if not program:
        _become_program(room)
    while True:  # the first process of a namespace inherits the orphans
        ended, status = os.wait()
        if ended == program:
            os._exit(exit_code(status))


def _enter_as_root(libc: CDLL) -> None:
    flags = (
        isolation.CLONE_NEWNET
        | isolation.CLONE_NEWNS
        | isolation.CLONE_NEWPID
        | isolation.CLONE_NEWIPC
        | isolation.CLONE_NEWUTS
    )
    if libc.unshare(flags):
        raise OSError("unshare failed")


def _make_root(room: Room) -> None:
    """Build the new root and enter it; nothing of the old one stays reachable."""
    libc, spec, owner = room.libc, room.spec, NOBODY if room.as_root else None
    _mount(libc, None, "/", flags=isolation.MS_REC | isolation.MS_PRIVATE)
    # what is bound may lie below ROOM: hold on to it before ROOM is covered
    held = [(os.open(outside, os.O_PATH), inside) for outside, inside in spec["read_only"]]
    devices = [(os.open(f"/dev/{name}", os.O_PATH), name) for name in _DEVICES]
    tree = os.open(spec["tree"], os.O_PATH) if spec["tree"] else None
    options = f"size={spec['tree_mb']}m,mode=755"
    _mount(libc, "tmpfs", ROOM, kind="tmpfs", options=options, flags=isolation.MS_NOSUID)
    for name in ("proc", "dev", "tmp", "repo", "usr"):
        os.mkdir(f"{ROOM}/{name}", 0o755)
    for name, target in LINKS.items():
        os.symlink(target, f"{ROOM}/{name}")
    for descriptor, inside in held:
        _bind(libc, descriptor, ROOM + inside, read_only=True)
    for descriptor, name in devices:
        _bind(libc, descriptor, f"{ROOM}/dev/{name}", read_only=False)
    for path in spec["hidden"]:
        if os.path.isdir(ROOM + path):
            _mount(libc, "tmpfs", ROOM + path, kind="tmpfs", flags=isolation.MS_RDONLY)
        elif os.path.exists(ROOM + path):
            _mount(libc, f"{ROOM}/dev/null", ROOM + path, flags=MS_BIND)
    if tree is not None:
        _place_tree(libc, tree, spec, owner=owner)
        os.close(tree)
    for descriptor, _ in (*held, *devices):
        os.close(descriptor)
    os.mkdir(f"{ROOM}/dev/shm")
    for name in ("tmp", "dev/shm"):
        os.chmod(f"{ROOM}/{name}", 0o1777)
    _mount(libc, "proc", f"{ROOM}/proc", kind="proc", flags=isolation.MS_NOSUID)
    os.chdir(ROOM)
    if libc.syscall(room.machine.pivot_root, b".", b"."):
        raise OSError("pivot_root failed")
    if libc.umount2(b".", isolation.MNT_DETACH):
        raise OSError("the old root cannot be let go of")
    os.chdir("/")


def _bind(libc: CDLL, descriptor: int, inside: str, *, read_only: bool) -> None:
    source = f"/proc/self/fd/{descriptor}"
    if os.path.isdir(source):
        os.makedirs(inside, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        os.close(os.open(inside, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(libc, source, inside, flags=MS_BIND)
    if read_only:
        flags = MS_BIND | isolation.MS_REMOUNT | isolation.MS_RDONLY | isolation.MS_NOSUID
        _mount(libc, None, inside, flags=flags)


def _mount(
    libc: CDLL, source: str | None, target: str, *, kind: str = "", options: str = "", flags: int
) -> None:
    code = libc.mount(
        (source or "none").encode(),
        target.encode(),
        kind.encode() or None,
        flags,
        options.encode() or None,
    )
    if code:
        raise OSError(f"mount {kind or 'bind'} at {target.removeprefix(ROOM) or '/'} failed")


def _place_tree(libc: CDLL, tree: int, spec: dict[str, Any], *, owner: int | None) -> None:
    """Put the tree at /repo: an overlay over the host's folder where the kernel has one and the
    specification wants it, else a copy; then the files that the specification replaces."""
    repo = f"{ROOM}/repo"
    if not (spec.get("overlay") and _mount_overlay(libc, tree, repo, spec, owner=owner)):
        import shutil  # it takes milliseconds, and an overlay does without

        shutil.copytree(f"/proc/self/fd/{tree}", repo, symlinks=True, dirs_exist_ok=True)
        _give_away(repo, owner)
    replace_files(repo, spec.get("files", {}), owner=owner)


def replace_files(repo: str, files: dict[str, str], *, owner: int | None) -> None:
    """Write the files that a specification replaces in its tree."""
    for path, text in files.items():
        with open(f"{repo}/{path}", "w", newline="", encoding="utf-8") as file:
            file.write(text)
            if owner is not None:
                os.fchown(file.fileno(), owner, owner)


def _mount_overlay(
    libc: CDLL, tree: int, repo: str, spec: dict[str, Any], *, owner: int | None
) -> bool:
    """Whether an overlay with its changes in memory could be mounted. The host's folder is named by
    a descriptor: a program can read the options of its mounts."""
    options = f"size={spec['tree_mb']}m,nr_inodes={MAX_INODES},mode=755"
    _mount(libc, "tmpfs", repo, kind="tmpfs", options=options, flags=isolation.MS_NOSUID)
    layers: list[int] = []
    for name in ("upper", "work"):
        os.mkdir(f"{repo}/{name}")
        if owner is not None:
            os.chown(f"{repo}/{name}", owner, owner)
        layers.append(os.open(f"{repo}/{name}", os.O_PATH))
    upper, work = (f"/proc/self/fd/{descriptor}" for descriptor in layers)
    options = f"lowerdir=/proc/self/fd/{tree},upperdir={upper},workdir={work}"
    try:
        if owner is None:
            options += ",userxattr"
        _mount(libc, "overlay", repo, kind="overlay", options=options, flags=isolation.MS_NOSUID)
    except OSError:
        if libc.umount2(repo.encode(), isolation.MNT_DETACH):
            raise
        return False
    finally:
        for descriptor in layers:
            os.close(descriptor)
    return True


def _give_away(folder: str, owner: int | None) -> None:
    """Make a copied tree writable for the program, whoever owned its files."""
    for parent, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            path = os.path.join(parent, name)
            if os.path.islink(path):
                continue
            if owner is not None:
                os.chown(path, owner, owner)
            os.chmod(path, (os.stat(path).st_mode & 0o777) | 0o600)


def _become_program(room: Room) -> NoReturn:
    """Become the program of the specification."""
    program, env = room.spec["program"], room.spec["env"]
    try:
        set_limits(room.spec)
        drop_rights(room)
        fix_addresses(room)
        os.chdir(room.spec["cwd"])
        os.execve(program[0], program, env)
    except OSError as error:
        os._exit(refuse_walls(f"{program[0]}: {error}"))


def set_limits(spec: dict[str, Any]) -> None:
    """Put the limits of a specification in force for this process."""
    for limit, value in (
        (resource.RLIMIT_CPU, spec["cpu_s"]),
        (resource.RLIMIT_AS, spec["memory_mb"] << 20),
        (resource.RLIMIT_FSIZE, spec["file_mb"] << 20),
        (resource.RLIMIT_NPROC, spec["processes"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))


def drop_rights(room: Room) -> None:
    """Give up every right, for good."""
    try:
        with open("/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as file:
            file.write("0")  # of this namespace's user: no nested namespace, no mounts
    except OSError:
        pass  # as root there is no namespace of our own; NOBODY has no capability to mount with
    if room.as_root:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    isolation.no_new_privileges(room.libc)
    isolation.drop_capabilities(room.libc, room.machine)


def fix_addresses(room: Room) -> None:
    """Give the next program the same addresses every time: hash(None) is one, until Python 3.12,
    and with it the order of sets, which names tests."""
    room.libc.personality(_NO_RANDOM_ADDRESSES)


def exit_code(status: int) -> int:
    """The exit code of a status that `wait` gave, or 128 + the signal's number."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def refuse_walls(reason: str) -> int:
    """Say why the walls cannot be put up; returns the exit code for it."""
    sys.stderr.write(f"sandbox: {reason}\n")
    sys.stderr.flush()
    return REFUSED
