"""Four replicas that meet every 20 steps beside data-parallel training on the same tokens: the
held-out loss of two tiny models.

    python benchmarks/diloco_convergence.py [--task sequences|text|trained_text] [--seeds 3]

- `sequences`: 400 steps of a Qwen3 of width 48 on arithmetic sequences; the step of each has
  to be seen from its first two numbers, so no loss is below ln(7) / 23
- `text`: 400 steps of the student of 0.43M weights on this package's source, as bytes; every tenth
  file is held out. From random weights, so few steps measure the batch size
- `trained_text`: the same, from the weights after 1,600 such steps in one process and with a third
  of the learning rate: post-training never starts from random weights

Replica i draws in step k what shard i of the data-parallel run does, so both see the same tokens.
`lr_1` is the outer learning rate 1.0, too high beside a momentum of 0.9: it has to be worse.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from composer_replication.models.tiny import make_tiny
from composer_replication.training.diloco.blob_store import open_store
from composer_replication.training.diloco.exchange import Exchange
from composer_replication.training.diloco.flat_weights import FlatWeights
from composer_replication.training.diloco.outer import PRESETS, OuterSettings
from composer_replication.training.diloco.polling import Timing
from composer_replication.training.diloco.replica import Replica, SyncResult
from composer_replication.training.diloco.round_records import Spec

ROOT = Path(__file__).resolve().parent.parent
REPLICAS, EVERY, STEPS, WITHIN = 4, 20, 400, 1.05
LEARNING_RATE, WARM_UP = 3e-3, 40
TRAINED_STEPS, TRAINED_RATE = 1600, 1e-3
NUMBERS, TERMS, LARGEST_STEP = 32, 24, 7
TEXT_LENGTH = 65
FLOOR = math.log(LARGEST_STEP) / (TERMS - 1)
_TEST = 10**15
"""The seed of the held-out sequences, which no training batch has."""


@dataclass(frozen=True, slots=True)
class Task:
    """A tiny model and its data: rows of `length` ids, drawn by seed, shard and step alone.

    The optimiser's weights are float32; the model computes with them as they look in `seen_as`.
    """

    make_model: Callable[[int], Any]
    draw: Callable[[int, torch.Generator], Tensor]
    num_rows: int
    held_out: Tensor
    learning_rate: float = LEARNING_RATE
    seen_as: torch.dtype = torch.float32

    def batch(self, seed: int, *, shard: int, step: int) -> Tensor:
        """The rows of one shard in one step."""
        rng = torch.Generator().manual_seed(seed * 10**9 + shard * 10**6 + step)
        return self.draw(self.num_rows, rng)


def sequences() -> Task:
    """Arithmetic sequences modulo 32."""

    def draw(num_rows: int, rng: torch.Generator) -> Tensor:
        first = torch.randint(NUMBERS, (num_rows, 1), generator=rng)
        step = torch.randint(1, LARGEST_STEP + 1, (num_rows, 1), generator=rng)
        return (first + step * torch.arange(TERMS)) % NUMBERS

    return Task(_small_qwen, draw, 16, draw(512, torch.Generator().manual_seed(_TEST)))


def _small_qwen(seed: int) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=NUMBERS,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        intermediate_size=192,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


class Bytes:
    """A tokenizer's facts for a model of bytes."""

    pad_token_id = eos_token_id = bos_token_id = None

    def __len__(self) -> int:
        return 512  # as many as the student needs; half of them are never drawn


def text() -> Task:
    """This package's source."""
    parts = [bytearray(), bytearray()]
    for index, path in enumerate(sorted((ROOT / "src").rglob("*.py"))):
        parts[index % 10 == 9] += path.read_bytes()
    learnt, held_out = (torch.frombuffer(part, dtype=torch.uint8).long() for part in parts)

    def draw(num_rows: int, rng: torch.Generator) -> Tensor:
        starts = torch.randint(len(learnt) - TEXT_LENGTH, (num_rows,), generator=rng)
        return torch.stack([learnt[start : start + TEXT_LENGTH] for start in starts])

    starts = torch.linspace(0, len(held_out) - TEXT_LENGTH, 256).long()
    rows = torch.stack([held_out[start : start + TEXT_LENGTH] for start in starts])
    return Task(lambda seed: make_tiny(Bytes(), seed=seed), draw, 4, rows)


def trained(task: Task, *, steps: int) -> Task:
    """The same data for a model that was trained on it for so many steps: by seed, once."""

    @functools.cache
    def weights_of(seed: int) -> dict[str, Tensor]:
        learner = Learner(task, seed + TRAINED_STEPS, num_steps=steps)
        for step in range(steps):
            learner.step(step, shards=range(REPLICAS))
        print(f"seed {seed} starts from {learner.held_out_loss():.4f}", flush=True)
        return learner.model.state_dict()

    def make_model(seed: int) -> Any:
        model = task.make_model(seed)
        model.load_state_dict(weights_of(seed))
        return model

    return replace(task, make_model=make_model)


def trained_text() -> Task:
    """This package's source, for a model that was trained on it."""
    return replace(trained(text(), steps=TRAINED_STEPS), learning_rate=TRAINED_RATE)


