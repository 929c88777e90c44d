"""What is measured of a live policy: success, calls, length and drift, as numbers by metric name. training/health.py judges them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from composer_replication.data.sites.detectors import tool_error
from composer_replication.losses.divergence import kl_student_teacher
from composer_replication.models.forward import predictors, project
from composer_replication.rollouts.episode import LOST, Rollout
from composer_replication.rollouts.groups import Groups
from composer_replication.tokens.batch import collate, micro_batches
from composer_replication.training.reference import Reference
from composer_replication.training.rewards import sampled_spans

UNRESOLVABLE = frozenset({"malformed_call", "file_missing", "edit_no_match", "edit_multi_match"})
"""Kinds of mistakes (data/sites) of a call that could not be read or names what is not there: the unresolvable ones."""
FAMILIES = ("A", "B", "C")
_CHUNK = 2048  # tokens whose logits are held at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How far the policy has come from its start, and how sure it is of itself: means per sampled token, in nats, full vocabulary."""

    kl: float
    entropy: float
    tokens: int


def rollout_facts(groups: Groups, advantage: Mapping[str, float]) -> dict[str, float]:
    """The numbers of a step's rollouts; `advantage` holds the rollouts of groups that were not flat. What did not occur has no number."""
    rollouts = groups.rollouts
    members = [[r.session.id in advantage for r in group.rollouts] for group in (*groups.groups, *groups.flat)]
    facts = {
        "rollouts/episodes": float(len(rollouts)),
        "rollouts/success": _mean([r.reward for r in rollouts]),
        "rollouts/flat": _mean([not any(group) for group in members]),
        "rollouts/all_failed_groups": float(groups.num_all_failed),
        "rollouts/extra_groups": float(groups.num_extra),
        "rollouts/out_of_room": _mean([r.ended == "max_context" for r in rollouts]),
        "rollouts/cut_off": _mean([r.ended == "cut_off" for r in rollouts]),
        "rollouts/lost": _mean([r.ended in LOST for r in rollouts]),
        **{f"lost/{end}": float(n) for end, n in Counter(r.ended for r in rollouts if r.ended in LOST).items()},
        "rollouts/refused_calls": float(sum(r.num_refused for r in rollouts)),
        "rollouts/advantage_spread": max(advantage.values(), default=0.0) - min(advantage.values(), default=0.0),
    }
    return facts | behaviour(rollouts)


def lost_rollouts(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """How many rollouts of a step were lost, by end, and up to three different reasons; empty where none was.

    Example: {"env_error": 2, "env_timeout": 1, "of": 48, "words": ["KeyError: 'path'", "no answer within 5 s"]}
    """
    lost = [rollout for rollout in rollouts if rollout.ended in LOST]
    if not lost:
        return {}
    return {**Counter(r.ended for r in lost), "of": len(rollouts), "words": list(dict.fromkeys(r.failure for r in lost))[:3]}


def behaviour(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """How the policy writes and calls, over all messages and calls of the rollouts.

    Example: {"rollouts/message_tokens": 18.2, "rollouts/entropy": 0.02, "rollouts/unresolvable": 0.01, "rollouts/valid_calls": 0.8,
    "rollouts/changing_calls": 0.21, "family/A": 0.4, ...}. entropy is estimated by the mean of -log p of the sampled tokens.
    """
    logprobs = [p for r in rollouts for turn in r.session.turns if turn.sampled for p in turn.sampled.logprobs]
    messages = sum(turn.sampled is not None for r in rollouts for turn in r.session.turns)
    calls = sum(len(turn.calls) for r in rollouts for turn in r.session.turns)
    facts = {"rollouts/message_tokens": len(logprobs) / max(1, messages), "rollouts/entropy": -_mean(logprobs)}

    def total(name: str) -> float:
        return sum(r.measures.get(name, 0.0) for r in rollouts)

    if calls:
        facts["rollouts/unresolvable"] = sum(map(num_unresolvable, rollouts)) / calls
        for name in ("valid_calls", "changing_calls"):
            if any(name in r.measures for r in rollouts):
                facts[f"rollouts/{name}"] = total(name) / calls
    for family in FAMILIES:
        if possible := total(f"{family}_open"):
            facts[f"family/{family}"] = total(f"{family}_made") / possible
    return facts


def num_unresolvable(rollout: Rollout) -> int:
    """Calls that could not be read or name a file or text that is not there; the detectors of the run's settings do not matter here."""
    return sum(site.kind in UNRESOLVABLE for site in tool_error(rollout.session))


def drift(
    model: Reference, start: Reference, rollouts: Sequence[Rollout], *, episodes: int, pad_id: int, max_tokens: int, device: Any
) -> Drift:
    """KL(student || start) and entropy of the student at every sampled token of `episodes` rollouts, taken evenly from all."""
    chosen = rollouts[:: max(1, len(rollouts) // episodes)][:episodes]
    examples = [e for r in chosen if (e := sampled_spans(r)).trained]
    kl = entropy = 0.0
    tokens = 0
    for part, _ in micro_batches(examples, micro_tokens=max_tokens):
        batch = collate(part, pad_id=pad_id).to(device)
        places = {"row_N": batch.lm.row_N, "position_N": batch.lm.position_N, "max_tokens": max_tokens}
        hidden = []
        for reference in (model, start):
            with reference.scoring() as net:
                hidden.append(predictors(net, batch.student.ids_BT, batch.student.lengths_B, **places))
        for first in range(0, len(batch.lm), _CHUNK):
            logits = []
            for reference, hidden_ND in zip((model, start), hidden, strict=True):
                with reference.scoring() as net:
                    logits.append(project(net, hidden_ND[first : first + _CHUNK]))
            with torch.no_grad():
                logp_NV = logits[0].log_softmax(-1)
                kl += float(kl_student_teacher(*logits).double().sum())
                entropy -= float((logp_NV.exp() * logp_NV).sum(-1).double().sum())
        tokens += len(batch.lm)
    return Drift(kl=kl / max(1, tokens), entropy=entropy / max(1, tokens), tokens=tokens)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
