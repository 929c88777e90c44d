"""`recompose train --backend trl`: the settings of a run as TRL's, the workshop as its environment, the run directory as ever.

    result = train_with_trl(config, student=student, pairs=data.pairs, run=run, renderer=renderer, resume=False)

Optimiser, learning rates, metrics.jsonl, checkpoints and events are those of training/loop.py. TRL's own checkpoints, which a resume
starts from, lie in <run>/trl; each has a twin in <run>/checkpoints that `recompose evaluate` reads. What the loop does and this does
not is refused where it would change what is trained (`refuse`), and else said in the event "backend" (`NOT_HOSTED`).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.root import Config
from composer_replication.core.config.train import TrainSettings
from composer_replication.core.errors import ConfigError, DataError, need
from composer_replication.core.rundir import RunDir
from composer_replication.core.trace import Session
from composer_replication.losses.channel import CHANNELS
from composer_replication.models.load import Student
from composer_replication.rollouts.envs.workshop.as_tools import TOOLS, WorkshopTools, plain_tools, task_row, writes_tools_as_taught
from composer_replication.rollouts.envs.workshop.sandbox import Sandbox
from composer_replication.rollouts.envs.workshop.tasks import make_task
from composer_replication.tokens.example import PreferencePair
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.backends.trl import ComposerReplicationConfig, ComposerReplicationTrainer
from composer_replication.training.checkpoint import check_resume, read_state, save_checkpoint, training_settings
from composer_replication.training.identity import data_sha256, weights_sha256
from composer_replication.training.journal import Journal, Listener
from composer_replication.training.loop import NUM_SAMPLES, TrainResult
from composer_replication.training.optimiser import learning_rate, make_optimiser

SLACK = 1
"""Messages beyond a task's budget: with one fixed tool set whose reader is new to the tiny student, no episode would earn anything."""
NOT_HOSTED = (
    "health: only channels are judged (no KL, no unresolvable calls, no monitor tasks)",
    "grad_norm_parameters",
    "tokens of watched sites",
    "max_new_tokens: TRL bounds the whole completion",
)


def refuse(config: Config, *, pairs: Sequence[PreferencePair]) -> None:
    """Raise ConfigError for a setting under which the TRL backend would train something else than was asked for."""
    train, rollouts = config.train, config.rollouts
    rules: list[tuple[bool, str, str, str]] = [
        (rollouts.env != "workshop", "rollouts.env", "TRL plays by itself and needs an environment", 'set rollouts.env = "workshop"'),
        (train.lm_ce.weight > 0, "train.lm_ce", "TRL has no place for imported examples", "set train.lm_ce.weight = 0"),
        (train.hint.teacher == "ema", "train.hint.teacher", "there is no slow average here", "use frozen or live"),
        (bool(train.placebo), "train.placebo", "placebos are made by the reference trainer", "use train.backend = reference"),
        (rollouts.generator != "local", "rollouts.generator", "TRL has its own generators", 'set rollouts.generator = "local"'),
        (rollouts.extra_groups > 0, "rollouts.extra_groups", "TRL does not replace flat groups", "set rollouts.extra_groups = 0"),
    ]
    hosted = {"weight", "divergence", "beta", "temperature", "teacher"}
    changed = [name for name, value in train.hint if name not in hosted and value != type(train.hint).model_fields[name].default]
    named = train.hint.divergence in ("taid", "eopd", "soft_gate")
    rules += [
        (bool(changed), f"train.hint.{changed[0] if changed else ''}", "it does not reach TRL's trainer", "leave it as it comes"),
        (named, "train.hint.divergence", f"{train.hint.divergence} is not passed on", "use one of the KLs or jsd"),
        (train.hint.teacher == "trust_region", "train.hint.teacher", "there is one teacher here", "use frozen or live"),
    ]
    if train.preference.weight:
        none, batch = not pairs, train.preference.batch_pairs
        rules += [
            (none, "train.preference", "there are no pairs", "give pairs with build.pairs"),
            (train.preference.objective != "dpo", "train.preference.objective", "only dpo is hosted", "use dpo"),
            (train.preference.anchor > 0, "train.preference.anchor", "anchors are imported examples", "set train.preference.anchor = 0"),
            (batch == 0, "train.preference.batch_pairs", "there are no examples to be in proportion to", "say how many pairs a step has"),
        ]
    for broken, where, what, fix in rules:
        if broken:
            raise ConfigError(f"the TRL backend cannot do this: {what}", where=where, fix=fix)


