"""Replicas that die, come late, lie or are told lies: no round diverges, nothing counts twice."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
obstore = pytest.importorskip("obstore")

from composer_replication.core.errors import (  # noqa: E402
    ConfigError,
    SlotTakenError,
    StoppedError,
    SyncError,
)
from composer_replication.training.diloco import blob_store  # noqa: E402
from composer_replication.training.diloco.blob_store import ObjectStore, open_store  # noqa: E402
from composer_replication.training.diloco.polling import Timing  # noqa: E402
from composer_replication.training.diloco.round_records import (  # noqa: E402
    Commit,
    commit_key,
    from_bytes,
)
from tests.training.diloco.faulty_stores import DamagingStore, answered_wrongly  # noqa: E402
from tests.training.diloco.toy_replicas import (  # noqa: E402
    INNER_STEPS,
    PATIENT,
    Child,
    in_threads,
    join_toy,
    shared,
    toy_spec,
    train_toy,
)

pytestmark = pytest.mark.train
AT_ONCE = Timing(grace_s=0.0, stall_s=60.0, poll_s=0.001, max_poll_s=0.01)


def memory_store() -> ObjectStore:
    from obstore.store import MemoryStore

    return ObjectStore(MemoryStore(), url="memory:///")


def commit_of(store: ObjectStore, number: int) -> Commit:
    """The outcome of a round, which has to be there."""
    data = store.get(commit_key(number))
    assert data is not None
    return from_bytes(Commit, data, key="")


def check_history(store: ObjectStore, rounds: int) -> None:
    """Every round is committed once, no slot twice in it, and a newcomer that replays all commits
    ends with the committed weights (each hash is checked on the way)."""
    commits = [commit_of(store, number) for number in range(rounds)]
    assert all(len(set(commit.slots)) == len(commit.slots) for commit in commits)
    _, newcomer = join_toy(shared(store), None, toy_spec(), timing=AT_ONCE)
    assert newcomer.exchange.round == rounds
    assert newcomer.exchange.theta_sha256 == commits[-1].theta_sha256


@pytest.mark.parametrize(
    "point", ["before /delta/ 2", "after /delta/ 2", "after /offer/ 2", "before commit.json 2"]
)
def test_a_replica_that_is_killed_does_not_hold_the_others_up(point: str, tmp_path: Path) -> None:
    url, timing = f"file://{tmp_path}/store", {"grace_s": 3.0}
    dying = Child.start(url, slot=0, rounds=4, point=point, timing=timing)
    first = dying.next_round()  # it took part in round 0, alone
    assert first["mine"] and first["slots"] == [0]
    dying.end()
    assert dying.process.exitcode == -signal.SIGKILL
    survivor = Child.start(url, slot=1, rounds=4, timing=timing)
    reports = survivor.end()
    assert survivor.process.exitcode == 0
    assert [report["round"] for report in reports] == [2, 3, 4]
    # what was offered before the kill counts, once; what was not is lost
    offered = point in ("after /offer/ 2", "before commit.json 2")
    assert reports[0]["slots"] == ([0, 1] if offered else [1])
    check_history(open_store(url), 4)


def test_all_die_and_a_new_replica_goes_on_from_the_store() -> None:
    store = memory_store()
    for slot in (0, 1):  # the second takes over where the first stopped, without a word
        model, replica = join_toy(shared(store), slot, toy_spec(anchor_every=2), timing=AT_ONCE)
        train_toy(model, replica, until=3 * (slot + 1))
    assert [len(commit_of(store, n).slots) for n in range(6)] == [1] * 6
    _, newcomer = join_toy(shared(store), None, toy_spec(anchor_every=2))
    assert newcomer.exchange.round == 6


@pytest.mark.parametrize("place", ["theta", "momentum", "header"])
def test_a_damaged_anchor_is_not_loaded(place: str) -> None:
    """One bit of it changed in the store: a newcomer starts from the anchor before."""
    store, spec = memory_store(), toy_spec(anchor_every=2)
    _, first = member = join_toy(shared(store), 0, spec, timing=AT_ONCE)
    train_toy(*member, until=4)
    key, size = "anchors/000004.safetensors", first.base.numel()
    blob = bytearray(store.get(key) or b"")
    blob[{"theta": -5 * size, "momentum": -2 * size, "header": 9}[place]] ^= 1
    obstore.put(store.store, key, bytes(blob))
    _, newcomer = join_toy(shared(store), None, spec, timing=AT_ONCE)
    assert newcomer.exchange.round == 4
    for name in ("theta", "momentum"):
        mine, theirs = (getattr(r.exchange.state, name) for r in (newcomer, first))
        assert torch.equal(mine, theirs)


def test_a_straggler_keeps_its_move_for_the_next_round() -> None:
    store = memory_store()
    fast = join_toy(shared(store), 0, toy_spec(), timing=AT_ONCE)
    slow_model, slow = join_toy(shared(store), 1, toy_spec(), timing=AT_ONCE)
    local = slow_model.train()
    delta = slow.base - local
    train_toy(*fast, until=2)  # two rounds end without it
    result = slow.sync(local, tokens=1, steps=INNER_STEPS)
    assert not result.contributed and result.missed == 2 and result.round == 2
    torch.testing.assert_close(slow.residual, delta)
    assert torch.equal(result.weights, fast[1].base)
    slow_model.flat.write(result.weights)
    before = slow.base.clone()
    local = slow_model.train()
    after = slow.sync(local, tokens=1, steps=INNER_STEPS)
    assert after.contributed and not slow.residual.any()
    assert after.commits[0].norms[0] == pytest.approx(float((before - local + delta).norm()))


def test_a_straggler_with_fragments_keeps_its_move_of_every_part() -> None:
    store, spec = memory_store(), toy_spec(fragments=2)
    fast = join_toy(shared(store), 0, spec, timing=AT_ONCE)
    slow_model, slow = join_toy(shared(store), 1, spec, timing=AT_ONCE)
    local = slow_model.train()
    delta = slow.base - local
    train_toy(*fast, until=2)  # both parts end without it
    result = slow.sync(local, tokens=1, steps=INNER_STEPS)
    assert not result.contributed and result.missed == 2
    torch.testing.assert_close(slow.residual, delta)
    assert torch.equal(result.weights, fast[1].exchange.state.theta)


def test_a_slot_that_was_taken_over_counts_once() -> None:
    """The holder wakes up, offers and is refused; the newcomer's offer counts."""
    store = memory_store()
    old_model, old = join_toy(shared(store), 0, toy_spec(), timing=AT_ONCE)
    with pytest.raises(SlotTakenError, match="slot 0 is held"):
        join_toy(shared(store), 0, toy_spec(), timing=AT_ONCE)
    new = join_toy(shared(store), 0, toy_spec(), timing=AT_ONCE, takeover=True)
    with pytest.raises(SlotTakenError, match="was taken over") as caught:
        old.sync(old_model.train(), tokens=1, steps=INNER_STEPS)
    assert caught.value.exit_code == 17
    (result,) = train_toy(*new, until=1)
    commit = commit_of(store, 0)
    assert [offer.uuid for offer in commit.offers] == [new[1].exchange.claim.uuid]
    assert "was taken over" in result.commits[0].refused[old.exchange.claim.uuid]


