"""Replicas and the S3 server on hosts of their own (network namespaces): delay, loss, bandwidth,
and partitions that heal. Nothing outside this machine is addressed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("obstore")
pytest.importorskip("moto", reason="moto is not installed (make backends)")

from tests.backends_s3.wires import SERVER, STEP_S, Hosts, NotPermittedError, Wire  # noqa: E402
from tests.training.diloco.s3_server import BUCKET, s3_environment  # noqa: E402
from tests.training.diloco.toy_replicas import reference_hashes  # noqa: E402

pytestmark = [pytest.mark.backend, pytest.mark.timeout(300)]
PORT = 5555
NUM, DELAY_S = 3, 0.015
_MAKE_BUCKET = (
    "import time, urllib.request as web\n"
    "for _ in range(200):\n"
    " try:\n"
    f"  web.urlopen(web.Request('http://{SERVER}:{PORT}/{BUCKET}', method='PUT'), timeout=5)\n"
    "  break\n"
    " except OSError:\n"
    "  time.sleep(0.2)\n"
    "else:\n"
    " raise SystemExit('no server')\n"
)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Three replicas' hosts, 15 ms and 50 Mbit/s from the server's, which lose 2 % of the
    packets."""
    try:
        with Hosts.make(NUM, delay_s=DELAY_S, loss=0.02, bytes_s=50e6 / 8) as made:
            serve = (sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(PORT))
            server = subprocess.Popen(
                made.command(0, *serve), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                subprocess.run(made.command(1, sys.executable, "-c", _MAKE_BUCKET), check=True)
                yield made
            finally:
                server.terminate()
                server.wait()
    except NotPermittedError as error:
        pytest.skip(f"network namespaces are not permitted here: {error}")


@dataclass
class HostReplica:
    """A replica's process on a host, and what it has reported so far."""

    process: subprocess.Popen[str]
    reports: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def start(cls, hosts: Hosts, *, slot: int, **given: Any) -> HostReplica:
        """Start one on the host of its slot."""
        given = {"slot": slot, "grace_s": 60.0, "pause_s": 0.0} | given
        argv = (sys.executable, "-m", "tests.backends_s3.host_replica", json.dumps(given))
        endpoint = {"AWS_ENDPOINT_URL": f"http://{SERVER}:{PORT}"}
        process = subprocess.Popen(
            hosts.command(slot + 1, *argv),
            env=os.environ | s3_environment(PORT) | endpoint,
            stdout=subprocess.PIPE,
            text=True,
        )
        replica = cls(process)
        threading.Thread(target=replica._listen, daemon=True).start()
        return replica

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            self.reports.append(json.loads(line))

    def wait_for(self, number: int) -> None:
        """Wait until it has reported so many rounds."""
        until = time.monotonic() + 120
        while len(self.reports) <= number and time.monotonic() < until:
            time.sleep(0.05)
        assert len(self.reports) > number, self.reports

    def end(self) -> list[dict[str, Any]]:
        """Its rounds, once it has ended well."""
        assert self.process.wait(180) == 0, self.reports
        return [report for report in self.reports if "round" in report]


def check_no_round_diverged(kept: list[list[dict[str, Any]]], rounds: int) -> None:
    """All end after the last round, and whoever reports a round reports the same weights."""
    found: dict[int, set[str]] = {}
    for reports in kept:
        assert reports[-1]["round"] == rounds
        for report in reports:
            found.setdefault(report["round"], set()).add(report["hash"])
    assert all(len(hashes) == 1 for hashes in found.values()), found


def test_a_wire_that_was_taken_up_reads_nobody_elses_file() -> None:
    """A packet that came late let the wire's thread read once more: a file of the same number by
    then, e.g. the pipe on which another test's replica reported its last round."""
    near, far = socket.socketpair()
    with near, far:
        ends = [os.dup(near.fileno()), os.dup(far.fileno())]
        wire = Wire(delay_s=0.0, loss=0.0, bytes_s=1e9)
        wire.lay(ends, seed=1)
        wire.take_up()
        near.send(b"late"), far.send(b"late")
        end, start = os.pipe()
        try:
            assert {end, start} <= {*ends}  # numbers are given out again
            os.write(start, b"a report")
            time.sleep(3 * STEP_S)
            os.set_blocking(end, False)
            assert os.read(end, 100) == b"a report"
        finally:
            os.close(end), os.close(start)


def test_the_hosts_have_no_way_out(hosts: Hosts) -> None:
    for host in range(NUM + 1):
        assert all("192.0.2." in line for line in hosts.ways_out(host)), hosts.ways_out(host)


@pytest.mark.parametrize("gather", ["peer", "tree"])
def test_hosts_that_are_far_apart_equal_one_process(hosts: Hosts, gather: str) -> None:
    """Of three in a tree of pairs the sum is (0 + 1) + 2, the one process's own order."""
    spec = {"replicas": NUM, "quorum": NUM, "gather": gather, "fanout": 2}
    given = {"url": f"s3://{BUCKET}/parity-{gather}", "rounds": 4, "spec": spec}
    before = sum(wire.dropped for wire in hosts.wires)
    kept = [r.end() for r in [HostReplica.start(hosts, slot=s, **given) for s in range(NUM)]]
    assert [[report["hash"] for report in reports] for reports in kept] == [
        reference_hashes(range(NUM), 4)
    ] * NUM
    assert sum(wire.dropped for wire in hosts.wires) > before  # and packets were lost on the way
    least = 3 * 2 * DELAY_S  # a move, an offer and a look, each there and back
    assert all(report["seconds"] > least for reports in kept for report in reports)


def test_a_replica_that_is_cut_off_comes_back(hosts: Hosts) -> None:
    """Its wire is cut for eight seconds: the others go on, and it goes on with them afterwards,
    with the same weights."""
    spec = {"replicas": NUM, "quorum": 2}
    given = {"url": f"s3://{BUCKET}/cut-off", "rounds": 14, "pause_s": 0.5, "grace_s": 2.0}
    replicas = [HostReplica.start(hosts, slot=s, spec=spec, **given) for s in range(NUM)]
    replicas[2].wait_for(2)
    hosts.wires[2].is_cut = True
    time.sleep(8.0)
    hosts.wires[2].is_cut = False
    kept = [replica.end() for replica in replicas]
    check_no_round_diverged(kept, 14)
    slots = [report["slots"] for report in kept[0]]
    without = slots.index([0, 1])
    assert any(2 in present for present in slots[without + 1 :])  # and with it again
    assert sum(report["missed"] for report in kept[2]) > 0


def test_a_server_that_is_cut_off_from_all_comes_back(hosts: Hosts) -> None:
    """Nobody commits anything meanwhile; afterwards all go on with all moves."""
    spec = {"replicas": NUM, "quorum": NUM}
    given = {"url": f"s3://{BUCKET}/server", "rounds": 6, "pause_s": 0.2}
    replicas = [HostReplica.start(hosts, slot=s, spec=spec, **given) for s in range(NUM)]
    replicas[0].wait_for(2)
    for wire in hosts.wires:
        wire.is_cut = True
    time.sleep(0.5)  # what was on its way has arrived
    at = [len(replica.reports) for replica in replicas]
    time.sleep(5.0)
    assert [len(replica.reports) for replica in replicas] == at
    for wire in hosts.wires:
        wire.is_cut = False
    kept = [replica.end() for replica in replicas]
    check_no_round_diverged(kept, 6)
    assert [[report["hash"] for report in reports] for reports in kept] == [
        reference_hashes(range(NUM), 6)
    ] * NUM
