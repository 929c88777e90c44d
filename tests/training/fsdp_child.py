"""One rank of sharded training, in float64: `python -m tests.training.fsdp_child FOLDER TASK ...`.

"steps CASE ..." takes two steps of each case and writes gradients, metrics and weights; "run" and
"resume" train with checkpoints. One case is in bfloat16.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from safetensors.torch import save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import open_run
from composer_replication.models.load_student import Student, _with_lora
from composer_replication.models.pretrained_folder import weights_sha256
from composer_replication.models.sharding import gathered
from composer_replication.training.inputs import StepInputs
from composer_replication.training.loop import train
from composer_replication.training.run.state import Trainer, make_trainer
from composer_replication.training.step import (
    accumulate,
    gradient_norm,
    rank_micro_batches,
    step_counts,
    train_step,
)
from tests.training.small_student import (
    VOCAB,
    make_config,
    make_example,
    make_pair,
    make_rollout,
    make_run,
    make_student,
)

PAIRS = {"weight": 1.0, "anchor": 1.0}
POLICY = {"policy": {"weight": 1.0}}
CASES: dict[str, dict[str, Any]] = {
    # three channels; the hint's teacher is the student itself, the preference has no reference
    "live": {"hint": {"teacher": "live"}, "preference": {**PAIRS, "objective": "simpo"}},
    # two copies of the start, and every rank has another number of micro-batches
    "uneven": {"preference": PAIRS, "micro_tokens": 60},
    "rows": {"layout": "rows", "preference": PAIRS, "micro_tokens": 90, **POLICY},
    "credit": {"hint": {"combination": "advantage"}, **POLICY},
    "ema": {"hint": {"teacher": "ema"}, "preference": PAIRS, "max_grad_norm": 0.05},
    "trust_region": {"hint": {"teacher": "trust_region"}, "preference": PAIRS},
    "kept_less": {
        "hint": {"teacher": "live"},
        "preference": PAIRS,
        "checkpoint": "layers",
        "tile": 16,
        "offload": True,
    },
    # one example: all ranks but one have nothing at all
    "empty_ranks": {"hint": {"teacher": "live"}},
}
# the same in another student: with LoRA, or with a head of its own
CASES |= {
    "live_lora": CASES["live"],
    "uneven_lora": CASES["uneven"],
    "ema_lora": CASES["ema"],
    "kept_less_lora": CASES["kept_less"],
    "rows_untied": CASES["rows"],
    "live_lora_untied": CASES["live"],
    "live_lora_bf16": CASES["live"],
    "uneven_moe": CASES["uneven"],
}


def as_lora(student: Student) -> Student:
    """With adapters that have left their start, so that frozen and live teachers differ."""
    settings = StudentSettings.model_validate({"lora": {"rank": 4}})
    model = _with_lora(student.model, settings, seed=0)
    torch.manual_seed(5)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    return replace(student, model=model, lora=True)


def small_mixture() -> Any:
    """Two layers of four experts, of which a token takes one: the single token that stands in for a
    rank's work leaves three without a gradient."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    experts = {"num_experts": 4, "num_experts_per_tok": 1, "experts_implementation": "eager"}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=VOCAB, **shape, **heads, **experts))


def student_of(name: str) -> Student:
    """The student that the name of a case asks for, in float64 unless it is bf16."""
    student = make_student(family="llama" if "untied" in name else "qwen3")
    if "moe" in name:
        student = replace(student, model=small_mixture())
    if "lora" in name:
        student = as_lora(student)
    if "bf16" not in name:
        student.model.double()
        return student
    student.model.bfloat16()
    for parameter in student.model.parameters():
        if parameter.requires_grad:  # as peft makes adapters
            parameter.data = parameter.data.float()
    return student


def inputs_of(case: str) -> StepInputs:
    """Five examples of growing length, of which the third has no hint, and three pairs."""
    examples = []
    for i in range(1 if case == "empty_ranks" else 5):
        length = 22 + 7 * i
        shape = {"length": length, "hints": int(i != 2)}
        if "policy" not in CASES[case]:
            examples.append(make_example(i, **shape))
        else:  # the second message is the one that the hint is about
            spans = ((3, 6), (length - 3, length))
            examples.append(make_rollout(i, advantage=0.5 - 0.3 * i, spans=spans, **shape))
    pairs = [make_pair(i) for i in range(3)] if "preference" in CASES[case] else []
    return StepInputs(examples=examples, pairs=pairs)


