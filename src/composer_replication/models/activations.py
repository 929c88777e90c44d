"""Save memory between a forward and its backward: recompute activations, or move them to the host.

    checkpoint_layers(model)             # once: each layer keeps its input, and runs again
    with tiled(model, tile=2048):        # around a forward and its backward: a tile of tokens each
        with in_host_memory(model):      # layer inputs wait there until the backward
            hidden_BTD = final_hidden(model, ids_BT)
        hidden_BTD.backward(grad_BTD)

No value and no gradient changes, except by rounding. A layer is checkpointed in training mode
alone: scoring and sampling are in evaluation mode.

Shapes: B rows, T length, D hidden size, n tokens of a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import get_device_states, set_device_states

from composer_replication.core.errors import ConfigError, first_line
from composer_replication.models.forward import decoder_of, final_hidden, scoring

_FEED_FORWARD = "mlp"  # the name of a layer's feed-forward in nearly every family of transformers


def checkpoint_layers(model: Any) -> None:
    """Let each layer keep its input alone in training passes and run again in the backward.

    With dropout the second run draws what the first one drew. Through peft's wrapper the base
    model's layers are checkpointed. Raises ConfigError for a model whose layers cannot run again.
    Example: checkpoint_layers(student.model)
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    # the name of transformers 5.20; the older one warns there
    enable = getattr(base, "activation_checkpointing_enable", None)
    try:
        (enable or base.gradient_checkpointing_enable)({"use_reentrant": False})
    except (ValueError, AttributeError) as error:
        raise ConfigError(
            f"the layers of {type(base).__name__} cannot run again: {first_line(error)}",
            where="train.checkpoint",
            fix='set train.checkpoint = "none"',
        ) from error


@contextmanager
def tiled(model: Any, *, tile: int) -> Iterator[None]:
    """The model with feed-forwards and norms that see at most `tile` tokens at a time; 0 = as they
    are.

    Their inner states, the widest of a layer and those in float32, then exist for one tile, in the
    forward and in the backward. Run a forward and its backward inside: checkpointed layers run
    again there. Example: with tiled(model, tile=2048): ...
    """
    blocks = [*_feed_forwards(model), *_norms(model)] if tile else []
    numbers = tile * model.get_input_embeddings().weight.shape[1]
    previous = [block.__dict__.get("forward") for block in blocks]
    for block in blocks:
        block.forward = _in_tiles(block, block.forward, numbers=numbers)
    try:
        yield
    finally:
        for block, forward in zip(blocks, previous, strict=True):
            if forward is None:
                del block.forward
            else:
                block.forward = forward


def in_host_memory(model: Any) -> AbstractContextManager[None]:
    """Copy the tensors that a forward keeps for its backward to host memory, and back when needed.

    With checkpointed layers these are the inputs of the layers; without, it would be everything.
    Run only the forward inside. On a CPU nothing is copied. Example: with in_host_memory(model):
    ...
    """
    kind = next(model.parameters()).device.type
    return torch.autograd.graph.save_on_cpu(pin_memory=kind != "cpu", device_type=kind)


def check_tiles(model: Any) -> None:
    """Raise ConfigError for a model whose feed-forwards are not found, or give other values in
    tiles: tokens must not meet in them."""
    name = type(decoder_of(model)).__name__
    if not _feed_forwards(model):
        problem = f"{name} has no feed-forward of the name {_FEED_FORWARD!r}"
    else:
        problem = _tiling_problem(model, name=name)
    if problem:
        raise ConfigError(problem, where="train.tile", fix="set train.tile = 0")


def _tiling_problem(model: Any, *, name: str) -> str:
    """Why tiles of two tokens do not give the values of one row of six; "" if they do."""
    device = next(model.parameters()).device
    ids_BT = torch.arange(1, 7, device=device)[None] % model.config.get_text_config().vocab_size
    with scoring(model):
        plain_BTD = final_hidden(model, ids_BT).float()
        try:
            with tiled(model, tile=2):
                gap = float((final_hidden(model, ids_BT).float() - plain_BTD).abs().max())
        except (RuntimeError, TypeError, AttributeError) as error:
            return f"{name} cannot run in tiles: {first_line(error)}"
    tolerance = 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.05
    if gap <= tolerance * float(plain_BTD.abs().max()):
        return ""
    return f"{name} computes other values in tiles (they differ by {gap:.1e})"


def _feed_forwards(model: Any) -> list[nn.Module]:
    """The feed-forward of every layer."""
    found = (getattr(module, _FEED_FORWARD, None) for module in decoder_of(model).modules())
    return [block for block in found if isinstance(block, nn.Module)]


def _norms(model: Any) -> list[nn.Module]:
    """The norms that are computed in float32, operation by operation: of layers, queries and keys.

    Those of torch keep their input alone.
    """
    return [
        module
        for module in decoder_of(model).modules()
        if type(module).__name__.endswith("RMSNorm") and not isinstance(module, nn.RMSNorm)
    ]


