"""One episode: a conversation between a student and an environment, as turns and as exact ids.

    episode = Episode(env, chat_format=ChatFormat.of(renderer, author="tiny"), name="task-3:0",
                      seed=7, stats=SamplingStats())
    episode.ids                                       # the student's first prompt
    episode.add_message(ids, logprobs, ended=True)    # its message; then episode.pending_message
                                                      # waits for the environment
    episode.add_observation(outcome, max_context_tokens=512)   # `ids` grows, or the episode ends
    episode.ended, episode.finish()                   # "done", and the Rollout

Sampled ids are never encoded again. What follows them - the end of the message that the template
writes, the environment's answer, the next generation prompt - is rendered separately, and at the
end the whole conversation is rendered once more and must give the same ids. An environment that
raises, hangs, or answers nonsense ends its episode, which then has no reward; nothing else is
affected.

    done          the environment ended it        cut_off      it did so on a message without end
    max_turns     no more messages allowed        max_sampled  no more tokens allowed
    max_context   the next message has no room    no_message   the server wrote no message
    env_error     the environment failed          env_timeout  the environment hung
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeVar

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
    ToolSpec,
    Turn,
)
from composer_replication.rollouts.call_pool import MAX_ERROR_CHARS, Outcome, PooledCall
from composer_replication.rollouts.env_validation import (
    FaultError,
    checked_max_turns,
    checked_opening,
    checked_reply,
    checked_reward,
    clean_text,
)
from composer_replication.rollouts.envs.env import Env, Opening, Reply
from composer_replication.rollouts.parse import (
    MalformedCall,
    Parser,
    WrittenCall,
    parse_message,
    parser_of,
)
from composer_replication.rollouts.sampling import EpisodeLimits
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.tokens.layout import shared_prefix_length
from composer_replication.tokens.renderer import Renderer

CUT = "cut_off"
"""The tag of a message that was cut at its limit."""
MALFORMED = "malformed_call"
"""The name under which a call that could not be read is kept: ToolCall(id, "malformed_call",
{"text": what was written})."""
Ended = Literal[
    "done",
    "cut_off",
    "max_turns",
    "max_sampled",
    "max_context",
    "env_error",
    "env_timeout",
    "no_message",
]
LOST: tuple[Ended, ...] = ("env_error", "env_timeout", "no_message")
"""Ends that the environment or the server caused."""
_NO_REWARD: tuple[Ended, ...] = (*LOST, "cut_off")

T = TypeVar("T")
_STUB = Turn(role="user", author=HUMAN, blocks=(Text("x"),))
_PROBE = Turn(role="assistant", author=None, blocks=(Text("x"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A finished episode: the session, the ids its student read and wrote, and why it ended.

    `ids` end with the last sampled token. `session.outcome` is the reward: 0 if the episode was
    lost (`LOST`; `failure` says why) or the last message had no end. `measures` are the
    environment's counts, by name. `num_refused` calls exceeded the limit of one message. `version`
    names the weights that sampled it: of several, the oldest; -1 = unknown.
    """

    session: Session
    task_id: str
    ids: tuple[int, ...]
    ended: Ended
    num_cut: int
    num_malformed: int
    measures: Mapping[str, float]
    num_refused: int = 0
    version: int = -1
    failure: str = ""

    @property
    def reward(self) -> float:
        """The reward that the environment gave."""
        return self.session.outcome or 0.0


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
        end_id = renderer.reply([_STUB], _PROBE)[1][-1]
        return cls(
            renderer=renderer, parser=parser or parser_of(renderer), author=author, end_id=end_id
        )


