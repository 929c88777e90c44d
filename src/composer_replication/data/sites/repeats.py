"""Reading calls that were made again though nothing can have changed their answer, found in one
pass over a session.

Between the two there is no call that could write, no word of a human and no message of the agent
program; the first answer was not cleared from the context and is no error (a call that a parallel
sibling or a human cancelled is rightly made again); and the second answer is the same text, or the
agent's own word that nothing changed.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from composer_replication.core.trace import CallRef, Segment, Session, ToolCall
from composer_replication.data.sites.call_verdict import is_error
from composer_replication.data.sites.shell import Simple, parse, shell_command
from composer_replication.data.sites.shell_rules import word_set

# Tools that change nothing, and whose answer for the same arguments changes only if something else
# changed the files.
READ_ONLY_TOOLS = word_set(
    "Read Grep Glob LS NotebookRead read read_file grep glob find ls list_dir list_files"
    " search_files view cat"
)
READ_ONLY_PROGRAMS = word_set("""
    cat head tail ls grep egrep fgrep rg find fd wc pwd tree stat file sed awk
    sort uniq cut nl jq diff which echo od xxd hexdump tac column
""")
READ_ONLY_GIT = word_set(
    "status log diff show branch ls-files blame rev-parse remote describe grep"
)
UNCHANGED = ("File unchanged since last read", "Wasted call")
"""How newer agents answer a second, equal Read: they say so instead of sending the file again."""
Key = tuple[str, str]


@dataclass(slots=True)
class _AnsweredCalls:
    """Calls of one tool with the same arguments: the latest that is answered, and those whose
    answer is still to come."""

    latest: tuple[int, str] | None = None
    pending: list[tuple[int, int, str]] = field(default_factory=list)

    def answered_before(self, turn: int) -> str | None:
        """The id of the latest call whose answer stood in view when this turn was written."""
        while self.pending and self.pending[0][0] < turn:
            _, call_turn, call_id = heapq.heappop(self.pending)
            self.latest = (
                max(self.latest, (call_turn, call_id)) if self.latest else (call_turn, call_id)
            )
        return self.latest[1] if self.latest else None


class _RepeatFinder:
    """One session read once: the spelling of each reading call, and which messages could have
    changed an answer."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.refs = session.calls()
        self.by_turn: dict[int, list[CallRef]] = {}
        for ref in self.refs.values():
            self.by_turn.setdefault(ref.turn, []).append(ref)
        self.keys: list[list[tuple[Key, ToolCall]]] = []
        self.barriers: list[bool] = []
        self.last_barrier: list[int] = []
        for index, turn in enumerate(session.turns):
            reading = [call for call in turn.calls if only_reads(call)]
            self.keys.append([((call.name, canonical_arguments(call)), call) for call in reading])
            self.barriers.append(turn.role in ("user", "system") or len(reading) < len(turn.calls))
            self.last_barrier.append(
                index if self.barriers[-1] else self.last_barrier[-1] if index else -1
            )

    def find_in_segment(self, segment: Segment) -> Iterator[CallRef]:
        """The repeats among the calls that were written in one segment."""
        cleared = frozenset(segment.cleared)
        answered: dict[Key, _AnsweredCalls] = {}
        for index in self._carried_over(segment):
            self._add_calls(index, answered, cleared)
        for index in range(segment.start, segment.end):
            key_of_call = {
                call.id: key for key, call in self.keys[index] if call is self.refs[call.id].call
            }
            for ref in self.by_turn.get(index, ()):
                if ref.call.id in key_of_call and self._is_repeat(
                    ref, answered.get(key_of_call[ref.call.id])
                ):
                    yield ref
            if self.barriers[index]:
                answered.clear()
            else:
                self._add_calls(index, answered, cleared)

    def _carried_over(self, segment: Segment) -> list[int]:
        """Turns of an earlier segment in view after the last one that could have changed an answer,
        in order."""
        if (
            segment.start < segment.end
            and self.barriers[segment.start]
            and segment.start not in self.by_turn
        ):
            return []  # nothing before a human's word counts, and most segments open with one
        ranges: list[range] = []
        for a, b in reversed(segment.context):
            barrier = self.last_barrier[b - 1]
            ranges.append(range(max(a, barrier + 1), b))
            if barrier >= a:
                break
        return [index for indices in reversed(ranges) for index in indices]

    def _add_calls(
        self, index: int, answered: dict[Key, _AnsweredCalls], cleared: frozenset[str]
    ) -> None:
        added: set[Key] = set()
        for key, call in self.keys[index]:
            if call.id in cleared or key in added:
                continue
            added.add(key)
            result_turn = self.refs[call.id].result_turn
            if result_turn is not None:
                heapq.heappush(
                    answered.setdefault(key, _AnsweredCalls()).pending,
                    (result_turn, index, call.id),
                )

    def _is_repeat(self, ref: CallRef, answered: _AnsweredCalls | None) -> bool:
        if answered is None or ref.result is None or not ref.result.text.strip():
            return False
        earlier = self.refs.get(answered.answered_before(ref.turn) or "")
        if earlier is None or earlier.result is None or is_error(earlier.call, earlier.result):
            return False
        text = ref.result.text
        return earlier.result.text == text or text.strip().removeprefix(
            "<tool_use_error>"
        ).startswith(UNCHANGED)


def find_repeats(session: Session) -> Iterator[CallRef]:
    """The calls that repeat one in view, in order; the time grows with the number of calls, not
    with its square."""
    repeats = _RepeatFinder(session)
    for segment in session.segments:
        yield from repeats.find_in_segment(segment)


def canonical_arguments(call: ToolCall) -> str:
    """The arguments in one spelling: keys sorted, blanks trimmed, without the words that only
    describe the call.

    >>> canonical_arguments(ToolCall("c", "Bash", {"description": "list", "command": " ls "}))
    '{"command":"ls"}'
    """
    arguments = {
        k: v.strip() if isinstance(v, str) else v
        for k, v in call.arguments.items()
        if k not in ("description", "timeout")
    }
    return json.dumps(
        arguments, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str
    )


def same_call(left: ToolCall, right: ToolCall) -> bool:
    """Whether two calls ask the same of the same tool."""
    return left.name == right.name and canonical_arguments(left) == canonical_arguments(right)


def only_reads(call: ToolCall) -> bool:
    """Whether a call can change nothing: a reading tool, or a shell line of reading programs."""
    if call.name in READ_ONLY_TOOLS:
        return True
    command = shell_command(call.name, call.arguments)
    if not command or "$(" in command or "`" in command:
        return False
    parsed = parse(command)
    return bool(parsed.simple) and all(_only_reads(s) for s in parsed.simple)


def _only_reads(simple: Simple) -> bool:
    if any(r != "/dev/null" and not r.isdigit() for r in simple.redirects):
        return False
    if simple.name != "git":
        return simple.name in READ_ONLY_PROGRAMS and not {
            "-i",
            "-delete",
            "-exec",
            "--in-place",
        } & set(simple.words)
    operands = simple.operands
    return (
        bool(operands)
        and operands[0] in READ_ONLY_GIT
        and (operands[0] not in ("branch", "remote") or len(operands) == 1)
    )
