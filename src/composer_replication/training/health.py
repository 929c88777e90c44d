"""A channel is never silently zero: its status every step, a warning at once, a stop after too many bad steps in a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from composer_replication.core.errors import StoppedError
from composer_replication.losses.channel import CHANNELS, Channel, Status, channel_status

_REASONS = {
    "starved": "no loss token reached it",
    "dead": "it has loss tokens but no gradient",
}
_FIXES: dict[Channel, str] = {
    "policy": "rewards within every group are alike: look at them, raise rollouts.extra_groups, or set train.policy.weight = 0",
    "lm_ce": "look at an example's mask with `recompose show example`, or set train.lm_ce.weight = 0",
    "hint": "look at `recompose sites` and `recompose hints`: does any view reach training? Or set train.hint.weight = 0",
    "preference": "give pairs with build.pairs, or set train.preference.weight = 0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStep:
    """What one step measured of a channel; counts are global, the norm is at the final hidden states."""

    inputs: int
    tokens: int
    loss: float
    grad_norm: float
    told: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Health:
    """Statuses and their streaks; `state` and `restore` carry them over a resume.

    Example: health.observe(3, {"hint": ChannelStep(inputs=2, tokens=0, loss=0.0, grad_norm=0.0), ...})
    returns the statuses and the channels that turned bad in this step.
    """

    weights: Mapping[Channel, float]
    max_bad_steps: int
    was_active: dict[Channel, bool] = field(default_factory=lambda: dict.fromkeys(CHANNELS, False))
    bad_steps: dict[Channel, int] = field(default_factory=lambda: dict.fromkeys(CHANNELS, 0))

    def observe(self, steps: Mapping[Channel, ChannelStep]) -> dict[Channel, Status]:
        """The status of every channel in this step; bad streaks grow or end."""
        statuses: dict[Channel, Status] = {}
        for name in CHANNELS:
            seen = steps[name]
            statuses[name] = channel_status(
                weight=self.weights[name],
                inputs=seen.inputs,
                tokens=seen.tokens,
                grad_norm=seen.grad_norm,
                was_active=self.was_active[name],
            )
            self.was_active[name] |= statuses[name] == "active"
            self.bad_steps[name] = self.bad_steps[name] + 1 if statuses[name] in _REASONS else 0
        return statuses

    def warnings(self, statuses: Mapping[Channel, Status]) -> list[dict[str, Any]]:
        """One warning per channel whose bad streak has just begun."""
        bad: list[Channel] = [name for name in CHANNELS if self.bad_steps[name] == 1]
        return [{"channel": name, "status": statuses[name], "reason": _REASONS[statuses[name]], "fix": _FIXES[name]} for name in bad]

    def check(self, statuses: Mapping[Channel, Status], *, step: int) -> None:
        """Raise StoppedError (exit code 3) for a channel that was starved or dead for `max_bad_steps` steps in a row."""
        for name in CHANNELS:
            if self.bad_steps[name] >= self.max_bad_steps:
                status = statuses[name]
                raise StoppedError(
                    f"channel {name} was {status} at step {step}, {self.bad_steps[name]} steps in a row: {_REASONS[status]}",
                    where=status,
                    fix=_FIXES[name],
                )

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"was_active": dict(self.was_active), "bad_steps": dict(self.bad_steps)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """From the checkpoint."""
        self.was_active.update(state["was_active"])
        self.bad_steps.update(state["bad_steps"])
