"""The facts that the context has shown: paths that exist, files that were read, and the folder of
the shell.

Only evidence counts: a path is known from the moment when a tool listed it or read it without error
until anything may have removed it; a mention in text does not count. Paths are resolved against the
folder of the shell at the time; a relative name is offered only if it means the same at the site.
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
from composer_replication.data.sites.effects import (
    ANYTHING,
    Effects,
    RemovedPath,
    resolve,
    trace_effects,
)
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
"""If more known files than this have the wrong path's file name, only those in a folder of the
same name are offered."""
RECENT_TURNS = 12
"""A file that was read at most this many turns ago is not what the model is looking for."""
MAX_CHANGES = 500
"""A log is untrusted: a line with more changes counts as removing everything."""
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
# The shell of these tools keeps its folder between calls; any other tool starts in its own folder.
_SHELL_STAYS = frozenset(("Bash", "bash"))
_PATH_LINE = re.compile(r"^\s*(?:- )?((?:~|\.{0,2})?/?[\w@.+~-]+(?:/[\w@.+~-]+)*/?)\s*$")
_GREP_LINE = re.compile(r"^((?:/|\./)?[\w@.+~-]+(?:/[\w@.+~-]+)*\.\w+)(?::\d+(?::|$)|-\d+-)")
_LS_LONG = re.compile(
    r"^[-dl][rwxstST-]{9}\S*\s+\d+\s+\S+\s+\S+\s+[\d,.]+\w?\s+.{6,20}?\s(\S+)(?: -> .*)?$"
)
_CWD = re.compile(
    r"(?:Shell cwd was reset to|current working directory is) ([^\s<]+?)\.?(?=\s|<|$)"
)
# File names that occur in many folders: such a file is offered in place of a namesake only if their
# folders have the same name, too.
_EVERYWHERE = word_set("""
    index main mod lib default __init__ __main__ readme package config utils util types constants
    skill agents claude makefile dockerfile app conftest go page layout route style styles schema
    helpers common test tests plugin settings .gitignore .env
