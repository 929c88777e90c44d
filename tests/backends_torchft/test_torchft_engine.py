"""torchft as the engine: a real Lighthouse, real processes, gloo on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication.core.errors import ConfigError, SlotTakenError
from composer_replication.training.diloco.flat_weights import FlatWeights
from composer_replication.training.diloco.torchft import (
    TorchFTDiLoCo,
    TorchFTSettings,
    check_quorum,
    check_settings,
    fragments_of,
    replica_id,
)
from tests.training.diloco.toy_replicas import INNER_STEPS, ToyModel, reference_hashes

pytestmark = [pytest.mark.backend, pytest.mark.timeout(240)]
pytest.importorskip("torchft", reason="torchft is not installed (make backends)")
ROOT = Path(__file__).resolve().parents[2]
CHILD = "tests.backends_torchft.replica_child"
Start = Callable[..., "Child"]


class Child:
    def __init__(self, folder: Path, name: str, settings: TorchFTSettings, **options: Any) -> None:
        self.output = folder / f"{name}.jsonl"
        self.errors = folder / f"{name}.err"
        arguments = [json.dumps(asdict(settings)), str(options["rounds"])]
        arguments += [str(options["start"]), options.get("url", "")]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])
        with self.output.open("wb") as out, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", CHILD, *arguments],
                stdout=out,
                stderr=errors,
                env=environment,
                cwd=ROOT,
            )

    def lines(self) -> list[dict[str, Any]]:
        text = self.output.read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, round_number: int, *, n: int = 0) -> None:
        """Wait until a round from this one on was committed, by n replicas if that is given."""
        deadline = time.monotonic() + 300  # a guard against hangs
        while not any(
            line.get("round", -1) >= round_number and line["n"] in (n, n or line["n"])
            for line in self.lines()
        ):
            assert self.process.poll() is None, self.errors.read_text()[-3000:]
            assert time.monotonic() < deadline, f"{self.output.name} has not reached it"
            time.sleep(0.05)

    def end(self) -> int:
        return self.process.wait(timeout=120)


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts replicas at a Lighthouse of this test's own, which waits for two, or `param`."""
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(
        bind="[::]:0",
        min_replicas=getattr(request, "param", 2),
        join_timeout_ms=10_000,
        quorum_tick_ms=50,
        heartbeat_timeout_ms=4_000,
    )
    port = lighthouse.address().rpartition(":")[2]
    children: list[Child] = []

    def run(slot: int, *, rounds: int, start: float = 0.0, **changes: Any) -> Child:
        settings = TorchFTSettings(
            **{
                "lighthouse": f"http://127.0.0.1:{port}",
                "slot": slot,
                "sync_every": INNER_STEPS,
                "timeout_s": 10.0,
                "quorum_timeout_s": 60.0,
                **changes,
            }
        )
        name = f"{len(children)}-{slot}"
        children.append(Child(tmp_path, name, settings, rounds=rounds, start=start))
        return children[-1]

    yield run
    for child in children:
        if child.process.poll() is None:
            child.process.kill()
            child.process.wait()
    lighthouse.shutdown()


def by_round(*children: Child) -> dict[int, set[str]]:
    """The weights that replicas had after each round that they committed."""
    hashes: dict[int, set[str]] = defaultdict(set)
    for child in children:
        before = 0
        for line in child.lines():
            if line["round"] > before:
                hashes[line["round"]].add(line["sha256"])
            before = line["round"]
    return hashes


def test_two_replicas_are_the_single_process_bit_by_bit(start: Start) -> None:
    children = [start(slot, rounds=6) for slot in (0, 1)]
    assert [child.end() for child in children] == [0, 0], children[0].errors.read_text()[-3000:]
    expected = reference_hashes((0, 1), 6)
    assert by_round(*children) == {n + 1: {sha256} for n, sha256 in enumerate(expected)}


@pytest.mark.parametrize("start", [3], indirect=True)
def test_three_replicas_agree_and_are_near_the_single_process(start: Start) -> None:
    """gloo sums three in an order of its own; all three have the same bits."""
    children = [start(slot, rounds=4) for slot in range(3)]
    assert [child.end() for child in children] == [0, 0, 0]
    hashes = by_round(*children)
    assert sorted(hashes) == [1, 2, 3, 4] and {len(found) for found in hashes.values()} == {1}
    assert {line["n"] for child in children for line in child.lines()} == {3}


