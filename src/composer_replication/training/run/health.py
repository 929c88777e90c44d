"""The rules that stop a run; no other file has any.

Health watches the channels: none is silently zero. A bad step gives a warning at once, too many in
a row stop the run. A hint loss with nearly every token clipped (train.hint.token_clip), or hint
credit that is nearly always at its bound, counts as bad too. PolicyHealth watches a policy that
acts. The metrics of a channel can look perfect while the policy collapses (measured: mistakes,
divergence and success all went to 0), so these rules are about its rollouts:

    kl              mean KL(student || start) per sampled token is above max_kl
    unresolvable    in two steps in a row at least max_unresolvable of the calls were malformed, or
                    named something that does not exist
    environment     in two steps in a row the environment (or a served generator) failed or hung in
                    more than max_lost of the rollouts
    monitor         success on the monitor tasks fell by more than max_monitor_loss of the best so
                    far, and by two standard errors

A checkpoint is good if no rule was past half of its limit; on a stop the newest good one is put
back (run/rollback.py). The rates of valid and of state-changing calls, entropy and length are
compared with the run's first step: they warn and stop nothing. A step in which the rewards of every
group are alike warns too, once per streak: the policy channel has nothing to learn from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from composer_replication.core.channel_names import CHANNELS, Channel, Status
from composer_replication.core.config.train_settings import HealthSettings
from composer_replication.core.errors import StoppedError
from composer_replication.losses.channel import channel_status

_REASONS = {
    "starved": "no loss token reached it",
    "dead": "it has loss tokens but no gradient",
}
_FIXES: dict[Channel, str] = {
    "policy": (
        "rewards within every group are alike: look at them, raise rollouts.extra_groups, or set"
        " train.policy.weight = 0"
    ),
    "lm_ce": (
        "look at an example's mask with `recompose show example`, or set train.lm_ce.weight = 0"
    ),
    "hint": (
        "look at `recompose sites` and `recompose hints`: does any view reach training? With"
        " train.fork: does this student make the mistakes of these logs at all (fork/same in"
        " metrics.jsonl)? Or set train.hint.weight = 0"
    ),
    "preference": "give pairs with build.pairs, or set train.preference.weight = 0",
}

_CLIPPED = {
    "reason": (
        "nearly every token is at the clip or bound, which is then the signal instead of the hint"
    ),
    "fix": (
        "raise train.hint.token_clip or train.hint.bound, under credit lower train.hint.weight, or"
        " look at the hints: `recompose show`"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStep:
    """The measurements of one channel in one step; counts are over all ranks, the norm is at the
    final hidden states."""

    inputs: int
    tokens: int
    loss: float
    grad_norm: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Health:
    """Statuses and their streaks; `state` and `restore` carry them over a resume.

    >>> idle = ChannelStep(inputs=0, tokens=0, loss=0.0, grad_norm=0.0)
    >>> starved = ChannelStep(inputs=2, tokens=0, loss=0.0, grad_norm=0.0)
    >>> weights = dict.fromkeys(CHANNELS, 0.0) | {"hint": 1.0}
    >>> health = Health(weights=weights, max_bad_steps=3)
    >>> health.update_statuses(dict.fromkeys(CHANNELS, idle) | {"hint": starved})["hint"]
    'starved'
    >>> [warning["channel"] for warning in health.warnings({"hint": "starved"})]
    ['hint']
    """

    weights: Mapping[Channel, float]
    max_bad_steps: int
    max_clipped: float = 1.0
    clipped_steps: int = 0
    was_active: dict[Channel, bool] = field(default_factory=lambda: dict.fromkeys(CHANNELS, False))
    bad_steps: dict[Channel, int] = field(default_factory=lambda: dict.fromkeys(CHANNELS, 0))

    def update_statuses(self, steps: Mapping[Channel, ChannelStep]) -> dict[Channel, Status]:
        """The status of every channel in this step; bad streaks grow or end."""
        statuses: dict[Channel, Status] = {}
        for name in CHANNELS:
            channel_step = steps[name]
            statuses[name] = channel_status(
                weight=self.weights[name],
                inputs=channel_step.inputs,
                tokens=channel_step.tokens,
                grad_norm=channel_step.grad_norm,
                was_active=self.was_active[name],
            )
            self.was_active[name] |= statuses[name] == "active"
            self.bad_steps[name] = self.bad_steps[name] + 1 if statuses[name] in _REASONS else 0
        hint_metrics = steps["hint"].metrics
        clipped = max(hint_metrics.get("clipped", 0.0), hint_metrics.get("bounded", 0.0))
        self.clipped_steps = self.clipped_steps + 1 if clipped > self.max_clipped else 0
        return statuses

    def warnings(self, statuses: Mapping[Channel, Status]) -> list[dict[str, Any]]:
        """One warning for each channel whose bad streak began in this step."""
        bad: list[Channel] = [name for name in CHANNELS if self.bad_steps[name] == 1]
        warnings = [
            {
                "channel": name,
                "status": statuses[name],
                "reason": _REASONS[statuses[name]],
                "fix": _FIXES[name],
            }
            for name in bad
        ]
        if self.clipped_steps == 1:
            warnings.append({"channel": "hint", "status": "clipped", **_CLIPPED})
        return warnings

    def check(self, statuses: Mapping[Channel, Status], *, step: int) -> None:
        """Raise StoppedError (exit code 3) for a channel that was starved, dead or all clipped for
        `max_bad_steps` steps in a row."""
        if self.clipped_steps >= self.max_bad_steps:
            problem = (
                f"channel hint at step {step}, {self.clipped_steps} steps in a row:"
                f" {_CLIPPED['reason']}"
            )
            raise StoppedError(problem, where="clipped", fix=_CLIPPED["fix"])
        for name in CHANNELS:
            if self.bad_steps[name] >= self.max_bad_steps:
                status = statuses[name]
                raise StoppedError(
                    f"channel {name} was {status} at step {step}, {self.bad_steps[name]} steps in a"
                    f" row: {_REASONS[status]}",
                    where=status,
                    fix=_FIXES[name],
                )

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {
            "was_active": dict(self.was_active),
            "bad_steps": dict(self.bad_steps),
            "clipped_steps": self.clipped_steps,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """From the checkpoint."""
        self.was_active.update(state["was_active"])
        self.bad_steps.update(state["bad_steps"])
        # older checkpoints were written before clipped steps were counted
        self.clipped_steps = state.get("clipped_steps", 0)


UNRESOLVABLE_STEPS = 2
"""The number of steps in a row that break a rule: healthy runs reached 0.21 in one step and
recovered in the next."""
MONITOR_ERRORS = 2.0
"""The number of standard errors by which success must fall: a smaller loss may be chance."""
_HALF = 0.5
_SPREAD = "rollouts/advantage_spread"
_BANDS: dict[str, tuple[float, float]] = {
    "rollouts/valid_calls": (0.8, 9.9),
    "rollouts/changing_calls": (0.5, 3.0),
    "rollouts/entropy": (0.5, 2.0),
    "rollouts/message_tokens": (0.5, 2.0),
}
"""The lowest and the highest multiple of the first step's value that needs no warning; entropy
rises before a collapse and falls during it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A rule that was broken, e.g. rule "kl", value 0.41, limit 0.3, reason "KL to the start is
    0.41 nats per token"."""

    rule: str
    value: float
    limit: float
    reason: str

    def error(self, *, step: int, restored: int) -> StoppedError:
        """The end of the run, after the checkpoint of step `restored` was put back (exit code
        3)."""
        return StoppedError(
            f"health rule {self.rule!r} after {step} steps: {self.reason}, the limit is"
            f" {self.limit:g}; the weights after {restored} steps were put back",
            where=self.rule,
            fix=(
                "lower train.learning_rate, use a frozen teacher (train.hint.teacher), or look at"
                " samples/ before raising train.health"
            ),
        )


