"""Settings of the hint channel: divergence, estimator, clips, teacher, combination with policy."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from composer_replication.core.config.base import Settings


class TaidSettings(Settings):
    """The mixture of student (0) and teacher (1) that TAID distils from. Used if divergence =
    "taid"."""

    schedule: Literal["fixed", "linear", "adaptive"] = "adaptive"
    """"fixed" = t_start throughout; "linear" = from t_start to t_end over the run; "adaptive" = as
    published, never below the linear schedule."""
    t_start: float = Field(default=0.4, ge=0.0, lt=1.0)
    """Share of the teacher's logits at the start."""
    t_end: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the teacher's logits at the end."""
    alpha: float = Field(default=5e-4, ge=0.0, le=1.0)
    """Maximum increase of t per step under the adaptive rule."""
    momentum: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Decay of the adaptive rule's running mean of loss changes."""


class EntropySettings(Settings):
    """Gates by the teacher's entropy. Used if divergence = "eopd" or "soft_gate"."""

    tau: float = Field(default=0.8, ge=0.0)
    """eopd: teacher entropy, in nats, above which the KL(teacher, student) over its top tokens is
    added."""
    top: int = Field(default=16, gt=0)
    """eopd: number of the teacher's top tokens in that term."""
    alpha: float = Field(default=1.0, ge=0.0)
    """eopd: weight of that term."""
    h_max: float = Field(default=0.0, ge=0.0)
    """soft_gate: entropy, in nats, at which only KL(teacher, student) is left; 0 = the log of the
    vocabulary size."""


