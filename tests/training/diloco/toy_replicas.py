"""A small model, the replicas that train it, and the single process that they have to equal."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.errors import ComposerError
from composer_replication.training.diloco.blob_store import BlobStore, ObjectStore, open_store
from composer_replication.training.diloco.exchange import Exchange
from composer_replication.training.diloco.flat_weights import (
    FlatWeights,
    schema_sha256,
    vector_sha256,
)
from composer_replication.training.diloco.polling import Timing
from composer_replication.training.diloco.replica import Replica, SyncResult
from composer_replication.training.diloco.round_records import Spec
from tests.training.diloco.faulty_stores import DyingStore

INNER_STEPS = 3
PATIENT = Timing(grace_s=120.0, stall_s=120.0, poll_s=0.005, max_poll_s=0.05)


class ToyModel:
    """A two-layer network with its AdamW, trained on batches that depend on slot and step."""

    def __init__(self, slot: int, dtype: torch.dtype = torch.float32) -> None:
        self.net = torch.nn.Sequential(
            torch.nn.Linear(13, 37), torch.nn.Tanh(), torch.nn.Linear(37, 5)
        ).to(dtype)
        rng = torch.Generator().manual_seed(0)  # its own: replicas in threads share the global one
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=rng))
        self.flat = FlatWeights.of(self.net)
        self.adam = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.slot, self.step, self.dtype = slot, 0, dtype

    def train(self, num_steps: int = INNER_STEPS) -> Tensor:
        """Take inner steps; returns the weights after them."""
        for _ in range(num_steps):
            rng = torch.Generator().manual_seed(1000 * self.slot + self.step)
            x = torch.randn(16, 13, generator=rng).to(self.dtype)
            y = torch.randn(16, 5, generator=rng).to(self.dtype)
            self.adam.zero_grad()
            torch.nn.functional.mse_loss(self.net(x), y).backward()
            self.adam.step()
            self.step += 1
        return self.flat.read()


def toy_spec(**changes: Any) -> Spec:
    """The spec that the toy's replicas agree on."""
    weights = ToyModel(0).flat.schema()
    given = {
        "weights": weights,
        "schema_sha256": schema_sha256(weights),
        "inner_steps": INNER_STEPS,
    }
    return Spec(**{**given, **changes})


def reference_hashes(
    slots: Sequence[int], rounds: int, *, lr: float = 0.7, momentum: float = 0.9, sign: float = 1.0
) -> list[str]:
    """The weights after each round in one process, with torch.optim.SGD on the model itself."""
    replicas = [ToyModel(slot) for slot in slots]
    outer = ToyModel(0)
    sgd = torch.optim.SGD(outer.net.parameters(), lr=lr, momentum=momentum, nesterov=momentum > 0)
    hashes: list[str] = []
    for _ in range(rounds):
        theta = outer.flat.read()
        for replica in replicas:
            replica.flat.write(theta)
            replica.train()
        for index, parameter in enumerate(outer.net.parameters()):
            total = torch.zeros_like(parameter)
            for replica in replicas:
                total += parameter.detach() - list(replica.net.parameters())[index].detach()
            parameter.grad = sign * total / len(replicas)
        sgd.step()
        hashes.append(vector_sha256(outer.flat.read()))
    return hashes


def join_toy(
    store: BlobStore, slot: int | None, spec: Spec, *, timing: Timing = PATIENT, **how: Any
) -> tuple[ToyModel, Replica]:
    """A model and its replica, with the weights of the round that it joined in."""
    exchange = Exchange.join(
        store, spec, start=ToyModel(0).flat.read(), slot=slot, timing=timing, **how
    )
    model = ToyModel(exchange.claim.slot)
    replica = Replica(exchange, rounded=model.flat.rounded)
    model.flat.write(replica.base)
    return model, replica


def train_toy(
    model: ToyModel, replica: Replica, *, until: int, tokens: int = 1
) -> list[SyncResult]:
    """Train and sync until a round; returns what each sync did."""
    results: list[SyncResult] = []
    while replica.exchange.round < until:
        results.append(replica.sync(model.train(), tokens=tokens, steps=INNER_STEPS))
        model.flat.write(results[-1].weights)
    return results


def shared(store: ObjectStore) -> ObjectStore:
    """The same store for another replica, with its own counts."""
    return replace(store, traffic=type(store.traffic)())


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """Run the works at once; returns their results, or raises the first error."""
    results: list[Any] = [None] * len(works)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = works[index]()
        except BaseException as error:  # noqa: BLE001 - it is raised in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a replica hangs"
    return results


@dataclass(slots=True)
class Child:
    """A replica in a process of its own, e.g. Child.start(url, slot=1, rounds=5)."""

    process: BaseProcess
    lines: Any

    @classmethod
    def start(
        cls, url: str, *, slot: int | None, rounds: int, point: str = "", **options: Any
    ) -> Child:
        """Start one; `point` is where it kills itself, `options` change spec, timing, takeover."""
        context = multiprocessing.get_context("forkserver")  # PyTorch is imported once
        context.set_forkserver_preload([__name__])
        lines, end = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(url, slot, rounds, point, options, end))
        child.start()
        end.close()
        return cls(child, lines)

    def next_round(self) -> dict[str, Any]:
        """What the replica reports of its next sync."""
        assert self.lines.poll(120), "no report"
        return self.lines.recv()

    def end(self) -> list[dict[str, Any]]:
        """Wait for its end; returns what it reported meanwhile."""
        reports: list[dict[str, Any]] = []
        with contextlib.suppress(EOFError):
            while True:
                reports.append(self.lines.recv())
        self.process.join()
        return reports


def hashes_of_processes(url: str, *, num: int, rounds: int) -> list[list[str]]:
    """The hash after each round of each of `num` replicas, in processes that all end well."""
    children = [
        Child.start(url, slot=slot, rounds=rounds, replicas=num, quorum=num) for slot in range(num)
    ]
    reports = [child.end() for child in children]
    assert [child.process.exitcode for child in children] == [0] * num
    return [[report["hash"] for report in of_one] for of_one in reports]


def _child(
    url: str, slot: int | None, rounds: int, point: str, options: dict[str, Any], lines: Any
) -> None:
    torch.set_num_threads(1)
    timing = replace(PATIENT, **options.pop("timing", {}))
    how = {"takeover": options.pop("takeover", False)}
    store: Any = open_store(url)
    if point:
        store = DyingStore(store, point)
    try:
        model, replica = join_toy(store, slot, toy_spec(**options), timing=timing, **how)
        while replica.exchange.round < rounds:
            (result,) = train_toy(model, replica, until=replica.exchange.round + 1)
            report = {"round": result.round, "hash": result.theta_sha256}
            slots = result.commits[0].slots
            # sent at once, as the replica may be killed in its next request
            lines.send({**report, "mine": result.contributed, "slots": slots})
        replica.exchange.leave()
    except ComposerError as error:
        lines.send({"error": str(error)})
        sys.exit(error.exit_code)


# An optimiser imports half of PyTorch: once, in the server that the processes are forked from.
ToyModel(0)
