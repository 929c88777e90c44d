"""Students that were trained on public sessions, for docs/evidence_real.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from real_tables import in_words, interval, table

Json = Mapping[str, Any]
LOG_ODDS = "log_odds"
TRAINED = {"hint": "with hints", "focus": "with hints, on the decision's tokens only"}
_DECIDES = ("decides better than", "decides worse than", "is not shown to decide differently from")
_REPEATS = ("repeats more than", "repeats fewer than", "is not shown to repeat more or fewer than")
HEADS = {
    LOG_ODDS: "log-odds of right against wrong",
    "right": "writes the right token",
    "wrong": "repeats the wrong token",
}


def seeds_of(value: Json) -> list[str]:
    """The training seeds of a file.

    >>> seeds_of({"differences": [{"a": "hint-12"}, {"a": "hint-11"}, {"a": "hint"}]})
    ['11', '12']
    """
    return sorted({d["a"].rpartition("-")[2] for d in value["differences"] if "-" in d["a"]})


def logs_section(values: Sequence[Json]) -> str:
    """How it was measured, and a table for each file."""
    return (
        "## Training on public sessions, measured on other repositories\n\n"
        "SmolLM2 with a LoRA of rank 16 is trained on the repositories of *train*. The table shows"
        " what the merged student would do at the held-out sites, without any hint. `focus` trains"
        " the hint channel on the decision's tokens only; a placebo has the hints of other sites."
        " The number after a name is the training seed; a name without one is the mean over the"
        " seeds, site by site. The intervals cover other sessions, but not other training runs.\n\n"
        "- **Log-odds** of right against wrong at the decision, as above.\n"
        "- **Writes the right token, repeats the wrong token** (recurrence): whether the most"
        " probable token there leads on to something right, or is the log's. No whole message is"
        " sampled. The differences are of shares.\n\n" + "\n".join(map(_measured, values))
    )


def _measured(value: Json) -> str:
    about = value["about"]
    what = [key for key in HEADS if any(_what(d) == key for d in value["differences"])]
    pairs = {(d["a"], d["b"]): d for d in value["differences"]}
    cells = {(_what(d), d["a"], d["b"]): interval(d) for d in value["differences"]}
    head = ("student", "against", "sites", "sessions", *(HEADS[key] for key in what))
    lines = [
        (a, b, str(d["n"]), str(d["sessions"]), *(cells[key, a, b] for key in what))
        for (a, b), d in pairs.items()
    ]
    dtype, steps = about.get("dtype", "bfloat16"), about["steps"]
    return (
        f"### In {dtype}: seed{'s' if len(seeds_of(value)) > 1 else ''}"
        f" {', '.join(seeds_of(value))}\n\n"
        f"{steps} steps of 4 windows of {about['max_tokens']} tokens (hint 1, lm_ce .3), scored in"
        f" windows of {about['scored_tokens']} tokens.{_shares(value)}\n\n{table(head, lines)}"
    )


def _shares(value: Json) -> str:
    """How often every student writes the right and the wrong token."""
    shares = value.get("shares")
    if not shares:
        return ""
    names = ", ".join(
        f"{name} {shares['right'][name]:.2f} / {shares['wrong'][name]:.2f}"
        for name in shares["right"]
    )
    return f" Shares of sites at which the right / the wrong token is written: {names}."


def logs_in_words(values: Sequence[Json]) -> list[str]:
    """What the training changed against the placebo: the mean over the seeds where there is one,
    else every seed."""
    sentences = []
    for value in values:
        against = [d for d in value["differences"] if "placebo" in d["b"]]
        means = [d for d in against if "-" not in d["a"]]
        for d in means or against:
            arm, _, seed = d["a"].partition("-")
            seeds = seeds_of(value)
            of = f"seed {seed or seeds[0]}" if seed or len(seeds) == 1 else f"{len(seeds)} seeds"
            trained = (
                f"Trained for {value['about']['steps']} steps on other repositories in"
                f" {value['about'].get('dtype', 'bfloat16')}, {TRAINED[arm]} ({of}), SmolLM2"
            )
            if _what(d) == LOG_ODDS:
                sentences.append(
                    f"{trained} {in_words(d, _DECIDES)} its placebo; both are scored without a"
                    f" hint: {interval(d)}."
                )
            elif _what(d) == "wrong":
                sentences.append(
                    f"{trained} {in_words(d, _REPEATS)} its placebo of the wrong tokens of held-out"
                    f" mistakes: {interval(d)} as a share ({d['n']} sites)."
                )
    return sentences


def _what(difference: Json) -> str:
    """Files of before 2026-11-29 hold log-odds only."""
    return difference.get("what", LOG_ODDS)
