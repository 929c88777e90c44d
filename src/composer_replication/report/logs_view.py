"""Held-out mistakes of the user's own logs as plain values: their recurrence, and the messages of
the log and of each student.

    view = logs_view(open_run(path), work=Path("recompose"))
    view["sites"][0]["log"], view["sites"][0]["written"]["after"][0]["outcome"]

Sites are in the order of the file: none is selected for its outcome. The log's message is read from
the work folder, but only if its sessions and sites are those that the evaluation read. Imports core
only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.core.codec import read_sessions, read_sites, turn_from_json
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import read_lines
from composer_replication.core.rundir import RunDir, sha256_of
from composer_replication.core.site import Site
from composer_replication.report.views import CONTEXT, MISTAKE, turn_view

RECURRENCE, OK, UNDECIDED = "recurrence", "ok", "undecided"
SIDES = ("before", "after")
"""The rows whose messages are shown beside the log; the others are in the table only."""
_KEYS = ("rows", "paired", "verdict", "plan", "notes")
_AGAIN = "run the evaluation again: recompose evaluate RUN --logs"


def read_logs(run: RunDir) -> dict[str, Any] | None:
    """The values of evaluation_logs.json; None without the file, DataError for another format."""
    path = run.evaluation_logs_json
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"not JSON: {error}", where=str(path), fix=_AGAIN) from error
    rows = value.get("rows") if isinstance(value, dict) else None
    named = isinstance(rows, list) and all(
        isinstance(row, dict) and isinstance(row.get("name"), str) for row in rows
    )
    if not named or any(key not in value for key in _KEYS):
        raise DataError("not an evaluation on logs", where=str(path), fix=_AGAIN)
    return value


def logs_view(run: RunDir, *, work: Path) -> dict[str, Any] | None:
    """The evaluation with its sites; None without an evaluation.

    `unknown` says why the log's own messages are not shown.
    """
    table = read_logs(run)
    if table is None:
        return None
    written = {row["name"]: _read_samples(run, row["name"]) for row in table["rows"]}
    ids = list(
        dict.fromkeys(sample["site_id"] for name in SIDES for sample in written.get(name, ()))
    )
    logged, unknown = _logged_messages(table.get("inputs", {}), ids, work=work)
    sites = [
        {
            "name": f"h{number:03d}",
            "id": site_id,
            "kind": next(
                sample["kind"]
                for name in SIDES
                for sample in written.get(name, ())
                if sample["site_id"] == site_id
            ),
            **logged.get(site_id, {"log": None, "detail": "", "repository": ""}),
            "written": {
                name: [sample for sample in written[name] if sample["site_id"] == site_id]
                for name in SIDES
                if name in written
            },
        }
        for number, site_id in enumerate(ids, 1)
    ]
    return {
        **{key: table[key] for key in _KEYS},
        "samples_per_site": table.get("samples_per_site"),
        "sites": sites,
        "unknown": unknown,
    }


def outcome_tally(samples: Sequence[Mapping[str, Any]]) -> str:
    """The number of samples with each outcome, e.g. "same 1, undecided 3"."""
    return ", ".join(
        f"{outcome} {count}"
        for outcome, count in Counter(sample["outcome"] for sample in samples).most_common()
    )


def _read_samples(run: RunDir, name: str) -> list[dict[str, Any]]:
    """The samples of one row; a file of an older version holds verdicts but no messages."""
    path = run.written_at_sites(name)
    if Path(name).name != name or not path.exists():
        return []
    samples: list[dict[str, Any]] = []
    for _, record in read_lines(path):
        try:
            sample = {
                key: record[key]
                for key in ("site_id", "kind", "number", "outcome", "reason", "detail")
            }
        except (KeyError, TypeError) as error:
            raise DataError(
                f"not a message at a site: {error!r}", where=str(path), fix=_AGAIN
            ) from error
        message = record.get("message")
        samples.append(
            {
                **sample,
                "turn": (
                    turn_view(turn_from_json(message), sample["number"], place=CONTEXT)
                    if message
                    else None
                ),
            }
        )
    return samples


def _logged_messages(
    inputs: Mapping[str, str], ids: Sequence[str], *, work: Path
) -> tuple[dict[str, dict[str, Any]], str]:
    """The mistaken message of every site, or the reason why none can be shown."""
    read = ("sessions.jsonl", "sites.jsonl")
    if missing := [name for name in read if not (work / name).exists()]:
        return {}, f"{missing[0]} is no longer there"
    for name in read:
        if inputs.get(name) != sha256_of(work / name):
            return {}, f"{name} is not the file that was evaluated"
    wanted = set(ids)
    by_session: dict[str, list[Site]] = {}
    for site in read_sites(work / "sites.jsonl"):
        if site.id in wanted:
            by_session.setdefault(site.session_id, []).append(site)
    messages: dict[str, dict[str, Any]] = {}
    for session in read_sessions(work / "sessions.jsonl"):
        for site in by_session.get(session.id, ()):
            log = turn_view(session.turns[site.turn], site.turn, place=MISTAKE)
            messages[site.id] = {
                "log": log,
                "detail": site.detail,
                "repository": session.repository,
            }
    return messages, ""


def number_or_none(value: float | None) -> str:
    """A number with two digits, or "none".

    >>> number_or_none(0.125), number_or_none(None)
    ('0.12', 'none')
    """
    return "none" if value is None else f"{value:.2f}"


def is_undecided(row: Mapping[str, Any]) -> bool:
    """Whether the check could decide none of a row's messages: its other shares are unknown, not 0.

    >>> is_undecided({"undecided": 1.0}), is_undecided({"undecided": 0.5})
    (True, False)
    """
    return row.get(UNDECIDED, 0.0) == 1.0


def share_with_interval(row: Mapping[str, Any], metric: str) -> str:
    """A row's share with its interval, if it has one; "undecided" if no message was decided.

    >>> share_with_interval({"ok": 0.5, "ok_low": 0.25, "ok_high": 0.75}, "ok")
    '0.500 [0.250, 0.750]'
    """
    if metric != UNDECIDED and is_undecided(row):
        return UNDECIDED
    low, high = row[f"{metric}_low"], row[f"{metric}_high"]
    return f"{row[metric]:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")
