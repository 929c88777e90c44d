"""Settings of build and train."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from composer_replication.core.config.base import Settings
from composer_replication.core.config.hint_settings import HintSettings as HintSettings
from composer_replication.core.config.sync_settings import SyncSettings


class BuildSettings(Settings):
    """The conversion of sessions to token sequences."""

    max_tokens: int = Field(default=4096, gt=0)
    """Longest sequence; a longer session is split into windows, which are filled with the messages
    above their targets. No message is cut."""
    target: Literal["message", "call"] = "message"
    """The hint channel's target: the whole mistaken message, or only its calls that failed. One
    message is one view."""
    without_evidence: Literal["skip", "keep"] = "skip"
    """Treatment of a hint view whose window lacks a turn that the hint or the mistaken call refers
    to (the last read of the file, the call that failed before): skipped and counted, or kept."""
    authors: tuple[str, ...] = ()
    """Only messages of these models enter lm_ce (shell patterns); none = all. Sites of other
    authors are left out too."""
    pairs: str = ""
    """A file of preferences (JSON lines); "" = those of `curate` or `replay`, if one was run. With
    your own file there are no anchors."""


class LengthSettings(Settings):
    """The length penalty on a rollout's reward: weight * ((1 + k x)^(1 - q) - 1) / (k (1 - q)), x
    the weighted effort."""

    weight: float = Field(default=0.0, ge=0.0)
    """0 = no penalty."""
    k: float = Field(default=0.01, gt=0.0)
    """Onset of the bend: the scale bends noticeably from x = 1 / k on."""
    q: float = Field(default=0.5, ge=0.0)
    """Strength of the bend: 0 is a straight line, 1 a logarithm; above 1 the penalty is bounded."""
    thinking: float = Field(default=1.0, ge=0.0)
    """Weight of a token of thinking in x."""
    calling: float = Field(default=1.0, ge=0.0)
    """Weight of a token of a tool call."""
    output: float = Field(default=0.0, ge=0.0)
    """Weight of a token of a tool's result."""
    message: float = Field(default=1.0, ge=0.0)
    """Weight of a token of a message's text."""
    call: float = Field(default=0.0, ge=0.0)
    """Weight of a tool call."""
    turn: float = Field(default=0.0, ge=0.0)
    """Weight of a message."""


class PolicySettings(Settings):
    """The policy channel on live rollouts: RL on the rewards of groups (see [rollouts])."""

    weight: float = Field(default=0.0, ge=0.0)
    """The channel's share (see train.balance); 0 = off."""
    objective: Literal["dr_grpo", "grpo", "dapo", "gspo", "cispo", "dppo", "dppo_symmetric"] = (
        "dr_grpo"
    )
    """Surrogate, reduction and advantage by their published name; forwards/objectives.py has the
    table."""
    clip: float = Field(default=0.0, ge=0.0)
    """Distance from 1 beyond which the ratio of policy to sampler gives a token no more gradient; 0
    = as published (dr_grpo: 0.2). dppo: the same for the change of the probability."""
    clip_high: float = Field(default=0.0, ge=0.0)
    """The distance above 1, if that bound differs; 0 = as published, or `clip` if set. cispo:
    weight - 1."""
    importance_cap: float = Field(default=0.0, ge=0.0)
    """Truncated importance sampling: each token is weighted by min(policy / sampler, cap) instead
    of the ratio in the surrogate; 0 = off."""
    kl: float = Field(default=0.0, ge=0.0)
    """k1 KL in the reward: this times sum(log p - log p_start) over a rollout's sampled tokens is
    subtracted from its reward."""
    length: LengthSettings = LengthSettings()
    behaviours: dict[str, float] = Field(default_factory=dict)
    """Weights of behaviour rewards by name (rollouts/behaviours.py): invalid_calls,
    unresolvable_calls, unfinished_todos, repeated_calls, one_tool_only, broken_promises."""


class LmSettings(Settings):
    """The policy channel on imported logs: masked cross-entropy, named lm_ce."""

    weight: float = Field(default=1.0, ge=0.0)
    """The channel's share (see train.balance); 0 = off."""


