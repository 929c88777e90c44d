"""Stamps: the hashes of the files that an artefact was made from, so that a stale one is not used.

    write_stamp(work / "sites.jsonl", made_from=[work / "sessions.jsonl"])     # sites.meta.json
    check_stale(work / "hints.jsonl", work=work)
    # Stale(artefact="sites.jsonl", changed="sessions.jsonl", verbs=("sites", "hints"))

An artefact is stale if a file that it was made from has changed or is stale itself: the turn
numbers of its sites and hints may then be wrong. An artefact without a stamp is the user's own and
is used as it is. The stamp of `examples/` is its meta.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import RunDir, sha256_of

VERB_OF: Mapping[str, str] = {
    "sessions.jsonl": "ingest",
    "sites.jsonl": "sites",
    "hints.jsonl": "hints",
    "audit.json": "hints --audit",
    "answers.jsonl": "replay",
    "preferences.jsonl": "replay",
    "anchors.jsonl": "replay",
    "curated.jsonl": "curate",
    "examples": "build",
}
"""The verb that writes each artefact of a work folder, in the order of the pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """A stale artefact, the file that changed since, and the verbs to run again, in order."""

    artefact: str
    changed: str
    verbs: tuple[str, ...]

    @property
    def message(self) -> str:
        """The fact as a sentence."""
        return (
            f"{self.artefact} was made from another {self.changed} than lies here now: its turns"
            " may not be the ones that stand there"
        )


def write_stamp(
    artefact: Path, *, made_from: Sequence[Path], more: Mapping[str, object] | None = None
) -> None:
    """Write the hashes of the files that an artefact was made from beside it, and what more its
    verb wants to know of it."""
    hashes = {path.name: sha256_of(path) for path in made_from}
    write_json(_stamp_of(artefact), {"made_from": hashes, **(more or {})})


def read_stamp(artefact: Path) -> Mapping[str, Any]:
    """The stamp of a file; {} if it has none or a damaged one."""
    try:
        value = json.loads(_stamp_of(artefact).read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def made_from(artefact: Path) -> dict[str, str]:
    """Name -> hash of the files that an artefact was made from; {} if it has no stamp.

    Raises DataError for a damaged stamp.
    """
    path = artefact / "meta.json" if artefact.is_dir() else _stamp_of(artefact)
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_bytes())
        if "made_from" in value:
            return {str(name): str(sha256) for name, sha256 in value["made_from"].items()}
        return input_hashes(value.get("inputs", ()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        verb = VERB_OF.get(artefact.name, "")
        raise DataError(
            f"not a stamp: {error!r}",
            where=str(path),
            fix=f"run again: recompose {verb}" if verb else "remove it",
        ) from error


def input_hashes(inputs: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """Name -> hash of a list of inputs, as examples and runs store it.

    Inputs from another folder than the first, such as the user's own pairs, are left out.

    >>> sites = {"path": "recompose/sites.jsonl", "sha256": "5e2c"}
    >>> input_hashes([sites, {"path": "mine/curated.jsonl", "sha256": "07af"}])
    {'sites.jsonl': '5e2c'}
    """
    rows = [
        (*str(entry["path"]).replace("\\", "/").rpartition("/")[::2], str(entry["sha256"]))
        for entry in inputs
    ]
    return {name: sha256 for folder, name, sha256 in rows if folder == rows[0][0]}


def changed_files(recorded: Mapping[str, str], *, folder: Path) -> list[str]:
    """The recorded files of a folder that have changed since, or are gone."""
    return [
        name
        for name, sha256 in recorded.items()
        if not (folder / name).exists() or _sha256(folder / name) != sha256
    ]


def check_stale(artefact: Path, *, work: Path) -> Stale | None:
    """Why an artefact must not be used with the work folder's current files; None if it may."""
    if not artefact.exists():
        return None
    first_change = _first(artefact, work, ())
    if first_change is None:
        return None
    old = {
        name
        for name in VERB_OF
        if (work / name).exists() and _first(work / name, work, ()) is not None
    } | {artefact.name}
    needed = _closure(artefact, work)
    verbs = dict.fromkeys(VERB_OF[name] for name in VERB_OF if name in old & needed)
    return Stale(artefact=first_change[0], changed=first_change[1], verbs=tuple(verbs))


def stale_artefacts(work: Path) -> dict[str, Stale]:
    """Every artefact of a work folder that is stale, in the order of the pipeline."""
    return {
        name: problem
        for name in VERB_OF
        if (work / name).exists() and (problem := check_stale(work / name, work=work)) is not None
    }


def changed_since(run: RunDir, *, work: Path) -> list[str]:
    """Files that changed since a run was made: its examples, and what these were built from."""
    examples = work / "examples"
    inputs = input_hashes(json.loads(run.manifest_json.read_bytes()).get("inputs", ()))
    used = {
        name: sha256 for name, sha256 in inputs.items() if name in ("examples.jsonl", "pairs.jsonl")
    }
    return changed_files(used, folder=examples) + (
        changed_files(made_from(examples), folder=work) if examples.is_dir() else []
    )


def _first(artefact: Path, work: Path, visited: tuple[str, ...]) -> tuple[str, str] | None:
    """(artefact, file that changed), the earliest of the pipeline; None if nothing changed."""
    recorded = made_from(artefact)
    inside = {name: sha256 for name, sha256 in recorded.items() if name in VERB_OF}
    for name in inside:
        if (
            name not in visited
            and (work / name).exists()
            and (older := _first(work / name, work, (*visited, name))) is not None
        ):
            return older
    for name in changed_files(inside, folder=work):
        return artefact.name, name
    return None


def _closure(artefact: Path, work: Path) -> set[str]:
    """The artefact and all artefacts of the work folder that it was made from, transitively."""
    names, waiting = set[str](), [artefact.name]
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            waiting += [source for source in made_from(work / name) if source in VERB_OF]
    return names


def _stamp_of(artefact: Path) -> Path:
    return artefact.with_suffix(".meta.json")


def _sha256(path: Path) -> str:
    """The hash of a file or folder; a file's hash is cached until its stat changes."""
    if path.is_dir():
        return sha256_of(path)
    about = path.stat()
    return _hash_of(path.absolute(), about.st_size, about.st_mtime_ns, about.st_ino)


@lru_cache(maxsize=64)
def _hash_of(path: Path, size: int, mtime_ns: int, inode: int) -> str:
    return sha256_of(path)
