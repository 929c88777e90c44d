"""The reference trainer: which examples and pairs each step gets, what is written down, when it
stops. training/step.py is the step.

A step is fed by up to four producers: live rollouts of the policy (training/live.py), its own turns
at the sites of imported logs (training/forked.py), imported examples and anchors, and imported
pairs (training/batch_sampler.py). With live rollouts, imported examples beside anchors are drawn
only where lm_ce has a weight. The same rollouts, examples and pairs are drawn on every rank. Random
numbers are seeded from (seed, step, rank), so a resumed run repeats the killed one bit by bit on
the same CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from composer_replication.core.checkpoints import whole_checkpoint
from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import RunDir
from composer_replication.losses.channel import CHANNELS, Status
from composer_replication.losses.total import RunningMean
from composer_replication.models.load_student import Student
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training.batch_sampler import Sampler
from composer_replication.training.checkpoint import (
    check_resume,
    load_extra,
    load_tensors,
    read_state,
    remove_partial_checkpoints,
    save_checkpoint,
    set_aside,
    training_settings,
)
from composer_replication.training.forked import Forked, TrainForkPoint, without_views
from composer_replication.training.generator import Generator
from composer_replication.training.hinting import check_views
from composer_replication.training.identity import data_sha256, weights_sha256
from composer_replication.training.kept_reference import KeptReference, keep_reference
from composer_replication.training.live import LiveStep, RolloutSource, few
from composer_replication.training.packing import sharing
from composer_replication.training.placebo import null_data
from composer_replication.training.plan import check_train_plan
from composer_replication.training.reference import live as current
from composer_replication.training.rollback import Guard
from composer_replication.training.rollout_metrics import lost_rollouts
from composer_replication.training.run_logger import Doing, Listener, RunLogger
from composer_replication.training.state import Trainer, make_trainer
from composer_replication.training.step import train_step
from composer_replication.training.token_probe import (
    keep_watched,
    kept_watched,
    probe_examples,
    token_table,
)

NUM_SAMPLES = 8
"""Episodes of a step that are written to samples/."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """How a run ended: steps taken, the last step's line and statuses, and the newest
    checkpoint."""

    run: RunDir
    steps: int
    statuses: dict[str, Status]
    metrics: dict[str, Any]
    checkpoint: Path | None


def train(
    config: Config,
    *,
    student: Student,
    examples: Sequence[TrainingExample] = (),
    pairs: Sequence[PreferencePair] = (),
    run: RunDir,
    live: RolloutSource | None = None,
    forked: Forked | None = None,
    reference: Path | None = None,
    resume: bool = False,
    resume_step: int | None = None,
    accept_changes: bool = False,
    on_step: Listener | None = None,
    on_event: Listener | None = None,
    on_progress: Callable[[Doing], None] | None = None,
) -> TrainResult:
    """Train `student` in place for config.train.steps steps and write the run directory.

    `student` holds the start weights also when resuming (they are the frozen teacher); the newest
    checkpoint is loaded here, or the one after `resume_step` steps: later ones are then set aside.
    `reference` is a folder that keeps the reference's log-probs of the pairs between runs.
    `on_progress` is called several times a second with the phase that a step is in.
    Raises StoppedError (exit code 3) where a channel stays starved or dead, or where a rule on the
    live policy is broken (the newest good weights are put back first), DataError where there is
    nothing to train on, ConfigError where an item does not fit into one forward.
    """
    settings, imported = config.train, live is None or config.train.lm_ce.weight > 0
    _check_sources(config, examples=examples, pairs=pairs, live=live, forked=forked)
    check_train_plan(settings, examples=examples, pairs=pairs, imported=imported)
    if not resume and run.metrics():
        raise DataError(
            "this run has taken steps already",
            where=str(run.path),
            fix="resume it, or start a new run",
        )
    accelerator = Accelerator()
    trainer = make_trainer(config, student=student, accelerator=accelerator)
    if trainer.why_rows:
        check_train_plan(settings, examples=examples, pairs=pairs, imported=imported, layout="rows")
    data = null_data(examples, pairs, settings=settings, seed=config.seed, imported=imported)
    spots = forked.spots(data[0]) if forked is not None else ()
    sampler = _sampler(
        config,
        without_views(data[0]) if forked is not None else data[0],
        data[1],
        imported=imported,
    )
    env_sha256 = "" if live is None else live.world.sha256()
    identity = {
        "data_sha256": data_sha256(examples, pairs),
        "start_sha256": weights_sha256(student.model),
        "env_sha256": env_sha256,
    }
    journal = _journal(trainer, run, on_step=on_step, on_event=on_event, on_progress=on_progress)
    guard = Guard.of(trainer, live=live, journal=journal) if live is not None else None
    generator = (
        Generator.of(config.rollouts, lora=student.lora, ranks=accelerator.num_processes)
        if guard is not None
        else None
    )
    with journal.attempt():
        kept = _reference(trainer, sampler, folder=reference)
        first = (
            _resume(
                trainer, journal, identity, guard, step=resume_step, accept_changes=accept_changes
            )
            if resume
            else 0
        )
        counted = {
            "ranks": accelerator.num_processes,
            "examples": len(examples),
            "pairs": len(pairs),
        }
        journal.event(
            "start",
            step=first,
            **counted,
            **_layout(trainer, examples, pairs),
            **({} if kept is None else kept.facts),
        )
        if guard is not None and first == 0:
            _checkpoint(trainer, journal, 0, identity, guard)
        sites = (
            []
            if not settings.hint.weight
            else probe_examples(data[0])
            if live is None
            else kept_watched(run)
            if first
            else []
        )
        line: dict[str, Any] = (
            next((m for m in reversed(run.metrics()) if m["step"] <= first), {}) if first else {}
        )
        for step in range(first, settings.steps):
            drawn, drawn_pairs = sampler.step(step)
            drawn_pairs = drawn_pairs if kept is None else kept.told(drawn_pairs)
            made, rollouts = None, dict[str, Any]()
            if guard is not None:
                made = _play(guard, generator, step=step)
                drawn = [*made.examples, *drawn]
                rollouts = {
                    "num_rollouts": made.num_rollouts,
                    "hint_sites": config.rollouts.hint_sites,
                }
                if (
                    settings.hint.weight
                    and not sites
                    and (sites := probe_examples([replace(e, actions=()) for e in made.examples]))
                ):
                    _start_watching(trainer, journal, sites, made=made, step=step)
            if forked is not None:
                drawn = [*_fork(forked, trainer, journal, spots, step=step), *drawn]
                rollouts["hint_sites"] = rollouts.get("hint_sites", 0) + forked.num_samples(spots)
            if step == 0 and sites and live is None:
                journal.tokens(0, _watch(trainer, sites))
            line = train_step(trainer, drawn, drawn_pairs, step=step, journal=journal, **rollouts)
            done, last = step + 1, step + 1 == settings.steps
            if last and sites:
                journal.tokens(done, _watch(trainer, sites))
            if done % settings.checkpoint_every == 0 or last:
                facts = (
                    guard.judge(made, steps=done, last=last)
                    if guard is not None and made is not None
                    else {}
                )
                _checkpoint(trainer, journal, done, identity, guard, facts=facts)
    checkpoints = run.checkpoints()
    statuses: dict[str, Status] = (
        {name: line[f"{name}/status"] for name in CHANNELS} if line else {}
    )
    return TrainResult(
        run=run,
        steps=settings.steps,
        statuses=statuses,
        metrics=line,
        checkpoint=checkpoints[-1][1] if checkpoints else None,
    )


def _check_sources(
    config: Config,
    *,
    examples: Sequence[TrainingExample],
    pairs: Sequence[Any],
    live: RolloutSource | None,
    forked: Forked | None = None,
) -> None:
    """Raise where there is nothing to train on, or a channel is weighted that only live rollouts
    could feed."""
    if config.train.fork != (forked is not None):
        raise ConfigError(
            "train.fork and its producer must be given together",
            where="train.fork",
            fix="give `forked`, or set it to false",
        )
    if config.train.fork and not config.train.hint.weight:
        what, fix = (
            "forks feed the hint channel, whose weight is 0",
            "set train.hint.weight, or train.fork = false",
        )
        raise ConfigError(what, where="train.fork", fix=fix)
    if config.train.hint.weight and forked is None and (live is None or config.train.lm_ce.weight):
        check_views(examples, config.train.hint)
    if not examples and not pairs and live is None:
        raise DataError(
            "no examples and no pairs: nothing to train on",
            fix="run `recompose build` and look at what it counts",
        )
    if config.train.policy.weight and live is None and not any(e.actions for e in examples):
        what = f"channel policy has weight {config.train.policy.weight}, but nothing is played"
        raise ConfigError(
            what,
            where="rollouts.env",
            fix='set rollouts.env = "workshop", or train.policy.weight = 0',
        )


def _journal(trainer: Trainer, run: RunDir, **listeners: Any) -> RunLogger:
    """The writer of this launch; what a step is at goes through it, too."""
    journal = RunLogger(run=run, main=trainer.accelerator.is_main_process, **listeners)
    trainer.tell = journal.progress
    return journal


def _layout(
    trainer: Trainer, examples: Sequence[TrainingExample], pairs: Sequence[PreferencePair]
) -> dict[str, Any]:
    """What is said of the layout when a run starts: why it is rows where a tree was asked for, else
    how much of the data shares a trunk."""
    if trainer.layout == "rows":
        return {"layout": "rows", **({"why_rows": trainer.why_rows} if trainer.why_rows else {})}
    weights = trainer.weights
    views = examples if weights["hint"] else [replace(e, hints=()) for e in examples]
    found = sharing(views, pairs if weights["preference"] else [])
    return {"layout": "tree", "sharing": found.text() if found.sites + found.pairs else ""}


def _sampler(
    config: Config,
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair],
    *,
    imported: bool,
) -> Sampler:
    settings, preference = config.train, config.train.preference
    return Sampler(
        examples=examples,
        pairs=pairs,
        batch_examples=settings.batch_examples,
        seed=stage_seed(config.seed, "sampler"),
        batch_pairs=preference.batch_pairs,
        batch_anchors=preference.batch_anchors if preference.weight and preference.anchor else 0,
        imported=imported,
    )


def _reference(trainer: Trainer, sampler: Sampler, *, folder: Path | None) -> KeptReference | None:
    """What the start thinks of every pair that the run will draw, and an end to the copy of its
    weights; None where nobody asks for it."""
    if "preference" not in trainer.references:
        return None
    kept = keep_reference(
        trainer,
        (pair for step in range(trainer.settings.steps) for pair in sampler.step(step)[1]),
        folder=folder,
    )
    del trainer.references["preference"]
    return kept


def _play(guard: Guard, generator: Generator | None, *, step: int) -> LiveStep:
    """The step's rollouts, by the weights as they are or by those that the server holds, looked at
    before anything is trained on them."""
    settings, rollouts, journal = (
        guard.trainer.settings,
        guard.trainer.config.rollouts,
        guard.journal,
    )
    student = guard.trainer.student
    meter, before = guard.live.meter, guard.live.meter.num_sampled
    journal.progress(
        lambda: (
            f"playing {rollouts.groups * rollouts.group_size} rollouts:"
            f" {meter.num_sampled - before} tokens written"
        )
    )
    writer = (
        student.model
        if generator is None
        else generator.writer(student, step=step, note=journal.event)
    )
    made = guard.live.step(writer, step=step, kl=guard.start_kl)
    if step % settings.checkpoint_every == 0 or step + 1 == settings.steps:
        journal.samples(step, few(made, group_size=rollouts.group_size, count=NUM_SAMPLES))
    if lost := lost_rollouts(made.rollouts):
        journal.event("lost", step=step, **lost)
    journal.note(made.facts)
    journal.progress(lambda: "looking at the rollouts: KL, entropy, monitor tasks")
    journal.note(guard.look(made, step=step))
    return made


def _fork(
    forked: Forked,
    trainer: Trainer,
    journal: RunLogger,
    spots: Sequence[TrainForkPoint],
    *,
    step: int,
) -> tuple[TrainingExample, ...]:
    """What the weights as they are write at imported sites; the examples of what they got wrong."""
    journal.progress(lambda: "the student writes at imported sites")
    made = forked.step(trainer.student.model, spots, step=step)
    journal.note(made.facts)
    journal.forks(step, made.forks)
    return made.examples


def _start_watching(
    trainer: Trainer, journal: RunLogger, sites: list[TrainingExample], *, made: LiveStep, step: int
) -> None:
    """Choose what is watched for the rest of the run, resumed or not, and write its first table."""
    journal.tokens(step, _watch(trainer, sites))
    if journal.main:  # last: a run that is killed before this chooses again
        keep_watched(journal.run, sites, made=made)


def _checkpoint(
    trainer: Trainer,
    journal: RunLogger,
    step: int,
    identity: Mapping[str, str],
    guard: Guard | None,
    *,
    facts: Mapping[str, float] | None = None,
) -> None:
    """Weights, optimiser, channel means and health after `step` steps; the main rank writes.
    `facts` were measured of these weights."""
    judged = {} if guard is None else {"good": guard.health.good}
    if journal.main:
        means = {name: [mean.total, mean.weight] for name, mean in trainer.means.items()}
        state = {
            "settings": training_settings(trainer.config),
            "means": means,
            "health": trainer.health.state(),
            **identity,
            **judged,
        }
        state["clip"] = [trainer.clip.mean.total, trainer.clip.mean.weight]
        if trainer.taid is not None:
            state["taid"] = trainer.taid.state()
        if guard is not None:
            state["policy_health"] = guard.health.state()
        keep = trainer.settings.keep_checkpoints
        what = {
            "student": trainer.student,
            "optimiser": trainer.optimiser,
            "extra": trainer.extra_tensors(),
        }
        save_checkpoint(journal.run, step, state=state, keep=keep, **what)
    journal.event("checkpoint", step=step, **judged, **(facts or {}))
    trainer.accelerator.wait_for_everyone()


def _resume(
    trainer: Trainer,
    journal: RunLogger,
    identity: Mapping[str, str],
    guard: Guard | None,
    *,
    step: int | None,
    accept_changes: bool,
) -> int:
    """Load the newest checkpoint, or the one after `step` steps, once its files are known to be
    those that were written.

    Returns the number of steps it holds, 0 where the run was killed before its first.
    """
    if journal.main:
        remove_partial_checkpoints(journal.run, keep=trainer.settings.keep_checkpoints)
    if step is None and not journal.run.checkpoints():
        return 0
    found, folder = whole_checkpoint(journal.run, step)
    state = read_state(folder)
    changed = check_resume(
        state,
        settings=training_settings(trainer.config),
        identity=identity,
        accept_changes=accept_changes,
    )
    load_tensors(folder, student=trainer.student, optimiser=trainer.optimiser)
    trainer.load_extra(load_extra(folder))
    trainer.means.update({name: RunningMean(*state["means"][name]) for name in CHANNELS})
    trainer.clip.mean = RunningMean(*state["clip"])
    trainer.health.restore(state["health"])
    if trainer.taid is not None:
        trainer.taid.restore(state["taid"])
    if guard is not None:
        guard.health.restore(state["policy_health"])
    if changed and journal.main:
        write_json(journal.run.resolved_json, trainer.config.model_dump(mode="json"))
    trainer.accelerator.wait_for_everyone()
    aside = set_aside(journal.run, after=found) if journal.main and step is not None else []
    journal.event("resume", step=found, changed=changed, **({"set_aside": aside} if aside else {}))
    return found


def _watch(trainer: Trainer, sites: list[TrainingExample]) -> list[dict[str, Any]]:
    """Per-token log-probs of the watched sites, now."""
    place = {
        "pad_id": trainer.student.pad_id,
        "max_tokens": trainer.settings.micro_tokens,
        "device": trainer.accelerator.device,
    }
    how, tokenizer = trainer.settings.hint, trainer.student.tokenizer
    return token_table(
        sites,
        student=current(trainer.student),
        teachers=trainer.teachers,
        how=how,
        tokenizer=tokenizer,
        **place,
    )
