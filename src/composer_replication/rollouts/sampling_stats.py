"""Time and token counts of sampling.

stats = SamplingStats()
sample_rollouts(model, envs, ..., stats=stats)
stats.seconds["model"], stats.num_sampled
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class SamplingStats:
    """Wall seconds by part, and counts; they add up over calls.

    The parts are "model", "choose", "environment", "render", and "total" over all; what "total"
    holds beyond the parts is the sampler's own Python. `num_fed` counts tokens that went through
    the model, `num_sampled` those that the student wrote, `num_cut` messages ended by force,
    `num_malformed` calls that could not be read, `num_refused` calls beyond the limit of one
    message, `num_ended` episodes that have been played, which grows while others go on, `num_lost`
    episodes whose environment failed or hung, `num_left_behind` abandoned
    threads.
    """

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    num_episodes: int = 0
    num_ended: int = 0
    num_turns: int = 0
    num_fed: int = 0
    num_sampled: int = 0
    num_cut: int = 0
    num_malformed: int = 0
    num_refused: int = 0
    num_lost: int = 0
    num_left_behind: int = 0

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Add the time of a block to one part."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - start
