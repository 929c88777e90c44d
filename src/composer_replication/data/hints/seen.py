"""What the context had already shown: paths that exist, commands that worked, refs.

Only evidence counts: a path is known where a tool listed it or read it without error, never where some text mentions it.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterable, Iterator

from composer_replication.core.trace import CLEARED_TEXT, ToolCall, ToolResult
from composer_replication.data.hints.context import SiteContext
from composer_replication.data.sites.judge import is_error
from composer_replication.data.sites.shell import Simple, parse, shell_command

PATH_KEYS = ("file_path", "path", "notebook_path", "filename", "file", "dir", "directory")
MAX_PATHS = 5
ALIKE = 0.75
"""Smallest likeness (difflib ratio) of two names without their endings that are offered for each other."""
_LISTERS = frozenset(("Glob", "LS", "glob", "list_dir", "list_files", "find_files"))
_FILE_TOOLS = frozenset(
    ("Read", "Edit", "Write", "MultiEdit", "NotebookEdit", "NotebookRead", "read", "edit", "write", "read_file", "edit_file", "write_file")
)
_PATH_LINE = re.compile(r"^\s*(?:- )?((?:~|\.{0,2})?/?[\w@.+~-]+(?:/[\w@.+~-]+)*/?)\s*$")
_GREP_LINE = re.compile(r"^((?:/|\./)?[\w@.+~-]+(?:/[\w@.+~-]+)*\.\w+)(?::\d+)?(?::|-\d+-)")
_LS_LONG = re.compile(r"^[-dl][rwxstST-]{9}\S*\s+\d+\s+\S+\s+\S+\s+[\d,.]+\w?\s+.{6,20}?\s(\S+)(?: -> .*)?$")
_REMOVERS = frozenset(("rm", "mv", "rmdir", "unlink"))


def wrong_path(context: SiteContext) -> str:
    """The path that the mistaken call named: what the error is about in a shell, else the call's path argument."""
    if context.call is None:
        return ""
    if shell_command(context.call.name, context.call.arguments) is not None:
        return context.subject
    value = next((context.call.arguments[k] for k in PATH_KEYS if k in context.call.arguments), "")
    return value if isinstance(value, str) else ""


def known_paths_near(context: SiteContext, *, limit: int = MAX_PATHS) -> list[str]:
    """Paths seen so far that the wrong one may have meant, the likeliest first; empty where nothing seen is near.

    Near is: the same file name elsewhere, a name alike in any folder, or a file of the same folder.
    """
    wrong = wrong_path(context)
    if not wrong:
        return []
    wrong_full = absolute(wrong.rstrip("/"), context.session.cwd)
    scored: dict[str, tuple[float, str]] = {}
    for path in _with_folders(seen_paths(context), name=posixpath.basename(wrong_full)):
        full = absolute(path.rstrip("/"), context.session.cwd)
        score = _nearness(wrong_full, full)
        if score > 0 and full != wrong_full and (full not in scored or len(path) < len(scored[full][1])):
            scored[full] = (score, path)
    best = sorted(scored.values(), key=lambda item: (-item[0], item[1]))
    if best and best[0][0] >= 2:  # a real namesake stands there: files that only share the folder would drown it
        best = [item for item in best if item[0] >= 1]
    return [path for _, path in best[:limit]]


def _with_folders(paths: Iterable[str], *, name: str) -> Iterator[str]:
    """The paths, and those of their folders that bear the name: where a file was seen, its folders exist."""
    for path in paths:
        yield path
        parts = path.split("/")
        for i, part in enumerate(parts[:-1]):
            if part == name:
                yield "/".join(parts[: i + 1])


def _nearness(wrong: str, path: str) -> float:
    """2-3: the same name in another place · 1-2: a name alike · 0-1: a file of the same folder · 0: nothing in common."""
    (folder, name), (other_folder, other) = posixpath.split(wrong), posixpath.split(path)
    likeness = _likeness(posixpath.splitext(name)[0], posixpath.splitext(other)[0])
    if name != other and likeness < ALIKE:
        return 0.5 if folder == other_folder else 0.0
    shared = difflib.SequenceMatcher(None, folder, other_folder).ratio()
    return 2 + shared if name == other else 1 + (likeness + shared) / 2


def _likeness(one: str, other: str) -> float:
    """difflib's ratio, or 0 where its upper bounds already say that it is below ALIKE: listings hold thousands of names."""
    matcher = difflib.SequenceMatcher(None, one, other)
    return matcher.ratio() if matcher.real_quick_ratio() >= ALIKE and matcher.quick_ratio() >= ALIKE else 0.0


