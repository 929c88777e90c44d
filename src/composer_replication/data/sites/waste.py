"""Calls that could bring nothing new, with their cost in tokens: waste, and no mistake.

A reading or search is waste if its equal stands in view with the same result, no person spoke and
no message edited its file in between, and no edit of that file follows that had to read it first.
Other files may have changed: `repeats.py` asks for less, and its repeats are mistakes. A command is
waste if it ran into its time limit before. A detour is a run of failed calls of one program that
the model gives up.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from composer_replication.core.site import Site
from composer_replication.core.trace import CallRef, Session
from composer_replication.data.sites.call_verdict import is_error
from composer_replication.data.sites.detectors import make_site
from composer_replication.data.sites.file_lines import (
    calls_in_order,
    path_in_call,
    replacements_of,
)
from composer_replication.data.sites.repeats import READ_ONLY_TOOLS, canonical_arguments
from composer_replication.data.sites.shell import parse, shell_command
from composer_replication.data.sites.verdict import Verdict, quote

REREAD, PART = "wasted_reread", "wasted_part"
TIMEOUT, DETOUR = "wasted_timeout", "wasted_detour"
CONFIDENCE_OF_WASTE = {REREAD: 0.5, PART: 0.4, TIMEOUT: 0.7, DETOUR: 0.4}
"""Guessed on development sessions."""
CHARS_PER_TOKEN = 4
NEXT_CALLS = 3
"""An edit among so many calls after a reading may have needed it."""
MIN_FAILURES = 3
MIN_LINES = 5
_NUMBERED = re.compile(r"^ *(\d+)(?:→|\t)(.*)$", re.MULTILINE)
_TIMED_OUT = re.compile(r"\b(?:timed out after|Command timed out|exceeded the time limit)\b")
_GIVES_UP = re.compile(
    r"\b(?:different|another|simpler|new) approach\b|\bstep back\b|\bisn'?t working\b"
    r"|\blet me try (?:something else|another way)\b|\binstead of fighting\b|\bgive up\b",
    re.IGNORECASE,
)


def waste(session: Session) -> Iterator[Site]:
    """Find the calls that could bring nothing new, in the order of their results."""
    refs = list(calls_in_order(session))
    people = [i for i, turn in enumerate(session.turns) if turn.role in ("user", "system")]
    earlier: dict[tuple[str, str], CallRef] = {}
    timed_out: set[tuple[str, str]] = set()
    shown = _ShownReads(session)
    for position, ref in enumerate(refs):
        assert ref.result is not None
        key = (ref.call.name, canonical_arguments(ref.call))
        first, is_part = earlier.get(key), shown.follow(ref)
        is_equal = first is not None and _is_reread(session, first, ref, people=people)
        needed = _edits_next(refs[position + 1 : position + 1 + NEXT_CALLS], ref)
        if (is_equal or is_part) and not needed:
            yield _wasted(session, ref, REREAD if is_equal else PART)
        if _TIMED_OUT.search(ref.result.text[:2000]) and is_error(ref.call, ref.result):
            if key in timed_out:
                yield _wasted(session, ref, TIMEOUT)
            timed_out.add(key)
        earlier[key] = ref
    yield from _detours(session, refs)


class _ShownReads:
    """The numbered lines of files that readings showed since a person spoke, a segment began or an
    edit changed the file."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lines: dict[str, set[tuple[str, str]]] = {}
        self.turn = 0

    def follow(self, ref: CallRef) -> bool:
        """Take over a call; whether it reads only lines that readings before its message showed."""
        assert ref.result is not None
        between = self.session.turns[self.turn : ref.turn]
        same_segment = self.session.segment_of(self.turn) is self.session.segment_of(ref.turn)
        if not same_segment or any(turn.role in ("user", "system") for turn in between):
            self.lines.clear()
        is_parallel = ref.turn <= self.turn
        self.turn = max(self.turn, ref.turn)
        path = path_in_call(ref.call)
        if replacements_of(ref.call) or shell_command(ref.call.name, ref.call.arguments):
            if replacements_of(ref.call):
                self.lines.pop(path, None)
            return False
        new = set(_NUMBERED.findall(ref.result.text))
        known = self.lines.setdefault(path, set())
        is_part = len(new) >= MIN_LINES and new <= known and not is_parallel
        known |= new
        return is_part


def _is_reread(session: Session, first: CallRef, again: CallRef, *, people: list[int]) -> bool:
    """Whether a call reads again what stands in view with the same result."""
    assert first.result is not None and again.result is not None
    if (
        again.call.name not in READ_ONLY_TOOLS
        or (first.result_turn or 0) >= again.turn
        or not again.result.text.strip()
        or first.result.text != again.result.text
        or is_error(again.call, again.result)
    ):
        return False
    in_view = set(session.context_indices(again.turn))
    cleared = session.segment_of(again.turn).cleared
    if first.result_turn not in in_view or first.call.id in cleared:
        return False
    if any(first.turn < index < again.turn for index in people):
        return False
    path = path_in_call(again.call)
    return not any(
        replacements_of(call) and (not path or path_in_call(call) == path)
        for turn in session.turns[first.turn : again.turn]
        for call in turn.calls
    )


def _edits_next(refs: list[CallRef], reading: CallRef) -> bool:
    path = path_in_call(reading.call)
    return any(replacements_of(ref.call) and path_in_call(ref.call) == path for ref in refs)


def _detours(session: Session, refs: list[CallRef]) -> Iterator[Site]:
    """Find runs of failed calls of one program after which the model goes another way."""
    run: list[CallRef] = []
    for ref in refs:
        assert ref.result is not None
        program = _program(ref)
        failed = is_error(ref.call, ref.result) and bool(program)
        gives_up = bool(_GIVES_UP.search(session.turns[ref.turn].text))
        if len(run) >= MIN_FAILURES and gives_up and ref.turn > run[-1].turn:
            cost = sum(_tokens(each) for each in run)
            yield dataclasses.replace(_wasted(session, run[1], DETOUR), call_id=None, cost=cost)
            run = []
        if not failed or (run and program != _program(run[0])):
            run = []
        if failed:
            run.append(ref)


def _program(ref: CallRef) -> str:
    command = shell_command(ref.call.name, ref.call.arguments)
    names = [s.name for s in parse(command).simple if s.name != "cd"] if command else []
    return names[0] if names else ""


def _tokens(ref: CallRef) -> int:
    text = ref.result.text if ref.result is not None else ""
    return (len(canonical_arguments(ref.call)) + len(text)) // CHARS_PER_TOKEN


def _wasted(session: Session, ref: CallRef, rule: str) -> Site:
    assert ref.result_turn is not None
    detail = quote(f"{ref.call.name} {canonical_arguments(ref.call)}")
    verdict = Verdict(category="wasted", kind="wasted_call", detail=detail)
    site = make_site(session, ref, verdict, detector="waste", evidence=ref.result_turn)
    confidence = CONFIDENCE_OF_WASTE[rule]
    return dataclasses.replace(site, rule=rule, confidence=confidence, cost=_tokens(ref))
