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
    played = [line for line in metrics if line.get(EPISODES)]
    episodes = round(sum(line[EPISODES] for line in played))
    counts = {name: sum(line.get(name) or 0 for line in played) for name in COUNTS}
    shares = {
        name: sum((line.get(name) or 0) * line[EPISODES] for line in played) for name in SHARES
    }
    words = {**COUNTS, **SHARES}
    return [
        {
            "name": name,
            "what": words[name][0],
            "count": round(count),
            "of": episodes,
            "cost": words[name][1],
        }
        for name, count in {**counts, **shares}.items()
        if round(count)
    ]
