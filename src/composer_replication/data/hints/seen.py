"""What the context had already shown: paths that exist, files that were read, and where the shell
stands.

Only evidence counts: a path is known where a tool listed it or read it without error, never where
some text mentions it, and until anything removes it. Paths are kept in full, from where the shell
stood; a name is given only where it means the same at the site.
"""

from __future__ import annotations

import difflib
import fnmatch
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from composer_replication.core.trace import CLEARED_TEXT, CallRef, ToolCall, ToolResult
from composer_replication.data.hints.context import SiteContext
from composer_replication.data.sites.call_verdict import is_error, judge
from composer_replication.data.sites.effects import ANYTHING, Effects, Gone, effects, resolve
from composer_replication.data.sites.shell import Command, Simple, parse, shell_command
from composer_replication.data.sites.shell_rules import (
    LOOKERS,
    PATH_EXPLORED,
    PATH_STATED,
    word_set,
)

PATH_KEYS = ("file_path", "path", "notebook_path", "filename", "file", "dir", "directory")
MAX_PATHS = 5
ALIKE = 0.75
"""Smallest likeness (difflib ratio) of two words that may be one mistyped, as in `summarise` and
`summarize`."""
MAX_NAMESAKES = 3
"""Of more files of one name only those in a folder of the same name are offered."""
JUST = 12
"""Who read a file in the last messages and reads one of another place does not mean the first
again."""
MAX_CHANGES = 500
"""A log is untrusted: of a line that does more, all that was shown counts as gone."""
LISTERS = frozenset(("Glob", "LS", "glob", "list_dir", "list_files", "find_files"))
_FILE_TOOLS = frozenset(
    (
        "Read",
        "Edit",
        "Write",
        "MultiEdit",
        "NotebookEdit",
        "NotebookRead",
        "read",
        "edit",
        "write",
        "read_file",
        "edit_file",
        "write_file",
    )
)
_REMOVING_TOOL = re.compile(r"delete|remove|move|rename|trash", re.IGNORECASE)
# The shell of these tools stays where a call left it; any other tool starts each call in its own
# folder.
_SHELL_STAYS = frozenset(("Bash", "bash"))
_PATH_LINE = re.compile(r"^\s*(?:- )?((?:~|\.{0,2})?/?[\w@.+~-]+(?:/[\w@.+~-]+)*/?)\s*$")
_GREP_LINE = re.compile(r"^((?:/|\./)?[\w@.+~-]+(?:/[\w@.+~-]+)*\.\w+)(?::\d+(?::|$)|-\d+-)")
_LS_LONG = re.compile(
    r"^[-dl][rwxstST-]{9}\S*\s+\d+\s+\S+\s+\S+\s+[\d,.]+\w?\s+.{6,20}?\s(\S+)(?: -> .*)?$"
)
_CWD = re.compile(
    r"(?:Shell cwd was reset to|current working directory is) ([^\s<]+?)\.?(?=\s|<|$)"
)
# Names that many folders hold: one of them stands for another only where the folder's name is the
# same, too.
_EVERYWHERE = word_set("""
    index main mod lib default __init__ __main__ readme package config utils util types constants skill agents claude makefile dockerfile
    app conftest go page layout route style styles schema helpers common test tests plugin settings .gitignore .env
""")
# A file that has one of these words more is the other's companion, not the other.
_COMPANION = word_set(
    "test tests spec specs mock mocks types type stories story fixture fixtures example examples"
    " bak old new"
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_SHELL_READERS = word_set("cat head tail nl less bat sed")
READERS = frozenset(("Read", "NotebookRead", "read", "read_file", "view"))
# They print nothing of their own beside a listing, or pass its lines on as they are.
_SILENT = word_set("cd pushd export set true : mkdir touch chmod sleep echo")
_FILTERS = word_set("head tail sort uniq grep egrep rg")


@dataclass(slots=True)
class Places:
    """Where the shell stands at a site (None: not known), what is there and what was refused as
    missing, in full.

    `names` maps a full path to the name by which it was shown and that still means it. Example:
    {"/w/src/a.py": "src/a.py"} `stood` has where the shell stood at each call by its id, `read` in
    which turn a reading tool last gave, or an edit last took, a file.
    """

    cwd: str | None
    names: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    stood: dict[str, str | None] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)


