"""Damaged checkpoints, a full disk, a power cut: the damage is named, and the earlier checkpoint is
intact and offered."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from composer_replication.core.checkpoints import (
    SUMS,
    find_damage,
    has_no_known_damage,
    seal,
    whole_checkpoint,
)
from composer_replication.core.errors import DamagedError, DataError, UnwrittenError
from composer_replication.core.rundir import RunDir
from composer_replication.evaluation.players import player_of
from composer_replication.training.loop import train
from composer_replication.training.run import checkpoint
from composer_replication.training.run.checkpoint import good_checkpoint, load_tensors, read_state
from composer_replication.training.run.optimiser import make_optimiser
from tests.training.small_student import make_config, make_example, make_run, make_student
from tests.training.test_resume import same

EXAMPLES = [make_example(i, length=20 + 3 * i, hints=i % 2) for i in range(4)]
SETTINGS = {"steps": 4, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four steps with checkpoints after two and four."""
    folder = tmp_path_factory.mktemp("trained")
    run = make_run(folder, make_config(**SETTINGS), name="r")
    train(make_config(**SETTINGS), student=make_student(), examples=EXAMPLES, run=run)
    return run.path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> RunDir:
    shutil.copytree(trained, tmp_path / "runs" / "r")
    return RunDir(tmp_path / "runs" / "r")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1  # one bit of the last weight: safetensors reads it without a word
    path.write_bytes(raw)


def another_model(folder: Path) -> None:
    model = make_student(family="llama")
    save_file(
        {f"{n}/exp_avg": torch.zeros_like(p) for n, p in model.model.named_parameters()},
        str(folder / "optimiser.safetensors"),
    )


