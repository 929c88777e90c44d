"""The key of a store: with it the same secret has the same name in every run, without it nobody can
work out what a name stands for.

A plain hash of a short password is found by hashing all short passwords. So names are made with a
random key that stands in a file beside the store. It is in no artefact that is trained on, shown or
sent; do not hand it on with the data.
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
    """The key of a store's folder, made at the first call; with `make=False` None where there is
    none yet.

    The file can be read by its owner only. Of two processes that begin at once, both use the key of
    the first. Raises DataError where the file is no key: a new key would give known secrets new
    names.
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
    """Write a file that others cannot read, unless another process has made it by then."""
    with scratch_file(path) as (descriptor, scratch):
        os.write(descriptor, text.encode("ascii"))
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)