def train_with_trl(
    config: Config,
    *,
    student: Student,
    renderer: Renderer,
    run: RunDir,
    pairs: Sequence[PreferencePair] = (),
    kept: frozenset[str] | None = None,
    resume: bool = False,
    accept_changes: bool = False,
    on_step: Listener | None = None,
    on_event: Listener | None = None,
) -> TrainResult:
    """Train `student` in place on the workshop with TRL's GRPOTrainer and write the run directory.

    Raises MissingExtraError without TRL, ConfigError for what it does not host, StoppedError where a channel stays starved or dead.
    """
    refuse(config, pairs=pairs)
    if not resume and run.metrics():
        raise DataError("this run has taken steps already", where=str(run.path), fix="resume it, or start a new run")
    identity = {"data_sha256": data_sha256((), pairs), "start_sha256": weights_sha256(student.model)}
    if resume and (twins := run.checkpoints()):
        check_resume(read_state(twins[-1][1]), settings=training_settings(config), identity=identity, accept_changes=accept_changes)
    with Sandbox() as sandbox:
        environment = partial(WorkshopTools, sandbox=sandbox, slack=SLACK)
        tokenizer = copy.deepcopy(student.tokenizer)
        if writes_tools_as_taught(str(tokenizer.chat_template)):
            tokenizer.chat_template = plain_tools(tokenizer.chat_template)
        rows = _rows(config)
        args = trl_settings(config, run=run, longest_prompt=_longest(rows, tokenizer, environment()))
        optimiser = make_optimiser(student.model, config.train)
        rates = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: learning_rate(config.train, step) / config.train.learning_rate)
        trainer = ComposerReplicationTrainer(
            model=student.model,
            args=args,
            processing_class=tokenizer,
            train_dataset=need("datasets", extra="trl").Dataset.from_list(rows),
            environment_factory=environment,
            optimizers=(optimiser, rates),
            pairs=pairs if config.train.preference.weight else (),
            sites=config.sites,
            hints=config.hints,
            kept=kept,
            family=renderer.family.name if renderer.family is not None else "auto",
        )
        journal = Journal(run=run, main=trainer.accelerator.is_main_process, on_step=on_step, on_event=on_event)
        trainer.remove_callback(need("transformers", extra="trl").PrinterCallback)  # a library does not print
        trainer.listen(journal.step, partial(_samples, journal, config.train))
        trainer.add_callback(_keep(trainer, student=student, config=config, journal=journal, identity=identity))
        last = need("transformers.trainer_utils", extra="trl").get_last_checkpoint(args.output_dir) if resume else None
        with journal.attempt():
            ranks, first = trainer.accelerator.num_processes, 0 if last is None else int(last.rpartition("-")[2])
            journal.event("start", step=first, ranks=ranks, examples=0, pairs=len(pairs))
            journal.event("backend", name="trl", not_hosted=list(NOT_HOSTED))
            trainer.train(resume_from_checkpoint=last)
    lines = run.metrics()
    kept_folders = run.checkpoints()
    return TrainResult(
        run=run,
        steps=trainer.state.global_step,
        statuses={name: lines[-1][f"{name}/status"] for name in CHANNELS} if lines else {},
        metrics=lines[-1] if lines else {},
        checkpoint=kept_folders[-1][1] if kept_folders else None,
    )


