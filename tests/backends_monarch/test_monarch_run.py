"""Whole runs in actors: the reference loop's numbers, whoever of the generators and environments is
killed on the way; two ranks; a trainer that dies and a run that goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.errors import StoppedError
from composer_replication.core.rundir import RunDir
from composer_replication.training.backends import monarch_run
from composer_replication.training.backends.monarch_run import train_with_monarch
from tests.backends_monarch.small_run import (
    reference_run,
    small_config,
    small_launch,
    small_parts,
)
from tests.training.test_overlap import column
from tests.training.test_resume import same

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]
EPISODES = 4
"""Episodes that are sampled together: a group, which is what a generator of two gets of a step."""


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


class Killer:
    """Kills actors at the moment they are asked for something, by step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.killed: list[str] = []
        self.loads: list[tuple[int, int]] = []
        play, load, of = (
            monarch_run._Generator.play,
            monarch_run._Generator.load,
            monarch_run._Hosts.of,
        )
        killer = self

        def killing_play(generator: Any, share: Any) -> Any:
            second = share.step == 1 and killer.number(generator) == 1
            if second and killer.once("generator 1 at step 1"):
                kill(generator.process())
            return play(generator, share)

        def noting_load(generator: Any, weights: Any, version: int) -> int:
            killer.loads.append((id(generator), version))
            return load(generator, weights, version)

        def killing_of(hosts: Any, share: Any) -> Any:
            host = of(hosts, share)
            if share.step == 3 and killer.once("host at step 3"):
                kill(host.process.call_one().get())
            return host

        monkeypatch.setattr(monarch_run._Generator, "play", killing_play)
        monkeypatch.setattr(monarch_run._Generator, "load", noting_load)
        monkeypatch.setattr(monarch_run._Hosts, "of", killing_of)

    def number(self, generator: Any) -> int:
        process = generator.process()
        return next(n for n, p in generator.cluster.generators.items() if p == process)

    def once(self, what: str) -> bool:
        if what in self.killed:
            return False
        self.killed.append(what)
        return True


def events(run: RunDir, kind: str) -> list[dict[str, Any]]:
    return [event for event in run.events() if event["kind"] == kind]


def test_killed_generators_and_hosts_cost_no_step_and_change_no_number(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(
        monarch={"generators": 2}, overlap=1, batch_episodes=EPISODES, steps=6, checkpoint_every=6
    )
    killer = Killer(monkeypatch)
    run, launch = small_launch(tmp_path / "actors", config)
    lines: list[dict[str, Any]] = []
    result = train_with_monarch(small_parts(config, weights), launch=launch, on_step=lines.append)
    # every actor that was to die died, was noticed, and was started again
    assert killer.killed == ["generator 1 at step 1", "host at step 3"]
    (lost,) = events(run, "generator_lost")
    assert lost["generator"] == 1 and "Killed(sig=9)" in lost["reason"]
    assert len(events(run, "environments_lost")) == 1
    # no step was lost, and no number is another than the reference loop's
    reference, _ = reference_run(tmp_path / "reference", config, weights)
    assert result.steps == 6 and [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [same(m) for m in run.metrics()] == [same(m) for m in reference.metrics()]
    assert run.info()["state"] == "done" and len(run.checkpoints()) == 2
    # versions only grow, ages are within the bound, the policy learns
    for generator in {name for name, _ in killer.loads}:
        versions = [version for name, version in killer.loads if name == generator]
        assert versions == sorted(set(versions))
    assert {version for _, version in killer.loads} == {0, 1, 2, 3, 4}
    assert column(run, "rollouts/age") == [0, 1, 1, 1, 1, 1]
    success = column(run, "rollouts/success")
    assert sum(success[-2:]) / 2 > success[0] + 0.2


def test_two_ranks_take_the_steps_of_one(tmp_path: Path, weights: Path) -> None:
    # It comes after the test that kills, in the same process and for more than 30 s: Monarch 0.7
    # ended the process then, for a message from one dead process to another (DELIVERY_TIMEOUT).
    config = small_config(monarch={"trainers": 2}, overlap=1, steps=2, checkpoint_every=2)
    run, launch = small_launch(tmp_path / "actors", config)
    train_with_monarch(small_parts(config, weights), launch=launch)
    reference, _ = reference_run(tmp_path / "reference", config, weights)
    assert events(run, "start")[0]["ranks"] == 2
    for ours, theirs in zip(run.metrics(), reference.metrics(), strict=True):
        for name in ("grad_norm", "loss", "policy/loss", "hint/loss", "preference/loss"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name
    assert len(run.metrics()) == 2


def test_a_trainer_that_dies_is_named_and_the_run_goes_on_from_its_checkpoint(
    tmp_path: Path, weights: Path
) -> None:
    config = small_config(overlap=1, steps=4, checkpoint_every=2)
    run, launch = small_launch(tmp_path / "actors", config)
    processes: list[int] = []

    def remember(event: dict[str, Any]) -> None:
        if event["kind"] == "actors":
            processes.extend(event["trainers"])

    def kill_it(line: dict[str, Any]) -> None:
        if line["step"] == 3:
            kill(processes[0])

    with pytest.raises(StoppedError, match="a trainer's process is gone") as caught:
        train_with_monarch(
            small_parts(config, weights), launch=launch, on_step=kill_it, on_event=remember
        )
    assert "--resume" in caught.value.fix and [m["step"] for m in run.metrics()] == [1, 2, 3]
    again = small_launch(tmp_path / "unused", config, resume=True)[1]
    resumed = type(again)(run=run.path, pairs=again.pairs, resume=True)
    train_with_monarch(small_parts(config, weights), launch=resumed)
    reference, _ = reference_run(tmp_path / "reference", config, weights)
    assert [same(m) for m in run.metrics()] == [same(m) for m in reference.metrics()]
    assert column(run, "rollouts/age") == [0, 1, 0, 1]
