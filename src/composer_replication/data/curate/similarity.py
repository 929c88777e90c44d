"""The similarity of two messages by their words, or by an embedding.

The embedding is "minilm" (meaning.py) or one of the user's own.
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
"""Maps texts to vectors of one length."""
Likeness = Callable[[str, str], float]
_TOKEN = re.compile(r"\w+|[^\w\s]")


def likeness(first: str, second: str) -> float:
    """Return the share of common words and signs of two texts, with repetitions, 0 to 1.

    Two empty texts have 1.

    >>> likeness("Let me read a.py", "Let me read b.py")
    0.7142857142857143
    """
    counts, others = Counter(_TOKEN.findall(first.lower())), Counter(_TOKEN.findall(second.lower()))
    either = sum((counts | others).values())
    return sum((counts & others).values()) / either if either else 1.0


def likeness_by(path: str, *, setting: str) -> Likeness:
    """Return `likeness` for "", else the cosine similarity of an embedding.

    The embedding is "minilm" or "package.module:function", a function from texts to vectors.
    """
    if not path:
        return likeness
    embed: Embed = load_minilm() if path == "minilm" else load_function(path, setting=setting)

    def cosine(first: str, second: str) -> float:
        vectors = embed([first, second])
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
