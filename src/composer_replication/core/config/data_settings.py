"""Settings of the torch-free stages: ingest, sites, hints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from composer_replication.core.config.base import Settings
from composer_replication.core.config.reader_settings import (
    CandidateReaderSettings,
    ReaderSettings,
)

Signal = Literal["rejections", "corrections", "taken_back", "blame", "waste"]
HintPosition = Literal["system", "user", "reminder", "result"]


def _as_command(value: object) -> object:
    """A string is a command of one word; "" is no command."""
    return tuple(filter(None, (value,))) if isinstance(value, str) else value


class HeldOutSettings(Settings):
    """The sessions held out of training."""

    by: Literal["auto", "session", "repository"] = "auto"
    """Unit of the split. "repository" keeps all sessions of a repository together. "auto" splits by
    repository if there are at least five, else by session: a share of a few repositories is either
    none or too much."""
    fraction: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of units to hold out, chosen by hash. `build` refuses a share that holds out nothing or
    everything."""


class IngestSettings(Settings):
    """Where the logs are, and how they are read."""

    logs: tuple[str, ...] = ()
    """Files or folders to read. Empty: $CLAUDE_CONFIG_DIR/projects, else ~/.claude/projects."""
    max_line_bytes: int = Field(default=64 * 2**20, gt=0)
    """Longest line in bytes. A longer line is skipped and counted as damaged, without being loaded
    into memory."""
    redact: bool = True
    """Remove secrets before anything is written to disk."""
    redact_words: tuple[str, ...] = ()
    """Additional words to remove, e.g. a customer's name."""
    scanner: Annotated[tuple[str, ...], BeforeValidator(_as_command)] = ()
    """Command that scans the redacted sessions before they are stored, e.g. ["kingfisher", "scan",
    "{file}"]. If it exits with a code other than 0, nothing is stored. "gitleaks" needs only its
    name. Empty: no scan."""
    authors: tuple[str, ...] = ()
    """Keep only sessions in which one of these models wrote (shell patterns, e.g. "claude-opus-*").
    Empty: all. Whole sessions are kept or left out; to choose among their messages, use
    build.authors."""


class SitesSettings(Settings):
    """How mistaken messages are detected."""

    detectors: tuple[str, ...] = ("tool_error", "repeated_call", "hidden_error", "failed_check")
    """Detectors to run: built-in names, or your own as "package.module:function". The list replaces
    the default, so include the built-in ones that you want to keep."""
    signals: tuple[Signal, ...] = ("rejections", "corrections", "taken_back", "blame", "waste")
    """Mistakes that no tool reports: what people interrupted or corrected, edits that were
    reverted, the edit that broke a check, and calls that could return nothing new. They are shown
    and counted, excluded from lm_ce, and trained on only if `train_kinds` lists the kind. () = none
    of them."""
    train_kinds: tuple[str, ...] = ()
    """Kinds from `signals` to treat as mistakes, such as "user_rejected". Keep this empty until a
    kind's precision was measured on labels made without knowledge of its rules."""
    min_confidence: float = Field(default=0.85, ge=0.0, le=1.0)
    """Minimum confidence of the rule (with the reader's verdict, if there is one) for a site of
    `train_kinds` to count as a mistake."""
    reader: CandidateReaderSettings = CandidateReaderSettings()
    error_kind: str = ""
    """"package.module:function" that maps (text, tool=...) to a new kind for an error result. An
    empty name or None keeps the detector's kind; "" keeps all kinds as detected."""
    explored_paths: Literal["apart", "mistake"] = "apart"
    """How to treat a missing path that the message only looked for (kind path_explored). "apart"
    counts it but never trains on it; "mistake" treats it like a path that was guessed and used as a
    fact."""
    site: Literal["cause", "recovery"] = "cause"
    """The message to train on: "cause" = the mistaken message; "recovery" = the turn after the
    error (what the earlier framework trained)."""


class HintsSettings(Settings):
    """How hints are written."""

    writer: Literal["rules", "reader"] = "rules"
    """"rules" fills templates for the mistakes that `sites` found. "reader" calls a model that
    reads the sessions, names the mistakes and writes the hints."""
    reader: ReaderSettings = ReaderSettings()
    writers: dict[str, str] = Field(default_factory=dict)
    """Hint writers by kind of mistake: a built-in writer's name or "package.module:function". Added
    to the built-in table."""
    rules_file: str = ""
    """Your own rules (CLAUDE.md, AGENTS.md). A rule that names the tool or kind of a mistake
    becomes its hint."""
    no_answers: bool = True
    """Drop a hint taken from a person's words if it says what a later message did. If false, it is
    kept and marked "later:answer" in the hint's `knows`."""
    max_words: int = Field(default=120, gt=0)
    """Maximum length of a hint in words. A longer one is refused."""
    position: Literal[HintPosition, "auto"] = "system"
    """Where the hint is inserted. "system" or "user": a message of this role directly above the
    mistaken one. "reminder": a <system-reminder> block at the end of the tool result or user
    message directly above; "result": plain text there. If neither stands directly above, or if its
    last tokens would change, the last two fall back to a user message, which `build` counts. "auto"
    = where `hints --audit` finds that a text disturbs this student least, as long as hints act
    there about as far as in a system message; "system" until an audit was made."""
    min_lift: float = 0.0
    """Minimum lower bound of a kind's lift, in nats of log-odds of right against wrong at the
    decision. Once `hints --audit` has measured the kinds, those not above it are weak and nothing
    trains on them. Changing this needs no new audit."""
    unmeasured: Literal["drop", "keep"] = "drop"
    """How to treat hints the audit cannot measure, because nothing is known to be right there.
    "drop" = once an audit was made, nothing trains on them, whatever their kind; "keep" = train on
    them if their kind was not measured or passed the gate. A weak kind is left out as a whole in
    both cases. The default is "drop", since it is unknown whether such a hint helps or harms."""

    def fixed_position(self) -> HintPosition:
        """The position of the hints; "system" for "auto", where no audit has chosen one.

        >>> HintsSettings(position="reminder").fixed_position()
        'reminder'
        >>> HintsSettings(position="auto").fixed_position()
        'system'
        """
        return "system" if self.position == "auto" else self.position
