"""The run directory: paths, append-only lines, atomic files, states, latest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from composer_replication.core.errors import DataError, StoppedError
from composer_replication.core.rundir import RunDir, create_run, diff_settings, open_run, sha256_of


def make(folder: Path, name: str = "") -> RunDir:
    return create_run(
        folder / "runs", resolved={"seed": 7}, command="recompose train", seed=7, name=name
    )


def test_a_new_run_says_what_it_is(tmp_path: Path) -> None:
    source = tmp_path / "examples.jsonl"
    source.write_text("{}\n", encoding="utf-8")
    run = create_run(
        tmp_path / "runs",
        resolved={"seed": 7},
        command="recompose train",
        seed=7,
        inputs=[(source, 1)],
    )
    info = run.info()
    assert (info["state"], info["seed"], info["attempts"], info["ended"]) == ("created", 7, 0, None)
    assert info["id"] == run.path.name and "python" in info["versions"]
    assert (
        run.resolved() == {"seed": 7}
        and run.command_txt.read_text(encoding="utf-8") == "recompose train\n"
    )
    manifest = json.loads(run.manifest_json.read_text(encoding="utf-8"))
    assert manifest == {"inputs": [{"path": str(source), "sha256": sha256_of(source), "rows": 1}]}
    assert sha256_of(source) == "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"


def test_names_are_never_shared_and_latest_follows(tmp_path: Path) -> None:
    first, second = make(tmp_path), make(tmp_path)
    assert first.path.name[:-1] == second.path.name[:-1] and (
        first.path.name[-1],
        second.path.name[-1],
    ) == ("a", "b")
    assert open_run(tmp_path / "runs" / "latest").path == second.path.resolve()
    make(tmp_path, "mine")
    assert open_run(tmp_path / "runs" / "latest").path.name == "mine"
    with pytest.raises(DataError, match="exists already"):
        make(tmp_path, "mine")
    for bad in ("latest", "../x", "a/b"):
        with pytest.raises(DataError, match="name of a run"):
            make(tmp_path, bad)


def test_latest_without_links_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("links need a privilege here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    run = make(tmp_path)
    assert (tmp_path / "runs" / "latest").read_text(encoding="utf-8").strip() == run.path.name
    assert open_run(tmp_path / "runs" / "latest").path == run.path.resolve()


def test_a_folder_in_the_place_of_latest_is_not_destroyed(tmp_path: Path) -> None:
    (tmp_path / "runs" / "latest").mkdir(parents=True)
    with pytest.raises(DataError, match="latest"):
        make(tmp_path)


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a run directory"):
        open_run(tmp_path)


def test_metrics_are_appended_and_the_later_line_of_a_step_counts(tmp_path: Path) -> None:
    run = make(tmp_path)
    for step, loss in ((1, 0.5), (2, 0.4), (3, 0.3), (2, 0.41)):
        run.add_metrics({"step": step, "loss": loss})
    assert [(m["step"], m["loss"]) for m in run.metrics()] == [(1, 0.5), (2, 0.41), (3, 0.3)]
    assert len(run.metrics_jsonl.read_text(encoding="utf-8").splitlines()) == 4
    with run.metrics_jsonl.open("a", encoding="utf-8") as stream:
        stream.write('{"step": 4, "lo')  # still being written
    assert [m["step"] for m in run.metrics()] == [1, 2, 3]


def test_a_torn_line_is_removed_at_the_next_launch_and_said(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.add_metrics({"step": 1})
    with run.metrics_jsonl.open("a", encoding="utf-8") as stream:
        stream.write('{"step": 2, "lo')
    with run.attempt():
        run.add_metrics({"step": 2})
    assert [m["step"] for m in run.metrics()] == [1, 2]
    assert [(e["kind"], e["bytes"]) for e in run.events()] == [("torn_line", 15)]


def test_states_follow_how_a_launch_ends(tmp_path: Path) -> None:
    run = make(tmp_path)
    with run.attempt() as number:
        assert number == 1 and run.info()["state"] == "running" and run.info()["pid"] == os.getpid()
    assert run.info()["state"] == "done" and run.info()["ended"]
    with pytest.raises(StoppedError), run.attempt() as number:
        assert number == 2
        raise StoppedError("channel hint was starved", where="starved")
    assert run.info()["state"] == "stopped:starved" and run.events()[-1]["kind"] == "stopped"
    with pytest.raises(KeyboardInterrupt), run.attempt():
        raise KeyboardInterrupt
    assert run.info()["state"] == "stopped:interrupted"
    with pytest.raises(ZeroDivisionError), run.attempt():
        _ = 1 / 0
    assert run.info()["state"] == "crashed" and run.info()["attempts"] == 4


def test_only_whole_checkpoints_are_listed_in_order(tmp_path: Path) -> None:
    run = make(tmp_path)
    assert run.checkpoints() == []
    for name in ("step_000010", "step_000002", ".step_000020.part", "step_x"):
        (run.checkpoints_dir / name).mkdir(parents=True)
    (run.checkpoints_dir / "step_000030").write_text("a file", encoding="utf-8")
    assert [step for step, _ in run.checkpoints()] == [2, 10]


def test_events_and_log(tmp_path: Path) -> None:
    run = make(tmp_path)
    event = run.add_event("starved", step=3, channel="hint")
    assert run.events() == [event] and event["channel"] == "hint"
    run.add_log("hello", attempt=2)
    assert run.log(2).read_text(encoding="utf-8").endswith(" hello\n")
    assert run.tokens(7).name == "step_000007.json"


def test_the_hash_of_a_folder_sees_names_and_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    before = sha256_of(folder)
    (folder / "a").rename(folder / "b")
    assert sha256_of(folder) != before


def test_differences_between_settings_are_listed() -> None:
    old = {"seed": 7, "train": {"steps": 20, "hint": {"weight": 1.0}}, "gone": 1}
    new = {"seed": 7, "train": {"steps": 40, "hint": {"weight": 0.5}}}
    assert diff_settings(old, new) == [
        "gone: 1 -> null",
        "train.hint.weight: 1.0 -> 0.5",
        "train.steps: 20 -> 40",
    ]
