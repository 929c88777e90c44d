"""The effects of a shell line on paths: those it removes or moves, those it creates, and the folder
in which it leaves the shell.

    >>> traced = trace_effects(parse("cd src && git mv a.py b.py"), cwd="/w")
    >>> traced.removed, traced.created, traced.cwd
    ((RemovedPath(path='/w/src/a.py', glob=False),), ('/w/src/b.py',), '/w/src')

The effects are read from the line alone. If they are uncertain (`rm $X`, `xargs rm`, `git checkout
main`), every path that could be affected counts as removed: a hint names only paths that exist for
certain.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from dataclasses import dataclass, field

from composer_replication.data.sites.shell import SHELLS, Command, Simple, parse
from composer_replication.data.sites.shell_rules import REMOVERS, RUNNERS, word_set

MAKERS = word_set("touch mkdir tee")
_HOME = re.compile(r"^(?:/Users/[^/]+|/home/[^/]+|/root)(?=/|$)")
_TAKE_VALUE = {
    "mkdir": ("-m",),
    "touch": ("-d", "-r", "-t"),
    "mv": ("-S",),
    "cp": ("-S",),
    "git": ("-c", "--git-dir", "--work-tree"),
}
# Code that removes files from inside a program: which ones is unknown.
_CODE_REMOVES = re.compile(
    r"\b(?:os\.(?:remove|unlink|rename|replace|rmdir)|shutil\.(?:rmtree|move)|\.unlink\(|fs\.(?:rm|unlink|rename)\w*)"
)
# git commands that may remove tracked or untracked files.
_GIT_CHANGES = word_set("clean stash merge pull rebase cherry-pick revert am bisect")
_GIT_LOOKS = {"stash": ("list", "show", "drop"), "clean": ("-n", "--dry-run", "-nd", "-nfd", "-dn")}
_MAX_NESTED = 4


@dataclass(frozen=True, slots=True)
class RemovedPath:
    """A path that was removed, with everything in it; `glob`: a pattern; path "": any path may have
    been removed.

    >>> RemovedPath("/w/*.py", glob=True).covers("/w/a.py")
    True
    """

    path: str = ""
    glob: bool = False

    def covers(self, path: str) -> bool:
        """Whether a path, in the same spelling, is this one or lies in it."""
        if not self.path or path == self.path or path.startswith(self.path.rstrip("/") + "/"):
            return True
        if not self.glob:
            return False
        path_parts, pattern_parts = path.split("/"), self.path.split("/")
        if "**" in pattern_parts:
            return path.startswith(self.path.partition("**")[0])
        return len(path_parts) >= len(pattern_parts) and all(
            fnmatch.fnmatchcase(a, b) for a, b in zip(path_parts, pattern_parts, strict=False)
        )


ANYTHING = RemovedPath()


@dataclass(slots=True)
class Effects:
    """The effects of one line in order; `cwd` is the folder after it, None if that is unknown.

    `changes` holds removed paths and, as plain text, created ones. `certain`: if the line ended
    well, every part of it ran. `folders` is the folder of each command of `Command.simple`.
    """

    cwd: str | None
    changes: list[RemovedPath | str] = field(default_factory=list)
    folders: list[str | None] = field(default_factory=list)
    certain: bool = True

    @property
    def removed(self) -> tuple[RemovedPath, ...]:
        """The removed paths."""
        return tuple(c for c in self.changes if isinstance(c, RemovedPath))

    @property
    def created(self) -> tuple[str, ...]:
        """The paths that exist if the command succeeded."""
        return tuple(c for c in self.changes if isinstance(c, str))


def resolve(path: str, cwd: str | None) -> str | None:
    """Normalise a path, starting from `cwd` if it is relative; None if its folder is unknown.

    >>> resolve("../b.py", "/w/src"), resolve("b.py", None), resolve("~/b.py", "/home/me/w")
    ('/w/b.py', None, '/home/me/b.py')
    """
    if path.startswith("~"):
        home = _HOME.match(cwd or "")
        if home is None or path[1:2] not in ("", "/"):
            return None
        path = home.group() + path[1:]
    if path.startswith("/"):
        return posixpath.normpath(path)
    return None if cwd is None else posixpath.normpath(posixpath.join(cwd, path))


def trace_effects(command: Command, cwd: str | None, *, nested: int = 0) -> Effects:
    """Follow the simple commands of a line from a folder; a `cd` in a subshell does not move the
    shell."""
    effects = Effects(cwd, certain=all(op == "&&" for op in command.operators))
    if _CODE_REMOVES.search(command.text):
        effects.changes.append(ANYTHING)
    open_folders: list[str | None] = [cwd]
    for simple in command.simple:
        while len(open_folders) > simple.depth + 1:
            open_folders.pop()
        while len(open_folders) <= simple.depth:
            open_folders.append(open_folders[-1])
        folder = open_folders[-1]
        effects.folders.append(folder)
        open_folders[-1] = _folder_after(simple, folder)
        _add_changes(simple, folder, effects)
        if (script := _script_of(simple)) is not None and nested < _MAX_NESTED:
            inner = trace_effects(parse(script), folder, nested=nested + 1)
            effects.changes += inner.changes
            effects.certain &= inner.certain
        effects.changes += [
            path
            for target in simple.writes
            if target not in simple.open and (path := resolve(target, folder))
        ]
    effects.cwd = open_folders[0]
    return effects


def _folder_after(simple: Simple, folder: str | None) -> str | None:
    if simple.name not in ("cd", "pushd", "popd"):
        return folder
    targets = [w for w in simple.words if w not in ("-P", "-L", "--")]
    if simple.name == "popd" or len(targets) != 1 or targets[0] in simple.open or targets[0] == "-":
        return resolve("~", folder) if simple.name == "cd" and not targets else None
    return resolve(targets[0], folder)


def _script_of(simple: Simple) -> str | None:
    """The command line inside `bash -c '...'` or `eval '...'`; None for any other command."""
    if simple.name in SHELLS and "-c" in simple.words[:-1]:
        return simple.words[simple.words.index("-c") + 1]
    return simple.program if "eval" in simple.wrappers and " " in simple.program else None


def _operands(simple: Simple, words: tuple[str, ...] | None = None) -> list[str]:
    """The words that are neither options nor values of options; behind `--`, all words."""
    operands, only_operands, skip = list[str](), False, False
    for word in simple.words if words is None else words:
        if skip:
            skip = False
        elif only_operands or not word.startswith("-") or word == "-":
            operands.append(word)
        elif word == "--":
            only_operands = True
        else:
            skip = word in _TAKE_VALUE.get(simple.name, ())
    return operands


def _add_changes(simple: Simple, folder: str | None, effects: Effects) -> None:
    """Add what one simple command removes and creates."""
    name = simple.name
    if "xargs" in simple.wrappers and (name in REMOVERS or name == "git"):
        effects.changes.append(ANYTHING)
    elif name == "mv":
        _add_moved(simple, _operands(simple), folder, effects)
    elif name in REMOVERS:
        _add_removed(simple, _operands(simple), folder, effects)
    elif name in MAKERS:
        effects.changes += [
            path
            for word in _operands(simple)
            if word not in simple.open and (path := resolve(word, folder))
        ]
    elif name == "cp":
        _add_created(simple, _operands(simple), folder, effects)
    elif name == "git":
        _add_git(simple, folder, effects)
    elif name in ("find", "fd"):
        _add_find(simple, folder, effects)
    elif (name == "rsync" and any(w.startswith(("--del", "--remove")) for w in simple.words)) or (
        name in RUNNERS | {"cargo"} and any("clean" in w for w in simple.words)
    ):
        effects.changes.append(ANYTHING)


def _add_removed(simple: Simple, words: list[str], folder: str | None, effects: Effects) -> None:
    for word in words:
        effects.changes.append(
            _removed_path(word, folder, is_open=word in simple.open, is_glob=word in simple.globs)
        )


def _removed_path(word: str, folder: str | None, *, is_open: bool, is_glob: bool) -> RemovedPath:
    # The part before a variable or a brace is certain: `rm /tmp/x/$F` stays in /tmp/x.
    if is_open and not is_glob:
        start = re.split(r"[$`{]", word, maxsplit=1)[0]
        path = (
            resolve(start.rpartition("/")[0], folder)
            if start.startswith("/") and start.count("/") > 1
            else None
        )
        return RemovedPath(path) if path else ANYTHING
    path = resolve(word, folder)
    return RemovedPath(path, is_glob) if path is not None else ANYTHING


def _sources_and_target(simple: Simple, words: list[str]) -> tuple[list[str], str]:
    """Split the operands of cp and mv into sources and target: `mv a b dir`, `mv -t dir a b`, `mv
    --target-directory=dir a b`."""
    for i, word in enumerate(simple.words):
        if word == "-t" and i + 1 < len(simple.words):
            return [w for w in words if w != simple.words[i + 1]], simple.words[i + 1] + "/"
        if word.startswith("--target-directory="):
            return words, word.partition("=")[2] + "/"
    return (words[:-1], words[-1]) if len(words) > 1 else (words, "")


def _add_created(simple: Simple, words: list[str], folder: str | None, effects: Effects) -> None:
    """Add what a copy or a move creates: the target and, if that is certainly a folder, the
    sources' names in it."""
    sources, target = _sources_and_target(simple, words)
    if (
        not target
        or target.rstrip("/") in simple.open
        or target in simple.open
        or (path := resolve(target, folder)) is None
    ):
        return
    effects.changes.append(path)
    if target.endswith("/") or len(sources) > 1:
        effects.changes += [
            posixpath.join(path, posixpath.basename(s.rstrip("/")))
            for s in sources
            if s not in simple.open
        ]


