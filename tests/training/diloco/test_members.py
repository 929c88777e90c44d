"""Who comes late, leaves, waits for a publisher, resumes or brings other data."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("obstore")

import msgspec  # noqa: E402

from composer_replication.core.config.root import Config  # noqa: E402
from composer_replication.core.errors import SlotTakenError  # noqa: E402
from composer_replication.training.diloco.blob_store import ObjectStore  # noqa: E402
from composer_replication.training.diloco.exchange import Exchange  # noqa: E402
from composer_replication.training.diloco.polling import Timing  # noqa: E402
from composer_replication.training.diloco.replica import Replica, SyncResult  # noqa: E402
from composer_replication.training.diloco.round_records import SPEC, Spec  # noqa: E402
from composer_replication.training.diloco.shared_training import (  # noqa: E402
    RESIDUAL,
    ObjectStoreExchange,
    SharedTraining,
)
from composer_replication.training.diloco.simulated_world import (  # noqa: E402
    Link,
    SimulatedClock,
    SimulatedStore,
    Simulation,
)
from composer_replication.training.loop import train  # noqa: E402
from tests.training.diloco.toy_replicas import (  # noqa: E402
    INNER_STEPS,
    join_toy,
    shared,
    toy_spec,
    train_toy,
)
from tests.training.small_student import (  # noqa: E402
    make_config,
    make_example,
    make_run,
    make_student,
)

pytestmark = pytest.mark.train
AT_ONCE = Timing(grace_s=0.0, stall_s=60.0, poll_s=0.001, max_poll_s=0.01)
EXAMPLES = [make_example(i, length=20 + 3 * i, hints=i % 2) for i in range(6)]


def memory_store() -> ObjectStore:
    from obstore.store import MemoryStore

    return ObjectStore(MemoryStore(), url="memory:///")


def config_of(**sync: Any) -> Config:
    """Three rounds, of two steps unless `every` says otherwise."""
    sync = {"url": "memory:///", "every": 2, "grace_s": 100.0, **sync}
    return make_config(steps=3 * sync["every"], learning_rate=3e-3, sync=sync)


def member(folder: Path, store: ObjectStore, **sync: Any) -> SharedTraining:
    """A run's membership, without the loop around it."""
    config, exchange = config_of(**sync), ObjectStoreExchange(store=store, timing=AT_ONCE)
    run = make_run(folder, config, name="r")
    return exchange.join(config, student=make_student(), identity={}, run=run)


def test_error_feedback_is_restored_only_into_its_own_round(tmp_path: Path) -> None:
    """Of another round it was sent meanwhile, and would count twice."""
    mine = member(tmp_path / "a", memory_store())
    kept = {RESIDUAL: torch.ones_like(mine.replica.base)}
    for stale in ({"round": 1, "local_steps": 0}, {"round": 0, "local_steps": 1}):
        mine.restore(stale, kept)
        assert not mine.replica.residual.any()
    mine.restore({"round": 0, "local_steps": 0}, kept)
    assert mine.replica.residual.all()


def test_who_came_too_late_takes_half_as_many_steps_until_it_is_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, met = member(tmp_path / "a", memory_store(), every=8), list[int]()
    in_time = iter([False, False, False, False, True, True])
    sync = Replica.sync

    def late(replica: Replica, local: Any, *, tokens: int, steps: int) -> SyncResult:
        met.append(steps)
        result = sync(replica, local, tokens=tokens, steps=steps)
        return dataclasses.replace(result, contributed=next(in_time))

    monkeypatch.setattr(Replica, "sync", late)
    while len(met) < 6:
        mine.after_step(1, {}, probe=())
    assert met == [8, 4, 2, 1, 1, 8]


