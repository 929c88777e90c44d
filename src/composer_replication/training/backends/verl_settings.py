"""The settings of a run that verl's engine does not host: refused before a run exists, with what
works instead."""

from __future__ import annotations

from composer_replication.core.config.root import Config
from composer_replication.training.backends.refusals import refuse


def check_hosted_by_verl(config: Config) -> None:
    """Raise ConfigError for a setting under which verl would train something else than was asked
    for."""
    train, student = config.train, config.student
    hint = train.hint
    rules = (
        (
            student.lora.rank > 0,
            "student.lora",
            "verl starts adapters of its own, from other numbers than ours",
            "set student.lora.rank = 0, or train.backend = reference",
        ),
        (
            hint.weight > 0 and hint.teacher not in ("frozen", "live"),
            "train.hint.teacher",
            f"a teacher {hint.teacher!r} is not kept in verl's workers",
            "use frozen or live",
        ),
        (
            train.optimiser != "adamw",
            "train.optimiser",
            f"verl's engine steps with AdamW, not {train.optimiser}",
            'set it to "adamw"',
        ),
        (
            train.weight_decay > 0,
            "train.weight_decay",
            "verl decays every weight, this package matrices alone",
            "set it to 0",
        ),
        (
            train.tile > 0,
            "train.tile",
            "verl's forward has no tiles",
            "set it to 0",
        ),
        (
            train.offload,
            "train.offload",
            "activations are not offloaded",
            "set it to false",
        ),
        (
            config.rollouts.overlap > 0,
            "rollouts.overlap",
            "the weights of the launching process change while it would still sample with them",
            "set it to 0, or train.backend = reference or monarch",
        ),
    )
    refuse("verl", rules)
