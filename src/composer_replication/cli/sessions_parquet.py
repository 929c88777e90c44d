"""`recompose sessions --write FOLDER --form parquet`: TRL's columns as Parquet, with a card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.cli.sessions_rows import RowsToWrite
from composer_replication.core.errors import need
from composer_replication.core.files import make_folder, move_into_place, scratch_folder, write_text
from composer_replication.core.trace import Session
from composer_replication.data.sites.summary import UNKNOWN
from composer_replication.data.trl_export import TrlRow
from composer_replication.report.data_card import SPLIT_FILE, DataCard, data_card
from composer_replication.report.html import plural
from composer_replication.tokens.split import is_held_out, resolve_split_unit

COLUMNS = ("prompt", "completion", "tools")


BATCH_BYTES = 64_000_000


def write_parquet(
    job: Job,
    sessions: Sequence[Session],
    *,
    barred: Mapping[str, Mapping[int, str]],
    max_gb: float,
    folder: Path,
) -> str:
    """Write the rows of the sessions; returns what was written, in words.

    `barred` holds, by session, the turns that no row may teach and why. Whole sessions go into the
    split "test" if held_out says so. Raises DataError as RowsToWrite does.
    """
    datasets = need("datasets", extra="parquet")
    rows = RowsToWrite(job, sessions, barred=barred, max_gb=max_gb)
    held_out = resolve_split_unit(job.config.held_out, sessions)
    authors = Counter[str]()
    left_out = Counter(why for s in sessions for why in barred.get(s.id, {}).values())
    # Json: the arguments of two tools have no type in common.
    schema = datasets.Features({name: datasets.Json() for name in COLUMNS}).arrow_schema
    with scratch_folder(folder) as scratch:
        make_folder(scratch / "data")
        splits: dict[str, _Split] = {}
        for session, row in rows:
            name = "test" if is_held_out(session, settings=held_out) else "train"
            if name not in splits:
                splits[name] = _Split(scratch / SPLIT_FILE.format(split=name), schema)
            splits[name].add(row)
            authors[session.turns[row.turn].author or UNKNOWN] += 1
        for split in splits.values():
            split.close()
        card = DataCard(
            sessions=len(sessions),
            splits={name: splits[name].count for name in ("train", "test") if name in splits},
            split_by=str(held_out.by),
            authors=dict(authors.most_common()),
            formats=dict(Counter(s.source.format or UNKNOWN for s in sessions).most_common()),
            left_out=dict(left_out.most_common()),
            version=metadata.version("composer-replication"),
        )
        write_text(scratch / "README.md", data_card(card))
        move_into_place(scratch, folder)
    messages = plural(rows.count, "message")
    return f"{messages} of {plural(len(sessions), 'session')}, and README.md"


class _Split:
    """A Parquet file that grows by row groups, so that few rows are in memory."""

    def __init__(self, path: Path, schema: Any) -> None:
        self.count, self._schema = 0, schema
        self._arrow = need("pyarrow", extra="parquet")
        parquet = need("pyarrow.parquet", extra="parquet")
        self._file = parquet.ParquetWriter(str(path), schema, compression="zstd")
        self._rows: list[TrlRow] = []
        self._bytes = 0

    def add(self, row: TrlRow) -> None:
        """Add a row."""
        self.count += 1
        self._rows.append(row)
        self._bytes += row.size
        if self._bytes >= BATCH_BYTES:
            self._write()

    def close(self) -> None:
        """Write what is left."""
        self._write()
        self._file.close()

    def _write(self) -> None:
        if self._rows:
            texts = [
                [getattr(row, name) for row in self._rows] for name in ("prompt", "completion")
            ]
            texts.append([row.tools.text for row in self._rows])
            arrays = [self._arrow.array(column, self._arrow.json_()) for column in texts]
            self._file.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        self._rows, self._bytes = [], 0
