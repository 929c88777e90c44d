"""`recompose curate`: preferences.jsonl -> curated.jsonl, the pairs that are fit to train on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from composer_replication.cli.curate_check import check_agreement
from composer_replication.cli.flags import Common
from composer_replication.cli.job import Job, open_job
from composer_replication.cli.next_step import after_curate
from composer_replication.core.codec import read_preferences, read_sessions, record_to_json
from composer_replication.core.errors import DataError, StoppedError
from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.core.site import Preference
from composer_replication.data.curate.curator import LEAKS, Curator, Dropped
from composer_replication.data.curate.data_juicer import DataJuicer, curate_with
from composer_replication.data.curate.pair import Pair, session_pairs
from composer_replication.data.curate.pair_export import export_rows
from composer_replication.data.curate.recipe import DUPLICATES, load_recipe
from composer_replication.report.html import plural
from composer_replication.tokens.split import is_held_out


def curate_command(*, check: bool = False, common: Common = Common()) -> int:
    """Keep the pairs that are fit to train on: preferences.jsonl -> curated.jsonl, dropped.jsonl,
    curate.json.

    Parameters
    ----------
    check
        Also check the agreement: the null test (answers dealt to other turns should make hardly any
        pairs; exit code 3 if they still make most of them), and the pairs without each family of
        teachers in turn.
    """
    job = open_job(common, uses=("recipe", "data_juicer"))
    settings = job.config.curate
    job.need_file(job.sessions, verb="ingest")
    job.need_fresh(job.preferences, verb="replay")
    recipe = load_recipe(settings.recipe)
    pairs = list(_pairs(job))
    if settings.engine == "data_juicer":
        curator, verdicts = curate_with(
            DataJuicer(Path(settings.data_juicer_python)), recipe, pairs
        )
    else:
        curator = Curator(recipe)
        verdicts = [(pair, curator.judge(pair)) for pair in pairs]
    kept_pairs = [pair for pair, dropped in verdicts if dropped is None]
    dropped_pairs = [dropped for _, dropped in verdicts if dropped is not None]
    report = {**asdict(curator.report()), "idle": list(curator.idle), "engine": settings.engine}
    _show(job, report, dropped_pairs)
    if check:
        report["check"] = check_agreement(job)
    wrote = _paths(job)
    if not job.dry_run:
        _write(job, kept_pairs, dropped_pairs, report)
    failed = check and report["check"]["null_test"]["passed"] is False
    code = job.finish(
        report, wrote=wrote, next_command=job.command("replay") if failed else after_curate(job)
    )
    return StoppedError.exit_code if failed else code


def _paths(job: Job) -> list[Path]:
    names = [
        "dropped.jsonl",
        "curate.json",
        *(["curated_rows.jsonl"] if job.config.curate.rows else []),
    ]
    return [job.curated, *(job.work / name for name in names)]


def _write(
    job: Job, kept_pairs: list[Pair], dropped_pairs: list[Dropped], report: dict[str, Any]
) -> None:
    curated, dropped, about, *rows = _paths(job)
    write_lines(curated, (record_to_json(pair.preference) for pair in kept_pairs))
    job.stamp(curated, made_from=[job.sessions, job.preferences])
    write_lines(dropped, map(asdict, dropped_pairs))
    write_json(about, report)
    for path in rows:
        write_lines(path, export_rows(kept_pairs))


def _pairs(job: Job) -> Iterator[Pair]:
    """Yield the pairs of every session, held-out sessions first.

    The curator drops later duplicates, so a training pair that leaks a held-out one is dropped.
    """
    by_session: dict[str, list[Preference]] = defaultdict(list)
    for preference in read_preferences(job.preferences):
        by_session[preference.session_id].append(preference)
    held, settings = dict[str, bool](), job.held_out()
    for held_out in (True, False):
        for session in read_sessions(job.sessions):
            if session.id not in held:
                held[session.id] = is_held_out(session, settings=settings)
            if held[session.id] == held_out and session.id in by_session:
                yield from session_pairs(session, by_session[session.id], held_out=held_out)
    if missing := sorted(by_session.keys() - held.keys()):
        raise DataError(
            f"{plural(len(missing), 'session')} with pairs that are not here, e.g. {missing[0]}",
            where=str(job.preferences),
        )


def _like(dropped: Dropped) -> str:
    return f"like {dropped.detail}" if dropped.reason in (*DUPLICATES, LEAKS) else dropped.detail


def _show(job: Job, report: dict[str, Any], dropped_pairs: list[Dropped]) -> None:
    screen = job.screen
    screen.line(f" recipe   {report['recipe']}, engine {report['engine']}")
    kept_counts = (
        f"{report['kept']}: {report['kept_train']} to train on, {report['kept_held_out']} held out"
    )
    screen.line(
        f" pairs    {report['pairs']}, kept {kept_counts} (of"
        f" {plural(report['sessions'], 'session')},"
        f" {plural(report['repositories'], 'repository', 'repositories')})"
    )
    example = {
        dropped.reason: f"{dropped.pair_id}: {_like(dropped)}"
        for dropped in reversed(dropped_pairs)
    }
    rows = [(reason, count, example[reason]) for reason, count in report["dropped"].items()]
    if rows:
        screen.table(rows, head=("dropped by", "pairs", "the first of them"))
    for name in report["idle"]:
        screen.line(f" not run  {name}: no student's template is at hand", style="yellow")
    if not report["pairs"]:
        screen.line(
            f" {job.preferences} holds no pair: the teachers agreed nowhere against the student, or"
            " were not asked",
            style="yellow",
        )
    elif not report["kept"]:
        screen.line(
            " every pair was dropped: the preference channel would have nothing to train on",
            style="yellow",
        )
