"""The facts of a model card, from the run's files and, if unchanged since, the work folder's."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer_replication.cli.job import Job
from composer_replication.core.codec import read_sessions
from composer_replication.core.config.student_settings import TINY
from composer_replication.core.rundir import RunDir, sha256_of
from composer_replication.data.sites.summary import UNKNOWN
from composer_replication.models.adapter_folder import base_model
from composer_replication.report.card import Card
from composer_replication.report.evaluation_section import read_evaluation
from composer_replication.report.logs_view import read_logs
from composer_replication.report.run_view import run_view, state_text
from composer_replication.tokens.artefact import EXAMPLES, META
from composer_replication.tokens.split import is_held_out, resolve_split_unit

if TYPE_CHECKING:
    from composer_replication.evaluation.players import Player


def card_of(
    job: Job,
    run: RunDir,
    player: Player,
    *,
    form: str,
    facts: Mapping[str, Any],
    commands: list[tuple[str, str]],
) -> Card:
    view = run_view(run.path)
    base = base_model(player.config.student)
    is_local = base == TINY or Path(base).exists()
    return Card(
        name=view["id"],
        base=Path(base).name if is_local else base,
        base_name="" if is_local else base,
        form=form,
        steps=player.steps,
        seed=view["seed"],
        weights_sha256=facts["weights_sha256"],
        family=facts["family"],
        channels={
            name: {"tokens": c["tokens"], "statuses": c["statuses"]}
            for name, c in view["channels"].items()
        },
        inputs=[{**i, "path": Path(i["path"]).name} for i in view["inputs"]],
        authors=_authors(job, run, player),
        live=bool(player.config.rollouts.env),
        nulled=player.config.train.placebo,
        evaluations=_evaluations(run),
        successes=_successes(run),
        reproduce=_reproduce(run),
        commands=commands,
        versions=view["versions"],
        notes=[
            *facts["notes"],
            *([f"the start: {weights}"] if (weights := run.info().get("weights")) else []),
            f"checkpoint of step {player.steps}; the run is {state_text(view['state'])}",
        ],
    )


def _authors(job: Job, run: RunDir, player: Player) -> dict[str, int]:
    """Author -> number of messages trained on; {} if the work folder's files are not the run's."""
    examples, meta = job.examples / EXAMPLES, job.examples / META
    if not (examples.exists() and meta.exists() and job.sessions.exists()):
        return {}
    used = {entry["sha256"] for entry in json.loads(run.manifest_json.read_bytes())["inputs"]}
    built = {entry["sha256"] for entry in json.loads(meta.read_bytes()).get("inputs", ())}
    if sha256_of(examples) not in used or sha256_of(job.sessions) not in built:
        return {}
    messages: Counter[str] = Counter()
    held_out = resolve_split_unit(player.config.held_out, read_sessions(job.sessions))
    for session in read_sessions(job.sessions):
        if not is_held_out(session, settings=held_out):
            messages.update(turn.author or UNKNOWN for _, turn in session.assistant_turns())
    return dict(messages.most_common())


def _successes(run: RunDir) -> list[tuple[str, int, str]]:
    """(row, episodes, success with its interval) of the evaluation on tasks."""
    played = read_evaluation(run.evaluation_json)
    return [
        (
            str(row["name"]),
            int(row["n"]),
            f"{row['success']:.3f} [{row['success_low']:.3f}, {row['success_high']:.3f}]",
        )
        for row in (played or {}).get("rows", ())
        if {"n", "success", "success_low", "success_high"} <= row.keys()
    ]


def _reproduce(run: RunDir) -> str:
    """The command that ran, without the folders of this machine: of a path, the last name."""
    if not run.command_txt.exists():
        return ""
    return shlex.join(without_folders(shlex.split(run.command_txt.read_text("utf-8"))))


def without_folders(value: Any) -> Any:
    """A JSON value in which absolute paths are their last names: folders name people and clients.

    >>> without_folders({"model": "/home/ada/acme/base", "steps": 3})
    {'model': 'base', 'steps': 3}
    """
    if isinstance(value, dict):
        return {key: without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_folders(inner) for inner in value]
    if isinstance(value, str) and Path(value).is_absolute():
        return Path(value).name
    return value


def _evaluations(run: RunDir) -> list[tuple[str, str, list[str]]]:
    """(title, verdict, reasons) of each evaluation of the run."""
    evaluations: list[tuple[str, str, list[str]]] = []
    played, logs = read_evaluation(run.evaluation_json), read_logs(run)
    for title, value in (
        (f"On unseen tasks of {(played or {}).get('env', 'the built-in workshop')}", played),
        ("At held-out mistakes of the logs", logs),
    ):
        if value is not None:
            evaluations.append(
                (title, value["verdict"]["sentence"], list(value["verdict"]["reasons"]))
            )
    return evaluations
