"""One episode: the conversation of a student with an environment, as turns and as exact token ids.

The sampler (rollouts/sampler.py) drives many of these at once. An Episode holds no model: ids come
in, the ids of the next prompt come out.

    episode = Episode(env, chat_format=ChatFormat.of(renderer, author="tiny"), name="task-3:0",
                      seed=7, stats=SamplingStats())
    episode.ids                                       # the student's first prompt
    episode.add_message(ids, logprobs, ended=True)    # its message; then episode.pending_message
                                                      # waits for the environment
    episode.add_observation(outcome, max_context_tokens=512)   # `ids` grows, or the episode ends
    episode.ended, episode.finish()                   # "done", and a Rollout per segment

Sampled ids are never encoded again. What follows them (what the template writes behind a message,
the environment's answer, the next generation prompt) is rendered on its own and appended. At the
end the whole conversation is rendered once more and must give the same ids. An environment that
raises, hangs, or returns something invalid ends its own episode without a reward, and no other.

How an episode can end (`Ended`):

    done          the environment ended it        cut_off      it did so on a message that was cut
    max_turns     no more messages allowed        max_sampled  no more tokens allowed
    max_context   the next message has no room    no_message   the server wrote no message
    env_error     the environment failed          env_timeout  the environment hung

With EpisodeLimits.compact_tokens an episode can outgrow the context: the student is then asked for
a summary, and a new segment begins with the opening and that summary (rollouts/self_summary.py).
Each segment is a context of its own and becomes a Rollout.
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
"""Ends that the environment or the server caused: nothing can be learned from such an episode."""
_NO_REWARD: tuple[Ended, ...] = (*LOST, "cut_off")

T = TypeVar("T")
Score = tuple[float, Mapping[str, float], Sequence[Remark]]
"""An environment's reward, its measures, and its remarks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A finished episode, or one of its conversations: the session, the ids that the student read
    and wrote, and why it ended.

    `ids` end with the last sampled token. The reward is `session.outcome`: 0 if the episode was
    lost (`LOST`; `failure` says why) or its last message was cut. `measures` are the environment's
    counts, by name. `num_cut` counts messages cut at max_new_tokens, `num_malformed` calls that
    could not be parsed, `num_refused` calls beyond EpisodeLimits.max_calls. `version` names the
    weights that sampled it, the oldest if there were several; -1 = unknown.

    An episode has several conversations if it was compacted, or if an agent program held several
    (serve/). They are rollouts with the same `episode` and reward; only the first has `measures`.
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
    """The name of a rollout's episode, equal for all of its conversations."""
    return rollout.episode or rollout.session.id


def first_rollouts(rollouts: Iterable[Rollout]) -> dict[str, Rollout]:
    """The first rollout of each episode, by its name."""
    first: dict[str, Rollout] = {}
    for rollout in rollouts:
        first.setdefault(episode_name(rollout), rollout)
    return first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """One context of an episode: up to a summary (included), or to the end.

    The first `copied` turns are not new: the opening, repeated, and the summary before. `counts`
    are running totals since the episode began: messages cut, calls malformed, calls refused.
    """

    turns: tuple[Turn, ...]
    ids: tuple[int, ...]
    copied: int
    counts: tuple[int, int, int]


