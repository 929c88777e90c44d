"""One call of a verb: its settings, its screen, and where its artefacts lie.

job = open_job(common)
job.sessions            -> <work folder>/sessions.jsonl
job.command("sites")    -> "recompose sites -o work"   (with the flags that lead to the same folder)
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from composer_replication.cli.console import Screen, is_main_rank
from composer_replication.cli.flags import Common, dotted_settings
from composer_replication.cli.problems import UsageError
from composer_replication.core.config.load import LoadedConfig, load_config
from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Settings, screen and paths of one call."""

    loaded: LoadedConfig
    screen: Screen
    work: Path
    common: Common

    @property
    def config(self) -> Config:
        """The validated settings."""
        return self.loaded.config

    @property
    def dry_run(self) -> bool:
        """True where nothing may be written."""
        return self.common.dry_run

    @property
    def sessions(self) -> Path:
        """What `ingest` writes."""
        return self.work / "sessions.jsonl"

    @property
    def sites(self) -> Path:
        """What `sites` writes."""
        return self.work / "sites.jsonl"

    @property
    def hints(self) -> Path:
        """What `hints` writes."""
        return self.work / "hints.jsonl"

    @property
    def examples(self) -> Path:
        """The folder that `build` writes."""
        return self.work / "examples"

    @property
    def runs(self) -> Path:
        """The folder of run directories."""
        return self.work / "runs"

    def command(self, verb: str) -> str:
        """A command line for another verb on the same work folder and settings."""
        flags = [f"-c {shlex.quote(str(path))}" for path in self.common.config]
        if self.common.out is not None:
            flags.append(f"-o {shlex.quote(str(self.common.out))}")
        elif "work-dir" in dotted_settings() or "work_dir" in dotted_settings():
            flags.append(f"-o {shlex.quote(self.config.work_dir)}")
        return " ".join(["recompose", verb, *flags])

    def need_file(self, path: Path, *, verb: str) -> Path:
        """The path, or a DataError that names the verb which writes it."""
        if not path.exists():
            raise DataError(f"no {path.name}", where=str(path), fix=f"run first: {self.command(verb)}")
        return path

    def finish(self, result: dict[str, Any], *, wrote: list[Path], next_command: str = "", notes: dict[Path, str] | None = None) -> int:
        """End a verb: what was written (or would have been), the next command, and the JSON object."""
        if self.dry_run:
            for path in wrote:
                self.screen.line(f" would write  {path}")
            self.screen.line(" dry run: nothing was written")
        else:
            for path in wrote:
                self.screen.wrote(path, (notes or {}).get(path, _size(path)))
            if next_command:
                self.screen.next(next_command)
        listed = [str(path) for path in wrote]
        self.screen.result({**result, "dry_run": self.dry_run, "would_write" if self.dry_run else "wrote": listed, "next": next_command})
        return 0


def _size(path: Path) -> str:
    """The size of a file for people, e.g. 38 MB; "" for a folder."""
    if not path.is_file():
        return ""
    size = float(path.stat().st_size)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def open_job(common: Common) -> Job:
    """Load the settings of a call; a problem with a flag is a usage error (exit 2), with a file exit 1."""
    here = Path.cwd()
    try:
        loaded = load_config(common.config, flags=dotted_settings(), start=here)
    except ConfigError as error:
        if error.where.startswith("--"):
            raise UsageError(error.what, where=error.where, fix=error.fix) from error
        raise
    screen = Screen(json=common.json, quiet=common.quiet, verbose=common.verbose)
    if not is_main_rank():
        screen = Screen(console=Console(quiet=True))
    work = here / common.out.expanduser() if common.out is not None else loaded.work_dir
    for path in loaded.files:
        screen.detail(f" settings  {path}")
    return Job(loaded=loaded, screen=screen, work=_shorten(work, here), common=common)


def _shorten(path: Path, here: Path) -> Path:
    """The path relative to the current folder where it lies inside it, so that what is printed can be read."""
    return path.relative_to(here) if path.is_relative_to(here) and path != here else path
