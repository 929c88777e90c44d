"""The workers and the pool behind the Monarch backend, without Monarch: deaths are thrown, shares
go to whoever lives, weights only grow newer, environments fail alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import pytest
import torch

from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError, DataError, StoppedError
from composer_replication.rollouts.envs.env import MakeEnv
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.task_source import TaskSource
from composer_replication.training.backends.monarch_hosted import check_hosted_by_monarch
from composer_replication.training.backends.monarch_pool import (
    DeadActorError,
    GeneratorPool,
    HostGoneError,
    cut,
)
from composer_replication.training.backends.monarch_workers import (
    EnvironmentHost,
    GeneratorWorker,
    RunParts,
    Share,
)
from tests.training.taught import Desk, desks, live, live_config, renderer, taught_student, untaught

pytestmark = pytest.mark.train


def config_with(**monarch: int) -> Config:
    config = live_config(groups=4, group_size=2, batch_episodes=2, max_new_tokens=8)
    return Config.model_validate({**config.model_dump(), "monarch": monarch})


def parts_of(config: Config, source: Callable[[], TaskSource] = desks) -> RunParts:
    return RunParts(
        config=config,
        make_student=lambda: taught_student(weights=untaught()),
        make_renderer=lambda student: renderer(),
        open_tasks=lambda: nullcontext(source()),
    )


def asking(host: EnvironmentHost) -> Callable[..., Any]:
    return lambda method, *arguments: getattr(host, method)(*arguments)


class Here:
    """A generator in this process; `dies` says before which shares it is killed."""

    def __init__(self, parts: RunParts, dies: Callable[[Share], str] = lambda share: "") -> None:
        self.worker, self.host = GeneratorWorker(parts), EnvironmentHost(parts)
        self.dies, self.versions, self.ended = dies, [], False
        self.played: list[Share] = []

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> int:
        self.versions.append(version)
        return self.worker.load(weights, version)

    def play(self, share: Share) -> list[Rollout]:
        how = self.dies(share)
        if how == "dead":
            raise DeadActorError("Killed(sig=9)")
        if how == "host":
            raise HostGoneError("gone")
        self.played.append(share)
        return self.worker.play(share, asking(self.host))

    def end(self) -> None:
        self.ended = True


def pool_of(
    config: Config, start: Callable[[int], Any], **options: Any
) -> tuple[GeneratorPool, list[Any]]:
    events: list[Any] = []
    weights = taught_student(weights=untaught()).model.named_parameters()
    held = {name: p.detach() for name, p in weights}
    pool = GeneratorPool(
        config=config,
        start=start,
        weights=lambda: held,
        note=lambda kind, **facts: events.append((kind, facts)),
        **options,
    )
    return pool, events


@cache
def expected() -> tuple[Any, ...]:
    """The rollouts of step 3 by the reference loop."""
    student = taught_student(weights=untaught())
    groups = live(config_with()).sample(student.model, step=3, version=2)
    return (groups.groups, groups.flat)


def sampled(pool: GeneratorPool) -> tuple[Any, ...]:
    writer = pool.writer(None, step=2, note=lambda kind, **facts: None)
    groups = pool.sample(writer, step=3, version=2)
    return (groups.groups, groups.flat)


@pytest.mark.parametrize("generators", [1, 3])
def test_generators_play_the_reference_loops_rollouts(generators: int) -> None:
    config = config_with(generators=generators)
    pool, events = pool_of(config, lambda number: Here(parts_of(config)))
    pool.open()
    assert sampled(pool) == expected() and events == []
    pool.close()


def test_the_share_of_a_dead_generator_is_played_by_the_others_and_its_place_is_filled() -> None:
    config, started, again = config_with(generators=2), [], threading.Event()

    def start(number: int) -> Here:
        first = len(started) < 2
        if not first:
            again.wait(60)  # the survivor does not wait for it
        started.append(
            Here(parts_of(config), lambda share: "dead" if number == 1 and first else "")
        )
        return started[-1]

    pool, events = pool_of(config, start)
    pool.open()
    assert sampled(pool) == expected()
    assert sorted(len(generator.played) for generator in started) == [0, 2]
    assert [kind for kind, _ in events] == ["generator_lost"]
    again.set()
    deadline = time.monotonic() + 60
    while len(events) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert events[1] == ("generator_back", {"generator": 1, "version": 2})
    assert started[2].versions == [2]  # the weights that the others hold
    assert pool.writer(None, step=3, note=lambda kind, **facts: None) is pool
    assert started[2].versions == [2, 3]
    pool.close()
    assert started[2].ended


def test_a_generator_that_keeps_dying_ends_the_run_by_name() -> None:
    config = config_with(generators=1, max_restarts=2)
    pool, events = pool_of(config, lambda number: Here(parts_of(config), lambda share: "dead"))
    pool.open()
    with pytest.raises(StoppedError, match=r"generator 0 died 3 times in a row: Killed\(sig=9\)"):
        sampled(pool)
    assert [kind for kind, _ in events].count("generator_lost") == 3


def test_a_share_whose_environments_died_is_played_again() -> None:
    config, gone = config_with(generators=2), []

    def once(share: Share) -> str:
        if not gone:
            gone.append(share)
            return "host"
        return ""

    pool, events = pool_of(config, lambda number: Here(parts_of(config), once))
    pool.open()
    assert sampled(pool) == expected() and len(gone) == 1 and events == []


def test_environments_that_cannot_be_started_again_end_the_run_and_nobody_waits() -> None:
    config, asked = config_with(generators=2), []

    def prepare() -> None:
        asked.append(1)
        if len(asked) > 1:
            raise StoppedError("environment host 0 died", where="environments")

    start = lambda number: Here(parts_of(config), lambda share: "host")  # noqa: E731
    pool, _ = pool_of(config, start, prepare=prepare)
    pool.open()
    with pytest.raises(StoppedError, match="environment host 0 died"):
        sampled(pool)


def test_a_generator_that_cannot_be_made_is_an_error_and_nobody_waits() -> None:
    def start(number: int) -> Any:
        raise ConfigError("no such student", where="student.model")

    pool, _ = pool_of(config_with(generators=2), start)
    with pytest.raises(ConfigError, match="no such student"):
        pool.open()


def test_an_error_of_a_share_is_raised_where_the_rollouts_are_asked_for() -> None:
    config = config_with(generators=2)

    class Wrong(Here):
        def play(self, share: Share) -> list[Rollout]:
            raise ConfigError("planted", where="play")

    pool, _ = pool_of(config, lambda number: Wrong(parts_of(config)))
    pool.open()
    with pytest.raises(ConfigError, match="planted"):
        sampled(pool)


def test_two_groups_of_one_task_are_numbered_together() -> None:
    def same_task() -> TaskSource:
        def tasks(seed: int) -> Any:
            while True:
                yield partial(Desk, "t0", max_turns=2)

        return TaskSource(name="one", train=tasks, monitor=lambda seed, count: [])

    config = config_with(generators=2)
    pool, _ = pool_of(config, lambda number: Here(parts_of(config, same_task)))
    pool.open()
    groups, flat = sampled(pool)
    names = [rollout.session.id for group in (*groups, *flat) for rollout in group.rollouts]
    assert sorted(names) == [f"step-3:0:t0:{number}" for number in range(8)]


def test_older_weights_and_rollouts_of_other_weights_are_refused() -> None:
    worker = GeneratorWorker(parts_of(config_with()))
    weights = {n: p.clone() for n, p in worker.model.named_parameters()}
    assert worker.load(weights, 4) == 4
    for version in (3, 4):
        with pytest.raises(DataError, match=f"version {version} after those of version 4"):
            worker.load(weights, version)
    with pytest.raises(DataError, match="another student: strange"):
        worker.load({"strange": torch.zeros(1)}, 5)
    share = Share(step=5, version=3, label="step-5:0:", indices=(0,))
    with pytest.raises(DataError, match="version 3 was asked for, the weights are 4 steps old"):
        worker.play(share, lambda *_: None)


def test_an_environment_that_fails_or_hangs_costs_its_own_episode() -> None:
    class Broken(Desk):
        runs_in = "one_thread"

        def reply(self, turn: Any) -> Any:
            if self.task_id == "hangs":
                time.sleep(30)
            raise KeyError("path")

    makers: list[MakeEnv] = [partial(Broken, name) for name in ("raises", "hangs")]
    source = TaskSource(
        name="broken", train=lambda seed: iter(makers), monitor=lambda seed, count: []
    )
    rollouts = {"tool_timeout_s": 0.3}
    settings = config_with().model_dump()
    config = Config.model_validate({**settings, "rollouts": {**settings["rollouts"], **rollouts}})
    with EnvironmentHost(parts_of(config, lambda: source)) as host:
        for index, problem in enumerate(("KeyError: 'path'", "no answer within 0.3 s")):
            number, task_id, max_turns = host.make(0, index)
            assert (task_id, max_turns) == (("raises", "hangs")[index], 6)
            assert host.call(number, "open").tools
            with pytest.raises(RuntimeError, match=problem):
                host.call(number, "reply", None)
            host.call(number, "close")
            with pytest.raises(RuntimeError, match="is gone"):
                host.call(number, "reward")
        with pytest.raises(DataError, match="there is no task 2"):
            host.make(0, 2)


@pytest.mark.parametrize(
    ("where", "settings"),
    [
        ("rollouts.env", {"rollouts": {"env": ""}}),
        ("train.fork", {"train": {"fork": True, "hint": {"weight": 1.0}}}),
        (
            "rollouts.generator",
            {
                "rollouts": {
                    "env": "workshop",
                    "generator": "served",
                    "server": {"url": "http://a/v1", "model": "m", "weights_dir": "w"},
                }
            },
        ),
    ],
)
def test_what_no_actor_carries_out_is_refused_by_name(where: str, settings: dict[str, Any]) -> None:
    merged = {"rollouts": {"env": "workshop"}, **settings}
    with pytest.raises(ConfigError) as caught:
        check_hosted_by_monarch(Config.model_validate(merged))
    assert caught.value.where == where and "reference" in caught.value.fix


def test_shares_are_whole_groups_of_almost_equal_size() -> None:
    assert cut(range(5), parts=3) == [(0, 1), (2, 3), (4,)]
    assert cut((7,), parts=3) == [(7,)]
