"""The backends, environment libraries and executors that this package has adapters for: which
versions were tested, how each is installed, and what it hosts.

`recompose doctor` prints this table, docs/backends.md is written from it, and the adapters read
their tested versions here. It imports none of them.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from composer_replication.core.errors import ConfigError, MissingExtraError, pip_install

FEATURES: Mapping[str, str] = {
    "policy": "policy channel",
    "hint_full": "hint, whole distribution",
    "hint_sampled": "hint, sampled token",
    "preference": "preference",
    "imported": "imported examples (lm_ce, anchors)",
    "rollouts": "own rollouts",
    "overlap": "rollouts overlap training",
    "ranks": "several ranks",
    "lora": "LoRA",
    "tree": "token tree",
    "resume": "resume",
}
"""What a trainer may host: the key in `Backend.hosts`, and the heading of its column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One adapter: the package behind it, the versions that were tested, and what it hosts.

    `lowest <= version < below` was tested. `hosts` has a word for each of `FEATURES` that works
    ("yes", or how far); a feature that is missing there is refused by name. `package` is "" if
    nothing has to be installed; `beside` is what it needs without saying so; `on_index` is False if
    no package index has it. `steps` names the function that opens its steps for a comparison
    (training/backends/step_check.py).
    """

    name: str
    kind: Literal["trainer", "environments", "executor", "engine"]
    package: str = ""
    lowest: tuple[int, ...] = ()
    below: tuple[int, ...] = ()
    beside: tuple[str, ...] = ()
    install: str = ""
    on_index: bool = True
    hosts: Mapping[str, str] = field(default_factory=dict)
    limit: str = ""
    steps: str = ""

    @property
    def tested(self) -> str:
        """The tested versions, e.g. ">=1.16,<1.17"; "" for what is part of this package."""
        if not self.package:
            return ""
        low, high = (".".join(map(str, version)) for version in (self.lowest, self.below))
        return f">={low},<{high}"

    def installed(self) -> str:
        """The installed version; "" if the package is missing."""
        try:
            return importlib.metadata.version(self.package) if self.package else ""
        except importlib.metadata.PackageNotFoundError:
            return ""

    def problem(self) -> str:
        """Why this backend cannot be used here, e.g. "trl 1.14.2 is installed, 1.16 was tested";
        "" if it can."""
        if not self.package:
            return ""
        version = self.installed()
        if not version:
            return f"{self.package} is not installed"
        if self.lowest <= version_numbers(version) < self.below:
            return ""
        return f"{self.package} {version} is installed, {self.tested} was tested"

    def command(self) -> str:
        """The command that installs it; "" if there is none."""
        if self.install or not self.package:
            return self.install
        return pip_install(f"{self.package}{self.tested}", *self.beside)

    def require(self) -> None:
        """Raise MissingExtraError if the package is missing, ConfigError if its version was not
        tested; both name the command that installs it."""
        if problem := self.problem():
            kind = ConfigError if self.installed() else MissingExtraError
            raise kind(problem, where="train.backend", fix=self.command())


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version.

    >>> version_numbers("1.16.0.dev3")
    (1, 16, 0)
    """
    numbers: list[int] = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


