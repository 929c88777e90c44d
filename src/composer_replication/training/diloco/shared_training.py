"""The loop's side of the exchange: a run that trains `every` steps, then syncs with the others.

    with SharedTraining.join(config, student=student, identity=hashes, run=run) as shared:
        step = shared.begin(run_logger)              # the steps that the run has taken before
        step = shared.after_step(step + 1, ...)      # syncs if it is time; returns where to go on

The number of steps belongs to the run, not to the replica: round r begins at step r * every. Who
joins late begins there, and who missed a round goes on there, so that all follow one schedule of
the learning rate and end together. A replica that came too late takes half as many steps for the
next round, and half again, until it is in time.
"""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from composer_replication.core.code_hash import PACKAGE, hash_of_modules
from composer_replication.core.config.root import Config
from composer_replication.core.config.sync_settings import THIS_MACHINE
from composer_replication.core.errors import SlotTakenError, SyncError
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import RunDir
from composer_replication.models.load_student import Student
from composer_replication.training.diloco.blob_store import BlobStore, open_store
from composer_replication.training.diloco.clock import Clock
from composer_replication.training.diloco.exchange import Exchange
from composer_replication.training.diloco.flat_weights import FlatWeights, schema_sha256
from composer_replication.training.diloco.outer import PRESETS
from composer_replication.training.diloco.polling import Timing
from composer_replication.training.diloco.replica import Replica, SyncResult
from composer_replication.training.diloco.round_records import Spec
from composer_replication.training.run.checkpoint import training_settings
from composer_replication.training.run.run_logger import RunLogger

RESIDUAL = "sync/residual"
"""The name of the error feedback among a checkpoint's extra tensors."""
KL_TOKENS = 256
_PATHS = ("student.model", "student.base", "rollouts.env", "rollouts.server", "hints.rules_file")
_ROOMS = ("core", "losses", "models", "rollouts", "tokens", "training", "workshop")


