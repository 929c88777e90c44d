"""`recompose train --backend monarch`: the reference loop in actors, rollouts beside training.

    parts = RunParts.of(config, make_student=partial(load_student, config.student, ...))
    result = train_with_monarch(parts, launch=TrainerLaunch(run=run.path))
    shutdown_monarch()                      # once, before the process ends

This process is the controller. It has three kinds of meshes: one of all trainer ranks, and one of
its own for each generator and each host of environments, so that a process that dies takes nobody
along. The schedule is that of training/on_policy/overlap.py, as in the reference loop: with
`rollouts.overlap = 1` generators play step n + 1 with the weights before step n while the trainers
take step n. Weights go from the first rank through this process to the generators, under a version
that only grows.

By default all actors run on this machine. COMPOSER_MONARCH_HOSTS names workers of Monarch on others
("tcp://node1:26600,tcp://node2:26600"): the trainers go to the first, the rest to the others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import StoppedError, first_line
from composer_replication.core.rundir import open_run
from composer_replication.models.load_student import Student
from composer_replication.rollouts.groups import Groups
from composer_replication.training.backends.monarch_actors import (
    EndpointReply,
    EnvironmentActor,
    GeneratorActor,
    TrainerActor,
    is_dead,
)
from composer_replication.training.backends.monarch_hosted import check_hosted_by_monarch
from composer_replication.training.backends.monarch_pool import (
    DeadActorError,
    GeneratorPool,
    HostGoneError,
)
from composer_replication.training.backends.monarch_process import monarch, prepare_process
from composer_replication.training.backends.monarch_workers import (
    Note,
    RunParts,
    Share,
    TrainerLaunch,
    TrainerReport,
)
from composer_replication.training.backends.step_check import StepGradients, TakeStep
from composer_replication.training.inputs import StepInputs
from composer_replication.training.loop import TrainResult, train_result
from composer_replication.training.on_policy.overlap import StepRollouts
from composer_replication.training.run.run_logger import Listener

HOSTS = "COMPOSER_MONARCH_HOSTS"
"""The variable with the addresses of Monarch's workers on other machines."""
_STOP_S = 20.0


def train_with_monarch(
    parts: RunParts,
    *,
    launch: TrainerLaunch,
    on_step: Listener | None = None,
    on_event: Listener | None = None,
) -> TrainResult:
    """Train in actors and write the run directory, which exists already.

    Raises ConfigError for a setting that is not hosted, StoppedError if a rule of
    training/run/health.py is broken, or if trainers or generators cannot be kept alive.
    """
    config = parts.config
    check_hosted_by_monarch(config)
    notes = _Notes()
    with Cluster() as cluster:
        trainers = Trainers(cluster, ranks=config.monarch.trainers)
        hosts = _Hosts(cluster, parts, note=notes.add)
        pool = GeneratorPool(
            config=config,
            start=_Generators(cluster, parts, hosts),
            weights=trainers.weights,
            note=notes.add,
            prepare=hosts.revive,
        )
        tell = _Forward(on_step=on_step, on_event=on_event)
        with closing(pool):
            with ThreadPoolExecutor(3) as together:
                begun = together.submit(trainers.begin, parts, launch)
                starts = [together.submit(hosts.revive), together.submit(pool.open)]
            report = tell(begun.result())
            for start in starts:
                start.result()
            notes.add("actors", trainers=trainers.processes(), generators=cluster.generators)
            rollouts = StepRollouts(
                config=config, live=pool, student=None, generator=pool, note=notes.add
            )
            with closing(rollouts):
                for step in range(report.steps, config.train.steps):
                    notes.step = step
                    sampled = rollouts.take(step)
                    rollouts.begin(step + 1)
                    report = tell(trainers.step(step, sampled, notes.drain()))
            report = tell(trainers.end(notes.drain()))
    return train_result(open_run(launch.run), steps=report.steps, metrics=dict(report.metrics))


@contextmanager
def monarch_steps(config: Config, *, student: Student) -> Iterator[TakeStep]:
    """The step of the trainer actors, for `recompose train --backend monarch --check`."""
    with Cluster() as cluster:
        trainers = Trainers(cluster, ranks=config.monarch.trainers)

        def take_step(settings: TrainSettings, inputs: StepInputs) -> StepGradients:
            return trainers.compute(config, student, settings, inputs)

        yield take_step


