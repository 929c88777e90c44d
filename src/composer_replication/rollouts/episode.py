"""One episode: a conversation between a student and an environment, as turns and as exact ids.

    episode = Episode(env, chat_format=ChatFormat.of(renderer, author="tiny"), name="task-3:0",
                      seed=7, stats=SamplingStats())
    episode.ids                                       # the student's first prompt
    episode.add_message(ids, logprobs, ended=True)    # its message; then episode.pending_message
                                                      # waits for the environment
    episode.add_observation(outcome, max_context_tokens=512)   # `ids` grows, or the episode ends
    episode.ended, episode.finish()                   # "done", and a Rollout per segment

Sampled ids are never encoded again. What follows them - the end of the message that the template
writes, the environment's answer, the next generation prompt - is rendered separately, and at the
end the whole conversation is rendered once more and must give the same ids. An environment that
raises, hangs, or answers nonsense ends its episode, which then has no reward; nothing else is
affected.

    done          the environment ended it        cut_off      it did so on a message without end
    max_turns     no more messages allowed        max_sampled  no more tokens allowed
    max_context   the next message has no room    no_message   the server wrote no message
    env_error     the environment failed          env_timeout  the environment hung

With EpisodeLimits.compact_tokens, an episode may have several segments: the student is asked for a
summary, and the next segment begins with the opening and that summary (rollouts/self_summary.py).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from composer_replication.core.errors import AlignmentError, ConfigError, DataError
from composer_replication.core.trace import (
    Event,
    Parent,
    Sampled,
    Segment,
    Session,
    SourceRef,
    ToolSpec,
    Turn,
)
from composer_replication.rollouts.call_pool import MAX_ERROR_CHARS, Outcome, PooledCall
from composer_replication.rollouts.chat_format import CUT, PROBE, ChatFormat, with_errors
from composer_replication.rollouts.env_validation import (
    FaultError,
    checked_max_turns,
    checked_opening,
    checked_remarks,
    checked_reply,
    checked_reward,
    clean_text,
)
from composer_replication.rollouts.envs.env import (
    Env,
    Opening,
    Remark,
    Reply,
    env_remarks,
    remark_events,
)
from composer_replication.rollouts.sampling import EpisodeLimits
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.rollouts.self_summary import SUMMARY, summary_prompt, summary_request
from composer_replication.tokens.layout import shared_prefix_length

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
Score = tuple[float, Mapping[str, float], Sequence[Remark]]
"""An environment's reward, its measures, and its remarks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A finished episode: the session, the ids its student read and wrote, and why it ended.

    `ids` end with the last sampled token. `session.outcome` is the reward: 0 if the episode was
    lost (`LOST`; `failure` says why) or the last message had no end. `measures` are the
    environment's counts, by name. `num_refused` calls exceeded the limit of one message. `version`
    names the weights that sampled it: of several, the oldest; -1 = unknown. An episode may have
    several conversations, an agent program's (serve/) or segments between summaries: they share the
    name `episode` and the reward, and the first has the measures.
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
    episode: str = ""

    @property
    def reward(self) -> float:
        """The reward that the environment gave."""
        return self.session.outcome or 0.0


def episode_name(rollout: Rollout) -> str:
    """The name of a rollout's episode, which several conversations may share."""
    return rollout.episode or rollout.session.id


