"""The secret lists that an outsider wrote (tests/core/stranger/README.md), and the share of them
that redaction removes.

    score("sealed").plain        # Share(num_gone=..., num=175)"""

from __future__ import annotations

import base64
import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.core.redact import Redactor

FOLDER = Path(__file__).parent / "stranger"
Z_95 = 1.959964


@dataclass(frozen=True, slots=True)
class Share:
    """How many texts of a set are clean after redaction."""

    num_gone: int
    num: int

    @property
    def value(self) -> float:
        return self.num_gone / self.num

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95 %, e.g. Share(9, 10).interval -> (0.596, 0.982)."""
        p, n, z2 = self.value, self.num, Z_95**2
        middle, half = p + z2 / (2 * n), Z_95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
        return round((middle - half) / (1 + z2 / n), 3), round((middle + half) / (1 + z2 / n), 3)


@dataclass(frozen=True, slots=True)
class Score:
    """What redaction removed from a list, for its plain and its wrapped texts, and what was left,
    by id, kind and shape."""

    plain: Share
    wrapped: Share
    left: tuple[tuple[str, str, str], ...]


def rows(name: str) -> list[dict[str, Any]]:
    """Read a list, "dev", "sealed", "second" or "third": text, secrets (all pieces that must go),
    wrapped, kind and shape."""
    packed = (FOLDER / f"{name}.jsonl.z64").read_bytes()
    return [json.loads(line) for line in zlib.decompress(base64.b64decode(packed)).splitlines()]


def score(name: str) -> Score:
    """Redact every text of a list and count the clean ones."""
    gone: dict[bool, int] = {False: 0, True: 0}
    num: dict[bool, int] = {False: 0, True: 0}
    left = []
    for row in rows(name):
        clean = Redactor(environ={}).text(row["text"])
        num[row["wrapped"]] += 1
        if any(piece in clean for piece in row["secrets"]):
            left.append((row["id"], row["provider_or_kind"], row["shape"]))
        else:
            gone[row["wrapped"]] += 1
    return Score(Share(gone[False], num[False]), Share(gone[True], num[True]), tuple(left))
