"""`recompose evaluate`: a run's student, its start and its controls on unseen tasks.

Writes evaluation.json. With --logs the tasks are held-out sites of the user's logs
(cli/evaluate_logs.py).
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from composer_replication.cli.evaluate_logs import evaluate_on_logs, show_log_plan
from composer_replication.cli.evaluate_text import show_evaluation
from composer_replication.cli.flags import Common
from composer_replication.cli.job import Job, open_job
from composer_replication.cli.next_step import held_out_sessions
from composer_replication.cli.problems import UsageError
from composer_replication.cli.resuming import chosen_player, print_chosen
from composer_replication.core.codec import write_sessions
from composer_replication.core.config.rollout_settings import DEFAULT_ENV, RolloutSettings
from composer_replication.core.config.root import Config
from composer_replication.core.errors import need
from composer_replication.core.jsonl import write_json
from composer_replication.report.html import plural
from composer_replication.report.logs_view import read_logs

if TYPE_CHECKING:
    from composer_replication.evaluation.players import PlayerEpisodes


def evaluate_command(
    run: str = "",
    /,
    *,
    logs: bool = False,
    against: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    common: Common = Common(),
) -> int:
    """Play a run's newest checkpoint ("after") and its start ("before") on tasks that no training
    saw, without hints: those of your own environment (rollouts.env) if the run was trained in it,
    else those of the built-in workshop. Of rollouts.env = "repo": the held-out repositories.

    Parameters
    ----------
    run
        Run folder or name, or the folder of one of its checkpoints. Default: the latest run; with
        --logs, no run.
    logs
        Measure how often mistakes recur: at the held-out mistakes of your own logs, each student
        writes the message itself. Without a run: print how many such sites there are, and the
        smallest change they can detect.
    against
        Add a row, as NAME=RUN, e.g. placebo=runs/placebo or more_sft=runs/more_sft. Repeatable.
    """
    job = open_job(common, uses=("env",))
    for package in ("torch", "transformers"):
        need(package, extra="train")
    if logs and not run:
        return show_log_plan(job)
    from composer_replication.core.config.base import stage_seed
    from composer_replication.evaluation.players import (
        check_never_trained,
        check_players,
        play_all,
        start_of,
    )
    from composer_replication.evaluation.success import evaluation_tasks
    from composer_replication.evaluation.table import AFTER, evaluation_table, foreign_tasks_note
    from composer_replication.rollouts.task_source import open_world

    folder, after = chosen_player(job, "evaluate", run, name=AFTER)
    print_chosen(job, folder, after)
    job.warn_changed(folder)
    arguments = f"{shlex.quote(folder.path.name)} --against "
    others = [
        chosen_player(job, "evaluate", run_name, name=name, arguments=f"{arguments}{name}=")[1]
        for name, run_name in map(_named, against)
    ]
    players = [start_of(after), after, *others]
    notes, seed = check_players(after, others), stage_seed(job.config.seed, "evaluation")
    if logs:
        return evaluate_on_logs(job, folder, players, notes=notes, seed=seed)
    settings = job.config.evaluate
    name = shlex.quote(folder.path.name)
    on_logs_command = job.command("evaluate", f"{name} --logs")
    env = env_to_play(after.config.rollouts.env, settings=job.config)
    world = settings_to_open(job.config.rollouts, trained_with=after.config.rollouts)
    with open_world(env, settings=world) as source:
        metadata = source.metadata
        if source.adaptive is not None:
            unseen = evaluation_tasks(settings, seed=seed, source=source)
            check_never_trained(players, {task.id for task in unseen})
    strange = foreign_tasks_note(
        after.config.rollouts.env,
        played=env,
        metadata=metadata,
        on_logs=f"{job.command_without_settings('evaluate')} {name} --logs",
    )
    for note in strange:
        job.screen.line(f" note     {note}", style="yellow")
    notes = [*strange, *notes]
    job.screen.line(
        f" {folder.path.name}: {plural(settings.tasks, 'task')} of {metadata.title or env} for"
        f" each of {', '.join(p.name for p in players)}"
    )
    wrote = [folder.evaluation_json, *(folder.evaluated(player.name) for player in players)]
    if job.dry_run:
        return job.finish({"rows": [p.name for p in players], "notes": notes}, wrote=wrote)
    shown = play_all(
        players,
        settings=settings,
        limits=after.config.rollouts,
        seed=seed,
        env=env,
        world=world,
        on_played=lambda s: _tell(job, s),
    )
    for player, row in zip(players, shown, strict=True):
        sessions = [s for played in row.episodes for s in (played.session, *played.later)]
        write_sessions(folder.evaluated(player.name), sessions)
    table = evaluation_table(
        {row.name: row.episodes for row in shown},
        settings=settings,
        seed=seed,
        metadata=metadata,
        own_env="" if env == DEFAULT_ENV else env,
        notes=notes,
    )
    table["env"], table["own_tasks"] = metadata.title or env, not strange
    table["steps"] = {player.name: player.steps for player in players}
    table["weights_sha256"] = {row.name: row.weights_sha256 for row in shown}
    write_json(folder.evaluation_json, table)
    show_evaluation(job, folder, on_logs=on_logs_command)
    judge_logs = strange and read_logs(folder) is None and held_out_sessions(job)
    report_command = f"{job.command('report')} {folder.path.name}"
    return job.finish(
        table,
        wrote=wrote[:1],
        next_command=on_logs_command if judge_logs else report_command,
    )


def env_to_play(trained_in: str, *, settings: Config) -> str:
    """The user's environment that a run was trained in, if today's settings name it too: they are
    trusted, a run folder may come from anywhere. Else the built-in one."""
    return trained_in if trained_in == settings.rollouts.env and trained_in else DEFAULT_ENV


def settings_to_open(today: RolloutSettings, *, trained_with: RolloutSettings) -> RolloutSettings:
    """The settings with which a run's tasks are opened: its own limits and held-out repositories,
    and the folder of tasks that today's settings name, which are trusted."""
    repo = trained_with.repo.model_copy(update={"tasks": today.repo.tasks})
    return today.model_copy(update={"repo": repo})


def _named(text: str) -> tuple[str, str]:
    name, equals, run = text.partition("=")
    if not (name and equals and run) or Path(name).name != name or name.startswith("."):
        raise UsageError(
            f"not NAME=RUN: {text}",
            where="--against",
            fix="write, say, --against placebo=runs/placebo",
        )
    return name, run


def _tell(job: Job, shown: PlayerEpisodes) -> None:
    job.screen.detail(
        f" played   {shown.name}: {plural(len(shown.episodes), 'episode')}, weights"
        f" {shown.weights_sha256[:12]}"
    )
