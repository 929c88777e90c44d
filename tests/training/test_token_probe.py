"""The table of the token probe: the same numbers however many rows of logits are held at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from composer_replication.core.config.hint_settings import HintSettings
from composer_replication.core.time_left import duration
from composer_replication.losses import fused_sweep
from composer_replication.training.forwards.reference import Reference
from composer_replication.training.run import token_probe
from composer_replication.training.run.run_logger import Phase
from tests.training.small_student import make_example, make_student

EXAMPLES = [make_example(0, length=40, hints=3), make_example(1, length=31, hints=2)]


def table(
    *, on_progress: Callable[[Phase], None] = lambda phase: None, **hint: Any
) -> list[dict[str, Any]]:
    student = make_student()
    now = Reference(model=student.model, adapters=True)
    settings = HintSettings(**hint)
    return token_probe.token_table(
        EXAMPLES,
        student=now,
        teachers=[now, now] if settings.teacher == "trust_region" else [now],
        hint_settings=settings,
        tokenizer=student.tokenizer,
        pad_id=student.pad_id,
        max_tokens=1000,
        device="cpu",
        on_progress=on_progress,
    )


@pytest.mark.parametrize(
    "hint", [{}, {"divergence": "kl(student, teacher)"}, {"teacher": "trust_region", "trust": 0.3}]
)
def test_the_table_is_the_same_in_chunks(
    hint: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    unchunked = table(**hint)
    assert [len(row["ids"]) for row in unchunked] == [3, 3, 3, 3, 3]
    assert all(
        len(row[name]) == 3
        for row in unchunked
        for name in ("student", "teacher", "divergence", "texts")
    )
    monkeypatch.setattr(fused_sweep, "chunk_rows", lambda *sizes: 2)
    # bits may differ if a chunk has one row: another matrix product
    for chunked, row in zip(table(**hint), unchunked, strict=True):
        for name in ("student", "teacher", "divergence"):
            assert chunked.pop(name) == pytest.approx(row.pop(name), rel=1e-4, abs=1e-7)
        assert chunked == row


def test_no_more_rows_of_logits_are_held_than_a_chunk_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of 1,732 tokens whose logits were all held at once took 18 GB."""
    projected: list[int] = []
    logits = fused_sweep.Projection.logits

    def counted(self: fused_sweep.Projection, part: slice, out_CV: Tensor) -> None:
        projected.append(len(out_CV))
        logits(self, part, out_CV)

    monkeypatch.setattr(fused_sweep.Projection, "logits", counted)
    monkeypatch.setattr(fused_sweep, "chunk_rows", lambda *sizes: 4)
    rows = table()
    # log-probs of student and teacher, and both again for their divergence
    assert len(rows) == 5 and max(projected) == 4 and sum(projected) == 4 * 15


def test_the_probe_says_how_far_it_is_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real model its forwards take minutes, in which the screen said "getting ready"."""
    now, phases, said = [100.0], list[Phase](), list[str]()
    monkeypatch.setattr(token_probe.time, "monotonic", lambda: now[0])
    predictors = Reference.predictors

    def timed(self: Reference, rows: Any, targets: Any, *, max_tokens: int) -> Tensor:
        said.append(phases[-1]())
        now[0] += float(rows.lengths_B.sum())  # a second per token
        return predictors(self, rows, targets, max_tokens=max_tokens)

    monkeypatch.setattr(Reference, "predictors", timed)
    table(on_progress=phases.append)
    assert len(phases) == 1  # the phase is asked again whenever the screen is drawn
    # rows of the two sessions: 40, then 3 with a hint; 31, then 2 with a hint
    hinted = [sum(len(example.teacher_ids(view)) for view in example.hints) for example in EXAMPLES]
    assert said == [
        "token probe: 0 of 7 rows, eta measuring",
        f"token probe: 1 of 7 rows, eta {duration(hinted[0] + 31 + hinted[1])}",
        f"token probe: 4 of 7 rows, eta {duration(31 + hinted[1])}",
        f"token probe: 5 of 7 rows, eta {duration(hinted[1])}",
    ]
    assert phases[0]() == "token probe: 7 of 7 rows, eta 0s"
    assert all(len(f" step 0 of 2000   elapsed 10m00s   {text}") <= 80 for text in said)


def test_rows_go_through_the_model_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three views of a session of 40 tokens were 120 in one forward, whatever a step needs."""
    asked: list[int] = []
    predictors = Reference.predictors

    def counted(self: Reference, rows: Any, targets: Any, *, max_tokens: int) -> Tensor:
        asked.append(max_tokens)
        return predictors(self, rows, targets, max_tokens=max_tokens)

    monkeypatch.setattr(Reference, "predictors", counted)
    table()
    assert asked == [40, 40, 31, 31]
