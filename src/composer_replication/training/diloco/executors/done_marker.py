"""A replica's own word that it finished: one small JSON file per attempt, in the results folder.

    write_done({"rounds": 12})                     # in the replica, as its last act
    read_marker(job)                               # in the driver: Marker(result={"rounds": 12})

A provider's exit code is no proof: a wrapper may exit with 0 although the replica was killed, and a
finished job may be reported lost. The key holds the attempt's id, so an old attempt's marker never
counts for a new one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from composer_replication.core.errors import ComposerError, DataError, need
from composer_replication.core.files import atomic_writer, make_folder
from composer_replication.training.diloco.executors.jobs import ReplicaJob, local_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The end of one attempt in its own words: a result, or the error that ended it; a `final` one
    would meet another attempt as well."""

    result: Mapping[str, Any] | None = None
    error: str = ""
    final: bool = False


def write_done(result: Mapping[str, Any], *, env: Mapping[str, str] = os.environ) -> None:
    """Write that this replica finished; does nothing in a process that no executor started."""
    _write({"result": dict(result)}, env)


def write_failure(
    error: BaseException, *, final: bool = False, env: Mapping[str, str] = os.environ
) -> None:
    """Write the error that ends this replica, so that `collect` can show it; after a `final` one
    the replica is not started again."""
    text = str(error) if isinstance(error, ComposerError) else f"{type(error).__name__}: {error}"
    _write({"error": text, "final": final}, env)


def read_marker(job: ReplicaJob) -> Marker | None:
    """The marker of an attempt; None if it has not written one."""
    content = _get(job.results, _key(job.slot, job.attempt))
    if content is None:
        return None
    try:
        record = json.loads(content)
        if (record["slot"], record["attempt"]) != (job.slot, job.attempt):
            raise ValueError(f"slot {record['slot']}, attempt {record['attempt']}")
        return Marker(
            result=record.get("result"),
            error=record.get("error", ""),
            final=record.get("final", False),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the done marker of slot {job.slot} cannot be used: {error}",
            where=f"{job.results}/{_key(job.slot, job.attempt)}",
            fix="give each run a results folder of its own",
        ) from error


def _key(slot: int, attempt: str) -> str:
    return f"done/{slot}.{attempt}.json"


def _write(content: dict[str, Any], env: Mapping[str, str]) -> None:
    if "RECOMPOSE_RESULTS" not in env:
        return
    slot, attempt = int(env["RECOMPOSE_SLOT"]), env["RECOMPOSE_ATTEMPT"]
    text = json.dumps({"slot": slot, "attempt": attempt, **content})
    _put(env["RECOMPOSE_RESULTS"], _key(slot, attempt), text=text)


def _put(url: str, key: str, *, text: str) -> None:
    folder = local_folder(url)
    if folder is None:
        _store(url).put(key, text.encode())
        return
    make_folder((folder / key).parent)
    with atomic_writer(folder / key) as stream:
        stream.write(text)


def _get(url: str, key: str) -> str | None:
    folder = local_folder(url)
    try:
        if folder is not None:
            return (folder / key).read_text("utf-8")
        return bytes(_store(url).get(key).bytes()).decode()
    except FileNotFoundError:  # obstore's NotFoundError is one
        return None


def _store(url: str) -> Any:
    return need("obstore.store", extra="diloco").from_url(url)
