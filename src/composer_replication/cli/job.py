"""One call of a verb: its settings, its screen, and the paths of its artefacts.

job = open_job(common)
job.sessions            -> <work folder>/sessions.jsonl
job.command("sites")    -> "recompose sites -o work"   (with flags for the same work folder)
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from composer_replication.cli.console import Screen, is_main_rank
from composer_replication.cli.first_logs import first_logs
from composer_replication.cli.flags import Common, dotted_settings, flags_for
from composer_replication.cli.problems import UsageError
from composer_replication.cli.trusting import decide, print_settings
from composer_replication.core.codec import read_sessions
from composer_replication.core.config.data_settings import (
    HeldOutSettings,
    HintPosition,
    HintsSettings,
)
from composer_replication.core.config.load_config import LoadedConfig, load_config
from composer_replication.core.config.powers import inside
from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError, DataError, UntrustedError
from composer_replication.core.pseudonyms import store_key
from composer_replication.core.redact import Redactor
from composer_replication.core.rundir import RunDir, sweep_work
from composer_replication.core.stamps import (
    VERB_OF,
    Stale,
    changed_since,
    check_stale,
    made_from,
    stale_artefacts,
    write_stamp,
)
from composer_replication.tokens.split import resolve_split_unit

_DRIVEN: ContextVar[bool] = ContextVar(
    "verbs are run one after the other by another verb", default=False
)


@contextmanager
def driven() -> Iterator[None]:
    """In this block verbs show no next command, because the program itself runs them.

    Example: with driven(): ingest(common=common)
    """
    token = _DRIVEN.set(True)
    try:
        yield
    finally:
        _DRIVEN.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Settings, screen and paths of one call; `untrusted` names a settings file not read, and with
    `auto_position` hints.position was "auto": the settings hold what the audit chose."""

    loaded: LoadedConfig
    screen: Screen
    work: Path
    common: Common
    untrusted: str = ""
    auto_position: bool = False

    @property
    def config(self) -> Config:
        """The validated settings."""
        return self.loaded.config

    @property
    def dry_run(self) -> bool:
        """Whether nothing may be written."""
        return self.common.dry_run

    @property
    def sessions(self) -> Path:
        """The output of `ingest`."""
        return self.work / "sessions.jsonl"

    @property
    def sites(self) -> Path:
        """The output of `sites`."""
        return self.work / "sites.jsonl"

    @property
    def hints(self) -> Path:
        """The output of `hints`."""
        return self.work / "hints.jsonl"

    @property
    def audit(self) -> Path:
        """The output of `hints --audit`: the lift of each kind of hint."""
        return self.work / "audit.json"

    @property
    def answers(self) -> Path:
        """Every answer of `replay`, whatever came of it; written before preferences."""
        return self.work / "answers.jsonl"

    @property
    def preferences(self) -> Path:
        """The pairs that `replay` writes."""
        return self.work / "preferences.jsonl"

    @property
    def anchors(self) -> Path:
        """The anchors that `replay` writes."""
        return self.work / "anchors.jsonl"

    @property
    def curated(self) -> Path:
        """The pairs that `curate` keeps."""
        return self.work / "curated.jsonl"

    @property
    def examples(self) -> Path:
        """The folder that `build` writes."""
        return self.work / "examples"

    @property
    def reference(self) -> Path:
        """Cache of the reference model's log-probs of pairs, by hash of weights and pair."""
        return self.work / "reference"

    @property
    def runs(self) -> Path:
        """The folder of run directories."""
        return self.work / "runs"

    def held_out(self) -> HeldOutSettings:
        """The held-out settings, with "auto" resolved for the sessions of this work folder."""
        return resolve_split_unit(self.config.held_out, read_sessions(self.sessions))

    def redactor(self, *, make: bool = True) -> Redactor:
        """The redactor for everything that leaves this machine, with the user's own words.

        It names secrets by this work folder's key. With `make=False`, or in a dry run, a missing
        key is not made.
        """
        return Redactor(
            words=self.config.ingest.redact_words,
            key=store_key(self.work, make=make and not self.dry_run),
        )

    def command(self, verb: str, more: str = "") -> str:
        """A command line for another verb on the same work folder and settings.

        `more` are further flags and arguments; they replace flags of this call.
        """
        replaced = {word.removeprefix("--").partition("=")[0] for word in shlex.split(more)}
        settings = [
            f"--{key} {shlex.quote(value)}"
            for key, value in flags_for(verb.split()[0]).items()
            if key not in replaced
        ]
        return " ".join([self.command_without_settings(verb), *settings, *([more] if more else [])])

    def command_without_settings(self, verb: str) -> str:
        """A command line for another verb on the same work folder and settings files."""
        flags = [f"-c {shlex.quote(str(path))}" for path in self.common.config]
        if self.common.out is not None:
            flags.append(f"-o {shlex.quote(str(self.common.out))}")
        elif "work-dir" in dotted_settings() or "work_dir" in dotted_settings():
            flags.append(f"-o {shlex.quote(self.config.work_dir)}")
        if self.common.trust_settings:
            flags.append("--trust-settings")
        return " ".join(["recompose", verb, *flags])

    def need_file(self, path: Path, *, verb: str) -> Path:
        """Return the path; raises DataError, which names the verb that writes it."""
        if not path.exists():
            command = self.command(verb)
            if verb == "ingest":
                command = first_logs(self) or self.command("ingest PATH")
            raise DataError(f"no {path.name}", where=str(path), fix=f"run first: {command}")
        return path

    def stamp(
        self,
        artefact: Path,
        *,
        made_from: Sequence[Path],
        more: Mapping[str, object] | None = None,
    ) -> None:
        """Record the files that an artefact was made from, so that a stale one is not used."""
        write_stamp(artefact, made_from=made_from, more=more)

    def need_fresh(self, artefact: Path, *, verb: str) -> Path:
        """Return the artefact; raises DataError if it is missing or stale.

        It is stale if it was made, directly or not, from other files than the current ones. An
        artefact without a stamp is the user's own and is used as it is; `build` still checks every
        call id.
        """
        self.need_file(artefact, verb=verb)
        # First the inputs: if one is missing, the remedy is the verb that writes it.
        for name in made_from(artefact):
            if name in VERB_OF:
                self.need_file(self.work / name, verb=VERB_OF[name])
        if (stale := check_stale(artefact, work=self.work)) is not None:
            raise DataError(stale.message, where=str(artefact), fix=self._again(stale))
        return artefact

    def is_usable(self, artefact: Path) -> bool:
        """Whether an artefact exists and is not stale."""
        return artefact.exists() and check_stale(artefact, work=self.work) is None

    def warn_stale(self, *names: str) -> list[str]:
        """Print which of these artefacts are stale, and the remedy; returns their names."""
        old = {
            name: stale
            for name in names
            if (stale := check_stale(self.work / name, work=self.work)) is not None
        }
        if old:
            message = (
                f"{', '.join(old)}: made from another {next(iter(old.values())).changed} than lies"
                " here now"
            )
            self.screen.line(f" stale    {message}; {self._again(*old.values())}", style="yellow")
        return list(old)

    def warn_changed(self, run: RunDir) -> list[str]:
        """Print which files changed since a run was made from them; returns their names."""
        names = (
            changed_since(run, work=self.work)
            if run.path.resolve().parent == self.runs.resolve()
            else []
        )
        if names:
            message = (
                f"{', '.join(names)} changed since this run was made from them; to train on what"
                " lies here now"
            )
            again = self._again(*stale_artefacts(self.work).values(), last="train")
            self.screen.line(f" stale    {message}, {again}", style="yellow")
        return names

    def _again(self, *stale: Stale, last: str = "") -> str:
        verbs = [
            verb
            for verb in dict.fromkeys(VERB_OF.values())
            if any(verb in artefact.verbs for artefact in stale)
        ]
        return (
            "run again:"
            f" {', then '.join(self.command(verb) for verb in (*verbs, *([last] if last else [])))}"
        )

    def finish(
        self,
        result: dict[str, Any],
        *,
        wrote: list[Path],
        next_command: str = "",
        notes: dict[Path, str] | None = None,
    ) -> int:
        """End a verb: print what was written (or would be), the next command, and the JSON."""
        if self.dry_run:
            for path in wrote:
                self.screen.line(f" would write  {path}")
            self.screen.line(" dry run: nothing was written")
        else:
            for path in wrote:
                self.screen.wrote(path, (notes or {}).get(path, _size(path)))
            # The verb that drives this one names the next command itself.
            if next_command and not _DRIVEN.get():
                self.screen.next(next_command)
        listed = [str(path) for path in wrote]
        self.screen.result(
            {
                **result,
                "dry_run": self.dry_run,
                "would_write" if self.dry_run else "wrote": listed,
                "next": next_command,
            }
        )
        return 0


