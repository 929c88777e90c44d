"""The interpreter that a repository's tests need: set up once, mounted read-only afterwards.

    environment = make_environment(checkout, folder=Path("recompose/tasks/environments/shop"))
    environment = read_environment(Path("recompose/tasks/environments/shop"))   # afterwards
    environment.python      # has pytest, coverage and what the repository depends on, not itself

The package itself is never installed, because an installed copy holds the answer of every task; a
`dist-info` with its name and version stands in for it (importlib.metadata). Installing runs pip,
which may run the build scripts of what it installs: those of the user's own dependencies.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.core.files import make_folder, write_text
from composer_replication.repositories.checkout import Checkout
from composer_replication.repositories.sandbox.test_runner import TestRunner
from composer_replication.repositories.sandbox.tree_sandbox import ProcessLimits, TreeSandbox

TEST_GROUPS = ("test", "tests", "testing", "dev")
"""Names of extras and dependency groups with what the tests need."""
_ALWAYS = ("pytest", "coverage")
_INSTALL_S = 900
_READY = "ready.txt"
_INTERPRETER = "interpreter.txt"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestEnvironment:
    """An interpreter with the packages that tests need, and the folder of the made `dist-info`."""

    __test__ = False

    python: str
    metadata: Path

    def runner(self, tree: Path, *, import_root: str) -> TestRunner:
        """A runner of the tests of a tree; close it, or use it in a `with`."""
        return TestRunner(
            tree=tree, python=self.python, import_root=import_root, metadata=self.metadata
        )

    def sandbox(self, limits: ProcessLimits) -> TreeSandbox:
        """The walls for a player's tree, with this interpreter."""
        return TreeSandbox(
            python=self.python, limits=limits, read_only=((str(self.metadata), "/metadata"),)
        )


def make_environment(checkout: Checkout, *, folder: Path, python: str = "") -> TestEnvironment:
    """Set up an environment, or take the named interpreter as it is; does nothing a second time."""
    metadata = folder / "metadata"
    _write_metadata(checkout, metadata)
    target = folder / "python"
    interpreter = str(Path(python).absolute() if python else (target / "bin" / "python").absolute())
    write_text(folder / _INTERPRETER, interpreter)
    environment = TestEnvironment(python=interpreter, metadata=metadata)
    if python:
        return environment
    wanted = [*_ALWAYS, *dependencies(checkout)]
    ready = folder / _READY
    text = "\n".join(wanted)
    if not ready.exists() or ready.read_text(encoding="utf-8") != text:
        shutil.rmtree(target, ignore_errors=True)
        make_folder(folder)
        venv.EnvBuilder(symlinks=True, with_pip=False).create(target)
        command = [sys.executable, "-m", "pip", "--python", str(target / "bin" / "python")]
        try:
            subprocess.run(
                [*command, "install", "--quiet", "--disable-pip-version-check", *wanted],
                check=True,
                capture_output=True,
                text=True,
                timeout=_INSTALL_S,
            )
        except subprocess.SubprocessError as error:
            reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            raise DataError(
                f"its dependencies cannot be installed: {reason[-1] if reason else error}",
                where=str(checkout.folder),
                fix="name an interpreter that has them, with pytest and coverage: --python PATH",
            ) from error
        write_text(ready, text)
    return environment


def read_environment(folder: Path) -> TestEnvironment:
    """The environment that `make_environment` set up here; raises DataError if there is none."""
    file, installed = folder / _INTERPRETER, folder / "python" / "bin" / "python"
    if not file.exists() and installed.exists():  # set up before the interpreter was noted
        return TestEnvironment(python=str(installed.absolute()), metadata=folder / "metadata")
    if not file.exists():
        raise DataError(
            "no environment was set up", where=str(folder), fix="recompose tasks make REPO"
        )
    return TestEnvironment(python=file.read_text(encoding="utf-8"), metadata=folder / "metadata")


def dependencies(checkout: Checkout) -> list[str]:
    """What a repository says it needs, for itself and for its tests, without itself."""
    project = _project(checkout)
    wanted: list[str] = list(project.get("dependencies", []))
    groups = {**project.get("optional-dependencies", {}), **project.get("dependency-groups", {})}
    for name in TEST_GROUPS:
        wanted += [entry for entry in groups.get(name, []) if isinstance(entry, str)]
    project_name = str(project.get("name", checkout.name)).lower().replace("_", "-")
    return sorted(
        {entry for entry in wanted if _requirement(entry).lower().replace("_", "-") != project_name}
    )


def _requirement(entry: str) -> str:
    match = _NAME.match(entry)
    return match.group() if match else ""


def _project(checkout: Checkout) -> dict[str, Any]:
    """The [project] table with the dependency groups; from PKG-INFO where there is none."""
    file = checkout.folder / "pyproject.toml"
    settings: dict[str, Any] = {}
    if file.exists():
        try:
            settings = tomllib.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"cannot be read: {error}", where=str(file)) from error
    project = dict(settings.get("project", {}))
    if "name" not in project or "version" not in project:
        project = {**_package_info(checkout.folder / "PKG-INFO"), **project}
    return {**project, "dependency-groups": settings.get("dependency-groups", {})}


def _package_info(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    head = file.read_text(encoding="utf-8").split("\n\n")[0]
    rows = [line.split(": ", 1) for line in head.splitlines() if ": " in line]
    plain = {key.lower(): value for key, value in rows}
    needed = [value for key, value in rows if key == "Requires-Dist" and "extra ==" not in value]
    return {**{k: plain[k] for k in ("name", "version") if k in plain}, "dependencies": needed}


def _write_metadata(checkout: Checkout, folder: Path) -> None:
    project = _project(checkout)
    name = str(project.get("name", checkout.name))
    version = str(project.get("version", "0"))
    place = folder / f"{re.sub(r'[-_.]+', '_', name)}-{version}.dist-info"
    make_folder(place)
    write_text(place / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for path in (folder, place, place / "METADATA"):
        path.chmod(0o755 if path.is_dir() else 0o644)  # the program inside is nobody
