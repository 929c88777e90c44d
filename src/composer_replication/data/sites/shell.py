"""Parse a shell line into the simple commands that it runs, so that a message can be traced to the
command that wrote it.

Example: "cd /x && grep -n foo a.py | head" -> cd /x · grep -n foo a.py · head
Nothing is ever executed. A line that cannot be split (an open quote) is split at blanks.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from composer_replication.data.sites.code_mode import script_commands
from composer_replication.data.sites.shell_rules import word_set
from composer_replication.data.sites.shell_words import (
    MAX_DEPTH,
    OpenQuoteError,
    Operator,
    ShellWord,
    split,
)

SHELL_TOOLS = word_set("""
    Bash bash shell sh exec exec_command local_shell run_shell_command execute_bash terminal
    run_terminal_cmd run_command run_commands execute_command
""")
SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ksh"))
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_HEREDOC = re.compile(
    r"<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1(.*?)\n(.*?)(?:\n[ \t]*\2[ \t]*(?=\n|$|\))|\Z)", re.DOTALL
)
SHELL_KEYWORDS = word_set("time then do else if while until ! { } for case function select [[")
# Words before the program that really runs: `sudo timeout 10 uv run pytest` runs pytest.
_PREFIX_WORDS = word_set(
    "sudo time timeout env nohup exec command builtin then do else if while until ! { } nice xargs"
    " npx uvx bunx eval stdbuf doas setsid"
)
# Options of these that take the next word as a value: `sudo -u me rm x` runs rm.
_OPTIONS_WITH_VALUE = {
    "sudo": ("-u", "-g", "-h", "-p", "-C", "-T", "-r", "-t", "-D"),
    "timeout": ("-k", "-s"),
    "env": ("-u", "-C"),
    "nice": ("-n",),
    "time": ("-f", "-o"),
    "xargs": ("-I", "-n", "-P", "-L", "-d", "-E", "-s", "-a", "-J", "-R"),
    "exec": ("-a",),
    "stdbuf": ("-i", "-o", "-e"),
}
_TWO_WORD_PREFIXES = frozenset(
    (
        ("uv", "run"),
        ("poetry", "run"),
        ("pipenv", "run"),
        ("pnpm", "exec"),
        ("bundle", "exec"),
        ("npm", "exec"),
        ("mise", "exec"),
        ("rtk", "proxy"),
    )
)
MAX_ASSIGNMENTS = 20
"""A log is untrusted: filling in thousands of names would take unbounded time."""
SYSTEM_FOLDERS = ("/bin/", "/usr/", "/sbin/", "/opt/")


@dataclass(frozen=True, slots=True)
class Simple:
    """One program with its words, e.g. Simple("grep", ("-n", "foo", "a.py"), ("out.txt",)).

    `redirects` are the targets of redirections, `writes` those that are written to. `open` are the
    words that the shell would still change (`$X`, `*.go`), `globs` those of them that are only
    patterns. `wrappers` are the words in front (sudo, xargs), `before` is the operator in front;
    `depth` > 0 means inside a subshell.
    """

    program: str
    words: tuple[str, ...]
    redirects: tuple[str, ...] = ()
    open: frozenset[str] = frozenset()
    globs: frozenset[str] = frozenset()
    wrappers: tuple[str, ...] = ()
    depth: int = 0
    before: str = ";"
    writes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The program without its folder, e.g. "python3"."""
        return posixpath.basename(self.program)

    @property
    def operands(self) -> tuple[str, ...]:
        """The words that are not options."""
        return tuple(w for w in self.words if not w.startswith("-"))


