"""`train` goes on from an adapter: from `export --adapter` and from a run's checkpoint; resumed,
evaluated, exported again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from composer_replication.core.rundir import open_run
from composer_replication.evaluation.players import load_player, player_of, start_of
from tests.cli.test_template_refused import LOSES_CALLS, save_student
from tests.cli.workspace import fill, recompose, session
from tests.tokens.students import tokenizer_for

pytestmark = pytest.mark.train
TEMPLATE = ("--student.template", "chatml-tools")


def run(cwd: Path, *argv: str) -> Any:
    result = recompose(*argv, *TEMPLATE, "--json", cwd=cwd)
    assert result.code == 0, result.out + result.err
    return result.value


def test_a_run_goes_on_from_an_exported_adapter_and_from_a_checkpoint(tmp_path: Path) -> None:
    fill(tmp_path / "recompose", [session(), session("sess-bbbb", text="Now the other one.")])
    base = save_student(tmp_path / "base", tokenizer_for("chatml-tools"), template=LOSES_CALLS)
    steps = ("--train.steps", "2", "--train.learning_rate", "0.1")
    rank = ("--student.lora.rank", "2", "--student.lora.alpha", "6")
    run(tmp_path, "build", "--student.model", str(base))
    run(tmp_path, "train", "--name", "one", *steps, *rank, "--student.model", str(base))
    run(tmp_path, "export", "one", "--to", "adapter", "--adapter")
    checkpoint = tmp_path / "recompose/runs/one/checkpoints/step_000002"
    for name, start in (("two", tmp_path / "adapter"), ("three", checkpoint)):
        model = ("--student.model", str(start))
        run(tmp_path, "build", *model)
        run(
            tmp_path,
            "train",
            "--name",
            name,
            *model,
            "--train.steps",
            "1",
            "--train.learning_rate",
            "0.1",
        )
        ran = open_run(tmp_path / "recompose/runs" / name).resolved()
        assert ran["student"]["lora"] == {"rank": 2, "alpha": 6}
        run(tmp_path, "train", "--resume", name, *model, *steps, "--accept-changes")
        after = player_of(open_run(tmp_path / "recompose/runs" / name), name="after")
        began, _ = load_player(start_of(after))
        first = load_file(checkpoint / "adapter_model.safetensors")
        weights = {
            key.replace(".default", ""): p.detach() for key, p in began.model.named_parameters()
        }
        assert all(torch.equal(weights[key], value) for key, value in first.items())
    model = ("--student.model", str(checkpoint), "--train.backend", "trl")
    refused = recompose("train", *model, *TEMPLATE, cwd=tmp_path)
    assert refused.code == 1 and "TRL takes the base without its adapter" in refused.err
    run(tmp_path, "export", "two", "--to", "again", "--adapter")
    run(tmp_path, "export", "two", "--to", "merged")
    with_adapter = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), str(tmp_path / "again")
    )
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        left, right = (m.eval()(input_ids=ids).logits for m in (with_adapter, merged))
        plain = AutoModelForCausalLM.from_pretrained(base).eval()(input_ids=ids).logits
    assert torch.allclose(left, right, atol=1e-3)
    assert (left - plain).abs().max() > 0.01
    served = json.loads((tmp_path / "again" / "recompose.json").read_text("utf-8"))
    assert any(str(base) in command for _, command in served["commands"])
