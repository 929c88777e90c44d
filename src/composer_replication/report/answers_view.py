"""What other models answered at turns of the logs, as plain values: the files of `replay`.

    answered = AnsweredTurns.read(work)
    answered.views(session, day="2026-11-02", split="training")[0]["answers"][0]["vote"]   -> 1

Only what a page shows is kept of an answer. A `vote` is the number of an action: 0 is the
student's, 1 the one that most of the other families gave.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from composer_replication.core.codec import read_anchors, read_answers, read_preferences
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import read_lines
from composer_replication.core.site import Answer, Site, turn_site_id
from composer_replication.core.stamps import Stale
from composer_replication.core.trace import Session, Turn
from composer_replication.report.funnel import read_object
from composer_replication.report.views import CONTEXT, MISTAKE, turn_view

BEFORE = 3
ANSWER_CHARS = 4000
PAIR, NO_VERDICT = "pair", "no result"
NOT_RECORDED = "not_recorded"


@dataclass(slots=True)
class AnsweredTurns:
    """The answers of a work folder by session and turn, and what came of each turn."""

    answers: dict[str, dict[int, list[dict[str, Any]]]] = field(default_factory=dict)
    outcomes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    curation: Mapping[str, str] = field(default_factory=dict)
    num_views: int = 0

    @classmethod
    def read(cls, work: Path, *, stale: Mapping[str, Stale]) -> AnsweredTurns:
        """The answers of a work folder; none if `replay` did not run there, or on other sessions.

        `stale` are the folder's stale artefacts.
        """
        path = work / "answers.jsonl"
        if not path.exists() or path.name in stale:
            return cls()
        chosen = {
            turn_site_id(pair.session_id, pair.turn): pair.chosen
            for pair in _read(read_preferences, work / "preferences.jsonl", stale)
        }
        anchors = _read(read_anchors, work / "anchors.jsonl", stale)
        turns = (read_object(work / "replay.json", verb="replay") or {}).get("turns", {})
        found = cls(
            outcomes=turns if isinstance(turns, dict) else {},
            results={
                **{turn_site_id(a.session_id, a.turn): a.reason for a in anchors},
                **dict.fromkeys(chosen, PAIR),
            },
            curation=_curation(work, stale),
        )
        by_session: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(dict)
        for answer in read_answers(path):
            session_id, turn = _place(answer, path)
            view = _answer_view(
                answer,
                turn,
                outcome=found.outcomes.get(answer.site_id),
                chosen=chosen.get(answer.site_id),
            )
            by_session[session_id].setdefault(turn, []).append(view)
        found.answers = dict(by_session)
        return found

    @property
    def num_turns(self) -> int:
        """The turns that some teacher answered at."""
        return sum(map(len, self.answers.values()))

    def views(
        self,
        session: Session,
        *,
        day: str = "",
        split: str = "",
        sites: Mapping[int, tuple[str, Site]] | None = None,
    ) -> list[dict[str, Any]]:
        """The answered turns of a session; `sites` are its sites by turn, with their names."""
        turns = self.answers.get(session.id, {})
        views: list[dict[str, Any]] = []
        for turn, answers in sorted(turns.items()):
            if turn >= len(session.turns):
                continue
            self.num_views += 1
            name, site = (sites or {}).get(turn, ("", None))
            context = session.context_indices(turn)
            is_mistake = site is not None and site.is_target
            views.append(
                {
                    "name": f"a{self.num_views:03d}",
                    "id": turn_site_id(session.id, turn),
                    "session": session.id,
                    "turn": turn,
                    "repository": session.repository,
                    "author": session.turns[turn].author,
                    "tools": [call.name for call in session.turns[turn].calls],
                    "day": day,
                    "split": split,
                    "site": name,
                    "kind": site.kind if site is not None else "",
                    "left_out_before": len(context) - len(context[-BEFORE:]),
                    "before": [
                        turn_view(session.turn_in_view(i, at=turn), i, chars=ANSWER_CHARS)
                        for i in context[-BEFORE:]
                    ],
                    "message": turn_view(
                        session.turns[turn],
                        turn,
                        place=MISTAKE if is_mistake else CONTEXT,
                        chars=ANSWER_CHARS,
                    ),
                    "answers": answers,
                    **self._verdict(turn_site_id(session.id, turn), answers),
                }
            )
        return views

    def _verdict(self, site_id: str, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What came of a turn: its outcome, who agreed, what it cost, and what `curate` said."""
        kept = self.outcomes.get(site_id, {})
        outcome = str(kept.get("outcome") or self.results.get(site_id, NO_VERDICT))
        return {
            "outcome": outcome,
            "tier": str(kept.get("tier", "")),
            "families": list(kept.get("families", ())),
            "of": kept.get("of", 0),
            "evidence": list(kept.get("evidence", ())),
            "judge": str(kept.get("judge", "")),
            "usd": kept.get("usd", sum(answer["usd"] for answer in answers)),
            "curation": self.curation.get(site_id, "") if outcome == PAIR else "",
        }