def places(context: SiteContext) -> Places:
    """Follow the session up to the site: what was shown in view is there, until any call of the
    session removes it."""
    in_view = {call.id: result for call, result in context.answered()}
    done = [
        ref
        for ref in context.calls.values()
        if ref.result_turn is not None and ref.turn < ref.result_turn < context.site.turn
    ]
    cwd: str | None = context.session.cwd
    shown: dict[str, tuple[str, str | None]] = {}
    refused: set[str] = set()
    found = Places(cwd=None)
    for ref in sorted(done, key=lambda ref: (ref.result_turn or 0, ref.turn)):
        result = in_view.get(ref.call.id)
        before = cwd
        if ref.call.name not in _SHELL_STAYS:
            given = ref.call.arguments.get("workdir")
            before = (
                resolve(given, context.session.cwd)
                if isinstance(given, str)
                else context.session.cwd
            )
        found.stood[ref.call.id] = before
        cwd = _follow(ref, result, cwd=cwd, home=context.session.cwd, shown=shown, refused=refused)
        fine = result is not None and result.text != CLEARED_TEXT and not is_error(ref.call, result)
        if (
            fine
            and ref.call.name in _FILE_TOOLS
            and (full := resolve(_argument(ref.call), context.session.cwd))
        ):
            found.read[full] = ref.result_turn or 0
    named: dict[str, str] = {}
    for full, (name, stood) in shown.items():
        told = name if name.startswith(("/", "~")) or stood == cwd else full
        if told.startswith(("/", "~")) or stood == cwd or not cwd:
            named[full] = told
    found.cwd, found.names, found.refused = cwd, named, refused - named.keys()
    return found


def _follow(
    ref: CallRef,
    in_view: ToolResult | None,
    *,
    cwd: str | None,
    home: str,
    shown: dict[str, tuple[str, str | None]],
    refused: set[str],
) -> str | None:
    """What one answered call changes and shows; returns where the shell stands after it."""
    call, result = ref.call, ref.result
    assert result is not None
    failed = is_error(call, result)
    command = shell_command(call.name, call.arguments)
    before, done = cwd, Effects(cwd)
    if command is not None:
        given = call.arguments.get("workdir")
        before = (
            cwd
            if call.name in _SHELL_STAYS
            else resolve(given, home)
            if isinstance(given, str)
            else home
        )
        done = effects(parse(command), before)
        cwd = _stands_after(call, parse(command), done, cwd=cwd, failed=failed)
    elif call.name not in _FILE_TOOLS and _REMOVING_TOOL.search(call.name):
        done.changes += [
            Gone(full)
            for value in call.arguments.values()
            if isinstance(value, str) and (full := resolve(value, cwd))
        ]
    for change in done.changes if len(done.changes) <= MAX_CHANGES else [ANYTHING]:
        if isinstance(change, Gone):
            for path in [path for path in shown if change.covers(path)]:
                del shown[path]
        elif in_view is not None and not failed and done.certain:
            shown[change] = (change, before)
    if in_view is not None and in_view.text != CLEARED_TEXT and not failed:
        paths = (
            _paths_of_shell(parse(command), done, in_view.text)
            if command is not None
            else ((p, before) for p in _paths_of(call, in_view))
        )
        for path, stood in paths:
            if (full := resolve(path.rstrip("/") or "/", stood)) is not None:
                if full not in shown or shown[full][1] != stood or len(path) < len(shown[full][0]):
                    shown[full] = (path, stood)
                refused.discard(full)
    elif failed and (missed := _missed(call, result, cwd=before)):
        # whatever was shown before: it is not there now
        for path in [path for path in shown if Gone(missed).covers(path)]:
            del shown[path]
        if in_view is not None and command is None:
            refused.add(missed)
    told = _CWD.findall(result.text[-400:]) if command is not None or failed else []
    return str(told[-1]) if told else cwd


