"""The data of `train`: the built examples, their tokenizer and split, checked for the student."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from composer_replication.cli.forgotten import check_not_forgotten
from composer_replication.cli.job import Job
from composer_replication.cli.student_tokenizer import built_tokenizer, student_renderer
from composer_replication.core.config.student_settings import TINY
from composer_replication.core.errors import DataError
from composer_replication.models.adapter_folder import with_adapter
from composer_replication.models.context_length import check_context
from composer_replication.tokens.artefact import Dataset, load_dataset
from composer_replication.tokens.forward_size import forward_sizes
from composer_replication.tokens.hf import student_tokenizer


def with_built_split(job: Job, data: Dataset) -> Job:
    """The job with the split of the examples, so that the evaluation holds out what they do."""
    split = data.meta.get("held_out") or {}
    if not split:
        return job
    held_out = job.config.held_out.model_copy(
        update={"by": split["by"], "fraction": split["fraction"]}
    )
    loaded = replace(job.loaded, config=job.config.model_copy(update={"held_out": held_out}))
    return replace(job, loaded=loaded)


def with_own_adapter(job: Job) -> Job:
    """The job with the rank and alpha of the adapter that it goes on from, if student.model is one.

    So the run's settings say what is trained, and resuming, evaluation and export need not ask.
    """
    student = with_adapter(job.config.student)
    loaded = replace(job.loaded, config=job.config.model_copy(update={"student": student}))
    return replace(job, loaded=loaded)


def tokenizer_of(job: Job) -> Any:
    """The tokenizer that `build` used; the model's own if nothing was built for live rollouts."""
    model = job.config.student.model
    if job.config.rollouts.env and model != TINY and not job.examples.is_dir():
        return student_tokenizer(job.config.student)
    return built_tokenizer(job.examples, build_command=job.command("build"))


_CHOSEN = " (it is 'auto': where the audit measured, or 'system' if there is no audit.json)"


def load_examples(job: Job, tokenizer: Any) -> Dataset:
    """Load the examples; raises DataError if they were built for another student or tokenizer."""
    wanted = job.config.student.model
    model_tokenizer = tokenizer if wanted == TINY else student_tokenizer(job.config.student)
    data = load_dataset(
        job.examples,
        tokenizer_sha256=student_renderer(model_tokenizer, job.config).codec.sha256(),
    )
    check_not_forgotten(job, data)
    if data.meta["student"] != wanted:
        built = data.meta["student"]
        raise DataError(
            f"the examples were built for {built!r}, the student is {wanted!r}",
            where=str(job.examples),
            fix=f"run: {job.command('build')}",
        )
    longest = max((size for size, _ in forward_sizes(data.examples)), default=0)
    check_context(
        job.config.student,
        longest,
        what="the longest example",
        fix=f"run again with a smaller build.max_tokens: {job.command('build')}",
    )
    built_position = data.meta.get("hint_position", "system")
    if built_position != (position := job.config.hints.fixed_position()):
        raise DataError(
            f"the examples hold their hints in position {built_position!r}, hints.position is"
            f" {position!r}" + (_CHOSEN if job.auto_position else ""),
            where=str(job.examples),
            fix=f"run: {job.command('build')}",
        )
    return data
