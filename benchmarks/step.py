"""Time and memory of a whole step of three channels on one session: the tree next to its rows and
to layouts that share nothing, in one run.

    python benchmarks/step.py
        K = 2, 4, 8, 16 pairs, about 15 minutes on one core
    python benchmarks/step.py --pairs 8 --only tree naive
        some of it
    python benchmarks/step.py --long
        32,768 tokens, 16 sites, 16 pairs: memory and time of the tree

A session of 1024 tokens with 4 sites (hint of 32 tokens, mistaken message of 48) and K pairs (48
tokens a side; the rejected side is the session's own message): policy on every token after the
first quarter, JSD against the live teacher that has read the hint, DPO against a frozen reference.
Qwen3 of 6 layers, hidden size 256, V = 8192, random weights, float32, one thread. Forward and
backward of everything, no optimiser step. Each measurement is a fresh process. A time is the median
of its CPU-seconds after the first repetition. Memory is the highest resident size of the process
(VmHWM, reset when the inputs exist) above the size before.

tree         this project, train.layout = "tree"
rows         this project, train.layout = "rows": one forward of the session, pairs in padded rows
separate     this project, the three channels one after another as three trainers would run them,
             one row or pair at a time (no padding)
naive        logits of every position, one padded row per teacher view and per side of a pair, all
             in one batch
trl          TRL's own losses, one after another on the same session and model:
             GRPOTrainer._compute_loss; the SDPO trainer's full-logit divergence;
             DPOTrainer._compute_loss with the reference. Nothing is padded and no row is longer
             than necessary: one row of the session, a teacher row per site, one pair at a time; the
             head runs on the sites' positions only (the SDPO trainer itself does more). The
             trainers are objects that hold the settings their methods read and nothing else
trl_chunked  the same with the DistillationTrainer's chunked divergence in place of SDPO's

A peer that cannot be imported is reported as "not installed". Off CUDA, TRL's GRPO and DPO project
every position of a row, as shipped. Prints Markdown; --json FILE writes the numbers. The last
column says whether a variant computes the losses of the tree.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.core.channel_names import CHANNELS, Channel
from composer_replication.core.config.root import Config
from composer_replication.losses.divergence import jsd
from composer_replication.losses.policy import dr_grpo, token_logprobs
from composer_replication.losses.preference import dpo
from composer_replication.models.load_student import Student
from composer_replication.tokens.batch import collate, count
from composer_replication.tokens.example import (
    HintView,
    PreferencePair,
    SampledMessage,
    TrainingExample,
)
from composer_replication.training.draws.packing import pack_micro_batches, session_trees
from composer_replication.training.run.state import Trainer, make_trainer
from composer_replication.training.step import accumulate

SCALES: dict[Channel, float] = {"policy": 1.0, "hint": 0.1, "preference": 0.05}
HINT, MESSAGE, ADVANTAGE = 32, 48, 0.7
Step = Callable[[], list[float]]  # the three channels' losses, gradients left in .grad


class NoTokenizer:
    """A stand-in for the tokenizer: the trainer reads only the pad id."""

    pad_token_id = 0


def make_data(
    length: int, *, sites: int, pairs: int, vocab: int
) -> tuple[TrainingExample, list[PreferencePair]]:
    """One session; sites and pairs are at different messages, spread evenly."""
    rng = random.Random(1)

    def draw(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab) for _ in range(n))

    ids = draw(length)
    places = [length * (i + 1) // (sites + pairs + 1) for i in range(sites + pairs)]
    mistaken = set(rng.sample(places, sites))
    views, preference_pairs = [], []
    for a in places:
        b = a + MESSAGE
        if a in mistaken:
            views.append(
                HintView(
                    site_id=f"s:{a}",
                    kind="bad_args",
                    at=a,
                    hint_ids=draw(HINT),
                    span=(a, b),
                    target_ids=ids[a:b],
                )
            )
        else:
            name = f"p{a}"
            preference_pairs.append(
                PreferencePair(
                    id=name,
                    session_id="s",
                    prefix_ids=ids[:a],
                    chosen_ids=draw(MESSAGE),
                    rejected_ids=ids[a:b],
                )
            )
    start = length // 4
    action = SampledMessage(
        span=(start, length), logprobs=(-math.log(vocab),) * (length - start), advantage=ADVANTAGE
    )
    return (
        TrainingExample(id="e", session_id="s", ids=ids, hints=tuple(views), actions=(action,)),
        preference_pairs,
    )


def make_model(*, layers: int, hidden: int, vocab: int) -> Any:
    """A Qwen3 of the given shape with random weights."""
    torch.manual_seed(0)
    heads = max(1, hidden // 64)
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=64,
        max_position_embeddings=65536,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


def on_cuda(model: Any) -> bool:
    """Whether the model is on a GPU (benchmarks/gpu.py takes the same steps there)."""
    return next(model.parameters()).is_cuda


def trainer_for(
    model: Any, *, layout: str, micro_tokens: int, only: Channel | None = None, **train: Any
) -> Trainer:
    """The project's own trainer with the three channels, or one of them, and a frozen reference a
    little away from the student; `train` are further settings."""
    weights: dict[str, dict[str, Any]] = {
        name: {"weight": SCALES.get(name, 0.0) if only in (None, name) else 0.0}
        for name in CHANNELS
    }
    weights["policy"]["clip"] = 1e9
    weights["hint"] |= {"teacher": "live"}
    weights["preference"] |= {"anchor": 0.0}
    fixed = {"layout": layout, "micro_tokens": micro_tokens, "balance": "none"}
    config = Config.model_validate({"train": {**weights, **fixed, **train}})
    lora = hasattr(model, "peft_config")
    student = Student(name="bench", model=model, tokenizer=NoTokenizer(), lora=lora)
    trainer = make_trainer(config, student=student, accelerator=Accelerator(cpu=not on_cuda(model)))
    if "preference" in trainer.models.references and not lora:  # else it shares the student's base
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in trainer.models.references["preference"].model.parameters():
                parameter.add_(0.002 * torch.randn_like(parameter))
    return trainer


def ours(
    model: Any,
    example: TrainingExample,
    pairs: list[PreferencePair],
    *,
    layout: str,
    micro_tokens: int,
    **train: Any,
) -> Step:
    """The step as training/step.py takes it; `train` are further settings."""
    trainer = trainer_for(model, layout=layout, micro_tokens=micro_tokens, **train)
    counts = count([example], pairs)
    micros = (
        [([example], pairs)]
        if layout == "rows"
        else pack_micro_batches(
            session_trees([example], pairs, micro_tokens=micro_tokens), micro_tokens=micro_tokens
        )
    )

    def step() -> list[float]:
        channel_values = accumulate(trainer, micros, counts, scales=SCALES)
        return [channel_values[name].loss for name in SCALES]

    return step


def tree(model: Any, example: TrainingExample, pairs: list[PreferencePair], **train: Any) -> Step:
    return ours(model, example, pairs, layout="tree", micro_tokens=1 << 20, **train)


def rows(model: Any, example: TrainingExample, pairs: list[PreferencePair]) -> Step:
    return ours(model, example, pairs, layout="rows", micro_tokens=8192)


def separate(model: Any, example: TrainingExample, pairs: list[PreferencePair]) -> Step:
    """Three trainers with separate forwards: micro-batches of one row, or of one pair, so that
    nothing is padded."""
    trainers = {
        name: trainer_for(model, layout="rows", micro_tokens=len(example.ids) + HINT, only=name)
        for name in SCALES
    }
    counts = count([example], pairs)
    micros: dict[Channel, list] = {
        "policy": [([example], [])],
        "hint": [([example], [])],
        "preference": [([], [p]) for p in pairs],
    }

    def step() -> list[float]:
        return [
            accumulate(trainers[name], micros[name], counts, scales=SCALES)[name].loss
            for name in SCALES
        ]

    return step


def naive(model: Any, example: TrainingExample, pairs: list[PreferencePair]) -> Step:
    """Logits of all positions; the divergence on every position, then masked; pairs and teacher
    views in padded rows."""
    reference = (
        trainer_for(model, layout="rows", micro_tokens=8192).models.references["preference"].model
    )
    batch, counts = collate([example], pairs, pad_id=0), count([example], pairs)

    def sides(logits_BTV: Tensor) -> Tensor:
        logp_BT = (
            logits_BTV[:, :-1].log_softmax(-1).gather(-1, batch.pair.ids_BT[:, 1:, None])[..., 0]
        )
        rows = zip(batch.response.row_N.tolist(), batch.response.position_N.tolist(), strict=True)
        inside_BT = torch.zeros_like(logp_BT)
        for row, position in rows:
            inside_BT[row, position - 1] = 1.0
        return (logp_BT * inside_BT).sum(-1)

    def step() -> list[float]:
        logits_TV = model(input_ids=batch.student.ids_BT, use_cache=False).logits[0]
        logp_N = token_logprobs(logits_TV[:-1], batch.student.ids_BT[0, 1:])[
            batch.action.position_N - 1
        ]
        policy = (
            dr_grpo(logp_N, batch.sampled_logp_N, batch.advantage_N, clip=1e9).sum()
            / counts.sampled_rollouts
        )
        with torch.no_grad():
            teacher_BTV = model(
                input_ids=batch.teacher.ids_BT,
                attention_mask=batch.teacher.attention_BT,
                use_cache=False,
            ).logits
        # the student's logits in the teacher's frame, so that one divergence covers every position
        frame_BTV = torch.zeros_like(teacher_BTV)
        mask_BT = torch.zeros(teacher_BTV.shape[:2])
        for row, view in enumerate(example.hints):
            (a, b), (c, d) = view.span, example.teacher_span(view)
            frame_BTV[row, c - 1 : d - 1] = logits_TV[a - 1 : b - 1]
            mask_BT[row, c - 1 : d - 1] = 1.0
        values_N = jsd(frame_BTV.flatten(0, 1), teacher_BTV.flatten(0, 1), beta=0.5)
        hint = (values_N * mask_BT.flatten()).sum() / counts.hint_tokens
        ours = sides(
            model(
                input_ids=batch.pair.ids_BT, attention_mask=batch.pair.attention_BT, use_cache=False
            ).logits
        )
        with torch.no_grad():
            theirs = sides(
                reference(
                    input_ids=batch.pair.ids_BT,
                    attention_mask=batch.pair.attention_BT,
                    use_cache=False,
                ).logits
            )
        n = len(pairs)
        preference = dpo(ours[:n], ours[n:], theirs[:n], theirs[n:], beta=0.1).mean()
        total = (
            SCALES["policy"] * policy + SCALES["hint"] * hint + SCALES["preference"] * preference
        )
        total.backward()
        return [float(policy), float(hint), float(preference)]

    return step


def trl_trainers(model: Any, reference: Any) -> tuple[Any, Any]:
    """The attributes that GRPOTrainer._compute_loss and DPOTrainer._compute_loss read; settings as
    in `naive`."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    accelerator = Accelerator(cpu=not on_cuda(model))
    grpo = SimpleNamespace(
        model=model,
        accelerator=accelerator,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=0.0,
        loss_type="dr_grpo",
        epsilon_low=1e9,
        epsilon_high=1e9,
        use_vllm=False,
        # one rollout and a divisor of 1: the sum over tokens, which is how this project reduces Dr.
        # GRPO
        max_completion_length=1,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        args=SimpleNamespace(delta=None),
        _metrics={"train": defaultdict(list)},
    )
    grpo._get_per_token_logps_and_entropies = MethodType(
        GRPOTrainer._get_per_token_logps_and_entropies, grpo
    )
    preference = SimpleNamespace(
        model=model,
        ref_model=reference,
        accelerator=accelerator,
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=False,
        args=SimpleNamespace(gradient_checkpointing_kwargs=None),
        f_divergence_type="reverse_kl",
        beta=0.1,
        loss_types=["sigmoid"],
        loss_weights=[1.0],
        use_weighting=False,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    return grpo, preference


def trl_inputs(
    example: TrainingExample, pairs: list[PreferencePair]
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """The batch of the session for GRPO, and one of [chosen, rejected] for each pair; sides of one
    length have no padding."""
    (action,) = example.actions
    ids_1T, start = torch.tensor([example.ids]), action.span[0]
    session = {
        "prompt_ids": ids_1T[:, :start],
        "prompt_mask": torch.ones_like(ids_1T[:, :start]),
        "completion_ids": ids_1T[:, start:],
        "completion_mask": torch.ones_like(ids_1T[:, start:]),
        "advantages": torch.tensor([action.advantage]),
        "old_per_token_logps": torch.tensor([action.logprobs]),
    }
    couples = []
    for pair in pairs:
        sides = (pair.prefix_ids + pair.chosen_ids, pair.prefix_ids + pair.rejected_ids)
        longest = max(map(len, sides))
        ids_2T = torch.tensor([ids + (0,) * (longest - len(ids)) for ids in sides])
        attention_2T = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in sides])
        completion_2T = attention_2T.clone()
        completion_2T[:, : len(pair.prefix_ids)] = 0
        couples.append(
            {"input_ids": ids_2T, "attention_mask": attention_2T, "completion_mask": completion_2T}
        )
    return session, couples


