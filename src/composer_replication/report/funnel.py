"""From logs to examples: how many records reach each stage, and why the others do not.

A chain is a list of stages; the records lost between two stages are listed by reason. If the
reasons do not add up to the loss, the difference is shown as "not accounted for", never hidden.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import read_lines
from composer_replication.core.site import Hint, Site
from composer_replication.report.explanations import (
    ANSWERED,
    CATEGORIES,
    FILES,
    FLAT,
    REASONS,
    UNUSED,
    why_left_out,
)

NO_RESULT = (
    "outvoted",
    "chosen_fails",
    "no_evidence",
    "after_error",
    "erred",
    "too_few_families",
    "no_judge",
)
"""Outcomes of turns that were asked about but gave neither a pair nor an anchor."""
UNEXPLAINED = "not accounted for by the files"
EPISODES = "rollouts/episodes"
LOSS_COUNTS: Mapping[str, tuple[str, str]] = {
    "lost/env_error": ("the environment failed or gave no answer", "reward 0, scored"),
    "lost/env_timeout": ("the environment hung", "reward 0, scored"),
    "lost/no_message": ("the server gave no message", "left out of the training"),
    "rollouts/stale": ("the weights that wrote it were too old", "left out of the training"),
    "rollouts/refused_calls": ("calls beyond the bound of one message", "answered with an error"),
}
LOSS_SHARES: Mapping[str, tuple[str, str]] = {
    "rollouts/cut_off": ("the last message had no end", "reward 0, scored"),
    "rollouts/out_of_room": ("no room for the next message", "scored as it is"),
}
"""Metrics that are shares of a step's rollouts, not counts."""


def read_object(path: Path, *, verb: str) -> dict[str, Any] | None:
    """A JSON object of the work folder; None without the file, DataError for other contents."""
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"not JSON: {error}", where=str(path), fix=f"run again: recompose {verb}"
        ) from error
    if not isinstance(value, dict):
        raise DataError("not a JSON object", where=str(path), fix=f"run again: recompose {verb}")
    return value


def funnel_stage(
    what: str, count: int, drops: Iterable[tuple[str, int, str]] = (), *, before: int | None = None
) -> dict[str, Any]:
    """One stage: what is counted, how many there are, and the drops (reason, count, why) before it.

    `before` is the count of the previous stage; a difference that the drops do not explain becomes
    a drop of its own.
    """
    rows = [{"reason": reason, "count": n, "why": why} for reason, n, why in drops if n]
    if before is not None and (unexplained := before - count - sum(row["count"] for row in rows)):
        rows.append(
            {
                "reason": UNEXPLAINED,
                "count": unexplained,
                "why": "the files were written at different times, or records are missing",
            }
        )
    return {"what": what, "count": count, "drops": rows}


def file_chain(ingest: Mapping[str, Any] | None, *, sessions: int) -> list[dict[str, Any]]:
    """Log files -> files read -> sessions."""
    if ingest is None:
        return [funnel_stage("sessions", sessions)]
    statuses = Counter(str(file.get("status")) for file in ingest.get("files", ()))
    total = sum(statuses.values())
    lost = [
        (name, n, FILES.get(name, "")) for name, n in sorted(statuses.items()) if name != "read"
    ]
    return [
        funnel_stage("log files", total),
        funnel_stage("files read", statuses["read"], lost, before=total),
        funnel_stage("sessions", sessions),
    ]


