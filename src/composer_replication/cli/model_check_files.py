"""The files of a model for `model check`: its configuration, its weights, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from composer_replication.core.errors import ComposerError, ConfigError, first_line, need
from composer_replication.models.adapter_folder import check_adapter_fits
from composer_replication.models.context_length import context_of
from composer_replication.models.gguf_file import GgufFacts, check_no_kernels, read_gguf
from composer_replication.models.model_files import (
    Weights,
    check_path,
    model_kind,
    read_json,
    read_weights,
)

BYTES = {"float32": 4, "bfloat16": 2}
_COPIES = 4  # weights, gradients and the two averages of AdamW


@dataclass(slots=True, kw_only=True)
class ModelCheck:
    """The result of the check; `refused` holds the errors of later verbs, with the setting that
    helps, and `provisos` those that `build` raises only if the logs hold too much of something."""

    model: str
    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)
    refused: list[dict[str, str]] = field(default_factory=list)
    provisos: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, what: str, fix: str) -> None:
        """Add one reason for which the model would be refused."""
        if {"what": what, "fix": fix} not in self.refused:
            self.refused.append({"what": what, "fix": fix})

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """An error of the block is a reason for a refusal, and the check goes on."""
        try:
            yield
        except ComposerError as error:
            self.refuse(
                f"{error.what} (at {error.where})" if error.where else error.what, error.fix
            )


def check_files(check: ModelCheck, base: str, *, dtype: str) -> None:
    """Add what the files of the model `base` say, and the memory that it takes in `dtype`."""
    shapes: dict[str, tuple[int, ...]] = {}
    is_gguf = model_kind(base) == "gguf"
    with check.collecting():
        shapes = (
            _check_gguf(check, Path(base)).linear_shapes
            if is_gguf
            else _check_folder(check, _folder_of(base, is_base=check.kind == "adapter")).shapes
        )
    if check.kind == "adapter":
        with check.collecting():
            check_adapter_fits(Path(check.model), shapes, all_known=not is_gguf)
    _add_memory(check, dtype)


def _folder_of(name: str, *, is_base: bool) -> Path:
    """The folder of a model: itself, or where the hub's files are kept on this machine."""
    if Path(name).is_dir():
        return Path(name)
    check_path(name, where="student.base" if is_base else "student.model", is_base=is_base)
    transformers = need("transformers", extra="train")
    try:
        found = transformers.utils.cached_file(name, "config.json")
        return Path(str(found)).parent
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no folder, and no model of that name can be had: {first_line(error)}",
            where=name,
            fix=(
                "give a folder, a GGUF file or a hub name that can be reached"
                f"{', in student.base' if is_base else ''}"
            ),
        ) from error


def _check_folder(check: ModelCheck, folder: Path) -> Weights:
    if (folder / "config.json").is_file():
        _check_config(check, read_json(folder / "config.json"))
    else:
        check.refuse(
            "no config.json", "give the whole folder of a model, as save_pretrained writes it"
        )
    weights = read_weights(folder)
    if weights.shapes:
        check.facts |= {
            "num_weights": weights.num_weights,
            "dtypes": weights.dtypes,
            "disk_bytes": weights.num_bytes,
        }
        if weights.embedded_tokens is not None:
            check.facts["embedded_tokens"] = weights.embedded_tokens
    elif weights.pickles:
        check.refuse(
            f"its weights are pickles ({', '.join(weights.pickles)}), which can run any code",
            "take a copy of the model with model.safetensors",
        )
    elif check.kind == "hub":
        check.notes.append("its weights are not on this machine yet, so they were not looked at")
    else:
        check.refuse(
            "no weights: no *.safetensors in the folder", "give the whole folder of a model"
        )
    return weights


def _check_config(check: ModelCheck, config: dict[str, Any]) -> None:
    known_types: Any = need("transformers.models.auto.configuration_auto", extra="train")
    with_head: Any = need("transformers.models.auto.modeling_auto", extra="train")
    kind = str(config.get("model_type", ""))
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    check.facts |= {
        "model_type": kind,
        "context": context_of(config),
        "embedded_tokens": (text or config).get("vocab_size"),
    }
    own_code = "; it brings code of its own, which is never run" if config.get("auto_map") else ""
    if kind not in known_types.CONFIG_MAPPING_NAMES:
        check.refuse(
            f"transformers does not know the model type {kind!r}{own_code}",
            "update transformers, or take a model that it knows",
        )
    elif kind not in with_head.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        check.refuse(f"{kind!r} is no causal language model", "take a model that writes text")
    elif own_code:
        check.notes.append("it brings code of its own, which is never run")
    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method", "") if isinstance(quantised, dict) else ""
        check.notes.append(f"its weights are quantised ({method}): not tried here")


def _check_gguf(check: ModelCheck, path: Path) -> GgufFacts:
    found = read_gguf(path)
    check.facts |= {
        "model_type": found.architecture,
        "context": found.context,
        "embedded_tokens": found.embedded_tokens,
        "num_weights": found.num_weights,
        "quantisation": found.quantisation,
        "disk_bytes": found.num_bytes,
    }
    with check.collecting():
        check_no_kernels(path)
    with check.collecting():
        need("gguf", extra="gguf")
    return found


def _add_memory(check: ModelCheck, dtype: str) -> None:
    if (num_weights := check.facts.get("num_weights")) is not None:
        held = num_weights * BYTES[dtype]
        check.facts["memory_bytes"] = {
            "dtype": dtype,
            "weights": held,
            "training_all": _COPIES * held,
        }
