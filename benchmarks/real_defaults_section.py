"""Which defaults follow from the evidence on real weights, for docs/evidence_real.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from real_hints_section import NEUTRAL
from real_logs_section import LOG_ODDS, TRAINED, over_seeds, seeds_of, what_of
from real_tables import interval

from composer_replication.core.config.base import stage_seed
from composer_replication.evaluation.stats import bootstrap_mean

Json = Mapping[str, Any]


def defaults_section(hints: Json, logs: Sequence[Json]) -> str:
    """What the defaults are, and the numbers that do or do not speak for another."""
    parts = [
        "## Which defaults follow\n\n"
        "- **Wording**: `recompose hints` writes what lifts most on *train*: the right action, and"
        " never the mistaken operand.\n"
        "- **Position** (`hints.position`, default `system`). `user` over `system`, each over"
        f" neutral text in its own place: {'; '.join(_positions(hints))}. No model is shown to need"
        " another place in both groups, so the default stays. `recompose hints --audit` measures"
        " the places for the model at hand and names the setting where another one disturbs less;"
        ' with `hints.position = "auto"` it takes that one and judges the hints there. It chooses'
        " by disturbance, not by lift, and no training with it was measured: a position may help"
        " overall and harm a kind, as `user` does `user_rejected` above. (Gemma has"
        " no system role: both places give nearly the same text.)\n"
    ]
    rows = [
        f"`{d['a']}`{'' if value['about'].get('commit') else ' of an earlier run'} {interval(d)}"
        for arm in TRAINED
        for value in map(over_seeds, logs)
        for d in value["differences"]
        if what_of(d) == LOG_ODDS and "placebo" in d["b"] and d["a"].partition("-")[0] == arm
        if d["a"] == arm or all(of["a"] != arm for of in value["differences"])
    ]
    parts.append(
        "- **`train.hint.focus` and `contrast`** (off by default). On the toy, `hint_focus` does"
        " what `hint` does and `hint_contrast` less ([evidence.md](evidence.md)). Here, over the"
        f" placebo of each: {'; '.join(rows)}. {_not_trained(logs)}"
        " The default would follow an arm that beats its placebo over three seeds and does more"
        " than `hint` does.\n"
        if rows
        else "- **`train.hint.focus` and `contrast`** (off by default): not trained here.\n"
    )
    return "".join(parts)


def _not_trained(logs: Sequence[Json]) -> str:
    """The arms without a seed in any file; "" if there is none."""
    left = [f"`{arm}`" for arm in TRAINED if not any(seeds_of(value, arm) for value in logs)]
    return f"Not trained on a real model: {', '.join(left)}." if left else ""


def _positions(hints: Json) -> list[str]:
    """The user position over the system position, by model and group."""
    lines = []
    for name, model in hints["models"].items():
        for group in ("held_out", "train"):
            lifts = {
                site["site"]: (_lift(site, "user") - _lift(site, "system"), site["session"])
                for site in model["sites"]
                if site["group"] == group
                and all(f"{text}/user" in site["log_odds"] for text in ("now", NEUTRAL))
            }
            if not lifts:
                continue
            values, sessions = zip(*lifts.values(), strict=True)
            found = bootstrap_mean(values, sessions, seed=stage_seed(0, f"{name}:{group}"))
            row = {"mean": found.mean, "low": found.low, "high": found.high}
            lines.append(f"{name}, {group.replace('_', ' ')} {interval(row)}")
    return lines


def _lift(site: Json, position: str) -> float:
    odds = site["log_odds"]
    return odds[f"now/{position}"] - odds[f"{NEUTRAL}/{position}"]
