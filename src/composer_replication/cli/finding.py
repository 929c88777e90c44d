"""The result of one check of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether something works, what was found, and the remedy.

    Example: Finding(name="torch", ok=False, found="not installed", fix="install torch")
    """

    name: str
    ok: bool
    found: str
    fix: str = ""
