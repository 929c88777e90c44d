"""Find a text in a shell line where it is a word of its own.

    places_of_word("cd /target && rg foo", "rg") -> [WordPlace(start=14, text="rg", ...)]

The `rg` of `/target` is none. A place is found by what the parser reads if another text stands
there, so that quotes, substitutions and redirections count as the shell counts them.
"""

from __future__ import annotations

from dataclasses import dataclass

from composer_replication.data.sites.shell import Simple, parse

_PROBE = "qq0qq"
MAX_PLACES = 20
"""A log is untrusted: a line is parsed once more for each place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordPlace:
    """A word of a shell line: its first character, its text, the index of its simple command, and
    its index in that command: 0 = the program, redirections last.

    Example: of "a.py" in "cd x && cat a.py" WordPlace(start=12, text="a.py", command=1, word=1)
    """

    start: int
    text: str
    command: int
    word: int


def places_of_word(line: str, text: str) -> list[WordPlace]:
    """The places at which a text is a word of the line, or the name or the value in one.

    >>> places_of_word("cp src/data.py x && wc -l a.py", "a.py")
    [WordPlace(start=26, text='a.py', command=1, word=2)]
    >>> [p.word for p in places_of_word("gh pr --flag=x | tool main:src/a.py", "src/a.py")]
    [1]
    """
    simple, places = parse(line).simple, list[WordPlace]()
    start = -1
    for _ in range(MAX_PLACES if text else 0):
        start = line.find(text, start + 1)
        if start < 0:
            break
        changed = parse(line[:start] + _PROBE + line[start + len(text) :]).simple
        pairs = enumerate(zip(simple, changed, strict=False))
        at = next(((i, w) for i, (a, b) in pairs if (w := _changed_word(a, b, text)) >= 0), None)
        if at is not None and len(changed) == len(simple):
            places.append(WordPlace(start=start, text=text, command=at[0], word=at[1]))
    return places


def _changed_word(simple: Simple, changed: Simple, text: str) -> int:
    """The index of the word that holds the text on its own and has changed; -1 if none has."""
    if text in simple.wrappers and changed.program == _PROBE:
        return 0  # `timeout 5 make`: the program that is looked for is the wrapper
    words, others = _words(simple), _words(changed)
    if len(words) != len(others):
        return -1
    for i, (word, other) in enumerate(zip(words, others, strict=True)):
        left, probe, right = other.partition(_PROBE)
        if (
            probe
            and word == left + text + right
            and (not left.strip("-") or left[-1] in "=:@")
            and (right in ("", "/") or right[0] in "=:")
        ):
            return i
    return -1


def _words(simple: Simple) -> tuple[str, ...]:
    return (simple.program, *simple.words, *simple.redirects)