@dataclass(slots=True, kw_only=True)
class PolicyHealth:
    """The rules on a live policy; `state` and `restore` carry its measurements over a resume.

    >>> health = PolicyHealth(settings=HealthSettings(max_kl=0.3))
    >>> health.observe_kl(0.41)
    >>> health.find_breach().rule, health.is_good
    ('kl', False)
    """

    settings: HealthSettings
    bad_steps: int = 0
    unresolvable: float = 0.0
    lost_steps: int = 0
    lost: float = 0.0
    flat_steps: int = 0
    drift: float = 0.0
    best_success: tuple[float, ...] = ()
    success: tuple[float, ...] = ()
    first_values: dict[str, float] = field(default_factory=dict)
    outside: set[str] = field(default_factory=set)

    def observe_rollouts(self, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
        """Add the metrics of one step's rollouts; returns a warning for each metric that has just
        left its band around the first step's value."""
        self.unresolvable = metrics.get("rollouts/unresolvable", 0.0)
        limit = self.settings.max_unresolvable
        self.bad_steps = self.bad_steps + 1 if self.unresolvable >= limit < 1.0 else 0
        self.lost = metrics.get("rollouts/lost", 0.0)
        self.lost_steps = self.lost_steps + 1 if self.lost > self.settings.max_lost else 0
        self.flat_steps = self.flat_steps + 1 if metrics.get(_SPREAD) == 0 else 0
        warnings: list[dict[str, Any]] = []
        if self.flat_steps == 1:
            warnings.append(
                {"measure": _SPREAD, "value": 0.0, "start": self.first_values.get(_SPREAD, 0.0)}
            )
        self.first_values.setdefault(_SPREAD, metrics.get(_SPREAD, 0.0))
        for name, (low, high) in _BANDS.items():
            if name not in metrics:
                continue
            first = self.first_values.setdefault(name, metrics[name])
            inside = low * first <= metrics[name] <= high * first
            if not inside and name not in self.outside:
                warnings.append({"measure": name, "value": metrics[name], "start": first})
            (self.outside.discard if inside else self.outside.add)(name)
        return warnings

    def observe_kl(self, value: float) -> None:
        """Add the mean KL(student || start)."""
        self.drift = value

    def observe_monitor(self, success: tuple[float, ...]) -> None:
        """Add the success on each monitor task; later ones are compared with the best so far."""
        better = not self.best_success or fmean(success) > fmean(self.best_success)
        self.best_success, self.success = success if better else self.best_success, success

    def find_breach(self) -> Breach | None:
        """The first rule that the newest measurements break, or None."""
        limits = self.settings
        if self.drift > limits.max_kl:
            reason = (
                f"the mean KL(student, start) on the rollouts is {self.drift:.3g} nats per token"
            )
            return Breach(rule="kl", value=self.drift, limit=limits.max_kl, reason=reason)
        if self.bad_steps >= UNRESOLVABLE_STEPS:
            reason = (
                f"{self.unresolvable:.0%} of the calls could not be resolved, {self.bad_steps}"
                " steps in a row"
            )
            return Breach(
                rule="unresolvable",
                value=self.unresolvable,
                limit=limits.max_unresolvable,
                reason=reason,
            )
        if self.lost_steps >= UNRESOLVABLE_STEPS:
            reason = (
                f"the environment failed or hung in {self.lost:.0%} of the rollouts,"
                f" {self.lost_steps} steps in a row"
            )
            return Breach(rule="environment", value=self.lost, limit=limits.max_lost, reason=reason)
        if self._success_fell(limits.max_monitor_loss, errors=MONITOR_ERRORS):
            reason = (
                f"success on {len(self.success)} monitor tasks fell from"
                f" {fmean(self.best_success):.3f} to {fmean(self.success):.3f}"
            )
            return Breach(
                rule="monitor",
                value=self._lost_share(),
                limit=limits.max_monitor_loss,
                reason=reason,
            )
        return None

    @property
    def is_good(self) -> bool:
        """Whether no rule is past half of its limit, so that a stopped run may go back to these
        weights."""
        limits = self.settings
        drift_and_calls_are_good = (
            self.drift <= _HALF * limits.max_kl
            and self.unresolvable < _HALF * limits.max_unresolvable
        )
        return drift_and_calls_are_good and not self._success_fell(
            _HALF * limits.max_monitor_loss, errors=_HALF * MONITOR_ERRORS
        )

    def _lost_share(self) -> float:
        """The share of the best success so far that was lost on the monitor tasks."""
        best = fmean(self.best_success) if self.best_success else 0.0
        return (best - fmean(self.success)) / best if best > 0 else 0.0

    def _success_fell(self, share: float, *, errors: float) -> bool:
        """Whether success fell by more than this share and by more than `errors` standard errors
        of the paired differences."""
        if self._lost_share() <= share:
            return False
        losses = [a - b for a, b in zip(self.best_success, self.success, strict=True)]
        standard_error = stdev(losses) / len(losses) ** 0.5 if len(losses) > 1 else 0.0
        return fmean(losses) > errors * standard_error

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {
            "bad_steps": self.bad_steps,
            "unresolvable": self.unresolvable,
            "lost_steps": self.lost_steps,
            "lost": self.lost,
            "flat_steps": self.flat_steps,
            "drift": self.drift,
            "best_success": list(self.best_success),
            "success": list(self.success),
            "start": self.first_values,
            "outside": sorted(self.outside),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """From the checkpoint."""
        self.bad_steps, self.unresolvable, self.drift = (
            state["bad_steps"],
            state["unresolvable"],
            state["drift"],
        )
        self.lost_steps, self.lost, self.flat_steps = (
            state["lost_steps"],
            state["lost"],
            state["flat_steps"],
        )
        self.best_success, self.success = tuple(state["best_success"]), tuple(state["success"])
        self.first_values, self.outside = dict(state["start"]), set(state["outside"])
