"""What of TRL's inside this package leans on, checked in one place: a version that it was not
written for is refused in one sentence.

TRL rewrites its loss about every second minor version (1.14 and 1.15 did). Leant on, and stable
since 1.0: `_generate`, `_generate_and_score_completions`, `_compute_loss`, and the first four items
that `_generate` returns. Raise the bounds once tests/backends pass with the newer version.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
from typing import Any

from composer_replication.core.errors import ConfigError, first_line, install_fix, need
from composer_replication.tokens.renderer import Renderer

LOWEST, BELOW = (1, 16), (1, 17)
HOOKS = {
    "_generate": ["prompts"],
    "_generate_and_score_completions": ["inputs"],
    "_compute_loss": ["model", "inputs"],
}
_FIX = f"{install_fix('trl')}; it asks for trl>=1.16,<1.17"
_READERS = {
    **dict.fromkeys(("qwen2.5", "qwen3", "qwen3-thinking", "qwen3-2507"), "qwen3_template"),
    "llama3": "llama3_template",
}
"""TRL's reader of calls, by family: those that write calls as these official templates do."""


def trl_problem() -> str:
    """Why TRL cannot be used here, in one sentence; "" where it can.

    Example: "TRL 1.14.2 is installed, this adapter is written for 1.16"
    """
    if importlib.util.find_spec("trl") is None:
        return "TRL is not installed"
    found = importlib.metadata.version("trl")
    number = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    return (
        ""
        if LOWEST <= number < BELOW
        else f"TRL {found} is installed, this adapter is written for {LOWEST[0]}.{LOWEST[1]}"
    )


def require_trl() -> None:
    """Raise MissingExtraError where TRL is not installed, ConfigError where it is another version
    or its hooks have changed."""
    _quiet()
    if importlib.util.find_spec("trl") is None:
        need("trl", extra="trl")
    if problem := trl_problem():
        raise ConfigError(problem, where="train.backend", fix=_FIX)
    trainer = need("trl", extra="trl").GRPOTrainer
    for name, wanted in HOOKS.items():
        hook = getattr(trainer, name, None)
        if hook is None or list(inspect.signature(hook).parameters)[1:] != wanted:
            raise ConfigError(
                f"GRPOTrainer.{name} of this TRL does not take ({', '.join(wanted)})",
                where="train.backend",
                fix=_FIX,
            )


def bases() -> tuple[Any, Any]:
    """(GRPOTrainer, GRPOConfig); (object, object) where TRL cannot be used: what derives from them
    calls `require_trl` first."""
    if trl_problem():
        return object, object
    _quiet()
    trl = need("trl", extra="trl")
    return trl.GRPOTrainer, trl.GRPOConfig


def _quiet() -> None:
    """TRL's trainers ping the hub when they are made, and warn of every environment; both have a
    switch of their own."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


def name_of(model: Any) -> str:
    """Where a model came from: its folder or its name on a hub; "" for one that was made here.

    Example: name_of("models/mine") -> "models/mine"
    """
    return (
        model
        if isinstance(model, str)
        else str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
    )


def tokenizer_beside(model: Any) -> Any:
    """The tokenizer that lies beside a model, padding at the left as TRL has it; raises ConfigError
    where there is none."""
    name = name_of(model)
    fix = "give the student's tokenizer as processing_class"
    if not name:
        raise ConfigError(
            "no processing_class, and the model does not say where it came from", fix=fix
        )
    try:
        return need("transformers", extra="trl").AutoTokenizer.from_pretrained(
            name, padding_side="left", truncation_side="left"
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no processing_class, and no tokenizer lies at {name!r}: {error}", fix=fix
        ) from error


def teach_to_read_calls(tokenizer: Any, renderer: Renderer) -> None:
    """Make TRL able to read the tool calls of this tokenizer's template.

    TRL knows a template only if it equals its own copy, letter by letter. One of
    tokens/template_families.py that it does not know writes calls as the family's official template
    does, so TRL's reader of that one is set. Raises ConfigError for any other template.
    """
    known = need("trl.chat_template_utils", extra="trl")
    if (
        getattr(tokenizer, "response_template", None) is not None
        or getattr(tokenizer, "response_schema", None) is not None
    ):
        return
    try:
        known.add_response_schema(tokenizer)
    except ValueError as error:
        reader = _READERS.get(renderer.family.name) if renderer.family is not None else None
        if reader is None:
            fix = (
                "use a model of a family known here, or set tokenizer.response_template"
                f" ({first_line(error)})"
            )
            raise ConfigError(
                "TRL cannot read the tool calls of this chat template",
                where="student.template",
                fix=fix,
            ) from error
        if not known.is_chat_template_prefix_preserving(tokenizer):
            tokenizer.chat_template = renderer.template
        tokenizer.response_template = getattr(known, reader)