@dataclass(frozen=True, slots=True)
class Command:
    """A command line: its text with simple assignments filled in, and its simple commands."""

    text: str
    simple: tuple[Simple, ...]
    operators: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names of all programs that the line runs."""
        return frozenset(s.name for s in self.simple)

    def mentions(self, name: str) -> bool:
        """Whether the line contains a path, ref or word that a message prints, as printed or as its
        tail."""
        name = name.strip().strip("'\"`‘’").rstrip("/")
        if not name or name in (".", ".."):
            return False
        if re.search(rf"(?<![\w/.-]){re.escape(name)}(?![\w-])", self.text):
            return True
        for simple in self.simple:
            for word in (simple.program, *simple.words, *simple.redirects):
                bare = word.rstrip("/").removeprefix("./").removeprefix("~/")
                if (
                    bare
                    and bare != "."
                    and (
                        bare == name.removeprefix("./")
                        or name.endswith(f"/{bare}")
                        or _glob_match(name, bare)
                    )
                ):
                    return True
        return False


def shell_command(tool: str, arguments: Mapping[str, Any]) -> str | None:
    """The command line of a shell call; None if the tool is not a shell.

    >>> shell_command("Bash", {"command": "ls"})
    'ls'
    """
    if tool not in SHELL_TOOLS:
        return None
    several = arguments.get("commands")  # Cline: each of them runs, one after the other
    if isinstance(several, list):
        return "\n".join(str(command) for command in several)
    value = next((arguments[k] for k in ("command", "cmd", "script") if k in arguments), None)
    if isinstance(value, list):
        words = [str(w) for w in value]
        return (
            words[-1]
            if len(words) == 3 and words[1].startswith("-") and "c" in words[1]
            else shlex.join(words)
        )
    if value is None and isinstance(script := arguments.get("input"), str):
        return script_commands(script)
    return value if isinstance(value, str) else None


@lru_cache(maxsize=4096)
def parse(command: str) -> Command:
    """Parse a command line into its simple commands; here-documents are left out, and `NAME=value`
    is filled in.

    >>> [s.name for s in parse("X=src; cd $X && timeout 5 go test ./... | head -3").simple]
    ['cd', 'go', 'head']
    """
    text = _fill_in_assignments(command)
    reader = _CommandBuilder()
    reader.read(_HEREDOC.sub(lambda m: m.group(3), text), depth=0)
    return Command(text, tuple(reader.simple), tuple(reader.operators))


def _tokens(text: str) -> list[ShellWord | Operator]:
    try:
        return split(text)
    except (
        OpenQuoteError
    ):  # the words are still useful, but none is certain: all count as `expands`
        parts = re.split(r"[ \t\r]+|(?<=[;|&\n])|(?=[;|&\n])", text)
        return [
            Operator(part) if re.fullmatch(r"[;|&\n]", part) else ShellWord(part, expands=True)
            for part in parts
            if part
        ]


class _CommandBuilder:
    """Assembles words into simple commands; those of a substitution come before the command that
    contains it."""

    def __init__(self) -> None:
        self.simple, self.operators = list[Simple](), list[str]()

    def read(self, text: str, *, depth: int) -> None:
        words: list[ShellWord] = []
        redirects: list[tuple[str, ShellWord]] = []
        redirect, before, inner = "", ";", depth
        for token in (*_tokens(text), Operator(";")):
            if isinstance(token, ShellWord):
                if depth < MAX_DEPTH:
                    for command in token.commands:
                        self.operators.append("(")
                        self.read(command, depth=depth + 1)
                if redirect:
                    redirects.append((redirect, token))
                    redirect = ""
                else:
                    words.append(token)
            elif token.redirects:
                redirect = token.text
            else:
                self._add_command(words, redirects, depth=inner, before=before)
                words, redirects, redirect = [], [], ""
                inner = max(depth, inner + {"(": 1, ")": -1}.get(token.text, 0))
                before = token.text
                self.operators.append(token.text)
        self.operators.pop()

    def _add_command(
        self,
        words: list[ShellWord],
        redirects: list[tuple[str, ShellWord]],
        *,
        depth: int,
        before: str,
    ) -> None:
        start, wrappers = _program_at([w.text for w in words])
        if start is None:
            return
        program_words = words[start:]
        changeable = [
            w for w in (*program_words, *(w for _, w in redirects)) if w.expands or w.glob
        ]
        self.simple.append(
            Simple(
                program_words[0].text,
                tuple(w.text for w in program_words[1:]),
                tuple(w.text for _, w in redirects),
                open=frozenset(w.text for w in changeable),
                globs=frozenset(w.text for w in changeable if not w.expands),
                wrappers=wrappers,
                depth=depth,
                before=before,
                writes=tuple(w.text for op, w in redirects if ">" in op and op != ">&"),
            )
        )


def _program_at(words: list[str]) -> tuple[int | None, tuple[str, ...]]:
    """Find the index of the program behind assignments and wrappers, and the wrappers; None if the
    words run nothing.

    >>> _program_at(["FOO=1", "sudo", "-u", "me", "timeout", "5", "rm", "-r", "x"])
    (6, ('sudo', 'timeout'))
    """
    i, wrappers = 0, list[str]()
    while i < len(words):
        word, prefix = words[i], wrappers[-1] if wrappers else ""
        if tuple(words[i : i + 2]) in _TWO_WORD_PREFIXES:
            i += 2
            wrappers.append(word)
        elif word in _PREFIX_WORDS:
            i += 1
            wrappers.append(word)
        elif prefix and word.startswith("-"):
            i += 2 if word in _OPTIONS_WITH_VALUE.get(prefix, ()) else 1
        elif _ASSIGNMENT.match(word) or (
            prefix == "timeout" and re.fullmatch(r"[\d.]+[smhd]?", word)
        ):
            i += 1
        else:
            return i, tuple(wrappers)
    # a prefix word that runs nothing: `time`
    at = next((i for i, w in enumerate(words) if not _ASSIGNMENT.match(w)), None)
    return at, ()


def _fill_in_assignments(command: str) -> str:
    assignments = re.finditer(r"(?:^|[;&\n(]|\bexport\b)\s*([A-Za-z_]\w*)=([^\s;&|()$`]+)", command)
    values: dict[str, set[str]] = {}
    for m in islice(assignments, MAX_ASSIGNMENTS):
        values.setdefault(m.group(1), set()).add(m.group(2).strip("'\""))
    # A name with several values is left alone: which one applies is unknown.
    for name, value in (
        (name, candidates.pop()) for name, candidates in values.items() if len(candidates) == 1
    ):
        command = re.sub(rf"\$(?:\{{{name}\}}|{name}\b)", lambda _m, v=value: v, command)
    return command


def _glob_match(name: str, word: str) -> bool:
    return any(c in word for c in "*?[") and len(word) > 2 and fnmatch.fnmatchcase(name, word)


def is_own_program(simple: Simple) -> bool:
    """Whether a program is the project's own (run by path, or as a shell script), so that its usage
    errors may be what the developer tests."""
    if simple.name in SHELLS:
        return "-c" not in simple.words
    return "/" in simple.program and not simple.program.startswith(SYSTEM_FOLDERS)