def _in_tiles(
    block: nn.Module, forward: Callable[..., Tensor], *, numbers: int
) -> Callable[..., Tensor]:
    """The forward of a block over at most so many numbers of its input at a time."""

    def run(x_BTD: Tensor, *others: Any, **options: Any) -> Tensor:
        tile = max(1, numbers // x_BTD.shape[-1])
        if others or options or x_BTD.shape[:-1].numel() <= tile:
            return forward(x_BTD, *others, **options)
        trained = [p for p in block.parameters() if p.requires_grad]
        if not (torch.is_grad_enabled() and (x_BTD.requires_grad or trained)):
            return _tile_by_tile(forward, x_BTD, tile)
        return _InTiles.apply(forward, tile, KeptInputs.of(x_BTD, *trained), x_BTD, *trained)

    return run


def _tiles(x_BTD: Tensor, tile: int) -> tuple[Tensor, ...]:
    """The tokens of all rows, (1, n, D) at a time."""
    return x_BTD.reshape(1, -1, x_BTD.shape[-1]).split(tile, dim=1)


def _tile_by_tile(run: Callable[[Tensor], Tensor], x_BTD: Tensor, tile: int) -> Tensor:
    """The values of all tokens, without a graph."""
    out_BTD: Tensor | None = None
    for number, x_1nD in enumerate(_tiles(x_BTD, tile)):
        value_1nD = run(x_1nD)
        out_BTD = value_1nD.new_empty(x_BTD.shape) if out_BTD is None else out_BTD
        _tiles(out_BTD, tile)[number].copy_(value_1nD)
    assert out_BTD is not None
    return out_BTD


class KeptInputs(torch.autograd.Function):
    """The tensors that a backward needs, kept before the forward runs.

    A checkpointed layer that runs again stops at the last tensor that was kept. If tiles kept their
    input, as a function does at its end, all of them would run again on the way there. Example:
    kept = KeptInputs.of(x, weight); x, weight = kept.saved_tensors in the backward.
    """

    @classmethod
    def of(cls, *tensors: Tensor) -> Any:
        """The node of the graph that keeps the tensors; None without a gradient."""
        return cls.apply(*tensors).grad_fn

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return tensors[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise AssertionError("nothing is computed from this")


@dataclass(frozen=True, slots=True)
class DrawnAgain:
    """The state of the generators of the CPU and of a device, from which dropout is drawn again.

    Example: drawn = DrawnAgain.now(x); with drawn.again(): F.dropout(x)
    """

    kind: str
    state: Tensor
    devices: list[int]
    device_states: list[Tensor]

    @classmethod
    def now(cls, x: Tensor) -> Self:
        """The state before anything is drawn on the device of `x`."""
        return cls(x.device.type, torch.get_rng_state(), *get_device_states(x))

    @contextmanager
    def again(self) -> Iterator[None]:
        """The generators as they were; afterwards they stand where they stood."""
        with torch.random.fork_rng(devices=self.devices, device_type=self.kind):
            torch.set_rng_state(self.state)
            set_device_states(self.devices, self.device_states, device_type=self.kind)
            yield


class _InTiles(torch.autograd.Function):
    """A block whose tiles run in the forward without a graph, and again in the backward."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Callable[[Tensor], Tensor],
        tile: int,
        kept: Any,
        x_BTD: Tensor,
        *trained: Tensor,
    ) -> Tensor:
        kind = x_BTD.device.type
        ctx.run, ctx.tile, ctx.kept, ctx.trained = run, tile, kept, trained
        ctx.autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        ctx.drawn = DrawnAgain.now(x_BTD)
        return _tile_by_tile(run, x_BTD, tile)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad_BTD,), (x_BTD, *_) = grads, ctx.kept.saved_tensors
        ctx.kept = None  # a trunk is walked back once
        enabled, dtype = ctx.autocast
        of_input_BTD = torch.empty(x_BTD.shape, dtype=x_BTD.dtype, device=x_BTD.device)
        of_weights: list[Tensor | None] = [None] * len(ctx.trained)
        with (
            ctx.drawn.again(),
            torch.autocast(x_BTD.device.type, dtype=dtype, enabled=enabled),
            torch.enable_grad(),
        ):
            tensors = (x_BTD, grad_BTD, of_input_BTD)
            tiles = zip(*(_tiles(tensor, ctx.tile) for tensor in tensors), strict=True)
            for x_1nD, grad_1nD, of_input_1nD in tiles:
                leaf_1nD = x_1nD.detach().requires_grad_()
                inputs = (leaf_1nD, *ctx.trained)
                found = torch.autograd.grad(ctx.run(leaf_1nD), inputs, grad_1nD, allow_unused=True)
                of_input_1nD.copy_(found[0])
                of_weights = [_plus(a, b) for a, b in zip(of_weights, found[1:], strict=True)]
        of_weights = [
            None if grad is None else grad.to(weight.dtype)
            for grad, weight in zip(of_weights, ctx.trained, strict=True)
        ]
        return None, None, None, of_input_BTD, *of_weights


def _plus(total: Tensor | None, grad: Tensor | None) -> Tensor | None:
    """The sum over the tiles so far, in float32 at least: in bfloat16 small summands are lost."""
    if grad is None:
        return total
    grad = grad.to(torch.promote_types(grad.dtype, torch.float32))
    return grad if total is None else total.add_(grad)
