"""Rollouts of any causal language model in any environment: batched, token in / token out, keys and values kept across turns.

    envs = [make(task) for task in tasks]
    rollouts = sample_rollouts(model, envs, renderer=Renderer.for_tokenizer(tokenizer), settings=Sampling(seed=7), author="my-student")
    rollouts[0].session        # origin="student", every assistant turn with its ids and log-probs, outcome = the reward
    rollouts[0].reward

The episodes of a batch write one message each, in lock-step; then each environment answers, finished episodes leave the cache, and
only what is new is fed. Each episode draws from a stream of its own, named by seed, label, task and number: the same seed gives the
same ids bit for bit on the same machine (CPU), and what else is in the batch changes a row by rounding only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import ConfigError
from composer_replication.models.forward import scoring
from composer_replication.rollouts.choose import choose
from composer_replication.rollouts.envs.env import Env
from composer_replication.rollouts.episode import Episode, Rollout, Voice
from composer_replication.rollouts.meter import Meter
from composer_replication.rollouts.parse import Parser
from composer_replication.rollouts.ragged import RaggedCache, holds_ragged_rows
from composer_replication.tokens.renderer import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How messages are sampled.

    `temperature` 0 takes the most probable token. The log-probs that are kept are the model's own at temperature 1 without top_p,
    so only at temperature=1, top_p=1 are they those of the distribution sampled from. `max_new_tokens` bounds one message, its end token
    included; one that does not end is ended by force and tagged "cut_off". `max_context_tokens` bounds an episode: one whose
    next message would have no room ends there. `batch_episodes` are sampled together. Raises ConfigError for values that mean nothing.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 512
    max_context_tokens: int = 8192
    batch_episodes: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.temperature < math.inf and 0 < self.top_p <= 1):
            raise ConfigError(
                f"temperature {self.temperature} or top_p {self.top_p} is out of range", fix="temperature >= 0, 0 < top_p <= 1"
            )
        for name in ("max_new_tokens", "max_context_tokens", "batch_episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")


def sample_rollouts(
    model: Any,
    envs: Sequence[Env],
    *,
    renderer: Renderer,
    settings: Sampling,
    author: str,
    label: str = "",
    parser: Parser | None = None,
    meter: Meter | None = None,
) -> list[Rollout]:
    """One episode in each environment, in their order; every environment is closed, whatever happens.

    `author` is the student's name on its turns. `label` begins the sessions' ids and enters the seed, e.g. "step-12:", so that the
    same tasks give new episodes; the n-th environment of one task is session `label task:n`. The model is left in the mode it was in.
    Raises ConfigError (a template whose calls cannot be read, an opening longer than the context), AlignmentError (a template that
    rewrites what came earlier), DataError (an environment that leaves a call unanswered), StoppedError (logits that are not finite).
    """
    _check_context(model, settings)
    voice = Voice.of(renderer, author=author, parser=parser)
    stop = _stop_ids(model, voice)
    meter = meter if meter is not None else Meter()
    size = settings.batch_episodes if holds_ragged_rows(model) else 1
    names = _names(envs, label)
    rollouts: list[Rollout] = []
    with ExitStack() as stack, meter.timing("total"), scoring(model):
        for env in envs:
            stack.callback(env.close)
        for start in range(0, len(envs), size):
            batch = [
                Episode(env, voice=voice, name=name, seed=stage_seed(settings.seed, f"rollout:{name}"), meter=meter)
                for env, name in zip(envs[start : start + size], names[start : start + size], strict=True)
            ]
            _play(model, batch, stop=stop, settings=settings)
            for episode in batch:
                rollouts.append(episode.finish())
                episode.env.close()
    _count(meter, rollouts)
    return rollouts


def _play(model: Any, episodes: Sequence[Episode], *, stop: frozenset[int], settings: Sampling) -> None:
    """Run a batch to the end of its last episode."""
    for episode in episodes:
        episode.check_room(settings.max_context_tokens)
    cache = RaggedCache(model, num_rows=len(episodes))
    live = list(episodes)
    while live:
        for episode, message in zip(live, _messages(cache, live, stop=stop, settings=settings), strict=True):
            ended = message.ids[-1] in stop
            episode.take(message.ids, message.logprobs, ended=ended, max_context_tokens=settings.max_context_tokens)
        going_on = [i for i, episode in enumerate(live) if episode.ended is None]
        cache.keep(going_on)
        live = [live[i] for i in going_on]


@dataclass(slots=True)
class _Writing:
    """A message as it grows; `room` is how many tokens it may have."""

    room: int
    ids: list[int]
    logprobs: list[float]
    open: bool = True


def _messages(cache: RaggedCache, episodes: Sequence[Episode], *, stop: frozenset[int], settings: Sampling) -> list[_Writing]:
    """One message of every episode. A message's last token is fed with what follows it, never on its own."""
    meter = episodes[0].meter
    room = [min(settings.max_new_tokens, settings.max_context_tokens - len(episode.ids)) for episode in episodes]
    writing = [_Writing(room=r, ids=[], logprobs=[]) for r in room]
    new = [episode.ids[held:] for episode, held in zip(episodes, cache.lengths, strict=True)]
    while True:
        with meter.timing("model"):
            logits_BV = cache.feed(new)
        meter.num_fed += sum(map(len, new))
        uniform = [episode.random.random() if w.open else 0.0 for episode, w in zip(episodes, writing, strict=True)]
        with meter.timing("choose"):
            chosen = choose(logits_BV, uniform=uniform, temperature=settings.temperature, top_p=settings.top_p)
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


def _stop_ids(model: Any, voice: Voice) -> frozenset[int]:
    """The template's end token, and what the tokenizer and the model's own settings call one.

    Behind a message that ends with one of the others the template's end token is written all the same, as context.
    """
    generation = getattr(model, "generation_config", None)
    also = getattr(generation, "eos_token_id", None)
    listed = also if isinstance(also, (list, tuple)) else [also]
    return frozenset(
        int(i) for i in (voice.end_id, *voice.renderer.end_ids, voice.renderer.tokenizer.eos_token_id, *listed) if i is not None
    )


def _check_context(model: Any, settings: Sampling) -> None:
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and settings.max_context_tokens > longest:
        raise ConfigError(
            f"max_context_tokens is {settings.max_context_tokens}, the student has positions for {longest}",
            fix=f"set max_context_tokens to at most {longest}",
        )


def _count(meter: Meter, rollouts: Sequence[Rollout]) -> None:
    for rollout in rollouts:
        written = [turn.sampled.ids for turn in rollout.session.turns if turn.sampled is not None]
        meter.num_episodes += 1
        meter.num_turns += len(written)
        meter.num_sampled += sum(map(len, written))
        meter.num_cut += rollout.num_cut
        meter.num_malformed += rollout.num_malformed
