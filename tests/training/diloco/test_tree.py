"""Moves that are added up in a tree: the bits of one process that adds in the same order, whoever
dies on the way, and a cost per replica that grows with the height."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("obstore")

from torch import Tensor  # noqa: E402

from composer_replication.training.diloco.blob_store import ObjectStore  # noqa: E402
from composer_replication.training.diloco.flat_weights import vector_sha256  # noqa: E402
from composer_replication.training.diloco.polling import Timing  # noqa: E402
from composer_replication.training.diloco.round_records import (  # noqa: E402
    Commit,
    Spec,
    Subtotal,
    commit_key,
    from_bytes,
    part_key,
    to_bytes,
)
from composer_replication.training.diloco.simulated_world import (  # noqa: E402
    Link,
    SimulatedClock,
    SimulatedStore,
    Simulation,
)
from tests.training.diloco.faulty_stores import DamagingStore  # noqa: E402
from tests.training.diloco.test_faults import commit_of, memory_store  # noqa: E402
from tests.training.diloco.toy_replicas import (  # noqa: E402
    INNER_STEPS,
    PATIENT,
    Child,
    ToyModel,
    in_threads,
    join_toy,
    reference_hashes,
    shared,
    toy_spec,
    train_toy,
)

pytestmark = pytest.mark.train
ROUNDS = 3


def in_a_tree(moves: Sequence[Tensor], fanout: int) -> Tensor:
    """The sum of moves in groups, then of groups of groups, each from the left."""
    while len(moves) > 1:
        moves = [
            sum(moves[at + 1 : at + fanout], moves[at].clone())
            for at in range(0, len(moves), fanout)
        ]
    return moves[0]


def tree_hashes(num: int, *, fanout: int, rounds: int = ROUNDS) -> list[str]:
    """The weights after each round in one process, with torch.optim.SGD."""
    replicas = [ToyModel(slot) for slot in range(num)]
    theta = torch.nn.Parameter(replicas[0].flat.read())
    sgd = torch.optim.SGD([theta], lr=0.7, momentum=0.9, nesterov=True)
    hashes: list[str] = []
    for _ in range(rounds):
        start = theta.detach().clone()
        moves: list[Tensor] = []
        for replica in replicas:
            replica.flat.write(start)
            moves.append(start - replica.train())
        theta.grad = in_a_tree(moves, fanout) / num
        sgd.step()
        hashes.append(vector_sha256(theta.detach()))
    return hashes


def hashes_of(num: int, *, fanout: int, **changes: Any) -> list[list[str]]:
    """The hash after each round of each of `num` replicas, in threads."""
    spec = toy_spec(replicas=num, quorum=num, gather="tree", fanout=fanout, **changes)
    store = memory_store()

    def replica(slot: int) -> list[str]:
        results = train_toy(*join_toy(shared(store), slot, spec), until=ROUNDS)
        assert all(result.contributed for result in results)
        return [result.theta_sha256 for result in results]

    return in_threads(*(partial(replica, slot) for slot in range(num)))


@pytest.mark.parametrize(("num", "fanout"), [(3, 2), (5, 2), (8, 2), (9, 2), (7, 3), (6, 4)])
def test_a_tree_equals_one_process_that_adds_in_its_order(num: int, fanout: int) -> None:
    assert hashes_of(num, fanout=fanout) == [tree_hashes(num, fanout=fanout)] * num


@pytest.mark.parametrize("num", [1, 2, 4])
def test_few_replicas_need_no_tree(num: int) -> None:
    assert hashes_of(num, fanout=4) == [reference_hashes(range(num), ROUNDS)] * num


def test_another_order_has_other_bits() -> None:
    """So the order is worth its definition: the flat sum of nine differs from the tree's."""
    assert tree_hashes(9, fanout=2) != tree_hashes(9, fanout=3)
    assert tree_hashes(9, fanout=2) != reference_hashes(range(9), ROUNDS)


POINTS = {
    "before /delta/ 2": False,
    "before /offer/ 2": False,
    "after /offer/ 2": True,
    "before /sum/ 4": True,
    "after /sum/ 4": True,
    "after /part/ 4": True,
    "after /sum/ 5": True,
    "after /part/ 5": True,
    "after /merged. 2": True,
    "before commit.json 2": True,
}


class DeadError(Exception):
    """The simulated death of a replica."""


