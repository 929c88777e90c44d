"""`recompose sessions --write` as TRL's columns: their size, and the lines themselves."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from composer_replication.cli.hints_audit_plan import Progress
from composer_replication.cli.job import Job
from composer_replication.core.errors import DataError
from composer_replication.core.files import atomic_writer
from composer_replication.core.redact import find_secrets
from composer_replication.core.time_left import WorkLeft, eta
from composer_replication.core.trace import Session
from composer_replication.data.trl_export import TrlRow, TrlRows
from composer_replication.report.html import plural

MB, GB, EVERY_S = 1e6, 1e9, 3.0


class RowsToWrite:
    """The rows of the sessions, counted, measured and searched for secrets before any is written.

    Iterating yields them with their sessions, and prints how far it is. `barred` holds, by session,
    the turns that no row may teach. Raises DataError if a secret would leave, if there is no row,
    or if the rows are larger than `max_gb`.
    """

    def __init__(
        self,
        job: Job,
        sessions: Sequence[Session],
        *,
        barred: Mapping[str, Collection[int]],
        max_gb: float,
    ) -> None:
        self.job, self.count, self.bytes = job, 0, 0
        self._rows: list[TrlRows] = []
        progress = Progress(job, "session", every_s=EVERY_S)
        for number, session in enumerate(sessions, 1):
            rows = TrlRows(session, barred=barred.get(session.id, ()))
            count, size = rows.size
            self.count, self.bytes = self.count + count, self.bytes + size
            for text in rows.texts():
                check_text(text, session)
            self._rows.append(rows)
            progress(number, len(sessions))
        if not self.count:
            raise DataError(
                "no message of a model is left to write",
                where=str(job.sessions),
                fix="ingest more logs, or name another project",
            )
        if self.bytes > max_gb * GB:
            raise DataError(
                f"{self.in_words} are more than --max-gb {max_gb:g}: a row per message of the"
                " model repeats all of the message's context",
                where=str(job.sessions),
                fix=(
                    "name one project (recompose sessions PROJECT --write ...), allow it with"
                    f" --max-gb {self.bytes / GB + 0.1:.1f}, or write --form atif, which repeats"
                    " nothing"
                ),
            )
        job.screen.line(f" writing {self.in_words}", style="dim")

    @property
    def in_words(self) -> str:
        """How many rows there are and how large, e.g. "662 rows with 88 MB of text"."""
        size = self.bytes / MB
        return f"{plural(self.count, 'row')} with {size:.{0 if size >= 10 else 1}f} MB of text"

    def __iter__(self) -> Iterator[tuple[Session, TrlRow]]:
        printed = time.monotonic()
        work, count = WorkLeft(total=self.bytes, began=printed), 0
        for rows in self._rows:
            for row in rows:
                yield rows.session, row
                now, count = time.monotonic(), count + 1
                work.add(row.size, now=now)
                if now - printed >= EVERY_S:
                    printed = now
                    left = eta(work.seconds(now=now))
                    done = f"row {count} of {self.count}, {work.done / MB:.0f} of"
                    self.job.screen.line(
                        f" ...      {done} {self.bytes / MB:.0f} MB | eta={left}", style="dim"
                    )


def write_rows(rows: RowsToWrite, path: Path) -> None:
    """Write a line per row, atomically."""
    with atomic_writer(path) as stream:
        for _, row in rows:
            stream.write(row.text + "\n")


def check_text(text: str, session: Session) -> None:
    """Raise DataError if a secret was overlooked when the session was ingested."""
    if found := find_secrets(text):
        raise DataError(
            f"{len(found)} secrets of the kind {found[0].kind} would leave",
            where=session.id,
            fix="ingest the log again: today's rules redact them",
        )
