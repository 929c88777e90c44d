"""`recompose train --backend monarch` from the command line, in a process of its own: a run, and
one step beside the reference trainer's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.scripted import tiny_student

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]
SETTINGS = """
[student]
model = "student"
[rollouts]
env = "workshop"
groups = 2
group_size = 2
max_new_tokens = 6
max_context_tokens = 2048
overlap = 1
[train]
steps = 2
checkpoint_every = 2
policy = { weight = 1.0 }
hint = { weight = 0.0 }
lm_ce = { weight = 0.0 }
preference = { weight = 0.0 }
starved_steps = 9
health = { monitor_tasks = 0, kl_episodes = 2, max_unresolvable = 1.0 }
"""


def recompose(work: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "composer_replication.cli", "train", "--backend", "monarch"]
    return subprocess.run(
        [*command, *words], cwd=work, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, student = tmp_path_factory.mktemp("work"), tiny_student()
    student.model.save_pretrained(str(folder / "student"))
    student.tokenizer.save_pretrained(str(folder / "student"))
    (folder / "recompose.toml").write_text(SETTINGS, "utf-8")
    return folder


def test_one_word_moves_a_run_into_actors(work: Path) -> None:
    done = recompose(work, "--name", "r")
    assert done.returncode == 0, done.stderr + done.stdout
    run = work / "recompose" / "runs" / "r"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert [line["rollouts/age"] for line in lines] == [0, 1]
    assert "recompose evaluate" in done.stdout + done.stderr


def test_check_prints_the_actors_step_beside_the_reference_trainers(work: Path) -> None:
    done = recompose(work, "--check", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    value = json.loads(done.stdout)
    value = value.get("value", value)
    assert [scenario["channels"] for scenario in value["scenarios"]] == [["policy"]]
    assert all(scenario["passes"] for scenario in value["scenarios"])
