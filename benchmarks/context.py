"""Memory and time of a training step that keeps less for its backward, next to the plain step and
to TRL with its own checkpointing, in one run.

    python benchmarks/context.py
        plain fine-tuning on 4096 tokens and a session of 2048, all weights and adapters: about ten
        minutes on one core
    python benchmarks/context.py --tasks session --length 4096 --weights all --only plain trl

Plain fine-tuning is cross-entropy on one row (ours: the channel lm_ce). The session, its three
channels and the measurement are those of benchmarks/step.py (4 sites, 4 pairs, VmHWM above the
inputs, CPU-seconds of one thread, a fresh process each). The model has the widths of half a
Qwen3-0.6B (hidden 512, feed-forward 1536), 4 layers, V = 1024 so that the head does not decide, and
random weights: all trained in float32, or adapters of rank 16 in float32 on bfloat16. Off CUDA,
train.offload copies nothing and is not measured.

plain            layout tree, as it is
checkpoint       train.checkpoint = "layers"
checkpoint_tile  train.tile = 512 beside it
peft_layers      checkpoint_tile with peft's own LoRA layers
trl              TRL's own losses, one after another, with transformers' gradient checkpointing

The last column is how far the gradient's norm is from that of the plain step. A second table is
what lies in memory between steps: weights, and the optimiser's states after a step (no gradients).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# For the benchmarks beside this file, even if this one is imported.
sys.path.insert(0, str(Path(__file__).resolve().parent))

import step as whole
import torch
from context_page import context_section
from page import GOALS, about

from composer_replication.core.config.root import Config
from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.errors import MissingExtraError
from composer_replication.models import lora_linear
from composer_replication.models.activations import checkpoint_layers
from composer_replication.models.load_student import Student, load_student
from composer_replication.tokens.batch import count
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training.draws.packing import session_trees
from composer_replication.training.run.optimiser import make_optimiser
from composer_replication.training.run.state import make_trainer
from composer_replication.training.step import accumulate

TILE, RANK, PROMPT = 512, 16, 8
TASKS = {"sft": 4096, "session": 2048}
WEIGHTS = {"all": "all weights, float32", "lora": "adapters on bfloat16"}
LESS: dict[str, dict[str, Any]] = {
    "plain": {},
    "checkpoint": {"checkpoint": "layers"},
    "checkpoint_tile": {"checkpoint": "layers", "tile": TILE},
    "peft_layers": {"checkpoint": "layers", "tile": TILE},
    "checkpoint_tile_offload": {"checkpoint": "layers", "tile": TILE, "offload": True},  # on CUDA
}
VARIANTS = ("plain", "checkpoint", "checkpoint_tile", "peft_layers", "trl")
BETWEEN_STEPS: dict[str, tuple[dict[str, Any], str]] = {
    "all weights": ({}, "adamw"),
    "all weights, states in 8 bits": ({}, "adamw_8bit"),
    "adapters on bfloat16": ({"dtype": "bfloat16", "lora": {"rank": RANK}}, "adamw"),
    "adapters on 4 bits": (
        {"dtype": "bfloat16", "lora": {"rank": RANK}, "load_in_4bit": True},
        "adamw",
    ),
}


class _NoTokens(whole.NoTokenizer):
    """A stand-in whose tokens all have a row in the model."""

    chat_template = ""
    added_tokens_decoder: Mapping[int, Any] = {}

    def __len__(self) -> int:
        return 0

    def get_vocab(self) -> dict[str, int]:
        return {}


def with_adapters(model: Any, *, peft_layers: bool = False) -> Any:
    """The model in bfloat16 under adapters that matter, in peft's own layers or in ours."""
    import peft

    config = peft.LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted: Any = peft.get_peft_model(model.bfloat16(), config)
    torch.manual_seed(5)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    if not peft_layers:
        lora_linear.keep_inputs_once(adapted)
    return adapted.train()


def fine_tuning(model: Any, example: TrainingExample, **train: Any) -> whole.Step:
    """Cross-entropy on a session, as training/step.py takes it."""
    weights = {name: {"weight": 0.0} for name in ("policy", "hint", "preference")}
    fixed = {"lm_ce": {"weight": 1.0}, "micro_tokens": 1 << 20, "balance": "none"}
    config = Config.model_validate({"train": {**weights, **fixed, **train}})
    lora = hasattr(model, "peft_config")
    student = Student(name="bench", model=model, tokenizer=whole.NoTokenizer(), lora=lora)
    accelerator = whole.Accelerator(cpu=not whole.on_cuda(model))
    trainer = make_trainer(config, student=student, accelerator=accelerator)
    row = TrainingExample(
        id="e", session_id="s", ids=example.ids, lm_spans=((PROMPT, len(example.ids)),)
    )
    micros = whole.pack_micro_batches(
        session_trees([row], [], micro_tokens=1 << 20), micro_tokens=1 << 20
    )
    counts = count([row], [])

    def step() -> list[float]:
        return [accumulate(trainer, micros, counts, scales={"lm_ce": 1.0})["lm_ce"].loss]

    return step


