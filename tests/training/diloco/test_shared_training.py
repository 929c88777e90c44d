"""Replicas that train with the reference loop and meet every few steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("obstore")

from composer_replication.core.config.root import Config  # noqa: E402
from composer_replication.core.errors import ConfigError, SlotTakenError  # noqa: E402
from composer_replication.core.rundir import RunDir  # noqa: E402
from composer_replication.training.diloco import shared_training  # noqa: E402
from composer_replication.training.diloco.blob_store import ObjectStore, open_store  # noqa: E402
from composer_replication.training.diloco.clock import Clock  # noqa: E402
from composer_replication.training.diloco.shared_training import (  # noqa: E402
    ObjectStoreExchange,
    code_version,
)
from composer_replication.training.loop import train  # noqa: E402
from tests.training.diloco.toy_replicas import in_threads, shared  # noqa: E402
from tests.training.small_student import (  # noqa: E402
    make_config,
    make_example,
    make_run,
    make_student,
)

pytestmark = pytest.mark.train
EXAMPLES = [make_example(i, length=20 + 3 * i, hints=i % 2) for i in range(6)]


def memory_store() -> ObjectStore:
    from obstore.store import MemoryStore

    return ObjectStore(MemoryStore(), url="memory:///")


def config_of(**sync: Any) -> Config:
    """Six steps in three rounds."""
    sync = {"url": "memory:///", "every": 2, "anchor_every": 2, "grace_s": 100.0, **sync}
    return make_config(steps=6, learning_rate=3e-3, sync=sync)


def run_replica(
    folder: Path, config: Config, store: ObjectStore, *, name: str, **options: Any
) -> tuple[RunDir, Any]:
    """One replica's run and its student."""
    student = options.pop("student", None) or make_student()
    run = options.pop("run", None) or make_run(folder, config, name=name)
    train(config, student=student, examples=EXAMPLES, run=run, exchange=meeting(store), **options)
    return run, student


def meeting(store: ObjectStore) -> ObjectStoreExchange:
    """The exchange of one replica, with its own counts of requests."""
    return ObjectStoreExchange(store=shared(store))


def two_replicas(folder: Path, config: Config, store: ObjectStore) -> list[Any]:
    """Two runs for `in_threads`; their students are made before, as a seed is every thread's."""
    students = [make_student(), make_student()]
    return [
        partial(run_replica, folder / str(i), config, store, name=f"r{i}", student=students[i])
        for i in range(2)
    ]


def syncs(run: RunDir) -> list[dict[str, Any]]:
    """The sync events of a run."""
    return [event for event in run.events() if event["kind"] == "sync"]


def weights(student: Any) -> list[Any]:
    """The trained weights."""
    return [p.detach().clone() for p in student.model.parameters() if p.requires_grad]


def same_weights(a: Any, b: Any) -> bool:
    """Whether two students have the same bits."""
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


def test_two_replicas_end_every_round_with_the_same_weights(tmp_path: Path) -> None:
    store, config = memory_store(), config_of(replicas=2, quorum=2)
    works = two_replicas(tmp_path, config, store)
    (run_a, student_a), (run_b, student_b) = in_threads(*works)
    assert same_weights(student_a, student_b)
    events_a, events_b = syncs(run_a), syncs(run_b)
    assert [e["hash"] for e in events_a] == [e["hash"] for e in events_b]
    assert [(e["round"], e["slots"], e["step"]) for e in events_a] == [
        (0, [0, 1], 2),
        (1, [0, 1], 4),
        (2, [0, 1], 6),
    ]
    for event in events_a:
        assert event["contributed"] and event["kl"] > 0 and event["drift"] > 0
        assert event["bytes_up"] > 4 * sum(p.numel() for p in weights(student_a))
    trained = [sum(m[k] for k in m if k.endswith("/tokens")) for m in run_a.metrics()]
    assert [e["tokens"] for e in events_a] == [sum(trained[at : at + 2]) for at in (0, 2, 4)]
    drawn = [[m["lm_ce/loss"] for m in run.metrics()] for run in (run_a, run_b)]
    assert drawn[0] != drawn[1], "each replica draws its own data"
    assert [step for step, _ in run_a.checkpoints()] == [2, 4, 6]


class TalkingClock(Clock):
    """Its sleeps take no time, and write down what the replica says that it is doing."""

    def __init__(self) -> None:
        self.now, self.said = 0.0, set[str]()
        self.phases: list[Callable[[], str]] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.said.add(self.phases[-1]())


def test_who_is_waited_for_is_said(tmp_path: Path) -> None:
    clock, config = TalkingClock(), config_of(replicas=2)
    exchange = ObjectStoreExchange(store=memory_store(), clock=clock)
    train(
        config,
        student=make_student(),
        examples=EXAMPLES,
        run=make_run(tmp_path, config, name="r"),
        exchange=exchange,
        on_progress=clock.phases.append,
    )
    assert "round 0: waiting for replica 1, about 100 s at most (train.sync.grace_s)" in clock.said
    assert clock.now >= 100, "nobody else came"


def test_slot_0_draws_what_a_single_process_does() -> None:
    alone = make_config()
    for slot, same in ((0, True), (1, False)):
        replica = config_of(slot=slot)
        assert (replica.draw_seed == alone.draw_seed) is same


