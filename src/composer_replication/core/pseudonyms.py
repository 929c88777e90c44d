"""The key from which the names of removed secrets are derived, one per store.

With the key, the same secret has the same name in every run. Without it, a name cannot be reversed:
a plain hash of a short password could be, by hashing all short passwords. The key is a file beside
the store and part of no artefact that is trained on, shown or sent; do not share it with the data.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from composer_replication.core.errors import DataError
from composer_replication.core.files import make_work, scratch_file

KEY_FILE = "redaction.key"
KEY_BYTES = 32


def store_key(folder: Path, *, make: bool = True) -> bytes | None:
    """The key of a store's folder, made at the first call; None if `make=False` and there is none.

    Only its owner can read the file. Two processes that start at once both use the key of the
    first. Raises DataError if the file is not a key: a new one would give known secrets new names.
    Example: store_key(Path("recompose")) == store_key(Path("recompose")) -> True
    """
    path = folder / KEY_FILE
    if make and not path.exists():
        make_work(folder)
        _write_once(path, secrets.token_bytes(KEY_BYTES).hex())
    if not path.exists():
        return None
    try:
        key = bytes.fromhex(path.read_text("ascii"))
    except (ValueError, OSError) as error:
        raise DataError(f"no key of redaction: {error}", where=str(path), fix=_FIX) from error
    if len(key) != KEY_BYTES:
        raise DataError(f"a key of {len(key)} bytes, not {KEY_BYTES}", where=str(path), fix=_FIX)
    return key


_FIX = (
    "bring the file back from a copy; or delete it and ingest again: secrets then have other names"
    " than in what was made before"
)


def _write_once(path: Path, text: str) -> None:
    """Write a private file, unless another process has made it by then."""
    with scratch_file(path) as (file, scratch):
        file.write(text.encode("ascii"))
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)
