"""Messages that the person's next message corrects: "no, ...", "that is wrong", "I said ...".

The site is the message, since the person spoke last, that did what the correction names: a file, a
command, an identifier. If it names none, it is the last one that edited a file, else the last one,
whose claim was wrong. That the words are a correction is read from them, or from the model's answer
that admits its fault. A wish, a question and a change of mind are no corrections.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from composer_replication.core.site import Site
from composer_replication.core.trace import Session, Turn
from composer_replication.data.sites.file_lines import replacements_of
from composer_replication.data.sites.persons_words import (
    OPENING_CHARS,
    is_typed,
    remark_of,
    typed_words,
)
from composer_replication.data.sites.repeats import only_reads
from composer_replication.data.sites.verdict import quote

NAMED, LAST = "corrected_named", "corrected_last"
ADMITTED, CONCEDED, STILL = "corrected_admitted", "corrected_conceded", "corrected_still"
READER_ALONE = "reader_alone"
CONFIDENCE_BY_RULE = {
    ADMITTED: 0.7,
    NAMED: 0.6,
    LAST: 0.5,
    CONCEDED: 0.4,
    STILL: 0.3,
    READER_ALONE: 0.3,
}
"""Guessed on development sessions; how sure the site is a mistake, not that a correction is one."""
REPLY_CHARS = 400
_NAME = re.compile(r"`([^`\n]{2,80})`|(?<![\w/])((?:[\w-]+[./_])+[\w-]{2,}|[a-z]+[A-Z]\w+)")
_FILE = re.compile(r"[\w./-]+\.[A-Za-z]{1,5}")
_ADMITS = re.compile(
    r"\bmy (?:mistake|bad|error|apologies)\b|\bi apologi[sz]e\b|\b(?:real|that'?s a) regression\b"
    r"|\bi (?:also |just |simply |completely |wrongly |incorrectly |mistakenly )*(?:broke|missed|"
    r"misread|misunderst\w+|misinterpreted|misremembered|forgot|overlooked|conflated|introduced"
    r"|was (?:wrong|mistaken|framing|parroting|imprecise|incorrect)|had it backwards"
    r"|made (?:a|an|that|this) (?:\w+ )?(?:mistake|error)|got (?:it|that|this) wrong"
    r"|should(?:n'?t| not)? have|branched off|assumed)\b"
    r"|\bmein fehler\b|\bda habe ich\b.*\b(?:falsch|vergessen|übersehen)\b|\bmon erreur\b"
    r"|\bmi error\b|\bme equivoqu[eé]\b|\bmeu erro\b"
    r"|間違えました|私のミス|我(?:弄错|搞错|看错|漏)了",
    re.IGNORECASE,
)
_CONCEDES = re.compile(
    r"^\W*(?:ah,? (?:yes,? )?|yes,? |ok(?:ay)?,? )?(?:you(?:'re| are) (?:absolutely |completely |"
    r"totally |quite )?(?:right|correct)\b(?! to (?:ask|question))|good catch\b|du hast recht"
    r"|vous avez raison|tu as raison|tienes raz[oó]n|おっしゃる通り|你说得对)",
    re.IGNORECASE,
)
_STILL = re.compile(
    r"^(?:ok(?:ay)?,? |but |hm+,? |and )*"
    r"(?:(?:this|that|it|there|some|the) ?(?:\w+ )?(?:is |are |'s )?)?"
    r"still (?:not|doesn'?t|does not|isn'?t|fail\w*|broken|wrong|seems?|shows?|displaying|reporting"
    r"|getting|an issue|some|the same)\b|\b(?:is|are)(?: \w+)? still there\b"
    r"|^(?:the |this |that |it )?(?:\w+ )?(?:does not|doesn'?t|did not|didn'?t) work\b",
    re.IGNORECASE,
)


def corrections(session: Session) -> Iterator[Site]:
    """Find the messages that a person's next message corrects, in order."""
    for index, stretch in _replies(session):
        rule, reply = _rule_at(session, index)
        if rule:
            evidence = (index, reply) if reply is not None and rule in _BY_REPLY else (index,)
            yield _correction(session, stretch, rule, evidence=evidence)


