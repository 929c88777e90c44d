"""Teachers that answer from a file of earlier or hand-written answers.

    teachers = recorded_teachers(Path("answers.jsonl"))    # one per name, in order of first answer
    reply = await teachers[0].ask(Request(..., about="s1:7:-"))

They look a turn up by its name, not by its prompt. If the file holds no answer they raise a
TeacherError that is not retried.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from composer_replication.core.codec import read_answers
from composer_replication.core.errors import DataError, TeacherError
from composer_replication.core.site import Answer
from composer_replication.core.teacher import REFUSED, FreeTeacher, Request, TeacherReply, Usage


@dataclass(frozen=True, slots=True)
class RecordedTeacher(FreeTeacher):
    """One teacher of a file: its answers by place. They were paid for when they were given."""

    name: str
    family: str
    answers: Mapping[str, Answer]
    provider: str = "recorded"

    async def ask(self, request: Request) -> TeacherReply:
        """The answer of the file to the place that the request is about; raises TeacherError where
        there is none."""
        answer = self.answers.get(request.about)
        if answer is None:
            raise TeacherError(
                "no recorded answer",
                where=f"{self.name}, {request.about}",
                again=False,
                billed=False,
            )
        usage = Usage(
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
            cached_tokens=answer.cached_tokens,
            usd=answer.usd,
        )
        # this run's recipe judges anew
        problem = "" if answer.problem.startswith(REFUSED) else answer.problem
        facts = {
            "provider": answer.provider,
            "confidence": answer.confidence,
            "family": answer.family,
        }
        return TeacherReply(turn=answer.turn, usage=usage, problem=problem, **facts)


def recorded_teachers(path: Path) -> tuple[RecordedTeacher, ...]:
    """The teachers of an answers file; raises DataError where one name has two families or answers
    a place twice.

    Answers by another author may be of another family, because the server had another model answer;
    the teacher's is the most usual one.
    """
    by_name: dict[str, dict[str, Answer]] = {}
    family_counts: dict[str, Counter[str]] = defaultdict(Counter)
    families: dict[tuple[str, str | None], str] = {}
    for answer in read_answers(path):
        family_counts[answer.teacher][answer.family] += 1
        if (
            families.setdefault((answer.teacher, answer.turn.author), answer.family)
            != answer.family
        ):
            raise DataError(f"teacher {answer.teacher!r} has two families", where=str(path))
        answers = by_name.setdefault(answer.teacher, {})
        if answer.site_id in answers:
            raise DataError(
                f"teacher {answer.teacher!r} answers {answer.site_id} twice",
                where=str(path),
                fix="keep one of them",
            )
        answers[answer.site_id] = answer
    return tuple(
        RecordedTeacher(name, family_counts[name].most_common(1)[0][0], answers)
        for name, answers in by_name.items()
    )
