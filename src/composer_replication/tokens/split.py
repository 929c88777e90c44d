"""The sessions that are held out of training: whole repositories or sessions, chosen by hash.

The choice is the same in every run and on every machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.core.trace import Session

MIN_REPOSITORIES = 5
"""Fewer are split by session."""


def split_unit(session: Session, *, by: str) -> str:
    """The unit a session is split with: its repository (else its folder), or its parent session.

    By session, a subagent's session goes with the session that started it. A session with neither
    repository nor folder is a unit by itself. Example: split_unit(session, by="repository") ->
    "acme/app"
    """
    family = session.parent.session_id if session.parent else session.id
    if by == "session":
        return family
    return session.repository or session.cwd or family


def resolve_split_unit(settings: HeldOutSettings, sessions: Iterable[Session]) -> HeldOutSettings:
    """The settings with "auto" replaced by the unit that fits these sessions.

    Other settings are returned unchanged. Example: sessions of three repositories -> by = "session"
    """
    if settings.by != "auto":
        return settings
    repositories = {split_unit(session, by="repository") for session in sessions}
    return settings.model_copy(
        update={"by": "repository" if len(repositories) >= MIN_REPOSITORIES else "session"}
    )


def is_held_out(session: Session, *, settings: HeldOutSettings) -> bool:
    """Whether a session is kept for evaluation: its unit's number is below the fraction.

    Raises ValueError for "auto": see `resolve_split_unit`.
    """
    if settings.by == "auto" and settings.fraction:
        raise ValueError('held_out.by is "auto": settle it on the sessions first')
    return unit_number(split_unit(session, by=settings.by)) < settings.fraction


def unit_number(unit: str) -> float:
    """The hash of a unit, read as a number in [0, 1).

    >>> round(unit_number("acme/app"), 3)
    0.571
    """
    return (
        int.from_bytes(
            hashlib.sha256(f"held-out:{unit}".encode("utf-8", "surrogatepass")).digest()[:8], "big"
        )
        / 2**64
    )


def possible_fractions(units: Iterable[str]) -> list[float]:
    """The fractions, in hundredths, that hold out some of these units and keep some.

    Each holds out more units than the one before.

    >>> possible_fractions(["acme/app", "acme/web"])
    [0.23]
    """
    numbers = sorted({unit_number(unit) for unit in units})
    candidates = dict.fromkeys(math.floor(number * 100 + 1) / 100 for number in numbers)
    return [fraction for fraction in candidates if fraction <= numbers[-1]]
