"""The flags of every verb: the common ones, and dotted settings such as --train.hint.weight 0.3.

Dotted flags are removed before the verb's own flags are parsed. The settings classes check them, so
that only one place knows which settings exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from composer_replication.cli.problems import UsageError

_COMMON = Group("Common flags", sort_key=90)
_SETTINGS: ContextVar[Mapping[str, str] | None] = ContextVar(
    "dotted settings of this command line", default=None
)
TOP_LEVEL = ("seed", "work-dir", "work_dir")  # settings that have no dot
SHORT = {
    "backend": "train.backend",
    "sync": "train.sync.url",
    "tasks": "evaluate.tasks",
}  # settings that have a short name too
_STUDENT_DATA = ("student", "held_out", "hints", "build")
_CHANNELS = ("train.policy", "train.lm_ce", "train.hint", "train.preference", "train.micro_tokens")
SETTINGS_OF: Mapping[str, tuple[str, ...]] = {
    "audit": ("ingest", "sites"),
    "doctor": ("student", "ingest", "rollouts", "train"),
    "ingest": ("ingest",),
    "sites": ("sites", "replay"),
    "hints": (*_STUDENT_DATA, *_CHANNELS, "replay"),
    "replay": ("replay", "curate", "rollouts"),
    "curate": ("curate", "held_out", "replay"),
    "model": ("student",),
    "build": (*_STUDENT_DATA, *_CHANNELS),
    "train": (*_STUDENT_DATA, "train", "rollouts", "sites"),
    "serve": ("student", "rollouts"),
    "evaluate": ("held_out", "build", "rollouts", "evaluate"),
}
"""Verb -> the groups of settings that it reads, or parts of groups."""
_SEEDED = ("demo", "hints", "replay", "train", "serve", "evaluate")


@Parameter(name="*", group=_COMMON)
@dataclass(frozen=True, kw_only=True)
class Common:
    """Flags that every verb takes."""

    json: bool = False
    """Print one JSON object to stdout and nothing else."""
    dry_run: bool = False
    """Print what would be read and written, without writing anything."""
    out: Annotated[Path | None, Parameter(name=("--out", "-o"))] = None
    """Work folder, overriding work_dir."""
    config: Annotated[
        tuple[Path, ...], Parameter(name=("--config", "-c"), consume_multiple=False)
    ] = ()
    """Settings file to use instead of the nearest recompose.toml. Repeatable; later files win."""
    trust_settings: bool = False
    """Accept settings files that run code or send data without `recompose trust`, for this call
    only."""
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"))] = False
    """Print only what was written."""
    verbose: Annotated[bool, Parameter(name=("--verbose", "-v"))] = False
    """Print more details."""
    debug: bool = False
    """Show the traceback on errors."""


def dotted_settings() -> Mapping[str, str]:
    """The dotted settings of the command line that is running, e.g. {"train.steps": "3"}."""
    return _SETTINGS.get() or {}


def flags_for(verb: str) -> dict[str, str]:
    """The dotted settings of this command line that another verb reads too.

    >>> with split_settings(["build", "--student.model", "m", "--sites.known", "x"]):
    ...     flags_for("train")
    {'student.model': 'm', 'sites.known': 'x'}
    """
    groups = (*SETTINGS_OF.get(verb, ()), *(["seed"] if verb in _SEEDED else []))
    return {
        key: value
        for key, value in dotted_settings().items()
        if any(f"{key.replace('-', '_')}.".startswith(f"{group}.") for group in groups)
    }


@contextmanager
def split_settings(argv: Sequence[str]) -> Iterator[list[str]]:
    """Take the dotted settings out of a command line and yield the rest.

    In the block, `dotted_settings` returns them.

    >>> with split_settings(["train", "--train.steps", "3", "--json"]) as rest:
    ...     rest, dict(dotted_settings())
    (['train', '--json'], {'train.steps': '3'})
    """
    rest: list[str] = []
    settings: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        if word == "--":
            rest += [word, *words]
            break
        name, equals, value = word.removeprefix("--").partition("=")
        name = SHORT.get(name, name)
        if not word.startswith("--") or ("." not in name and name not in TOP_LEVEL):
            rest.append(word)
            continue
        if not equals:
            following = next(words, None)
            if following is None or following.startswith("--"):
                raise UsageError(f"--{name} needs a value", fix=f"write --{name} VALUE")
            value = following
        settings[name] = value
    token = _SETTINGS.set(settings)
    try:
        yield rest
    finally:
        _SETTINGS.reset(token)
