"""What verl loads in every process (entry point group `verl.plugins`): our names in its registries.

    algorithm.adv_estimator = composer_dr_grpo                         reward minus its group's mean
    actor_rollout_ref.actor.policy_loss.loss_mode = composer_dr_grpo   this package's policy loss

With these, verl's own trainer (`verl.trainer.main_ppo`) trains the policy channel of this package.
The hint and preference channels have no place in an advantage or a policy loss: those get per-token
numbers, and no model. They are computed in the actor's loss (verl_worker.py).

verl swallows errors of plugins: `registered` says whether the names are there.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo import core_algos

from composer_replication.losses.policy import dr_grpo

NAME = "composer_dr_grpo"
"""The name of the advantage estimator and of the policy loss."""
CLIP = 0.2
"""Dr.GRPO's clip, as in training/forwards/objectives.py."""


def group_mean_advantages(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    config: Any = None,
    index: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Each rollout's reward minus the mean of its group (`index`: the uid of its task), on every
    token of the response; verl's (advantages, returns).

    Rewards 1 and 0 of one task give 0.5 and -0.5.
    """
    reward_B = token_level_rewards.sum(-1)
    groups = list(range(len(reward_B))) if index is None else list(index)
    mean_B = torch.stack(
        [reward_B[torch.tensor([other == group for other in groups])].mean() for group in groups]
    )
    advantage_BT = (reward_B - mean_B)[:, None] * response_mask
    return advantage_BT, advantage_BT


def policy_surrogate(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-sum",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, dict[str, float]]:
    """The clipped surrogate of losses/policy.py per token, reduced by verl's own `agg_loss`; "seq-
    mean-token-sum" divides by the rollouts, as the reference trainer does."""
    values = dr_grpo(
        log_prob.flatten(), old_log_prob.flatten(), advantages.flatten(), clip=CLIP
    ).view_as(log_prob)
    if rollout_is_weights is not None:
        values = values * rollout_is_weights
    batch_info = getattr(config, "global_batch_info", {}) if config is not None else {}
    loss = core_algos.agg_loss(values, response_mask, loss_agg_mode, **batch_info)
    return loss, {}


def registered() -> bool:
    """Whether verl knows both names in this process."""
    return NAME in core_algos.ADV_ESTIMATOR_REGISTRY and NAME in core_algos.POLICY_LOSS_REGISTRY


if not registered():
    core_algos.register_adv_est(NAME)(group_mean_advantages)
    core_algos.register_policy_loss(NAME)(policy_surrogate)
if os.environ.get("VERL_PLATFORM") == "cpu":
    from composer_replication.training.backends.verl_cpu import use_cpu_platform

    use_cpu_platform()
