"""All values of a run's page: `run_view`, the evaluation, the chains, the token probe, samples."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.core.codec import read_sessions
from composer_replication.core.errors import DataError
from composer_replication.core.rundir import RunDir, open_run
from composer_replication.core.stamps import changed_since, check_stale
from composer_replication.report.claims import claims
from composer_replication.report.evaluation_section import AFTER, read_evaluation
from composer_replication.report.funnel import lost_rows, not_trained, run_chains
from composer_replication.report.judged_view import (
    attempts_to_cheat,
    played_view,
    refused_episodes,
)
from composer_replication.report.logs_view import logs_view
from composer_replication.report.replicas_view import replicas_view
from composer_replication.report.rollout_sites import rollout_sites
from composer_replication.report.run_view import run_view
from composer_replication.report.work import work_view

SHOWN_SAMPLES = 4
BEFORE, TRAIN = "before", "recompose train"
LM_CE_OFF = "train.lm_ce.weight is 0"
FED_BY_ROLLOUTS = (
    "live run: the hint channel is fed by rollouts; imported targets are used only if lm_ce has a"
    " weight"
)
LOG_RATIO = "distance of log-probs"  # the measure of a run that stored no divergences


def run_report(path: Path, *, work: Path | None = None) -> dict[str, Any]:
    """All values of a run's page.

    `work` is the folder with sessions and sites, by default the one that holds runs/. The page says
    so if that folder has no sites, sites of an older store, or files other than those trained on.
    """
    run = open_run(path)
    folder = work if work is not None else run.path.parent.parent
    tokens = probe_tables(run)
    settings, metrics = run.resolved(), run.metrics()
    evaluation = _evaluation(run)
    has_work = all((folder / name).exists() for name in ("sessions.jsonl", "sites.jsonl"))
    outdated = check_stale(folder / "sites.jsonl", work=folder) if has_work else None
    has_work = has_work and outdated is None  # stale sites name turns whose numbers have changed
    return {
        **run_view(path),
        "platform": run.info().get("platform", ""),
        "evaluation": evaluation,
        "replicas": replicas_view(run.path),
        "logs": logs_view(run, work=folder),
        "again": rerun_commands(run, evaluation),
        "watched": tokens,
        "rollout_sites": rollout_sites(run, tokens["sites"]),
        "work": (
            _with_unused_targets(
                work_view(folder, first=list(tokens["sites"])),
                settings,
                metrics,
            )
            if has_work
            else None
        ),
        "chains": run_chains(metrics),
        "lost": lost_rows(metrics),
        "stale": changed_since(run, work=folder) if has_work else [],
        "out_of_date": outdated.message if outdated is not None else "",
        "samples": samples(run),
        "hack_attempts": attempts_to_cheat(run, evaluation),
        "refused": refused_episodes(run, evaluation),
    }


def _with_unused_targets(
    work: dict[str, Any], settings: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The work folder's view; chains of targets that this run did not use end in an empty stage."""
    if settings.get("train", {}).get("lm_ce", {}).get("weight", 0):
        return work
    live = any("rollouts/episodes" in step_metrics for step_metrics in metrics)
    chains = {**work["chains"], "messages": not_trained(work["chains"]["messages"], LM_CE_OFF)}
    if live and work["built"]:
        chains["sites"] = not_trained(chains["sites"], FED_BY_ROLLOUTS)
    return {**work, "chains": chains}


def _evaluation(run: RunDir) -> dict[str, Any] | None:
    """The evaluation with its claims, and a note if it is of an earlier checkpoint."""
    evaluation = read_evaluation(run.evaluation_json)
    if evaluation is None:
        return None
    checkpoints, evaluated_steps = run.checkpoints(), evaluation["about"].get("steps.after")
    if checkpoints and evaluated_steps is not None and evaluated_steps != checkpoints[-1][0]:
        note = (
            f"This evaluation is of the student after {evaluated_steps} steps; the run's newest"
            f" checkpoint is of {checkpoints[-1][0]}: evaluate again."
        )
        evaluation["notes"] = [note, *evaluation["notes"]]
    return {**evaluation, "claims": claims(evaluation)}


