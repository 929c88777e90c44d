"""What judges saw in a run's episodes: attempts to cheat, and why evaluated episodes earned
nothing.

    attempts_to_cheat(run, evaluation)[0]  # {"place": "step 12", "seen": ["waits: sleep 99"], ...}
    refused_episodes(run, evaluation)[0]   # {"row": "after", "task": "...", "reason": "..."}

Of training, those episodes are read that `samples/` keeps; of an evaluation, all of its rows'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from composer_replication.core.codec import read_sessions
from composer_replication.core.rundir import RunDir
from composer_replication.core.trace import HACK_ATTEMPT, JUDGED, Session
from composer_replication.report.views import turn_view

MOST_TURNS = 24


def attempts_to_cheat(run: RunDir, evaluation: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The kept episodes that tried something else than their task, the evaluation's first, with
    what the environment saw and the turns to read it in."""
    rows = [(f"evaluation, {name}", session) for name, session in _evaluated(run, evaluation)]
    files = [(f"step {step}", path) for step, path in run.samples()]
    rows += [(place, session) for place, path in files for session in read_sessions(path)]
    return [
        {"place": place, "seen": list(seen), **played_view(session)}
        for place, session in rows
        if (seen := session.event_texts(HACK_ATTEMPT))
    ]


def played_view(session: Session) -> dict[str, Any]:
    """An episode with its first turns, to be read on the page."""
    turns = [turn_view(turn, i) for i, turn in enumerate(session.turns[:MOST_TURNS])]
    return {
        "id": session.id,
        "outcome": session.outcome,
        "reason": judged_reason(session),
        "turns": turns,
        "left_out": len(session.turns) - len(turns),
    }


def refused_episodes(run: RunDir, evaluation: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """The evaluated episodes that a judge refused, with its reason."""
    return [
        {"row": name, "task": session.source.file, "reason": judged_reason(session)}
        for name, session in _evaluated(run, evaluation)
        if judged_reason(session)
    ]


def judged_reason(session: Session) -> str:
    """Why an episode earned nothing, in its judge's words; "" if no judge said so."""
    return "; ".join(session.event_texts(JUDGED))


def _evaluated(run: RunDir, evaluation: Mapping[str, Any] | None) -> Iterator[tuple[str, Session]]:
    for row in (evaluation or {}).get("rows", ()):
        name = str(row["name"])
        path = run.evaluated(name)
        if "hacked" in row and Path(name).name == name and path.exists():
            yield from ((name, session) for session in read_sessions(path))
