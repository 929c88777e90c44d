"""The words of a shell command as the shell understands them, as far as its text alone says.

    for part in simple_commands("cd ..; cat /pr'oc'/1/environ"):
        part.words                      # ["cd", ".."], then ["cat", "/proc/1/environ"]
    [placed.text for placed in placed_commands("cd ..; cat proc/1/environ")]
    # ["cat /proc/1/environ"]

Quotes, backslashes, `NAME=value` in the same command, braces, a first folder with wildcards and
chains of `cd` are resolved. What only a run can say is not: command substitution, loops, variables
from elsewhere.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from composer_replication.repositories.sandbox.tree_sandbox_child import REPO

_INSIDE = (REPO, "/tmp")
_TOP = ("proc", "usr", "opt", "root", "home", "var", "sys", "etc", "lib", "lib64", "srv", "dev")
_TOKEN = re.compile(
    r"(?P<comment>(?<!\S)#[^\n]*)|(?P<operator>&>>?|&&|\|\||<<<|[<>]+[&|]?|[;&|()\n`{}](?=\s|$)|[;&|()\n`])"
    r"|(?P<word>(?:\\.|\$?'[^']*'|\"(?:\\.|[^\"\\])*\"|[^\s;&|()<>'\"\\`])+)",
    re.DOTALL,
)
_PIECE = re.compile(
    r"\\(?P<escaped>.)|(?P<coded>\$)?'(?P<raw>[^']*)'|\"(?P<text>(?:\\.|[^\"\\])*)\"", re.DOTALL
)
_HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?)(?:\n\s*\2\b|\Z)", re.DOTALL)
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3}))")
_VALUE = re.compile(r"(\w+)=(.*)", re.DOTALL)
_USED = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_BRACES = re.compile(r"\{([^{}\s]*,[^{}\s]*)\}")
_PATH = re.compile(r"[\w.,@+~*?\[\]^!:-]*(/[\w.,@+~*?\[\]^!:-]*)*")
_SEARCHES = frozenset(("grep", "egrep", "fgrep", "rg", "ag"))
_PATTERN = frozenset(("-e", "--regexp"))
_NO_PATH = frozenset(f"-{letter}" for letter in "ABCmdDgtT") | {
    f"--{name}"
    for name in ("include", "exclude", "exclude-dir", "glob", "type", "context", "max-count")
}
"""Options of a search whose value is no file."""
_MESSAGES = frozenset(("commit", "tag", "stash", "notes", "merge"))
_MESSAGE = re.compile(r"-[a-z]*m|--message")
_LONG_MESSAGE = re.compile(
    r"\bgit\s+commit\b[^\n]*<<-?\s*(['\"])(?P<end>\w+)\1[^\n]*\n(?P<text>.*?)\n\s*(?P=end)\b",
    re.DOTALL,
)
"""A commit whose message is a here-document in which the shell runs nothing."""
_OPENS = frozenset(("while", "until", "for", "if", "case"))
_CLOSES = frozenset(("done", "fi", "esac"))
MOST_WORDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleCommand:
    """One command of a line: its text, its words without quotes, where each stands in the line,
    and the operators before and after it ("" at an end of the line)."""

    text: str
    words: Sequence[str]
    spans: Sequence[tuple[int, int]]
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCommand:
    """A simple command with its words resolved, the folder it runs in (None: unknown), and whether
    it says more than the text does."""

    words: Sequence[str]
    folder: str | None
    differs: bool

    @property
    def text(self) -> str:
        """The words as one line."""
        return " ".join(self.words)


def heredocs(command: str) -> list[str]:
    """What the here-documents of a command hold."""
    return [match.group(3) for match in _HERE.finditer(command)]


def simple_commands(command: str) -> Iterator[SimpleCommand]:
    """The commands of a line; what a here-document holds is none."""
    for match in _HERE.finditer(command):
        start, end = match.span(3)
        command = f"{command[:start]}{' ' * (end - start)}{command[end:]}"
    words: list[str] = []
    spans: list[tuple[int, int]] = []
    before = ""

    def ended(after: str) -> SimpleCommand:
        text = command[spans[0][0] : spans[-1][1]] if spans else ""
        return SimpleCommand(text=text, words=words, spans=spans, before=before, after=after)

    for match in _TOKEN.finditer(command):
        if match["word"]:
            words.append(unquoted(match["word"]))
            spans.append(match.span())
        elif (operator := match["operator"]) and not re.search("[<>]", operator):
            yield ended(operator)
            words, spans, before = [], [], operator
        elif operator:
            words.append(operator)
            spans.append(match.span())
    yield ended("")


def unquoted(word: str) -> str:
    """A word without its quotes and backslashes.

    >>> unquoted('''/us''r/"lib"''')
    '/usr/lib'
    """

    def plain(match: re.Match[str]) -> str:
        if match["escaped"]:
            return match["escaped"].strip("\n")
        if match["raw"] is not None:
            return _CODE.sub(_coded, match["raw"]) if match["coded"] else match["raw"]
        return re.sub(r"\\(.)", r"\1", match["text"] or "")

    return _PIECE.sub(plain, word)


def _coded(match: re.Match[str]) -> str:
    return chr(int(match[1], 16) if match[1] else int(match[2], 8))


def without_patterns(command: str) -> str:
    """The command, as long as before, without what a search looks for, what echo says and the
    message of a commit.

    >>> without_patterns("grep -rn -e mount -f names .")
    'grep -rn -e _____ -f names .'
    """
    for match in _LONG_MESSAGE.finditer(command):
        start, end = match.span("text")
        command = f"{command[:start]}{'_' * (end - start)}{command[end:]}"
    for part in simple_commands(command):
        first = posixpath.basename(part.words[0]) if part.words else ""
        hidden: Sequence[int] = ()
        if first in _SEARCHES and part.before != "|":  # a filter of a program's words is read whole
            hidden = _patterns(part.words)
        elif first == "echo" and part.after in ("", ";", "&&", "\n") and not _redirects(part):
            hidden = [
                n for n, (a, b) in enumerate(part.spans) if n and not _is_listed(command[a:b])
            ]
        elif first == "git" and set(part.words) & _MESSAGES:
            hidden = [n + 1 for n, word in enumerate(part.words[:-1]) if _MESSAGE.fullmatch(word)]
        for number in hidden:
            start, end = part.spans[number]
            text = command[start:end]
            if text[0] != "'" and re.search(r"[$`]", text):
                continue  # the shell runs or puts in something
            command = f"{command[:start]}{'_' * (end - start)}{command[end:]}"
    return command


def _is_listed(word: str) -> bool:
    """Whether the shell puts the names of files in the place of a word."""
    return word[0] not in "'\"" and "/" in word and re.search(r"[*?\[]", word) is not None


def _redirects(part: SimpleCommand) -> bool:
    return any(word[:1] in ("<", ">") for word in part.words)


def _patterns(words: Sequence[str]) -> list[int]:
    """The places of a search's words that are patterns or numbers, and no files."""
    found: list[int] = []
    places: list[int] = []
    has_pattern, number = False, 1
    while number < len(words):
        word = words[number]
        name, _, value = word.partition("=")
        if word[:1] in ("<", ">"):
            break
        if not word.startswith("-") or word == "-":
            places.append(number)
        elif (name in _PATTERN and value) or re.match(r"-e.", word):
            has_pattern = True
            found.append(number)
        elif name in _NO_PATH and value:
            found.append(number)
        elif word in _PATTERN or re.fullmatch(r"-\w*e", word):
            has_pattern = True
            number += 1
            found.append(number)
        elif word in _NO_PATH:
            number += 1
            found.append(number)
        elif name == "--file" or re.fullmatch(r"-\w*f", word):
            has_pattern = True
            number += not value
            places.append(number)
        number += 1
    first = places[:1] if not has_pattern else []
    return [place for place in (*found, *first) if place < len(words)]


