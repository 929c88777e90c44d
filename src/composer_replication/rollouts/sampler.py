"""Rollouts of any causal language model in any environment: batched, token in, token out.

    envs = [make(task) for task in tasks]
    rollouts = sample_rollouts(model, envs, renderer=Renderer.for_tokenizer(tokenizer),
                               settings=Sampling(seed=7), author="my-student")
    rollouts[0].session        # origin="student", assistant turns with ids and log-probs
    rollouts[0].reward         # also its outcome

The episodes of a batch write one message each, in lock-step; then each environment answers - at the
same time as the others if it allows that - finished episodes leave the cache, and only new tokens
are fed: keys and values are kept across turns. Each episode draws from its own stream, named by
seed, label, task and number: the same seed gives the same ids bit for bit on the same machine
(CPU), and the rest of the batch changes a row by rounding only. With a served model
(rollouts/served.py) in place of `model`, a server writes the messages; its tokens come back as ids
with log-probs, and nothing else changes, except that the seed means what the server makes of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import ConfigError
from composer_replication.models.forward import scoring
from composer_replication.rollouts.call_pool import CallPool, Failure, Outcome, PooledCall
from composer_replication.rollouts.chat_format import ChatFormat
from composer_replication.rollouts.choose import sample_tokens
from composer_replication.rollouts.envs.env import Env, runs_in
from composer_replication.rollouts.episode import LOST, Episode, Rollout, first_rollouts
from composer_replication.rollouts.parse import Parser
from composer_replication.rollouts.ragged import RaggedCache, holds_ragged_rows
from composer_replication.rollouts.sampling import Sampling
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.rollouts.served import Completion, GenerationRequest, ServedModel
from composer_replication.tokens.renderer import Renderer

T = TypeVar("T")


def sample_rollouts(
    model: Any,
    envs: Sequence[Env],
    *,
    renderer: Renderer,
    settings: Sampling,
    author: str,
    label: str = "",
    version: int = -1,
    parser: Parser | None = None,
    stats: SamplingStats | None = None,
) -> list[Rollout]:
    """One episode in each environment, in their order; every environment is closed in any case. The
    segments of an episode (EpisodeLimits.compact_tokens) follow one another.

    `author` is the student's name on its turns. `label` begins the sessions' ids and enters the
    seed, e.g. "step-12:", so that the same tasks give new episodes; the n-th environment of one
    task is session `label task:n`. `version` names the weights, e.g. the number of steps they have
    taken; a served model sets its own. The model is left in the mode it was in.

    Raises ConfigError (a template whose calls cannot be read; openings that are all longer than the
    context, while one among others costs its own rollout; a logged context that is longer),
    AlignmentError (a template that rewrites earlier text), StoppedError (logits that are not
    finite), DataError (a server that cannot be reached, or does not return which tokens it sampled;
    one that leaves single requests unanswered costs their episodes).
    """
    chat_format = ChatFormat.of(renderer, author=author, parser=parser)
    stats = stats if stats is not None else SamplingStats()
    served = isinstance(model, ServedModel)
    if served:
        model.check()
        version = model.version
    else:
        _check_context(model, settings)
    stop = chat_format.stop_ids(None if served else model)
    size = settings.batch_episodes if served or holds_ragged_rows(model) else 1
    names = session_names(envs, label)
    rollouts: list[Rollout] = []
    no_room: list[ConfigError | None] = []
    with ExitStack() as stack, stats.timing("total"):
        pool = stack.enter_context(CallPool(num_threads=settings.limits.tool_threads))
        # `_close` sees this very list: what a batch has closed is removed from it in place.
        open_envs = list(envs)
        stack.callback(_close, pool, open_envs, settings)
        stack.enter_context(nullcontext() if served else scoring(model))
        for start in range(0, len(envs), size):
            part = slice(start, start + size)
            batch = _open_batch(
                pool,
                envs[part],
                names[part],
                chat_format=chat_format,
                settings=settings,
                stats=stats,
            )
            _play_batch(model, batch, stop=stop, settings=settings, pool=pool)
            # The environments must still be open when they are scored.
            no_room += [episode.no_room for episode in batch]
            scored = _call_envs(pool, batch, [episode.score_episode for episode in batch])
            for episode, episode_score in zip(batch, scored, strict=True):
                rollouts += episode.finish(scored=episode_score, version=version)
            _close(pool, open_envs[: len(batch)], settings)
            del open_envs[: len(batch)]
    if no_room and no_room[0] is not None and None not in no_room:
        raise no_room[0]
    add_counts(stats, rollouts)
    stats.num_left_behind += pool.num_left_behind
    return rollouts


def _open_batch(
    pool: CallPool,
    envs: Sequence[Env],
    names: Sequence[str],
    *,
    chat_format: ChatFormat,
    settings: Sampling,
    stats: SamplingStats,
) -> list[Episode]:
    """The episodes of a batch, each with its environment opened."""
    with stats.timing("environment"):
        opened = pool.run(
            [
                PooledCall(env.open, runs_in=runs_in(env), timeout_s=settings.limits.tool_timeout_s)
                for env in envs
            ]
        )
    shared = {"chat_format": chat_format, "stats": stats, "limits": settings.limits}
    return [
        Episode(
            env,
            name=name,
            seed=stage_seed(settings.seed, f"rollout:{name}"),
            opened=outcome,
            **shared,
        )
        for env, name, outcome in zip(envs, names, opened, strict=True)
    ]


def _call_envs(
    pool: CallPool, episodes: Sequence[Episode], calls: Sequence[Callable[[], T]]
) -> list[Outcome[T]]:
    """The outcome of one call to the environment of each episode.

    An environment that hung before is not asked again.
    """
    if not episodes:
        return []
    responsive = [
        (e, call) for e, call in zip(episodes, calls, strict=True) if e.ended != "env_timeout"
    ]
    with episodes[0].stats.timing("environment"):
        outcomes = iter(
            pool.run(
                [
                    PooledCall(call, runs_in=runs_in(e.env), timeout_s=e.limits.tool_timeout_s)
                    for e, call in responsive
                ]
            )
        )
    hung: Outcome[T] = Outcome(failure=Failure(late=True, reason="it hung before"))
    return [next(outcomes) if e.ended != "env_timeout" else hung for e in episodes]


def _close(pool: CallPool, envs: Sequence[Env], settings: Sampling) -> None:
    """Close environments; one that cannot be closed is left as it is."""
    pool.run(
        [
            PooledCall(env.close, runs_in=runs_in(env), timeout_s=settings.limits.tool_timeout_s)
            for env in envs
        ]
    )


def _play_batch(
    model: Any,
    episodes: Sequence[Episode],
    *,
    stop: frozenset[int],
    settings: Sampling,
    pool: CallPool,
) -> None:
    """Run a batch to the end of its last episode."""
    for episode in episodes:
        episode.check_room(settings.max_context_tokens)
    running = [episode for episode in episodes if episode.ended is None]
    cache = (
        None
        if isinstance(model, ServedModel) or not running
        else RaggedCache(model, num_rows=len(running))
    )
    while running:
        # 1. Sample one message per episode.
        room = [
            min(settings.max_new_tokens, settings.max_context_tokens - len(e.ids), e.room)
            for e in running
        ]
        if cache is None:
            messages = _complete_on_server(model, running, room=room, stop=stop, settings=settings)
        else:
            messages = _sample_messages(cache, running, room=room, stop=stop, settings=settings)
        for episode, message in zip(running, messages, strict=True):
            if isinstance(message, Completion) and message.failure:
                episode.give_up(message.failure)
            else:
                episode.add_message(message.ids, message.logprobs, ended=message.ids[-1] in stop)
        # 2. Step the environments.
        _observe(
            pool,
            [episode for episode in running if episode.ended is None],
            max_context_tokens=settings.max_context_tokens,
        )
        # 3. Only running episodes keep their rows in the cache, and of an episode that goes on
        #    behind a summary only the opening.
        still_running = [i for i, episode in enumerate(running) if episode.ended is None]
        if cache is not None:
            for row in still_running:
                if (kept := running[row].take_restart()) is not None:
                    cache.cut(row, kept)
            cache.keep(still_running)
        running = [running[i] for i in still_running]


def _observe(pool: CallPool, running: Sequence[Episode], *, max_context_tokens: int) -> None:
    """Let the environments answer the messages, and add their answers to the episodes."""
    pending = [episode for episode in running if episode.pending_message is not None]
    calls = [
        partial(episode.env.reply, episode.pending_message)
        for episode in pending
        if episode.pending_message is not None
    ]
    answers = dict(zip(map(id, pending), _call_envs(pool, pending, calls), strict=True))
    for episode in running:
        episode.add_observation(answers.get(id(episode)), max_context_tokens=max_context_tokens)


def _complete_on_server(
    model: ServedModel,
    episodes: Sequence[Episode],
    *,
    room: Sequence[int],
    stop: frozenset[int],
    settings: Sampling,
) -> list[Completion]:
    """One message of every episode, written by a server."""
    stats = episodes[0].stats
    prompts = [
        GenerationRequest(
            ids=tuple(episode.ids), max_tokens=max_tokens, seed=episode.random.getrandbits(31)
        )
        for episode, max_tokens in zip(episodes, room, strict=True)
    ]
    with stats.timing("model"):
        completions = model.complete(
            prompts, temperature=settings.temperature, top_p=settings.top_p, stop=stop
        )
    stats.num_fed += sum(len(prompt.ids) for prompt in prompts)
    return completions


@dataclass(slots=True)
class _GrowingMessage:
    """A message as it grows; `room` is how many tokens it may have."""

    room: int
    ids: list[int]
    logprobs: list[float]
    open: bool = True


def _sample_messages(
    cache: RaggedCache,
    episodes: Sequence[Episode],
    *,
    room: Sequence[int],
    stop: frozenset[int],
    settings: Sampling,
) -> list[_GrowingMessage]:
    """One message of every episode.

    A message's last token is fed together with what follows it, never on its own.
    """
    stats = episodes[0].stats
    messages = [_GrowingMessage(room=r, ids=[], logprobs=[]) for r in room]
    new_ids = [episode.ids[held:] for episode, held in zip(episodes, cache.lengths, strict=True)]
    while True:
        num_fed = cache.num_fed
        with stats.timing("model"):
            logits_BV = cache.feed(new_ids)
        stats.num_fed += cache.num_fed - num_fed
        uniform = [
            episode.random.random() if w.open else 0.0
            for episode, w in zip(episodes, messages, strict=True)
        ]
        with stats.timing("choose"):
            choice = sample_tokens(
                logits_BV, uniform=uniform, temperature=settings.temperature, top_p=settings.top_p
            )
        for w, token, logprob in zip(messages, choice.tokens, choice.logprobs, strict=True):
            if w.open:
                w.ids.append(token)
                w.logprobs.append(logprob)
                w.open = token not in stop and len(w.ids) < w.room
        if not any(w.open for w in messages):
            return messages
        new_ids = [w.ids[-1:] if w.open else [] for w in messages]


def session_names(envs: Sequence[Env], label: str) -> list[str]:
    """`label task:n` for the n-th environment of each task."""

    def names() -> Iterator[str]:
        counts: Counter[str] = Counter()
        for env in envs:
            yield f"{label}{env.task_id}:{counts[env.task_id]}"
            counts[env.task_id] += 1

    return list(names())


def _check_context(model: Any, settings: Sampling) -> None:
    max_positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if max_positions is not None and settings.max_context_tokens > max_positions:
        raise ConfigError(
            f"max_context_tokens is {settings.max_context_tokens}, the student has positions for"
            f" {max_positions}",
            fix=f"set max_context_tokens to at most {max_positions}",
        )


def add_counts(stats: SamplingStats, rollouts: Sequence[Rollout]) -> None:
    """Add what the rollouts hold to the counts of a step."""
    stats.num_episodes += len(first_rollouts(rollouts))
    stats.num_lost += sum(r.ended in LOST for r in first_rollouts(rollouts).values())
    for rollout in rollouts:
        sampled_ids = [
            turn.sampled.ids for turn in rollout.session.turns if turn.sampled is not None
        ]
        stats.num_turns += len(sampled_ids)
        stats.num_sampled += sum(map(len, sampled_ids))
        stats.num_cut += rollout.num_cut
        stats.num_malformed += rollout.num_malformed
        stats.num_refused += rollout.num_refused
