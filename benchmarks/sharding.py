"""What a rank holds with replicated and with sharded weights (train.fsdp), on processes of this
machine: python benchmarks/sharding.py [--cuda] [--ranks 2 4]

Four layers of Qwen3, hidden size 256, all weights trained in float32, a frozen teacher; two steps
of three channels. "peak" is how far the second step rises above what is held before it, gathered
layers and head included: on a CPU by the process's resident size, where memory that was freed may
stay. `--cuda` takes one card a rank (not run here: no two cards were lent).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

MIB = 2**20
VOCAB = 8192


def inputs(examples: int = 4, length: int = 96) -> Any:
    """Examples with one hint view each, and a pair that branches off each."""
    from composer_replication.tokens.example import HintView, PreferencePair, TrainingExample
    from composer_replication.training.inputs import StepInputs

    rng = random.Random(0)

    def draw(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(2, VOCAB) for _ in range(n))

    made, pairs = [], []
    for i in range(examples):
        ids, span = draw(length), (length - 16, length)
        view = HintView(
            site_id=f"s{i}:1",
            kind="bad_args",
            at=span[0] - 1,
            hint_ids=draw(12),
            span=span,
            target_ids=ids[span[0] :],
        )
        made.append(
            TrainingExample(
                id=f"e{i}", session_id=f"s{i}", ids=ids, lm_spans=((8, 40),), hints=(view,)
            )
        )
        pairs.append(
            PreferencePair(
                id=f"p{i}",
                session_id=f"s{i}",
                prefix_ids=ids[:60],
                chosen_ids=draw(10),
                rejected_ids=ids[60:70],
            )
        )
    return StepInputs(examples=made, pairs=pairs)


def measure(*, fsdp: bool, cuda: bool) -> dict[str, float]:
    """One rank's MiB of tensors after two steps, and the peak of the second."""
    import torch
    from accelerate import Accelerator
    from resident import HighWater
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from composer_replication.core.config.root import Config
    from composer_replication.models.load_student import Student
    from composer_replication.training.run.state import make_trainer
    from composer_replication.training.step import train_step

    class Tokenizer:
        pad_token_id = 0

    shape = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    torch.manual_seed(0)  # every rank starts from the same weights
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCAB, **shape, **heads))
    preference = {"weight": 1.0, "objective": "simpo"}
    settings = {"fsdp": fsdp, "preference": preference, "hint": {"teacher": "frozen"}}
    trainer = make_trainer(
        Config.model_validate({"train": settings}),
        student=Student(name="q", model=model, tokenizer=Tokenizer()),
        accelerator=Accelerator(cpu=not cuda),
    )
    train_step(trainer, inputs(), step=0)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    with HighWater() as water:
        loss = train_step(trainer, inputs(), step=1)["loss"]
    peak = (torch.cuda.max_memory_allocated() - held) / MIB if cuda else water.mib

    def mib(tensors: Any) -> float:
        local = [getattr(t, "to_local", lambda t=t: t)() for t in tensors]
        return sum(t.numel() * t.element_size() for t in local) / MIB

    moments = [v for slots in trainer.optimiser.state.values() for v in slots.values()]
    return {
        "weights": mib(model.parameters()),
        "teacher": mib(trainer.models.references["hint"].model.parameters()),
        "optimiser": mib(moments),
        "peak": peak,
        "loss": loss,
    }


def on_ranks(ranks: int, *, fsdp: bool, cuda: bool) -> dict[str, float]:
    """The largest of each number over the ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "ACCELERATE_USE_CPU": str(not cuda).lower(), "OMP_NUM_THREADS": "1"}
    if ranks > 1:
        shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    flags = [flag for flag, on in (("--fsdp", fsdp), ("--cuda", cuda)) if on]
    command = [sys.executable, __file__, "--rank", *flags]
    children = []
    for rank in range(ranks):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
        children.append(
            subprocess.Popen(command, env={**shared, **place}, stdout=subprocess.PIPE, text=True)
        )
    found = [json.loads(child.communicate(timeout=600)[0].splitlines()[-1]) for child in children]
    return {key: max(of_rank[key] for of_rank in found) for key in found[0]}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", action="store_true", help="be one rank")
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--cuda", action="store_true", help="one card a rank, instead of the CPU")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    options = parser.parse_args()
    if options.rank:
        print(json.dumps(measure(fsdp=options.fsdp, cuda=options.cuda)), flush=True)
        os._exit(0)  # a rank does not wait for the others' sockets
    keys = ("weights", "teacher", "optimiser", "peak")
    print(
        f"{'MiB a rank':22}" + "".join(f"{key:>11}" for key in keys) + f"{'held':>11}{'ratio':>8}"
    )
    alone = on_ranks(1, fsdp=False, cuda=options.cuda)
    rows = {"1 rank": alone}
    for ranks in options.ranks:
        for fsdp in (False, True):
            name = f"{ranks} ranks, {'sharded' if fsdp else 'replicated'}"
            rows[name] = on_ranks(ranks, fsdp=fsdp, cuda=options.cuda)
    for name, row in rows.items():
        held, of_one = (sum(r[key] for key in keys[:3]) for r in (row, alone))
        cells = "".join(f"{row[key]:11.2f}" for key in keys)
        print(f"{name:22}{cells}{held:11.2f}{held / of_one:8.3f}")
        assert abs(row["loss"] - alone["loss"]) <= 1e-3 * abs(alone["loss"]), "another loss"


if __name__ == "__main__":
    main()
