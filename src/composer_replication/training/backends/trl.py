"""TRL's GRPOTrainer with the hint and preference channels in the same step: one backward, and no
second forward for the hint.

    trainer = ComposerReplicationTrainer(
        model=model,
        args=ComposerReplicationConfig(output_dir="out", hint_weight=1.0),
        processing_class=tokenizer,
        train_dataset=rows,
        environment_factory=MyTools,
        pairs=pairs,
    )
    trainer.train()

Every override calls `super()`: `_generate` keeps what TRL sampled,
`_generate_and_score_completions` adds each row's hint views and the step's global counts, and while
`_compute_loss` runs, a hook captures the hidden states of its forward. The losses are those of
losses/.

    policy       TRL's loss, for dr_grpo times max_completion_length: summed over tokens and divided
                 by rollouts, as in training/
    hint         the mean over the step's mistaken messages of the mean over their tokens, over
                 all ranks and accumulation steps; hint_mean="token": over all tokens
    preference   DPO over the pairs of the step, divided by their number; pairs are drawn from
                 `pairs`, as a function of seed and step

Differences from training/loop.py: a channel is divided by its running mean gradient norm from its
second step on (in its first it counts by its weight), flat groups are not replaced, and TRL bounds
the whole completion instead of one message. lm_ce, anchors, placebos, teacher "ema", FSDP and
DeepSpeed (not tried) are refused by name.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.channel_names import CHANNELS, Channel
from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.data_settings import HintsSettings, SitesSettings
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ConfigError, StoppedError, need
from composer_replication.core.jsonl import write_json
from composer_replication.core.trace import ToolSpec
from composer_replication.losses.channel import ChannelLoss
from composer_replication.losses.total import RunningMean, channel_scales, total_loss
from composer_replication.models.load_student import Student
from composer_replication.tokens.batch import Counts, collate
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.backends._compat import (
    bases,
    load_tokenizer_of,
    name_of,
    require_trl,
    set_call_parser,
)
from composer_replication.training.backends.trl_channels import (
    INPUTS,
    Scorer,
    capture_hidden,
    channel_steps,
    new_sums,
    only_forward,
    shift_to_padding,
)
from composer_replication.training.backends.trl_rollouts import (
    HintProducer,
    TrlExamples,
    TrlRollout,
)
from composer_replication.training.draws.batch_sampler import Sampler, share
from composer_replication.training.forwards.channel_weights import channel_weights
from composer_replication.training.forwards.reference import Reference, make_references
from composer_replication.training.run.health import Health
from composer_replication.training.run.optimiser import GradientClip
from composer_replication.training.step import gradient_norm, measure_channels

_Trainer, _Config = bases()
EXAMPLES, COUNTS = "composer_examples", "composer_counts"
STATE = "composer.json"
REWARD_FACTS = {"rollouts/success": "reward", "rollouts/flat": "frac_reward_zero_std"}
"""Our metrics that TRL has just measured over all ranks, by TRL's name."""