class PreferenceSettings(Settings):
    """The preference channel: DPO on pairs, and anchors that hold behaviour in place that no pair
    is about."""

    weight: float = Field(default=0.0, ge=0.0)
    """The channel's share (see train.balance); 0 = off."""
    objective: Literal["dpo", "dpo_norm", "ipo", "simpo", "clone"] = "dpo"
    """"dpo_norm" = DPO on log-probs per token instead of sums; "ipo" and "simpo" use those too,
    simpo without a reference. "clone" = cross-entropy on the chosen side alone: a control, not a
    preference loss."""
    anchor: float = Field(default=10.0, ge=0.0)
    """Weight of the anchors' cross-entropy (nats per token) beside the mean DPO loss; 0 leaves
    anchors out."""
    batch_pairs: int = Field(default=0, ge=0)
    """Pairs per step, drawn separately; 0 = each comes with the example that it branches off."""
    batch_anchors: int = Field(default=6, ge=0)
    """Sessions with anchors per step."""
    beta: float = Field(default=0.1, gt=0.0)
    """Scale of the margin: 0.1 is usual for dpo, 2 to 10 for simpo and dpo_norm; ipo's target
    margin is 1 / (2 beta)."""
    gamma: float = Field(default=0.5, ge=0.0)
    """simpo's target margin, in units of beta times the difference (its authors' gamma_beta_ratio *
    beta)."""
    label_smoothing: float = Field(default=0.0, ge=0.0, lt=0.5)
    """Share of pairs assumed to be the wrong way round; dpo, dpo_norm and simpo."""

    @property
    def both_sides(self) -> bool:
        """Whether the objective uses the rejected side."""
        return self.objective != "clone"

    @property
    def has_reference(self) -> bool:
        """Whether the objective uses the reference model's log-probs."""
        return self.objective in ("dpo", "dpo_norm", "ipo")

    @model_validator(mode="after")
    def _smoothing_is_read(self) -> Self:
        if self.label_smoothing and self.objective in ("ipo", "clone"):
            raise ValueError(
                f"{self.objective} knows no label smoothing; set label_smoothing = 0, or objective"
                " = dpo"
            )
        return self


class HealthSettings(Settings):
    """When a run is stopped and, with live rollouts, rolled back; run/health.py applies these
    rules."""

    max_kl: float = Field(default=0.3, gt=0.0)
    """Stop if the mean KL(student, start) on the step's rollouts is above this, in nats per
    token."""
    max_unresolvable: float = Field(default=0.10, gt=0.0, le=1.0)
    """Stop after two steps in a row in which this share of calls was malformed or named a file or
    text that does not exist; 1 = never."""
    kl_episodes: int = Field(default=24, gt=0)
    """Episodes of a step on which KL and entropy are measured."""
    max_lost: float = Field(default=0.5, gt=0.0, le=1.0)
    """Stop after two steps in a row in which the environment failed or hung in more than this share
    of the rollouts."""
    monitor_tasks: int = Field(default=48, ge=0)
    """Tasks of the monitor split that are played every `monitor_every` steps; 0 = never."""
    monitor_every: int = Field(default=10, gt=0)
    """Steps between two measurements on the monitor tasks; the start and the end are always
    measured."""
    max_clipped: float = Field(default=0.9, gt=0.0, le=1.0)
    """Stop after `starved_steps` steps in a row in which train.hint.token_clip clipped more than
    this share of the hint's tokens, or hint credit was at its bound on more than this share: the
    signal is then the clip's. 1 = never."""
    max_monitor_loss: float = Field(default=0.5, gt=0.0, le=1.0)
    """Stop if success on the monitor tasks fell by more than this share of the best so far (and by
    more than two standard errors)."""


class VerlSettings(Settings):
    """Where verl's workers run; read if train.backend = "verl"."""

    ray_workers: int = Field(default=0, ge=0)
    """Ray workers, one GPU each (without CUDA: one CPU each); 0 = the ranks of this launch
    (torchrun, or one process)."""
    ray_nodes: int = Field(default=1, gt=0)
    """Nodes over which the Ray workers are spread evenly."""

    @model_validator(mode="after")
    def _nodes_have_equally_many(self) -> Self:
        if self.ray_workers % self.ray_nodes:
            message = f"{self.ray_workers} workers cannot be spread evenly over {self.ray_nodes}"
            raise ValueError(f"{message} nodes; set ray_workers to a multiple of ray_nodes")
        return self


class PrimeRlSettings(Settings):
    """The machines of the settings file that train.backend = "prime_rl" writes; half of them train,
    half sample."""

    gpus: int = Field(default=8, gt=1)
    """GPUs of a node."""
    nodes: int = Field(default=1, gt=0)
    """More than one: half of the nodes train, the others sample; prime-rl starts them by SLURM."""


