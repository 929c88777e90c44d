"""Run a command where the only network is one address, which leads to the endpoint.

    python -I -S relay.py SOCKET PORT COMMAND...            in a network namespace of its own
    python -I -S relay.py --inside SOCKET PORT COMMAND...   in the one of a sandbox

The command runs in a network namespace of its own, with nothing in it but loopback. Connections to
127.0.0.1:PORT there are passed on to the Unix socket of the endpoint; there is no route to anything
else. Exits with the command's exit code, or with NO_NAMESPACE if there can be none. Standard
library only, and nothing of this package: it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading

INSIDE = "--inside"
NO_NAMESPACE = 93
"""Exit code: this machine gives no network namespace."""
_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_DIE_WITH_PARENT, _SIGKILL = 1, 9
_SET_FLAGS, _UP = 0x8914, 1


def enter_network_namespace() -> None:
    """Leave the host's network; raises OSError if that is forbidden."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_DIE_WITH_PARENT, _SIGKILL, 0, 0, 0)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_NEWNET) != 0:
        if libc.unshare(_NEWUSER | _NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"unshare: {os.strerror(number)}")
        for path, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{path}", "w", encoding="ascii") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))


def pass_on(source: socket.socket, target: socket.socket) -> None:
    """Copy one direction of a connection until it ends."""
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    for end, side in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            end.shutdown(side)


def accept_all(listener: socket.socket, path: str) -> None:
    """Connect every client to the endpoint."""
    while True:
        client, _ = listener.accept()
        endpoint = socket.socket(socket.AF_UNIX)
        try:
            endpoint.connect(path)
        except OSError:
            client.close()
            continue
        for ends in ((client, endpoint), (endpoint, client)):
            threading.Thread(target=pass_on, args=ends, daemon=True).start()


def run_relayed(path: str, port: str, *command: str) -> int:
    """Run the command; returns its exit code."""
    try:
        if path == INSIDE:
            path, port, command = port, command[0], command[1:]
        else:
            enter_network_namespace()
    except OSError as error:
        print(f"no network namespace: {error}", file=sys.stderr)
        return NO_NAMESPACE
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=64)
    threading.Thread(target=accept_all, args=(listener, path), daemon=True).start()
    try:
        return subprocess.call(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]}: {error}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(run_relayed(*sys.argv[1:]))
