"""Chaos: replicas in processes of their own, a fault in every round, and an auditor that replays
each round with torch.optim.SGD.

    with Chaos(f"file://{folder}/run", folder=folder, seed=1) as chaos:
        records = [chaos.play_round(fault) for fault in draw_faults(200, seed=1)]
        summary = chaos.summary(records)

The replicas meet in lock step, so every fault falls into the round that it is drawn for; what they
do within a round is theirs. Diverged is a round whose weights are not the auditor's, on any
replica; whose commit counts an offer that it must not, or was written twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import multiprocessing
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import torch

from composer_replication.training.diloco.blob_store import ObjectStore, open_store
from composer_replication.training.diloco.codecs import decode_delta
from composer_replication.training.diloco.flat_weights import vector_sha256
from composer_replication.training.diloco.round_records import Commit, commit_key, from_bytes
from tests.training.diloco.chaos_replica import Order, run_replica
from tests.training.diloco.s3_server import FlakyProxy
from tests.training.diloco.toy_replicas import ToyModel

FAULTS = (
    "kill_before_move",
    "kill_after_move",
    "kill_after_offer",
    "kill_before_commit",
    "straggler",
    "duplicate_slot",
    "takeover",
    "damaged_once",
    "damaged_always",
    "aborted_upload",
    "conflict_409",
    "lost_reply",
    "unavailable_503",
    "stale_round",
    "late_join",
    "total_loss",
    "nan_move",
)
REPLICAS, QUORUM = 3, 2
LATE_STAYS = 3
_PROXY_FAULTS = {"conflict_409": "409", "lost_reply": "lost", "unavailable_503": "503"}


def draw_faults(rounds: int, *, seed: int) -> list[str]:
    """A fault for each round: every kind as often as any other, in random order."""
    rng, drawn = random.Random(seed), list[str]()
    while len(drawn) < rounds:
        drawn += rng.sample(FAULTS, len(FAULTS))
    return drawn[:rounds]


@dataclass(slots=True)
class Auditor:
    """One process that replays every round from the store, with torch.optim.SGD."""

    store: ObjectStore
    round: int = 0
    commits: list[bytes] = field(default_factory=list)
    theta: torch.nn.Parameter = field(init=False)
    optimiser: torch.optim.SGD = field(init=False)

    def __post_init__(self) -> None:
        self.theta = torch.nn.Parameter(ToyModel(0).flat.read())
        self.optimiser = torch.optim.SGD([self.theta], lr=0.7, momentum=0.9, nesterov=True)

    @property
    def sha256(self) -> str:
        """The hash of the weights at the start of the round."""
        return vector_sha256(self.theta.detach())

    def check_round(self) -> tuple[Commit | None, list[str]]:
        """The outcome of the next round, and what is wrong with it."""
        data = self.store.get(commit_key(self.round))
        if data is None:
            return None, ["no commit"]
        commit, problems = from_bytes(Commit, data, key=""), list[str]()
        if len(set(commit.slots)) != len(commit.slots):
            problems.append(f"a slot counts twice: {commit.slots}")
        total = torch.zeros_like(self.theta)
        for offer in commit.offers:
            if offer.base_sha256 != self.sha256:
                problems.append(f"slot {offer.slot} was taken at other weights")
            blob = self.store.get(offer.blob) or b""
            if hashlib.sha256(blob).hexdigest() != offer.sha256:
                problems.append(f"the move of slot {offer.slot} is not the offered one")
                continue
            delta = decode_delta(blob, self.theta.detach())
            if not math.isfinite(float(delta.norm())):
                problems.append(f"the move of slot {offer.slot} is not finite")
            total += delta
        self.theta.grad = total / max(1, len(commit.offers))
        self.optimiser.step()
        if commit.theta_sha256 != self.sha256:
            problems.append("the commit leads to other weights")
        self.commits.append(data)
        self.round += 1
        return commit, problems

    def changed(self) -> list[int]:
        """The rounds whose commit is not what it was when its round ended."""
        pairs = enumerate(self.commits)
        return [number for number, data in pairs if self.store.get(commit_key(number)) != data]


@dataclass(slots=True)
class Member:
    """A replica's process, and the uuids of its earlier lives."""

    slot: int | None
    process: BaseProcess
    orders: Connection
    lives: list[str]
    until: int | None = None

    def answer(self, timeout_s: float = 120.0) -> dict[str, Any] | None:
        """What it reports next; None if it died before."""
        try:
            if not self.orders.poll(timeout_s):
                raise AssertionError(f"the replica of slot {self.slot} hangs")
            return self.orders.recv()
        except (EOFError, ConnectionResetError):
            return None

    def order(self, order: Order | None) -> None:
        """Tell it to take part in a round, or to leave."""
        with contextlib.suppress(BrokenPipeError):  # its answer says that it is dead
            self.orders.send(order)

    def end(self) -> int:
        """Wait for its end; returns its exit code."""
        self.process.join(60)
        self.orders.close()
        code = self.process.exitcode
        assert code is not None, f"the replica of slot {self.slot} does not end"
        return code


