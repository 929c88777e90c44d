"""Several processes, one run directory: the main rank makes it, the others open the same one.

run = shared_run(lambda: create_run(...))   # under `accelerate launch` or torchrun
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, parse_flag_from_env

from composer_replication.core.errors import ConfigError
from composer_replication.core.rundir import RunDir, open_run
from composer_replication.tokens.forward_size import LONGER_THAN_A_CARD

_OTHER_ENGINES = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
}
"""By which variables `accelerate launch` asks for them."""


def join_ranks() -> Accelerator:
    """Join the other ranks of the launch, as the loop does. Example: join_ranks().num_processes

    Raises ConfigError for a launcher's configuration that would silently do nothing here: another
    engine that shards, a model or a sequence that is split over ranks.
    """
    if parse_flag_from_env("ACCELERATE_USE_PARALLELISM_CONFIG"):
        raise ConfigError(
            f"the launcher splits models or sequences over ranks: {LONGER_THAN_A_CARD}",
            where="accelerate's parallelism_config",
            fix="launch with torchrun; train.fsdp = true shards the weights",
        )
    for variable, engine in _OTHER_ENGINES.items():
        if parse_flag_from_env(variable):
            raise ConfigError(
                f"the launcher asks for {engine}, which this trainer does not use",
                where="accelerate's configuration",
                fix="launch with torchrun; train.fsdp = true shards the weights",
            )
    return Accelerator()


def shared_run(make: Callable[[], RunDir]) -> RunDir:
    """The run directory of all ranks; `make` is called on the main rank only. Alone, this is
    `make()`."""
    state = join_ranks()
    if state.num_processes == 1:
        return make()
    path = [str(make().path) if state.is_main_process else ""]
    broadcast_object_list(path, from_process=0)
    return open_run(Path(path[0]))