class TrainSettings(Settings):
    """The trainer."""

    backend: Literal["reference", "trl", "verl", "prime_rl", "monarch"] = "reference"
    """The trainer that runs the optimiser steps: training/loop.py, TRL's GRPOTrainer (extra `trl`;
    needs rollouts.env), verl, prime-rl or actors of Monarch. What each hosts: docs/backends.md.
    Short: --backend trl."""
    verl: VerlSettings = VerlSettings()
    prime_rl: PrimeRlSettings = PrimeRlSettings()
    steps: int = Field(default=20, gt=0)
    """Optimiser steps of the run."""
    batch_examples: int = Field(default=8, gt=0)
    """Examples per optimiser step, over all ranks; pairs are added in proportion. 1 cannot feed
    both channels."""
    micro_tokens: int = Field(default=8192, gt=0)
    """Most tokens in one forward (with padding, in layout "rows"); it affects memory, not
    results."""
    checkpoint: Literal["none", "layers"] = "none"
    """Activation checkpointing, for longer sessions on the same card: with "layers" a layer keeps
    only its input for the backward and runs again there. Same losses and gradients; 1.2 to 1.4 x
    the time for .5 to .65 x the memory of a step with 3 or 4 layers, and less with more layers."""
    tile: int = Field(default=0, ge=0)
    """Tokens of a feed-forward and of norms that are computed at a time, beside checkpoint =
    "layers"; their inner states exist for one tile, in the forwards of teacher and reference too.
    0 = all at once. Same losses and gradients; .4 to .7 x the memory of checkpoint alone, 1.1 x the
    time."""
    offload: bool = False
    """The layers' inputs wait in host memory for the backward, and the keys and values for a live
    teacher's hints; needs checkpoint = "layers". Same losses and gradients; on the card those of
    one layer remain, in place of those of all."""
    fsdp: bool = False
    """Shard weights, gradients, optimiser and references over the ranks (FSDP2): each keeps 1 / N
    of them, and gathers a layer while it runs. Same losses and gradients. false = every rank holds
    all of them. On one rank it does nothing."""
    layout: Literal["tree", "rows"] = "tree"
    """"tree" = prefixes that rows of a micro-batch share are computed once; "rows" = each row
    separately, which works with any model."""
    optimiser: Literal["adamw", "adamw_8bit"] = "adamw"
    """"adamw_8bit": AdamW whose two averages are stored in 8 bits, a quarter of float32 (extra
    `qlora`: bitsandbytes); matrices of fewer than 4096 numbers keep float32. It pays if all weights
    are trained: adapters have few."""
    learning_rate: float = Field(default=1e-4, gt=0.0)
    """Highest rate of the optimiser, reached after `warmup_steps`."""
    warmup_steps: int = Field(default=2, ge=0)
    """Steps in which the rate grows in a straight line; from there it falls in one, to 0 after the
    last step."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """AdamW's decoupled decay of the weights."""
    max_grad_norm_ratio: float = Field(default=4.0, ge=0.0)
    """Clip outliers: a gradient norm above this many times the running mean of the preceding steps
    is clipped to that; 0 = off."""
    max_grad_norm: float = Field(default=0.0, ge=0.0)
    """Clip every gradient to this norm; 0 = off. A value below the usual norm undoes the channels'
    weights, and hints no longer fade."""
    balance: Literal["grad_norm", "none"] = "grad_norm"
    """"grad_norm": each channel is divided by its gradient norm averaged over about ten steps, so
    weights are shares; "none": raw sums."""
    policy: PolicySettings = PolicySettings()
    lm_ce: LmSettings = LmSettings()
    hint: HintSettings = HintSettings()
    preference: PreferenceSettings = PreferenceSettings()
    placebo: tuple[
        Literal[
            "shuffled_hints",
            "neutral_hints",
            "permuted_rewards",
            "random_rewards",
            "permuted_penalties",
            "swapped_pairs",
        ],
        ...,
    ] = ()
    """Controls: signals that are nulled while the steps stay the same. Tokens can differ, because
    the mistakes continue; the evaluation prints them."""
    fork: bool = False
    """On-policy training on logs: at imported sites the student writes the message anew, and only
    its own failures reach the hint channel, instead of the messages of the log's model. Sampling:
    rollouts.temperature, max_new_tokens, batch_episodes."""
    fork_sites: int = Field(default=16, gt=0)
    """Sites per step, drawn in shuffled passes; with fewer than one failure per site the hint
    channel weighs less in proportion."""
    fork_samples: int = Field(default=1, gt=0)
    """Messages that the student writes at each site."""
    health: HealthSettings = HealthSettings()
    sync: SyncSettings = SyncSettings()
    starved_steps: int = Field(default=10, gt=0)
    """Stop with exit code 3 after this many steps in a row in which a weighted channel was starved
    or dead."""
    grad_every: int = Field(default=10, gt=0)
    """Steps between two measurements of each channel's gradient norm over the parameters, by a
    separate backward."""
    probe_sites: int = Field(default=8, ge=0)
    """Sites of the token probe: their messages are scored token by token, before the first step and
    after the last, for the report's page; 0 = none, which saves two forwards per site each time."""
    checkpoint_every: int = Field(default=10, gt=0)
    """Steps between two checkpoints; the last step always writes one."""
    keep_checkpoints: int = Field(default=3, gt=0)
    """Newest checkpoints to keep; older ones are deleted."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Mirrors of metrics.jsonl in these trackers' own files (extras of the same names), on this
    machine only: TensorBoard and offline W&B in RUN/trackers, Trackio in its own folder."""

    @model_validator(mode="after")
    def _the_clip_does_not_close(self) -> Self:
        if 0 < self.max_grad_norm_ratio < 1:
            message = (
                f"max_grad_norm_ratio is {self.max_grad_norm_ratio}: every step would be clipped,"
                " and lower the limit of the next"
            )
            raise ValueError(f"{message}; set it to 1 or more, or to 0 for no such clip")
        return self

    @model_validator(mode="after")
    def _only_layer_inputs_are_offloaded(self) -> Self:
        if self.offload and self.checkpoint != "layers":
            message = "offload would copy every inner state of every layer to host memory"
            raise ValueError(f"{message}; set checkpoint = layers, or offload = false")
        return self

    @model_validator(mode="after")
    def _sharded_weights_do_not_write(self) -> Self:
        if self.fsdp and self.fork:
            message = "fsdp shards the weights, and the student cannot write with a part of them"
            raise ValueError(f"{message}; set fork = false, or fsdp = false")
        if self.fsdp and self.backend != "reference":
            message = f"fsdp is for the reference trainer, the backend is {self.backend}"
            raise ValueError(f"{message}; set fsdp = false, or backend = reference")
        if self.fsdp and self.optimiser != "adamw":
            message = "fsdp shards AdamW's averages, and bitsandbytes' 8-bit ones cannot be sharded"
            raise ValueError(f'{message}; set fsdp = false, or optimiser = "adamw"')
        return self

    @model_validator(mode="after")
    def _replicas_are_whole(self) -> Self:
        if not self.sync.url:
            return self
        if self.steps % self.sync.every:
            message = f"{self.steps} steps are not whole rounds of {self.sync.every}"
            raise ValueError(f"{message}; set steps to a multiple of sync.every")
        if self.fsdp:
            message = "a replica of train.sync keeps its weights whole, and fsdp shards them"
            raise ValueError(f'{message}; set fsdp = false, or sync.url = ""')
        if self.backend != "reference":
            message = f"replicas are for the reference trainer, the backend is {self.backend}"
            raise ValueError(f'{message}; set backend = reference, or sync.url = ""')
        return self

    @model_validator(mode="after")
    def _some_channel(self) -> Self:
        if (
            self.policy.weight
            == self.lm_ce.weight
            == self.hint.weight
            == self.preference.weight
            == 0
        ):
            remedy = "set policy.weight, lm_ce.weight, hint.weight or preference.weight"
            raise ValueError(f"every channel has weight 0: nothing would be trained; {remedy}")
        return self

    @model_validator(mode="after")
    def _combination_has_a_policy(self) -> Self:
        combination = self.hint.combination
        if self.hint.weight and combination != "additive" and not self.policy.weight:
            raise ValueError(
                f'hint.combination = "{combination}" needs the policy channel; set policy.weight,'
                " or hint.combination = additive"
            )
        if self.hint.weight and self.hint.is_credit and self.fork:
            message = (
                f'hint.combination = "{combination}" changes advantages, and what is written at a'
                " log's site (fork) has none"
            )
            raise ValueError(f"{message}; set hint.combination = additive, or fork = false")
        if self.hint.weight and self.hint.difficulty and self.fork:
            message = (
                "hint.difficulty weighs by the success of a task's group, and a site of a log"
                " (fork) has none"
            )
            raise ValueError(f"{message}; set hint.difficulty = false, or fork = false")
        return self
