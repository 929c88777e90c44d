"""The metrics of a live policy: success, calls, length and drift. run/health.py has the rules
on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.losses.fused import fused_divergence, fused_entropy
from composer_replication.rollouts.behaviours import unresolvable_calls
from composer_replication.rollouts.envs.env import MistakeFamily
from composer_replication.rollouts.episode import LOST, Rollout, first_rollouts
from composer_replication.rollouts.episode_sessions import episode_sessions
from composer_replication.rollouts.groups import Groups
from composer_replication.rollouts.self_summary import summary_turns
from composer_replication.tokens.batch import collate, micro_batches
from composer_replication.tokens.example import TrainingExample
from composer_replication.training.forwards.reference import Reference
from composer_replication.training.on_policy.rewards import sampled_example


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The policy's KL to its start weights and its entropy: means per sampled token, in nats, over
    the full vocabulary."""

    kl: float
    entropy: float
    tokens: int


def rollout_metrics(
    groups: Groups, advantage: Mapping[str, float], *, families: Sequence[MistakeFamily] = ()
) -> dict[str, float]:
    """The metrics of a step's rollouts; `advantage` holds the rollouts of groups that were not
    flat. Conversations of one episode count once. `families` are the environment's mistakes; one
    that was never possible has no metric.
    """
    rollouts = list(first_rollouts(groups.rollouts).values())
    members = [
        [r.session.id in advantage for r in group.rollouts]
        for group in (*groups.groups, *groups.flat)
    ]
    lost = _count_lost(rollouts)
    metrics = {
        "rollouts/episodes": float(len(rollouts)),
        "rollouts/success": _mean([r.reward for r in rollouts]),
        "rollouts/flat": _mean([not any(group) for group in members]),
        "rollouts/all_failed_groups": float(groups.num_all_failed),
        "rollouts/extra_groups": float(groups.num_extra),
        "rollouts/out_of_room": _mean([r.ended == "max_context" for r in rollouts]),
        "rollouts/cut_off": _mean([r.ended == "cut_off" for r in rollouts]),
        "rollouts/lost": sum(lost.values()) / max(1, len(rollouts)),
        **{f"lost/{end}": float(n) for end, n in lost.items()},
        "rollouts/refused_calls": float(sum(r.num_refused for r in groups.rollouts)),
        "rollouts/advantage_spread": (
            max(advantage.values(), default=0.0) - min(advantage.values(), default=0.0)
        ),
    }
    return (
        metrics
        | summary_metrics(groups.rollouts)
        | behaviour_metrics(groups.rollouts, families=families)
    )


def summary_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """How many summaries students wrote of their context, per episode, and their mean length; {} if
    there is none."""
    tokens = [
        len(turn.sampled.ids)
        for rollout in rollouts
        for turn in (rollout.session.turns[place] for place in summary_turns(rollout.session))
        if turn.sampled is not None
    ]
    if not tokens:
        return {}
    return {
        "rollouts/summaries": len(tokens) / len(first_rollouts(rollouts)),
        "rollouts/summary_tokens": _mean(tokens),
    }


def lost_rollouts(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """The event "lost": how many rollouts of a step were lost, by end, and up to three different
    reasons; {} if none was.

    For example {"env_error": 2, "of": 48, "words": ["KeyError: 'path'"]}.
    """
    if not (lost := _count_lost(rollouts)):
        return {}
    episodes = first_rollouts(rollouts).values()
    reasons = dict.fromkeys(r.failure for r in episodes if r.ended in LOST)
    return {**lost, "of": len(episodes), "words": list(reasons)[:3]}


def _count_lost(rollouts: Sequence[Rollout]) -> Counter[str]:
    return Counter(r.ended for r in first_rollouts(rollouts).values() if r.ended in LOST)


def behaviour_metrics(
    rollouts: Sequence[Rollout], *, families: Sequence[MistakeFamily] = ()
) -> dict[str, float]:
    """Message length, entropy, and rates of calls and mistakes, over all messages of the rollouts.

    The entropy is estimated by the mean of -log p of the sampled tokens. Rates are by call; a
    mistake's is by the episodes in which it was possible ("family/A").
    """
    sampled = [
        turn.sampled for r in rollouts for _, turn in r.session.assistant_turns() if turn.sampled
    ]
    logprobs = [p for message in sampled for p in message.logprobs]
    episodes = episode_sessions(rollouts).values()
    calls = sum(len(turn.calls) for session in episodes for turn in session.turns)
    metrics = {
        "rollouts/message_tokens": len(logprobs) / max(1, len(sampled)),
        "rollouts/entropy": -_mean(logprobs),
    }

    def total(name: str) -> float:
        return sum(r.measures.get(name, 0.0) for r in rollouts)

    if calls:
        metrics["rollouts/unresolvable"] = -sum(map(unresolvable_calls, episodes)) / calls
        for name in ("valid_calls", "changing_calls"):
            if any(name in r.measures for r in rollouts):
                metrics[f"rollouts/{name}"] = total(name) / calls
    if any("hack_attempts" in r.measures for r in rollouts):  # of the tasks of repositories
        metrics["rollouts/hack_attempts"] = total("hack_attempts") / max(1, len(episodes))
    for family in families:
        if possible := total(family.open):
            metrics[f"family/{family.name}"] = total(family.made) / possible
    return metrics


def num_unresolvable(rollout: Rollout) -> int:
    """The number of calls that could not be parsed, or that name a file or text that does not
    exist, whichever detectors the run's settings turn on."""
    return -int(unresolvable_calls(rollout.session))


def measure_drift(
    model: Reference,
    start: Reference,
    rollouts: Sequence[Rollout],
    *,
    episodes: int,
    pad_id: int,
    max_tokens: int,
    device: Any,
    counted: Callable[[Sequence[list[TrainingExample]]], Iterable[list[TrainingExample]]] = iter,
) -> Drift:
    """KL(student || start) and the student's entropy at every sampled token of `episodes` rollouts,
    spread evenly over all of them. `counted` yields the parts that are scored one after another."""
    chosen = rollouts[:: max(1, len(rollouts) // episodes)][:episodes]
    examples = [e for r in chosen if (e := sampled_example(r)).lm_spans]
    kl = entropy = 0.0
    tokens = 0
    parts = [part for part, _ in micro_batches(examples, micro_tokens=max_tokens)]
    for part in counted(parts):
        batch = collate(part, pad_id=pad_id).to(device)
        student, reference = (
            (r.predictors(batch.student, batch.lm, max_tokens=max_tokens), r.head())
            for r in (model, start)
        )
        kl_N = fused_divergence(*student, *reference, divergence="kl(student, teacher)")
        kl += float(kl_N.double().sum())
        entropy += float(fused_entropy(*student).double().sum())
        tokens += len(batch.lm)
    return Drift(kl=kl / max(1, tokens), entropy=entropy / max(1, tokens), tokens=tokens)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
