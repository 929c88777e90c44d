"""The built-in detectors: each reads a session and yields the sites it finds, in the order of the calls.

All of them start from `session.calls()`, which joins a result to its call by id; none looks at what stands next to what.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

from composer_replication.core.site import Category, Site
from composer_replication.core.trace import CallRef, Session, ToolCall, ToolResult
from composer_replication.data.sites.judge import is_error, judge
from composer_replication.data.sites.shell import Simple, parse, shell_command
from composer_replication.data.sites.shell_errors import failing_lines, malformed, split_exit_code
from composer_replication.data.sites.shell_rules import word_set
from composer_replication.data.sites.verdict import Verdict, quote

Detector = Callable[[Session], Iterable[Site]]

# Tools that change nothing, and whose answer for the same arguments changes only if something else changed the files.
READ_ONLY_TOOLS = word_set("Read Grep Glob LS NotebookRead read read_file grep glob find ls list_dir list_files search_files view cat")
READ_ONLY_PROGRAMS = word_set(
    "cat head tail ls grep egrep fgrep rg find fd wc pwd tree stat file sed awk sort uniq cut nl jq diff which echo"
)
READ_ONLY_GIT = word_set("status log diff show branch ls-files blame rev-parse remote describe grep")
UNCHANGED = ("File unchanged since last read", "Wasted call")
"""How newer agents answer a second, equal Read: they say so instead of sending the file again."""
# Failures that are not the model's; `failed_check` and `benign` have a detector of their own.
APART: frozenset[Category] = frozenset(("failed_check", "benign"))


def make_site(session: Session, ref: CallRef, verdict: Verdict, *, detector: str, evidence: int) -> Site:
    """A site at the message that holds the call, with everything a reader needs to find it again."""
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
    """Every call with its result and the result's turn, joined by call id; `find_sites` drops what was copied from another session."""
    for ref in session.calls().values():
        if ref.result is not None and ref.result_turn is not None:
            yield ref, ref.result, ref.result_turn


def tool_error(session: Session) -> Iterator[Site]:
    """Calls whose result is an error, with the verdict on whose fault it is; failed checks are left to `failed_check`."""
    for ref, result, turn in answered_calls(session):
        if is_error(ref.call, result):
            verdict = judge(ref.call, result)
            if verdict.category not in APART:
                yield make_site(session, ref, verdict, detector="tool_error", evidence=turn)


def failed_check(session: Session) -> Iterator[Site]:
    """Correct calls whose command reports failure, flagged or printed with exit 0, and edits that the user's own hook refused.

    A hook that ran after an edit (type check, lint) speaks about the code, like a red test: the call itself was carried
    out, and half of a larger change is expected to fail it. So it stands here and not among the mistakes.
    """
    for ref, result, turn in answered_calls(session):
        verdict: Verdict | None = None
        if is_error(ref.call, result):
            verdict = judge(ref.call, result)
        else:
            command = shell_command(ref.call.name, ref.call.arguments)
            verdict = failing_lines(parse(command), result.text) if command else None
        if verdict is not None and verdict.category in APART:
            yield make_site(session, ref, verdict, detector="failed_check", evidence=turn)
    yield from _hook_blocks(session)


def _hook_blocks(session: Session) -> Iterator[Site]:
    calls = session.calls()
    for event in session.events:
        ref = calls.get(event.call_id) if event.kind == "hook_blocked" and event.call_id else None
        if ref is None:
            continue
        evidence = ref.result_turn if ref.result_turn is not None else min(event.turn, len(session.turns) - 1)
        if evidence > ref.turn:
            verdict = Verdict(category="failed_check", kind="hook_blocked", detail=quote(event.text))
            yield make_site(session, ref, verdict, detector="failed_check", evidence=evidence)


def hidden_error(session: Session) -> Iterator[Site]:
    """Malformed shell calls whose last command ended with exit 0, so that the log flags nothing, e.g. `foo | head` without foo."""
    for ref, result, turn in answered_calls(session):
        command = shell_command(ref.call.name, ref.call.arguments)
        if command is None or is_error(ref.call, result):
            continue
        verdict = malformed(parse(command), split_exit_code(result.text)[1], hidden=True)
        if verdict is not None:
            yield make_site(session, ref, verdict, detector="hidden_error", evidence=turn)


def repeated_call(session: Session) -> Iterator[Site]:
    """Reading calls made again with equal arguments while the first answer is in view and nothing can have changed it.

    Between the two there is no call that could write, no word of a human and no message of the agent program; the first
    answer was not cleared from the context and is no error (a call that a parallel sibling or a human cancelled is rightly
    made again); and the second answer is the same text, or the agent's own word that nothing changed.
    """
    refs = session.calls()
    order = {call_id: i for i, call_id in enumerate(refs)}
    for ref, result, turn in answered_calls(session):
        if not _only_reads(ref.call) or not result.text.strip():
            continue
        segment = session.segment_of(ref.turn)
        for index in reversed(session.context_indices(ref.turn)):
            earlier_turn = session.turns[index]
            if earlier_turn.role in ("user", "system") or any(not _only_reads(c) for c in earlier_turn.calls):
                break
            again = [c for c in earlier_turn.calls if c.id not in segment.cleared and same_call(c, ref.call)]
            earlier = next((refs[c.id] for c in again if order[c.id] < order[ref.call.id]), None)
            if earlier is None or earlier.result is None or earlier.result_turn is None or earlier.result_turn >= ref.turn:
                continue
            if is_error(earlier.call, earlier.result):
                break
            if earlier.result.text == result.text or result.text.strip().removeprefix("<tool_use_error>").startswith(UNCHANGED):
                verdict = Verdict(category="mistake", kind="repeated_call", detail=quote(f"{ref.call.name} {canonical(ref.call)}"))
                yield make_site(session, ref, verdict, detector="repeated_call", evidence=turn)
            break


def canonical(call: ToolCall) -> str:
    """The arguments in one spelling: keys sorted, blanks trimmed, without the words that only describe the call.

    >>> canonical(ToolCall("c", "Bash", {"description": "list", "command": " ls "}))
    '{"command":"ls"}'
    """
    kept = {k: v.strip() if isinstance(v, str) else v for k, v in call.arguments.items() if k not in ("description", "timeout")}
    return json.dumps(kept, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


def same_call(one: ToolCall, other: ToolCall) -> bool:
    """Whether two calls ask the same of the same tool."""
    return one.name == other.name and canonical(one) == canonical(other)


def _only_reads(call: ToolCall) -> bool:
    if call.name in READ_ONLY_TOOLS:
        return True
    command = shell_command(call.name, call.arguments)
    if not command or "$(" in command or "`" in command:
        return False
    parsed = parse(command)
    return bool(parsed.simple) and all(_reads(s) for s in parsed.simple)


def _reads(simple: Simple) -> bool:
    if any(r != "/dev/null" and not r.isdigit() for r in simple.redirects):
        return False
    if simple.name != "git":
        return simple.name in READ_ONLY_PROGRAMS and not {"-i", "-delete", "-exec", "--in-place"} & set(simple.words)
    rest = simple.operands
    return bool(rest) and rest[0] in READ_ONLY_GIT and (rest[0] not in ("branch", "remote") or len(rest) == 1)