class SimulatedDeath:
    """A store whose replica dies at a point of the protocol, e.g. "after /sum/ 4"."""

    def __init__(self, inner: SimulatedStore, point: str) -> None:
        self.inner, self.traffic = inner, inner.traffic
        self.when, self.what, number = point.split()
        self.left = int(number)

    def create(self, key: str, data: bytes) -> bool:
        self.left -= self.what in key
        dies = self.left == 0 and self.what in key
        if dies and self.when == "before":
            raise DeadError
        won = self.inner.create(key, data)
        if dies:
            raise DeadError
        return won

    def get(self, key: str) -> bytes | None:
        return self.inner.get(key)

    def list(self, prefix: str) -> Sequence[str]:
        return self.inner.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self.inner.delete(keys)


@dataclass
class Told:
    """What the simulated replicas report: by slot the syncs, and their store."""

    world: Simulation = field(default_factory=Simulation)
    results: dict[int, list[Any]] = field(default_factory=dict)

    def replica(self, clock: SimulatedClock, *, slot: int, spec: Spec, point: str = "") -> None:
        """Take part in four rounds, or die."""
        store: Any = SimulatedStore(self.world, Link(), seed=slot)
        if point:
            store = SimulatedDeath(store, point)
        timing = Timing(grace_s=20.0, poll_s=0.1, max_poll_s=1.0)
        with suppress(DeadError):
            how = {"clock": clock, "uuid": f"{slot:04d}"}
            model, member = join_toy(store, slot, spec, timing=timing, **how)
            while member.exchange.round < 4:
                clock.sleep(10.0)
                done = train_toy(model, member, until=member.exchange.round + 1)
                self.results.setdefault(slot, []).extend(done)


@pytest.mark.parametrize("doomed", [0, 2, 8])
@pytest.mark.parametrize("point", list(POINTS))
def test_the_others_go_on_when_an_aggregator_is_killed(point: str, doomed: int) -> None:
    """Nine replicas in pairs, four levels: slot 0 adds up on all, slot 2 on one, 8 on three. Each
    is killed at every point of its way (slot 0 in round 1); all others take part in all rounds and
    have the same weights after each, and what was offered counts, once."""
    told, spec = Told(), toy_spec(replicas=9, gather="tree", fanout=2)
    for slot in range(9):
        given = partial(told.replica, slot=slot, spec=spec, point=point if slot == doomed else "")
        told.world.start(given)
    told.world.run()
    kept = {slot: results for slot, results in told.results.items() if slot != doomed}
    assert len(kept) == 8 and all(len(results) == 4 for results in kept.values())
    assert all(result.contributed for results in kept.values() for result in results)
    for number in range(4):
        assert len({results[number].theta_sha256 for results in kept.values()}) == 1
    commits = [from_bytes(Commit, told.world.blobs[commit_key(n)], key="") for n in range(4)]
    assert sorted({commit.count for commit in commits}) in ([8, 9], [9])
    if doomed == 0:  # the others write their sums in other rounds, and 8 has nobody beside it
        assert [commit.count for commit in commits] == [9, 9 if POINTS[point] else 8, 8, 8]


def test_a_killed_aggregator_process_holds_nobody_up(tmp_path: Path) -> None:
    """The same in real processes on a disk: slot 0 of five dies once it has written its sum."""
    options = {
        "replicas": 5,
        "gather": "tree",
        "fanout": 2,
        "timing": {"grace_s": 1.0, "max_poll_s": 0.2},
    }
    url = f"file://{tmp_path}/store"
    doomed = Child.start(url, slot=0, rounds=2, point="after /sum/ 3", **options)
    others = [Child.start(url, slot=slot, rounds=2, **options) for slot in range(1, 5)]
    doomed.end()
    kept = [other.end() for other in others]
    assert doomed.process.exitcode == -9
    assert [other.process.exitcode for other in others] == [0] * 4
    hashes = [{report["round"]: report["hash"] for report in reports} for reports in kept]
    assert all(found[2] == hashes[0][2] for found in hashes)


def calls(replicas: int, fanout: int) -> list[Any]:
    """Every replica's store with its counts after one round."""
    spec = toy_spec(replicas=replicas, quorum=replicas, gather="tree", fanout=fanout)
    store = memory_store()
    stores = [shared(store) for _ in range(replicas)]
    in_threads(
        *(
            lambda slot=slot: train_toy(*join_toy(stores[slot], slot, spec), until=1)
            for slot in range(replicas)
        )
    )
    return stores


