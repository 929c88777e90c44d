"""Rollouts of any causal language model in any environment: batched, token in / token out, keys and
values kept across turns.

    envs = [make(task) for task in tasks]
    rollouts = sample_rollouts(model, envs, renderer=Renderer.for_tokenizer(tokenizer), settings=Sampling(seed=7), author="my-student")
    rollouts[0].session        # origin="student", every assistant turn with its ids and log-probs, outcome = the reward
    rollouts[0].reward

The episodes of a batch write one message each, in lock-step; then each environment answers - at the
same time as the others where it says that it may - finished episodes leave the cache, and only what
is new is fed. Each episode draws from a stream of its own, named by seed, label, task and number:
the same seed gives the same ids bit for bit on the same machine (CPU), and what else is in the
batch changes a row by rounding only. A served model (rollouts/served.py) in place of `model` writes
the messages elsewhere; its tokens come back as ids with log-probs, and nothing else changes, but
that a seed then means what the server makes of it.
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
from composer_replication.rollouts.choose import sample_tokens
from composer_replication.rollouts.envs.env import Env, runs_in
from composer_replication.rollouts.episode import LOST, ChatFormat, Episode, Rollout
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
    meter: SamplingStats | None = None,
) -> list[Rollout]:
    """One episode in each environment, in their order; every environment is closed, whatever
    happens.

    `author` is the student's name on its turns. `label` begins the sessions' ids and enters the
    seed, e.g. "step-12:", so that the same tasks give new episodes; the n-th environment of one
    task is session `label task:n`. `version` names the weights, e.g. the number of steps they have
    taken; a served model says its own. The model is left in the mode it was in.
    Raises ConfigError (a template whose calls cannot be read; openings that are all longer than the
    context, while one among others costs its own rollout; the context of a log that is longer),
    AlignmentError (a template that rewrites what came earlier), StoppedError (logits that are not
    finite), DataError (a server that cannot be reached, or does not say which tokens it sampled;
    one that leaves single requests unanswered costs their episodes).
    """
    voice = ChatFormat.of(renderer, author=author, parser=parser)
    meter = meter if meter is not None else SamplingStats()
    served = isinstance(model, ServedModel)
    if served:
        model.check()
        version = model.version
    else:
        _check_context(model, settings)
    stop = _stop_ids(None if served else model, voice)
    size = settings.batch_episodes if served or holds_ragged_rows(model) else 1
    names = _names(envs, label)
    rollouts: list[Rollout] = []
    no_room: list[ConfigError | None] = []
    with ExitStack() as stack, meter.timing("total"):
        crew = stack.enter_context(CallPool(num_threads=settings.limits.tool_threads))
        left = list(envs)  # what is not closed yet, in place
        stack.callback(_close, crew, left, settings)
        stack.enter_context(nullcontext() if served else scoring(model))
        for start in range(0, len(envs), size):
            part = slice(start, start + size)
            batch = _opened(
                crew, envs[part], names[part], voice=voice, settings=settings, meter=meter
            )
            _play(model, batch, stop=stop, settings=settings, crew=crew)
            no_room += [episode.no_room for episode in batch]
            scored = _ask(crew, batch, [episode.score_episode for episode in batch])
            rollouts += [
                episode.finish(scored=one, version=version)
                for episode, one in zip(batch, scored, strict=True)
            ]
            _close(crew, left[: len(batch)], settings)
            del left[: len(batch)]
    if no_room and no_room[0] is not None and None not in no_room:
        raise no_room[0]
    _count(meter, rollouts)
    meter.num_left_behind += crew.num_left_behind
    return rollouts


def _opened(
    crew: CallPool,
    envs: Sequence[Env],
    names: Sequence[str],
    *,
    voice: ChatFormat,
    settings: Sampling,
    meter: SamplingStats,
) -> list[Episode]:
    """The episodes of a batch, each environment opened."""
    with meter.timing("environment"):
        opened = crew.run(
            [
                PooledCall(env.open, runs_in=runs_in(env), timeout_s=settings.limits.tool_timeout_s)
                for env in envs
            ]
        )
    more = {"voice": voice, "meter": meter, "limits": settings.limits}
    return [
        Episode(
            env,
            name=name,
            seed=stage_seed(settings.seed, f"rollout:{name}"),
            opened=outcome,
            **more,
        )
        for env, name, outcome in zip(envs, names, opened, strict=True)
    ]


def _ask(
    crew: CallPool, episodes: Sequence[Episode], calls: Sequence[Callable[[], T]]
) -> list[Outcome[T]]:
    """What comes of one call to the environment of each episode; an environment that hung before is
    not asked again."""
    if not episodes:
        return []
    fine = [(e, call) for e, call in zip(episodes, calls, strict=True) if e.ended != "env_timeout"]
    with episodes[0].meter.timing("environment"):
        found = iter(
            crew.run(
                [
                    PooledCall(call, runs_in=runs_in(e.env), timeout_s=e.limits.tool_timeout_s)
                    for e, call in fine
                ]
            )
        )
    hung: Outcome[T] = Outcome(failure=Failure(late=True, words="it hung before"))
    return [next(found) if e.ended != "env_timeout" else hung for e in episodes]


def _close(crew: CallPool, envs: Sequence[Env], settings: Sampling) -> None:
    """Close environments; one that cannot be closed is left as it is."""
    crew.run(
        [
            PooledCall(env.close, runs_in=runs_in(env), timeout_s=settings.limits.tool_timeout_s)
            for env in envs
        ]
    )


def _play(
    model: Any,
    episodes: Sequence[Episode],
    *,
    stop: frozenset[int],
    settings: Sampling,
    crew: CallPool,
) -> None:
    """Run a batch to the end of its last episode."""
    for episode in episodes:
        episode.check_room(settings.max_context_tokens)
    live = [episode for episode in episodes if episode.ended is None]
    cache = (
        None
        if isinstance(model, ServedModel) or not live
        else RaggedCache(model, num_rows=len(live))
    )
    while live:
        room = [
            min(settings.max_new_tokens, settings.max_context_tokens - len(e.ids), e.room)
            for e in live
        ]
        if cache is None:
            messages = _served(model, live, room=room, stop=stop, settings=settings)
        else:
            messages = _messages(cache, live, room=room, stop=stop, settings=settings)
        for episode, message in zip(live, messages, strict=True):
            if isinstance(message, Completion) and message.failure:
                episode.give_up(message.failure)
            else:
                episode.add_message(message.ids, message.logprobs, ended=message.ids[-1] in stop)
        _answer(
            crew,
            [episode for episode in live if episode.ended is None],
            max_context_tokens=settings.max_context_tokens,
        )
        going_on = [i for i, episode in enumerate(live) if episode.ended is None]
        if cache is not None:
            cache.keep(going_on)
        live = [live[i] for i in going_on]


def _answer(crew: CallPool, live: Sequence[Episode], *, max_context_tokens: int) -> None:
    """Let the environments answer what was said, and the episodes hear it."""
    asking = [episode for episode in live if episode.asked is not None]
    calls = [
        partial(episode.env.reply, episode.asked) for episode in asking if episode.asked is not None
    ]
    answers = dict(zip(map(id, asking), _ask(crew, asking, calls), strict=True))
    for episode in live:
        episode.add_observation(answers.get(id(episode)), max_context_tokens=max_context_tokens)


def _served(
    model: ServedModel,
    episodes: Sequence[Episode],
    *,
    room: Sequence[int],
    stop: frozenset[int],
    settings: Sampling,
) -> list[Completion]:
    """One message of every episode, written by a server."""
    meter = episodes[0].meter
    prompts = [
        GenerationRequest(
            ids=tuple(episode.ids), max_tokens=most, seed=episode.random.getrandbits(31)
        )
        for episode, most in zip(episodes, room, strict=True)
    ]
    with meter.timing("model"):
        written = model.complete(
            prompts, temperature=settings.temperature, top_p=settings.top_p, stop=stop
        )
    meter.num_fed += sum(len(prompt.ids) for prompt in prompts)
    return written


@dataclass(slots=True)
class _Writing:
    """A message as it grows; `room` is how many tokens it may have."""

    room: int
    ids: list[int]
    logprobs: list[float]
    open: bool = True


def _messages(
    cache: RaggedCache,
    episodes: Sequence[Episode],
    *,
    room: Sequence[int],
    stop: frozenset[int],
    settings: Sampling,
) -> list[_Writing]:
    """One message of every episode. A message's last token is fed with what follows it, never on
    its own."""
    meter = episodes[0].meter
    writing = [_Writing(room=r, ids=[], logprobs=[]) for r in room]
    new = [episode.ids[held:] for episode, held in zip(episodes, cache.lengths, strict=True)]
    while True:
        with meter.timing("model"):
            logits_BV = cache.feed(new)
        meter.num_fed += sum(map(len, new))
        uniform = [
            episode.random.random() if w.open else 0.0
            for episode, w in zip(episodes, writing, strict=True)
        ]
        with meter.timing("choose"):
            chosen = sample_tokens(
                logits_BV, uniform=uniform, temperature=settings.temperature, top_p=settings.top_p
            )
        for w, token, logprob in zip(writing, chosen.tokens, chosen.logprobs, strict=True):
            if w.open:
                w.ids.append(token)
                w.logprobs.append(logprob)
                w.open = token not in stop and len(w.ids) < w.room
        if not any(w.open for w in writing):
            return writing
        new = [w.ids[-1:] if w.open else [] for w in writing]


def _names(envs: Sequence[Env], label: str) -> list[str]:
    """`label task:n` for the n-th environment of each task."""

    def names() -> Iterator[str]:
        seen: Counter[str] = Counter()
        for env in envs:
            yield f"{label}{env.task_id}:{seen[env.task_id]}"
            seen[env.task_id] += 1

    return list(names())


def _stop_ids(model: Any, voice: ChatFormat) -> frozenset[int]:
    """The template's end token, and what the tokenizer and the model's own settings call one.

    Behind a message that ends with one of the others the template's end token is written all the
    same, as context.
    """
    generation = getattr(model, "generation_config", None)
    also = getattr(generation, "eos_token_id", None)
    listed = also if isinstance(also, (list, tuple)) else [also]
    return frozenset(
        int(i)
        for i in (
            voice.end_id,
            *voice.renderer.end_ids,
            voice.renderer.tokenizer.eos_token_id,
            *listed,
        )
        if i is not None
    )


def _check_context(model: Any, settings: Sampling) -> None:
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and settings.max_context_tokens > longest:
        raise ConfigError(
            f"max_context_tokens is {settings.max_context_tokens}, the student has positions for"
            f" {longest}",
            fix=f"set max_context_tokens to at most {longest}",
        )


def _count(meter: SamplingStats, rollouts: Sequence[Rollout]) -> None:
    for rollout in rollouts:
        written = [turn.sampled.ids for turn in rollout.session.turns if turn.sampled is not None]
        meter.num_episodes += 1
        meter.num_turns += len(written)
        meter.num_sampled += sum(map(len, written))
        meter.num_cut += rollout.num_cut
        meter.num_malformed += rollout.num_malformed
        meter.num_refused += rollout.num_refused
        meter.num_lost += rollout.ended in LOST