def first_rollouts(rollouts: Iterable[Rollout]) -> dict[str, Rollout]:
    """The first rollout of each episode, by its name."""
    first: dict[str, Rollout] = {}
    for rollout in rollouts:
        first.setdefault(episode_name(rollout), rollout)
    return first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """What the student read and wrote up to one of its summaries, or to the end.

    The first `copied` turns are context that was there before. `counts` are the messages that were
    cut, and the calls that were malformed and refused, from the episode's beginning on.
    """

    turns: tuple[Turn, ...]
    ids: tuple[int, ...]
    copied: int
    counts: tuple[int, int, int]


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
        ) = 0
        self._call_ids = (f"c{number}" for number in itertools.count())
        self.pending_message: Turn | None = None
        self._num_said = 0
        self._errors: Mapping[str, str] = {}
        self._opening: tuple[Turn, ...] = ()
        self._earlier: list[_Segment] = []
        self._remarks: tuple[Remark, ...] = ()
        self._copied = 0
        self._summarises = False
        self._kept: int | None = None
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
        read = self.chat_format.read_message(
            Sampled(tuple(ids), tuple(logprobs)),
            ended=ended,
            tools=self.tools,
            call_ids=self._call_ids,
            position=len(self.ids),
            max_calls=self.limits.max_calls,
        )
        message, self._errors = read.turn, read.errors
        self.num_malformed += read.num_malformed
        self.num_refused += read.num_refused
        self.turns.append(message)
        self.ids.extend(ids)
        self._num_said = len(self.ids)
        self.num_written += 1
        self.num_sampled += len(ids)
        self.num_cut += not ended
        self.pending_message = None if self._summarises else read.carried_out

    def give_up(self, reason: str) -> None:
        """End without the next message, which a server failed to give.

        What the student was about to read is no part of the rollout.
        """
        self.ended, self.failure, self.pending_message = "no_message", _clean_reason(reason), None
        del self.ids[self._num_said :]

    def add_observation(self, outcome: Outcome[Reply] | None, *, max_context_tokens: int) -> None:
        """Add the environment's answer to `asked`, and errors for the calls that it did not get.

        `outcome` is None if the environment was not asked. Behind a summary there is no answer: the
        next segment begins.
        """
        if self._summarises:
            return self._begin_segment(max_context_tokens=max_context_tokens)
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
        answers = with_errors(message, self._errors, reply.turns)
        reply = Reply(turns=answers, done=reply.done)
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
            context = len(self.ids) + len(next_ids)
            # a summary without a message behind it would be in vain
            if 0 < self.limits.compact_tokens <= context and self.num_written + 1 < max_turns:
                self._summarises = True
                self.turns.append(summary_request())
                next_ids = self._behind(message, (*reply.turns, self.turns[-1]))
        if len(self.ids) + len(next_ids) >= max_context_tokens:
            self.ended = "max_context"
            return
        self.ids.extend(next_ids)

    def take_restart(self) -> int | None:
        """If a segment has begun since this was last asked: how many of its ids are the beginning
        of the ids before."""
        kept, self._kept = self._kept, None
        return kept

    def _begin_segment(self, *, max_context_tokens: int) -> None:
        """Go on with the opening and the summary that was just written."""
        self._summarises = False
        summary = summary_prompt(self.turns[-1], max_chars=self.limits.max_result_chars)
        turns = [*self._opening, summary]
        with self.stats.timing("render"):
            ids = list(self.chat_format.renderer.reply(turns, PROBE, tools=self.tools)[0])
        self._earlier.append(self._segment())
        if self.room <= 0 or len(ids) >= max_context_tokens:
            self.ended = "max_sampled" if self.room <= 0 else "max_context"
            return
        self._kept = min(shared_prefix_length(self.ids, ids), len(ids) - 1)
        self.turns, self.ids, self._copied = turns, ids, len(turns)
        self._num_said = 0

    def _segment(self) -> _Segment:
        return _Segment(
            turns=tuple(self.turns),
            ids=tuple(self.ids),
            copied=self._copied,
            counts=(self.num_cut, self.num_malformed, self.num_refused),
        )

    def finish(self, *, scored: Outcome[Score] | None = None, version: int = -1) -> list[Rollout]:
        """The rollout of each segment, once the episode has `ended`: one, without a summary.

        `scored` is the outcome of `score_episode` if it was called elsewhere. Raises AlignmentError
        if a whole conversation renders to other ids than the student read and wrote.
        """
        if self.ended is None:
            raise DataError("the episode is not finished", where=self.name)
        segments = list(self._earlier)
        if not segments or segments[-1].turns != tuple(self.turns):
            segments.append(self._segment())
        for segment in segments:
            if segment.turns:
                with self.stats.timing("render"):
                    rendered = self.chat_format.renderer.render(segment.turns, tools=self.tools).ids
                self._must_begin(rendered, segment.ids)
        reward, measures = self._reward(scored or self._call_env(self.score_episode))
        return [
            self._rollout(
                segments,
                number,
                reward=reward,
                measures={} if number else measures,
                version=version,
            )
            for number in range(len(segments))
        ]

    def _rollout(
        self,
        segments: Sequence[_Segment],
        number: int,
        *,
        reward: float,
        measures: Mapping[str, float],
        version: int,
    ) -> Rollout:
        """One segment; all share the reward and the reason of the end, which is an event of the
        last."""
        assert self.ended is not None
        segment, num_turns = segments[number], len(segments[number].turns)
        before = segments[number - 1].counts if number else (0, 0, 0)
        cut, malformed, refused = (a - b for a, b in zip(segment.counts, before, strict=True))
        events: list[Event] = []
        if number < len(self._earlier):
            events.append(Event(kind=SUMMARY, turn=num_turns))
        if number == len(segments) - 1 and self.ended != "done":
            events.append(Event(kind=self.ended, turn=num_turns, text=self.failure))
        if number == len(segments) - 1:
            events += remark_events(self._remarks, turn=num_turns)
        session = Session(
            id=f"{self.name}.{number}" if number else self.name,
            source=SourceRef(file=self.env.task_id, format="rollout"),
            turns=segment.turns,
            segments=(Segment(start=0, end=num_turns),),
            tools=tuple(self.tools),
            tools_origin="log" if self.tools else "none",
            events=tuple(events),
            parent=Parent(session_id=self.name, call_id=None) if number else None,
            copied=segment.copied,
            origin="student",
            outcome=reward,
        )
        return Rollout(
            session=session,
            task_id=self.env.task_id,
            ids=segment.ids,
            ended=self.ended,
            num_cut=cut,
            num_malformed=malformed,
            measures=measures,
            num_refused=refused,
            version=version,
            failure=self.failure,
            episode=self.name if len(segments) > 1 else "",
        )

    def score_episode(self) -> Score:
        """The environment's reward, measures and remarks; it is not asked if it failed before."""
        if self.ended in LOST:
            return 0.0, {}, ()
        reward, measures = self.env.reward(), dict(self.env.measures())
        return reward, measures, env_remarks(self.env)

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
        self.turns, self._opening = list(opening.turns), opening.turns
        with self.stats.timing("render"):
            self.ids = list(self.chat_format.renderer.reply(self.turns, PROBE, tools=self.tools)[0])

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

    def _reward(self, scored: Outcome[Score]) -> tuple[float, dict[str, float]]:
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
        if (checked := self._checked(lambda: checked_reward(*value[:2]))) is None:
            return 0.0, {}
        if (remarks := self._checked(lambda: checked_remarks(value[2]))) is None:
            return 0.0, {}
        (reward, measures), self._remarks = checked, remarks
        return (0.0 if self.ended in _NO_REWARD else reward), measures

    def _behind(self, message: Turn, answer: Sequence[Turn]) -> list[int]:
        """The ids behind a sampled message up to the next generation prompt.

        In a known family they depend on the message and its answer alone, so only these are
        rendered (`finish` checks the whole); an unknown template is rendered from the beginning
        every time.
        """
        render = self.chat_format.renderer
        if render.family is not None:
            return self.chat_format.ids_behind(message, answer, where=self.name)
        rendered = render.render([*self.turns, PROBE], tools=self.tools)
        self._must_begin(rendered.ids, self.ids)
        return list(rendered.ids[len(self.ids) : rendered.spans[-1].body[0]])

    def _must_begin(self, rendered: Sequence[int], ids: Sequence[int]) -> None:
        if list(rendered[: len(ids)]) != list(ids):
            at = shared_prefix_length(ids, rendered)
            raise AlignmentError(
                "the conversation renders to other ids than the student read and wrote, from token"
                f" {at} of {len(ids)} on",
                where=self.name,
                fix=(
                    "the chat template rewrites what came earlier: use a prefix-preserving family"
                    " in student.template"
                ),
            )


def _clean_reason(text: str) -> str:
    """A foreign error text, as clean as a result: it goes into files and onto terminals."""
    return clean_text(text[:MAX_ERROR_CHARS], max_chars=MAX_ERROR_CHARS)
