"""Sample rollouts: any causal language model plays any environment, in batches.

A training step samples its rollouts here, and so does an evaluation. The interface to the model is
tokens in, tokens out: what was sampled is kept as ids with log-probs and never encoded again.

    envs = [make(task) for task in tasks]
    rollouts = sample_rollouts(model, envs, renderer=Renderer.for_tokenizer(tokenizer),
                               settings=Sampling(seed=7), author="my-student")
    rollouts[0].session        # origin="student", assistant turns with ids and log-probs
    rollouts[0].reward         # also its outcome

The loop is `_play_batch`. Its episodes take turns in lock-step: the model writes one message for
each, then their environments answer (in parallel where they allow it), and finished episodes leave
the batch. The KV cache is kept across turns, so a turn feeds only its new tokens.

Reproducibility: each episode has a random stream of its own, seeded by seed, label, task and
number. On one machine (CPU) the same seed gives the same ids, bit for bit; the other episodes of a
batch change a row's logits by rounding only.

A `ServedModel` (rollouts/served.py) in place of `model` lets a server, such as vLLM, write the
messages. It returns ids and log-probs too, so only the random stream differs: it is the server's.

Shapes: B rows (running episodes), V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
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
from composer_replication.rollouts.envs.env import Env, Reply, runs_in
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
    """Play one episode in each environment; returns their rollouts in the order of `envs`.

    An episode gives one rollout, or several in a row if it was compacted
    (EpisodeLimits.compact_tokens). `author` is the student's name on its turns. `label`, e.g.
    "step-12:", begins the sessions' ids and enters the seed, so that the same task gives another
    episode in another step: the n-th environment of a task is session `label task:n`. `version`
    names the weights, e.g. the number of steps they have taken; a served model sets its own.

    All environments are closed, whatever happens; the model keeps its train or eval mode. An
    environment or server that fails on single episodes costs only those. Raises

    - ConfigError: the template's calls cannot be parsed; no opening of the batch fits into
      `max_context_tokens`, or one from a log does not;
    - AlignmentError: the template rewrites earlier messages;
    - StoppedError: the logits are not finite;
    - DataError: the server cannot be reached, or does not return the ids that it sampled.
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
    batch_size = settings.batch_episodes if served or holds_ragged_rows(model) else 1
    names = session_names(envs, label)
    rollouts: list[Rollout] = []
    no_room: list[ConfigError | None] = []  # per episode; None = its opening left room to write
    with ExitStack() as stack, stats.timing("total"):
        pool = stack.enter_context(CallPool(num_threads=settings.limits.tool_threads))
        # On an error, whatever is still in this list is closed: each batch removes its own below.
        open_envs = list(envs)
        stack.callback(_close, pool, open_envs, settings)
        stack.enter_context(nullcontext() if served else scoring(model))
        for start in range(0, len(envs), batch_size):
            part = slice(start, start + batch_size)
            batch = _open_batch(
                pool,
                envs[part],
                names[part],
                chat_format=chat_format,
                settings=settings,
                stats=stats,
            )
            _play_batch(model, batch, stop=stop, settings=settings, pool=pool)
            no_room += [episode.no_room for episode in batch]
            # An environment is scored while it is still open.
            scored = _call_envs(pool, batch, [episode.score_episode for episode in batch])
            for episode, episode_score in zip(batch, scored, strict=True):
                rollouts += episode.finish(scored=episode_score, version=version)
            _close(pool, open_envs[: len(batch)], settings)
            del open_envs[: len(batch)]
    if no_room and no_room[0] is not None and None not in no_room:
        raise no_room[0]  # no opening fits: the setting is wrong, not an environment
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
    """Open the environments of a batch and begin their episodes."""
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
    """Run one call into the environment of each episode; the outcomes in the same order.

    An environment that hung before is not called again: its outcome is a failure.
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
    """Close environments; one that raises or hangs meanwhile is ignored."""
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
    """Play the episodes of a batch, one message per turn of the loop, until all have ended."""
    for episode in episodes:
        episode.check_room(settings.max_context_tokens)
    running = [episode for episode in episodes if episode.ended is None]
    episodes[0].stats.num_ended += len(episodes) - len(running)
    cache = (
        None
        if isinstance(model, ServedModel) or not running
        else RaggedCache(model, num_rows=len(running))
    )
    while running:
        # 1. The model writes one message per episode.
        max_tokens = [
            min(settings.max_new_tokens, settings.max_context_tokens - len(e.ids), e.room)
            for e in running
        ]
        if cache is None:
            messages = _complete_on_server(
                model, running, max_tokens=max_tokens, stop=stop, settings=settings
            )
        else:
            messages = _sample_messages(
                cache, running, max_tokens=max_tokens, stop=stop, settings=settings
            )
        for episode, message in zip(running, messages, strict=True):
            if isinstance(message, Completion) and message.failure:
                episode.give_up(message.failure)
            else:
                episode.add_message(message.ids, message.logprobs, ended=message.ids[-1] in stop)
        # 2. The environments answer.
        _observe(
            pool,
            [episode for episode in running if episode.ended is None],
            max_context_tokens=settings.max_context_tokens,
        )
        # 3. Ended episodes lose their rows of the cache. An episode that was compacted begins a new
        #    context: its row is cut back to the ids that both contexts begin with.
        still_running = [i for i, episode in enumerate(running) if episode.ended is None]
        if cache is not None:
            for row in still_running:
                num_kept = running[row].take_restart()
                if num_kept is not None:
                    cache.cut(row, num_kept)
            cache.keep(still_running)
        episodes[0].stats.num_ended += len(running) - len(still_running)
        running = [running[i] for i in still_running]


def _observe(pool: CallPool, running: Sequence[Episode], *, max_context_tokens: int) -> None:
    """Send each pending message to its environment, and add the answers to the episodes.

    An episode without one (a summary, or only calls that could not be read) goes on without its
    environment.
    """
    asked: list[Episode] = []
    calls: list[Callable[[], Reply]] = []
    for episode in running:
        if episode.pending_message is not None:
            asked.append(episode)
            calls.append(partial(episode.env.reply, episode.pending_message))
    outcomes = iter(_call_envs(pool, asked, calls))
    for episode in running:
        outcome = None if episode.pending_message is None else next(outcomes)
        episode.add_observation(outcome, max_context_tokens=max_context_tokens)


def _complete_on_server(
    model: ServedModel,
    episodes: Sequence[Episode],
    *,
    max_tokens: Sequence[int],
    stop: frozenset[int],
    settings: Sampling,
) -> list[Completion]:
    """One message for each episode, written by a server; episode i may have `max_tokens[i]`."""
    stats = episodes[0].stats
    requests = [
        GenerationRequest(
            ids=tuple(episode.ids), max_tokens=limit, seed=episode.random.getrandbits(31)
        )
        for episode, limit in zip(episodes, max_tokens, strict=True)
    ]
    with stats.timing("model"):
        completions = model.complete(
            requests, temperature=settings.temperature, top_p=settings.top_p, stop=stop
        )
    stats.num_fed += sum(len(request.ids) for request in requests)
    return completions


@dataclass(slots=True)
class _GrowingMessage:
    """A message while it is sampled; `open` until its end token or its `max_tokens`-th token."""

    max_tokens: int
    ids: list[int]
    logprobs: list[float]
    open: bool = True


def _sample_messages(
    cache: RaggedCache,
    episodes: Sequence[Episode],
    *,
    max_tokens: Sequence[int],
    stop: frozenset[int],
    settings: Sampling,
) -> list[_GrowingMessage]:
    """One message for each episode, sampled from the local model; episode i may have
    `max_tokens[i]`.

    The first feed is what each episode has read since its last message. A message's last token is
    not fed here: the next call feeds it, together with the answer behind it.
    """
    stats = episodes[0].stats
    messages = [_GrowingMessage(max_tokens=limit, ids=[], logprobs=[]) for limit in max_tokens]
    new_ids = [
        episode.ids[num_cached:]
        for episode, num_cached in zip(episodes, cache.lengths, strict=True)
    ]
    while True:
        num_fed_before = cache.num_fed
        with stats.timing("model"):
            logits_BV = cache.feed(new_ids)
        stats.num_fed += cache.num_fed - num_fed_before
        # a finished message draws nothing, so an episode's stream does not depend on its batch
        uniform_B = [
            episode.random.random() if message.open else 0.0
            for episode, message in zip(episodes, messages, strict=True)
        ]
        with stats.timing("choose"):
            choice = sample_tokens(
                logits_BV, uniform=uniform_B, temperature=settings.temperature, top_p=settings.top_p
            )
        for message, token, logprob in zip(messages, choice.tokens, choice.logprobs, strict=True):
            if message.open:
                message.ids.append(token)
                message.logprobs.append(logprob)
                message.open = token not in stop and len(message.ids) < message.max_tokens
        if not any(message.open for message in messages):
            return messages
        new_ids = [message.ids[-1:] if message.open else [] for message in messages]


def session_names(envs: Sequence[Env], label: str) -> list[str]:
    """The session id of each environment's episode: `label task:n` for the n-th of its task.

    Example: two environments of task "t7", label "step-12:" -> ["step-12:t7:0", "step-12:t7:1"]
    """
    names: list[str] = []
    counts: Counter[str] = Counter()
    for env in envs:
        names.append(f"{label}{env.task_id}:{counts[env.task_id]}")
        counts[env.task_id] += 1
    return names


def _check_context(model: Any, settings: Sampling) -> None:
    """Raise ConfigError if an episode may grow beyond the model's position embeddings."""
    max_positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if max_positions is not None and settings.max_context_tokens > max_positions:
        raise ConfigError(
            f"max_context_tokens is {settings.max_context_tokens}, the student has positions for"
            f" {max_positions}",
            fix=f"set max_context_tokens to at most {max_positions}",
        )


def add_counts(stats: SamplingStats, rollouts: Sequence[Rollout]) -> None:
    """Add the rollouts to the counts, each episode once, however many rollouts it has."""
    episodes = first_rollouts(rollouts).values()
    stats.num_episodes += len(episodes)
    stats.num_lost += sum(rollout.ended in LOST for rollout in episodes)
    for rollout in rollouts:
        sampled_ids = [
            turn.sampled.ids for turn in rollout.session.turns if turn.sampled is not None
        ]
        stats.num_turns += len(sampled_ids)
        stats.num_sampled += sum(map(len, sampled_ids))
        stats.num_cut += rollout.num_cut
        stats.num_malformed += rollout.num_malformed
        stats.num_refused += rollout.num_refused
