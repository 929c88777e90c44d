"""The data card of sessions written as a data set: what is in it, who wrote it, what was left out.

    data_card(DataCard(sessions=20, splits={"train": 400, "test": 61}, authors={...}, ...))

Names in it come from logs and are untrusted. Imports core only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from composer_replication.report.card import TERMS, code, markdown_text

SPLIT_FILE = "data/{split}.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCard:
    """The facts of a data card.

    `splits` are rows per split, `authors` rows by the model that wrote the completion, `formats`
    sessions by the agent whose log they are from; `left_out` is what no row may teach, by why.
    """

    sessions: int
    splits: Mapping[str, int]
    split_by: str
    authors: Mapping[str, int] = field(default_factory=dict)
    formats: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    version: str = ""


def data_card(card: DataCard) -> str:
    """The README.md of the folder, with the front matter that a hub and `datasets` read.

    >>> data_card(DataCard(sessions=2, splits={"train": 9}, split_by="session")).splitlines()[4]
    '  - split: train'
    """
    files = [
        line
        for split in card.splits
        for line in (f"  - split: {split}", f"    path: {SPLIT_FILE.format(split=split)}")
    ]
    rows = ", ".join(f"{count:,} rows in `{split}`" for split, count in card.splits.items())
    authors = ", ".join(f"{code(name)} ({count:,} rows)" for name, count in card.authors.items())
    formats = ", ".join(f"{code(name)} ({count:,})" for name, count in card.formats.items())
    left_out = [f"- {markdown_text(why)}: {count:,}" for why, count in card.left_out.items()]
    lines = [
        "---",
        "configs:",
        "- config_name: default",
        "  data_files:",
        *files,
        "task_categories: [text-generation]",
        "tags: [agent, tool-use, recompose]",
        "# license: the terms of the logs' authors apply",
        "---",
        "",
        "# Messages of coding agents, with their context",
        "",
        f"{card.sessions:,} sessions; {rows}. Split by {card.split_by}. Agents: {formats}.",
        "",
        "A row is one message of a model: `prompt` (the messages that it was written after),"
        " `completion` (the message), `tools` (those on offer, as far as the log says). TRL's"
        " conversational prompt-completion; arguments of calls are objects.",
        "",
        "## Who wrote it",
        "",
        f"{authors or 'Nobody knows: the logs name no model'}. {TERMS}",
        "",
        "## What was left out",
        "",
        "Messages that no row has as its completion, by category and kind:",
        "",
        *(left_out or ["- nothing"]),
        "- known kinds of secrets: redacted when the logs were read, and searched for again before"
        " this was written. No search finds all; read the rows before you give them away.",
        "",
        f"Written by `recompose sessions --write --form parquet` {card.version}.",
    ]
    return "\n".join(lines) + "\n"