def _stands_after(
    call: ToolCall, command: Command, done: Effects, *, cwd: str | None, failed: bool
) -> str | None:
    if call.name not in _SHELL_STAYS or done.cwd == cwd:
        return cwd
    return done.cwd if not failed and _moved_for_certain(command, cwd) else None


def _moved_for_certain(command: Command, before: str | None) -> bool:
    """Whether a line that ended well has moved the shell to where its `cd` points: from elsewhere,
    and with nothing to hide a failure.

    After a `cd web` the same again fails. Where it does not, the shell was set back in between:
    where it stood is not known.
    """
    targets = [
        s.operands[0]
        for s in command.simple
        if s.name in ("cd", "pushd") and not s.depth and s.operands
    ]
    relative = [
        to.removeprefix("./").rstrip("/") for to in targets if not to.startswith(("/", "~", ".."))
    ]
    again = before is not None and any(f"{before}/".endswith(f"/{to}/") for to in relative[:1])
    return not relative or (set(command.operators) <= {"&&", "|", "|&"} and not again)


def _missed(call: ToolCall, result: ToolResult, *, cwd: str | None) -> str:
    """The path, in full, that a refusal says is not there; of a shell line only an absolute one,
    for it may have moved on its way."""
    verdict = judge(call, result)
    if verdict.kind not in (PATH_EXPLORED, *PATH_STATED):
        return ""
    is_shell = shell_command(call.name, call.arguments) is not None
    path = verdict.subject if is_shell else _argument(call)
    return (
        ""
        if not path or (is_shell and (not path.startswith("/") or "*" in path))
        else resolve(path.rstrip("/") or "/", cwd) or ""
    )


def _argument(call: ToolCall) -> str:
    """The path argument of a call, "" where it has none."""
    value = next((call.arguments[k] for k in PATH_KEYS if k in call.arguments), "")
    return value if isinstance(value, str) else ""


def wrong_path(context: SiteContext) -> str:
    """The path that the mistaken call named: what the error is about in a shell, else the call's
    path argument."""
    if context.call is None:
        return ""
    return (
        context.subject
        if shell_command(context.call.name, context.call.arguments) is not None
        else _argument(context.call)
    )


def _wrong_in_full(context: SiteContext, wrong: str, cwd: str | None) -> tuple[str, bool]:
    """The wrong path from where the shell stood when it was used (`cd src && cat a.py` means
    src/a.py), and whether it was to be run."""
    command = shell_command(context.call.name, context.call.arguments) if context.call else None
    full = resolve(wrong.rstrip("/") or "/", cwd) or posixpath.normpath(wrong)
    if command is not None:
        parsed = parse(command)
        for simple, here in zip(parsed.simple, effects(parsed, cwd).at, strict=True):
            if resolve(simple.program, here) == full or wrong == simple.program:
                return resolve(simple.program, here) or full, True
            if wrong in (*simple.words, *simple.redirects):
                return resolve(wrong.rstrip("/") or "/", here) or full, False
    return full, False