def take_steps(folder: Path, case: str) -> None:
    """Two steps; writes the gradients before the first, their metrics and the weights at the end.

    A test may change a function before it calls this, to see that the comparison fails.
    """
    config = make_config(**{"grad_every": 1, **CASES[case], "fsdp": True})
    student = student_of(case)
    trainer = make_trainer(config, student=student, accelerator=Accelerator())
    found: dict[str, Any] = {"start_sha256": weights_sha256(student.model)}
    inputs = inputs_of(case)
    grads, found["grad_norm"] = gradients(trainer, inputs)
    metrics = [train_step(trainer, inputs, step=step) for step in range(2)]
    found["metrics"] = [
        {key: value for key, value in line.items() if key != "step_s"} for line in metrics
    ]
    weights = gathered(dict(student.model.named_parameters()), keep=True)
    found["sha256"] = weights_sha256(student.model)
    found["bytes"] = local_bytes(trainer)
    folder = folder / case
    folder.mkdir(parents=True, exist_ok=True)
    if rank() == 0:
        save_file(grads, str(folder / "grads.safetensors"))
        save_file(weights, str(folder / "weights.safetensors"))
    write_json(folder / f"found_{rank()}.json", found)


def gradients(trainer: Trainer, inputs: StepInputs) -> tuple[dict[str, torch.Tensor], float]:
    """The gradients of a plain sum of the channels, and their norm."""
    scales = {name: 1.0 for name, weight in trainer.weights.items() if weight}
    trainer.seed(0)
    accumulate(trainer, rank_micro_batches(trainer, inputs), step_counts(inputs), scales=scales)
    norm = gradient_norm(trainer.trainable())
    named = trainer.models.student.model.named_parameters()
    found = {n: p.grad for n, p in named if p.requires_grad and p.grad is not None}
    trainer.optimiser.zero_grad()
    return gathered(found, keep=True), norm


def local_bytes(trainer: Trainer) -> dict[str, int]:
    """The bytes that this rank holds of weights and of the optimiser's state."""

    def size(tensor: torch.Tensor) -> int:
        local: Any = getattr(tensor, "to_local", lambda: tensor)()
        return local.numel() * local.element_size()

    moments = [v for slots in trainer.optimiser.state.values() for v in slots.values()]
    references = [r.model for r in trainer.models.references.values()]
    models = {id(m): m for m in (trainer.models.student.model, *references)}.values()
    return {
        "weights": sum(size(p) for model in models for p in model.parameters()),
        "optimiser": sum(map(size, moments)),
    }


RUN = {
    "steps": 6,
    "checkpoint_every": 2,
    "batch_examples": 3,
    "hint": {"teacher": "ema"},
    "preference": PAIRS,
    "fsdp": True,
}


class Interrupted(Exception):
    """Raised in the middle of a run."""


def run_training(folder: Path, *, resume: bool, stop_after: int = 0) -> None:
    """A run with checkpoints every second step; `stop_after` interrupts it behind that step."""
    config = make_config(**RUN)
    run = (
        open_run(folder / "runs" / "r")
        if resume
        else make_run(folder if rank() == 0 else folder / f"other_{rank()}", config, name="r")
    )
    student = student_of("run")
    examples = [make_example(i, length=22 + 5 * i, hints=int(i != 2)) for i in range(5)]

    def stop(metrics: dict[str, Any]) -> None:
        if metrics["step"] == stop_after:
            raise Interrupted

    train(
        config,
        student=student,
        examples=examples,
        pairs=[make_pair(0), make_pair(1), make_pair(2)],
        run=run,
        resume=resume,
        on_step=stop,
    )


def rank() -> int:
    """0 in a process of its own."""
    return int(os.environ.get("RANK", "0"))


def main(folder: Path, task: str, *cases: str) -> None:
    torch.set_num_threads(1)
    if task == "steps":
        for case in cases:
            take_steps(folder, case)
    else:
        try:
            run_training(folder, resume=task == "resume", stop_after=int(cases[0]) if cases else 0)
        except Interrupted:
            os._exit(0)  # the test ends the other ranks, which wait for this one
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
