"""Run programs on a copy of a source tree, behind walls of the kernel.

    sandbox = TreeSandbox(python="/home/me/shop/.venv/bin/python")
    process = sandbox.start(["-c", "print(open('setup.py').read())"], tree=Path("shop"))
    process.communicate()

A program has no network, sees no file of the host but the interpreter with its packages and the
system's libraries (read-only), and works on a copy of the tree at /repo that is gone when it ends.
Every process that it leaves behind ends with it. CPU time, memory, processes, file sizes and the
size of the tree are limited. Linux with namespaces only; where they are not to be had, SandboxError
says so, and nothing runs. pip, setuptools and ensurepip are hidden, because they carry copies of
other packages. As root, the program runs as nobody; else in a user namespace.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from composer_replication.core.errors import SandboxError
from composer_replication.repositories.sandbox.tree_sandbox_child import REFUSED

_SOURCES = str(Path(__file__).resolve().parents[2])
_PACKAGE = "composer_replication"
_START = (
    # without the package's __init__, which takes longer than everything else
    f"import sys; package = type(sys)({_PACKAGE!r}); package.__path__ = [{_SOURCES!r}];"
    " sys.modules[package.__name__] = package;"
    f" from {_PACKAGE}.repositories.sandbox.%s import %s as start;"
    " sys.exit(start(int(sys.argv[1])))"
)
NO_WALLS = (
    "run on Linux where a process may enter namespaces (sysctl kernel.unprivileged_userns_clone=1,"
    " or as root in a container with CAP_SYS_ADMIN); nothing runs without walls"
)
WALLS_VARIABLE = "RECOMPOSE_WALLS"
"""Names what puts up the walls (`bubblewrap`, `podman`)."""
_TRY = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10020000) != 0)"
"""A user and a mount namespace of one's own."""
BARE = ("-I", "-S", "-B", "-c")
"""The options of an interpreter of the side inside: the standard library, nothing of the user's."""
SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/bin", "/etc/ld.so.cache", "/etc/alternatives")
"""What a program sees of the system, without /usr/share and /usr/local. Debian's own Python
packages are hidden below it (`HIDDEN`), and those that other programs bring along
(`vendored_python`)."""
HIDDEN = ("/usr/lib/python3", "/usr/lib/python3.11/ensurepip", "/usr/lib/node_modules")
_PYTHON_CODE = (".py", ".pyc", ".whl", ".egg")
_BUNDLED = (
    "pip",
    "setuptools",
    "pkg_resources",
    "_distutils_hack",
    "distutils-precedence.pth",
    "wheel",
)
"""Packages that carry copies of other packages, which could be the one that a task asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """The limits of a program: CPU seconds and memory of each process, how many processes, the
    size of a file and of everything that is written."""

    cpu_s: int = 120
    memory_mb: int = 2048
    processes: int = 256
    file_mb: int = 64
    tree_mb: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSandbox:
    """Starts programs of one interpreter on copies of trees.

    `read_only` are more (outside, inside) pairs; an inside path must be absolute.
    """

    python: str = sys.executable
    limits: ProcessLimits = ProcessLimits()
    read_only: tuple[tuple[str, str], ...] = ()

    def start(
        self,
        arguments: Sequence[str],
        *,
        tree: Path | None = None,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        text: bool = False,
    ) -> subprocess.Popen[Any]:
        """Start the interpreter with these arguments; its input and output are pipes.

        Killing the process kills everything inside.
        """
        spec = self.specification(tree=tree, env=env)
        spec |= {"program": [self.python, *arguments], "cwd": "/repo" if tree is not None else "/"}
        return _start(spec, pass_fds=pass_fds, text=text)

    def specification(
        self, *, tree: Path | None = None, env: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """What the side inside is told (tree_sandbox_child.py), without a program."""
        runtime = interpreter(self.python)
        return {
            "env": {**runtime.env, **(env or {})},
            "read_only": [
                (os.path.abspath(outside), inside)
                for outside, inside in dict.fromkeys((*runtime.read_only, *self.read_only))
            ],
            "hidden": list(runtime.hidden),
            "tree": str(tree.resolve()) if tree is not None else None,
            "python": self.python,
            "bwrap": bubblewrap(),
            "podman": podman(),
            **asdict(self.limits),
        }

    def check(self) -> None:
        """Raise SandboxError if programs cannot be run here."""
        process = self.start(["-I", "-S", "-c", "print('walls', __import__('os').getpid())"])
        out, err = process.communicate(timeout=60)
        if process.returncode or not out.startswith(b"walls"):
            reason = (err.decode(errors="replace").strip().splitlines() or ["no answer"])[-1]
            raise SandboxError(reason, where="the sandbox", fix=walls_advice())


def _start(
    specification: Mapping[str, Any], *, pass_fds: Sequence[int], text: bool
) -> subprocess.Popen[Any]:
    """Start the side inside; its input and output are pipes."""
    check_platform()
    with open(as_descriptor(specification), "rb") as file:
        start = start_code("walls", "run_behind_walls")
        return subprocess.Popen(
            [sys.executable, *BARE, start, str(file.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            pass_fds=(file.fileno(), *pass_fds),
            start_new_session=True,
            text=text,
        )


@cache
def bubblewrap() -> str:
    """The path of `bwrap` if it has to put up the walls, because the kernel refuses namespaces to
    this process; else none. RECOMPOSE_WALLS decides it."""
    wanted = os.environ.get(WALLS_VARIABLE, "")
    if wanted not in ("", "bubblewrap", "podman", "namespaces"):
        raise SandboxError(
            f"{WALLS_VARIABLE}={wanted}",
            where="the sandbox",
            fix="bubblewrap, podman or namespaces",
        )
    path = shutil.which("bwrap") or ""
    if wanted == "bubblewrap" and (not path or os.getuid() == 0):
        raise SandboxError(
            "bwrap keeps root's rights over kernel settings" if path else "bwrap is not installed",
            where=f"{WALLS_VARIABLE}=bubblewrap",
            fix="run as another user, or unset it" if path else "install bubblewrap",
        )
    if wanted or not path or os.getuid() == 0:
        return path if wanted == "bubblewrap" else ""
    tried = subprocess.run(
        [sys.executable, *BARE, _TRY], capture_output=True, env={}, cwd="/", check=False
    )
    return path if tried.returncode else ""


@cache
def podman() -> dict[str, Any] | None:
    """How to call podman, if RECOMPOSE_WALLS = "podman" asks for its walls: its path, an empty root
    folder, and its variables. Rooms get no image, so none has to be fetched."""
    if os.environ.get(WALLS_VARIABLE) != "podman":
        return None
    if not (path := shutil.which("podman")):
        raise SandboxError(
            "podman is not installed",
            where=f"{WALLS_VARIABLE}=podman",
            fix="install podman, or unset it",
        )
    kept = ("PATH", "HOME", "TMPDIR", "XDG_", "CONTAINERS_", "DBUS_SESSION_BUS_ADDRESS")
    env = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    root = tempfile.TemporaryDirectory(prefix="composer-root-")
    os.chmod(root.name, 0o755)
    atexit.register(root.cleanup)
    return {"path": path, "root": root.name, "env": env}


def walls_advice() -> str:
    """What to do where walls cannot be put up."""
    return f"mend podman, or unset {WALLS_VARIABLE}" if podman() else NO_WALLS


def check_platform() -> None:
    """Raise SandboxError where there are no namespaces."""
    if not sys.platform.startswith("linux"):
        raise SandboxError(f"no namespaces on {sys.platform}", where="the sandbox", fix=NO_WALLS)


def start_code(module: str, function: str) -> str:
    """The code of an interpreter that calls a function of the side inside with the number of a
    descriptor."""
    return _START % (module, function)


def as_descriptor(specification: Mapping[str, Any]) -> int:
    """A specification as a file in memory: a program can read its parents' arguments."""
    descriptor = os.memfd_create("specification")
    content = json.dumps(specification).encode()
    while content:
        content = content[os.write(descriptor, content) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def refused(process: subprocess.Popen[Any]) -> bool:
    """Whether the walls could not be put up; the reason is on its stderr."""
    return process.returncode == REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """What an interpreter needs inside: its folders, what of them is hidden, its variables; and
    where its packages are."""

    read_only: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]
    env: dict[str, str]
    packages: tuple[str, ...]