def test_an_offer_at_other_weights_is_refused() -> None:
    """A stale replica that missed a round offers for it all the same."""
    store = memory_store()
    fast = join_toy(shared(store), 0, toy_spec(), timing=AT_ONCE)
    stale_model, stale = join_toy(shared(store), 1, toy_spec(), timing=AT_ONCE)
    delta = stale.base - stale_model.train()
    train_toy(*fast, until=1)
    stale.exchange.round = 1  # old code: it does not look at the commit
    stale.exchange.offer(delta, tokens=1, steps=INNER_STEPS)
    (result,) = train_toy(*fast, until=2)
    assert result.commits[0].slots == [0]
    assert result.commits[0].refused == {stale.exchange.claim.uuid: "taken at other weights"}


@pytest.mark.parametrize(("factor", "reason"), [(float("nan"), "not finite"), (1e6, "its norm")])
def test_a_broken_move_is_refused_and_dropped(factor: float, reason: str) -> None:
    store, spec = memory_store(), toy_spec(replicas=2, quorum=2)

    def replica(slot: int) -> Any:
        model, member = join_toy(shared(store), slot, spec)
        if slot == 1:
            delta = (member.base - model.train()) * factor
            member.exchange.offer(delta, tokens=1, steps=1)
            return member.exchange.settle()
        return member.sync(model.train(), tokens=1, steps=1)

    result, commit = in_threads(partial(replica, 0), partial(replica, 1))
    assert commit.slots == [0] and result.contributed
    assert next(iter(commit.refused.values())).startswith(reason)


