"""What is kept out of training: whole repositories or whole sessions, chosen by hash, the same in every run and on every machine."""

from __future__ import annotations

import hashlib

from composer_replication.core.config.data import HeldOutSettings
from composer_replication.core.trace import Session


def split_unit(session: Session, *, by: str) -> str:
    """What a session is split with: its repository (else its folder), or the session that started it if it is a subagent's.

    A session with neither repository nor folder stands for itself. Example: split_unit(session, by="repository") -> "acme/app"
    """
    family = session.parent.session_id if session.parent else session.id
    if by == "session":
        return family
    return session.repository or session.cwd or family


def is_held_out(session: Session, *, settings: HeldOutSettings) -> bool:
    """Whether a session is kept for evaluation: its unit's hash, read as a number in [0, 1), is below the fraction."""
    unit = split_unit(session, by=settings.by)
    number = int.from_bytes(hashlib.sha256(f"held-out:{unit}".encode("utf-8", "surrogatepass")).digest()[:8], "big")
    return number / 2**64 < settings.fraction