def test_who_leaves_is_waited_for_no_more_and_its_slot_is_free() -> None:
    """The other one has hours of grace, and ends its next round at once; a newcomer needs no
    takeover."""
    store, spec = memory_store(), toy_spec(replicas=1)
    timing = Timing(grace_s=3600.0, stall_s=20.0, poll_s=0.001, max_poll_s=0.01)
    leaver_model, leaver = join_toy(shared(store), 1, spec, timing=AT_ONCE)
    train_toy(leaver_model, leaver, until=1)
    leaver.exchange.leave()
    (result,) = train_toy(*join_toy(shared(store), 0, spec, timing=timing), until=2)
    assert result.commits[0].slots == [0]
    _, newcomer = join_toy(shared(store), 1, spec)
    assert newcomer.exchange.claim.epoch == 1


@pytest.mark.parametrize(
    ("error", "leaves"),
    [(KeyError("a bug"), True), (SlotTakenError("slot 0 was taken over"), False)],
)
def test_a_run_that_ends_leaves(error: Exception, leaves: bool, tmp_path: Path) -> None:
    """Unless its slot was taken over: the other replica holds it."""
    store = memory_store()
    with pytest.raises(type(error)), member(tmp_path / "a", store):
        raise error
    assert ("slots/0000/0000.left" in store.list("slots")) is leaves


def wait_of(slot: int, *, gather: str, grace_s: float) -> float:
    """How long a replica waits for slot 0, which has joined and never offers."""
    spec = Spec(weights=[], schema_sha256="", replicas=2, quorum=1, gather=gather)
    world, waited = Simulation(), list[float]()

    def run(clock: SimulatedClock, mine: int) -> None:
        store, start = SimulatedStore(world, Link(), mine), torch.zeros(64)
        timing = Timing(grace_s=grace_s, stall_s=1e6)
        clock.sleep(10.0 * mine)
        how: dict[str, Any] = {"slot": mine, "clock": clock, "timing": timing}
        replica = Replica(Exchange.join(store, spec, start=start, **how))
        if mine == slot:
            waited.append(replica.sync(replica.base - 1.0, tokens=1, steps=1).wait_s)

    for mine in (0, slot):
        world.start(lambda clock, mine=mine: run(clock, mine))
    world.run()
    return waited[0]


def test_a_publishers_deputies_wait_twice_as_long() -> None:
    """By then the publisher itself has proposed, if it lives; if not, they do."""
    grace_s = 100.0
    assert wait_of(1, gather="peer", grace_s=grace_s) == pytest.approx(grace_s, rel=0.1)
    assert wait_of(1, gather="publisher", grace_s=grace_s) == pytest.approx(2 * grace_s, rel=0.1)


def test_each_replica_may_have_data_of_its_own(tmp_path: Path) -> None:
    """Machines that share a bucket keep their logs to themselves: the data's hash is compared when
    a run is resumed, not between replicas."""
    store = memory_store()
    for name, examples in (("a", EXAMPLES), ("b", EXAMPLES[:4])):
        config = config_of()
        train(
            config,
            student=make_student(),
            examples=examples,
            run=make_run(tmp_path / name, config, name=name),
            exchange=ObjectStoreExchange(store=shared(store)),
        )
    assert "data_sha256" not in msgspec.json.decode(store.get(SPEC) or b"")["identity"]


@pytest.mark.parametrize("field", ["schema_sha256", "base_sha256"])
def test_an_offer_of_other_weights_is_refused(field: str) -> None:
    """One hash of the offer is another one; the rest is right."""
    store, spec = memory_store(), toy_spec()
    other_model, other = join_toy(shared(store), 1, spec, timing=AT_ONCE)
    exchange = other.exchange
    if field == "schema_sha256":
        exchange.spec = msgspec.structs.replace(spec, schema_sha256="of other weights")
    else:
        exchange.theta_sha256 = "of other weights"
    exchange.offer(other.base - other_model.train(), tokens=1, steps=INNER_STEPS)
    one = partial(join_toy, shared(store), 0, spec, timing=AT_ONCE)
    (result,) = train_toy(*one(), until=1)
    assert result.commits[0].slots == [0]
    assert result.commits[0].refused == {exchange.claim.uuid: "taken at other weights"}
