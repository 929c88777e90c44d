"""The shaped reward of a rollout, from which its advantage is computed: the environment's reward
minus the length penalty and the KL, plus the behaviour rewards.

    shaped reward = reward - length.weight * C(x) + sum of weight * behaviour
                    - kl * sum(log p - log p_start)

Success is still measured by the environment's reward alone. Every rollout has a shaped reward: one
that was lost to its environment, was cut off or holds only invalid calls counts like any other, and
none is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from composer_replication.core.config.train_settings import PolicySettings
from composer_replication.core.errors import AlignmentError
from composer_replication.losses.fused import fused_logprobs
from composer_replication.rollouts.behaviours import behaviour_reward
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.penalty import length_penalty
from composer_replication.tokens.batch import collate, micro_batches
from composer_replication.tokens.example import TrainingExample
from composer_replication.training.forwards.reference import Reference


def shaped_rewards(
    rollouts: Sequence[Rollout],
    settings: PolicySettings,
    *,
    count: Callable[[str], int],
    kl: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The shaped reward of each rollout by session id; `kl` comes from `start_kl`.

    For example, reward 1 with two invalid calls at weight 0.1 and no penalty is 0.8. Raises
    AlignmentError if the KL is part of the reward and a rollout has none.
    """
    shaped: dict[str, float] = {}
    for rollout in rollouts:
        name, reward = rollout.session.id, rollout.reward
        if settings.length.weight:
            reward -= length_penalty(rollout.session, settings.length, count=count)
        reward += behaviour_reward(rollout.session, settings.behaviours)
        if settings.kl:
            if kl is None or name not in kl:
                raise AlignmentError(
                    "the KL to the start is part of the reward, but was not measured", where=name
                )
            reward -= settings.kl * kl[name]
        shaped[name] = reward
    return shaped


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
            r.session.id: [p for t in r.session.turns if t.sampled for p in t.sampled.logprobs]
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
    """A rollout as an example whose lm_spans are the sampled messages; it has none if the rollout
    was lost at its opening."""
    sampled = [
        (turn.context_tokens, len(turn.sampled.ids))
        for turn in rollout.session.turns
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
