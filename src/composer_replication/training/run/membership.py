"""What the loop knows of other replicas: an exchange to join, and the membership that comes of it.

    with exchange.join(config, student=student, identity=hashes, run=run) as membership:
        step = membership.begin(run_logger)
        step = membership.after_step(step + 1, metrics, probe=ids)

training/diloco/shared_training.py syncs through an object store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from torch import Tensor

from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError
from composer_replication.core.rundir import RunDir
from composer_replication.models.load_student import Student
from composer_replication.training.run.run_logger import RunLogger


class Membership(Protocol):
    """A run among its replicas; `config` is the run's with the slot that it got."""

    config: Config

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def begin(self, run_logger: RunLogger) -> int:
        """Put the common weights into the student; returns how many steps were taken before."""
        ...

    def after_step(self, steps: int, metrics: Mapping[str, Any], *, probe: Sequence[int]) -> int:
        """Meet the others if it is time; returns how many steps the run has taken."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, beside `state`."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint's trainer.json keeps."""
        ...

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take both back on resume."""
        ...


class ReplicaExchange(Protocol):
    """A store through which replicas sync, not joined yet."""

    def join(
        self, config: Config, *, student: Student, identity: Mapping[str, str], run: RunDir
    ) -> Membership:
        """Join the other replicas of the run."""
        ...


def check_exchange(config: Config, exchange: ReplicaExchange | None, *, num_ranks: int) -> None:
    """Raise ConfigError if the settings name a store for syncs and no exchange is given, or the
    other way round, or if one replica has several ranks, each of which would join on its own."""
    if bool(config.train.sync.url) != (exchange is not None):
        raise ConfigError(
            "train.sync.url and an exchange must be given together",
            where="train.sync.url",
            fix='give train(exchange=ObjectStoreExchange()), or set it to ""',
        )
    if exchange is not None and num_ranks > 1:
        raise ConfigError(
            f"this replica was launched with {num_ranks} ranks; a replica is one process",
            where="train.sync.url",
            fix="start one process per GPU with `recompose train --replicas N --sync URL`",
        )