def trl(
    model: Any, example: TrainingExample, pairs: list[PreferencePair], *, chunked: bool = False
) -> Step:
    """GRPO, self-distillation and DPO by TRL's own methods, each with separate forwards."""
    from trl.experimental.sdpo.loss_utils import compute_full_logit_self_distillation_loss
    from trl.trainer.distillation_trainer import _chunked_divergence_loss
    from trl.trainer.dpo_trainer import DPOTrainer
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.utils import add_fused_lm_head

    reference = (
        trainer_for(model, layout="rows", micro_tokens=8192).models.references["preference"].model
    )
    add_fused_lm_head(reference)
    plain, forwards = model.forward, []
    # The outputs that GRPOTrainer and DPOTrainer need from the head.
    for outputs in (("log_probs", "entropy"), ("log_probs", "entropy", "mean_logits", "is_top1")):
        model.forward = plain
        add_fused_lm_head(model, outputs=outputs)
        forwards.append(model.forward)
    grpo, preference = trl_trainers(model, reference)
    session, couples = trl_inputs(example, pairs)
    ids_1T, head = torch.tensor([example.ids]), model.get_output_embeddings()
    spans = [
        (torch.tensor([example.teacher_ids(v)]), range(*v.span), range(*example.teacher_span(v)))
        for v in example.hints
    ]

    def distil() -> Tensor:
        near_TD, near, far = (
            model.base_model(input_ids=ids_1T, use_cache=False).last_hidden_state[0],
            [],
            [],
        )
        for teacher_1T, student_span, teacher_span in spans:
            near.append(near_TD[student_span.start - 1 : student_span.stop - 1])
            with torch.no_grad():
                far_TD = model.base_model(input_ids=teacher_1T, use_cache=False).last_hidden_state[
                    0
                ]
            far.append(far_TD[teacher_span.start - 1 : teacher_span.stop - 1])
        near_ND, far_ND = torch.cat(near), torch.cat(far)
        if chunked:
            mask_1N = torch.ones_like(near_ND[None, :, 0])
            return _chunked_divergence_loss(
                near_ND[None], far_ND[None], head.weight, head.weight.detach(), mask_1N, 0.5
            )[0]
        with torch.no_grad():
            far_NV = head(far_ND)
        return compute_full_logit_self_distillation_loss(
            head(near_ND), far_NV, distillation_alpha=0.5
        ).mean()

    def step() -> list[float]:
        model.forward = forwards[0]
        policy = GRPOTrainer._compute_loss(grpo, model, session)
        (SCALES["policy"] * policy).backward()
        # this project's JSD has the curvature of a KL: 1 / (beta (1 - beta)) times TRL's
        hint = 4.0 * distil()
        (SCALES["hint"] * hint).backward()
        model.forward, total = forwards[1], 0.0
        for couple in couples:
            loss = DPOTrainer._compute_loss(preference, model, couple, False) / len(couples)
            (SCALES["preference"] * loss).backward()
            total += float(loss.detach())
        return [float(policy.detach()), float(hint.detach()), total]

    return step


