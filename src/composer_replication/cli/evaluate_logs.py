"""`recompose evaluate --logs`: each student writes the message at held-out sites of the logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from composer_replication.cli.build_split import flags_of, splits
from composer_replication.cli.evaluate_logs_text import (
    SHOWN,
    print_plan,
    show_rows,
    show_side_by_side,
)
from composer_replication.cli.held_out_contexts import window_remedy
from composer_replication.cli.held_out_splits import (
    held_sites,
    setting_text,
    split_with_mistakes,
)
from composer_replication.cli.job import Job
from composer_replication.cli.next_step import next_step
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.core.rundir import RunDir, sha256_of
from composer_replication.report.html import plural
from composer_replication.report.logs_view import logs_view
from composer_replication.tokens.artefact import EXAMPLES, load_dataset

if TYPE_CHECKING:
    from composer_replication.evaluation.held_out_sites import HeldOut
    from composer_replication.evaluation.players import Player

NOT_PROVEN = (
    "The examples that the run was trained on are no longer here: that it never saw these sessions"
    " rests on its settings alone."
)


def show_log_plan(job: Job) -> int:
    """Print how many held-out sites there are, and the smallest change that they can show."""
    held = held_sites(job, job.config.held_out)
    plan = print_plan(job, held)
    if not held.sites:
        job.screen.line(f" fix      {_remedy(job)}", style="yellow")
    return job.finish(
        {"plan": plan}, wrote=[], next_command=next_step(job) if held.sites else _next_split(job)
    )


def evaluate_on_logs(
    job: Job, folder: RunDir, players: Sequence[Player], *, notes: Sequence[str], seed: int
) -> int:
    """Let every player write at the held-out sites; the first two players are before and after."""
    after = players[1]
    settings = after.config.held_out
    for player in players:
        if player.config.held_out != settings:
            raise DataError(
                "that run was trained with other held_out settings",
                where=player.name,
                fix="train it on the same examples",
            )
    held = held_sites(job, settings)
    plan = print_plan(job, held)
    if not held.sites:
        raise DataError("no held-out site to evaluate at", where=str(job.sites), fix=_remedy(job))
    notes = [*notes, *_check_training(job, folder, held)]
    wrote = [
        folder.evaluation_logs_json,
        *(folder.written_at_sites(player.name) for player in players),
    ]
    if job.dry_run:
        return job.finish(
            {"plan": plan, "rows": [player.name for player in players], "notes": notes}, wrote=wrote
        )
    from composer_replication.evaluation.held_out_logs import (
        fork_points_of,
        message_to_json,
        play_logs,
    )
    from composer_replication.evaluation.held_out_sites import restore_contexts
    from composer_replication.evaluation.logs_table import logs_table
    from composer_replication.evaluation.players import load_player, play_distinct

    evaluation = job.config.evaluate
    renderer = load_player(after)[1]
    max_tokens, room = after.config.build.max_tokens, evaluation.log_max_new_tokens
    restored = restore_contexts(held, renderer=renderer, max_tokens=max_tokens, room=room)
    remedy = window_remedy(job, held, restored, renderer=renderer, max_tokens=max_tokens, room=room)
    where = f"build.max_tokens = {max_tokens} of the run {after.name}"
    if not restored.contexts:
        listed = ", ".join(f"{reason} {count}" for reason, count in restored.num_lost.items())
        raise DataError(
            f"no context of {len(held.sites)} held-out sites fits: {listed}",
            where=where,
            fix=remedy or "set student.template to a family that can write these sessions",
        )
    fork_points = fork_points_of(restored)
    notes += [
        f"{plural(count, 'held-out site')} left out: {reason} ({where})."
        for reason, count in restored.num_lost.items()
    ]
    notes += [f"To judge at more sites: {remedy}"] if remedy else []
    play = partial(
        play_logs,
        fork_points=fork_points,
        settings=evaluation,
        batch=after.config.rollouts.batch_episodes,
        seed=seed,
    )
    shown = play_distinct(
        play,
        players,
        workers=evaluation.workers,
        on_played=lambda s: job.screen.detail(
            f" wrote    {s.name}: {plural(len(s.forks), 'message')}"
        ),
    )
    table = logs_table(
        {row.name: row.forks for row in shown},
        held=held,
        settings=evaluation,
        seed=seed,
        notes=notes,
    )
    table["steps"] = {player.name: player.steps for player in players}
    table["inputs"] = {path.name: sha256_of(path) for path in (job.sessions, job.sites)}
    table["weights_sha256"] = {row.name: row.weights_sha256 for row in shown}
    redactor = job.redactor()
    for path, row in zip(wrote[1:], shown, strict=True):
        write_lines(path, (redactor.value(message_to_json(fork)) for fork in row.forks))
    write_json(folder.evaluation_logs_json, table)
    show_rows(job, table)
    show_side_by_side(job, logs_view(folder, work=job.work), most=SHOWN)
    return job.finish(
        table, wrote=wrote[:1], next_command=f"{job.command('report')} {folder.path.name}"
    )


def _check_training(job: Job, folder: RunDir, held: HeldOut) -> list[str]:
    """Check that no held-out session was trained on; returns a note if the examples are gone."""
    from composer_replication.evaluation.held_out_sites import check_untrained

    path, manifest = job.examples / EXAMPLES, folder.manifest_json
    used = (
        {entry["sha256"] for entry in json.loads(manifest.read_bytes())["inputs"]}
        if manifest.exists()
        else set[str]()
    )
    if not path.exists() or sha256_of(path) not in used:
        return [NOT_PROVEN]
    data = load_dataset(job.examples, allow_refused=True)
    trained = {item.session_id for item in (*data.examples, *data.pairs)}
    check_untrained(held, trained, where=str(folder.path))
    return []


def _next_split(job: Job) -> str:
    """`build` with the nearest split that holds out a mistake and leaves sessions to train on."""
    for split in splits(job, job.config.held_out) if job.is_usable(job.hints) else ():
        if split.fraction and (held := held_sites(job, split)).sites and held.num_training_sessions:
            return job.command("build", flags_of(split, job.config.held_out))
    return job.command("show session") if job.is_usable(job.hints) else next_step(job)


def _remedy(job: Job) -> str:
    settings = job.held_out()
    split_text = "give more logs: no share up to half of these holds out a mistake"
    if not settings.fraction:
        split_text = f"hold out {settings.by} units that hold mistakes (held_out.fraction = 0.2)"
    elif (some := split_with_mistakes(job, settings)) is not None:
        split, count = some
        split_text = f"{setting_text(split, settings)}, which holds out {plural(count, 'mistake')}"
    return f"{split_text}, then: {job.command('build')}, {job.command('train')}"
