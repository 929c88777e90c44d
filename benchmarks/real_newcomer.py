"""The paragraph of docs/evidence_real.md for somebody who is new here: what a real model of this
size did and did not learn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from real_hints_section import NEUTRAL, NOW, rows_of
from real_logs_section import LOG_ODDS, over_seeds, what_of
from real_tables import in_words, interval
from real_workshop_section import MORE_SFT

Json = Mapping[str, Any]
_OTHER_MISTAKES = "other_mistakes_per_episode"


def newcomer(
    hints: Json | None,
    messages: Json | None,
    logs: Sequence[Json],
    workshop: Json | None,
    first_look: Json | None = None,
) -> str:
    """The paragraph; a measurement that is not there has no sentence."""
    sentences = [
        *_reads(hints),
        *_writes(messages),
        *(s for value in logs[:1] for s in _keeps(over_seeds(value))),
        *_other_arms([over_seeds(value) for value in logs]),
        *(_solves(workshop) if workshop else ()),
        *(_first_look(first_look) if first_look else ()),
    ]
    return "**For a newcomer:** " + " ".join(
        [*sentences, "That a real model became a better coding agent is not shown anywhere here."]
    )


def _reads(hints: Json | None) -> list[str]:
    place = ("held_out", "all", f"{NOW} - {NEUTRAL}")
    factors = [
        f"{math.exp(rows_of(model)[place]['mean']):.1f} for {name}"
        for name, model in (hints or {"models": {}})["models"].items()
    ]
    if not factors:
        return []
    return [
        "Models of this size do read a hint: with it, the odds of the right decision against the"
        " logged mistake are higher than with an empty phrase in its place, by a factor of"
        f" {' and '.join(factors)}."
    ]


def _writes(messages: Json | None) -> list[str]:
    return [
        f"Even so, they seldom do the right thing: {name} would write the right token at"
        f" {row['shares']['now']:.0%} of the mistakes with the hint, and at"
        f" {row['shares']['none']:.0%} without."
        for name, model in (messages or {"models": {}})["models"].items()
        for row in model["rows"]
        if (row["what"], row["value"]) == ("decides", "right")
    ]


_KEEPS = ("something of it stays", "it gets worse", "nothing of it is shown to stay")


def _keeps(value: Json) -> list[str]:
    """What is left of the hint after training, for the arm that trains the decision alone."""
    rows = [
        d
        for d in value["differences"]
        if what_of(d) == LOG_ODDS and d["a"].startswith("focus") and "placebo" in d["b"]
    ]
    if not rows:
        return []
    means = [d for d in rows if "-" not in d["a"]] or rows
    return [
        f"Trained for {value['about']['steps']} steps on the decisions of other repositories and"
        f" then left without a hint, {in_words(d, _KEEPS)}: a factor of {_factor(d)} over a student"
        " that was trained with the wrong hints."
        for d in means[:1]
    ]


def _factor(difference: Json) -> str:
    """A difference in log-odds as a factor of the odds, with its interval."""
    mean, low, high = (math.exp(difference[end]) for end in ("mean", "low", "high"))
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def _other_arms(values: Sequence[Json]) -> list[str]:
    """The same factor of the arms that train whole messages, where it is a mean over seeds."""
    named = {"hint": "on whole messages", "contrast": "less what another site's hint does"}
    found = [
        f"{_factor(d)} {named[d['a']]}"
        for value in values
        for d in value["differences"]
        if what_of(d) == LOG_ODDS and d["a"] in named and "placebo" in d["b"]
    ]
    return [f"That factor is {' and '.join(found)}."] if found else []


_BETTER = (
    "SmolLM2 got better",
    "SmolLM2 got worse",
    "SmolLM2 is not shown to have got better or worse",
)


def _solves(value: Json) -> list[str]:
    """Success and other mistakes of the workshop's students."""
    solved = {row["name"]: f"{row['success']:.0%}" for row in value["rows"]}
    pairs = {(d["a"], d["b"], d.get("metric", "")): d for d in value["paired"]}
    d, other = pairs["after", "placebo", ""], _OTHER_MISTAKES
    since = {a: pairs[a, "before", other] for a in ("after", "placebo")}
    plain = (
        f", {solved[MORE_SFT]} after plain fine-tuning on its own logs"
        if MORE_SFT in solved
        else ""
    )
    sentences = [
        f"In the workshop, small tasks made for this, {in_words(d, _BETTER)} with all three"
        f" channels: it solves {solved['before']} before, {solved['after']} after{plain}, and"
        f" {solved['placebo']} with its placebo. The interval of the difference to the placebo,"
        f" {d['low']:+.2f} to {d['high']:+.2f}, is all that"
        f" {len(value['about']['seeds_done'])} training seeds can say: a smaller effect would not"
        " be seen."
    ]
    if all(s["high"] < 0 for s in since.values()):
        sentences.append(
            "The student and its placebo both make fewer of the mistakes that nobody planted"
            f" ({since['after']['difference']:+.2f} an episode, the placebo"
            f" {since['placebo']['difference']:+.2f}): the real hints, pairs and rewards are not"
            " what did it."
        )
    return sentences


def _first_look(value: Json) -> list[str]:
    """Success of the other model's students, if they are of one seed."""
    seeds = value["about"]["seeds_done"]
    if len(seeds) != 1:
        return []
    named = {
        "before": "before",
        MORE_SFT: "after plain fine-tuning",
        "after": "with all three channels",
        "placebo": "with the placebo",
    }
    rows = {row["name"]: row["success"] for row in value["rows"]}
    solved = ", ".join(f"{rows[name]:.0%} {words}" for name, words in named.items() if name in rows)
    return [
        f"Gemma 3 was trained there with one seed only, a first look: it solves {solved}."
        f"{_planted(value)} Another seed may turn all that."
    ]


def _planted(value: Json) -> str:
    """Whether the mistakes that the workshop plants got more or fewer with all three channels."""
    pairs = {(d["a"], d["b"], d.get("metric", "")): d for d in value["paired"]}
    found = pairs.get(("after", "before", "targeted_mistakes_per_episode"))
    if found is None:
        return ""
    row = {**found, "mean": found["difference"]}
    words = in_words(row, ("more", "fewer", "not shown to be more or fewer"))
    return (
        f" The planted mistakes are {words} with all three channels than before:"
        f" {interval(row)} an episode."
    )
