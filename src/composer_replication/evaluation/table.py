"""evaluation.json: the rows, the paired differences, and the notes that belong beside them.

    table = evaluation_table(
        {"after": ..., "before": ..., "placebo": ...},
        settings=config.evaluate, seed=seed, metadata=source.metadata,
    )
    table["rows"][0]["name"], table["paired"][0]["b"]        # "after", "before"

A claim about a channel needs a control of that channel: a row "hint" is also compared with
"hint_placebo" and "hint_neutral" if they exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.rollout_settings import EvaluateSettings
from composer_replication.core.errors import DataError
from composer_replication.evaluation.rows import evaluation_row, paired_differences
from composer_replication.evaluation.stats import Resamples
from composer_replication.evaluation.success import EpisodeResult
from composer_replication.rollouts.envs.env import EnvMetadata

BEFORE, AFTER, PLACEBO = "before", "after", "placebo"
ORDER = (BEFORE, "more_sft", PLACEBO, AFTER)
CONTROLS_OF = ("_placebo", "_neutral")
HOW_MEASURED = (
    "One episode per task and student, no hint in any context. 95 % intervals: Wilson for shares,"
    " bootstrap over tasks for all other measures. They cover other tasks, not other"
    " training seeds."
)
OWN_TASKS = (
    'Tasks of your environment {env!r}, split "monitor", drawn with another seed than the tasks'
    " that watched the training: a task that both drew is not unseen."
)
NOT_YOURS = (
    "These are tasks of {played}, not {whose}: they do not show how the student does"
    " on your own work. To judge it at the held-out mistakes of your own logs: `{command}`."
)
OWN_SPLIT = "monitor"
WATCHED = "The monitor plays these tasks during training and can stop it: they are not unseen."


def foreign_tasks_note(
    trained_in: str, *, played: str, metadata: EnvMetadata, on_logs: str
) -> list[str]:
    """A note that the tasks are not the user's, if the run was trained in another environment.

    `played` is the environment of the evaluation; `on_logs` is the command that judges on logs.

    >>> foreign_tasks_note("maze", played="maze", metadata=EnvMetadata(), on_logs="")
    []
    """
    if trained_in == played:
        return []
    whose = f"of your environment {trained_in!r}" if trained_in else "yours"
    return [NOT_YOURS.format(played=metadata.title or played, whose=whose, command=on_logs)]


def evaluation_table(
    rows: Mapping[str, Sequence[EpisodeResult]],
    *,
    settings: EvaluateSettings,
    seed: int,
    metadata: EnvMetadata,
    own_env: str = "",
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The contents of evaluation.json; `metadata` describes the environment that was played,
    `own_env` is its name if it is the user's.

    Raises DataError without the rows "before" and "after", or if rows are not of the same tasks.
    """
    missing = [name for name in (BEFORE, AFTER) if name not in rows]
    if missing:
        raise DataError(
            f"no episodes of {missing[0]!r}", fix="play the student before and after the training"
        )
    names = [
        *(name for name in ORDER if name in rows),
        *(name for name in rows if name not in ORDER),
    ]
    draws = Resamples.of(len(rows[AFTER]), seed=stage_seed(seed, "rows"), samples=settings.samples)
    compared = {
        "targeted": settings.targeted_kinds,
        "seed": seed,
        "samples": settings.samples,
        "families": metadata.families,
    }
    pairs = [
        entry
        for a, b in compared_rows(names)
        for entry in paired_differences(a, rows[a], b, rows[b], **compared)
    ]
    of_level = [metadata.levels[settings.level]] if settings.level in metadata.levels else []
    watched = [WATCHED] if settings.split == "monitor" and not own_env else []
    watched += [OWN_TASKS.format(env=own_env)] if own_env else []
    return {
        "rows": [
            evaluation_row(
                name,
                rows[name],
                targeted=settings.targeted_kinds,
                draws=draws,
                families=metadata.families,
            )
            for name in names
        ],
        "paired": [entry for entry in pairs if "metric" not in entry],
        "paired_measures": [entry for entry in pairs if "metric" in entry],
        "notes": [*notes, *of_level, *metadata.notes, HOW_MEASURED, *watched],
        "family_titles": {f.made: f.title or f.made for f in metadata.families},
        "seed": seed,
        "split": OWN_SPLIT if own_env else settings.split,
        "level": settings.level,
        "n": settings.tasks,
        "temperature": settings.temperature,
        "targeted_kinds": list(settings.targeted_kinds),
    }


def compared_rows(names: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of rows to compare.

    "after" with every other row, every other row with "before", and a channel with its controls.

    >>> compared_rows(["before", "placebo", "after"])
    [('after', 'before'), ('after', 'placebo'), ('placebo', 'before')]
    """
    others = [name for name in names if name not in (BEFORE, AFTER)]
    controls = [
        (name, name + control)
        for name in others
        for control in CONTROLS_OF
        if name + control in others
    ]
    return [
        (AFTER, BEFORE),
        *((AFTER, name) for name in others),
        *((name, BEFORE) for name in others),
        *controls,
    ]
