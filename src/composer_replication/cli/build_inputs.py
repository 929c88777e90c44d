"""What `build` reads: the records of the work folder as examples, and what the artefact says of
them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.codec import (
    read_anchors,
    read_hints,
    read_preferences,
    read_sessions,
    read_sites,
)
from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.core.rundir import sha256_of
from composer_replication.tokens.dataset import Item, build_examples
from composer_replication.tokens.renderer import Renderer


def pairs_and_anchors(job: Job) -> tuple[Path | None, Path | None]:
    """The file of build.pairs, no anchors; else the pairs of `curate` or `replay`, with anchors."""
    if job.config.build.pairs:
        return job.need_file(Path(job.config.build.pairs), verb="build"), None
    pairs, anchors = (
        job.need_fresh(path, verb="replay") if path.exists() else None
        for path in (job.preferences, job.anchors)
    )
    return job.need_fresh(job.curated, verb="curate") if job.curated.exists() else pairs, anchors


def build_items(
    job: Job, renderer: Renderer, kinds: frozenset[str] | None, held_out: HeldOutSettings
) -> Iterator[Item]:
    """The examples and pairs of a job's work folder, for a renderer."""
    config = job.config
    pairs, anchors = pairs_and_anchors(job)
    return build_examples(
        read_sessions(job.sessions),
        sites=read_sites(job.sites),
        hints=read_hints(job.hints),
        preferences=read_preferences(pairs) if pairs else (),
        anchors=read_anchors(anchors) if anchors else (),
        renderer=renderer,
        settings=config.build,
        held_out=held_out,
        kept_kinds=kinds,
        unmeasured=config.hints.unmeasured,
        position=config.hints.fixed_position(),
    )


def build_meta(
    job: Job, renderer: Renderer, inputs: list[Path], split: dict[str, Any]
) -> dict[str, Any]:
    """What the artefact says of its making."""
    return {
        **renderer.describe(),
        "unmeasured": job.config.hints.unmeasured if job.audit in inputs else "keep",
        "student": job.config.student.model,
        "build": job.config.build.model_dump(mode="json"),
        "hint_position": job.config.hints.fixed_position(),
        "held_out": split,
        "inputs": [{"path": str(path), "sha256": sha256_of(path)} for path in inputs],
    }
