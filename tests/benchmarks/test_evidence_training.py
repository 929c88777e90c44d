"""An arm of the evidence that was cut off goes on; one of other settings or data starts anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.workshop_evidence import training
from benchmarks.workshop_evidence.training import ArmError, Work, train_arm


def test_an_arm_that_was_cut_off_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(root=tmp_path / "work", level=1, seed=7, student=tmp_path / "student")
    for file in (work.student / "model.safetensors", work.folder / "examples" / "examples.jsonl"):
        file.parent.mkdir(parents=True)
        file.write_text("1", "utf-8")
    run, commands = work.run("hint"), []

    def cut_off(command: list[str], *, log: Path, allowed: tuple[int, ...]) -> tuple[int, float]:
        commands.append(command)
        if not run.run_json.exists():
            run.path.mkdir(parents=True)
            run.run_json.write_text("{}", "utf-8")
        raise ArmError("killed")

    def train() -> list[str]:
        with pytest.raises(ArmError, match="killed"):
            train_arm(work, "hint", scale=1.0)
        return commands[-1]

    monkeypatch.setattr(training, "_run_child", cut_off)
    assert "--name" in train()
    assert "--name" in train()  # no checkpoint to go on from
    run.checkpoint(5).mkdir(parents=True)
    resumed = train()
    assert resumed[resumed.index("--resume") + 1] == str(run.path) and "--name" not in resumed
    assert run.checkpoint(5).exists()
    (work.folder / "examples" / "examples.jsonl").write_text("2", "utf-8")
    assert "--name" in train()
    assert not run.checkpoint(5).exists()
