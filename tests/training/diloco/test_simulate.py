"""The simulated world: the same exchange, the same bits for the same seed, and times that a real,
throttled store confirms."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.diloco_scale import COMPARED, RESULT, measured, throttled
from composer_replication.core.errors import ConfigError
from composer_replication.training.diloco.simulate import Scenario, ring, simulate
from composer_replication.training.diloco.simulated_world import (
    Link,
    SimulatedClock,
    SimulatedStore,
    Simulation,
)
from tests.cli.workspace import recompose

pytestmark = pytest.mark.train
CALM = Link(latency_s=0.1, latency_spread=0.0, up_bytes_s=1e6, down_bytes_s=2e6)
SMALL = Scenario(replicas=2, trained=1e6, rounds=3, step_s=1.0, inner_steps=5, link=CALM)


def test_threads_take_turns_by_their_time() -> None:
    world, seen = Simulation(), []

    def body(name: str, pause: float) -> None:
        for _ in range(3):
            world.sleep(pause)
            seen.append((name, world.now))

    world.start(lambda clock: body("slow", 2.0))
    world.start(lambda clock: body("fast", 0.75))
    world.run()
    assert seen == [
        ("fast", 0.75),
        ("fast", 1.5),
        ("slow", 2.0),
        ("fast", 2.25),
        ("slow", 4.0),
        ("slow", 6.0),
    ]


def test_an_error_of_a_thread_reaches_run() -> None:
    world = Simulation()
    world.start(lambda clock: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        world.run()


def test_a_request_takes_its_latency_and_its_bytes() -> None:
    world, times = Simulation(), list[float]()

    def body(clock: SimulatedClock) -> None:
        store = SimulatedStore(world, CALM, seed=0, scale=10.0)
        assert store.create("rounds/000000/delta/0000.a", b"x" * 50_000)
        times.append(clock.monotonic())  # 0.1 s, and 500 kB at 1 MB/s
        assert store.get("rounds/000000/delta/0000.a") == b"x" * 50_000
        times.append(clock.monotonic())
        assert list(store.list("rounds")) == ["rounds/000000/delta/0000.a"]
        assert not store.create("rounds/000000/delta/0000.a", b"y")
        assert store.get("spec.json") is None
        assert (store.traffic.bytes_up, store.traffic.bytes_down) == (500_010, 500_000)

    world.start(body)
    world.run()
    assert times == pytest.approx([0.6, 0.95])


def test_the_first_upload_that_ends_wins() -> None:
    world, winners = Simulation(), list[str]()

    def body(name: str, link: Link) -> None:
        if SimulatedStore(world, link, seed=0).create("commit.json", name.encode()):
            winners.append(name)

    world.start(lambda clock: body("far", replace(CALM, latency_s=2.0)))
    world.start(lambda clock: body("near", CALM), at=1.0)
    world.run()
    assert winners == ["near"]


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    stormy = replace(
        SMALL,
        replicas=6,
        link=Link(failure=0.05),
        stragglers=0.3,
        deaths_per_hour=60.0,
        restart_s=5.0,
        grace_s=8.0,
        rounds=6,
    )
    first = simulate(stormy)
    assert first == simulate(stormy) != simulate(replace(stormy, seed=1))
    assert first.participation < 1.0


def test_more_replicas_and_more_weights_cost_more() -> None:
    small, many = simulate(SMALL), simulate(replace(SMALL, replicas=6))
    assert many.sync_s > small.sync_s and many.dollars > small.dollars
    assert many.bytes_down == pytest.approx(5 * small.bytes_down, rel=0.02)
    half = simulate(replace(SMALL, codec="int8"))
    assert half.bytes_up == pytest.approx(small.bytes_up / 3.94, rel=0.05)
    assert small.bytes_up == pytest.approx(4e6, rel=0.2)  # 4 bytes a weight, and the header
    with pytest.raises(ConfigError, match="one replica or more"):
        simulate(replace(SMALL, replicas=0))


def test_what_can_never_end_or_be_divided_is_refused() -> None:
    slow, lossy = replace(CALM, up_bytes_s=0.0), replace(CALM, failure=1.0)
    for wrong in ({"rounds": 0}, {"link": slow}, {"link": lossy}, {"trained": 0.0}):
        with pytest.raises(ConfigError, match="use more than nothing"):
            simulate(replace(SMALL, **wrong))  # pyright: ignore[reportArgumentType]


def test_dollars_are_those_of_requests_and_of_bytes_that_leave_the_store() -> None:
    found = simulate(replace(SMALL, replicas=4))
    requests = 5e-6 * (found.puts + found.lists) + 4e-7 * found.gets
    assert found.dollars == pytest.approx(4 * (requests + 0.09 * found.bytes_down / 1e9))
    assert found.bytes_down == pytest.approx(3 * 4e6, rel=0.02)
    sparse = simulate(replace(SMALL, replicas=4, codec="visible"))
    assert found.bytes_up / sparse.bytes_up == pytest.approx(17, rel=0.1)


def test_stragglers_and_requests_that_fail_take_time() -> None:
    few = replace(SMALL, replicas=4, rounds=6)
    calm, slow = simulate(few), simulate(replace(few, stragglers=0.3))
    lossy = simulate(replace(few, link=replace(CALM, failure=0.3)))
    assert slow.sync_s > calm.sync_s + 0.5 and lossy.sync_s > calm.sync_s + 0.5


def test_who_dies_has_paid_too() -> None:
    """Everybody waits for a replacement, so every sync has sent a whole move of 4 MB."""
    deadly = replace(SMALL, replicas=4, rounds=6, deaths_per_hour=150.0, restart_s=1.0)
    found, calm = simulate(deadly), simulate(replace(deadly, deaths_per_hour=0.0))
    assert found != calm and found.participation == calm.participation == 1.0
    assert found.bytes_up >= 4e6
    assert found.bytes_down > 1.02 * calm.bytes_down, "a replacement reads the state"


@pytest.mark.parametrize("seed", [1, 4])
def test_who_leaves_releases_its_slot_and_nobody_waits_for_it(seed: int) -> None:
    """With either seed somebody leaves, with 4 in the first round already; a replica that is dead
    in its place is waited for until the grace is over, once and not twice."""
    four = replace(SMALL, replicas=4, rounds=6, grace_s=500.0, seed=seed)
    calm, found = simulate(four), simulate(replace(four, leaves_per_hour=60.0))
    assert found.left > 0 and found.participation < 1.0 and found.missed == 0
    assert found.sync_most_s < calm.sync_most_s + 10.0
    assert found == simulate(replace(four, leaves_per_hour=60.0))
    dead = simulate(replace(four, deaths_per_hour=60.0, restart_s=450.0))
    assert 400.0 < dead.sync_most_s < 550.0


def test_a_look_beyond_the_end_of_the_grace_is_followed_by_a_proposal() -> None:
    """A request takes 3 s, and one look begins before the 43 s are over and ends after them: the
    pause that was due would be 16 s."""
    far = replace(SMALL, replicas=4, rounds=6, link=replace(CALM, latency_s=3.0), grace_s=43.0)
    found = simulate(replace(far, deaths_per_hour=60.0, restart_s=1000.0, seed=1))
    assert found.sync_most_s == pytest.approx(97.0, abs=5.0)


def test_leaves_stop_at_the_quorum() -> None:
    found = simulate(replace(SMALL, replicas=6, rounds=8, leaves_per_hour=3600.0))
    assert found.left == 3


def test_who_joins_downloads_the_state() -> None:
    """Weights and momentum, 8 MB, and then the moves of the rounds before: it is paid for, and
    takes a slot that nobody has, or that was released."""
    four = replace(SMALL, replicas=4, rounds=4, codec="visible")
    calm, found = simulate(four), simulate(replace(four, joins_per_hour=600.0))
    assert (calm.joined, found.left) == (0, 0) and found.joined > 0
    assert found.dollars > calm.dollars + found.joined * 0.09 * 8e6 / 1e9 / 4
    assert found.participation > 1.0
    assert found == simulate(replace(four, joins_per_hour=600.0))
    assert found != simulate(replace(four, joins_per_hour=600.0, seed=1))


@pytest.mark.parametrize("gather", ["publisher", "tree"])
def test_a_run_whose_members_change_ends(gather: str) -> None:
    changing = {"deaths_per_hour": 10.0, "leaves_per_hour": 20.0, "joins_per_hour": 100.0}
    found = simulate(
        replace(SMALL, replicas=9, rounds=8, fanout=2, gather=gather, **changing)  # pyright: ignore[reportArgumentType]
    )
    assert found.joined > 0 and found.left > 0


def test_a_rate_below_nothing_is_refused() -> None:
    for name in ("deaths_per_hour", "leaves_per_hour", "joins_per_hour"):
        with pytest.raises(ConfigError, match="from 0 on"):
            simulate(replace(SMALL, **{name: -1.0}))  # pyright: ignore[reportArgumentType]


def test_the_ring_by_hand() -> None:
    """Four replicas: 2 * 3 / 4 of 4 MB at 1 MB/s, and six latencies; per round, or per step."""
    one = ring(replace(SMALL, replicas=4), syncs=1)
    assert one.sync_s == pytest.approx(6.0 + 0.6) and one.bytes_up == pytest.approx(6e6)
    assert one.dollars == pytest.approx(0.09 * 4 * 6e6 / 1e9)
    assert ring(replace(SMALL, replicas=4), syncs=5).sync_s == pytest.approx(33.0)


@pytest.mark.parametrize(("replicas", "gather"), [(2, "peer"), (4, "tree")])
def test_the_prediction_is_within_15_percent_of_real_replicas(replicas: int, gather: str) -> None:
    scenario = throttled(replicas, gather)
    real, predicted = measured(scenario), simulate(scenario).sync_s
    assert predicted == pytest.approx(real, rel=0.15), f"{predicted:.2f} s, measured {real:.2f} s"


def test_what_was_measured_is_predicted_within_15_percent() -> None:
    """The simulation as it is now, with the link that a probe of the throttled S3 server measured,
    beside the committed times of processes there, and beside what the page says."""
    result = json.loads(RESULT.read_text("utf-8"))
    rows, link = result["compared"], Link(**result["probed"])
    assert 0.15 < link.latency_s < 0.25 and link.up_bytes_s == pytest.approx(4e5, rel=0.1)
    assert [(row["replicas"], row["gather"]) for row in rows] == [*COMPARED]
    for row in rows:
        predicted = simulate(throttled(row["replicas"], row["gather"], link)).sync_s
        assert predicted == pytest.approx(row["measured_s"], rel=0.15)
        assert predicted == pytest.approx(row["predicted_s"], rel=0.05)


def test_the_cost_of_a_tree_grows_with_its_height() -> None:
    """Four times as many replicas are one level more: requests and bytes of the replica that needs
    most grow by the same each time, where one publisher reads four times as much."""
    small = replace(SMALL, link=Link(), gather="tree", fanout=4, grace_s=600.0)
    found = [simulate(replace(small, replicas=4**height)) for height in (2, 3, 4)]
    for name in ("bytes_most", "requests_most"):
        steps = [getattr(b, name) - getattr(a, name) for a, b in pairwise(found)]
        assert 0 < steps[1] <= 1.5 * steps[0], name
    assert found[2].requests_most < 120 and found[2].participation == 1.0
    flat = simulate(replace(small, replicas=64, gather="publisher"))
    assert flat.bytes_most > 3 * found[1].bytes_most
    assert flat.requests_most > 2 * found[1].requests_most


def test_the_verb_prints_the_ways_beside_each_other(tmp_path: Path) -> None:
    asked = ("diloco", "simulate", "--replicas", "2", "--replicas", "4", "--rounds", "2")
    rows = recompose(*asked, "--json", cwd=tmp_path).value["rows"]
    assert [row["replicas"] for row in rows] == [2] * 4 + [4] * 4
    ways = {row["way"]: row for row in rows[4:]}
    dense, sparse = ways["over a store, int8"], ways["over a store, PULSELoCo"]
    assert sparse["bytes_up"] < dense["bytes_up"] < ways["data-parallel"]["bytes_up"]
    assert ways["torchft DiLoCo"]["sync_s"] < ways["data-parallel"]["sync_s"]
    printed = recompose(*asked, cwd=tmp_path).out
    assert "lost to sync" in printed and "data-parallel" in printed
    assert recompose("diloco", "simulate", "--replicas", "1", cwd=tmp_path).code == 1
    elastic = (*asked, "--joins-per-hour", "20", "--leaves-per-hour", "5", "--json")
    rows = recompose(*elastic, cwd=tmp_path).value["rows"]
    assert any(row.get("joined", 0) for row in rows) and any(row.get("left", 0) for row in rows)
