"""The memory model beside peaks that are measured here: steps of a narrow model, over layouts,
lengths, precisions and teachers."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the [train] extra")
import torch

from benchmarks import memory_model
from benchmarks.memory_model import (
    LORA,
    AllocatorPeak,
    Case,
    data_of,
    held_bytes,
    make_step,
    need_of,
)
from composer_replication.training.forwards.reference import live_reference
from composer_replication.training.run.token_probe import token_table

pytestmark = pytest.mark.train
GOAL = 0.10
WIDTHS: Any = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
ROWS = {"layout": "rows"}
KEPT = {"checkpoint": "layers"}
SMALL: dict[str, Any] = {"length": 224, "vocab": 512, "layers": 3}
SESSION: dict[str, Any] = {**SMALL, "sites": 2, "pairs": 2}
CASES = {
    "sessions alone": Case(**SMALL, train=ROWS),
    "sites": Case(**SMALL, sites=3, train={**ROWS, "micro_tokens": 512}),
    "pairs": Case(**SMALL, pairs=3, train={**ROWS, "micro_tokens": 4096}),
    "sites and pairs": Case(**SESSION, train={**ROWS, "micro_tokens": 4096}),
    "few rows at a time": Case(**SESSION, train={**ROWS, "micro_tokens": 512}),
    "longer": Case(**{**SESSION, "length": 448}, train={**ROWS, "micro_tokens": 1024}),
    "checkpoint": Case(**SESSION, train={**ROWS, **KEPT, "micro_tokens": 4096}),
    "tile": Case(**SESSION, train={**ROWS, **KEPT, "tile": 128, "micro_tokens": 1024}),
    "LoRA": Case(**SESSION, **LORA, train={**ROWS, "micro_tokens": 4096}),
    "LoRA, checkpoint": Case(**SESSION, **LORA, train={**ROWS, **KEPT, "micro_tokens": 4096}),
    "slow average": Case(
        **SESSION, train={**ROWS, **KEPT, "micro_tokens": 1024}, hint={"teacher": "ema"}
    ),
    "a frozen teacher in tiles": Case(
        **{**SMALL, "layers": 1},
        **LORA,
        sites=3,
        train={**ROWS, **KEPT, "tile": 64, "micro_tokens": 2048},
        hint={"teacher": "frozen"},
    ),
    "trust region": Case(
        **SMALL, **LORA, sites=3, train={**ROWS, **KEPT}, hint={"teacher": "trust_region"}
    ),
    "tree": Case(**SESSION),
    "tree, trust region": Case(**SESSION, **LORA, train=KEPT, hint={"teacher": "trust_region"}),
}


Measure = Callable[[Case], int]


def measured(case: Case) -> int:
    """What is held and the allocator's peak of a second step, in a fork: a profile's events are
    never given back."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        torch.set_num_threads(1)
        trainer, step = make_step(case, **WIDTHS)
        step(1)
        with AllocatorPeak() as found:
            step(2)
        os.write(writer, str(held_bytes(trainer) + found.bytes).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as found_there:
        text = found_there.read()
    os.waitpid(child, 0)
    return int(text)


@pytest.fixture(scope="module")
def measure() -> Iterator[Measure]:
    """`measured` in a process that has profiled nothing: the allocator keeps the size of each block
    of an earlier profile by its address, and reports it when a later block of that address goes."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=fresh) as process:
        yield lambda case: process.submit(measured, case).result()


@pytest.mark.parametrize("name", CASES)
def test_a_step_needs_what_is_predicted_within_a_tenth(name: str, measure: Measure) -> None:
    need, peak = need_of(CASES[name], **WIDTHS), measure(CASES[name])
    assert abs(need.total / peak - 1) <= GOAL, (need.total, peak, need.moment, need.terms)


def test_pairs_in_rows_are_not_counted_as_a_tree() -> None:
    """The planted fault is what was published: -80 % with pairs in rows."""
    case = CASES["sites and pairs"]
    as_tree = replace(case, train={**case.train, "layout": "tree"})
    assert need_of(as_tree, **WIDTHS).total < 0.6 * need_of(case, **WIDTHS).total
    assert memory_model.need_of(case, **WIDTHS).moment != "a teacher reads"


PROBED = {
    "tiles": Case(**SMALL, sites=3, train={**KEPT, "tile": 64}),
    "a wide vocabulary": Case(**{**SMALL, "vocab": 16_384}, **LORA, sites=3, train=KEPT),
    "trust region": Case(**SMALL, **LORA, sites=3, train=KEPT, hint={"teacher": "trust_region"}),
}


@pytest.mark.parametrize("name", PROBED)
def test_the_token_table_needs_no_more_than_a_step(name: str) -> None:
    case = PROBED[name]
    torch.set_num_threads(1)
    trainer, step = make_step(case, **WIDTHS)
    step(1)
    with AllocatorPeak() as of_step:
        step(2)
    models = trainer.models

    def write() -> None:
        token_table(
            data_of(case)[0][:1],
            student=live_reference(models.student),
            teachers=models.teachers,
            hint_settings=models.settings.hint,
            tokenizer=SimpleNamespace(decode=str),
            pad_id=0,
            max_tokens=1 << 20,
            device="cpu",
            tile=models.settings.tile,
        )

    write()
    with AllocatorPeak() as of_table:
        write()
    assert of_table.bytes <= of_step.bytes, (of_table.bytes, of_step.bytes)
