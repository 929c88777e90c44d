"""The action of a message in canonical form, and how similar two actions are.

    canonical_action(turn, comparison)    # the action itself: equal if and only if both do the same
    tool_targets(turn, comparison)        # which tool on which target: ("edit", "a.py")
    intents(turn)                         # the purpose: {"read"}, {"run_test"}

These are three of the tiers of agreement, from strict to loose; a judge is the fourth (agree.py).
Parallel calls are compared as sets. If the context shows the file, an edit is compared by the
file's text after it: an edit of one line, an edit of the whole function and a new file with the
same text are then one action. Nothing is repaired: a tool name that is not on offer stays as it was
written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from composer_replication.core.trace import Session, ToolCall, Turn
from composer_replication.data.replay.agent_tools import PATHS, change_of, kind_of, path_of
from composer_replication.data.replay.viewed_files import (
    apply_change,
    files_in_view,
    resulting_change,
)
from composer_replication.data.sites.shell import parse, shell_command

NO_TOOL = ""
"""The tool name of a message that makes no call."""
Intent = str
"""read, search, list, edit, run_test, run, ask, finish, delegate, plan or other."""

_INTENT_OF: Mapping[str, Intent] = {
    "shell": "run",
    "write": "edit",
    "test": "run_test",
    "web": "search",
    **{kind: kind for kind in ("read", "edit", "search", "list", "ask", "plan", "delegate")},
}
_INTERCHANGEABLE_KINDS = frozenset(("shell",))
"""Kinds whose tools are the same under every name. Reading tools are not: another one may show
pages or line numbers."""
_COSMETIC = frozenset(("description", "timeout", "timeout_ms", "explanation"))
_TEST_PROGRAMS = frozenset(
    (
        "pytest",
        "tox",
        "nox",
        "jest",
        "vitest",
        "mocha",
        "rspec",
        "phpunit",
        "ctest",
        "unittest",
        "playwright",
    )
)
_TEST_WORDS = frozenset(("test", "tests", "check"))
_SEARCH_PROGRAMS = frozenset(("grep", "egrep", "fgrep", "rg", "find", "fd", "ag"))
_READ_PROGRAMS = frozenset(("cat", "head", "tail", "less", "sed", "awk", "nl", "bat", "jq"))
_LIST_PROGRAMS = frozenset(("ls", "tree", "pwd", "du", "stat", "wc"))
_QUOTED_OR_BLANK = re.compile(r"('[^']*'|\"(?:\\.|[^\"\\])*\")|[ \t]+")


@dataclass(frozen=True, slots=True)
class MessageAction:
    """The action of a message: its calls as a sorted set, or its text if it makes none.

    Examples: MessageAction((("read_file", '{"path":"a.py"}'),)), MessageAction((("", "Done."),))
    """

    parts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonContext:
    """The facts about a turn that a comparison uses: working folder, tools on offer, files in view.

    Example: ComparisonContext(cwd="/repo", offered=frozenset({"Read"}), files={"a.py": "x = 1\\n"})
    """

    cwd: str = ""
    offered: frozenset[str] = frozenset()
    files: Mapping[str, str] = field(default_factory=dict)


NO_CONTEXT = ComparisonContext()


def comparison_context(session: Session, turn: int) -> ComparisonContext:
    """Return a turn's comparison context: its session's folder and tools, and the files in view."""
    files = files_in_view(
        session.context(turn), relative=lambda path: relative_path(path, cwd=session.cwd)
    )
    return ComparisonContext(
        cwd=session.cwd, offered=frozenset(tool.name for tool in session.tools), files=files
    )


def canonical_action(turn: Turn, comparison: ComparisonContext = NO_CONTEXT) -> MessageAction:
    """Return the action of a message, so that two messages that do the same compare equal.

    The order of calls and of arguments, blanks, and text beside calls do not count.

    >>> from composer_replication.core.trace import Text
    >>> call = ToolCall("c", "edit", {"old": "1", "new": "2"})
    >>> first = Turn(role="assistant", author="a", blocks=(Text("I look."), call))
    >>> call = ToolCall("x", "edit", {"new": "2", "old": "1"})
    >>> second = Turn(role="assistant", author="b", blocks=(call,))
    >>> canonical_action(first) == canonical_action(second)
    True
    """
    if not turn.calls:
        words = " ".join(turn.text.split())
        return MessageAction(((NO_TOOL, words),) if words else ())
    parts: set[tuple[str, str]] = set()
    text_after: dict[str, str] = {}
    for call in turn.calls:
        path = changed_path(call, comparison)
        text = (
            apply_change(text_after.get(path, comparison.files[path]), change_of(call))
            if path in comparison.files
            else None
        )
        if text is not None and _is_on_offer(call, comparison):
            text_after[path] = text
        else:
            parts.add(_canonical_call(call, comparison))
    parts |= {
        (_kind_label("edit"), _dumps([path, *resulting_change(comparison.files[path], text)]))
        for path, text in text_after.items()
    }
    return MessageAction(tuple(sorted(parts)))


def tool_targets(
    turn: Turn, comparison: ComparisonContext = NO_CONTEXT
) -> frozenset[tuple[str, str]]:
    """Return (kind of tool, target) per call; a target is a file, or a program and its operands.

    >>> call = ToolCall("c", "Bash", {"command": "pytest -x tests/a.py"})
    >>> sorted(tool_targets(Turn(role="assistant", author="a", blocks=(call,))))
    [(':shell:', 'pytest tests/a.py')]
    """
    if not turn.calls:
        return frozenset({(NO_TOOL, "")}) if turn.text.strip() else frozenset()
    return frozenset(_call_target(call, comparison) for call in turn.calls)


def intents(turn: Turn, comparison: ComparisonContext = NO_CONTEXT) -> frozenset[Intent]:
    """Return the purpose of each call; without calls "ask" if the text ends with "?", or "finish".

    >>> call = ToolCall("c", "Bash", {"command": "cd x && grep -n foo a.py"})
    >>> sorted(intents(Turn(role="assistant", author="a", blocks=(call,))))
    ['search']
    """
    if not turn.calls:
        words = turn.text.strip()
        return frozenset({"ask" if words.endswith("?") else "finish"}) if words else frozenset()
    return frozenset(_intent(call, comparison) for call in turn.calls)


def relative_path(path: str, *, cwd: str) -> str:
    """Return a path relative to the session's folder, if it lies inside.

    >>> relative_path("/repo/./a.py", cwd="/repo")
    'a.py'
    """
    path = path.replace("/./", "/").removeprefix("./")
    return (
        path[len(cwd.rstrip("/")) + 1 :] if cwd and path.startswith(cwd.rstrip("/") + "/") else path
    )


def changed_path(call: ToolCall, comparison: ComparisonContext) -> str:
    """Return the file that a call would change, relative to the session's folder; "" if unknown."""
    return _target_path(call.arguments, comparison) if change_of(call) else ""


