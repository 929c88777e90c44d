"""Effects of a position as an audit could have measured them."""

from __future__ import annotations

from composer_replication.core.config.data_settings import HintPosition
from composer_replication.evaluation.hint_positions import PositionEffect
from composer_replication.evaluation.stats import Interval


def position_effect(
    position: HintPosition, difference: tuple[float, float | None], lift: float | None
) -> PositionEffect:
    """A position that disturbs by `difference` more than the chosen one, plus or minus so much."""
    mean, reach = difference
    low, high = (None, None) if reach is None else (mean - reach, mean + reach)
    interval = Interval(n=9, clusters=9, mean=mean, low=low, high=high)
    return PositionEffect(
        position=position,
        disturbance=interval,
        difference=interval,
        logp_change=0.0,
        over_neutral=lift,
        chosen_over_neutral=1.78,
    )