def half_removed(folder: Path) -> None:
    for path in sorted(folder.iterdir())[: len(list(folder.iterdir())) // 2]:
        path.unlink()


def lines_cut(folder: Path) -> None:
    """As `head -n 3` leaves it, with a piece of a file overwritten that it no longer names."""
    (folder / SUMS).write_text(
        "".join((folder / SUMS).read_text("utf-8").splitlines(keepends=True)[:3]), "utf-8"
    )
    with (folder / "optimiser.safetensors").open("r+b") as stream:
        stream.seek(2000)
        stream.write(b"\xff" * 200)


def lines_and_files_cut(folder: Path) -> None:
    lines_cut(folder)
    named = [line.partition("  ")[2] for line in (folder / SUMS).read_text("utf-8").splitlines()]
    for path in folder.iterdir():
        if path.name not in (SUMS, *named):
            path.unlink()


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "weights cut off": (
        lambda f: cut(f / "model.safetensors"),
        r"model\.safetensors is not what was written",
    ),
    "a bit of the weights": (
        lambda f: flip(f / "model.safetensors"),
        r"model\.safetensors is not what was written",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"model\.safetensors is missing"),
    "optimiser cut off": (
        lambda f: cut(f / "optimiser.safetensors"),
        r"optimiser\.safetensors is not what was written",
    ),
    "a bit of the optimiser": (
        lambda f: flip(f / "optimiser.safetensors"),
        r"optimiser\.safetensors is not what was written",
    ),
    "optimiser of another model": (
        another_model,
        r"optimiser\.safetensors is not what was written",
    ),
    "no optimiser": (
        lambda f: (f / "optimiser.safetensors").unlink(),
        r"optimiser\.safetensors is missing",
    ),
    "empty state": (lambda f: (f / "trainer.json").write_text(""), r"trainer\.json is empty"),
    "broken state": (lambda f: cut(f / "trainer.json"), r"trainer\.json is not what was written"),
    "no state": (lambda f: (f / "trainer.json").unlink(), r"trainer\.json is missing"),
    "no config": (lambda f: (f / "config.json").unlink(), r"config\.json is missing"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), r"tokenizer\.json is missing"),
    "no checksums": (lambda f: (f / SUMS).unlink(), "SHA256SUMS is missing"),
    "checksums cut off": (lambda f: cut(f / SUMS), "damaged"),
    "checksums cut at a line, the optimiser overwritten": (
        lines_cut,
        "SHA256SUMS does not name optimiser.safetensors",
    ),
    "checksums cut at a line, the optimiser gone": (
        lines_and_files_cut,
        r"does not name any optimiser\.safetensors",
    ),
    "a file that came later": (
        lambda f: (f / "more.safetensors").write_text("x"),
        r"does not name more\.safetensors",
    ),
    "empty checksums": (lambda f: (f / SUMS).write_text(""), "SHA256SUMS is cut off"),
    "half removed": (half_removed, "is missing"),
    "an empty folder": (lambda f: [p.unlink() for p in f.iterdir()], "is missing"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_damaged_is_named_wherever_it_is_read_and_the_one_before_is_offered(
    name: str, run: RunDir
) -> None:
    spoil, message = DAMAGE[name]
    spoil(run.checkpoint(4))
    before = str(run.checkpoint(2))
    for read in (
        lambda: whole_checkpoint(run),
        lambda: player_of(run, name="after"),
        lambda: train(
            make_config(**SETTINGS), student=make_student(), examples=EXAMPLES, run=run, resume=True
        ),
    ):
        with pytest.raises(DamagedError, match=message) as caught:
            read()
        assert (
            str(caught.value.before) == before
            and before in caught.value.fix
            and "step_000004" in caught.value.where
        )
    assert good_checkpoint(run)[0] == 2 and whole_checkpoint(run, 2)[0] == 2


def test_a_run_goes_on_from_the_one_before_bit_by_bit(trained: Path, run: RunDir) -> None:
    flip(run.checkpoint(4) / "model.safetensors")
    config = make_config(**SETTINGS)
    result = train(
        config, student=make_student(), examples=EXAMPLES, run=run, resume=True, resume_step=2
    )
    uninterrupted = RunDir(trained)
    assert [same(metrics) for metrics in run.metrics()] == [
        same(metrics) for metrics in uninterrupted.metrics()
    ] and result.steps == 4
    for name in ("model.safetensors", "optimiser.safetensors"):
        assert (run.checkpoint(4) / name).read_bytes() == (
            uninterrupted.checkpoint(4) / name
        ).read_bytes()
    assert [(e["step"], e["set_aside"]) for e in run.events() if e["kind"] == "resume"] == [
        (2, ["rejected_step_000004"])
    ]
    with pytest.raises(
        DataError, match=r"no checkpoint after step 3.*there are step_000002, step_000004"
    ):
        train(
            config, student=make_student(), examples=EXAMPLES, run=run, resume=True, resume_step=3
        )


def test_with_no_whole_checkpoint_nothing_is_offered(run: RunDir) -> None:
    for step in (2, 4):
        flip(run.checkpoint(step) / "model.safetensors")
    with pytest.raises(DamagedError, match="no earlier checkpoint is whole") as caught:
        whole_checkpoint(run)
    assert caught.value.before is None
    with pytest.raises(DataError, match="no good checkpoint"):
        good_checkpoint(run)


def test_the_checksums_are_those_that_sha256sum_reads(run: RunDir) -> None:
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", SUMS],
        cwd=run.checkpoint(4),
        capture_output=True,
        text=True,
        check=True,
    )
    named = {line.partition(":")[0] for line in checked.stdout.splitlines()}
    assert (
        named == {p.name for p in run.checkpoint(4).iterdir()} - {SUMS}
        and {"model.safetensors", "trainer.json"} <= named
    )


def test_a_checkpoint_of_before_the_checksums_is_read_as_it_is(run: RunDir) -> None:
    folder = run.checkpoint(4)
    (folder / SUMS).unlink()
    state = json.loads((folder / "trainer.json").read_text("utf-8"))
    (folder / "trainer.json").write_text(json.dumps({**state, "schema": 3}), "utf-8")
    assert (
        has_no_known_damage(folder)
        and whole_checkpoint(run)[0] == 4
        and read_state(folder)["step"] == 4
    )
    cut(folder / "model.safetensors")
    student = make_student()
    with pytest.raises(DamagedError, match=r"model\.safetensors cannot be read"):
        load_tensors(
            folder, student=student, optimiser=make_optimiser(student.model, make_config().train)
        )


