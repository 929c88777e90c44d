"""Pairs of usual shape for the tests of curation: half of the messages only call tools, the rest say a sentence or two."""

from __future__ import annotations

import random
from typing import Any

from composer_replication.core.site import Preference
from composer_replication.core.trace import Segment, Session, SourceRef, Text, ToolCall, ToolResult, ToolSpec, Turn
from composer_replication.data.curate.pair import Pair, pairs_of

TOOLS = (
    ToolSpec(
        name="Read",
        parameters={
            "type": "object",
            "properties": {"file_path": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["file_path"],
            "additionalProperties": False,
        },
    ),
    ToolSpec(name="Bash", parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}),
)
TEXT = "the test reads its limit from config and fails because nobody set it so let us look at what main does with the value first"
WORDS = TEXT.split()


def say(text: str, *, author: str = "student") -> Turn:
    return Turn(role="assistant", author=author, blocks=(Text(text),) if text else ())


def call(name: str, *, words: str = "", call_id: str = "c1", author: str = "student", **arguments: Any) -> Turn:
    return Turn(role="assistant", author=author, blocks=(*([Text(words)] if words else []), ToolCall(call_id, name, arguments)))


def session(
    own: Turn, *, id: str = "s1", task: str = "Fix the failing test.", seen: str = "x = 1", repository: str = "acme/app"
) -> Session:
    """A request, a file that was read, and then the student's own message at turn 3."""
    turns = (
        Turn(role="user", author="human", blocks=(Text(task),)),
        call("Read", call_id="r0", file_path="a.py"),
        Turn(role="tool", author="environment", blocks=(ToolResult("r0", seen, False),)),
        own,
    )
    segments = (Segment(start=0, end=len(turns)),)
    return Session(
        id=id, source=SourceRef(file="f"), turns=turns, segments=segments, tools=TOOLS, tools_origin="log", repository=repository
    )


def pair(chosen: Turn, rejected: Turn, *, held_out: bool = False, evidence: dict[str, Any] | None = None, **about: Any) -> Pair:
    recorded = session(rejected, **about)
    found = {"tier": "exact", "families": ["a", "b", "c"], "of": 3, "evidence": ["own_errored:x"], "usd": {"kimi": 0.002}}
    preference = Preference(session_id=recorded.id, turn=3, chosen=chosen, teachers=("kimi", "glm"), evidence=evidence or found)
    return next(pairs_of(recorded, [preference], held_out=held_out))


def message(rng: random.Random) -> Turn:
    """A message as agents write them: 54 % calls without a word."""
    words = " ".join(rng.choices(WORDS, k=rng.randint(3, 60))).capitalize() + "."
    kind = rng.random()
    if kind < 0.1:
        return say(
            rng.choice(
                [
                    "",
                    "y",
                    "...",
                    "!!! 100 % ###",
                    "ha " * 80,
                    words + " " + words,
                    "Done.",
                    "Ok\r\nnow",
                    "これは、テスト。",
                    "a\x1cb c\u2003d",
                ]
            )
        )
    if kind < 0.35:
        return say(words)
    name, key = rng.choice([("Read", "file_path"), ("Bash", "command"), ("Read", "path")])
    value = (
        f"src/{rng.choice(WORDS)}_{rng.randint(1, 40)}.py"
        if name == "Read"
        else f"pytest -q tests/{rng.choice(WORDS)}.py -k {rng.randint(1, 9)}"
    )
    return call(name, words=words if kind > 0.8 else "", **{key: value})


def usual_pairs(count: int, *, seed: int) -> list[Pair]:
    """Many pairs; some stand there twice, some states are copies."""
    rng = random.Random(seed)
    found: list[Pair] = []
    for number in range(count):
        if found and rng.random() < 0.05:
            old = rng.choice(found)
            chosen, rejected, task, seen = old.chosen.turn, old.rejected.turn, old.context[0].text, old.context[2].results[0].text
        else:
            chosen, rejected = message(rng), message(rng)
            task = " ".join(rng.choices(WORDS, k=30))
            seen = "\n".join(f"{rng.choice(WORDS)}_{rng.randint(0, 99)} = {rng.randint(0, 99)}" for _ in range(40))
        found.append(pair(chosen, rejected, id=f"s{number}", task=task, seen=seen))
    return found