_ASK = (
    "import json, sys, sysconfig; print(json.dumps([sys.prefix, sys.base_prefix,"
    " sysconfig.get_path('purelib'), sysconfig.get_path('stdlib'),"
    " sysconfig.get_config_var('LIBDIR') or '']))"
)


@cache
def vendored_python(system: str) -> tuple[str, ...]:
    """The topmost folders of a system's folder that hold Python code, but for Debian's interpreters
    (`/usr/lib/python3.*`) and what is hidden anyway: a program may bring along any package, also
    the one that a task asks for.

    Example: vendored_python("/usr/lib") -> ("/usr/lib/google-cloud-sdk/lib",)
    """
    found: list[str] = []
    for parent, folders, files in os.walk(system):
        folders[:] = [name for name in folders if f"{parent}/{name}" not in HIDDEN]
        if parent == system:
            folders[:] = [name for name in folders if not name.startswith("python")]
        elif any(name.endswith(_PYTHON_CODE) for name in files):
            found.append(parent)
            folders.clear()
    return tuple(sorted(found))


@cache
def interpreter(python: str) -> Interpreter:
    """Ask an interpreter where it lives; raises SandboxError if it does not answer."""
    try:
        reply = subprocess.run(
            [python, "-I", "-c", _ASK], capture_output=True, text=True, timeout=60, check=True
        )
        prefix, base, packages, standard, libraries = json.loads(reply.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(
            f"{python} does not answer: {error}", where="the sandbox", fix="name a Python 3.10+"
        ) from error
    folders = [path for path in (prefix, base) if not path.startswith("/usr")]
    system = [path for path in SYSTEM if Path(path).exists()]
    if base.startswith("/usr/local"):
        folders += ["/usr/local/lib", "/usr/local/bin"]
    hidden = [f"{packages}/{name}" for name in _BUNDLED]
    if packages != (base_packages := f"{standard}/site-packages"):
        hidden.append(base_packages)  # an environment does not import them, but could read them
    return Interpreter(
        read_only=tuple((path, path) for path in dict.fromkeys((*system, *folders))),
        hidden=(*HIDDEN, *vendored_python("/usr/lib"), f"{standard}/ensurepip", *hidden),
        env={
            "PATH": f"{Path(python).parent}:/usr/bin",
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "LD_LIBRARY_PATH": libraries,
        },
        packages=(packages, standard),
    )
