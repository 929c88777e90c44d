"""Decide whether a settings file is trusted, and print what a verb reads, runs and sends.

load_config(common.config, flags=..., start=folder, trusted_by=partial(decide, common=common))
print_settings(loaded, screen, uses=("detectors",))
# " settings  /p/recompose.toml  (trusted)"
# ' runs      "mine.py:find"  (sites)'
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from composer_replication.cli.asking import agrees
from composer_replication.cli.console import Screen, is_main_rank
from composer_replication.cli.flags import Common
from composer_replication.core.config.load_config import LoadedConfig
from composer_replication.core.config.powers import is_shipped, quote_value
from composer_replication.core.config.rollout_settings import BUILT_IN_ENVS
from composer_replication.core.config.root import Config
from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.config.trusted_files import SettingsFile, Trusted
from composer_replication.data.teachers.defaults import DEFAULT_TEACHERS

Line = tuple[str, str]
"""("runs" or "sends", what is run or sent)."""


def decide(file: SettingsFile, *, common: Common) -> str:
    """Why a file is trusted, "" if it is not; on a terminal the user is asked, once per content."""
    if common.trust_settings:
        return "--trust-settings"
    trusted = Trusted.of(os.environ)
    reason = trusted.trusted_by(file)
    if reason or not _can_ask(common):
        return reason
    screen = Screen()  # not the job's: with --quiet, too, the user must see what they agree to
    show_powers(screen, file)
    if not agrees(" Trust this file, as it is now?"):
        return ""
    trusted.add(file)
    return "trusted"


def show_powers(screen: Screen, file: SettingsFile) -> None:
    """Print every power of a file, in full."""
    screen.line(f" settings  {file.path}", style="bold")
    for power in file.powers:
        screen.line(f"   {power}")


def _can_ask(common: Common) -> bool:
    """Whether the user can be asked: on a terminal, main rank, without --json or --dry-run."""
    asks = not (common.json or common.dry_run) and is_main_rank()
    return asks and bool(sys.stdin and sys.stdin.isatty() and sys.stdout.isatty())


def print_settings(loaded: LoadedConfig, screen: Screen, *, uses: tuple[str, ...]) -> None:
    """Print a line for each file read, each program that would run, and each host sent to."""
    lines = [use_line for use in uses for use_line in USES[use](loaded.config)]
    # the null device is the demo's settings file
    sources = [source for source in loaded.sources if str(source.path) != os.devnull]
    for source in sources:
        screen.line(
            f" settings  {source.path}" + (f"  ({source.trusted_by})" if source.powers else ""),
            style="dim",
        )
    for does, detail in lines:
        screen.line(f" {does:<8}  {detail}", style="yellow")
    files = [
        {"path": str(source.path), "sha256": source.sha256, "trust": source.trusted_by}
        for source in sources
    ]
    named: dict[str, Any] = {
        verb: [detail for does, detail in lines if does == verb] for verb in ("runs", "sends")
    }
    screen.about = {"settings_read": {"files": files, **named}}


def _scanner(config: Config) -> Iterator[Line]:
    if config.ingest.scanner:
        yield "runs", f"{quote_value(list(config.ingest.scanner))}  (ingest.scanner)"


def _detectors(config: Config) -> Iterator[Line]:
    functions = [name for name in (*config.sites.detectors, config.sites.error_kind) if ":" in name]
    yield from (("runs", f"{quote_value(name)}  (sites)") for name in functions)


def _writers(config: Config) -> Iterator[Line]:
    yield from (
        ("runs", f"{quote_value(name)}  (hints.writers)")
        for name in config.hints.writers.values()
        if ":" in name
    )


def _recipe(config: Config) -> Iterator[Line]:
    if not is_shipped(config.curate.recipe):
        yield "runs", f"what {quote_value(config.curate.recipe)} names  (curate.recipe)"


def _data_juicer(config: Config) -> Iterator[Line]:
    if config.curate.engine == "data_juicer":
        yield (
            "runs",
            f"{quote_value(config.curate.data_juicer_python)}  (curate.data_juicer_python)",
        )


def _env(config: Config) -> Iterator[Line]:
    if config.rollouts.env not in ("", *BUILT_IN_ENVS):
        yield "runs", f"{quote_value(config.rollouts.env)}  (rollouts.env)"


def _server(config: Config) -> Iterator[Line]:
    if config.rollouts.generator == "served":
        yield (
            "sends",
            (
                f"what the student reads to {_host(config.rollouts.server.url)}, without a key "
                " (rollouts.server)"
            ),
        )


def _reader(config: Config) -> Iterator[Line]:
    if not config.hints.reader.recorded and config.hints.reader.teacher:
        yield from _asked(config, [config.hints.reader.teacher])


def _candidate_reader(config: Config) -> Iterator[Line]:
    if not config.sites.reader.recorded and config.sites.reader.teacher:
        yield from _asked(config, [config.sites.reader.teacher])


def _teachers(config: Config) -> Iterator[Line]:
    names = (
        [name for name in config.replay.teachers if name != "scripted"]
        if not config.replay.recorded
        else []
    )
    yield from _asked(config, [*names, *filter(None, [config.replay.judge])])


def _asked(config: Config, names: list[str]) -> Iterator[Line]:
    known = {**DEFAULT_TEACHERS, **config.replay.teacher}
    yield from (
        ("sends", f"your sessions, redacted, to {quote_value(name)} {_to(known[name])}")
        for name in names
        if name in known
    )


def _to(teacher: TeacherSettings) -> str:
    if teacher.kind == "local":
        return f"on this machine ({quote_value(teacher.model)})"
    return f"at {_host(teacher.base_url)} " + (
        f"with the key in ${teacher.key_env}" if teacher.key_env else "without a key"
    )


def _host(url: str) -> str:
    parts = urlsplit(url)
    return quote_value(f"{parts.scheme}://{parts.netloc}")[1:-1]


USES: Mapping[str, Callable[[Config], Iterator[Line]]] = {
    "scanner": _scanner,
    "detectors": _detectors,
    "writers": _writers,
    "reader": _reader,
    "candidate_reader": _candidate_reader,
    "recipe": _recipe,
    "data_juicer": _data_juicer,
    "teachers": _teachers,
    "env": _env,
    "server": _server,
}
"""A kind of code, program or service that a verb may use -> the function that lists those of the
settings."""