def unmatched_replies(session: Session) -> Iterator[Site]:
    """The people's messages about which no rule says that they correct something, each as a
    candidate at the message that it would correct.

    Only a reader model can make a site of one. Pasted texts and reports are left out.
    """
    for index, stretch in _replies(session):
        if not _rule_at(session, index)[0] and typed_words(session.turns[index].text):
            yield _correction(session, stretch, READER_ALONE, evidence=(index,))


def _replies(session: Session) -> Iterator[tuple[int, list[int]]]:
    """The people's messages after messages of the model, with these; not those after a stop."""
    start = 0
    for index, turn in enumerate(session.turns):
        if not is_typed(turn):
            continue
        stretch = [i for i in range(start, index) if session.turns[i].role == "assistant"]
        start = index + 1
        if stretch and not _was_stopped(session, index):
            yield index, stretch


def _correction(
    session: Session, stretch: list[int], rule: str, *, evidence: tuple[int, ...]
) -> Site:
    """The site of a correction; a rule that names no message becomes `NAMED` if its words do."""
    text = session.turns[evidence[0]].text
    words = typed_words(text) or quote(text)
    is_named, message = _corrected(session, stretch, words=words)
    rule = NAMED if rule == LAST and is_named else rule
    return Site(
        session_id=session.id,
        turn=message,
        kind="user_corrected",
        detector="corrections",
        evidence=evidence,
        category="corrected",
        author=session.turns[message].author,
        detail=quote(words),
        file=session.source.file,
        repository=session.repository,
        rule=rule,
        confidence=CONFIDENCE_BY_RULE[rule],
    )


_BY_REPLY = frozenset((ADMITTED, CONCEDED))


def _rule_at(session: Session, index: int) -> tuple[str, int | None]:
    """The rule by which a person's message is a correction, and the model's answer to it."""
    reply = _reply_to(session, index)
    answer = session.turns[reply].text if reply is not None else ""
    return _rule_of(session.turns[index].text, answer), reply


def _rule_of(text: str, reply: str) -> str:
    """The rule by which a person's message is a correction; "" if it is none.

    >>> _rule_of("is it black now?", "Yes. I broke it."), _rule_of("sort it", "")
    ('corrected_admitted', '')
    """
    remark, opening = remark_of(text), reply[:REPLY_CHARS].replace("’", "'")
    stance = remark.stance if remark is not None else ""
    if stance == "pause":
        return ""
    if _ADMITS.search(opening):
        return ADMITTED
    if stance == "correction":
        return LAST
    if stance in ("wish", "instead", "prohibition") and _CONCEDES.search(opening):
        return CONCEDED
    return STILL if remark is not None and _STILL.search(remark.words[:OPENING_CHARS]) else ""


def _reply_to(session: Session, index: int) -> int | None:
    """The model's first message with text after a person's, before the person speaks again."""
    for later in range(index + 1, len(session.turns)):
        turn = session.turns[later]
        if is_typed(turn):
            return None
        if turn.role == "assistant" and turn.text.strip():
            return later
    return None


def _was_stopped(session: Session, index: int) -> bool:
    """Whether the person stopped the agent directly before: `rejections` reads those words."""
    for turn in reversed(session.turns[:index]):
        if turn.is_interrupt:
            return True
        if turn.role != "user":
            return False
    return False


def _corrected(session: Session, stretch: list[int], *, words: str) -> tuple[bool, int]:
    """The message that did what a correction names, and whether it names it.

    A file may have been changed before the person spoke last; another name counts since then only.
    """
    names = [match[1] or match[2] for match in _NAME.finditer(words)]
    files = [name for name in names if _FILE.fullmatch(name)]
    failed = {r.call_id for t in session.turns for r in t.results if r.is_error}
    changing = [
        i
        for i in range(stretch[-1] + 1)
        if any(c.id not in failed and not only_reads(c) for c in session.turns[i].calls)
    ]
    for message in reversed(changing):
        wanted = names if message >= stretch[0] else files
        if any(name in _arguments(session.turns[message]) for name in wanted):
            return True, message
    edits = [i for i in changing if any(replacements_of(call) for call in session.turns[i].calls)]
    in_stretch = edits and edits[-1] >= stretch[0]
    return False, edits[-1] if in_stretch else stretch[-1]


def _arguments(turn: Turn) -> str:
    return "\n".join(
        json.dumps(dict(call.arguments), ensure_ascii=False, default=str) for call in turn.calls
    )
