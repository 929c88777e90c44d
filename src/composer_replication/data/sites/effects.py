"""What a shell line does to paths: which it removes or moves away, which it makes, and where the
shell stands afterwards.

    effects(parse("cd src && git mv a.py b.py"), cwd="/w")
    -> Effects(gone=(Gone("/w/src/a.py"),), made=("/w/src/b.py",), cwd="/w/src")

Read from the line alone. Where it cannot be told (`rm $X`, `xargs rm`, `git checkout main`)
everything that could be meant counts as gone: a path is named to a model only where it is there for
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
# Code that removes files from inside a program: of what it removes nothing is known.
_CODE_REMOVES = re.compile(
    r"\b(?:os\.(?:remove|unlink|rename|replace|rmdir)|shutil\.(?:rmtree|move)|\.unlink\(|fs\.(?:rm|unlink|rename)\w*)"
)
# git commands after which tracked or untracked files may be gone.
_GIT_CHANGES = word_set("clean stash merge pull rebase cherry-pick revert am bisect")
_GIT_LOOKS = {"stash": ("list", "show", "drop"), "clean": ("-n", "--dry-run", "-nd", "-nfd", "-dn")}
_MAX_NESTED = 4


@dataclass(frozen=True, slots=True)
class Gone:
    """A path that is no more, with what was in it; `glob`: a pattern; path "" = nobody knows what:
    everything may be meant.

    Example: Gone("/w/*.py", glob=True).covers("/w/a.py") -> True
    """

    path: str = ""
    glob: bool = False

    def covers(self, path: str) -> bool:
        """Whether a path, in the same spelling, is it or lies in it."""
        if not self.path or path == self.path or path.startswith(self.path.rstrip("/") + "/"):
            return True
        if not self.glob:
            return False
        parts, wanted = path.split("/"), self.path.split("/")
        if "**" in wanted:
            return path.startswith(self.path.partition("**")[0])
        return len(parts) >= len(wanted) and all(
            fnmatch.fnmatchcase(a, b) for a, b in zip(parts, wanted, strict=False)
        )


ANYTHING = Gone()


@dataclass(slots=True)
class Effects:
    """The effects of one line in order; `cwd` is where it ends, None where that is not known.

    `certain`: every part of it ran if the line ended well; `at` is where each simple command stood,
    as in `Command.simple`.
    """

    cwd: str | None
    changes: list[Gone | str] = field(default_factory=list)
    at: list[str | None] = field(default_factory=list)
    certain: bool = True

    @property
    def gone(self) -> tuple[Gone, ...]:
        """What is no longer there."""
        return tuple(c for c in self.changes if isinstance(c, Gone))

    @property
    def made(self) -> tuple[str, ...]:
        """What is there now, if the line ended well."""
        return tuple(c for c in self.changes if isinstance(c, str))


def resolve(path: str, cwd: str | None) -> str | None:
    """A path without `.` and `..`, from `cwd` where it is relative; None where that cannot be told.

    >>> resolve("../b.py", "/w/src"), resolve("b.py", None), resolve("~/b.py", "/home/me/w"), resolve("a.py", "")
    ('/w/b.py', None, '/home/me/b.py', 'a.py')
    """
    if path.startswith("~"):
        home = _HOME.match(cwd or "")
        if home is None or path[1:2] not in ("", "/"):
            return None
        path = home.group() + path[1:]
    if path.startswith("/"):
        return posixpath.normpath(path)
    return None if cwd is None else posixpath.normpath(posixpath.join(cwd, path))


def effects(command: Command, cwd: str | None, *, nested: int = 0) -> Effects:
    """Follow the simple commands of a line from a folder; one in a subshell does not move the
    shell."""
    done = Effects(cwd, certain=all(op == "&&" for op in command.operators))
    if _CODE_REMOVES.search(command.text):
        done.changes.append(ANYTHING)
    inside: list[str | None] = [cwd]
    for simple in command.simple:
        while len(inside) > simple.depth + 1:
            inside.pop()
        while len(inside) <= simple.depth:
            inside.append(inside[-1])
        here = inside[-1]
        done.at.append(here)
        inside[-1] = _moved(simple, here)
        _change(simple, here, done)
        if (script := _script_of(simple)) is not None and nested < _MAX_NESTED:
            inner = effects(parse(script), here, nested=nested + 1)
            done.changes += inner.changes
            done.certain &= inner.certain
        done.changes += [
            path
            for target in simple.writes
            if target not in simple.open and (path := resolve(target, here))
        ]
    done.cwd = inside[0]
    return done


def _moved(simple: Simple, here: str | None) -> str | None:
    if simple.name not in ("cd", "pushd", "popd"):
        return here
    to = [w for w in simple.words if w not in ("-P", "-L", "--")]
    if simple.name == "popd" or len(to) != 1 or to[0] in simple.open or to[0] == "-":
        return resolve("~", here) if simple.name == "cd" and not to else None
    return resolve(to[0], here)


def _script_of(simple: Simple) -> str | None:
    """The line that `bash -c '...'` and `eval '...'` run."""
    if simple.name in SHELLS and "-c" in simple.words[:-1]:
        return simple.words[simple.words.index("-c") + 1]
    return simple.program if "eval" in simple.wrappers and " " in simple.program else None


def _operands(simple: Simple, words: tuple[str, ...] | None = None) -> list[str]:
    """The words that are not options: all of them behind `--`, and no option's value."""
    found, literal, skip = list[str](), False, False
    for word in simple.words if words is None else words:
        if skip:
            skip = False
        elif literal or not word.startswith("-") or word == "-":
            found.append(word)
        elif word == "--":
            literal = True
        else:
            skip = word in _TAKE_VALUE.get(simple.name, ())
    return found


