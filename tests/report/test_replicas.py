"""What a run's page says of its replicas, from events that are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.core.rundir import RunDir, create_run
from composer_replication.report.replicas_section import replicas_section, summary_text
from composer_replication.report.replicas_view import (
    REPLICAS,
    is_told,
    last_to_come,
    replica_runs,
    replicas_view,
    rounds_of,
)

TRAFFIC = {"bytes_up": 500_000, "bytes_down": 500_000, "puts": 2, "gets": 3, "lists": 1}
COSTS = {**TRAFFIC, "seconds": 1.0, "drift": 0.5, "step_norm": 1.0, "kl": 0.01}


def met(
    number: int, slots: list[int], wait_s: float, *, contributed: bool = True, refused: str = ""
) -> dict[str, Any]:
    """One replica's event of a round."""
    about = {"kind": "sync", "round": number, "step": 2 * number + 2, "slots": slots}
    ended = {"wait_s": wait_s, "contributed": contributed, "refused": refused}
    return {**about, **ended, **COSTS, "hash": f"h{number}"}


def a_replica(runs: Path, name: str, events: list[dict[str, Any]]) -> RunDir:
    """A run folder with these events."""
    run = create_run(runs, resolved={}, command="recompose train", seed=0, name=name)
    write_lines(run.events_jsonl, events)
    return run


def two_replicas(folder: Path) -> Path:
    """Five rounds: replica 1 is too late in the fourth, and refused in the last."""
    run = create_run(folder / "runs", resolved={}, command="recompose train", seed=0, name="r")
    waits = ((0.1, 0.0), (0.0, 0.2), (3.0, 0.0))
    both = [
        [met(number, [0, 1], pair[slot]) for number, pair in enumerate(waits)] for slot in (0, 1)
    ]
    both[0] += [met(3, [0], 0.3), met(4, [0], 0.3)]
    both[1].append(met(3, [0], 0.0, contributed=False))
    both[1].append(met(4, [0], 0.0, contributed=False, refused="not finite"))
    for slot in (0, 1):
        a_replica(run.path / REPLICAS, str(slot), both[slot])
    return run.path


def test_too_late_and_refused_are_counted_apart(tmp_path: Path) -> None:
    view = replicas_view(two_replicas(tmp_path))
    assert view is not None and view["diverged"] == []
    counts = [(r["took_part"], r["late"], r["refused"], r["wait_s"]) for r in view["replicas"]]
    assert counts == [(5, 0, 0, 0.1 + 3.0 + 0.3 + 0.3), (3, 1, 1, 0.2)]
    assert "1 pseudo-gradient too late, 1 refused" in summary_text(view)


def test_the_page_names_who_was_waited_for_and_what_stalled(tmp_path: Path) -> None:
    view = replicas_view(two_replicas(tmp_path))
    assert view is not None and view["stalls"] == [2]
    assert [last_to_come(facts) for facts in view["rounds"]] == [1, 0, 1, None, None]
    page = str(replicas_section(view))
    assert "rounds that waited five times as long as usual: 2" in page and "last to arrive" in page
    assert "after every round all replicas had the same weights" in page


def test_a_round_counts_as_told_once_all_who_took_part_wrote_it_down(tmp_path: Path) -> None:
    folder = two_replicas(tmp_path)
    runs = replica_runs(folder)
    assert all(is_told(facts, runs) for facts in rounds_of(runs).values())
    write_lines(runs[1].events_jsonl, [met(0, [0, 1], 0.0)])
    assert [is_told(facts, runs) for facts in rounds_of(runs).values()] == [
        *(True, False, False, True, True)
    ]


def test_one_replica_of_several_machines_speaks_for_itself(tmp_path: Path) -> None:
    run = a_replica(tmp_path, "alone", [met(0, [0, 2], 0.5), met(1, [0], 0.0, contributed=False)])
    write_json(run.path / "sync.json", {"slot": 2, "lives": ["a"], "url": "s3://bucket/run"})
    view = replicas_view(run.path)
    assert view is not None
    assert [(r["slot"], r["took_part"], r["late"]) for r in view["replicas"]] == [(2, 1, 1)]
    text = summary_text(view)
    assert text.startswith("replica 2 (this run has no records of the others)")
    assert "its weights were the committed ones" in text and "all replicas" not in text
