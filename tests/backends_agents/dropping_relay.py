"""The relay of an agent program (serve/relay.py) on a bad line: it drops one answer half-way.

    python -I -S FOLDER/dropping_relay.py SOCKET PORT COMMAND...    with relay.py in FOLDER, too

Every answer to a POST is held until it is whole, written to FOLDER/answers, and passed on; of
answer number DROPPED only the first half, and then the connection is cut.
"""

from __future__ import annotations

import importlib.util
import itertools
import socket
import sys
import threading
from pathlib import Path
from typing import Any

DROPPED = 1
"""The number of the answer that is cut; 0 is the first."""
FOLDER = Path(__file__).resolve().parent
numbers = itertools.count()
lock = threading.Lock()


def is_whole(raw: bytes) -> bool:
    """Whether an answer has come whole; a stream ends with its connection."""
    head, _, body = raw.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return len(body) >= int(value)
    return False


def one_answer(endpoint: socket.socket) -> bytes:
    """What the endpoint says to one request."""
    raw = b""
    while not is_whole(raw) and (data := endpoint.recv(1 << 16)):
        raw += data
    return raw


def one_request(client: socket.socket) -> bytes:
    """What a client asks; b"" once it has gone."""
    raw = b""
    while not is_whole(raw):
        if raw[:4] in (b"GET ", b"HEAD") and b"\r\n\r\n" in raw:
            break
        data = client.recv(1 << 16)
        if not data:
            return b""
        raw += data
    return raw


def talk(client: socket.socket, path: str) -> None:
    """Pass one connection's requests on, one after the other."""
    with client, socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.connect(path)
        while request := one_request(client):
            endpoint.sendall(request)
            answer = one_answer(endpoint)
            number = None
            if request.startswith(b"POST ") and b"/count_tokens" not in request.split(b"\r\n")[0]:
                with lock:
                    number = next(numbers)
                (FOLDER / "answers" / f"{number:02d}").write_bytes(answer)
            if number == DROPPED:
                client.sendall(answer[: len(answer) // 2])
                return
            client.sendall(answer)
            if not is_whole(answer):
                return


def accept_all(listener: socket.socket, path: str) -> None:
    """Connect every client to the endpoint."""
    while True:
        client, _ = listener.accept()
        threading.Thread(target=talk, args=(client, path), daemon=True).start()


if __name__ == "__main__":
    (FOLDER / "answers").mkdir()
    spec = importlib.util.spec_from_file_location("relay", FOLDER / "relay.py")
    assert spec is not None and spec.loader is not None
    relay: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(relay)
    relay.accept_all = accept_all
    sys.exit(relay.run_relayed(*sys.argv[1:]))
