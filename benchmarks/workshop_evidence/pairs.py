"""Four sets of pairs from the same answers, for the arms that ask whether agreement and curation
help.

    make_sets(work.folder, work.folder / "pairs", seed=11, verb=verb)
        builds one work folder for each of SETS, and writes pairs/counts.json:
        {"curated": {"made": 62, "kept": 62, "built": 62}, ...}

    raw        every answer that differs from the student's action, as a pair of its own: no
               agreement is required and nothing is curated
    filtered   the raw pairs that `recompose curate` keeps
    curated    `recompose replay` on the same answers (agreement of families, objective evidence,
               the tried call), then `recompose curate`
    null       the null test: every teacher's answers are dealt to other places and weighed by the
               same agreement, round after round, until there are as many pairs as with the right
               answers; then `recompose curate`

The teachers are the scripted players of the workshop with slips: the three families slip at a tenth
of the places, a small model of the second family at three tenths, and a fourth family, which plays
like the first, at half of them. A slip is a tool that nobody offered, an empty message, arguments
that do not fit, words in place of a call, or a good call of another tool. arms.py decides whether
anchors are trained beside the pairs (they are not).
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from composer_replication.core.codec import read_answers, read_sessions, record_to_json
from composer_replication.core.config.rollout_settings import ReplaySettings
from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.core.redact import Redactor
from composer_replication.core.site import Answer, Preference
from composer_replication.core.teacher import Request, Teacher
from composer_replication.core.trace import Session, Text, ToolCall, Turn
from composer_replication.data.replay.actions import MessageAction, canonical_action
from composer_replication.data.replay.agree import AnsweredTurn, weigh_answers
from composer_replication.data.replay.ask import answered_turn, failed_turns
from composer_replication.data.replay.checks import shuffle_answers
from composer_replication.data.replay.gather import gather, lookup
from composer_replication.data.replay.steps import all_steps
from composer_replication.data.teachers.asking import Asker
from composer_replication.data.teachers.scripted import Scripted
from composer_replication.workshop.demonstrators import DONE_TEXT
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.scripted_teachers import scripted_teachers
from composer_replication.workshop.vocabulary import LISTER, TESTER

TEACHERS = (
    ("birch-1", "birch", "birch", 0.1),
    ("cedar-1", "cedar", "cedar", 0.1),
    ("cedar-small", "cedar", "cedar", 0.3),
    ("maple-1", "maple", "maple", 0.1),
    ("alder-1", "alder", "birch", 0.5),
)
"""(name, family, its scripted player, the share of the places at which it slips)."""
SLIPS = ("unknown_tool", "empty", "misfitting", "words", "another")
SETS = ("raw", "filtered", "curated", "null")
MAX_NULL_ROUNDS = 100
_COPIED = (
    "sessions.jsonl",
    "sites.jsonl",
    "sites.meta.json",
    "hints.jsonl",
    "hints.meta.json",
    "audit.json",
    "audit.meta.json",
)
_ANSWERS, _PREFERENCES, _ANCHORS = (
    "answers.jsonl",
    "preferences.jsonl",
    ("anchors.jsonl", "anchors.meta.json"),
)
Verb = Callable[..., object]
"""Runs a verb of recompose in a work folder, e.g. verb("curate", folder)."""


def slipped(turn: Turn, request: Request, *, slip: str) -> Turn:
    """The message with a slip in it, e.g. read_file(path="a.py") becomes
    open_read_file(path="a.py") for the slip "unknown_tool".

    A message without a call, or without an argument to lose, becomes another good call instead.
    """
    call = turn.calls[0] if turn.calls else None
    if slip == "empty":
        return replace(turn, blocks=())
    if slip == "words" and call is not None:
        return replace(turn, blocks=(Text(DONE_TEXT),))
    if slip == "unknown_tool" and call is not None:
        return replace(turn, blocks=(replace(call, name=f"open_{call.name}"),))
    if slip == "misfitting" and call is not None and call.arguments:
        arguments = dict(list(call.arguments.items())[:-1])
        return replace(turn, blocks=(replace(call, arguments=arguments),))
    tool = TESTER if call is not None and call.name == LISTER else LISTER
    return replace(turn, blocks=(ToolCall(call.id if call is not None else "call_0", tool, {}),))


def noisy(player: Scripted, *, name: str, family: str, share: float, seed: int) -> Scripted:
    """A scripted player that slips at a share of the places. Where and how depends only on its
    name, the place and the seed."""

    def act(request: Request) -> Turn:
        turn = replace(player.act(request), author=name)
        draw = random.Random(f"{seed}:{name}:{request.about}")
        return slipped(turn, request, slip=draw.choice(SLIPS)) if draw.random() < share else turn

    return Scripted(name, family, act)


def ask_all(sessions: Sequence[Session], *, seed: int) -> tuple[Answer, ...]:
    """The answers of the five teachers at every step of the sessions."""
    with Sandbox() as sandbox:
        players = {teacher.family: teacher for teacher in scripted_teachers(sessions, sandbox)}
        teachers: list[Teacher] = [
            noisy(players[player], name=name, family=family, share=share, seed=seed)
            for name, family, player, share in TEACHERS
        ]
        options = {
            "asker": Asker(None),
            "settings": ReplaySettings(sessions_at_once=1),
            "redactor": Redactor(),
        }
        return asyncio.run(gather(sessions, teachers, steps=all_steps, **options)).answers


def places_of(sessions: Iterable[Session], answers: Iterable[Answer]) -> list[AnsweredTurn]:
    """Every step at which teachers were asked, with their answers."""
    ask, places = lookup(answers), []
    for session in sessions:
        errors = failed_turns(session)
        for step in all_steps(session):
            if turn_answers := ask(session, step.turn):
                places.append(answered_turn(session, step.turn, turn_answers, errors=errors))
    return places


def raw_pairs(places: Iterable[AnsweredTurn]) -> Iterator[Preference]:
    """Every answer that differs from the student's action, each as a pair of its own."""
    for place in places:
        student_action = canonical_action(place.student_turn, place.comparison)
        for answer in place.answers:
            if canonical_action(answer.turn, place.comparison) != student_action:
                yield Preference(
                    session_id=place.session_id,
                    turn=place.turn,
                    chosen=answer.turn,
                    teachers=(answer.teacher,),
                )


