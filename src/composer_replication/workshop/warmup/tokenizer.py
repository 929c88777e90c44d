"""The tokenizer of the workshop's student: an episode has about 250 tokens, and its text is what
any model of the family reads.

What never changes - the template's own words, the JSON around a call, the tools' descriptions, the
environment's answers - is one token for each stretch ("phrases"); names and numbers are byte-level
BPE.
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
    Reckoner,
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
# Names of a made-up tool set: private characters, which stand nowhere else, so what is left around
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
    """The tokenizer; it is made of training tasks alone and always the same."""
    bare = Renderer.for_tokenizer(
        train_tiny_tokenizer([], vocab_size=300, family=FAMILY), family=FAMILY
    )
    phrases = constant_phrases(bare)
    lessons = [
        make_lesson(f"tokenizer:{i}", habits=Habits(), tests=Reckoner()) for i in range(NUM_TEXTS)
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
        lesson_on(task, random.Random(task.id), habits=Habits(), tests=Reckoner()) for task in tasks
    ]
    parts = {
        line
        for text in _rendered(renderer, lessons)
        for part in _CHANGES.split(text)
        for line in re.split(r"(?<=[^\n]\n)", part)
    }
    # What the template's own source holds would count as a control token of it.
    found = {part for part in parts if len(part) >= MIN_PHRASE and part not in renderer.template}
    # In a function the sign alone may be wrong, so what stands before it is one token: the sign can
    # be copied from behind the same one.
    found |= {"def ", *(f"({a}, {b}): return {a}" for a, b in PARAMETERS)}
    return tuple(sorted(found, key=lambda part: (-len(part), part)))


def _rendered(renderer: Renderer, lessons: Iterable[Lesson]) -> list[str]:
    return [renderer.render(lesson.turns, tools=lesson.tools).text for lesson in lessons]
