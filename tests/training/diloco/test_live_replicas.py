"""Replicas with three channels that play their own rollouts: apart, killed and resumed, stopped by
a health rule."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("obstore")

from safetensors.torch import load_file  # noqa: E402

from composer_replication.core.errors import ComposerError  # noqa: E402
from composer_replication.core.rundir import RunDir, open_run  # noqa: E402
from composer_replication.training.diloco.shared_training import ObjectStoreExchange  # noqa: E402
from composer_replication.training.loop import train  # noqa: E402
from composer_replication.training.on_policy import live as live_module  # noqa: E402
from composer_replication.training.on_policy.rollout_metrics import Drift  # noqa: E402
from composer_replication.training.run import rollback as rollback_module  # noqa: E402
from tests.training.scripted import (  # noqa: E402
    careless_sample,
    live_config,
    make_live,
    tiny_student,
    workshop,
)
from tests.training.small_student import make_pair, make_run  # noqa: E402

pytestmark = [pytest.mark.train, pytest.mark.timeout(900)]
STEPS = 6


def start(folder: Path, slot: int, **options: Any) -> BaseProcess:
    """Start a replica in a process of its own; its run is folder/runs/r{slot}."""
    context = multiprocessing.get_context("forkserver")  # PyTorch is imported once
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_replica, args=(folder, slot), kwargs=options)
    process.start()
    return process


def end(process: BaseProcess) -> int | None:
    """Wait for a replica's end; returns its exit code."""
    process.join(200)
    return process.exitcode


def run_of(folder: Path, slot: int) -> RunDir:
    """The run directory of a replica."""
    return open_run(folder / "runs" / f"r{slot}")


def _replica(
    folder: Path, slot: int, *, quorum: int = 2, kill_in: int = 0, drift: float = 0.0
) -> None:
    """Train, or go on if the run is there; `kill_in` is the step whose rollouts it dies in, `drift`
    what is measured of the student from then on that it meets the others."""
    torch.set_num_threads(1)
    sync = {"url": f"file://{folder}/store", "every": 2, "slot": slot, "grace_s": 150.0}
    channels = {"preference": {"weight": 1.0, "batch_pairs": 2}}
    config = live_config(
        train={
            "steps": STEPS,
            **channels,
            "sync": {**sync, "replicas": 2, "quorum": quorum},
        },
        groups=2,
        group_size=3,
    )
    steps = 0

    def sample(*arguments: Any, **options: Any) -> Any:
        if kill_in and steps + 1 == kill_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return careless_sample(*arguments, **options)

    def count(metrics: dict[str, Any]) -> None:
        nonlocal steps
        steps = metrics["step"]

    live_module.sample_rollouts = sample
    if drift:
        measure = rollback_module.measure_drift
        rollback_module.measure_drift = lambda *a, **o: (
            Drift(kl=drift, entropy=1.0, tokens=1) if steps >= 4 else measure(*a, **o)
        )
    resume = (folder / "runs" / f"r{slot}").exists()
    run = run_of(folder, slot) if resume else make_run(folder, config, name=f"r{slot}")
    try:
        with workshop() as world:
            train(
                config,
                student=tiny_student(),
                pairs=[make_pair(i) for i in range(4)],
                run=run,
                live=make_live(world, config),
                exchange=ObjectStoreExchange(),
                resume=resume,
                on_step=count,
            )
    except ComposerError as error:
        sys.exit(error.exit_code)


def syncs(run: RunDir) -> list[dict[str, Any]]:
    """The syncs of a run."""
    return [event for event in run.events() if event["kind"] == "sync"]


def weights(run: RunDir, step: int = STEPS) -> dict[str, Any]:
    """The weights of a checkpoint."""
    return load_file(str(run.checkpoint(step) / "model.safetensors"))


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two checkpoints have the same bits."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two replicas that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    replicas = [start(folder, slot) for slot in range(2)]
    assert [end(replica) for replica in replicas] == [0, 0]
    return folder


def test_each_plays_its_own_rollouts_and_all_end_with_the_same_weights(undisturbed: Path) -> None:
    runs = [run_of(undisturbed, slot) for slot in range(2)]
    assert same(*map(weights, runs))
    rounds = [[(e["hash"], e["slots"], e["contributed"]) for e in syncs(run)] for run in runs]
    assert rounds[0] == rounds[1] and len(rounds[0]) == STEPS // 2
    assert all(slots == [0, 1] and took_part for _, slots, took_part in rounds[0])
    assert all(event["kl"] > 0 for event in syncs(runs[0]))
    for name in ("policy", "hint", "preference"):
        for run in runs:  # a step may have flat groups only
            assert any(m[f"{name}/status"] == "active" for m in run.metrics()), name
    played = [
        {json.loads(line)["session"]["id"] for line in text.splitlines() if "session" in line}
        for text in ((run.path / "samples" / "step_000000.jsonl").read_text() for run in runs)
    ]
    assert played[0] and played[1] and not played[0] & played[1]


def test_a_killed_replica_is_resumed_and_nothing_differs(undisturbed: Path, tmp_path: Path) -> None:
    """SIGKILL in the rollouts of the fourth step, with half a round behind it: the other waits."""
    survivor = start(tmp_path, 0)
    assert end(start(tmp_path, 1, kill_in=4)) == -signal.SIGKILL
    assert survivor.is_alive()
    resumed = start(tmp_path, 1)
    assert [end(survivor), end(resumed)] == [0, 0]
    run = run_of(tmp_path, 1)
    assert [e["epoch"] for e in run.events() if e["kind"] == "joined"] == [0, 1]
    for slot in range(2):
        assert same(weights(run_of(tmp_path, slot)), weights(run_of(undisturbed, slot)))
        hashes = [[e["hash"] for e in syncs(run_of(f, slot))] for f in (tmp_path, undisturbed)]
        assert hashes[0] == hashes[1]


def test_a_replica_that_a_health_rule_stops_leaves_and_the_other_goes_on(tmp_path: Path) -> None:
    survivor = start(tmp_path, 0, quorum=1)
    sick = start(tmp_path, 1, quorum=1, drift=9.0)
    assert [end(sick), end(survivor)] == [3, 0]
    stopped, kept = run_of(tmp_path, 1), run_of(tmp_path, 0)
    assert stopped.info()["state"] == "stopped:kl" and kept.info()["state"] == "done"
    (event,) = (e for e in stopped.events() if e["kind"] == "restored")
    assert event["restored"] == 2, "its weights are the last good ones again"
    assert [e["slots"] for e in syncs(kept)] == [[0, 1], [0, 1], [0]]
