"""The sections of docs/evidence.md: the opening, the tables of each level, and how to reproduce
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer_replication.cli.demo_settings import AFTER
from composer_replication.report.claims import OTHER, TARGETED, claims
from composer_replication.report.evaluation_section import verdict
from composer_replication.workshop.workshop_tasks import HINTS_ARE_TAUGHT, METADATA

from .arms import ARMS, MIN_SEEDS
from .pairs import TEACHERS
from .words import (
    cost_of,
    difference_text,
    num_pairs_text,
    pair_of,
    ratio_text,
    sign_of,
    stops_of,
    table,
)

PLACEBO, BEFORE = "placebo", "before"
PAIRS = ("hint_policy", "hint_preference", "policy_preference")
SINGLE = ("policy", "hint", "preference")
TITLES = {
    "1": "Level 1: three planted families of mistakes",
    "2": "Level 2, the counter-example: exploration finds the answers",
}
PENALTY = "Does a penalty on unresolvable calls reduce the other mistakes"
QUESTIONS: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (
    (
        "Is the gain due to a channel's information, or to training as such",
        (
            ("hint", "hint_placebo"),
            ("hint", "hint_neutral"),
            ("policy", "policy_placebo"),
            ("policy", "random_reward"),
            ("preference", "preference_placebo"),
            ("preference", "clone"),
        ),
    ),
    (
        "Does one channel alone change success",
        (
            ("policy", BEFORE),
            ("hint", BEFORE),
            ("preference", BEFORE),
            ("more_sft", BEFORE),
            ("clone", BEFORE),
            (PLACEBO, BEFORE),
        ),
    ),
    ("Is the mistaken message the right place for the hint", (("hint", "wrong_site"),)),
    (
        "Which teacher, at the same learning rate",
        (("hint", "hint_live"), ("hint", "hint_ema"), ("hint", "hint_trust")),
    ),
    ("How is the hint loss averaged", (("hint", "hint_token_mean"),)),
    (
        "Which part of the message, and of the difference, is distilled",
        (("hint_focus", "hint"), ("hint_contrast", "hint")),
    ),
    (
        "Which policy objective, at the same learning rate",
        tuple(
            (name, other)
            for name in ("grpo", "dapo", "gspo", "cispo")
            for other in ("policy", "policy_placebo")
        ),
    ),
    (
        "How should hint and policy be combined",
        tuple(
            (name, other)
            for name in ("convex", "advantage", "bounded")
            for other in (AFTER, "policy", PLACEBO)
        ),
    ),
    (
        (
            "At the logs' sites, is it better to train on messages that the student writes itself"
            " than on the logged ones"
        ),
        (
            ("fork", "logged"),
            ("fork", "fork_placebo"),
            ("fork", BEFORE),
            ("logged", BEFORE),
            ("hint", "fork"),
        ),
    ),
    (
        "Are agreement and curation worth their price, on the answers of noisy teachers",
        (
            ("pairs_curated", "pairs_raw"),
            ("pairs_curated", "pairs_null"),
            ("pairs_curated", "pairs_filtered"),
            ("pairs_filtered", "pairs_raw"),
            *(
                (name, BEFORE)
                for name in ("pairs_curated", "pairs_filtered", "pairs_raw", "pairs_null")
            ),
        ),
    ),
    (
        "Does TRL's trainer do what the reference loop does, at the same steps",
        (
            ("trl_policy", "policy"),
            ("trl_policy", "policy_placebo"),
            ("trl_after", AFTER),
            ("trl_after", PLACEBO),
        ),
    ),
    (PENALTY, (("policy_penalised", "policy"), ("penalised", AFTER))),
    (
        "Do the health rules save a policy that collapses",
        (("collapse", BEFORE), ("collapse_stopped", BEFORE), ("collapse_stopped", "collapse")),
    ),
)
NOTES: Mapping[str, str] = {
    PENALTY: (
        "How the harm arises: a listing costs one message more than the budget"
        " allows. A guessed path costs none, and is right one time in three. A policy that unlearns"
        " the listing (B), and has not learnt to search, reads a guessed path: `file_missing`, in"
        " tasks of the kinds set and both. The recipe's own remedy is to penalise such calls and"
        " never to drop them."
    ),
    "Which policy objective, at the same learning rate": (
        "Each step takes one gradient on its own fresh rollouts, so every ratio is 1 and nothing is"
        " clipped. By their formulas, `gspo` is then the same as `grpo`, and `cispo` the same as"
        " `dapo`. The only difference is how advantages are scaled and summed."
    ),
    "Does TRL's trainer do what the reference loop does, at the same steps": (
        "The two do not play the same episodes: TRL's environment has one set of tools (no unseen"
        " names in training), and flat groups are not replaced by further ones. On one frozen batch"
        " both give equal losses and gradients (tests/backends)."
    ),
}
"""Notes that a reader needs before the answers to a question."""
REQUIRED = ((AFTER, 0.75), ("hint", 0.3))
"""The share of `before` to which the hinted mistakes have to fall."""


def opening(evidence: Mapping[str, Any]) -> str:
    """What was measured, and what a reader has to know before reading a number."""
    about = evidence["about"]
    seeds = ", ".join(map(str, about["seeds"]))
    scale = (
        ""
        if about["steps_scale"] == 1
        else (
            f"\n- **A trial**: every arm had {about['steps_scale']:g} x its steps. These are no"
            " results.\n"
        )
    )
    first_level = evidence["levels"].get("1", next(iter(evidence["levels"].values())))
    return f"""# Evidence: what each channel does in the workshop