def test_a_killed_replica_is_replaced_and_no_round_diverges(start: Start) -> None:
    first, second, third = (start(slot, rounds=1_000) for slot in range(3))
    first.wait_for(2, n=3)
    os.kill(second.process.pid, signal.SIGKILL)
    second.process.wait()
    killed_at = first.lines()[-1]["round"]
    first.wait_for(killed_at + 3, n=2)
    newcomer = start(1, rounds=1_000, start=3.0)  # from other weights: it has to be healed
    newcomer.wait_for(killed_at + 4, n=3)
    newcomer.wait_for(newcomer.lines()[-1]["round"] + 3)
    hashes = by_round(first, second, third, newcomer)
    diverged = {number: found for number, found in hashes.items() if len(found) > 1}
    assert not diverged
    joined = [line["sha256"] for line in newcomer.lines()]
    survivors = {line["sha256"] for child in (first, third) for line in child.lines()}
    assert len(set(joined) & survivors) >= 3


def test_a_second_process_with_a_slot_is_refused(start: Start) -> None:
    first, second = start(0, rounds=1_000), start(1, rounds=1_000)
    first.wait_for(2)
    duplicate = start(1, rounds=1_000)
    assert duplicate.end() == 17
    assert "slot 1 is held by another process" in duplicate.lines()[-1]["refused"]
    reached = first.lines()[-1]["round"]
    first.wait_for(reached + 2, n=2)
    assert second.process.poll() is None
    assert {len(found) for found in by_round(first, second).values()} == {1}


def test_replicas_that_start_from_other_weights_are_refused(start: Start) -> None:
    children = [start(0, rounds=5), start(1, rounds=5, start=0.5)]
    assert [child.end() for child in children] == [17, 17]
    assert "starts from other weights" in children[0].lines()[-1]["refused"]


SAFE = TorchFTSettings(lighthouse="http://127.0.0.1:1", slot=0)


@pytest.mark.parametrize(
    ("changes", "env", "message"),
    [
        ({"min_replicas": 1}, {}, "min_replicas = 1"),
        ({}, {"TORCHFT_USE_BUCKETIZATION": "True"}, "loses tensors"),
        ({"quorum_retries": 0}, {}, "quorum_retries = 0"),
        ({"fragments": 3}, {}, "multiple of fragments"),
        ({"fragments": 2, "fragment_delay": 10}, {}, "fragment_delay = 10"),
        ({"slot": -1}, {}, "slots begin at 0"),
    ],
)
def test_unsafe_settings_are_refused(
    changes: dict[str, Any], env: dict[str, str], message: str
) -> None:
    check_settings(SAFE, {})
    with pytest.raises(ConfigError, match=message):
        check_settings(TorchFTSettings(**{**asdict(SAFE), **changes}), env)


def test_weights_that_are_not_float32_are_refused() -> None:
    toy = ToyModel(0, dtype=torch.bfloat16)
    with pytest.raises(ConfigError, match="4 trainable weights are not float32"):
        TorchFTDiLoCo(toy.net, toy.adam, settings=SAFE)


def test_only_trainable_weights_are_handed_over() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    net[0].requires_grad_(False)
    parts = fragments_of(FlatWeights.of(net), 2)
    assert [sum(p.numel() for p in part.parameters()) for part in parts] == [20, 20]
    assert next(parts[0].parameters()) is net[1].weight


def test_who_leaves_a_quorum_with_one_slot_twice() -> None:
    name = replica_id(SAFE, "a" * 64)
    mine, older = f"{name}:bbb", f"{name}:aaa"
    check_quorum([mine, older], mine=mine, heal=False, step=5)  # the other one will be healed
    check_quorum([mine, older], mine=older, heal=False, step=0)
    for heal, step in ((True, 5), (False, 0)):
        with pytest.raises(SlotTakenError, match="slot 0 is held"):
            check_quorum([mine, older], mine=mine, heal=heal, step=step)
    other = replica_id(
        TorchFTSettings(**{**asdict(SAFE), "slot": 1, "learning_rate": 1.0}), "a" * 64
    )
    with pytest.raises(ConfigError, match="slot 1 runs with other settings"):
        check_quorum([mine, f"{other}:ccc"], mine=mine, heal=False, step=3)