REFERENCE = Backend(
    name="reference",
    kind="trainer",
    hosts={
        **dict.fromkeys(FEATURES, "yes"),
        "overlap": "by one step",
        "ranks": "FSDP2; live rollouts on replicated ranks only",
    },
    limit="one node was tried; under train.fsdp no live rollouts",
    steps="composer_replication.training.backends.step_check:reference_steps",
)
TRL = Backend(
    name="trl",
    kind="trainer",
    package="trl",
    lowest=(1, 16),
    below=(1, 17),
    beside=("datasets>=5.2,<6",),
    hosts={
        **dict.fromkeys(
            ("policy", "hint_full", "hint_sampled", "preference", "rollouts", "lora"), "yes"
        ),
        "ranks": "replicated",
        "resume": "yes",
    },
    limit="its own rollouts only: no imported examples, anchors, placebos or moving teachers",
    steps="composer_replication.training.backends.trl_check:trl_steps",
)
PRIME_RL = Backend(
    name="prime_rl",
    kind="trainer",
    package="prime-rl",
    lowest=(0, 8),
    below=(0, 9),
    install="git clone https://github.com/PrimeIntellect-ai/prime-rl && cd prime-rl && uv sync",
    on_index=False,
    hosts={
        "policy": "dppo and dppo_symmetric",
        "hint_sampled": "by ref_kl weights",
        "preference": "by signed ce weights",
        "rollouts": "played by its orchestrator",
        "overlap": "always, up to rollouts.max_staleness steps",
        "ranks": "its own",
    },
    limit="a run was not tried (GPUs); hint and preference need a hook in its orchestrator",
    steps="composer_replication.training.backends.prime_rl_check:prime_rl_steps",
)
VERL = Backend(
    name="verl",
    kind="trainer",
    package="verl",
    lowest=(0, 9, 1),
    below=(0, 10),
    beside=("cachetools", "fastapi", "uvicorn"),
    hosts={
        **dict.fromkeys(
            ("policy", "hint_full", "hint_sampled", "preference", "imported", "rollouts"), "yes"
        ),
        "ranks": "FSDP2, started by torchrun or as Ray workers",
    },
    limit=(
        "verl takes the optimiser steps; rollouts are played here or by a server; tried on CPUs"
        " (gloo) only"
    ),
    steps="composer_replication.training.backends.verl_run:verl_steps",
)
MONARCH = Backend(
    name="monarch",
    kind="trainer",
    package="torchmonarch",
    lowest=(0, 7),
    below=(0, 8),
    hosts={
        **dict.fromkeys(FEATURES, "yes"),
        "overlap": "by one step, in processes of their own",
        "ranks": "replicated",
    },
    limit="needs an environment; tried on one machine without a card; weights go as messages",
    steps="composer_replication.training.backends.monarch_run:monarch_steps",
)
HF_JOBS = Backend(
    name="hf_jobs",
    kind="executor",
    package="huggingface_hub",
    lowest=(2, 4),
    below=(3,),
    limit="the SDK against a loopback server; no job of the Hub was paid for",
)
MODAL = Backend(
    name="modal",
    kind="executor",
    package="modal",
    lowest=(1, 6),
    below=(1, 7),
    limit="the SDK against a loopback control plane; no sandbox of Modal was paid for",
)
RAY = Backend(
    name="ray",
    kind="executor",
    package="ray",
    lowest=(2, 60),
    below=(2, 61),
    install=pip_install("ray[default]>=2.60,<2.61"),
    limit="a real head on one machine; secrets are refused, because Ray would show them",
)
TORCHFT = Backend(
    name="torchft",
    kind="engine",
    package="torchft",
    lowest=(0, 2),
    below=(0, 3),
    limit="DiLoCo over gloo on CPUs, with a Lighthouse; float32 weights only",
)
SKYPILOT = Backend(
    name="skypilot",
    kind="executor",
    package="skypilot",
    lowest=(0, 14),
    below=(0, 15),
    limit="the SDK against a loopback API server; no cluster was paid for",
)
EXECUTORS = (HF_JOBS, MODAL, RAY, SKYPILOT)
OPENENV = Backend(
    name="openenv",
    kind="environments",
    package="openenv",
    lowest=(0, 10),
    below=(0, 11),
    limit="our tasks as a server, any server as our environment; this machine only",
)
VERIFIERS = Backend(
    name="verifiers",
    kind="environments",
    package="verifiers",
    lowest=(0, 4),
    below=(0, 5),
    limit="our tasks as a taskset and harness, its traces as sessions; endpoint always named",
)
BACKENDS: Mapping[str, Backend] = {
    backend.name: backend
    for backend in (
        REFERENCE,
        TRL,
        VERL,
        PRIME_RL,
        MONARCH,
        OPENENV,
        VERIFIERS,
        *EXECUTORS,
        TORCHFT,
    )
}
"""Every adapter by its name in `train.backend` (trainers) or `rollouts.env` (environments), and the
executors that start replicas elsewhere, and the other engine of DiLoCo."""


def trainers() -> tuple[str, ...]:
    """The names that `train.backend` takes.

    >>> trainers()[:2]
    ('reference', 'trl')
    """
    return tuple(name for name, backend in BACKENDS.items() if backend.kind == "trainer")