def background_jobs(command: str) -> Iterator[str]:
    """What goes on beside the rest of a line: the list before an `&`, and a coproc.

    >>> list(background_jobs("make; (sleep 9; cp a b) & wait"))
    ['(sleep 9; cp a b']
    """
    starts: list[int | None] = [None]  # where the list began, of each group that is open
    end = 0
    for part in simple_commands(command):
        if part.before in ("(", "{"):
            starts.append(None)
        if part.words:
            start, end = part.spans[0][0], part.spans[-1][1]
            starts[-1] = start if starts[-1] is None else starts[-1]
            if part.words[0] == "coproc":
                yield command[start:]
            elif part.words[0] in _OPENS:
                starts.append(None)
            elif part.words[0] in _CLOSES and starts[1:]:
                starts.pop()
        if part.after in ("(", "{") and starts[-1] is None:
            starts[-1] = end
        if part.after in (")", "}") and starts[1:]:
            starts.pop()
        if part.after == "&":
            yield command[starts[-1] or 0 : end].strip(" ;\n")
        if part.after in (";", "&", "\n"):
            starts[-1] = None


def placed_commands(command: str) -> Iterator[PlacedCommand]:
    """Each simple command but `cd`, with its paths out of the repository as whole ones."""
    folder: str | None = REPO
    sure, values = False, dict[str, str]()
    kept: list[tuple[str | None, bool]] = []
    for part in simple_commands(without_patterns(command)):
        if part.before == "(":
            kept.append((folder, sure))
        words = [w for word in part.words for w in _expanded(word, {**values, "PWD": folder or ""})]
        while words and (match := _VALUE.fullmatch(words[0])):
            values[match[1]] = match[2]
            del words[0]
        if words[:1] in (["cd"], ["pushd"]):
            target = next((word for word in words[1:] if not word.startswith("-")), "")
            sure = sure or target.startswith("/")
            known = bool(target) and _PATH.fullmatch(target) and not target.startswith("~")
            if not known or (folder is None and not target.startswith("/")):
                folder = None
            else:
                folder = _normal(posixpath.join(folder or "/", target))
        elif words:
            placed = [words[0], *(_placed(word, folder, sure=sure) for word in words[1:])]
            differs = any(word not in part.text for word in placed if not re.search(r"\s", word))
            is_known = folder != "/" or sure
            yield PlacedCommand(words=placed, folder=folder if is_known else None, differs=differs)
        if part.after == ")" and kept:
            folder, sure = kept.pop()


