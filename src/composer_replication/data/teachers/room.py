"""Preallocated disk space for answers in flight, used if the ledger cannot grow.

    spill = SpillFile(ledger_path, owner="host:4711:93218417:1f0c9a2e")
    spill.reserve(3 * SLOT_BYTES)      # OSError if the disk is full: then nothing is asked
    spill.append(record)               # into the allocated blocks; on disk when it returns
    for path, owner, records in read_spill_files(ledger_path): ...

A copy-on-write file system may need a little more than was reserved. A record that was torn by a
power cut does not match its checksum and is left out, with those after it.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

SLOT_BYTES = 64 * 2**10
"""Reserved for each answer besides what its length may need; compressed, most take a tenth of
it."""
_MAGIC, _MAGIC_RELEASED = b"answers1", b"answers0"
RELEASED = "-"
"""The owner of a spill file that its process closed with answers in it."""
_RECORD_HEAD = struct.Struct("<II")
_ENDING = ".room"


class SpillFile:
    """One process's file of allocated blocks; see the head of this module."""

    def __init__(self, ledger: Path, *, owner: str) -> None:
        self.path = ledger.with_name(f".{ledger.name}.{owner.rpartition(':')[2]}{_ENDING}")
        self._owner = owner.encode("utf-8")
        self._used = self._size = 0

    @property
    def _header_size(self) -> int:
        return len(_MAGIC) + _RECORD_HEAD.size + len(self._owner)

    def reserve(self, num_bytes: int) -> None:
        """Allocate blocks for records of so many more bytes; raises OSError if the disk is full."""
        self._used = max(self._used, self._header_size)
        if self._size >= self._used + num_bytes:
            return
        size = -(-(self._used + num_bytes) // SLOT_BYTES) * SLOT_BYTES
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _allocate(descriptor, self._size, size)
            if not self._size:
                os.pwrite(
                    descriptor,
                    _MAGIC
                    + _RECORD_HEAD.pack(len(self._owner), zlib.crc32(self._owner))
                    + self._owner,
                    0,
                )
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._size = size

    def append(self, record: bytes) -> None:
        """Write a record after the others; it is on disk when this returns. Raises OSError."""
        framed = _RECORD_HEAD.pack(len(record), zlib.crc32(record)) + record
        self.reserve(len(framed))
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            num_written = 0
            while num_written < len(framed):
                num_written += os.pwrite(descriptor, framed[num_written:], self._used + num_written)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._used += len(framed)

    def close(self) -> None:
        """Remove the file, or leave it for the next opener of the ledger if it holds records."""
        if self._used <= self._header_size:
            self.path.unlink(missing_ok=True)
            return
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            os.pwrite(descriptor, _MAGIC_RELEASED, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_spill_files(ledger: Path) -> Iterator[tuple[Path, str, list[bytes]]]:
    """Yield (path, owner, records) of every spill file beside a ledger.

    The owner is "" if the file has no complete header, RELEASED if its process closed it.
    """
    for path in sorted(ledger.parent.glob(f".{ledger.name}.*{_ENDING}")):
        raw = path.read_bytes()
        owner, at = "", len(_MAGIC)
        if raw.startswith((_MAGIC, _MAGIC_RELEASED)) and (header := _record(raw, at)) is not None:
            owner = header.decode("utf-8", "replace") if raw.startswith(_MAGIC) else RELEASED
            at += _RECORD_HEAD.size + len(header)
        records: list[bytes] = []
        while owner and (record := _record(raw, at)):
            records.append(record)
            at += _RECORD_HEAD.size + len(record)
        yield path, owner, records


def _record(raw: bytes, at: int) -> bytes | None:
    """Return the record at an offset, or None if there is no complete one."""
    if at + _RECORD_HEAD.size > len(raw):
        return None
    size, checksum = _RECORD_HEAD.unpack_from(raw, at)
    record = raw[at + _RECORD_HEAD.size : at + _RECORD_HEAD.size + size]
    return record if size and len(record) == size and zlib.crc32(record) == checksum else None


def _allocate(descriptor: int, begin: int, end: int) -> None:
    """Allocate the blocks from `begin` to `end`, by writing zeros if there is no other way."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, begin, end - begin)
        return
    zeros = bytes(SLOT_BYTES)
    for at in range(begin, end, SLOT_BYTES):
        os.pwrite(descriptor, zeros[: end - at], at)
