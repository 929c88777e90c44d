"""The settings of a run that prime-rl hosts, and the files that start it there.

    check_prime_rl(config, pairs=data.pairs)      # refuses what prime-rl would compute otherwise
    write_files(config, folder=run.path / "prime_rl")

As for TRL, a setting is hosted, or changes nothing that is trained, or must stay at its default.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import PrimeRlSettings, TrainSettings
from composer_replication.core.files import make_folder, write_text
from composer_replication.losses.trust_region import KL_TAU
from composer_replication.rollouts.verifiers_tasks import PLUGIN, plugin_source
from composer_replication.tokens.example import PreferencePair
from composer_replication.training.backends.refusals import Rule, refuse, unread_rules
from composer_replication.training.forwards.objectives import clips
from composer_replication.training.run.optimiser import BETAS

LOSS = "composer_replication.training.backends.prime_rl_loss.loss_fn"
MASKS: Mapping[str, str] = {"dppo": "dppo", "dppo_symmetric": "ipo"}
"""The masks of prime_rl_loss by the names of our policy objectives."""
_HOSTED_THERE: Mapping[str, str] = {
    "student": "model",
    "train": (
        "backend steps learning_rate warmup_steps weight_decay max_grad_norm max_grad_norm_ratio"
        " balance checkpoint_every keep_checkpoints"
    ),
    "train.prime_rl": "gpus nodes",
    "train.policy": "weight objective clip clip_high",
    "train.lm_ce": "weight",
    "train.hint": "weight divergence estimator teacher mean",
    "train.preference": "weight objective beta gamma label_smoothing anchor batch_pairs",
    "rollouts": (
        "env groups group_size temperature max_new_tokens max_context_tokens max_staleness"
        " hint_sites"
    ),
}
HOSTED_THERE = frozenset(
    f"{group}.{name}" for group, names in _HOSTED_THERE.items() for name in names.split()
)
NOT_READ_THERE = frozenset(
    {
        "train.layout",
        "train.micro_tokens",
        "train.grad_every",
        "train.batch_examples",
        "train.preference.batch_anchors",
        "train.fork_sites",
        "train.fork_samples",
        "rollouts.batch_episodes",
        "rollouts.tool_threads",
    }
)
"""They are about memory, speed or reports of the reference trainer, or about what is refused."""


def loss_kwargs(settings: TrainSettings) -> dict[str, Any]:
    """The keyword arguments of loss_fn under these settings; both of its terms have the channel's
    weight, so the file alone weighs the policy as asked.

    >>> policy = {"objective": "dppo_symmetric", "weight": 0.5}
    >>> loss_kwargs(TrainSettings.model_validate({"policy": policy}))
    {'mask': 'ipo', 'ipo_threshold': 0.1, 'adv_tau': 0.5, 'kl_tau': 0.0005}
    """
    low, high = clips(settings.policy)
    weight = settings.policy.weight
    weights = {"adv_tau": weight, "kl_tau": KL_TAU * weight}
    if settings.policy.objective == "dppo_symmetric":
        return {"mask": "ipo", "ipo_threshold": low, **weights}
    return {"mask": "dppo", "dppo_mask_low": low, "dppo_mask_high": high, **weights}


def check_prime_rl(config: Config, *, pairs: Sequence[PreferencePair] = ()) -> None:
    """Raise ConfigError for a setting under which prime-rl would train something else than was
    asked for; the error names what works."""
    read = HOSTED_THERE | NOT_READ_THERE
    unread = unread_rules(config, groups=("student", "train", "rollouts"), read=read)
    refuse("prime_rl", [*_rules(config, pairs), *unread])


def _rules(config: Config, pairs: Sequence[PreferencePair]) -> Iterator[Rule]:
    """(broken, setting, problem, what works) of what cannot be the same in prime-rl."""
    train, hint, preference = config.train, config.train.hint, config.train.preference
    yield (
        not config.rollouts.env,
        "rollouts.env",
        "its orchestrator plays by itself and needs an environment",
        'set rollouts.env = "workshop", or your own',
    )
    yield (
        train.lm_ce.weight > 0,
        "train.lm_ce",
        "its batches are episodes that it played; imported examples have no place in them",
        "set train.lm_ce.weight = 0, or warm up with train.backend = reference",
    )
    yield (
        train.balance != "none",
        "train.balance",
        "its components are summed by their weights, no gradient norm is taken per channel",
        'set train.balance = "none" and choose the weights',
    )
    yield (
        train.weight_decay > 0,
        "train.weight_decay",
        "its AdamW decays every weight, this package matrices alone",
        "set train.weight_decay = 0",
    )
    yield (
        train.max_grad_norm_ratio > 0,
        "train.max_grad_norm_ratio",
        "its trainer clips by a fixed norm, not by the running mean of the norms",
        "set train.max_grad_norm_ratio = 0, and train.max_grad_norm, e.g. 1",
    )
    yield (
        train.policy.weight > 0 and train.policy.objective not in MASKS,
        "train.policy.objective",
        f"its loss masks by the change of probability, {train.policy.objective} clips a ratio",
        f"one of: {', '.join(MASKS)} (the reference trainer has both)",
    )
    if hint.weight:
        yield from _hint_rules(config)
    if preference.weight:
        yield (not pairs, "train.preference", "there are no pairs", "give pairs with build.pairs")
        yield (
            preference.objective == "clone",
            "train.preference.objective",
            "clone is no preference loss",
            "use dpo, dpo_norm, ipo or simpo",
        )
        yield (
            preference.anchor > 0,
            "train.preference.anchor",
            "anchors are imported examples",
            "set train.preference.anchor = 0",
        )


def _hint_rules(config: Config) -> Iterator[Rule]:
    """Its trainer sees log-probs of sampled tokens alone."""
    hint = config.train.hint
    yield (
        hint.estimator != "sampled_token",
        "train.hint.estimator",
        f"{hint.estimator} needs logits, and prime-rl's losses get the sampled tokens' log-probs",
        'use estimator = "sampled_token", or train.backend = verl for the whole distribution',
    )
    yield (
        hint.divergence != "kl(student, teacher)",
        "train.hint.divergence",
        f"the sampled token estimates KL(student, teacher), not {hint.divergence}",
        'use divergence = "kl(student, teacher)"',
    )
    yield (
        hint.teacher != "live",
        "train.hint.teacher",
        f"the server that scores the hint holds the live policy, not a {hint.teacher} one",
        'use teacher = "live"',
    )


def write_files(config: Config, *, folder: Path) -> Path:
    """Write prime-rl's settings file and the plugin with our tasks beside it; returns the settings
    file, which `launch_line` starts.

    Half of the GPUs sample, half train (`train.prime_rl`). What prime-rl reads is in its own words,
    so the file can be edited like any other of its settings files.
    """
    make_folder(folder)
    path = folder / "rl.toml"
    write_text(path, settings_toml(config))
    write_text(folder / f"{PLUGIN}.py", plugin_source())
    return path


def launch_line(path: Path) -> str:
    """The command that starts a run from a prime-rl checkout.

    >>> launch_line(Path("runs/a/prime_rl/rl.toml"))
    'PYTHONPATH=runs/a/prime_rl uv run rl @ runs/a/prime_rl/rl.toml'
    """
    return f"PYTHONPATH={shlex.quote(str(path.parent))} uv run rl @ {shlex.quote(str(path))}"


def settings_toml(config: Config) -> str:
    """prime-rl's settings of this run: model, loss, orchestrator and environment."""
    lines = ["# Written by recompose train --backend prime_rl. Not run here: it needs GPUs."]
    for header, values in (*_trainer_tables(config), *_orchestrator_tables(config)):
        lines += ["", header] if header else [""]
        lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