def trl_fine_tuning(model: Any, example: TrainingExample) -> whole.Step:
    """The loss that SFTTrainer.compute_loss computes from TRL's fused head."""
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(model.get_base_model() if hasattr(model, "peft_config") else model)
    ids_1T = torch.tensor([example.ids], device=model.device)
    labels_1T = ids_1T.clone()
    labels_1T[:, :PROMPT] = -100

    def step() -> list[float]:
        out = model(input_ids=ids_1T, labels=labels_1T, use_cache=False, fused_lm_head=True)
        loss = -out.log_probs.sum() / out.label_mask.sum()
        loss.backward()
        return [float(loss.detach())]

    return step


def step_of(
    variant: str, task: str, model: Any, example: TrainingExample, pairs: list[PreferencePair]
) -> whole.Step:
    """A step of a task by a variant."""
    if variant == "trl":
        checkpoint_layers(model)
        if task == "sft":
            return trl_fine_tuning(model, example)
        return whole.trl(model, example, pairs)
    if task == "sft":
        return fine_tuning(model, example, **LESS[variant])
    return whole.tree(model, example, pairs, **LESS[variant])


def measure(variant: str, options: argparse.Namespace) -> dict[str, Any]:
    """Losses, CPU-seconds and memory of one variant of a task."""
    (task,), (weights,) = options.tasks, options.weights
    torch.set_num_threads(1)
    line = {"task": task, "weights": weights, "variant": variant}
    shape = {"layers": options.layers, "hidden": options.hidden, "vocab": options.vocab}
    model = whole.make_model(**shape).train()
    if weights == "lora":
        model = with_adapters(model, peft_layers=variant in ("peft_layers", "trl"))
    example, pairs = whole.make_data(
        options.length, sites=options.sites, pairs=options.pairs[0], vocab=options.vocab
    )
    try:
        step = step_of(variant, task, model, example, pairs)
    except ImportError as error:
        return {**line, "problem": f"not installed: {error.name}"}
    return {**line, **whole.measure_step(step, model, repeats=options.repeats)}


def between_steps(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """MiB of weights and of the optimiser's states after a step, counted by tensors."""
    model = whole.make_model(layers=options.layers, hidden=options.hidden, vocab=options.vocab)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for name, (student_settings, optimiser_name) in BETWEEN_STEPS.items():
            settings = StudentSettings.model_validate({"model": folder, **student_settings})
            train = Config.model_validate({"train": {"optimiser": optimiser_name}}).train
            try:
                student = load_student(settings, tokenizer=_NoTokens(), seed=0)
                optimiser = make_optimiser(student.model, train)
            except MissingExtraError:
                yield {"kind": name, "problem": "not installed: bitsandbytes"}
                continue
            for parameter in student.model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
            optimiser.step()
            states = [
                value
                for state in optimiser.state.values()
                for value in state.values()
                if isinstance(value, torch.Tensor)
            ]
            yield {
                "kind": name,
                "weights_mib": mib(list(student.model.parameters())),
                "states_mib": mib(states),
            }


def mib(tensors: list[torch.Tensor]) -> float:
    """The memory of tensors, each storage counted once; with the scales of 4-bit weights."""
    scales = [
        tensor
        for state in (getattr(t, "quant_state", None) for t in tensors)
        if state is not None
        for tensor in (state.absmax, state.state2.absmax)
    ]
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (*tensors, *scales)
    }
    return sum(storages.values()) / 2**20


def lines_of(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every measurement, each in a fresh process."""
    for weights in options.weights:
        for task in options.tasks:
            options_of_task = argparse.Namespace(**vars(options))
            options_of_task.length = options.length or TASKS[task]
            for variant in options.only:
                if variant == "peft_layers" and weights == "all":
                    continue
                if variant == "trl" and (task, weights) == ("session", "lora"):
                    continue  # its DPO loss cannot be given a model under peft and this reference
                yield whole.run(
                    variant,
                    options.pairs[0],
                    options_of_task,
                    script=__file__,
                    more=["--tasks", task, "--weights", weights],
                ) | {"task": task, "weights": weights, "length": options_of_task.length}


def main(arguments: list[str] | None = None) -> int:
    """Read the options and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--weights", nargs="+", choices=list(WEIGHTS), default=list(WEIGHTS))
    parser.add_argument("--pairs", type=int, nargs=1, default=[4])
    shape = {"length": 0, "sites": 4, "layers": 4, "hidden": 512, "vocab": 1024, "repeats": 1}
    for name, value in shape.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(measure(options.child, options)))
        return 0
    written: dict[str, Any] = {
        "about": about(sys.argv),
        "shape": {name: getattr(options, name) for name in shape if name != "length"},
        "lines": [],
        "between_steps": list(between_steps(options)),
    }
    for line in lines_of(options):
        written["lines"].append(line)
        print(line, file=sys.stderr, flush=True)
        if options.json:  # after every line, so that a run that is stopped leaves what it has
            options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    print(context_section(written, GOALS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
