"""What models write at the mistakes, for docs/evidence_real.md."""

from __future__ import annotations

from collections.abc import Mapping
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
        " sampled at the sites of the held-out repositories whose right decision is known, of the"
        f" kinds {', '.join(f'`{kind}`' for kind in about['kinds'])}: the static check of"
        " `recompose evaluate --logs` can say both that these are there and that they are absent."
        " The model reads no hint, the site's own, or that of another site, as a system message"
        " above the mistake. It writes the whole message, or it goes on from the log's own message"
        " at the token where right and wrong part."
        f" {about['samples']} messages for each context, at temperature 1 and from the same random"
        f" numbers, of at most {about['new_tokens']} new tokens; windows of {about['max_tokens']}"
        f" tokens, {about['dtype']}. The check reads them, and nothing is run. `same` is the"
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


def messages_in_words(value: Json | None) -> list[str]:
    """Whether the own hint makes the mistake rarer in what a model writes."""
    sentences = []
    for name, model in (value or {"models": {}})["models"].items():
        rows = {(row["begin"], row["outcome"]): row for row in model["rows"]}
        for begin, how in (("start", "writes the message"), ("decision", "goes on from there")):
            if (row := rows.get((begin, SAME))) is None:
                continue
            fewer = all(_below(row[f"over {base}"]) for base in BASES)
            more = all(_above(row[f"over {base}"]) for base in BASES)
            effect = (
                "less often than"
                if fewer
                else "more often than"
                if more
                else "not demonstrably more or less often than"
            )
            sentences.append(
                f"When {name} itself {how} at mistakes in held-out repositories, it repeats the"
                f" mistake with the hint {effect} without and with another site's:"
                f" {row['shares']['now']:.0%} of the messages, {row['shares']['none']:.0%}"
                f" without a hint, {row['shares']['other']:.0%} with another site's"
                f" ({row['n']} sites)."
            )
    return sentences


def _below(row: Json) -> bool:
    return row["high"] is not None and row["high"] < 0


def _above(row: Json) -> bool:
    return row["low"] is not None and row["low"] > 0