class Episode:
    """One environment and the conversation with it so far.

    `ids` are what the student reads next, `pending_message` is what the environment has to answer
    next (None: nothing), `ended` is None while the episode goes on. `random` is a stream of its
    own, so that the episode does not depend on its batch. `opened` is the outcome of `env.open()`
    if the caller has called it already (in a thread pool); None = it is called here.
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
        self._sampled_end = 0
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
        """How many tokens the student may still write by `max_sampled_tokens`, the limit of the
        episode; the context has a limit of its own."""
        limit = self.limits.max_sampled_tokens
        return limit - self.num_sampled if limit else 2**31

    def check_room(self, max_context_tokens: int) -> None:
        """End the episode as lost if its opening alone fills the context.

        One such environment costs only itself. `no_room` keeps the ConfigError, which the sampler
        raises if it is the same for all: then max_context_tokens is too small. For an opening from
        a log it is raised at once: there this package, not an environment, made the opening.
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
        pending = self.pending_message
        self.add_observation(
            None if pending is None else self._call_env(lambda: self.env.reply(pending)),
            max_context_tokens=max_context_tokens,
        )

    def add_message(self, ids: Sequence[int], logprobs: Sequence[float], *, ended: bool) -> None:
        """Add a sampled message; `ended` = its last token is an end token, else it was cut.

        `pending_message` is then what the environment gets: the message without calls that cannot
        be parsed or are too many, which `add_observation` answers with errors. It is None if only
        such calls were in it, and for a summary.
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
        self._sampled_end = len(self.ids)
        self.num_written += 1
        self.num_sampled += len(ids)
        self.num_cut += not ended
        self.pending_message = None if self._summarises else read.carried_out

    def give_up(self, reason: str) -> None:
        """End the episode because a server failed to write the next message.

        The prompt of that message is cut off again: a rollout's ids end with a sampled token.
        """
        self.ended, self.failure, self.pending_message = "no_message", _clean_reason(reason), None
        del self.ids[self._sampled_end :]

    def add_observation(self, outcome: Outcome[Reply] | None, *, max_context_tokens: int) -> None:
        """Add the environment's answer to `pending_message`, and errors for the calls that it did
        not get; then `ids` hold the next prompt, or the episode has ended.

        `outcome` is None if there was nothing to answer. After a summary the next segment begins.
        """
        if self._summarises:
            return self._begin_segment(max_context_tokens=max_context_tokens)
        message, pending = self.turns[-1], self.pending_message
        if outcome is not None and outcome.failure is not None:
            return self._lose(outcome.failure.reason, late=outcome.failure.late)
        reply: Reply | None = Reply(turns=(), done=False)
        if pending is not None:
            returned = outcome.value if outcome is not None else None
            calls = [call.id for call in pending.calls]
            reply = self._checked(lambda: checked_reply(returned, calls=calls, limits=self.limits))
            if reply is None:
                return
        answers = with_errors(message, self._errors, reply.turns)
        self.turns.extend(answers)
        if reply.done:
            self.ended = "cut_off" if message.tag == CUT else "done"
            return
        if not answers:
            return self._lose("the environment neither answered nor ended the episode")
        max_turns = min(self.max_turns, self.limits.max_turns or self.max_turns)
        if self.num_written >= max_turns or self.room <= 0:
            self.ended = "max_turns" if self.num_written >= max_turns else "max_sampled"
            return
        with self.stats.timing("render"):
            next_ids = self._behind(message, answers)
            context = len(self.ids) + len(next_ids)
            # the summary takes one turn: at least one must be left to use it
            if 0 < self.limits.compact_tokens <= context and self.num_written + 1 < max_turns:
                self._summarises = True
                self.turns.append(summary_request())
                next_ids = self._behind(message, (*answers, self.turns[-1]))
        if len(self.ids) + len(next_ids) >= max_context_tokens:
            self.ended = "max_context"
            return
        self.ids.extend(next_ids)

    def take_restart(self) -> int | None:
        """If a segment has begun since the last call: how many ids it has in common with the
        beginning of the segment before, so may stay in a KV cache. Else None."""
        kept, self._kept = self._kept, None
        return kept

    def _begin_segment(self, *, max_context_tokens: int) -> None:
        """Replace the context by the opening and the summary that was just written."""
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
        self._sampled_end = 0

    def _segment(self) -> _Segment:
        return _Segment(
            turns=tuple(self.turns),
            ids=tuple(self.ids),
            copied=self._copied,
            counts=(self.num_cut, self.num_malformed, self.num_refused),
        )

    def finish(self, *, scored: Outcome[Score] | None = None, version: int = -1) -> list[Rollout]:
        """The rollouts of an episode that has `ended`, one per segment.

        `scored` is the outcome of `score_episode` if the caller has called it already. Raises
        AlignmentError if a conversation, rendered as a whole, has other ids than the student read
        and wrote.
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
        """The rollout of one segment. All have the reward and the reason of the end; only the last
        has the end as an event, and the environment's remarks."""
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
        """The environment's reward, measures and remarks; zeros, without asking, if it failed."""
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
        """Check and render the opening; an invalid one ends the episode before its first
        message."""
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
        """Run a validation of what the environment returned; if it fails, the episode is lost and
        the result is None.

        The returned objects are foreign code too: a property that raises or an `==` that calls
        sys.exit() must not end the run, so the validation runs like a call of the environment.
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
        """The checked reward and measures; an environment that cannot score loses its episode."""
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
        """The ids between a sampled message and the student's next token: the rest of the message
        as the template writes it, the answer, and the generation prompt.

        In a known template family they depend on the message and the answer alone, so only these
        are rendered (`finish` checks the whole). With an unknown template the whole conversation is
        rendered every time.
        """
        render = self.chat_format.renderer
        if render.family is not None:
            return self.chat_format.ids_behind(message, answer, where=self.name)
        rendered = render.render([*self.turns, PROBE], tools=self.tools)
        self._must_begin(rendered.ids, self.ids)
        return list(rendered.ids[len(self.ids) : rendered.spans[-1].body[0]])

    def _must_begin(self, rendered: Sequence[int], ids: Sequence[int]) -> None:
        """Raise AlignmentError unless `rendered` begins with `ids`."""
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
    """A foreign error text, cleaned like a tool result: it goes into files and onto terminals."""
    return clean_text(text[:MAX_ERROR_CHARS], max_chars=MAX_ERROR_CHARS)