def shutdown_monarch() -> None:
    """End Monarch in this process; it cannot be used again here. Takes about ten seconds."""
    monarch("actor").shutdown_context().get()


class Cluster:
    """The meshes of a run; all are stopped in the end. `generators` has the process of each
    generator, by its number."""

    def __init__(self) -> None:
        prepare_process()
        self.generators: dict[int, int] = {}
        self._meshes: list[Any] = []
        addresses = [a for a in os.environ.get(HOSTS, "").split(",") if a.strip()]
        actor = monarch("actor")
        self._hosts: Any = (
            actor.attach_to_workers(ca="trust_all_connections", workers=addresses)
            if addresses
            else actor.this_host()
        )
        self._num_hosts = max(1, len(addresses))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for mesh in [*self._meshes]:
            self.stop(mesh)

    def mesh(self, size: int, *, number: int = 0) -> Any:
        """A mesh of processes: that of number 0 on the first machine, the others on the rest."""
        hosts = self._hosts
        if self._num_hosts > 1:
            place = 0 if number == 0 else 1 + (number - 1) % (self._num_hosts - 1)
            hosts = hosts.slice(hosts=slice(place, place + 1))
        mesh = hosts.spawn_procs(per_host={"gpus": size})
        self._meshes.append(mesh)
        return mesh

    def stop(self, mesh: Any) -> None:
        """Stop the processes of a mesh; one whose processes are dead already is let go of."""
        if mesh in self._meshes:
            self._meshes.remove(mesh)
        with suppress(Exception):
            mesh.stop().get(timeout=_STOP_S)


class Trainers:
    """The ranks of the reference loop, in one mesh: they are called together."""

    def __init__(
        self, cluster: Cluster, *, ranks: int, actor: type[TrainerActor] = TrainerActor
    ) -> None:
        mesh = cluster.mesh(ranks)
        if ranks > 1:
            monarch("spmd").setup_torch_elastic_env(mesh)
        self._actors: Any = mesh.spawn("trainer", actor)

    def begin(self, parts: RunParts, launch: TrainerLaunch) -> TrainerReport:
        """Build the loop's setup in every rank."""
        return self._call(self._actors.begin, parts, launch)

    def step(self, step: int, sampled: Groups, notes: tuple[Note, ...]) -> TrainerReport:
        """One optimiser step."""
        return self._call(self._actors.step, step, sampled, notes)

    def end(self, notes: tuple[Note, ...]) -> TrainerReport:
        """Close the run as done."""
        return self._call(self._actors.end, notes)

    def weights(self) -> Mapping[str, Tensor]:
        """The trainable weights of the first rank."""
        return self._call(self._actors.weights)

    def processes(self) -> list[int]:
        """The process of each rank."""
        return _values(self._actors.process)

    def compute(
        self, config: Config, student: Student, settings: TrainSettings, inputs: StepInputs
    ) -> StepGradients:
        """A step's losses and gradient."""
        return self._call(self._actors.compute, config, student, settings, inputs)

    def _call(self, endpoint: Any, *arguments: Any) -> Any:
        """What the first rank gives back."""
        try:
            return _values(endpoint, *arguments)[0]
        except RuntimeError as error:
            if not is_dead(error):
                raise
            raise StoppedError(
                f"a trainer's process is gone: {first_line(error)}",
                where="trainer",
                fix="resume the run from its newest checkpoint: --resume latest",
            ) from error


def _values(endpoint: Any, *arguments: Any) -> list[Any]:
    """What every rank gives back, in their order."""
    return [value for _, value in endpoint.call(*arguments).get().items()]


@dataclass(slots=True, kw_only=True)
class _Host:
    """A process that holds environments, and how often in a row it was started again."""

    mesh: Any = None
    actor: Any = None
    failures: int = 0


