"""benchmarks/generation.py at a toy size: both sides write as many tokens, on the same prompts."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from benchmarks import generation, gpu
from benchmarks.page_generation import generation_rows

pytestmark = pytest.mark.train
TOY = partial(
    gpu.qwen3,
    layers=2,
    hidden=32,
    vocab=700,
    heads=2,
    head_dim=16,
    device="cpu",
    dtype=torch.float32,
)


@pytest.fixture(scope="module")
def student() -> generation.Student:
    renderer = generation.Renderer.for_tokenizer(generation.load_tokenizer(generation.STUDENT))
    return generation.endless(TOY(), renderer)


@pytest.mark.parametrize("case", ["batch 1", "lengths", "tasks", "group 4", "turns"])
def test_a_case_counts_the_tokens_of_both(student: generation.Student, case: str) -> None:
    line = generation.measure(student, case, size=22, tokens=5, repeats=1)
    episodes = {"batch 1": 1, "group 4": 4}.get(case, 8)
    assert line["tokens"] == 5 * episodes * (4 if case == "turns" else 1)
    shortest, longest = line["prompt"]
    assert (shortest < longest) == (case in ("lengths", "tasks"))
    ways = {"ours", "generate", *(["cache kept"] if case == "turns" else [])}
    assert line["tokens_per_cpu_s"].keys() == ways and min(line["tokens_per_cpu_s"].values()) > 0


def test_no_message_ends_by_itself(student: generation.Student) -> None:
    """Else the two would not write the same number of tokens."""
    (rollout,) = generation.play(
        student, generation.listeners("batch 1", size=11), tokens=40, seed=2
    )
    ids = [i for turn in rollout.session.turns if turn.sampled for i in turn.sampled.ids]
    tokenizer = student.renderer.tokenizer
    assert len(ids) == 40 and rollout.num_cut == 1 and rollout.num_malformed == 0
    assert not set(ids) & set(tokenizer.all_special_ids) and max(ids) < len(tokenizer)


def test_a_missed_goal_and_a_lost_ratio_are_marked() -> None:
    def row(case: str, ours: float) -> list[str]:
        rates = {"ours": ours, "generate": 100.0}
        line = {"model": "m", "case": case, "prompt": [3, 9], "tokens_per_cpu_s": rates}
        return generation_rows({"lines": [line]}, {"ratio": 0.8, "shared": 1.0})[0]

    assert row("batch 8", 90.0)[2:7] == ["3 - 9", "90.0", "100.0", "**0.90**", "0.8: met"]
    assert row("group 4", 90.0)[6] == "1: **missed**" and row("group 4", 120.0)[5] == "1.20"


@pytest.mark.parametrize("variant", ["ours", "generate"])
def test_the_gpu_part_runs(variant: str) -> None:
    assert gpu.generation_run(variant, "group 4", make=TOY, size=11)() == 4 * 64
