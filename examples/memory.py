"""Write the memory of the examples into examples/README.md: `python examples/memory.py`; a test
fails if the table is stale.

No weights are loaded: a model of the published shape is made on PyTorch's meta device, and its
forward shows what autograd would keep.
"""

from __future__ import annotations

import sys
import tomllib
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
BEGIN, END = "<!-- memory: written by examples/memory.py -->", "<!-- end of memory -->"
GB = 1e9
SHAPES = {  # config.json of the model's page
    "Qwen/Qwen3-0.6B": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 3072,
    },
    "Qwen/Qwen3-4B-Instruct-2507": {
        "hidden_size": 2560,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 9728,
    },
}
SHARED: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
EXAMPLES = (
    ("small_instruct/recompose.toml",),
    ("small_instruct/recompose.toml", "small_instruct/lora.toml"),
    ("small_instruct/recompose.toml", "small_instruct/fork.toml"),
    ("small_instruct/recompose.toml", "small_instruct/live.toml"),
    ("lora_4b_24gb/recompose.toml",),
    ("lora_4b_24gb/recompose.toml", "lora_4b_24gb/fork.toml"),
    ("lora_4b_24gb/recompose.toml", "lora_4b_24gb/live.toml"),
)
HEAD = (
    "settings",
    "weights",
    "trained",
    "tokens in a forward",
    "weights, GB",
    "start's copy, GB",
    "gradient and AdamW, GB",
    "activations, GB",
    "or keys and values, GB",
    "sum, GB",
)


def make(shape: dict[str, Any], *, layers: int, dtype: torch.dtype, rank: int) -> Any:
    """The student on the meta device: it has shapes and no numbers."""
    import peft
    import transformers

    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.Qwen3Config(**{**SHARED, **shape, "num_hidden_layers": layers})
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        lora = (
            peft.LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM")
            if rank
            else None
        )
        return peft.get_peft_model(model, lora) if lora else model


def saved_bytes(model: Any, tokens: int) -> int:
    """Bytes that autograd keeps of one forward, each storage once, weights left out."""
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    storages: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
        model.train().get_decoder()(
            input_ids=ids, use_cache=False, attention_mask={"full_attention": None}
        )
    return sum(t.untyped_storage().nbytes() for s, t in storages.items() if s not in weights)


@cache
def per_token(name: str, *, dtype: torch.dtype, rank: int) -> float:
    """Bytes that autograd keeps per token and layer. The part that grows with the square of the
    length is left out, since fused attention keeps none."""
    more = [
        saved_bytes(make(SHAPES[name], layers=2, dtype=dtype, rank=rank), n)
        - saved_bytes(make(SHAPES[name], layers=1, dtype=dtype, rank=rank), n)
        for n in (128, 256)
    ]
    # bytes(n) = a n + b n^2, so 2 bytes(128) / 128 - bytes(256) / 256 = a.
    return 2 * more[0] / 128 - more[1] / 256


@cache
def sizes(name: str, *, dtype: torch.dtype, rank: int) -> list[tuple[int, int, bool]]:
    """Of every weight tensor: its number of values, the bytes of each, and whether it is
    trained."""
    model = make(SHAPES[name], layers=SHAPES[name]["num_hidden_layers"], dtype=dtype, rank=rank)
    return [(p.numel(), p.element_size(), p.requires_grad) for p in model.parameters()]


def row(names: tuple[str, ...]) -> str:
    """One line of the table."""
    settings: dict[str, Any] = {}
    for name in names:
        for group, values in tomllib.loads((HERE / name).read_text("utf-8")).items():
            settings[group] = (
                {**settings.get(group, {}), **values} if isinstance(values, dict) else values
            )
    student, train, rollouts = settings["student"], settings["train"], settings.get("rollouts", {})
    rank, dtype = student.get("lora", {}).get("rank", 0), getattr(torch, student["dtype"])
    tokens, layers, options = (
        train["micro_tokens"],
        SHAPES[student["model"]]["num_hidden_layers"],
        {"dtype": dtype, "rank": rank},
    )
    counts = sizes(student["model"], **options)
    weights = sum(n * size for n, size, _ in counts)
    # A live run keeps the start to measure the KL from; with LoRA it is the model without adapters.
    copy = weights if rollouts.get("env") and not rank else 0
    optimiser = 3 * sum(n * size for n, size, trained in counts if trained)
    activations = per_token(student["model"], **options) * layers * tokens
    key_values = (
        2
        * SHARED["num_key_value_heads"]
        * SHARED["head_dim"]
        * dtype.itemsize
        * layers
        * tokens
        * rollouts.get("batch_episodes", 0)
    )
    cells = [
        f"{sum(n for n, *_ in counts) / 1e6:,.0f} M",
        f"{sum(n for n, _, t in counts if t) / 1e6:,.0f} M",
        f"{tokens:,}",
    ]
    cells += [
        f"{x / GB:.1f}"
        for x in (
            weights,
            copy,
            optimiser,
            activations,
            key_values,
            weights + copy + optimiser + max(activations, key_values),
        )
    ]
    return f"| {' + '.join(names)} | {' | '.join(cells)} |"


def table() -> str:
    """The table in examples/README.md."""
    head = f"| {' | '.join(HEAD)} |"
    return "\n".join([head, f"| --- |{' ---: |' * (len(HEAD) - 1)}", *map(row, EXAMPLES)])


def main() -> int:
    path = HERE / "README.md"
    before, after = path.read_text("utf-8").split(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after.split(END)[1]}", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
