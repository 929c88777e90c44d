"""The real tokenizers that scripts/real_models.py makes folders of, each with a family, and what
the tests say of them.

A case is a family, a folder and the template that stands in it: the folder's own, or the official
one of a fixture for a package that carries none or an older one.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import read_hints, read_sessions, read_sites
from composer_replication.core.site import Hint, Site
from composer_replication.core.trace import Session, Text, Thinking, Turn
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.messages import Message, replace_surrogates, tool_messages
from composer_replication.tokens.prefix import lay_out_segment
from composer_replication.tokens.renderer import Rendered, Renderer
from composer_replication.tokens.template_families import FAMILIES, Family
from tests.tokens.students import official
from tests.tokens.test_renderer import HEADERS, written_call

VARIABLE = "COMPOSER_REPLICATION_REAL"
"""Names the cache folder of scripts/real_models.py; scripts/run_real.py sets it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A family on a real tokenizer; `recognised_by` is "text", "what it renders", or "name" if the
    family has to be named in student.template.

    `fixture` is the official template if the folder's own is not it; `compared` whether that
    template stands for the family at all.
    """

    family: str
    folder: str
    recognised_by: str
    fixture: str = ""
    compared: bool = True

    @property
    def id(self) -> str:
        """Example: "llama3-tokenizer-llama3_1-llama3_2"."""
        parts = (self.family, self.folder.removeprefix("tokenizer-"), self.fixture)
        return " ".join(part for part in parts if part)


CASES = (
    Case("qwen2.5", "tokenizer-qwen2_5", "text"),
    Case("qwen3", "tokenizer-qwen3", "text"),
    Case("qwen3-thinking", "tokenizer-qwen3", "name"),
    Case("qwen3-2507", "tokenizer-qwen3", "text", fixture="qwen3_instruct_2507"),
    Case("llama3", "tokenizer-llama3_1", "text", fixture="llama3_1"),
    Case("llama3", "tokenizer-llama3_1", "text", fixture="llama3_2"),
    Case("gemma", "tokenizer-gemma3", "text"),
    Case("gpt-oss", "tokenizer-gptoss", "text", fixture="gptoss"),
    Case("deepseek-v3", "tokenizer-deepseek_v3", "text"),
    Case("chatml-tools", "smollm2", "name", compared=False),
)


def cache_folder() -> Path:
    """The folder of the real models; skips the test if there is none."""
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        pytest.skip("the real tokenizers are not there: `make real` runs this test")
    return Path(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """The public sessions, their sites, and the hints by the site they belong to."""

    sessions: Mapping[str, Session]
    sites: Mapping[str, Site]
    hints: Sequence[Hint]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSegment:
    """One segment of a session as its model saw it."""

    session: Session
    turns: tuple[Turn, ...]
    numbers: tuple[int, ...]
    rendered: Rendered


class OnLogs:
    """One case on the public sessions: each segment is rendered once for all its tests."""

    def __init__(self, case: Case, logs: Logs) -> None:
        self.case, self.logs = case, logs
        self.path = cache_folder() / "folders" / case.folder
        self.tokenizer = load_tokenizer(str(self.path))
        if case.fixture:
            self.tokenizer.chat_template = official(case.fixture)
        name = case.family if case.recognised_by == "name" else "auto"
        self.renderer = Renderer.for_tokenizer(self.tokenizer, family=name)

    @property
    def family(self) -> Family:
        """The family of the case."""
        return FAMILIES[self.case.family]

    @cached_property
    def segments(self) -> list[SeenSegment]:
        """Every segment of every session."""
        return [
            self.seen(session, number)
            for session in self.logs.sessions.values()
            for number in range(len(session.segments))
        ]

    def seen(self, session: Session, number: int) -> SeenSegment:
        """One segment, rendered."""
        scene = lay_out_segment(session, session.segments[number], renderer=self.renderer)
        rendered = self.renderer.render(scene.turns, tools=session.tools, numbers=scene.numbers)
        return SeenSegment(
            session=session, turns=scene.turns, numbers=scene.numbers, rendered=rendered
        )

    def read(self, text: str) -> str:
        """A text as this tokenizer reads it, said without asking it."""
        return read_by(self.case.family, self.case.folder, text)

    def header(self, segment: SeenSegment, position: int) -> str:
        """What stands before a message's own tokens."""
        if self.case.family == "deepseek-v3" and position:
            # the last message above it that was rendered at all
            above = [
                message["role"]
                for item in self.renderer.messages_of(segment.turns[:position])
                for message in item.messages
            ]
            return "" if above[-1:] == ["tool"] else HEADERS["deepseek-v3"]
        return HEADERS[self.case.family]


