"""A processor without bfloat16 is named before the first step."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402

from composer_replication.cli.console import Screen  # noqa: E402
from composer_replication.cli.doctor import gpu  # noqa: E402
from composer_replication.cli.train_text import show_plan  # noqa: E402
from composer_replication.core.config.root import Config  # noqa: E402
from composer_replication.models.processor import emulates_bfloat16  # noqa: E402

pytestmark = pytest.mark.train
OLD = {"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False}


@pytest.mark.parametrize(
    ("accelerator", "capabilities", "emulated"),
    [
        (False, OLD, True),
        (True, OLD, False),
        (False, {**OLD, "avx512_bf16": True}, False),
        (False, {**OLD, "amx_bf16": True}, False),
        (False, {"architecture": "aarch64"}, False),
    ],
)
def test_only_an_x86_processor_without_the_instruction_emulates_it(
    monkeypatch: pytest.MonkeyPatch,
    accelerator: bool,
    capabilities: dict[str, Any],
    emulated: bool,
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerator)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert emulates_bfloat16() is emulated


@pytest.mark.parametrize(("dtype", "is_said"), [("bfloat16", True), ("float32", False)])
def test_the_plan_and_doctor_say_which_precision_is_faster(
    monkeypatch: pytest.MonkeyPatch, dtype: str, is_said: bool
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: OLD)
    config = Config.model_validate(
        {"student": {"dtype": dtype}, "train": {"lm_ce": {"weight": 1}, "hint": {"weight": 0}}}
    )
    screen = Screen(console=Console(file=io.StringIO(), width=200))
    job: Any = SimpleNamespace(config=config, screen=screen)
    data: Any = SimpleNamespace(
        examples=(SimpleNamespace(actions=(), lm_spans=((0, 4),), hints=(), anchored=()),), pairs=()
    )
    show_plan(job, data)
    text = cast("io.StringIO", screen.console.file).getvalue()
    assert ('student.dtype = "float32"' in text) is is_said
    finding = gpu(job)
    assert finding.ok is not is_said and (finding.fix == 'student.dtype = "float32"') is is_said
