"""The sampling settings of messages, and the limits of an episode.

Sampling(max_new_tokens=64, seed=7, limits=EpisodeLimits(tool_timeout_s=5.0, max_calls=8))
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Self

from composer_replication.core.config.rollout_settings import RolloutSettings
from composer_replication.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Limits of one episode; a limit that ends an episode is named on its Rollout.

    `tool_timeout_s` bounds one answer of the environment ("env_timeout"). `max_result_chars` bounds
    one result: a longer one is cut, with a note. `max_calls` bounds the calls of one message: those
    beyond it are not carried out and are answered with an error. `max_turns` bounds the student's
    messages in addition to the environment's own limit, `max_sampled_tokens` all tokens that it
    writes ("max_sampled"); 0 = no limit. From `compact_tokens` of context on, the student is asked
    for a summary and goes on behind it (rollouts/self_summary.py); 0 = never. `tool_threads` is how
    many environments may answer at the same time, if they allow that.
    """

    tool_timeout_s: float = 120.0
    tool_threads: int = 16
    max_result_chars: int = 100_000
    max_calls: int = 64
    max_turns: int = 0
    max_sampled_tokens: int = 0
    compact_tokens: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.tool_timeout_s < math.inf:
            raise ConfigError(
                f"tool_timeout_s must be above 0 and finite, not {self.tool_timeout_s}"
            )
        for name, minimum in (
            ("tool_threads", 1),
            ("max_result_chars", 1),
            ("max_calls", 1),
            ("max_turns", 0),
            ("max_sampled_tokens", 0),
            ("compact_tokens", 0),
        ):
            if getattr(self, name) < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The sampling settings of messages.

    `temperature` 0 takes the most probable token. The log-probs that are kept are the model's own
    at temperature 1 without top_p, so only at temperature=1, top_p=1 are they those of the
    distribution sampled from. `max_new_tokens` bounds one message, including its end token; a
    message that reaches it without an end is cut and tagged "cut_off". `max_context_tokens` bounds
    an episode: it ends if the next message would have no room. `batch_episodes` are sampled
    together. Raises ConfigError for values out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 512
    max_context_tokens: int = 8192
    batch_episodes: int = 32
    seed: int = 0
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)

    @classmethod
    def of(cls, settings: RolloutSettings, *, seed: int) -> Self:
        """The sampling settings of a run, e.g. Sampling.of(config.rollouts, seed=7)."""
        limits = EpisodeLimits(
            tool_timeout_s=settings.tool_timeout_s,
            tool_threads=settings.tool_threads,
            max_result_chars=settings.max_result_chars,
            max_calls=settings.max_calls,
            max_turns=settings.max_turns,
            max_sampled_tokens=settings.max_sampled_tokens,
            compact_tokens=settings.repo.compact_tokens if settings.env == "repo" else 0,
        )
        return cls(
            temperature=settings.temperature,
            max_new_tokens=settings.max_new_tokens,
            max_context_tokens=settings.max_context_tokens,
            batch_episodes=settings.batch_episodes,
            seed=seed,
            limits=limits,
        )

    def __post_init__(self) -> None:
        if not (0 <= self.temperature < math.inf and 0 < self.top_p <= 1):
            raise ConfigError(
                f"temperature {self.temperature} or top_p {self.top_p} is out of range",
                fix="temperature >= 0, 0 < top_p <= 1",
            )
        for name in ("max_new_tokens", "max_context_tokens", "batch_episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
