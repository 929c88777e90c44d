"""Unequal numbers of forwards per rank on sharded models (train.fsdp).

    with joined(models):                     # training/step.py, around a step's micro-batches
        forwards = run_passes(...)           # any number of forwards, of any of the models
        forwards.backward(models)

A forward of an FSDP model all-gathers its layers, so a rank that ran one forward more than another
would wait for ever. And ranks do differ, in their micro-batches, hint views and slices of teacher
rows. So before each forward and backward the ranks vote on what to run next. The first in a fixed
order is run by all: a rank that wanted something else, or has nothing left to run, stands in with
one padding token through the same model, with a gradient of 0, and votes again. This is what
`torch.distributed.algorithms.Join` does for DDP.

With replicated models `joined` does nothing. Shapes: Q tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from composer_replication.models.activations import tiled
from composer_replication.models.forward import decoder_of, final_hidden, scoring
from composer_replication.models.sharding import Sharding, unsharded_head
from composer_replication.models.tree_forward import tree_attention, tree_hidden
from composer_replication.tokens.tree import Forest
from composer_replication.training.forwards.training_models import TrainingModels


@contextmanager
def joined(models: TrainingModels) -> Iterator[None]:
    """A block in which ranks may run unequal numbers of forwards and backwards of sharded models;
    all ranks must enter it, and nothing else in it may be a collective.

    Their heads are whole tensors inside. Example: with joined(models): keep_log_probs(...)
    """
    if models.sharding is None:
        yield
        return
    with ExitStack() as stack:
        ranks = JoinedRanks(models, models.sharding)
        for model in ranks.sharded:
            stack.enter_context(unsharded_head(model))
        stack.enter_context(ranks.watched())
        models.joined = ranks  # `walk_back` asks it for its turn
        try:
            yield
            ranks.take_part(None)
        finally:
            models.joined = None


def walk_back(models: TrainingModels, hidden: list[Tensor], grads: list[Tensor]) -> None:
    """The backward of the student's forwards: `hidden` are parts of their final hidden states,
    `grads` the gradients there. On a joined rank also of the forwards that it ran for others."""
    if models.joined is not None:
        models.joined.take_part(models.joined.backward)
    _walk_back(models, hidden, grads)


def _walk_back(models: TrainingModels, hidden: list[Tensor], grads: list[Tensor]) -> None:
    roots = [] if models.joined is None else models.joined.pop_forwards()
    if hidden or roots:
        model = models.student.model
        tree = tree_attention(model) if models.layout == "tree" else nullcontext()
        with tree, tiled(model, tile=models.settings.tile):
            # a gradient of 0 for each forward's whole output: the backward then runs through all
            # layers on each rank, also on one without a loss
            torch.autograd.backward(
                [*hidden, *roots], [*grads, *(torch.zeros_like(root) for root in roots)]
            )


class JoinedRanks:
    """The votes of this rank, and its stand-in forwards.

    What can be run is numbered (a *turn*): 0 to n - 1, a forward without gradient of one of the n
    sharded models; n, the student's forward with gradient; n + 1, the backward. The lowest number
    that any rank wants is run next.
    """

    def __init__(self, models: TrainingModels, sharding: Sharding) -> None:
        self.models, self.sharding = models, sharding
        references = [*models.references.values(), models.reference_model]
        self.sharded: list[Any] = [models.student.model]
        for reference in references:
            if reference is not None and all(reference.model is not m for m in self.sharded):
                self.sharded.append(reference.model)
        self.with_gradient = len(self.sharded)
        self.backward = self.with_gradient + 1
        self.forwards: list[Tensor] = []
        self.stands_in = False

    def take_part(self, wanted: int | None) -> None:
        """Stand in for the other ranks until it is this turn; None = until no rank wants to run
        anything more."""
        while (turn := self._vote(wanted)) != wanted:
            assert turn is not None
            self._stand_in(turn)

    def pop_forwards(self) -> list[Tensor]:
        """The outputs of the forwards with gradient whose backward has not run yet."""
        forwards, self.forwards = self.forwards, []
        return forwards

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A block in which each forward of a sharded model waits for its turn, by hooks."""
        handles = []
        for number, model in enumerate(self.sharded):
            decoder = decoder_of(model)
            # prepended: before the hook of FSDP2, which gathers
            before = decoder.register_forward_pre_hook(self._before(number), prepend=True)
            handles += [before, decoder.register_forward_hook(self._after)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, number: int) -> Any:
        def hook(module: Any, args: Any) -> None:
            if not self.stands_in:
                self.take_part(self.with_gradient if torch.is_grad_enabled() else number)

        return hook

    def _after(self, module: Any, args: Any, out: Any) -> None:
        if out.last_hidden_state.requires_grad:
            self.forwards.append(out.last_hidden_state)

    def _vote(self, wanted: int | None) -> int | None:
        """The lowest turn that any rank wants; None if none wants any."""
        votes = torch.zeros(self.backward + 1, dtype=torch.int32)
        if wanted is not None:
            votes[wanted] = 1
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.sharding.votes)
        return next((turn for turn, vote in enumerate(votes.tolist()) if vote), None)

    def _stand_in(self, turn: int) -> None:
        """Run a turn that other ranks want, with one padding token."""
        if turn == self.backward:
            _walk_back(self.models, [], [])
            return
        is_trained = turn == self.with_gradient
        model = self.sharded[0 if is_trained else turn]
        device = self.models.device
        devices = [device] if device.type == "cuda" else []
        self.stands_in = True
        try:
            with (
                torch.random.fork_rng(devices=devices),  # this rank's own dropout stays as it is
                torch.enable_grad() if is_trained else scoring(model),
            ):
                self._one_token(model)
        finally:
            self.stands_in = False

    def _one_token(self, model: Any) -> None:
        pad_id = self.models.student.pad_id
        if self.models.layout == "tree":
            tree_hidden(model, Forest.grow([(pad_id,)]).over(range(1)))
        else:
            final_hidden(model, torch.tensor([[pad_id]], device=self.models.device))
