"""Sampled tokens per CPU-second beside transformers' `generate`, on the same prompts and weights.

    COMPOSER_REPLICATION_REAL=... python benchmarks/generation.py --json build/generation.json
        SmolLM2-135M (made by scripts/real_models.py) in float32 and bfloat16, and a Qwen3 of random
        weights; one thread
    python benchmarks/generation.py --models qwen3-random --repeats 1 --tokens 8

batch N      N prompts that have nothing in common but the template's first tokens, one message each
lengths      8 prompts of different lengths
tasks        8 tasks below the same system prompt
group N      N samples of one prompt
turns        8 episodes of 4 messages; each message is answered with a tool's result

Ours is `sample_rollouts`, whole: environments, templates, log-probs, sessions. Theirs is
`generate(do_sample=True, top_k=0)` on the ids of our prompts, padded on the left, no log-probs;
"cache kept" are turns in which the peer is handed the cache of its last turn, as long as all rows
are equally long. No end token can be sampled (the head's bias forbids it to both), so both write
the same number of tokens. Each case is measured in turn, ours and theirs, after a first round of
both; the ratio is of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the benchmarks beside this file

from beside_trl import STUDENT
from page import GOALS, about, markdown
from page_generation import HEADS, generation_rows

from composer_replication.core.trace import HUMAN, Text, Turn
from composer_replication.rollouts.envs.env import Opening, Reply
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.sampler import Sampling, sample_rollouts
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer

MODELS = ("smollm2-float32", "smollm2-bfloat16", "qwen3-random")
CASES = ("batch 1", "batch 8", "batch 16", "lengths", "tasks", "group 4", "group 8", "turns")
TURNS = 4
WORDS = ("read", "the", "file", "and", "tell", "me", "which", "line", "counts", "from", "zero")


class Listener:
    """An environment that answers every message with the same words."""

    runs_in = "caller"

    def __init__(self, name: str, *, system: str, task: str, result: str, turns: int) -> None:
        self.task_id, self.max_turns = name, turns
        self.system, self.task, self.result = system, task, result

    def open(self) -> Opening:
        system = Turn(role="system", author="harness", blocks=(Text(self.system),))
        task = Turn(role="user", author=HUMAN, blocks=(Text(self.task),))
        return Opening(turns=(system, task), tools=())

    def reply(self, turn: Turn) -> Reply:
        answer = Turn(role="user", author=HUMAN, blocks=(Text(self.result),))
        return Reply(turns=(answer,), done=False)

    def reward(self) -> float:
        return 0.0

    def measures(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Student:
    """A model that never ends a message, and its template."""

    model: Any
    renderer: Renderer


def words(count: int, *, seed: int) -> str:
    """At least so many words: other ones from the first on for another seed, and as many tokens."""
    rounds = -(-count // len(WORDS))
    return " ".join(WORDS[(seed + i) % len(WORDS)] for i in range(rounds * len(WORDS)))


def listeners(case: str, *, size: int) -> list[Listener]:
    """The environments of a case; `size` is about the number of tokens of a prompt."""
    kind, _, number = case.partition(" ")
    count = int(number) if number else 8
    made = []
    for i in range(count):
        seed = 0 if kind in ("group", "tasks") else i
        long = size // 4 * (i + 1) // 2 if kind == "lengths" else size
        long *= 2 if kind in ("group", "tasks") else 1
        task = "Go." if kind != "tasks" else f"Task {i}: " + words(8 + i, seed=i)
        made.append(
            Listener(
                f"case-{i}",
                system=f"{seed} " + words(long, seed=seed),
                task=task,
                result=words(size // 4, seed=3),
                turns=TURNS if kind == "turns" else 1,
            )
        )
    return made


def endless(model: Any, renderer: Renderer) -> Student:
    """The model with a head whose bias forbids the template's own tokens and ids that are none."""
    tokenizer: Any = renderer.tokenizer
    forbidden = [
        *renderer.end_ids,
        *tokenizer.all_special_ids,
        *tokenizer.get_added_vocab().values(),
    ]
    head = nn.Linear(
        model.config.hidden_size, model.config.vocab_size, dtype=model.dtype, device=model.device
    )
    bias_V = torch.zeros_like(head.bias)
    bias_V[forbidden] = -1e4
    bias_V[len(tokenizer) :] = -1e4
    head.weight, head.bias = model.get_output_embeddings().weight, nn.Parameter(bias_V)
    model.set_output_embeddings(head)
    model.generation_config.eos_token_id = None
    return Student(model=model.eval(), renderer=renderer)


def load(name: str) -> Student:
    """A student by its name in MODELS; FileNotFoundError if its weights are not on this machine."""
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

    if name == "qwen3-random":
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=49_152,
            hidden_size=256,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=32,
            intermediate_size=768,
            max_position_embeddings=8192,
        )
        return endless(Qwen3ForCausalLM(config), Renderer.for_tokenizer(load_tokenizer(STUDENT)))
    folder = Path(os.environ.get("COMPOSER_REPLICATION_REAL", "build/real")) / "folders" / "smollm2"
    if not folder.exists():
        raise FileNotFoundError(f"{folder} is missing: set COMPOSER_REPLICATION_REAL (make real)")
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, name.partition("-")[2])
    )
    tokenizer = load_tokenizer(str(folder))
    return endless(model, Renderer.for_tokenizer(tokenizer, family="chatml-tools"))


