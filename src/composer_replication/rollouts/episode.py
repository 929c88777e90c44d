"""One episode: a conversation between a student and an environment, as turns and as the very ids the student reads and writes.

    episode = Episode(env, voice=Voice.of(renderer, author="tiny"), name="task-3:0", seed=7)
    episode.ids                                    # what the student reads first, up to its generation prompt
    episode.take(ids, logprobs, cut=False)         # its message; the environment answers, and `ids` grows by both
    episode.ended, episode.finish()                # "done", and the Rollout

What was sampled is never encoded again. What follows it - the end of the message that the template writes, the environment's
answer, the next generation prompt - is rendered behind it, and at the end the whole conversation is rendered once more and must give
the same ids.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from composer_replication.core.errors import AlignmentError, ConfigError, DataError
from composer_replication.core.trace import (
    ENVIRONMENT,
    HUMAN,
    Block,
    Event,
    Sampled,
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from composer_replication.rollouts.envs.env import Env, Reply
from composer_replication.rollouts.meter import Meter
from composer_replication.rollouts.parse import MalformedCall, Parser, WrittenCall, parse_message, parser_of
from composer_replication.tokens.layout import num_shared
from composer_replication.tokens.renderer import Renderer

CUT = "cut_off"
"""The tag of a message that was ended by force."""
MALFORMED = "malformed_call"
"""The name under which a call that could not be read is kept: ToolCall(id, "malformed_call", {"text": what was written})."""
Ended = Literal["done", "max_turns", "max_context"]

_STUB = Turn(role="user", author=HUMAN, blocks=(Text("x"),))
_PROBE = Turn(role="assistant", author=None, blocks=(Text("x"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A finished episode: the session, the ids its student read and wrote, and why it ended.

    `ids` end with the last sampled token. `session.outcome` is the reward. `ended` is "done" where the environment ended it.
    `measures` are what the environment counted, by name.
    """

    session: Session
    task_id: str
    ids: tuple[int, ...]
    ended: Ended
    num_cut: int
    num_malformed: int
    measures: Mapping[str, float]

    @property
    def reward(self) -> float:
        """What the environment said the episode was worth."""
        return self.session.outcome or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """How a student reads and writes: its template, its parser, its name, and the token that ends its messages."""

    renderer: Renderer
    parser: Parser
    author: str
    end_id: int

    @classmethod
    def of(cls, renderer: Renderer, *, author: str, parser: Parser | None = None) -> Self:
        """The voice of a template; raises ConfigError where its calls cannot be read and no parser is given."""
        end_id = renderer.reply([_STUB], _PROBE)[1][-1]
        return cls(renderer=renderer, parser=parser or parser_of(renderer), author=author, end_id=end_id)


