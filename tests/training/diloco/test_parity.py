"""N replicas end every round with the bits of one process that runs torch.optim.SGD."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("obstore")

from composer_replication.training.diloco import outer as outer_module  # noqa: E402
from composer_replication.training.diloco.blob_store import ObjectStore  # noqa: E402
from composer_replication.training.diloco.outer import (  # noqa: E402
    PRESETS,
    OuterState,
    mean_gradient,
    outer_step,
)
from tests.training.diloco.toy_replicas import (  # noqa: E402
    hashes_of_processes,
    in_threads,
    join_toy,
    reference_hashes,
    shared,
    toy_spec,
    train_toy,
)

pytestmark = pytest.mark.train
ROUNDS = 5


def memory_store() -> ObjectStore:
    from obstore.store import MemoryStore

    return ObjectStore(MemoryStore(), url="memory:///")


def hashes_of(num: int, *, rounds: int = ROUNDS, **changes: Any) -> list[list[str]]:
    """The hash after each round of each of `num` replicas, in threads."""
    store, spec = memory_store(), toy_spec(replicas=num, quorum=num, **changes)

    def replica(slot: int) -> list[str]:
        results = train_toy(*join_toy(shared(store), slot, spec), until=rounds)
        return [result.theta_sha256 for result in results]

    return in_threads(*(partial(replica, slot) for slot in range(num)))


@pytest.mark.parametrize("num", [1, 2, 3, 4])
@pytest.mark.parametrize("gather", ["peer", "publisher"])
def test_threads_equal_one_process(num: int, gather: str) -> None:
    expected = reference_hashes(range(num), ROUNDS)
    assert hashes_of(num, gather=gather) == [expected] * num


def test_average_is_sgd_without_momentum() -> None:
    expected = reference_hashes(range(2), ROUNDS, lr=1.0, momentum=0.0)
    assert hashes_of(2, learning_rate=1.0, momentum=0.0) == [expected] * 2


@pytest.mark.parametrize("num", [1, 2, 3, 4])
def test_processes_on_a_disk_equal_one_process(num: int, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    hashes = hashes_of_processes(url, num=num, rounds=ROUNDS)
    assert hashes == [reference_hashes(range(num), ROUNDS)] * num


@pytest.mark.parametrize(
    "wrong", [{"sign": -1.0}, {"lr": 1.0}, {"momentum": 0.0}], ids=lambda wrong: next(iter(wrong))
)
def test_another_outer_optimiser_is_not_equal(wrong: dict[str, float]) -> None:
    """The reference with a planted fault differs from the first round on: the test can fail."""
    right = hashes_of(2, rounds=2)[0]
    assert right == reference_hashes(range(2), 2)
    assert right[1] != reference_hashes(range(2), 2, **wrong)[1]


def test_pseudo_gradients_of_another_base_are_not_equal() -> None:
    """A replica that subtracts from the wrong start leads elsewhere."""
    store, spec = memory_store(), toy_spec()
    model, replica = join_toy(store, 0, spec)
    replica.base = model.train()  # a swapped base: the delta loses the first steps
    (result,) = train_toy(model, replica, until=1)
    assert result.theta_sha256 != reference_hashes([0], 1)[0]


def test_one_step_of_nesterov_by_hand() -> None:
    """lr .7, momentum .9, gradients 1 then 1: steps of .7 * 1.9 and .7 * (1 + .9 * 1.9)."""
    state, gradient = OuterState.start(torch.tensor([10.0])), torch.tensor([1.0])
    state = outer_step(state, gradient, settings=PRESETS["nesterov"])
    assert state.theta.item() == pytest.approx(10 - 0.7 * 1.9)
    state = outer_step(state, gradient, settings=PRESETS["nesterov"])
    assert state.theta.item() == pytest.approx(10 - 0.7 * 1.9 - 0.7 * (1 + 0.9 * 1.9))


def test_the_outer_step_moves_towards_the_replica() -> None:
    start, local = torch.tensor([1.0]), torch.tensor([3.0])
    after = outer_step(OuterState.start(start), start - local, settings=PRESETS["average"])
    assert after.theta.item() == 3.0


def test_weights_by_tokens_are_a_weighted_mean() -> None:
    deltas = [torch.tensor([1.0]), torch.tensor([5.0])]
    assert mean_gradient(deltas, [3.0, 1.0]).item() == 2.0
    assert outer_module.mean_gradient(deltas, [4.0, 4.0]).item() == 3.0


def test_tokens_weigh_when_they_are_asked_to() -> None:
    store = memory_store()
    spec = toy_spec(replicas=2, quorum=2, token_weights=True, learning_rate=1.0, momentum=0.0)

    def replica(slot: int) -> tuple[object, ...]:
        model, member = join_toy(shared(store), slot, spec)
        start = member.base.clone()
        local = model.train()
        member.sync(local, tokens=[3, 1][slot], steps=3)
        return start, local, member.exchange.state.theta

    (start, a, theta), (_, b, _) = in_threads(*(partial(replica, s) for s in range(2)))
    torch.testing.assert_close(theta, start - (3 * (start - a) + (start - b)) / 4)
