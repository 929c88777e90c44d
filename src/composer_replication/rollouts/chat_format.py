"""The format in which a student reads and writes, and its sampled messages read as turns.

    chat_format = ChatFormat.of(renderer, author="tiny")
    read = chat_format.read_message(Sampled(ids, logprobs), ended=True, tools=tools,
                                    call_ids=call_ids, position=len(prompt_ids), max_calls=64)
    read.turn                                  # text, thinking and calls, with the sampled ids
    read.errors                                # by call id: calls that nobody can carry out
    answers = with_errors(read.turn, read.errors, answers)
    chat_format.ids_behind(read.turn, answers, where="task-3:0")   # up to the next message

An environment (rollouts/episode.py) and an agent program (serve/) answer the same messages in the
same way. Sampled ids are never encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from composer_replication.core.errors import AlignmentError
from composer_replication.core.trace import (
    ENVIRONMENT,
    HUMAN,
    Block,
    Sampled,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.rollouts.parse import (
    MalformedCall,
    Parser,
    WrittenCall,
    parse_message,
    parser_of,
)
from composer_replication.tokens.renderer import Renderer

CUT = "cut_off"
"""The tag of a message that was cut at its limit."""
MALFORMED = "malformed_call"
"""The name under which a call that could not be read is kept: ToolCall(id, "malformed_call",
{"text": what was written})."""
PROBE = Turn(role="assistant", author=None, blocks=(Text("x"),))
"""Stands where the next message will: what is rendered before it is the student's prompt."""
_STUB = Turn(role="user", author=HUMAN, blocks=(Text("x"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMessage:
    """A sampled message as a turn, and by call id the errors of calls that are answered at once.

    Those are calls that cannot be read (`num_malformed`) or are too many (`num_refused`).
    """

    turn: Turn
    errors: Mapping[str, str]
    num_malformed: int
    num_refused: int

    @property
    def carried_out(self) -> Turn | None:
        """The message without the calls that have an error; None if nothing else is left."""
        readable = tuple(
            b for b in self.turn.blocks if not (isinstance(b, ToolCall) and b.id in self.errors)
        )
        has_message = not self.errors or any(isinstance(block, ToolCall) for block in readable)
        return replace(self.turn, blocks=readable) if has_message else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """The format in which a student reads and writes: template, parser, author name, and end
    token."""

    renderer: Renderer
    parser: Parser
    author: str
    end_id: int

    @classmethod
    def of(cls, renderer: Renderer, *, author: str, parser: Parser | None = None) -> Self:
        """The chat format of a template.

        Raises ConfigError if its calls cannot be read and no parser is given.
        """
        end_id = renderer.reply([_STUB], PROBE)[1][-1]
        return cls(
            renderer=renderer, parser=parser or parser_of(renderer), author=author, end_id=end_id
        )

    def stop_ids(self, model: Any = None) -> frozenset[int]:
        """The template's end token, and the end tokens of the tokenizer and the model's settings.

        Behind a message that ends with one of the others, the template's end token is still
        written, as context.
        """
        generation = getattr(model, "generation_config", None)
        eos = getattr(generation, "eos_token_id", None)
        eos_ids = eos if isinstance(eos, (list, tuple)) else [eos]
        return frozenset(
            int(i)
            for i in (
                self.end_id,
                *self.renderer.end_ids,
                self.renderer.tokenizer.eos_token_id,
                *eos_ids,
            )
            if i is not None
        )

    def read_message(
        self,
        sampled: Sampled,
        *,
        ended: bool,
        tools: Sequence[ToolSpec],
        call_ids: Iterator[str],
        position: int,
        max_calls: int,
    ) -> ReadMessage:
        """The message as a turn; `ended` = its last token is an end token, else it was cut.

        `call_ids` gives an id to each call, `position` is the number of ids before the message.
        """
        written = sampled.ids[:-1] if ended else sampled.ids
        parts = parse_message(written, codec=self.renderer.codec, parser=self.parser, tools=tools)
        blocks: list[Block] = []
        errors: dict[str, str] = {}
        num_readable = num_malformed = num_refused = 0
        cut_note = "" if ended else f" (the message was cut off after {len(sampled.ids)} tokens)"
        for part in parts:
            if not isinstance(part, (WrittenCall, MalformedCall)):
                blocks.append(part)
                continue
            call_id = next(call_ids)
            if isinstance(part, WrittenCall):
                blocks.append(ToolCall(call_id, part.name, part.arguments))
                num_readable += 1
                if num_readable > max_calls:
                    errors[call_id] = (
                        f"Cancelled: parallel tool call beyond the {max_calls} of one message"
                    )
                    num_refused += 1
            else:
                blocks.append(ToolCall(call_id, MALFORMED, {"text": part.text}))
                errors[call_id] = (
                    f"InputValidationError: malformed tool call: {part.problem}{cut_note}"
                )
                num_malformed += 1
        turn = Turn(
            role="assistant",
            author=self.author,
            blocks=tuple(blocks),
            tag="" if ended else CUT,
            context_tokens=position,
            sampled=sampled,
        )
        return ReadMessage(
            turn=turn, errors=errors, num_malformed=num_malformed, num_refused=num_refused
        )

    def ids_behind(self, message: Turn, answer: Sequence[Turn], *, where: str) -> list[int]:
        """The ids behind a sampled message up to the next generation prompt, in a known family.

        There they depend on the message and its answer alone, so only these are rendered; whoever
        calls this renders the whole conversation once, at its end, and compares.
        """
        rendered = self.renderer.render([_STUB, message, *answer, PROBE])
        a, b = rendered.spans[1].body
        if message.sampled is None or rendered.ids[a:b] != message.sampled.ids:
            raise AlignmentError(
                "the sampled ids are not what stands at the message's place", where=where
            )
        return list(rendered.ids[b : rendered.spans[-1].body[0]])


def with_errors(
    message: Turn, errors: Mapping[str, str], answers: Sequence[Turn]
) -> tuple[Turn, ...]:
    """The answers to a message with an error result for each of its calls that has an error.

    Results are in the order of the calls.
    """
    turns = list(answers)
    order = {call.id: index for index, call in enumerate(message.calls)}

    def call_index(turn: Turn) -> int:
        return min(
            (order.get(result.call_id, len(order)) for result in turn.results), default=len(order)
        )

    for call_id, error_text in errors.items():
        error = Turn(
            role="tool",
            author=ENVIRONMENT,
            blocks=(ToolResult(call_id, error_text, is_error=True),),
        )
        at = next(
            (i for i, turn in enumerate(turns) if call_index(turn) > order[call_id]), len(turns)
        )
        turns.insert(at, error)
    return tuple(turns)
