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
    """The sessions to hold out of training."""

    by: Literal["auto", "session", "repository"] = "auto"
    """Unit of the split; "repository" keeps all sessions of one repository together; "auto" = by
    repository if there are five or more, else by session: a share of a few repositories is none of
    them, or too much."""
    fraction: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of units held out, chosen by hash; `build` refuses a share that holds out nothing or
    everything."""


class IngestSettings(Settings):
    """The folders of logs, and the reading of them."""

    logs: tuple[str, ...] = ()
    """Files or folders; none = $CLAUDE_CONFIG_DIR/projects, else ~/.claude/projects."""
    max_line_bytes: int = Field(default=64 * 2**20, gt=0)
    """A longer line is counted as damaged and skipped, without being held in memory."""
    redact: bool = True
    """Remove secrets before anything is written."""
    redact_words: tuple[str, ...] = ()
    """Your own words to remove as well, e.g. a customer's name."""
    scanner: Annotated[tuple[str, ...], BeforeValidator(_as_command)] = ()
    """A command that scans the redacted sessions before they are stored, e.g. ["kingfisher",
    "scan", "{file}"]; if its exit code is not 0, nothing is stored. "gitleaks" needs only its name.
    None = no such gate."""
    authors: tuple[str, ...] = ()
    """Keep only sessions in which one of these models wrote (shell patterns, e.g. "claude-opus-*");
    none = all. Whole sessions are kept or left out; build.authors chooses among their messages."""


class SitesSettings(Settings):
    """The detection of mistaken messages."""

    detectors: tuple[str, ...] = ("tool_error", "repeated_call", "hidden_error", "failed_check")
    """Names of built-in detectors, or your own as "package.module:function". The list replaces the
    default, so name the built-in ones that should stay."""
    signals: tuple[Signal, ...] = ("rejections", "corrections", "taken_back", "blame", "waste")
    """Mistakes that no tool reports: what people stopped and corrected, edits that were taken back,
    the edit that broke a check, and calls that could bring nothing new. Shown and counted, kept out
    of lm_ce, and trained on only if `train_kinds` names the kind; () = none of them."""
    train_kinds: tuple[str, ...] = ()
    """Kinds of `signals` that become mistakes, such as "user_rejected": none, until the precision
    of a kind was measured on labels made without sight of its rules."""
    min_confidence: float = Field(default=0.85, ge=0.0, le=1.0)
    """A site of `train_kinds` becomes a mistake only if its rule, with the reader's verdict if
    there is one, is at least this sure."""
    reader: CandidateReaderSettings = CandidateReaderSettings()
    error_kind: str = ""
    """"package.module:function" of (text, tool=...) that renames the kind of an error result; an
    empty name or None keeps the detector's kind, "" = all kinds as detected."""
    explored_paths: Literal["apart", "mistake"] = "apart"
    """A missing path that the message only looked for (kind path_explored): "apart" = counted, but
    never trained on; "mistake" = a mistake, like a path that was guessed and used as a fact."""
    site: Literal["cause", "recovery"] = "cause"
    """"cause" = the mistaken message; "recovery" = the turn after the error (what the earlier
    framework trained)."""


class HintsSettings(Settings):
    """The writing of hints."""

    writer: Literal["rules", "reader"] = "rules"
    """"rules" = templates for the mistakes that `sites` finds; "reader" = a model reads the
    sessions, names the mistakes and writes the hints."""
    reader: ReaderSettings = ReaderSettings()
    writers: dict[str, str] = Field(default_factory=dict)
    """Kind of mistake -> name of a built-in writer or "package.module:function"; added to the
    built-in table."""
    rules_file: str = ""
    """Your own rules (CLAUDE.md, AGENTS.md); a rule that names the tool or kind of a mistake
    becomes its hint."""
    no_answers: bool = True
    """Leave out a hint made of a person's words that says what a later message did; false = it is
    kept, and marked "later:answer" in the hint's `knows`."""
    max_words: int = Field(default=120, gt=0)
    """A longer hint is refused."""
    position: HintPosition = "system"
    """The place of a hint: "system" or "user" = a message of this role directly above the mistaken
    one; "reminder" = a <system-reminder> block at the end of the tool result or user message
    directly above; "result" = bare text there. If neither stands directly above, or if its last
    tokens would change, "reminder" and "result" become a user message: `build` counts them."""
    min_lift: float = 0.0
    """Kinds whose lower bound of lift is not above this are weak: once `hints --audit` has measured
    them, nothing trains on them. In nats of log-odds of right against wrong at the decision. A
    change needs no new audit."""
    unmeasured: Literal["drop", "keep"] = "drop"
    """Hints for mistakes where nothing is known to be right, so that the audit cannot measure them:
    "drop" = once an audit was made, nothing trains on them, whatever their kind; "keep" = they are
    used unmeasured if their kind has no measured site or is kept. The measured sites of a kind
    decide for the kind: with "keep" too, a weak kind is left out as a whole. "drop", because no
    lift means no training: whether such a hint helps or harms is not known."""