""")
# A file whose name has one of these words in addition is a companion, not a misspelling.
_COMPANION = word_set(
    "test tests spec specs mock mocks types type stories story fixture fixtures example examples"
    " bak old new"
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_SHELL_READERS = word_set("cat head tail nl less bat sed")
READERS = frozenset(("Read", "NotebookRead", "read", "read_file", "view"))
# Commands that print nothing beside a listing, or pass its lines on unchanged.
_SILENT = word_set("cd pushd export set true : mkdir touch chmod sleep echo")
_FILTERS = word_set("head tail sort uniq grep egrep rg")


@dataclass(slots=True)
class Places:
    """The folder of the shell at a site (None: unknown), the paths that exist, and those refused as
    missing.

    `names` maps a full path to the name by which it was shown and that still means it, e.g.
    {"/w/src/a.py": "src/a.py"}. `folder_of_call` is the folder in which each call ran, by call id;
    `read` the turn in which a file tool last read or changed a file, by full path.
    """

    cwd: str | None
    names: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    folder_of_call: dict[str, str | None] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)


def track_places(context: SiteContext) -> Places:
    """Follow the session up to the site. A path exists once a call in view has shown it, until any
    call, in view or not, removes it."""
    in_view = {call.id: result for call, result in context.answered_calls()}
    answered = [
        ref
        for ref in context.calls.values()
        if ref.result_turn is not None and ref.turn < ref.result_turn < context.site.turn
    ]
    cwd: str | None = context.session.cwd
    shown: dict[str, tuple[str, str | None]] = {}
    refused: set[str] = set()
    places = Places(cwd=None)
    for ref in sorted(answered, key=lambda ref: (ref.result_turn or 0, ref.turn)):
        result = in_view.get(ref.call.id)
        places.folder_of_call[ref.call.id] = _start_folder(ref.call, cwd, context.session.cwd)
        cwd = _apply_call(
            ref, result, cwd=cwd, home=context.session.cwd, shown=shown, refused=refused
        )
        succeeded = (
            result is not None and result.text != CLEARED_TEXT and not is_error(ref.call, result)
        )
        if (
            succeeded
            and ref.call.name in _FILE_TOOLS
            and (full := resolve(path_argument(ref.call), context.session.cwd))
        ):
            places.read[full] = ref.result_turn or 0
    # A relative name is valid only if the shell is in the folder in which it was shown; else the
    # full path is used, unless that is unknown, too.
    named: dict[str, str] = {}
    for full, (name, start) in shown.items():
        displayed = name if name.startswith(("/", "~")) or start == cwd else full
        if displayed.startswith(("/", "~")) or start == cwd or not cwd:
            named[full] = displayed
    places.cwd, places.names, places.refused = cwd, named, refused - named.keys()
    return places


def _apply_call(
    ref: CallRef,
    in_view: ToolResult | None,
    *,
    cwd: str | None,
    home: str,
    shown: dict[str, tuple[str, str | None]],
    refused: set[str],
) -> str | None:
    """Apply the changes of one answered call, and what it shows, to `shown` and `refused`; return
    the folder of the shell after it."""
    call, result = ref.call, ref.result
    assert result is not None
    failed = is_error(call, result)
    command = shell_command(call.name, call.arguments)
    start_folder, effects = cwd, Effects(cwd)
    if command is not None:
        start_folder = _start_folder(call, cwd, home)
        effects = trace_effects(parse(command), start_folder)
        cwd = _folder_after_call(call, parse(command), effects, cwd=cwd, failed=failed)
    elif call.name not in _FILE_TOOLS and _REMOVING_TOOL.search(call.name):
        effects.changes += [
            RemovedPath(full)
            for value in call.arguments.values()
            if isinstance(value, str) and (full := resolve(value, cwd))
        ]
    # 1. The changes of the call. A removal counts even if the call failed or is out of view: the
    #    path may be gone. A creation counts only if it is certain and the model saw the call.
    for change in effects.changes if len(effects.changes) <= MAX_CHANGES else [ANYTHING]:
        if isinstance(change, RemovedPath):
            for path in [path for path in shown if change.covers(path)]:
                del shown[path]
        elif in_view is not None and not failed and effects.certain:
            shown[change] = (change, start_folder)
    # 2. The paths that its result shows, or the path that its refusal reports as missing.
    if in_view is not None and in_view.text != CLEARED_TEXT and not failed:
        paths = (
            _shell_paths(parse(command), effects, in_view.text)
            if command is not None
            else ((p, start_folder) for p in _shown_paths(call, in_view))
        )
        for path, start in paths:
            if (full := resolve(path.rstrip("/") or "/", start)) is not None:
                if full not in shown or shown[full][1] != start or len(path) < len(shown[full][0]):
                    shown[full] = (path, start)
                refused.discard(full)
    elif failed and (missing := _missing_path(call, result, cwd=start_folder)):
        # The refusal overrides what was shown before: the path does not exist now.
        for path in [path for path in shown if RemovedPath(missing).covers(path)]:
            del shown[path]
        if in_view is not None and command is None:
            refused.add(missing)
    # 3. The agent program's own report of the folder overrides what we tracked.
    reported = _CWD.findall(result.text[-400:]) if command is not None or failed else []
    return str(reported[-1]) if reported else cwd


def _start_folder(call: ToolCall, cwd: str | None, home: str) -> str | None:
    """The folder in which a call runs: that of a lasting shell, else the one that the call names,
    else the session's."""
    if call.name in _SHELL_STAYS:
        return cwd
    workdir = call.arguments.get("workdir")
    return resolve(workdir, home) if isinstance(workdir, str) else home


def _folder_after_call(
    call: ToolCall, command: Command, effects: Effects, *, cwd: str | None, failed: bool
) -> str | None:
    if call.name not in _SHELL_STAYS or effects.cwd == cwd:
        return cwd
    return effects.cwd if not failed and _moved_for_certain(command, cwd) else None


def _moved_for_certain(command: Command, before: str | None) -> bool:
    """Whether a line that ended well has certainly moved the shell to the target of its `cd`: no
    operator can hide a failure, and the `cd` does not repeat an earlier one.

    After `cd web`, a second `cd web` fails. If it does not, the shell was reset in between, and its
    folder was not the one that we tracked.
    """
    targets = [
        s.operands[0]
        for s in command.simple
        if s.name in ("cd", "pushd") and not s.depth and s.operands
    ]
    relative = [
        target.removeprefix("./").rstrip("/")
        for target in targets
        if not target.startswith(("/", "~", ".."))
    ]
    repeats_move = before is not None and any(
        f"{before}/".endswith(f"/{target}/") for target in relative[:1]
    )
    return not relative or (set(command.operators) <= {"&&", "|", "|&"} and not repeats_move)


