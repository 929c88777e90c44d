"""The trainer at work: refusals, the channel rule, the workshop through TRL's own loop, and a
resume that repeats the run."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError, StoppedError
from composer_replication.core.rundir import RunDir
from composer_replication.core.trace import Session
from composer_replication.models.load_student import Student, load_student
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.backends.trl import (
    EXAMPLES,
    ComposerReplicationConfig,
    ComposerReplicationTrainer,
)
from composer_replication.workshop.as_tools import (
    WorkshopTools,
    plain_tools,
    task_row,
)
from composer_replication.workshop.lessons import LessonTests
from tests.backends.frozen import ROOT, start_model, tokenizer, trained

pytestmark = pytest.mark.usefixtures("needs_trl")
STUDENT = str(ROOT / "examples" / "workshop_student")
SETTINGS: dict[str, Any] = {
    "seed": 3,
    "student": {"model": STUDENT},
    "rollouts": {
        "env": "workshop",
        "groups": 2,
        "group_size": 2,
        "max_context_tokens": 400,
        "hint_sites": 4,
    },
    "train": {
        "steps": 3,
        "checkpoint_every": 1,
        "policy": {"weight": 1.0},
        "lm_ce": {"weight": 0.0},
        "micro_tokens": 800,
        "health": {"monitor_tasks": 2, "max_unresolvable": 1.0},
    },
}


def test_a_model_without_a_weight_to_train_is_refused(tmp_path: Path) -> None:
    """TRL would train such a model without a warning, and no weight would move."""
    model = start_model().requires_grad_(False)
    args = ComposerReplicationConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        num_generations=2,
        use_cpu=True,
        report_to="none",
    )
    with pytest.raises(ConfigError, match="no weight of the model can be trained"):
        make(model, args)
    args = ComposerReplicationConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        num_generations=2,
        use_cpu=True,
        bf16=True,
    )
    with pytest.raises(ConfigError, match="bf16 on a CPU"):
        make(start_model(), args)
    with pytest.raises(ConfigError, match="steps_per_generation is 2"):
        ComposerReplicationConfig(
            output_dir=str(tmp_path),
            steps_per_generation=2,
            gradient_accumulation_steps=1,
            use_cpu=True,
        )
    args = ComposerReplicationConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=2, num_generations=2, use_cpu=True
    )
    assert (
        args.bf16 is False
        and args.loss_type == "dr_grpo"
        and os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
    )
    weighted = ComposerReplicationConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        num_generations=2,
        use_cpu=True,
        preference_weight=1.0,
    )
    with pytest.raises(ConfigError, match="no pairs"):
        make(start_model(), weighted)


def make(model: Any, args: Any, **more: Any) -> Any:
    from datasets import Dataset

    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": str(i)}]} for i in range(4)])
    arguments = {
        "train_dataset": rows,
        "reward_funcs": lambda completions, **row: [0.0] * len(completions),
    }
    return ComposerReplicationTrainer(
        model=model, args=args, processing_class=copy.deepcopy(tokenizer()), **{**arguments, **more}
    )


def test_the_tokenizer_and_the_settings_have_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the guide has it: a model by its folder, rewards and rows, and no more; TRL's order of
    arguments holds."""
    from datasets import Dataset
    from trl import GRPOConfig

    monkeypatch.chdir(tmp_path)
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": str(i)}]} for i in range(4)])

    def rewards(completions: list[Any], **row: Any) -> list[float]:
        return [float(len(str(completion))) for completion in completions]

    trainer = ComposerReplicationTrainer(model=STUDENT, reward_funcs=[rewards], train_dataset=rows)
    assert trainer.args.output_dir == "workshop_student-composer" and isinstance(
        trainer.args, ComposerReplicationConfig
    )
    assert (
        trainer.processing_class.padding_side == "left"
        and trainer.processing_class.get_vocab() == load_tokenizer(STUDENT).get_vocab()
    )
    args = ComposerReplicationConfig(
        output_dir="out",
        per_device_train_batch_size=2,
        num_generations=2,
        use_cpu=True,
        report_to="none",
    )
    by_order = ComposerReplicationTrainer(STUDENT, [rewards], args, rows)
    assert by_order.args is args and by_order.train_dataset is rows
    with pytest.raises(
        ConfigError, match="args is a GRPOConfig, which has no settings of the channels"
    ):
        ComposerReplicationTrainer(
            STUDENT, [rewards], GRPOConfig(output_dir="out", use_cpu=True, bf16=False), rows
        )  # pyright: ignore[reportArgumentType]


def test_an_unknown_chat_template_is_refused_where_tools_are_called(tmp_path: Path) -> None:
    strange = copy.deepcopy(tokenizer())
    strange.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if"
        " add_generation_prompt %}a: {% endif %}"
    )
    args = ComposerReplicationConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=2, num_generations=2, use_cpu=True
    )
    with pytest.raises(ConfigError, match="cannot read the tool calls of this chat template"):
        ComposerReplicationTrainer(
            model=start_model(),
            args=args,
            processing_class=strange,
            environment_factory=partial(WorkshopTools, sandbox=LessonTests()),
        )


def test_a_channel_that_stays_starved_stops_the_run(tmp_path: Path) -> None:
    """Equal rewards give the policy no signal; it was never active, so each step counts as bad."""
    with pytest.raises(
        StoppedError, match="channel policy was starved at step 2, 2 steps in a row"
    ) as caught:
        trained("policy", tmp_path, steps=4, starved_steps=2, rewards=(0.5,) * 8)
    assert caught.value.exit_code == 3


