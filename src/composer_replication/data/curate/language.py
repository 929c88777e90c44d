"""In which language is a text? By script, and by the small words of eight languages: no model, no
download, and no answer where unsure.

guess("Let me look at the file that the test reads.")     -> Guess(language="en", score=1.0)
guess("def f(x): return x")                               -> Guess(language="", score=0.0)     (code says nothing)
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import chain

MIN_EVIDENCE = 3
"""So many small words, or eight characters of a script, before anything is said."""
ENOUGH_EVIDENCE = 12
"""So many small words at the beginning of a text, and the rest is not read."""
_SCRIPTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("ja", re.compile("[\u3040-\u30ff]")),
    ("ko", re.compile("[\uac00-\ud7af]")),
    ("zh", re.compile("[\u4e00-\u9fff]")),
    ("ru", re.compile("[\u0400-\u04ff]")),
    ("ar", re.compile("[\u0600-\u06ff]")),
    ("he", re.compile("[\u0590-\u05ff]")),
    ("hi", re.compile("[\u0900-\u097f]")),
    ("el", re.compile("[\u0370-\u03ff]")),
    ("th", re.compile("[\u0e00-\u0e7f]")),
)
_SMALL_WORDS = {
    "en": (
        "the and is of to in that it for with this be are was not let we have should which from"
        " first now need will"
    ),
    "de": (
        "der die das und ist nicht ich es zu den mit ein eine auf für wir jetzt muss wird sind"
        " zuerst datei"
    ),
    "fr": (
        "le la les et est je que pour dans une un des nous ne pas sur avec fichier il ce cette"
        " maintenant"
    ),
    "es": (
        "el los las y es que para en una un no con del por se archivo ahora esta este vamos primero"
    ),
    "pt": (
        "o os as e que para em uma um não com do da por se arquivo agora esta este vamos primeiro"
    ),
    "it": (
        "il lo gli e che per in una un non con del della si questo ora adesso prima sono file devo"
    ),
    "nl": "de het een en is niet ik van te dat met op voor nu moet eerst we zijn bestand dit",
    "pl": "i w nie na że jest to się z do jak teraz trzeba najpierw plik jego który",
}
_LANGUAGES_OF = {
    word: tuple(language for language, words in _SMALL_WORDS.items() if word in words.split())
    for words in _SMALL_WORDS.values()
    for word in words.split()
}
_WORD = re.compile(r"[^\W\d_]+")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


@dataclass(frozen=True, slots=True)
class Guess:
    """A language ("" = not known) and the share of the evidence that is of it, 0 to 1."""

    language: str
    score: float


def guess(text: str) -> Guess:
    """The language of a text, as far as its script and its small words tell."""
    if not text.isascii() and (found := _by_script(text)) is not None:
        return found
    small = _small_words(text[:400])
    if len(small) < ENOUGH_EVIDENCE:
        small += _small_words(text[400:2000])
    if len(small) < MIN_EVIDENCE:
        return Guess("", 0.0)
    (best, count), *others = Counter(chain.from_iterable(small)).most_common(2)
    alone = not others or others[0][1] < count  # "is we in" is as good Dutch as English
    return Guess(best, count / len(small)) if alone else Guess("", 0.0)


def _small_words(text: str) -> list[tuple[str, ...]]:
    """The languages of each small word of a text."""
    return list(filter(None, map(_LANGUAGES_OF.get, _WORD.findall(text.lower()))))


def _by_script(text: str) -> Guess | None:
    letters = len(_WORD.findall(text)) + len(_NOT_ASCII.findall(text))
    counts = {language: len(pattern.findall(text)) for language, pattern in _SCRIPTS}
    if counts["ja"]:  # Japanese is written with Chinese characters, too
        counts["ja"], counts["zh"] = counts["ja"] + counts["zh"], 0
    best = max(counts, key=lambda language: counts[language])
    return (
        Guess(best, min(1.0, counts[best] / letters))
        if counts[best] >= 8 and 4 * counts[best] >= letters
        else None
    )
