"""Fetch the public packages that tasks are made of in benchmarks/tasks.py.

    python scripts/fetch_packages.py FOLDER

They are source distributions of small packages of pure Python that ship their tests, listed with
version and hash in tests/repositories/packages.json; they are never committed. pip asks the index
that it is set up for. A file whose sha256 differs is refused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

MANIFEST = Path(__file__).resolve().parent.parent / "tests" / "repositories" / "packages.json"


def fetch(folder: Path, *, name: str, version: str, sha256: str) -> Path:
    """Download and unpack one package, unless it is there; returns its folder."""
    target = folder / f"{name}-{version}"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory() as scratch:
        wanted = ["--no-deps", "--no-binary", name, f"{name}=={version}", "--dest", scratch]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", *wanted], check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        if hashlib.sha256(archive.read_bytes()).hexdigest() != sha256:
            raise SystemExit(f"fetch_packages: {archive.name} is not the file of the manifest")
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        (unpacked,) = [path for path in Path(scratch).iterdir() if path.is_dir()]
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mv", str(unpacked), str(target)], check=True)
    return target


def main() -> int:
    """Fetch every package of the manifest."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    for row in json.loads(MANIFEST.read_text(encoding="utf-8")):
        print(fetch(parser.parse_args().folder, **row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
