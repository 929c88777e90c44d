"""Episodes and whole policy steps of this project beside TRL's GRPOTrainer with transformers'
generate; benchmarks/rollouts.py prints the comparison.

Both play the same tasks of the workshop with the same fixed tools and budget
(workshop/as_tools.py), the same student from the same weights, temperature 1 over the whole
vocabulary, the same room for an episode, float32, one thread. Both get groups of equal tasks and
take Dr.GRPO steps on them with AdamW; the first step is a warm-up and does not count. Each side is
a separate process.

    episodes per CPU-s    rollouts / CPU-seconds of sampling, tools, rendering, rewards, and of
                          everything else that turns them into a batch
    trained per CPU-s     tokens the student wrote / CPU-seconds of the whole step: all of the
                          above, forward, backward, optimiser

The tests' verdicts are computed and printed, but the policy gets the rewards 0 and 1 in turn, so
that no group is flat and both sides train on every token. CPU-seconds are those of the process and
of its sandbox. Tokens and rewards are printed to show that both play alike. They draw different
random numbers, so the episodes differ; and a call of an unknown tool costs a message here, while
TRL answers it outside the environment, so its success is a little higher.
"""

from __future__ import annotations

import copy
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from page import GOALS
from resident import ended_children_cpu_s

from composer_replication.workshop.sandbox import Sandbox, SandboxRun

SIDES = ("ours", "trl")
ROOT = Path(__file__).resolve().parent.parent
STUDENT = str(ROOT / "examples" / "workshop_student")
SLACK, SEED = 1, 11


class Clock:
    """CPU-seconds of this process by part, and those of a sandbox. After the warm-up the sandbox is
    replaced, so that its CPU time is counted alone."""

    def __init__(self) -> None:
        self.begun, self.spent = time.process_time(), {"play": 0.0, "train": 0.0}
        self.sandbox = Sandbox()
        self.children = ended_children_cpu_s()

    def run(self, files: Mapping[str, str], calls: Sequence[tuple[str, str]]) -> SandboxRun:
        """Run calls in the sandbox."""
        return self.sandbox.run(files, calls)

    def lap(self, part: str) -> None:
        """Add the time since the last lap to a part."""
        now = time.process_time()
        self.spent[part] += now - self.begun
        self.begun = now

    def reset(self) -> None:
        """Forget the warm-up."""
        self.sandbox.close()
        self.sandbox, self.children, self.spent = (
            Sandbox(),
            ended_children_cpu_s(),
            {"play": 0.0, "train": 0.0},
        )
        self.begun = time.process_time()

    def line(self, *, rewards: Sequence[float], tokens: int, messages: int) -> dict[str, float]:
        """The numbers that the process of one side prints."""
        self.sandbox.close()
        play, train = (
            self.spent["play"] + ended_children_cpu_s() - self.children,
            self.spent["train"],
        )
        return {
            "episodes": len(rewards),
            "messages": messages / len(rewards),
            "tokens": tokens / len(rewards),
            "success": sum(rewards) / len(rewards),
            "play_s": play,
            "train_s": train,
            "episodes_per_cpu_s": len(rewards) / play,
            "trained_per_cpu_s": tokens / (play + train),
        }


def task_names(steps: int, groups: int) -> list[list[str]]:
    """The tasks of each step, the warm-up's first."""
    return [[f"{SEED}:{step}:{i}" for i in range(groups)] for step in range(steps + 1)]


