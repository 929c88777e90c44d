"""A store of immutable blobs with create-if-absent, on a disk, in memory or in a bucket.

    store = open_store("s3://bucket/run")      # file:///path, memory:///, gs://, az://
    store.create("rounds/000003/commit.json", data)     # True: the key now holds `data`

Replicas agree by `create`: of several writers of one key exactly one gets True. An answer alone
cannot tell: a store that says "exists already" may have kept nothing (S3's 409), or have kept these
very bytes in an attempt whose reply was lost. So the blob is read back: absent -> try again, the
same bytes -> True, others -> False. The same after a transport failure, as the client library
retries reads, but not a conditional write, which is not idempotent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from composer_replication.core.errors import ConfigError, SyncError, first_line, need
from composer_replication.training.diloco.clock import Clock

SCHEMES = ("file", "memory", "s3", "gs", "az")
_TRIES = 8


@dataclass(slots=True)
class Traffic:
    """Requests and payload bytes so far."""

    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def copy(self) -> Traffic:
        """The counts now."""
        return replace(self)

    def since(self, before: Traffic) -> Traffic:
        """What was added after `before`."""
        return Traffic(*(getattr(self, f.name) - getattr(before, f.name) for f in fields(self)))


class BlobStore(Protocol):
    """What the exchange needs of a store; keys are never overwritten."""

    traffic: Traffic

    def create(self, key: str, data: bytes) -> bool:
        """Write a blob unless there is one; whether the blob that stands there is this one."""
        ...

    def get(self, key: str) -> bytes | None:
        """A blob, or None if there is none."""
        ...

    def list(self, prefix: str) -> Sequence[str]:
        """The keys below a folder, sorted."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Remove blobs that nobody will read again; a failure is not an error."""
        ...


@dataclass(slots=True)
class ObjectStore:
    """A BlobStore on one of obstore's stores, e.g. ObjectStore(MemoryStore(), url="memory:///")."""

    store: Any
    url: str = ""
    clock: Clock = field(default_factory=Clock)
    traffic: Traffic = field(default_factory=Traffic)
    _read_back: tuple[str, bytes] = ("", b"")
    """What stands where `create` could not write: not read twice, as nothing is overwritten."""

    def create(self, key: str, data: bytes) -> bool:
        """Write a blob unless there is one; whether the blob that stands there is this one."""
        obstore = need("obstore", extra="diloco")
        for attempt in range(_TRIES):
            self.traffic.puts += 1
            self.traffic.bytes_up += len(data)
            try:
                with self._explained("written", key):
                    obstore.put(self.store, key, data, mode="create")
                return True
            except obstore.exceptions.AlreadyExistsError:
                found = self.get(key)
            except SyncError as error:
                broken = isinstance(error.__cause__, obstore.exceptions.GenericError)
                if not broken or attempt == _TRIES - 1:
                    raise
                found = self.get(key)  # waits for a store that cannot be reached
            if found is not None:
                self._read_back = (key, found)
                return found == data
            self.clock.sleep(0.01 * 2**attempt)
        raise SyncError(
            f"the store says that {key} exists, and has none: {_TRIES} times",
            where=self.url,
            fix="use a store whose conditional writes work (S3, GCS, Azure, a local disk)",
        )

    def get(self, key: str) -> bytes | None:
        """A blob, or None if there is none."""
        obstore = need("obstore", extra="diloco")
        (known, data), self._read_back = self._read_back, ("", b"")
        if known == key:
            return data
        self.traffic.gets += 1
        try:
            with self._explained("read", key):
                data = obstore.get(self.store, key).bytes().to_bytes()
        except FileNotFoundError:
            return None
        self.traffic.bytes_down += len(data)
        return data

    def list(self, prefix: str) -> Sequence[str]:
        """The keys below a folder, sorted."""
        obstore = need("obstore", extra="diloco")
        self.traffic.lists += 1
        with self._explained("listed", prefix):
            return sorted(o["path"] for page in obstore.list(self.store, prefix) for o in page)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove blobs that nobody will read again; a failure is not an error."""
        obstore = need("obstore", extra="diloco")
        for key in keys:
            self.traffic.deletes += 1
            with contextlib.suppress(obstore.exceptions.BaseError, OSError):
                obstore.delete(self.store, key)

    @contextlib.contextmanager
    def _explained(self, verb: str, key: str) -> Iterator[None]:
        """Turn a store's failure into a SyncError; existing and missing blobs are no failures."""
        obstore = need("obstore", extra="diloco")
        try:
            yield
        except obstore.exceptions.AlreadyExistsError:
            raise
        except (obstore.exceptions.BaseError, OSError) as error:
            if isinstance(error, FileNotFoundError) and verb == "read":
                raise  # no such blob; elsewhere it is the bucket that is missing
            denied = isinstance(
                error,
                obstore.exceptions.PermissionDeniedError
                | obstore.exceptions.UnauthenticatedError
                | PermissionError,
            )
            fix = "check that the store can be reached; then start the replica again"
            if denied:
                fix = "give this process the right to list, read and create there"
            raise SyncError(
                f"{key or 'the store'} could not be {verb}: {first_line(error)[:300]}",
                where=self.url,
                fix=fix,
            ) from error


def open_store(url: str, *, clock: Clock | None = None) -> ObjectStore:
    """The store that a URL names; keys are below its path.

    Credentials and endpoint come from the environment, as the provider's own tools read them
    (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, ...).
    """
    scheme = check_url(url)
    obstore = need("obstore", extra="diloco")
    from obstore.store import LocalStore, from_url

    if scheme == "file":
        path = Path(url.removeprefix("file://"))
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SyncError(
                f"the folder could not be made: {error.strerror}",
                where=url,
                fix="name a folder that this process may write to",
            ) from error
        return ObjectStore(LocalStore(path), url=url, clock=clock or Clock())
    try:
        store = from_url(url)
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise ConfigError(
            f"the store cannot be opened: {first_line(error)[:300]}",
            where=url,
            fix="set what the provider's tools read, e.g. AZURE_STORAGE_ACCOUNT_NAME for az://",
        ) from error
    return ObjectStore(store, url=url, clock=clock or Clock())


def check_url(url: str) -> str:
    """The scheme of a store's URL; raises ConfigError for one that no store has.

    >>> check_url("s3://bucket/run")
    's3'
    """
    parts = urlsplit(url)
    named = bool(parts.netloc) or parts.scheme == "memory"
    if parts.scheme == "file":
        named = not parts.netloc and parts.path.startswith("/")
    if parts.scheme not in SCHEMES or not named:
        raise ConfigError(
            f"no store has the address {url!r}",
            where="train.sync.url",
            fix="use file:///absolute/path, s3://bucket/path, gs://bucket/path or az://container/path",
        )
    return parts.scheme