class HintSettings(Settings):
    """The hint channel: divergence between the policy and the same model that saw the hint."""

    weight: float = Field(default=1.0, ge=0.0)
    """The channel's share. With combination "convex" the policy gets 1 - weight; with "advantage"
    and "bounded" this is the factor of the evidence."""
    divergence: Literal[
        "kl(student, teacher)", "kl(teacher, student)", "jsd", "taid", "eopd", "soft_gate"
    ] = "jsd"
    """Divergence between teacher and student. "taid" = cross-entropy with a mixture that shifts
    towards the teacher; "eopd" = entropy-aware OPD as published (with estimator "sampled_token" its
    first term is the paper's own, on-policy: the ratio is 1 and its clip never acts); "soft_gate" =
    both KLs, mixed by the teacher's entropy."""
    beta: float = Field(default=0.5, ge=0.0, le=1.0)
    """Weight of the teacher in the JSD mixture: 0 is kl(teacher, student), 1 is kl(student,
    teacher). Used only by jsd."""
    estimator: Literal["full", "top_k", "sampled_token"] = "full"
    """Tokens over which the divergence is computed: "full" = the whole vocabulary; "top_k" = the
    top tokens of one side; "sampled_token" = only the student's own token."""
    top_k: int = Field(default=100, gt=0)
    """Number of tokens kept by the estimator "top_k"."""
    support: Literal["student", "teacher"] = "student"
    """Side whose top tokens the estimator "top_k" keeps."""
    rest: Literal["tail", "renormalised", "dropped"] = "tail"
    """Treatment of the tokens outside the top k: "tail" = one extra column holds their mass;
    "renormalised" = the kept tokens are rescaled to sum to 1; "dropped" = they are left out."""
    entry_clip: float = Field(default=0.0, ge=0.0)
    """Maximum contribution of one vocabulary entry to a token's divergence, in nats. The divergence
    is then raw (not scaled to unit curvature). 0 = off."""
    mean: Literal["token", "site"] = "site"
    """Loss reduction. "site" = the mean over mistaken messages of the mean over their target
    tokens, so a message of 8,000 tokens weighs as much as one of 40. "token" = the mean over all
    target tokens: on the public logs 13 messages then count as 5 equal ones, and three carry 62 %
    (docs/concepts.md)."""
    focus: Literal["message", "decision"] = "message"
    """Tokens of a mistaken message to distil. "message" = all of them; "decision" = those of the
    wrong tool name or argument of the failing call. A message whose decision is not known keeps all
    its tokens, and is counted as hint/unfocused."""
    token_clip: float = Field(default=0.0, ge=0.0)
    """Maximum loss of one token. A token above it gets no gradient. 0 = off."""
    importance_clip: float = Field(default=0.0, ge=0.0)
    """Weight each token sampled by an older student by min(policy / sampler, this); 0 = off."""
    difficulty: bool = False
    """Weight each view by sqrt(p (1 - p)), where p is the success rate of its task's group. Views
    of tasks that are always or never solved get no weight."""
    contrast: bool = False
    """Distil only what the site's own hint changes more than another site's hint does. The other
    hint comes from another session of the data set, redrawn every step; with live rollouts, from
    another site of the step. A view without such a hint is left out and counted as
    hint/no_donor."""
    teacher: Literal["frozen", "live", "ema", "trust_region"] = "frozen"
    """Weights of the teacher: "frozen" = those at the start of the run; "live" = the current ones,
    without gradient; "ema" = their exponential moving average; "trust_region" = logits that lie
    `trust` of the way from the frozen to the live teacher."""
    ema: float = Field(default=0.05, gt=0.0, le=1.0)
    """Step of the moving average towards the current weights, per optimiser step. Used if teacher =
    "ema"."""
    trust: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of the live teacher's logits. Used if teacher = "trust_region"."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Divides the logits of teacher and student before they are compared. Values above 1 give
    unlikely tokens more weight."""
    combination: Literal["additive", "convex", "advantage", "bounded"] = "additive"
    """How the channel is combined with the policy: "additive" = a separate loss; "convex" = policy
    1 - weight, hint weight; "advantage" = no loss, but weight * evidence is added to the sampled
    tokens' advantages; "bounded" = the same within `bound`, and never against the reward's sign."""
    bound: float = Field(default=0.5, gt=0.0)
    """Maximum change of an advantage by credit. Used if combination = "bounded"."""
    dead_zone: float = Field(default=0.0, ge=0.0)
    """Credit up to this size counts as none. Used if combination = "advantage" or "bounded"."""
    taid: TaidSettings = TaidSettings()
    entropy: EntropySettings = EntropySettings()

    @property
    def is_credit(self) -> bool:
        """Whether the hint's signal goes into the policy's advantages instead of a loss."""
        return self.combination in ("advantage", "bounded")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        """Refuse combinations of settings in which one of them would not be read."""
        named = self.divergence in ("taid", "eopd", "soft_gate")
        rules = (
            (
                named and self.estimator == "top_k",
                f"top_k is not defined for {self.divergence}; set estimator = full",
            ),
            (
                named and self.entry_clip > 0,
                (
                    f"entry_clip is not defined for {self.divergence}; set entry_clip = 0, or use"
                    " token_clip"
                ),
            ),
            (
                self.estimator == "sampled_token"
                and self.divergence not in ("kl(student, teacher)", "eopd"),
                (
                    f"the sampled token estimates kl(student, teacher), not {self.divergence}; set"
                    ' divergence = "kl(student, teacher)"'
                ),
            ),
            (
                self.estimator == "sampled_token" and self.entry_clip > 0,
                "the sampled token has no vocabulary entries; set entry_clip = 0",
            ),
            (
                self.estimator == "sampled_token" and self.token_clip > 0,
                (
                    "the value of the sampled-token loss means nothing, so it cannot be clipped;"
                    " set token_clip = 0, or use importance_clip"
                ),
            ),
            (
                self.combination == "convex" and self.weight > 1.0,
                (
                    f"a convex combination needs a weight within 0 and 1, not {self.weight:g};"
                    " lower weight, or set combination = additive"
                ),
            ),
        )
        for broken, problem in rules:
            if broken:
                raise ValueError(problem)
        for name, is_read, condition in (
            ("ema", self.teacher == "ema", 'teacher = "ema"'),
            ("trust", self.teacher == "trust_region", 'teacher = "trust_region"'),
            ("beta", self.divergence == "jsd", 'divergence = "jsd"'),
            ("taid", self.divergence == "taid", 'divergence = "taid"'),
            (
                "entropy",
                self.divergence in ("eopd", "soft_gate"),
                'divergence = "eopd" or "soft_gate"',
            ),
            ("top_k", self.estimator == "top_k", 'estimator = "top_k"'),
            ("support", self.estimator == "top_k", 'estimator = "top_k"'),
            ("rest", self.estimator == "top_k", 'estimator = "top_k"'),
            ("bound", self.combination == "bounded", 'combination = "bounded"'),
            ("dead_zone", self.is_credit, 'combination = "advantage" or "bounded"'),
        ):
            if not is_read and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} is set, and only read with {condition}; leave it out, or set"
                    f" {condition}"
                )
        if self.is_credit and (unread := self._without_a_loss()):
            message = (
                f'with combination = "{self.combination}" the hint has no loss of its own:'
                f" {', '.join(unread)} would not be read"
            )
            raise ValueError(f"{message}; leave them out, or set combination = additive")
        return self

    def _without_a_loss(self) -> list[str]:
        """The settings of the loss that differ from their defaults."""
        default = type(self).model_fields
        names = (
            "divergence",
            "beta",
            "estimator",
            "entry_clip",
            "token_clip",
            "importance_clip",
            "difficulty",
            "mean",
        )
        return [name for name in names if getattr(self, name) != default[name].default]