def loss_of(model: Any, ids: Tensor) -> Tensor:
    """The mean cross-entropy of the next ids."""
    logits = model(input_ids=ids[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


class Learner:
    """A model with its AdamW and a schedule: warm-up, then a cosine down to a tenth."""

    def __init__(self, task: Task, seed: int, *, num_steps: int = STEPS) -> None:
        self.task, self.seed, self.num_steps = task, seed, num_steps
        self.model = task.make_model(seed)
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=task.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
        )

    def step(self, number: int, *, shards: range) -> None:
        """One optimiser step on some of the shards."""
        cosine = 0.1 + 0.9 * (1 + math.cos(math.pi * number / self.num_steps)) / 2
        for group in self.optimiser.param_groups:
            group["lr"] = self.task.learning_rate * min(1.0, (number + 1) / WARM_UP) * cosine
        self.optimiser.zero_grad()
        batches = [self.task.batch(self.seed, shard=shard, step=number) for shard in shards]
        with self._seen():
            loss_of(self.model, torch.cat(batches)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """The loss on what was held out."""
        with self._seen():
            return loss_of(self.model, self.task.held_out).item()

    @contextlib.contextmanager
    def _seen(self) -> Iterator[None]:
        """The weights as the model sees them, while it computes."""
        if self.task.seen_as == torch.float32:
            yield
            return
        exact = [parameter.data for parameter in self.model.parameters()]
        for parameter in self.model.parameters():
            parameter.data = parameter.data.to(self.task.seen_as).float()
        yield
        for parameter, data in zip(self.model.parameters(), exact, strict=True):
            parameter.data = data


def data_parallel(task: Task, *, seed: int, shards: int) -> float:
    """The held-out loss of one process whose batch is that of all shards."""
    learner = Learner(task, seed)
    for step in range(STEPS):
        learner.step(step, shards=range(shards))
    return learner.held_out_loss()


@dataclass(slots=True)
class Trained:
    """What replicas did: (steps, loss on what was held out) by round, and all syncs."""

    losses: list[tuple[int, float]]
    syncs: list[SyncResult] = field(default_factory=list)


def with_replicas(
    task: Task,
    *,
    seed: int,
    outer: OuterSettings,
    codec: str = "none",
    every: int = EVERY,
    steps: int = STEPS,
) -> Trained:
    """Train the replicas of one store, which end with the same weights."""
    spec = Spec(
        weights=[],
        schema_sha256="",
        replicas=REPLICAS,
        quorum=REPLICAS,
        learning_rate=outer.learning_rate,
        momentum=outer.momentum,
        codec=codec,
        anchor_every=10**6,
    )
    learners = [Learner(task, seed, num_steps=steps) for _ in range(REPLICAS)]
    result = Trained([(0, learners[0].held_out_loss())])
    with tempfile.TemporaryDirectory() as folder:

        def train(slot: int) -> None:
            learner, timing = learners[slot], Timing(grace_s=3600.0, max_poll_s=0.1)
            flat = FlatWeights.of(learner.model)
            exchange = Exchange.join(
                open_store(f"file://{folder}"), spec, start=flat.read(), slot=slot, timing=timing
            )
            replica = Replica(exchange)
            for step in range(steps):
                learner.step(step, shards=range(slot, slot + 1))
                if (step + 1) % every == 0:
                    sync = replica.sync(flat.read(), tokens=1, steps=every)
                    flat.write(sync.weights)
                    result.syncs.append(sync)
                    if slot == 0:
                        result.losses.append((step + 1, learner.held_out_loss()))

        threads = [threading.Thread(target=train, args=(slot,)) for slot in range(REPLICAS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    losses = {learner.held_out_loss() for learner in learners}
    if losses != {result.losses[-1][1]}:
        raise RuntimeError(f"the replicas end with other losses: {losses}")
    return result


def measure(task: Task, *, seeds: int) -> dict[str, Any]:
    """The held-out losses of each seed, and their ratios to data-parallel training."""
    nesterov, rows = PRESETS["nesterov"], list[dict[str, float]]()
    too_fast = OuterSettings(learning_rate=1.0, momentum=nesterov.momentum)
    for seed in range(seeds):
        row = {
            "data_parallel": data_parallel(task, seed=seed, shards=REPLICAS),
            "one_shard": data_parallel(task, seed=seed, shards=1),
        }
        outers = {"replicas": nesterov, "average": PRESETS["average"], "lr_1": too_fast}
        for name, outer in outers.items():
            row[name] = with_replicas(task, seed=seed, outer=outer).losses[-1][1]
        rows.append({name: round(value, 4) for name, value in row.items()})
        print(seed, json.dumps(rows[-1]), flush=True)
    names = ("one_shard", "replicas", "average", "lr_1")
    ratios = {n: [round(row[n] / row["data_parallel"], 4) for row in rows] for n in names}
    return {
        "weights": sum(p.numel() for p in task.make_model(0).parameters()),
        "held_out_loss_at_start": [
            round(Learner(task, seed).held_out_loss(), 4) for seed in range(seeds)
        ],
        "tokens": STEPS * REPLICAS * task.num_rows * (task.held_out.shape[1] - 1),
        "held_out_loss": {str(seed): row for seed, row in enumerate(rows)},
        "ratio_to_data_parallel": ratios,
        "within_5_percent": max(ratios["replicas"]) <= WITHIN,
    }


def main() -> None:
    """Print the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--task", choices=sorted(TASKS), default="sequences")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", type=Path, help="a JSON file, to which the result is added")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "replicas": REPLICAS,
        "every": EVERY,
        "steps": STEPS,
        "floor_of_sequences": round(FLOOR, 4),
        options.task: measure(TASKS[options.task](), seeds=options.seeds),
    }
    if options.write:
        old = json.loads(options.write.read_text()) if options.write.exists() else {}
        options.write.write_text(json.dumps({**old, **result}, indent=1) + "\n")
    print(json.dumps(result, indent=1))


TASKS = {"sequences": sequences, "text": text, "trained_text": trained_text}


if __name__ == "__main__":
    main()