def known_paths_near(context: SiteContext, *, limit: int = MAX_PATHS) -> list[str]:
    """Paths seen so far that the wrong one may have meant, the likeliest first; empty where no name
    is like the wrong one.

    Like is: the same file or folder name elsewhere, or one that differs in spelling, in a letter,
    or by a word.
    """
    wrong = wrong_path(context)
    if not wrong:
        return []
    found = places(context)
    wrong_full, is_program = _wrong_in_full(context, wrong, found.cwd)
    scored: dict[str, tuple[float, str]] = {}
    named = _operands(context, found.cwd)  # what the failing command names already was no help
    just_read = (
        {full for full, turn in found.read.items() if context.site.turn - turn <= JUST}
        if _reads_files(context)
        else set[str]()
    )
    candidates = (
        found.names.items()
        if is_program
        else _with_folders(found.names, name=posixpath.basename(wrong_full))
    )
    for full, path in candidates:
        score = _nearness(wrong_full, full) if full not in just_read else 0
        # the same words again would say nothing: from where they hold
        path = full if path.rstrip("/") == wrong.rstrip("/") else path
        if (
            score > 0
            and full != wrong_full
            and full not in named
            and (full not in scored or len(path) < len(scored[full][1]))
        ):
            scored[full] = (score, path)
    best = sorted(scored.items(), key=lambda item: (-item[1][0], item[1][1]))
    if best and best[0][1][0] >= 2:  # a real namesake stands there: names alike would drown it
        best = [item for item in best if item[1][0] >= 2]
        folder = posixpath.basename(posixpath.dirname(wrong_full))
        if len(best) > MAX_NAMESAKES:
            best = [
                item for item in best if posixpath.basename(posixpath.dirname(item[0])) == folder
            ]
    return [path for _, (_, path) in best[:limit]]


def _reads_files(context: SiteContext) -> bool:
    """Whether the mistaken call was to read a file, and nothing else."""
    call = context.call
    command = shell_command(call.name, call.arguments) if call else None
    if command is None:
        return call is not None and call.name in READERS
    return all(s.name in _SHELL_READERS for s in parse(command).simple)


def was_refused(context: SiteContext) -> bool:
    """Whether a call in view was refused because the very path was missing, and nothing showed it
    since."""
    found = places(context)
    return _wrong_in_full(context, wrong_path(context), found.cwd)[0] in found.refused


def was_looked_for(context: SiteContext) -> bool:
    """Whether a listing or a search that would have shown the wrong path stands in view."""
    found = places(context)
    wrong, _ = _wrong_in_full(context, wrong_path(context), found.cwd)
    return any(
        _would_show(call, wrong, found.stood.get(call.id))
        for call, result in context.answered()
        if not is_error(call, result)
    )


def was_used(context: SiteContext) -> bool:
    """Whether the wrong path was shown above, or a shell line above that ended well used it and
    nothing removed it since."""
    wrong, found = wrong_path(context), places(context)
    full, _ = _wrong_in_full(context, wrong, found.cwd)
    used = full in found.names
    for call, result in context.answered():
        command = shell_command(call.name, call.arguments)
        if command is None:
            continue
        parsed = parse(command)
        done = effects(parsed, found.stood.get(call.id))
        if any(gone.covers(full) for gone in done.gone):
            used = False
        elif not is_error(call, result):
            pairs = [
                (s, here)
                for s, here in zip(parsed.simple, done.at, strict=True)
                if s.name not in LOOKERS
            ]
            used |= any(
                word == wrong or resolve(word, here) == full
                for s, here in pairs
                for word in (s.program, *s.words)
            )
    return used


def _would_show(call: ToolCall, wrong: str, stood: str | None) -> bool:
    """Whether a call lists the folder of a path or one above it, or searches for its name."""
    folder, name = posixpath.split(wrong)
    command = shell_command(call.name, call.arguments)
    if command is None:
        given = [
            v
            for v in (call.arguments.get("pattern"), call.arguments.get("path"))
            if isinstance(v, str)
        ]
        if call.name not in LISTERS or not given:
            return False
        pattern = posixpath.join(*reversed(given)) if len(given) > 1 else given[0]
        full = resolve(pattern, stood) or pattern
        return full == folder or (
            Gone(full, glob=True).covers(wrong)
            and fnmatch.fnmatchcase(name, posixpath.basename(full))
        )
    parsed, named = (
        parse(command),
        re.compile(rf"(?<![\w-]){re.escape(posixpath.splitext(name)[0])}(?![\w-])"),
    )
    for simple, here in zip(parsed.simple, effects(parsed, stood).at, strict=True):
        if not _lists(simple) and simple.name != "tree":
            continue
        starts = [resolve(word, here) for word in simple.operands if word != "ls-files"] or [here]
        deep = simple.name != "ls" or "-R" in simple.words
        if any(
            start and (start == folder or (deep and Gone(start).covers(wrong))) for start in starts
        ):
            return True
        if any(named.search(word) for word in simple.words):
            return True
    return False


