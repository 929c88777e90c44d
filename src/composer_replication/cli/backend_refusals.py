"""The refusals of `train` before a run exists: a backend that cannot run, or not these settings."""

from __future__ import annotations

from pathlib import Path

from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError
from composer_replication.models.model_files import model_kind
from composer_replication.tokens.artefact import Dataset
from composer_replication.training.backends.registry import (
    BACKENDS,
    MONARCH,
    REFERENCE,
    VERL,
    trainers,
)


def check_backend(config: Config, data: Dataset) -> tuple[Path, ...]:
    """Refuse, before a run exists, a backend that is not installed or cannot host the settings.

    Raises MissingExtraError or ConfigError. The user's own environment must make one task here, so
    that its errors show early; returns its files.
    """
    if config.train.backend not in BACKENDS:
        raise ConfigError(
            f"this version has no adapter for {config.train.backend}",
            where="train.backend",
            fix=f"use one of: {', '.join(trainers())}",
        )
    if config.rollouts.player and config.train.backend != REFERENCE.name:
        raise ConfigError(
            f"{config.train.backend} plays by itself, without an agent program",
            where="rollouts.player",
            fix=f'train.backend = "{REFERENCE.name}", or no rollouts.player',
        )
    if config.rollouts.repo.compact_tokens and config.train.backend != REFERENCE.name:
        raise ConfigError(
            f"{config.train.backend} plays by itself, without summaries of the context",
            where="rollouts.repo.compact_tokens",
            fix=f'train.backend = "{REFERENCE.name}", or rollouts.repo.compact_tokens = 0',
        )
    if config.train.backend == "trl":
        from composer_replication.training.backends._compat import require_trl
        from composer_replication.training.backends.trl_settings import check_hosted

        if model_kind(config.student.model) == "adapter":
            raise ConfigError(
                "TRL takes the base without its adapter for the reference, so a run cannot go on"
                " from an adapter",
                where="train.backend",
                fix="use the reference trainer, or merge the adapter first: export --merged",
            )
        require_trl()
        check_hosted(config, pairs=data.pairs)
    if config.train.backend == "verl":
        from composer_replication.training.backends.verl_settings import check_hosted_by_verl

        VERL.require()
        check_hosted_by_verl(config)
    if config.train.backend == "prime_rl":
        from composer_replication.training.backends.prime_rl_settings import check_prime_rl

        check_prime_rl(config, pairs=data.pairs)
    if config.train.backend == "monarch":
        from composer_replication.training.backends.monarch_hosted import check_hosted_by_monarch

        MONARCH.require()
        check_hosted_by_monarch(config)
    if ":" not in config.rollouts.env:
        return ()
    from composer_replication.rollouts.task_source import try_world

    return try_world(config.rollouts.env)