def test_a_replica_whose_weights_are_not_finite_stops() -> None:
    model, replica = join_toy(memory_store(), 0, toy_spec(), timing=AT_ONCE)
    local = model.train()
    local[3] = float("nan")
    with pytest.raises(StoppedError, match="not finite"):
        replica.sync(local, tokens=1, steps=1)


@pytest.mark.parametrize(("times", "slots"), [(1, [0, 1]), (100, [1])])
def test_a_damaged_blob_is_read_again_and_then_left_out(times: int, slots: list[int]) -> None:
    """Replica 1 alone proposes, and reads what replica 0 has offered."""
    store, spec = memory_store(), toy_spec()
    model, first = join_toy(shared(store), 0, spec)
    first.exchange.offer(first.base - model.train(), tokens=1, steps=1)
    damaged = DamagingStore(shared(store), what="/delta/", times=times)
    (result,) = train_toy(*join_toy(damaged, 1, spec, timing=AT_ONCE), until=1)  # pyright: ignore
    assert result.commits[0].slots == slots
    commit = first.exchange.settle()
    first.exchange.apply(commit)
    assert first.exchange.theta_sha256 == result.theta_sha256


def test_a_damaged_mean_is_read_again() -> None:
    """What a publisher wrote is damaged on its way to the other replica, once."""
    store, spec = memory_store(), toy_spec(replicas=2, quorum=2, gather="publisher")
    damaged = DamagingStore(shared(store), what="/merged.", times=1)
    (result,), _ = in_threads(
        lambda: train_toy(*join_toy(damaged, 1, spec), until=1),  # pyright: ignore
        lambda: train_toy(*join_toy(shared(store), 0, spec), until=1),
    )
    assert damaged.damaged == 1
    assert result.theta_sha256 == commit_of(store, 0).theta_sha256


def test_no_decision_reads_the_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> float:
        raise AssertionError("the time of day was read")

    monkeypatch.setattr(time, "time", fail)
    store, spec = memory_store(), toy_spec(replicas=2, quorum=1)
    works = (partial(join_toy, shared(store), slot, spec, timing=AT_ONCE) for slot in range(2))
    for member in [work() for work in works]:
        train_toy(*member, until=2)


def test_a_commit_that_leads_elsewhere_stops_the_replica() -> None:
    store = memory_store()
    train_toy(*join_toy(shared(store), 0, toy_spec(), timing=AT_ONCE), until=1)
    _, other = join_toy(shared(store), 1, toy_spec(), timing=AT_ONCE)
    commit = commit_of(store, 0)
    with pytest.raises(SyncError, match="leads to other weights"):
        other.exchange.apply(commit)  # at round 1's weights