def seen_paths(context: SiteContext) -> list[str]:
    """Every path that the context shows to exist, as it was shown, in the order seen; what a later call removed is left out."""
    paths: dict[str, None] = {}
    for call, result in context.answered():
        command = shell_command(call.name, call.arguments)
        if command is not None:
            for simple in parse(command).simple:
                if simple.name in _REMOVERS or (simple.name == "git" and simple.words[:1] in (("rm",), ("mv",))):
                    gone = {w.rstrip("/") for w in simple.operands}
                    paths = {p: None for p in paths if not any(p.rstrip("/").endswith(g) for g in gone if g)}
        if result.text != CLEARED_TEXT and not is_error(call, result):
            paths.update(dict.fromkeys(_paths_of(call, result)))
    return list(paths)


def _paths_of(call: ToolCall, result: ToolResult) -> Iterator[str]:
    command = shell_command(call.name, call.arguments)
    if command is not None:
        yield from _paths_of_shell(parse(command).simple, result.text)
        yield from (s.program for s in parse(command).simple if "/" in s.program)
    elif call.name in _FILE_TOOLS:
        yield from (v for k in PATH_KEYS if isinstance(v := call.arguments.get(k), str))
    elif call.name in _LISTERS:
        yield from _lines(result.text, _PATH_LINE)
    elif call.name in ("Grep", "grep", "search_files"):
        for line in result.text.splitlines():
            match = _GREP_LINE.match(line) or _PATH_LINE.match(line)
            if match and "." in posixpath.basename(match.group(1)):
                yield match.group(1)


def _paths_of_shell(simple: tuple[Simple, ...], text: str) -> Iterator[str]:
    """Listings of `ls`, `find`, `git ls-files`, `rg --files`, `grep -l`: one listing command in the line, or none is read."""
    listing = [s for s in simple if _lists(s)]
    if len(listing) != 1:
        return
    one = listing[0]
    if one.name != "ls":
        yield from (p for p in _lines(text, _PATH_LINE) if "/" in p or "." in p)
        return
    folders = one.operands
    if len(folders) > 1 or any("*" in f for f in folders) or "-R" in "".join(w for w in one.words if w.startswith("-")):
        return
    for line in text.splitlines():
        match = _LS_LONG.match(line) or _PATH_LINE.match(line)
        if match and match.group(1) not in (".", "..", "total"):
            yield posixpath.join(folders[0], match.group(1)) if folders else match.group(1)


def _lists(simple: Simple) -> bool:
    if simple.name in ("ls", "find", "fd"):
        return True
    if simple.name == "git":
        return simple.words[:1] == ("ls-files",)
    return (simple.name == "rg" and "--files" in simple.words) or (
        simple.name in ("grep", "rg") and any(re.fullmatch(r"-\w*l\w*", w) for w in simple.words)
    )


def _lines(text: str, pattern: re.Pattern[str]) -> Iterator[str]:
    for line in text.splitlines():
        match = pattern.match(line)
        if match:
            yield match.group(1)


def absolute(path: str, cwd: str) -> str:
    """A path without `.` and `..`, below `cwd` where it is relative and a folder is known.

    >>> absolute("./src/../a.py", "/app")
    '/app/a.py'
    """
    return posixpath.normpath(posixpath.join(cwd, path)) if cwd and not path.startswith(("/", "~")) else posixpath.normpath(path)


def commands_that_worked(context: SiteContext) -> list[str]:
    """Programs that ran without error so far, most used first."""
    counts: dict[str, int] = {}
    for call, result in context.answered():
        command = shell_command(call.name, call.arguments)
        if command is not None and not is_error(call, result):
            for simple in parse(command).simple:
                if re.fullmatch(r"[a-z][\w.+-]*", simple.program):
                    counts[simple.program] = counts.get(simple.program, 0) + 1
    return sorted(counts, key=lambda name: (-counts[name], name))


def refs_seen(context: SiteContext) -> list[str]:
    """Branches that git named so far (`git branch`, `git status`, `git checkout`), in the order seen."""
    refs: dict[str, None] = {}
    for call, result in context.answered():
        command = shell_command(call.name, call.arguments)
        if command is None or is_error(call, result):
            continue
        for simple in parse(command).simple:
            if simple.name != "git" or not simple.operands:
                continue
            if simple.operands[0] == "branch":
                refs.update(dict.fromkeys(re.findall(r"^[*+]?\s+(?:remotes/)?([\w./-]+)\s*$", result.text, re.MULTILINE)))
            refs.update(dict.fromkeys(re.findall(r"^(?:On branch|Switched to (?:a new )?branch) '?([\w./-]+)", result.text, re.MULTILINE)))
    return list(refs)


def alike(name: str, names: Iterable[str], *, limit: int = MAX_PATHS) -> list[str]:
    """The names most like a given one, by difflib's ratio, best first; none where nothing is alike."""
    return difflib.get_close_matches(name, list(names), n=limit, cutoff=ALIKE)
