"""Split a shell line into words and operators as a shell does: quotes, escapes, substitutions and
comments.

    split("rm -rf 'a b' $X *.go")  -> words rm · -rf · a b · $X (expands) · *.go (glob)

Nothing is expanded: a word is marked if the shell would still change it, so that `$X` or `*.go` is
not taken for a name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Longest first: `&>>` is one operator, not three.
_OPERATORS = (
    "&>>",
    "<<<",
    "&>",
    ">>",
    ">|",
    ">&",
    "<&",
    "<>",
    "&&",
    "||",
    "|&",
    ";;",
    ">",
    "<",
    "|",
    ";",
    "&",
    "(",
    ")",
    "\n",
)
_IN_DOUBLE = frozenset('"\\$`\n')
_BRACES = re.compile(r"\{([^{}]*)\}")
MAX_DEPTH = 8
"""Substitutions nested deeper than this stay text: a log is untrusted."""


class OpenQuoteError(ValueError):
    """A quote or bracket of the line is not closed."""


@dataclass(frozen=True, slots=True)
class ShellWord:
    """One word without its quotes. `glob`: it contains an unquoted pattern; `expands`: a variable,
    a substitution or braces.

    `commands` are the lines inside its `$(...)` and backticks. Example: ShellWord("$(pwd)/a",
    expands=True, commands=("pwd",))
    """

    text: str
    glob: bool = False
    expands: bool = False
    commands: tuple[str, ...] = ()
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Operator:
    """A control operator or redirection, e.g. "&&", ">>", "\\n"."""

    text: str

    @property
    def redirects(self) -> bool:
        """Whether the next word is a file or descriptor."""
        return self.text[0] in "<>" or self.text in ("&>", "&>>")


def split(line: str) -> list[ShellWord | Operator]:
    """Split a line into words and operators, in order; raises OpenQuoteError if a quote or a
    substitution is not closed.

    >>> [t.text for t in split("cd 'a b'&&ls -l>out # note")]
    ['cd', 'a b', '&&', 'ls', '-l', '>', 'out']
    """
    return _Splitter(line).run()


class _Splitter:
    def __init__(self, line: str) -> None:
        self.line, self.position, self.tokens = line, 0, list[ShellWord | Operator]()
        self._clear()

    def _clear(self) -> None:
        self.parts, self.glob, self.expands, self.quoted, self.started = (
            list[str](),
            False,
            False,
            False,
            False,
        )
        self.commands = list[str]()

    def _end(self) -> None:
        if self.started:
            text = "".join(self.parts)
            braces = not self.quoted and any(
                "," in inner or ".." in inner for inner in _BRACES.findall(text)
            )
            self.tokens.append(
                ShellWord(
                    text, self.glob, self.expands or braces, tuple(self.commands), self.quoted
                )
            )
        self._clear()

    def run(self) -> list[ShellWord | Operator]:
        line = self.line
        while self.position < len(line):
            char = line[self.position]
            if char in " \t\r":
                self._end()
                self.position += 1
            elif char == "#" and not self.started:
                end = line.find("\n", self.position)
                self.position = len(line) if end < 0 else end
            elif char in "<>" and line[self.position + 1 : self.position + 2] == "(":
                self._substitution(2)
            elif self.line.startswith("\\\n", self.position):  # the line goes on
                self.position += 2
            elif char in "()<>|&;\n":
                self._operator()
            else:
                self._character(char)
        self._end()
        return self.tokens

    def _operator(self) -> None:
        text = next(op for op in _OPERATORS if self.line.startswith(op, self.position))
        if text[0] in "<>" and "".join(self.parts).isdigit() and not self.quoted:
            self._clear()  # the number of a descriptor
        self._end()
        self.tokens.append(Operator(text))
        self.position += len(text)

    def _character(self, char: str) -> None:
        self.started = True
        if char == "\\":
            self.parts.append(self.line[self.position + 1 : self.position + 2])
            self.quoted, self.position = True, self.position + 2
        elif char == "'":
            self._single(self.position + 1)
        elif char == '"':
            self._double()
        elif char == "`" or self.line.startswith(("$(", "${"), self.position):
            self._substitution(1 if char == "`" else 2)
        elif self.line.startswith("$'", self.position):
            self._single(self.position + 2, escapes=True)
        else:
            self.glob |= char in "*?["
            self.expands |= (
                char == "$"
                and re.match(r"\$[\w@#?!*$-]", self.line[self.position : self.position + 2])
                is not None
            )
            self.parts.append(char)
            self.position += 1

    def _single(self, start: int, *, escapes: bool = False) -> None:
        end = self.line.find("'", start)
        while escapes and end > 0 and self.line[end - 1] == "\\":
            end = self.line.find("'", end + 1)
        if end < 0:
            raise OpenQuoteError("a quote is not closed")
        self.parts.append(self.line[start:end])
        self.quoted, self.position = True, end + 1

    def _double(self) -> None:
        self.quoted, self.position = True, self.position + 1
        while self.position < len(self.line):
            char = self.line[self.position]
            if char == '"':
                self.position += 1
                return
            if char == "\\" and self.line[self.position + 1 : self.position + 2] in _IN_DOUBLE:
                self.parts.append(
                    self.line[self.position + 1 : self.position + 2].replace("\n", "")
                )
                self.position += 2
            elif char == "`" or self.line.startswith(("$(", "${"), self.position):
                self._substitution(1 if char == "`" else 2)
            else:
                self.expands |= (
                    char == "$"
                    and re.match(r"\$[\w@#?!*]", self.line[self.position : self.position + 2])
                    is not None
                )
                self.parts.append(char)
                self.position += 1
        raise OpenQuoteError("a double quote is not closed")

    def _substitution(self, opening: int) -> None:
        """Keep `$(...)`, `${...}`, `<(...)` or backticks as text, and note the commands inside."""
        start = self.position
        end = self._closing(start, opening)
        text = self.line[start : end + 1]
        if not text.startswith("${"):
            self.commands.append(text[opening:-1])
        self.parts.append(text)
        self.started, self.expands, self.position = True, True, end + 1

    def _closing(self, start: int, opening: int) -> int:
        if opening == 1:
            end = self.line.find("`", start + 1)
            if end < 0:
                raise OpenQuoteError("a backtick is not closed")
            return end
        begins, ends = ("{", "}") if self.line.startswith("${", start) else ("(", ")")
        depth, at, quote = 1, start + opening, ""
        while at < len(self.line):
            char = self.line[at]
            if char == "\\" and quote != "'":
                at += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char in (begins, ends):
                depth += 1 if char == begins else -1
                if depth == 0:
                    return at
            at += 1
        raise OpenQuoteError("a substitution is not closed")
