"""Several processes, one run directory: the main rank makes it, the others open the same one.

run = shared_run(lambda: create_run(...))   # under `accelerate launch` or torchrun
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from composer_replication.core.rundir import RunDir, open_run


def shared_run(make: Callable[[], RunDir]) -> RunDir:
    """The run directory of all ranks; `make` is called on the main rank only. Alone, this is
    `make()`."""
    state = Accelerator()  # joins the other ranks as the loop will
    if state.num_processes == 1:
        return make()
    path = [str(make().path) if state.is_main_process else ""]
    broadcast_object_list(path, from_process=0)
    return open_run(Path(path[0]))
