"""A LoRA adapter's folder as the student: its base model, and the adapter to go on from.

    settings = with_adapter(StudentSettings(model="exports/a"))   # rank and alpha are the adapter's
    base_of(settings)                                             # "Qwen/Qwen3-0.6B"

Only the known fields of adapter_config.json are used: others may load code or change the base. The
adapter's weights are read from safetensors, never from adapter_model.bin, a pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composer_replication.core.config.student_settings import LoraSettings, StudentSettings
from composer_replication.core.errors import ConfigError
from composer_replication.models.model_files import (
    ADAPTER_CONFIG,
    model_kind,
    read_json,
    read_weights,
)

ADAPTER = "adapter_model.safetensors"
USED = (
    "target_modules", "exclude_modules", "lora_dropout", "fan_in_fan_out", "use_rslora",
    "rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern",
)  # fmt: skip
"""Fields of adapter_config.json that say where W + s B A stands, besides r and lora_alpha."""
_NOT_PLAIN = (
    "use_dora", "use_qalora", "use_bdlora", "modules_to_save", "lora_bias", "target_parameters",
    "trainable_token_indices", "layer_replication", "megatron_config", "arrow_config",
    "alora_invocation_tokens",
)  # fmt: skip
"""Fields that make an adapter something other than W + s B A on linear layers."""


def read_adapter(folder: Path) -> dict[str, Any]:
    """The checked adapter_config.json of a folder; raises ConfigError for what is no plain LoRA."""
    config = read_json(folder / ADAPTER_CONFIG)
    kind = str(config.get("peft_type", ""))
    others = [name for name in _NOT_PLAIN if config.get(name)]
    if config.get("bias") not in (None, "none"):
        others.append("bias")
    if kind != "LORA" or others:
        what = f"peft_type {kind!r}" if kind != "LORA" else f"{others[0]} = {config[others[0]]!r}"
        raise ConfigError(
            f"an adapter that is not W + s B A: {what}",
            where=str(folder / ADAPTER_CONFIG),
            fix="merge it into its base with peft, and give the merged folder",
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, (int, float)):
        raise ConfigError("no rank r and lora_alpha", where=str(folder / ADAPTER_CONFIG))
    if int(alpha) != alpha or alpha < 1:
        raise ConfigError(
            f"lora_alpha = {alpha} is no whole number above 0", where=str(folder / ADAPTER_CONFIG)
        )
    if not (folder / ADAPTER).is_file():
        is_pickled = (folder / "adapter_model.bin").exists()
        pickled = "; adapter_model.bin is a pickle, which is never read" if is_pickled else ""
        raise ConfigError(
            f"no {ADAPTER}{pickled}",
            where=str(folder),
            fix="save the adapter with save_pretrained, which writes safetensors",
        )
    return config


def check_adapter_fits(
    folder: Path, base: Mapping[str, tuple[int, ...]], *, all_known: bool = True
) -> None:
    """Raise ConfigError if the adapter's file is cut off, or if its matrices do not fit the base's
    weights, given as shapes by name.

    A base without shapes, or with other names, is not compared. `all_known` = a weight without a
    shape is not in the base.
    """
    config, shapes = read_adapter(folder), read_weights(folder).shapes
    known = {f"base_model.model.{name}": shape for name, shape in base.items()}
    modules = {name.rpartition(".lora_")[0] for name in shapes if ".lora_" in name}
    if not any(f"{module}.weight" in known for module in modules):
        return
    for module in sorted(modules):
        a, b = (shapes.get(f"{module}.lora_{side}.weight", ()) for side in "AB")
        found = known.get(f"{module}.weight")
        if found is None and not all_known:
            continue
        changed = (*b[:1], *a[1:])
        fits = changed == (found[::-1] if config.get("fan_in_fan_out") and found else found)
        if not fits or a[:1] != b[1:]:
            has = "has no such weight" if found is None else f"has {_sizes(found)}"
            raise ConfigError(
                f"the adapter changes {module.removeprefix('base_model.model.')} by"
                f" {_sizes(b)} times {_sizes(a)}, the base {has}",
                where=str(folder / ADAPTER),
                fix="give the base that it was trained on in student.base",
            )


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "nothing"


def with_adapter(settings: StudentSettings) -> StudentSettings:
    """Settings whose rank and alpha are those of the adapter that student.model names.

    Other models' settings are returned as they are. Raises ConfigError if student.lora says
    otherwise than the adapter.
    """
    if model_kind(settings.model) != "adapter":
        return settings
    config = read_adapter(Path(settings.model))
    adapter_lora = LoraSettings(rank=config["r"], alpha=int(config["lora_alpha"]))
    if settings.lora.rank and settings.lora != adapter_lora:
        raise ConfigError(
            f"student.lora has rank {settings.lora.rank} and alpha {settings.lora.alpha}, the"
            f" adapter rank {adapter_lora.rank} and alpha {adapter_lora.alpha}",
            where=settings.model,
            fix="leave student.lora out: training goes on with the adapter's own",
        )
    return settings.model_copy(update={"lora": adapter_lora})


def base_of(settings: StudentSettings) -> str:
    """The model that an adapter belongs to: student.base, else the one that its folder names.

    Raises ConfigError if neither names a model.
    """
    folder = Path(settings.model)
    named = settings.base or str(read_adapter(folder).get("base_model_name_or_path") or "")
    # a relative path is tried from here, then from the adapter's folder
    beside = folder / named
    if named and not Path(named).exists() and beside.is_dir():
        named = str(beside)
    if not named or model_kind(named) in ("tiny", "adapter"):
        problem = f"is {named!r}" if named else "is not named"
        raise ConfigError(
            f"the base model of the adapter {problem}",
            where=str(folder / ADAPTER_CONFIG),
            fix="give it in student.base: a folder, a GGUF file or a hub name",
        )
    return named


def base_model(settings: StudentSettings) -> str:
    """The model under the adapters: `base_of` for an adapter's folder, else student.model.

    >>> base_model(StudentSettings(model="Qwen/Qwen3-0.6B"))
    'Qwen/Qwen3-0.6B'
    """
    return base_of(settings) if model_kind(settings.model) == "adapter" else settings.model


def lora_fields(folder: Path) -> dict[str, Any]:
    """The fields of a peft.LoraConfig that makes the adapter's shape again."""
    config = read_adapter(folder)
    chosen = {name: config[name] for name in USED if config.get(name) is not None}
    return {"r": config["r"], "lora_alpha": int(config["lora_alpha"]), **chosen}