class SharedTraining:
    """A run's membership among its replicas; `config` is the run's with the slot that it got."""

    def __init__(self, config: Config, *, replica: Replica, flat: FlatWeights, student: Student):
        """`student` holds the start weights; `begin` puts the others in."""
        self.replica, self.flat, self.student = replica, flat, student
        sync = config.train.sync.model_copy(update={"slot": replica.exchange.claim.slot})
        self.config = config.model_copy(
            update={"train": config.train.model_copy(update={"sync": sync})}
        )
        self._local_steps, self._tokens, self._late = 0, 0, 0
        self._run_logger: RunLogger | None = None

    @classmethod
    def join(
        cls,
        config: Config,
        *,
        student: Student,
        identity: Mapping[str, str],
        run: RunDir,
        store: BlobStore | None = None,
        clock: Clock | None = None,
        timing: Timing | None = None,
    ) -> Self:
        """Meet the run in the store; a resumed run takes its own slot again.

        Raises ConfigError if its settings, weights or version differ, SlotTakenError if its slot is
        held, SyncError if the store cannot be used.
        """
        sync, clock = config.train.sync, clock or Clock()
        flat, spent = FlatWeights.of(student.model), read_membership(run)
        slot, life = spent.get("slot", sync.slot), uuid.uuid4().hex[:12]
        lives = [*spent.get("lives", []), life]
        membership = run.path / MEMBERSHIP
        # before the claim: a replica that is killed right after it still knows its slot for its own
        write_json(membership, {"slot": slot, "lives": lives, "url": sync.url})
        exchange = Exchange.join(
            store or open_store(sync.url, clock=clock),
            make_spec(config, flat=flat, identity=identity),
            start=flat.read(),
            slot=None if slot < 0 else slot,
            takeover=sync.takeover,
            clock=clock,
            timing=timing or Timing(grace_s=sync.grace_s, stall_s=sync.stall_s),
            uuid=life,
            earlier=lives[:-1],
        )
        write_json(membership, {"slot": exchange.claim.slot, "lives": lives, "url": sync.url})
        replica = Replica(exchange, rounded=flat.rounded)
        return cls(config, replica=replica, flat=flat, student=student)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave, so that nobody waits; a slot that was taken over is not this replica's to
        release."""
        if not isinstance(error, SlotTakenError):
            with suppress(SyncError):
                self.replica.exchange.leave()

    @property
    def step(self) -> int:
        """The step at which the current round begins, at most the last."""
        train = self.config.train
        return min(self.replica.exchange.round * train.sync.every, train.steps)

    def begin(self, run_logger: RunLogger) -> int:
        """Put the run's weights into the student; returns how many steps were taken before."""
        self._run_logger = run_logger
        self.flat.write(self.replica.base)
        exchange = self.replica.exchange
        run_logger.event(
            "joined",
            step=self.step,
            slot=exchange.claim.slot,
            epoch=exchange.claim.epoch,
            round=exchange.round,
            hash=exchange.theta_sha256,
            weights=self.flat.num_weights,
        )
        return self.step

    def after_step(self, steps: int, metrics: Mapping[str, Any], *, probe: Sequence[int]) -> int:
        """Meet the others if the round's steps are done; returns how many steps the run has taken.

        `probe` are token ids on which the KL to the others' weights is measured.
        """
        self._local_steps += 1
        self._tokens += sum(v for k, v in metrics.items() if k.endswith("/tokens"))
        wanted = max(1, self.config.train.sync.every >> self._late)
        if self._local_steps < wanted:
            return steps
        if self._run_logger is not None:
            self._run_logger.progress(self._sync_progress)
        local = self.flat.read()
        before = self._log_probs(probe)
        result = self.replica.sync(local, tokens=self._tokens, steps=self._local_steps)
        self.flat.write(result.weights)
        self._late = 0 if result.contributed else self._late + 1
        facts = sync_facts(result) | {"local_steps": self._local_steps, "tokens": self._tokens}
        if before is not None and (after := self._log_probs(probe)) is not None:
            facts["kl"] = float((before.exp() * (before - after)).sum(-1).mean())
        self._local_steps, self._tokens = 0, 0
        if self._run_logger is not None:
            self._run_logger.event("sync", step=self.step, **facts)
        return self.step

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of the membership: the error feedback, if there is any."""
        residual = self.replica.residual
        return {RESIDUAL: residual} if bool(residual.any()) else {}

    def state(self) -> dict[str, Any]:
        """The round of a checkpoint, for its trainer.json."""
        return {"round": self.replica.exchange.round, "local_steps": self._local_steps}

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take the error feedback back, if no round has passed since: it may have been sent."""
        current = {"round": self.replica.exchange.round, "local_steps": 0}
        if dict(state) == current and RESIDUAL in tensors:
            self.replica.residual = tensors[RESIDUAL].float().cpu()

    def _sync_progress(self) -> str:
        """What this replica waits for, on one line."""
        exchange, missing = self.replica.exchange, self.replica.exchange.waits_for
        who = f"replica {', '.join(map(str, missing))}" if missing else "the round's outcome"
        return (
            f"round {exchange.round}: waiting for {who}, about {exchange.timing.grace_s:g} s at"
            " most (train.sync.grace_s)"
        )

    @torch.no_grad()
    def _log_probs(self, probe: Sequence[int]) -> Tensor | None:
        """The student's distribution at every place of the probe; None without one."""
        model: Any = self.student.model
        if len(probe) < 2:
            return None
        training = model.training
        model.eval()
        ids = torch.tensor([list(probe[:KL_TOKENS])], device=self.flat.named[0][1].device)
        logits = model(input_ids=ids).logits[0].float()
        model.train(training)
        return logits.log_softmax(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreExchange:
    """The store through which a run syncs: that of train.sync.url, unless another is given.

    Example: train(config, student=student, run=run, exchange=ObjectStoreExchange())
    """

    store: BlobStore | None = None
    clock: Clock | None = None
    timing: Timing | None = None

    def join(
        self, config: Config, *, student: Student, identity: Mapping[str, str], run: RunDir
    ) -> SharedTraining:
        """Meet the run in the store; see SharedTraining.join."""
        return SharedTraining.join(
            config,
            student=student,
            identity=identity,
            run=run,
            store=self.store,
            clock=self.clock,
            timing=self.timing,
        )


MEMBERSHIP = "sync.json"
"""The file of a run directory that names its slot."""


def read_membership(run: RunDir) -> dict[str, Any]:
    """The slot of the run, and the uuids of its launches; {} for a run that has joined nobody."""
    path = run.path / MEMBERSHIP
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def make_spec(config: Config, *, flat: FlatWeights, identity: Mapping[str, str]) -> Spec:
    """What this run's replicas have to agree on: settings, start weights, version."""
    sync, weights = config.train.sync, flat.schema()
    preset = PRESETS[sync.outer]
    return Spec(
        code=code_version(),
        weights=weights,
        schema_sha256=schema_sha256(weights),
        settings=shared_settings(config),
        identity=dict(identity),
        inner_steps=sync.every,
        learning_rate=sync.learning_rate or preset.learning_rate,
        momentum=preset.momentum,
        token_weights=sync.token_weights,
        codec=sync.codec,
        gather=sync.gather,
        fanout=sync.fanout,
        fragments=sync.fragments,
        replicas=sync.replicas,
        quorum=sync.quorum,
        recent=sync.recent,
        anchor_every=sync.anchor_every,
        max_norm_ratio=sync.max_norm_ratio,
    )


@functools.cache
def code_version(package: Path = PACKAGE) -> str:
    """The version, and a hash of the code that trains: two checkouts of one version may differ.

    >>> code_version() == code_version()
    True
    """
    code = hash_of_modules(package, *_ROOMS)
    return f"{metadata.version('composer-replication')} ({code[:12]})"


def shared_settings(config: Config) -> dict[str, Any]:
    """The settings that decide the training, without paths and what suits one machine only.

    The files behind the paths are compared by their hashes.
    """
    settings = training_settings(config)
    settings["train"] = {
        k: v for k, v in settings["train"].items() if k not in ("sync", *THIS_MACHINE)
    }
    for path in _PATHS:
        table, name = path.split(".")
        if table in settings:
            settings[table] = {k: v for k, v in settings[table].items() if k != name}
    return settings


def sync_facts(result: SyncResult) -> dict[str, Any]:
    """A sync as the facts of an event."""
    first, traffic = result.commits[0], asdict(result.traffic)
    return {
        "round": first.round,
        "slots": first.slots,
        "contributed": result.contributed,
        "missed": result.missed,
        "refused": result.refused,
        "hash": result.theta_sha256,
        "seconds": round(result.seconds, 4),
        "wait_s": round(result.wait_s, 4),
        **traffic,
        "delta_norm": result.delta_norm,
        "residual_norm": result.residual_norm,
        "step_norm": first.step_norm,
        "drift": first.drift,
    }
