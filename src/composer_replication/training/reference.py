"""The models that score without gradient: the hint teacher and the reference of DPO.

"frozen" is the student as it was at the start of the run: LoRA with its adapters off, else a copy made before the first step.
"live" is the student as it is now. Neither ever has dropout or a gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from composer_replication.losses.channel import Channel
from composer_replication.models.forward import scoring
from composer_replication.models.load import Student


@dataclass(frozen=True, slots=True)
class Reference:
    """A model and how to score with it, e.g. `with reference.scoring() as model: final_hidden(model, ...)`."""

    model: Any
    adapters: bool

    @contextmanager
    def scoring(self) -> Iterator[Any]:
        """The model without gradient, without dropout, and with its adapters off where it stands for the start."""
        with scoring(self.model, adapters=self.adapters):
            yield self.model


def live(student: Student) -> Reference:
    """The current weights."""
    return Reference(student.model, adapters=True)


def frozen(student: Student) -> Reference:
    """The weights at the start of the run; call it before the first step and before a checkpoint is loaded."""
    if student.lora:
        return Reference(student.model, adapters=False)
    return Reference(copy.deepcopy(student.model).eval().requires_grad_(False), adapters=True)


def references(student: Student, *, teacher: Literal["frozen", "live"], dpo: bool, hint: bool) -> dict[Channel, Reference]:
    """The reference of each channel that is on; both share one frozen copy."""
    start = frozen(student) if dpo or (hint and teacher == "frozen") else None
    chosen: dict[Channel, Reference] = {}
    if hint:
        chosen["hint"] = start if teacher == "frozen" and start is not None else live(student)
    if dpo and start is not None:
        chosen["preference"] = start
    return chosen
