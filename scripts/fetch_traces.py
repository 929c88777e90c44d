"""Fetch the public agent sessions that some tests read, by the manifest in
tests/traces_manifest.json.

    python scripts/fetch_traces.py FOLDER [--from REPOSITORY=LOCAL_GIT_DIR ...]
    export COMPOSER_REPLICATION_TRACES=FOLDER
    python scripts/fetch_traces.py FOLDER --manifest tests/labels/manifest.json     # those of the second set of labels
    export COMPOSER_REPLICATION_LABEL_SESSIONS=FOLDER

Each file is taken with git from the commit that the manifest names and refused unless its sha256 is
the manifest's. Needs network access to the repositories' host, which CI has not: what was tried is
--from, which reads a local clone.

The tests' own copies had user names and e-mail addresses replaced after fetching, so counts of
these originals agree with the expectations but their hashes do not; the manifest holds the hash of
the original.
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
# counts per file, from two scripts that are not this project
EXPECTED = MANIFEST.with_name("traces_expected.json")


def git(*arguments: str, folder: Path) -> bytes:
    """Output of a git command; its failure ends the script with git's own words."""
    process = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
    if process.returncode != 0:
        sys.exit(
            f"fetch_traces: git {' '.join(arguments)}"
            f" failed:\n{process.stderr.decode(errors='replace').strip()}"
        )
    return process.stdout


def fetch_commit(source: str, commit: str, *, into: Path) -> None:
    """Bring one commit, without its history, into an empty repository; files come when they are
    asked for."""
    git("init", "--quiet", folder=into)
    git("remote", "add", "origin", source, folder=into)
    git("fetch", "--quiet", "--depth", "1", "--filter=blob:none", "origin", commit, folder=into)


def save(content: bytes, entry: dict[str, Any], *, into: Path) -> None:
    """Write one file, refused where it is not the one that the manifest means."""
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