@dataclass
class ComposerReplicationConfig(_Config):
    """TRL's GRPOConfig and the settings of the channels; the policy's default is Dr.GRPO.

    Raises MissingExtraError without TRL, ConfigError if steps_per_generation is not
    gradient_accumulation_steps.
    """

    loss_type: str = "dr_grpo"
    scale_rewards: str = "none"
    policy_weight: float = 1.0
    hint_weight: float = 1.0
    hint_divergence: str = "jsd"
    hint_beta: float = 0.5
    hint_temperature: float = 1.0
    hint_teacher: str = "frozen"
    hint_mean: str = "site"
    """The hint's mean: "site" = over mistaken messages, "token" = over their tokens."""
    hint_options: dict | None = None
    """More settings of train.hint by name, e.g. {"estimator": "top_k", "top_k": 16}."""
    hint_sites: int = 0
    """The most hint views of a step, over all ranks; 0 = all. With fewer views, the channel weighs
    less in proportion."""
    preference_weight: float = 0.0
    preference_beta: float = 0.1
    preference_label_smoothing: float = 0.0
    preference_pairs: int = 8
    """Pairs of a step, over all ranks and accumulation steps."""
    balance: str = "grad_norm"
    max_grad_norm_ratio: float = 4.0
    """Clips outliers, beside TRL's own max_grad_norm; 0 = off."""
    max_grad_norm: float = 0.0
    starved_steps: int = 10
    score_tokens: int = 8192
    """The most padded tokens in one forward without a gradient."""

    def __post_init__(self) -> None:
        require_trl()
        if self.bf16 is None and not self.fp16 and not torch.cuda.is_available():
            # TRL's default is bfloat16, which rounds small divergences away on a CPU
            self.bf16 = False
        super().__post_init__()
        if self.steps_per_generation != self.gradient_accumulation_steps:
            raise ConfigError(
                f"steps_per_generation is {self.steps_per_generation}, gradient_accumulation_steps"
                f" {self.gradient_accumulation_steps}: global token counts would not be those of an"
                " optimiser step",
                fix="set them to the same number",
            )

    def channels(self) -> TrainSettings:
        """The same settings as training/ reads them; raises pydantic's ValidationError for unknown
        values."""
        preference = {
            "beta": self.preference_beta,
            "label_smoothing": self.preference_label_smoothing,
        }
        hint = {
            "divergence": self.hint_divergence,
            "beta": self.hint_beta,
            "temperature": self.hint_temperature,
            **(self.hint_options or {}),
        }
        return TrainSettings.model_validate(
            {
                "policy": {"weight": self.policy_weight},
                "lm_ce": {"weight": 0.0},
                "hint": {
                    "weight": self.hint_weight,
                    "teacher": self.hint_teacher,
                    "mean": self.hint_mean,
                    **hint,
                },
                "preference": {"weight": self.preference_weight, "anchor": 0.0, **preference},
                "balance": self.balance,
                "starved_steps": self.starved_steps,
                "micro_tokens": self.score_tokens,
            }
        )