def _missing_path(call: ToolCall, result: ToolResult, *, cwd: str | None) -> str:
    """The full path that a refusal reports as missing; for a shell line only an absolute path,
    because the line may have changed the folder."""
    verdict = judge(call, result)
    if verdict.kind not in (PATH_EXPLORED, *PATH_STATED):
        return ""
    is_shell = shell_command(call.name, call.arguments) is not None
    path = verdict.subject if is_shell else path_argument(call)
    return (
        ""
        if not path or (is_shell and (not path.startswith("/") or "*" in path))
        else resolve(path.rstrip("/") or "/", cwd) or ""
    )


def path_argument(call: ToolCall) -> str:
    """The path among the arguments of a call; "" if it has none."""
    value = next((call.arguments[k] for k in PATH_KEYS if k in call.arguments), "")
    return value if isinstance(value, str) else ""


def wrong_path(context: SiteContext) -> str:
    """The path that the mistaken call named: in a shell the subject of the error, else the path
    argument."""
    if context.call is None:
        return ""
    return context.subject if context.command is not None else path_argument(context.call)


def _resolve_wrong_path(context: SiteContext, wrong: str, cwd: str | None) -> tuple[str, bool]:
    """Resolve the wrong path against the folder in which it was used (`cd src && cat a.py` means
    src/a.py); also return whether it was to be executed."""
    command = context.command
    full = resolve(wrong.rstrip("/") or "/", cwd) or posixpath.normpath(wrong)
    if command is not None:
        parsed = parse(command)
        for simple, folder in zip(parsed.simple, trace_effects(parsed, cwd).folders, strict=True):
            if resolve(simple.program, folder) == full or wrong == simple.program:
                return resolve(simple.program, folder) or full, True
            if wrong in (*simple.words, *simple.redirects):
                return resolve(wrong.rstrip("/") or "/", folder) or full, False
    return full, False


def known_paths_near(context: SiteContext, *, limit: int = MAX_PATHS) -> list[str]:
    """List the known paths that the wrong one may have meant, the likeliest first.

    A candidate has the same file or folder name in another place, or a name that differs in
    spelling, in a letter, or by a word.
    """
    wrong = wrong_path(context)
    if not wrong:
        return []
    places = track_places(context)
    wrong_full, is_program = _resolve_wrong_path(context, wrong, places.cwd)
    scored: dict[str, tuple[float, str]] = {}
    already_named = _operand_paths(context, places.cwd)  # the failing command names these already
    just_read = (
        {full for full, turn in places.read.items() if context.site.turn - turn <= RECENT_TURNS}
        if _reads_files(context)
        else set[str]()
    )
    candidates = (
        places.names.items()
        if is_program
        else _with_folders(places.names, name=posixpath.basename(wrong_full))
    )
    for full, path in candidates:
        score = _nearness(wrong_full, full) if full not in just_read else 0
        # The name that failed would be no help: give the full path.
        path = full if path.rstrip("/") == wrong.rstrip("/") else path
        if (
            score > 0
            and full != wrong_full
            and full not in already_named
            and (full not in scored or len(path) < len(scored[full][1]))
        ):
            scored[full] = (score, path)
    best = sorted(scored.items(), key=lambda item: (-item[1][0], item[1][1]))
    if best and best[0][1][0] >= 2:  # a real namesake exists: similar names would hide it
        best = [item for item in best if item[1][0] >= 2]
        folder = posixpath.basename(posixpath.dirname(wrong_full))
        if len(best) > MAX_NAMESAKES:
            best = [
                item for item in best if posixpath.basename(posixpath.dirname(item[0])) == folder
            ]
    return [path for _, (_, path) in best[:limit]]


def _reads_files(context: SiteContext) -> bool:
    """Whether the mistaken call only reads a file."""
    if context.command is None:
        return context.call is not None and context.call.name in READERS
    return all(s.name in _SHELL_READERS for s in parse(context.command).simple)


def was_refused(context: SiteContext) -> bool:
    """Whether a call in view was refused because this path was missing, and no call has shown it
    since."""
    places = track_places(context)
    return _resolve_wrong_path(context, wrong_path(context), places.cwd)[0] in places.refused


def was_looked_for(context: SiteContext) -> bool:
    """Whether a listing or a search is in view that would have shown the wrong path."""
    places = track_places(context)
    wrong, _ = _resolve_wrong_path(context, wrong_path(context), places.cwd)
    return any(
        _would_show(call, wrong, places.folder_of_call.get(call.id))
        for call, result in context.answered_calls()
        if not is_error(call, result)
    )


