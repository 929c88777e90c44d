"""The reference's log-probs of pairs: scored once, keyed by the model's hash, equal to a new
scoring, and never those of other weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from composer_replication.core.config.student_settings import LoraSettings, StudentSettings
from composer_replication.core.errors import AlignmentError
from composer_replication.core.rundir import RunDir, open_run
from composer_replication.models.load_student import Student, load_student
from composer_replication.tokens.batch import collate, count
from composer_replication.tokens.example import PreferencePair
from composer_replication.training.forwards.channels import channel_losses
from composer_replication.training.loop import train
from composer_replication.training.run.kept_reference import KeptReference, keep_reference
from composer_replication.training.run.state import Trainer
from tests.training.small_student import (
    WordTokenizer,
    make_config,
    make_example,
    make_pair,
    make_run,
    make_student,
    small_model,
    start_trainer,
)
from tests.training.test_channels import log_softmax, perturbed, plain_logits

PAIRS = [
    make_pair(0),
    make_pair(1, prefix=9, chosen=2, rejected=7),
    make_pair(2, chosen=6, rejected=1),
]
EXAMPLES = [make_example(i, length=22 + 3 * i, hints=0) for i in range(3)]
ONLY: dict[str, Any] = {
    "lm_ce": {"weight": 0.0},
    "hint": {"weight": 0.0},
    "preference": {"weight": 1.0, "batch_pairs": 2, "anchor": 0.0},
}


def trainer_on(student: Student, **options: Any) -> Trainer:
    return start_trainer(make_config(**{**ONLY, **options}), student)


def reference_of(
    trainer: Trainer, folder: Path | None, pairs: list[PreferencePair] = PAIRS
) -> KeptReference:
    return keep_reference(trainer, pairs, folder=folder)


def trained(
    folder: Path, name: str, student: Student, *, reference: Path | None, **options: Any
) -> tuple[RunDir, list[dict[str, Any]]]:
    """The run, and its metrics without those of a clock."""
    config = make_config(**{**ONLY, **options})
    run = make_run(folder, config, name=name)
    train(config, student=student, examples=EXAMPLES, pairs=PAIRS, run=run, reference=reference)
    return run, lines_of(run)


def lines_of(run: RunDir) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in metrics.items() if key not in ("step_s", "t")}
        for metrics in run.metrics()
    ]


def reference_counts(run: RunDir) -> tuple[int, int]:
    """(made, found), of the newest launch."""
    starts = [event for event in run.events() if event["kind"] == "start"]
    return starts[-1]["reference_made"], starts[-1]["reference_found"]


@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_they_are_the_starts_log_probs_token_by_token(layout: str) -> None:
    trainer = trainer_on(make_student(dropout=0.5), layout=layout)
    for pair in reference_of(trainer, None).with_reference(PAIRS):
        by_hand = []
        for side in (pair.chosen_ids, pair.rejected_ids):
            logp = log_softmax(
                plain_logits(trainer.models.references["preference"].model, pair.prefix_ids + side)
            )
            by_hand += [
                float(logp[len(pair.prefix_ids) + j - 1, token]) for j, token in enumerate(side)
            ]
        assert pair.reference == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize("objective", ["dpo", "dpo_norm", "ipo"])
def test_a_loss_on_kept_log_probs_is_that_of_scoring_the_start_in_the_step(objective: str) -> None:
    trainer = perturbed(
        trainer_on(
            make_student(), preference={"weight": 1.0, "objective": objective, "anchor": 0.0}
        )
    )
    scored_pairs = reference_of(trainer, None).with_reference(PAIRS)
    (scored,), _ = channel_losses(trainer.models, collate([], PAIRS, pad_id=0), count([], PAIRS))
    del trainer.models.references["preference"]
    (known,), _ = channel_losses(
        trainer.models, collate([], scored_pairs, pad_id=0), count([], scored_pairs)
    )
    assert torch.allclose(known.values, scored.values, atol=1e-6) and scored.values.std() > 1e-4
    assert known.metrics["chosen_logratio"].abs().max() > 1e-3 and torch.allclose(
        known.metrics["chosen_logratio"], scored.metrics["chosen_logratio"], atol=1e-5
    )


def test_a_run_on_kept_log_probs_is_the_run_that_made_them_bit_for_bit(tmp_path: Path) -> None:
    folder = tmp_path / "reference"
    runs = [
        trained(tmp_path, name, make_student(), reference=reference_dir)
        for name, reference_dir in (("a", folder), ("b", folder), ("c", None))
    ]
    assert [reference_counts(run) for run, _ in runs] == [(3, 0), (0, 3), (3, 0)]
    assert runs[0][1] == runs[1][1] == runs[2][1] and len(runs[0][1]) == 4
    assert {metrics["preference/tokens"] > 0 for metrics in runs[0][1]} == {True}


def test_other_weights_find_nothing_of_the_first_ones(tmp_path: Path) -> None:
    folder = tmp_path / "reference"
    first, _ = trained(tmp_path, "first", make_student(), reference=folder)
    other_run, lines = trained(tmp_path, "other", make_student(seed=1), reference=folder)
    alone, expected = trained(tmp_path, "alone", make_student(seed=1), reference=None)
    assert (
        reference_counts(first) == reference_counts(other_run) == reference_counts(alone) == (3, 0)
        and lines == expected
    )
    assert len(list(folder.glob("*.safetensors"))) == 2


def test_a_pair_encoded_otherwise_is_made_and_the_others_are_found(tmp_path: Path) -> None:
    """The same id and lengths, one token of its context another one."""
    first = reference_of(trainer_on(make_student()), tmp_path)
    changed = dataclasses.replace(
        PAIRS[0], prefix_ids=(PAIRS[0].prefix_ids[0] + 1, *PAIRS[0].prefix_ids[1:])
    )
    again = reference_of(trainer_on(make_student()), tmp_path, [changed, *PAIRS[1:]])
    assert (first.num_scored, again.num_scored, again.num_loaded) == (3, 1, 2)
    assert (
        again.with_reference([changed])[0].reference != first.with_reference(PAIRS[:1])[0].reference
    )
    assert reference_of(trainer_on(make_student()), tmp_path).num_loaded == 3, (
        "what was found before is still there"
    )


@pytest.mark.parametrize("change", ["layout", "model"])
def test_what_would_change_a_last_bit_is_another_file(change: str, tmp_path: Path) -> None:
    reference_of(trainer_on(make_student(), layout="tree"), tmp_path)
    student = make_student()
    if change == "model":
        student.model.config.rms_norm_eps *= 2
    assert (
        reference_of(
            trainer_on(student, layout="rows" if change == "layout" else "tree"), tmp_path
        ).num_loaded
        == 0
    )


def test_a_damaged_file_is_made_anew(tmp_path: Path) -> None:
    reference_of(trainer_on(make_student()), tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    good_bytes = path.read_bytes()
    path.write_bytes(good_bytes[: len(good_bytes) // 2])
    assert (
        reference_of(trainer_on(make_student()), tmp_path).num_scored == 3
        and path.read_bytes() == good_bytes
    )


def test_adapters_are_off_and_a_resumed_run_asks_the_start(tmp_path: Path) -> None:
    """Not by the weights of the checkpoint: the resumed run finds the log-probs of the first
    launch, and continues like an undisturbed run."""
    base = tmp_path / "base"
    small_model().save_pretrained(str(base))
    settings = StudentSettings(model=str(base), lora=LoraSettings(rank=2, alpha=8))
    runs = []
    for name, halt in (("whole", 4), ("halved", 2)):
        config = make_config(**ONLY, steps=4)
        run = make_run(tmp_path, config, name=name)

        def student() -> Student:
            return load_student(settings, tokenizer=WordTokenizer(), seed=3)

        short = config.model_copy(update={"train": config.train.model_copy(update={"steps": halt})})
        train(
            short,
            student=student(),
            examples=EXAMPLES,
            pairs=PAIRS,
            run=run,
            reference=tmp_path / name,
        )
        if halt < 4:
            train(
                config,
                student=student(),
                examples=EXAMPLES,
                pairs=PAIRS,
                run=run,
                reference=tmp_path / name,
                resume=True,
                accept_changes=True,
            )
        runs.append(open_run(run.path))
    assert [metrics["preference/loss"] for metrics in runs[0].metrics()] == [
        metrics["preference/loss"] for metrics in runs[1].metrics()
    ]
    assert reference_counts(runs[1]) == (0, 3)
    plain = AutoModelForCausalLM.from_pretrained(str(base))
    lora = trainer_on(load_student(settings, tokenizer=WordTokenizer(), seed=3))
    full = trainer_on(Student(name="full", model=plain, tokenizer=WordTokenizer()))
    for with_adapters, without in zip(
        reference_of(lora, None).with_reference(PAIRS),
        reference_of(full, None).with_reference(PAIRS),
        strict=True,
    ):
        assert with_adapters.reference == pytest.approx(without.reference, abs=1e-6)


def test_no_copy_of_the_start_is_held_and_simpo_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[bool] = []

    def looking(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
        recorded.append("preference" in trainer.models.references)
        return step(trainer, *args, **kwargs)

    from composer_replication.training import loop

    step = loop.train_step
    monkeypatch.setattr(loop, "train_step", looking)
    trained(tmp_path, "dpo", make_student(), reference=tmp_path / "kept")
    assert recorded == [False] * 4
    run, _ = trained(
        tmp_path,
        "simpo",
        make_student(),
        reference=tmp_path / "none",
        preference={"weight": 1.0, "objective": "simpo"},
    )
    assert not (tmp_path / "none").exists() and "reference_made" not in run.events()[0]


def test_log_probs_of_another_length_are_refused() -> None:
    with pytest.raises(AlignmentError, match="3 log-probs of the reference for 9 tokens"):
        dataclasses.replace(PAIRS[0], reference=(-1.0, -2.0, -3.0))
    bad_pair = dataclasses.replace(PAIRS[0], reference=(-1.0,) * 9)
    with pytest.raises(AlignmentError, match="1 of 2 pairs"):
        collate([], [bad_pair, PAIRS[1]], pad_id=0)


def test_only_the_pairs_that_a_run_draws_are_scored(tmp_path: Path) -> None:
    config = make_config(
        **{**ONLY, "preference": {**ONLY["preference"], "batch_pairs": 1}, "steps": 2}
    )
    run = make_run(tmp_path, config, name="r")
    train(
        config,
        student=make_student(),
        examples=EXAMPLES,
        pairs=[make_pair(i) for i in range(9)],
        run=run,
    )
    assert reference_counts(run) == (2, 0)
