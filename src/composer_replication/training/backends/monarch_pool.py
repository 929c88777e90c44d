"""Generators that live elsewhere, and what happens if one dies: its share of a step goes to the
others, and a new one takes its place. If the process of the environments dies, the share is played
again in a new one (`prepare` starts it). Either way the rollouts are the same.

    pool = GeneratorPool(config=config, start=start, weights=trainer_weights, note=note)
    writer = pool.writer(None, step=3, note=note)            # hands the weights of now to all
    groups = pool.sample(writer, step=4, version=3)          # as RolloutSource.sample

`start(number)` makes a generator; it may take many seconds, so a dead one is replaced in a thread,
while the others go on. A step's groups are cut into as many shares as the run has generators,
whoever is alive, so who plays a share never decides what is in it. Nothing here imports Monarch.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from composer_replication.core.config.root import Config
from composer_replication.core.errors import StoppedError
from composer_replication.rollouts.envs.env import Env, MakeEnv
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.groups import Groups, sample_groups
from composer_replication.training.backends.monarch_workers import Share
from composer_replication.training.on_policy.live import step_label

_POLL_S = 0.5


class DeadActorError(RuntimeError):
    """The process of an actor is gone."""


class HostGoneError(RuntimeError):
    """The process that held the environments of a share is gone."""


class RemoteGenerator(Protocol):
    """A generator in another process; every method raises DeadActorError if that is gone, `play`
    HostGoneError if the environments' is."""

    def load(self, weights: Mapping[str, Tensor], version: int) -> int:
        """Take newer weights."""
        ...

    def play(self, share: Share) -> list[Rollout]:
        """The rollouts of a share."""
        ...

    def end(self) -> None:
        """Let its process go."""
        ...


@dataclass(slots=True, kw_only=True)
class _GeneratorSlot:
    """The place of one generator; None while a new one is started."""

    number: int
    generator: RemoteGenerator | None = None
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _TaskOfStep:
    """Stands for an environment of a task: its number in the step's stream."""

    index: int


@dataclass(slots=True, kw_only=True)
class _Round:
    """Shares that are being played: those that wait, and the rollouts of those that are done."""

    waiting: deque[tuple[int, Share]]
    size: int
    done: dict[int, list[Rollout]] = field(default_factory=dict)
    error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        return self.error is not None or len(self.done) == self.size


