"""Hints made of what a person typed about a message: cleaned, in the third person, shortened.

What was typed stands after the mistake, so it is hindsight ("later:person"). It may say what was
wrong and what the person wanted. Where a later call then does what it says, it gives the answer
away: such a hint is marked ("later:answer"), and left out unless `hints.no_answers` is false.
"""

from __future__ import annotations

import posixpath
import re

from composer_replication.core.trace import Session
from composer_replication.data.hints.context import SiteContext, json_scalars
from composer_replication.data.hints.leak import Occurrences, names, passages
from composer_replication.data.hints.templates import fill
from composer_replication.data.sites.file_lines import path_in_call
from composer_replication.data.sites.persons_words import (
    spoken_in_result,
    typed_words,
    words_beside_undo,
)
from composer_replication.data.sites.taken_back import made_again

PERSON, ANSWER = "later:person", "later:answer"
MAX_WORDS = 40
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+")
_LEAD_IN = re.compile(
    r"^(?:(?:oh|ah|ok(?:ay)?|hm+|um+|uh|huh|lol|no|nope|yeah|well|hey|please|pls)\b[,.!:… ]+)+",
    re.IGNORECASE,
)
_THIRD_PERSON: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(rf"\b{first}\b", re.IGNORECASE), third)
    for first, third in (
        (r"i'?m", "the user is"),
        (r"i am", "the user is"),
        (r"i was", "the user was"),
        (r"i'd", "the user would"),
        (r"i've", "the user has"),
        (r"i'll", "the user will"),
        (r"i have", "the user has"),
        (r"i (?:do not|don't)", "the user does not"),
        (r"i (want|need|think|prefer|like|mean|expect|see)", r"the user \1s"),
        (r"i(?! ?[.)/])", "the user"),
        (r"my", "the user's"),
        (r"me", "the user"),
    )
)


def persons_words(context: SiteContext) -> str | None:
    """Tell what the person said about this message; None if they typed nothing that can be used."""
    words = third_person(typed_words(words_at(context)))
    return fill("persons_words", words=words) if len(words.split()) > 1 or len(words) > 8 else None


def taken_back_words(context: SiteContext) -> str | None:
    """Tell that an edit was taken back and what the person said of it; None where nobody said why,
    or where the same lines were written again later: then the undo does not speak against them."""
    reason = third_person(words_beside_undo(words_at(context)))
    if len(reason.split()) < 2 or made_again(context.session, context.site):
        return None
    return taken_back_later(context)


def taken_back_later(context: SiteContext) -> str | None:
    """Tell that an edit was taken back, and why if a person said it; None without words or file."""
    words = third_person(typed_words(words_at(context)))
    if len(words.split()) > 1:
        # without the file's name: one that was wrong would get likelier by standing there
        return fill("taken_back_words", words=words)
    name = posixpath.basename(path_in_call(context.call)) if context.call else ""
    return fill("taken_back", name=name) if name else None


def words_at(context: SiteContext) -> str:
    """The words of the person at a site: their message in the evidence, else those in the result of
    the call; "" if there are none."""
    for index in reversed(context.site.evidence):
        turn = context.session.turns[index]
        if turn.role == "user" and not turn.is_interrupt:
            return turn.text
    return spoken_in_result(context.evidence.text) if context.evidence is not None else ""


def third_person(text: str) -> str:
    """The first sentences of a text in the third person, at most `MAX_WORDS` words; "you" stays,
    because a hint speaks to the model as well.

    >>> third_person("no, I said you should use make. Thanks!")
    'the user said you should use make. Thanks!'
    """
    text = _LEAD_IN.sub("", text.replace("’", "'").strip())
    for first, third in _THIRD_PERSON:
        text = first.sub(third, text)
    kept: list[str] = []
    for sentence in _SENTENCE.split(text):
        if kept and sum(len(s.split()) for s in (*kept, sentence)) > MAX_WORDS:
            break
        kept.append(sentence.strip())
    return " ".join(" ".join(kept).split()[:MAX_WORDS])


def answer_in_words(
    text: str, *, session: Session, site_turn: int, occurrences: Occurrences
) -> tuple[str, int] | None:
    """The first words of a hint that a later call uses and nothing before it in view held, and its
    turn; None if there are none. Names of the mistaken message are not the answer."""
    in_view = set(session.context_indices(site_turn))
    for gram in (*passages(text), *names(text)):
        turns = occurrences.turns.get(gram, ())
        if site_turn in turns or any(turn in in_view for turn in turns):
            continue
        for turn in turns:
            message = session.turns[turn]
            if turn > site_turn and message.role == "assistant":
                arguments = "\n".join(a for c in message.calls for a in json_scalars(c.arguments))
                if gram in {*passages(arguments), *names(arguments)}:
                    return " ".join(gram), turn
    return None
