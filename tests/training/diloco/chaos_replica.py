"""One replica of the chaos run: a process that takes part in a round whenever it is ordered to,
with the fault that the order names."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import obstore
import torch

from composer_replication.core.errors import ComposerError
from composer_replication.training.diloco.blob_store import BlobStore, open_store
from composer_replication.training.diloco.replica import Replica, SyncResult
from tests.training.diloco.faulty_stores import (
    AbortingStore,
    DamagingStore,
    DyingStore,
    LateStore,
    PassingStore,
    answered_wrongly,
)
from tests.training.diloco.toy_replicas import INNER_STEPS, PATIENT, ToyModel, join_toy, toy_spec

FAULTY_STORES: dict[str, Callable[[BlobStore, Path], PassingStore]] = {
    "kill_before_move": lambda store, _: DyingStore(store, "before /delta/"),
    "kill_after_move": lambda store, _: DyingStore(store, "after /delta/"),
    "kill_after_offer": lambda store, _: DyingStore(store, "after /offer/"),
    "kill_before_commit": lambda store, token: DyingStore(store, "before commit.json", token=token),
    "aborted_upload": lambda store, _: AbortingStore(store),
    "straggler": lambda store, _: LateStore(store),
    "damaged_once": lambda store, _: DamagingStore(store, what="/delta/", times=1),
    "damaged_always": lambda store, _: DamagingStore(store, what="/delta/", times=10**9),
}
ERRORS = {
    "conflict_409": ("put", obstore.exceptions.AlreadyExistsError("409 Conflict"), False),
    "lost_reply": ("put", obstore.exceptions.AlreadyExistsError("412"), True),
    "unavailable_503": ("get", obstore.exceptions.GenericError("503 Slow Down"), False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One round with a fault or "", e.g. Order(fault="lost_reply", what="/offer/", token=path)."""

    fault: str
    what: str
    token: Path


class WitnessStore(PassingStore):
    """A store that writes down every commit that it was told is its own."""

    def __init__(self, inner: BlobStore, log: Path) -> None:
        super().__init__(inner)
        self.log = log

    def create(self, key: str, data: bytes) -> bool:
        won = self.inner.create(key, data)
        if won and key.endswith("/commit.json"):
            with self.log.open("a") as file:
                file.write(key + "\n")
        return won


def run_replica(
    url: str, *, claim: Mapping[str, Any], options: dict[str, Any], log: Path, orders: Any
) -> None:
    """Join, report it, then take part in one round for each order; None means leave."""
    torch.set_num_threads(1)
    os.environ.update(options.pop("environment"))
    timing = replace(PATIENT, **options.pop("timing"))
    witness = WitnessStore(open_store(url), log)
    store = PassingStore(witness)
    try:
        model, replica = join_toy(store, spec=toy_spec(**options), timing=timing, **claim)
        exchange = replica.exchange
        joined = {"round": exchange.round, "hash": exchange.theta_sha256}
        orders.send({**joined, "slot": exchange.claim.slot})
        while (order := orders.recv()) is not None:
            facts = _take_part(model, replica, store, order)
            store.inner = witness
            orders.send(facts)
        exchange.leave()
    except ComposerError as error:
        orders.send({"error": str(error), "refused": ""})
        sys.exit(error.exit_code)


def _take_part(
    model: ToyModel, replica: Replica, store: PassingStore, order: Order
) -> dict[str, Any]:
    local = model.train()
    if order.fault in FAULTY_STORES:
        store.inner = FAULTY_STORES[order.fault](store.inner, order.token)
    with _errors(order):
        if order.fault == "nan_move":
            _offer_nan(replica)
        elif order.fault == "stale_round":
            _offer_stale(replica, local)
        result: SyncResult = replica.sync(local, tokens=1, steps=INNER_STEPS)
    model.flat.write(result.weights)
    return {
        "round": result.round,
        "hash": result.theta_sha256,
        "mine": result.contributed,
        "refused": result.refused,
        "damaged": getattr(store.inner, "damaged", 0),
    }


@contextlib.contextmanager
def _errors(order: Order) -> Iterator[None]:
    if order.fault not in ERRORS or not order.what:
        yield
        return
    call, error, stored = ERRORS[order.fault]
    with answered_wrongly(call, order.what, error, stored=stored, token=order.token):
        yield


def _offer_nan(replica: Replica) -> None:
    """Broken code: the move is not checked before it is offered."""
    exchange = replica.exchange
    broken = torch.full_like(exchange.state.theta[exchange.part], float("nan"))
    exchange.offer(broken, tokens=1, steps=INNER_STEPS)
    exchange.settle()


def _offer_stale(replica: Replica, local: torch.Tensor) -> None:
    """Old code: it offers for this round what it took at the weights of an earlier one."""
    exchange = replica.exchange
    current, exchange.theta_sha256 = exchange.theta_sha256, "0" * 64
    exchange.offer(replica.base - local, tokens=1, steps=INNER_STEPS)
    exchange.theta_sha256 = current
    while exchange.committed() is None:
        time.sleep(0.01)