@pytest.mark.parametrize("codec", ["none", "int4"])
def test_a_resumed_replica_takes_its_slot_again_and_ends_with_the_same_bits(
    tmp_path: Path, codec: str
) -> None:
    """Killed at a round's end, it goes on as if nothing had happened; what a codec has left out is
    in the checkpoint."""

    class Killed(Exception): ...

    def kill(event: dict[str, Any]) -> None:
        if event["kind"] == "checkpoint" and event["step"] == 4:
            raise Killed

    store, config = memory_store(), config_of(codec=codec)
    _, undisturbed = run_replica(tmp_path / "a", config, store, name="r")
    store = memory_store()
    run = make_run(tmp_path / "b", config, name="r")
    with pytest.raises(Killed):
        run_replica(tmp_path / "b", config, store, name="r", run=run, on_event=kill)
    _, resumed = run_replica(tmp_path / "b", config, store, name="r", run=run, resume=True)
    assert [event["epoch"] for event in run.events() if event["kind"] == "joined"] == [0, 1]
    assert same_weights(undisturbed, resumed)


def test_who_joins_late_begins_at_the_current_round(tmp_path: Path) -> None:
    store, config = memory_store(), config_of()
    late: list[RunDir] = []

    def join_later(metrics: dict[str, Any]) -> None:
        if metrics["step"] == 4:  # round 0 is over, round 1 is about to be offered
            late.append(make_run(tmp_path / "late", config, name="late"))

    run_replica(tmp_path / "first", config, store, name="r", on_step=join_later)
    run, _ = run_replica(tmp_path / "late", config, store, name="late", run=late[0])
    (joined,) = [event for event in run.events() if event["kind"] == "joined"]
    assert (joined["round"], joined["step"]) == (3, 6)
    assert run.metrics() == [], "the run is over: nothing is left to train"


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    store, config = memory_store(), config_of()
    run_replica(tmp_path / "a", config, store, name="r")
    other = make_config(steps=6, learning_rate=1e-3, sync=config.train.sync.model_dump())
    with pytest.raises(ConfigError, match=r"train\.learning_rate: 0\.003 -> 0\.001"):
        run_replica(tmp_path / "b", other, store, name="r")
    other = make_config(
        steps=6, learning_rate=3e-3, sync={**config.train.sync.model_dump(), "codec": "int8"}
    )
    with pytest.raises(ConfigError, match="codec: none -> int8"):
        run_replica(tmp_path / "c", other, store, name="r")


def test_other_code_is_refused_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, config = memory_store(), config_of()
    run_replica(tmp_path / "a", config, store, name="r")
    before = {key: store.get(key) for key in store.list("")}
    package = tmp_path / "package"
    (package / "losses").mkdir(parents=True)
    (package / "losses" / "policy.py").write_text("x = 1\n", "utf-8")
    other = code_version(package)
    (package / "losses" / "policy.py").write_text("x = 2\n", "utf-8")
    code_version.cache_clear()
    assert code_version(package) != other and code_version() not in (other, code_version(package))
    monkeypatch.setattr(shared_training, "code_version", lambda: other)
    with pytest.raises(ConfigError, match=re.escape(f" -> {other}")) as raised:
        run_replica(tmp_path / "b", config, store, name="r")
    assert "version" in str(raised.value.fix)
    assert {key: store.get(key) for key in store.list("")} == before, "the run is as it was"


def test_other_start_weights_are_refused(tmp_path: Path) -> None:
    store, config = memory_store(), config_of()
    run_replica(tmp_path / "a", config, store, name="r")
    run = make_run(tmp_path / "b", config, name="r")
    with pytest.raises(ConfigError, match="start is not the same"):
        train(
            config,
            student=make_student(seed=5),
            examples=EXAMPLES,
            run=run,
            exchange=meeting(store),
        )


def test_a_held_slot_is_refused_with_exit_code_17(tmp_path: Path) -> None:
    store, config = memory_store(), config_of(slot=0)
    errors: list[SlotTakenError] = []

    def start_a_second(event: dict[str, Any]) -> None:
        if event["kind"] == "joined":
            with pytest.raises(SlotTakenError, match="slot 0 is held") as caught:
                run_replica(tmp_path / "b", config, store, name="r")
            errors.append(caught.value)

    run, _ = run_replica(tmp_path / "a", config, store, name="r", on_event=start_a_second)
    assert errors[0].exit_code == 17
    assert all(event["contributed"] for event in syncs(run)), "the holder is not disturbed"


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4", "topk", "visible"])
def test_replicas_with_a_codec_agree(tmp_path: Path, codec: str) -> None:
    store, config = memory_store(), config_of(replicas=2, quorum=2, codec=codec)
    works = two_replicas(tmp_path, config, store)
    (run_a, student_a), (_, student_b) = in_threads(*works)
    assert same_weights(student_a, student_b)
    lossy = codec != "visible"  # at this learning rate nearly every weight moves visibly: dense
    assert all((event["residual_norm"] > 0) == lossy for event in syncs(run_a))


def test_a_file_url_is_opened_from_the_settings(tmp_path: Path) -> None:
    config = config_of(url=f"file://{tmp_path}/store")
    run = make_run(tmp_path / "a", config, name="r")
    exchange = ObjectStoreExchange()
    train(config, student=make_student(), examples=EXAMPLES, run=run, exchange=exchange)
    assert "rounds/000002/commit.json" in open_store(config.train.sync.url).list("rounds")
