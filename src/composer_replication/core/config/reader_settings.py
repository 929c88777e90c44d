"""Settings of the reader models: one that writes hints (`recompose hints --writer reader`), and one
that judges the candidates of `recompose sites`."""

from __future__ import annotations

from pydantic import Field, model_validator

from composer_replication.core.config.base import Settings


class ReaderSettings(Settings):
    """A model that reads sessions, names the mistaken messages and writes the hints."""

    teacher: str = ""
    """Name of a [replay.teacher.NAME] table or of a built-in teacher. Its cost counts towards
    replay.max_usd, in the same ledger."""
    recorded: str = ""
    """Recorded answers of the reader (reader_answers.jsonl of an earlier run), used instead of
    calling a model."""
    votes: int = Field(default=3, ge=1)
    """Readings per window of a session."""
    min_votes: int = Field(default=2, ge=1)
    """Minimum number of readings that must name a message, and be sure, for it to count as
    mistaken."""
    window_tokens: int = Field(default=24_000, ge=2_000)
    """Maximum prompt length in estimated tokens. A longer session is read in overlapping
    windows."""
    overlap_tokens: int = Field(default=4_000, ge=0)
    """Overlap of neighbouring windows in tokens."""
    answer_tokens: int = Field(default=2_000, gt=0)
    """Maximum answer length in tokens."""
    temperature: float = Field(default=0.7, ge=0.0)
    """Sampling temperature. At 0 all votes would be the same."""

    @model_validator(mode="after")
    def _fits(self) -> ReaderSettings:
        if self.min_votes > self.votes:
            raise ValueError(
                f"min_votes = {self.min_votes} can never be reached with votes = {self.votes}"
            )
        if self.overlap_tokens * 2 > self.window_tokens:
            raise ValueError(
                "overlap_tokens is at most half of window_tokens: otherwise a window would bring"
                " little that is new"
            )
        return self


class CandidateReaderSettings(Settings):
    """A model that reads each candidate found by `sites.signals`, one per call, and says which
    message is mistaken. Without a teacher, no model is called."""

    teacher: str = ""
    """Name of a [replay.teacher.NAME] table or of a built-in teacher. Its cost counts towards
    replay.max_usd, in the same ledger."""
    recorded: str = ""
    """Recorded answers of the reader (site_answers.jsonl of an earlier run), used instead of
    calling a model."""
    votes: int = Field(default=1, ge=1)
    """Readings per candidate. A verdict needs a majority of them."""
    unmatched: int = Field(default=50, ge=0)
    """Maximum number of human messages, over all sessions, that the reader is shown although no
    rule matched them as a correction. If the reader names such a message, it is reported but never
    trained on."""
    prompt_tokens: int = Field(default=4_000, ge=1_500)
    """Maximum prompt length in estimated tokens: the candidate, what happened later, and the
    surrounding messages."""
    answer_tokens: int = Field(default=1_000, gt=0)
    """Maximum answer length in tokens. A reasoning model needs room to think."""
    temperature: float = Field(default=0.7, ge=0.0)
    """Sampling temperature. At 0 all votes would be the same."""

    @property
    def is_set(self) -> bool:
        """Whether somebody is to be asked, or was."""
        return bool(self.teacher or self.recorded)
