"""The verl adapter's own half without verl: items as bytes, rows of a forward, and losses on logits
that equal the reference trainer's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from composer_replication.cli.train_backends import check_resumable, step_engine_of
from composer_replication.core.channel_names import CHANNELS
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import AlignmentError, ConfigError
from composer_replication.models.forward import head_of
from composer_replication.tokens.batch import Rows, Targets, count
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training.backends.verl_loss import LogitModels, StepLosses
from composer_replication.training.backends.verl_rows import (
    FILLER,
    StepFacts,
    filled_rows,
    item_bytes,
    item_of_bytes,
    needs_start,
    plan_micro_batches,
    rows_of_ranks,
)
from composer_replication.training.backends.verl_settings import check_hosted_by_verl
from composer_replication.training.run.state import make_trainer
from composer_replication.training.step import accumulate, gradient_norm
from tests.training.small_student import (
    make_config,
    make_example,
    make_pair,
    make_rollout,
    make_student,
)

pytestmark = pytest.mark.train
EXAMPLES = [
    make_rollout(0, advantage=0.5, hints=2, anchored=True, length=30),
    make_rollout(1, advantage=-0.25, lm=False),
    make_example(2, hints=0),
]
PAIRS = [make_pair(0), make_pair(1, prefix=9)]


def test_an_item_survives_the_way_to_the_worker() -> None:
    for item in (*EXAMPLES, *PAIRS):
        assert item_of_bytes(item_bytes(item)) == item
    assert item_of_bytes(item_bytes(None)) is None


def test_every_rank_gets_equally_many_rows_and_every_item_once() -> None:
    rows = rows_of_ranks(EXAMPLES, PAIRS, ranks=3)
    assert len(rows) == 6
    assert [item.id for item in rows if item is not None] == ["e0", "p0", "e1", "p1", "e2"]
    assert rows_of_ranks([], [], ranks=2) == [None, None]


def test_the_rows_of_an_item_stay_together_in_one_micro_batch() -> None:
    settings = TrainSettings.model_validate(
        {"hint": {"teacher": "live"}, "preference": {"weight": 1.0}, "micro_tokens": 60}
    )
    micros = plan_micro_batches(settings, [*EXAMPLES, *PAIRS], pad_id=0)
    assert len(micros) > 1
    for micro in micros:
        batch = micro.batch
        teachers = len(micro.rows) - micro.first.get("teacher", len(micro.rows))
        assert len(micro.rows) == len(batch.student) + len(batch.pair) + teachers
        assert teachers == batch.counts.hint_views
    assert not any(micro.start for micro in micros if not micro.batch.num_pairs)


def test_filler_rows_are_behind_the_others() -> None:
    assert filled_rows([(4, 5)], size=3) == [(4, 5), FILLER, FILLER]
    with pytest.raises(AlignmentError, match="do not fit"):
        filled_rows([(1,), (2,)], size=1)


def forward(model: Any, rows: Sequence[tuple[int, ...]]) -> torch.Tensor:
    """The logits of rows one after another, as verl hands them over."""
    return torch.cat([model(input_ids=torch.tensor([row])).logits[0] for row in rows])


def on_logits(
    settings: TrainSettings, student: Any, start: Any, *, parts: list[list[Any]]
) -> tuple[dict[str, list[float]], float]:
    """Sums per channel and the gradient norm of the weights, as `parts` ranks compute them."""
    items = [item for part in parts for item in part]
    examples = [item for item in items if isinstance(item, TrainingExample)]
    counts = count(examples, [item for item in items if isinstance(item, PreferencePair)])

    @torch.no_grad()
    def start_logits(requests: Sequence[tuple[Rows, Targets]]) -> list[torch.Tensor]:
        return [t.predictors(start(input_ids=rows.ids_BT).logits) for rows, t in requests]

    student.zero_grad()
    sums = torch.zeros(len(CHANNELS), 3, dtype=torch.float64)
    for part in parts:
        micros = plan_micro_batches(settings, part, pad_id=0)
        losses = StepLosses.of(
            device=torch.device("cpu"),
            models=LogitModels(settings=settings, taid_t=0.4),
            counts=counts,
            micros=micros,
            scales={name: 1.0 + k for k, name in enumerate(CHANNELS)},
            head=dataclasses.replace(
                head_of(student), weight_VD=student.get_output_embeddings().weight.detach()
            ),
            start_logits=start_logits if needs_start(settings) else None,
        )
        for number, micro in enumerate(micros):
            rows = filled_rows(micro.rows, size=len(micro.rows) + 1)
            ids_M = torch.tensor([i for row in rows for i in row])
            losses.loss(number, forward(student, rows), ids_M).backward()
        sums += losses.sums
    parameters = [p for p in student.parameters() if p.requires_grad]
    return dict(zip(CHANNELS, sums.tolist(), strict=True)), gradient_norm(parameters)


@pytest.mark.parametrize(
    "hint",
    [
        {"teacher": "frozen"},
        {"teacher": "live", "divergence": "kl(student, teacher)", "mean": "token"},
        {"teacher": "live", "estimator": "sampled_token", "divergence": "kl(student, teacher)"},
        {"teacher": "frozen", "estimator": "top_k", "top_k": 5, "token_clip": 0.3},
        {"teacher": "frozen", "divergence": "taid", "taid": {"schedule": "fixed", "t_start": 0.4}},
    ],
)
def test_losses_on_logits_equal_the_reference_trainer(hint: dict[str, Any]) -> None:
    config = make_config(
        policy={"weight": 1.0},
        lm_ce={"weight": 1.0},
        hint={"weight": 1.0, **hint},
        preference={"weight": 1.0, "anchor": 0.5},
        layout="rows",
        micro_tokens=90,
    )
    student, items = make_student(), [*EXAMPLES, *PAIRS]
    trainer = make_trainer(config, student=student, accelerator=Accelerator(cpu=True))
    start = make_student().model.eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # off the start, or a frozen teacher would be a live one
        for p in student.model.parameters():
            p += 0.05 * torch.randn(p.shape, generator=generator)
    scales: Any = {name: 1.0 + k for k, name in enumerate(CHANNELS)}
    expected = accumulate(
        trainer,
        [(EXAMPLES[:2], PAIRS), (EXAMPLES[2:], [])],
        count(EXAMPLES, PAIRS),
        scales=scales,
    )
    norm = gradient_norm(trainer.trainable())
    for parts in ([items], [items[::2], items[1::2]]):
        sums, other_norm = on_logits(config.train, student.model, start, parts=parts)
        for name, (tokens, loss, _) in sums.items():
            reference = expected[name]  # pyright: ignore[reportArgumentType]
            assert tokens == reference.tokens > 0
            assert loss == pytest.approx(reference.loss, rel=1e-4, abs=1e-6), name
        assert other_norm == pytest.approx(norm, rel=1e-4)
    sums, _ = on_logits(config.train, student.model, start, parts=[items])
    for name, (_, _, square) in sums.items():
        assert square**0.5 == pytest.approx(expected[name].grad_norm, rel=1e-3), name  # pyright: ignore[reportArgumentType]


def test_rows_that_verl_moved_are_an_error() -> None:
    settings = make_config(hint={"weight": 1.0}).train
    student = make_student().model
    micros = plan_micro_batches(settings, EXAMPLES[:2], pad_id=0)
    losses = StepLosses.of(
        device=torch.device("cpu"),
        models=LogitModels(settings=settings, taid_t=0.0),
        counts=count(EXAMPLES[:2]),
        micros=micros,
        scales=None,
        head=head_of(student),
        start_logits=None,
    )
    rows = micros[0].rows[::-1]
    with pytest.raises(AlignmentError, match="verl moved the rows"):
        losses.loss(0, forward(student, rows), torch.tensor([i for row in rows for i in row]))


@pytest.mark.parametrize(
    ("group", "where"),
    [
        ({"student": {"lora": {"rank": 4}}}, "student.lora"),
        ({"train": {"hint": {"weight": 1.0, "teacher": "ema"}}}, "train.hint.teacher"),
        ({"train": {"optimiser": "adamw_8bit"}}, "train.optimiser"),
        ({"train": {"weight_decay": 0.1}}, "train.weight_decay"),
        ({"train": {"checkpoint": "layers", "tile": 64}}, "train.tile"),
        ({"train": {"checkpoint": "layers", "offload": True}}, "train.offload"),
        ({"rollouts": {"env": "workshop", "overlap": 1}}, "rollouts.overlap"),
    ],
)
def test_what_verl_does_not_host_is_refused_by_name(group: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError, match="the verl backend cannot do this") as error:
        check_hosted_by_verl(Config.model_validate(group))
    assert error.value.where == where
    assert error.value.fix


def test_a_run_of_verl_is_not_resumed() -> None:
    config = Config.model_validate({"train": {"backend": "verl"}})
    with pytest.raises(ConfigError, match="optimiser states"):
        check_resumable("verl")
    check_resumable("trl")
    assert step_engine_of(config) is not None
    assert step_engine_of(Config()) is None


def test_workers_that_cannot_be_spread_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be spread evenly"):
        TrainSettings.model_validate({"verl": {"ray_workers": 3, "ray_nodes": 2}})


def test_the_facts_of_a_step_survive_the_way_to_the_worker() -> None:
    facts = StepFacts(
        settings=make_config(hint={"weight": 0.5, "teacher": "live"}).train,
        counts=count(EXAMPLES, PAIRS),
        scales={"hint": 0.25},
        taid_t=0.1,
        pad_id=3,
        max_norm=2.0,
    )
    assert StepFacts.of_json(facts.to_json()) == facts
