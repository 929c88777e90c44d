"""What a step needs in memory, by term, and what would let more fit, for `train` and `doctor`."""

from __future__ import annotations

from typing import Any

from composer_replication.cli.job import Job
from composer_replication.cli.memory_card import found_card
from composer_replication.cli.memory_fits import HOW_KNOWN, Fit
from composer_replication.core.config.root import Config
from composer_replication.models.adapter_folder import base_model
from composer_replication.models.gguf_file import describe_gguf
from composer_replication.models.student_shape import StudentShape, student_shape
from composer_replication.tokens.artefact import Dataset
from composer_replication.training.memory.memory_fit import (
    GB,
    changes,
    longest_window,
)
from composer_replication.training.memory.memory_model import MemoryNeed, StepSize, memory_need


def fit_of(
    job: Job,
    size: StepSize,
    *,
    memory_gb: float,
    cards: int = 0,
    student: StudentShape | None = None,
) -> Fit | None:
    """What a forward of this size needs; None for a student whose widths are not known."""
    student = student or student_shape(job.config.student)
    if student.shape is None:
        return None
    card, name = found_card(memory_gb, cards=cards)
    shape, known = student.shape, {"context": student.context}

    def need(config: Config) -> MemoryNeed:
        return memory_need(shape, config, size, device=card.device, ranks=card.cards)

    found = tuple(changes(shape, job.config, card, **known))
    return Fit(
        card=card,
        name=name,
        size=size,
        need=need(job.config),
        window=longest_window(shape, job.config, card, **known),
        changes=found,
        remedy=next((c for c in found if need(c.config).total <= card.usable), None),
    )


def window_fit(job: Job, *, memory_gb: float, cards: int = 0) -> tuple[Fit | None, bool, str]:
    """What a session of build.max_tokens needs, whether it fits, and that in words."""
    student = student_shape(job.config.student)
    size = StepSize.full_window(job.config.build.max_tokens)
    fit = fit_of(job, size, memory_gb=memory_gb, cards=cards, student=student)
    if fit is None:
        return None, True, f"not computed: {student.why_unknown}"
    longest = f"one forward of {fit.window:,} tokens" if fit.window else "no forward"
    return fit, fit.fits, f"{longest} fits {fit.name}"


def run_fit(job: Job, data: Dataset, *, memory_gb: float, cards: int = 0) -> Fit | None:
    """What the largest forward of a run on these examples needs."""
    from composer_replication.training.memory.largest_forward import largest_of_a_run  # PyTorch

    config, student = job.config, student_shape(job.config.student)
    shape = student.shape
    if shape is None:
        return None
    card, _ = found_card(memory_gb, cards=cards)
    size = largest_of_a_run(
        config,
        examples=data.examples,
        pairs=data.pairs,
        need=lambda s: memory_need(shape, config, s, device=card.device, ranks=card.cards).total,
        ranks=card.cards,
        hidden_size=shape.hidden,
    )
    return fit_of(job, size, memory_gb=memory_gb, cards=cards, student=student)


def print_fit(job: Job, fit: Fit | None) -> dict[str, Any] | None:
    """Print the terms, the longest window and the changes; returns the numbers."""
    if fit is None:
        why = student_shape(job.config.student).why_unknown
        job.screen.line(f" memory   not computed: {why}")
        return None
    show_line, need = job.screen.line, fit.need
    show_line(
        f" memory   {need.total / GB:.1f} GB for a forward of {fit.size.tokens:,} tokens, of"
        f" {fit.card.usable / GB:.1f} GB that can be used of {fit.name} ({HOW_KNOWN})"
    )
    terms = sorted(need.terms.items(), key=lambda term: -term[1])
    job.screen.table(
        [(name, f"{value / GB:.2f}") for name, value in terms],
        head=(f"needed at once ({need.moment})", "GB"),
    )
    student = job.config.student
    if from_gguf := describe_gguf(base_model(student), dtype=student.dtype):
        show_line(
            f" weights  {from_gguf}: the sizes are those of the plain weights, not of the file"
        )
    if need.host:
        show_line(
            f"          {need.host / GB:.1f} GB of the machine's memory beside it (train.offload)"
        )
    show_line(f" window   the longest that fits with these settings is {fit.window:,} tokens")
    if fit.changes:
        job.screen.table(
            [(f"{'+ ' * (n > 0)}{c.setting}", f"{c.window:,}") for n, c in enumerate(fit.changes)],
            head=("change", "longest window"),
        )
    warn_of_fit(job, fit)
    return fit.as_json() | ({"from_gguf": from_gguf} if from_gguf else {})


def _sizes_that_fit(job: Job, window: int) -> tuple[int, int]:
    """train.micro_tokens and build.max_tokens for a card that holds `window` tokens: in layout
    "rows" sessions and pairs are a forward each, and a pair is two rows of one."""
    train = job.config.train
    if train.layout == "rows" and train.preference.weight:
        return window // 2, window // 4
    return window, window


def warn_of_fit(job: Job, fit: Fit | None) -> None:
    """Print a warning, with the remedy, if the forward does not fit."""
    if fit is None or fit.fits:
        return
    remedy = fit.remedy
    settings = [change.setting for change in fit.changes]
    if remedy is not None:
        chosen = settings[: settings.index(remedy.setting) + 1]
        fix = f"set {', '.join(chosen)}"
    elif fit.window:
        forward, longest = _sizes_that_fit(job, fit.window)
        fix = f"set train.micro_tokens = {forward} or less, build.max_tokens = {longest} or less"
    else:
        fix = "take a smaller model or a larger card"
    job.screen.line(
        f" WARNING  a forward of {fit.size.tokens:,} tokens needs {fit.need.total / GB:.1f} GB, and"
        f" {fit.card.usable / GB:.1f} GB can be used of {fit.name}: {fix}",
        style="bold red",
    )
