"""A model whose weights are sharded over the ranks (FSDP2): each rank keeps 1 / N of every weight.

    sharding = Sharding.over_ranks(torch.device("cuda"))
    shard_model(model, sharding)         # once: layer by layer, the head stays tied
    with unsharded_head(model):          # a plain matrix; its gradient is summed at the end
        hidden_BTD = final_hidden(model, ids_BT)    # each layer is gathered for as long as it runs

PyTorch's `fully_shard` does the work. accelerate's `prepare` is not used: it shards the causal
model as one root, whose own forward must then run, and the losses here read the hidden states below
the head. Every forward and every backward of such a model is a collective: all ranks must run
equally many, in the same order (forwards/joined.py sees to that). Gradients are summed over the
ranks, not averaged. A file holds whole tensors: `unsharded` before it is written, `part_of` when it
is read, on any number of ranks.

Shapes: V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from composer_replication.core.errors import ConfigError
from composer_replication.models.forward import decoder_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The ranks that share the weights, and a group of them for small messages, over the CPU."""

    mesh: DeviceMesh
    votes: dist.ProcessGroup

    @classmethod
    def over_ranks(cls, device: torch.device) -> Sharding | None:
        """Over all ranks of this launch; None if there is only one. All ranks must call this."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return None
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        votes = dist.new_group(backend="gloo")
        assert isinstance(votes, dist.ProcessGroup)
        return cls(mesh=mesh, votes=votes)


def shard_model(model: Any, sharding: Sharding) -> None:
    """Replace every weight by this rank's part of it, in place, on the device of the mesh.

    A head that is tied to the embedding stays tied. Raises ConfigError for a model whose layers are
    not known, or that has weights beside its decoder and its head.
    """
    decoder, head = decoder_of(model), model.get_output_embeddings()
    layers = _layers(model, decoder)
    head_places = {id(p): (m, name) for m, name, p in _parameters(head)}
    decoder_names = {id(p): name for name, p in decoder.named_parameters() if id(p) in head_places}
    unknown = {id(p): name for name, p in model.named_parameters()}
    for parameter in (*decoder.parameters(), *head.parameters()):
        unknown.pop(id(parameter), None)
    if unknown:
        raise ConfigError(
            f"{type(model).__name__} has weights beside its decoder and its head:"
            f" {next(iter(unknown.values()))}",
            where="train.fsdp",
            fix="set train.fsdp = false",
        )
    # a sum of many small gradients loses bits in bfloat16
    dtypes = [p.dtype for p in decoder.parameters() if p.requires_grad]
    reduce_dtype = torch.promote_types(dtypes[0], torch.float32) if dtypes else None
    for module in (*layers, decoder):
        fully_shard(
            module,
            mesh=sharding.mesh,
            reshard_after_forward=True,
            mp_policy=MixedPrecisionPolicy(reduce_dtype=reduce_dtype),
        )
        assert isinstance(module, FSDPModule)
        # each rank's gradient is one term of a sum over the step, not one sample of a mean
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction
        if hasattr(module, "set_reduce_scatter_unused_params"):  # torch >= 2.13
            module.set_reduce_scatter_unused_params(True)  # an expert that no token of a rank uses
    sharded = dict(decoder.named_parameters())
    for module, name, parameter in list(_parameters(head)):
        if id(parameter) in decoder_names:
            part = sharded[decoder_names[id(parameter)]]
        else:
            part = nn.Parameter(
                distribute_tensor(
                    parameter.detach().to(sharding.mesh.device_type),
                    sharding.mesh,
                    [Shard(0)],
                    src_data_rank=None,
                ),
                requires_grad=parameter.requires_grad,
            )
        setattr(module, name, part)


def _layers(model: Any, decoder: nn.Module) -> list[nn.Module]:
    """The layers that are gathered one at a time."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    names = set(getattr(base, "_no_split_modules", None) or ())
    layers = [module for module in decoder.modules() if type(module).__name__ in names]
    if not layers:
        raise ConfigError(
            f"{type(base).__name__} does not name its layers (_no_split_modules)",
            where="train.fsdp",
            fix="set train.fsdp = false",
        )
    return layers


def _parameters(root: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Every parameter with its module and its name there."""
    for module in root.modules():
        for name, parameter in module.named_parameters(recurse=False):
            yield module, name, parameter


@contextmanager
def unsharded_head(model: Any) -> Iterator[None]:
    """The output head of a sharded model as plain tensors; their gradients reach the shards at the
    end, summed over the ranks. All ranks must enter and leave together."""
    places = [p for p in _parameters(model.get_output_embeddings()) if isinstance(p[2], DTensor)]
    for module, name, part in places:
        leaf = nn.Parameter(unsharded(part.detach()), requires_grad=part.requires_grad)
        setattr(module, name, leaf)
    grads: list[Tensor | None] = []
    try:
        yield
    finally:
        for module, name, part in places:
            grads.append(getattr(module, name).grad)
            setattr(module, name, part)
    for (_, _, part), grad in zip(places, grads, strict=True):
        if part.requires_grad:
            _add_to_shards(part, grad)


def _add_to_shards(part: nn.Parameter, grad: Tensor | None) -> None:
    """Add a rank's gradient of the whole tensor to the shards of all ranks; None counts as 0."""
    assert isinstance(part, DTensor)
    mesh = part.device_mesh
    found = torch.tensor(int(grad is not None), device=mesh.device_type)
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=mesh.get_group())
    if not found:
        return
    dtype = torch.promote_types(part.dtype, torch.float32)
    if grad is None:
        grad = torch.zeros(part.shape, dtype=dtype, device=part.device)
    term = grad.to(dtype)
    summed = DTensor.from_local(term, mesh, [Partial()] * mesh.ndim, run_check=False)
    of_shard = summed.redistribute(placements=part.placements).to(part.dtype)
    part.grad = of_shard if part.grad is None else part.grad + of_shard


def unsharded(tensor: Tensor) -> Tensor:
    """A tensor, gathered if it is sharded: then all ranks must call this. Example:
    unsharded(model.lm_head.weight).shape"""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_of(tensor: Tensor, *, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor that every rank holds, sharded as `like` is."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(
        tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )


def gathered(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """The tensors as whole ones in host memory, one after the other; {} on a rank that does not
    keep them. All ranks must call this."""
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        value = unsharded(tensor.detach())
        if keep:
            kept[name] = value.cpu().contiguous()
    return kept
