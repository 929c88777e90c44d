"""Fetch the public agent sessions that some tests read, listed in tests/traces_manifest.json.

    python scripts/fetch_traces.py FOLDER [--from REPOSITORY=LOCAL_GIT_DIR ...]
    export COMPOSER_REPLICATION_TRACES=FOLDER

The sessions of the second set of labels:

    python scripts/fetch_traces.py FOLDER --manifest tests/labels/manifest.json
    export COMPOSER_REPLICATION_LABEL_SESSIONS=FOLDER

git reads each file from the commit that the manifest names, and the script refuses a file whose
sha256 differs from the manifest's. It needs network access to the host of the repositories, which
CI does not have; only --from, which reads a local clone, has been tried.

In the tests' own copies, user names and e-mail addresses were replaced after fetching. So the
counts of the originals agree with the expectations, but the hashes differ; the manifest holds the
hashes of the originals.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

MANIFEST = Path(__file__).resolve().parent.parent / "tests" / "traces_manifest.json"
# Counts per file, from two scripts that are independent of this project.
EXPECTED = MANIFEST.with_name("traces_expected.json")


def git(*arguments: str, folder: Path) -> bytes:
    """The output of a git command; if it fails, the script ends with git's message."""
    process = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
    if process.returncode != 0:
        sys.exit(
            f"fetch_traces: git {' '.join(arguments)}"
            f" failed:\n{process.stderr.decode(errors='replace').strip()}"
        )
    return process.stdout


def fetch_commit(source: str, commit: str, *, into: Path) -> None:
    """Fetch one commit without its history into an empty repository; git fetches a file when it is
    read."""
    git("init", "--quiet", folder=into)
    git("remote", "add", "origin", source, folder=into)
    git("fetch", "--quiet", "--depth", "1", "--filter=blob:none", "origin", commit, folder=into)


def save(content: bytes, entry: dict[str, Any], *, into: Path) -> None:
    """Write one file; exit if its hash is not the one in the manifest."""
    digest = hashlib.sha256(content).hexdigest()
    if digest != entry["sha256"]:
        sys.exit(
            f"fetch_traces: {entry['path']}: sha256 {digest}, the manifest says {entry['sha256']};"
            " refused"
        )
    (into / entry["file"]).write_bytes(content)


def main(arguments: list[str]) -> int:
    """Fetch every file of the manifest; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--manifest", type=Path, default=MANIFEST)
    parser.add_argument(
        "--from", dest="local", action="append", default=[], metavar="REPOSITORY=GIT_DIR"
    )
    options = parser.parse_args(arguments)
    local = dict(pair.split("=", 1) for pair in options.local)
    manifest = json.loads(options.manifest.read_text("utf-8"))
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for entry in manifest["files"]:
        groups[entry["repository"], entry["commit"]].append(entry)
    options.folder.mkdir(parents=True, exist_ok=True)
    for (repository, commit), entries in groups.items():
        print(f"fetch_traces: {len(entries)} files of {repository} at {commit[:12]}", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(local.get(repository, scratch))
            if repository not in local:
                fetch_commit(f"{manifest['host']}/{repository}", commit, into=folder)
            for entry in entries:
                save(
                    git("show", f"{commit}:{entry['path']}", folder=folder),
                    entry,
                    into=options.folder,
                )
    ours = options.manifest.resolve() == MANIFEST
    if ours:
        shutil.copyfile(EXPECTED, options.folder / "EXPECTED.json")
    variable = "COMPOSER_REPLICATION_TRACES" if ours else "COMPOSER_REPLICATION_LABEL_SESSIONS"
    print(f"fetch_traces: done; now: export {variable}={options.folder.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
