"""What a judge is given and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from composer_replication.core.errors import DataError
from composer_replication.repositories.checkout import Checkout
from composer_replication.repositories.environment import TestEnvironment

Method = Literal["strong", "strong and replay", "tests"]
"""How an episode was judged; "tests" by the plain outcomes of its tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRepository:
    """The pristine files of a task's repository, what its tests need, and the folder in which what
    the judge learned from the original is kept."""

    checkout: Checkout
    environment: TestEnvironment
    cache: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class HackAttempt:
    """One thing that an episode tried: its kind, and the words or the path that show it."""

    kind: str
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedEpisode:
    """1.0 or 0.0, the reason for 0, how it was judged, the attempts to cheat, the changes that were
    not taken, and what this method cannot exclude. `unfinished` if the judgement died or passed its
    limit: it earns nothing, but nothing is known of it."""

    reward: float
    reason: str
    method: Method
    attempts: tuple[HackAttempt, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict[str, str])
    residual_risk: str = ""
    unfinished: bool = False


class OriginalRefusedError(DataError):
    """An original that does not pass its own judge; `unfinished` as of a JudgedEpisode."""

    def __init__(self, what: str, *, where: str, fix: str, unfinished: bool) -> None:
        super().__init__(what, where=where, fix=fix)
        self.unfinished = unfinished
