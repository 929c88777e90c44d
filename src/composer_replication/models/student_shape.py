"""The widths of the student and the context that it reads, before anything is loaded.

    found = student_shape(config.student)
    found.shape.hidden, found.context

From the config.json of its folder or of the hub's files on this machine, or the metadata of a GGUF
file; of a Qwen3 that was not fetched yet, from the published table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.errors import ConfigError, MissingExtraError
from composer_replication.models.adapter_folder import base_model
from composer_replication.models.context_length import context_of, model_config
from composer_replication.models.gguf_file import read_gguf
from composer_replication.models.model_files import model_kind
from composer_replication.models.model_shape import QWEN3, ModelShape, shape_of

_PUBLISHED = re.compile(r"Qwen/Qwen3-(\d+(?:\.\d+)?B)(-Base|-Instruct-2507|-Thinking-2507)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentShape:
    """The shape, the most tokens that it reads (None = unknown), or why neither is known."""

    shape: ModelShape | None = None
    context: int | None = None
    why_unknown: str = ""


def student_shape(settings: StudentSettings) -> StudentShape:
    """The shape of the model that the settings name; it fetches nothing and raises nothing.

    Example: student_shape(StudentSettings(model="Qwen/Qwen3-4B")).shape is QWEN3["4B"]
    """
    kind = model_kind(settings.model)
    if kind == "tiny":
        return StudentShape(why_unknown="the tiny student needs less than 1 GB")
    try:
        if model_kind(base := base_model(settings)) == "gguf":
            facts = read_gguf(Path(base))
            return StudentShape(shape=shape_of(facts.config, where=base), context=facts.context)
        config = model_config(settings, fetch=False)
        if config is not None:
            where = f"{base_model(settings)}/config.json"
            return StudentShape(shape=shape_of(config, where=where), context=context_of(config))
    except MissingExtraError as error:
        if kind == "gguf":
            return StudentShape(why_unknown=f"to read the GGUF file {error.what}")
    except ConfigError as error:
        of = f"the GGUF file {settings.model}: " if kind == "gguf" else ""
        return StudentShape(why_unknown=of + error.what)
    found = _PUBLISHED.fullmatch(settings.model)
    if found is not None and found[1] in QWEN3:
        return StudentShape(shape=QWEN3[found[1]])
    return StudentShape(why_unknown=f"the config.json of {settings.model} is not on this machine")
