"""How alike two messages are, by their words; an embedding may judge in place of them: "minilm"
(meaning.py), or one of your own.

likeness("Let me read a.py", "Let me read b.py")       -> 0.67
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

from composer_replication.core.errors import ConfigError
from composer_replication.data.curate.meaning import load_minilm
from composer_replication.data.sites.by_path import load_function

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Texts to vectors of one length."""
Likeness = Callable[[str, str], float]
_TOKEN = re.compile(r"\w+|[^\w\s]")


def likeness(one: str, other: str) -> float:
    """The share of words and signs that two texts have in common, with repetitions, 0 to 1; two
    empty texts are alike."""
    counts, others = Counter(_TOKEN.findall(one.lower())), Counter(_TOKEN.findall(other.lower()))
    either = sum((counts | others).values())
    return sum((counts & others).values()) / either if either else 1.0


def likeness_by(path: str, *, setting: str) -> Likeness:
    """The lexical one for "", else the cosine of the vectors that "minilm" or
    "package.module:function" gives for a list of texts."""
    if not path:
        return likeness
    embed: Embed = load_minilm() if path == "minilm" else load_function(path, setting=setting)

    def cosine(one: str, other: str) -> float:
        vectors = embed([one, other])
        if len(vectors) != 2 or len(vectors[0]) != len(vectors[1]):
            raise ConfigError(
                f"{path} gives no two vectors of one length",
                where=setting,
                fix="give one vector per text",
            )
        dot = sum(a * b for a, b in zip(*vectors, strict=True))
        norms = [math.sqrt(sum(a * a for a in vector)) for vector in vectors]
        return dot / (norms[0] * norms[1]) if all(norms) else 0.0

    return cosine