class Chaos:
    """A run of replicas that are disturbed in every round, and its records."""

    def __init__(
        self,
        url: str,
        *,
        folder: Path,
        seed: int,
        grace_s: float = 0.5,
        environment: dict[str, str] | None = None,
        proxy: FlakyProxy | None = None,
    ) -> None:
        """`environment` is the replicas'; a `proxy` fails in the client's place."""
        self.url, self.folder, self.proxy = url, folder, proxy
        self.rng, self.number, self.started = random.Random(seed), 0, 0
        self.options = {
            "replicas": REPLICAS,
            "quorum": QUORUM,
            "timing": {"grace_s": grace_s, "stall_s": 60.0},
            "environment": environment or {},
        }
        self.log = folder / "commits.txt"
        self.log.touch()
        self.auditor = Auditor(open_store(url))
        self.members: list[Member] = []

    def __enter__(self) -> Self:
        self.members = [self._start(slot) for slot in range(REPLICAS)]
        for member in self.members:
            assert member.answer() is not None
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.process.kill()
            member.end()

    def play_round(self, fault: str) -> dict[str, Any]:
        """One round with a fault; says what came of it."""
        began, victim = time.monotonic(), self.rng.randrange(REPLICAS)
        play = {
            "duplicate_slot": self._duplicate,
            "takeover": self._take_over,
            "late_join": self._join_late,
            "total_loss": self._lose_all,
        }.get(fault, self._disturb)
        injected, hashes = play(fault, victim)
        if self.proxy is not None:
            self.proxy.fault = ""
        commit, problems = self.auditor.check_round()
        wins = self.log.read_text().count(commit_key(self.number) + "\n")
        if wins > 1:
            problems.append(f"committed {wins} times")
        others = [sha256 for sha256 in hashes if sha256 != self.auditor.sha256]
        if others:
            problems.append(f"{len(others)} of {len(hashes)} replicas have other weights")
        record = {
            "round": self.number,
            "fault": fault,
            "injected": injected,
            "slots": commit.slots if commit else [],
            "commits": max(wins, int(commit is not None)),
            "diverged": problems,
            "seconds": round(time.monotonic() - began, 2),
        }
        self.number += 1
        self._let_go()
        return record

    def summary(self, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The run in numbers."""
        changed = self.auditor.changed()
        diverged = {r["round"] for r in records if r["diverged"]} | set(changed)
        slots = sum(len(r["slots"]) for r in records)
        return {
            "rounds": len(records),
            "diverged_rounds": len(diverged),
            "commits_per_round": {
                "least": min(r["commits"] for r in records),
                "most": max(r["commits"] for r in records),
            },
            "commits_that_changed": len(changed),
            "faults": dict(sorted(Counter(r["fault"] for r in records).items())),
            "faults_without_effect": [r["round"] for r in records if not r["injected"]],
            "processes_started": self.started,
            "moves_counted": round(slots / (REPLICAS * len(records)), 3),
            "seconds": round(sum(r["seconds"] for r in records), 1),
        }

    def _start(
        self,
        slot: int | None,
        *,
        takeover: bool = False,
        lives: Sequence[str] = (),
    ) -> Member:
        """Start a replica; it reports when it has joined, or why not."""
        life = f"life{self.started:06d}"
        self.started += 1
        context = multiprocessing.get_context("forkserver")  # PyTorch is imported once
        context.set_forkserver_preload([__name__])
        orders, theirs = context.Pipe()
        claim = {"slot": slot, "takeover": takeover, "uuid": life, "earlier": tuple(lives)}
        arguments = {"claim": claim, "options": self.options, "log": self.log, "orders": theirs}
        process = context.Process(
            target=run_replica, args=(self.url,), kwargs=arguments, daemon=True
        )
        process.start()
        theirs.close()
        return Member(slot, process, orders, [*lives, life])

    def _restart(self, index: int) -> tuple[int, str]:
        """Start a dead member again in its slot; returns the round and the hash that it joins
        with."""
        dead = self.members[index]
        self.members[index] = self._start(dead.slot, lives=dead.lives)
        joined = self.members[index].answer()
        assert joined is not None and "error" not in joined, joined
        self.members[index].until = dead.until
        return joined["round"], joined["hash"]

    def _order(self, fault: str, victims: Sequence[int]) -> None:
        """Let everybody take part in the round, the victims with the fault."""
        what = self.rng.choice(["/delta/", "/offer/", "commit.json"])
        what = "/delta/" if fault == "unavailable_503" else what
        if self.proxy is not None and fault in _PROXY_FAULTS:
            self.proxy.hits = 0
            self.proxy.fault = f"{_PROXY_FAULTS[fault]} {what}".strip()
            victims = ()
        token = self.folder / f"token{self.number}"
        for index, member in enumerate(self.members):
            mine = fault if index in victims else ""
            member.order(Order(fault=mine, what=what, token=token))

    def _finish(self) -> tuple[list[dict[str, Any] | None], list[str]]:
        """Everybody's answers, and the hashes after the round; who died is started again."""
        answers = [member.answer() for member in self.members]
        hashes: list[str] = []
        for index, answer in enumerate(answers):
            if answer is not None and "error" not in answer:
                hashes.append(answer["hash"])
                continue
            self.members[index].end()
            number, sha256 = self._restart(index)
            hashes.append(sha256 if number == self.number + 1 else f"at round {number}")
        return answers, hashes

    def _disturb(self, fault: str, victim: int) -> tuple[bool, list[str]]:
        shared = fault in _PROXY_FAULTS or fault == "kill_before_commit"
        victims = range(len(self.members)) if shared else [victim]
        self._order(fault, victims)
        answers, hashes = self._finish()
        return self._has_struck(fault, answers, victim), hashes

    def _has_struck(
        self, fault: str, answers: Sequence[dict[str, Any] | None], victim: int
    ) -> bool:
        answer = answers[victim]
        if fault in _PROXY_FAULTS:
            if self.proxy is not None:
                return self.proxy.hits > 0
            return (self.folder / f"token{self.number}").exists()
        if fault == "kill_before_commit":
            return sum(one is None for one in answers) == 1
        if fault.startswith("kill") or fault == "aborted_upload":
            return answer is None
        if fault.startswith("damaged"):
            return answer is not None and (answer.get("damaged", 0) > 0 or "error" in answer)
        if answer is None or "error" in answer:
            return False
        reason = {"nan_move": "not finite", "stale_round": "taken at other weights"}
        return not answer["mine"] and reason.get(fault, "") in answer["refused"]

    def _duplicate(self, fault: str, victim: int) -> tuple[bool, list[str]]:
        """A second process for a slot that is held: refused, and nobody is disturbed."""
        second = self._start(victim)
        refused = second.answer()
        code = second.end()
        self._order("", [])
        answers, hashes = self._finish()
        healthy = all(answer is not None and answer["mine"] for answer in answers)
        return refused is not None and "is held" in refused["error"] and code == 17 and healthy, (
            hashes
        )

    def _take_over(self, fault: str, victim: int) -> tuple[bool, list[str]]:
        """A second process that takes the slot; the first lives, goes on and is refused."""
        second = self._start(victim, takeover=True)
        assert (second.answer() or {}).get("round") == self.number
        first, self.members[victim] = self.members[victim], second
        token = self.folder / f"token{self.number}"
        first.order(Order(fault="", what="", token=token))
        self._order("", [])
        answers, hashes = self._finish()
        refused = first.answer() or {}
        code = first.end()
        answer = answers[victim]
        went_on = answer is not None and "error" not in answer
        return "was taken over" in refused.get("error", "") and code == 17 and went_on, hashes

    def _join_late(self, fault: str, victim: int) -> tuple[bool, list[str]]:
        """One more replica joins for a few rounds."""
        late = self._start(None)
        joined = late.answer() or {}
        late.slot, late.until = joined.get("slot"), self.number + LATE_STAYS
        self.members.append(late)
        self._order("", [])
        answers, hashes = self._finish()
        answer = answers[-1]
        return joined.get("round") == self.number and bool(answer and answer["mine"]), hashes

    def _lose_all(self, fault: str, victim: int) -> tuple[bool, list[str]]:
        """All are killed at some moment of the round, and start again from the store."""
        self._order("", [])
        time.sleep(self.rng.uniform(0.0, 0.1))
        for member in self.members:
            member.process.kill()
        codes = [member.end() for member in self.members]
        joined = [self._restart(index) for index in range(len(self.members))]
        hashes = [sha256 for number, sha256 in joined if number == self.number + 1]
        if len(hashes) < len(joined):
            self._order("", [])
            hashes = self._finish()[1]
        return codes == [-signal.SIGKILL] * len(codes), hashes

    def _let_go(self) -> None:
        """Those who came for a few rounds leave when these are over."""
        for member in [m for m in self.members if m.until == self.number]:
            member.order(None)
            member.end()
            self.members.remove(member)
