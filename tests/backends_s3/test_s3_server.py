"""Replicas over a real S3 server (moto in server mode) on this machine: processes and their bits,
a kill at each point of the protocol, and what a round asks of the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("obstore")
pytest.importorskip("moto", reason="moto is not installed (make backends)")

from composer_replication.core.errors import SyncError  # noqa: E402
from composer_replication.training.diloco.blob_store import Traffic, open_store  # noqa: E402
from scripts.diloco_chaos import chaos_on  # noqa: E402
from tests.training.diloco.chaos import FAULTS, draw_faults  # noqa: E402
from tests.training.diloco.s3_server import s3_bucket  # noqa: E402
from tests.training.diloco.toy_replicas import (  # noqa: E402
    PATIENT,
    Child,
    hashes_of_processes,
    in_threads,
    join_toy,
    reference_hashes,
    toy_spec,
    train_toy,
)

pytestmark = [pytest.mark.backend, pytest.mark.timeout(240)]
ROUNDS = 4


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URL of a bucket on an S3 server of this machine."""
    with s3_bucket() as url:
        yield url


@pytest.mark.parametrize("num", [1, 2, 3, 4])
def test_processes_equal_one_process(num: int, bucket: str) -> None:
    url = f"{bucket}/parity{num}"
    hashes = hashes_of_processes(url, num=num, rounds=ROUNDS)
    assert hashes == [reference_hashes(range(num), ROUNDS)] * num


@pytest.mark.parametrize(
    "point", ["before /delta/ 2", "after /delta/ 2", "after /offer/ 2", "before commit.json 2"]
)
def test_a_killed_replica_leaves_no_diverged_round(point: str, bucket: str) -> None:
    """One of two is killed in its second round; the other goes on alone, with the same weights
    in the round before."""
    url = f"{bucket}/kill-{point.replace(' ', '-').replace('/', '')}"
    options = {"replicas": 2, "quorum": 1, "timing": {"grace_s": 2.0}}
    doomed = Child.start(url, slot=1, rounds=5, point=point, **options)
    survivor = Child.start(url, slot=0, rounds=5, **options)
    lost, kept = doomed.end(), survivor.end()
    assert survivor.process.exitcode == 0 and doomed.process.exitcode == -9
    assert [report["round"] for report in kept] == sorted({report["round"] for report in kept})
    by_round = {report["round"]: report["hash"] for report in kept}
    assert len(by_round) == len(kept) and lost
    assert all(by_round[report["round"]] == report["hash"] for report in lost)


def test_a_round_asks_little_of_the_server(bucket: str) -> None:
    """Three replicas that are done at the same time: no sync of any asks for more than promised."""
    num = 3
    spec, together = toy_spec(replicas=num, quorum=num), threading.Barrier(num, timeout=60)
    timing = replace(PATIENT, poll_s=0.25)

    def replica(slot: int) -> list[Traffic]:
        store = open_store(f"{bucket}/traffic")
        model, member = join_toy(store, slot, spec, timing=timing)
        asked = list[Traffic]()
        for until in range(1, ROUNDS + 1):
            together.wait()
            asked += [result.traffic for result in train_toy(model, member, until=until)]
        return asked

    asked = in_threads(*(partial(replica, slot) for slot in range(num)))
    assert [len(of_one) for of_one in asked] == [ROUNDS] * num
    for traffic in (traffic for of_one in asked for traffic in of_one):
        assert 2 <= traffic.puts <= 3  # a move, its offer and perhaps the commit
        assert 1 <= traffic.gets <= 2 * num + 2
        assert 1 <= traffic.lists <= 3


def test_a_bucket_that_is_not_there_is_named(bucket: str) -> None:
    with pytest.raises(SyncError, match=r"spec\.json could not be written"):
        join_toy(open_store("s3://nowhere/x"), 0, toy_spec())


def test_chaos_behind_a_proxy_that_answers_wrongly(tmp_path: Path) -> None:
    """Every kind of fault once; scripts/diloco_chaos.py --store s3 plays 200 rounds."""
    with chaos_on("s3", folder=tmp_path, seed=3) as chaos:
        records = [chaos.play_round(fault) for fault in draw_faults(len(FAULTS), seed=3)]
        summary = chaos.summary(records)
    assert (summary["diverged_rounds"], summary["faults_without_effect"]) == (0, [])
    assert summary["commits_per_round"] == {"least": 1, "most": 1}