class Episode:
    """One environment and its conversation.

    `random` is the episode's own stream, so its neighbours in a batch do not matter. `opened` is
    the outcome of `env.open()` if it was called elsewhere; None = it is called here.
    """

    def __init__(
        self,
        env: Env,
        *,
        chat_format: ChatFormat,
        name: str,
        seed: int,
        stats: SamplingStats,
        limits: EpisodeLimits | None = None,
        opened: Outcome[Opening] | None = None,
    ) -> None:
        self.env, self.chat_format, self.name, self.stats = env, chat_format, name, stats
        self.limits = limits or EpisodeLimits()
        self.random = random.Random(seed)
        self.tools: tuple[ToolSpec, ...] = ()
        self.turns: list[Turn] = []
        self.ids: list[int] = []
        self.ended: Ended | None = None
        self.failure = ""
        self.max_turns = 0
        self.no_room: ConfigError | None = None
        self._logged = False
        self.num_written = self.num_sampled = self.num_cut = self.num_malformed = (
            self.num_refused
        ) = self._num_calls = 0
        self.pending_message: Turn | None = None
        self._num_said = 0
        self._errors: dict[str, str] = {}
        self._open(opened or self._call_env(env.open))

    @property
    def room(self) -> int:
        """The tokens that the student may still write in all; the context is another limit."""
        limit = self.limits.max_sampled_tokens
        return limit - self.num_sampled if limit else 2**31

    def check_room(self, max_context_tokens: int) -> None:
        """End the episode as lost if the opening alone leaves the student no room to write.

        `no_room` is then the error to raise if this holds for a whole batch. An opening from a log
        comes from this package, so for such an opening the ConfigError is raised at once.
        """
        if len(self.ids) < max_context_tokens:
            return
        problem = (
            f"the opening has {len(self.ids)} tokens, max_context_tokens is {max_context_tokens}"
        )
        self.no_room = ConfigError(
            problem,
            where=self.env.task_id,
            fix="raise max_context_tokens or shorten the tools and the task",
        )
        if self._logged:
            raise self.no_room
        self._lose(problem)
        self.ids.clear()  # the student never read them

    def take(
        self, ids: Sequence[int], logprobs: Sequence[float], *, ended: bool, max_context_tokens: int
    ) -> None:
        """Add a message, let the environment answer in this thread, and add its answer."""
        self.add_message(ids, logprobs, ended=ended)
        asked = self.pending_message
        self.add_observation(
            None if asked is None else self._call_env(lambda: self.env.reply(asked)),
            max_context_tokens=max_context_tokens,
        )

    def add_message(self, ids: Sequence[int], logprobs: Sequence[float], *, ended: bool) -> None:
        """Add a sampled message; `ended` = its last token is an end token, else it was cut.

        `asked` is then the message for the environment. It lacks the calls that cannot be read or
        are too many, which are answered here; None if nothing else is left.
        """
        message, self._errors = self._message(tuple(ids), tuple(logprobs), ended=ended)
        self.turns.append(message)
        self.ids.extend(ids)
        self._num_said = len(self.ids)
        self.num_written += 1
        self.num_sampled += len(ids)
        self.num_cut += not ended
        readable = tuple(
            b for b in message.blocks if not (isinstance(b, ToolCall) and b.id in self._errors)
        )
        has_message = not self._errors or any(isinstance(block, ToolCall) for block in readable)
        self.pending_message = replace(message, blocks=readable) if has_message else None

    def give_up(self, reason: str) -> None:
        """End without the next message, which a server failed to give.

        What the student was about to read is no part of the rollout.
        """
        self.ended, self.failure, self.pending_message = "no_message", _clean_reason(reason), None
        del self.ids[self._num_said :]

    def add_observation(self, outcome: Outcome[Reply] | None, *, max_context_tokens: int) -> None:
        """Add the environment's answer to `asked`, and errors for the calls that it did not get.

        `outcome` is None if the environment was not asked.
        """
        message, asked = self.turns[-1], self.pending_message
        if outcome is not None and outcome.failure is not None:
            return self._lose(outcome.failure.reason, late=outcome.failure.late)
        reply = Reply(turns=(), done=False)
        if asked is not None:
            answer = outcome.value if outcome is not None else None
            calls = [call.id for call in asked.calls]
            if (
                checked := self._checked(
                    lambda: checked_reply(answer, calls=calls, limits=self.limits)
                )
            ) is None:
                return
            reply = checked
        reply = self._with_errors(message, reply)
        self.turns.extend(reply.turns)
        if reply.done:
            self.ended = "cut_off" if message.tag == CUT else "done"
            return
        if not reply.turns:
            return self._lose("the environment neither answered nor ended the episode")
        max_turns = min(self.max_turns, self.limits.max_turns or self.max_turns)
        if self.num_written >= max_turns or self.room <= 0:
            self.ended = "max_turns" if self.num_written >= max_turns else "max_sampled"
            return
        with self.stats.timing("render"):
            next_ids = self._behind(message, reply.turns)
        if len(self.ids) + len(next_ids) >= max_context_tokens:
            self.ended = "max_context"
            return
        self.ids.extend(next_ids)

    def finish(
        self, *, scored: Outcome[tuple[float, Mapping[str, float]]] | None = None, version: int = -1
    ) -> Rollout:
        """The rollout, once the episode has `ended`.

        `scored` is the outcome of `score_episode` if it was called elsewhere. Raises AlignmentError
        if the whole conversation renders to other ids than the student read and wrote.
        """
        if self.ended is None:
            raise DataError("the episode is not finished", where=self.name)
        if self.turns:
            with self.stats.timing("render"):
                rendered_ids = self.chat_format.renderer.render(self.turns, tools=self.tools).ids
            self._must_begin(rendered_ids)
        reward, measures = self._reward(scored or self._call_env(self.score_episode))
        events = (
            ()
            if self.ended == "done"
            else (Event(kind=self.ended, turn=len(self.turns), text=self.failure),)
        )
        session = Session(
            id=self.name,
            source=SourceRef(file=self.env.task_id, format="rollout"),
            turns=tuple(self.turns),
            segments=(Segment(start=0, end=len(self.turns)),),
            tools=tuple(self.tools),
            tools_origin="log" if self.tools else "none",
            events=events,
            origin="student",
            outcome=reward,
        )
        return Rollout(
            session=session,
            task_id=self.env.task_id,
            ids=tuple(self.ids),
            ended=self.ended,
            num_cut=self.num_cut,
            num_malformed=self.num_malformed,
            measures=measures,
            num_refused=self.num_refused,
            version=version,
            failure=self.failure,
        )

    def score_episode(self) -> tuple[float, Mapping[str, float]]:
        """The environment's reward and measures; it is not asked if it failed before."""
        return (0.0, {}) if self.ended in LOST else (self.env.reward(), dict(self.env.measures()))

    def _call_env(self, call: Callable[[], T]) -> Outcome[T]:
        pooled_call = PooledCall(call)
        with self.stats.timing("environment"):
            pooled_call.run()
        return pooled_call.outcome()

    def _open(self, opened: Outcome[Opening]) -> None:
        """Read the opening; an invalid one ends the episode before its first message."""
        if opened.failure is not None:
            return self._lose(opened.failure.reason, late=opened.failure.late)
        returned = opened.value
        opening = self._checked(lambda: checked_opening(returned, limits=self.limits))
        max_turns = (
            self._checked(lambda: checked_max_turns(self.env.max_turns))
            if opening is not None
            else None
        )
        if opening is None or max_turns is None:
            return
        self.tools, self.max_turns, self._logged = opening.tools, max_turns, opening.logged
        self.turns = list(opening.turns)
        with self.stats.timing("render"):
            self.ids = list(
                self.chat_format.renderer.reply(self.turns, _PROBE, tools=self.tools)[0]
            )

    def _checked(self, check: Callable[[], T]) -> T | None:
        """The result of a validation; None if it fails, and then the episode is lost.

        Whatever foreign objects do while they are inspected - a property that raises, an `==` that
        exits - is a fault, too.
        """
        pooled_call = PooledCall(check)
        pooled_call.run()
        outcome = pooled_call.outcome()
        if outcome.failure is None:
            return outcome.value
        self._lose(
            str(pooled_call.error)
            if isinstance(pooled_call.error, FaultError)
            else outcome.failure.reason
        )
        return None

    def _lose(self, reason: str, *, late: bool = False) -> None:
        self.ended, self.failure = ("env_timeout" if late else "env_error"), _clean_reason(reason)

    def _reward(
        self, scored: Outcome[tuple[float, Mapping[str, float]]]
    ) -> tuple[float, dict[str, float]]:
        """The reward and the measures; an environment that cannot score has failed the episode."""
        if self.ended in LOST:
            return 0.0, {}
        if scored.failure is not None or scored.value is None:
            self._lose(
                scored.failure.reason if scored.failure else "no reward",
                late=bool(scored.failure and scored.failure.late),
            )
            return 0.0, {}
        value = scored.value
        if (checked := self._checked(lambda: checked_reward(*value))) is None:
            return 0.0, {}
        reward, measures = checked
        return (0.0 if self.ended in _NO_REWARD else reward), measures

    def _message(
        self, ids: tuple[int, ...], logprobs: tuple[float, ...], *, ended: bool
    ) -> tuple[Turn, dict[str, str]]:
        """The message as a turn, and by call id the errors of calls that are answered here."""
        written = ids[:-1] if ended else ids
        parts = parse_message(
            written,
            codec=self.chat_format.renderer.codec,
            parser=self.chat_format.parser,
            tools=self.tools,
        )
        blocks: list[Block] = []
        errors: dict[str, str] = {}
        num_readable = 0
        cut_note = "" if ended else f" (the message was cut off after {len(ids)} tokens)"
        for part in parts:
            if not isinstance(part, (WrittenCall, MalformedCall)):
                blocks.append(part)
                continue
            call_id = f"c{self._num_calls}"
            self._num_calls += 1
            if isinstance(part, WrittenCall):
                blocks.append(ToolCall(call_id, part.name, part.arguments))
                num_readable += 1
                if num_readable > self.limits.max_calls:
                    errors[call_id] = (
                        f"Cancelled: parallel tool call beyond the {self.limits.max_calls} of one"
                        " message"
                    )
                    self.num_refused += 1
            else:
                blocks.append(ToolCall(call_id, MALFORMED, {"text": part.text}))
                errors[call_id] = (
                    f"InputValidationError: malformed tool call: {part.problem}{cut_note}"
                )
                self.num_malformed += 1
        turn = Turn(
            role="assistant",
            author=self.chat_format.author,
            blocks=tuple(blocks),
            tag="" if ended else CUT,
            context_tokens=len(self.ids),
            sampled=Sampled(ids, logprobs),
        )
        return turn, errors

    def _with_errors(self, message: Turn, reply: Reply) -> Reply:
        """The reply with an error result for each call that did not reach the environment.

        Results are in the order of the calls.
        """
        turns = list(reply.turns)
        order = {call.id: index for index, call in enumerate(message.calls)}

        def call_index(turn: Turn) -> int:
            return min(
                (order.get(result.call_id, len(order)) for result in turn.results),
                default=len(order),
            )

        for call_id, error_text in self._errors.items():
            error = Turn(
                role="tool",
                author=ENVIRONMENT,
                blocks=(ToolResult(call_id, error_text, is_error=True),),
            )
            at = next(
                (i for i, turn in enumerate(turns) if call_index(turn) > order[call_id]), len(turns)
            )
            turns.insert(at, error)
        return Reply(turns=tuple(turns), done=reply.done)

    def _behind(self, message: Turn, answer: Sequence[Turn]) -> list[int]:
        """The ids behind a sampled message up to the next generation prompt.

        In a known family they depend on the message and its answer alone, so only these are
        rendered (`finish` checks the whole); an unknown template is rendered from the beginning
        every time.
        """
        render = self.chat_format.renderer
        if render.family is not None:
            rendered = render.render([_STUB, message, *answer, _PROBE])
            a, b = rendered.spans[1].body
            if message.sampled is None or rendered.ids[a:b] != message.sampled.ids:
                raise AlignmentError(
                    "the sampled ids are not what stands at the message's place", where=self.name
                )
        else:
            rendered = render.render([*self.turns, _PROBE], tools=self.tools)
            b = len(self.ids)
            self._must_begin(rendered.ids)
        return list(rendered.ids[b : rendered.spans[-1].body[0]])

    def _must_begin(self, rendered: Sequence[int]) -> None:
        if list(rendered[: len(self.ids)]) != self.ids:
            at = shared_prefix_length(self.ids, list(rendered))
            raise AlignmentError(
                "the conversation renders to other ids than the student read and wrote, from token"
                f" {at} of {len(self.ids)} on",
                where=self.name,
                fix=(
                    "the chat template rewrites what came earlier: use a prefix-preserving family"
                    " in student.template"
                ),
            )


def _clean_reason(text: str) -> str:
    """A foreign error text, as clean as a result: it goes into files and onto terminals."""
    return clean_text(text[:MAX_ERROR_CHARS], max_chars=MAX_ERROR_CHARS)
