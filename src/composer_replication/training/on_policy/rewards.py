"""The shaped reward of a rollout, from which its advantage is computed: the environment's reward
minus the length penalty and the KL, plus the behaviour rewards.

    shaped reward = reward - length.weight * C(x) + sum of weight * behaviour
                    - kl * sum(log p - log p_start)

Success is still measured by the environment's reward alone. Every rollout has a shaped reward: one
that was lost to its environment, was cut off or holds only invalid calls counts like any other, and
none is dropped. The conversations of one episode (an agent program's, or those between summaries)
have one shaped reward: the penalties are those of the whole episode, under the id of its first
session.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from composer_replication.core.config.train_settings import PolicySettings
from composer_replication.core.errors import AlignmentError
from composer_replication.losses.fused import fused_logprobs
from composer_replication.rollouts.behaviours import behaviour_rewards
from composer_replication.rollouts.episode import Rollout, episode_name, first_rollouts
from composer_replication.rollouts.episode_sessions import episode_sessions
from composer_replication.rollouts.penalty import length_penalty
from composer_replication.tokens.batch import collate, micro_batches
from composer_replication.tokens.example import TrainingExample
from composer_replication.training.forwards.reference import Reference


def shaping_terms(
    rollouts: Sequence[Rollout],
    settings: PolicySettings,
    *,
    count: Callable[[str], int],
    kl: Mapping[str, float] | None = None,
) -> dict[str, dict[str, float]]:
    """What is added to an episode's reward, by the id of its first session and by term; `kl` comes
    from `start_kl`.

    For example {"s1": {"length": -0.02, "invalid_calls": -0.2}}: two invalid calls at weight 0.1.
    Raises AlignmentError if the KL is part of the reward and a rollout has none.
    """
    terms_of: dict[str, dict[str, float]] = {}
    for name, session in episode_sessions(rollouts).items():
        terms: dict[str, float] = {}
        if settings.length.weight:
            terms["length"] = -length_penalty(session, settings.length, count=count)
        terms |= behaviour_rewards(session, settings.behaviours)
        if settings.kl:
            members = [
                r.session
                for r in rollouts
                if episode_name(r) == name and r.session.outcome is not None
            ]
            if kl is None or any(member.id not in kl for member in members):
                raise AlignmentError(
                    "the KL to the start is part of the reward, but was not measured", where=name
                )
            terms["kl"] = -settings.kl * math.fsum(kl[member.id] for member in members)
        terms_of[session.id] = terms
    return terms_of


def shaped_rewards(
    rollouts: Sequence[Rollout], terms_of: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """The shaped reward of each episode, by the id of its first session: its reward plus its
    terms."""
    return {
        r.session.id: r.reward + math.fsum(terms_of[r.session.id].values())
        for r in first_rollouts(rollouts).values()
    }


def start_kl(
    start: Reference, rollouts: Sequence[Rollout], *, pad_id: int, max_tokens: int, device: Any
) -> dict[str, float]:
    """The k1 estimate of the KL of each rollout, by session id: the sum over its sampled tokens of
    log p - log p_start, in nats, where p is what the sampler recorded.

    Its mean over the policy's samples is the KL of whole rollouts; that of one rollout may be
    negative.
    """
    kl_of = dict.fromkeys((r.session.id for r in rollouts), 0.0)
    for part, _ in micro_batches(
        [e for r in rollouts if (e := sampled_example(r)).lm_spans], micro_tokens=max_tokens
    ):
        batch = collate(part, pad_id=pad_id).to(device)
        logprobs = {
            r.session.id: [
                p for _, t in r.session.assistant_turns() if t.sampled for p in t.sampled.logprobs
            ]
            for r in rollouts
        }
        sampler_N = torch.tensor(
            [p for e in part for p in logprobs[e.id]], dtype=torch.float64, device=device
        )
        hidden_ND = start.predictors(batch.student, batch.lm, max_tokens=max_tokens)
        start_N = fused_logprobs(hidden_ND, start.head(), batch.lm.ids_N).double()
        sums_B = torch.zeros(len(part), dtype=torch.float64, device=device).index_add(
            0, batch.lm.row_N, sampler_N - start_N
        )
        kl_of |= {e.id: value for e, value in zip(part, sums_B.tolist(), strict=True)}
    return kl_of


def sampled_example(rollout: Rollout) -> TrainingExample:
    """A rollout as an example whose lm_spans are the messages sampled there; it has none if the
    rollout was lost at its opening."""
    sampled = [
        (turn.context_tokens, len(turn.sampled.ids))
        for _, turn in rollout.session.assistant_turns()
        if turn.sampled
    ]
    name = rollout.session.id
    return TrainingExample(
        id=name,
        session_id=name,
        ids=rollout.ids,
        lm_spans=tuple((a, a + n) for a, n in sampled),
        origin="student",
    )