def _change(simple: Simple, here: str | None, done: Effects) -> None:
    """What one simple command removes and makes."""
    name = simple.name
    if "xargs" in simple.wrappers and (name in REMOVERS or name == "git"):
        done.changes.append(ANYTHING)
    elif name == "mv":
        _move(simple, _operands(simple), here, done)
    elif name in REMOVERS:
        _remove(simple, _operands(simple), here, done)
    elif name in MAKERS:
        done.changes += [
            path
            for word in _operands(simple)
            if word not in simple.open and (path := resolve(word, here))
        ]
    elif name == "cp":
        _put(simple, _operands(simple), here, done)
    elif name == "git":
        _git(simple, here, done)
    elif name in ("find", "fd"):
        _find(simple, here, done)
    elif (name == "rsync" and any(w.startswith(("--del", "--remove")) for w in simple.words)) or (
        name in RUNNERS | {"cargo"} and any("clean" in w for w in simple.words)
    ):
        done.changes.append(ANYTHING)


def _remove(simple: Simple, words: list[str], here: str | None, done: Effects) -> None:
    for word in words:
        done.changes.append(
            _gone(word, here, opened=word in simple.open, glob=word in simple.globs)
        )


def _gone(word: str, here: str | None, *, opened: bool, glob: bool) -> Gone:
    # what stands in front of a variable or a brace is certain: `rm /tmp/x/$F` stays in /tmp/x
    if opened and not glob:
        start = re.split(r"[$`{]", word, maxsplit=1)[0]
        path = (
            resolve(start.rpartition("/")[0], here)
            if start.startswith("/") and start.count("/") > 1
            else None
        )
        return Gone(path) if path else ANYTHING
    path = resolve(word, here)
    return Gone(path, glob) if path is not None else ANYTHING


def _target(simple: Simple, words: list[str]) -> tuple[list[str], str]:
    """Sources and target of cp and mv, in either order: `mv a b dir`, `mv -t dir a b`, `mv
    --target-directory=dir a b`."""
    for i, word in enumerate(simple.words):
        if word == "-t" and i + 1 < len(simple.words):
            return [w for w in words if w != simple.words[i + 1]], simple.words[i + 1] + "/"
        if word.startswith("--target-directory="):
            return words, word.partition("=")[2] + "/"
    return (words[:-1], words[-1]) if len(words) > 1 else (words, "")


def _put(simple: Simple, words: list[str], here: str | None, done: Effects) -> None:
    """What a copy or a move leaves: the target itself, and the sources' names in it where it is
    certainly a folder."""
    sources, target = _target(simple, words)
    if (
        not target
        or target.rstrip("/") in simple.open
        or target in simple.open
        or (path := resolve(target, here)) is None
    ):
        return
    done.changes.append(path)
    if target.endswith("/") or len(sources) > 1:
        done.changes += [
            posixpath.join(path, posixpath.basename(s.rstrip("/")))
            for s in sources
            if s not in simple.open
        ]


def _move(simple: Simple, words: list[str], here: str | None, done: Effects) -> None:
    sources, _ = _target(simple, words)
    _remove(simple, sources, here, done)
    _put(simple, words, here, done)


def _find(simple: Simple, here: str | None, done: Effects) -> None:
    """`find ... -delete` and `-exec rm`: all below the folders where it starts."""
    words = simple.words
    runs = [
        posixpath.basename(words[i + 1])
        for i, w in enumerate(words[:-1])
        if w in ("-exec", "-execdir", "-ok", "-x", "-X")
    ]
    if "-delete" not in words and not any(run in REMOVERS or run in SHELLS for run in runs):
        return
    starts: list[str] = []
    for word in words:
        if word.startswith(("-", "(", "!")):
            break
        starts.append(word)
    _remove(simple, starts if starts and simple.name == "find" else ["."], here, done)


def _git(simple: Simple, here: str | None, done: Effects) -> None:
    words, base = list(simple.words), here
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in ("-C", *_TAKE_VALUE["git"]) and words:
            value = words.pop(0)
            base = (
                (resolve(value, base) if value not in simple.open else None)
                if option == "-C"
                else base
            )
    verb, rest = (words[0], tuple(words[1:])) if words else ("", ())
    operands = _operands(simple, rest)
    if verb == "rm" and "--cached" not in rest:
        _remove(simple, operands, base, done)
    elif verb == "mv":
        _move(simple, operands, base, done)
    elif verb == "reset":
        done.changes += [ANYTHING] * ("--hard" in rest or "--merge" in rest)
    elif verb == "restore":  # from another commit, where the file may not have been
        _remove(
            simple,
            operands if any(w.startswith(("-s", "--source")) for w in rest) else [],
            base,
            done,
        )
    elif verb in ("checkout", "switch"):
        creates = any(w in ("-b", "-B", "-c", "-C", "--orphan") for w in rest)
        if "--" not in rest and (len(operands) > 1 if creates else operands != ["."]):
            done.changes.append(ANYTHING)  # another commit: its files are others
    elif verb in ("worktree", "submodule"):
        done.changes += [ANYTHING] * bool({"remove", "move", "prune", "deinit"} & set(rest))
    elif verb in _GIT_CHANGES and not set(rest) & set(_GIT_LOOKS.get(verb, ())):
        done.changes.append(ANYTHING)