def trl_chunked(model: Any, example: TrainingExample, pairs: list[PreferencePair]) -> Step:
    return trl(model, example, pairs, chunked=True)


VARIANTS: dict[str, Callable[..., Step]] = {
    "tree": tree,
    "rows": rows,
    "separate": separate,
    "naive": naive,
    "trl": trl,
    "trl_chunked": trl_chunked,
}


# ---- one measurement, in a fresh process ----


def measure(variant: str, options: argparse.Namespace) -> dict[str, Any]:
    """Losses, CPU-seconds and memory of one variant."""
    torch.set_num_threads(1)
    try:
        model = make_model(
            layers=options.layers, hidden=options.hidden, vocab=options.vocab
        ).train()
        example, pairs = make_data(
            options.length, sites=options.sites, pairs=options.pairs[0], vocab=options.vocab
        )
        step = VARIANTS[variant](model, example, pairs)
    except ImportError as error:
        return {
            "variant": variant,
            "pairs": options.pairs[0],
            "problem": f"not installed: {error.name}",
        }
    numbers = measure_step(step, model, repeats=options.repeats)
    return {"variant": variant, "pairs": options.pairs[0], **numbers}


def measure_step(step: Step, model: Any, *, repeats: int) -> dict[str, Any]:
    """Losses, CPU-seconds and memory of a step, which is taken once more than `repeats`."""
    from resident import HighWater  # beside this file

    seconds, losses, peak = [], [], 0.0
    for _ in range(repeats + 1):
        model.zero_grad(set_to_none=True)
        with HighWater() as water:
            began = time.process_time()
            losses = step()
            seconds.append(time.process_time() - began)
        peak = max(peak, water.mib)
    grads = [p.grad.flatten().float() for p in model.parameters() if p.requires_grad]
    gradient = torch.cat(grads).norm()
    timed = seconds[1:] or seconds
    return {
        "losses": losses,
        "gradient_norm": float(gradient),
        "cpu_s": statistics.median(timed),
        "cpu_s_least": min(timed),
        "peak_mib": peak,
    }