def _add_moved(simple: Simple, words: list[str], folder: str | None, effects: Effects) -> None:
    sources, _ = _sources_and_target(simple, words)
    _add_removed(simple, sources, folder, effects)
    _add_created(simple, words, folder, effects)


def _add_find(simple: Simple, folder: str | None, effects: Effects) -> None:
    """Add what `find ... -delete` and `-exec rm` remove: all below the folders where it starts."""
    words = simple.words
    programs = [
        posixpath.basename(words[i + 1])
        for i, w in enumerate(words[:-1])
        if w in ("-exec", "-execdir", "-ok", "-x", "-X")
    ]
    if "-delete" not in words and not any(
        program in REMOVERS or program in SHELLS for program in programs
    ):
        return
    starts: list[str] = []
    for word in words:
        if word.startswith(("-", "(", "!")):
            break
        starts.append(word)
    _add_removed(simple, starts if starts and simple.name == "find" else ["."], folder, effects)


def _add_git(simple: Simple, folder: str | None, effects: Effects) -> None:
    words, base = list(simple.words), folder
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in ("-C", *_TAKE_VALUE["git"]) and words:
            value = words.pop(0)
            base = (
                (resolve(value, base) if value not in simple.open else None)
                if option == "-C"
                else base
            )
    verb, arguments = (words[0], tuple(words[1:])) if words else ("", ())
    operands = _operands(simple, arguments)
    if verb == "rm" and "--cached" not in arguments:
        _add_removed(simple, operands, base, effects)
    elif verb == "mv":
        _add_moved(simple, operands, base, effects)
    elif verb == "reset":
        effects.changes += [ANYTHING] * ("--hard" in arguments or "--merge" in arguments)
    elif verb == "restore":  # from another commit, where the file may not have been
        _add_removed(
            simple,
            operands if any(w.startswith(("-s", "--source")) for w in arguments) else [],
            base,
            effects,
        )
    elif verb in ("checkout", "switch"):
        creates = any(w in ("-b", "-B", "-c", "-C", "--orphan") for w in arguments)
        if "--" not in arguments and (len(operands) > 1 if creates else operands != ["."]):
            effects.changes.append(ANYTHING)  # another commit: its files are others
    elif verb in ("worktree", "submodule"):
        effects.changes += [ANYTHING] * bool({"remove", "move", "prune", "deinit"} & set(arguments))
    elif verb in _GIT_CHANGES and not set(arguments) & set(_GIT_LOOKS.get(verb, ())):
        effects.changes.append(ANYTHING)
