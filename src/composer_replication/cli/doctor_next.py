"""The next command that `doctor` names."""

from __future__ import annotations

from collections.abc import Mapping

from composer_replication.cli.job import Job
from composer_replication.cli.next_step import TRAIN_PACKAGES, next_step
from composer_replication.core.config.root import Config
from composer_replication.core.errors import pip_install

NEED_TRAIN = frozenset(
    {"demo", "model", "build", "train", "diloco", "evaluate", "export", "hints --audit"}
)
INSTALL_TRAIN = pip_install("composer-replication[train]")


def doctor_next(job: Job, fixes: Mapping[str, str], *, can_train: bool) -> str:
    """The remedy of the settings, else the next step, else the remedy that this step waits for.

    `fixes` are the remedies of the failed checks, by name.

    Example: sessions, sites and hints, no PyTorch and no logs of an agent -> "recompose report"
    """
    if "settings" in fixes:
        return fixes["settings"]
    step = next_step(job)
    if step == job.command("doctor") and can_train:  # this is the doctor: there are no logs
        return "recompose demo"
    waits = step.split()[1] in (*NEED_TRAIN, "doctor") or "--audit" in step
    if can_train or not waits:
        return step
    return next(
        (fixes[name] for name in (*TRAIN_PACKAGES, *OPTIONAL) if name in fixes),
        INSTALL_TRAIN,
    )


OPTIONAL = ("gguf", "bitsandbytes", "obstore", "zstandard")
"""The packages that `optional_needs` may name."""


def optional_needs(config: Config) -> list[tuple[str, str, str]]:
    """(package, extra, setting) of what only some settings need: gguf for a GGUF file, bitsandbytes
    for 4 and 8 bits, obstore and zstandard for replicas.

    >>> optional_needs(Config.model_validate({"train": {"optimiser": "adamw_8bit"}}))
    [('bitsandbytes', 'qlora', 'train.optimiser')]
    """
    student, needs = config.student, list[tuple[str, str, str]]()
    if any(name.lower().endswith(".gguf") for name in (student.model, student.base)):
        needs.append(("gguf", "gguf", "student.model"))
    if student.load_in_4bit:
        needs.append(("bitsandbytes", "qlora", "student.load_in_4bit"))
    elif config.train.optimiser == "adamw_8bit":
        needs.append(("bitsandbytes", "qlora", "train.optimiser"))
    if config.train.sync.url:
        needs += [(name, "diloco", "train.sync.url") for name in ("obstore", "zstandard")]
    return needs
