"""`recompose export`: a run's student as a folder for servers and from_pretrained."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from composer_replication.cli.export_card import card_of, without_folders
from composer_replication.cli.export_serve import serve_commands
from composer_replication.cli.flags import Common
from composer_replication.cli.job import Job, open_job
from composer_replication.cli.problems import UsageError
from composer_replication.cli.resuming import chosen_player, print_chosen
from composer_replication.core.config.student_settings import TINY
from composer_replication.core.errors import ConfigError, DataError, need
from composer_replication.core.files import move_into_place, scratch_folder, write_text
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import RunDir, sha256_of
from composer_replication.models.adapter_folder import base_model
from composer_replication.models.model_files import model_kind
from composer_replication.report.card import model_card
from composer_replication.tokens.artefact import EXAMPLES, load_dataset

if TYPE_CHECKING:
    from composer_replication.evaluation.players import Player

FACTS, README, SCHEMA = "recompose.json", "README.md", 1
_TEXTS = 4  # examples on which a merge is measured


def export_command(
    run: str = "",
    /,
    *,
    to: Path | None = None,
    adapter: bool = False,
    merged: bool = False,
    common: Common = Common(),
) -> int:
    """Write a run's newest checkpoint with the chat template it was trained with, a model card and
    where it came from.

    Parameters
    ----------
    run
        Run folder or name, or the folder of one of its checkpoints. Default: the latest run.
    to
        Output folder, new or empty. Default: exports/RUN in the work folder.
    adapter
        Write only the LoRA adapter, which needs its base model.
    merged
        Write full weights with the adapter merged in (the default).
    """
    job = open_job(common)
    if adapter and merged:
        raise UsageError("--adapter and --merged are two forms", fix="give one of them")
    for package in ("torch", "transformers"):
        need(package, extra="train")
    from composer_replication.evaluation.student_export import write_student

    folder, player = chosen_player(job, "export", run, name="exported")
    print_chosen(job, folder, player)
    job.warn_changed(folder)
    name = str(folder.info()["id"])
    target = to if to is not None else job.work / "exports" / name
    form = _form(player, adapter=adapter)
    _check_target(target, folder)
    wrote = [target, target / README]
    if job.dry_run:
        return job.finish({"form": form, "steps": player.steps, "folder": str(target)}, wrote=wrote)
    with scratch_folder(target) as scratch:
        facts = write_student(player, form=form, folder=scratch, texts=_trained_texts(job, folder))
        base = base_model(player.config.student)
        rank = player.config.student.lora.rank
        commands = serve_commands(
            target, form=form, base=base, family=facts["family"], rank=rank, name=name
        )
        card = card_of(job, folder, player, form=form, facts=facts, commands=commands)
        write_text(scratch / README, model_card(card))
        write_json(
            scratch / FACTS,
            {
                "schema": SCHEMA,
                "run": name,
                "settings": without_folders(player.config.model_dump(mode="json")),
                **asdict(card),
                **({"merge": facts["merge"]} if "merge" in facts else {}),
            },
        )
        if target.exists():
            target.rmdir()  # empty, or this raises
        move_into_place(scratch, target)
    for note in card.notes:
        job.screen.line(f" note     {note}", style="dim")
    for server, command in commands:
        job.screen.line(f" serve    {command}    ({server})")
    return job.finish(
        {
            "form": form,
            "steps": player.steps,
            "folder": str(target),
            **facts,
            "serve": dict(commands),
        },
        wrote=wrote,
    )


def _form(player: Player, *, adapter: bool) -> str:
    student = player.config.student
    if not adapter:
        return "merged" if student.lora.rank else "weights"
    if not student.lora.rank:
        raise ConfigError(
            "the run trained all weights: there is no adapter",
            where="--adapter",
            fix="leave --adapter out",
        )
    if model_kind(base_model(student)) in ("tiny", "gguf"):
        raise ConfigError(
            "the tiny student's base is made on the spot and lies nowhere"
            if student.model == TINY
            else "the base was de-quantised from a GGUF file and lies in no folder",
            where="--adapter",
            fix="export it --merged",
        )
    return "adapter"


def _trained_texts(job: Job, run: RunDir) -> list[tuple[int, ...]]:
    """Ids of the longest examples that the run was trained on; [] if they are no longer here."""
    path, manifest = job.examples / EXAMPLES, run.manifest_json
    used = [entry["sha256"] for entry in json.loads(manifest.read_bytes())["inputs"]]
    if not path.exists() or sha256_of(path) not in used:
        return []
    examples = load_dataset(job.examples, allow_refused=True).examples
    return [e.ids for e in sorted(examples, key=lambda e: len(e.ids), reverse=True)[:_TEXTS]]


def _check_target(target: Path, run: RunDir) -> None:
    """Refuse to overwrite anything, or to write into the run."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(
            "something is there already",
            where=str(target),
            fix="give a new folder with --to; nothing is overwritten",
        )
    if run.path.resolve() in (target.resolve(), *target.resolve().parents):
        raise DataError(
            "that is inside the run", where=str(target), fix="give a folder outside of it with --to"
        )