class _Hosts:
    """The hosts of the environments; a dead one is started again before it is needed."""

    def __init__(self, cluster: Cluster, parts: RunParts, *, note: Callable[..., None]) -> None:
        self._cluster, self._parts, self._note = cluster, parts, note
        self._hosts = [_Host() for _ in range(parts.config.monarch.environments)]
        self._reviving = threading.Lock()

    def of(self, share: Share) -> Any:
        """The host of a share's environments."""
        return self._hosts[share.indices[0] % len(self._hosts)].actor

    def revive(self) -> None:
        """Start those that do not live."""
        with self._reviving:  # shares of two generators may miss the same host
            for number, host in enumerate(self._hosts):
                while not self._lives(host):
                    self._start(number, host)

    def _start(self, number: int, host: _Host) -> None:
        if host.failures > self._parts.config.monarch.max_restarts:
            raise StoppedError(
                f"environment host {number} died {host.failures} times in a row",
                where="environments",
                fix="look at what ends its process (memory?), and resume the run",
            )
        if host.mesh is not None:
            self._note("environments_lost", host=number)
            self._cluster.stop(host.mesh)
        host.mesh = self._cluster.mesh(1, number=1 + number)
        host.actor = host.mesh.spawn("environments", EnvironmentActor, self._parts)

    def _lives(self, host: _Host) -> bool:
        if host.actor is None:
            return False
        try:
            host.actor.process.call_one().get()
        except RuntimeError as error:
            if not is_dead(error):
                raise
            host.failures += 1
            return False
        host.failures = 0
        return True


@dataclass(frozen=True, slots=True)
class _Generators:
    """Starts generators, each in a mesh of its own."""

    cluster: Cluster
    parts: RunParts
    hosts: _Hosts

    def __call__(self, number: int) -> _Generator:
        """A new generator; raises DeadActorError if it does not come up."""
        mesh = self.cluster.mesh(1, number=1 + number)
        generator = _Generator(
            cluster=self.cluster,
            mesh=mesh,
            actor=mesh.spawn("generator", GeneratorActor, self.parts, number),
            hosts=self.hosts,
        )
        self.cluster.generators[number] = generator.process()
        return generator


@dataclass(frozen=True, slots=True, kw_only=True)
class _Generator:
    """A generator actor as the pool sees it."""

    cluster: Cluster
    mesh: Any
    actor: Any
    hosts: _Hosts

    def load(self, weights: Mapping[str, Tensor], version: int) -> int:
        """Take newer weights."""
        return self._ask(self.actor.load, dict(weights), version).value

    def play(self, share: Share) -> list[Any]:
        """The rollouts of a share."""
        reply = self._ask(self.actor.play, share, self.hosts.of(share))
        if reply.host_gone:
            raise HostGoneError("the environments' process is gone")
        return reply.value

    def process(self) -> int:
        """The number of its process."""
        return self._get(self.actor.process)

    def end(self) -> None:
        """Let its process go."""
        self.cluster.stop(self.mesh)

    def _ask(self, endpoint: Any, *arguments: Any) -> EndpointReply:
        reply: EndpointReply = self._get(endpoint, *arguments)
        if reply.error is not None:
            raise reply.error
        return reply

    def _get(self, endpoint: Any, *arguments: Any) -> Any:
        try:
            return endpoint.call_one(*arguments).get()
        except RuntimeError as error:
            if not is_dead(error):
                raise
            raise DeadActorError(str(error).strip().splitlines()[-1].strip()) from error


@dataclass(slots=True)
class _Notes:
    """What the controller has to say in the run's log: the trainers write it with their step."""

    step: int = 0
    _waiting: list[Note] = field(default_factory=list)

    def add(self, kind: str, **facts: Any) -> None:
        """Note an event."""
        self._waiting.append((kind, {"step": self.step, **facts}))

    def drain(self) -> tuple[Note, ...]:
        """The events since the last call."""
        notes, self._waiting[:] = tuple(self._waiting), []
        return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forward:
    """Passes on what the trainers tell; an error of theirs is raised."""

    on_step: Listener | None
    on_event: Listener | None

    def __call__(self, report: TrainerReport) -> TrainerReport:
        """The same, report to the listeners."""
        for listener, lines in ((self.on_event, report.events), (self.on_step, report.lines)):
            if listener is not None:
                for line in lines:
                    listener(dict(line))
        if report.error is not None:
            raise report.error
        return report