def test_the_workshop_through_trls_own_loop(tmp_path: Path) -> None:
    """The padded batch holds the ids of every rollout that TRL generated, and every hint's
    target."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM

    tok = load_tokenizer(STUDENT)
    family = Renderer.for_tokenizer(tok).family
    assert family is not None
    tok.chat_template = plain_tools(tok.chat_template)
    args = ComposerReplicationConfig(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_generations=2,
        max_completion_length=200,
        max_tool_calling_iterations=6,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=1,
    )
    heard: list[Session] = []
    trainer = ComposerReplicationTrainer(
        model=AutoModelForCausalLM.from_pretrained(STUDENT),
        args=args,
        processing_class=tok,
        train_dataset=Dataset.from_list([task_row(f"loop:{i}") for i in range(2)]),
        environment_factory=partial(WorkshopTools, sandbox=LessonTests(), slack=1),
        family=family.name,
    )
    trainer.listen(on_rollouts=lambda step, live_step: heard.extend(live_step.sessions))
    batches: list[dict[str, Any]] = []
    inner = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: (batches.append(inputs), inner(model, inputs))[1]
    trainer.train()
    log_record = trainer.state.log_history[0]
    assert log_record["hint/status"] == "active" and log_record["sites/used"] > 0
    examples = [example for batch in batches for example in batch[EXAMPLES]]
    assert sum(len(v.target_ids) for e in examples for v in e.hints) == log_record["hint/tokens"]
    for batch in batches:
        rows = zip(
            batch["prompt_ids"],
            batch["prompt_mask"],
            batch["completion_ids"],
            batch["completion_mask"],
            batch[EXAMPLES],
            strict=True,
        )
        for prompt, pm, completion, cm, example in rows:
            assert (*prompt[pm.bool()].tolist(), *completion[cm.bool()].tolist()) == example.ids
    errors = [r.text for s in heard for t in s.turns for r in t.results if r.is_error]
    assert any("not found" in text or "InputValidationError" in text for text in errors)


def run_once(
    folder: Path,
    *,
    train: dict[str, Any] | None = None,
    heard: dict[str, Any] | None = None,
    **more: Any,
) -> RunDir:
    """A run through the function that the CLI calls, in this process; `heard` gets the student and
    its start weights."""
    from composer_replication.core.rundir import create_run, open_run
    from composer_replication.training.backends.trl_run import train_with_trl

    config = Config.model_validate({**SETTINGS, "train": {**SETTINGS["train"], **(train or {})}})
    tok = load_tokenizer(STUDENT)
    student: Student = load_student(config.student, tokenizer=tok, seed=config.seed)
    if heard is not None:
        heard |= {name: tensor.clone() for name, tensor in student.model.state_dict().items()} | {
            "student": student
        }
    resume = more.get("resume", False)
    run = (
        open_run(folder / "runs" / "r")
        if resume
        else create_run(
            folder / "runs", resolved=config.model_dump(mode="json"), command="x", seed=3, name="r"
        )
    )
    train_with_trl(config, student=student, renderer=Renderer.for_tokenizer(tok), run=run, **more)
    return run


def die(metrics: dict[str, Any]) -> None:
    """kill -9 on oneself, before the second step's checkpoint is written."""
    if metrics["step"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def same_lines(run: RunDir, expected: RunDir) -> None:
    clock = ("t", "attempt", "step_s")
    lines = [
        [{k: v for k, v in metrics.items() if k not in clock} for metrics in run_dir.metrics()]
        for run_dir in (run, expected)
    ]
    assert lines[0] == lines[1] and [metrics["step"] for metrics in lines[1]] == [1, 2, 3]
    weights = [
        (run_dir.checkpoint(3) / "model.safetensors").read_bytes() for run_dir in (run, expected)
    ]
    assert weights[0] == weights[1]


def test_a_killed_run_repeats_itself_when_resumed(tmp_path: Path) -> None:
    """Killed before a checkpoint; then once more as if it had been killed while TRL wrote one: that
    one has no twin and is not read."""
    uninterrupted = run_once(tmp_path / "whole")
    child = subprocess.run(
        [sys.executable, "-m", "tests.backends.test_trl_trainer", str(tmp_path / "cut")],
        cwd=ROOT,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    cut = RunDir(tmp_path / "cut" / "runs" / "r")
    assert [step for step, _ in cut.checkpoints()] == [0, 1]
    run_once(tmp_path / "cut", resume=True)
    same_lines(cut, uninterrupted)
    state = json.loads((uninterrupted.checkpoint(3) / "trainer.json").read_text("utf-8"))
    assert (
        state["backend"] == "trl"
        and state["start_sha256"]
        and state["policy_health"]["best_success"]
    )
    lines = uninterrupted.metrics()
    step_metrics = lines[0]
    for before, after in pairwise(lines):
        between = datetime.fromisoformat(after["t"]) - datetime.fromisoformat(before["t"])
        assert 0 < after["step_s"] < between.total_seconds(), (
            "a step's seconds are its own, without the rollouts before it"
        )
    assert (
        step_metrics["health/monitor"] >= 0
        and step_metrics["health/kl"] == 0.0
        and step_metrics["rollouts/valid_calls"] > 0
    )
    shutil.rmtree(cut.checkpoint(3))
    (cut.path / "trl" / "checkpoint-3" / "model.safetensors").write_bytes(b"half")
    run_once(tmp_path / "cut", resume=True)
    same_lines(cut, uninterrupted)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_once(Path(sys.argv[1]), on_step=die)
