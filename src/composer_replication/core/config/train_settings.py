"""Settings of build and train."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from composer_replication.core.config.base import Settings
from composer_replication.core.config.hint_settings import HintSettings as HintSettings
from composer_replication.core.config.sync_settings import SyncSettings

BehaviourName = Literal[
    "invalid_calls",
    "unresolvable_calls",
    "unfinished_todos",
    "repeated_calls",
    "one_tool_only",
    "broken_promises",
]


class BuildSettings(Settings):
    """How sessions become token sequences."""

    max_tokens: int = Field(default=4096, gt=0)
    """Maximum sequence length in tokens. A longer session is split into windows, which are filled
    with the messages above their targets. No message is truncated."""
    target: Literal["message", "call"] = "message"
    """Target of the hint channel: the whole mistaken message, or only its failed calls. One message
    is one view."""
    without_evidence: Literal["skip", "keep"] = "skip"
    """What to do with a hint view whose window lacks a turn that the hint or the mistaken call
    refers to (the last read of the file, the call that failed before): skip and count it, or keep
    it."""
    authors: tuple[str, ...] = ()
    """Train lm_ce only on messages by these models (shell patterns). Empty: all. Sites of other
    authors are left out too."""
    pairs: str = ""
    """File of preferences (JSON lines). "" = the output of `curate` or `replay`, if one was run.
    With your own file there are no anchors."""


class LengthSettings(Settings):
    """The length penalty on a rollout's reward: weight * ((1 + k x)^(1 - q) - 1) / (k (1 - q)),
    where x is the weighted effort."""

    weight: float = Field(default=0.0, ge=0.0)
    """Coefficient of the penalty; 0 = off."""
    k: float = Field(default=0.01, gt=0.0)
    """Onset of the curvature: the penalty bends noticeably from x = 1 / k on."""
    q: float = Field(default=0.5, ge=0.0)
    """Strength of the curvature: 0 is linear, 1 logarithmic; above 1 the penalty is bounded."""
    thinking: float = Field(default=1.0, ge=0.0)
    """Weight of a thinking token in x."""
    calling: float = Field(default=1.0, ge=0.0)
    """Weight of a token in a tool call."""
    output: float = Field(default=0.0, ge=0.0)
    """Weight of a token in a tool result."""
    message: float = Field(default=1.0, ge=0.0)
    """Weight of a token in a message's text."""
    call: float = Field(default=0.0, ge=0.0)
    """Weight of a tool call."""
    turn: float = Field(default=0.0, ge=0.0)
    """Weight of a message."""


class PolicySettings(Settings):
    """The policy channel on live rollouts: RL on rewards within groups (see [rollouts])."""

    weight: float = Field(default=0.0, ge=0.0)
    """The channel's share (see train.balance); 0 = off."""
    objective: Literal["dr_grpo", "grpo", "dapo", "gspo", "cispo", "dppo", "dppo_symmetric"] = (
        "dr_grpo"
    )
    """Published objective: its surrogate, loss reduction and advantage. forwards/objectives.py has
    the table."""
    clip: float = Field(default=0.0, ge=0.0)
    """Clip range: beyond this distance from 1, the ratio of policy to sampler gives a token no more
    gradient. 0 = as published (dr_grpo: 0.2). dppo: the same for the change in probability."""
    clip_high: float = Field(default=0.0, ge=0.0)
    """Upper clip range, if it differs; 0 = as published, or `clip` if set. cispo: weight - 1."""
    importance_cap: float = Field(default=0.0, ge=0.0)
    """Truncated importance sampling: weight each token by min(policy / sampler, cap) instead of the
    ratio in the surrogate; 0 = off."""
    kl: float = Field(default=0.0, ge=0.0)
    """Coefficient of the k1 KL in the reward: this times sum(log p - log p_start) over a rollout's
    sampled tokens is subtracted from its reward."""
    length: LengthSettings = LengthSettings()
    behaviours: dict[BehaviourName, float] = Field(default_factory=dict)
    """Weights of behaviour rewards by name (rollouts/behaviours.py), each 0 or more; the rewards
    themselves are 0 or below: invalid_calls, unresolvable_calls, unfinished_todos, repeated_calls,
    one_tool_only, broken_promises."""

    @field_validator("behaviours")
    @classmethod
    def _unwanted_behaviour_is_not_paid_for(
        cls, weights: dict[BehaviourName, float]
    ) -> dict[BehaviourName, float]:
        for name, weight in weights.items():
            if not 0 <= weight < math.inf:
                message = f"the weight of {name} is {weight:g}, and its reward is 0 or below"
                raise ValueError(f"{message}; give 0 or more, e.g. {name} = 0.1")
        return weights


class LmSettings(Settings):
    """The policy channel on imported logs: masked cross-entropy, named lm_ce."""

    weight: float = Field(default=1.0, ge=0.0)
    """The channel's share (see train.balance); 0 = off."""