def was_used(context: SiteContext) -> bool:
    """Whether the wrong path was shown above, or a successful shell line used it and nothing has
    removed it since."""
    wrong, places = wrong_path(context), track_places(context)
    full, _ = _resolve_wrong_path(context, wrong, places.cwd)
    is_used = full in places.names
    for call, result in context.answered_calls():
        command = shell_command(call.name, call.arguments)
        if command is None:
            continue
        parsed = parse(command)
        effects = trace_effects(parsed, places.folder_of_call.get(call.id))
        if any(removed.covers(full) for removed in effects.removed):
            is_used = False
        elif not is_error(call, result):
            pairs = [
                (s, folder)
                for s, folder in zip(parsed.simple, effects.folders, strict=True)
                if s.name not in LOOKERS
            ]
            is_used |= any(
                word == wrong or resolve(word, folder) == full
                for s, folder in pairs
                for word in (s.program, *s.words)
            )
    return is_used


def _would_show(call: ToolCall, wrong: str, start_folder: str | None) -> bool:
    """Whether a call lists the folder of a path or one above it, or searches for its name."""
    folder, name = posixpath.split(wrong)
    command = shell_command(call.name, call.arguments)
    if command is None:
        patterns = [
            v
            for v in (call.arguments.get("pattern"), call.arguments.get("path"))
            if isinstance(v, str)
        ]
        if call.name not in LISTERS or not patterns:
            return False
        pattern = posixpath.join(*reversed(patterns)) if len(patterns) > 1 else patterns[0]
        full = resolve(pattern, start_folder) or pattern
        return full == folder or (
            RemovedPath(full, glob=True).covers(wrong)
            and fnmatch.fnmatchcase(name, posixpath.basename(full))
        )
    parsed, name_pattern = (
        parse(command),
        re.compile(rf"(?<![\w-]){re.escape(posixpath.splitext(name)[0])}(?![\w-])"),
    )
    for simple, cwd in zip(parsed.simple, trace_effects(parsed, start_folder).folders, strict=True):
        if not _is_listing(simple) and simple.name != "tree":
            continue
        starts = [resolve(word, cwd) for word in simple.operands if word != "ls-files"] or [cwd]
        is_recursive = simple.name != "ls" or "-R" in simple.words
        if any(
            start and (start == folder or (is_recursive and RemovedPath(start).covers(wrong)))
            for start in starts
        ):
            return True
        if any(name_pattern.search(word) for word in simple.words):
            return True
    return False


def _operand_paths(context: SiteContext, cwd: str | None) -> frozenset[str]:
    """The full paths that a failing shell command names; none for another tool."""
    command = context.command
    words = (
        [word for simple in parse(command).simple for word in simple.operands]
        if command is not None
        else []
    )
    return frozenset(full for word in words if (full := resolve(word, cwd)) is not None)


def _with_folders(names: dict[str, str], *, name: str) -> Iterator[tuple[str, str]]:
    """Yield the paths, in full and as shown, and those of their folders that have the name: the
    folders of a file that was shown exist, too."""
    for full, path in names.items():
        yield full, path
        displayed = path.rstrip("/")
        while "/" in full.strip("/") and "/" in displayed.strip("/"):
            full, displayed = posixpath.dirname(full), posixpath.dirname(displayed)
            if posixpath.basename(displayed) == name:
                yield full, displayed


def _nearness(wrong: str, path: str) -> float:
    """Score a candidate: 2-3 for the same name in another place, 1-2 for a similar name, 0 for a
    path that cannot be meant."""
    (folder, name), (other_folder, other_name) = posixpath.split(wrong), posixpath.split(path)
    (stem, ending), (other_stem, other_ending) = (
        posixpath.splitext(name),
        posixpath.splitext(other_name),
    )
    shared = difflib.SequenceMatcher(None, folder, other_folder).ratio()
    same_parent = posixpath.basename(folder) == posixpath.basename(other_folder)
    if name == other_name:
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
    # A word of one name is the other's folder: git_operations.go, gitutil/operations.go.
    extra = set(words) ^ set(others)
    shorter, folder_of_shorter = (
        (others, other_folder) if len(others) < len(words) else (words, folder)
    )
    is_told_by_folder = set(shorter) == set(words) & set(others) and any(
        word in posixpath.basename(folder_of_shorter).lower() for word in extra
    )
    return 1 + shared / 2 if is_told_by_folder and len(extra) == 1 and not extra & _COMPANION else 0


