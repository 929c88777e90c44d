"""The most tokens that a model reads, by its configuration, and the error for a longer window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer_replication.core.config.student_settings import TINY, StudentSettings
from composer_replication.core.errors import ConfigError, need
from composer_replication.models.adapter_folder import base_model
from composer_replication.models.gguf_file import read_gguf
from composer_replication.models.model_files import model_kind, read_json


def context_of(config: dict[str, Any]) -> int | None:
    """The context length that a config.json names, that of its text model if it has one.

    >>> context_of({"max_position_embeddings": 8192}), context_of({})
    (8192, None)
    """
    text = config.get("text_config")
    fields = text if isinstance(text, dict) and text else config
    context = fields.get("max_position_embeddings")
    return context if isinstance(context, int) and context > 0 else None


def model_config(settings: StudentSettings, *, fetch: bool = True) -> dict[str, Any] | None:
    """The config.json of the student's model, or of its adapter's base; None for a GGUF file and
    for a hub name of which nothing is on this machine, nor can be fetched (`fetch`).

    Example: model_config(StudentSettings(model="folder"))["hidden_size"]
    """
    base = base_model(settings)
    kind = model_kind(base)
    if kind in ("tiny", "gguf"):
        return None
    folder = Path(base)
    if kind == "hub":
        transformers = need("transformers", extra="train")
        try:
            folder = Path(
                str(transformers.utils.cached_file(base, "config.json", local_files_only=not fetch))
            ).parent
        except (OSError, ValueError):
            return None  # loading the tokenizer says why
    file = folder / "config.json"
    return read_json(file) if file.is_file() else None


def context_length(settings: StudentSettings) -> int | None:
    """The context length of the student's model in tokens; None if its files do not say."""
    if settings.model == TINY:
        return None
    base = base_model(settings)
    if model_kind(base) == "gguf":
        return read_gguf(Path(base)).context
    config = model_config(settings)
    return None if config is None else context_of(config)


def check_context(
    settings: StudentSettings,
    tokens: int,
    *,
    what: str,
    where: str = "build.max_tokens",
    fix: str = "",
) -> None:
    """Raise ConfigError if `what`, of so many tokens, is longer than the model's context; `where`
    is the setting that bounds it."""
    context = context_length(settings)
    if context is not None and tokens > context:
        raise ConfigError(
            f"{what} is {tokens}, but {settings.model} reads at most {context} tokens"
            " (max_position_embeddings): beyond that its positions are unknown to it",
            where=where,
            fix=fix or f"set {where} = {context} or less, or take a model that reads more",
        )
