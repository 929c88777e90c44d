"""What a message does, in one spelling, and how like another message's action that is.

    canonical_action(turn, scene)         # the action itself: equal exactly where the same would be done
    aims(turn, scene)              # which tool on which target: ("edit", "a.py")
    intents(turn)                  # what for: {"read"}, {"run_test"}

The three are the tiers of agreement, from strict to loose; a judge is the fourth (agree.py).
Parallel calls are compared as sets. An edit counts by what the file would read afterwards where the
context shows the file, so an edit of one line, an edit of the whole function and a new file with
the same text are one action. Nothing is repaired: a name that is not on offer stays the name that
was said.
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
"""Stands for the name of a tool where a message makes no call."""
Intent = str
"""read, search, list, edit, run_test, run, ask, finish, delegate, plan or other."""

_INTENT_OF: Mapping[str, Intent] = {
    "shell": "run",
    "write": "edit",
    "test": "run_test",
    "web": "search",
    **{kind: kind for kind in ("read", "edit", "search", "list", "ask", "plan", "delegate")},
}
_ONE_TOOL = frozenset(("shell",))
"""Kinds whose tools do the same under every name; a reader of another name may read otherwise
(pages, line numbers)."""
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
    """What a message does: its calls as a sorted set, or its words where it makes none.

    Example: MessageAction((("read_file", '{"path":"a.py"}'),)), MessageAction((("", "Done."),))
    """

    parts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonContext:
    """What a comparison may know of the place where a message stands: the folder, the tools on
    offer, the files that are in view.

    Example: ComparisonContext(cwd="/repo", offered=frozenset({"Read", "Bash"}), files={"a.py": "x =
    1\\n"})
    """

    cwd: str = ""
    offered: frozenset[str] = frozenset()
    files: Mapping[str, str] = field(default_factory=dict)


NO_CONTEXT = ComparisonContext()


def comparison_context(session: Session, turn: int) -> ComparisonContext:
    """The scene of one turn: its session's folder and tools, and the files as its context shows
    them."""
    files = files_in_view(
        session.context(turn), relative=lambda path: relative_path(path, cwd=session.cwd)
    )
    return ComparisonContext(
        cwd=session.cwd, offered=frozenset(tool.name for tool in session.tools), files=files
    )


def canonical_action(turn: Turn, scene: ComparisonContext = NO_CONTEXT) -> MessageAction:
    """What a message does, so that equal actions are equal: order of calls and of arguments, spaces
    and words beside calls do not count.

    >>> from composer_replication.core.trace import Text
    >>> one = Turn(role="assistant", author="a", blocks=(Text("I look."), ToolCall("c1", "edit", {"old": "1", "new": "2"})))
    >>> two = Turn(role="assistant", author="b", blocks=(ToolCall("x", "edit", {"new": "2", "old": "1"}),))
    >>> canonical_action(one) == canonical_action(two)
    True
    """
    if not turn.calls:
        words = " ".join(turn.text.split())
        return MessageAction(((NO_TOOL, words),) if words else ())
    parts: set[tuple[str, str]] = set()
    after: dict[str, str] = {}
    for call in turn.calls:
        path = changed_path(call, scene)
        text = (
            apply_change(after.get(path, scene.files[path]), change_of(call))
            if path in scene.files
            else None
        )
        if text is not None and _is_on_offer(call, scene):
            after[path] = text
        else:
            parts.add(_spelt(call, scene))
    parts |= {
        (_label("edit"), _dumps([path, *resulting_change(scene.files[path], text)]))
        for path, text in after.items()
    }
    return MessageAction(tuple(sorted(parts)))


def tool_targets(turn: Turn, scene: ComparisonContext = NO_CONTEXT) -> frozenset[tuple[str, str]]:
    """Which kind of tool each call takes to which target: a file, or a program with its operands;
    words alone aim at nothing.

    >>> sorted(aims(Turn(role="assistant", author="a", blocks=(ToolCall("c", "Bash", {"command": "pytest -x tests/a.py"}),))))
    [(':shell:', 'pytest tests/a.py')]
    """
    if not turn.calls:
        return frozenset({(NO_TOOL, "")}) if turn.text.strip() else frozenset()
    return frozenset(_aim(call, scene) for call in turn.calls)


def intents(turn: Turn, scene: ComparisonContext = NO_CONTEXT) -> frozenset[Intent]:
    """What a message is for, one word per call; without calls: "ask" where it ends with a question,
    else "finish".

    >>> sorted(intents(Turn(role="assistant", author="a", blocks=(ToolCall("c", "Bash", {"command": "cd x && grep -n foo a.py"}),))))
    ['search']
    """
    if not turn.calls:
        words = turn.text.strip()
        return frozenset({"ask" if words.endswith("?") else "finish"}) if words else frozenset()
    return frozenset(_intent(call, scene) for call in turn.calls)


def relative_path(path: str, *, cwd: str) -> str:
    """A path as seen from the session's folder: relative_path("/repo/./a.py", cwd="/repo") ->
    "a.py"."""
    path = path.replace("/./", "/").removeprefix("./")
    return (
        path[len(cwd.rstrip("/")) + 1 :] if cwd and path.startswith(cwd.rstrip("/") + "/") else path
    )


def changed_path(call: ToolCall, scene: ComparisonContext) -> str:
    """The file that a call would change, as seen from the session's folder; "" where it changes
    none that can be told."""
    return _path(call.arguments, scene) if change_of(call) else ""


def _label(kind: str) -> str:
    """How a kind of tool is written where the name of a tool stands, so that no tool can be called
    that."""
    return f":{kind}:"


def _is_on_offer(call: ToolCall, scene: ComparisonContext) -> bool:
    return not scene.offered or call.name in scene.offered


def _spelt(call: ToolCall, scene: ComparisonContext) -> tuple[str, str]:
    """One call in one spelling: shells under one name where on offer, paths from the folder, a
    command without what does not matter."""
    kind = kind_of(call.name) if _is_on_offer(call, scene) else ""
    name = _label(kind) if kind in _ONE_TOOL else call.name
    command = shell_command(call.name, call.arguments) if kind == "shell" else None
    if command is not None:
        rest = {
            k: v
            for k, v in call.arguments.items()
            if k not in _COSMETIC and k not in ("command", "cmd", "script")
        }
        return name, _dumps({"command": _command(command, scene.cwd), **rest})
    if not scene.cwd:
        return name, _dumps(call.arguments)
    paths = {
        k: relative_path(v, cwd=scene.cwd)
        for k, v in call.arguments.items()
        if k in PATHS and isinstance(v, str)
    }
    return name, _dumps({**call.arguments, **paths})


def _command(text: str, cwd: str) -> str:
    """A command line without the blanks between its words, and without going to the folder where it
    is anyhow."""
    text = text.strip()
    if "<<" not in text:
        text = _QUOTED_OR_BLANK.sub(lambda found: found[1] or " ", text)
    if cwd:
        folder = cwd.rstrip("/")
        for quote in ("", '"', "'"):
            text = text.removeprefix(f"cd {quote}{folder}{quote} && ")
            text = text.replace(f"git -C {quote}{folder}{quote} ", "git ")
        text = text.replace(f"{folder}/", "")
    return text


def _path(arguments: Mapping[str, Any], scene: ComparisonContext) -> str:
    return relative_path(path_of(arguments), cwd=scene.cwd)


def _aim(call: ToolCall, scene: ComparisonContext) -> tuple[str, str]:
    kind = kind_of(call.name) if _is_on_offer(call, scene) else ""
    kind = "edit" if kind == "write" else kind
    name = _label(kind) if kind else call.name
    command = shell_command(call.name, call.arguments) if kind == "shell" else None
    if command is not None:
        run = [s for s in parse(_command(command, scene.cwd)).simple if s.name != "cd"]
        return name, " ; ".join(" ".join((s.name, *s.operands)) for s in run[:8])
    path = _path(call.arguments, scene)
    return name, path or _dumps({k: v for k, v in call.arguments.items() if k not in _COSMETIC})


def _intent(call: ToolCall, scene: ComparisonContext) -> Intent:
    kind = kind_of(call.name) if _is_on_offer(call, scene) else ""
    command = shell_command(call.name, call.arguments) if kind == "shell" else None
    if command is None:
        return _INTENT_OF.get(kind, "other")
    found = {
        _program(s.name, s.words)
        for s in parse(command).simple
        if s.name not in ("cd", "echo", "export", "true")
    }
    return next(
        (intent for intent in ("run_test", "run", "search", "read", "list") if intent in found),
        "run",
    )


def _program(name: str, words: Iterable[str]) -> Intent:
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
