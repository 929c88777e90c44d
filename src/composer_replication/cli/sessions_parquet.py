"""`recompose sessions --write FOLDER --form parquet`: TRL's columns as Parquet, with a card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.errors import DataError, need
from composer_replication.core.files import make_folder, move_into_place, scratch_folder, write_text
from composer_replication.core.trace import Session
from composer_replication.data.session_export import trl_rows
from composer_replication.data.sites.summary import UNKNOWN
from composer_replication.report.data_card import SPLIT_FILE, DataCard, data_card
from composer_replication.report.html import plural
from composer_replication.tokens.split import is_held_out, resolve_split_unit

COLUMNS = ("prompt", "completion", "tools")


def write_parquet(
    job: Job,
    sessions: Sequence[Session],
    *,
    barred: Mapping[str, Mapping[int, str]],
    check: Callable[[dict[str, Any], Session], dict[str, Any]],
    folder: Path,
) -> str:
    """Write the rows of the sessions; returns what was written, in words.

    `barred` holds, by session, the turns that no row may teach and why; `check` is called with each
    row and raises if it may not leave. Whole sessions go into the split "test" if held_out says so.
    Raises DataError if there is no row.
    """
    datasets = need("datasets", extra="parquet")
    datasets.disable_progress_bars()
    held_out = resolve_split_unit(job.config.held_out, sessions)
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
    authors, left_out = Counter[str](), Counter[str]()
    for session in sessions:
        skipped = barred.get(session.id, {})
        left_out.update(skipped.values())
        split = "test" if is_held_out(session, settings=held_out) else "train"
        for turn, row in trl_rows(session, barred=skipped):
            rows[split].append(check(row, session))
            authors[session.turns[turn].author or UNKNOWN] += 1
    splits = {split: len(found) for split, found in rows.items() if found}
    if not splits:
        raise DataError(
            "no message of a model is left to write",
            where=str(job.sessions),
            fix="ingest more logs, or name another project",
        )
    card = DataCard(
        sessions=len(sessions),
        splits=splits,
        split_by=str(held_out.by),
        authors=dict(authors.most_common()),
        formats=dict(Counter(s.source.format or UNKNOWN for s in sessions).most_common()),
        left_out=dict(left_out.most_common()),
        version=metadata.version("composer-replication"),
    )
    # Json: the arguments of two tools have no type in common.
    features = datasets.Features({name: datasets.Json() for name in COLUMNS})
    with scratch_folder(folder) as scratch:
        make_folder(scratch / "data")
        for split in splits:
            table = datasets.Dataset.from_list(rows[split], features=features)
            table.to_parquet(str(scratch / SPLIT_FILE.format(split=split)))
        write_text(scratch / "README.md", data_card(card))
        move_into_place(scratch, folder)
    messages = plural(sum(splits.values()), "message")
    return f"{messages} of {plural(len(sessions), 'session')}, and README.md"
