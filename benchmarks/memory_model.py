"""The memory model of memory/memory_model.py beside measured peaks, and where its numbers come
from.

    python benchmarks/memory_model.py
        twelve settings, each in its own process: predicted and measured peak, about 10 minutes
    python benchmarks/memory_model.py --only session --json build/memory_model.json
    python benchmarks/memory_model.py --widths
        what exists beside the kept states while a layer is walked back, over each width

A measurement is a whole optimiser step as `train` takes it (training/step.py): forward, losses,
backward of two sessions, AdamW. "Measured" is what lives between steps and the peak of what
PyTorch's allocator gives out during the third: the same count that CUDA's allocator keeps as
max_memory_allocated. "Process" is VmHWM of the second step above the resident size before the model
was made, with freed memory given back at once (MALLOC_MMAP_THRESHOLD_): it holds the scratch of
this CPU's bfloat16 products too, which PyTorch does not count and a GPU does not need. The model
has the widths of half a Qwen3-0.6B, 4 layers, random weights. Off CUDA train.offload moves nothing:
there what would wait in host memory waits in a file.

--widths: peaks of PyTorch's allocator at 1,024 and 1,152 tokens of two layers; their slope is what
a token takes, and its differences over the widths are the summands of a token.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

# For the benchmarks beside this file, even if this one is imported.
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy
import torch
from accelerate import Accelerator
from memory_section import memory_section
from page import about
from resident import resident_mib
from step import NoTokenizer, make_data
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.core.config.root import Config
from composer_replication.models import lora_linear
from composer_replication.models.activations import checkpoint_layers, tiled
from composer_replication.models.forward import final_hidden
from composer_replication.models.load_student import Student, _with_lora
from composer_replication.models.model_shape import shape_of
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training.forwards import passes
from composer_replication.training.inputs import StepInputs
from composer_replication.training.memory.largest_forward import micros_of_a_step, step_size
from composer_replication.training.memory.memory_model import Device, MemoryNeed, memory_need
from composer_replication.training.memory.memory_terms import layer_bytes
from composer_replication.training.run.state import Trainer, make_trainer
from composer_replication.training.step import train_step

HALF = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8}
KEPT = {"checkpoint": "layers"}
TILED = {**KEPT, "tile": 256}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One setting: what is trained on, and how."""

    dtype: str = "float32"
    rank: int = 0
    train: dict[str, Any] = field(default_factory=dict)
    sites: int = 0
    pairs: int = 0
    hint: dict[str, Any] = field(default_factory=dict)
    length: int = 1536
    vocab: int = 4096
    layers: int = 4

    @property
    def config(self) -> Config:
        """Settings as a run has them; a channel without data has no weight."""
        channels = {
            "lm_ce": {"weight": 1.0},
            "hint": {"weight": 0.1, "teacher": "live", **self.hint}
            if self.sites
            else {"weight": 0.0},
            "preference": {"weight": 0.1 if self.pairs else 0.0, "anchor": 0.0},
        }
        return Config.model_validate(
            {
                "student": {"dtype": self.dtype, "lora": {"rank": self.rank}},
                "train": {
                    **channels,
                    "micro_tokens": self.length * 5 // 4,
                    "balance": "none",
                    **self.train,
                },
            }
        )


LORA: dict[str, Any] = {"dtype": "bfloat16", "rank": 16}
SESSION: dict[str, Any] = {"sites": 4, "pairs": 4}
CASES: dict[str, Case] = {
    "float32, all weights": Case(),
    "float32, all weights, checkpoint": Case(train=KEPT),
    "float32, all weights, checkpoint, tile": Case(train=TILED),
    "bfloat16, all weights, checkpoint": Case(dtype="bfloat16", train=KEPT),
    "bfloat16, LoRA": Case(**LORA),
    "bfloat16, LoRA, checkpoint": Case(**LORA, train=KEPT),
    "bfloat16, LoRA, checkpoint, tile": Case(**LORA, train=TILED),
    "bfloat16, LoRA, checkpoint, tile, offload": Case(**LORA, train={**TILED, "offload": True}),
    "session (4 sites, 4 pairs), float32, all weights": Case(**SESSION),
    "session, bfloat16, LoRA, checkpoint": Case(**SESSION, **LORA, train=KEPT),
    "session, float32, slow average, checkpoint": Case(
        **SESSION, train=KEPT, hint={"teacher": "ema"}
    ),
    "float32, V = 49,152, 512 tokens, 2 sites, frozen teacher": Case(
        sites=2, hint={"teacher": "frozen"}, vocab=49_152, length=512
    ),
}


