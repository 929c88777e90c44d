"""Settings of the hint channel: divergence, estimator, clips, teacher, and how its signal meets the
policy's."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from composer_replication.core.config.base import Settings


class TaidSettings(Settings):
    """Where the mixture that TAID distils from stands between student (0) and teacher (1); read
    where divergence = "taid"."""

    schedule: Literal["fixed", "linear", "adaptive"] = "adaptive"
    """"fixed" = t_start all the way; "linear" = from t_start to t_end over the run; "adaptive" = as
    published, never below the line."""
    t_start: float = Field(default=0.4, ge=0.0, lt=1.0)
    """Share of the teacher's logits at the start."""
    t_end: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the teacher's logits at the end."""
    alpha: float = Field(default=5e-4, ge=0.0, le=1.0)
    """Most that the adaptive rule adds to t in a step."""
    momentum: float = Field(default=0.99, ge=0.0, lt=1.0)
    """How slowly the adaptive rule forgets how the loss has changed."""


class EntropySettings(Settings):
    """The gates by the teacher's entropy; read where divergence = "eopd" or "soft_gate"."""

    tau: float = Field(default=0.8, ge=0.0)
    """eopd: nats of the teacher's entropy above which its top tokens' KL(teacher, student) is
    added."""
    top: int = Field(default=16, gt=0)
    """eopd: how many of the teacher's tokens that part is taken on."""
    alpha: float = Field(default=1.0, ge=0.0)
    """eopd: weight of that part."""
    h_max: float = Field(default=0.0, ge=0.0)
    """soft_gate: entropy at which only KL(teacher, student) is left; 0 = the logarithm of the
    vocabulary's size."""


class HintSettings(Settings):
    """The hint channel: divergence between the policy and the same model that saw the hint."""

    weight: float = Field(default=1.0, ge=0.0)
    """Its share; under combination "convex" the policy gets the rest of 1, under "advantage" and
    "bounded" what evidence is times."""
    divergence: Literal[
        "kl(student, teacher)", "kl(teacher, student)", "jsd", "taid", "eopd", "soft_gate"
    ] = "jsd"
    """"taid" = cross-entropy with a mixture that moves to the teacher; "eopd" = entropy-aware OPD
    as published (with estimator "sampled_token" its first term is the paper's own, on-policy: the
    ratio is 1 and its clip never acts); "soft_gate" = both KLs mixed by the teacher's entropy."""
    beta: float = Field(default=0.5, ge=0.0, le=1.0)
    """Weight of the teacher in the mixture of jsd; 0 is kl(teacher, student), 1 is kl(student,
    teacher). Read by jsd alone."""
    estimator: Literal["full", "top_k", "sampled_token"] = "full"
    """"full" = the whole vocabulary; "top_k" = the top tokens of one side; "sampled_token" = the
    student's own token alone."""
    top_k: int = Field(default=100, gt=0)
    """How many tokens the estimator "top_k" keeps."""
    support: Literal["student", "teacher"] = "student"
    """Whose top tokens they are."""
    rest: Literal["tail", "renormalised", "dropped"] = "tail"
    """What becomes of the others: one more column, nothing but a larger share for those kept, or
    nothing."""
    entry_clip: float = Field(default=0.0, ge=0.0)
    """Most nats that one vocabulary entry may add to a token's divergence, which is then raw (not
    of unit curvature); 0 = off."""
    mean: Literal["token", "site"] = "site"
    """"site" = the mean over mistaken messages, each the mean over its target tokens: a message of
    8,000 tokens weighs what one of 40 does. "token" = over all target tokens, so by length: on the
    public logs 13 messages then count as 5 equal ones, three carry 62 % (docs/concepts.md)."""
    token_clip: float = Field(default=0.0, ge=0.0)
    """Most that one token may count; beyond it there is no gradient. 0 = off."""
    importance_clip: float = Field(default=0.0, ge=0.0)
    """Each token weighs min(policy / sampler, this), for tokens that an older student sampled; 0 =
    off."""
    difficulty: bool = False
    """Each view weighs sqrt(p (1 - p)), p the success rate of its task's group; tasks always or
    never solved bring none."""
    contrast: bool = False
    """Only what the site's hint changes more than another site's hint does is distilled."""
    teacher: Literal["frozen", "live", "ema", "trust_region"] = "frozen"
    """"frozen" = the weights at the start of the run; "live" = the current weights, without
    gradient; "ema" = their slow average; "trust_region" = logits that lie `trust` of the way from
    the frozen to the live teacher."""
    ema: float = Field(default=0.05, gt=0.0, le=1.0)
    """By which share the slow average moves to the current weights in each step; read where teacher
    = "ema"."""
    trust: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of the live teacher's logits; read where teacher = "trust_region"."""
    temperature: float = Field(default=1.0, gt=0.0)
    combination: Literal["additive", "convex", "advantage", "bounded"] = "additive"
    """How it meets the policy: "additive" = a loss of its own; "convex" = policy 1 - weight, hint
    weight; "advantage" = no loss, weight * evidence on the sampled tokens' advantages; "bounded" =
    the same held within `bound`, never against the reward's sign."""
    bound: float = Field(default=0.5, gt=0.0)
    """Most that credit may add to or take off an advantage; read where combination = "bounded"."""
    dead_zone: float = Field(default=0.0, ge=0.0)
    """Credit up to this size counts as none; read where combination = "advantage" or "bounded"."""
    taid: TaidSettings = TaidSettings()
    entropy: EntropySettings = EntropySettings()

    @property
    def is_credit(self) -> bool:
        """Whether the signal goes into the policy's advantages, so that there is no loss of its
        own."""
        return self.combination in ("advantage", "bounded")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        """Raise for controls that do not go together: one of them would be set and not read."""
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
        for broken, words in rules:
            if broken:
                raise ValueError(words)
        for name, read, condition in (
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
            if not read and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} is set, and only read with {condition}; leave it out, or set {condition}"
                )
        if self.is_credit and (unread := self._without_a_loss()):
            message = (
                f'with combination = "{self.combination}" the hint has no loss of its own:'
                f" {', '.join(unread)} would not be read"
            )
            raise ValueError(f"{message}; leave them out, or set combination = additive")
        return self

    def _without_a_loss(self) -> list[str]:
        """Settings of the loss that are not as they come."""
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
