"""One fixed batch through TRL's trainer and through the reference loop: `python -m
tests.backends.frozen OUT CASE`.

Only the samples of the model are fixed: TRL rewards them, computes advantages, pads, shuffles,
cuts, accumulates and steps by itself.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM, TrainerCallback

from composer_replication.core.channel_names import CHANNELS
from composer_replication.core.config.root import Config
from composer_replication.models.forward import final_hidden, project, scoring
from composer_replication.models.load_student import Student
from composer_replication.rollouts.groups import advantages
from composer_replication.tokens.batch import micro_batches
from composer_replication.tokens.example import (
    HintView,
    PreferencePair,
    SampledMessage,
    TrainingExample,
)
from composer_replication.training.inputs import StepInputs
from composer_replication.training.run.state import make_trainer
from composer_replication.training.step import accumulate, step_counts

ROOT = Path(__file__).resolve().parents[2]
GROUPS, GROUP_SIZE, NUM_PAIRS = 4, 2, 5
REWARDS = (1.0, 0.0, 0.5, 0.25, 0.0, 0.75, 0.5, 0.5)
"""The last group is flat: its rollouts count, and weigh nothing."""
WEIGHTS: dict[str, dict[str, float]] = {
    "policy": {"policy": 1.0},
    "hint": {"hint": 1.0},
    "preference": {"preference": 1.0},
    "all": {"policy": 0.7, "hint": 0.4, "preference": 1.3},
}


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(str(ROOT / "examples" / "workshop_student"))


def start_model(*, lora: bool = False) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer()),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        initializer_range=0.3,
        tie_word_embeddings=True,
        pad_token_id=tokenizer().pad_token_id,
        eos_token_id=tokenizer().eos_token_id,
    )
    model = Qwen3ForCausalLM(config)
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    return model


@torch.no_grad()
def move(model: Any) -> None:
    """Away from the start, so that a frozen teacher and the reference of DPO are other models than
    the student."""
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)


def _ids(seed: str, count: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(10, 200) for _ in range(count))


def rollout(row: int) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """(prompt ids, completion ids, tool mask): two messages with an answer between them, all
    lengths different."""
    group = row // GROUP_SIZE
    first, answer, second = 4 + row, 3 + row % 3, 5 + (row * 3) % 4
    return (
        _ids(f"p{group}", 6 + 2 * group),
        _ids(f"c{row}", first + answer + second),
        [1] * first + [0] * answer + [1] * second,
    )


def example(row: int, *, views: bool = True) -> TrainingExample:
    """The row with a hint view on its second message (every row but two), as rollouts give it."""
    prompt, completion, mask = rollout(row)
    ids = (*prompt, *completion)
    a, b = len(prompt) + mask.index(0) + mask.count(0), len(ids)
    view = HintView(
        site_id=f"r{row}:1:c",
        kind="unknown_tool",
        at=a - 1,
        hint_ids=_ids(f"h{row}", 4 + row % 3),
        span=(a, b),
        target_ids=ids[a:b],
        origin="student",
    )
    return TrainingExample(
        id=f"r{row}",
        session_id=f"r{row}",
        ids=ids,
        hints=(view,) if views and row not in (2, 7) else (),
        origin="student",
    )


def pairs() -> list[PreferencePair]:
    return [
        PreferencePair(
            id=f"p{i}",
            session_id=f"s{i}",
            prefix_ids=_ids(f"x{i}", 5 + i),
            chosen_ids=_ids(f"y{i}", 3 + i % 2),
            rejected_ids=_ids(f"z{i}", 4 + i % 3),
        )
        for i in range(NUM_PAIRS)
    ]


def reference(
    case: str, *, teacher: str = "frozen", lora: bool = False
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Numbers per channel and the gradient of the weighted sum, by training/step.py."""
    weights: dict[str, dict[str, Any]] = {
        name: {"weight": WEIGHTS[case].get(name, 0.0)} for name in CHANNELS
    }
    weights["hint"] |= {"teacher": teacher}
    weights["preference"] |= {"anchor": 0.0}
    config = Config.model_validate({"train": {**weights, "balance": "none"}})
    student = Student(name="frozen", model=start_model(lora=lora), tokenizer=tokenizer(), lora=lora)
    trainer = make_trainer(config, student=student, accelerator=Accelerator(cpu=True))
    move(student.model)
    rows = [_acted(student.model, row) for row in range(GROUPS * GROUP_SIZE)]
    counts = step_counts(StepInputs(rows, pairs(), num_rollouts=len(rows)))
    losses = accumulate(
        trainer,
        micro_batches(rows, pairs(), micro_tokens=8192),
        counts,
        scales=dict(trainer.weights),
    )
    numbers = {
        f"{name}/{key}": getattr(losses[name], key)
        for name in losses
        for key in ("tokens", "loss", "grad_norm", "inputs")
    }
    return numbers, [p.grad.clone() for p in trainer.trainable() if p.grad is not None]