def test_another_spec_is_refused_by_name() -> None:
    store = memory_store()
    join_toy(shared(store), 0, toy_spec())
    with pytest.raises(ConfigError, match=r"momentum: 0\.9 -> 0\.0"):
        join_toy(shared(store), 1, toy_spec(momentum=0.0))
    schema = [("0.weight", [37, 14], "float32")]
    with pytest.raises(ConfigError, match=r"weight 0.weight: \[37, 13\] float32 -> \[37, 14\]"):
        join_toy(shared(store), 1, toy_spec(weights=schema, schema_sha256="x"))


@pytest.mark.parametrize("url", ["s3:///run", "gs://", "az:///run", "file://run", "ftp://a/b"])
def test_an_address_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="no store has the address"):
        open_store(url)


def test_a_store_that_cannot_be_opened_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match="cannot be opened") as raised:
        open_store("az://container/run")  # the account is not in the address
    assert raised.value.where == "az://container/run"


@pytest.mark.parametrize("stored", [False, True], ids=["409, nothing stored", "reply lost"])
def test_exists_already_is_not_believed(stored: bool) -> None:
    """S3 answers 409 and has kept nothing; or it has kept mine, and the answer was lost."""
    store = memory_store()
    conflict = obstore.exceptions.AlreadyExistsError("409 ConditionalRequestConflict")
    with answered_wrongly("put", "a", conflict, stored=stored) as calls:
        assert store.create("a", b"mine") is True
        assert store.get("a") == b"mine" and len(calls) == (1 if stored else 2)
        assert store.create("a", b"other") is False


@pytest.mark.parametrize("stored", [False, True], ids=["not sent", "reply lost"])
def test_a_write_whose_connection_breaks_is_repeated(stored: bool) -> None:
    """The client library repeats reads only: a store that is gone for seconds ended the replica."""
    store = memory_store()
    broken = obstore.exceptions.GenericError("error sending request")
    with answered_wrongly("put", "a", broken, stored=stored) as calls:
        assert store.create("a", b"mine") is True
        assert store.get("a") == b"mine" and len(calls) == (1 if stored else 2)
    with answered_wrongly("put", "b", broken), pytest.MonkeyPatch.context() as patch:
        patch.setattr(blob_store, "_TRIES", 1)
        with pytest.raises(SyncError, match="could not be written"):
            store.create("b", b"mine")
    denied = obstore.exceptions.PermissionDeniedError("403")
    with answered_wrongly("put", "c", denied) as calls:
        with pytest.raises(SyncError, match="could not be written"):
            store.create("c", b"mine")
        assert len(calls) == 1


def test_garbage_is_collected_and_commits_are_kept() -> None:
    store, spec = memory_store(), toy_spec(anchor_every=2)
    train_toy(*join_toy(shared(store), 0, spec, timing=AT_ONCE), until=9)
    assert store.list("anchors") == ["anchors/000006.safetensors", "anchors/000008.safetensors"]
    keys = store.list("rounds")
    assert [key for key in keys if key.endswith("commit.json")] == [commit_key(n) for n in range(9)]
    assert {key.split("/")[1] for key in keys if "/delta/" in key} == {"000006", "000007", "000008"}


def test_who_slept_through_the_garbage_starts_from_the_anchor() -> None:
    store, spec = memory_store(), toy_spec(anchor_every=2)
    fast = join_toy(shared(store), 0, spec, timing=AT_ONCE)
    model, slow = join_toy(shared(store), 1, spec, timing=AT_ONCE)
    local = model.train()
    train_toy(*fast, until=9)
    result = slow.sync(local, tokens=1, steps=1)
    assert result.round == 9 and torch.equal(result.weights, fast[1].base)


def test_a_quorum_that_never_comes_is_named() -> None:
    timing = replace(PATIENT, stall_s=0.05)
    model, replica = join_toy(memory_store(), 0, toy_spec(quorum=2), timing=timing)
    with pytest.raises(SyncError, match=r"slots \[0\] offered, a quorum is 2"):
        replica.sync(model.train(), tokens=1, steps=1)