class GeneratorPool:
    """The generators of a run; `version` is how many steps the weights have taken that they were
    given last."""

    def __init__(
        self,
        *,
        config: Config,
        start: Callable[[int], RemoteGenerator],
        weights: Callable[[], Mapping[str, Tensor]],
        note: Callable[..., None],
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self.config, self.version = config, -1
        self._start, self._weights, self._note, self._prepare = start, weights, note, prepare
        self._held: Mapping[str, Tensor] = {}
        self._changed = threading.Condition()
        self._slots = [_GeneratorSlot(number=n) for n in range(config.monarch.generators)]
        self._failed: BaseException | None = None
        self._ended = False

    def open(self) -> None:
        """Start every generator, at the same time."""
        starts = [threading.Thread(target=self._restart, args=(slot,)) for slot in self._slots]
        for thread in starts:
            thread.start()
        for thread in starts:
            thread.join()
        if self._failed is not None:
            raise self._failed

    def writer(self, student: Any, *, step: int, note: Callable[..., None]) -> GeneratorPool:
        """The pool, once the generators that live hold the weights of now."""
        del student, note
        if step == self.version:
            return self
        held = self._weights()
        with self._changed:
            self._held, self.version = held, step
            alive = [slot for slot in self._slots if slot.generator is not None]
        threads = [threading.Thread(target=self._hand, args=(slot,)) for slot in alive]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed is not None:
            raise self._failed
        return self

    def sample(self, model: Any, *, step: int, version: int) -> Groups:
        """The rollouts of a step, of weights that have taken `version` steps."""
        del model
        settings = self.config.rollouts
        self._prepare()
        return sample_groups(
            self._tasks(),
            num_groups=settings.groups,
            size=settings.group_size,
            max_extra=settings.extra_groups,
            sample=partial(self._play, step=step, version=version),
            label=step_label(step),
        )

    def close(self) -> None:
        """Let every generator go."""
        with self._changed:
            self._ended = True
            alive = [slot.generator for slot in self._slots if slot.generator is not None]
            self._changed.notify_all()
        for generator in alive:
            generator.end()

    def _tasks(self) -> Iterator[MakeEnv]:
        """A stand-in for each task of a step; its environments are made by the hosts."""
        stand_in: Any = _TaskOfStep
        return (partial(stand_in, index) for index in itertools.count())

    def _play(
        self, envs: Sequence[Env], /, *, label: str, step: int, version: int
    ) -> list[Rollout]:
        stand_ins: Any = envs
        indices = tuple(dict.fromkeys(env.index for env in stand_ins))
        rollouts = self._play_shares(
            [
                Share(step=step, version=version, label=label, indices=part)
                for part in cut(indices, parts=len(self._slots))
            ]
        )
        if len({rollout.session.id for rollout in rollouts}) == len(rollouts):
            return rollouts
        # two groups of one task, in two shares: their episodes must be numbered together
        return self._play_shares([Share(step=step, version=version, label=label, indices=indices)])

    def _play_shares(self, shares: Sequence[Share]) -> list[Rollout]:
        current = _Round(waiting=deque(enumerate(shares)), size=len(shares))
        threads = [
            threading.Thread(target=self._work, args=(slot, current), daemon=True)
            for slot in self._slots
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if current.error is not None:
            raise current.error
        return [rollout for number in range(current.size) for rollout in current.done[number]]

    def _work(self, slot: _GeneratorSlot, current: _Round) -> None:
        """Play shares with one generator until all are done, whoever does them."""
        while (item := self._next_share(slot, current)) is not None:
            (number, share), generator = item
            try:
                rollouts = self._played(generator, share)
            except DeadActorError as error:
                with self._changed:
                    current.waiting.appendleft((number, share))
                self._lost(slot, generator, error)
                continue
            except BaseException as error:  # noqa: BLE001 - raised where the rollouts are asked for
                with self._changed:
                    current.error = error
                    self._changed.notify_all()
                return
            with self._changed:
                slot.failures = 0
                current.done[number] = rollouts
                self._changed.notify_all()

    def _played(self, generator: RemoteGenerator, share: Share) -> list[Rollout]:
        """The rollouts of a share, played again as long as its environments die; `prepare` bounds
        how often."""
        while True:
            try:
                return generator.play(share)
            except HostGoneError:
                self._prepare()

    def _next_share(
        self, slot: _GeneratorSlot, current: _Round
    ) -> tuple[tuple[int, Share], RemoteGenerator] | None:
        """A share that waits, once this slot has a generator; None as soon as all are done."""
        with self._changed:
            while True:
                if self._failed is not None and current.error is None:
                    current.error = self._failed
                if current.is_over or self._ended:
                    current.error = current.error or self._failed
                    return None
                if slot.generator is not None and current.waiting:
                    return current.waiting.popleft(), slot.generator
                self._changed.wait(_POLL_S)

    def _hand(self, slot: _GeneratorSlot) -> None:
        generator = slot.generator
        if generator is None:
            return
        try:
            generator.load(self._held, self.version)
        except DeadActorError as error:
            self._lost(slot, generator, error)
        except BaseException as error:  # noqa: BLE001 - raised where the pool is asked next
            self._fail(error)

    def _lost(
        self, slot: _GeneratorSlot, generator: RemoteGenerator, error: DeadActorError
    ) -> None:
        """Start a new generator in place of a dead one, beside whatever else goes on."""
        with self._changed:
            if slot.generator is not generator:
                return
            slot.generator = None
            slot.failures += 1
            self._changed.notify_all()
        self._note("generator_lost", generator=slot.number, reason=str(error))
        if slot.failures > self.config.monarch.max_restarts:
            self._give_up(slot, error)
            return
        threading.Thread(target=self._restart, args=(slot, True), daemon=True).start()

    def _restart(self, slot: _GeneratorSlot, again: bool = False) -> None:
        """Fill a slot; a new generator is given the weights that the others hold."""
        while not self._ended:
            try:
                generator = self._start(slot.number)
                with self._changed:  # no newer weights may come between
                    if self.version >= 0:
                        generator.load(self._held, self.version)
                    slot.generator = generator
                    self._changed.notify_all()
            except DeadActorError as error:
                slot.failures += 1
                self._note("generator_lost", generator=slot.number, reason=str(error))
                if slot.failures > self.config.monarch.max_restarts:
                    self._give_up(slot, error)
                    return
            except BaseException as error:  # noqa: BLE001 - raised where the pool is asked next
                self._fail(error)
                return
            else:
                if again:
                    self._note("generator_back", generator=slot.number, version=self.version)
                return

    def _give_up(self, slot: _GeneratorSlot, error: DeadActorError) -> None:
        problem = f"generator {slot.number} died {slot.failures} times in a row: {error}"
        fix = "look at what ends its process (memory?), and resume the run"
        self._fail(StoppedError(problem, where="generator", fix=fix))

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failed = error
            self._changed.notify_all()


def cut(indices: Sequence[int], *, parts: int) -> list[tuple[int, ...]]:
    """Cut into at most `parts` runs of almost equal length.

    >>> cut((4, 5, 6, 7, 8), parts=2)
    [(4, 5, 6), (7, 8)]
    """
    size, rest = divmod(len(indices), parts)
    ends = list(itertools.accumulate(size + (part < rest) for part in range(parts)))
    cuts = [tuple(indices[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
    return [part for part in cuts if part]
