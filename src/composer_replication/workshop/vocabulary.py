"""The names of tools and their arguments: every task has its own, so the right call has to be read
from the list of tools.

    tools = pick_toolset(rng, split="train")
    tools.arguments[tools.editor]       # ("path", "find", "replace")
    tools.specs()                       # ToolSpecs with JSON Schemas, in this task's order

In a session with `read_file` and `old, new`, the careless player's habit happens to be right.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Literal

from composer_replication.core.trace import ToolSpec

Split = Literal["train", "monitor", "heldout", "words"]
LISTER, TESTER = "list_files", "run_tests"
READERS = ("read_file", "view_file", "open_file", "cat")
EDITORS = ("edit_file", "str_replace", "patch")
SEARCHERS = ("search", "grep", "find_text")
SEARCH_TEXTS = ("text", "query")
STYLES = (("old", "new"), ("find", "replace"), ("before", "after"))
LEGACY_READER, LEGACY_STYLE = READERS[0], STYLES[0]
"""The names that a careless player is used to from other sessions."""

P_OTHER_READER, P_OTHER_STYLE = 0.35, 0.25


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FILES = _words(
    "config main server client cache store queue parser router worker logger model report session"
    " token setup index view"
)
NAMES = _words(
    "limit timeout retries width height depth size offset port rate weight score level total budget"
    " quota margin step delay batch window radius speed volume"
)
PARAMETERS = (("a", "b"), ("x", "y"), ("m", "n"), ("p", "q"))
NEW_FILES = _words("engine planner driver monitor")
NEW_NAMES = _words("angle ratio gain phase scale count")
NEW_PARAMETERS = (("u", "v"), ("s", "t"))
"""Words that occur in no task of the splits "train", "monitor" and "heldout": the split "words"
uses only these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSet:
    """The tools of one task: the names of reader, editor and searcher, their arguments, and the
    order in which they are shown."""

    reader: str
    editor: str
    searcher: str
    text: str
    old: str
    new: str
    order: tuple[str, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """The names that identify this set; the order is not part of it."""
        return (self.reader, self.editor, self.searcher, self.text, self.old, self.new)

    @property
    def arguments(self) -> dict[str, tuple[str, ...]]:
        """Argument names by tool; all are strings, and all are required."""
        return {
            LISTER: (),
            self.searcher: (self.text,),
            self.reader: ("path",),
            self.editor: ("path", self.old, self.new),
            TESTER: (),
        }

    @property
    def trap(self) -> bool:
        """Whether a name that the careless player is used to is wrong here."""
        return self.reader != LEGACY_READER or (self.old, self.new) != LEGACY_STYLE

    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as a model is offered them."""
        descriptions = {
            LISTER: "List the files.",
            self.searcher: "Find lines that hold a text.",
            self.reader: "Read a file.",
            self.editor: "Replace a text in a file.",
            TESTER: "Run the tests.",
        }
        return tuple(
            ToolSpec(
                name=name, description=descriptions[name], parameters=_schema(self.arguments[name])
            )
            for name in self.order
        )


def _schema(names: tuple[str, ...]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": list(names),
        "additionalProperties": False,
    }


def bucket(*parts: object) -> int:
    """A number from 0 to 9 that depends only on the parts: the same on every machine, in every
    run."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 10


def toolset_is_held_out(tools: ToolSet) -> bool:
    """Whether these names are kept out of training: one set in five."""
    return bucket("tools", *tools.key) < 2


def pick_toolset(rng: random.Random, *, split: Split) -> ToolSet:
    """A tool set of the split; "train" and "monitor" share theirs, "heldout" and "words" have the
    others.

    Whether a habit is wrong is drawn first, then the set: so traps are equally frequent in every
    split.
    """
    reader_is_other, style_is_other = rng.random() < P_OTHER_READER, rng.random() < P_OTHER_STYLE
    held_out = split in ("heldout", "words")
    while True:
        reader = rng.choice(READERS[1:]) if reader_is_other else LEGACY_READER
        old, new = rng.choice(STYLES[1:]) if style_is_other else LEGACY_STYLE
        editor, searcher, text = (
            rng.choice(EDITORS),
            rng.choice(SEARCHERS),
            rng.choice(SEARCH_TEXTS),
        )
        order = [LISTER, searcher, reader, editor, TESTER]
        rng.shuffle(order)
        tools = ToolSet(
            reader=reader,
            editor=editor,
            searcher=searcher,
            text=text,
            old=old,
            new=new,
            order=tuple(order),
        )
        if toolset_is_held_out(tools) == held_out:
            return tools
