"""What is measured of a live policy: success, calls, length and drift, as numbers by metric name.
training/health.py judges them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.losses.divergence import kl_student_teacher
from composer_replication.rollouts.behaviours import unresolvable_calls
from composer_replication.rollouts.envs.env import MistakeFamily
from composer_replication.rollouts.episode import LOST, Rollout
from composer_replication.rollouts.groups import Groups
from composer_replication.tokens.batch import collate, micro_batches
from composer_replication.training.reference import Reference, score_chunks
from composer_replication.training.rewards import sampled_spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How far the policy has come from its start, and how sure it is of itself: means per sampled
    token, in nats, full vocabulary."""

    kl: float
    entropy: float
    tokens: int


def rollout_facts(
    groups: Groups, advantage: Mapping[str, float], *, families: Sequence[MistakeFamily] = ()
) -> dict[str, float]:
    """The numbers of a step's rollouts; `advantage` holds the rollouts of groups that were not
    flat. What did not occur has no number. `families` are the environment's own."""
    rollouts = groups.rollouts
    members = [
        [r.session.id in advantage for r in group.rollouts]
        for group in (*groups.groups, *groups.flat)
    ]
    lost = _lost(rollouts)
    facts = {
        "rollouts/episodes": float(len(rollouts)),
        "rollouts/success": _mean([r.reward for r in rollouts]),
        "rollouts/flat": _mean([not any(group) for group in members]),
        "rollouts/all_failed_groups": float(groups.num_all_failed),
        "rollouts/extra_groups": float(groups.num_extra),
        "rollouts/out_of_room": _mean([r.ended == "max_context" for r in rollouts]),
        "rollouts/cut_off": _mean([r.ended == "cut_off" for r in rollouts]),
        "rollouts/lost": sum(lost.values()) / max(1, len(rollouts)),
        **{f"lost/{end}": float(n) for end, n in lost.items()},
        "rollouts/refused_calls": float(sum(r.num_refused for r in rollouts)),
        "rollouts/advantage_spread": (
            max(advantage.values(), default=0.0) - min(advantage.values(), default=0.0)
        ),
    }
    return facts | behaviour_metrics(rollouts, families=families)


def lost_rollouts(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """How many rollouts of a step were lost, by end, and up to three different reasons; empty where
    none was.

    Example: {"env_error": 2, "env_timeout": 1, "of": 48, "words": ["KeyError: 'path'", "no answer
    within 5 s"]}
    """
    if not (lost := _lost(rollouts)):
        return {}
    words = dict.fromkeys(r.failure for r in rollouts if r.ended in LOST)
    return {**lost, "of": len(rollouts), "words": list(words)[:3]}


def _lost(rollouts: Sequence[Rollout]) -> Counter[str]:
    return Counter(r.ended for r in rollouts if r.ended in LOST)


def behaviour_metrics(
    rollouts: Sequence[Rollout], *, families: Sequence[MistakeFamily] = ()
) -> dict[str, float]:
    """How the policy writes and calls, over all messages and calls of the rollouts.

    Example: {"rollouts/message_tokens": 18.2, "rollouts/entropy": 0.02, "rollouts/unresolvable":
    0.01, "rollouts/valid_calls": 0.8, "rollouts/changing_calls": 0.21, "family/A": 0.4, ...}.
    entropy is estimated by the mean of -log p of the sampled tokens.
    """
    logprobs = [
        p
        for r in rollouts
        for turn in r.session.turns
        if turn.sampled
        for p in turn.sampled.logprobs
    ]
    messages = sum(turn.sampled is not None for r in rollouts for turn in r.session.turns)
    calls = sum(len(turn.calls) for r in rollouts for turn in r.session.turns)
    facts = {
        "rollouts/message_tokens": len(logprobs) / max(1, messages),
        "rollouts/entropy": -_mean(logprobs),
    }

    def total(name: str) -> float:
        return sum(r.measures.get(name, 0.0) for r in rollouts)

    if calls:
        facts["rollouts/unresolvable"] = sum(map(num_unresolvable, rollouts)) / calls
        for name in ("valid_calls", "changing_calls"):
            if any(name in r.measures for r in rollouts):
                facts[f"rollouts/{name}"] = total(name) / calls
    for family in families:
        if possible := total(family.open):
            facts[f"family/{family.name}"] = total(family.made) / possible
    return facts


def num_unresolvable(rollout: Rollout) -> int:
    """Calls that could not be read or name a file or text that is not there; the detectors of the
    run's settings do not matter here."""
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
) -> Drift:
    """KL(student || start) and entropy of the student at every sampled token of `episodes`
    rollouts, taken evenly from all."""
    chosen = rollouts[:: max(1, len(rollouts) // episodes)][:episodes]
    examples = [e for r in chosen if (e := sampled_spans(r)).lm_spans]
    kl = entropy = 0.0
    tokens = 0
    for part, _ in micro_batches(examples, micro_tokens=max_tokens):
        batch = collate(part, pad_id=pad_id).to(device)
        for _, (model_NV, start_NV) in score_chunks(
            [model, start], batch.student, batch.lm, max_tokens=max_tokens
        ):
            logp_NV = model_NV.log_softmax(-1)
            kl += float(kl_student_teacher(model_NV, start_NV).double().sum())
            entropy -= float((logp_NV.exp() * logp_NV).sum(-1).double().sum())
        tokens += len(batch.lm)
    return Drift(kl=kl / max(1, tokens), entropy=entropy / max(1, tokens), tokens=tokens)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
