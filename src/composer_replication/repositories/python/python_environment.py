"""The interpreter that a repository's tests need.

    environment = make_environment(checkout, folder=Path("recompose/tasks/environments/shop"))
    environment.program     # has pytest, coverage and what the repository depends on, not itself

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
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.core.files import make_folder, write_text
from composer_replication.repositories.checkout import Checkout
from composer_replication.repositories.environment import TestEnvironment, environment_in

TEST_GROUPS = ("test", "tests", "testing", "dev")
"""Names of extras and dependency groups with what the tests need."""
_ALWAYS = ("pytest", "coverage")
_INSTALL_S = 900
_READY = "ready.txt"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


def make_environment(checkout: Checkout, *, folder: Path, program: str = "") -> TestEnvironment:
    """Set up an environment, or take the named interpreter as it is; does nothing a second time."""
    _write_metadata(checkout, folder / "metadata")
    target = folder / "python"
    interpreter = Path(program) if program else target / "bin" / "python"
    environment = environment_in(folder, str(interpreter.absolute()))
    if program:
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
