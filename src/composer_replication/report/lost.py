"""What a live run lost on its way: rollouts and calls that hostile environments, servers and
policies cost, from metrics.jsonl alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EPISODES = "rollouts/episodes"
COUNTS: Mapping[str, tuple[str, str]] = {
    "lost/env_error": ("the environment failed or gave no answer", "reward 0, scored"),
    "lost/env_timeout": ("the environment hung", "reward 0, scored"),
    "lost/no_message": ("the server gave no message", "left out of the training"),
    "rollouts/stale": ("the weights that wrote it were too old", "left out of the training"),
    "rollouts/refused_calls": ("calls beyond the bound of one message", "answered with an error"),
}
SHARES: Mapping[str, tuple[str, str]] = {
    "rollouts/cut_off": ("the last message had no end", "reward 0, scored"),
    "rollouts/out_of_room": ("no room for the next message", "scored as it is"),
}
"""Measures of a step that are shares of its rollouts."""


def lost_rows(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each way in which something was lost; nothing for a run without live rollouts or
    without losses.

    >>> row = lost_rows([{"rollouts/episodes": 8.0, "lost/env_error": 2, "rollouts/cut_off": 0.25}])[0]
    >>> row["name"], row["what"], row["count"], row["of"], row["cost"]
    ('lost/env_error', 'the environment failed or gave no answer', 2, 8, 'reward 0, scored')
    """
    live_steps = [step_metrics for step_metrics in metrics if step_metrics.get(EPISODES)]
    episodes = round(sum(step_metrics[EPISODES] for step_metrics in live_steps))
    counts = {
        name: sum(step_metrics.get(name) or 0 for step_metrics in live_steps) for name in COUNTS
    }
    shares = {
        name: sum(
            (step_metrics.get(name) or 0) * step_metrics[EPISODES] for step_metrics in live_steps
        )
        for name in SHARES
    }
    texts = {**COUNTS, **SHARES}
    return [
        {
            "name": name,
            "what": texts[name][0],
            "count": round(count),
            "of": episodes,
            "cost": texts[name][1],
        }
        for name, count in {**counts, **shares}.items()
        if round(count)
    ]