def test_a_damaged_sum_is_left_out_and_its_moves_are_kept() -> None:
    """The root cannot read the sum of group 1: its members' moves go into the next round."""
    store = memory_store()
    spec = toy_spec(replicas=4, quorum=1, gather="tree", fanout=2)
    damaged = DamagingStore(shared(store), what="/sum/1.0001", times=5)  # as often as it is read

    def replica(slot: int) -> list[Any]:
        mine: Any = damaged if slot == 0 else shared(store)
        model, member = join_toy(mine, slot, spec)
        results = train_toy(model, member, until=2)
        return [(r.contributed, r.refused, r.residual_norm, r.theta_sha256) for r in results]

    found = in_threads(*(partial(replica, slot) for slot in range(4)))
    assert [[contributed for contributed, *_ in one] for one in found] == [
        [True, True],
        [True, True],
        [False, True],
        [False, True],
    ]
    assert found[2][0][1].startswith("unreadable") and found[2][0][2] > 0
    assert found[2][1][2] == 0.0 and len({one[-1][-1] for one in found}) == 1
    assert commit_of(store, 0).count == 2 and commit_of(store, 1).count == 4


def test_an_exploding_group_is_refused_and_its_moves_are_dropped() -> None:
    store = memory_store()
    spec = toy_spec(replicas=6, quorum=1, gather="tree", fanout=2)

    def replica(slot: int) -> Any:
        model, member = join_toy(shared(store), slot, spec)
        local = model.train()
        if slot >= 4:
            local = member.base + (local - member.base) * 1e6
        return member.sync(local, tokens=1, steps=INNER_STEPS)

    found = in_threads(*(partial(replica, slot) for slot in range(6)))
    assert [result.contributed for result in found] == [True] * 4 + [False] * 2
    assert found[5].refused.startswith("its norm") and found[5].residual_norm == 0.0


def test_a_sum_at_other_weights_is_ignored() -> None:
    """Somebody with old weights has written a sum of group 1 over more moves than it has."""
    store, num = memory_store(), 4
    spec = toy_spec(replicas=num, quorum=num, gather="tree", fanout=2)
    forged = Subtotal(
        round=0,
        level=1,
        index=1,
        by="old",
        blob="rounds/000000/sum/1.0001.0009.old",
        sha256="",
        base_sha256="of other weights",
        count=9,
        weight=9.0,
        square=1.0,
    )
    store.create(part_key(0, (2, 0), 1, count=9, uuid="old"), to_bytes(forged))

    timing = replace(PATIENT, grace_s=4.0, stall_s=15.0)

    def replica(slot: int) -> list[str]:
        member = join_toy(shared(store), slot, spec, timing=timing)
        results = train_toy(*member, until=ROUNDS)
        return [result.theta_sha256 for result in results]

    found = in_threads(*(partial(replica, slot) for slot in range(num)))
    assert found == [tree_hashes(num, fanout=2)] * num


def test_who_comes_late_joins_in_a_group_of_its_own() -> None:
    """Slots beyond those that the tree was made for are added up by the root."""
    store = memory_store()
    spec = toy_spec(replicas=3, quorum=1, gather="tree", fanout=2)
    timing = replace(PATIENT, grace_s=1.0)

    def replica(slot: int | None, until: int) -> list[Any]:
        model, member = join_toy(shared(store), slot, spec, timing=timing)
        return [member.exchange.claim.slot, *train_toy(model, member, until=until)]

    in_threads(*(partial(replica, slot, 2) for slot in range(3)))
    for slot in (None, 4, None):  # 3 completes a group, 4 begins one, 5 completes it
        join_toy(shared(store), slot, spec, timing=timing)
    assert sorted({key.split("/")[1] for key in store.list("slots")}) == [
        "group-0000",
        "group-0001",
        "group-0002",
    ]


def test_a_replica_reads_what_its_nodes_add_up_and_no_more() -> None:
    """Of 16 replicas in pairs: a leaf's requests do not grow, those of slot 0 do by levels."""

    def requests(store: ObjectStore) -> int:
        return store.traffic.puts + store.traffic.gets

    few, many = calls(4, 2), calls(16, 2)
    assert requests(many[15]) <= requests(few[3]) + 2 * 2 + 40  # two levels of its path, polls
    assert many[0].traffic.bytes_down <= 2.5 * few[0].traffic.bytes_down
