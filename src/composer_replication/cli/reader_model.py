"""Opens the model that reads: for hints (`hints.reader`), or for candidates (`sites.reader`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from composer_replication.cli.job import Job
from composer_replication.cli.replay_teachers import open_teacher
from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.reader_settings import (
    CandidateReaderSettings,
    ReaderSettings,
)
from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.teacher import Teacher
from composer_replication.data.replay.model_families import family_of
from composer_replication.data.teachers.asking import Asker
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from composer_replication.data.teachers.open import (
    check_no_batch,
    limits_of,
    named_teachers,
    retry_policy_of,
)
from composer_replication.data.teachers.openai_compatible import OpenAICompatible
from composer_replication.data.teachers.recorded_teachers import recorded_teachers

AnyReader = ReaderSettings | CandidateReaderSettings


def open_reader(job: Job, settings: AnyReader, *, where: str, asking: bool) -> Teacher:
    """The model of some reader's settings, which stand at `where`, or its recorded answers; raises
    ConfigError for unusable ones.

    API keys are needed only with `asking`.
    """
    if settings.recorded:
        recorded = recorded_teachers(Path(settings.recorded))
        if len(recorded) != 1:
            raise ConfigError(
                f"{len(recorded)} readers in {settings.recorded!r}, not one",
                where=f"{where}.recorded",
            )
        return recorded[0]
    if not settings.teacher:
        raise ConfigError(
            "no reader is named",
            where=f"{where}.teacher",
            fix='give a name of [replay.teacher.NAME], e.g. "kimi"',
        )
    ((name, teacher),) = _named(job, settings).items()
    check_no_batch(name, teacher, where=f"{where}.teacher")
    return open_teacher(name, teacher, asking=asking)


def need_ceiling(job: Job, teacher: Teacher, *, estimate: str) -> None:
    """Raises ConfigError if a paid reader would be asked without a ceiling; `estimate` is the
    command that says what it would cost."""
    if not teacher.price.free and not job.config.replay.max_usd:
        raise ConfigError(
            f"{teacher.name} is paid, and there is no ceiling",
            where="replay.max_usd",
            fix=f"see what it would cost: {estimate}; then set replay.max_usd",
        )


@asynccontextmanager
async def reader_asker(
    job: Job, teacher: Teacher, settings: AnyReader, *, stage: str
) -> AsyncIterator[Asker]:
    """Yield what asks a reader, through the ledger and under the ceiling of `recompose replay`.

    Example: async with reader_asker(job, teacher, settings, stage="hints") as asker: ...
    """
    async with AsyncExitStack() as stack:
        if isinstance(teacher, OpenAICompatible):
            await stack.enter_async_context(teacher)
        kept = bool(teacher.identity)
        ledger = (
            stack.enter_context(Ledger(job.work / LEDGER_NAME, max_usd=job.config.replay.max_usd))
            if kept
            else None
        )
        yield Asker(
            ledger,
            limits=limits_of(_named(job, settings).values()) if kept else {},
            retry_policy=retry_policy_of(job.config.replay),
            seed=stage_seed(job.config.seed, stage),
        )


def _named(job: Job, settings: AnyReader) -> dict[str, TeacherSettings]:
    replay = job.config.replay.model_copy(update={"teachers": (settings.teacher,)})
    return named_teachers(replay, maker_of=family_of)