def trl_settings(config: Config, *, run: RunDir, longest_prompt: int) -> ComposerReplicationConfig:
    """The run's settings in TRL's words: one generation batch is one optimiser step, cut so that a forward holds train.micro_tokens."""
    train, rollouts = config.train, config.rollouts
    room = rollouts.max_context_tokens - longest_prompt
    if room < 1:
        raise ConfigError(
            f"the longest opening has {longest_prompt} tokens, max_context_tokens is {rollouts.max_context_tokens}",
            where="rollouts.max_context_tokens",
            fix="raise it",
        )
    rows, world = rollouts.groups * rollouts.group_size, int(os.environ.get("WORLD_SIZE", "1"))
    cuts = [
        n for n in range(1, rows + 1) if rows % (n * world) == 0 and rows // (n * world) * rollouts.max_context_tokens <= train.micro_tokens
    ]
    if not cuts:
        raise ConfigError(
            f"{rows} rollouts cannot be divided over {world} processes into forwards of {train.micro_tokens} tokens",
            where="train.micro_tokens",
            fix="raise train.micro_tokens to rollouts.max_context_tokens, or choose rollouts.groups so that the processes divide it",
        )
    hint, preference = train.hint, train.preference
    return ComposerReplicationConfig(
        output_dir=str(run.path / "trl"),
        max_steps=train.steps,
        per_device_train_batch_size=rows // (cuts[0] * world),
        gradient_accumulation_steps=cuts[0],
        num_generations=rollouts.group_size,
        max_completion_length=room,
        temperature=rollouts.temperature,
        learning_rate=train.learning_rate,
        max_grad_norm=train.max_grad_norm,
        epsilon=train.policy.clip,
        seed=stage_seed(config.seed, "trl") % 2**31,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
        save_strategy="steps",
        save_steps=train.checkpoint_every,
        save_total_limit=train.keep_checkpoints,
        policy_weight=train.policy.weight,
        hint_weight=hint.weight,
        hint_divergence=hint.divergence,
        hint_beta=hint.beta,
        hint_temperature=hint.temperature,
        hint_teacher=hint.teacher,
        hint_sites=rollouts.hint_sites,
        preference_weight=preference.weight,
        preference_beta=preference.beta,
        preference_label_smoothing=preference.label_smoothing,
        preference_pairs=preference.batch_pairs or 1,
        balance=train.balance,
        starved_steps=train.starved_steps,
        score_tokens=train.micro_tokens,
    )


def _rows(config: Config) -> list[dict[str, Any]]:
    """One row per group of the run: different tasks, the same for a seed."""
    seed, seen, rows, number = stage_seed(config.seed, "trl:tasks"), set(), [], 0
    while len(rows) < config.train.steps * config.rollouts.groups:
        name = f"{seed}:{number}"
        task, number = make_task(name, split="train"), number + 1
        if task.id not in seen:
            seen.add(task.id)
            rows.append(task_row(name))
    return rows


def _longest(rows: Sequence[dict[str, Any]], tokenizer: Any, tools: WorkshopTools) -> int:
    """Tokens of the longest opening."""
    render = partial(
        tokenizer.apply_chat_template,
        tools=[getattr(tools, name) for name in TOOLS.order],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    return max(len(render(row["prompt"])) for row in rows)


def _samples(journal: Journal, settings: TrainSettings, step: int, sessions: tuple[Session, ...]) -> None:
    if step % settings.checkpoint_every == 0 or step + 1 == settings.steps:
        journal.samples(step, sessions[:: max(1, len(sessions) // NUM_SAMPLES)][:NUM_SAMPLES])


def _keep(trainer: Any, *, student: Student, config: Config, journal: Journal, identity: dict[str, str]) -> Any:
    """A callback that writes a twin of each of TRL's checkpoints where the rest of the program looks for one."""
    callback = need("transformers", extra="trl").TrainerCallback

    class Keep(callback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if journal.main:
                facts = {"settings": training_settings(config), "backend": "trl", **identity}
                what = {"student": student, "optimiser": trainer.optimizer, "state": facts, "keep": config.train.keep_checkpoints}
                save_checkpoint(journal.run, state.global_step, **what)
            journal.event("checkpoint", step=state.global_step)

    return Keep()
