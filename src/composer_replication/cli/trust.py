"""`recompose trust`: allow a settings file to run code, send data or reach outside its folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from composer_replication.cli.console import Screen
from composer_replication.cli.flags import Common
from composer_replication.cli.trusting import show_powers
from composer_replication.core.config.load_config import read_settings, settings_paths
from composer_replication.core.config.trusted_files import SettingsFile, Trusted
from composer_replication.core.errors import ConfigError


def trust_command(
    *files: Path,
    forget: bool = False,
    show_list: Annotated[bool, Parameter(name="--list")] = False,
    common: Common = Common(),
) -> int:
    """Trust a settings file as it is now: where it lies and what it holds. After a change it has to
    be trusted again.

    Parameters
    ----------
    files
        Settings files. Default: the nearest recompose.toml.
    forget
        Stop trusting the files.
    show_list
        List the trusted files.
    """
    screen = Screen(json=common.json, quiet=common.quiet, verbose=common.verbose)
    trusted = Trusted.of(os.environ)
    if show_list:
        rows = trusted.rows()
        screen.table(
            [(row["path"], row["sha256"][:12], row.get("since", "")) for row in rows],
            head=("file", "sha256", "since"),
        )
        screen.result({"store": str(trusted.store), "trusted": rows})
        return 0
    paths = settings_paths(files or common.config, start=Path.cwd())
    if not paths:
        raise ConfigError(
            "no recompose.toml here or above",
            where=str(Path.cwd()),
            fix="give a file: recompose trust FILE",
        )
    results = [
        _forget(trusted, path, screen, common) if forget else _trust(trusted, path, screen, common)
        for path in paths
    ]
    if common.dry_run:
        screen.line(" dry run: nothing was written")
    screen.result({"store": str(trusted.store), "files": results, "dry_run": common.dry_run})
    return 0


def _trust(trusted: Trusted, path: Path, screen: Screen, common: Common) -> dict[str, object]:
    file: SettingsFile = read_settings(path)[0]
    show_powers(screen, file)
    if not file.powers:
        screen.line("   it runs and sends nothing: it needs no trust")
    elif not common.dry_run:
        trusted.add(file)
        screen.wrote(trusted.store, f"{path} is trusted as it is now, sha256 {file.sha256[:12]}")
    return {
        "path": str(path),
        "sha256": file.sha256,
        "powers": [str(power) for power in file.powers],
    }


def _forget(trusted: Trusted, path: Path, screen: Screen, common: Common) -> dict[str, object]:
    was = common.dry_run or trusted.forget(path)
    screen.line(f" {path} is {'no longer trusted' if was else 'not among the trusted files'}")
    return {"path": str(path), "forgotten": was}
