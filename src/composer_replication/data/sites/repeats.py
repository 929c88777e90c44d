"""Find reading calls that were repeated although nothing can have changed their result, in one pass
over a session.

A call is a repeat if (1) no call between the two can write, and neither the human nor the agent
program spoke; (2) the first result is still in the context and is not an error (a call that a
sibling or a human cancelled is rightly made again); and (3) the second result is the same text, or
the agent program's note that nothing has changed.
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

# Tools that change nothing, and whose result for the same arguments changes only with the files.
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
"""The reply of newer agents to a second, equal Read, instead of the file."""
Key = tuple[str, str]


@dataclass(slots=True)
class _AnsweredCalls:
    """Calls of one tool with the same arguments: the latest answered one, and a heap of those whose
    result comes later."""

    latest: tuple[int, str] | None = None
    pending: list[tuple[int, int, str]] = field(default_factory=list)

    def answered_before(self, turn: int) -> str | None:
        """The id of the latest call whose result was in view when this turn was written."""
        while self.pending and self.pending[0][0] < turn:
            _, call_turn, call_id = heapq.heappop(self.pending)
            self.latest = (
                max(self.latest, (call_turn, call_id)) if self.latest else (call_turn, call_id)
            )
        return self.latest[1] if self.latest else None


class _RepeatFinder:
    """An index over one session: the key of each reading call, and the turns that could have
    changed a result (barriers)."""

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
        """Yield the repeats among the calls of one segment."""
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
            # A call of this same turn is no earlier call: it is added after the turn is checked.
            if self.barriers[index]:
                answered.clear()
            else:
                self._add_calls(index, answered, cleared)

    def _carried_over(self, segment: Segment) -> list[int]:
        """List the turns in this segment's context after the last barrier, in order."""
        if (
            segment.start < segment.end
            and self.barriers[segment.start]
            and segment.start not in self.by_turn
        ):
            return []  # most segments open with a human's message, which is a barrier
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
    """Yield the calls that repeat one in view, in order, in time linear in the number of calls."""
    repeats = _RepeatFinder(session)
    for segment in session.segments:
        yield from repeats.find_in_segment(segment)


def canonical_arguments(call: ToolCall) -> str:
    """Serialise the arguments in canonical form: keys sorted, blanks trimmed, without `description`
    and `timeout`.

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
    """Whether two calls have the same tool and the same canonical arguments."""
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
