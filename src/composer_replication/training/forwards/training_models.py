"""The models of a run: the student, and those that score beside it without a gradient.

Nothing here optimises (run/state.py does). The forwards of forwards/passes.py and the losses
of forwards/channels.py need these models, the settings and a batch, and nothing else of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from composer_replication.core.channel_names import Channel
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.losses.schedules import TaidSchedule
from composer_replication.models.activations import check_tiles, checkpoint_layers
from composer_replication.models.forward import Head, head_of
from composer_replication.models.load_student import Student
from composer_replication.models.sharding import Sharding, shard_model
from composer_replication.models.tree_forward import why_not_tree
from composer_replication.training.forwards.channel_weights import channel_weights
from composer_replication.training.forwards.hinting import taid_schedule
from composer_replication.training.forwards.reference import (
    Reference,
    frozen_reference,
    make_references,
)


@dataclass(slots=True, kw_only=True)
class TrainingModels:
    """The student, and the references that score without a gradient, by channel.

    `layout` is how the forwards of a step are laid out; `why_rows` is why it is not the tree that
    the settings ask for ("" if it is). `reference_model` is the second half of a trust region, the
    weights at the start. `taid` is the schedule of TAID's mixture, None if it does not move.
    `sharding` is None if each rank holds all weights, `joined` outside of `joined(models)`.
    """

    settings: TrainSettings
    student: Student
    references: dict[Channel, Reference]
    device: torch.device
    layout: Literal["tree", "rows"] = "rows"
    why_rows: str = ""
    reference_model: Reference | None = None
    taid: TaidSchedule | None = None
    sharding: Sharding | None = None
    joined: Any = None

    @property
    def teachers(self) -> tuple[Reference, ...]:
        """The models that the hint's teacher is made of: one, or the live one and the start."""
        if self.reference_model is None:
            return (self.references["hint"],)
        return (self.references["hint"], self.reference_model)

    def student_head(self) -> Head:
        """The student's output head, differentiable."""
        return head_of(self.student.model)

    def teacher_heads(self) -> list[Head]:
        """The heads of `teachers`, without gradient."""
        return [teacher.head() for teacher in self.teachers]

    def reference_head(self) -> Head:
        """The head of the preference channel's reference, without gradient."""
        return self.references["preference"].head()

    @property
    def taid_t(self) -> float:
        """The share of the teacher in TAID's mixture in this step."""
        return self.settings.hint.taid.t_start if self.taid is None else self.taid.t

    @property
    def pair_weight(self) -> float:
        """The cost of one (query, key) pair in tokens.

        4 * H per layer and pair against 24 * H^2 per layer and token, H the hidden size.
        """
        return 1.0 / (6 * self.student.model.get_input_embeddings().weight.shape[1])

    def extra_tensors(self) -> dict[str, Tensor]:
        """The tensors of references that move, as "<channel>/<weight>": a checkpoint holds them
        beside the student and the optimiser."""
        return {
            f"{name}/{key}": value
            for name, reference in self.references.items()
            for key, value in reference.tensors().items()
        }

    def load_extra_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Put `extra_tensors` back; raises DataError if they are of other references."""
        for name, reference in self.references.items():
            reference.load(
                {
                    key.removeprefix(f"{name}/"): value
                    for key, value in tensors.items()
                    if key.startswith(f"{name}/")
                }
            )


def make_models(
    settings: TrainSettings,
    *,
    student: Student,
    device: torch.device,
    sharding: Sharding | None = None,
) -> TrainingModels:
    """The student on its device and in training mode, and references made from its weights as they
    are now: call it before the first step and before a checkpoint is loaded.

    With a sharding all ranks must call it.
    """
    student.model.train()
    if sharding is None:
        student.model.to(device)
    hint, weights = settings.hint, channel_weights(settings)
    needs_dpo_reference = weights["preference"] > 0 and settings.preference.has_reference
    scoring = make_references(
        student,
        teacher=hint.teacher,
        hint=hint.weight > 0,
        dpo=needs_dpo_reference,
        ema=hint.ema,
    )
    reference_model = None
    if hint.weight and hint.teacher == "trust_region":
        # one frozen copy of the start is enough for both
        reference_model = scoring.get("preference") or frozen_reference(student)
    if sharding is not None:
        _shard(student, scoring, reference_model, sharding=sharding)
    why_rows = why_not_tree(student.model) if settings.layout == "tree" else ""
    if settings.checkpoint == "layers":
        checkpoint_layers(student.model)
    if settings.tile:
        check_tiles(student.model)
    return TrainingModels(
        settings=settings,
        student=student,
        references=scoring,
        device=device,
        layout="rows" if why_rows else settings.layout,
        why_rows=why_rows,
        reference_model=reference_model,
        taid=taid_schedule(hint, steps=settings.steps) if hint.weight else None,
        sharding=sharding,
    )


def _shard(
    student: Student,
    references: dict[Channel, Reference],
    reference_model: Reference | None,
    *,
    sharding: Sharding,
) -> None:
    """Shard the student and the copies of it, which were made before, as a sharded model cannot be
    copied. Weights that a copy shared with the student are sharded for both."""
    frozen = [] if reference_model is None else [reference_model.model]
    models = [student.model, *(reference.model for reference in references.values()), *frozen]
    for model in {id(model): model for model in models}.values():
        shard_model(model, sharding)
    for name, reference in references.items():
        references[name] = reference.with_new_weights()
