"""The models that score without gradient: the hint teacher and the reference of DPO.

"frozen" is the student as it was at the start of the run: LoRA with its adapters off (a copy of
them, if they are those of an adapter that the run goes on from), else a copy made before the first
step. "live" is the student as it is now. "ema" is a slow average of the
trained weights: a copy of the start that moves a little towards the student after each optimiser
step, kept in float32, because bfloat16 would round the small moves away. With LoRA, the adapters' A
and B are averaged on the student's base weights, so only the adapters take memory twice; the
product of the averages is not the average of the products. "trust_region" is the live and the
frozen model, whose logits are mixed (forwards/hinting.py). None ever has dropout or a gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from composer_replication.core.channel_names import Channel
from composer_replication.core.errors import DataError
from composer_replication.models.forward import (
    Head,
    head_of,
    project,
    scoring,
    sliced_predictors,
)
from composer_replication.models.load_student import Student
from composer_replication.models.sharding import part_of
from composer_replication.tokens.batch import Rows, Targets


@dataclass(frozen=True, slots=True)
class Reference:
    """A model and how to score with it, e.g. `with reference.scoring() as model:
    final_hidden(model, ...)`.

    `ema` is the share of the distance to the student by which it moves in each step; 0 if it does
    not follow, or is the student itself. `moving` are the weights that follow, by name; the others
    of such a model are the student's.
    """

    model: Any
    adapters: bool
    ema: float = 0.0
    moving: Mapping[str, Tensor] = field(default_factory=dict, compare=False)

    @contextmanager
    def scoring(self) -> Iterator[Any]:
        """The model without gradient, without dropout, and with its adapters off if it
        represents the start."""
        with scoring(self.model, adapters=self.adapters):
            yield self.model

    def predictors(self, rows: Rows, targets: Targets, *, max_tokens: int) -> Tensor:
        """The hidden states (N, D) that predict the targets, at most `max_tokens` padded tokens in
        one forward."""
        target_places = {
            "row_N": targets.row_N,
            "position_N": targets.position_N,
            "max_tokens": max_tokens,
        }
        with self.scoring() as model:
            return sliced_predictors(model, rows.ids_BT, rows.lengths_B, **target_places)

    def project(self, hidden_ND: Tensor) -> Tensor:
        """The logits (N, V) of its own hidden states, all at once: for a few targets."""
        with self.scoring() as model:
            return project(model, hidden_ND)

    def head(self) -> Head:
        """Its output head, without gradient; the fused losses read it beside `predictors`."""
        with self.scoring() as model:
            head = head_of(model)
            return replace(
                head,
                weight_VD=head.weight_VD.detach(),
                bias_V=None if head.bias_V is None else head.bias_V.detach(),
            )

    def is_live(self, model: Any) -> bool:
        """Whether it is this model with its current weights, so that the keys and values of the
        model's own forward can be reused."""
        return self.model is model and self.adapters

    @torch.no_grad()
    def update(self, model: Any) -> None:
        """Move every moving weight by the share `ema` of its distance to that of `model`; call it
        after each optimiser step.

        A weight of 1.0 becomes 1.05 with ema = 0.05 if the student's is 2.0.
        """
        if self.ema:
            student = dict(model.named_parameters())
            for name, weight in self.moving.items():
                weight.lerp_(student[name].to(weight.dtype), self.ema)

    def with_new_weights(self) -> Reference:
        """The same reference after its model's weights were replaced, by their shards."""
        parameters = dict(self.model.named_parameters())
        return replace(self, moving={name: parameters[name] for name in self.moving})

    def tensors(self) -> dict[str, Tensor]:
        """The weights that a checkpoint must hold, by name: none if the reference can be made again
        from the start or the student."""
        return {name: p.detach() for name, p in self.moving.items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave; raises DataError for tensors of another reference."""
        own_tensors = self.tensors()
        if own_tensors.keys() != tensors.keys():
            problem = (
                f"the checkpoint holds {len(tensors)} weights of a slow average, this run has"
                f" {len(own_tensors)}"
            )
            raise DataError(problem, fix="resume with the run's own student and hint.teacher")
        for name, tensor in tensors.items():
            own_tensors[name].copy_(part_of(tensor, like=own_tensors[name]))


def live_reference(student: Student) -> Reference:
    """The current weights."""
    return Reference(student.model, adapters=True)


def frozen_reference(student: Student) -> Reference:
    """The weights at the start of the run; call it before the first step and before a checkpoint is
    loaded."""
    if student.began_as_adapter:
        return Reference(with_own_weights(student)[0].requires_grad_(False), adapters=True)
    if student.lora:
        return Reference(student.model, adapters=False)
    return Reference(copy.deepcopy(student.model).eval().requires_grad_(False), adapters=True)


def averaged_reference(student: Student, *, ema: float) -> Reference:
    """A slow average that starts at the current weights; with LoRA it shares the student's base and
    has its own adapters."""
    model, moving = with_own_weights(student)
    for parameter in moving.values():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.float()
    if not student.lora:
        model.float()  # buffers too
    return Reference(model, adapters=True, ema=ema, moving=moving)


def with_own_weights(student: Student) -> tuple[Any, dict[str, Tensor]]:
    """A copy of the student in eval mode, and its own weights by name: with LoRA the base is
    shared."""
    shared = {id(p): p for p in student.model.parameters() if student.lora and not p.requires_grad}
    model = copy.deepcopy(
        student.model, dict(shared)
    ).eval()  # weights in the memo are shared, not copied
    return model, {name: p for name, p in model.named_parameters() if id(p) not in shared}


def make_references(
    student: Student,
    *,
    teacher: Literal["frozen", "live", "ema", "trust_region"],
    dpo: bool,
    hint: bool,
    ema: float = 0.05,
) -> dict[Channel, Reference]:
    """The reference of each channel that is on; both share one frozen copy. For a trust region this
    is its live model only: training_models.py adds the start."""
    start = frozen_reference(student) if dpo or (hint and teacher == "frozen") else None
    chosen: dict[Channel, Reference] = {}
    if hint and teacher == "ema":
        chosen["hint"] = averaged_reference(student, ema=ema)
    elif hint:
        chosen["hint"] = (
            start if teacher == "frozen" and start is not None else live_reference(student)
        )
    if dpo and start is not None:
        chosen["preference"] = start
    return chosen