def run(
    variant: str,
    pairs: int,
    options: argparse.Namespace,
    *,
    script: str = __file__,
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """`measure` in a fresh process, by a script that has these options, and `more`."""
    shape = [
        f"--{name}={getattr(options, name)}"
        for name in ("length", "sites", "layers", "hidden", "vocab", "repeats")
    ]
    command = [sys.executable, script, "--child", variant, "--pairs", str(pairs), *shape, *more]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if process.returncode:
        return {
            "variant": variant,
            "pairs": pairs,
            "problem": f"failed: {process.stderr.strip().splitlines()[-1:]}",
        }
    return json.loads(process.stdout.splitlines()[-1])


def main() -> int:
    """Read the options and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(VARIANTS),
        default=[v for v in VARIANTS if v != "trl_chunked"],
    )
    for name, value in (
        ("length", 1024),
        ("sites", 4),
        ("layers", 6),
        ("hidden", 256),
        ("vocab", 8192),
        ("repeats", 3),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument(
        "--long",
        action="store_true",
        help="32,768 tokens, 16 sites, 16 pairs, the tree alone, on a model of tiny's size",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options)))
        return 0
    if options.long:
        options.length, options.sites, options.pairs, options.only, options.repeats = (
            32768,
            16,
            [16],
            ["tree"],
            0,
        )
        options.layers, options.hidden, options.vocab = 3, 128, 2048
    from page import GOALS, about, long_section, step_section  # beside this file

    shape = {
        name: getattr(options, name)
        for name in ("length", "sites", "layers", "hidden", "vocab", "repeats")
    }
    written: dict[str, Any] = {
        "about": about(sys.argv),
        "shape": {**shape, "hint": HINT, "message": MESSAGE},
        "lines": [],
    }
    for pairs, variant in [(pairs, variant) for pairs in options.pairs for variant in options.only]:
        written["lines"].append(run(variant, pairs, options))
        print(written["lines"][-1], file=sys.stderr, flush=True)
        if options.json:  # after every line, so that a run that is stopped leaves what it has
            options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    section = long_section if options.long else step_section
    print(section(written, GOALS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