def config_of(*, layers: int, vocab: int, **widths: int) -> Qwen3Config:
    """Half the widths of a Qwen3-0.6B, or others."""
    return Qwen3Config(
        vocab_size=vocab,
        num_hidden_layers=layers,
        max_position_embeddings=1 << 17,
        tie_word_embeddings=True,
        **{**HALF, "num_key_value_heads": 4, "head_dim": 128, **widths},
    )


def make_model(case: Case, *, layers: int, vocab: int, **widths: int) -> Any:
    """A Qwen3 of these widths, with adapters if the case has them."""
    torch.manual_seed(0)
    config = config_of(layers=layers, vocab=vocab, **widths)
    model = Qwen3ForCausalLM(config).to(getattr(torch, case.dtype))
    return _with_lora(model, case.config.student, seed=0) if case.rank else model


# ---- a whole step ----


def make_step(case: Case, **widths: int) -> tuple[Trainer, Callable[[int], float]]:
    """A trainer of the case, and the function that takes its step number n and returns the loss.

    A second session of the same size makes a forward that finds the gradients of the first one's.
    """
    model = make_model(case, layers=case.layers, vocab=case.vocab, **widths)
    student = Student(name="b", model=model, tokenizer=NoTokenizer(), lora=case.rank > 0)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    trainer = make_trainer(case.config, student=student, accelerator=accelerator)
    examples, pairs = data_of(case)
    if trainer.models.references.pop("preference", None):  # a run has scored the pairs before
        pairs = [replace(p, reference=(-1.0,) * p.num_response_tokens) for p in pairs]

    def step(number: int) -> float:
        inputs = StepInputs(examples=examples, pairs=pairs)
        return float(train_step(trainer, inputs, step=number)["loss"])

    return trainer, step


def data_of(case: Case) -> tuple[list[TrainingExample], list[PreferencePair]]:
    """Two sessions of the case, and their pairs."""
    session, pairs = make_data(case.length, sites=case.sites, pairs=case.pairs, vocab=case.vocab)
    example = _with_spans(session)
    others = [replace(pair, id=f"{pair.id}2", session_id="s2") for pair in pairs]
    return [example, replace(example, id="e2", session_id="s2")], [*pairs, *others]


def measure(case: Case) -> dict[str, Any]:
    """The peaks of a step in bytes: what is held and the allocator's, and the process's."""
    torch.set_num_threads(1)
    _warm_up()
    gc.collect()
    before = resident_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", "ascii")
    trainer, step = make_step(case)
    with _files_for_host_memory():
        step(1), step(2)
        process = (resident_mib("VmHWM") - before) * (1 << 20)
        with AllocatorPeak() as found:
            step(3)
    return {"measured": held_bytes(trainer) + found.bytes, "process": process}


def need_of(case: Case, *, device: Device = "cpu", **widths: int) -> MemoryNeed:
    """What the memory model says of the same settings and tokens; nothing is run."""
    config, (examples, pairs) = case.config, data_of(case)
    shape = shape_of(config_of(layers=case.layers, vocab=case.vocab, **widths).to_dict())
    micros = micros_of_a_step(examples, pairs, config.train, ranks=1, pair_weight=0.0)
    sizes = [step_size(*micro, config.train) for micro in micros]
    needs = [memory_need(shape, config, size, device=device) for size in sizes]
    return max(needs, key=lambda need: need.total)


def predict(case: Case) -> dict[str, Any]:
    """The predicted peak in bytes, its moment and its terms."""
    need = need_of(case)
    terms = {name: round(value) for name, value in need.terms.items()}
    return {"predicted": round(need.total), "moment": need.moment, "terms": terms}


def held_bytes(trainer: Trainer) -> int:
    """What is there between steps: weights, copies and the optimiser's states, each once."""
    models = [trainer.models.student, *trainer.models.references.values()]
    tensors = [t for m in models for t in (*m.model.parameters(), *m.model.buffers())]
    for slots in trainer.optimiser.state.values():
        tensors += [t for t in slots.values() if isinstance(t, Tensor)]
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())


