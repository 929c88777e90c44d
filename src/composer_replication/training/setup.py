"""Everything `train` builds before its first step.

    with open_training(config, student=student, data=data, run=run, ...) as setup:
        for step in range(setup.first_step, config.train.steps): ...

The order matters. The references are made, and the start weights hashed, before a checkpoint is
loaded; the first checkpoint of a live run is written before the first step, so that there is one to
go back to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from composer_replication.core.config.root import Config
from composer_replication.core.errors import DataError
from composer_replication.core.rundir import RunDir
from composer_replication.models.load_student import Student
from composer_replication.models.pretrained_folder import weights_sha256
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training.draws.batch_sampler import Sampler
from composer_replication.training.draws.forked import ForkSource
from composer_replication.training.inputs import TrainingData
from composer_replication.training.on_policy.generator import Generator
from composer_replication.training.on_policy.live import RolloutSource
from composer_replication.training.on_policy.overlap import StepRollouts
from composer_replication.training.run.checkpoint_manager import CheckpointManager
from composer_replication.training.run.kept_reference import KeptReference, keep_reference
from composer_replication.training.run.membership import Membership, ReplicaExchange, check_exchange
from composer_replication.training.run.ranks import join_ranks
from composer_replication.training.run.rollback import Rollback
from composer_replication.training.run.run_logger import Listener, Phase, RunLogger
from composer_replication.training.run.state import Trainer, make_trainer
from composer_replication.training.run.token_probe import TokenProbe, load_probe, probe_examples


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSetup:
    """The parts of one launch, in the order in which a step uses them.

    `first_step` is the number of steps that were taken before this launch, `last_metrics` the
    metrics of the last of them. `rollouts` and `rollback` are None without live rollouts, `forked`
    without train.fork, `kept_reference` without a reference model, `token_probe` without a hint
    channel or with train.probe_sites = 0, `shared` without other replicas.
    """

    config: Config
    data: TrainingData
    sampler: Sampler
    kept_reference: KeptReference | None
    rollouts: StepRollouts | None
    forked: ForkSource | None
    trainer: Trainer
    rollback: Rollback | None
    token_probe: TokenProbe | None
    checkpoints: CheckpointManager
    run_logger: RunLogger
    shared: Membership | None
    first_step: int
    last_metrics: dict[str, Any]

    @property
    def hint_sites(self) -> int:
        """The number of hint views of a full step, of rollouts and of forks; 0 = not bounded."""
        played = 0 if self.rollback is None else self.config.rollouts.hint_sites
        forked = 0 if self.forked is None else self.forked.num_samples(self.data.fork_points)
        return played + forked

    def draw(self, step: int) -> tuple[list[TrainingExample], list[PreferencePair]]:
        """The imported examples of a step, and its pairs with the reference's log-probs."""
        examples, pairs = self.sampler.step(step)
        kept_reference = self.kept_reference
        return examples, pairs if kept_reference is None else kept_reference.with_reference(pairs)


@contextmanager
def open_training(
    config: Config,
    *,
    student: Student,
    data: TrainingData,
    run: RunDir,
    live: RolloutSource | None,
    forked: ForkSource | None,
    reference_folder: Path | None,
    resume: bool,
    resume_step: int | None,
    accept_changes: bool,
    on_step: Listener | None,
    on_event: Listener | None,
    on_progress: Callable[[Phase], None] | None,
    exchange: ReplicaExchange | None = None,
) -> Iterator[TrainSetup]:
    """Build what a launch needs, and load the checkpoint that it resumes from.

    The state of the run follows how the block ends. Raises DataError for a run that has taken steps
    already and is not resumed.
    """
    if not resume and run.metrics():
        raise DataError(
            "this run has taken steps already",
            where=str(run.path),
            fix="resume it, or start a new run",
        )
    accelerator = join_ranks()
    run_logger = RunLogger(
        run=run,
        main=accelerator.is_main_process,
        on_step=on_step,
        on_event=on_event,
        on_progress=on_progress,
        trackers=config.train.trackers,
    )
    check_exchange(config, exchange, num_ranks=accelerator.num_processes)
    identity = {
        "start_sha256": weights_sha256(student.model),
        "env_sha256": "" if live is None else live.task_source.sha256(),
    }
    with ExitStack() as stack:
        shared = None
        if exchange is not None:
            stack.enter_context(run_logger.attempt())  # before a slot is taken in the run's name
            joined = exchange.join(config, student=student, identity=identity, run=run)
            shared = stack.enter_context(joined)
            config = shared.config
            live = None if live is None else replace(live, config=config)
            forked = None if forked is None else replace(forked, config=config)
        trainer = make_trainer(config, student=student, accelerator=accelerator)
        if trainer.models.why_rows:
            data.check_rows(config.train)
        sampler = data.sampler(config)
        identity["data_sha256"] = data.sha256()
        trainer.on_progress = run_logger.progress
        rollback, rollouts = None, None
        if live is not None:
            rollback = Rollback.of(trainer, live=live, run_logger=run_logger)
            rollouts = _rollouts(config, live, student, trainer=trainer, run_logger=run_logger)
        checkpoints = CheckpointManager(
            trainer=trainer,
            run_logger=run_logger,
            identity=identity,
            rollback=rollback,
            shared=shared,
        )
        if shared is None:
            stack.enter_context(run_logger.attempt())
        if rollouts is not None:
            stack.enter_context(closing(rollouts))
        kept_reference = _score_reference(trainer, sampler, folder=reference_folder)
        first_step = _begin(
            checkpoints,
            data,
            kept_reference,
            resume=resume,
            resume_step=resume_step,
            accept_changes=accept_changes,
        )
        yield TrainSetup(
            config=config,
            data=data,
            sampler=sampler,
            kept_reference=kept_reference,
            rollouts=rollouts,
            forked=forked,
            trainer=trainer,
            rollback=rollback,
            token_probe=_token_probe(
                trainer, run_logger, data, is_live=live is not None, first_step=first_step
            ),
            checkpoints=checkpoints,
            run_logger=run_logger,
            shared=shared,
            first_step=first_step,
            last_metrics=_metrics_before(run, first_step),
        )