def site_chain(
    sites: list[Site],
    hints: Mapping[str, Hint],
    *,
    skipped: Mapping[str, int],
    held_out: frozenset[str],
    views: int | None,
    hints_written: bool = True,
) -> list[dict[str, Any]]:
    """Sites -> mistakes -> mistakes with a hint -> hint targets in the examples."""
    other_categories = Counter(site.category for site in sites if not site.is_target)
    targets = [site for site in sites if site.is_target]
    hinted = [site for site in targets if site.id in hints]
    chain = [
        funnel_stage("sites", len(sites)),
        funnel_stage(
            "mistaken messages",
            len(targets),
            [(n, c, CATEGORIES[n]) for n, c in other_categories.most_common()],
            before=len(sites),
        ),
        funnel_stage(
            "with a hint",
            len(hinted),
            [
                (
                    "no_hint",
                    len(targets) - len(hinted),
                    REASONS["hint/no_hint"] if hints_written else "`recompose hints` has not run",
                )
            ],
            before=len(targets),
        ),
    ]
    if views is not None:
        # skipped.jsonl counts held-out sessions; this chain counts sites.
        out = sum(site.session_id in held_out for site in hinted)
        lost = [
            ("held_out", out, REASONS["session/held_out"]),
            # these two are stages of their own above
            *_skip_losses(skipped, "hint", without=("no_hint", "category")),
        ]
        chain.append(funnel_stage("hint targets in the examples", views, lost, before=len(hinted)))
    return chain