def ours(student: str, *, groups: int, size: int, steps: int, room: int) -> dict[str, float]:
    """The reference loop: its own rollouts, examples and step."""
    from composer_replication.core.config.root import Config
    from composer_replication.models.load_student import load_student
    from composer_replication.rollouts.groups import sample_groups
    from composer_replication.rollouts.sampler import sample_rollouts
    from composer_replication.rollouts.sampling import Sampling
    from composer_replication.tokens.hf import load_tokenizer
    from composer_replication.tokens.renderer import Renderer
    from composer_replication.training.inputs import StepInputs
    from composer_replication.training.on_policy.live import group_advantages, rollout_example
    from composer_replication.training.run.state import make_trainer
    from composer_replication.training.step import train_step
    from composer_replication.workshop.as_tools import TOOLS
    from composer_replication.workshop.tasks import make_task
    from composer_replication.workshop.workshop_env import WorkshopEnv

    off = {"weight": 0.0}
    train = {
        "policy": {"weight": 1.0},
        "lm_ce": off,
        "hint": off,
        "preference": off,
        "balance": "none",
        "grad_every": 10**6,
    }
    config = Config.model_validate({"seed": SEED, "student": {"model": student}, "train": train})
    tokenizer = load_tokenizer(student)
    loaded = load_student(config.student, tokenizer=tokenizer, seed=SEED)
    trainer = make_trainer(config, student=loaded, accelerator=_accelerator())
    renderer = Renderer.for_tokenizer(tokenizer)
    sampling = Sampling(
        max_new_tokens=room, max_context_tokens=room, batch_episodes=groups * size, seed=SEED
    )
    sample = partial(
        sample_rollouts, loaded.model, renderer=renderer, settings=sampling, author="student"
    )
    clock, rewards, tokens, messages = Clock(), [0.0][:0], 0, 0
    for step, names in enumerate(task_names(steps, groups)):
        makers = [
            partial(_env, WorkshopEnv, replace(make_task(n, split="train"), tools=TOOLS), clock)
            for n in names
        ]
        played = sample_groups(
            makers, num_groups=groups, size=size, sample=sample, label=f"{step}:"
        )
        scores = {r.session.id: float(i % 2) for i, r in enumerate(played.rollouts)}
        advantage = group_advantages(played, placebos=(), seed=0, rewards_of=scores)
        examples = [
            rollout_example(r, advantage=advantage.get(r.session.id), views=())
            for r in played.rollouts
        ]
        clock.lap("play")
        train_step(
            trainer,
            StepInputs([e for e in examples if e.actions], [], num_rollouts=len(examples)),
            step=step,
        )
        clock.lap("train")
        if step == 0:
            clock.reset()
            continue
        rewards += [r.reward for r in played.rollouts]
        sampled_messages = [
            t.sampled for r in played.rollouts for t in r.session.turns if t.sampled
        ]
        tokens, messages = (
            tokens + sum(len(s.ids) for s in sampled_messages),
            messages + len(sampled_messages),
        )
    return clock.line(rewards=rewards, tokens=tokens, messages=messages)


