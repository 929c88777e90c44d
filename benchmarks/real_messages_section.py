"""What models write at the mistakes, for docs/evidence_real.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from real_tables import interval, table

Json = Mapping[str, Any]
BEGINS = {"start": "the whole message", "decision": "on from the log's message, at the decision"}
BASES = {"none": "no hint", "other": "another site's hint"}
SAME, OK = "same", "ok"


def messages_section(value: Json) -> str:
    """How it was measured, and two tables for each model."""
    about = value["about"]
    parts = [
        "## What does a real model write there?\n\n"
        "Nothing is trained here either. The log-odds above are of one token. Here text is"
        " written at the sites of the held-out repositories whose right decision is known, of the"
        f" kinds {', '.join(f'`{kind}`' for kind in about['kinds'])}: the static check of"
        " `recompose evaluate --logs` can say both that these are there and that they are absent."
        " The model reads no hint, the site's own, or that of another site, as a system message"
        " above the mistake. It writes the whole message, or it goes on from the log's own message"
        " at the token where right and wrong part."
        f" The most probable token is taken each time, at most {about['new_tokens']} of them;"
        f" windows of {about['max_tokens']} tokens, {about['dtype']}. The check reads the messages,"
        " and nothing is run. `same` is the"
        " mistake again; `ok` a message in which it is certainly absent; `other` another certain"
        " mistake; `malformed` a call that cannot be read;"
        " `undecided` the rest: messages without a call or cut off before its end, and calls that"
        " only running would judge. Differences are paired over sites, with 95 % intervals by"
        " bootstrap over sessions, without a correction for multiple comparisons.\n"
    ]
    for name, model in value["models"].items():
        parts.append(
            f"### Messages: {name} (as `{model['family']}`), {len(model['sites'])} of"
            f" {model['sites_planned']} sites\n"
        )
        parts.append(
            f"A processor with {model['processor']}, code of commit {model['commit']}."
            + (
                " The run was stopped by its time limit, in the order of a hash.\n"
                if len(model["sites"]) < model["sites_planned"]
                else "\n"
            )
        )
        parts.append(_table(model["rows"]))
        parts.append(_reasons(model["sites"]))
    return "\n".join(parts)


def _table(rows: Any) -> str:
    head = ("writes", "verdict", "no hint", "own hint", "another site's hint")
    return table(
        (*head, *(f"own hint, over {text}" for text in BASES.values())),
        [
            (
                BEGINS[row["begin"]],
                f"`{row['outcome']}`",
                *(f"{row['shares'][name]:.2f}" for name in ("none", "now", "other")),
                *(interval(row[f"over {base}"]) for base in BASES),
            )
            for row in rows
        ],
    )


def _reasons(sites: Sequence[Json]) -> str:
    """Why the check says what it says, over all contexts."""
    counts = Counter(
        (begin, f"`{outcome}`, {site['reasons'][context].replace('_', ' ')}")
        for site in sites
        for context, outcome in site["outcomes"].items()
        if (begin := context.partition("/")[0])
    )
    lines = [
        f"{text}: "
        + ", ".join(f"{why} {n}" for (of, why), n in counts.most_common() if of == begin)
        for begin, text in BEGINS.items()
    ]
    return "Messages by verdict and reason, over all contexts:\n\n" + "".join(
        f"- {line}.\n" for line in lines
    )


def messages_in_words(value: Json | None) -> list[str]:
    """Whether the own hint makes the mistake rarer in what a model writes."""
    sentences = []
    for name, model in (value or {"models": {}})["models"].items():
        rows = {(row["begin"], row["outcome"]): row for row in model["rows"]}
        for begin, how in (("start", "writes the message"), ("decision", "goes on from there")):
            if (row := rows.get((begin, SAME))) is None:
                continue
            sentences.append(
                f"When {name} itself {how} at mistakes in held-out repositories, it"
                f" {_effect(row)} without and with another site's: {row['shares']['now']:.0%} of"
                f" the messages, {row['shares']['none']:.0%} without a hint,"
                f" {row['shares']['other']:.0%} with another site's ({row['n']} sites)."
                + _unread(rows[begin, "undecided"], rows[begin, "malformed"])
            )
    return sentences


def _effect(row: Json) -> str:
    """What both intervals show together."""
    pairs = [row[f"over {base}"] for base in BASES]
    if all(pair["high"] is not None and pair["high"] < 0 for pair in pairs):
        return "repeats the mistake with the hint less often than"
    if all(pair["low"] is not None and pair["low"] > 0 for pair in pairs):
        return "repeats the mistake with the hint more often than"
    return "is not shown to repeat the mistake with the hint more or less often than"


def _unread(undecided: Json, malformed: Json) -> str:
    """What share of the messages says nothing, if it is most of them."""
    means = [sum(row["shares"].values()) / len(row["shares"]) for row in (undecided, malformed)]
    if sum(means) <= 1 / 2:
        return ""
    return (
        f" Most say nothing either way: {means[0]:.0%} cannot be judged, {means[1]:.0%} hold a"
        " call that cannot be read."
    )
