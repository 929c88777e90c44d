"""The inside of a TreeSandbox: put up the walls, then run one program behind them.

Standard library only, started as `python -I -S -B`; the specification is one JSON object, read
from a descriptor, because a program can see the arguments of the first process:

    {"program": ["/usr/bin/python3", "-c", "..."], "env": {...}, "cwd": "/repo",
     "read_only": [["/outside", "/inside"], ...], "hidden": ["/inside/pip", ...],
     "tree": "/outside/tree" or null, "tree_mb": 256,
     "cpu_s": 60, "memory_mb": 2048, "processes": 256, "file_mb": 64}

The program gets a copy of `tree` at /repo, in memory, which it may change and which is gone with
it. It has no network, sees none of the host's files but `read_only`, and when it ends, every
process that it started ends too: the first process of a PID namespace takes the others along.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from ctypes import CDLL
from typing import Any

from composer_replication.core import isolation

NOBODY = 65534
"""User and group of the program if this runs as root: root is exempt from RLIMIT_NPROC."""
ROOM = "/tmp"
"""Where the new root is put together, in a mount namespace of its own."""
MS_BIND = 4096
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
REFUSED = 125
"""The exit code for walls that cannot be put up; the reason is the last line of stderr."""


def run_behind_walls(descriptor: int) -> int:
    """Run the program of a specification; returns its exit code, or 128 + the signal's number."""
    with open(descriptor, encoding="utf-8") as file:
        spec = json.load(file)
    libc = isolation.kernel()
    machine = isolation.this_machine()
    as_root = os.getuid() == 0
    try:
        if as_root:  # without a user namespace: the tree's copy belongs to NOBODY
            _enter_as_root(libc)
        else:
            isolation.enter_namespaces(libc)
    except OSError as error:
        return _refuse(f"namespaces: {error}")
    process = os.fork()
    if process:
        return _exit_code(os.waitpid(process, 0)[1])
    isolation.die_with_parent(libc)
    try:
        _make_root(libc, machine, spec, owner=NOBODY if as_root else None)
    except OSError as error:
        os._exit(_refuse(f"root folder: {error}"))
    program = os.fork()
    if not program:
        _run(libc, machine, spec, as_root=as_root)
    while True:  # the first process of a namespace inherits the orphans
        ended, status = os.wait()
        if ended == program:
            os._exit(_exit_code(status))


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


def _make_root(
    libc: CDLL, machine: isolation.Machine, spec: dict[str, Any], *, owner: int | None
) -> None:
    """Build the new root and enter it; nothing of the old one stays reachable."""
    _mount(libc, None, "/", flags=isolation.MS_REC | isolation.MS_PRIVATE)
    # what is bound may lie below ROOM: hold on to it before ROOM is covered
    held = [(os.open(outside, os.O_PATH), inside) for outside, inside in spec["read_only"]]
    devices = [(os.open(f"/dev/{name}", os.O_PATH), name) for name in _DEVICES]
    tree = os.open(spec["tree"], os.O_PATH) if spec["tree"] else None
    options = f"size={spec['tree_mb']}m,mode=755"
    _mount(libc, "tmpfs", ROOM, kind="tmpfs", options=options, flags=isolation.MS_NOSUID)
    for name in ("proc", "dev", "tmp", "repo", "usr"):
        os.mkdir(f"{ROOM}/{name}", 0o755)
    for name, target in _LINKS.items():
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
        shutil.copytree(f"/proc/self/fd/{tree}", f"{ROOM}/repo", symlinks=True, dirs_exist_ok=True)
        _give_away(f"{ROOM}/repo", owner)
        os.close(tree)
    for descriptor, _ in (*held, *devices):
        os.close(descriptor)
    os.mkdir(f"{ROOM}/dev/shm")
    for name in ("tmp", "dev/shm"):
        os.chmod(f"{ROOM}/{name}", 0o1777)
    _mount(libc, "proc", f"{ROOM}/proc", kind="proc", flags=isolation.MS_NOSUID)
    os.chdir(ROOM)
    if libc.syscall(machine.pivot_root, b".", b"."):
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


def _run(libc: CDLL, machine: isolation.Machine, spec: dict[str, Any], *, as_root: bool) -> None:
    """Become the program; never returns."""
    try:
        with open("/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as file:
            file.write("0")  # of this namespace's user: no nested namespace, no mounts
    except OSError:
        pass  # as root there is no namespace of our own; NOBODY has no capability to mount with
    for limit, value in (
        (resource.RLIMIT_CPU, spec["cpu_s"]),
        (resource.RLIMIT_AS, spec["memory_mb"] << 20),
        (resource.RLIMIT_FSIZE, spec["file_mb"] << 20),
        (resource.RLIMIT_NPROC, spec["processes"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    try:
        if as_root:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        isolation.no_new_privileges(libc)
        isolation.drop_capabilities(libc, machine)
        os.chdir(spec["cwd"])
        os.execve(spec["program"][0], spec["program"], spec["env"])
    except OSError as error:
        os._exit(_refuse(f"{spec['program'][0]}: {error}"))


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _refuse(reason: str) -> int:
    sys.stderr.write(f"sandbox: {reason}\n")
    sys.stderr.flush()
    return REFUSED


if __name__ == "__main__":
    sys.exit(run_behind_walls(int(sys.argv[1])))
