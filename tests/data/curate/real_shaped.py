"""Pairs shaped like those of real sessions, sound ones and some of every fault, made up from a
seed.

    made = made_up(10_000, seed=1)
    made.pairs[0]
    made.faults["s17:3"]    # "tool_arguments_filter", the operator that has to drop this pair

Shares and sizes are those of the assistant messages of 20 public sessions
(scripts/fetch_traces.py): 55 of 100 only call tools, 37 say a sentence above their calls, 8 only
speak - Markdown of about 1,100 characters, four of ten with signs beyond ASCII; 17 of 100 call in
parallel. The tools stand there as often as there, with arguments as long (10, 25, 50, 75, 90 and 99
of 100 are below SIZES). In half of the pairs the chosen message is the rejected one with a single
argument corrected, as it is at a mistake.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from composer_replication.core.trace import Text, Thinking, ToolCall, ToolSpec, Turn
from composer_replication.data.curate.pair import Pair
from tests.data.curate.pairs import pair, say

SIZES: Mapping[str, tuple[int, ...]] = {
    "Bash": (80, 101, 137, 172, 228, 1183),
    "Read": (67, 84, 102, 116, 123, 137),
    "Edit": (229, 432, 687, 1284, 2945, 5243),
    "Grep": (74, 99, 116, 136, 157, 183),
    "TodoWrite": (665, 758, 880, 912, 920, 922),
    "Write": (285, 388, 1728, 3302, 7564, 14991),
    "sentence": (44, 56, 80, 110, 190, 400),
    "answer": (33, 702, 1102, 1500, 1973, 3622),
    "seen": (200, 600, 1500, 3000, 6000, 12000),
}
OFTEN: Mapping[str, int] = {
    "Bash": 272,
    "Read": 222,
    "Edit": 198,
    "Grep": 107,
    "TodoWrite": 26,
    "Write": 24,
}
FAULT_EVERY = 140
"""One pair of so many has a given fault."""
_VERBS_TEXT = (
    "reads writes checks parses skips counts loads merges drops renames caches retries opens closes"
    " sorts splits"
)
_NOUNS_TEXT = (
    "user order cart invoice token session config parser buffer stream index cache worker queue"
    " schema handler response"
)
_SENTENCES = (
    "Let me look at how the {0} {a} the {1} in `{2}_{n}.py`.",
    "{2}.ts line {n} {a} what the {0} needs, so this is not where the {1} breaks.",
    "I need the {0} before anything {a} the {1}: {n} rows of the {2} depend on it.",
    "Because every {0} {a} its own {1}, I will change `{2}{n}` first and run the tests again.",
    "The failure comes from {0}_{n}: it {a} {1} twice, and after that the {2} is gone.",
    "Only {n} of those calls reach {2}; which {0} {a} them is not clear from that log.",
    "Next: does {1} #{n} still {0}, or has somebody moved it into the {2} that {a} on start?",
    (
        "We have two ways to fix this, and I prefer the one that {a} no {0} ({1}, {2} and {n} stay"
        " as they are)."
    ),
)
_VERBS, _NOUNS = _VERBS_TEXT.split(), _NOUNS_TEXT.split()
_SIGNS = ("✓", "→", "—", "“so”", "…", "é", "✅", "│", "日本")
_CODE = (
    "    def {0}_{1}(self, {2}: str, *, limit: int = {n}) -> None:",
    '        """Read the {0} of a {1}, or the {2} where there is none."""',
    "        return self._{0}.get({1}, {n}) if {2} is not None else {n}",
    "  const {0}{n} = await {1}.fetch(`/api/${{{2}}}/items?page={n}`);",
    'import {{ {0} }} from "../{1}/{2}";',
    "# {0} {n}: keep the {1} when the {2} is empty",
    "for {0} in {1}.rows[{n}:]: {2}.append({0})",
)
_STRING, _INTEGER = {"type": "string"}, {"type": "integer"}


def _tool(name: str, *required: str, **properties: Any) -> ToolSpec:
    return ToolSpec(
        name=name,
        parameters={
            "type": "object",
            "properties": properties,
            "required": list(required),
            "additionalProperties": False,
        },
    )


_TODO = {
    "type": "object",
    "properties": {"content": _STRING, "status": {"enum": ["pending", "in_progress", "completed"]}},
    "required": ["content"],
}
TOOLS = (
    _tool("Bash", "command", command=_STRING, description=_STRING, timeout=_INTEGER),
    _tool("Read", "file_path", file_path=_STRING, offset=_INTEGER, limit=_INTEGER),
    _tool(
        "Edit",
        "file_path",
        "old_string",
        "new_string",
        file_path=_STRING,
        old_string=_STRING,
        new_string=_STRING,
        replace_all={"type": "boolean"},
    ),
    _tool(
        "Grep",
        "pattern",
        pattern=_STRING,
        path=_STRING,
        output_mode={"enum": ["content", "files_with_matches"]},
    ),
    _tool("TodoWrite", "todos", todos={"type": "array", "items": _TODO}),
    _tool("Write", "file_path", "content", file_path=_STRING, content=_STRING),
)


@dataclass(frozen=True, slots=True)
class ShapedPairs:
    """Pairs, and for each that has a fault the operator that has to drop it."""

    pairs: list[Pair]
    faults: dict[str, str] = field(default_factory=dict)


def _size(rng: random.Random, kind: str) -> int:
    low = rng.choices(range(5), weights=(15, 25, 25, 15, 9))[0]
    return rng.randint(*SIZES[kind][low : low + 2])


def _path(rng: random.Random) -> str:
    folder, file = rng.choice(_NOUNS), f"{rng.choice(_NOUNS)}_{rng.randint(1, 400)}"
    return f"/home/dev/work/app/src/{folder}/{file}.{rng.choice(('py', 'ts', 'tsx'))}"


def _code(rng: random.Random, size: int) -> str:
    lines, length = [], 0
    while length < size:
        lines.append(rng.choice(_CODE).format(*rng.sample(_NOUNS, 3), n=rng.randrange(10**4)))
        length += len(lines[-1]) + 1
    return "\n".join(lines)


def _sentence(rng: random.Random) -> str:
    return rng.choice(_SENTENCES).format(
        *rng.sample(_NOUNS, 3), a=rng.choice(_VERBS), n=rng.randint(2, 999)
    )


def _sentences(rng: random.Random, size: int) -> str:
    text = _sentence(rng)
    while len(text) < size:
        text += " " + _sentence(rng)
    return text


def _answer(rng: random.Random) -> str:
    """What a message says that makes no call: Markdown with headings, lists, a table and code, or a
    word or two."""
    size, parts = _size(rng, "answer"), [_sentences(rng, 60)]
    if size < 60:
        return rng.choice(("Done.", "All tests pass now.", parts[0]))
    while sum(map(len, parts)) < size:
        parts.append(
            rng.choice(
                (
                    f"## {rng.choice(_NOUNS).title()} and {rng.choice(_NOUNS)}",
                    "\n".join(
                        f"- **{rng.choice(_NOUNS)}**: {_sentence(rng)}"
                        for _ in range(rng.randint(2, 5))
                    ),
                    f"| file | lines |\n| --- | --- |\n| {_path(rng)} | {rng.randint(1, 999)} |",
                    f"```python\n{_code(rng, 150)}\n```",
                    _sentences(rng, 200),
                )
            )
        )
    text = ("\r\n\r\n" if rng.random() < 0.05 else "\n\n").join(parts)
    return f"{text} {rng.choice(_SIGNS)} {_sentence(rng)}" if rng.random() < 0.4 else text


def _arguments(rng: random.Random, name: str) -> dict[str, Any]:
    size = _size(rng, name)
    match name:
        case "Bash":
            command = (
                f"cd {_path(rng)} && pytest -q -k '{rng.choice(_NOUNS)} and not"
                f" {rng.choice(_NOUNS)}' 2>&1 | tail -{rng.randint(5, 90)}"
            )
            extra = f" && git commit -m '{_sentences(rng, size - 120)}'" if size > 230 else ""
            return {
                "command": command + extra,
                "description": f"Run the tests of {rng.choice(_NOUNS)}",
            }
        case "Read":
            return {
                "file_path": _path(rng),
                **({"offset": rng.randint(1, 900), "limit": 80} if rng.random() < 0.55 else {}),
            }
        case "Edit":
            old = _code(rng, size // 2)
            return {
                "file_path": _path(rng),
                "old_string": old,
                "new_string": old + "\n" + _code(rng, 60),
                "replace_all": False,
            }
        case "Grep":
            return {
                "pattern": rf"def {rng.choice(_NOUNS)}\w+\({rng.choice(_NOUNS)}",
                "path": _path(rng),
                "output_mode": "content",
            }
        case "TodoWrite":
            return {
                "todos": [
                    {"content": _sentence(rng), "status": "pending"} for _ in range(size // 130)
                ]
            }
        case _:
            return {"file_path": _path(rng), "content": _code(rng, size)}


def _calls(rng: random.Random) -> tuple[ToolCall, ...]:
    count = rng.choices((1, 2, 3, 4, 6), weights=(82, 12, 4, 1, 1))[0]
    names = rng.choices(list(OFTEN), weights=list(OFTEN.values()), k=count)
    return tuple(
        ToolCall(f"toolu_{rng.getrandbits(80):020x}", name, _arguments(rng, name)) for name in names
    )


def _message(rng: random.Random) -> Turn:
    kind = rng.random()
    if kind < 0.08:
        return say(_answer(rng))
    sentences = (Text(_sentences(rng, _size(rng, "sentence"))),) if kind > 0.63 else ()
    return Turn(role="assistant", author="student", blocks=(*sentences, *_calls(rng)))


def _corrected(rng: random.Random, turn: Turn) -> Turn:
    """The same message with one argument of its first call corrected."""
    blocks, place = (
        list(turn.blocks),
        next(n for n, block in enumerate(turn.blocks) if isinstance(block, ToolCall)),
    )
    call = turn.calls[0]
    assert isinstance(call.arguments, Mapping)
    key = next(iter(call.arguments))
    new_value = _arguments(rng, call.name)[key]
    while new_value == call.arguments[key]:
        new_value = _arguments(rng, call.name)[key]
    blocks[place] = replace(call, id="other", arguments={**call.arguments, key: new_value})
    return replace(turn, blocks=tuple(blocks))


def _sound(rng: random.Random) -> tuple[Turn, Turn]:
    rejected = _message(rng)
    chosen = _corrected(rng, rejected) if rejected.calls and rng.random() < 0.5 else _message(rng)
    return chosen, rejected


def _one_call(
    rng: random.Random, name: str, *, named: str = "", without: str = "", **changed: Any
) -> Turn:
    arguments = {k: v for k, v in {**_arguments(rng, name), **changed}.items() if k != without}
    return Turn(
        role="assistant", author="student", blocks=(ToolCall("toolu_1", named or name, arguments),)
    )


def _either(rng: random.Random, bad: Turn) -> tuple[Turn, Turn]:
    """Put a bad message on one side at random, and a call on the other."""
    good = _one_call(rng, "Read")
    return (bad, good) if rng.random() < 0.5 else (good, bad)


def _same(rng: random.Random) -> tuple[Turn, Turn]:
    rejected = _one_call(rng, rng.choice(("Bash", "Edit", "Grep")))
    (call,) = rejected.calls
    assert isinstance(call.arguments, Mapping)
    again = replace(call, id="toolu_9", arguments=dict(reversed(list(call.arguments.items()))))
    return Turn(role="assistant", author="teacher", blocks=(Text(_sentence(rng)), again)), rejected


def _misfit(rng: random.Random) -> tuple[Turn, Turn]:
    bad = (
        _one_call(rng, "Edit", without="old_string"),
        _one_call(rng, "Read", limit="80"),
        _one_call(rng, "Grep", output_mode="lines"),
        _one_call(rng, "Bash", cwd="/tmp"),
    )
    return rng.choice(bad), _message(rng)


def _doubled(rng: random.Random) -> tuple[Turn, Turn]:
    blocks = tuple(ToolCall("toolu_1", "Read", _arguments(rng, "Read")) for _ in range(2))
    return Turn(role="assistant", author="student", blocks=blocks), _message(rng)


def _german(rng: random.Random) -> tuple[Turn, Turn]:
    german_text = (
        f"Ich lese jetzt die Datei {_path(rng)}, und dann ist es für den {rng.choice(_NOUNS)} nicht"
        " mehr zu sehen."
    )
    return say(german_text), say(
        f"I will read the file {_path(rng)}, and then it is the {rng.choice(_NOUNS)} that we have"
        " to look at."
    )


def _reworded(rng: random.Random) -> tuple[Turn, Turn]:
    """Two answers that say the same in nearly the same words."""
    text = _sentences(rng, 300)
    return say(text), say(f"{text} That is all.")


FAULTS: Mapping[str, Callable[[random.Random], tuple[Turn, Turn]]] = {
    "answer_not_empty_filter": lambda rng: _either(
        rng,
        rng.choice(
            (say(""), say(" \n "), Turn(role="assistant", author="a", blocks=(Thinking("Now?"),)))
        ),
    ),
    "tool_offered_filter": lambda rng: (_one_call(rng, "Read", named="Reed"), _message(rng)),
    "tool_arguments_filter": _misfit,
    "call_ids_filter": _doubled,
    "chat_shape_filter": _sound,
    "chosen_differs_filter": _same,
    "text_length_filter": lambda rng: _either(
        rng, _one_call(rng, "Write", content=_code(rng, 40_000))
    ),
    "words_num_filter": lambda rng: _either(
        rng, say(rng.choice(("...", "!!! 100 % ###", "✅", "---\n" * 3, "、。")))
    ),
    "special_characters_filter": lambda rng: _either(
        rng, say(f"ok {rng.randrange(10**9)} | --- | {rng.random()} | $$ {rng.random()}")
    ),
    "character_repetition_filter": lambda rng: _either(rng, say("ha" * rng.randint(60, 400))),
    "word_repetition_filter": lambda rng: _either(
        rng, say(f"{_sentence(rng)} " * rng.randint(12, 20))
    ),
    "same_language_filter": _german,
    "disagreement_filter": _reworded,
    "document_deduplicator": _sound,
    "document_minhash_deduplicator": _sound,
}
"""By the operator that drops them. Of three the messages are sound: their state is broken, or
stands there already."""


def made_up(count: int, *, seed: int) -> ShapedPairs:
    """Make `count` pairs; one in FAULT_EVERY has each of the faults."""
    rng, result, sound = random.Random(seed), ShapedPairs([]), list[tuple[Turn, Turn, str, str]]()
    for number in range(count):
        fault = next(
            (name for n, name in enumerate(FAULTS) if sound and number % FAULT_EVERY == 9 * n + 8),
            "",
        )
        chosen, rejected = FAULTS[fault](rng) if fault else _sound(rng)
        if fault == "text_length_filter" and number % (4 * FAULT_EVERY) > FAULT_EVERY:
            fault, (chosen, rejected) = "", _sound(rng)
        file_text, task = (
            _code(rng, _size(rng, "seen")),
            f"{_sentences(rng, 200)} Fix test {number}.",
        )
        if fault.startswith("document_"):
            chosen, rejected, file_text, task = rng.choice(sound)
            file_text += "\n" * (
                1 + number // FAULT_EVERY % 20 if fault == "document_minhash_deduplicator" else 0
            )  # another state that says the same
        elif not fault:
            sound.append((chosen, rejected, file_text, task))
        shaped_pair = pair(
            chosen, rejected, id=f"s{number}", task=task, file_text=file_text, tools=TOOLS
        )
        result.pairs.append(
            replace(shaped_pair, context=shaped_pair.context[:-1])
            if fault == "chat_shape_filter"
            else shaped_pair
        )
        if fault:
            result.faults[shaped_pair.id] = fault
    return result
