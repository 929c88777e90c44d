"""Who gives a step its rollouts, and when: before the step (`rollouts.overlap = 0`), or while the
step before trains (1).

    rollouts = StepRollouts(config=config, live=live, student=student, generator=None, note=note)
    groups = rollouts.take(3)        # of weights that had taken 3 steps, or 2 if begun ahead
    rollouts.begin(4)                # a thread samples the next step's with the weights of now
    ...                              # meanwhile the caller trains step 3 in place
    rollouts.close()

With overlap, step n + 1 trains on rollouts of the weights that step n began with: they are one step
old. Each rollout carries that version, its tokens the log-probs of those weights, so the ratio of
the objective, or `train.policy.importance_cap`, corrects for the step between, as for any stale
rollout, and `rollouts.max_staleness` bounds the age. The thread samples with a copy of the weights
(a server: with those that it was handed), so nothing that training does can reach it: tasks, seeds
and ids are those of the synchronous loop, and only the weights are older.

Nothing is sampled across a checkpoint: the first step behind one samples with its weights, which
are in the checkpoint. So a resumed run repeats the killed one bit by bit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from composer_replication.core.config.root import Config
from composer_replication.models.load_student import Student
from composer_replication.rollouts.groups import Groups
from composer_replication.training.forwards.reference import with_own_weights

_JOIN_S = 10.0
"""Seconds that `close` waits for a thread. It can only be late inside a call of a server or of an
environment, and ends with the process then."""


class GivesRollouts(Protocol):
    """The sampler of a step's rollouts: RolloutSource, or generators elsewhere."""

    def sample(self, model: Any, *, step: int, version: int) -> Groups:
        """The rollouts of a step, of weights that have taken `version` steps."""
        ...


class HandsWeightsOver(Protocol):
    """The sender of weights to a generator outside of this process: Generator of a server, or of
    actors."""

    def writer(self, student: Any, *, step: int, note: Callable[..., None]) -> Any:
        """The writer of messages with the current weights, which have taken `step` steps."""
        ...


class _CancelledError(Exception):
    """Ends a thread whose rollouts nobody will take."""


@dataclass(slots=True, kw_only=True)
class _Pending:
    """Rollouts that a thread samples, or the exception that ended it."""

    step: int
    thread: threading.Thread
    groups: Groups | None = None
    error: BaseException | None = None


class WeightsCopy:
    """A second model with the student's weights as they were when they were last copied; frozen
    weights are shared. Example: copy = WeightsCopy(student); copy.refresh(); copy.model"""

    def __init__(self, student: Student) -> None:
        self._student = student
        self.model, self._own = with_own_weights(student)
        self.model.requires_grad_(False)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the student's weights of now."""
        weights: dict[str, Tensor] = dict(self._student.model.named_parameters())
        for name, tensor in self._own.items():
            tensor.copy_(weights[name])


@dataclass(slots=True, kw_only=True)
class StepRollouts:
    """Samples the rollouts of each step, one step ahead if `rollouts.overlap` is 1.

    `student` is the Student that is trained. `note(kind, **facts)` is called for a hand-over of
    weights to the `generator`, which is None if this process samples.
    """

    config: Config
    live: GivesRollouts
    student: Any
    generator: HandsWeightsOver | None
    note: Callable[..., None]
    _copy: WeightsCopy | None = None
    _pending: _Pending | None = None
    _closed: threading.Event = field(default_factory=threading.Event)

    def take(self, step: int) -> Groups:
        """The rollouts of a step: those that were begun ahead, else new ones of the weights of
        now. An error of the thread is raised here."""
        if not self.config.rollouts.overlap:
            return self.live.sample(self._writer(step), step=step, version=step)
        if self._pending is None or self._pending.step != step:
            self._start(step, version=step)
        return self._taken()

    def begin(self, step: int) -> None:
        """Begin the rollouts of a step with the weights of now, those before the update of the
        step before; nothing is begun without overlap, behind the last step, or across a
        checkpoint."""
        train = self.config.train
        if (
            self.config.rollouts.overlap
            and step < train.steps
            and step % train.checkpoint_every != 0
        ):
            self._start(step, version=step - 1)

    def close(self) -> None:
        """End a thread whose rollouts nobody will take."""
        self._closed.set()
        if self._pending is not None:
            self._pending.thread.join(_JOIN_S)
            self._pending = None

    def _taken(self) -> Groups:
        """The rollouts of the thread, once it ends."""
        pending = self._pending
        assert pending is not None
        pending.thread.join()
        self._pending = None
        if pending.error is not None:
            raise pending.error
        assert pending.groups is not None
        return pending.groups

    def _writer(self, version: int) -> Any:
        """The writer of messages with the current weights, which have taken `version` steps."""
        if self.generator is not None:
            return self.generator.writer(self.student, step=version, note=self.note)
        if not self.config.rollouts.overlap:
            return self.student.model
        if self._copy is None:
            self._copy = WeightsCopy(self.student)
            self._copy.model.register_forward_pre_hook(self._check_open)
        self._copy.refresh()
        return self._copy.model

    def _check_open(self, *_: Any) -> None:
        if self._closed.is_set():
            raise _CancelledError

    def _start(self, step: int, *, version: int) -> None:
        model = self._writer(version)

        def sample() -> None:
            try:
                pending.groups = self.live.sample(model, step=step, version=version)
            except BaseException as error:  # noqa: BLE001 - raised where the rollouts are taken
                pending.error = error

        thread = threading.Thread(target=sample, name=f"rollouts-{step}", daemon=True)
        pending = _Pending(step=step, thread=thread)
        self._pending = pending
        thread.start()
