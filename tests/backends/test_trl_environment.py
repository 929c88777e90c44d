"""The workshop as an `environment_factory` of TRL's own GRPOTrainer, without our trainer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from composer_replication import WorkshopTools
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.backends._compat import set_call_parser
from composer_replication.workshop.as_tools import plain_tools, task_rows
from composer_replication.workshop.lessons import LessonTests
from tests.backends.frozen import ROOT

pytestmark = pytest.mark.usefixtures("needs_trl")
STUDENT = str(ROOT / "examples" / "workshop_student")


class Watched(WorkshopTools):
    """Keeps what each episode of any instance did."""

    episodes: list[tuple[str, float]] = []  # noqa: RUF012 - TRL makes the instances
    calls: list[str] = []  # noqa: RUF012

    def _call(self, name: str, arguments: Any) -> str:
        self.calls.append(name)
        return super()._call(name, arguments)

    def get_reward(self) -> float:
        reward = super().get_reward()
        self.episodes.append((self._episode().task_id, reward))
        return reward


def test_trls_own_trainer_plays_the_workshop(tmp_path: Path) -> None:
    """Every rollout of the step is an episode with a reward of the environment's, its tools are
    called, and TRL logs the rewards' mean under the class's name."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    tok = load_tokenizer(STUDENT)
    tok.padding_side = "left"
    renderer = Renderer.for_tokenizer(tok)
    tok.chat_template = plain_tools(tok.chat_template)
    set_call_parser(tok, renderer)
    Watched.episodes.clear()
    Watched.calls.clear()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(STUDENT),
        args=GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=1,
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=200,
            max_tool_calling_iterations=6,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
        ),
        processing_class=tok,
        train_dataset=Dataset.from_list(task_rows(7, 2)),
        environment_factory=partial(Watched, sandbox=LessonTests(), slack=1),
        reward_funcs=[],
    )
    trainer.train()
    tasks = [task for task, _ in Watched.episodes]
    assert len(tasks) == 4
    assert len(set(tasks)) == 2, "two rollouts of each of two tasks"
    assert set(Watched.calls) <= set(WorkshopTools.tool_names)
    assert Watched.calls, "no tool was called"
    record = trainer.state.log_history[0]
    mean = sum(reward for _, reward in Watched.episodes) / 4
    assert record["reward"] == pytest.approx(mean)
    assert record["tools/call_frequency"] > 0
