"""Settings of build and train."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from composer_replication.core.config.base import Settings
from composer_replication.core.config.hint_settings import HintSettings as HintSettings


class BuildSettings(Settings):
    """How sessions become token sequences."""

    max_tokens: int = Field(default=4096, gt=0)
    """Longest sequence; a longer session is cut into windows, spent on what stands above their
    targets, and no message is cut."""
    target: Literal["message", "call"] = "message"
    """What of the mistaken message is the hint channel's target: all of it, or only the calls that
    failed. One message is one view."""
    without_evidence: Literal["skip", "keep"] = "skip"
    """A hint view whose window lost a turn that the hint or the mistaken call refers to (the last
    read of the file, the call that failed before): left out and counted, or kept."""
    authors: tuple[str, ...] = ()
    """Only messages of these models enter lm_ce (shell patterns); none = all. Sites of other
    authors are left out too."""
    pairs: str = ""
    """A file of preferences (JSON lines); "" = what replay wrote, if it was run. With a file of
    your own there are no anchors."""


class LengthSettings(Settings):
    """The length penalty on a rollout's reward: weight * ((1 + k x)^(1 - q) - 1) / (k (1 - q)), x
    the weighted effort."""

    weight: float = Field(default=0.0, ge=0.0)
    """0 = no penalty."""
    k: float = Field(default=0.01, gt=0.0)
    """How soon the scale bends: at x = 1 / k it has begun to."""
    q: float = Field(default=0.5, ge=0.0)
    """How much it bends: 0 is a straight line, 1 a logarithm, above 1 the penalty has a ceiling."""
    thinking: float = Field(default=1.0, ge=0.0)
    """What a token of thinking counts in x."""
    calling: float = Field(default=1.0, ge=0.0)
    """What a token of a tool call counts."""
    output: float = Field(default=0.0, ge=0.0)
    """What a token of a tool's result counts."""
    message: float = Field(default=1.0, ge=0.0)
    """What a token of a message's text counts."""
    call: float = Field(default=0.0, ge=0.0)
    """What a tool call counts."""
    turn: float = Field(default=0.0, ge=0.0)
    """What a message counts."""


class PolicySettings(Settings):
    """The policy channel on live rollouts: reinforcement on the rewards of a group (see
    [rollouts])."""

    weight: float = Field(default=0.0, ge=0.0)
    objective: Literal["dr_grpo", "grpo", "dapo", "gspo", "cispo"] = "dr_grpo"
    """Surrogate, reduction and advantage by their published name; training/objectives.py has the
    table."""
    clip: float = Field(default=0.0, ge=0.0)
    """How far the ratio of policy to sampler may leave 1 before a token gets no more gradient; 0 =
    as published (dr_grpo: 0.2)."""
    clip_high: float = Field(default=0.0, ge=0.0)
    """How far it may rise above 1, where that is another bound; 0 = as published, or `clip` where
    that is set. cispo: weight - 1."""
    importance_cap: float = Field(default=0.0, ge=0.0)
    """Truncated importance sampling: each token weighs min(policy / sampler, cap), in place of the
    ratio in the surrogate; 0 = off."""
    kl: float = Field(default=0.0, ge=0.0)
    """k1 KL in the reward: so much times sum(log p - log p_start) over a rollout's sampled tokens
    is taken off its reward."""
    length: LengthSettings = LengthSettings()
    behaviours: dict[str, float] = Field(default_factory=dict)
    """Weights of behaviour rewards by name (rollouts/behaviours.py): invalid_calls,
    unresolvable_calls, unfinished_todos, repeated_calls, one_tool_only."""


class LmSettings(Settings):
    """The policy channel on imported logs: masked cross-entropy, named lm_ce."""

    weight: float = Field(default=1.0, ge=0.0)


