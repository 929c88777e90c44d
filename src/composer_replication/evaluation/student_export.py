"""Writes the student of a run for serving: all weights, merged weights, or the adapter alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.evaluation.players import Player, load_player
from composer_replication.models.load_student import load_student
from composer_replication.models.merge import merge_adapters
from composer_replication.models.pretrained_folder import save_served, weights_sha256
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer


def write_student(player: Player, *, form: str, folder: Path) -> dict[str, Any]:
    """Write the model, the tokenizer and the template; returns the facts for the model card."""
    settings, notes = player.config.student, []
    if settings.lora.rank:
        student, renderer = load_player(player)
    else:  # the checkpoint holds all weights, so the base model is not needed
        tokenizer = load_tokenizer(str(player.checkpoint))
        checkpoint_settings = StudentSettings(model=str(player.checkpoint), dtype=settings.dtype)
        student = load_student(checkpoint_settings, tokenizer=tokenizer, seed=player.config.seed)
        renderer = Renderer.for_tokenizer(tokenizer, family=settings.template)
    digest, model = weights_sha256(student.model), student.model
    if form == "merged":
        merged = merge_adapters(student)
        model = merged.model
        notes.append(
            f"{merged.num_merged} adapted weights merged; log-probs moved by at most"
            f" {merged.drift:.2g} nats"
        )
    save_served(
        model, renderer.tokenizer, folder, template=renderer.template, end_ids=renderer.end_ids
    )
    return {
        "weights_sha256": digest,
        "family": renderer.family.name if renderer.family else "own template",
        "notes": notes,
    }