def stale_logprobs(model: Any, row: int) -> tuple[float, ...]:
    """Log-probs of the row's completion by a sampler that was a little off: some ratios are
    clipped, on either side."""
    prompt, completion, _ = rollout(row)
    rng = random.Random(f"stale{row}")
    with scoring(model):
        logp_TV = project(
            model, final_hidden(model, torch.tensor([prompt + completion]))[0]
        ).log_softmax(-1)
    return tuple(
        float(logp_TV[len(prompt) + i - 1, token]) + rng.gauss(0, 0.25)
        for i, token in enumerate(completion)
    )


def _acted(model: Any, row: int) -> TrainingExample:
    """The row with its actions."""
    full, (prompt, _, mask) = example(row), rollout(row)
    group = row // GROUP_SIZE * GROUP_SIZE
    advantage = advantages(REWARDS[group : group + GROUP_SIZE])[row - group]
    logp = (0.0,) * len(prompt) + stale_logprobs(model, row)
    first = mask.index(0)
    spans = [
        (len(prompt), len(prompt) + first),
        (
            full.hints[0].span
            if full.hints
            else (len(prompt) + first + mask.count(0), len(full.ids))
        ),
    ]
    actions = tuple(
        SampledMessage(span=(a, b), logprobs=logp[a:b], advantage=advantage) for a, b in spans
    )
    return replace(full, actions=actions)


def trained(
    case: str,
    folder: Path,
    *,
    steps: int = 1,
    lora: bool = False,
    rewards: tuple[float, ...] = REWARDS,
    **options: Any,
) -> tuple[Any, list[torch.Tensor]]:
    """TRL's trainer after one optimiser step on the batch, and the gradient of that step (None: not
    requested)."""
    from datasets import Dataset

    from composer_replication.training.backends.trl import (
        ComposerReplicationConfig,
        ComposerReplicationTrainer,
    )
    from composer_replication.training.backends.trl_rollouts import TrlExamples

    class Frozen(ComposerReplicationTrainer):
        def _numbers(self, prompts: list[Any]) -> list[int]:
            groups = [int(prompt[-1]["content"]) for prompt in prompts]
            return [group * GROUP_SIZE + groups[:i].count(group) for i, group in enumerate(groups)]

        def _generate(self, prompts: list[Any]) -> Any:
            self.rows = self._numbers(prompts)
            drawn = [rollout(row) for row in self.rows]
            messages = [[{"role": "assistant", "content": str(row)}] for row in self.rows]
            result = (
                [list(p) for p, _, _ in drawn],
                [list(c) for _, c, _ in drawn],
                [m for _, _, m in drawn],
                messages,
                None,
                {},
                None,
                None,
            )
            self._rollouts = (prompts, result[:4])
            return result

        def _generate_and_score_completions(self, inputs: list[Any]) -> Any:
            out = super()._generate_and_score_completions(inputs)
            old = torch.zeros(out["completion_ids"].shape)
            for place, row in enumerate(self.rows):
                logp = stale_logprobs(self.model, row)
                old[place, : len(logp)] = torch.tensor(logp)
            return {**out, "old_per_token_logps": old}

        def _make_examples(self, prompts: list[Any], rollout: Any) -> Any:
            rows = tuple(example(row, views=self._weights["hint"] > 0) for row in self.rows)
            return TrlExamples(examples=rows, metrics={})

    weights = {
        f"{name}_weight": WEIGHTS[case].get(name, 0.0) for name in ("policy", "hint", "preference")
    }
    args = ComposerReplicationConfig(
        **{
            "output_dir": str(folder),
            "max_steps": steps,
            "per_device_train_batch_size": GROUPS * GROUP_SIZE,
            "num_generations": GROUP_SIZE,
            "max_completion_length": 37,
            "max_grad_norm": 0.0,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "report_to": "none",
            "use_cpu": True,
            "save_strategy": "no",
            "disable_tqdm": True,
            "gradient_checkpointing": False,
            "balance": "none",
            "preference_pairs": NUM_PAIRS,
            **weights,
            **options,
        }
    )
    gradient: list[torch.Tensor] = []

    class Catch(TrainerCallback):
        def on_pre_optimizer_step(
            self, args: Any, state: Any, control: Any, *, model: Any, **kwargs: Any
        ) -> None:
            gradient[:] = [p.grad.clone() for p in model.parameters() if p.requires_grad]

    def reward(completions: list[Any], **kwargs: Any) -> list[float]:
        return [rewards[int(messages[-1]["content"])] for messages in completions]

    rows = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": str(group)}]} for group in range(GROUPS)]
    )
    trainer = Frozen(
        model=start_model(lora=lora),
        args=args,
        processing_class=copy.deepcopy(tokenizer()),
        train_dataset=rows,
        reward_funcs=reward,
        pairs=pairs() if weights["preference_weight"] else (),
        callbacks=[Catch()],
    )
    move(trainer.model)
    trainer.train()
    return trainer, gradient


def relative(values: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Norm of the difference over the norm of what is expected."""
    a, b = (torch.cat([t.double().flatten() for t in part]) for part in (values, expected))
    return float((a - b).norm() / b.norm())


if __name__ == "__main__":
    out, name = Path(sys.argv[1]), sys.argv[2]
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    taught, grads = trained(name, out / "hf", ddp_backend="gloo", **options)
    rank = taught.accelerator.process_index
    torch.save({"grads": grads, "log": taught.state.log_history}, out / f"rank_{rank}.pt")