class PreferenceSettings(Settings):
    """The preference channel: DPO on pairs, plus anchors that keep behaviour in place that no pair
    is about."""

    weight: float = Field(default=0.0, ge=0.0)
    """The channel's share (see train.balance); 0 = off."""
    objective: Literal["dpo", "dpo_norm", "ipo", "simpo", "clone"] = "dpo"
    """The loss on pairs. "dpo_norm" = DPO on per-token log-probs instead of sums; "ipo" and "simpo"
    use those too, simpo without a reference model. "clone" = cross-entropy on the chosen side
    alone: a control, not a preference loss."""
    anchor: float = Field(default=10.0, ge=0.0)
    """Weight of the anchors' cross-entropy (nats per token) relative to the mean DPO loss; 0 leaves
    anchors out."""
    batch_pairs: int = Field(default=0, ge=0)
    """Pairs per step, drawn separately; 0 = each pair comes with the example that it branches
    off."""
    batch_anchors: int = Field(default=6, ge=0)
    """Sessions with anchors per step."""
    beta: float = Field(default=0.1, gt=0.0)
    """Scale of the margin. Typical: 0.1 for dpo, 2 to 10 for simpo and dpo_norm; ipo's target
    margin is 1 / (2 beta)."""
    gamma: float = Field(default=0.5, ge=0.0)
    """Target margin of simpo, in units of beta times the difference (its authors' gamma_beta_ratio
    * beta)."""
    label_smoothing: float = Field(default=0.0, ge=0.0, lt=0.5)
    """Assumed share of pairs with swapped sides; used by dpo, dpo_norm and simpo."""

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
    """When a run is stopped and, with live rollouts, rolled back. run/health.py applies these
    rules."""

    max_kl: float = Field(default=0.3, gt=0.0)
    """Stop if the mean KL(student, start) on the step's rollouts exceeds this, in nats per
    token."""
    max_unresolvable: float = Field(default=0.10, gt=0.0, le=1.0)
    """Stop after two consecutive steps in which this share of calls was malformed or named a file
    or text that does not exist; 1 = never."""
    kl_episodes: int = Field(default=24, gt=0)
    """Episodes per step on which KL and entropy are measured."""
    max_lost: float = Field(default=0.5, gt=0.0, le=1.0)
    """Stop after two consecutive steps in which the environment failed or hung in more than this
    share of the rollouts."""
    monitor_tasks: int = Field(default=48, ge=0)
    """Tasks of the monitor split to play every `monitor_every` steps; 0 = never."""
    monitor_every: int = Field(default=10, gt=0)
    """Steps between measurements on the monitor tasks. The start and the end are always
    measured."""
    max_clipped: float = Field(default=0.9, gt=0.0, le=1.0)
    """Stop after `starved_steps` consecutive steps in which train.hint.token_clip clipped more than
    this share of the hint's tokens, or more than this share of hint credit was at its bound: the
    signal then comes from the clip. 1 = never."""
    max_monitor_loss: float = Field(default=0.5, gt=0.0, le=1.0)
    """Stop if success on the monitor tasks fell by more than this share of the best so far (and by
    more than two standard errors)."""


