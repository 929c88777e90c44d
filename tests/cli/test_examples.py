"""The examples' own files, through the verbs: only the model's path is another, random weights of
the same family, and fewer steps."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from composer_replication.core.codec import record_to_json, write_sessions
from composer_replication.core.jsonl import write_lines
from tests.cli.workspace import recompose
from tests.rollouts.logged import hint, session, site
from tests.tokens.students import chatml_tokenizer, official

pytestmark = pytest.mark.train
EXAMPLES = Path(__file__).parents[2] / "examples"
CASES = {
    "small_instruct": (("recompose.toml",), "qwen3"),
    "small_instruct_lora": (("recompose.toml", "lora.toml"), "qwen3"),
    "lora_4b_24gb": (("recompose.toml",), "qwen3_instruct_2507"),
}


def random_student(folder: Path, family: str) -> Path:
    """A two-layer Qwen3, with the family's official template."""
    tokenizer: Any = chatml_tokenizer()
    tokenizer.chat_template = official(family)
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer), intermediate_size=64, tie_word_embeddings=True, **shape
        )
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def files_of(case: str) -> list[Path]:
    return [EXAMPLES / case.removesuffix("_lora") / name for name in CASES[case][0]]


def logs_in(work: Path) -> None:
    """Sessions with a mistake and a hint each, of eight repositories."""
    names = {f"s{n}": f"acme/app{n}" for n in range(8)}
    write_sessions(
        work / "sessions.jsonl", [session(name=n, repository=r) for n, r in names.items()]
    )
    write_lines(work / "sites.jsonl", [record_to_json(site(name=n)) for n in names])
    write_lines(work / "hints.jsonl", [record_to_json(hint(name=n)) for n in names])


@pytest.mark.parametrize("case", CASES)
def test_an_examples_own_file_builds_trains_evaluates_and_exports(
    case: str, tmp_path: Path
) -> None:
    work = tmp_path / "recompose"
    logs_in(work)
    model = random_student(tmp_path / "student", CASES[case][1])
    shared = [word for path in files_of(case) for word in ("-c", str(path))]
    shared += ["-o", str(work), "--student.model", str(model)]
    built = recompose("build", *shared, "--json", cwd=tmp_path)
    assert built.code == 0 and built.value["views"] > 0, built.out
    result = recompose(
        "train", "--name", "x", *shared, "--train.steps", "2", "--json", cwd=tmp_path
    )
    assert result.code == 0, result.out
    assert result.value["statuses"] == {
        "policy": "off",
        "lm_ce": "active",
        "hint": "active",
        "preference": "off",
    }
    judged = recompose(
        "evaluate",
        "x",
        "--logs",
        *shared,
        "--evaluate.log_max_new_tokens",
        "4",
        "--json",
        cwd=tmp_path,
    )
    assert (
        judged.code == 0
        and judged.value["verdict"]["claim"] == "nothing"
        and judged.value["plan"]["sites"] > 0
    ), judged.out
    exported = recompose(
        "export", "x", *shared, "--to", str(tmp_path / "out"), "--json", cwd=tmp_path
    )
    assert exported.code == 0 and exported.value["form"] == (
        "merged" if "lora" in case else "weights"
    ), exported.out
    back: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert back.config.model_type == "qwen3" and (tmp_path / "out" / "README.md").exists()


@pytest.mark.parametrize("folder", ["small_instruct", "lora_4b_24gb"])
def test_an_examples_forks_and_its_live_rollouts_are_trained_on(
    folder: str, tmp_path: Path
) -> None:
    """Random weights make no calls, so no failure remains to train on; the forks must be written
    and judged."""
    work = tmp_path / "recompose"
    logs_in(work)
    model = random_student(tmp_path / "student", CASES[folder][1])
    shared = [
        "-o",
        str(work),
        "--student.model",
        str(model),
        "--train.steps",
        "1",
        "--rollouts.max_new_tokens",
        "6",
        "--json",
    ]
    fork, live = (
        [
            *(
                word
                for name in ("recompose.toml", more)
                for word in ("-c", str(EXAMPLES / folder / name))
            ),
            *shared,
        ]
        for more in ("fork.toml", "live.toml")
    )
    # nothing is built: the student plays
    result = recompose("train", "--name", "live", *live, cwd=tmp_path)
    assert result.code == 0, result.out
    assert (
        result.value["metrics"]["rollouts/episodes"] == 32
        and result.value["metrics"]["rollouts/lost"] == 0
    )
    assert {name for name, status in result.value["statuses"].items() if status != "off"} == {
        "policy",
        "hint",
    }
    assert recompose("build", *fork, cwd=tmp_path).code == 0
    result = recompose("train", "--name", "fork", *fork, cwd=tmp_path)
    assert result.code == 0, result.out
    metrics = result.value["metrics"]
    assert (
        metrics["fork/samples"] == metrics["fork/undecided"] == 6
        and metrics["fork/sampled_tokens"] == 36
    )
    assert {name for name, status in result.value["statuses"].items() if status != "off"} == {
        "hint"
    }


@pytest.mark.parametrize("case", CASES)
def test_an_example_says_that_it_was_not_run_and_changes_nothing_it_does_not_name(
    case: str,
) -> None:
    values = [tomllib.loads(path.read_text("utf-8")) for path in files_of(case)]
    for more in (files_of(case)[0].parent / name for name in ("fork.toml", "live.toml")):
        assert "Not run here: no GPU, no model hub" in more.read_text("utf-8")
    assert (
        values[0]["student"]["model"].startswith("Qwen/Qwen3-")
        and values[0]["held_out"]["fraction"] > 0
    )
    for text in (
        files_of(case)[0].read_text("utf-8"),
        (files_of(case)[0].parent / "README.md").read_text("utf-8"),
    ):
        assert "Not run here: no GPU, no model hub" in " ".join(text.replace("#", " ").split())


def test_the_memory_table_is_what_the_script_prints_and_its_sums_add_up() -> None:
    spec = importlib.util.spec_from_file_location("memory", EXAMPLES / "memory.py")
    assert spec is not None and spec.loader is not None
    memory = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(memory)
    section = (
        (EXAMPLES / "README.md")
        .read_text("utf-8")
        .split(memory.BEGIN)[1]
        .split(memory.END)[0]
        .strip()
    )
    assert section == memory.table(), "stale: run python examples/memory.py"
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()[2:]
    ]
    sizes = ["596 M", "606 M", "596 M", "596 M", "4,055 M", "4,055 M", "4,055 M"]
    # 596 M and 4,022 M are the published sizes; the rest is LoRA
    assert [row[1] for row in rows] == sizes
    for row in rows:
        *parts, activations, held, total = map(float, row[4:-1])
        assert (
            sum(parts) + max(activations, held) == pytest.approx(total, abs=0.21)
            and total < 0.8 * 24
        )
        assert (held > 0) == ("fork" in row[0] or "live" in row[0]) and (parts[1] > 0) == (
            row[0].startswith("small") and "live" in row[0]
        )