def null_pairs(
    places: Sequence[AnsweredTurn], *, seed: int, min_families: int, num_pairs: int
) -> Iterator[Preference]:
    """Yield `num_pairs` different pairs that the same agreement makes of answers dealt to other
    places, over as many rounds as it takes (at most MAX_NULL_ROUNDS)."""
    weigh = partial(weigh_answers, min_families=min_families)
    keys: set[tuple[str, int, MessageAction]] = set()
    for null_round in range(MAX_NULL_ROUNDS):
        for place in shuffle_answers(places, seed=seed + null_round):
            verdict = weigh(place)
            if verdict.outcome != "pair" or verdict.chosen is None:
                continue
            key = (
                place.session_id,
                place.turn,
                canonical_action(verdict.chosen.turn, place.comparison),
            )
            if len(keys) == num_pairs or key in keys:
                continue
            keys.add(key)
            evidence = {**verdict.record(), "null_round": null_round}
            yield Preference(
                session_id=place.session_id,
                turn=place.turn,
                chosen=verdict.chosen.turn,
                teachers=verdict.teachers,
                evidence=evidence,
            )


def make_sets(prepared: Path, folder: Path, *, seed: int, verb: Verb) -> None:
    """Make one work folder below `folder` for each of SETS and build its examples; `prepared` holds
    the sessions, sites and hints."""
    folder.mkdir(parents=True)
    answers, sessions = folder / _ANSWERS, list(read_sessions(prepared / _COPIED[0]))
    write_lines(answers, map(record_to_json, ask_all(sessions, seed=seed)))
    for name in SETS:
        (folder / name).mkdir()
        for file in _COPIED:
            shutil.copyfile(prepared / file, folder / name / file)
    # Replay comes first: the number of agreed pairs sets the size of the null test.
    verb("replay", folder / "curated", "--replay.recorded", str(answers.absolute()))
    places, agreed = (
        places_of(sessions, read_answers(answers)),
        _count_lines(folder / "curated" / _PREFERENCES),
    )
    raw = list(raw_pairs(places))
    null = list(
        null_pairs(places, seed=seed, min_families=ReplaySettings().min_families, num_pairs=agreed)
    )
    for name, pairs in (("raw", raw), ("filtered", raw), ("null", null)):
        write_lines(folder / name / _PREFERENCES, map(record_to_json, pairs))
        for file in _ANCHORS:
            shutil.copyfile(folder / "curated" / file, folder / name / file)
    for name in SETS[1:]:
        verb("curate", folder / name)
    for name in SETS:
        verb("build", folder / name)
    rounds = 1 + max((pair.evidence["null_round"] for pair in null), default=-1)
    counts = {name: counts_of(folder / name) for name in SETS}
    counts["null"]["rounds"] = rounds
    write_json(folder / "counts.json", counts)


def counts_of(folder: Path) -> dict[str, Any]:
    """How many pairs were made, kept by curation, and built into examples."""
    num_made = _count_lines(folder / _PREFERENCES)
    num_kept = (
        _count_lines(folder / "curated.jsonl") if (folder / "curated.jsonl").exists() else num_made
    )
    return {
        "made": num_made,
        "kept": num_kept,
        "built": _count_lines(folder / "examples" / "pairs.jsonl"),
    }


def _count_lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())