def test_an_optimiser_of_another_shape_is_refused_where_its_checksum_fits(run: RunDir) -> None:
    folder, student = run.checkpoint(4), make_student()
    tensors = load_file(str(folder / "optimiser.safetensors"))
    name = next(key for key in tensors if key.endswith("/exp_avg"))
    save_file({**tensors, name: tensors[name][:1].clone()}, str(folder / "optimiser.safetensors"))
    seal(folder)
    assert find_damage(folder) == ""
    with pytest.raises(DataError, match="optimiser state is of another model"):
        load_tensors(
            folder, student=student, optimiser=make_optimiser(student.model, make_config().train)
        )


FULL = """
import resource, signal, sys
from pathlib import Path
from tests.training import test_checkpoints as t
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
run = t.make_run(Path(sys.argv[1]), t.make_config(**t.SETTINGS), name="r")
def fill(event):
    # from the first checkpoint on, the system refuses longer files, whatever library writes them
    if event["kind"] == "checkpoint":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
config = t.make_config(**t.SETTINGS)
t.train(config, student=t.make_student(), examples=t.EXAMPLES, run=run, on_event=fill)
"""


@pytest.mark.parametrize("part", ["model", "optimiser"])
def test_without_room_for_a_checkpoint_the_one_before_stands(
    part: str, trained: Path, tmp_path: Path, repository_root: Path
) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    sizes = {
        name: (RunDir(trained).checkpoint(4) / f"{name}.safetensors").stat().st_size
        for name in ("model", "optimiser")
    }
    room = {"model": sizes["model"] - 1, "optimiser": sizes["optimiser"] - 1}[part]
    command = [sys.executable, "-c", FULL, str(tmp_path), str(room)]
    ended = subprocess.run(
        command, cwd=repository_root, capture_output=True, text=True, timeout=120, check=False
    )
    error_line = ended.stderr.splitlines()[-1]
    assert (
        "UnwrittenError: the checkpoint after step 4 could not be written" in error_line
        and "File too large" in error_line
    )
    assert "step_000002 stands as it was" in error_line and "make room" in error_line
    run = RunDir(tmp_path / "runs" / "r")
    assert (
        [step for step, _ in run.checkpoints()] == [2]
        and whole_checkpoint(run)[0] == 2
        and run.info()["state"] == "crashed"
    )
    assert not list(run.checkpoints_dir.glob(".*"))  # the partial checkpoint takes no room
    train(make_config(**SETTINGS), student=make_student(), examples=EXAMPLES, run=run, resume=True)
    assert [same(metrics) for metrics in run.metrics()] == [
        same(metrics) for metrics in RunDir(trained).metrics()
    ]


def test_a_library_that_raises_a_bare_exception_for_a_full_disk_is_understood(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(student: Any, folder: Path, **options: Any) -> None:
        raise Exception("No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_student", full)
    student = make_student()
    options: dict[str, Any] = {
        "student": student,
        "optimiser": make_optimiser(student.model, make_config().train),
        "keep": 2,
    }
    with pytest.raises(UnwrittenError, match=r"No space left on device.*step_000004 stands"):
        checkpoint.save_checkpoint(run, 6, state={}, **options)

    def other(student: Any, folder: Path, **options: Any) -> None:
        raise ValueError("something else")

    monkeypatch.setattr(checkpoint, "save_student", other)
    with pytest.raises(ValueError, match="something else"):
        checkpoint.save_checkpoint(run, 6, state={}, **options)


def test_everything_is_on_the_disk_before_a_checkpoint_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        operations.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def renamed(source: Any, target: Any) -> None:
        operations.append(("name", str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    config = make_config(steps=1, checkpoint_every=1)
    run = make_run(tmp_path, config, name="r")
    train(config, student=make_student(), examples=EXAMPLES, run=run)
    folder = run.checkpoint(1)
    scratch, at = folder.with_name(f".{folder.name}.part"), operations.index(("name", str(folder)))
    before = {path for operation, path in operations[:at] if operation == "sync"}
    assert {str(scratch / path.name) for path in folder.iterdir()} <= before and str(
        scratch
    ) in before
    assert {str(run.metrics_jsonl), str(run.events_jsonl)} <= before
    assert ("sync", str(run.checkpoints_dir)) in operations[at:]
    renames = [
        i
        for i, (operation, path) in enumerate(operations)
        if operation == "name" and path == str(run.run_json)
    ]
    assert renames and all(
        Path(operations[i - 1][1]).name.startswith(".run.json.")
        and operations[i + 1] == ("sync", str(run.path))
        for i in renames
    )
