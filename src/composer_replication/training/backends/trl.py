"""TRL's GRPOTrainer with the hint and preference channels in the same step: one backward, and no
second forward for the hint.

    trainer = ComposerReplicationTrainer(
        model=model, args=ComposerReplicationConfig(output_dir="out", hint_weight=1.0), processing_class=tokenizer,
        train_dataset=rows, environment_factory=MyTools, pairs=pairs)
    trainer.train()

Everything goes through `super()`: `_generate` is listened to, `_generate_and_score_completions`
gains each row's hint views and the step's global counts, and while `_compute_loss` runs, a hook
keeps the hidden states of its own forward. Losses are those of losses/.

    policy       TRL's loss, times max_completion_length for dr_grpo: summed over tokens, divided by rollouts, as in training/
    hint         summed over the step's target tokens / their number over all ranks and accumulation steps
    preference   DPO over the pairs of the step / their number; pairs come from `pairs`, as a function of seed and step

Differences from training/loop.py: a channel is divided by its running mean gradient norm from its
second step on (in its first it counts by its weight), flat groups are not replaced, TRL has no
bound on one message but only on the whole completion, and what TRL gives no place for is refused by
name: lm_ce, anchors, placebos, teacher "ema", FSDP and DeepSpeed (not tried).
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

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.data_settings import HintsSettings, SitesSettings
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ConfigError, StoppedError, need
from composer_replication.core.jsonl import write_json
from composer_replication.core.trace import ToolSpec
from composer_replication.losses.channel import CHANNELS, Channel, ChannelLoss
from composer_replication.losses.total import RunningMean, channel_scales, total_loss
from composer_replication.models.load_student import Student
from composer_replication.tokens.batch import Counts, collate
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.backends._compat import (
    bases,
    name_of,
    require_trl,
    teach_to_read_calls,
    tokenizer_beside,
)
from composer_replication.training.backends.trl_channels import (
    INPUTS,
    Scorer,
    channel_steps,
    new_sums,
    only_forward,
    shift_to_padding,
    tapped,
)
from composer_replication.training.backends.trl_rollouts import HintProducer, TrlExamples, TrlRollout
from composer_replication.training.batch_sampler import Sampler, share
from composer_replication.training.channel_weights import channel_weights
from composer_replication.training.health import Health
from composer_replication.training.optimiser import GradientClip
from composer_replication.training.reference import Reference, make_references
from composer_replication.training.step import gradient_norm, measure_channels

_Trainer, _Config = bases()
EXAMPLES, COUNTS = "composer_examples", "composer_counts"
STATE = "composer.json"
REWARD_FACTS = {"rollouts/success": "reward", "rollouts/flat": "frac_reward_zero_std"}
"""Our names of what TRL has just measured over all ranks."""


@dataclass
class ComposerReplicationConfig(_Config):
    """TRL's GRPOConfig and the settings of the channels; the policy is Dr.GRPO unless told
    otherwise.

    Example: ComposerReplicationConfig(output_dir="out", hint_weight=1.0, preference_weight=0.5,
    preference_pairs=8)
    Raises MissingExtraError without TRL, ConfigError where steps_per_generation is not
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
    """What the hint's sum is divided into: "site" = a mean over mistaken messages, "token" = over
    their tokens."""
    hint_sites: int = 0
    """Most hint views of a step, over all ranks; 0 = all. With fewer the channel weighs less in
    proportion."""
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
    """Most padded tokens in one forward without gradient."""

    def __post_init__(self) -> None:
        require_trl()
        if self.bf16 is None and not self.fp16 and not torch.cuda.is_available():
            # TRL's default is bfloat16, which on a CPU loses what small divergences are made of
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
        """The same settings as training/ reads them; raises pydantic's ValidationError for values
        that do not exist."""
        preference = {
            "beta": self.preference_beta,
            "label_smoothing": self.preference_label_smoothing,
        }
        hint = {
            "divergence": self.hint_divergence,
            "beta": self.hint_beta,
            "temperature": self.hint_temperature,
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
    """GRPOTrainer whose step carries policy, hint and preference; see the head of this file.

    `args` and `processing_class` may be left out, as with GRPOTrainer: they are
    ComposerReplicationConfig(output_dir="<model>-composer") and the tokenizer that lies beside the
    model. `pairs` feed the preference channel. `sites` and `hints` are the settings of the
    detectors and writers, `kept` the kinds of hints that an audit kept, `family` that of the chat
    template (tokens/template_families.py).
    Raises StoppedError from `train` where a channel stays starved or dead (training/health.py).
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
        tokenizer = processing_class if processing_class is not None else tokenizer_beside(model)
        if args is None:
            args = ComposerReplicationConfig(
                output_dir=f"{Path(name_of(model)).name or 'model'}-composer"
            )
        if not isinstance(args, ComposerReplicationConfig):
            what = f"args is a {type(args).__name__}, which has no settings of the channels"
            raise ConfigError(
                what,
                where="args",
                fix="give a ComposerReplicationConfig: it takes GRPOConfig's settings too",
            )
        renderer = Renderer.for_tokenizer(tokenizer, family=family)
        if kwargs.get("environment_factory") or kwargs.get("tools"):
            teach_to_read_calls(tokenizer, renderer)
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
            what = (
                "a hint is no message of its own in this chat template, so it cannot be set above"
                " TRL's ids as they are"
            )
            raise ConfigError(
                what,
                where="student.template",
                fix="use a family whose hints are messages (tokens/template_families.py)",
            )
        student = Student(
            name="trl",
            model=self.model,
            tokenizer=tokenizer,
            lora=hasattr(self.model, "disable_adapter"),
        )
        uses = {"hint": self._weights["hint"] > 0, "dpo": self._weights["preference"] > 0}
        self._scorer = Scorer(
            model=self.model,
            references=make_references(student, teacher=self._settings.hint.teacher, **uses),
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
        self._facts: dict[str, float] = {}
        self._rollouts: tuple[Any, Any] | None = None
        self._began = time.perf_counter()
        self.listen()
        self.add_callback(_around_step(self))

    @property
    def references(self) -> Mapping[Channel, Reference]:
        """The models that score without gradient, by channel."""
        return self._scorer.references

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
        """Who is told each step's numbers with its warnings, and each generation's rollouts (this
        rank's) before they are trained on."""
        self._on_step, self._on_rollouts = on_step, on_rollouts

    def _generate(self, prompts: list[Any]) -> Any:
        result = super()._generate(prompts)
        self._rollouts = (prompts, result[:4])
        return result

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        out = super()._generate_and_score_completions(inputs)
        if not self.model.training or self._rollouts is None:
            return out
        made = self._made(*self._rollouts)
        views = [view for example in made.examples for view in example.hints]
        counts = torch.tensor(
            [sum(len(v.target_ids) for v in views), len(views)], device=self.accelerator.device
        )
        facts = torch.tensor(
            list(made.metrics.values()), dtype=torch.float64, device=self.accelerator.device
        )
        self._facts = dict(zip(made.metrics, map(int, self._over_ranks(facts).tolist()), strict=True))
        self._facts |= {
            ours: self._metrics["train"][name][-1]
            for ours, name in REWARD_FACTS.items()
            if self._metrics["train"].get(name)
        }
        tokens, views_of_step = self._over_ranks(counts)
        out[EXAMPLES] = list(made.examples)  # a list: TRL permutes and splits it with the tensors
        # 0-dim: TRL passes them through
        out[f"{COUNTS}_tokens"], out[f"{COUNTS}_views"] = tokens, views_of_step
        if self._on_rollouts is not None:
            self._on_rollouts(self.state.global_step, made)
        self._began = time.perf_counter()
        return out

    def _made(self, prompts: list[Any], rollout: tuple[Any, Any, Any, Any]) -> TrlExamples:
        """This rank's rollouts as examples with hint views."""
        prompt_ids, completion_ids, tool_mask, completions = rollout
        place = f"step-{self.state.global_step}:{self.accelerator.process_index}"
        masks = [[1] * len(ids) for ids in completion_ids] if tool_mask is None else tool_mask
        played = [
            TrlRollout(
                name=f"{place}:{i}",
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
            made = (
                TrainingExample(
                    id=p.name,
                    session_id=p.name,
                    ids=(*p.prompt_ids, *p.completion_ids),
                    origin="student",
                )
                for p in played
            )
            return TrlExamples(examples=tuple(made), metrics={})
        each = -(-self.args.hint_sites // self.accelerator.num_processes)
        return self._producer.make(
            played, max_sites=each, max_tokens=self._settings.micro_tokens, seed=self.args.seed
        )

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        with tapped(self.model) as caught:
            policy = super()._compute_loss(model, inputs)
        hidden = [only_forward(caught)]
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
        # every part is a share of the step's mean over all ranks; DDP divides gradients by the
        # ranks, TRL by nothing more
        return self.accelerator.num_processes * total_loss(losses, scales)

    def _policy(self, loss: Tensor, inputs: dict[str, Any]) -> ChannelLoss:
        """TRL's loss of this micro-batch, which is scaled for accumulation already, as its share of
        the step's mean over all ranks."""
        advantages = (
            inputs["advantages"]
            if inputs["advantages"].dim() == 2
            else inputs["advantages"][:, None]
        )
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        used = (mask * (advantages != 0)).double()
        self._sums[CHANNELS.index("policy"), INPUTS] += (used.sum(dim=1) > 0).sum()
        units = self.max_completion_length if self.loss_type == "dr_grpo" else 1
        share_of_mean = loss[None] * units / self.accelerator.num_processes
        return ChannelLoss(
            name="policy", values=share_of_mean, tokens=int(used.sum()), global_units=1
        )

    def _preference(self, model: Any, hidden: list[Tensor]) -> list[ChannelLoss]:
        """The pairs of this micro-batch through one more forward of the wrapped model; adds its
        hidden states.

        Ranks must make the same number of wrapped forwards, or their broadcasts of buffers would
        not match: one without a pair where another has some makes one on a single token, which
        nothing reads.
        """
        if not self._weights["preference"]:
            return []
        _, drawn = self._pairs.step(self.state.global_step)
        mine, first = (
            self._part(share(drawn, rank=r, world=self.accelerator.num_processes))
            for r in (self.accelerator.process_index, 0)
        )
        if not first:
            return []
        batch = collate((), mine, pad_id=0).to(self.accelerator.device)
        ids_BT = (
            batch.pair.ids_BT
            if mine
            else torch.ones(1, 1, dtype=torch.long, device=self.accelerator.device)
        )
        mask_BT = batch.pair.attention_BT if mine else torch.ones_like(ids_BT)
        with tapped(self.model) as caught:
            model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False, logits_to_keep=1)
        if not mine:
            return []
        hidden.append(only_forward(caught))
        self._sums[CHANNELS.index("preference"), INPUTS] += len(mine)
        return [self._scorer.preference(batch, hidden[-1], global_pairs=len(drawn))]

    def _part(self, items: list[PreferencePair]) -> list[PreferencePair]:
        """Those of this accumulation step."""
        steps = self.args.gradient_accumulation_steps
        return items[self._step % steps :: steps]

    def _over_ranks(self, tensor: Tensor) -> Tensor:
        return (
            self.accelerator.reduce(tensor, reduction="sum")
            if self.accelerator.num_processes > 1
            else tensor
        )

    def _check_gradient(self) -> None:
        """Before the optimiser's step: stop where the gradient is not finite; where there is none,
        leave its moments as they are too.

        Raises StoppedError (exit code 3).
        """
        trained = [p for p in self.model.parameters() if p.requires_grad]
        norm = gradient_norm(trained)
        if not math.isfinite(norm):
            what = f"step {self.state.global_step + 1} is not finite: gradient norm {norm}"
            raise StoppedError(
                what, where="not_finite", fix="lower the learning rate, or train in float32"
            )
        self._clipped = norm > 0 and self._clip.apply(trained, norm=norm)
        if norm == 0:
            for parameter in trained:
                parameter.grad = None

    def _finish_step(self) -> None:
        """Judge the channels of the optimiser step that has just been taken; raises StoppedError
        for one that stays starved or dead."""
        sums, self._sums = self._over_ranks(self._sums), new_sums(self.accelerator.device)
        observed = channel_steps(
            sums, expected={"hint": self._expected_hint_tokens} if self._weights["hint"] else {}
        )
        statuses = self._health.observe(observed)
        line: dict[str, Any] = {
            "step": self.state.global_step,
            "clipped": self._clipped,
            **self._facts,
        }
        for name, seen in observed.items():
            self._means[name].add(seen.grad_norm)
            numbers = {
                f"{name}/tokens": seen.tokens,
                f"{name}/loss": seen.loss if seen.tokens else None,
                f"{name}/grad_norm": seen.grad_norm,
            }
            line |= {
                f"{name}/status": statuses[name],
                f"{name}/scale": self._scales[name],
                **numbers,
            }
            for key, value in numbers.items():
                if statuses[name] != "off" and value is not None:
                    self._metrics["train"][key].append(float(value))
        line["loss"] = sum(self._scales[name] * seen.loss for name, seen in observed.items())
        # as in training/step.py: without the rollouts
        line["step_s"] = round(time.perf_counter() - self._began, 4)
        self._statuses = {
            f"{name}/status": status for name, status in statuses.items() if status != "off"
        }
        for key, value in self._facts.items():
            self._metrics["train"][key].append(value)
        if self._on_step is not None:
            self._on_step(line, self._health.warnings(statuses))
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
    """Refuse by name what would train nothing, or something else than was asked for."""
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
        raise ConfigError(f"{kind} was never tried with this trainer", fix="use one process or DDP")
    if trainer.accelerator.device.type == "cpu" and trainer.args.bf16:
        raise ConfigError(
            "bf16 on a CPU drowns small divergences", where="bf16", fix="set bf16=False"
        )


def _generation_prompt(trainer: Any) -> tuple[int, ...]:
    """The ids that TRL's template writes above every message of the model."""

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
            "the chat template writes no generation prompt behind the messages",
            where="student.template",
        )
    return tuple(with_prompt[len(without) :])


def _tool_specs(tools: Iterable[Callable[..., Any]]) -> tuple[ToolSpec, ...]:
    """The tools as TRL offers them, from type hints and docstrings."""
    schema = need("transformers.utils", extra="trl").get_json_schema
    functions = [schema(tool)["function"] for tool in tools or ()]
    return tuple(
        ToolSpec(name=f["name"], description=f["description"], parameters=f["parameters"])
        for f in functions
    )


def _around_step(trainer: Any) -> Any:
    """A callback that looks at the gradient before each optimiser step and at the channels after
    it."""
    callback = need("transformers", extra="trl").TrainerCallback

    class AroundStep(callback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trainer._check_gradient()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trainer._finish_step()

    return AroundStep()
