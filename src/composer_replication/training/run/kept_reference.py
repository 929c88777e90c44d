"""The reference's log-probs of the pairs (dpo, dpo_norm, ipo): scored once, before the first step,
and kept on disk under the model's hash.

    kept_reference = keep_reference(trainer, pairs, folder=folder)  # None = not on disk
    pairs = kept_reference.with_reference(pairs_of_a_step)          # no forward of the start

The reference is the student as it was at the start, so nothing about it changes during a run, nor
from one run to the next on the same weights. A pair is scored by itself, in the layout of the run:
its log-probs do not depend on what else shares its forward, and those of the file equal those
computed again bit for bit. That holds for the same weights, model, layout, kind of device and
number of threads, so the file is named by a hash of these; within it a pair is named by a hash of
its ids. A pair of other weights, or one that is encoded differently, is not found, and is scored;
so is every pair if the file cannot be read. The run's first event counts the pairs of both kinds.

With the log-probs known, no copy of the start's weights is kept for them, and a step has no forward
for them.
Shapes: N tokens of the chosen response, then of the rejected one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list, gather_object
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from composer_replication.core.files import move_into_place, scratch_folder
from composer_replication.losses.fused import fused_logprobs
from composer_replication.models.pretrained_folder import weights_sha256
from composer_replication.tokens.batch import collate
from composer_replication.tokens.example import PreferencePair
from composer_replication.training.forwards.joined import joined
from composer_replication.training.forwards.passes import score_targets
from composer_replication.training.forwards.training_models import TrainingModels
from composer_replication.training.run.state import Trainer

_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version")
"""Entries of a model's configuration that change nothing about what it computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptReference:
    """Log-probs by the hash of a pair: `num_scored` in this launch, `num_loaded` from a file."""

    logp_N: Mapping[str, Tensor]
    num_scored: int
    num_loaded: int

    @property
    def facts(self) -> dict[str, int]:
        """The counts, for the event "start"."""
        return (
            {"reference_made": self.num_scored, "reference_found": self.num_loaded}
            if self.logp_N
            else {}
        )

    def with_reference(self, pairs: Iterable[PreferencePair]) -> list[PreferencePair]:
        """The pairs with the reference's log-prob of each of their tokens."""
        return [
            replace(pair, reference=tuple(self.logp_N[pair_sha256(pair)].tolist()))
            for pair in pairs
        ]


def keep_reference(
    trainer: Trainer, pairs: Iterable[PreferencePair], *, folder: Path | None
) -> KeptReference:
    """The reference's log-probs of these pairs; call it before the first step, and before a
    checkpoint is loaded.

    Every rank scores its share of the pairs that the file lacks, and the main one writes the file.
    Each rank gets all log-probs.
    """
    pairs_by_hash = {pair_sha256(pair): pair for pair in pairs}
    path = None if folder is None else folder / f"{reference_sha256(trainer)[:32]}.safetensors"
    loaded = _from_main(
        _read(path, pairs_by_hash)
        if path is not None and trainer.accelerator.is_main_process
        else {}
    )
    missing = [name for name in pairs_by_hash if name not in loaded]
    rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
    rank_scored: list[tuple[str, Tensor]] = []
    with joined(trainer.models):
        for number, name in enumerate(share := missing[rank::world], 1):
            trainer.on_progress(
                partial("the start scores the pairs: {} of {}".format, number, len(share))
            )
            rank_scored.append((name, _score(trainer.models, pairs_by_hash[name])))
    scored: dict[str, Tensor] = dict(gather_object(rank_scored))
    if scored and path is not None and trainer.accelerator.is_main_process:
        _write(path, {**_read(path, None), **scored})
    return KeptReference(
        logp_N={**loaded, **scored}, num_scored=len(scored), num_loaded=len(loaded)
    )


def pair_sha256(pair: PreferencePair) -> str:
    """A hash of the ids of a pair: the same text, encoded otherwise, is another pair."""
    return hashlib.sha256(
        json.dumps([pair.prefix_ids, pair.chosen_ids, pair.rejected_ids]).encode()
    ).hexdigest()


def reference_sha256(trainer: Trainer) -> str:
    """A hash of everything that the log-probs depend on to the last bit, but for the pair."""
    model, device = trainer.models.student.model, trainer.models.device
    config = {
        key: value for key, value in model.config.to_dict().items() if key not in _NOT_OF_THE_MODEL
    }
    parts = {
        "weights": weights_sha256(model),
        "model": [type(model).__name__, config, str(model.dtype), trainer.models.student.lora],
        "layout": trainer.models.layout,
        "device": [
            device.type,
            torch.__version__,
            torch.get_num_threads() if device.type == "cpu" else torch.cuda.get_device_name(device),
        ],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


@torch.no_grad()
def _score(models: TrainingModels, pair: PreferencePair) -> Tensor:
    """(N,) in float32 on the CPU."""
    reference = models.references["preference"]
    batch = collate([], [pair], pad_id=models.student.pad_id).to(models.device)
    hidden_ND = score_targets(models, reference, batch.pair, batch.response)
    return fused_logprobs(hidden_ND, reference.head(), batch.response.ids_N).float().cpu()


def _from_main(loaded: dict[str, Tensor]) -> dict[str, Tensor]:
    """The main rank's log-probs on every rank: another rank may see the file half written."""
    return broadcast_object_list([loaded])[0]


def _read(path: Path, wanted: Mapping[str, PreferencePair] | None) -> dict[str, Tensor]:
    """The log-probs of the wanted pairs in a file (None = of all); {} if it is missing or
    damaged."""
    try:
        log_probs = load_file(str(path)) if path.exists() else {}
    except SafetensorError:
        return {}
    if wanted is None:
        return log_probs
    return {
        name: log_probs[name]
        for name, pair in wanted.items()
        if name in log_probs and len(log_probs[name]) == pair.num_response_tokens
    }


def _write(path: Path, log_probs: Mapping[str, Tensor]) -> None:
    """Write the file whole or not at all; if two runs write at once, the later one's file stays."""
    with scratch_folder(path) as scratch:
        save_file(dict(log_probs), str(scratch / path.name))
        move_into_place(scratch / path.name, path)
