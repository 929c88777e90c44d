"""The Linux kernel's means to isolate a process: namespaces, an empty root, Landlock, limits, and a
system call filter.

Standard library only: this runs in the sandbox's worker, which starts without site-packages. Each
function either puts its layer in force or raises OSError; the caller decides which layers it needs.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import socket
import struct
from typing import NamedTuple

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    16384,
    1 << 18,
)
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
SECCOMP_KILL_PROCESS, SECCOMP_ERRNO_EPERM, SECCOMP_ALLOW = 0x80000000, 0x00050001, 0x7FFF0000

# A pure computation needs memory, its own signals, clocks, and the file descriptors that it already
# holds. There is no open, no socket, no clone, no kill, no ioctl, no prctl: each gets EPERM.
ALLOWED: dict[str, tuple[int, int]] = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "sched_yield": (24, 124),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113),
    "gettimeofday": (96, 169),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "futex": (202, 98),
    "getrandom": (318, 278),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
"""System calls that pass the filter, with their numbers on x86_64 and aarch64."""


_SET_FLAGS, _UP = 0x8914, 1


class Machine(NamedTuple):
    """System call numbers of one processor family; `allowed` are those that pass the filter.

    Not a dataclass: every fork copies the page tables of everything that the worker has imported,
    and dataclasses import half the standard library.
    """

    audit_arch: int
    pivot_root: int
    capset: int
    allowed: tuple[int, ...]


MACHINES: dict[str, Machine] = {
    "x86_64": Machine(
        audit_arch=0xC000003E,
        pivot_root=155,
        capset=126,
        allowed=tuple(x86 for x86, _ in ALLOWED.values()),
    ),
    "aarch64": Machine(
        audit_arch=0xC00000B7,
        pivot_root=41,
        capset=91,
        allowed=tuple(arm for _, arm in ALLOWED.values()),
    ),
}
"""Processors whose system call numbers are known."""


def this_machine() -> Machine:
    """The numbers of this processor; raises OSError if they are not known."""
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        raise OSError(
            f"the system call numbers of {os.uname().machine or 'this processor'} are not known"
        )
    return machine


def kernel() -> ctypes.CDLL:
    """The C library, for calls that Python has no name for."""
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def no_new_privileges(libc: ctypes.CDLL) -> None:
    """Make sure that no program started from here gains rights, as a filter without root
    requires."""
    _check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(NO_NEW_PRIVS)")


def die_with_parent(libc: ctypes.CDLL) -> None:
    """Get SIGKILL when the parent ends. Not for a parent with threads: the signal comes when the
    thread that forked ends."""
    _check(libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl(PDEATHSIG)")


def enter_namespaces(libc: ctypes.CDLL) -> tuple[str, ...]:
    """Enter new namespaces for the network, mounts, processes, IPC and host name; the next fork is
    process 1 in them.

    A user namespace makes this possible without root; if it is forbidden, root can do without one.
    """
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
    names = ("network", "mount", "pid", "ipc", "uts")
    if libc.unshare(CLONE_NEWUSER | flags) == 0:
        for path, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {uid} 1"),
            ("gid_map", f"0 {gid} 1"),
        ):
            with open(f"/proc/self/{path}", "w", encoding="ascii") as file:
                file.write(text)
        return ("user", *names)
    _check(libc.unshare(flags), "unshare")
    return names


def raise_loopback() -> None:
    """Switch on 127.0.0.1 in this process's network namespace (netdevice(7), SIOCSIFFLAGS)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))


def enter_empty_root(libc: ctypes.CDLL, machine: Machine) -> None:
    """Replace the root of the file system by an empty, read-only one; nothing of the old root stays
    reachable."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount private")
    _check(libc.mount(b"none", b"/tmp", b"tmpfs", flags, b"size=4k,nr_inodes=1"), "mount tmpfs")
    os.chdir("/tmp")
    _check(libc.syscall(machine.pivot_root, b".", b"."), "pivot_root")
    _check(libc.umount2(b".", MNT_DETACH), "umount the old root")
    os.chdir("/")
    _check(
        libc.mount(b"none", b"/", None, MS_REMOUNT | MS_RDONLY | flags, None), "remount read-only"
    )


def landlock_abi(libc: ctypes.CDLL) -> int:
    """The version of this kernel's Landlock; 0 if it has none."""
    return max(0, int(libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1)))


def landlock(libc: ctypes.CDLL, abi: int) -> None:
    """Forbid every file access that can be named, TCP (from version 4), and signals to processes
    outside (from version 6)."""
    files = (
        0x1FFF
        | (0x2000 if abi >= 2 else 0)
        | (0x4000 if abi >= 3 else 0)
        | (0x8000 if abi >= 5 else 0)
    )
    fields = [files] + ([3] if abi >= 4 else []) + ([3] if abi >= 6 else [])
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    ruleset = _check(
        libc.syscall(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0),
        "landlock_create_ruleset",
    )
    try:
        _check(libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def drop_capabilities(libc: ctypes.CDLL, machine: Machine) -> None:
    """Give up every right of root, in whatever user namespace this is."""
    header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)
    _check(libc.syscall(machine.capset, header, nothing), "capset")


def limit(*, cpu_s: int, memory_bytes: int) -> None:
    """Limit processor time and address space, and forbid files to grow, new processes and core
    dumps."""
    for resource_id, value in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(resource_id, (value, value))


class SyscallFilter:
    """The seccomp program: the listed system calls pass, another processor mode is killed,
    everything else gets EPERM.

    Built once in the worker; `install` puts it in force for the calling process, for good.
    """

    def __init__(self, machine: Machine) -> None:
        def op(code: int, jump_true: int, jump_false: int, value: int) -> bytes:
            return struct.pack("HBBI", code, jump_true, jump_false, value)

        load, equal, give = 0x20, 0x15, 0x06
        count = len(machine.allowed)
        program = [
            op(load, 0, 0, 4),
            op(equal, 1, 0, machine.audit_arch),
            op(give, 0, 0, SECCOMP_KILL_PROCESS),
            op(load, 0, 0, 0),
        ]
        program += [op(equal, count - i, 0, number) for i, number in enumerate(machine.allowed)]
        program += [op(give, 0, 0, SECCOMP_ERRNO_EPERM), op(give, 0, 0, SECCOMP_ALLOW)]
        self._code = ctypes.create_string_buffer(b"".join(program))
        self._program = ctypes.create_string_buffer(
            struct.pack("HxxxxxxQ", len(program), ctypes.addressof(self._code))
        )
        self.count = count

    def install(self, libc: ctypes.CDLL) -> None:
        """From here on this process can only compute and use the descriptors it holds.
        `no_new_privileges` comes first."""
        _check(
            libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, self._program, 0, 0), "prctl(SECCOMP)"
        )
