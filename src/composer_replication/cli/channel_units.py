"""Find weighted channels without training data before a run starts, and what would feed them.

units_per_channel(config, report)  ->  {"policy": 0, "lm_ce": 5120, "hint": 0, "preference": 0}
unfed(job, units)                  ->  Unfed(channel="hint", ..., command="recompose show site")
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.codec import read_hints, read_sessions, read_sites
from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError
from composer_replication.rollouts.task_source import built_in_recordings


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfed:
    """A weighted channel with nothing to train on: why, the remedy, and a command that applies or
    shows it."""

    channel: str
    why: str
    remedy: str
    command: str

    def error(self) -> ConfigError:
        """The error with which `train` refuses it."""
        return ConfigError(self.why, fix=f"{self.remedy}, or set train.{self.channel}.weight = 0")


def weights_in_settings(config: Config) -> dict[str, float]:
    """Channel -> its weight, in the order in which channels are shown."""
    train = config.train
    return {
        "policy": train.policy.weight,
        "lm_ce": train.lm_ce.weight,
        "hint": train.hint.weight,
        "preference": train.preference.weight,
    }


def fed_by_play(config: Config) -> tuple[str, ...]:
    """The channels that live rollouts feed."""
    return ("policy", "hint") if config.rollouts.env else ()


def units_per_channel(config: Config, counts: Mapping[str, Any]) -> dict[str, int]:
    """Channel -> its tokens (preference: pairs and anchors), by the counts of a `BuildReport`.

    The policy channel has none: imported messages have no sampled log-probs.
    """
    imported = (
        not config.rollouts.env or config.train.lm_ce.weight > 0
    )  # as in training/loop.py: of imported examples only anchors are drawn
    anchors = counts.get("anchors", 0) * (config.train.preference.anchor > 0)
    return {
        "policy": 0,
        "lm_ce": counts.get("trained_tokens", 0),
        "hint": counts.get("target_tokens", 0) if imported else 0,
        "preference": counts.get("pairs", 0) + anchors,
    }


def unfed(job: Job, units: Mapping[str, int]) -> Unfed | None:
    """The first weighted channel without data, which `train` would refuse, or None."""
    for channel, weight in weights_in_settings(job.config).items():
        if weight and not units[channel] and channel not in fed_by_play(job.config):
            problem = (
                "nothing is played" if channel == "policy" else "the examples hold nothing for it"
            )
            remedy, command = _remedy(job, channel)
            return Unfed(
                channel=channel,
                why=f"channel {channel} has weight {weight}, but {problem}",
                remedy=remedy,
                command=command,
            )
    return None


def first_replay(job: Job) -> str:
    """The command that brings pairs; "" if there are some, or if nobody is named who could be
    asked. Models that may cost are estimated first."""
    settings = job.config.replay
    if job.config.build.pairs or job.is_usable(job.preferences):
        return ""
    if settings.teachers != ("scripted",) and not settings.recorded:
        return job.command("replay --estimate")
    return job.command("replay") if settings.recorded or _is_built_in(job) else ""


def _is_built_in(job: Job) -> bool:
    """Whether scripted teachers know these sessions: all come from one built-in environment."""
    with ExitStack() as stack:
        return any(
            all(map(recorded.is_from_here, read_sessions(job.sessions)))
            for recorded in built_in_recordings(stack)
        )


def _remedy(job: Job, channel: str) -> tuple[str, str]:
    """(remedy, command) for a channel without data."""
    if channel == "policy":
        return (
            'set rollouts.env to what is played ("workshop", "repo", or your own)',
            "recompose init --explain rollouts",
        )
    if channel == "preference":
        return (
            f"give pairs, with build.pairs or by `{job.command('replay')}`, and build again",
            first_replay(job) or "recompose init --explain replay",
        )
    if not job.sessions.exists() and not job.examples.is_dir():
        return f"import logs ({job.command('ingest')})", job.command("ingest")
    if channel == "lm_ce":
        return f"look at what `{job.command('build')}` left out, and at build.authors", job.command(
            "show session"
        )
    for path, verb in ((job.sites, "sites"), (job.hints, "hints")):
        if not job.is_usable(path):
            return f"run {job.command(verb)} and build again", job.command(verb)
    if next(iter(read_sites(job.sites)), None) is None:
        return "give logs that hold mistakes", job.command("show session")
    if next(iter(read_hints(job.hints)), None) is None:
        return (
            "write rules for these kinds of mistakes (hints.rules_file, hints.writers)",
            job.command("show site"),
        )
    return f"look at what `{job.command('build')}` left out (skipped.jsonl has each)", job.command(
        "show site"
    )
