"""The tokenizer of the workshop's student: an episode has about 250 tokens, and its text is the
same as for any model of the family.

Every stretch of text that never changes - the template, the JSON around a call, the tools'
descriptions, the environment's answers - is one token (a "phrase"); names and numbers are
byte-level BPE.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterable
from typing import Any

from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.tiny_tokenizer import train_tiny_tokenizer
from composer_replication.workshop.demonstrators import Habits
from composer_replication.workshop.lessons import (
    Lesson,
    LessonTests,
    lesson_on,
    make_lesson,
)
from composer_replication.workshop.tasks import OPERATORS, make_task
from composer_replication.workshop.vocabulary import (
    EDITORS,
    FILES,
    LISTER,
    NAMES,
    PARAMETERS,
    READERS,
    SEARCHERS,
    STYLES,
    TESTER,
    ToolSet,
)

FAMILY = "qwen3-2507"
VOCAB, NUM_TEXTS, NUM_PROBES, MIN_PHRASE = 760, 500, 120, 3
WORDS_OR_NUMBERS = r"[A-Za-z_]+|\d+|[^A-Za-z_\d]+"
_CONTROL = r"<\|[a-z_]+\|>|</?tool_(?:call|response)>|</?think>"
# The names of a made-up tool set: private characters that occur nowhere else, so the text around
# them never changes.
_GAPS = dict(
    zip(
        ("reader", "editor", "searcher", "text", "old", "new"),
        "\ue001\ue002\ue003\ue004\ue005\ue006",
        strict=True,
    )
)
_CHANGES = re.compile(
    "|".join(
        [
            _CONTROL,
            "[\ue001-\ue006]",
            r"def .*",
            r"\w+\.py",
            r"\d+",
            (
                rf"\b(?:{'|'.join((*NAMES, *OPERATORS, *READERS, *EDITORS, LISTER, TESTER))}"
                r"|find_text)\b"
            ),
            rf"(?<=[ ,\"`])(?:{'|'.join((*SEARCHERS, *sum(STYLES, ())))})(?=[,.:`\"])",
        ]
    )
)


def workshop_tokenizer() -> Any:
    """The tokenizer; it is trained on training tasks only, and is always the same."""
    bare = Renderer.for_tokenizer(
        train_tiny_tokenizer([], vocab_size=300, family=FAMILY), family=FAMILY
    )
    phrases = constant_phrases(bare)
    lessons = [
        make_lesson(f"tokenizer:{i}", habits=Habits(), tests=LessonTests())
        for i in range(NUM_TEXTS)
    ]
    cut = re.compile("|".join([*map(re.escape, phrases), _CONTROL]))
    texts = [part for text in _rendered(bare, lessons) for part in cut.split(text) if part]
    words = [*(f"{word}.py" for word in FILES), *NAMES, *map(str, range(100))] * 20
    return train_tiny_tokenizer(
        [*texts, *words], vocab_size=VOCAB, pattern=WORDS_OR_NUMBERS, phrases=phrases, family=FAMILY
    )


def constant_phrases(renderer: Renderer) -> tuple[str, ...]:
    """Every stretch of a rendered episode that holds no name, no number and no control token,
    longest first."""
    tools = ToolSet(
        **_GAPS, order=(_GAPS["searcher"], LISTER, _GAPS["reader"], _GAPS["editor"], TESTER)
    )
    tasks = [dataclasses.replace(make_task(f"phrases:{i}"), tools=tools) for i in range(NUM_PROBES)]
    lessons = [
        lesson_on(task, random.Random(task.id), habits=Habits(), tests=LessonTests())
        for task in tasks
    ]
    parts = {
        line
        for text in _rendered(renderer, lessons)
        for part in _CHANGES.split(text)
        for line in re.split(r"(?<=[^\n]\n)", part)
    }
    # A phrase that occurs in the template's source would count as one of its control tokens.
    phrases = {part for part in parts if len(part) >= MIN_PHRASE and part not in renderer.template}
    # In a function only the sign may be wrong, so the text before it is one token: the student can
    # copy the sign that follows the same token.
    phrases |= {"def ", *(f"({a}, {b}): return {a}" for a, b in PARAMETERS)}
    return tuple(sorted(phrases, key=lambda part: (-len(part), part)))


def _rendered(renderer: Renderer, lessons: Iterable[Lesson]) -> list[str]:
    return [renderer.render(lesson.turns, tools=lesson.tools).text for lesson in lessons]
