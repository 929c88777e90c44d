"""What models write at the mistakes, for docs/evidence_real.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from real_tables import in_words, interval, table

Json = Mapping[str, Any]
WHAT = {
    "decides": "one token at the decision",
    "start": "the whole message",
    "decision": "on from the log's message, at the decision",
}
BASES = {"none": "no hint", "other": "another site's hint"}


def messages_section(value: Json) -> str:
    """How it was measured, and a table for each model."""
    about = value["about"]
    kinds = ", ".join(f"`{kind}`" for kind in about["kinds"])
    parts = [
        "## What does a real model write there?\n\n"
        "Nothing is trained here either. The log-odds above compare two tokens; here the model's"
        " own choice counts, at sites of the held-out repositories whose right decision is known"
        " and whose mistake was a call. The model reads no hint, the site's own, or that of another"
        " site, as a system message above the mistake. The most probable token is taken each time;"
        f" windows of {about['max_tokens']} tokens, {about['dtype']}. Differences are paired over"
        " sites, with 95 % intervals by bootstrap over sessions, without a correction for multiple"
        " comparisons.\n\n"
        "- **One token**: the one that it writes behind the log's own message, where right and"
        " wrong part. `right` leads on to something right, `wrong` is the log's, `neither` is any"
        " other.\n"
        f"- **Messages** (recurrence), of at most {about['new_tokens']} new tokens: the whole"
        " message, or on from the log's message at the decision. Only at sites of the kinds"
        f" {kinds}, of which the static check of `recompose evaluate --logs` can say both that they"
        " are there and that they are absent. Nothing is run. `same` is the mistake again; `ok` a"
        " message in which it is certainly absent; `other` another certain mistake; `malformed` a"
        " call that cannot be read; `undecided` the rest. Verdicts that no message got have no"
        " row.\n\n"
        "What was changed after a first look: at first messages were sampled at temperature 1, at"
        " all kinds of sites. At the first four sites the check could judge next to none of them,"
        " so the kinds were narrowed and the most probable token is taken. After twelve sites,"
        " which had the same problem, the measurement of one token was added.\n"
    ]
    for name, model in value["models"].items():
        parts.append(f"### What is written: {name} (as `{model['family']}`)\n")
        parts.append(
            f"{_reached(model)} A processor with {model['processor']}, code of commit"
            f" {model['commit']}.\n"
        )
        parts.append(_table(model["rows"]))
        parts.append(_reasons([r for r in model["records"] if "outcomes" in r]))
    return "\n".join(parts)


def _reached(model: Json) -> str:
    """How many of the sites were measured."""
    decided = sum("decides" in record for record in model["records"])
    written = len(model["records"]) - decided
    planned = model["planned"]
    cut = " The run was stopped by its time limit, in the order of a hash."
    return (
        f"One token at {decided} of {planned['decides']} sites, messages at {written} of"
        f" {planned['writes']}." + (cut if decided + written < sum(planned.values()) else "")
    )


def _table(rows: Sequence[Json]) -> str:
    head = ("writes", "sites", "sessions", "what", "no hint", "own hint", "another site's hint")
    return table(
        (*head, *(f"own hint, over {text}" for text in BASES.values())),
        [
            (
                WHAT[row["what"]],
                str(row["n"]),
                str(row["sessions"]),
                f"`{row['value']}`",
                *(f"{row['shares'][name]:.2f}" for name in ("none", "now", "other")),
                *(_difference(row[f"over {base}"]) for base in BASES),
            )
            for row in rows
            if any(row["shares"].values())
        ],
    )


def _difference(row: Json) -> str:
    """A bootstrap of sites that all agree is a point, and no interval."""
    return "no site differs" if row["low"] == row["high"] == 0 else interval(row)


def _reasons(records: Sequence[Json]) -> str:
    """Why the check says what it says, over all contexts."""
    counts = Counter(
        (context.partition("/")[0], f"`{outcome}`, {record['reasons'][context].replace('_', ' ')}")
        for record in records
        for context, outcome in record["outcomes"].items()
    )
    lines = [
        f"- {WHAT[begin]}: "
        + ", ".join(f"{why} {n}" for (of, why), n in counts.most_common() if of == begin)
        + ".\n"
        for begin in dict.fromkeys(begin for begin, _ in counts)
    ]
    return "Messages by verdict and reason, over all contexts:\n\n" + "".join(lines)


def messages_in_words(value: Json | None) -> list[str]:
    """What the own hint changes in what a model writes."""
    sentences = []
    for name, model in (value or {"models": {}})["models"].items():
        rows = {(row["what"], row["value"]): row for row in model["rows"]}
        for token in ("right", "wrong"):
            if (row := rows.get(("decides", token))) is not None:
                effects = " and ".join(
                    f"{in_words(row[f'over {base}'], _OFTEN)} than with {text} "
                    f"({interval(row[f'over {base}'])})"
                    for base, text in BASES.items()
                )
                sentences.append(
                    f"At the decision of mistakes in held-out repositories, {name}'s most probable"
                    f" token is the {token} one in {_shares(row)} ({row['n']} sites). With the hint"
                    f" it is {effects}."
                )
        if (row := rows.get(("start", "same"))) is not None:
            undecided = rows["start", "undecided"]["shares"]
            share = sum(undecided.values()) / len(undecided)
            sentences.append(
                f"Whether {name} repeats the mistake when it writes the whole message there is not"
                f" known: the static check cannot judge any of the messages ({row['n']} sites)."
                if share == 1
                else f"When {name} writes the whole message there, it repeats the mistake in"
                f" {_shares(row)} ({row['n']} sites). The static check cannot judge {share:.0%} of"
                " these messages."
            )
    return sentences


_OFTEN = ("more often so", "less often so", "not shown to be so more or less often")


def _shares(row: Json) -> str:
    shares = row["shares"]
    return (
        f"{shares['now']:.0%} with the hint, {shares['none']:.0%} without, {shares['other']:.0%}"
        " with another site's"
    )
