"""Describe a model by its files, before anything is loaded: no torch, no weights read.

source = model_kind("SmolLM2.Q4_1.gguf")      # "tiny", "gguf", "adapter", "folder" or "hub"
weights = read_weights(Path("folder"))     # names, shapes and types of safetensors, their bytes
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from composer_replication.core.config.student_settings import TINY
from composer_replication.core.errors import ConfigError

Kind = Literal["tiny", "gguf", "adapter", "folder", "hub"]
ADAPTER_CONFIG = "adapter_config.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_NO_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def model_kind(model: str) -> Kind:
    """The kind of model that `student.model` names; a path that is no folder is taken for a hub
    name.

    >>> model_kind("tiny"), model_kind("a/b.gguf"), model_kind("Qwen/Qwen3-0.6B")
    ('tiny', 'gguf', 'hub')
    """
    if model == TINY:
        return "tiny"
    if model.lower().endswith(".gguf"):
        return "gguf"
    if not Path(model).is_dir():
        return "hub"
    is_adapter = (Path(model) / ADAPTER_CONFIG).is_file()
    has_model = (Path(model) / "config.json").is_file()
    return "adapter" if is_adapter and not has_model else "folder"


def is_missing_path(model: str) -> bool:
    """Whether a name can only be a path, and nothing is there; a hub name is "owner/name".

    >>> is_missing_path("models/none/here"), is_missing_path("Qwen/Qwen3-0.6B")
    (True, False)
    """
    looks_like_path = model.startswith(("/", ".", "~")) or "\\" in model or model.count("/") > 1
    return looks_like_path and model_kind(model) == "hub"


def check_path(model: str, *, where: str, is_base: bool = False) -> None:
    """Raise ConfigError for a path at which there is no model; `is_base` = that of an adapter."""
    if is_missing_path(model):
        raise ConfigError(
            f"no such folder: {model}{', the base of the adapter' if is_base else ''}",
            where=where,
            fix=(
                "give the base model in student.base: a folder, a GGUF file or a hub name"
                if is_base
                else "give a folder, a GGUF file or a hub name in student.model"
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The tensors of a folder's safetensors files, by their headers.

    `shapes` are those of the files; `dtypes` counts weights by type; `pickles` are files that hold
    weights in a form that can run code, which is never read.
    """

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, int]
    num_bytes: int
    pickles: tuple[str, ...] = ()

    @property
    def num_weights(self) -> int:
        """The number of parameters in the files; a tied head counts once."""
        return sum(self.dtypes.values())

    @property
    def embedded_tokens(self) -> int | None:
        """The rows of the embedding; None if no tensor has one of its usual names."""
        names = [name for name in self.shapes if name.endswith(_EMBEDDINGS)]
        return self.shapes[names[0]][0] if names else None


def read_weights(folder: Path) -> Weights:
    """The headers of a folder's safetensors files; raises ConfigError for a damaged one, and for
    one that the folder's index names but that is not there."""
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: Counter[str] = Counter()
    files = sorted(folder.glob("*.safetensors"))
    _check_index(folder, present={file.name for file in files})
    for file in files:
        for name, tensor in _header(file).items():
            shapes[name] = tuple(tensor["shape"])
            name_of_type = str(tensor["dtype"])
            dtypes[_DTYPES.get(name_of_type, name_of_type)] += prod(tensor["shape"])
    pickles = {path.name for pattern in PICKLES for path in folder.glob(pattern)}
    return Weights(
        shapes=shapes,
        dtypes=dict(dtypes),
        num_bytes=sum(file.stat().st_size for file in files),
        pickles=tuple(sorted(pickles - set(_NO_WEIGHTS))),
    )


def _check_index(folder: Path, *, present: set[str]) -> None:
    """Raise ConfigError if a file of model.safetensors.index.json is missing."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ConfigError("no weight_map", where=str(index), fix="copy or download it again")
    if missing := sorted(set(map(str, weight_map.values())) - present):
        raise ConfigError(
            f"{len(missing)} of {len(set(weight_map.values()))} files of weights are not there:"
            f" {', '.join(missing[:3])}",
            where=str(folder),
            fix="copy or download the missing files",
        )


def _header(file: Path) -> dict[str, Any]:
    """The table of tensors at the beginning of a safetensors file."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > file.stat().st_size:
                raise ValueError("its header is longer than the file")
            table = json.loads(stream.read(length))
        table = {name: tensor for name, tensor in table.items() if name != "__metadata__"}
        ends = [int(tensor["data_offsets"][1]) for tensor in table.values()]
        needed, present = 8 + length + max(ends, default=0), file.stat().st_size
        if present < needed:
            raise ValueError(f"it is cut off: {present} of {needed} bytes")
        return table
    except (OSError, ValueError, struct.error, AttributeError, LookupError, TypeError) as error:
        raise ConfigError(
            f"no whole safetensors file: {error}", where=str(file), fix="copy or download it again"
        ) from error


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object of a file; raises ConfigError if it holds none."""
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file.name} cannot be read: {error}",
            where=str(file.parent),
            fix="give a whole folder",
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file.name} holds no JSON object", where=str(file.parent))
    return value


def tokens_without_a_row(tokenizer: Any, rows: int) -> int:
    """The number of tokens beyond the model's embedding that a rendering can contain.

    Text is never encoded as a special token (tokens/hf.py), so one that the chat template does not
    write cannot occur: Gemma 3's text models come with an image token that they do not embed.
    """
    template = str(tokenizer.chat_template or "")
    never = {
        i
        for i, token in tokenizer.added_tokens_decoder.items()
        if token.special
        and token.content not in template
        and i not in (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    }
    return sum(i >= rows and i not in never for i in tokenizer.get_vocab().values())