class VerlSettings(Settings):
    """Where verl's workers run. Used if train.backend = "verl"."""

    ray_workers: int = Field(default=0, ge=0)
    """Ray workers, one GPU each (without CUDA: one CPU each); 0 = use the ranks of this launch
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
    """Hardware in the settings file that train.backend = "prime_rl" writes. Half of it trains, half
    samples."""

    gpus: int = Field(default=8, gt=1)
    """GPUs per node."""
    nodes: int = Field(default=1, gt=0)
    """Number of nodes. With more than one, half of them train and the others sample; prime-rl
    starts them through SLURM."""


class TrainSettings(Settings):
    """The trainer."""

    backend: Literal["reference", "trl", "verl", "prime_rl", "monarch"] = "reference"
    """The trainer that runs the optimiser steps: training/loop.py ("reference"), TRL's GRPOTrainer
    (extra `trl`; needs rollouts.env), verl, prime-rl, or Monarch actors. docs/backends.md lists
    what each supports. Short: --backend trl."""
    verl: VerlSettings = VerlSettings()
    prime_rl: PrimeRlSettings = PrimeRlSettings()
    steps: int = Field(default=20, gt=0)
    """Optimiser steps of the run."""
    batch_examples: int = Field(default=8, gt=0)
    """Examples per optimiser step, over all ranks; pairs are added in proportion. With 1, a step
    cannot feed both lm_ce and hint. Without lm_ce (weight 0), only examples with hint views are
    drawn; without hint, only those that lm_ce trains."""
    micro_tokens: int = Field(default=8192, gt=0)
    """Maximum tokens per micro-batch (including padding in layout "rows"). Affects memory, not
    results; lower it if you run out of memory."""
    checkpoint: Literal["none", "layers"] = "none"
    """Activation checkpointing. With "layers", a layer keeps only its input for the backward and is
    recomputed there; use it to fit longer sessions. Same losses and gradients, 1.2 to 1.4 x the
    time, and .5 to .65 x the memory of a step with 3 or 4 layers (less with more layers)."""
    tile: int = Field(default=0, ge=0)
    """Tokens per tile of a feed-forward and of norms, together with checkpoint = "layers".
    Intermediate states exist for one tile at a time, also in teacher and reference forwards. 0 = no
    tiling. Same losses and gradients, .4 to .7 x the memory of checkpoint alone, 1.1 x the time."""
    offload: bool = False
    """Keep the layers' inputs in host memory until the backward, and the keys and values for a live
    teacher's hints. Needs checkpoint = "layers". Same losses and gradients; the card holds those of
    one layer instead of all."""
    fsdp: bool = False
    """Shard weights, gradients, optimiser state and references over the ranks (FSDP2): each rank
    keeps 1 / N of them and gathers a layer while it runs. Same losses and gradients. false = every
    rank holds all of them. No effect on one rank."""
    layout: Literal["tree", "rows"] = "tree"
    """"tree" = compute prefixes shared by rows of a micro-batch once; "rows" = compute each row
    separately, which works with any model."""
    optimiser: Literal["adamw", "adamw_8bit"] = "adamw"
    """"adamw_8bit" = AdamW with both moments stored in 8 bits, a quarter of float32 (extra `qlora`:
    bitsandbytes); tensors with fewer than 4096 elements stay in float32. Worthwhile if all weights
    are trained; adapters have few."""
    learning_rate: float = Field(default=1e-4, gt=0.0)
    """Peak learning rate, reached after `warmup_steps`."""
    warmup_steps: int = Field(default=2, ge=0)
    """Steps of linear warmup. The rate then decays linearly to 0 after the last step."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decoupled weight decay of AdamW."""
    max_grad_norm_ratio: float = Field(default=4.0, ge=0.0)
    """Outlier clipping: a gradient norm above this multiple of its running mean over the preceding
    steps is clipped to it; 0 = off."""
    max_grad_norm: float = Field(default=0.0, ge=0.0)
    """Clip every gradient to this norm; 0 = off. A value below the usual norm undoes the channel
    weights, and hints no longer fade."""
    balance: Literal["grad_norm", "none"] = "grad_norm"
    """"grad_norm" = divide each channel by its mean gradient norm over about ten steps, so that
    weights are shares; "none" = raw sums."""
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
    """Signals to null, for a control run with the same steps: a claim needs a run to beat its
    placebo. "shuffled_hints" = each site has another site's hint; "neutral_hints" = a text of equal
    length without information; "permuted_rewards" = rewards permuted across groups;
    "random_rewards" = rewards drawn at random; "permuted_penalties" = length penalties and
    behaviour rewards permuted within their group; "swapped_pairs" = chosen and rejected swapped at
    random. Null every signal that the run trains on; of logs: --train.placebo
    '["shuffled_hints"]', with pairs '["shuffled_hints", "swapped_pairs"]'. Token counts can differ,
    because mistakes go on; the evaluation prints them."""
    fork: bool = False
    """On-policy training on logs: at imported sites the student writes its own message, and only
    its own failures reach the hint channel, instead of the messages of the log's model. Sampling
    uses rollouts.temperature, max_new_tokens and batch_episodes."""
    fork_sites: int = Field(default=16, gt=0)
    """Sites per step, drawn in shuffled passes. With fewer than one failure per site, the hint
    channel weighs proportionally less."""
    fork_samples: int = Field(default=1, gt=0)
    """Messages that the student samples at each site."""
    health: HealthSettings = HealthSettings()
    sync: SyncSettings = SyncSettings()
    starved_steps: int = Field(default=10, gt=0)
    """Stop with exit code 3 after this many consecutive steps in which a weighted channel was
    starved or dead."""
    grad_every: int = Field(default=10, gt=0)
    """Steps between measurements of each channel's gradient norm over the parameters, by a separate
    backward."""
    probe_sites: int = Field(default=8, ge=0)
    """Sites in the token probe: their messages are scored token by token before the first step and
    after the last, for the report. 0 = none, which saves two forwards per site each time."""
    checkpoint_every: int = Field(default=10, gt=0)
    """Steps between checkpoints. The last step always writes one."""
    keep_checkpoints: int = Field(default=3, gt=0)
    """Number of recent checkpoints to keep. Older ones are deleted."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Trackers that also receive the metrics, in their own files on this machine only (extras of
    the same names): TensorBoard and offline W&B in RUN/trackers, Trackio in its own folder."""

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
