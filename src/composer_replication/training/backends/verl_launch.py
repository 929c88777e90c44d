"""Start verl's workers: the ranks of this launch (torchrun, or one process), or Ray workers.

    with open_group(config, folder=start_folder) as group:
        result = group.take(items, facts)       # one step of verl's engine
        weights = group.gather("weights")

`folder` holds the start weights as `save_pretrained` writes them; every node must see it. Without
CUDA the workers run on the CPU through gloo (verl_cpu.py). verl is imported here and nowhere above.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from composer_replication.core.config.root import Config
from composer_replication.training.backends.registry import VERL
from composer_replication.training.backends.verl_rows import Item, needs_start, rows_of_ranks
from composer_replication.training.draws.batch_sampler import share
from composer_replication.training.run.optimiser import BETAS

PLUGIN = "composer_replication.training.backends.verl_plugin"


class VerlGroup(Protocol):
    """verl's workers, wherever they run."""

    def take(self, examples: Sequence[Any], pairs: Sequence[Any], facts: Any) -> dict[str, Any]:
        """One step on these items, of which each rank takes its share: sums per channel, loss and
        gradient norm."""
        ...

    def gather(self, kind: str) -> dict[str, Tensor]:
        """All "weights" or "gradients" by name."""
        ...


def prepare_environment() -> dict[str, str]:
    """Set and return what verl reads before its first import: which platform, and our plugin."""
    variables = {
        "VERL_USE_EXTERNAL_MODULES": PLUGIN,
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if not torch.cuda.is_available():
        # the engine is registered for accelerators only; the platform decides what runs
        variables |= {"VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda"}
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    return {name: os.environ[name] for name in variables}


def worker_config(config: Config, *, folder: Path) -> Any:
    """verl's configuration of a worker: FSDP2, the optimiser of run/optimiser.py, precision as
    student.dtype. Learning rate and clip are set in each step."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import (
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
        TrainingWorkerConfig,
    )

    train = config.train
    precision = {"float32": "fp32", "bfloat16": "bf16"}[config.student.dtype]
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=str(folder),
            load_tokenizer=False,
            use_remove_padding=False,
            enable_gradient_checkpointing=train.checkpoint == "layers",
            override_config={"attn_implementation": "sdpa"},
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            use_torch_compile=False,
            use_dynamic_bsz=False,
            micro_batch_size_per_gpu=1,
            infer_micro_batch_size_per_gpu=1,
            max_token_len_per_gpu=train.micro_tokens,
            infer_max_token_len_per_gpu=train.micro_tokens,
            mixed_precision={
                "param_dtype": precision,
                "reduce_dtype": "fp32",
                "buffer_dtype": "fp32",
            },
        ),
        optimizer_config=FSDPOptimizerConfig(
            lr=train.learning_rate,
            betas=BETAS,
            weight_decay=0.0,
            total_training_steps=train.steps,
            clip_grad=1.0,
        ),
        checkpoint_config=CheckpointConfig(),
    )


@contextmanager
def open_group(config: Config, *, folder: Path) -> Iterator[VerlGroup]:
    """verl's workers with the weights of `folder`: `train.verl.ray_workers` Ray workers, or the
    ranks of this launch. Raises like `Backend.require` without verl."""
    VERL.require()
    variables = prepare_environment()
    opened = _ray_group if config.train.verl.ray_workers else _local_group
    with opened(config, folder=folder, variables=variables) as group:
        yield group


class LocalGroup:
    """This process's worker, one of the ranks of the launch: each gives its share of the items."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker

    def take(self, examples: Sequence[Any], pairs: Sequence[Any], facts: Any) -> dict[str, Any]:
        """Train on this rank's share."""
        from composer_replication.training.backends.verl_worker import driver_rows

        place = {"rank": self.worker.rank, "world": self.worker.world_size}
        items: list[Item | None] = [*share(examples, **place), *share(pairs, **place)]
        with redirect_stdout(sys.stderr):  # verl prints; our output may be JSON
            return result_of(self.worker.train_batch(driver_rows(items or [None], facts)))

    def gather(self, kind: str) -> dict[str, Tensor]:
        """On every rank."""
        return self.worker.gather(kind, everywhere=True)


class RayGroup:
    """A verl RayWorkerGroup: verl splits the rows over its workers."""

    def __init__(self, workers: Any) -> None:
        self.workers = workers

    def take(self, examples: Sequence[Any], pairs: Sequence[Any], facts: Any) -> dict[str, Any]:
        """Train on all items."""
        from composer_replication.training.backends.verl_worker import driver_rows

        rows = rows_of_ranks(examples, pairs, ranks=self.workers.world_size)
        return result_of(self.workers.train_batch(driver_rows(rows, facts)).get())

    def gather(self, kind: str) -> dict[str, Tensor]:
        """From the first worker."""
        return self.workers.gather(kind)[0]


def result_of(output: Any) -> dict[str, Any]:
    """The step's result in verl's output; every rank wrote the same."""
    from verl.utils import tensordict_utils as tu

    text = tu.get(output, "metrics")["composer"]
    while not isinstance(text, str):
        text = text[0]
    return json.loads(text)


@contextmanager
def _local_group(
    config: Config, *, folder: Path, variables: dict[str, str]
) -> Iterator[LocalGroup]:
    with _rank_variables(), ExitStack() as printed:
        printed.enter_context(redirect_stdout(sys.stderr))
        from composer_replication.training.backends.verl_worker import ComposerTrainingWorker

        began = not torch.distributed.is_initialized()
        worker = ComposerTrainingWorker(worker_config(config, folder=folder))
        worker.reset()
        if needs_start(config.train):
            worker.keep_start()
        printed.close()
        try:
            yield LocalGroup(worker)
        finally:
            if began:
                torch.distributed.destroy_process_group()


@contextmanager
def _rank_variables() -> Iterator[None]:
    """The variables that verl's worker reads, as torchrun sets them; for one process, until the
    block ends."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    alone |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    added = [] if "RANK" in os.environ else list(alone)
    os.environ.update({name: alone[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def _ray_group(config: Config, *, folder: Path, variables: dict[str, str]) -> Iterator[RayGroup]:
    import ray
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

    from composer_replication.training.backends.verl_worker import ComposerTrainingWorker

    on_gpus, settings = torch.cuda.is_available(), config.train.verl
    began = not ray.is_initialized()
    if began:
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        options: dict[str, Any] = {"runtime_env": {"env_vars": {**variables, **passed}}}
        if "RAY_ADDRESS" not in os.environ:
            options |= {"include_dashboard": False, "num_cpus": max(4, settings.ray_workers)}
        ray.init(log_to_driver=False, **options)
    try:
        pool = RayResourcePool(
            process_on_nodes=_workers_per_node(settings.ray_workers, settings.ray_nodes),
            use_gpu=on_gpus,
            max_colocate_count=1,
        )
        workers = RayWorkerGroup(
            resource_pool=pool,
            ray_cls_with_init=RayClassWithInitArgs(
                ray.remote(ComposerTrainingWorker), config=worker_config(config, folder=folder)
            ),
            device_name="cuda" if on_gpus else "cpu",
        )
        workers.reset()
        if needs_start(config.train):
            workers.keep_start()
        yield RayGroup(workers)
    finally:
        if began:
            ray.shutdown()


_PASSED = ("PYTHONPATH", "OMP_NUM_THREADS", "HF_HUB_OFFLINE", "NCCL_SOCKET_IFNAME")
"""Variables of this process that Ray's workers need too."""


def _workers_per_node(workers: int, nodes: int) -> list[int]:
    """How many workers each node runs.

    >>> _workers_per_node(16, 2)
    [8, 8]
    """
    return [workers // nodes] * nodes
