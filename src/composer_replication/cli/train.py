"""`recompose train`: examples -> a run directory, with the reference trainer."""

from __future__ import annotations

from functools import partial

from composer_replication.cli.backend_refusals import check_backend
from composer_replication.cli.flags import Common
from composer_replication.cli.forks import fork_producer
from composer_replication.cli.held_out_contexts import print_evaluable
from composer_replication.cli.hint_gate import check_examples, kept_kinds, print_gate
from composer_replication.cli.job import open_job, with_hint_position
from composer_replication.cli.memory_text import print_fit, run_fit, warn_of_fit
from composer_replication.cli.resume_checks import check_same_settings
from composer_replication.cli.resuming import resume_command
from composer_replication.cli.student_tokenizer import student_renderer
from composer_replication.cli.sync_store import check_resumed, check_sync_store, print_sync_plan
from composer_replication.cli.train_backends import check_resumable
from composer_replication.cli.train_data import (
    load_examples,
    tokenizer_of,
    with_built_split,
    with_own_adapter,
)
from composer_replication.cli.train_here import tell_driver, train_here
from composer_replication.cli.train_prime_rl import write_for_prime_rl
from composer_replication.cli.train_replicas import train_replicas
from composer_replication.cli.train_run import finish_dry, new_run, print_resume, run_to_resume
from composer_replication.cli.train_text import show_plan
from composer_replication.core.errors import need
from composer_replication.models.context_length import check_context
from composer_replication.tokens.artefact import Dataset
from composer_replication.training.draws.plan import check_train_plan
from composer_replication.training.run.trackers import check_trackers


@tell_driver()
def train_command(
    *,
    resume: str = "",
    accept_changes: bool = False,
    check: bool = False,
    name: str = "",
    memory_gb: float = 0.0,
    cards: int = 0,
    replicas: int = 0,
    common: Common = Common(),
) -> int:
    """Train the student on examples/ and, with rollouts.env, on what it does itself: a new run
    directory under runs/.

    Parameters
    ----------
    resume
        Resume this run from its newest checkpoint: its folder, its name, or latest. The folder of
        one of its checkpoints resumes from that one, and sets later ones aside.
    accept_changes
        Resume even if settings differ from those of the run.
    check
        Do not train: compute one step with the backend and with the reference trainer, and compare
        loss and gradient norm per channel.
    name
        Name of the new run. Default: the date and a letter.
    memory_gb
        Memory of the card in GB, for --dry-run and the warning before training. 0 = the detected
        GPU, else this machine's memory.
    cards
        Number of such cards that share the weights (train.fsdp); 0 = those of this launch.
    replicas
        Start this many replicas on this machine, which sync through --sync URL (file:///folder or
        s3://bucket/run). Without this flag, --sync makes this process one replica.
    """
    job = open_job(common, uses=("env", "server", "detectors", "writers"))
    for package in ("torch", "transformers", "accelerate"):
        need(package, extra="train")
    check_trackers(job.config.train.trackers)
    check_sync_store(job, replicas)
    job = with_own_adapter(job)
    resumed = run_to_resume(job, resume)
    if resumed is not None and job.auto_position:
        # a later audit may have chosen another position; the run keeps its own
        job = with_hint_position(job, resumed[0].resolved()["hints"]["position"])
    check_same_settings(job, resumed, accept_changes=accept_changes)
    live = bool(job.config.rollouts.env)
    tokenizer = tokenizer_of(job)
    data = (
        load_examples(job, tokenizer)
        if job.examples.is_dir() or not live
        else Dataset(examples=(), pairs=(), meta={})
    )
    job = with_built_split(job, data)
    config = job.config
    if live:
        check_context(
            config.student,
            config.rollouts.max_context_tokens,
            what="the longest episode",
            where="rollouts.max_context_tokens",
        )
    check_examples(job, data, kinds := kept_kinds(job))
    job.warn_stale(*([job.examples.name] if data.meta else []))
    sources = check_backend(config, data)
    if resume:
        check_resumable(config.train.backend)
    plan = show_plan(job, data) | print_sync_plan(job, replicas)
    print_gate(job, kinds)
    forked = fork_producer(job, data, tokenizer=tokenizer) if config.train.fork else None
    if forked is not None:
        counts = (
            f"{len(forked.fork_points(data.examples))} imported sites, {config.train.fork_sites} of"
            " them a step"
        )
        job.screen.line(
            f" fork     {counts}: the student writes the message, its own failures are distilled"
        )
    check_train_plan(
        config.train,
        examples=data.examples,
        pairs=data.pairs,
        imported=not live or config.train.lm_ce.weight > 0,
    )
    fit = run_fit(job, data, memory_gb=memory_gb, cards=cards)
    if resumed is not None:
        print_resume(job, *resumed)
        again = resume_command(job, resumed[0].path, accept_changes=accept_changes)
        check_resumed(resumed[0], replicas, again=again)
    if job.dry_run:
        if data.meta and job.is_usable(job.sites):
            plan["evaluable"] = print_evaluable(
                job, student_renderer(tokenizer, config), config.held_out
            )
        plan["memory"] = print_fit(job, fit)
        return finish_dry(
            job, plan, data, resumed, name=name, accept_changes=accept_changes, replicas=replicas
        )
    warn_of_fit(job, fit)
    if config.train.backend == "prime_rl" and not check:
        return write_for_prime_rl(job, new_run(job, data, name, sources, weights=""))
    make = partial(new_run, job, data, name, sources)
    if replicas:
        return train_replicas(job, replicas, make=partial(make, weights=""), resumed=resumed)
    return train_here(
        job,
        data,
        make=make,
        resumed=resumed,
        check=check,
        accept_changes=accept_changes,
        forked=forked,
        kinds=kinds,
        tokenizer=tokenizer,
    )
