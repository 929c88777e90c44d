"""The whole configuration: one tree, one group per verb."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from composer_replication.core.config.base import Settings, stage_seed
from composer_replication.core.config.curate_settings import CurateSettings
from composer_replication.core.config.data_settings import (
    HeldOutSettings,
    HintsSettings,
    IngestSettings,
    SitesSettings,
)
from composer_replication.core.config.monarch_settings import MonarchSettings
from composer_replication.core.config.rollout_settings import (
    EvaluateSettings,
    ReplaySettings,
    RolloutSettings,
)
from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.config.train_settings import BuildSettings, TrainSettings


class Config(Settings):
    """All settings of a run; the defaults make a working run on a laptop.

    >>> Config().train.hint.teacher
    'frozen'
    """

    schema_version: Literal[1] = 1
    """Layout version of this file."""
    seed: int = 7
    """Base seed. Every stage derives its own seed from it."""
    work_dir: str = "recompose"
    """Folder for the artefacts of every stage, and for runs/."""
    student: StudentSettings = StudentSettings()
    held_out: HeldOutSettings = HeldOutSettings()
    ingest: IngestSettings = IngestSettings()
    sites: SitesSettings = SitesSettings()
    hints: HintsSettings = HintsSettings()
    replay: ReplaySettings = ReplaySettings()
    curate: CurateSettings = CurateSettings()
    build: BuildSettings = BuildSettings()
    rollouts: RolloutSettings = RolloutSettings()
    train: TrainSettings = TrainSettings()
    monarch: MonarchSettings = MonarchSettings()
    evaluate: EvaluateSettings = EvaluateSettings()

    @property
    def draw_seed(self) -> int:
        """The seed of what a replica draws: data, rollouts, dropout. Slot 0 draws what a single
        process would."""
        slot = self.train.sync.slot
        return self.seed if slot <= 0 else stage_seed(self.seed, f"replica:{slot}")

    @model_validator(mode="after")
    def _what_sharded_weights_cannot(self) -> Self:
        if self.train.fsdp and self.rollouts.env:
            message = (
                "train.fsdp shards the weights, and the student cannot play rollouts with a part of"
                " them"
            )
            raise ValueError(
                f"{message}; set train.fsdp = false, or train with verl or prime-rl, whose own"
                " inference servers hold all weights"
            )
        if self.train.fsdp and self.student.load_in_4bit:
            raise ValueError(
                "train.fsdp cannot shard weights that bitsandbytes stores in 4 bits; set train.fsdp"
                " = false, or student.load_in_4bit = false"
            )
        return self

    @model_validator(mode="after")
    def _policy_is_what_samples(self) -> Self:
        if self.train.policy.weight and self.rollouts.temperature != 1:
            message = (
                f"rollouts.temperature is {self.rollouts.temperature}: the policy channel trains"
                " the model itself, at temperature 1"
            )
            raise ValueError(
                f"{message}, and its gradient holds for what that model sampled; set it to 1, or"
                " train.policy.weight = 0"
            )
        return self
