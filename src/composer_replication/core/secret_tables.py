"""Secrets in the rows of a table, each judged by the name of its column: INSERT of SQL, CSV, tables
of psql, MySQL and Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from composer_replication.core.secret_names import secret_under
from composer_replication.core.secret_page import Page, Span
from composer_replication.core.secret_words import is_name_of_secret

_INSERT = re.compile(
    r"insert\s{1,4}into\s{1,4}\S{1,80}\s{0,4}\(([^()]{1,800})\)\s{0,4}values\s{0,8}", re.IGNORECASE
)
_ROW = re.compile(r"\(((?:'(?:[^'\\\n]|\\.|''){0,400}'|[^'()\n]){1,60})\)[,;\s]{0,4}")
_FIELD = re.compile(r"\s{0,4}(?:'((?:[^'\\\n]|\\.|''){0,400})'|[^',]{0,200})\s{0,4}(?:,|\Z)")
MAX_ROWS = 200


def inserted_secrets(text: str, at: int) -> list[Span]:
    """Secrets in the rows of an INSERT, each judged by the name of its column.

    >>> inserted_secrets("INSERT INTO users (name, password) VALUES ('ada', 'tr0ub4dor&3x');", 0)
    [Span(start=51, end=63, kind='password')]
    """
    head = _INSERT.match(text, at)
    if head is None:
        return []
    columns = [column.strip("`\" []\n\t'") for column in head[1].split(",")]
    spans, position = list[Span](), head.end()
    for _ in range(MAX_ROWS):
        row = _ROW.match(text, position)
        if row is None:
            break
        for column, field in zip(columns, _FIELD.finditer(row[1]), strict=False):
            if field[1] and (kind := secret_under(column, field[1])) is not None:
                spans.append(Span(row.start(1) + field.start(1), row.start(1) + field.end(1), kind))
        position = row.end()
    return spans


_COPY = re.compile(
    r"copy\s{1,4}\S{1,80}\s{0,4}\(([^()]{1,600}+)\)\s{1,4}from\s{1,4}stdin[^\n]{0,40}\n",
    re.IGNORECASE,
)


def copied_secrets(text: str, at: int) -> list[Span]:
    """Secrets in the rows below COPY ... FROM stdin, as pg_dump writes them.

    >>> copied_secrets("COPY t (id, token) FROM stdin;\\n1\\t9fK2mQ8xL4vB7nR1tY6w", 0)
    [Span(start=33, end=53, kind='assigned_secret')]
    """
    head = _COPY.match(text, at)
    if head is None:
        return []
    names = [column.strip('`" \n\t') for column in head[1].split(",")]
    return _rows(text, head.end(), "\t", names)[0] if len(names) > 1 else []


MAX_HEADER = 400
_SEPARATORS = "\t|\u2502,;"
_NAME = (
    r"[ ]{0,40}+[\"'*`]{0,3}+[\w.()/-]{0,40}+(?:[ ][\w.()/-]{1,20}+){0,2}+[\"'*`]{0,3}+[ ]{0,40}+"
)
HEADS_COLUMN = re.compile(r"(?:s|ords?|d|[_ -]id)?[ \"'*`_]{0,40}+[\t|\u2502,;\r\n]")
"""The text after the last word of the name of a column."""
_HEADER = re.compile(rf"[ \t]*(?:[|\u2502]?{_NAME})(?:[\t|\u2502,;]{_NAME}){{1,60}}+\r?\n")
_RULE = re.compile(r"[-+=|:\u2500-\u257f \t]+\Z")
_CELLS = {
    sep: re.compile(
        rf'[ ]*(?:"((?:[^"\n]|"")*)"[ ]*|([^{re.escape(sep)}\n]*))(?:{re.escape(sep)}|\Z)'
    )
    for sep in _SEPARATORS
}
_MARKS = " \"'*`_"


def table_at(page: Page, at: int, end: int) -> tuple[list[Span], int]:
    """Secrets in the rows below a header whose column is named by letters `at` to `end`, and where
    the rows end; (_, 0) = no table.

    >>> table_at(Page.of("user,password\\nada,tr0ub4dor&3x"), 5, 13)
    ([Span(start=18, end=30, kind='password')], 30)
    """
    text = page.text
    begin = text.rfind("\n", max(0, at - MAX_HEADER), at) + 1
    header = _HEADER.match(text, begin) if begin or at <= MAX_HEADER else None
    if header is None or header.end() <= end:
        return [], 0
    line = header[0].rstrip("\r\n")
    sep = next(c for c in _SEPARATORS if c in line)
    names = [part.strip(_MARKS).replace(" ", "_") for part in line.split(sep)]
    if sum(map(bool, names)) < 2:
        return [], 0
    return _rows(text, header.end(), sep, names)


def _rows(text: str, start: int, sep: str, names: list[str]) -> tuple[list[Span], int]:
    """Secrets in the rows from `start` on that have as many cells as there are names, and where
    these rows end."""
    spans: list[Span] = []
    last = start
    secret = [is_name_of_secret(name) for name in names]
    for _ in range(MAX_ROWS):
        stop = text.find("\n", start, start + 10 * MAX_HEADER)
        stop = min(len(text), start + 10 * MAX_HEADER) if stop < 0 else stop
        row = text[start:stop].rstrip("\r")
        if not row or (
            not _RULE.match(row) and (row.count(sep) != len(names) - 1 and '"' not in row)
        ):
            break
        if not _RULE.match(row):
            for name, is_secret, (value, at) in zip(names, secret, _cells(row, sep), strict=False):
                if (
                    is_secret
                    and len(value) >= 4
                    and (kind := secret_under(name, value)) is not None
                ):
                    spans.append(Span(start + at, start + at + len(value), kind))
        last = stop
        start = stop + 1
        if start >= len(text):
            break
    return spans, last


def _cells(row: str, sep: str) -> Iterator[tuple[str, int]]:
    """The cells of a row, without quotes and blanks, and where each begins."""
    for cell in _CELLS[sep].finditer(row):
        if cell.start() == len(row) and not cell[0]:
            return
        group = 1 if cell[1] is not None else 2
        value = cell[group].strip(_MARKS)
        yield value, cell.start(group) + cell[group].find(value)
