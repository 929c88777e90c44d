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
from composer_replication.training.diloco.exchange import Exchange  # noqa: E402
from composer_replication.training.diloco.flat_weights import (  # noqa: E402
    FlatWeights,
    vector_sha256,
)
from composer_replication.training.diloco.outer import (  # noqa: E402
    PRESETS,
    OuterState,
    mean_gradient,
    outer_step,
)
from composer_replication.training.diloco.replica import Replica  # noqa: E402
from tests.training.diloco.toy_replicas import (  # noqa: E402
    PATIENT,
    ToyModel,
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


def in_fragments(slots: range, rounds: int, fragments: int) -> list[str]:
    """The weights after each round in one process that steps one part a round by torch.optim.SGD;
    the replicas keep what they have learned of the other parts, and are owed it."""
    replicas = [ToyModel(slot) for slot in slots]
    theta = replicas[0].flat.read()
    size, locals_ = theta.numel(), [theta.clone() for _ in replicas]
    parts = [slice(size * n // fragments, size * (n + 1) // fragments) for n in range(fragments)]
    weights = [torch.nn.Parameter(theta[part].clone()) for part in parts]
    sgds = [torch.optim.SGD([w], lr=0.7, momentum=0.9, nesterov=True) for w in weights]
    begins = [theta.clone() for _ in replicas]
    hashes: list[str] = []
    for number in range(rounds):
        turn = number % fragments
        part = parts[turn]
        for index, replica in enumerate(replicas):
            replica.flat.write(locals_[index])
            locals_[index] = replica.train().clone()
        deltas = [begin[part] - local[part] for begin, local in zip(begins, locals_, strict=True)]
        weights[turn].grad = sum(deltas[1:], deltas[0].clone()) / len(deltas)
        sgds[turn].step()
        for begin, local in zip(begins, locals_, strict=True):
            local[part] = begin[part] = weights[turn].detach()
        hashes.append(vector_sha256(torch.cat([w.detach() for w in weights])))
    return hashes


@pytest.mark.parametrize(("num", "fragments"), [(1, 2), (2, 3), (3, 3)])
def test_fragments_equal_one_process_that_steps_one_part_a_round(num: int, fragments: int) -> None:
    rounds = 2 * fragments + 1
    expected = in_fragments(range(num), rounds, fragments)
    assert hashes_of(num, rounds=rounds, fragments=fragments) == [expected] * num
    assert expected != reference_hashes(range(num), rounds)


def test_only_what_is_trained_is_shipped() -> None:
    """An adapter beside frozen weights: these are not sent, and keep their bits."""
    store, spec = memory_store(), toy_spec(weights=[], schema_sha256="")
    net = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 2, bias=False))
    net[0].requires_grad_(False)
    flat, before = FlatWeights.of(net), net[0].weight.clone()
    replica = Replica(Exchange.join(store, spec, start=flat.read(), slot=0, timing=PATIENT))
    with torch.no_grad():
        net[1].weight += 0.5
    result = replica.sync(flat.read(), tokens=1, steps=1)
    flat.write(result.weights)
    assert flat.num_weights == 600 and torch.equal(net[0].weight, before)
    assert 600 * 4 < len(store.get(result.commits[0].offers[0].blob) or b"") < 600 * 4 + 300
