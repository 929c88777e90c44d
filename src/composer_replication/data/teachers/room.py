"""Room on the disk for answers that are on their way: taken before they are asked for, used where
the ledger cannot grow.

    room = Room(ledger_path, owner="host:4711:93218417:1f0c9a2e")
    room.make(3 * SLOT_BYTES)                  # OSError where the disk has none: then nothing is asked
    room.keep(record)                          # into blocks that are allocated already; on the disk when it returns
    for old in read_spill_files(ledger_path): old.records()

A file system that writes anew what it overwrites (copy on write) may need a little more than was
taken. A record that was torn by a power cut does not have its checksum and is left out, with those
behind it.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

SLOT_BYTES = 64 * 2**10
"""Taken for each answer beside what its length may need; packed, most answers take a tenth of
it."""
_MAGIC, _DONE = b"answers1", b"answers0"
RELEASED = "-"
"""The owner of a room that its process has let go of with answers in it."""
_HEAD = struct.Struct("<II")
_ENDING = ".room"


class SpillFile:
    """One file of allocated blocks, of one process; see the head of this module."""

    def __init__(self, ledger: Path, *, owner: str) -> None:
        self.path = ledger.with_name(f".{ledger.name}.{owner.rpartition(':')[2]}{_ENDING}")
        self._owner = owner.encode("utf-8")
        self._used = self._size = 0

    @property
    def _begin(self) -> int:
        return len(_MAGIC) + _HEAD.size + len(self._owner)

    def make(self, num_bytes: int) -> None:
        """See to it that records of so many bytes fit behind those that are there; raises OSError
        where the disk has no room."""
        self._used = max(self._used, self._begin)
        if self._size >= self._used + num_bytes:
            return
        size = -(-(self._used + num_bytes) // SLOT_BYTES) * SLOT_BYTES
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _allocate(descriptor, self._size, size)
            if not self._size:
                os.pwrite(
                    descriptor,
                    _MAGIC + _HEAD.pack(len(self._owner), zlib.crc32(self._owner)) + self._owner,
                    0,
                )
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._size = size

    def keep(self, record: bytes) -> None:
        """Write a record behind the others; it is on the disk when this returns. Raises OSError
        where it does not fit."""
        whole = _HEAD.pack(len(record), zlib.crc32(record)) + record
        self.make(len(whole))
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            done = 0
            while done < len(whole):
                done += os.pwrite(descriptor, whole[done:], self._used + done)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._used += len(whole)

    def close(self) -> None:
        """Give the blocks back, or, where there are records in them, leave them for whoever opens
        the ledger next."""
        if self._used <= self._begin:
            self.path.unlink(missing_ok=True)
            return
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            os.pwrite(descriptor, _DONE, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_spill_files(ledger: Path) -> Iterator[tuple[Path, str, list[bytes]]]:
    """(file, owner, records) of every room beside a ledger; the owner is "" where it was not begun,
    RELEASED where it was let go of."""
    for path in sorted(ledger.parent.glob(f".{ledger.name}.*{_ENDING}")):
        raw = path.read_bytes()
        owner, at = "", len(_MAGIC)
        if raw.startswith((_MAGIC, _DONE)) and (first := _record(raw, at)) is not None:
            owner = first.decode("utf-8", "replace") if raw.startswith(_MAGIC) else RELEASED
            at += _HEAD.size + len(first)
        records: list[bytes] = []
        while owner and (record := _record(raw, at)):
            records.append(record)
            at += _HEAD.size + len(record)
        yield path, owner, records


def _record(raw: bytes, at: int) -> bytes | None:
    """The record that begins at a place, or None where there is no whole one."""
    if at + _HEAD.size > len(raw):
        return None
    size, checksum = _HEAD.unpack_from(raw, at)
    record = raw[at + _HEAD.size : at + _HEAD.size + size]
    return record if size and len(record) == size and zlib.crc32(record) == checksum else None


def _allocate(descriptor: int, begin: int, end: int) -> None:
    """Blocks up to `end`; where the system cannot allocate, zeros are written."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, begin, end - begin)
        return
    zeros = bytes(SLOT_BYTES)
    for at in range(begin, end, SLOT_BYTES):
        os.pwrite(descriptor, zeros[: end - at], at)
