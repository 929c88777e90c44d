"""The student of `recompose serve`: a script, a server, a checkpoint of a run, or the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer_replication.cli.job import Job
from composer_replication.cli.resuming import chosen_player
from composer_replication.cli.student_tokenizer import built_tokenizer, student_renderer
from composer_replication.core.config.student_settings import TINY
from composer_replication.core.errors import DataError

if TYPE_CHECKING:
    from composer_replication.rollouts.chat_format import ChatFormat
    from composer_replication.rollouts.sampling import Sampling
    from composer_replication.serve.student_writers import Writer


def serving(
    job: Job, *, run: str, script: Path | None, settings: Sampling
) -> tuple[ChatFormat, Writer]:
    """The student's format and who writes its messages.

    With a script, the model's tokenizer is loaded, and not the model.
    """
    from composer_replication.rollouts.chat_format import ChatFormat
    from composer_replication.serve.student_writers import (
        LocalWriter,
        ScriptedWriter,
        ServedWriter,
        read_script,
    )
    from composer_replication.training.draws.forked import AUTHOR

    if script is None and run:
        from composer_replication.evaluation.players import load_player

        _, player = chosen_player(job, "serve", run, name="student")
        student, renderer = load_player(player)
        chat_format = ChatFormat.of(renderer, author=AUTHOR)
        stop = chat_format.stop_ids(student.model)
        version = player.steps
        return chat_format, LocalWriter(
            student.model, settings=settings, stop=stop, version=version
        )
    tokenizer = _tokenizer(job)
    chat_format = ChatFormat.of(student_renderer(tokenizer, job.config), author=AUTHOR)
    if script is not None:
        main, others = _read(script)
        return chat_format, ScriptedWriter(
            chat_format=chat_format,
            messages=read_script(main),
            others={name: read_script(rows) for name, rows in others.items()},
        )
    if job.config.rollouts.generator == "served":
        from composer_replication.rollouts.served import ServedModel

        server = job.config.rollouts.server
        model = ServedModel(
            url=server.url,
            model=server.model,
            protocol=server.protocol,
            timeout_s=server.timeout_s,
            num_requests=server.requests,
        )
        model.check()
        stop = chat_format.stop_ids()
        return chat_format, ServedWriter(model=model, settings=settings, stop=stop)
    from composer_replication.models.load_student import load_student

    student = load_student(job.config.student, tokenizer=tokenizer, seed=job.config.seed)
    stop = chat_format.stop_ids(student.model)
    return chat_format, LocalWriter(student.model, settings=settings, stop=stop, version=0)


def _tokenizer(job: Job) -> Any:
    from composer_replication.tokens.hf import student_tokenizer

    if job.config.student.model == TINY:
        if not job.examples.is_dir():
            raise DataError(
                "the tiny student has no tokenizer yet: `build` makes it from your sessions",
                where=str(job.examples),
                fix=f"run first: {job.command('build')}, or name a model: --student.model FOLDER",
            )
        return built_tokenizer(job.examples, build_command=job.command("build"))
    return student_tokenizer(job.config.student)


def _read(script: Path) -> tuple[Any, dict[Any, Any]]:
    """The messages for the task, and those for requests with another purpose."""
    try:
        value = json.loads(script.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"not a script: {error}", where=str(script)) from error
    if isinstance(value, dict):
        return value.pop("main", []), value
    return value, {}
