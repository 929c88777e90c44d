"""The settings of a run that prime-rl hosts, and the files that start it there.

    check_prime_rl(config, pairs=data.pairs)      # refuses what prime-rl would compute otherwise
    write_files(config, folder=run.path / "prime_rl", num_gpus=8)

As for TRL, a setting is hosted, or changes nothing that is trained, or must stay at its default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.files import make_folder, write_text
from composer_replication.rollouts.verifiers_tasks import PLUGIN, plugin_source
from composer_replication.tokens.example import PreferencePair
from composer_replication.training.backends.trl_settings import walk_settings
from composer_replication.training.forwards.objectives import clips

LOSS = "composer_replication.training.backends.prime_rl_loss.loss_fn"
MASKS: Mapping[str, str] = {"dppo": "dppo", "dppo_symmetric": "ipo"}
"""The masks of prime_rl_loss by the names of our policy objectives."""
_HOSTED_THERE: Mapping[str, str] = {
    "train": (
        "backend steps learning_rate warmup_steps weight_decay max_grad_norm max_grad_norm_ratio"
        " balance checkpoint_every keep_checkpoints"
    ),
    "train.policy": "weight objective clip clip_high",
    "train.lm_ce": "weight",
    "train.hint": "weight divergence estimator teacher mean",
    "train.preference": "weight objective beta gamma label_smoothing anchor batch_pairs",
    "rollouts": "env groups group_size temperature max_new_tokens max_context_tokens hint_sites",
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
_REFERENCE = "or use train.backend = reference"


def loss_kwargs(settings: TrainSettings) -> dict[str, Any]:
    """The keyword arguments of loss_fn under these settings.

    >>> settings = TrainSettings.model_validate({"policy": {"objective": "dppo", "clip": 0.1}})
    >>> loss_kwargs(settings)
    {'mask': 'dppo', 'dppo_mask_low': 0.1, 'dppo_mask_high': 0.1}
    """
    low, high = clips(settings.policy)
    if settings.policy.objective == "dppo_symmetric":
        return {"mask": "ipo", "ipo_threshold": low}
    return {"mask": "dppo", "dppo_mask_low": low, "dppo_mask_high": high}


def check_prime_rl(config: Config, *, pairs: Sequence[PreferencePair] = ()) -> None:
    """Raise ConfigError for a setting under which prime-rl would train something else than was
    asked for; the error names what works."""
    for is_broken, where, problem, fix in (*_rules(config, pairs), *_unread(config)):
        if is_broken:
            raise ConfigError(f"prime-rl cannot host this: {problem}", where=where, fix=fix)


def _rules(config: Config, pairs: Sequence[PreferencePair]) -> Iterator[tuple[bool, str, str, str]]:
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


def _hint_rules(config: Config) -> Iterator[tuple[bool, str, str, str]]:
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


def _unread(config: Config) -> Iterator[tuple[bool, str, str, str]]:
    """A rule per setting of train and rollouts that is not at its default and is not read."""
    defaults = Config()
    for group in ("train", "rollouts"):
        mine, plain = getattr(config, group), getattr(defaults, group)
        pairs = zip(walk_settings(group, mine), walk_settings(group, plain), strict=True)
        for (name, value), (_, default) in pairs:
            if value != default and name not in HOSTED_THERE and name not in NOT_READ_THERE:
                yield (
                    True,
                    name,
                    f"it does not read {name} (= {value!r})",
                    f"leave it at {default!r}, {_REFERENCE}",
                )


def write_files(config: Config, *, folder: Path, num_gpus: int = 8, num_nodes: int = 1) -> Path:
    """Write prime-rl's settings file and the plugin with our tasks beside it; returns the settings
    file, which `launch_line` starts.

    Half of the GPUs sample, half train. What prime-rl reads is in its own words, so the file can be
    edited like any other of its settings files.
    """
    make_folder(folder)
    path = folder / "rl.toml"
    write_text(path, settings_toml(config, num_gpus=num_gpus, num_nodes=num_nodes))
    write_text(folder / f"{PLUGIN}.py", plugin_source())
    return path


def launch_line(path: Path) -> str:
    """The command that starts a run from a prime-rl checkout.

    >>> launch_line(Path("runs/a/prime_rl/rl.toml"))
    'PYTHONPATH=runs/a/prime_rl uv run rl @ runs/a/prime_rl/rl.toml'
    """
    return f"PYTHONPATH={path.parent} uv run rl @ {path}"


def settings_toml(config: Config, *, num_gpus: int, num_nodes: int) -> str:
    """prime-rl's settings of this run: model, loss, orchestrator and environment."""
    train, rollouts = config.train, config.rollouts
    kwargs = ", ".join(f"{key} = {_toml(value)}" for key, value in loss_kwargs(train).items())
    training = max(num_gpus // 2, 1)
    deployment = {"num_train_gpus": training, "num_infer_gpus": max(num_gpus - training, 1)}
    if num_nodes > 1:
        nodes = max(num_nodes // 2, 1)
        deployment = {
            "type": "multi_node",
            "num_train_nodes": nodes,
            "num_infer_nodes": max(num_nodes - nodes, 1),
        }
    tables: list[tuple[str, Mapping[str, Any]]] = [
        ("", {"max_steps": train.steps, "seq_len": rollouts.max_context_tokens}),
        ("[deployment]", deployment),
        ("[model]", {"name": config.student.model}),
        ("[trainer.loss]", {"type": "custom", "import_path": LOSS}),
        (
            "[trainer.optim]",
            {
                "lr": train.learning_rate,
                "weight_decay": train.weight_decay,
                "max_norm": train.max_grad_norm or NO_CLIP,
            },
        ),
        ("[trainer.scheduler]", _scheduler(train)),
        ("[ckpt]", {"interval": train.checkpoint_every, "keep_last": train.keep_checkpoints}),
        (
            "[orchestrator]",
            {
                "batch_size": rollouts.groups * rollouts.group_size,
                "group_size": rollouts.group_size,
            },
        ),
        ("[orchestrator.algo]", {"type": "grpo"}),
        (
            "[orchestrator.train.sampling]",
            {
                "temperature": rollouts.temperature,
                "max_completion_tokens": rollouts.max_new_tokens,
            },
        ),
        ("[[orchestrator.train.source]]", {"name": "composer"}),
        ("[orchestrator.train.source.env.taskset]", {"id": PLUGIN, "env": rollouts.env}),
        ("[orchestrator.train.source.env.agent.harness]", {"id": PLUGIN}),
        ("[orchestrator.train.source.env.agent.runtime]", {"type": "subprocess"}),
        ("[inference]", {}),
    ]
    lines = ["# Written by recompose train --backend prime_rl. Not run here: it needs GPUs."]
    for header, values in tables:
        lines += ["", header] if header else [""]
        lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
        if header == "[trainer.loss]":
            lines.append(f"kwargs = {{ {kwargs} }}")
    return "\n".join(lines) + "\n"


def _scheduler(train: TrainSettings) -> dict[str, Any]:
    """A constant rate, after a linear warm-up if there is one."""
    if not train.warmup_steps:
        return {"type": "constant"}
    return {"type": "linear", "warmup_steps": train.warmup_steps, "decay_steps": 0}


NO_CLIP = 1e9
"""A bound that no gradient reaches: prime-rl's file cannot say that there is none."""


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
