"""One rank of a sharded model: the tree's gradients against those of its rows, in float64."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.models.tree_models import by_rows, by_tree, gap, make, random_rows


def sharded(*, checkpointed: bool) -> Any:
    model = make("qwen3").double().train()
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model.model, mesh=mesh)
    return model


def full_gradients(gradients: list[Any]) -> list[torch.Tensor]:
    return [g.full_tensor() if isinstance(g, DTensor) else g for g in gradients]


def main() -> None:
    dist.init_process_group("gloo")
    mine = [random_rows(seed) for seed in (11, 12)]
    rank = dist.get_rank()
    alone = make("qwen3").double()
    of_all_ranks = [by_rows(alone, rows)[1] for rows in mine]
    expected = [
        (a + b) / 2 for a, b in zip(*of_all_ranks, strict=True)
    ]  # FSDP takes the mean over ranks
    # a sharded model's rows must be as many on each rank: every forward is a collective
    assert len(mine[0]) == len(mine[1])
    for checkpointed in (False, True):
        model = sharded(checkpointed=checkpointed)
        values, gradients = by_tree(model, mine[rank])
        rows_values, rows_gradients = by_rows(model, mine[rank])
        assert gap(values, rows_values) <= 1e-6
        assert gap(full_gradients(gradients), full_gradients(rows_gradients)) <= 1e-6
        assert (
            gap(
                full_gradients(gradients)[: len(expected)],
                expected[: len(full_gradients(gradients))],
            )
            <= 1e-6
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    main()
