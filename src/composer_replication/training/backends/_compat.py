"""The internals of TRL that this package relies on, checked in one place: a version that it was not
written for is refused with one clear error.

TRL rewrites its loss about every second minor version (1.14 and 1.15 did). The backend relies on
`_generate`, `_generate_and_score_completions`, `_compute_loss`, and the first four items that
`_generate` returns, all stable since 1.0. Raise the bounds in registry.py once tests/backends pass
with a newer version.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

from composer_replication.core.errors import ConfigError, first_line, need
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.backends.registry import TRL

HOOKS = {
    "_generate": ["prompts"],
    "_generate_and_score_completions": ["inputs"],
    "_compute_loss": ["model", "inputs"],
}
_PARSERS = {
    **dict.fromkeys(
        ("qwen2.5", "qwen3", "qwen3-thinking", "qwen3-2507", "chatml-tools"), "qwen3_template"
    ),
    "llama3": "llama3_template",
}
"""TRL's call parser by family: that of the official template that writes calls in the same way."""


def require_trl() -> None:
    """Raise MissingExtraError if TRL is not installed, ConfigError if it is another version or its
    hooks have changed."""
    _silence_trl()
    TRL.require()
    trainer = need("trl", extra="trl").GRPOTrainer
    for name, parameters in HOOKS.items():
        hook = getattr(trainer, name, None)
        if hook is None or list(inspect.signature(hook).parameters)[1:] != parameters:
            raise ConfigError(
                f"GRPOTrainer.{name} of this TRL does not take ({', '.join(parameters)})",
                where="train.backend",
                fix=TRL.command(),
            )


def bases() -> tuple[Any, Any]:
    """(GRPOTrainer, GRPOConfig); (object, object) if TRL cannot be used: the derived classes call
    `require_trl` first."""
    if TRL.problem():
        return object, object
    _silence_trl()
    trl = need("trl", extra="trl")
    return trl.GRPOTrainer, trl.GRPOConfig


def _silence_trl() -> None:
    """Turn off the ping to the hub that TRL's trainers send, and their warnings about every
    environment."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


def name_of(model: Any) -> str:
    """The folder or hub name that a model was loaded from; "" for one that was made here.

    >>> name_of("models/mine")
    'models/mine'
    """
    if isinstance(model, str):
        return model
    return str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")


def load_tokenizer_of(model: Any) -> Any:
    """The tokenizer in a model's folder, with padding on the left as TRL wants it; raises
    ConfigError if there is none."""
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


def set_call_parser(tokenizer: Any, renderer: Renderer) -> None:
    """Make TRL able to parse the tool calls of this tokenizer's template.

    TRL knows a template only if it equals its own copy, letter by letter. A template of
    tokens/template_families.py writes calls as its family's official template does, so TRL's parser
    of that one is set. Raises ConfigError for any other template.
    """
    templates = need("trl.chat_template_utils", extra="trl")
    if (
        getattr(tokenizer, "response_template", None) is not None
        or getattr(tokenizer, "response_schema", None) is not None
    ):
        return
    try:
        templates.add_response_schema(tokenizer)
    except ValueError as error:
        parser = _PARSERS.get(renderer.family.name) if renderer.family is not None else None
        if parser is None:
            fix = (
                "use a model of a family known here, or set tokenizer.response_template"
                f" ({first_line(error)})"
            )
            raise ConfigError(
                "TRL cannot read the tool calls of this chat template",
                where="student.template",
                fix=fix,
            ) from error
        if not templates.is_chat_template_prefix_preserving(tokenizer):
            tokenizer.chat_template = renderer.template
        tokenizer.response_template = getattr(templates, parser)