def _warm_up() -> None:
    """What the libraries take once, before the base is read."""
    for case in (Case(length=64, vocab=64, layers=1), Case(**LORA, length=64, vocab=64, layers=1)):
        model = make_model(case, layers=1, vocab=64, hidden_size=32, intermediate_size=64)
        model.train()(input_ids=torch.zeros(1, 64, dtype=torch.long)).logits.sum().backward()
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]).step()


def _with_spans(example: TrainingExample) -> TrainingExample:
    """The session with every token in lm_ce that no site claims."""
    claimed = sorted(view.span for view in example.hints)
    starts, ends = [8, *(b for _, b in claimed)], [*(a for a, _ in claimed), len(example.ids)]
    spans = tuple((a, b) for a, b in zip(starts, ends, strict=True) if a < b)
    return replace(example, actions=(), lm_spans=spans)


@contextlib.contextmanager
def _files_for_host_memory() -> Iterator[None]:
    """train.offload into files: what a card has given away is not resident."""
    with tempfile.TemporaryDirectory() as folder:

        def put(tensor: Tensor) -> Any:
            if tensor.nbytes < 1 << 16:
                return tensor
            path = Path(folder) / str(len(os.listdir(folder)))
            tensor.detach().contiguous().view(torch.uint8).numpy().tofile(path)
            return path, tensor.new_empty(0), tensor.shape

        def get(kept: Any) -> Tensor:
            if isinstance(kept, Tensor):
                return kept
            path, like, size = kept
            numbers = torch.from_numpy(numpy.fromfile(path, dtype="uint8"))
            return numbers.view(like.dtype).view(size)

        def in_files(model: Any) -> Any:
            return torch.autograd.graph.saved_tensors_hooks(put, get)

        before, passes.in_host_memory = passes.in_host_memory, in_files
        try:
            yield
        finally:
            passes.in_host_memory = before


# ---- one layer, over its widths ----


class AllocatorPeak:
    """The most bytes that PyTorch's allocator had given out inside a block, above its start."""

    bytes = 0

    def __enter__(self) -> AllocatorPeak:
        self._profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        self._profile.__enter__()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._profile.__exit__(*exc_info)
        events = self._profile.profiler.kineto_results.events()  # type: ignore[union-attr]
        changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
        live = 0
        for _, change in sorted(changes, key=lambda pair: pair[0]):
            live += change
            self.bytes = max(self.bytes, live)


