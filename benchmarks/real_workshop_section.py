"""Students that were trained in the workshop, for docs/evidence_real.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from real_tables import in_words, interval, table

Json = Mapping[str, Any]
MORE_SFT = "more_sft"
SMOLLM2, GEMMA = "SmolLM2", "Gemma 3"
_SOLVES = ("solves more than", "solves fewer than", "is not shown to solve more or fewer than")
_TRAINED = {"after": "with all three channels", MORE_SFT: "by plain fine-tuning on its own logs"}
_AGAINST = {"before": "itself before that", "placebo": "its placebo", MORE_SFT: f"`{MORE_SFT}`"}
_SAID = (("after", "placebo"), (MORE_SFT, "before"), ("after", MORE_SFT))
"""The comparisons of the summary."""


def workshop_in_words(model: str, value: Json) -> list[str]:
    """What a warmed-up model learned in the workshop."""
    pairs = {(d["a"], d["b"]): d for d in _successes(value)}
    look = "A first look: trained" if len(value["about"]["seeds_done"]) == 1 else "Trained"
    return [
        f"{look} in the workshop {_TRAINED[a]}, {model} {in_words(d, _SOLVES)} {_AGAINST[b]}:"
        f" {interval(d)} of the tasks ({d['n']} tasks, {_number_of_seeds(value)})."
        f"{_since_the_start(pairs) if b == 'placebo' else ''}"
        for (a, b), d in pairs.items()
        if (a, b) in _SAID
    ]


def _since_the_start(pairs: Mapping[tuple[str, str], Json]) -> str:
    """A difference between two students does not say which of them moved."""
    since = [pairs.get((a, "before")) for a in ("after", "placebo")]
    ours, theirs = ("" if d is None else interval(d) for d in since)
    return f" Since the start it moved by {ours}, and the placebo by {theirs}." if ours else ""


def cost_of_gemma(gemma: Json | None, workshop: Json | None) -> str:
    """What its warm-up would take, by the steps that were measured."""
    if gemma is None or workshop is None:
        return ""
    steps = workshop["about"]["warmup"]["plan"]["steps"]
    # the first step allocates; the mean of the others is what a long run pays
    later = gemma["step_cpu_s"][1:]
    minutes = sum(later) / len(later) / 60
    return (
        f" (a step of its warm-up took {minutes:.1f} CPU-minutes, so the {steps} steps that SmolLM2"
        f" had would take {minutes * steps / 60:.1f} CPU-hours before an arm is trained)"
    )


def seeds_in_words(seeds: Sequence[object]) -> str:
    """The seeds by number.

    >>> seeds_in_words([11]), seeds_in_words([11, 12])
    ('seed 11', 'the seeds 11, 12')
    """
    names = ", ".join(map(str, seeds))
    return f"seed {names}" if len(seeds) == 1 else f"the seeds {names}"


def _number_of_seeds(value: Json) -> str:
    seeds = len(value["about"]["seeds_done"])
    return f"{seeds} training seed{'' if seeds == 1 else 's'}"


def workshop_section(workshops: Mapping[str, Json], step_of_gemma: Json | None) -> str:
    """How the students were trained, and the tables of every model."""
    parts = [
        "## The workshop, all three channels\n\n"
        "The students are warmed up by plain fine-tuning on scripted sessions"
        " (`benchmarks/real_warmup.py`): following hints is not taught. All arms of a model start"
        " from its warmed-up student (`before`) and train LoRA of rank 16 in bfloat16. `after` has"
        " all three channels, `placebo` the same steps with their signals nulled, and `more_sft`"
        " plain cross-entropy on the messages of the student's own logs, for twice the steps.\n"
    ]
    parts += [_model_section(name, value) for name, value in workshops.items()]
    if GEMMA not in workshops:
        cost = cost_of_gemma(step_of_gemma, workshops.get(SMOLLM2))
        parts.append(f"{GEMMA} was not trained here{cost}.\n")
    return "\n".join(parts)


def _model_section(name: str, value: Json) -> str:
    about = value["about"]
    added = about.get("added", {})
    joined_later = "".join(
        f" `{arm}` was added with the code of commit {later['commit']}, from the same students."
        f" Their weights at the start, and the episodes that the start plays with"
        f" {seeds_in_words(later['start_played_again'])}, were equal."
        for arm, later in added.items()
    )
    one_seed = (
        " With one seed the intervals cover other tasks, not other training runs: another seed may"
        " turn the sign, so this is a first look, not a result."
        if len(about["seeds_done"]) == 1
        else ""
    )
    return (
        f"### {name}\n\n"
        f"{_seeds_and_steps(value)}{_warmup(about)}\n\n"
        f"Trained with the code of commit {about['commit']}. {_cut_short(value)}A step took"
        f" {_minutes_of_a_step(value)} minutes on one busy core.{one_seed}"
        f"{_FIRST_LOOK.get(name, '')}{joined_later}\n\n"
        f"{_tables(value)}"
    )


_FIRST_LOOK = {
    SMOLLM2: " A first look at seed 11 alone, with another warm-up (commit 98d9162), gave +0.08"
    " [+0.01, +0.16] over the placebo. This page warned then that another seed may turn it."
}


def _warmup(about: Json) -> str:
    """The warm-up, and on which other processors it came out equal."""
    warmup = about["warmup"]
    steps = warmup["plan"]["steps"]
    said = (
        f" The warm-up: {steps} steps, {warmup['cpu_s'] / 60:.0f} CPU-minutes, its loss from"
        f" {warmup['losses'][0]:.2f} to {sum(warmup['losses'][-10:]) / 10:.2f}."
    )
    if again := about.get("reproduced"):
        said += (
            f" A processor with {again['instructions']} makes the same weights, bit for bit, in"
            f" {again['cpu_s'] / 60:.0f} CPU-minutes."
        )
    if other := about.get("other_processor"):
        said += (
            f" One with {other['instructions']} took {other['step_cpu_s']} CPU seconds for the"
            f" first step, and its loss was {other['loss']} instead of {warmup['losses'][0]:.4f}."
        )
    return said


def _seeds_and_steps(value: Json) -> str:
    about = value["about"]
    trained = "; ".join(
        f"`{name}` "
        + ", ".join(str(run["kept"]) for run in by_seed.values())
        + f" of {about['steps_planned'][name]} steps"
        for name, by_seed in value["runs"].items()
    )
    return (
        f"Seeds done: {', '.join(map(str, about['seeds_done']))} of"
        f" {', '.join(map(str, about['seeds_planned']))}; {about['tasks']} fresh tasks each."
        f" Trained so far: {trained}."
    )


def _minutes_of_a_step(value: Json) -> str:
    """E.g. "2.0 (`after`), 2.0 (`placebo`)": the mean over the seeds of each arm."""
    seconds = {arm: [run["step_s"] for run in by.values()] for arm, by in value["runs"].items()}
    return ", ".join(f"{sum(of) / len(of) / 60:.1f} (`{arm}`)" for arm, of in seconds.items())


def _cut_short(value: Json) -> str:
    planned = value["about"]["steps_planned"]
    is_complete = all(
        run["kept"] == planned[name]
        for name, by_seed in value["runs"].items()
        for run in by_seed.values()
    )
    if is_complete:
        return ""
    return "Training was cut short for lack of time, before anything was played. "


def _tables(value: Json) -> str:
    """The success of every arm, and the paired differences."""
    most = max(len(row["by_seed"]) for row in value["rows"])
    rows = [
        (
            f"`{row['name']}`",
            str(row["n"]),
            f"{row['success']:.3f} [{row['success_low']:.3f}, {row['success_high']:.3f}]",
            " / ".join(
                f"{share:.2f}" if len(row["by_seed"]) == most else f"{seed}: {share:.2f}"
                for seed, share in row["by_seed"].items()
            ),
        )
        for row in value["rows"]
    ]
    differences = [
        (f"`{d['a']}`", f"`{d['b']}`", str(d["n"]), interval(d)) for d in _successes(value)
    ]
    return (
        table(("row", "episodes", "success", "by seed"), rows)
        + "\n"
        + table(("student", "against", "episodes", "difference in success"), differences)
    )


def _successes(value: Json) -> list[Json]:
    """The paired differences in success; an entry with a metric is of something else."""
    return [{**d, "mean": d["difference"]} for d in value["paired"] if "metric" not in d]