def rerun_commands(run: RunDir, evaluation: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """The commands of the evaluated sibling runs and of the evaluation itself.

    E.g. [{"name": "placebo", "command": "recompose train ..."}, ...]. A row belongs to the sibling
    run of its name if that run kept a checkpoint of the evaluated step. The evaluation's command
    has the files and settings of this run's command. Without an evaluation there are no commands.
    """
    if evaluation is None:
        return []
    about = {str(key): value for key, value in evaluation["about"].items()}
    commands: list[dict[str, str]] = []
    for name in (str(row["name"]) for row in evaluation["rows"]):
        folder = run.path.resolve().parent / name
        if name in (BEFORE, AFTER) or Path(name).name != name or not (folder / "run.json").exists():
            continue
        other_run = open_run(folder)
        if about.get(f"steps.{name}") in [step for step, _ in other_run.checkpoints()]:
            commands.append(
                {"name": name, "command": other_run.command_txt.read_text("utf-8").strip()}
            )
    command = run.command_txt.read_text("utf-8").strip()
    if command.startswith(TRAIN):
        against = [
            word
            for other_run in commands
            for word in ("--against", f"{other_run['name']}={other_run['name']}")
        ]
        evaluate_command = [
            "recompose",
            "evaluate",
            run.info()["id"],
            *shlex.split(command.removeprefix(TRAIN)),
            *against,
        ]
        commands.append({"name": "evaluation", "command": shlex.join(evaluate_command)})
    return commands


def probe_tables(run: RunDir) -> dict[str, Any]:
    """The probed sites, token by token, at the first and the last step of the probe.

    {"first": 0, "last": 12, "measure": "jsd", "most": 0.02,
     "sites": {"s1:7:c1": [{"text": "read", "first": [0.02, -2.1, -4.0], "last": [...]}, ...]}}

    Each triple is (divergence, log-prob without the hint, log-prob with it), in nats; `most` is the
    largest divergence of all tokens.
    """
    tables = run.token_tables()
    empty: dict[str, Any] = {"first": None, "last": None, "measure": "", "most": 0.0, "sites": {}}
    if not tables:
        return empty
    ends = {"first": tables[0], "last": tables[-1]}
    read = {name: _read_token_table(path) for name, (_, path) in ends.items()}
    sites: dict[str, list[dict[str, Any]]] = {}
    for site_id, last in read["last"].items():
        first = read["first"].get(site_id)
        if first is None or first["ids"] != last["ids"]:
            raise DataError(
                f"the first and the last table differ at {site_id}",
                where=str(run.path / "tokens"),
                fix="train again",
            )
        texts = last.get("texts") or [f"token {i}" for i in last["ids"]]
        columns = zip(texts, _triples(first), _triples(last), strict=True)
        sites[site_id] = [{"text": text, "first": a, "last": b} for text, a, b in columns]
    rows = list(read["last"].values())
    values = [
        token[end][0] for tokens in sites.values() for token in tokens for end in ("first", "last")
    ]
    measure = rows[0].get("measure", LOG_RATIO) if rows else ""
    return {
        "first": ends["first"][0],
        "last": ends["last"][0],
        "measure": measure,
        "most": max(values, default=0.0),
        "sites": sites,
    }


def _read_token_table(path: Path) -> dict[str, dict[str, Any]]:
    try:
        return {row["site_id"]: row for row in json.loads(path.read_bytes())["sites"]}
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise DataError(
            f"not a token table: {error!r}", where=str(path), fix="train again"
        ) from error


def _triples(row: Mapping[str, Any]) -> list[tuple[float, float, float]]:
    ours, theirs = row["student"], row["teacher"]
    divergences = row.get("divergence") or [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    return list(zip(divergences, ours, theirs, strict=True))


def samples(run: RunDir) -> dict[str, Any]:
    """The first sessions of the newest samples file, and the number of those left out."""
    files = run.samples()
    if not files:
        return {"step": None, "sessions": [], "left_out": 0}
    step, path = files[-1]
    sessions: list[dict[str, Any]] = []
    total = 0
    for session in read_sessions(path):
        total += 1
        if len(sessions) < SHOWN_SAMPLES:
            sessions.append(played_view(session))
    return {"step": step, "sessions": sessions, "left_out": total - len(sessions)}
