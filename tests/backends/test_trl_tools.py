"""The workshop as tools of a class: its words, its reward, and its schema in the template. Needs no
TRL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import get_json_schema

from composer_replication.core.errors import ConfigError, SessionError
from composer_replication.core.trace import HARNESS, HUMAN, Text, Turn
from composer_replication.tokens.renderer import Renderer
from composer_replication.workshop.as_tools import (
    OVER,
    TOOLS,
    WorkshopTools,
    plain_tools,
    task_row,
)
from composer_replication.workshop.lessons import LessonTests
from composer_replication.workshop.tasks import make_task
from composer_replication.workshop.vocabulary import (
    LEGACY_READER,
    toolset_is_held_out,
)
from composer_replication.workshop.workshop_env import SYSTEM_TEXT

pytestmark = pytest.mark.train
SEED = next(f"t:{i}" for i in range(100) if make_task(f"t:{i}", split="train").kind == "change")


def begun(**more: Any) -> WorkshopTools:
    env = WorkshopTools(sandbox=LessonTests(), **more)
    env.reset(**task_row(SEED))
    return env


def solve(env: WorkshopTools, *, test: bool = True) -> float:
    (target,) = make_task(SEED, split="train").targets
    assert target.before in env.view_file(path=target.path)
    assert env.str_replace(path=target.path, old=target.before, new=target.after) == "ok"
    if test:
        assert env.run_tests() == "All tests passed."
    return env.get_reward()


def test_the_reward_is_the_workshops() -> None:
    assert solve(begun()) == 1.0
    assert solve(begun(), test=False) == 0.0
    assert begun().get_reward() == 0.0


def test_a_reused_environment_begins_anew() -> None:
    env = begun()
    assert solve(env) == 1.0
    env.reset(**task_row(SEED))
    assert env.get_reward() == 0.0
    with pytest.raises(SessionError, match="not begun"):
        WorkshopTools(sandbox=LessonTests()).get_reward()


def test_errors_are_worded_as_the_workshop_words_them() -> None:
    env = begun(slack=9)
    assert env.view_file(file="a.py").startswith(
        "<tool_use_error>InputValidationError: view_file failed due to"
    )
    assert "File does not exist." in env.view_file(path="nowhere.py")
    assert "has not been read yet" in env.str_replace(
        path=make_task(SEED, split="train").targets[0].path, old="a", new="b"
    )


def test_the_budget_holds_and_slack_adds_to_it() -> None:
    for slack in (0, 2):
        env = begun(slack=slack)
        answers = [env.list_files() for _ in range(8)]
        assert answers.index(OVER) == make_task(SEED, split="train").budget + slack
        assert env.get_reward() == 0.0


def test_the_tools_are_of_the_training_split_and_not_of_habit() -> None:
    assert not toolset_is_held_out(TOOLS) and TOOLS.reader != LEGACY_READER
    methods = {
        name
        for name, value in vars(WorkshopTools).items()
        if callable(value) and not name.startswith("_")
    } - {"reset", "get_reward"}
    assert methods == set(TOOLS.arguments) == set(WorkshopTools.tool_names)
    for name, arguments in TOOLS.arguments.items():
        schema = get_json_schema(getattr(WorkshopTools(sandbox=LessonTests()), name))["function"]
        assert (schema["name"], tuple(schema["parameters"].get("required", ()))) == (
            name,
            arguments,
        )


def test_in_the_template_they_read_as_the_student_was_taught_them(repository_root: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(
        str(repository_root / "examples" / "workshop_student")
    )
    renderer = Renderer.for_tokenizer(tokenizer)
    row, env = task_row(SEED), WorkshopTools(sandbox=LessonTests())
    turns = [
        Turn(role="system", author=HARNESS, blocks=(Text(SYSTEM_TEXT),)),
        Turn(role="user", author=HUMAN, blocks=(Text(row["prompt"][1]["content"]),)),
    ]
    taught, _ = renderer.reply(
        turns, Turn(role="assistant", author=None, blocks=(Text("x"),)), tools=TOOLS.specs()
    )
    methods = [getattr(env, name) for name in TOOLS.order]
    options = {
        "tools": methods,
        "add_generation_prompt": True,
        "tokenize": True,
        "return_dict": False,
    }
    derived = tokenizer.apply_chat_template(row["prompt"], **options)
    plain = tokenizer.apply_chat_template(
        row["prompt"], chat_template=plain_tools(tokenizer.chat_template), **options
    )
    assert tuple(plain) == taught != tuple(derived)
    with pytest.raises(ConfigError, match="as the workshop's student knows them"):
        plain_tools("{{ messages }}")
