"""The settings of a run that the Monarch backend hosts; the rest is refused by name.

check_hosted_by_monarch(config)

The trainer's ranks run the reference loop, so all its channels, objectives, teachers and controls
are hosted. What is refused plays or samples outside of the actors.
"""

from __future__ import annotations

from composer_replication.core.config.root import Config
from composer_replication.training.backends.refusals import refuse


def check_hosted_by_monarch(config: Config) -> None:
    """Raise ConfigError for a setting that the actors cannot carry out."""
    rules = [
        (
            not config.rollouts.env,
            "rollouts.env",
            "the actors play rollouts, and there is no environment",
            'set rollouts.env = "workshop", or use train.backend = reference',
        ),
        (
            config.rollouts.generator != "local",
            "rollouts.generator",
            "generator actors sample, no server does",
            "set rollouts.generator = local, or use train.backend = reference",
        ),
        (
            config.train.fork,
            "train.fork",
            "no actor writes at imported sites",
            "set train.fork = false, or use train.backend = reference",
        ),
    ]
    refuse("monarch", rules)
