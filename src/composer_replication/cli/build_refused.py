"""The refusal of a `build` in which a channel lost everything, and the settings that avoid it.

The examples of a refused build can be looked at; `load_dataset` refuses to train on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from composer_replication.cli.build_text import WAYS
from composer_replication.core.config.root import Config
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_json
from composer_replication.models.context_length import context_length
from composer_replication.tokens.artefact import META, BuildReport

_LOST = ("template", "not_insertable", "too_long", "evidence_lost")


def _way(reason: str, config: Config) -> str:
    """The remedy for a reason, with the model's context where it bounds it."""
    raise_window, context = "raise build.max_tokens, at most to the model's context", None
    if raise_window in (way := WAYS[reason]):
        context = context_length(config.student)
    if context is not None and config.build.max_tokens >= context:
        return way.replace(raise_window, f"take a model that reads more than {context} tokens")
    micro_tokens = config.train.micro_tokens
    with_micro_tokens = f" and train.micro_tokens, which is {micro_tokens} and has to hold a window"
    bound = "" if context is None else f", at most to the model's {context}"
    too_small = micro_tokens < 2 * config.build.max_tokens
    return way.replace(
        raise_window, f"raise build.max_tokens{with_micro_tokens * too_small}{bound}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A build that is refused: the error, and flags that avoid it ("" = none was found)."""

    error: DataError
    flags: str = ""


def wider_windows(config: Config) -> Iterator[tuple[str, Config]]:
    """Yield (flags, settings) that lose less: longer windows, then views without evidence.

    A window never exceeds the model's context. One longer than train.micro_tokens, which must hold
    it in one forward, raises that as well.
    """
    build, train, tokens = config.build, config.train, 2 * config.build.max_tokens
    most = context_length(config.student) or train.micro_tokens
    while tokens <= most:
        flags = f"--build.max_tokens {tokens}"
        if tokens > train.micro_tokens:
            train = train.model_copy(update={"micro_tokens": tokens})
            flags += f" --train.micro_tokens {tokens}"
        wider = build.model_copy(update={"max_tokens": tokens})
        yield flags, config.model_copy(update={"build": wider, "train": train})
        tokens *= 2
    if build.without_evidence == "skip":
        kept = build.model_copy(update={"without_evidence": "keep"})
        yield "--build.without_evidence keep", config.model_copy(update={"build": kept})


def note_refused(examples: Path, refused: Refused) -> None:
    """Record in the meta.json of a refused build what was tried and avoids it.

    `train` prints the remedy, `next_step` reads the flags.
    """
    path = examples / META
    error, flags = refused.error, refused.flags
    noted = {"what": error.what, "fix": error.fix, "flags": flags}
    write_json(path, {**json.loads(path.read_bytes()), "refused": noted})


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