def _operands(context: SiteContext, cwd: str | None) -> frozenset[str]:
    """The paths, in full, that a failing shell command names itself; none for another tool."""
    command = shell_command(context.call.name, context.call.arguments) if context.call else None
    words = (
        [word for simple in parse(command).simple for word in simple.operands]
        if command is not None
        else []
    )
    return frozenset(full for word in words if (full := resolve(word, cwd)) is not None)


def _with_folders(names: dict[str, str], *, name: str) -> Iterator[tuple[str, str]]:
    """The paths, in full and as named, and those of their folders that bear the name: where a file
    was seen, its folders exist."""
    for full, path in names.items():
        yield full, path
        told = path.rstrip("/")
        while "/" in full.strip("/") and "/" in told.strip("/"):
            full, told = posixpath.dirname(full), posixpath.dirname(told)
            if posixpath.basename(told) == name:
                yield full, told


def _nearness(wrong: str, path: str) -> float:
    """2-3: the same name in another place · 1-2: a name alike · 0: nothing that could be meant."""
    (folder, name), (other_folder, other) = posixpath.split(wrong), posixpath.split(path)
    (stem, ending), (other_stem, other_ending) = posixpath.splitext(name), posixpath.splitext(other)
    shared = difflib.SequenceMatcher(None, folder, other_folder).ratio()
    same_parent = posixpath.basename(folder) == posixpath.basename(other_folder)
    if name == other:
        return 2 + shared if same_parent or stem.lower() not in _EVERYWHERE else 0
    words, others = _words(stem), _words(other_stem)
    if bool(ending) != bool(other_ending) or not words or not others:
        return 0
    if words == others:  # another ending, or other capitals and hyphens
        return 1 + (1 + shared) / 2 if ending == other_ending or folder == other_folder else 0
    if ending != other_ending:
        return 0
    if len(words) == len(others):
        unlike = [(a, b) for a, b in zip(words, others, strict=True) if a != b]
        return 1 + (ALIKE + shared) / 2 if len(unlike) == 1 and _mistyped(*unlike[0]) else 0
    # a word of the one's name is the other's folder: git_operations.go, gitutil/operations.go
    more = set(words) ^ set(others)
    shorter, where = (others, other_folder) if len(others) < len(words) else (words, folder)
    told_by_folder = set(shorter) == set(words) & set(others) and any(
        word in posixpath.basename(where).lower() for word in more
    )
    return 1 + shared / 2 if told_by_folder and len(more) == 1 and not more & _COMPANION else 0


def _words(stem: str) -> list[str]:
    """The words of a name, without the s of a plural, e.g. _words("gitHooks_v2") == ["git", "hook",
    "v", "2"]."""
    return [word.lower().removesuffix("s") or "s" for word in _WORDS.findall(stem)]


def _mistyped(one: str, other: str) -> bool:
    return (
        not (one + other).isdigit() and difflib.SequenceMatcher(None, one, other).ratio() >= ALIKE
    )


def seen_paths(context: SiteContext) -> list[str]:
    """Every path that the context shows to exist, by a name that means it at the site, in the order
    seen."""
    return list(places(context).names.values())


