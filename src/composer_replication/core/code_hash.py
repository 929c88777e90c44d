"""A hash of this package's own code, by which a result that is kept tells that it is of other code.

hash_of_code("core", "data/ingestion")     -> "5be1..."
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


@cache
def hash_of_code(*folders: str) -> str:
    """The hash of all modules in these folders of the package, with their names."""
    return hash_of_modules(PACKAGE, *folders)


def hash_of_modules(package: Path, *folders: str) -> str:
    """The same of another folder. It does not depend on the line ends, which git may change on
    Windows."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((package / folder).rglob("*.py")):
            name = path.relative_to(package).as_posix()
            code = path.read_bytes().replace(b"\r\n", b"\n")
            digest.update(f"{name} {len(code)}\n".encode() + code)
    return digest.hexdigest()
