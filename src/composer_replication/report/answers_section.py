"""What other models answered, on the page: who was asked, what came of it, and the list of turns,
each with the logged message beside every answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.report.answers_view import PAIR, answers_by_teacher, turns_by_outcome
from composer_replication.report.explanations import (
    ANSWERED,
    ANSWERED_SHORT,
    CURATED,
    NO_VOTES,
    PROBLEMS,
)
from composer_replication.report.html import Html, el, join, plural, table
from composer_replication.report.kind_titles import kind_title
from composer_replication.report.limits import PageLimits, cut_end
from composer_replication.report.packed_list import ListShape, Row, list_link, packed_list
from composer_replication.report.page import bar_table
from composer_replication.report.site_article import turn_block, turns_before

SHAPE = ListShape(
    name="answers",
    nouns="answered turns",
    facets=("outcome", "teacher", "problem", "kind", "tool", "repository", "model", "split"),
    more=("day", "usd"),
    sorts=(
        ("", "in the order of the logs"),
        ("outcome", "by what came of it"),
        ("day", "newest first"),
        ("usd", "costliest first"),
    ),
    titles={"kind": kind_title},
    elsewhere="answers.jsonl",
)
ANSWERS = "What other models answered"
"""The title of the section."""
VOTES = (
    "Votes are by action: 0 is what the log's model did, the others are numbered from the one that"
    " most families gave. A model family has one vote; the family that wrote the log has none."
)


def answers_section(work: Mapping[str, Any] | None, limits: PageLimits) -> Html | None:
    """The answers of a `work_view`: counts by outcome and by teacher, then the list of turns; None
    if nobody was asked."""
    if work is None or not (work["answered"] or work["answers_stale"] or work["answers_lost"]):
        return None
    if work["answers_stale"]:
        return el("p", f"{work['answers_stale']}: run recompose replay again.", cls="note")
    return _answers(work["answered"], work["answers_lost"], limits)


def _answers(views: Sequence[Mapping[str, Any]], lost: int, limits: PageLimits) -> Html:
    answers = [answer for view in views for answer in view["answers"]]
    teachers = answers_by_teacher(views)
    booked = sum(view["usd"] for view in views)
    outcomes = [
        {
            "outcome": list_link(outcome_title(name), "answers", outcome=name),
            "count": count,
            "why": ANSWERED.get(name, ""),
        }
        for name, count in turns_by_outcome(views)
    ]
    families = len({answer["family"] for answer in answers})
    return join(
        el(
            "p",
            f"{plural(len(answers), 'answer')} of {plural(len(teachers), 'teacher')} from"
            f" {plural(families, 'family', 'families')} at"
            f" {plural(len(views), 'turn')} of the logs,"
            f" booked at {usd(booked)}. Teachers saw what the log's model had seen, trimmed, and"
            " nothing that came later.",
        ),
        (
            el(
                "p",
                f"Not shown: {plural(lost, 'answered turn')} of sessions that are not here.",
                cls="note",
            )
            if lost
            else None
        ),
        bar_table(
            outcomes,
            (("outcome", "what came of it"), ("count", "turns"), ("why", "meaning")),
            limits=limits,
            caption="what came of the answers",
        ),
        _teachers(teachers, limits),
        el("p", VOTES, cls="quiet"),
        packed_list(SHAPE, views, row=_row, article=answers_article, limits=limits),
    )


def outcome_title(name: str) -> str:
    """The outcome of a turn in a few words.

    >>> outcome_title("agreed"), outcome_title("a_new_one")
    ('others did the same', 'a new one')
    """
    return ANSWERED_SHORT.get(name) or name.replace("_", " ")


def usd(value: float) -> str:
    """A price.

    >>> usd(0.0), usd(0.000213), usd(1.5)
    ('$0', '$0.0002', '$1.5000')
    """
    return f"${value:.4f}" if value else "$0"


def _teachers(rows: Sequence[Mapping[str, Any]], limits: PageLimits) -> Html:
    lines = [
        (
            list_link(cut_end(row["teacher"], 80), "answers", teacher=row["teacher"]),
            row["answers"],
            row["voted"],
            row["same"],
            row["unusable"],
            usd(row["usd"]),
        )
        for row in rows
    ]
    head = ("teacher", "answers", "voted", "as the log's model", "unusable", "booked")
    left = len(lines) - limits.rows
    return join(
        table(lines[: limits.rows], head=head, numbers=range(1, 6), caption="teachers"),
        el("p", f"and {left} more", cls="quiet") if left > 0 else None,
    )


def answers_article(view: Mapping[str, Any], limits: PageLimits) -> Html:
    """One answered turn: what came of it and why, the messages above it, then the logged message
    and each answer side by side."""
    votes = [answer["vote"] for answer in view["answers"] if answer["vote"] is not None]
    answers = [_answer(answer, view, limits) for answer in view["answers"]]
    context = view["before"][-limits.turns :] if limits.turns else []
    left = view["left_out_before"] + len(view["before"]) - len(context)
    return el(
        "article",
        el(
            "h3",
            f"{view['name']} {_title(view)}: {outcome_title(view['outcome'])} ",
            el("small", f"{view['outcome']} · turn {view['turn']}", data_unsearched=True),
        ),
        el("p", el("code", view["id"]), f" {view['repository'] or ''}", cls="quiet"),
        el("p", _verdict(view), *_site_link(view), data_unsearched=True),
        turns_before(context, left, limits),
        el("div", _logged(view, votes, limits), el("div", answers), cls="beside"),
        cls="site",
        id=view["name"],
    )


def _title(view: Mapping[str, Any]) -> str:
    """What the turn was: its mistake if it is one, else its tool.

    >>> _title({"tools": ["Edit"], "kind": "edit_no_match"}), _title({"tools": [], "kind": ""})
    ('Edit: text not found', 'message')
    """
    tool = cut_end(view["tools"][0], 40) if view["tools"] else "message"
    return kind_title(view["kind"], tool) if view["kind"] else tool


def _site_link(view: Mapping[str, Any]) -> tuple[Html | str, ...]:
    if not view["site"]:
        return ()
    return (" The turn is ", el("a", view["site"], href=f"#{view['site']}"), ".")


def _verdict(view: Mapping[str, Any]) -> str:
    """What came of a turn and why, as sentences."""
    meaning = ANSWERED.get(view["outcome"], outcome_title(view["outcome"]))
    agreed = (
        f" {', '.join(view['families'])} ({len(view['families'])} of {view['of']} families) agree"
        f" at the tier {view['tier']}."
        if view["families"]
        else ""
    )
    evidence = (
        f" Evidence against the log: {', '.join(view['evidence'])}." if view["evidence"] else ""
    )
    judge = f" The judge {view['judge']} decided." if view["judge"] else ""
    curated = view["curation"]
    curation = (
        f" {CURATED.get(curated) or f'Dropped by recompose curate: {cut_end(curated, 200)}.'}"
        if view["outcome"] == PAIR
        else ""
    )
    sentence = f"{meaning[:1].upper()}{meaning[1:]}."
    return f"{sentence}{agreed}{evidence}{judge}{curation} Booked here: {usd(view['usd'])}."


def _logged(view: Mapping[str, Any], votes: Sequence[int], limits: PageLimits) -> Html:
    same = votes.count(0)
    label = f" · {same} of {plural(len(votes), 'vote')} for it" if votes else ""
    return el(
        "div",
        el("p", el("b", "in the log"), el("small", label), cls="side", data_unsearched=True),
        turn_block(view["message"], limits.message_chars),
    )


def _answer(answer: Mapping[str, Any], view: Mapping[str, Any], limits: PageLimits) -> Html:
    """One answer: who gave it, whether it voted, its price, and the message."""
    text, cls = _vote(answer, view)
    by = " · ".join(
        part
        for part in (
            f"family {answer['family']}" if answer["family"] else "",
            f"answered by {answer['answered_by']}" if answer["answered_by"] else "",
            f"through {answer['provider']}" if answer["provider"] else "",
        )
        if part
    )
    return el(
        "div",
        el(
            "p",
            el("b", cut_end(answer["teacher"], 80)),
            el("small", f" · {_price(answer)}"),
            cls="side",
        ),
        el("p", el("span", text, cls=f"outcome {cls}"), el("br"), el("small", cut_end(by, 240))),
        turn_block(answer["message"], limits.message_chars),
    )


def _price(answer: Mapping[str, Any]) -> str:
    counted = {"ours": " by our count", "endpoint": " by its report"}.get(answer["usd_by"], "")
    reported_usd = None if answer["usd_by"] == "endpoint" else answer["told_usd"]
    reported = f", it reports {usd(reported_usd)}" if reported_usd is not None else ""
    return f"{usd(answer['usd'])}{counted}{reported}"


def _vote(answer: Mapping[str, Any], view: Mapping[str, Any]) -> tuple[str, str]:
    """Whether an answer voted and for what, and the class of its colour."""
    if problem := answer["problem"]:
        why = PROBLEMS.get(problem, "")
        return f"unusable: {cut_end(problem, 200)}" + (f" ({why})" if why else ""), "malformed"
    vote = answer["vote"]
    if vote is None:
        return NO_VOTES.get(answer["no_vote"], f"no vote: {answer['no_vote']}"), "undecided"
    if vote == 0:
        return "voted for what the log's model did", "same"
    if answer["chosen"]:
        return f"voted for action {vote}: the chosen message", "ok"
    return f"voted for action {vote}", "ok" if view["outcome"] == PAIR and vote == 1 else "other"


def _row(view: Mapping[str, Any]) -> Row:
    answers = view["answers"]
    return {
        "name": view["name"],
        "outcome": view["outcome"],
        "teacher": [answer["teacher"] for answer in answers],
        "problem": sorted({_problem(answer["problem"]) for answer in answers} - {""}),
        "kind": view["kind"],
        "tool": view["tools"][0] if view["tools"] else "",
        "repository": view["repository"] or "",
        "model": view["author"] or "",
        "split": view["split"],
        "day": view["day"],
        "usd": round(view["usd"], 6),
        "title": _title(view),
        "text": _first_words(view["message"]),
    }


def _problem(problem: str) -> str:
    """The kind of a problem, without its details.

    >>> _problem("curate: min_words: 2 of 3"), _problem("cut_off")
    ('curate: min_words', 'cut_off')
    """
    return ":".join(problem.split(":")[: 2 if problem.startswith("curate:") else 1])


def _first_words(message: Mapping[str, Any]) -> str:
    for block in message["blocks"]:
        if block["type"] == "call":
            return " ".join(f"{key} {value}" for key, value in block["arguments"].items())[:140]
        if block.get("text"):
            return str(block["text"]).replace("\n", " ")[:140]
    return ""
