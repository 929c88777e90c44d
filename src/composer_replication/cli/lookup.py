"""Find a record by its id, its short name, a unique prefix of its id, or its ordinal (s014 = the
14th)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from composer_replication.core.codec import read_sessions
from composer_replication.core.errors import DataError
from composer_replication.core.trace import Session

ANSWERS = "answers.jsonl"
_ORDINAL = re.compile(r"([a-z])(\d{3,})")
_NOUNS: Mapping[str, tuple[str, ...]] = {
    "s": ("session", "site"),
    "e": ("example",),
    "p": ("pair",),
}
"""What the letter of an ordinal may mean."""


def ordinal(number: int, *, letter: str = "s") -> str:
    """The short name of the n-th record of a file, counted from 1.

    >>> ordinal(14)
    's014'
    """
    return f"{letter}{number:03d}"


def is_ordinal(word: str) -> bool:
    """Whether a word is the place of a record in a file.

    >>> is_ordinal("s014"), is_ordinal("s2")
    (True, False)
    """
    return _ORDINAL.fullmatch(word) is not None


def plain_command(verb: str) -> str:
    """A command line for a verb, without flags; `Job.command` adds those of a job.

    >>> plain_command("replay")
    'recompose replay'
    """
    return f"recompose {verb}"


def find_index(
    wanted: str,
    ids: Sequence[str],
    *,
    noun: str,
    file: Path,
    names: Sequence[str] = (),
    command: Callable[[str], str] = plain_command,
) -> int:
    """The index of the record that is meant; raises DataError if none or several match.

    `names` are the short names of the records, in the same order.

    >>> find_index("s2", ["s1:7:c1", "s2:9:c4"], noun="site", file=Path("sites.jsonl"))
    1
    """
    if wanted in ids:
        return ids.index(wanted)
    begins = [i for i, name in enumerate(names) if name == wanted]
    begins = begins or [i for i, identifier in enumerate(ids) if identifier.startswith(wanted)]
    if len(begins) == 1:
        return begins[0]
    match = _ORDINAL.fullmatch(wanted)
    nouns = _NOUNS.get(match[1], ()) if match else ()
    if match and noun in nouns and 1 <= int(match[2]) <= len(ids):
        return int(match[2]) - 1
    if begins:
        shown = ", ".join(ids[i] for i in begins[:5])
        raise DataError(
            f'{len(begins)} {noun}s begin with "{wanted}"',
            where=str(file),
            fix=f"{shown}{', ...' if len(begins) > 5 else ''}",
        )
    if match and match[1] == "a":
        raise _answered_turn(wanted, noun=noun, file=file, command=command)
    if nouns and noun not in nouns:
        raise DataError(
            f'no {noun} "{wanted}": it is the place of a record of another kind',
            where=str(file),
            fix=" or ".join(f"{command('show')} {other} {wanted}" for other in nouns),
        )
    near = difflib.get_close_matches(wanted, ids, n=3, cutoff=0.4)
    guess = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"there are {len(ids)}; list them: {command('show')} {noun}"
    )
    raise DataError(f'no {noun} "{wanted}"', where=str(file), fix=guess)


def _answered_turn(
    wanted: str, *, noun: str, file: Path, command: Callable[[str], str]
) -> DataError:
    """The error for the name of an answered turn, which only the page shows."""
    answers = file.parent / ANSWERS
    if not answers.exists():
        return DataError(
            f'no {noun} "{wanted}": an answered turn has such a name, and there is no {ANSWERS}',
            where=str(answers),
            fix=f"run first: {command('replay')}",
        )
    return DataError(
        f'no {noun} "{wanted}": an answered turn of the page has such a name',
        where=str(answers),
        fix=f"{command('report')} --audit --open, then add #{wanted} to its address",
    )


def session_ids(path: Path) -> list[str]:
    """The ids of a sessions file, in order."""
    return [session.id for session in read_sessions(path)]


def iter_sessions(path: Path, wanted: Collection[str]) -> Iterator[Session]:
    """The sessions with these ids, one at a time."""
    for session in read_sessions(path):
        if session.id in wanted:
            yield session


def one_session(
    path: Path, wanted: str, *, command: Callable[[str], str] = plain_command
) -> Session:
    """The session that an id, a prefix or an ordinal means."""
    ids = session_ids(path)
    exact = ids[find_index(wanted, ids, noun="session", file=path, command=command)]
    return next(iter_sessions(path, {exact}))