class ComposerReplicationTrainer(_Trainer):
    """GRPOTrainer whose step trains policy, hint and preference; see the head of this file.

    `args` and `processing_class` may be left out, as with GRPOTrainer: their defaults are
    ComposerReplicationConfig(output_dir="<model>-composer") and the tokenizer in the model's
    folder. `pairs` feed the preference channel. `sites` and `hints` are the settings of the
    detectors and writers, `kept_kinds` the kinds of hints that an audit kept, `family` that of the
    chat template (tokens/template_families.py). `train` raises StoppedError if a channel stays
    starved or dead (training/run/health.py).
    """

    def __init__(
        self,
        model: Any = None,
        reward_funcs: Any = None,
        args: ComposerReplicationConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        *,
        pairs: Sequence[PreferencePair] = (),
        sites: SitesSettings | None = None,
        hints: HintsSettings | None = None,
        kept_kinds: frozenset[str] | None = None,
        family: str = "auto",
        **kwargs: Any,
    ) -> None:
        require_trl()
        tokenizer = processing_class if processing_class is not None else load_tokenizer_of(model)
        if args is None:
            args = ComposerReplicationConfig(
                output_dir=f"{Path(name_of(model)).name or 'model'}-composer"
            )
        if not isinstance(args, ComposerReplicationConfig):
            problem = f"args is a {type(args).__name__}, which has no settings of the channels"
            raise ConfigError(
                problem,
                where="args",
                fix="give a ComposerReplicationConfig: it takes GRPOConfig's settings too",
            )
        renderer = Renderer.for_tokenizer(tokenizer, family=family)
        if kwargs.get("environment_factory") or kwargs.get("tools"):
            set_call_parser(tokenizer, renderer)
        data = {"train_dataset": train_dataset, "eval_dataset": eval_dataset}
        super().__init__(
            model=model,
            reward_funcs=reward_funcs,
            args=args,
            processing_class=tokenizer,
            **data,
            **kwargs,
        )
        self._settings: TrainSettings = self.args.channels()
        self._weights = channel_weights(self._settings)
        _check(self, pairs)
        if self._weights["hint"] and (renderer.family is None or renderer.family.hint != "message"):
            problem = (
                "this chat template has no message for a hint, so none can be inserted into TRL's"
                " ids"
            )
            raise ConfigError(
                problem,
                where="student.template",
                fix="use a family whose hints are messages (tokens/template_families.py)",
            )
        student = Student(
            name="trl",
            model=self.model,
            tokenizer=tokenizer,
            lora=hasattr(self.model, "disable_adapter"),
        )
        channels_on = {"hint": self._weights["hint"] > 0, "dpo": self._weights["preference"] > 0}
        self._scorer = Scorer(
            model=self.model,
            references=make_references(student, teacher=self._settings.hint.teacher, **channels_on),
            settings=self._settings,
        )
        seed = stage_seed(self.args.seed, "sampler")
        self._pairs = Sampler(
            examples=(),
            pairs=pairs,
            batch_examples=1,
            seed=seed,
            batch_pairs=self.args.preference_pairs,
            imported=False,
        )
        self._producer = HintProducer(
            renderer=renderer,
            prompt_ids=_generation_prompt(self),
            tools=_tool_specs(self.tools),
            sites=sites or SitesSettings(),
            hints=hints or HintsSettings(),
            kept_kinds=kept_kinds,
            writes_hints=self._weights["hint"] > 0,
        )
        self._health = Health(weights=self._weights, max_bad_steps=self._settings.starved_steps)
        self._clip = GradientClip(ratio=self.args.max_grad_norm_ratio)
        self._clipped = False
        self._means: dict[Channel, RunningMean] = {name: RunningMean() for name in CHANNELS}
        self._scales: dict[Channel, float] = dict(self._weights)
        self._statuses: dict[str, str] = {}
        self._sums = new_sums(self.accelerator.device)
        self._expected_hint_tokens = 0
        self._metrics_of_rollouts: dict[str, float] = {}
        self._rollouts: tuple[Any, Any] | None = None
        self._began = time.perf_counter()
        self.listen()
        self.add_callback(_around_step(self))

    @property
    def references(self) -> Mapping[Channel, Reference]:
        """The models that score without gradient, by channel."""
        return self._scorer.references

    @property
    def channel_weights(self) -> Mapping[Channel, float]:
        """The weight of each channel; 0 = off."""
        return self._weights

    @property
    def health(self) -> Health:
        """The rule on channels."""
        return self._health

    @property
    def clip(self) -> GradientClip:
        """What bounds a step, beside TRL's own max_grad_norm."""
        return self._clip

    def listen(
        self,
        on_step: Callable[[dict[str, Any], list[dict[str, Any]]], None] | None = None,
        on_rollouts: Callable[[int, TrlExamples], None] | None = None,
    ) -> None:
        """Set the callbacks: `on_step` gets each step's metrics and warnings, `on_rollouts` this
        rank's rollouts of each generation, before they are trained on."""
        self._on_step, self._on_rollouts = on_step, on_rollouts

    def _generate(self, prompts: list[Any]) -> Any:
        result = super()._generate(prompts)
        self._rollouts = (prompts, result[:4])
        return result

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        out = super()._generate_and_score_completions(inputs)
        if not self.model.training or self._rollouts is None:
            return out
        trl_examples = self._make_examples(*self._rollouts)
        views = [view for example in trl_examples.examples for view in example.hints]
        counts = torch.tensor(
            [sum(len(v.target_ids) for v in views), len(views)], device=self.accelerator.device
        )
        metric_sums = torch.tensor(
            list(trl_examples.metrics.values()), dtype=torch.float64, device=self.accelerator.device
        )
        self._metrics_of_rollouts = dict(
            zip(trl_examples.metrics, map(int, self._over_ranks(metric_sums).tolist()), strict=True)
        )
        self._metrics_of_rollouts |= {
            ours: self._metrics["train"][name][-1]
            for ours, name in REWARD_FACTS.items()
            if self._metrics["train"].get(name)
        }
        tokens, views_of_step = self._over_ranks(counts)
        out[EXAMPLES] = list(
            trl_examples.examples
        )  # a list: TRL permutes and splits it with the tensors
        # 0-dim: TRL passes them through
        out[f"{COUNTS}_tokens"], out[f"{COUNTS}_views"] = tokens, views_of_step
        if self._on_rollouts is not None:
            self._on_rollouts(self.state.global_step, trl_examples)
        self._began = time.perf_counter()
        return out

    def _make_examples(self, prompts: list[Any], rollout: tuple[Any, Any, Any, Any]) -> TrlExamples:
        """This rank's rollouts as examples with hint views."""
        prompt_ids, completion_ids, tool_mask, completions = rollout
        prefix = f"step-{self.state.global_step}:{self.accelerator.process_index}"
        masks = [[1] * len(ids) for ids in completion_ids] if tool_mask is None else tool_mask
        rollouts = [
            TrlRollout(
                name=f"{prefix}:{i}",
                prompt=prompt,
                prompt_ids=p,
                completion_ids=c,
                tool_mask=mask,
                messages=messages,
            )
            for i, (prompt, p, c, mask, messages) in enumerate(
                zip(prompts, prompt_ids, completion_ids, masks, completions, strict=True)
            )
        ]
        if not self._weights["hint"] and self._on_rollouts is None:  # nobody reads the sessions
            bare_examples = (
                TrainingExample(
                    id=p.name,
                    session_id=p.name,
                    ids=(*p.prompt_ids, *p.completion_ids),
                    origin="student",
                )
                for p in rollouts
            )
            return TrlExamples(examples=tuple(bare_examples), metrics={})
        sites_per_rank = -(-self.args.hint_sites // self.accelerator.num_processes)
        return self._producer.make(
            rollouts,
            max_sites=sites_per_rank,
            max_tokens=self._settings.micro_tokens,
            seed=self.args.seed,
        )

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        with capture_hidden(self.model) as captured:
            policy = super()._compute_loss(model, inputs)
        hidden = [only_forward(captured)]
        losses = [self._policy(policy, inputs)]
        examples: list[TrainingExample] = inputs[EXAMPLES]
        global_tokens = int(inputs[f"{COUNTS}_tokens"])
        self._expected_hint_tokens = global_tokens
        batch = collate(examples, pad_id=0).to(self.accelerator.device)
        if self._weights["hint"] and len(batch.hint_student):
            ids_BT = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            offset_B = (1 - inputs["prompt_mask"]).sum(dim=1)
            places = shift_to_padding(batch.hint_student, ids_BT=ids_BT, offset_B=offset_B)
            counts = Counts(hint_tokens=global_tokens, hint_views=int(inputs[f"{COUNTS}_views"]))
            losses.append(self._scorer.hint(batch, hidden[0], places, counts=counts))
            self._sums[CHANNELS.index("hint"), INPUTS] += batch.counts.hint_views
        losses += self._preference(model, hidden)
        measure_channels(self._sums, losses, hidden)
        scales = channel_scales(self._weights, self._means, balance=self._settings.balance)
        if self.args.hint_sites:
            scales["hint"] *= min(1.0, int(inputs[f"{COUNTS}_views"]) / self.args.hint_sites)
        self._scales = scales
        # every loss is a share of the step's mean over all ranks; DDP divides the gradients by the
        # number of ranks, and TRL divides by nothing else
        return self.accelerator.num_processes * total_loss(losses, scales)

    def _policy(self, loss: Tensor, inputs: dict[str, Any]) -> ChannelLoss:
        """TRL's loss of this micro-batch, already scaled for accumulation, as its share of the
        step's mean over all ranks."""
        advantages = inputs["advantages"]
        if advantages.dim() == 1:
            advantages = advantages[:, None]
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        used = (mask * (advantages != 0)).double()
        self._sums[CHANNELS.index("policy"), INPUTS] += (used.sum(dim=1) > 0).sum()
        units = self.max_completion_length if self.loss_type == "dr_grpo" else 1
        share_of_mean = loss[None] * units / self.accelerator.num_processes
        return ChannelLoss(
            name="policy", values=share_of_mean, tokens=int(used.sum()), global_units=1
        )

    def _preference(self, model: Any, hidden: list[Tensor]) -> list[ChannelLoss]:
        """The loss of this micro-batch's pairs, by one more forward of the wrapped model, whose
        hidden states are added to `hidden`.

        All ranks must make the same number of wrapped forwards, or their broadcasts of buffers
        would not match. So a rank without a pair, while another has some, makes a forward of a
        single token that nothing reads.
        """
        if not self._weights["preference"]:
            return []
        _, drawn = self._pairs.step(self.state.global_step)
        # rank 0 has the most pairs
        pairs, pairs_of_rank_0 = (
            self._part(share(drawn, rank=r, world=self.accelerator.num_processes))
            for r in (self.accelerator.process_index, 0)
        )
        if not pairs_of_rank_0:
            return []
        batch = collate((), pairs, pad_id=0).to(self.accelerator.device)
        ids_BT = (
            batch.pair.ids_BT
            if pairs
            else torch.ones(1, 1, dtype=torch.long, device=self.accelerator.device)
        )
        mask_BT = batch.pair.attention_BT if pairs else torch.ones_like(ids_BT)
        with capture_hidden(self.model) as captured:
            model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False, logits_to_keep=1)
        if not pairs:
            return []
        hidden.append(only_forward(captured))
        self._sums[CHANNELS.index("preference"), INPUTS] += len(pairs)
        return [self._scorer.preference(batch, hidden[-1], global_pairs=len(drawn))]

    def _part(self, items: list[PreferencePair]) -> list[PreferencePair]:
        """The pairs of this accumulation step."""
        steps = self.args.gradient_accumulation_steps
        return items[self._step % steps :: steps]

    def _over_ranks(self, tensor: Tensor) -> Tensor:
        return (
            self.accelerator.reduce(tensor, reduction="sum")
            if self.accelerator.num_processes > 1
            else tensor
        )

    def _check_gradient(self) -> None:
        """Clip the gradient before the optimiser's step; a step without one leaves the optimiser's
        moments as they are too.

        Raises StoppedError (exit code 3) if the gradient is not finite.
        """
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        norm = gradient_norm(trainable)
        if not math.isfinite(norm):
            problem = f"step {self.state.global_step + 1} is not finite: gradient norm {norm}"
            raise StoppedError(
                problem, where="not_finite", fix="lower the learning rate, or train in float32"
            )
        self._clipped = norm > 0 and self._clip.apply(trainable, norm=norm)
        if norm == 0:
            for parameter in trainable:
                parameter.grad = None

    def _finish_step(self) -> None:
        """Report the channels of the optimiser step that was just taken; raises StoppedError if one
        stays starved or dead."""
        sums, self._sums = self._over_ranks(self._sums), new_sums(self.accelerator.device)
        observed = channel_steps(
            sums, expected={"hint": self._expected_hint_tokens} if self._weights["hint"] else {}
        )
        statuses = self._health.update_statuses(observed)
        step_metrics: dict[str, Any] = {
            "step": self.state.global_step,
            "clipped": self._clipped,
            **self._metrics_of_rollouts,
        }
        for name, channel_step in observed.items():
            self._means[name].add(channel_step.grad_norm)
            channel_metrics = {
                f"{name}/tokens": channel_step.tokens,
                f"{name}/loss": channel_step.loss if channel_step.tokens else None,
                f"{name}/grad_norm": channel_step.grad_norm,
            }
            step_metrics |= {
                f"{name}/status": statuses[name],
                f"{name}/scale": self._scales[name],
                **channel_metrics,
            }
            for key, value in channel_metrics.items():
                if statuses[name] != "off" and value is not None:
                    self._metrics["train"][key].append(float(value))
        step_metrics["loss"] = sum(
            self._scales[name] * channel_step.loss for name, channel_step in observed.items()
        )
        # as in training/step.py: without the rollouts
        step_metrics["step_s"] = round(time.perf_counter() - self._began, 4)
        self._statuses = {
            f"{name}/status": status for name, status in statuses.items() if status != "off"
        }
        for key, value in self._metrics_of_rollouts.items():
            self._metrics["train"][key].append(value)
        if self._on_step is not None:
            self._on_step(step_metrics, self._health.warnings(statuses))
        self._health.check(statuses, step=self.state.global_step)

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """TRL's log line with each channel's status."""
        super().log({**logs, **(self._statuses if self.model.training else {})}, start_time)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            means = {name: [mean.total, mean.weight] for name, mean in self._means.items()}
            state = {
                "means": means,
                "health": self._health.state(),
                "clip": [self._clip.mean.total, self._clip.mean.weight],
            }
            folder = (
                Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            )
            write_json(folder / STATE, state)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and (path := Path(checkpoint) / STATE).exists():
            state = json.loads(path.read_text(encoding="utf-8"))
            self._means.update({name: RunningMean(*state["means"][name]) for name in CHANNELS})
            self._clip.mean = RunningMean(*state["clip"])
            self._health.restore(state["health"])