def play(student: Student, envs: Sequence[Listener], *, tokens: int, seed: int) -> list[Rollout]:
    """Ours: one rollout in each environment."""
    settings = Sampling(
        max_new_tokens=tokens, max_context_tokens=8192, batch_episodes=len(envs), seed=seed
    )
    return sample_rollouts(
        student.model, envs, renderer=student.renderer, settings=settings, author="a"
    )


def contexts_of(rollout: Rollout) -> list[tuple[int, ...]]:
    """What the student read before each message."""
    return [rollout.ids[: t.context_tokens] for t in rollout.session.turns if t.sampled is not None]


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids and mask, padded on the left."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def generate(student: Student, ids: Tensor, mask: Tensor, *, tokens: int, **more: Any) -> Any:
    """Theirs: the ids of every row's next message."""
    device = student.model.device
    result = student.model.generate(
        ids.to(device),
        attention_mask=mask.to(device),
        do_sample=True,
        top_k=0,
        top_p=1.0,
        temperature=1.0,
        max_new_tokens=tokens,
        pad_token_id=0,
        **more,
    )
    if len(ids := getattr(result, "sequences", result)[0]) != mask.shape[1] + tokens:
        raise AssertionError(f"generate wrote {len(ids) - mask.shape[1]} tokens, not {tokens}")
    return result


def answer_all(
    student: Student, contexts: Sequence[Sequence[tuple[int, ...]]], *, tokens: int
) -> None:
    """A message behind each context, turn by turn; every turn reads its whole context again."""
    for rows in zip(*contexts, strict=True):
        generate(student, *padded(rows), tokens=tokens)


def answer_all_cached(
    student: Student, contexts: Sequence[Sequence[tuple[int, ...]]], *, tokens: int
) -> None:
    """The same, but the cache is handed on; what stands behind a message is that of ours."""
    cache, ids = None, None
    for number, rows in enumerate(zip(*contexts, strict=True)):
        if ids is None:
            ids = torch.tensor(rows)
        else:
            behind = [
                row[len(before[number - 1]) + tokens :]
                for row, before in zip(rows, contexts, strict=True)
            ]
            ids = torch.cat([ids, torch.tensor(behind, device=ids.device)], dim=1)
        result = generate(
            student,
            ids,
            torch.ones_like(ids),
            tokens=tokens,
            past_key_values=cache,
            return_dict_in_generate=True,
        )
        cache, ids = result.past_key_values, result.sequences


def cpu_seconds(run: Callable[[], Any]) -> float:
    """CPU-seconds of one run."""
    begun = time.process_time()
    run()
    return time.process_time() - begun


def measure(student: Student, case: str, *, size: int, tokens: int, repeats: int) -> dict[str, Any]:
    """A line of the result: tokens per CPU-second of ours and of theirs."""
    rollouts = play(student, listeners(case, size=size), tokens=tokens, seed=0)
    contexts = [contexts_of(rollout) for rollout in rollouts]
    num_tokens = sum(len(t.sampled.ids) for r in rollouts for t in r.session.turns if t.sampled)
    if num_tokens != tokens * sum(map(len, contexts)):
        raise AssertionError(f"ours wrote {num_tokens} tokens")
    ways: dict[str, Callable[[], Any]] = {
        "ours": lambda: play(student, listeners(case, size=size), tokens=tokens, seed=1),
        "generate": lambda: answer_all(student, contexts, tokens=tokens),
    }
    if case == "turns" and len({tuple(map(len, row)) for row in contexts}) == 1:
        ways["cache kept"] = lambda: answer_all_cached(student, contexts, tokens=tokens)
    with torch.no_grad():
        rounds = [{way: cpu_seconds(run) for way, run in ways.items()} for _ in range(1 + repeats)]
    rates = {way: num_tokens / statistics.median(r[way] for r in rounds[1:]) for way in ways}
    lengths = [len(row[0]) for row in contexts]
    return {
        "case": case,
        "prompt": [min(lengths), max(lengths)],
        "tokens": num_tokens,
        "tokens_per_cpu_s": rates,
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write the JSON; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--size", type=int, default=160, help="words of a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of a message")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lines = []
    for name in options.models:
        try:
            student = load(name)
        except FileNotFoundError as error:
            print(f"{name} is not measured: {error}")
            continue
        for case in options.cases:
            lines.append(
                {
                    "model": name,
                    **measure(
                        student,
                        case,
                        size=options.size,
                        tokens=options.tokens,
                        repeats=options.repeats,
                    ),
                }
            )
            print(lines[-1], file=sys.stderr, flush=True)
    measured = {"about": about(sys.argv), "lines": lines}
    print(markdown(HEADS, generation_rows(measured, GOALS["generation"])))
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
