"""The settings of a run that the TRL backend hosts, and their translation into TRL's.

    check_hosted(config, pairs=data.pairs)      # refuses what would train something else
    args = trl_settings(config, output=run.path / "trl", longest_prompt=212)

A setting is hosted (`HOSTED`), or changes nothing that is trained (`WITHOUT_EFFECT`: the run's
event "backend" lists why), or must stay at its default. A setting that is added to core/config
later must stay at its default until it is named here, so none is ever ignored silently.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.rollout_settings import BUILT_IN_ENVS
from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError
from composer_replication.tokens.example import PreferencePair
from composer_replication.training.backends.refusals import Rule, refuse, unread_rules
from composer_replication.training.backends.trl import ComposerReplicationConfig
from composer_replication.training.forwards.objectives import clips

_HOSTED: Mapping[str, str] = {
    "train": (
        "backend steps learning_rate warmup_steps weight_decay balance max_grad_norm_ratio"
        " max_grad_norm starved_steps micro_tokens checkpoint_every keep_checkpoints"
        " trackers"
    ),
    "train.policy": "weight objective clip clip_high",
    "train.lm_ce": "weight",
    "train.hint": (
        "weight divergence beta teacher temperature mean estimator top_k support rest entry_clip"
    ),
    "train.hint.taid": "schedule t_start t_end alpha momentum",
    "train.hint.entropy": "tau top alpha h_max",
    "train.preference": "weight objective beta label_smoothing batch_pairs anchor",
    "train.health": (
        "max_kl max_unresolvable kl_episodes max_lost max_monitor_loss monitor_tasks monitor_every"
    ),
    "rollouts": "env groups group_size hint_sites temperature max_context_tokens",
}
HOSTED = frozenset(f"{group}.{name}" for group, names in _HOSTED.items() for name in names.split())
WITHOUT_EFFECT: Mapping[str, str] = MappingProxyType(
    {
        "train.layout": "rows: TRL pads its rollouts and a tree cannot be laid over them",
        "train.health.max_clipped": "no clip of the hint's loss is hosted",
        "train.grad_every": "no gradient norms over the parameters by channel",
        "train.batch_examples": "no imported examples",
        "train.preference.batch_anchors": "no anchors",
        "train.fork_sites": "no forks",
        "train.fork_samples": "no forks",
        "rollouts.max_new_tokens": (
            "TRL bounds the whole completion, not one message; monitor tasks are played with this"
            " bound"
        ),
        "rollouts.batch_episodes": "TRL plays all rollouts of a step together",
        "rollouts.max_staleness": "every rollout is of the weights it trains",
        "rollouts.tool_timeout_s": "the environment's sandbox has its own time-outs",
        "rollouts.tool_threads": "TRL carries calls out one after another",
    }
)
_HINT_OPTIONS = {"estimator", "top_k", "support", "rest", "entry_clip", "taid", "entropy"}
"""The settings of train.hint that have no argument of their own."""
OBJECTIVES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
        "grpo": {"loss_type": "grpo", "scale_rewards": "group"},
        "gspo": {
            "loss_type": "grpo",
            "scale_rewards": "group",
            "importance_sampling_level": "sequence",
        },
    }
)
"""TRL's settings for the objectives of forwards/objectives.py. Its dapo and cispo also divide by
the tokens of flat groups, so they are other losses."""


def check_hosted(config: Config, *, pairs: Sequence[PreferencePair]) -> None:
    """Raise ConfigError for a setting under which the TRL backend would train something else than
    was asked for."""
    train, rollouts = config.train, config.rollouts
    rules: list[Rule] = [
        (
            rollouts.env not in BUILT_IN_ENVS,
            "rollouts.env",
            "TRL plays by itself and needs an environment",
            f'set rollouts.env = "{next(iter(BUILT_IN_ENVS))}"',
        ),
        (
            train.lm_ce.weight > 0,
            "train.lm_ce",
            "TRL has no place for imported examples",
            "set train.lm_ce.weight = 0",
        ),
        (
            train.hint.teacher not in ("frozen", "live"),
            "train.hint.teacher",
            f"no teacher {train.hint.teacher!r}",
            "use frozen or live",
        ),
        (
            train.hint.divergence == "taid" and train.hint.taid.schedule != "fixed",
            "train.hint.taid.schedule",
            "the teacher's share in the mixture stays what it is at the start",
            'set it to "fixed"',
        ),
        (
            train.policy.objective not in OBJECTIVES,
            "train.policy.objective",
            f"TRL's {train.policy.objective} divides by the tokens of flat groups too",
            f"one of: {', '.join(OBJECTIVES)}",
        ),
        (
            bool(train.placebo),
            "train.placebo",
            "placebos are made by the reference trainer",
            "use train.backend = reference",
        ),
        (
            rollouts.extra_groups > 0,
            "rollouts.extra_groups",
            "TRL does not replace flat groups",
            "set rollouts.extra_groups = 0",
        ),
    ]
    if train.preference.weight:
        rules += [
            (not pairs, "train.preference", "there are no pairs", "give pairs with build.pairs"),
            (
                train.preference.objective != "dpo",
                "train.preference.objective",
                "only dpo is hosted",
                "use dpo",
            ),
            (
                train.preference.anchor > 0,
                "train.preference.anchor",
                "anchors are imported examples",
                "set train.preference.anchor = 0",
            ),
            (
                train.preference.batch_pairs == 0,
                "train.preference.batch_pairs",
                "there are no examples to be in proportion to",
                "say how many pairs a step has",
            ),
        ]
    rules += unread_rules(config, groups=("train", "rollouts"), read=HOSTED | WITHOUT_EFFECT.keys())
    refuse("trl", rules)


def trl_settings(
    config: Config, *, output: Path, longest_prompt: int, save_strategy: str = "steps"
) -> ComposerReplicationConfig:
    """The run's settings as TRL's: one generation batch is one optimiser step, cut so that a
    forward holds at most train.micro_tokens."""
    train, rollouts = config.train, config.rollouts
    room = rollouts.max_context_tokens - longest_prompt
    if room < 1:
        raise ConfigError(
            f"the longest opening has {longest_prompt} tokens, max_context_tokens is"
            f" {rollouts.max_context_tokens}",
            where="rollouts.max_context_tokens",
            fix="raise it",
        )
    rows, world = rollouts.groups * rollouts.group_size, int(os.environ.get("WORLD_SIZE", "1"))
    cuts = [
        n
        for n in range(1, rows + 1)
        if rows % (n * world) == 0
        and rows // (n * world) * rollouts.max_context_tokens <= train.micro_tokens
    ]
    if not cuts:
        raise ConfigError(
            f"{rows} rollouts cannot be divided over {world} processes into forwards of"
            f" {train.micro_tokens} tokens",
            where="train.micro_tokens",
            fix=(
                "raise train.micro_tokens to rollouts.max_context_tokens, or choose rollouts.groups"
                " so that the processes divide it"
            ),
        )
    hint, preference, (low, high) = train.hint, train.preference, clips(train.policy)
    return ComposerReplicationConfig(
        output_dir=str(output),
        max_steps=train.steps,
        per_device_train_batch_size=rows // (cuts[0] * world),
        gradient_accumulation_steps=cuts[0],
        num_generations=rollouts.group_size,
        max_completion_length=room,
        temperature=rollouts.temperature,
        learning_rate=train.learning_rate,
        max_grad_norm=train.max_grad_norm,
        max_grad_norm_ratio=train.max_grad_norm_ratio,
        **OBJECTIVES[train.policy.objective],
        epsilon=low,
        epsilon_high=high,
        seed=stage_seed(config.seed, "trl") % 2**31,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
        save_strategy=save_strategy,
        save_steps=train.checkpoint_every,
        save_total_limit=train.keep_checkpoints + 1,  # the newest may be cut off by a kill
        policy_weight=train.policy.weight,
        hint_weight=hint.weight,
        hint_divergence=hint.divergence,
        hint_beta=hint.beta,
        hint_temperature=hint.temperature,
        hint_teacher=hint.teacher,
        hint_mean=hint.mean,
        hint_options=hint.model_dump(include=_HINT_OPTIONS),
        hint_sites=rollouts.hint_sites,
        preference_weight=preference.weight,
        preference_beta=preference.beta,
        preference_label_smoothing=preference.label_smoothing,
        preference_pairs=preference.batch_pairs or 1,
        balance=train.balance,
        starved_steps=train.starved_steps,
        score_tokens=train.micro_tokens,
    )
