"""The model card of an exported student: its training data, their authors, and its evaluation.

    model_card(Card(name="main", base="Qwen/Qwen3-4B-Instruct-2507", ...))    -> text of README.md

Names of authors and settings come from logs and are untrusted: they are put into code spans, with
control characters made visible and markup removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_replication.core.harmless import harmless
from composer_replication.report.headline import NO_EVALUATION

NO_AUTHORS = (
    "The authors of the logs are no longer known: the files that the run was trained on have"
    " changed or are gone."
)
TERMS = (
    "The terms of the models that wrote a log may restrict training on it and the use of the"
    " trained model."
)
FORMS = {
    "weights": "All weights, in the precision they were trained in.",
    "merged": (
        "The weights with the LoRA adapter written into them: W + s B A in float64, rounded once."
    ),
    "adapter": "A LoRA adapter; it needs its base model.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The facts of a card.

    `evaluations` are (title, sentence, reasons), `successes` the rows before, placebo, after and so
    on as (name, episodes, success with its interval), `commands` (purpose, command line),
    `reproduce` is the command that ran.
    """

    name: str
    base: str
    form: str
    steps: int
    seed: int
    weights_sha256: str
    family: str
    channels: Mapping[str, Mapping[str, Any]]
    inputs: Sequence[Mapping[str, Any]]
    authors: Mapping[str, int] = field(default_factory=dict)
    live: bool = False
    nulled: Sequence[str] = ()
    evaluations: Sequence[tuple[str, str, Sequence[str]]] = ()
    successes: Sequence[tuple[str, int, str]] = ()
    commands: Sequence[tuple[str, str]] = ()
    reproduce: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    base_name: str = ""


def model_card(card: Card) -> str:
    """The README of an exported folder, with the front matter that a hub reads.

    >>> card = Card(name="a", base="b", form="merged", steps=3, seed=1, weights_sha256="f" * 64,
    ...     family="qwen3", channels={}, inputs=[])
    >>> model_card(card).splitlines()[8]
    '# a'
    """
    library = "peft" if card.form == "adapter" else "transformers"
    front = [
        f"library_name: {library}",
        "pipeline_tag: text-generation",
        "tags: [recompose, agent, tool-use]",
    ]
    front.insert(
        0,
        (
            f"base_model: {json.dumps(card.base_name)}"
            if card.base_name
            else "# base_model: not on a hub"
        ),
    )
    active = {name: c for name, c in card.channels.items() if set(c["statuses"]) - {"off"}}
    versions = ", ".join(
        f"{markdown_text(name)} {markdown_text(value)}" for name, value in card.versions.items()
    )
    parts = [
        "\n".join(
            [
                "---",
                *front,
                ("# license: that of the base model, and the terms of the logs' authors, apply"),
                "---",
            ]
        ),
        f"\n# {markdown_text(card.name)}\n",
        (
            f"{FORMS[card.form]} Started from {code(card.base)}, trained for {card.steps} steps by"
            " `recompose train`."
        ),
        (
            "**A placebo: signals nulled: "
            + ", ".join(map(code, card.nulled))
            + ". Do not use it.**"
            if card.nulled
            else ""
        ),
        "\n## What it was trained on\n",
        (
            _table(
                [
                    (
                        code(n),
                        f"{c['tokens']:,}",
                        ", ".join(f"{s} {k}" for s, k in c["statuses"].items()),
                    )
                    for n, c in active.items()
                ],
                head=("channel", "tokens", "steps by status"),
            )
            if active
            else "No step was taken."
        ),
        _origin(card),
        (
            _table(
                [(code(i["path"]), i["rows"], code(str(i["sha256"])[:16])) for i in card.inputs],
                head=("input", "rows", "sha256, first 16"),
            )
            if card.inputs
            else ""
        ),
        "\n## Did it work?\n",
        *[
            f"**{title}.** {markdown_text(sentence)}\n"
            + "".join(f"\n- {markdown_text(r)}" for r in reasons)
            + "\n"
            for title, sentence, reasons in card.evaluations
        ],
        "" if card.evaluations else NO_EVALUATION,
        (
            _table(
                [(code(name), n, markdown_text(text)) for name, n, text in card.successes],
                head=("row", "episodes", "success"),
            )
            if card.successes
            else ""
        ),
        "\n## How to serve it\n",
        (
            f"Serve it with the chat template in this folder ({code(card.family)}), with which it"
            " was trained; the base model's template may rewrite earlier messages.\n"
        ),
        *[
            f"{purpose}:\n\n```\n{markdown_text(command)}\n```\n"
            for purpose, command in card.commands
        ],
        "\n## Provenance\n",
        *[f"- {markdown_text(note)}" for note in card.notes],
        f"- seed {card.seed}; hash of the weights {code(card.weights_sha256)}",
        f"- {versions}" if versions else "",
        (
            f"- trained by {code(card.reproduce)}, with the settings in `recompose.json`"
            if card.reproduce
            else "- settings and the rest: `recompose.json`"
        ),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def markdown_text(text: str) -> str:
    """Text as one line of Markdown that cannot form a tag, a link or a fence."""
    return (
        " ".join(harmless(str(text)).split())
        .replace("<", "&lt;")
        .replace("`", "'")
        .replace("](", "] (")
        .replace("|", "\\|")
    )


def code(text: str) -> str:
    """Text in a code span; a backtick in it becomes an apostrophe.

    >>> code("a`b")
    "`a'b`"
    """
    return (
        "`"
        + (" ".join(harmless(str(text)).split()).replace("`", "'").replace("|", "\\|") or " ")
        + "`"
    )


def _origin(card: Card) -> str:
    rollouts = "Live rollouts of the student itself. " if card.live else ""
    if not card.inputs:
        return f"\n{rollouts}\n" if rollouts else ""
    if not card.authors:
        return f"\n{rollouts}Imported logs. {NO_AUTHORS} {TERMS}\n"
    authors = ", ".join(
        f"{code(name)} ({count:,} messages)" for name, count in card.authors.items()
    )
    return (
        f"\n{rollouts}Imported logs, so training on them is context distillation. Written by"
        f" {authors}. {TERMS}\n"
    )


def _table(rows: Sequence[Sequence[Any]], *, head: Sequence[str]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in cells) + " |" for cells in lines)
