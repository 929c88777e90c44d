"""What the replicas of a run did together, from their own run directories: plain values.

replicas_view(Path("runs/2026-11-20-a"))["rounds"][0]
# {"round": 0, "step": 5, "slots": [0, 1], "waits": {0: 0.4, 1: 0.0}, "bytes": 12288, ...}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median_low
from typing import Any

from composer_replication.core.rundir import RunDir

REPLICAS = "replicas"
"""The folder of a run that holds its replicas' run directories, by slot."""


def replica_runs(path: Path) -> dict[int, RunDir]:
    """The run directories of a run's replicas, by slot; a run that trains alone is its own only
    one, if it synced with others."""
    folder = path / REPLICAS
    found = folder.iterdir() if folder.is_dir() else ()
    runs = {
        int(p.name): RunDir(p) for p in found if p.name.isdecimal() and (p / "run.json").exists()
    }
    if not runs and (alone := path / "sync.json").exists():
        return {json.loads(alone.read_text("utf-8"))["slot"]: RunDir(path)}
    return dict(sorted(runs.items()))


def rounds_of(runs: Mapping[int, RunDir]) -> dict[int, dict[str, Any]]:
    """Every round that a replica wrote down: who took part, what it cost, how far they had
    drifted apart."""
    rounds: dict[int, dict[str, Any]] = {}
    for slot, run in runs.items():
        for event in run.events():
            if event["kind"] == "sync":
                _add(rounds, slot, event)
    return dict(sorted(rounds.items()))


def _add(rounds: dict[int, dict[str, Any]], slot: int, event: Mapping[str, Any]) -> None:
    """Count one replica's sync in its round."""
    facts = rounds.setdefault(
        event["round"],
        {
            "round": event["round"],
            "step": event["step"],
            "slots": event["slots"],
            "bytes": 0,
            "requests": 0,
            "wait_s": 0.0,
            "waits": {},
            "late": [],
            "seconds": 0.0,
            "kl": None,
            "drift": event["drift"],
            "step_norm": event["step_norm"],
            "refused": {},
            "hashes": [],
        },
    )
    facts["step"] = min(facts["step"], event["step"])
    facts["bytes"] += event["bytes_up"] + event["bytes_down"]
    facts["requests"] += event["puts"] + event["gets"] + event["lists"]
    facts["wait_s"] = max(facts["wait_s"], event["wait_s"])
    facts["seconds"] = max(facts["seconds"], event["seconds"])
    if event["contributed"]:
        facts["waits"][slot] = event["wait_s"]
    elif event["refused"]:
        facts["refused"][slot] = event["refused"]
    else:
        facts["late"].append(slot)
    if event["contributed"] and event["hash"] not in facts["hashes"]:
        facts["hashes"].append(event["hash"])
    if event.get("kl") is not None:
        facts["kl"] = max(facts["kl"] or 0.0, event["kl"])


def is_told(facts: Mapping[str, Any], runs: Mapping[int, RunDir]) -> bool:
    """Whether every replica of these that took part in a round has written it down."""
    return all(slot in facts["waits"] for slot in facts["slots"] if slot in runs)


def replicas_view(path: Path) -> dict[str, Any] | None:
    """Rounds, replicas and stalls of a run; None for a run without replicas.

    A round has stalled if somebody waited a second, and five times as long as in the usual one.
    """
    runs = replica_runs(path)
    rounds = list(rounds_of(runs).values())
    if not rounds:
        return None
    usual = median_low(facts["wait_s"] for facts in rounds)
    return {
        "rounds": rounds,
        "diverged": [facts["round"] for facts in rounds if len(facts["hashes"]) > 1],
        "stalls": [f["round"] for f in rounds if f["wait_s"] > max(1.0, 5 * usual)],
        "together": (path / REPLICAS).is_dir(),
        "replicas": [_replica(slot, run, rounds) for slot, run in runs.items()],
    }


def _replica(slot: int, run: RunDir, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One replica's part in the rounds that are known."""
    return {
        "slot": slot,
        "state": run.info().get("state", ""),
        "launches": run.info().get("attempts", 0),
        "took_part": sum(slot in facts["slots"] for facts in rounds),
        "late": sum(slot in facts["late"] for facts in rounds),
        "refused": sum(slot in facts["refused"] for facts in rounds),
        "wait_s": sum(facts["waits"].get(slot, 0.0) for facts in rounds),
        "steps": (run.metrics() or [{"step": 0}])[-1]["step"],
    }


def last_to_come(facts: Mapping[str, Any]) -> int | None:
    """The slot that waited least in a round, so the one that the others waited for; None if fewer
    than two have written down how long they waited.

    >>> last_to_come({"waits": {0: 3.2, 1: 0.01}})
    1
    """
    waits = facts["waits"]
    return min(waits, key=waits.__getitem__) if len(waits) > 1 else None
