"""The findings of `model check`: a model's files, its tokenizer and its template, and refusals.

Weights are not loaded: their headers say how many there are.
"""

from __future__ import annotations

from typing import Any

from composer_replication.cli.model_check_files import ModelCheck, check_files
from composer_replication.cli.model_check_template import check_template
from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.errors import ComposerError
from composer_replication.models.adapter_folder import base_model, with_adapter
from composer_replication.models.hub_files import HUB_FIX, kept_folder, why_unreachable
from composer_replication.models.model_files import (
    is_missing_path,
    model_kind,
    tokens_without_a_row,
)
from composer_replication.tokens.hf import (
    student_tokenizer,
)
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.tiny_tokenizer import train_tiny_tokenizer


def check_model(settings: StudentSettings) -> ModelCheck:
    """Look at the model that the settings name; nothing of it is run, and no weight is read."""
    check = ModelCheck(model=settings.model, kind=model_kind(settings.model))
    if check.kind == "tiny":
        check.notes.append("made here, with a tokenizer that `build` trains on your sessions")
        with check.collecting():  # its control tokens do not depend on the sessions
            Renderer.for_tokenizer(train_tiny_tokenizer(()), family=settings.template)
        return check
    settings, is_there = _from_this_machine(check, settings)
    if not is_there:
        return check
    with check.collecting():
        settings = with_adapter(settings)
        base = base_model(settings)
        if check.kind == "adapter":
            lora = settings.lora
            check.facts |= {"base": base, "rank": lora.rank, "alpha": lora.alpha}
        check_files(check, base, dtype=settings.dtype)
    with check.collecting():
        tokenizer = student_tokenizer(settings)
        _check_tokens(check, tokenizer)
        check_template(check, tokenizer, settings.template)
    return check


def _from_this_machine(
    check: ModelCheck, settings: StudentSettings
) -> tuple[StudentSettings, bool]:
    """If the hub cannot be reached, the settings with the folder of what is kept here of the model;
    False if nothing is."""
    try:
        base = base_model(settings)
    except ComposerError:  # what follows says it, with the rest
        return settings, True
    if model_kind(base) != "hub" or is_missing_path(base) or not (why := why_unreachable(base)):
        return settings, True
    kept = kept_folder(base)
    if kept is None:
        check.refuse(f"{why}, and nothing of {base} is on this machine (at student.model)", HUB_FIX)
        return settings, False
    check.notes.append(f"{why}; what is on this machine of {base} was looked at")
    changed = "base" if check.kind == "adapter" else "model"
    return settings.model_copy(update={changed: str(kept)}), True


def _check_tokens(check: ModelCheck, tokenizer: Any) -> None:
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    check.tokens = {
        "vocabulary": len(tokenizer),
        "special": {name: text for name in names if (text := getattr(tokenizer, name, None))},
    }
    rows = check.facts.get("embedded_tokens")
    if rows is not None and (surplus := tokens_without_a_row(tokenizer, rows)):
        check.refuse(
            f"the tokenizer has {rows + surplus} tokens, the model embeds {rows}",
            "give the folder of the model's own tokenizer",
        )
    elif rows is not None:
        names = {i: text for text, i in tokenizer.get_vocab().items() if i >= rows}
        if names:
            check.notes.append(
                f"{len(names)} of the tokenizer's tokens have no row in the model's embedding"
                f" ({', '.join(names[i] for i in sorted(names)[:4])}): no rendering contains one"
            )