def _words(stem: str) -> list[str]:
    """Split a name into words, without the s of a plural.

    >>> _words("gitHooks_v2")
    ['git', 'hook', 'v', '2']
    """
    return [word.lower().removesuffix("s") or "s" for word in _WORDS.findall(stem)]


def _mistyped(left: str, right: str) -> bool:
    return (
        not (left + right).isdigit() and difflib.SequenceMatcher(None, left, right).ratio() >= ALIKE
    )


def seen_paths(context: SiteContext) -> list[str]:
    """List every path that the context shows to exist, by a name that is valid at the site."""
    return list(track_places(context).names.values())


def _shown_paths(call: ToolCall, result: ToolResult) -> Iterator[str]:
    """Yield the paths that a call of a tool other than a shell shows."""
    if call.name in _FILE_TOOLS:
        yield from (v for k in PATH_KEYS if isinstance(v := call.arguments.get(k), str))
    elif call.name == "LS":
        yield from _tree_paths(result.text)
    elif call.name in LISTERS:
        yield from _match_lines(result.text, _PATH_LINE)
    elif call.name in ("Grep", "grep", "search_files"):
        # In this mode a line of a file can look like a path.
        content = call.arguments.get("output_mode") == "content"
        for line in result.text.splitlines():
            match = _GREP_LINE.match(line) or (None if content else _PATH_LINE.match(line))
            if match and "." in posixpath.basename(match.group(1)):
                yield match.group(1)


def _tree_paths(text: str) -> Iterator[str]:
    """Yield the paths of an indented listing, in which entries may be named without their
    folder."""
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


def _shell_paths(command: Command, effects: Effects, text: str) -> Iterator[tuple[str, str | None]]:
    """Yield programs run by path, and the paths of listings (`ls`, `find`, `git ls-files`, `rg
    --files`, `grep -l`), with the folder of the shell.

    A listing is read only if it is the single command of the line that prints.
    """
    simple = command.simple
    for listing_command, folder in zip(simple, effects.folders, strict=True):
        if (
            effects.certain
            and "/" in listing_command.program
            and listing_command.program not in listing_command.open
        ):
            yield listing_command.program, folder
    listing = [i for i, listing_command in enumerate(simple) if _is_listing(listing_command)]
    if len(listing) != 1:
        return
    position = listing[0]
    listing_command, folder = simple[position], effects.folders[position]
    other_commands = [other for i, other in enumerate(simple) if i != position]
    piped = [other for other in simple[position + 1 :] if other.before == "|"]
    if (
        any(other.name not in (_FILTERS if other in piped else _SILENT) for other in other_commands)
        or listing_command.depth
        or listing_command.writes
    ):
        return
    echoed = {" ".join(other.words) for other in other_commands if other.name == "echo"}
    lines = "\n".join(line for line in text.splitlines() if line.strip() not in echoed)
    yield from ((path, folder) for path in _listed_paths(listing_command, lines))


def _listed_paths(listing_command: Simple, text: str) -> Iterator[str]:
    if listing_command.name != "ls":
        yield from (p for p in _match_lines(text, _PATH_LINE) if "/" in p or "." in p)
        return
    folders, options = (
        listing_command.operands,
        "".join(w for w in listing_command.words if w.startswith("-")),
    )
    if len(folders) > 1 or any(f in listing_command.open for f in folders) or "R" in options:
        return
    for line in text.splitlines():
        match = _LS_LONG.match(line) or _PATH_LINE.match(line)
        if not match or match.group(1) in (".", "..", "total"):
            continue
        name = match.group(1).rstrip("@*=|") if "F" in options else match.group(1)
        # The operand is a file, or with -d the folder itself.
        if folders and name.rstrip("/") == folders[0].rstrip("/"):
            yield name
        else:
            yield posixpath.join(folders[0], name) if folders else name


def _is_listing(simple: Simple) -> bool:
    if simple.name in ("ls", "find", "fd"):
        return not any(
            w.startswith(("-printf", "-format", "-delete", "-exec")) for w in simple.words
        )
    if simple.name == "git":
        return simple.words[:1] == ("ls-files",) and not {"-d", "--deleted"} & set(simple.words)
    return (simple.name == "rg" and "--files" in simple.words) or (
        simple.name in ("grep", "rg") and any(re.fullmatch(r"-\w*l\w*", w) for w in simple.words)
    )


def _match_lines(text: str, pattern: re.Pattern[str]) -> Iterator[str]:
    for line in text.splitlines():
        match = pattern.match(line)
        if match:
            yield match.group(1)
