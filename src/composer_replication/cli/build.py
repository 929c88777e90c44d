"""`recompose build`: sessions, sites, hints and pairs -> examples/, token sequences."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache, partial

from composer_replication.cli.build_inputs import build_items, build_meta, pairs_and_anchors
from composer_replication.cli.build_lost_calls import (
    lost_calls,
    messages_with_calls,
    print_lost_calls,
)
from composer_replication.cli.build_refused import (
    Refused,
    lost_channel,
    note_refused,
    wider_windows,
)
from composer_replication.cli.build_split import split_counts
from composer_replication.cli.build_text import show_build
from composer_replication.cli.channel_units import unfed, units_per_channel
from composer_replication.cli.flags import Common
from composer_replication.cli.held_out_contexts import print_evaluable
from composer_replication.cli.hint_gate import kept_kinds, print_gate
from composer_replication.cli.job import Job, open_job
from composer_replication.cli.student_tokenizer import FOLDER, make_tokenizer, student_renderer
from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.core.config.root import Config
from composer_replication.core.errors import DataError
from composer_replication.core.files import save_folder
from composer_replication.models.context_length import check_context
from composer_replication.tokens.artefact import (
    BuildReport,
    build_report,
    count_items,
    write_dataset,
)
from composer_replication.tokens.renderer import Renderer


def build_command(*, common: Common = Common()) -> int:
    """Token sequences for the student: sessions, sites, hints, preferences and anchors ->
    examples/."""
    job = open_job(common)
    # hints before sites: if both are stale, this error names both verbs
    hints = job.need_fresh(job.hints, verb="hints") if job.sites.exists() else job.hints
    inputs = [
        job.need_file(job.sessions, verb="ingest"),
        job.need_fresh(job.sites, verb="sites"),
        hints,
    ]
    check_context(job.config.student, job.config.build.max_tokens, what="build.max_tokens")
    kinds = kept_kinds(job)
    inputs += [
        path
        for path in (*pairs_and_anchors(job), job.audit if kinds is not None else None)
        if path is not None
    ]
    held_out = job.held_out()
    split = split_counts(job, held_out)
    tokenizer = make_tokenizer(job.config, job.sessions)
    renderer = student_renderer(tokenizer, job.config)
    num_calling = cache(partial(messages_with_calls, job, held_out))
    judge = partial(_problem, job.config, renderer, num_calling)
    if job.dry_run:
        counts: Counter[str] = Counter()
        deque(count_items(build_items(job, renderer, kinds, held_out), into=counts), maxlen=0)
        report = build_report(counts)
    else:
        # the student must be served with the template that it is trained on
        tokenizer.chat_template = renderer.template
        save_folder(job.examples / FOLDER, tokenizer.save_pretrained)
        report = write_dataset(
            job.examples,
            build_items(job, renderer, kinds, held_out),
            meta=build_meta(job, renderer, inputs, split),
            judge=judge,
        )
    refused = None
    if (problem := judge(report)) is not None:
        refused = _with_way_out(
            job,
            problem,
            renderer=renderer,
            kinds=kinds,
            held_out=held_out,
            report=report,
            num_calling=num_calling,
        )
        if not job.dry_run:
            note_refused(job.examples, refused)
    value = {
        **asdict(report),
        "held_out": split,
        "renderer": renderer.describe(),
        "kept_kinds": None if kinds is None else sorted(kinds),
    }
    show_build(job, renderer, report, split)
    value["evaluable"] = print_evaluable(job, renderer, held_out)
    print_lost_calls(job, renderer, report)
    print_gate(job, kinds)
    if job.preferences in inputs:
        job.screen.line(
            f" pairs    raw, of {job.preferences.name}: not curated; {job.command('curate')}",
            style="yellow",
        )
    if refused is not None:
        raise refused.error
    unfed_channel = unfed(job, units_per_channel(job.config, value))
    if unfed_channel is not None:
        job.screen.line(f" train    would be refused: {unfed_channel.error()}", style="yellow")
    return job.finish(
        value,
        wrote=[job.examples],
        next_command=job.command("train") if unfed_channel is None else unfed_channel.command,
    )


def _problem(
    config: Config, renderer: Renderer, num_calling: Callable[[], int], report: BuildReport
) -> DataError | None:
    """Why the build is refused; None if it is not. `num_calling` counts the messages with calls."""
    lost = lost_calls(renderer, report, count=num_calling)
    return lost_channel(config, report) if lost is None else lost


def _with_way_out(
    job: Job,
    problem: DataError,
    *,
    renderer: Renderer,
    kinds: frozenset[str] | None,
    held_out: HeldOutSettings,
    report: BuildReport,
    num_calling: Callable[[], int],
) -> Refused:
    """The refusal for `problem`, with settings that were tried and avoid it, if there are any."""
    if lost_channel(job.config, report) is None:
        return Refused(error=problem)  # calls that the template cannot write: no window helps
    for flags, config in wider_windows(job.config):
        counts = Counter[str]()
        widened = replace(job, loaded=replace(job.loaded, config=config))
        deque(count_items(build_items(widened, renderer, kinds, held_out), into=counts), maxlen=0)
        attempt = build_report(counts)
        is_mended = _problem(config, renderer, num_calling, attempt) is None
        if is_mended and attempt.longest <= config.train.micro_tokens:
            fix = f"this was tried, and works: {job.command('build', flags)}\nor {problem.fix}"
            return Refused(error=DataError(problem.what, where=problem.where, fix=fix), flags=flags)
    return Refused(error=problem)
