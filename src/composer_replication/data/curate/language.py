"""Guess the language of a text by its script and the function words of eight languages.

It needs no model and no download, and gives no answer if unsure, e.g. for code.

>>> guess_language("Let me look at the file that the test reads.")
LanguageGuess(language='en', score=0.8)
>>> guess_language("def f(x): return x")
LanguageGuess(language='', score=0.0)
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import chain

MIN_EVIDENCE = 3
"""The fewest function words for a guess; a script needs eight characters."""
ENOUGH_EVIDENCE = 12
"""With so many function words at the beginning of a text, the rest is not read."""
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
class LanguageGuess:
    """A language ("" = unknown) and the share of the evidence for it, 0 to 1."""

    language: str
    score: float


def guess_language(text: str) -> LanguageGuess:
    """Guess the language of a text."""
    if not text.isascii() and (by_script := _by_script(text)) is not None:
        return by_script
    function_words = _small_words(text[:400])
    if len(function_words) < ENOUGH_EVIDENCE:
        function_words += _small_words(text[400:2000])
    if len(function_words) < MIN_EVIDENCE:
        return LanguageGuess("", 0.0)
    (best, count), *runner_up = Counter(chain.from_iterable(function_words)).most_common(2)
    is_unique = not runner_up or runner_up[0][1] < count  # "is we in" is as good Dutch as English
    return LanguageGuess(best, count / len(function_words)) if is_unique else LanguageGuess("", 0.0)


def _small_words(text: str) -> list[tuple[str, ...]]:
    """Return the languages of each function word of a text."""
    return list(filter(None, map(_LANGUAGES_OF.get, _WORD.findall(text.lower()))))


def _by_script(text: str) -> LanguageGuess | None:
    letters = len(_WORD.findall(text)) + len(_NOT_ASCII.findall(text))
    counts = {language: len(pattern.findall(text)) for language, pattern in _SCRIPTS}
    if counts["ja"]:  # Japanese is written with Chinese characters, too
        counts["ja"], counts["zh"] = counts["ja"] + counts["zh"], 0
    best = max(counts, key=lambda language: counts[language])
    return (
        LanguageGuess(best, min(1.0, counts[best] / letters))
        if counts[best] >= 8 and 4 * counts[best] >= letters
        else None
    )
