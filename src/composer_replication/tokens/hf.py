"""The one place that calls a Hugging Face tokenizer: a template to text, and text to ids by piece.

Two properties that `apply_chat_template(..., tokenize=True)` does not have:

- Text from a log never becomes a control token. `shield` breaks every look-alike ("<|im_end|>"
inside a tool result) with a private character before rendering, so whatever reads as a control
token afterwards was written by the template; the text between control tokens is encoded by a copy
of the tokenizer that knows no control tokens.

- Ids can be cut at given characters of the text (where a message's own tokens begin), so that `ids
= ids(prefix) + T` by construction.

If a text holds no look-alike and no cut falls inside a token, the ids equal those of the plain
rendering encoded in one go.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.errors import ConfigError, RenderError, first_line, need
from composer_replication.models.adapter_folder import base_model
from composer_replication.models.model_files import check_path, model_kind
from composer_replication.tokens.example import Span
from composer_replication.tokens.gguf_tokenizer import gguf_tokenizer

# The cache of encoded runs is cleared beyond this many characters: about one very long session.
_MEMO_CHARS = 32 * 2**20
_PRIVATE = range(0xE000, 0xF8FF)


def student_tokenizer(settings: StudentSettings) -> Any:
    """The tokenizer of the student's model; an adapter's folder without one has its base's."""
    folder = Path(settings.model)
    if model_kind(settings.model) == "adapter" and not (folder / "tokenizer.json").is_file():
        base = base_model(settings)
        check_path(base, where=settings.model, is_base=True)
        return load_tokenizer(base)
    return load_tokenizer(settings.model)


def load_tokenizer(name_or_folder: str) -> Any:
    """The tokenizer of a folder, hub name or GGUF file; raises ConfigError if there is none.

    Example: load_tokenizer("Qwen/Qwen3-4B-Instruct-2507"); a folder needs tokenizer.json and
    tokenizer_config.json.
    """
    transformers = need("transformers", extra="train")
    check_path(name_or_folder, where="student.model")
    try:
        if model_kind(name_or_folder) == "gguf":
            return gguf_tokenizer(Path(name_or_folder))
        # Python code in the folder is never run
        return transformers.AutoTokenizer.from_pretrained(name_or_folder, trust_remote_code=False)
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"no tokenizer can be loaded from {name_or_folder!r}: {first_line(error)}",
            where="student.model",
            fix=(
                "give a folder that holds tokenizer.json and tokenizer_config.json, or a hub name"
                " that can be reached"
            ),
        ) from error


def own_template_of(tokenizer: Any) -> str:
    """The chat template that a tokenizer carries, that for tools if there are several; "" = none.

    Example: own_template_of(load_tokenizer(folder))[:10] -> "{%- if tool"
    """
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    return template if isinstance(template, str) and template.strip() else ""


def added_tokens(tokenizer: Any) -> set[str]:
    """The texts that a tokenizer reads as one token wherever they stand, special or not.

    Example: "<|im_end|>" in added_tokens(tokenizer) -> True
    """
    return {token.content for token in tokenizer.added_tokens_decoder.values()}


def render_template(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: list[dict[str, Any]] | None,
    template: str,
    add_generation_prompt: bool = False,
    **options: Any,
) -> str:
    """The text that a chat template makes of messages.

    If the template raises, its message becomes a RenderError.
    """
    jinja2 = need("jinja2", extra="train")
    try:
        text = tokenizer.apply_chat_template(
            [dict(m) for m in messages],
            tools=tools,
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **options,
        )
    except (jinja2.exceptions.TemplateError, TypeError) as error:
        raise RenderError(f"the chat template rejects this conversation: {error}") from error
    if not isinstance(text, str):
        raise RenderError(f"the chat template gave a {type(text).__name__}, not text")
    return text


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Characters [start, end) of a text that are encoded on their own; `token` is the first token.

    `run` is the text that the tokenizer reads; None for a control token or for verbatim ids.
    """

    start: int
    end: int
    token: int
    run: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Ids of a text and the pieces it was encoded in."""

    ids: list[int]
    pieces: list[TextPiece]


