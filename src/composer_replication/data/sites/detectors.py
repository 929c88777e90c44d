"""The built-in detectors: each reads a session and yields the sites it finds, in the order of the
calls.

All of them start from `session.calls()`, which joins a result to its call by id; none relies on
adjacency, because calls run in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from composer_replication.core.site import Category, Site
from composer_replication.core.trace import CallRef, Session, ToolResult
from composer_replication.data.sites.call_verdict import is_error, judge
from composer_replication.data.sites.hindsight import with_hindsight
from composer_replication.data.sites.repeats import canonical_arguments, find_repeats
from composer_replication.data.sites.shell import parse, shell_command
from composer_replication.data.sites.shell_errors import failing_lines, malformed, split_exit_code
from composer_replication.data.sites.verdict import Verdict, quote

Detector = Callable[[Session], Iterable[Site]]

# Failures that are not the model's; `failed_check` and `benign` have a detector of their own.
CHECK_CATEGORIES: frozenset[Category] = frozenset(("failed_check", "benign"))


def make_site(
    session: Session, ref: CallRef, verdict: Verdict, *, detector: str, evidence: int
) -> Site:
    """Make a site at the message that holds the call."""
    return Site(
        session_id=session.id,
        turn=ref.turn,
        kind=verdict.kind,
        detector=detector,
        evidence=(evidence,),
        category=verdict.category,
        call_id=ref.call.id,
        tool=ref.call.name,
        author=session.turns[ref.turn].author,
        detail=verdict.detail,
        flagged=ref.result is not None and ref.result.is_error is True,
        file=session.source.file,
        repository=session.repository,
    )


def answered_calls(session: Session) -> Iterator[tuple[CallRef, ToolResult, int]]:
    """Yield every call with its result and the result's turn, joined by call id; `find_sites` drops
    the copies from other sessions.

    A result before its call, or in the same message, is a damage of the log: it says nothing about
    the call and is left out.
    """
    for ref in session.calls().values():
        if ref.result is not None and ref.result_turn is not None and ref.result_turn > ref.turn:
            yield ref, ref.result, ref.result_turn


def tool_error(session: Session) -> Iterator[Site]:
    """Find calls whose result is an error, with the verdict on whose fault it is; failed checks are
    left to `failed_check`."""
    for ref, result, turn in answered_calls(session):
        if is_error(ref.call, result):
            verdict = with_hindsight(session, ref, judge(ref.call, result))
            if verdict.category not in CHECK_CATEGORIES:
                yield make_site(session, ref, verdict, detector="tool_error", evidence=turn)


def failed_check(session: Session) -> Iterator[Site]:
    """Find correct calls whose command reports failure, flagged or only printed, and edits that the
    user's hook refused.

    A hook that runs after an edit (type check, lint) judges the code, like a red test: the edit was
    carried out, and half of a larger change is expected to fail it. So it is a failed check and not
    a mistake.
    """
    for ref, result, turn in answered_calls(session):
        verdict: Verdict | None = None
        if is_error(ref.call, result):
            verdict = with_hindsight(session, ref, judge(ref.call, result))
        else:
            command = shell_command(ref.call.name, ref.call.arguments)
            verdict = failing_lines(parse(command), result.text) if command else None
        if verdict is not None and verdict.category in CHECK_CATEGORIES:
            yield make_site(session, ref, verdict, detector="failed_check", evidence=turn)
    yield from _hook_blocks(session)


def _hook_blocks(session: Session) -> Iterator[Site]:
    calls = session.calls()
    for event in session.events:
        ref = calls.get(event.call_id) if event.kind == "hook_blocked" and event.call_id else None
        if ref is None:
            continue
        evidence = (
            ref.result_turn
            if ref.result_turn is not None
            else min(event.turn, len(session.turns) - 1)
        )
        if evidence > ref.turn:
            verdict = Verdict(
                category="failed_check", kind="hook_blocked", detail=quote(event.text)
            )
            yield make_site(session, ref, verdict, detector="failed_check", evidence=evidence)


def hidden_error(session: Session) -> Iterator[Site]:
    """Find malformed shell calls that the log does not flag because the last command ended with
    exit 0, e.g. `foo | head` without a program foo."""
    for ref, result, turn in answered_calls(session):
        command = shell_command(ref.call.name, ref.call.arguments)
        if command is None or is_error(ref.call, result):
            continue
        verdict = malformed(parse(command), split_exit_code(result.text)[1], hidden=True)
        if verdict is not None:
            yield make_site(
                session,
                ref,
                with_hindsight(session, ref, verdict),
                detector="hidden_error",
                evidence=turn,
            )


def find_repeated_calls(session: Session) -> Iterator[Site]:
    """Find reading calls made again with equal arguments while the first result is in view and
    nothing can have changed it; `data/sites/repeats.py` defines a repeat."""
    answered = {ref.call.id: turn for ref, _, turn in answered_calls(session)}
    for ref in find_repeats(session):
        if ref.call.id in answered:
            verdict = Verdict(
                category="mistake",
                kind="repeated_call",
                detail=quote(f"{ref.call.name} {canonical_arguments(ref.call)}"),
            )
            yield make_site(
                session, ref, verdict, detector="repeated_call", evidence=answered[ref.call.id]
            )
