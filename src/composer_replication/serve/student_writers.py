"""Who writes the student's messages behind the endpoint: a model here, a server, or a script.

    writer = LocalWriter(model, settings=Sampling(), stop=stop)
    writer.write(MessagePrompt(ids=prompt_ids, max_tokens=64, random=Random(7), episode="e1"))
    # Completion(ids=[...], logprobs=[...])

A script writes given messages, as ids: a real agent program can then solve a task without a model
that could. Its log-probs are those of a model if one is given, else 0: a script is certain.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from composer_replication.core.errors import DataError
from composer_replication.core.trace import HUMAN, Text, ToolCall, ToolSpec, Turn
from composer_replication.rollouts.chat_format import ChatFormat
from composer_replication.rollouts.sampling import Sampling
from composer_replication.rollouts.served import Completion, GenerationRequest, ServedModel
from composer_replication.serve.client_messages import Purpose
from composer_replication.tokens.layout import shared_prefix_length

if TYPE_CHECKING:
    from composer_replication.rollouts.ragged import RaggedCache

_CACHES = 4  # conversations whose keys and values are kept: the task, and a few subagents
NOTHING_LEFT = Turn(role="assistant", author=None, blocks=(Text("Nothing is left to do."),))
"""What a script writes behind its last message, and in answer to side requests."""
Score = Callable[[Sequence[int], Sequence[int]], list[float]]
"""The log-prob of each id of a message behind a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePrompt:
    """What the student reads, and the room and the random numbers for its message."""

    ids: tuple[int, ...]
    max_tokens: int
    random: random.Random
    episode: str = ""
    tools: tuple[ToolSpec, ...] = ()
    purpose: Purpose = "main"


class Writer(Protocol):
    """Writes one message behind a prompt, up to a token of `stop`.

    `version` names the weights, -1 = unknown.
    """

    @property
    def version(self) -> int:
        """The weights."""
        ...

    @property
    def stop(self) -> frozenset[int]:
        """The tokens that end a message."""
        ...

    def write(self, prompt: MessagePrompt) -> Completion:
        """The sampled ids, with the log-prob of each; called by several threads."""
        ...


class LocalWriter:
    """Samples from a model in this process, one message at a time.

    The keys and values of the newest conversations are kept, so only new tokens go through the
    model. Writers of one model share a `lock`.
    """

    def __init__(
        self,
        model: Any,
        *,
        settings: Sampling,
        stop: frozenset[int],
        version: int = -1,
        lock: threading.Lock | None = None,
    ) -> None:
        self.model, self.settings, self.stop, self.version = model, settings, stop, version
        self._lock = lock or threading.Lock()
        self._caches: list[tuple[list[int], RaggedCache]] = []

    def write(self, prompt: MessagePrompt) -> Completion:
        """Sample one message."""
        from composer_replication.models.forward import scoring
        from composer_replication.rollouts.choose import sample_tokens

        with self._lock, scoring(self.model):
            fed, cache = self._cache_of(prompt.ids)
            new = list(prompt.ids[len(fed) :])
            ids: list[int] = []
            logprobs: list[float] = []
            while True:
                logits_BV = cache.feed([new])
                fed.extend(new)
                choice = sample_tokens(
                    logits_BV,
                    uniform=[prompt.random.random()],
                    temperature=self.settings.temperature,
                    top_p=self.settings.top_p,
                )
                ids += choice.tokens
                logprobs += choice.logprobs
                if ids[-1] in self.stop or len(ids) >= prompt.max_tokens:
                    return Completion(ids=ids, logprobs=logprobs)
                new = choice.tokens

    def _cache_of(self, ids: Sequence[int]) -> tuple[list[int], RaggedCache]:
        """The cache that holds the longest beginning of these ids, and what it holds."""
        from composer_replication.rollouts.ragged import RaggedCache

        fitting = [
            entry
            for entry in self._caches
            if len(entry[0]) < len(ids) and shared_prefix_length(entry[0], ids) == len(entry[0])
        ]
        entry = max(fitting, key=lambda item: len(item[0]), default=None)
        if entry is None:
            entry = ([], RaggedCache(self.model, num_rows=1))
        self._caches = [*(e for e in self._caches if e is not entry), entry][-_CACHES:]
        return entry


