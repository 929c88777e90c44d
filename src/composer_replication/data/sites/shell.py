"""A shell command as the list of simple commands it runs, so that a message can be traced to the one that wrote it.

Example: "cd /x && grep -n foo a.py | head" -> cd /x · grep -n foo a.py · head
This is reading, never running: what it cannot split (an open quote) is one command split at blanks.
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

from composer_replication.data.sites.shell_rules import word_set

SHELL_TOOLS = word_set("""
    Bash bash shell sh exec exec_command local_shell run_shell_command execute_bash terminal run_terminal_cmd run_command execute_command
""")
_SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ksh"))
_OPERATORS = re.compile(r"^[();<>|&\n]+$")
_REDIRECT = re.compile(r"^(?:>>?|<|>&|<&|&>>?|>\||<>|<<<)$")
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1(.*?)\n(.*?)(?:\n[ \t]*\2[ \t]*(?=\n|$|\))|\Z)", re.DOTALL)
# Words that stand before the program that really runs: `sudo timeout 10 uv run pytest` runs pytest.
_PREFIX_WORDS = word_set("sudo time timeout env nohup exec command builtin then do else if while until ! { } nice xargs npx uvx bunx eval")
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
"""A log is untrusted: filling in thousands of names would take time without end."""
SYSTEM_FOLDERS = ("/bin/", "/usr/", "/sbin/", "/opt/")


@dataclass(frozen=True, slots=True)
class Simple:
    """One program with its words; redirections are left out. Example: Simple("grep", ("-n", "foo", "a.py"), ("out.txt",))."""

    program: str
    words: tuple[str, ...]
    redirects: tuple[str, ...] = ()

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
    """A whole command line: its text with simple assignments filled in, and the simple commands in order."""

    text: str
    simple: tuple[Simple, ...]
    operators: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """Every program that the line runs."""
        return frozenset(s.name for s in self.simple)

    def names_thing(self, thing: str) -> bool:
        """Whether the line itself mentions a path, ref or word, as it stands or as the tail of what the message prints."""
        thing = thing.strip().strip("'\"`‘’").rstrip("/")
        if not thing or thing in (".", ".."):
            return False
        if re.search(rf"(?<![\w/.-]){re.escape(thing)}(?![\w-])", self.text):
            return True
        for simple in self.simple:
            for word in (simple.program, *simple.words, *simple.redirects):
                bare = word.rstrip("/").removeprefix("./").removeprefix("~/")
                if bare and bare != "." and (bare == thing.removeprefix("./") or thing.endswith(f"/{bare}") or _glob_match(thing, bare)):
                    return True
        return False


def shell_command(tool: str, arguments: Mapping[str, Any]) -> str | None:
    """The command line of a shell call, or None where the tool is not a shell.

    >>> shell_command("Bash", {"command": "ls"})
    'ls'
    """
    if tool not in SHELL_TOOLS:
        return None
    value = next((arguments[k] for k in ("command", "cmd", "script") if k in arguments), None)
    if isinstance(value, list):
        words = [str(w) for w in value]
        return words[-1] if len(words) == 3 and words[1].startswith("-") and "c" in words[1] else shlex.join(words)
    return value if isinstance(value, str) else None


@lru_cache(maxsize=256)
def parse(command: str) -> Command:
    """Split a command line into its simple commands; here-documents are set aside, `NAME=value` is filled in.

    >>> [s.name for s in parse("X=src; cd $X && timeout 5 go test ./... | head -3").simple]
    ['cd', 'go', 'head']
    """
    text = _fill_in(command)
    bare = _HEREDOC.sub(lambda m: m.group(3), text)
    lexer = shlex.shlex(bare, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        tokens = list(lexer)
    except ValueError:  # an open quote: the words are still worth having
        tokens = re.split(r"[ \t\r]+|(?<=[;|&\n])|(?=[;|&\n])", bare)
    simple: list[Simple] = []
    operators: list[str] = []
    words: list[str] = []
    redirects: list[str] = []
    expect_target = False
    for token in [t for t in tokens if t] + [";"]:
        if _REDIRECT.match(token):
            expect_target = True
            if words and words[-1].isdigit():
                words.pop()
        elif _OPERATORS.match(token):
            operators.append(token)
            _close(words, redirects, simple)
            words, redirects = [], []
        elif expect_target:
            redirects.append(token)
            expect_target = False
        else:
            words.append(token)
    return Command(text, tuple(simple), tuple(operators[:-1]))


def _close(words: list[str], redirects: list[str], simple: list[Simple]) -> None:
    i, prefix = 0, ""
    while i < len(words):
        word = words[i]
        if tuple(words[i : i + 2]) in _TWO_WORD_PREFIXES:
            i, prefix = i + 2, word
        elif word in _PREFIX_WORDS:
            i, prefix = i + 1, word
        elif _ASSIGNMENT.match(word) or (prefix and word.startswith("-")) or (prefix == "timeout" and re.fullmatch(r"[\d.]+[smhd]?", word)):
            i += 1
        else:
            simple.append(Simple(word, tuple(words[i + 1 :]), tuple(redirects)))
            return
    if any(not _ASSIGNMENT.match(w) for w in words):  # a prefix word that runs nothing: `time`
        simple.append(Simple(words[0], tuple(words[1:]), tuple(redirects)))


def _fill_in(command: str) -> str:
    found = re.finditer(r"(?:^|[;&\n(]|\bexport\b)\s*([A-Za-z_]\w*)=([^\s;&|()$`]+)", command)
    values = {m.group(1): m.group(2).strip("'\"") for m in islice(found, MAX_ASSIGNMENTS)}
    for name, value in values.items():
        command = re.sub(rf"\$(?:\{{{name}\}}|{name}\b)", lambda _m, v=value: v, command)
    return command


def _glob_match(thing: str, word: str) -> bool:
    return any(c in word for c in "*?[") and len(word) > 2 and fnmatch.fnmatchcase(thing, word)


def is_own_program(simple: Simple) -> bool:
    """Whether a program is the project's own (run by path, or through a task runner), so that its usage errors are what is tested."""
    if simple.name in _SHELLS:
        return "-c" not in simple.words
    return "/" in simple.program and not simple.program.startswith(SYSTEM_FOLDERS)