def read_by(family: str, folder: str, text: str) -> str:
    """Qwen's tokenizer composes accents (NFC), Gemma's takes "▁" for a space; the others leave the
    text as it is."""
    if family == "gemma":
        return text.replace("▁", " ")
    return unicodedata.normalize("NFC", text) if folder.startswith("tokenizer-qwen") else text


def message_text(family: Family, turn: Turn) -> str:
    """T of a message in plain text, written here and not by the template."""
    notes: Counter[str] = Counter()
    text = "\n".join(b.text for b in turn.blocks if isinstance(b, Text) and b.text)
    text = replace_surrogates(text, notes).lstrip(family.lstrip)
    thought = "\n".join(b.text for b in turn.blocks if isinstance(b, Thinking) and b.text)
    thought = replace_surrogates(thought, notes)
    calls = [
        written_call(
            family.name,
            replace_surrogates(c.name, notes),
            replace_surrogates(c.arguments, notes),
            c.id,
        )
        for c in turn.calls
    ]
    if family.name == "gpt-oss":
        return _harmony(text, thought, calls)
    end = family.end_of({"tool_calls": calls})
    if family.name == "deepseek-v3":
        block = "\n".join(calls)
        opened = f"<｜tool▁calls▁begin｜>{block}<｜tool▁calls▁end｜>" if calls else ""
        return f"{text}{opened}{end}"
    begin = f"<think>\n{thought}\n</think>\n\n" if family.thinking == "kept" else ""
    return begin + "\n".join(part for part in (text, *calls) if part) + end


def _harmony(text: str, thought: str, calls: list[str]) -> str:
    parts = [f"<|channel|>analysis<|message|>{thought}<|end|>"] if thought else []
    if not calls:
        parts.append(f"<|channel|>final<|message|>{text}<|return|>")
    elif text:
        channel = "commentary" if thought else "analysis"
        parts.append(f"<|channel|>{channel}<|message|>{text}<|end|>")
    return "<|start|>assistant".join([*parts, *(f" {call}<|call|>" for call in calls)])


def texts_of(session: Session) -> list[str]:
    """Every text that a session holds, of every block."""
    texts: list[str] = []
    for turn in session.turns:
        for block in turn.blocks:
            texts += [value for name in ("text", "name") if (value := getattr(block, name, ""))]
        texts += [json.dumps(call.arguments, ensure_ascii=False) for call in turn.calls]
    return [replace_surrogates(text, Counter()) for text in texts]


def conversation_of(on: OnLogs, segment: SeenSegment) -> tuple[list[Message], Any]:
    """The messages of a segment, and its tools as a template takes them."""
    items = on.renderer.messages_of(segment.turns)
    return [m for item in items for m in item.messages], tool_messages(segment.session.tools)


def record(case: Case, check: str, **counts: Any) -> None:
    """Keep a test's counts for the table: one file a test, as tests run in several processes."""
    folder = cache_folder() / "results"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{case.id} {check}".replace(" ", "_").replace("/", "-")
    line = {"family": case.family, "tokenizer": case.folder, "template": case.fixture or "its own"}
    (folder / f"{name}.json").write_text(
        json.dumps({**line, "check": check, "counts": counts}, ensure_ascii=False), "utf-8"
    )


@cache
def read_logs(folder: Path) -> Logs:
    """Sessions, sites and hints of a work folder that `recompose ingest`, `sites` and `hints` have
    filled."""
    return Logs(
        sessions={s.id: s for s in read_sessions(folder / "sessions.jsonl")},
        sites={s.id: s for s in read_sites(folder / "sites.jsonl")},
        hints=list(read_hints(folder / "hints.jsonl")),
    )
