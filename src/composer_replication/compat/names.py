"""The names of each module path of the guide, and messages for those that are gone or elsewhere.

    from composer_replication.trainer.data_collator import CollatorConfig    # the top-level name
    from composer_replication.recipes.monarch.actors import TrainerActor

Nothing is imported before it is asked for: a path costs nothing, and every name is defined once (in
the table of the package's __init__).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_REPLAY = "DEFAULT_TEACHERS DPOPair TraceState extract_dpo_pairs replay_trace"
_NORMALIZE = (
    "DJNormalizer NormalizedDPOPair replay_and_normalize_trace replay_and_normalize_trace_sync"
)
_ADAPTER = "TOOL_ERROR_TAG claude_states_to_trace_examples default_classify_error"
_COLLATOR = "CollatorConfig ComposerDataCollator TokenizerLike TraceExample TraceTurn"
_TRAINER = "ComposerReplicationConfig ComposerReplicationTrainer"
_EXECUTORS = "LocalProcessExecutor ServerlessExecutor"
_ALLREDUCE = "MockManager ObjectStoreAllReduce"
MODULES: dict[str, str] = {
    "loss": "LossComponents compose_loss",
    "batch": "build_batch",
    "opsd": "generalized_jsd_loss",
    "distillation": "TAIDScheduler entropy_aware_opd_loss simpo_loss taid_loss teacher_entropy",
    "teacher_replay": _REPLAY,
    "replaysim": _NORMALIZE,
    "replaysim.normalize": _NORMALIZE,
    "ingestion": f"ClaudeCodeIngester {_ADAPTER}",
    "ingestion.claude_code": "ClaudeCodeIngester TraceState",
    "ingestion.trace_examples": _ADAPTER,
    "trainer": f"{_COLLATOR} {_TRAINER}",
    "trainer.composer_trainer": _TRAINER,
    "trainer.data_collator": _COLLATOR,
    "diloco": "make_diloco_outer_loop",
    "diloco.serverless": (f"{_EXECUTORS} {_ALLREDUCE} HFJobsExecutor ModalExecutor"),
    "diloco.serverless.executor": _EXECUTORS,
    "diloco.serverless.allreduce": _ALLREDUCE,
    "diloco.serverless.modal": "ModalExecutor",
    "diloco.serverless.hf_jobs": "HFJobsExecutor",
    "diloco.serverless.replica_entrypoint": "replica_entrypoint",
    "recipes": "",
    "recipes.prime_rl": "loss_fn",
    "recipes.prime_rl.composer_loss": "loss_fn",
    "recipes.monarch": "",
    "recipes.monarch.actors": "GeneratorActor TrainerActor",
    "recipes.verl": "*",
}
"""The guide's module paths below `composer_replication`, and their names; "*" = every name is
elsewhere."""

ELSEWHERE: dict[str, str] = {
    "recipes.verl": "its place is `recompose train --backend verl` (docs/backends/verl.md)",
}
GONE: dict[str, str] = {
    "build_batch": (
        "it was a fixed demo conversation; run `recompose demo`, or use"
        " composer_replication.workshop"
    )
}


def missing(name: str) -> ImportError | None:
    """Return the error of a name that is gone; None for any other name.

    >>> str(missing("build_batch"))[:19], missing("compose_loss")
    ('build_batch is gone', None)
    """
    return ImportError(f"{name} is gone: {GONE[name]}") if name in GONE else None


def names_of(module: str) -> list[str]:
    """Return the names that `from MODULE import *` imports: those of a path that exist."""
    return [
        name for name in MODULES[_path(module)].split() if name != "*" and missing(name) is None
    ]


def module_getattr(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a path: top-level names, ImportError for missing ones."""
    path = _path(module)
    names = MODULES[path].split()

    def read(name: str) -> Any:
        if name in names:
            return getattr(importlib.import_module("composer_replication"), name)
        if "*" in names and not name.startswith("_"):
            raise ImportError(f"{path}.{name}: {ELSEWHERE[path]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return read


def _path(module: str) -> str:
    return module.removeprefix("composer_replication.").removeprefix("compat.paths.")
