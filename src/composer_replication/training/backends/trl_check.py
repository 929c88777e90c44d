"""`recompose train --backend trl --check`: one optimiser step of TRL's trainer on a given batch.

    with trl_steps(config, student=student) as take_step:
        take_step(config.train, inputs)

TRL samples by itself, so its sampling alone is replaced: `FixedBatchTrainer` gives it the rollouts
of the batch with their advantages. Shuffling, cuts into micro-batches, forwards, losses, backward
and the sum over ranks are those of a run; the optimiser's rate is 0.
"""

from __future__ import annotations

import copy
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.channel_names import CHANNELS
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import AlignmentError, need
from composer_replication.models.load_student import Student
from composer_replication.tokens.example import TrainingExample
from composer_replication.training.backends._compat import require_trl
from composer_replication.training.backends.step_check import StepGradients, TakeStep
from composer_replication.training.backends.trl import (
    COUNTS,
    EXAMPLES,
    ComposerReplicationTrainer,
)
from composer_replication.training.backends.trl_settings import trl_settings
from composer_replication.training.inputs import StepInputs


@contextmanager
def trl_steps(config: Config, *, student: Student) -> Iterator[TakeStep]:
    """Steps of TRL's trainer, for training/backends/step_check.py; raises like `require_trl`."""
    require_trl()
    with tempfile.TemporaryDirectory(prefix="composer-trl-") as folder:

        def take_step(settings: TrainSettings, inputs: StepInputs) -> StepGradients:
            scenario = config.model_copy(update={"train": settings})
            return _step(scenario, student, inputs, folder=Path(folder))

        yield take_step