Written by `{about["command"]}` from
`benchmarks/results/evidence.json`; do not edit. `python benchmarks/evidence.py --check` fails if
this page, or a number quoted from it, is stale.

Read this first:
{scale}
- **What was planted.** {first_level["text"]}
- **Hints.** {HINTS_ARE_TAUGHT}
- **Seeds.** Training seeds: {seeds}, each with its own logs, data and
  {about["tasks"]} held-out tasks. The headline arms are trained with all of them, the others with
  the first {MIN_SEEDS}. The column "by seed" has one value for each.
- **Intervals.** Every interval is the wider of two 95 % intervals. One resamples tasks within
  seeds (other tasks, these seeds); the other is Student's t over the values of the seeds (other
  seeds). A value outside it is outside both. With three seeds t is 4.3, so only large
  differences are resolved. The JSON has the outcome of every episode as one bit, so that anyone can
  compute another interval.
- **Fresh tasks.** Evaluation seed {about["evaluation_seed"]}; no setting was chosen with it. No
  evaluated context contains a hint.
- **Compute.** For most arms the number of steps was chosen by CPU-seconds: {_spread(evidence)}.
  `more_sft`, `clone` and `preference` play no rollouts and get fewer CPU-seconds (30 or 40 steps),
  because more steps would only memorise their few logs or pairs. `logged`, `fork` and `pairs_...`
  have the steps of `hint` or `preference` and cost less, too. A placebo has the same number of
  steps as its arm. The cost of each row is given below. No health rule ends an arm here, except
  `collapse_stopped`.
- **One looser rule.** The demo stops at a KL to the start of 0.6 nats per token instead of the
  usual 0.3: three habits are changed on purpose, and a healthy run of all three channels has
  reached 0.35. `collapse_stopped` has the usual limit.
- **What changed on 2026-11-22.** Before that day, every step's gradient was clipped to one length.
  So neither the falling weight of the hint channel nor Dr.GRPO's count of flat groups in the
  divisor had an effect on the weights. Also, the hint's mean was over tokens. With both corrected,
  the rows with a hint or a policy learn somewhat less in the same number of steps: late steps,
  with few mistakes or few groups that differ, now change the weights less. Earlier pages gave
  intervals over tasks alone; with intervals over seeds as well, fewer differences are resolved.
- **Many comparisons.** There is no correction for multiple comparisons. If twenty differences are
  really zero, one interval is expected to exclude zero.{_noise(evidence)}"""


def _noise(evidence: Mapping[str, Any]) -> str:
    """The teachers of the arms on the sets of pairs; "" if there is no such arm."""
    if not any(
        ARMS[name].pairs for numbers in evidence["levels"].values() for name in numbers["arms"]
    ):
        return ""
    shares = ", ".join(
        f"{name} (family {family}) at {share:.0%}" for name, family, _, share in TEACHERS
    )
    return f"""
- **Noisy teachers.** The arms `pairs_...` are trained on answers of scripted players that make
  errors on purpose, at these shares of the turns: {shares}.
  An error is a tool that is not on offer, an empty message, arguments that do not fit, "Done."
  instead of a call, or a good call of another tool. The shares were fixed before any of these arms
  was trained. Like `preference`, these arms draw no anchors, so only the pairs differ."""


def _spread(evidence: Mapping[str, Any]) -> str:
    """The range of the arms' cost: "on level 1 a complete run cost 71 (policy) to 96 (after)
    CPU-seconds"."""
    ranges = []
    for level, numbers in sorted(evidence["levels"].items()):
        costs = sorted(
            (cost_of(arm)["cpu_s"], name)
            for name, arm in numbers["arms"].items()
            if not any(run["code"] for run in arm["runs"].values())
        )
        if costs:
            (low, cheap), (high, dear) = costs[0], costs[-1]
            ranges.append(
                f"on level {level} a complete run cost {low:.0f} (`{cheap}`) to {high:.0f}"
                f" (`{dear}`) CPU-seconds"
            )
    return "; ".join(ranges) or "no run was completed"


