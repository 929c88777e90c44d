"""One of two ranks with a head that FSDP2 has sharded; run by test_head.py."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from composer_replication.losses.fused import fused_logprobs
from composer_replication.models.forward import head_of
from tests.models.test_head import HIDDEN_ND, Wrapped


def main(path: str) -> None:
    """Give this rank's half of the rows to the fused loss, and write the results."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Wrapped(bias=True)
    fully_shard(model.lm_head, mesh=init_device_mesh("cpu", (world,)))
    rows = slice(2 * rank, 2 * rank + 2)
    values_N = fused_logprobs(HIDDEN_ND[rows], head_of(model), torch.arange(4)[rows], chunk=1)
    (values_N * torch.arange(1.0, 5.0)[rows]).sum().backward()
    weight, bias = model.lm_head.weight, model.lm_head.bias
    all_values = [torch.empty(2) for _ in range(world)]
    dist.all_gather(all_values, values_N.detach())
    results = {
        "weight": weight.grad.full_tensor(),
        "bias": bias.grad.full_tensor(),
        "values": torch.cat(all_values),
    }
    results["sharded"] = torch.tensor(weight.grad.to_local().shape[0] < weight.shape[0])
    if rank == 0:
        torch.save(results, path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