def _read(reader: Any, path: Path, stale: Mapping[str, Stale]) -> list[Any]:
    return list(reader(path)) if path.exists() and path.name not in stale else []


def _place(answer: Answer, path: Path) -> tuple[str, int]:
    """The session and the turn of an answer."""
    session_id, _, rest = answer.site_id.rpartition(":")[0].rpartition(":")
    if not session_id or not rest.isdecimal():
        raise DataError(
            f"an answer at {answer.site_id!r}, which is no turn of a session",
            where=str(path),
            fix="run again: recompose replay",
        )
    return session_id, int(rest)


def _answer_view(
    answer: Answer, turn: int, *, outcome: Mapping[str, Any] | None, chosen: Turn | None
) -> dict[str, Any]:
    votes, no_votes = ((outcome or {}).get(name, {}) for name in ("votes", "no_votes"))
    unsure = "unsure" if outcome is not None else NOT_RECORDED
    vote = votes.get(answer.teacher)
    return {
        "teacher": answer.teacher,
        "family": answer.family,
        "answered_by": answer.turn.author or "",
        "provider": answer.provider,
        "usd": answer.usd,
        "usd_by": answer.usd_by,
        "told_usd": answer.told_usd,
        "problem": answer.problem,
        "vote": vote,
        "no_vote": (
            "" if vote is not None or answer.problem else no_votes.get(answer.teacher, unsure)
        ),
        "chosen": chosen is not None and answer.turn == chosen,
        "message": turn_view(answer.turn, turn, chars=ANSWER_CHARS),
    }


def _curation(work: Path, stale: Mapping[str, Stale]) -> dict[str, str]:
    """By site id, "kept" or why `curate` dropped a pair; {} if it has not judged these pairs."""
    curated, dropped = work / "curated.jsonl", work / "dropped.jsonl"
    if not curated.exists() or curated.name in stale:
        return {}
    kept = {turn_site_id(pair.session_id, pair.turn): "kept" for pair in read_preferences(curated)}
    rows = [value for _, value in read_lines(dropped)] if dropped.exists() else []
    return {
        **{f"{row['pair_id']}:-": f"{row['reason']}: {row['detail']}" for row in rows},
        **kept,
    }


def answers_by_teacher(views: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The answers of each teacher: how many voted, of these for what the student did, how many
    cannot be used, and what was booked."""
    rows: dict[str, dict[str, Any]] = {}
    for answer in (answer for view in views for answer in view["answers"]):
        empty = {"answers": 0, "voted": 0, "same": 0, "unusable": 0, "usd": 0.0}
        row = rows.setdefault(answer["teacher"], {"teacher": answer["teacher"], **empty})
        row["answers"] += 1
        row["voted"] += answer["vote"] is not None
        row["same"] += answer["vote"] == 0
        row["unusable"] += bool(answer["problem"])
        row["usd"] += answer["usd"]
    return list(rows.values())


def turns_by_outcome(views: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """What came of the answered turns, the most common first."""
    return Counter(view["outcome"] for view in views).most_common()
