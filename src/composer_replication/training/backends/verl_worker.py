"""verl's training worker, which expands our rows inside the worker and computes our losses.

The driver sends one row per item (`composer_item`: its bytes) and the step's facts
(`composer_step`). `train_batch` makes the forward rows of them, and calls verl's own `train_batch`,
which forwards, walks back, clips and steps; `ComposerLoss` is what verl calls for the loss. Every
rank gets equally many micro-batches of equally many rows, or FSDP's gathers would wait for ever.
"""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.single_controller.base.decorator import (
    Dispatch,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl.utils import tensordict_utils as tu
from verl.workers.engine import EngineRegistry
from verl.workers.engine_workers import TrainingWorker

from composer_replication.models.forward import head_of
from composer_replication.tokens.batch import Rows, Targets
from composer_replication.training.backends.verl_loss import LogitModels, StepLosses
from composer_replication.training.backends.verl_rows import (
    FILLER,
    Item,
    MicroRows,
    StepFacts,
    filled_rows,
    item_bytes,
    item_of_bytes,
    needs_start,
    plan_micro_batches,
)

_TRAIN = make_nd_compute_dataproto_dispatch_fn(mesh_name="train")


def driver_rows(items: Sequence[Item | None], facts: StepFacts) -> TensorDict:
    """One row per item, in verl's form."""
    texts = [bytearray(item_bytes(item) or b"\0") for item in items]
    rows = [torch.frombuffer(text, dtype=torch.uint8) for text in texts]
    data = TensorDict(
        {"composer_item": torch.nested.as_nested_tensor(rows, layout=torch.jagged)},
        batch_size=[len(rows)],
    )
    tu.assign_non_tensor(data, composer_step=facts.to_json(), global_token_num=None)
    return data


def items_of_rows(data: TensorDict) -> list[Item | None]:
    """The items of a batch's rows; None for rows that only made the number divisible."""
    return [
        item_of_bytes(bytes(row.tolist()).strip(b"\0")) for row in data["composer_item"].unbind()
    ]


class ComposerLoss:
    """verl's loss function: called with the logits of a micro-batch, then for its loss."""

    def __init__(self) -> None:
        self.losses: StepLosses | None = None
        self._loss: Tensor | None = None

    def __call__(
        self,
        model_output: Any = None,
        data: Any = None,
        dp_group: Any = None,
        student_logits: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if student_logits is not None:
            assert self.losses is not None
            number = int(data["composer_micro"][0])
            ids_M = data["input_ids"].values()
            self._loss = self.losses.loss(number, student_logits[0], ids_M)
            return {}
        loss, self._loss = self._loss, None
        return loss, {}


class ComposerTrainingWorker(TrainingWorker):
    """verl's TrainingWorker for our rows (module docstring); any other batch is verl's own."""

    def __init__(self, config: Any) -> None:
        if os.environ.get("VERL_PLATFORM") == "cpu" and not torch.distributed.is_initialized():
            # verl would name gloo twice, as the CPU's backend and as the device's
            torch.distributed.init_process_group(
                "gloo",
                rank=int(os.environ["RANK"]),
                world_size=int(os.environ["WORLD_SIZE"]),
                init_method=f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
            )
        super().__init__(config)
        self.start: Any = None
        self.gradients: dict[str, Any] = {}

    def _keep_gradients(self) -> None:
        """Copy the gradients that the optimiser is about to use: verl drops them after the step."""
        self.gradients = {
            name: parameter.grad.detach().clone()
            for name, parameter in self.engine.module.named_parameters()
            if parameter.grad is not None
        }

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def keep_start(self) -> None:
        """Load the start weights a second time, sharded too: the frozen teacher and the reference
        of DPO."""
        engine = EngineRegistry.new(
            model_type=self.config.model_type,
            backend=self.engine_config.strategy,
            model_config=self.model_config,
            engine_config=self.engine_config,
            optimizer_config=self.optimizer_config,
            checkpoint_config=self.checkpoint_config,
        )
        engine.initialize()
        self.start = engine.module.eval()

    @register(dispatch_mode=_TRAIN, blocking=False)
    def train_batch(self, data: TensorDict) -> TensorDict:
        """One optimiser step on these rows, or only its losses and norms."""
        if tu.get(data, "composer_step", default=None) is None:
            return super().train_batch(data)
        facts = StepFacts.of_json(tu.get(data, "composer_step"))
        micros = plan_micro_batches(facts.settings, items_of_rows(data), pad_id=facts.pad_id)
        expanded = self.expand(micros)
        device = next(self.engine.module.parameters()).device
        losses = self._losses(facts, micros, device)
        self.loss_fn = ComposerLoss()
        self.loss_fn.losses = losses
        if facts.scales is None:
            output = super().infer_batch(expanded)
        else:
            for group in self.engine.optimizer.param_groups:
                group["lr"] = facts.learning_rate
            clip = float("inf") if facts.max_norm is None else facts.max_norm
            object.__setattr__(self.engine.optimizer_config, "clip_grad", clip)  # it is frozen
            handle = self.engine.optimizer.register_step_pre_hook(
                lambda *args: self._keep_gradients() if facts.keep_gradients else None
            )
            output = super().train_batch(expanded)
            handle.remove()
        self.loss_fn.losses = None
        return self._with_sums(output, losses)

    def expand(self, micros: Sequence[MicroRows]) -> TensorDict:
        """The forward rows in verl's form, as many micro-batches of as many rows on every rank."""
        most = max([1, *(len(micro.rows) for micro in micros)])
        sizes = torch.tensor([len(micros), most], device=self.device_name)
        group = self.engine.get_data_parallel_group()
        torch.distributed.all_reduce(sizes, op=torch.distributed.ReduceOp.MAX, group=group)
        num_micros, size = max(1, int(sizes[0])), int(sizes[1])
        rows = [filled_rows(micro.rows, size=size) for micro in micros]
        rows += [[FILLER] * size] * (num_micros - len(rows))
        return forward_rows(rows)

    def _losses(
        self, facts: StepFacts, micros: Sequence[MicroRows], device: torch.device
    ) -> StepLosses:
        group = self.engine.get_data_parallel_group()
        head = head_of(self.engine.module)
        return StepLosses.of(
            device=device,
            models=LogitModels(settings=facts.settings, taid_t=facts.taid_t),
            counts=facts.counts,
            micros=micros,
            scales=facts.scales,
            head=replace(head, weight_VD=head.weight_VD.detach()),
            start_logits=self._start_logits if needs_start(facts.settings) else None,
            rank_factor=torch.distributed.get_world_size(group),
        )

    @torch.no_grad()
    def _start_logits(self, requests: Sequence[tuple[Rows, Targets]]) -> list[Tensor]:
        """One forward of the start weights for all requests, or for a filler row without any: every
        rank makes it."""
        if self.start is None:
            raise RuntimeError("keep_start was not called before a step that needs the start")
        device = next(self.engine.module.parameters()).device
        lists = [row for rows, _ in requests for row in rows.lists()] or [FILLER]
        longest = max(map(len, lists))
        ids_BT = torch.tensor([[*row, *[0] * (longest - len(row))] for row in lists], device=device)
        logits_BTV = self.start(input_ids=ids_BT, use_cache=False).logits
        logits, first = [], 0
        for rows, targets in requests:
            logits.append(targets.to(device).predictors(logits_BTV[first : first + len(rows)]))
            first += len(rows)
        return logits

    def _with_sums(self, output: TensorDict, losses: StepLosses) -> TensorDict:
        """verl's output with the sums over all ranks, as text: verl gathers metrics by rank."""
        group = self.engine.get_data_parallel_group()
        for sums in (losses.sums, losses.metric_sums):
            torch.distributed.all_reduce(sums, group=group)
        metrics = tu.get(output, "metrics")
        result = {
            "sums": losses.sums.tolist(),
            "metric_sums": losses.metric_sums.tolist(),
            "loss": metrics.get("loss"),
            "grad_norm": metrics.get("grad_norm"),
        }
        return tu.get_tensordict(
            tensor_dict={}, non_tensor_dict={"metrics": {"composer": json.dumps(result)}}
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def gather(self, kind: str = "weights", everywhere: bool = False) -> dict[str, Tensor]:
        """All "weights", or the "gradients" that a step kept, by name, on the CPU; {} on other
        ranks than the first, unless `everywhere`."""
        tensors: dict[str, Tensor] = {}
        sharded: dict[str, Any] = dict(self.engine.module.named_parameters())
        for name, value in (self.gradients if kind == "gradients" else sharded).items():
            full = value.detach()
            full = full.full_tensor() if hasattr(full, "full_tensor") else full
            if self.rank == 0 or everywhere:
                tensors[name] = full.cpu()
        return tensors


def forward_rows(micros: Sequence[Sequence[tuple[int, ...]]]) -> TensorDict:
    """Rows of a forward in verl's form; a micro-batch is a group that verl does not split."""
    rows = [torch.tensor(row) for micro in micros for row in micro]

    def nested(tensors: Sequence[Tensor]) -> Tensor:
        return torch.nested.as_nested_tensor(list(tensors), layout=torch.jagged)

    numbers = [number for number, micro in enumerate(micros) for _ in micro]
    data = TensorDict(
        {
            "input_ids": nested(rows),
            "position_ids": nested([torch.arange(len(row)) for row in rows]),
            "loss_mask": nested([torch.ones_like(row) for row in rows]),
            "composer_micro": torch.tensor(numbers),
        },
        batch_size=[len(rows)],
    )
    tu.assign_non_tensor(
        data,
        temperature=1.0,
        pad_token_id=0,
        use_remove_padding=False,
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=1,
        force_group_size=len(micros[0]),
        calculate_entropy=False,
        # the logits processor is called, and verl computes no log-probs of its own
        distillation_use_topk=True,
        distillation_only=True,
        update_lr_scheduler=False,
        global_token_num=[len(row) for row in rows],
        global_batch_size=len(rows),
    )
    return data