class FixedBatchTrainer(ComposerReplicationTrainer):
    """The trainer of a run, whose rollouts are given: `rows` of all ranks, of which each takes its
    share. `gradients` are those of the step, by name, as the optimiser gets them."""

    def __init__(self, *, rows: Sequence[TrainingExample], **kwargs: Any) -> None:
        self._rows = rows
        self.gradients: dict[str, Tensor] = {}
        super().__init__(**kwargs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        views = [view for row in self._rows for view in row.hints]
        out = batch_of_rows(self._rows[rank::world], pad_id=self.processing_class.pad_token_id)
        out[f"{COUNTS}_tokens"] = torch.tensor(sum(len(view.target_ids) for view in views))
        out[f"{COUNTS}_views"] = torch.tensor(len(views))
        out["num_items_in_batch"] = out["completion_mask"].sum()
        device = self.accelerator.device
        self._began = time.perf_counter()
        return {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in out.items()
        }

    def _check_gradient(self) -> None:
        super()._check_gradient()
        self.gradients = {
            name: parameter.grad.detach().clone()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }


def batch_of_rows(rows: Sequence[TrainingExample], *, pad_id: int) -> dict[str, Any]:
    """Rollouts as TRL's generation batch: prompts padded on the left, completions on the right.

    A completion begins at the first message that the student wrote. Raises AlignmentError if
    messages of one rollout have several advantages.
    """
    cuts = [_first_written(row) for row in rows]
    prompts = [torch.tensor(row.ids[:cut]) for row, cut in zip(rows, cuts, strict=True)]
    completions = [torch.tensor(row.ids[cut:]) for row, cut in zip(rows, cuts, strict=True)]
    sampled, logps = [], []
    for row, cut in zip(rows, cuts, strict=True):
        mask_T, logp_T = torch.zeros(len(row.ids)), torch.zeros(len(row.ids))
        for action in row.actions:
            mask_T[slice(*action.span)] = 1.0
            logp_T[slice(*action.span)] = torch.tensor(action.logprobs)
        sampled.append(mask_T[cut:])
        logps.append(logp_T[cut:])
    return {
        "prompt_ids": _padded(prompts, pad_id, left=True),
        "prompt_mask": _padded([torch.ones_like(p) for p in prompts], 0, left=True),
        "completion_ids": _padded(completions, pad_id),
        "completion_mask": _padded([torch.ones_like(c) for c in completions], 0),
        "tool_mask": _padded(sampled, 0),
        "old_per_token_logps": _padded(logps, 0),
        "advantages": torch.tensor([_advantage(row) for row in rows]),
        EXAMPLES: list(rows),
    }


def _first_written(row: TrainingExample) -> int:
    """The place of the first token that the student wrote; the last one if it wrote none."""
    starts = [written.span[0] for written in (*row.actions, *row.hints)]
    return min(starts, default=len(row.ids) - 1)


def _advantage(row: TrainingExample) -> float:
    advantages = {action.advantage for action in row.actions}
    if len(advantages) > 1:
        raise AlignmentError(
            f"{len(advantages)} advantages in one rollout; TRL has one per rollout", where=row.id
        )
    return advantages.pop() if advantages else 0.0


def _padded(rows: Sequence[Tensor], value: int, *, left: bool = False) -> Tensor:
    side = "left" if left else "right"
    return torch.nn.utils.rnn.pad_sequence(
        list(rows), batch_first=True, padding_value=value, padding_side=side
    )


def rollout_rows(inputs: StepInputs) -> list[TrainingExample]:
    """The rollouts of a step, with a row that trains nothing for each that is not among its
    examples: TRL divides by its rows, as the reference trainer by all rollouts.

    Raises AlignmentError if there are more examples than rollouts.
    """
    rows = list(inputs.examples)
    missing = (len(rows) if inputs.num_rollouts is None else inputs.num_rollouts) - len(rows)
    if missing < 0 or not rows:
        raise AlignmentError(f"{len(rows)} examples of {inputs.num_rollouts} rollouts")
    ids = rows[0].ids[:2]
    return rows + [
        TrainingExample(id=f"flat-{n}", session_id=f"flat-{n}", ids=ids, origin="student")
        for n in range(missing)
    ]


def _step(config: Config, student: Student, inputs: StepInputs, *, folder: Path) -> StepGradients:
    """The gradient and each channel's loss; the student is left as it was."""
    rows = rollout_rows(inputs)
    metrics: dict[str, Any] = {}
    trainer = _trainer(config, student, inputs, rows=rows, folder=folder)
    trainer.listen(lambda step_metrics, warnings: metrics.update(step_metrics))
    was_training = student.model.training
    trainer.train()
    student.model.train(was_training)
    student.model.zero_grad(set_to_none=True)
    square = sum(float(grad.double().square().sum()) for grad in trainer.gradients.values())
    return StepGradients(
        losses={
            name: metrics[f"{name}/loss"]
            for name in CHANNELS
            if trainer.channel_weights[name] and metrics[f"{name}/tokens"]
        },
        grad_norm=math.sqrt(square),
        gradients=trainer.gradients,
    )


def _trainer(
    config: Config,
    student: Student,
    inputs: StepInputs,
    *,
    rows: Sequence[TrainingExample],
    folder: Path,
) -> FixedBatchTrainer:
    """A trainer for one step: all rows are one group, all pairs are drawn, nothing is clipped."""
    pairs = config.train.preference.model_copy(update={"batch_pairs": len(inputs.pairs)})
    once = {"steps": 1, "preference": pairs, "max_grad_norm": 0.0, "max_grad_norm_ratio": 0.0}
    group = {"groups": 1, "group_size": len(rows), "hint_sites": 0}
    config = config.model_copy(
        update={
            "train": config.train.model_copy(update=once),
            "rollouts": config.rollouts.model_copy(update=group),
        }
    )
    trainable = [p for p in student.model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trainable, lr=0.0)
    prompt = {"prompt": [{"role": "user", "content": "x"}]}
    trainer = FixedBatchTrainer(
        rows=rows,
        model=student.model,
        args=trl_settings(config, output=folder, longest_prompt=1, save_strategy="no"),
        processing_class=copy.deepcopy(student.tokenizer),
        train_dataset=need("datasets", extra="trl").Dataset.from_list([prompt]),
        reward_funcs=[lambda completions, **columns: [0.0] * len(completions)],
        optimizers=(optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1.0)),
        pairs=inputs.pairs if config.train.preference.weight else (),
        family=config.student.template,
    )
    trainer.remove_callback(need("transformers", extra="trl").PrinterCallback)
    return trainer