class Episode:
    """One environment and its conversation; `random` is the episode's own stream, so its neighbours in a batch do not matter."""

    def __init__(self, env: Env, *, voice: Voice, name: str, seed: int, meter: Meter) -> None:
        self.env, self.voice, self.name, self.meter = env, voice, name, meter
        self.random = random.Random(seed)
        with meter.timing("environment"):
            opening = env.open()
        if env.max_turns < 1:
            raise DataError("max_turns is below 1, so the student may not write", where=env.task_id)
        self.tools = opening.tools
        self.turns: list[Turn] = list(opening.turns)
        with meter.timing("render"):
            self.ids: list[int] = list(voice.renderer.reply(self.turns, _PROBE, tools=self.tools)[0])
        self.ended: Ended | None = None
        self.num_written = self.num_cut = self.num_malformed = self._num_calls = 0

    def check_room(self, max_context_tokens: int) -> None:
        """Raise ConfigError where the opening alone leaves the student nothing to write in."""
        if len(self.ids) >= max_context_tokens:
            raise ConfigError(
                f"the opening has {len(self.ids)} tokens, max_context_tokens is {max_context_tokens}",
                where=self.env.task_id,
                fix="raise max_context_tokens or shorten the tools and the task",
            )

    def take(self, ids: Sequence[int], logprobs: Sequence[float], *, ended: bool, max_context_tokens: int) -> None:
        """Add a sampled message and what the environment answers; `ended` = its last token is an end token, else it was cut."""
        message, malformed = self._message(tuple(ids), tuple(logprobs), ended=ended)
        self.turns.append(message)
        self.ids.extend(ids)
        self.num_written += 1
        self.num_cut += not ended
        self.num_malformed += len(malformed)
        reply = self._answer(message, malformed)
        self.turns.extend(reply.turns)
        if reply.done:
            self.ended = "done"
            return
        self._check_answered(message, reply)
        if self.num_written >= self.env.max_turns:
            self.ended = "max_turns"
            return
        with self.meter.timing("render"):
            behind = self._behind(message, reply.turns)
        if len(self.ids) + len(behind) >= max_context_tokens:
            self.ended = "max_context"
            return
        self.ids.extend(behind)

    def finish(self) -> Rollout:
        """The rollout, once `ended`; raises AlignmentError where the whole conversation renders to other ids than were read and written."""
        if self.ended is None:
            raise DataError("the episode is not finished", where=self.name)
        with self.meter.timing("render"):
            whole = self.voice.renderer.render(self.turns, tools=self.tools).ids
        self._must_begin(whole)
        with self.meter.timing("environment"):
            reward, measures = self.env.reward(), dict(self.env.measures())
        events = () if self.ended == "done" else (Event(kind=self.ended, turn=len(self.turns)),)
        session = Session(
            id=self.name,
            source=SourceRef(file=self.env.task_id, format="rollout"),
            turns=tuple(self.turns),
            segments=(Segment(start=0, end=len(self.turns)),),
            tools=tuple(self.tools),
            tools_origin="log" if self.tools else "none",
            events=events,
            origin="student",
            outcome=float(reward),
        )
        return Rollout(
            session=session,
            task_id=self.env.task_id,
            ids=tuple(self.ids),
            ended=self.ended,
            num_cut=self.num_cut,
            num_malformed=self.num_malformed,
            measures=measures,
        )

    def _message(self, ids: tuple[int, ...], logprobs: tuple[float, ...], *, ended: bool) -> tuple[Turn, dict[str, MalformedCall]]:
        written = ids[:-1] if ended else ids
        parts = parse_message(written, codec=self.voice.renderer.codec, parser=self.voice.parser, tools=self.tools)
        blocks: list[Block] = []
        malformed: dict[str, MalformedCall] = {}
        for part in parts:
            if not isinstance(part, (WrittenCall, MalformedCall)):
                blocks.append(part)
                continue
            call_id = f"c{self._num_calls}"
            self._num_calls += 1
            if isinstance(part, WrittenCall):
                blocks.append(ToolCall(call_id, part.name, part.arguments))
            else:
                malformed[call_id] = part
                blocks.append(ToolCall(call_id, MALFORMED, {"text": part.text}))
        turn = Turn(
            role="assistant",
            author=self.voice.author,
            blocks=tuple(blocks),
            tag="" if ended else CUT,
            context_tokens=len(self.ids),
            sampled=Sampled(ids, logprobs),
        )
        return turn, malformed

    def _answer(self, message: Turn, malformed: dict[str, MalformedCall]) -> Reply:
        """The environment's answer to what can be read, with an error result for each call that cannot, in the order of the calls.

        A message that holds nothing but malformed calls does not reach the environment.
        """
        readable = tuple(b for b in message.blocks if not (isinstance(b, ToolCall) and b.id in malformed))
        reply = Reply(turns=(), done=False)
        if not malformed or any(isinstance(block, ToolCall) for block in readable):
            with self.meter.timing("environment"):
                reply = self.env.reply(replace(message, blocks=readable))
        turns = list(reply.turns)
        order = {call.id: index for index, call in enumerate(message.calls)}

        def place(turn: Turn) -> int:
            return min((order.get(result.call_id, len(order)) for result in turn.results), default=len(order))

        for call_id, call in malformed.items():
            words = f"InputValidationError: malformed tool call: {call.problem}"
            words += f" (the message was cut off after {len(message.sampled.ids)} tokens)" if message.tag == CUT and message.sampled else ""
            error = Turn(role="tool", author=ENVIRONMENT, blocks=(ToolResult(call_id, words, is_error=True),))
            at = next((i for i, turn in enumerate(turns) if place(turn) > order[call_id]), len(turns))
            turns.insert(at, error)
        return Reply(turns=tuple(turns), done=reply.done)

    def _check_answered(self, message: Turn, reply: Reply) -> None:
        answered = [result.call_id for turn in reply.turns for result in turn.results]
        missing = [call for call in message.calls if call.id not in answered]
        if missing:
            raise DataError(f"the environment gave no result to the call of {missing[0].name!r}", where=self.name)
        if not reply.turns:
            raise DataError("the environment neither answered nor ended the episode", where=self.name)

    def _behind(self, message: Turn, answer: Sequence[Turn]) -> list[int]:
        """The ids behind a sampled message up to the next generation prompt.

        In a known family they depend on the message and its answer alone, so only these are rendered (`finish` checks the whole);
        an unknown template is rendered from the beginning every time.
        """
        render = self.voice.renderer
        if render.family is not None:
            rendered = render.render([_STUB, message, *answer, _PROBE])
            a, b = rendered.spans[1].body
            if message.sampled is None or rendered.ids[a:b] != message.sampled.ids:
                raise AlignmentError("the sampled ids are not what stands at the message's place", where=self.name)
        else:
            rendered = render.render([*self.turns, _PROBE], tools=self.tools)
            b = len(self.ids)
            self._must_begin(rendered.ids)
        return list(rendered.ids[b : rendered.spans[-1].body[0]])

    def _must_begin(self, rendered: Sequence[int]) -> None:
        if list(rendered[: len(self.ids)]) != self.ids:
            at = num_shared(self.ids, list(rendered))
            raise AlignmentError(
                f"the conversation renders to other ids than the student read and wrote, from token {at} of {len(self.ids)} on",
                where=self.name,
                fix="the chat template rewrites what came earlier: use a prefix-preserving family in student.template",
            )