def _check(trainer: Any, pairs: Sequence[PreferencePair]) -> None:
    """Raise ConfigError for a setting under which nothing, or something else, would be trained."""
    if not any(p.requires_grad for p in trainer.model.parameters()):
        raise ConfigError(
            "no weight of the model can be trained",
            fix="load an adapter with is_trainable=True, or give a peft_config",
        )
    if trainer.args.hint_teacher == "ema":
        raise ConfigError(
            "the TRL backend has no teacher 'ema'", where="hint_teacher", fix="use frozen or live"
        )
    if trainer.args.preference_weight and not pairs:
        raise ConfigError(
            "preference has a weight but there are no pairs",
            fix="give pairs=, or set preference_weight = 0",
        )
    kind = str(trainer.accelerator.distributed_type).rpartition(".")[2]
    if kind not in ("NO", "MULTI_CPU", "MULTI_GPU"):
        raise ConfigError(
            f"{kind} could not be tried with this trainer: accelerate has it on accelerators only",
            fix="use one process or DDP; for shards, train.backend = verl or train.fsdp = true",
        )
    if trainer.accelerator.device.type == "cpu" and trainer.args.bf16:
        raise ConfigError(
            "bf16 on a CPU drowns small divergences", where="bf16", fix="set bf16=False"
        )