def _paths_of(call: ToolCall, result: ToolResult) -> Iterator[str]:
    """Paths that a call shows which is no shell call."""
    if call.name in _FILE_TOOLS:
        yield from (v for k in PATH_KEYS if isinstance(v := call.arguments.get(k), str))
    elif call.name == "LS":
        yield from _tree(result.text)
    elif call.name in LISTERS:
        yield from _lines(result.text, _PATH_LINE)
    elif call.name in ("Grep", "grep", "search_files"):
        # a line of a file can look like a path
        content = call.arguments.get("output_mode") == "content"
        for line in result.text.splitlines():
            match = _GREP_LINE.match(line) or (None if content else _PATH_LINE.match(line))
            if match and "." in posixpath.basename(match.group(1)):
                yield match.group(1)


def _tree(text: str) -> Iterator[str]:
    """A listing in which what lies in a folder is indented below it and may be named without it."""
    folders: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = _PATH_LINE.match(line)
        if match is None:
            continue
        indent, path = len(line) - len(line.lstrip()), match.group(1)
        while folders and folders[-1][0] >= indent:
            folders.pop()
        path = (
            path
            if not folders or path.startswith(folders[-1][1])
            else posixpath.join(folders[-1][1], path)
        )
        if path.endswith("/"):
            folders.append((indent, path))
        yield path


def _paths_of_shell(command: Command, done: Effects, text: str) -> Iterator[tuple[str, str | None]]:
    """Programs run by path, and listings of `ls`, `find`, `git ls-files`, `rg --files`, `grep -l`,
    with where the shell stood.

    One listing command in the line, and nothing else that prints, or none is read.
    """
    simple = command.simple
    for one, here in zip(simple, done.at, strict=True):
        if done.certain and "/" in one.program and one.program not in one.open:
            yield one.program, here
    listing = [i for i, one in enumerate(simple) if _lists(one)]
    if len(listing) != 1:
        return
    at = listing[0]
    one, here = simple[at], done.at[at]
    rest = [other for i, other in enumerate(simple) if i != at]
    piped = [other for other in simple[at + 1 :] if other.before == "|"]
    if (
        any(other.name not in (_FILTERS if other in piped else _SILENT) for other in rest)
        or one.depth
        or one.writes
    ):
        return
    said = {" ".join(other.words) for other in rest if other.name == "echo"}
    lines = "\n".join(line for line in text.splitlines() if line.strip() not in said)
    yield from ((path, here) for path in _listed(one, lines))


def _listed(one: Simple, text: str) -> Iterator[str]:
    if one.name != "ls":
        yield from (p for p in _lines(text, _PATH_LINE) if "/" in p or "." in p)
        return
    folders, options = one.operands, "".join(w for w in one.words if w.startswith("-"))
    if len(folders) > 1 or any(f in one.open for f in folders) or "R" in options:
        return
    for line in text.splitlines():
        match = _LS_LONG.match(line) or _PATH_LINE.match(line)
        if not match or match.group(1) in (".", "..", "total"):
            continue
        name = match.group(1).rstrip("@*=|") if "F" in options else match.group(1)
        # a file, or the folder itself with -d
        if folders and name.rstrip("/") == folders[0].rstrip("/"):
            yield name
        else:
            yield posixpath.join(folders[0], name) if folders else name


def _lists(simple: Simple) -> bool:
    if simple.name in ("ls", "find", "fd"):
        return not any(
            w.startswith(("-printf", "-format", "-delete", "-exec")) for w in simple.words
        )
    if simple.name == "git":
        return simple.words[:1] == ("ls-files",) and not {"-d", "--deleted"} & set(simple.words)
    return (simple.name == "rg" and "--files" in simple.words) or (
        simple.name in ("grep", "rg") and any(re.fullmatch(r"-\w*l\w*", w) for w in simple.words)
    )


def _lines(text: str, pattern: re.Pattern[str]) -> Iterator[str]:
    for line in text.splitlines():
        match = pattern.match(line)
        if match:
            yield match.group(1)
