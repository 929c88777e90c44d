"""`recompose build`: sessions, sites, hints and what replay found -> examples/, token sequences for one student."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from composer_replication.cli.flags import Common
from composer_replication.cli.gate import kept_kinds, say_gate
from composer_replication.cli.job import Job, open_job
from composer_replication.cli.student import FOLDER, make_tokenizer
from composer_replication.core.codec import read_anchors, read_hints, read_preferences, read_sessions, read_sites
from composer_replication.core.files import save_folder
from composer_replication.core.rundir import sha256_of
from composer_replication.tokens.artefact import BuildReport, report, tally, write_dataset
from composer_replication.tokens.dataset import Item, build_examples
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.split import is_held_out, split_unit


def build(*, common: Common = Common()) -> int:
    """Token sequences for the student: sessions, sites, hints, preferences and anchors -> examples/."""
    job = open_job(common)
    inputs = [job.need_file(job.sessions, verb="ingest"), job.need_fresh(job.sites, verb="sites"), job.need_fresh(job.hints, verb="hints")]
    inputs += [path for path in _pairs_and_anchors(job) if path is not None]
    kept = kept_kinds(job)
    inputs += [job.audit] if kept is not None else []
    tokenizer = make_tokenizer(job.config, job.sessions)
    renderer = Renderer.for_tokenizer(tokenizer, family=job.config.student.template)
    split = split_counts(job)
    if job.dry_run:
        counts: Counter[str] = Counter()
        deque(tally(_items(job, renderer, kept), into=counts), maxlen=0)
        done = report(counts)
    else:
        tokenizer.chat_template = renderer.template  # what the student is trained on is what it must be served with
        save_folder(job.examples / FOLDER, tokenizer.save_pretrained)
        done = write_dataset(job.examples, _items(job, renderer, kept), meta=_meta(job, renderer, inputs, split))
    value = {**asdict(done), "held_out": split, "renderer": renderer.describe(), "kept_kinds": None if kept is None else sorted(kept)}
    _show(job, renderer, done, split)
    say_gate(job, kept)
    if job.preferences in inputs:
        job.screen.line(f" pairs    raw, of {job.preferences.name}: not curated; {job.command('curate')}", style="yellow")
    return job.finish(value, wrote=[job.examples], next_command=job.command("train" if done.examples or done.pairs else "show site"))


def _pairs_and_anchors(job: Job) -> tuple[Path | None, Path | None]:
    """The file that build.pairs names, on its own; else what `curate` kept, or what `replay` wrote for these sessions."""
    if job.config.build.pairs:
        return job.need_file(Path(job.config.build.pairs), verb="build"), None
    pairs, anchors = (job.need_fresh(path, verb="replay") if path.exists() else None for path in (job.preferences, job.anchors))
    return job.need_fresh(job.curated, verb="curate") if job.curated.exists() else pairs, anchors


def _items(job: Job, renderer: Renderer, kept: frozenset[str] | None) -> Iterator[Item]:
    config = job.config
    pairs, anchors = _pairs_and_anchors(job)
    return build_examples(
        read_sessions(job.sessions),
        sites=read_sites(job.sites),
        hints=read_hints(job.hints),
        preferences=read_preferences(pairs) if pairs else (),
        anchors=read_anchors(anchors) if anchors else (),
        renderer=renderer,
        settings=config.build,
        held_out=config.held_out,
        kept=kept,
    )


def split_counts(job: Job) -> dict[str, Any]:
    """How many sessions, and units of the split, are trained on and held out."""
    settings = job.config.held_out
    sessions: Counter[bool] = Counter()
    units: dict[bool, set[str]] = {True: set(), False: set()}
    for session in read_sessions(job.sessions):
        out = is_held_out(session, settings=settings)
        sessions[out] += 1
        units[out].add(split_unit(session, by=settings.by))
    return {
        "by": settings.by,
        "fraction": settings.fraction,
        "train_sessions": sessions[False],
        "held_out_sessions": sessions[True],
        "train_units": len(units[False]),
        "held_out_units": len(units[True]),
    }


def _meta(job: Job, renderer: Renderer, inputs: list[Path], split: dict[str, Any]) -> dict[str, Any]:
    return {
        **renderer.describe(),
        "student": job.config.student.model,
        "build": job.config.build.model_dump(mode="json"),
        "held_out": split,
        "inputs": [{"path": str(path), "sha256": sha256_of(path)} for path in inputs],
    }


def _show(job: Job, renderer: Renderer, done: BuildReport, split: dict[str, Any]) -> None:
    screen, about = job.screen, renderer.describe()
    screen.line(f" student  {job.config.student.model}, template {about['family']}, {about['vocab_size']} tokens in its vocabulary")
    by = split["by"]
    told = f"{split['train_sessions']} sessions to train on, {split['held_out_sessions']} held out"
    screen.line(f" split    by {by}: {told} ({split['train_units']} and {split['held_out_units']} units)")
    screen.line(f" examples {done.examples}, {done.tokens} tokens, longest {done.longest} of {job.config.build.max_tokens}")
    rows = [
        ("lm_ce", done.trained_messages, done.trained_tokens, "messages that are no mistake"),
        ("hint", done.views, done.target_tokens, "mistaken messages with a hint"),
        ("preference", done.pairs, "", "pairs"),
        ("anchors", done.anchors, done.anchored_tokens, "messages that the preference channel holds in place"),
    ]
    screen.table(rows, head=("channel", "units", "tokens", "what"))
    if done.skipped:
        screen.line("\n left out, by channel and reason (skipped.jsonl has each):")
        screen.table(done.skipped.items(), head=("channel/reason", "count"))
    screen.line(f" look     {job.command('show example e001')}")
