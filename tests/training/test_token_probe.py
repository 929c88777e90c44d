"""The table of the token probe: the same numbers however many rows of logits are held at a time."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from composer_replication.core.config.hint_settings import HintSettings
from composer_replication.losses import fused_sweep
from composer_replication.training.forwards.reference import Reference
from composer_replication.training.run import token_probe
from tests.training.small_student import make_example, make_student

EXAMPLES = [make_example(0, length=40, hints=3), make_example(1, length=31, hints=2)]


def table(**hint: Any) -> list[dict[str, Any]]:
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
