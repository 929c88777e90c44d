"""Walls that bubblewrap puts up, where the kernel refuses namespaces to this process, but not to
`bwrap` (as AppArmor does since Ubuntu 24.04).

    enter_bubblewrap(spec, _serve)      # this process becomes bwrap, and `_serve` runs behind it

Standard library only. `bwrap` mounts what a specification lists (tree_sandbox_child.py), without a
network; the tree goes in as an archive, because the host's folder holds the answers of its tasks.
Sources of this package go in as an archive, too, and are let go of before anything else runs.
`--as-pid-1`: the first process is ours and takes the others along. Options: bwrap(1), version 0.8.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from composer_replication.core import isolation
from composer_replication.repositories.sandbox.tree_sandbox_child import (
    LINKS,
    REPO,
    Room,
    refuse_walls,
    replace_files,
)

if TYPE_CHECKING:
    from tarfile import TarInfo

_PACKAGE = __name__.partition(".")[0]
_START = (
    # the archives' numbers; the sources are read as a file of that number
    "import sys; sys.path.insert(0, '/proc/self/fd/%d');"
    f" from {__name__} import start_inside; start_inside(%d, %d, %d, %r, %r)"
)


def enter_bubblewrap(spec: dict[str, Any], inside: Callable[[Room], NoReturn]) -> NoReturn:
    """Become `bwrap`, which does `inside` behind its walls; the reason is on stderr if it cannot be
    started."""
    sources, tree = (
        in_memory(package_sources()),
        in_memory(tree_archive(spec["tree"], owner=os.getuid())),
    )
    spec_file = in_memory(json.dumps(spec).encode())
    code = _START % (sources, sources, spec_file, tree, inside.__module__, inside.__name__)
    command = [*options(spec), "--", spec["python"], "-I", "-S", "-B", "-c", code]
    try:
        os.execve(spec["bwrap"], [spec["bwrap"], *command], {})
    except OSError as error:
        os._exit(refuse_walls(f"{spec['bwrap']}: {error}"))


def options(spec: dict[str, Any]) -> Iterator[str]:
    """The options of `bwrap` for a specification."""
    yield from ("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent")
    yield from ("--new-session", "--as-pid-1", "--cap-drop", "ALL", "--clearenv")
    for outside, inner in spec["read_only"]:
        yield from ("--ro-bind", outside, inner)
    for name, target in LINKS.items():
        yield from ("--symlink", target, f"/{name}")
    for path, is_folder in hidden_places(spec):
        if is_folder:
            yield from ("--tmpfs", path, "--remount-ro", path)
        else:
            yield from ("--ro-bind", "/dev/null", path)
    size = str(spec["tree_mb"] << 20)
    yield from ("--proc", "/proc", "--dev", "/dev")
    yield from ("--perms", "1777", "--size", size, "--tmpfs", "/tmp")
    if not holds_tree(spec):
        yield from ("--size", size, "--tmpfs", REPO)
    yield from ("--chdir", "/")


def holds_tree(spec: dict[str, Any]) -> bool:
    """Whether a tree is among the folders that are read-only, as it is for a judge."""
    return any(inside == REPO for _, inside in spec["read_only"])


def hidden_places(spec: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """The hidden paths that are there, and whether each is a folder."""
    for path in spec["hidden"]:
        source = next((o + path[len(i) :] for o, i in spec["read_only"] if _below(path, i)), path)
        if os.path.exists(source):
            yield path, os.path.isdir(source)


def start_inside(sources: int, spec_file: int, tree: int, module: str, name: str) -> NoReturn:
    """Unpack the tree behind the walls and do the named function as their first process."""
    function: Callable[[Room], NoReturn] = getattr(__import__(module, fromlist=[name]), name)
    del sys.path[0]
    os.close(sources)
    with open(spec_file, encoding="utf-8") as file:
        spec = json.load(file)
    with open(tree, "rb") as file:
        if spec["tree"]:
            import tarfile

            with tarfile.open(fileobj=file) as archive:
                archive.extractall(REPO)
    replace_files(REPO, spec.get("files", {}), owner=None)
    os.umask(0o022)
    libc = isolation.kernel()
    libc.prctl(isolation.PR_SET_DUMPABLE, 0, 0, 0, 0)  # its memory and descriptors are no files
    function(Room(libc, isolation.this_machine(), spec, False))


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def in_memory(content: bytes) -> int:
    """A file in memory that the next program keeps."""
    descriptor = os.memfd_create("room")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.set_inheritable(descriptor, True)
    return descriptor


def tree_archive(tree: str | None, *, owner: int) -> bytes:
    """The tree's files, writable for their owner, who is whoever unpacks them."""
    import tarfile  # ours are the walls in most rooms, which start without

    def writable(member: TarInfo) -> TarInfo:
        member.mode |= 0o600
        member.uid = member.gid = owner
        return member

    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        if tree:
            archive.add(tree, arcname=".", filter=writable)
    return content.getvalue()


def package_sources() -> bytes:
    """The modules of this package that are loaded here, as an archive to import from."""
    import zipfile

    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(f"{_PACKAGE}/__init__.py", "")
        for name, module in sorted(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name.startswith(f"{_PACKAGE}.") and file:
                ending = "/__init__.py" if hasattr(module, "__path__") else ".py"
                archive.write(file, name.replace(".", "/") + ending)
    return content.getvalue()