Table = tuple[str, Mapping[str, Any]]


def _trainer_tables(config: Config) -> Iterator[Table]:
    """The run, the machines, the model, and what its trainer reads."""
    train = config.train
    yield "", {"max_steps": train.steps, "seq_len": config.rollouts.max_context_tokens}
    yield from _deployment(train.prime_rl)
    yield "[model]", {"name": config.student.model}
    loss = {"type": "custom", "import_path": LOSS, "kwargs": loss_kwargs(train)}
    yield "[trainer.loss]", loss
    optimiser = {
        "lr": train.learning_rate,
        "betas1": BETAS[0],
        "betas2": BETAS[1],
        "weight_decay": train.weight_decay,
        "max_norm": train.max_grad_norm or NO_CLIP,
    }
    yield "[trainer.optim]", optimiser
    yield "[trainer.scheduler]", _scheduler(train)
    yield "[ckpt]", {"interval": train.checkpoint_every, "keep_last": train.keep_checkpoints}


def _deployment(machines: PrimeRlSettings) -> Iterator[Table]:
    """Half of the GPUs of a node, or half of the nodes, train; the others sample."""
    if machines.nodes == 1:
        training = machines.gpus // 2
        shares = {"num_train_gpus": training, "num_infer_gpus": machines.gpus - training}
        yield "[deployment]", {"gpus_per_node": machines.gpus, **shares}
        return
    training = machines.nodes // 2
    shares = {"num_train_nodes": training, "num_infer_nodes": machines.nodes - training}
    yield "[deployment]", {"type": "multi_node", "gpus_per_node": machines.gpus, **shares}
    yield "[slurm]", {"job_name": "composer"}


def _orchestrator_tables(config: Config) -> Iterator[Table]:
    """Batches, staleness, the environment and sampling."""
    rollouts = config.rollouts
    batch = {
        "batch_size": rollouts.groups * rollouts.group_size,
        "group_size": rollouts.group_size,
        "max_off_policy_steps": rollouts.max_staleness,
    }
    yield "[orchestrator]", batch
    yield "[orchestrator.algo]", {"type": "grpo"}
    sampling = {
        "temperature": rollouts.temperature,
        "max_completion_tokens": rollouts.max_new_tokens,
    }
    yield "[orchestrator.train.sampling]", sampling
    yield "[[orchestrator.train.source]]", {"name": "composer"}
    yield "[orchestrator.train.source.env.taskset]", {"id": PLUGIN, "env": rollouts.env}
    yield "[orchestrator.train.source.env.agent.harness]", {"id": PLUGIN}
    yield "[orchestrator.train.source.env.agent.runtime]", {"type": "subprocess"}
    yield "[inference]", {}


def _scheduler(train: TrainSettings) -> dict[str, Any]:
    """Up over the warm-up, then linearly down to 0, as `learning_rate` of run/optimiser.py; its
    warm-up starts at 0 and ours at the first step of the ramp."""
    decay = max(train.steps - train.warmup_steps, 0)
    return {"type": "linear", "warmup_steps": train.warmup_steps, "decay_steps": decay}


NO_CLIP = 1e9
"""A bound that no gradient reaches: prime-rl's file cannot say that there is none."""


def _toml(value: Any) -> str:
    """A value of the file; a string of JSON is one of TOML.

    >>> _toml({"name": 'a "b"', "weight": 0.5})
    '{ name = "a \\\\"b\\\\"", weight = 0.5 }'
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value) if isinstance(value, str) else str(value)