def level_section(level: str, evidence: Mapping[str, Any]) -> str:
    """The tables of one level and the sentences that they support."""
    numbers = evidence["levels"][level]
    findings = [f"- {line}" for line in [*_claims(numbers), *_pairs(numbers), *_required(numbers)]]
    return "\n\n".join(
        [
            f"## {TITLES[level]}",
            numbers["text"],
            _results(numbers),
            _mistakes(numbers),
            _costs(numbers),
            "### What the intervals support",
            "\n".join(findings),
            *_questions(numbers),
        ]
    )


def _results(numbers: Mapping[str, Any]) -> str:
    lines = []
    for row in numbers["rows"]:
        seeds = " / ".join(f"{value:.3f}" for _, value in sorted(row["by_seed"].items()))
        shown = f"{row['success']:.3f} [{row['success_low']:.3f}, {row['success_high']:.3f}]"
        kinds = [_share(row["families"].get(f"{family}_made")) for family in "ABC"]
        lines.append(
            [
                f"`{row['name']}`",
                str(row["n"]),
                shown,
                seeds,
                *kinds,
                _share(row["valid_call_rate"]),
            ]
        )
    head = [
        "row",
        "episodes",
        "success",
        "by seed",
        "A wrong name",
        "B needless listing",
        "C no last test",
        "valid calls",
    ]
    note = (
        "A, B, C: share of the episodes in which that mistake was possible and was made; lower is"
        " better."
    )
    return f"### Success, and the three families of mistakes\n\n{table(head, lines)}\n\n{note}"


def _mistakes(numbers: Mapping[str, Any]) -> str:
    lines = []
    for row in numbers["rows"]:
        if row["name"] == BEFORE:
            continue
        success, other_mistakes = (
            pair_of(numbers["paired"], row["name"], BEFORE, *metric) for metric in ((), (OTHER,))
        )
        ratio = ratio_text(pair_of(numbers["paired"], row["name"], BEFORE, TARGETED))
        lines.append(
            [
                f"`{row['name']}`",
                difference_text(success) if success else "-",
                ratio,
                difference_text(other_mistakes) if other_mistakes else "-",
            ]
        )
    head = [
        "row",
        "success - before",
        "hinted mistakes / before",
        "other mistakes - before, per episode",
    ]
    return f"### Against the student before any training, task by task\n\n{table(head, lines)}"


def _costs(numbers: Mapping[str, Any]) -> str:
    lines = []
    for name, arm in (
        (row["name"], numbers["arms"][row["name"]])
        for row in numbers["rows"]
        if row["name"] in numbers["arms"]
    ):
        cost = cost_of(arm)
        tokens = [
            f"{cost[f'{channel}_tokens']:.0f}" if cost[f"{channel}_tokens"] else "-"
            for channel in ("policy", "lm_ce", "hint", "preference")
        ]
        drift = f"{cost['kl']:.3f}" if "kl" in cost else "-"
        lines.append(
            [
                f"`{name}`",
                arm["text"] + num_pairs_text(arm),
                f"{cost['steps']:.0f}",
                f"{cost['cpu_s']:.0f}",
                *tokens,
                drift,
                stops_of(arm) or "-",
            ]
        )
    head = [
        "row",
        "what it is",
        "steps",
        "CPU-s",
        "policy tokens",
        "lm_ce tokens",
        "hint tokens",
        "preference tokens",
        "KL to start",
        "stopped by a rule",
    ]
    note = (
        "Each value is the mean over the seeds' runs. CPU-seconds are those of training (with"
        " rollouts and the start of the process), without the evaluation. KL is the largest of the"
        " seeds,\nin nats per token, before the last step. For a run that a rule stopped, the row"
        " shows the student after the rollback."
    )
    return (
        "### What each row is, and what it"
        f" cost\n\n{table(head, lines)}\n\n{note}\n{_commits(numbers)}".rstrip()
    )


def _commits(numbers: Mapping[str, Any]) -> str:
    """The commits that trained the rows: "Trained by commit 0a7c070: after, hint; 1e6afea:
    fork"."""
    rows: dict[str, list[str]] = {}
    for name, arm in numbers["arms"].items():
        for commit in sorted({run.get("commit") or "unknown" for run in arm["runs"].values()}):
            rows.setdefault(commit, []).append(f"`{name}`")
    return (
        "Trained by commit "
        + "; ".join(f"{commit}: {', '.join(names)}" for commit, names in sorted(rows.items()))
        + "."
        if rows
        else ""
    )


