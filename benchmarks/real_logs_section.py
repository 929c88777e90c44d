"""Students that were trained on public sessions, for docs/evidence_real.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from real_tables import in_words, interval, table

from composer_replication.evaluation.stats import mean_over_groups

Json = Mapping[str, Any]
LOG_ODDS = "log_odds"
TRAINED = {
    "hint": "with hints",
    "focus": "with hints, on the decision's tokens only",
    "contrast": "with hints, less what another site's hint does",
    "user": "with hints as user messages",
}
_DECIDES = ("decides better than", "decides worse than", "is not shown to decide differently from")
_REPEATS = ("repeats more than", "repeats fewer than", "is not shown to repeat more or fewer than")
HEADS = {
    LOG_ODDS: "log-odds of right against wrong",
    "right": "writes the right token",
    "wrong": "repeats the wrong token",
}


def seeds_of(value: Json, arm: str = "") -> list[str]:
    """The training seeds of a file, or of an arm of it.

    >>> rows = {"differences": [{"a": "hint-12"}, {"a": "focus-11"}, {"a": "hint"}]}
    >>> seeds_of(rows), seeds_of(rows, "hint")
    (['11', '12'], ['12'])
    """
    names = {d["a"].partition("-")[::2] for d in value["differences"]}
    return sorted({seed for of, seed in names if seed and arm in ("", of)})


def over_seeds(value: Json) -> Json:
    """The file with wider intervals of the means over seeds, where the seeds differ by more than
    the sessions.

    >>> rows = [{"a": a, "b": "b", "mean": m, "low": m, "high": m}
    ...         for a, m in (("h-11", 0.0), ("h-12", 1.0), ("h", 0.5))]
    >>> rows[0]["b"], rows[1]["b"] = "b-11", "b-12"
    >>> widest = over_seeds({"differences": rows})["differences"][-1]
    >>> round(widest["low"], 2), round(widest["high"], 2)
    (-5.85, 6.85)
    """
    rows = []
    for d in value["differences"]:
        means = _means_by_seed(value, d)
        if len(means) > 1:
            seeds = mean_over_groups([*means.values()])
            ends = [end for end in (d["low"], d["high"], seeds.low, seeds.high) if end is not None]
            d = {**d, "low": min(ends), "high": max(ends)}
        rows.append(d)
    return {**value, "differences": rows}


def logs_section(values: Sequence[Json]) -> str:
    """How it was measured, and a table for each file."""
    writes = (
        "- **Writes the right token, repeats the wrong token** (recurrence): whether the most"
        " probable token there leads on to something right, or is the log's. No whole message is"
        " sampled. The differences are of shares.\n"
        if any("shares" in value for value in values)
        else "- Which token the student writes there (recurrence) was not measured.\n"
    )
    tables = [_measured(over_seeds(value)) for value in values]
    return (
        "## Training on public sessions, measured on other repositories\n\n"
        "SmolLM2 with a LoRA of rank 16 is trained on the repositories of *train*. The table shows"
        " what the merged student would do at the held-out sites, without any hint. `focus` trains"
        " the hint channel on the decision's tokens only, `contrast` on what another site's hint"
        " does not change as well, `user` as `hint` does with the hint in a user message; a placebo"
        " has the hints of other sites."
        " The number after a name is the training seed: its intervals cover other sessions, but"
        " not other training runs. A name without one is the mean over the seeds, site by site,"
        " with the wider of two intervals: over sessions, and Student's t over the seeds. The code"
        " that finds mistakes and writes hints changed between the tables, so they differ in a few"
        " sites: compare students within a table.\n\n"
        "- **Log-odds** of right against wrong at the decision, as above. What any training on"
        " these sessions does is in the placebo's difference from `before`; only the difference"
        " from the placebo is the hints'.\n" + writes + "\n" + "\n".join(tables)
    )


def _measured(value: Json) -> str:
    about = value["about"]
    what = [key for key in HEADS if any(what_of(d) == key for d in value["differences"])]
    pairs = {(d["a"], d["b"]): d for d in value["differences"]}
    cells = {(what_of(d), d["a"], d["b"]): interval(d) for d in value["differences"]}
    head = ("student", "against", "sites", "sessions", *(HEADS[key] for key in what))
    lines = [
        (a, b, str(d["n"]), str(d["sessions"]), *(cells[key, a, b] for key in what))
        for (a, b), d in pairs.items()
    ]
    dtype, steps = about.get("dtype", "bfloat16"), about["steps"]
    arms = " and ".join(f"`{arm}`" for arm in TRAINED if seeds_of(value, arm))
    return (
        f"### {arms} in {dtype}: seed{'s' if len(seeds_of(value)) > 1 else ''}"
        f" {', '.join(seeds_of(value))}{_earlier(about)}\n\n"
        f"{steps} steps of 4 windows of {about['max_tokens']} tokens (hint 1, lm_ce .3), scored in"
        f" windows of {about['scored_tokens']} tokens{_commit(about)}."
        f"{_shares(value)}{_merges(value)}\n\n"
        f"{table(head, lines)}"
    )


def _commit(about: Json) -> str:
    return f", with the code of commit {about['commit']}" if about.get("commit") else ""


def _earlier(about: Json) -> str:
    """Files of before 2026-11-29 name no commit."""
    return "" if about.get("commit") else ", an earlier run"


def _merges(value: Json) -> str:
    """How much of what was scored is the rounding of the merge."""
    merges = (value.get("merges") or {}).values()
    if not merges:
        return ""
    moved, learnt = ([m[key] for m in merges] for key in ("mean_kl", "adapter_kl"))
    return (
        f" The merge in {value['about'].get('dtype', 'bfloat16')} moved the students by"
        f" {min(moved):.1g} - {max(moved):.1g} nats per token (KL), their adapters by"
        f" {min(learnt):.1g} - {max(learnt):.1g}."
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
    """What the training changed against the placebo, by the newest files: the mean over the seeds
    where there is one, else every seed."""
    sentences = []
    newest = [v for v in values if not _earlier(v["about"])] or values[:1]
    for value in map(over_seeds, newest):
        against = [d for d in value["differences"] if "placebo" in d["b"]]
        means = [d for d in against if "-" not in d["a"]]
        for d in means or against:
            arm, _, seed = d["a"].partition("-")
            seeds = [seed] if seed else [*_means_by_seed(value, d)]
            of = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
            trained = (
                f"Trained for {value['about']['steps']} steps on other repositories in"
                f" {value['about'].get('dtype', 'bfloat16')}, {TRAINED[arm]} ({of}), SmolLM2"
            )
            if what_of(d) == LOG_ODDS:
                sentences.append(
                    f"{trained} {in_words(d, _DECIDES)} its placebo; both are scored without a"
                    f" hint: {interval(d)}{_by_seed(value, d)}.{_of_any_training(value, d)}"
                )
            elif what_of(d) == "wrong":
                sentences.append(
                    f"{trained} {in_words(d, _REPEATS)} its placebo of the wrong tokens of held-out"
                    f" mistakes: {interval(d)} as a share ({d['n']} sites)."
                )
    return sentences


def _by_seed(value: Json, of: Json) -> str:
    """The difference of every seed behind a mean over them."""
    means = _means_by_seed(value, of)
    return (
        f" (by seed {', '.join(f'{mean:+.2f}' for mean in means.values())})"
        if len(means) > 1
        else ""
    )


def _means_by_seed(value: Json, of: Json) -> dict[str, float]:
    """The mean of each seed behind a mean over them; none behind a seed's own."""
    if "-" in of["a"]:
        return {}
    means = {
        d["a"].rpartition("-")[2]: d["mean"]
        for d in value["differences"]
        if what_of(d) == what_of(of)
        and d["a"].rpartition("-")[0] == of["a"]
        and of["b"] in (d["b"], d["b"].rpartition("-")[0])
    }
    return dict(sorted(means.items()))


def _of_any_training(value: Json, of: Json) -> str:
    """How much of the change since the start the placebo makes, too."""
    since = {
        d["a"]: d["mean"]
        for d in value["differences"]
        if what_of(d) == LOG_ODDS and d["b"] == "before"
    }
    if not {of["a"], of["b"]} <= since.keys():
        return ""
    return (
        f" Since the start it moved by {since[of['a']]:+.2f}, and the placebo by"
        f" {since[of['b']]:+.2f}."
    )


def what_of(difference: Json) -> str:
    """What a difference is of; files of before 2026-11-29 hold log-odds only."""
    return difference.get("what", LOG_ODDS)