def _size(path: Path) -> str:
    """The size of a file in words, e.g. 38 MB; "" for a folder."""
    if not path.is_file():
        return ""
    size = float(path.stat().st_size)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def open_job(common: Common, *, uses: tuple[str, ...] = (), writes: bool = True) -> Job:
    """Load the settings of a call; a problem with a flag is a usage error (exit 2), with a file
    exit 1.

    `uses` names what the verb may run or ask (cli/trusting.py), which is printed first. A verb that
    `writes` removes what killed processes left in the work folder.
    """
    current = Path.cwd()
    screen = Screen(json=common.json, quiet=common.quiet, verbose=common.verbose)
    # Every rank of a launch runs the verb; one alone prints, and sweeps the work folder.
    if not is_main_rank():
        screen = Screen(console=Console(quiet=True))
    try:
        loaded = load_config(
            common.config,
            flags=dotted_settings(),
            start=current,
            trusted_by=partial(decide, common=common),
        )
    except ConfigError as error:
        if error.where.startswith("--"):
            raise UsageError(error.what, where=error.where, fix=error.fix) from error
        raise
    work = current / common.out.expanduser() if common.out is not None else _work_folder(loaded)
    loaded = _with_task_folder(loaded, work)
    if not _DRIVEN.get():
        print_settings(loaded, screen, uses=uses)
    job = Job(loaded=loaded, screen=screen, work=_shorten(work, current), common=common)
    if loaded.config.hints.position == "auto":
        job = with_hint_position(replace(job, auto_position=True), _audited_position(job.audit))
    if writes and not common.dry_run and is_main_rank() and (leftovers := sweep_work(job.work)):
        screen.line(
            f" removed  {len(leftovers)} half-written files of a process that is gone:"
            f" {', '.join(leftovers[:3])}",
            style="dim",
        )
    return job