@dataclass(slots=True)
class ServedWriter:
    """Asks a server that returns token ids and log-probs (rollouts/served.py)."""

    model: ServedModel
    settings: Sampling
    stop: frozenset[int]

    @property
    def version(self) -> int:
        """The weights on the server."""
        return self.model.version

    def write(self, prompt: MessagePrompt) -> Completion:
        """Ask for one message."""
        request = GenerationRequest(
            ids=prompt.ids, max_tokens=prompt.max_tokens, seed=prompt.random.getrandbits(31)
        )
        (completion,) = self.model.complete(
            [request],
            temperature=self.settings.temperature,
            top_p=self.settings.top_p,
            stop=self.stop,
        )
        return completion


@dataclass(slots=True, kw_only=True)
class ScriptedWriter:
    """Writes the messages of a script, one after the other in each episode.

    `messages` are for the task, `others` for requests with another purpose; behind the last one it
    writes NOTHING_LEFT. If a message for the task calls a tool, a request without tools is a side
    request: a program may ask for a title before or after its first message. `score` gives the
    log-probs, None = 0 for each token.
    """

    chat_format: ChatFormat
    messages: Sequence[Turn | Sequence[int]]
    others: Mapping[Purpose, Sequence[Turn | Sequence[int]]] = field(default_factory=dict)
    score: Score | None = None
    version: int = -1
    _written: dict[tuple[str, Purpose], int] = field(default_factory=dict)

    @property
    def stop(self) -> frozenset[int]:
        """The end tokens of the template."""
        return self.chat_format.stop_ids()

    def write(self, prompt: MessagePrompt) -> Completion:
        """The next message of the script."""
        purpose = prompt.purpose
        if purpose == "main" and not prompt.tools and self._has_calls():
            purpose = "side"
        key = (prompt.episode, purpose)
        number = self._written.get(key, 0)
        self._written[key] = number + 1
        script = self.messages if purpose == "main" else self.others.get(purpose, ())
        message = script[number] if number < len(script) else NOTHING_LEFT
        ids = self.ids_of(message)[: prompt.max_tokens]
        logprobs = [0.0] * len(ids) if self.score is None else self.score(prompt.ids, ids)
        return Completion(ids=ids, logprobs=logprobs)

    def _has_calls(self) -> bool:
        """Whether a message for the task calls a tool."""
        return any(isinstance(message, Turn) and message.calls for message in self.messages)

    def ids_of(self, message: Turn | Sequence[int]) -> list[int]:
        """The ids of a message as the student's template writes it; ids are used as they are."""
        if not isinstance(message, Turn):
            return list(message)
        question = Turn(role="user", author=HUMAN, blocks=(Text("x"),))
        return list(self.chat_format.renderer.reply([question], message)[1])


def read_script(rows: Any) -> list[Turn]:
    """The messages of a script: a list of {"text": ..., "calls": [{"name", "arguments"}, ...]}.

    >>> read_script([{"calls": [{"name": "Read", "arguments": {"file_path": "a.py"}}]}])[0].calls
    (ToolCall(id='s0', name='Read', arguments={'file_path': 'a.py'}),)
    """
    try:
        return [
            Turn(
                role="assistant",
                author=None,
                blocks=(
                    *((Text(row["text"]),) if row.get("text") else ()),
                    *(
                        ToolCall(f"s{number}", call["name"], dict(call["arguments"]))
                        for number, call in enumerate(row.get("calls", ()))
                    ),
                ),
            )
            for row in rows
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"not a script: {error!r}",
            fix='write a list of {"text": "...", "calls": [{"name": "...", "arguments": {}}]}',
        ) from error