def _claims(numbers: Mapping[str, Any]) -> Iterator[str]:
    """The claims that the report of a run would make from these rows, with the verdict first."""
    names = {row["name"] for row in numbers["rows"]}
    if AFTER not in names:
        yield "There is no row `after`: nothing is claimed about all channels together."
        return
    judgement = verdict(numbers["paired"])
    yield f"{judgement['sentence']} ({'; '.join(judgement['reasons'])}.)"
    titles = {family.made: family.title for family in METADATA.families}
    yield from (claim.text for claim in claims({**numbers, "family_titles": titles}))


def _pairs(numbers: Mapping[str, Any]) -> Iterator[str]:
    """All three channels compared with every two of them."""
    by_row = {
        name: pair
        for name in PAIRS
        if (pair := pair_of(numbers["paired"], AFTER, name)) is not None
    }
    if not by_row:
        return
    shown = "; ".join(
        f"{AFTER} - {name} = {difference_text(pair)}" for name, pair in by_row.items()
    )
    behind = [name for name, pair in by_row.items() if sign_of(pair) <= 0]
    if behind:
        yield f"A third channel is not shown to help beside {' or '.join(behind)} ({shown})."
    else:
        yield (
            f"Each channel adds to the other two: all three do better than {', '.join(by_row)}"
            f" ({shown})."
        )


def _required(numbers: Mapping[str, Any]) -> Iterator[str]:
    """Whether the hinted mistakes fell as far as the project asks for: reached, missed, or not
    decided by the interval."""
    for name, limit in REQUIRED:
        pair = pair_of(numbers["paired"], name, BEFORE, TARGETED)
        if pair is None or pair.get("ratio") is None:
            continue
        high, low = pair.get("ratio_high"), pair.get("ratio_low")
        decided = (
            "reached"
            if high is not None and high <= limit
            else "missed"
            if low is not None and low > limit
            else ""
        )
        side = "within" if pair["ratio"] <= limit else "above"
        state = decided or f"not decided by the interval (the value itself is {side} the limit)"
        yield (
            f"Asked for: the hinted mistakes of `{name}` fall to at most {limit:g} x of `before`."
            f" It is {ratio_text(pair)}: {state}."
        )


def _questions(numbers: Mapping[str, Any]) -> Iterator[str]:
    for title, rows in QUESTIONS:
        pairs = [pair for a, b in rows if (pair := pair_of(numbers["paired"], a, b)) is not None]
        if pairs:
            note = f"{NOTES[title]}\n\n" if title in NOTES else ""
            lines = [f"- {_answer(pair)}" for pair in pairs]
            if title == PENALTY:
                for a, b in ((pair["a"], pair["b"]) for pair in pairs):
                    if other := pair_of(numbers["paired"], a, b, OTHER):
                        shown = difference_text(other)
                        lines.append(f"- Other mistakes: `{a}` - `{b}` = {shown} per episode.")
            yield f"### {title}?\n\n{note}" + "\n".join(lines)


def _answer(pair: Mapping[str, Any]) -> str:
    verb_phrase = {1: "does better than", -1: "does worse than", 0: "is not shown to differ from"}[
        sign_of(pair)
    ]
    return f"`{pair['a']}` {verb_phrase} `{pair['b']}`: {difference_text(pair)}."


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def ending(evidence: Mapping[str, Any]) -> str:
    """How to reproduce the page, and what it was made with."""
    about = evidence["about"]
    machine, versions = about["machine"], about["versions"]
    students = "\n".join(
        f"- level {level}: student `{numbers['student_sha256']}`"
        for level, numbers in sorted(evidence["levels"].items())
    )
    missing_level = (
        ""
        if len(evidence["levels"]) > 1
        else "\n\n**Only one level was run**: the other one is missing from this page."
    )
    made_with = f"Python {versions['python']}, torch {versions['torch']}" + (
        f", transformers {versions['transformers']}"
    )
    return f"""## How to reproduce it

```
{about["command"]}
```
It took {about["minutes"]:.0f} minutes (less if arms were trained already) on
{machine["cores"]} cores ({machine["system"]}, {machine["machine"]}), on {about["date"]},
with {made_with}.
On one kind of CPU, the same seeds give the same numbers bit for bit. Another kind rounds sums
differently, and its numbers are other draws from the same distribution.
Training started from these weights (sha256 of every parameter):

{students}

Settings (sha256): `{about["settings_sha256"]}`.{_added(about)}{missing_level}"""


def _added(about: Mapping[str, Any]) -> str:
    """The rows that were added later, with the command of each addition; "" if there are none."""
    text = ""
    for note in about.get("added", ()):
        rows = ", ".join(f"`{name}`" for name in note["rows"])
        intro = (
            f"Added on {note['date']}, on the same logs, seeds and tasks (`before`, played again,"
            f" was equal to the last digit): {rows}, by"
        )
        text += f"\n\n{intro}\n\n```\n{note['command']}\n```"
    return text
