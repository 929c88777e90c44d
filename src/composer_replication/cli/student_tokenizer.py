"""The student's tokenizer: made or loaded by `build`, and saved beside the examples."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.codec import read_sessions
from composer_replication.core.config.root import Config
from composer_replication.core.config.student_settings import TINY
from composer_replication.core.errors import DataError, need
from composer_replication.core.files import save_folder
from composer_replication.core.trace import Session, ToolCall
from composer_replication.tokens.hf import load_tokenizer, student_tokenizer
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.split import is_held_out, resolve_split_unit
from composer_replication.tokens.tiny_tokenizer import train_tiny_tokenizer

FOLDER = "tokenizer"
# characters of each text, and in total: enough to learn a vocabulary of 2,048 tokens from
BLOCK_CHARS, TOTAL_CHARS = 2_000, 2_000_000


def make_tokenizer(config: Config, sessions: Path) -> Any:
    """The model's tokenizer; for the tiny student, one trained on the sessions not held out, or the
    one that it sampled them with, if `recompose serve` recorded them.
    """
    need("transformers", extra="train")
    if config.student.model != TINY:
        return student_tokenizer(config.student)
    if (sessions.parent / FOLDER).is_dir():
        return load_tokenizer(str(sessions.parent / FOLDER))
    held_out = resolve_split_unit(config.held_out, read_sessions(sessions))
    training = (s for s in read_sessions(sessions) if not is_held_out(s, settings=held_out))
    return train_tiny_tokenizer(_up_to(_texts(training), TOTAL_CHARS))


def student_renderer(tokenizer: Any, config: Config) -> Renderer:
    """The renderer of the student's template; raises RenderError if it cannot write calls."""
    renderer = Renderer.for_tokenizer(tokenizer, family=config.student.template)
    renderer.check_calls()
    return renderer


def built_tokenizer(examples: Path, *, build_command: str) -> Any:
    """The tokenizer that `build` used."""
    need("transformers", extra="train")
    if not (examples / FOLDER).is_dir():
        raise DataError("no examples", where=str(examples), fix=f"run first: {build_command}")
    return load_tokenizer(str(examples / FOLDER))


def keep_tokenizer(work: Path, renderer: Renderer) -> None:
    """Save the tiny student's tokenizer beside the sessions that it samples: their ids mean nothing
    in another vocabulary.

    Raises DataError if earlier sessions there were sampled with another one.
    """
    tokenizer = renderer.tokenizer
    if not (work / FOLDER).is_dir():
        tokenizer.chat_template = renderer.template
        save_folder(work / FOLDER, tokenizer.save_pretrained)
        return
    kept = Renderer(
        load_tokenizer(str(work / FOLDER)), family=renderer.family, own_template=renderer.template
    )
    if kept.codec.sha256() != renderer.codec.sha256():
        raise DataError(
            "the sessions here were sampled with another tokenizer",
            where=str(work),
            fix="move this folder away, or name another work folder with -o",
        )


def sampling_tokenizer(job: Job) -> Any:
    """The tokenizer of the student that sampled the sessions of a work folder."""
    need("transformers", extra="train")
    if job.config.student.model != TINY:
        return student_tokenizer(job.config.student)
    for folder in (job.work / FOLDER, job.examples / FOLDER):
        if folder.is_dir():
            return load_tokenizer(str(folder))
    raise DataError(
        "the tiny student has no tokenizer here, so another model sampled these sessions",
        where=str(job.work / FOLDER),
        fix="name the model that did: --student.model FOLDER",
    )


def _texts(sessions: Iterable[Session]) -> Iterator[str]:
    for session in sessions:
        for block in itertools.chain.from_iterable(turn.blocks for turn in session.turns):
            if isinstance(block, ToolCall):
                yield json.dumps(
                    {"name": block.name, "arguments": block.arguments}, ensure_ascii=False
                )[:BLOCK_CHARS]
            else:
                yield block.text[:BLOCK_CHARS]


def _up_to(texts: Iterable[str], limit: int) -> Iterator[str]:
    total = 0
    for text in texts:
        total += len(text)
        if total > limit:
            return
        # lone surrogates cannot be trained on
        yield text.encode("utf-8", "replace").decode("utf-8")
