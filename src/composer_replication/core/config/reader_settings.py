"""Settings of the reader models: one that writes hints (`recompose hints --writer reader`), and one
that judges the candidates of `recompose sites`."""

from __future__ import annotations

from pydantic import Field, model_validator

from composer_replication.core.config.base import Settings


class ReaderSettings(Settings):
    """A model that reads sessions, names the mistaken messages and writes the hints."""

    teacher: str = ""
    """Name of a table [replay.teacher.NAME], or of a built-in teacher; its cost counts against
    replay.max_usd, in the same ledger."""
    recorded: str = ""
    """A file of the reader's answers (reader_answers.jsonl of an earlier run) to use instead of
    asking a model."""
    votes: int = Field(default=3, ge=1)
    """Number of times that each window of a session is read."""
    min_votes: int = Field(default=2, ge=1)
    """A message counts as mistaken if at least this many readings name it and are sure."""
    window_tokens: int = Field(default=24_000, ge=2_000)
    """Longest prompt, by estimate: a longer session is read in windows that overlap."""
    overlap_tokens: int = Field(default=4_000, ge=0)
    """Number of tokens by which a window overlaps the next."""
    answer_tokens: int = Field(default=2_000, gt=0)
    """Longest answer."""
    temperature: float = Field(default=0.7, ge=0.0)
    """Temperature of each reading; at 0 all votes would be the same."""

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
    """A model that is shown what `sites.signals` found, one candidate in each call, and answers
    which message is mistaken; without a name nobody is asked."""

    teacher: str = ""
    """Name of a table [replay.teacher.NAME], or of a built-in teacher; its cost counts against
    replay.max_usd, in the same ledger."""
    recorded: str = ""
    """A file of the reader's answers (site_answers.jsonl of an earlier run) to use instead of
    asking a model."""
    votes: int = Field(default=1, ge=1)
    """Number of times that each candidate is read; a verdict needs more than half of them."""
    unmatched: int = Field(default=50, ge=0)
    """Most human messages that are shown although no rule calls them a correction, over all
    sessions together; a message that the reader names there is shown, and never trained on."""
    prompt_tokens: int = Field(default=4_000, ge=1_500)
    """Longest prompt, by estimate: the candidate, what happened later, and the messages around."""
    answer_tokens: int = Field(default=1_000, gt=0)
    """Longest answer; a model that thinks first needs room for it."""
    temperature: float = Field(default=0.7, ge=0.0)
    """Temperature of each reading; at 0 all votes would be the same."""

    @property
    def is_set(self) -> bool:
        """Whether somebody is to be asked, or was."""
        return bool(self.teacher or self.recorded)