def trl(student: str, *, groups: int, size: int, steps: int, room: int) -> dict[str, float]:
    """TRL's GRPOTrainer as it is, with the workshop as its environment_factory."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from composer_replication.tokens.hf import load_tokenizer
    from composer_replication.tokens.renderer import Renderer
    from composer_replication.training.backends._compat import teach_to_read_calls
    from composer_replication.training.backends.trl_rollouts import written_spans
    from composer_replication.workshop.as_tools import (
        TOOLS,
        WorkshopTools,
        plain_tools,
        task_row,
    )
    from composer_replication.workshop.tasks import make_task

    clock, rewards, sampled = Clock(), [0.0][:0], {"tokens": 0, "messages": 0}

    class Timed(GRPOTrainer):
        def _generate(self, prompts: list[Any]) -> Any:
            result = super()._generate(prompts)
            masks = result[2] if result[2] is not None else [[1] * len(ids) for ids in result[1]]
            sampled["tokens"] += sum(map(sum, masks))
            sampled["messages"] += sum(len(written_spans(mask)) for mask in masks)
            return result

        def _generate_and_score_completions(self, inputs: list[Any]) -> Any:
            clock.lap("train")
            out = super()._generate_and_score_completions(inputs)
            clock.lap("play")
            rewards.extend(environment.earned for environment in self.environments or ())
            return out

    class Alternating(WorkshopTools):
        """Instance i plays row i of every step; its training reward is 0 or 1 in turn."""

        made = itertools.count()

        def __init__(self) -> None:
            super().__init__(sandbox=clock, slack=SLACK)
            self.score, self.earned = float(next(self.made) % 2), 0.0

        def get_reward(self) -> float:
            self.earned = super().get_reward()
            return self.score

    class AfterWarmUp(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.lap("train")
            if state.global_step == 1:
                clock.reset()
                rewards.clear()
                sampled.update(tokens=0, messages=0)

    tokenizer = copy.deepcopy(load_tokenizer(student))
    tokenizer.chat_template = plain_tools(tokenizer.chat_template)
    teach_to_read_calls(tokenizer, Renderer.for_tokenizer(load_tokenizer(student)))
    rows = [task_row(name) for names in task_names(steps, groups) for name in names]
    tools = [getattr(WorkshopTools(sandbox=clock), name) for name in TOOLS.order]
    prompts = [
        tokenizer.apply_chat_template(
            r["prompt"], tools=tools, add_generation_prompt=True, return_dict=False
        )
        for r in rows
    ]
    budget = max(make_task(row["task"], split="train").budget for row in rows) + SLACK
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder,
            max_steps=steps + 1,
            per_device_train_batch_size=groups * size,
            num_generations=size,
            max_completion_length=room - max(map(len, prompts)),
            max_tool_calling_iterations=budget,
            loss_type="dr_grpo",
            scale_rewards="none",
            learning_rate=1e-4,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            shuffle_dataset=False,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1000,
        )
        trainer = Timed(
            model=AutoModelForCausalLM.from_pretrained(student, dtype=torch.float32),
            args=args,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            environment_factory=Alternating,
            callbacks=[AfterWarmUp()],
        )
        trainer.train()
    return clock.line(rewards=rewards, **sampled)


def _env(make: Any, task: Any, sandbox: Clock) -> Any:
    return make(task, sandbox=sandbox, slack=SLACK)


def _accelerator() -> Any:
    from accelerate import Accelerator

    return Accelerator(cpu=True)


def compare(
    student: str, *, groups: int, size: int, steps: int, room: int = 1024
) -> dict[str, Any]:
    """Run both sides one after another, each in its own process; a side that cannot run says
    why."""
    shape = {"groups": groups, "size": size, "steps": steps, "room": room}
    results: dict[str, Any] = {"shape": shape}
    for side in SIDES:
        command = [sys.executable, str(Path(__file__)), side, student, json.dumps(shape)]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        last_line = (process.stdout.strip().splitlines() or [""])[-1]
        if process.returncode == 0 and last_line.startswith("{"):
            results[side] = json.loads(last_line)
        else:
            missing = "No module named" in process.stderr
            results[side] = {
                "problem": (
                    "not installed"
                    if missing
                    else (process.stderr.strip().splitlines() or ["no output"])[-1]
                )
            }
    return results


def table(results: Mapping[str, Any]) -> str:
    """The comparison as text, with the ratios ours / TRL and their goals."""
    shape = results["shape"]
    lines = [
        f"beside TRL: {shape['steps']} steps of {shape['groups']} groups of {shape['size']}, room"
        f" for {shape['room']} tokens"
    ]
    for side in SIDES:
        row = results[side]
        if "problem" in row:
            lines.append(f"  {side:<5} {row['problem']}")
            continue
        rates = (
            f"episodes/s {row['episodes_per_cpu_s']:7.2f}   trained/s"
            f" {row['trained_per_cpu_s']:7.1f}"
        )
        episode_stats = (
            f"messages {row['messages']:.2f}, tokens {row['tokens']:.1f} an episode, success"
            f" {row['success']:.2f}"
        )
        lines.append(
            f"  {side:<5} {rates}   play {row['play_s']:.2f} s, train {row['train_s']:.2f} s  "
            f" {episode_stats}"
        )
    for name, goal in (
        GOALS["rollouts"].items() if all("problem" not in results[side] for side in SIDES) else ()
    ):
        ratio = results["ours"][name] / results["trl"][name]
        lines.append(
            f"  {name}: {ratio:.2f} x TRL, goal {goal:g}: {'met' if ratio >= goal else 'missed'}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        chosen = {"ours": ours, "trl": trl}[sys.argv[1]](sys.argv[2], **json.loads(sys.argv[3]))
        print(json.dumps(chosen))