class PreferenceSettings(Settings):
    """The preference channel: DPO on pairs, and anchors that hold in place what no pair speaks
    about."""

    weight: float = Field(default=0.0, ge=0.0)
    objective: Literal["dpo", "dpo_norm", "ipo", "simpo", "clone"] = "dpo"
    """"dpo_norm" = DPO on log-probs per token instead of sums; "ipo" and "simpo" use those too,
    simpo without a reference. "clone" = cross-entropy on the chosen side alone, which is a control
    and not a preference."""
    anchor: float = Field(default=10.0, ge=0.0)
    """Weight of the anchors' cross-entropy (nats per token) beside the mean DPO loss; 0 leaves
    anchors out."""
    batch_pairs: int = Field(default=0, ge=0)
    """Pairs per step, drawn on their own; 0 = each comes with the example that it branches off."""
    batch_anchors: int = Field(default=6, ge=0)
    """Sessions with anchors per step."""
    beta: float = Field(default=0.1, gt=0.0)
    """Scale of the margin: 0.1 is usual for dpo, 2 to 10 for simpo and dpo_norm; ipo's target
    margin is 1 / (2 beta)."""
    gamma: float = Field(default=0.5, ge=0.0)
    """The margin that simpo asks for, in units of beta times the difference (its authors'
    gamma_beta_ratio * beta)."""
    label_smoothing: float = Field(default=0.0, ge=0.0, lt=0.5)
    """Share of pairs assumed to be the wrong way round; dpo, dpo_norm and simpo."""

    @property
    def both_sides(self) -> bool:
        """Whether the rejected side is read too."""
        return self.objective != "clone"

    @property
    def has_reference(self) -> bool:
        """Whether the start's log-probs are part of the objective."""
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
    """When a run is stopped, with live rollouts put back too: training/health.py is the only home
    of these rules."""

    max_kl: float = Field(default=0.3, gt=0.0)
    """Stop where the mean KL(student, start) on the step's rollouts is above this, in nats per
    token."""
    max_unresolvable: float = Field(default=0.10, gt=0.0, le=1.0)
    """Stop after two steps in a row in which this share of calls was malformed or named a file or
    text that is not there; 1 = never."""
    kl_episodes: int = Field(default=24, gt=0)
    """Episodes of a step on which KL and entropy are measured."""
    max_lost: float = Field(default=0.5, gt=0.0, le=1.0)
    """Stop after two steps in a row in which the environment failed or hung in more than this share
    of the rollouts."""
    monitor_tasks: int = Field(default=48, ge=0)
    """Tasks of the monitor split that are played every `monitor_every` steps; 0 = never."""
    monitor_every: int = Field(default=10, gt=0)
    """Steps between two looks at the monitor tasks; the start and the end are always looked at."""
    max_clipped: float = Field(default=0.9, gt=0.0, le=1.0)
    """Stop after `starved_steps` steps in a row in which train.hint.token_clip cut more than this
    share of the hint's tokens, or in which hint credit stood at its bound on more than this share:
    the clip is then the signal. 1 = never."""
    max_monitor_loss: float = Field(default=0.5, gt=0.0, le=1.0)
    """Stop where success on the monitor tasks fell by more than this share of the best so far (and
    by more than two standard errors)."""


class TrainSettings(Settings):
    """The trainer."""

    backend: Literal["reference", "trl"] = "reference"
    """Who takes the steps: training/loop.py, or TRL's GRPOTrainer (extra `trl`; with rollouts.env).
    Short: --backend trl."""
    steps: int = Field(default=20, gt=0)
    batch_examples: int = Field(default=8, gt=0)
    """Examples per optimiser step, over all ranks; pairs come on top in the same proportion. 1
    cannot feed both channels."""
    micro_tokens: int = Field(default=8192, gt=0)
    """Most tokens in one forward (in rows: padded ones); memory only, results do not depend on
    it."""
    layout: Literal["tree", "rows"] = "tree"
    """"tree" = what the rows of a micro-batch share is computed once; "rows" = each row by itself,
    which works with any model."""
    learning_rate: float = Field(default=1e-4, gt=0.0)
    warmup_steps: int = Field(default=2, ge=0)
    weight_decay: float = Field(default=0.0, ge=0.0)
    max_grad_norm_ratio: float = Field(default=4.0, ge=0.0)
    """Clip outliers: a gradient longer than so many times the running mean of the steps before it
    is shortened to that; 0 = off."""
    max_grad_norm: float = Field(default=0.0, ge=0.0)
    """Clip every gradient to this length; 0 = off. One below the usual length undoes the weights of
    channels and fading hints."""
    balance: Literal["grad_norm", "none"] = "grad_norm"
    """"grad_norm": each channel is divided by its gradient norm averaged over about ten steps, so
    weights are shares; "none": raw sums."""
    policy: PolicySettings = PolicySettings()
    lm_ce: LmSettings = LmSettings()
    hint: HintSettings = HintSettings()
    preference: PreferenceSettings = PreferenceSettings()
    placebo: tuple[
        Literal[
            "shuffled_hints", "neutral_hints", "permuted_rewards", "random_rewards", "swapped_pairs"
        ],
        ...,
    ] = ()
    """Controls: signals that are nulled while the steps stay. Tokens can differ, as mistakes go on;
    the evaluation prints them."""
    fork: bool = False
    """On-policy from logs: at imported sites the student writes the message itself, and only its
    own failures reach the hint channel, in place of what the log's model wrote. How it samples:
    rollouts.temperature, max_new_tokens, batch_episodes."""
    fork_sites: int = Field(default=16, gt=0)
    """Sites per step, drawn in shuffled passes; with fewer failures than one a site the hint
    channel weighs less in proportion."""
    fork_samples: int = Field(default=1, gt=0)
    """Messages that the student writes at each site."""
    health: HealthSettings = HealthSettings()
    starved_steps: int = Field(default=10, gt=0)
    """Stop with exit code 3 after so many steps in a row in which a weighted channel was starved or
    dead."""
    grad_every: int = Field(default=10, gt=0)
    """Every so many steps the gradient norm of each channel is taken over the parameters by a
    backward of its own."""
    checkpoint_every: int = Field(default=10, gt=0)
    keep_checkpoints: int = Field(default=3, gt=0)

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
                f'hint.combination = "{combination}" needs the policy channel; set policy.weight, or'
                " hint.combination = additive"
            )
        if self.hint.weight and self.hint.is_credit and self.fork:
            message = (
                f'hint.combination = "{combination}" changes advantages, and what is written at a log\'s'
                " site (fork) has none"
            )
            raise ValueError(f"{message}; set hint.combination = additive, or fork = false")
        if self.hint.weight and self.hint.difficulty and self.fork:
            message = (
                "hint.difficulty weighs by the success of a task's group, and a site of a log"
                " (fork) has none"
            )
            raise ValueError(f"{message}; set hint.difficulty = false, or fork = false")
        return self
