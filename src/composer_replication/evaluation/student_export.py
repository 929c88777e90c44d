"""Writes the student of a run for serving: all weights, merged weights, or the adapter alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.errors import RenderError
from composer_replication.core.trace import Text, ToolCall, ToolResult, ToolSpec, Turn
from composer_replication.evaluation.players import Player, load_player
from composer_replication.models.adapter_folder import base_model
from composer_replication.models.load_student import load_student
from composer_replication.models.merge import Merged, merge_adapters
from composer_replication.models.model_files import model_kind
from composer_replication.models.pretrained_folder import save_served, weights_sha256
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer

_ASK = (
    "The tests of the parser fail since yesterday: a quoted field that holds a comma is split in"
    " two. Find out why, and say what you would change before you change anything."
)
_LOOK = "I will read the parser first, to see how it splits a line."
_FILE = """def split_line(line: str, *, sep: str = ",") -> list[str]:
    \"\"\"The fields of one line.\"\"\"
    fields = line.rstrip("\\n").split(sep)
    return [field.strip('"') for field in fields]
"""
_ANSWER = (
    "`split_line` splits at every separator and takes the quotes off afterwards, so a comma inside"
    " quotes ends the field. I would read the line with csv.reader, which knows quotes, and keep"
    " the name and the arguments of the function:\n\n    return next(csv.reader([line],"
    " delimiter=sep))\n\nA test for an escaped quote is missing, too; I would add one."
)
_PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
}


def write_student(
    player: Player, *, form: str, folder: Path, texts: Sequence[Sequence[int]] = ()
) -> dict[str, Any]:
    """Write the model, the tokenizer and the template; returns the facts for the model card.

    A merge is measured on `texts`, ids in the student's tokens; none = a short built-in session.
    """
    settings = player.config.student
    if settings.lora.rank:
        student, renderer = load_player(player)
    else:  # the checkpoint holds all weights, so the base model is not needed
        tokenizer = load_tokenizer(str(player.checkpoint))
        checkpoint_settings = StudentSettings(model=str(player.checkpoint), dtype=settings.dtype)
        student = load_student(checkpoint_settings, tokenizer=tokenizer, seed=player.config.seed)
        renderer = Renderer.for_tokenizer(tokenizer, family=settings.template)
    digest, model = weights_sha256(student.model), student.model
    notes: list[str] = []
    facts: dict[str, Any] = {}
    if form == "merged":
        otherwise = keeps_adapter(settings, player.checkpoint)
        merged = merge_adapters(
            student, texts=texts or [_built_in_text(renderer)], otherwise=otherwise
        )
        model, notes = merged.model, _merge_notes(merged, otherwise)
        facts = {"merge": _measured(merged)}
    save_served(
        model, renderer.tokenizer, folder, template=renderer.template, end_ids=renderer.end_ids
    )
    return {
        "weights_sha256": digest,
        "family": renderer.family.name if renderer.family else "own template",
        "notes": notes,
        **facts,
    }


def _measured(merged: Merged) -> dict[str, Any]:
    """The numbers of a merge."""
    names = [field.name for field in fields(merged) if field.name != "model"]
    return {name: getattr(merged, name) for name in names}


def keeps_adapter(settings: StudentSettings, checkpoint: Path) -> str:
    """The remedy instead of a merge: an adapter is exported only if its base is a model's folder.

    >>> keeps_adapter(StudentSettings(model="x.gguf"), Path("run/step-2"))
    'student.model = run/step-2 with student.base = x.gguf uses the adapter unmerged'
    """
    base = base_model(settings)
    if model_kind(base) == "gguf":
        return f"student.model = {checkpoint} with student.base = {base} uses the adapter unmerged"
    if model_kind(base) == "tiny":
        return "student.dtype = float32 rounds less"
    return "export --adapter"


def _merge_notes(merged: Merged, otherwise: str) -> list[str]:
    """The change that a merge made, and whether it drowns what was learnt."""
    notes = [
        f"{merged.num_merged} adapted weights merged; on {merged.num_tokens} tokens of text this"
        f" moved the student by {merged.mean_kl:.2g} nats per token (KL, at most"
        f" {merged.max_kl:.2g}); rounding explains {merged.rounding_kl:.2g}, and the adapter"
        f" itself moves it by {merged.adapter_kl:.2g}"
    ]
    if merged.dequantised:
        notes.append(
            "the base was stored in 4 bits: the adapter is merged into the weights that it was"
            " trained on, de-quantised, not into the original ones"
        )
    if merged.adapter_kl < 2 * merged.mean_kl:
        notes.append(
            "what the adapter learnt is not clearly larger than the rounding of the merged weights:"
            f" {otherwise}; in student.dtype = float32 the rounding is smaller"
        )
    return notes


def _built_in_text(renderer: Renderer) -> tuple[int, ...]:
    """The ids of a short session, without its call if the template has none."""
    call = ToolCall("c1", "read", {"path": "src/parser.py"})
    session = [
        Turn(role="user", author="human", blocks=(Text(_ASK),)),
        Turn(role="assistant", author="student", blocks=(Text(_LOOK), call)),
        Turn(role="tool", author="environment", blocks=(ToolResult("c1", _FILE),)),
        Turn(role="assistant", author="student", blocks=(Text(_ANSWER),)),
    ]
    tools = (ToolSpec(name="read", description="Read a file.", parameters=_PARAMETERS),)
    try:
        return renderer.render(session, tools=tools).ids
    except RenderError:
        return renderer.render([session[0], session[3]], tools=()).ids