def _rollouts(
    config: Config,
    live: RolloutSource,
    student: Student,
    *,
    trainer: Trainer,
    run_logger: RunLogger,
) -> StepRollouts:
    """The producer of each step's rollouts, with what writes their messages."""
    ranks = trainer.accelerator.num_processes
    return StepRollouts(
        config=config,
        live=live,
        student=student,
        generator=Generator.of(config.rollouts, lora=student.lora, ranks=ranks),
        note=run_logger.event,
    )


def _score_reference(
    trainer: Trainer, sampler: Sampler, *, folder: Path | None
) -> KeptReference | None:
    """The reference's log-probs of every pair that the run will draw; None if no loss needs them.

    With them the copy of the start weights is not needed any more, and is let go of.
    """
    if "preference" not in trainer.models.references:
        return None
    pairs = (pair for step in range(trainer.settings.steps) for pair in sampler.step(step)[1])
    kept_reference = keep_reference(trainer, pairs, folder=folder)
    del trainer.models.references["preference"]
    return kept_reference


def _begin(
    checkpoints: CheckpointManager,
    data: TrainingData,
    kept_reference: KeptReference | None,
    *,
    resume: bool,
    resume_step: int | None,
    accept_changes: bool,
) -> int:
    """Load the checkpoint that the launch resumes from, and write the event "start"; returns the
    number of steps that were taken before."""
    first_step = 0
    if resume:
        first_step = checkpoints.resume(resume_step, accept_changes=accept_changes)
    trainer = checkpoints.trainer
    checkpoints.run_logger.event(
        "start",
        step=first_step,
        ranks=trainer.accelerator.num_processes,
        examples=len(data.imported_examples),
        pairs=len(data.imported_pairs),
        **_layout_facts(trainer, data),
        **({} if kept_reference is None else kept_reference.facts),
    )
    if checkpoints.shared is not None:
        first_step = checkpoints.shared.begin(checkpoints.run_logger)
    if checkpoints.rollback is not None and not checkpoints.run_logger.run.checkpoints():
        checkpoints.save(first_step)
    return first_step


def _layout_facts(trainer: Trainer, data: TrainingData) -> dict[str, Any]:
    """The layout, for the event "start": why it is rows if a tree was asked for, else how much of
    the data shares a trunk."""
    models, weights = trainer.models, trainer.weights
    if models.layout == "rows":
        return {"layout": "rows", **({"why_rows": models.why_rows} if models.why_rows else {})}
    sharing = data.sharing(hints=weights["hint"] > 0, pairs=weights["preference"] > 0)
    return {"layout": "tree", "sharing": sharing.text() if sharing.sites + sharing.pairs else ""}


def _token_probe(
    trainer: Trainer, run_logger: RunLogger, data: TrainingData, *, is_live: bool, first_step: int
) -> TokenProbe | None:
    """The probe of a run with a hint channel; one on rollouts is chosen from the first that have a
    hint view, unless an earlier launch has chosen."""
    num_sites = trainer.settings.probe_sites
    if not trainer.settings.hint.weight or not num_sites:
        return None
    if not is_live:
        examples = probe_examples(data.examples, num_sites=num_sites)
    else:
        examples = load_probe(run_logger.run) if first_step else []
    return TokenProbe(models=trainer.models, run_logger=run_logger, examples=examples)


def _metrics_before(run: RunDir, first_step: int) -> dict[str, Any]:
    """The metrics of the last step before this launch; {} if there is none."""
    if not first_step:
        return {}
    return next((m for m in reversed(run.metrics()) if m["step"] <= first_step), {})
