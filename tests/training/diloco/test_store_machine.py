"""Any order of joins, steps, late moves and deaths: one commit a round, and everybody in its
weights (a Hypothesis state machine over the operations of the store)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("obstore")
from hypothesis import Phase, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.stateful import (  # noqa: E402
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from composer_replication.training.diloco.blob_store import ObjectStore  # noqa: E402
from composer_replication.training.diloco.replica import Replica  # noqa: E402
from composer_replication.training.diloco.round_records import commit_key  # noqa: E402
from tests.training.diloco.test_faults import AT_ONCE, check_history, memory_store  # noqa: E402
from tests.training.diloco.toy_replicas import (  # noqa: E402
    INNER_STEPS,
    ToyModel,
    join_toy,
    shared,
    toy_spec,
)

pytestmark = pytest.mark.train
MAX_ALIVE = 3


class DeadError(BaseException):
    """The process of a replica is gone."""


class MortalStore:
    """A store whose process dies at its `left`-th operation, before or after it was carried out, or
    sleeps there while another replica acts."""

    def __init__(self, inner: ObjectStore, commits: dict[str, bytes]) -> None:
        self.inner, self.traffic, self.commits = inner, inner.traffic, commits
        self.left, self.fault = 0, "before"
        self.meanwhile: Callable[[], object] = lambda: None

    def _do(self, name: str, *arguments: Any) -> Any:
        self.left -= 1
        hit = self.left == 0
        if self.fault == "commit" and name == "create" and "commit.json" in arguments[0]:
            self.fault = ""
            self.meanwhile()
        if hit and self.fault == "before":
            raise DeadError
        if hit and self.fault == "meanwhile":
            self.meanwhile()
        result = getattr(self.inner, name)(*arguments)
        if hit and self.fault == "after":
            raise DeadError
        return result

    def create(self, key: str, data: bytes) -> bool:
        won = self._do("create", key, data)
        if won and "commit.json" in key:
            assert self.commits.setdefault(key, data) == data, "a round was committed twice"
        return won

    def get(self, key: str) -> bytes | None:
        return self._do("get", key)

    def list(self, prefix: str) -> Any:
        return self._do("list", prefix)

    def delete(self, keys: Any) -> None:
        self._do("delete", keys)


@dataclass
class Player:
    """A living replica and its store."""

    store: MortalStore
    model: ToyModel
    replica: Replica


class Rendezvous(RuleBasedStateMachine):
    """Replicas that act one after the other, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.store = memory_store()
        self.alive: list[Player] = []
        self.commits: dict[int, bytes] = {}
        self.won: dict[str, bytes] = {}
        self.counted: set[tuple[int, int]] = set()

    @precondition(lambda self: len(self.alive) < MAX_ALIVE)
    @rule(dies_at=st.integers(0, 12), fault=st.sampled_from(["before", "after"]))
    def join(self, dies_at: int, fault: str) -> None:
        """A replica joins in a free slot; it may die on the way."""
        store = MortalStore(shared(self.store), self.won)
        store.left, store.fault = dies_at, fault
        try:
            model, replica = join_toy(store, None, toy_spec(), timing=AT_ONCE)
        except DeadError:
            return
        store.left = 0
        self.alive.append(Player(store, model, replica))

    @precondition(lambda self: self.alive)
    @rule(
        which=st.integers(0, MAX_ALIVE - 1),
        at=st.integers(0, 14),
        fault=st.sampled_from(["before", "after", "meanwhile", "commit"]),
    )
    def step(self, which: int, at: int, fault: str) -> None:
        """A replica trains and meets the others; at any operation of the store it may die, or
        sleep through a step of another one, also just before it proposes a commit."""
        player = self.alive[which % len(self.alive)]
        others = [other for other in self.alive if other is not player]
        for other in others:  # who acts meanwhile does so undisturbed
            other.store.left, other.store.fault = 0, ""
        player.store.left, player.store.fault = at, fault
        player.store.meanwhile = lambda: [self._meet(other) for other in others[:1]]
        self._meet(player)

    def _meet(self, player: Player) -> None:
        local = player.model.train()
        try:
            result = player.replica.sync(local, tokens=1, steps=INNER_STEPS)
        except DeadError:
            self.alive.remove(player)
            return
        player.store.left = 0
        player.model.flat.write(result.weights)
        slot = player.replica.exchange.claim.slot
        if result.contributed:
            counted = (result.round, slot)
            assert slot in result.commits[0].slots
            assert counted not in self.counted  # no move counts twice
            self.counted.add(counted)

    @invariant()
    def commits_never_change(self) -> None:
        """A commit that was there is there, byte for byte; there is no gap before the newest."""
        number = 0
        while (data := self.store.get(commit_key(number))) is not None:
            assert self.commits.setdefault(number, data) == data
            number += 1
        assert number == len(self.commits)

    def teardown(self) -> None:
        """A newcomer that replays everything ends in the committed weights."""
        if self.commits:
            check_history(self.store, len(self.commits))


TestRendezvous = Rendezvous.TestCase
TestRendezvous.settings = settings(
    phases=(Phase.generate,), max_examples=25, stateful_step_count=20, deadline=None
)
