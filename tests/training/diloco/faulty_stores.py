"""Stores that die, damage, hold back or lie at a chosen point of the exchange."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import obstore

from composer_replication.training.diloco.blob_store import BlobStore
from composer_replication.training.diloco.round_records import commit_key


class PassingStore:
    """A store that hands everything on to `inner`, which may be replaced at any time."""

    def __init__(self, inner: BlobStore) -> None:
        self.inner, self.traffic = inner, inner.traffic

    def create(self, key: str, data: bytes) -> bool:
        return self.inner.create(key, data)

    def get(self, key: str) -> bytes | None:
        return self.inner.get(key)

    def list(self, prefix: str) -> Sequence[str]:
        return self.inner.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self.inner.delete(keys)


def kill_me() -> None:
    """What `kill -9` does to this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def is_first(token: Path | None) -> bool:
    """Whether nobody else has taken this token, e.g. so that one of three replicas is struck."""
    if token is None:
        return True
    try:
        token.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class DyingStore(PassingStore):
    """A store whose process is killed at a point of the protocol, e.g. "before /offer/"; of several
    with one `token` only the first to get there."""

    def __init__(self, inner: BlobStore, point: str, *, token: Path | None = None) -> None:
        super().__init__(inner)
        self.when, self.what, number = [*point.split(), "1"][:3]
        self.left, self.token = int(number), token

    def create(self, key: str, data: bytes) -> bool:
        hit = self.what in key
        self.left -= hit
        if hit and self.left == 0 and self.when == "before" and is_first(self.token):
            kill_me()
        won = self.inner.create(key, data)
        if hit and self.left == 0 and self.when == "after" and is_first(self.token):
            kill_me()
        return won


class AbortingStore(PassingStore):
    """A store without whole uploads: half of the move is there when the process dies."""

    def create(self, key: str, data: bytes) -> bool:
        if "/delta/" in key:
            self.inner.create(key, data[: len(data) // 2])
            kill_me()
        return self.inner.create(key, data)


class DamagingStore(PassingStore):
    """A store that changes a byte of what is read, `times` times."""

    def __init__(self, inner: BlobStore, *, what: str, times: int) -> None:
        super().__init__(inner)
        self.what, self.times, self.damaged = what, times, 0

    def get(self, key: str) -> bytes | None:
        data = self.inner.get(key)
        if data is not None and self.what in key and self.times > 0:
            self.times, self.damaged = self.times - 1, self.damaged + 1
            return data[:-1] + bytes([data[-1] ^ 1])
        return data


class LateStore(PassingStore):
    """A store that keeps an offer back until its round has ended without it."""

    def create(self, key: str, data: bytes) -> bool:
        if "/offer/" in key:
            commit = commit_key(int(key.split("/")[1]))
            while self.inner.get(commit) is None:
                time.sleep(0.01)
        return self.inner.create(key, data)


@contextlib.contextmanager
def answered_wrongly(
    call: str, what: str, error: Exception, *, stored: bool = False, token: Path | None = None
) -> Iterator[list[str]]:
    """obstore's `call` ("put" or "get") fails once on a key with `what` in it, although the store
    may have `stored` it; yields the keys that were asked for.

        with answered_wrongly("put", "commit.json", AlreadyExistsError("409")) as keys: ...
    """
    real, keys, struck = getattr(obstore, call), list[str](), list[str]()

    def replaced(store: Any, key: str, *rest: Any, **options: Any) -> Any:
        keys.append(key)
        if not struck and what in key and is_first(token):
            struck.append(key)
            if stored:
                real(store, key, *rest, **options)
            raise error
        return real(store, key, *rest, **options)

    with mock.patch.object(obstore, call, replaced):
        yield keys