def _generation_prompt(trainer: Any) -> tuple[int, ...]:
    """The ids that TRL's template writes before every message of the model."""

    def ids(prompt: bool) -> list[int]:
        return trainer.processing_class.apply_chat_template(
            [{"role": "user", "content": "x"}],
            chat_template=trainer.chat_template,
            add_generation_prompt=prompt,
            tokenize=True,
            return_dict=False,
            **trainer.chat_template_kwargs,
        )

    with_prompt, without = ids(True), ids(False)
    if with_prompt[: len(without)] != without or len(with_prompt) == len(without):
        raise ConfigError(
            "the chat template writes no generation prompt after the messages",
            where="student.template",
        )
    return tuple(with_prompt[len(without) :])


def _tool_specs(tools: Iterable[Callable[..., Any]]) -> tuple[ToolSpec, ...]:
    """The tools as TRL offers them, by their type hints and docstrings."""
    schema = need("transformers.utils", extra="trl").get_json_schema
    functions = [schema(tool)["function"] for tool in tools or ()]
    return tuple(
        ToolSpec(name=f["name"], description=f["description"], parameters=f["parameters"])
        for f in functions
    )


def _around_step(trainer: Any) -> Any:
    """A callback that checks the gradient before each optimiser step and the channels after it."""
    callback = need("transformers", extra="trl").TrainerCallback

    class AroundStep(callback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trainer._check_gradient()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trainer._finish_step()

    return AroundStep()