def _expanded(word: str, values: dict[str, str]) -> list[str]:
    """A word with the values of its variables, once for each of the choices in its braces, and for
    each folder of the system that its wildcards may mean."""
    if word[:1] != "_":
        word = _USED.sub(lambda m: values.get(m[1] or m[2], m[0]), word)
    words = [word]
    for _ in range(3):
        words = [
            f"{w[: match.start()]}{choice}{w[match.end() :]}" if match else w
            for w in words[:MOST_WORDS]
            for match in [_BRACES.search(w)]
            for choice in (match[1].split(",") if match else [""])
        ]
    return [fit for w in words for fit in _top_folders(w)]


def _top_folders(word: str) -> list[str]:
    top, slash, rest = word[1:].partition("/")
    if word[:1] != "/" or not re.search(r"[*?\[]", top) or not re.fullmatch(r"[\w*?\[\]!^-]+", top):
        return [word]
    return [f"/{name}{slash}{rest}" for name in _TOP if fnmatch.fnmatchcase(name, top)] or [word]


def _placed(word: str, folder: str | None, *, sure: bool) -> str:
    """A word as a whole path if it leads out of the repository; else as it is."""
    if not word or word[0] in "-<>_" or not _PATH.fullmatch(word) or word[0] == "~":
        return word
    if word[0] != "/" and folder is None:
        return word
    path = _normal(posixpath.join(folder or "/", word))
    is_inside = path.startswith(_INSIDE) and (
        path in _INSIDE or path.startswith(tuple(f"{o}/" for o in _INSIDE))
    )
    if is_inside or (path == "/" and not sure and word[0] != "/"):
        return word  # a folder of the repository in which an earlier command stayed may be deeper
    return path


def _normal(path: str) -> str:
    return posixpath.normpath(path).replace("//", "/")