def peak(case: Case, tokens: int, *, grad: bool = True, **widths: int) -> int:
    """Of a forward, and of its backward, of a checkpointed or tiled decoder of two layers.

    In a fork: a profile's events are never given back.
    """
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, str(_peak(case, tokens, grad=grad, **widths)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as found:
        text = found.read()
    os.waitpid(child, 0)
    return int(text)


def _peak(case: Case, tokens: int, *, grad: bool, **widths: int) -> int:
    torch.set_num_threads(1)
    model = make_model(case, layers=2, vocab=64, **widths)
    settings = case.config.train
    if settings.checkpoint == "layers":
        checkpoint_layers(model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    ids_BT = torch.zeros(1, tokens, dtype=torch.long)
    incoming_BTD = torch.ones(1, tokens, widths["hidden_size"], dtype=model.dtype)
    model.train(grad)
    with tiled(model, tile=settings.tile), AllocatorPeak() as found, torch.set_grad_enabled(grad):
        hidden_BTD = final_hidden(model, ids_BT)
        if grad:
            hidden_BTD.backward(incoming_BTD)
    return found.bytes


WIDTHS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
REGIMES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    # hidden, inner, heads, kv heads, and how each is changed: where one moment is the widest
    "feed-forward": ((64, 512, 2, 2), (8, 32, 2, -1)),
    "norms": ((256, 64, 2, 1), (8, 32, 1, 1)),
    "attention": ((32, 32, 24, 4), (8, 32, 4, 2)),
    "attention, G = H": ((32, 32, 16, 16), (8, 32, 16, -8)),
}
HEAD_DIM = 32


def widths_lines(only: list[str], *, first: int) -> Iterator[str]:
    """Per token and beside what is kept: bytes over each width, in each regime."""
    lengths = (first, first + 128)
    for name, numbers in (
        ("float32, all weights", {}),
        ("float32, LoRA", {"rank": 4}),
        ("bfloat16, all weights", {"dtype": "bfloat16"}),
        ("bfloat16, LoRA", {"dtype": "bfloat16", "rank": 4}),
    ):
        for mode, train in (
            ("plain", {}),
            ("checkpoint", KEPT),
            ("tile", {**KEPT, "tile": 128}),
            ("no gradient", {}),
        ):
            case = Case(**numbers, train=train)
            for regime, (base, changes) in REGIMES.items():
                if mode == "plain" and regime.startswith("attention"):
                    continue  # the later layers have let go of theirs by then
                if not any(part in f"{name}, {mode}, {regime}" for part in only):
                    continue

                def beside(values: tuple[int, ...], case: Case = case, mode: str = mode) -> float:
                    widths = {**dict(zip(WIDTHS, values, strict=True)), "head_dim": HEAD_DIM}
                    grad = mode != "no gradient"
                    low, high = (peak(case, n, grad=grad, **widths) for n in lengths)
                    return (high - low) / (lengths[1] - lengths[0]) - kept(case, values) * grad

                found, slopes = beside(base), []
                for at, change in enumerate(changes):
                    moved = tuple(v + change * (i == at) for i, v in enumerate(base))
                    width = change * (1 if at < 2 else HEAD_DIM)
                    slopes.append((beside(moved) - found) / width)
                units = [v * (1 if i < 2 else HEAD_DIM) for i, v in enumerate(base)]
                rest = found - sum(s * w for s, w in zip(slopes, units, strict=True))
                shown = " ".join(f"{s:8.2f} {w}" for s, w in zip(slopes, "DIqk", strict=True))
                yield f"{name:22} {mode:12} {regime:17} {shown} {rest:8.0f}"


def kept(case: Case, values: tuple[int, ...]) -> float:
    """What the two layers keep for a token by the memory model."""
    names = {"model_type": "qwen3", "num_hidden_layers": 2, "vocab_size": 64, "head_dim": HEAD_DIM}
    shape = shape_of({**names, **dict(zip(WIDTHS, values, strict=True))})
    state = 4 if case.dtype == "float32" else 2
    train = case.config.train
    of_layer = layer_bytes(shape, state=state, all_weights=not case.rank, tiled=train.tile > 0)
    if train.checkpoint == "none":
        return 2 * of_layer.total
    return 2 * state * shape.hidden + of_layer.total


# ---- the command ----


def run(name: str) -> dict[str, Any]:
    """`measure` in a fresh process."""
    environment = {
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }
    process = subprocess.run(
        [sys.executable, __file__, "--child", name],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    if process.returncode:
        return {"case": name, "problem": f"failed: {process.stderr.strip().splitlines()[-1:]}"}
    return {"case": name, **json.loads(process.stdout.splitlines()[-1]), **predict(CASES[name])}


def main(arguments: list[str] | None = None) -> int:
    """Read the options and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[""], help="a part of a setting's name")
    parser.add_argument("--widths", action="store_true")
    parser.add_argument("--first", type=int, default=1024, help="tokens of --widths; 128 more")
    parser.add_argument("--part", type=int, default=256, help="tokens that adapters cast at a time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--predict", action="store_true", help="anew, for what is in --json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    if options.child:
        print(json.dumps(measure(CASES[options.child])))
        return 0
    if options.widths:
        lora_linear._TOKENS = options.part
        for line in widths_lines(options.only, first=options.first):
            print(line, flush=True)
        return 0
    if options.predict:
        written = json.loads(options.json.read_text("utf-8"))
        for line in written["lines"]:
            line |= predict(CASES[line["case"]]) if "problem" not in line else {}
    else:
        written = {"about": about(sys.argv), "lines": []}
        for name in (name for name in CASES if any(part in name for part in options.only)):
            written["lines"].append(run(name))
            print(json.dumps(written["lines"][-1]), file=sys.stderr, flush=True)
    if options.json:
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    print(memory_section(written, {"memory_model": {"error": 0.10}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