def message_chain(
    *, messages: int, held_out: int, trained: int, skipped: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Messages of a model -> messages in lm_ce."""
    lost = [("held_out", held_out, REASONS["session/held_out"]), *_skip_losses(skipped, "lm_ce")]
    return [
        funnel_stage("messages of a model", messages),
        funnel_stage("messages in lm_ce", trained, lost, before=messages),
    ]


def preference_chain(
    work: Path, *, skipped: Mapping[str, int], held_out: frozenset[str], pairs: int | None
) -> list[dict[str, Any]]:
    """Turns asked about -> pairs -> pairs in the examples; empty if `replay` did not run here.

    replay.json counts the outcomes of the other turns; anchors are read from their own file.
    """
    if not all((work / f"{name}.jsonl").exists() for name in ("answers", "preferences")):
        return []
    asked = len(
        {
            _field(value, "site_id", path=work / "answers.jsonl")
            for _, value in read_lines(work / "answers.jsonl")
        }
    )
    sessions = [
        _field(value, "session_id", path=work / "preferences.jsonl")
        for _, value in read_lines(work / "preferences.jsonl")
    ]
    anchors = work / "anchors.jsonl"
    reasons = Counter(
        _field(value, "reason", path=anchors)
        for _, value in (read_lines(anchors) if anchors.exists() else ())
    )
    counted = (read_object(work / "replay.json", verb="replay") or {}).get("outcomes", {})
    others = {name: n for name, n in counted.items() if name in NO_RESULT}
    num_without_result = asked - len(sessions) - reasons.total()
    lost = [
        (name, n, ANSWERED.get(name, "")) for name, n in [*reasons.most_common(), *others.items()]
    ]
    # Without the outcomes of replay.json, all that is left over is one row.
    if not counted:
        lost.append(
            (
                "no result",
                num_without_result,
                ANSWERED["no result"],
            )
        )
    chain = [
        funnel_stage("turns asked about", asked),
        funnel_stage("pairs", len(sessions), lost, before=asked),
    ]
    if pairs is not None:
        out = sum(session in held_out for session in sessions)
        left = [
            ("held_out", out, REASONS["session/held_out"]),
            *_skip_losses(skipped, "preference"),
        ]
        chain.append(funnel_stage("pairs in the examples", pairs, left, before=len(sessions)))
    return chain


def _field(value: Any, name: str, *, path: Path) -> str:
    if not isinstance(value, dict) or name not in value:
        raise DataError(
            f"a line without {name}", where=str(path), fix="run again: recompose replay"
        )
    return str(value[name])


def run_chains(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The chains of a live run's rollouts over all steps: their rewards and their mistakes.

    Empty without rollouts. All groups have the same size, so the share of flat groups equals the
    share of their rollouts.
    """
    live_steps = [step_metrics for step_metrics in metrics if EPISODES in step_metrics]
    if not live_steps:
        return {}
    total = round(sum(step_metrics[EPISODES] for step_metrics in live_steps))
    flat = round(
        sum(
            step_metrics[EPISODES] * step_metrics.get("rollouts/flat", 0)
            for step_metrics in live_steps
        )
    )
    tokens = sum(step_metrics.get("policy/tokens", 0) for step_metrics in live_steps)
    chains = {
        "policy": [
            funnel_stage("rollouts", total),
            funnel_stage(
                "in groups whose rewards differ", total - flat, [("flat", flat, FLAT)], before=total
            ),
            funnel_stage("tokens of their messages trained on", tokens),
        ]
    }
    sums = {
        name: round(sum(step_metrics.get(f"sites/{name}", 0) for step_metrics in live_steps))
        for name in ("found", "used", *UNUSED)
    }
    if any("sites/used" in step_metrics for step_metrics in live_steps):
        lost = [(name, sums[name], why) for name, why in UNUSED.items()]
        chains["rollout_hints"] = [
            funnel_stage("mistakes in rollouts", sums["found"]),
            funnel_stage("trained on", sums["used"], lost, before=sums["found"]),
        ]
    return chains


def lost_rows(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rollouts that failing environments, servers and policies cost a live run: a row per kind
    of loss.

    >>> metrics = [{"rollouts/episodes": 8.0, "lost/env_error": 2, "rollouts/cut_off": 0.25}]
    >>> row = lost_rows(metrics)[0]
    >>> row["name"], row["what"], row["count"], row["of"], row["cost"]
    ('lost/env_error', 'the environment failed or gave no answer', 2, 8, 'reward 0, scored')
    """
    live_steps = [step_metrics for step_metrics in metrics if step_metrics.get(EPISODES)]
    episodes = round(sum(step_metrics[EPISODES] for step_metrics in live_steps))
    counts = {
        name: sum(step_metrics.get(name) or 0 for step_metrics in live_steps)
        for name in LOSS_COUNTS
    }
    shares = {
        name: sum(
            (step_metrics.get(name) or 0) * step_metrics[EPISODES] for step_metrics in live_steps
        )
        for name in LOSS_SHARES
    }
    texts = {**LOSS_COUNTS, **LOSS_SHARES}
    return [
        {
            "name": name,
            "what": texts[name][0],
            "count": round(count),
            "of": episodes,
            "cost": texts[name][1],
        }
        for name, count in {**counts, **shares}.items()
        if round(count)
    ]


def not_trained(chain: Sequence[Mapping[str, Any]], why: str) -> list[Mapping[str, Any]]:
    """The chain with an empty last stage, e.g. for the imported hint targets of a live run."""
    return (
        [
            *chain,
            funnel_stage(
                "trained on in this run",
                0,
                [("not drawn", chain[-1]["count"], why)],
                before=chain[-1]["count"],
            ),
        ]
        if chain
        else []
    )


def _skip_losses(
    skipped: Mapping[str, int], channel: str, *, without: Iterable[str] = ()
) -> list[tuple[str, int, str]]:
    losses = [
        (key.split("/", 1)[1], n, why_left_out(key))
        for key, n in skipped.items()
        if key.startswith(f"{channel}/")
    ]
    return [row for row in losses if row[0] not in without]


def read_skipped(path: Path) -> tuple[dict[str, int], frozenset[str]]:
    """The counts of what `build` left out, by "channel/reason", and the sessions it held out."""
    counts: Counter[str] = Counter()
    held_out: set[str] = set()
    for number, row in read_lines(path) if path.exists() else ():
        try:
            counts[f"{row['channel']}/{row['reason']}"] += row.get("count", 1)
        except (TypeError, KeyError) as error:
            raise DataError(
                f"not a skip: {error!r}", where=f"{path}:{number}", fix="run again: recompose build"
            ) from error
        if row["reason"] == "held_out":
            held_out.add(row.get("session_id", ""))
    return dict(sorted(counts.items())), frozenset(held_out)
