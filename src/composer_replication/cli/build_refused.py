"""The refusal of a `build` in which a channel lost everything, and the settings that avoid it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from composer_replication.cli.build_text import WAYS
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_json
from composer_replication.models.context_length import context_length
from composer_replication.tokens.artefact import META, BuildReport

_LOST = ("template", "not_insertable", "too_long", "evidence_lost")


def _way(reason: str, config: Config) -> str:
    """The remedy for a reason, with the model's context where it bounds it."""
    way, context = WAYS[reason], context_length(config.student)
    if context is None:
        return way.replace(", at most to the model's context", "")
    if config.build.max_tokens >= context:
        return way.replace(
            "raise build.max_tokens, at most to the model's context",
            f"take a model that reads more than {context} tokens",
        )
    return way.replace("at most to the model's context", f"at most to the model's {context}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A build that lost a channel: the error, and flags that avoid it ("" = none was found)."""

    error: DataError
    flags: str = ""


def wider_windows(config: Config) -> Iterator[tuple[str, BuildSettings]]:
    """Yield (flags, settings) that lose less: longer windows, then views without evidence.

    A window never exceeds train.micro_tokens, which must fit into one forward, nor the model's
    context.
    """
    build, tokens = config.build, 2 * config.build.max_tokens
    most = min(
        config.train.micro_tokens, context_length(config.student) or config.train.micro_tokens
    )
    while tokens <= most:
        yield f"--build.max_tokens {tokens}", build.model_copy(update={"max_tokens": tokens})
        tokens *= 2
    if build.without_evidence == "skip":
        yield "--build.without_evidence keep", build.model_copy(update={"without_evidence": "keep"})


def note_refused(examples: Path, refused: Refused) -> None:
    """Record in the examples' meta.json that the build was refused, and which flags avoid it.

    `next_step` reads it.
    """
    path = examples / META
    write_json(
        path,
        {
            **json.loads(path.read_bytes()),
            "refused": {"what": refused.error.what, "flags": refused.flags},
        },
    )


def lost_channel(config: Config, report: BuildReport) -> DataError | None:
    """The error of a build that lost all hints or most messages of a weighted channel, or None.

    With live rollouts, which have their own hints, imported hints may be lost.
    """
    train, channels = config.train, []
    if train.hint.weight and not config.rollouts.env:
        channels.append(("hint", "hints", report.hinted_sites, 0.0))
    if train.lm_ce.weight:
        channels.append(("lm_ce", "messages", report.trained_messages, 0.5))
    for channel, noun, built, least in channels:
        reasons = {
            reason: n for reason in _LOST if (n := report.skipped.get(f"{channel}/{reason}", 0))
        }
        lost, most = sum(reasons.values()), max(reasons, key=lambda name: reasons[name], default="")
        if lost and built <= least * reasons.get("template", 0):
            listed = ", ".join(f"{name} {n}" for name, n in reasons.items())
            message = f"{built} of {lost + built} {noun} could be built for {channel}: {listed}"
            return DataError(
                message,
                where="skipped.jsonl has each",
                fix=f"{_way(most, config)}, or set train.{channel}.weight = 0, and build again",
            )
    return None
