"""What the replicas of a run did together, from their own run directories: plain values.

replicas_view(Path("runs/2026-11-20-a"))["rounds"][0]
# {"round": 0, "step": 5, "slots": [0, 1], "missing": [], "bytes": 12288, "wait_s": 0.4, ...}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composer_replication.core.rundir import RunDir

REPLICAS = "replicas"
"""The folder of a run that holds its replicas' run directories, by slot."""


def replica_runs(path: Path) -> dict[int, RunDir]:
    """The run directories of a run's replicas, by slot; a run that trains alone is its own only
    one, if it met others."""
    folder = path / REPLICAS
    found = folder.iterdir() if folder.is_dir() else ()
    runs = {
        int(p.name): RunDir(p) for p in found if p.name.isdecimal() and (p / "run.json").exists()
    }
    if not runs and (path / "sync.json").exists():
        return {0: RunDir(path)}
    return dict(sorted(runs.items()))


def rounds_of(runs: Mapping[int, RunDir]) -> dict[int, dict[str, Any]]:
    """Every round that a replica wrote down: who took part, what it cost, how far they had
    drifted apart."""
    rounds: dict[int, dict[str, Any]] = {}
    for run in runs.values():
        for event in run.events():
            if event["kind"] == "sync":
                _add(rounds, event)
    return dict(sorted(rounds.items()))


def _add(rounds: dict[int, dict[str, Any]], event: Mapping[str, Any]) -> None:
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
            "seconds": 0.0,
            "kl": None,
            "drift": event["drift"],
            "step_norm": event["step_norm"],
            "missed": 0,
            "refused": [],
            "hashes": [],
        },
    )
    facts["step"] = min(facts["step"], event["step"])
    facts["bytes"] += event["bytes_up"] + event["bytes_down"]
    facts["requests"] += event["puts"] + event["gets"] + event["lists"]
    facts["wait_s"] = max(facts["wait_s"], event["wait_s"])
    facts["seconds"] = max(facts["seconds"], event["seconds"])
    facts["missed"] += not event["contributed"]
    if event["refused"]:
        facts["refused"].append(event["refused"])
    if event["contributed"] and event["hash"] not in facts["hashes"]:
        facts["hashes"].append(event["hash"])
    if event.get("kl") is not None:
        facts["kl"] = max(facts["kl"] or 0.0, event["kl"])


def replicas_view(path: Path) -> dict[str, Any] | None:
    """Rounds, replicas and stalls of a run; None for one that met nobody."""
    runs = replica_runs(path)
    rounds = list(rounds_of(runs).values())
    if not rounds:
        return None
    waits = sorted(facts["wait_s"] for facts in rounds)
    usual = waits[len(waits) // 2]
    return {
        "rounds": rounds,
        "diverged": [facts["round"] for facts in rounds if len(facts["hashes"]) > 1],
        "stalls": [f["round"] for f in rounds if f["wait_s"] > max(1.0, 5 * usual)],
        "replicas": [
            {
                "slot": slot,
                "state": run.info().get("state", ""),
                "launches": run.info().get("attempts", 0),
                "took_part": sum(slot in facts["slots"] for facts in rounds),
                "steps": (run.metrics() or [{"step": 0}])[-1]["step"],
            }
            for slot, run in runs.items()
        ],
    }
