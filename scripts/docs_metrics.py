"""Write docs/metrics.md: every key of metrics.jsonl, with its unit, its source and what is healthy.

    python scripts/docs_metrics.py [--check]

`row_of` finds the row of a key. The tests ask for one for every key that any of them writes
(tests/conftest.py), and for every key that the training code names (tests/scripts).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
HEAD = """# Every metric

Written by `python scripts/docs_metrics.py`; a test fails if it is stale, or if a run writes a key
that has no row here. `metrics.jsonl` of a run has one line per optimiser step. A key is present
only if its source ran in that step. [Trackers](trackers.md) get the numbers among them under the
same names.

[`train.health`](settings.md#train.health.max_kl) sets what a health rule does. The
events of health rules, of checkpoints and of [replicas](replicas.md) (`sync`, one per round: bytes,
drift, who took part) are in `events.jsonl`, not here.

NAME stands for a part that depends on your run. "Count" is per step; "share" is between 0 and 1.
Numbers under "healthy" are defaults of settings. The rest says which way a value goes in a run that
learns; it was not measured for your model.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One key, or a family of keys with CHANNEL or NAME in it."""

    key: str
    unit: str
    meaning: str
    healthy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSection:
    """The rows of one source in the code."""

    title: str
    source: str
    rows: tuple[MetricRow, ...]


def _section(title: str, source: str, *rows: tuple[str, str, str, str]) -> MetricSection:
    parts = ("key", "unit", "meaning", "healthy")
    return MetricSection(
        title=title,
        source=source,
        rows=tuple(MetricRow(**dict(zip(parts, row, strict=True))) for row in rows),
    )


SECTIONS = (
    _section(
        "The step",
        "training/step.py, core/rundir.py",
        ("step", "count", "Optimiser steps taken, this one included.", "grows by one"),
        ("t", "UTC time", "When the line was written.", "-"),
        ("attempt", "count", "The launch of the run: more than 1 after `--resume`.", "1"),
        ("loss", "-", "Sum of the channels' losses times their scales. Not comparable between settings.", "finite; its fall proves nothing"),
        ("grad_norm", "norm", "Gradient of that sum over the trained weights, before the clip.", "same order of magnitude from step to step"),
        ("clipped", "true / false", "Whether the outlier clip rescaled this step.", "true in few steps; if true in most, the balance no longer holds"),
        ("lr", "-", "Learning rate of this step.", "as set by `train.learning_rate` and its schedule"),
        ("step_s", "seconds", "Time of the optimiser step, without the rollouts.", "even; if it rises, memory is short or the machine is busy"),
    ),
    _section(
        "Each channel",
        "training/step.py; CHANNEL is policy, hint, preference or lm_ce",
        ("CHANNEL/status", "word", "off, active, exhausted, starved or dead: see the [glossary](glossary.md#training).", "active, or off; exhausted late in a run; starved and dead stop the run"),
        ("CHANNEL/tokens", "count", "Tokens with a loss (preference: of both sides), over all ranks.", "above 0 unless off"),
        ("CHANNEL/loss", "nats, or the objective's", "Mean loss by the channel's own count; null without tokens.", "finite"),
        ("CHANNEL/grad_norm", "norm", "Gradient at the final hidden states, unscaled.", "above 0 while active"),
        ("CHANNEL/grad_norm_parameters", "norm", "The same over the weights, every `train.grad_every` steps.", "above 0 while active"),
        ("CHANNEL/scale", "-", "The factor on the loss: weight over running norm (`train.balance`).", "moves slowly; 0 if off"),
    ),
    _section(
        "Policy",
        "training/forwards/objectives.py",
        ("policy/clipped", "share", "Tokens whose probability ratio was outside the clip or the cap.", "small; if large, the weights moved far since sampling"),
        ("policy/sampler_kl", "nats per token", "KL between the sampler's log-probs and the trainer's for the same weights.", "near 0; more means another precision, or stale weights"),
    ),
    _section(
        "Hint",
        "training/forwards/hinting.py, training/step.py; each only if its setting is on",
        ("hint/raw", "nats per token", "Mean divergence before clip and weights.", "falls slowly, above 0"),
        ("hint/k3", "nats per token", "Estimate of the KL from the sampled tokens (`estimator`).", "above 0, falls slowly"),
        ("hint/clipped", "share", "Tokens above `train.hint.token_clip`.", "below `max_clipped` (.9); stops the run otherwise"),
        ("hint/importance_cut", "share", "Tokens above `importance_clip`, because the weights moved since sampling.", "small"),
        ("hint/bounded", "share", "Hint credit at its bound.", "below `max_clipped` (.9); stops the run otherwise"),
        ("hint/taid_t", "share", "The teacher's share in TAID's mixture.", "rises from `t_start` to 1"),
        ("hint/unfocused", "count", "Views whose decision is not known; all of their tokens are trained (`focus`).", "few"),
        ("hint/no_donor", "count", "Views left out because there was no other hint to contrast with (`contrast`).", "few"),
    ),
    _section(
        "Preference",
        "training/forwards/pairs.py",
        ("preference/accuracy", "share", "Pairs whose chosen side the student (against the reference) scores higher.", "rises from about .5"),
        ("preference/chosen_logratio", "nats", "Log-likelihood of the chosen side, less the reference's.", "near or above 0; if it falls steadily, both sides become unlikely"),
    ),
    _section(
        "Rollouts",
        "training/on_policy/rollout_metrics.py, live.py; only with `rollouts.env`",
        ("rollouts/episodes", "count", "Episodes played.", "prompts times group size"),
        ("rollouts/success", "share", "Mean reward of the environment.", "rises; judge it by the evaluation"),
        ("rollouts/score", "reward", "Mean shaped reward, from which advantages are computed.", "rises with success"),
        ("score/NAME", "reward", "Mean of one term of the shaped reward, such as length or kl.", "small beside success"),
        ("rollouts/kl_start", "nats per token", "Mean KL of the rollouts to the start weights, if it is a penalty.", "below `max_kl` (.3)"),
        ("rollouts/flat", "share", "Groups whose rewards are all equal, so there is nothing to learn from them.", "well below 1; all flat means tasks that are too easy or too hard"),
        ("rollouts/all_failed_groups", "count", "Groups without any success.", "falls"),
        ("rollouts/extra_groups", "count", "Groups played in place of flat ones (`extra_groups`).", "below its limit"),
        ("rollouts/advantage_spread", "reward", "The largest advantage minus the smallest.", "above 0"),
        ("rollouts/out_of_room", "share", "Episodes that reached `rollouts.max_context_tokens`.", "near 0"),
        ("rollouts/cut_off", "share", "Episodes that were cut off from outside.", "0"),
        ("rollouts/lost", "share", "Episodes lost because the environment or the server failed.", "0; two steps above `max_lost` (.5) stop the run"),
        ("lost/NAME", "count", "Lost episodes by end: env_error, env_timeout, no_message.", "0"),
        ("rollouts/unwritten", "count", "Rollouts left out because a served generator did not answer.", "0"),
        ("rollouts/stale", "count", "Rollouts left out as older than `rollouts.max_staleness`.", "0"),
        ("rollouts/age", "steps", "Age of the oldest weights that sampled a rollout.", "0, or 1 with overlap"),
        ("rollouts/message_tokens", "tokens", "Mean length of a sampled message.", "steady; look at samples after a jump"),
        ("rollouts/entropy", "nats per token", "Mean of -log p of the sampled tokens.", "above 0, falls slowly; near 0 the policy has collapsed"),
        ("rollouts/refused_calls", "count", "Calls that the environment refused.", "falls"),
        ("rollouts/unresolvable", "share", "Calls that are malformed or name something that does not exist.", "below `max_unresolvable` (.1); two steps above stop the run"),
        ("rollouts/valid_calls", "share", "Calls that the environment could carry out.", "near 1"),
        ("rollouts/changing_calls", "share", "Calls that changed something.", "above 0"),
        ("rollouts/hack_attempts", "per episode", "Attempts to cheat the tests of a repository's task.", "0"),
        ("rollouts/summaries", "per episode", "Summaries that the student wrote of its context.", "as the window needs"),
        ("rollouts/summary_tokens", "tokens", "Mean length of a summary.", "steady"),
        ("rollouts/malformed", "count", "Malformed calls (backend trl).", "falls"),
        ("rollouts/unaligned", "count", "TRL's conversations that could not be read back, left out.", "0"),
        ("family/NAME", "share", "Episodes with a mistake of this family, of those in which it was possible.", "falls"),
        ("tasks/played", "count", "Tasks played so far in the run.", "grows"),
        ("tasks/always_solved", "count", "Of these, tasks solved every time: too easy.", "a minority"),
        ("tasks/never_solved", "count", "Of these, tasks never solved: too hard, or broken.", "a minority, falls"),
    ),
    _section(
        "Mistaken messages of the rollouts",
        "training/on_policy/rollout_hints.py, live.py; a site is a mistaken message",
        ("sites/found", "count", "Mistaken messages in the rollouts.", "falls as the policy learns"),
        ("sites/without_hint", "count", "Of these, sites for which no writer has a hint.", "a minority"),
        ("sites/refused", "count", "Hints refused because they gave the answer away.", "few"),
        ("sites/weak", "count", "Hints of kinds that the gate (`hints --audit`) left out.", "a minority"),
        ("sites/no_donor", "count", "Left out by the placebo because there was no other hint.", "0 outside a placebo"),
        ("sites/no_difficulty", "count", "Left out because their task was always or never solved (`difficulty`).", "a minority"),
        ("sites/not_drawn", "count", "Sites beyond the number that a step trains on.", "-"),
        ("sites/not_built", "count", "Drawn, but no view could be built.", "few"),
        ("sites/used", "count", "Sites that were trained on.", "above 0 while sites are found"),
        ("sites/messages", "count", "Messages of these; one message may have several sites.", "at most `sites/used`"),
    ),
    _section(
        "Messages that the student writes at logged sites",
        "training/draws/forked.py; only with `train.fork`",
        ("fork/sites", "count", "Sites at which the student wrote its own message.", "above 0"),
        ("fork/samples", "count", "Messages that it wrote.", "sites times samples"),
        ("fork/NAME", "count", "Messages by outcome of the static check: ok, same, other, malformed, undecided.", "ok rises, same falls"),
        ("fork/sites_same", "count", "Sites at which it made the same mistake.", "falls"),
        ("fork/sampled_tokens", "tokens", "Tokens written.", "-"),
        ("fork/tokens", "tokens", "Of these, tokens in repeated mistakes, which the hint channel trains.", "above 0; 0 means nothing is left to learn"),
    ),
    _section(
        "Health",
        "training/run/rollback.py, measured on the step's rollouts before the update",
        ("health/kl", "nats per token", "KL(student, start).", "rises slowly, below `max_kl` (.3); above, the run stops and rolls back"),
        ("health/entropy", "nats per token", "Entropy of the policy.", "above 0; if it leaves a band around the start value, there is a warning"),
        ("health/monitor", "share", "Success on tasks that are not trained on, every `monitor_every` steps.", "rises; a fall by half of the best stops the run"),
    ),
)  # fmt: skip


def rows() -> Iterator[MetricRow]:
    """All rows, in the order of the page."""
    for section in SECTIONS:
        yield from section.rows


def row_of(key: str) -> MetricRow | None:
    """The row of a key; one with its own name comes before one with NAME.

    >>> row_of("hint/loss").key, row_of("family/A").key, row_of("hint/los")
    ('CHANNEL/loss', 'family/NAME', None)
    """
    return next((row for row in sorted(rows(), key=_is_family) if _fits(row.key, key)), None)


def _is_family(row: MetricRow) -> bool:
    return "NAME" in row.key


def _fits(pattern: str, key: str) -> bool:
    pattern = re.escape(pattern).replace("CHANNEL", "(policy|hint|preference|lm_ce)")
    return re.fullmatch(pattern.replace("NAME", r"[\w.-]+"), key) is not None


def metrics_page() -> str:
    """The page: a table for each source."""
    parts = [HEAD]
    for section in SECTIONS:
        parts.append(f"## {section.title}\nFrom {_code(section.source)}.\n")
        parts.append("| key | unit | what it is | healthy |\n|---|---|---|---|")
        parts += [
            f"| `{row.key}` | {row.unit} | {row.meaning} | {row.healthy} |" for row in section.rows
        ]
        parts.append("")
    return "\n".join(parts)


def _code(source: str) -> str:
    return re.sub(r"\b(?:\w+/)*\w+\.py\b", lambda match: f"`{match[0]}`", source)


def main(arguments: list[str]) -> int:
    """Write the page, or check it; returns the exit code."""
    path, text = DOCS / "metrics.md", metrics_page()
    if "--check" not in arguments:
        path.write_text(text, "utf-8")
        return 0
    if path.exists() and path.read_text("utf-8") == text:
        return 0
    print("docs/metrics.md is stale; run: python scripts/docs_metrics.py")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