class TextCodec:
    """Text to ids and back for one tokenizer and one template.

    >>> codec = TextCodec(tokenizer, template=template)                      # doctest: +SKIP
    >>> codec.encode("<|im_start|>user\\nhi<|im_end|>\\n", cuts=()).ids       # doctest: +SKIP
    """

    def __init__(self, tokenizer: Any, *, template: str) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise RenderError(
                f"{type(tokenizer).__name__} is not a fast tokenizer",
                fix="save it with tokenizer.json (a tokenizers.Tokenizer)",
            )
        self.tokenizer = tokenizer
        added = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
        special = {
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        }
        # As in transformers' sanitize_control_tokens: special tokens, and other added tokens that
        # the template writes.
        self.control = {
            t: i for t, i in added.items() if t in special or (t in template and not t.isspace())
        }
        self._control_ids = frozenset(self.control.values())
        longest_first = sorted(self.control, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._plain = _without_control_tokens(backend, set(self.control))
        self._memo: dict[str, tuple[int, ...]] = {}
        self._memo_chars = 0

    def free_characters(self, texts: Iterable[str], count: int) -> str:
        """`count` private characters that occur in none of the texts.

        Raises RenderError if the texts use them all.
        """
        texts = list(texts)
        free: list[str] = []
        for code in _PRIVATE:
            if not any(chr(code) in text for text in texts):
                free.append(chr(code))
                if len(free) == count:
                    return "".join(free)
        raise RenderError(
            "the text uses every private character, so none is left to mark positions with"
        )

    def shield(self, value: Any, mark: str) -> Any:
        """A copy of a JSON value in which no string holds a control token.

        `mark` is inserted behind the first character of each look-alike.
        """
        if isinstance(value, str):
            return self.pattern.sub(lambda m: m.group()[0] + mark + m.group()[1:], value)
        if isinstance(value, Mapping):
            return {self.shield(k, mark): self.shield(v, mark) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.shield(v, mark) for v in value]
        return value

    def normalise(self, text: str) -> str:
        """The text as it comes back from its ids: Qwen's tokenizer composes accents (NFC).

        Not what the normaliser alone returns: Gemma's writes "▁" for a space, which decoding
        undoes.
        """
        return self.decode(self._plain.encode(text, add_special_tokens=False).ids)

    def encode(
        self,
        text: str,
        *,
        cuts: Iterable[int],
        mark: str = "",
        verbatim: Mapping[Span, Sequence[int]] | None = None,
    ) -> Encoded:
        """Ids of a rendered text, cut at control tokens and at `cuts`.

        `mark` is the shield, which is removed again. `verbatim` maps character spans (whose ends
        are among the cuts) to ids that replace their encoding: tokens that were sampled.
        """
        verbatim = verbatim or {}
        spans = _cut_spans(text, self.pattern, cuts, verbatim)
        runs = {
            (a, b): text[a:b].replace(mark, "") if mark else text[a:b]
            for a, b, control in spans
            if not control
        }
        self._remember([run for span, run in runs.items() if span not in verbatim])
        ids: list[int] = []
        pieces: list[TextPiece] = []
        for a, b, control in spans:
            plain = not control and (a, b) not in verbatim
            pieces.append(TextPiece(a, b, len(ids), text[a:b] if plain else None))
            if control:
                if text[a:b] not in self.control:
                    raise RenderError(
                        "a message begins or ends inside the control token that starts with"
                        f" {text[a:b]!r}"
                    )
                ids.append(self.control[text[a:b]])
            else:
                ids.extend(self._memo[runs[a, b]] if plain else verbatim[a, b])
        return Encoded(ids=ids, pieces=pieces)

    def token_at(self, encoded: Encoded, char: int, *, mark: str = "") -> int:
        """Index of the first token that begins at or behind a character.

        Inside a run it asks the tokenizer for offsets.
        """
        pieces = encoded.pieces
        at = bisect.bisect_right(pieces, char, key=lambda p: p.start) - 1
        if at < 0:
            return 0
        piece = pieces[at]
        if char == piece.start:
            return piece.token
        if piece.run is None or char >= piece.end:
            return pieces[at + 1].token if at + 1 < len(pieces) else len(encoded.ids)
        head = piece.run[: char - piece.start]
        offset, run = (
            (len(head.replace(mark, "")), piece.run.replace(mark, ""))
            if mark
            else (len(head), piece.run)
        )
        return piece.token + sum(
            a < offset for a, _ in self._plain.encode(run, add_special_tokens=False).offsets
        )

    def _remember(self, runs: list[str]) -> None:
        new = [run for run in dict.fromkeys(runs) if run not in self._memo]
        if not new:
            return
        size = sum(map(len, new))
        if self._memo_chars + size > _MEMO_CHARS:
            new = list(dict.fromkeys(runs))
            self._memo.clear()
            self._memo_chars, size = 0, sum(map(len, new))
        for run, encoding in zip(
            new, self._plain.encode_batch_fast(new, add_special_tokens=False), strict=True
        ):
            ids = tuple(encoding.ids)
            if not self._control_ids.isdisjoint(ids):
                raise RenderError(
                    f"the tokenizer reads plain text as a control token: {run[:80]!r}",
                    fix="use a byte-level BPE tokenizer",
                )
            self._memo[run] = ids
        self._memo_chars += size

    def straddles(self, encoded: Encoded, char: int, *, mark: str = "") -> bool:
        """Whether a cut falls inside a token that encoding the text in one go would produce."""
        after = bisect.bisect_left(encoded.pieces, char, key=lambda p: p.start)
        if not 0 < after < len(encoded.pieces):
            return False
        left, right = (piece.run for piece in encoded.pieces[after - 1 : after + 1])
        if left is None or right is None:
            return False
        joined = self.encode(left + right, cuts=(), mark=mark).ids
        return joined != [
            *self.encode(left, cuts=(), mark=mark).ids,
            *self.encode(right, cuts=(), mark=mark).ids,
        ]

    def count(self, text: str) -> int:
        """The number of tokens of a plain text."""
        return len(self._plain.encode(text, add_special_tokens=False).ids)

    def one_go(self, text: str) -> list[int]:
        """The plain rendering encoded in one go by the tokenizer, without adding special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens included, without clean-up."""
        return self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def sha256(self) -> str:
        """A fingerprint of the tokenizer: its vocabulary, merges and rules, not its name."""
        spec = json.loads(self.tokenizer.backend_tokenizer.to_str())
        spec["truncation"] = spec["padding"] = None
        return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


def _without_control_tokens(backend: Any, control: set[str]) -> Any:
    """A copy of a tokenizer that reads the text of control tokens like any other text.

    They stay in its list, marked special and with special tokens switched off: removing them would
    renumber the others.
    """
    tokenizers = need("tokenizers", extra="train")
    spec = json.loads(backend.to_str())
    for token in spec["added_tokens"]:
        token["special"] = token["content"] in control
    spec["post_processor"] = spec["truncation"] = spec["padding"] = None
    stripped = tokenizers.Tokenizer.from_str(json.dumps(spec))
    stripped.encode_special_tokens = True
    if stripped.get_vocab() != backend.get_vocab():
        raise RenderError(
            "a copy of the tokenizer numbers its tokens differently",
            fix="load the tokenizer and save it again",
        )
    return stripped


def _cut_spans(
    text: str, pattern: re.Pattern[str], cuts: Iterable[int], verbatim: Mapping[Span, Any]
) -> list[tuple[int, int, bool]]:
    """(start, end, is a control token) of every piece, in order, none empty.

    A verbatim span is one piece whatever it holds.
    """
    edges = {0, len(text), *cuts}
    controls: set[int] = set()
    for match in pattern.finditer(text):
        a, b = match.span()
        if a < b:
            controls.add(a)
            edges.update((a, b))
    for a, b in verbatim:
        edges -= {edge for edge in edges if a < edge < b}
    ordered = sorted(edge for edge in edges if 0 <= edge <= len(text))
    starts = {a for a, _ in verbatim}
    return [(a, b, a in controls and a not in starts) for a, b in itertools.pairwise(ordered)]