def _kind_label(kind: str) -> str:
    """Return a kind of tool in a form that no tool name has."""
    return f":{kind}:"


def _is_on_offer(call: ToolCall, comparison: ComparisonContext) -> bool:
    return not comparison.offered or call.name in comparison.offered


def _canonical_call(call: ToolCall, comparison: ComparisonContext) -> tuple[str, str]:
    """Return a call in canonical form: one name for all shells, relative paths, bare command."""
    kind = kind_of(call.name) if _is_on_offer(call, comparison) else ""
    name = _kind_label(kind) if kind in _INTERCHANGEABLE_KINDS else call.name
    command = shell_command(call.name, call.arguments) if kind == "shell" else None
    if command is not None:
        other_arguments = {
            k: v
            for k, v in call.arguments.items()
            if k not in _COSMETIC and k not in ("command", "cmd", "script")
        }
        return name, _dumps(
            {"command": _canonical_command(command, comparison.cwd), **other_arguments}
        )
    if not comparison.cwd:
        return name, _dumps(call.arguments)
    paths = {
        k: relative_path(v, cwd=comparison.cwd)
        for k, v in call.arguments.items()
        if k in PATHS and isinstance(v, str)
    }
    return name, _dumps({**call.arguments, **paths})


def _canonical_command(command: str, cwd: str) -> str:
    """Return a command with single blanks, and without `cd` to the folder it runs in anyway."""
    command = command.strip()
    if "<<" not in command:
        command = _QUOTED_OR_BLANK.sub(lambda match: match[1] or " ", command)
    if cwd:
        folder = cwd.rstrip("/")
        for quote in ("", '"', "'"):
            command = command.removeprefix(f"cd {quote}{folder}{quote} && ")
            command = command.replace(f"git -C {quote}{folder}{quote} ", "git ")
        command = command.replace(f"{folder}/", "")
    return command


def _target_path(arguments: Mapping[str, Any], comparison: ComparisonContext) -> str:
    return relative_path(path_of(arguments), cwd=comparison.cwd)


def _call_target(call: ToolCall, comparison: ComparisonContext) -> tuple[str, str]:
    kind = kind_of(call.name) if _is_on_offer(call, comparison) else ""
    kind = "edit" if kind == "write" else kind
    name = _kind_label(kind) if kind else call.name
    command = shell_command(call.name, call.arguments) if kind == "shell" else None
    if command is not None:
        commands = [
            s for s in parse(_canonical_command(command, comparison.cwd)).simple if s.name != "cd"
        ]
        return name, " ; ".join(" ".join((s.name, *s.operands)) for s in commands[:8])
    path = _target_path(call.arguments, comparison)
    return name, path or _dumps({k: v for k, v in call.arguments.items() if k not in _COSMETIC})


def _intent(call: ToolCall, comparison: ComparisonContext) -> Intent:
    kind = kind_of(call.name) if _is_on_offer(call, comparison) else ""
    command = shell_command(call.name, call.arguments) if kind == "shell" else None
    if command is None:
        return _INTENT_OF.get(kind, "other")
    purposes = {
        _program_intent(s.name, s.words)
        for s in parse(command).simple
        if s.name not in ("cd", "echo", "export", "true")
    }
    return next(
        (intent for intent in ("run_test", "run", "search", "read", "list") if intent in purposes),
        "run",
    )


def _program_intent(name: str, words: Iterable[str]) -> Intent:
    words = tuple(words)
    if name in _TEST_PROGRAMS or (
        words and (words[0] in _TEST_WORDS or any(w in _TEST_PROGRAMS for w in words[:2]))
    ):
        return "run_test"
    for programs, intent in (
        (_SEARCH_PROGRAMS, "search"),
        (_READ_PROGRAMS, "read"),
        (_LIST_PROGRAMS, "list"),
    ):
        if name in programs:
            return intent
    return "run"


def _dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