def settings_only(common: Common) -> Job:
    """Open a job for verbs that run without a settings file (doctor, init): an untrusted one is
    reported and ignored."""
    try:
        return open_job(common, writes=False)
    except UntrustedError as error:
        job = open_job(replace(common, config=(Path(os.devnull),)), writes=False)
        job.screen.line(f" settings  not read: {error.where} is not trusted", style="yellow")
        return replace(job, untrusted=error.where)


def _work_folder(loaded: LoadedConfig) -> Path:
    """The work folder of the settings; raises ConfigError if it is a link out of its folder that
    neither a flag nor a trusted file named."""
    work = loaded.work_dir
    named = {"work-dir", "work_dir"} & dotted_settings().keys() or any(
        source.powers for source in loaded.sources
    )
    if work.is_symlink() and not named and not inside(work, loaded.base):
        message = f"the work folder is a link to {work.resolve()}, outside of this folder"
        raise ConfigError(message, where=str(work), fix="name the folder that you mean: -o FOLDER")
    return work


def _with_task_folder(loaded: LoadedConfig, work: Path) -> LoadedConfig:
    """The settings with the folder of the repositories' tasks, if they are played and none is
    named: it lies in the work folder."""
    rollouts = loaded.config.rollouts
    if rollouts.env != "repo" or rollouts.repo.tasks:
        return loaded
    repo = rollouts.repo.model_copy(update={"tasks": str(work.absolute() / "tasks")})
    rollouts = rollouts.model_copy(update={"repo": repo})
    return replace(loaded, config=loaded.config.model_copy(update={"rollouts": rollouts}))


def with_hint_position(job: Job, position: HintPosition) -> Job:
    """The job with this hints.position."""
    hints = job.config.hints.model_copy(update={"position": position})
    loaded = replace(job.loaded, config=job.config.model_copy(update={"hints": hints}))
    return replace(job, loaded=loaded)


def _audited_position(audit: Path) -> HintPosition:
    """The position in which an audit measured the hints; "system" if there is none to read."""
    try:
        value: Any = json.loads(audit.read_text("utf-8"))
        return HintsSettings(position=value["position"]).fixed_position()
    except (OSError, ValueError, KeyError, TypeError):
        return "system"


def _shorten(path: Path, current: Path) -> Path:
    """The path relative to the current folder if it is inside it, so that output is readable."""
    return path.relative_to(current) if path.is_relative_to(current) and path != current else path
