"""Check whether a hint quotes text from after the mistake.

The teacher may know that a mistake follows, and what was in view; it must not know the repair. So
every gram of a hint that occurs in a later turn must also occur in a source that the hint may use:
the context before the site, the tools on offer, the writer's fixed words, or the user's rules. A
gram is one of two things:

- a passage: RUN words in a row, letters and digits only, so that punctuation and line breaks hide
  nothing;
- a name: a single path, option or identifier. It is shorter than a passage, but can be the whole
  repair. A hint may name things of the mistaken message (which option was wrong), but not quote
  passages of it.

`Occurrences` reads a session once for all its hints.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain

from composer_replication.core.trace import Session
from composer_replication.data.hints.context import turn_text

RUN = 4
"""Words in a row that make a passage."""
MIN_NAME = 4
"""Shorter words are no evidence: `a.b` and `-n` occur everywhere."""
# A name contains / . _ = or a digit, two hyphens, or a capital after a small letter, or begins as
# no word of a sentence does. A word with one hyphen is a plain word.
_NAME_LIKE = re.compile(r"\w[/._=\d]\w|\w-\w+-\w|^-|^[/~.]|\w_|[a-z][A-Z]|\d")
_WORD = re.compile(r"[^\W_]+(?:_[^\W_]+)*")
_TOKEN = re.compile(r"[^\s,;()\[\]{}<>\"'`|]+")
_QUOTED = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|'([^'\n]{2,})'")

Gram = tuple[str, ...]


def passages(text: str) -> Iterator[Gram]:
    """Yield every run of RUN words, in lower case, that spans three tokens; `names` covers the
    words inside one path.

    >>> list(passages("Read the file first"))
    [('read', 'the', 'file', 'first')]
    """
    words = [
        (w.lower(), index)
        for index, token in enumerate(_TOKEN.findall(text))
        for w in _WORD.findall(token)
    ]
    for i in range(len(words) - RUN + 1):
        run = words[i : i + RUN]
        if len({index for _, index in run}) >= 3:
            yield tuple(w for w, _ in run)


def names(text: str) -> Iterator[Gram]:
    """Yield every path, option and identifier (words that no plain sentence contains), and every
    tail of a path.

    >>> list(names("see src/a.py, --stat and user_id"))
    [('src/a.py',), ('a.py',), ('--stat',), ('user_id',)]
    """
    for token in _TOKEN.findall(text):
        for part in (token, *re.split(r"[=:]", token)) if re.search(r"[=:]", token) else (token,):
            bare = part.strip(":!?").rstrip(".").removeprefix("./")
            for start in (0, *(m.end() for m in re.finditer("/", bare))):
                tail = bare[start:]
                if (
                    len(tail) >= MIN_NAME
                    and _NAME_LIKE.search(tail)
                    and re.search(r"[^\W\d]", tail)
                ):
                    yield (tail,)


def quoted(text: str) -> Iterator[str]:
    """Yield the parts of a text in backticks or quotes."""
    for match in _QUOTED.finditer(text):
        yield next(g for g in match.groups() if g is not None)


def grams(texts: Iterable[str]) -> set[Gram]:
    """Collect the passages and names of some texts."""
    return {g for text in texts for g in chain(passages(text), names(text))}


def _by_rarest_word(wanted: set[Gram]) -> dict[str, list[Gram]]:
    """Index the wanted grams by the word that the fewest of them share; "" for those without a
    word, e.g. `____`.

    A text with a gram contains all its words, so a text need only be compared with the few grams
    that are indexed under one of its words.
    """
    words_of = {gram: _WORD.findall(" ".join(gram).lower()) for gram in wanted}
    num_grams = Counter(chain.from_iterable(words_of.values()))
    by_word: dict[str, list[Gram]] = {}
    for gram, gram_words in words_of.items():
        by_word.setdefault(min(gram_words, key=lambda w: num_grams[w], default=""), []).append(gram)
    return by_word


@dataclass(slots=True)
class Occurrences:
    """The turns of a session in which each wanted passage and name occurs.

    Example: Occurrences.of(session, wanted={("src/a.py",)}).turns -> {("src/a.py",): [4, 9]}
    """

    turns: dict[Gram, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, session: Session, *, wanted: set[Gram]) -> Occurrences:
        """Read every message and event of a session once and record the wanted grams."""
        occurrences = cls()
        if not wanted:
            return occurrences
        by_word = _by_rarest_word(wanted)
        for index, turn in enumerate(session.turns):
            occurrences._add(index, turn_text(turn), by_word)
        for event in session.events:
            occurrences._add(event.turn, event.text, by_word)
        return occurrences

    def _add(self, index: int, text: str, by_word: Mapping[str, Sequence[Gram]]) -> None:
        words = set(_WORD.findall(text.lower()))
        candidates = chain.from_iterable(by_word.get(word, ()) for word in ("", *words))
        possible = {g for g in candidates if (g[0] in text if len(g) == 1 else words.issuperset(g))}
        if possible:  # the exact test is slow, and most turns contain no gram of a hint
            for gram in possible.intersection(chain(passages(text), names(text))):
                self.turns.setdefault(gram, []).append(index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """The words of a hint that come from a later turn, e.g. Leak(reason="quotes_later_text",
    words="src/setup.go", turn=12)."""

    reason: str
    words: str
    turn: int


def find_leak(
    text: str, *, session: Session, site_turn: int, occurrences: Occurrences, allowed: Set[Gram]
) -> Leak | None:
    """Find the first gram of a hint that only a turn after the site contains; None if there is
    none.

    `allowed` are grams from other sources: fixed words, tool schemas, rules.
    """
    # A gram leaks if it occurs later and the hint cannot have it from an allowed source, from the
    # context or, if it is a name, from the mistaken message.
    in_view = set(session.context_indices(site_turn))
    for gram in chain(passages(text), names(text)):
        turns = occurrences.turns.get(gram, ())
        later = next((t for t in turns if t > site_turn), None)
        if later is None or gram in allowed or any(t in in_view for t in turns):
            continue
        if len(gram) == 1 and site_turn in turns:  # a hint may name things of the mistaken message
            continue
        return Leak(reason="quotes_later_text", words=" ".join(gram), turn=later)
    return None


def argument_turns(session: Session) -> dict[str, list[int]]:
    """Map each text argument of a call to the turns of these calls, e.g. {"make build": [4, 9]}."""
    turns: dict[str, list[int]] = {}
    for index, turn in enumerate(session.turns):
        for call in turn.calls:
            for value in call.arguments.values():
                if isinstance(value, str):
                    turns.setdefault(value, []).append(index)
    return turns


def find_copied_call(
    text: str, *, session: Session, site_turn: int, arguments: Mapping[str, Sequence[int]]
) -> Leak | None:
    """Find the first quoted part of a hint that is exactly an argument of a later call and occurs
    nowhere before it.

    `arguments` comes from `argument_turns`. This catches repairs that are too short for a passage
    and too plain for a name, such as `make build`.
    """
    later: list[tuple[int, str]] = []
    for value in set(quoted(text)):
        turns = arguments.get(value, ())
        after = bisect_right(turns, site_turn)
        if after < len(turns):
            later.append((turns[after], value))
    for index, value in sorted(later):
        if not any(
            value in turn_text(session.turns[i])
            for i in (site_turn, *reversed(session.context_indices(site_turn)))
        ):
            return Leak(reason="copies_later_call", words=value, turn=index)
    return None
