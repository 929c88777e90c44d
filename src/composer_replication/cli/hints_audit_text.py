"""What `recompose hints --audit` prints: the lift of each kind of hint, and the positions."""

from __future__ import annotations

from typing import Any

from composer_replication.cli.build_text import remedies
from composer_replication.cli.job import Job
from composer_replication.core.config.student_settings import TINY
from composer_replication.evaluation.audit_names import ALL

NOTE = "a lower bound needs two sessions of a kind; below about ten the interval is too narrow"


def listed(counts: dict[str, int]) -> str:
    """Reasons with their counts, e.g. "too_long 5"."""
    return ", ".join(f"{reason} {count}" for reason, count in counts.items())


def show_audit(job: Job, measured: dict[str, Any]) -> None:
    """Print the table of kinds, what was left out, and what the gate makes of it."""
    screen = job.screen
    screen.line(
        f"\n audit on {job.config.student.model}: by how many nats the right hint moves the"
        " log-odds of right against wrong, at the token that decides, more than other sites' hints"
    )
    screen.table(
        [
            _row(kind, keeps_unmeasured=job.config.hints.unmeasured == "keep")
            for kind in measured["kinds"]
        ],
        head=(
            "kind",
            "sites",
            "unmeasured",
            "sessions",
            "lift",
            "low",
            "high",
            "neutral",
            "none",
            "needed",
            "message",
            "",
        ),
    )
    for reason, count in measured["skipped"].items():
        if count:
            screen.line(f" skipped  {count} sites: {reason}")
    if not_built := measured["not_built"]:
        screen.line(
            f" left out {sum(not_built.values())} hints that `build` would leave out too, with"
            f" build.max_tokens = {job.config.build.max_tokens}:"
            f" {listed(not_built)}",
            style="yellow",
        )
        for remedy in remedies(not_built):
            screen.line(f" fix      {remedy}", style="yellow")
    screen.line(
        " columns  neutral, none = lift over a neutral text of the same length, and over no hint;"
        " needed = sites for 80 % power; message = mean log-prob of the whole message, nats per"
        " token less"
    )
    screen.line(
        f" note     weak = the lower bound is not above hints.min_lift = {measured['min_lift']};"
        f" {NOTE}."
    )
    if any(k["decision"] is None for k in measured["kinds"] if k["kind"] != ALL):
        screen.line(
            " note     not measurable = nothing is known to be right there (hints.unmeasured ="
            f" {job.config.hints.unmeasured!r})"
        )
    if not any(k["keeps"] for k in measured["kinds"] if k["kind"] != ALL):
        screen.line(
            " gate     no kind is kept: `build` and `train` refuse while train.hint.weight is"
            " above 0",
            style="yellow",
        )
    else:
        screen.line(
            " gate     `build` and `train` leave out hints of weak kinds, and of kinds that were"
            " not measured"
        )
    if job.config.student.model == TINY:
        screen.line(
            " note     the tiny student knows nothing yet: a lift of about 0 is what it should"
            " show",
            style="yellow",
        )


def _row(kind: dict[str, Any], *, keeps_unmeasured: bool) -> tuple[object, ...]:
    message, decision = kind["message"], kind["decision"]
    if decision is None:
        verdict = "not measurable" + (", kept" if keeps_unmeasured else "")
        blank = ("",) * 7
        return (
            kind["kind"],
            kind["n"],
            kind["unmeasured"],
            *blank,
            _signed(message["lift"]),
            verdict,
        )
    return (
        kind["kind"],
        kind["n"],
        kind["unmeasured"] or "",
        decision["sessions"],
        *(_signed(decision[name]) for name in ("lift", "low", "high", "over_neutral", "over_none")),
        decision["needed"] or "",
        _signed(message["lift"]),
        "" if kind["keeps"] else "weak",
    )


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def show_positions(job: Job, measured: dict[str, Any]) -> None:
    """Print the table of positions, and the line to set."""
    if not measured["positions"]:
        return
    job.screen.line(
        "\n positions of a hint: what neutral text changes in the message before its decision, in"
        " nats (sums over tokens), and how far hints move the log-odds there beyond neutral text"
    )
    rows = [
        (
            effect["position"],
            effect["disturbance"]["n"],
            *(_signed(effect["disturbance"][name]) for name in ("mean", "low", "high")),
            _signed(effect["logp_change"]),
            _signed(effect["over_neutral"]),
        )
        for effect in measured["positions"]
    ]
    head = ("position", "sites", "disturbance", "low", "high", "log-prob", "hints")
    job.screen.table(rows, head=head)
    best, chosen = measured["best_position"], measured["position"]
    if best == chosen:
        job.screen.line(f" position {chosen!r} disturbs least of those where hints act")
    else:
        job.screen.line(
            f" position {best!r} disturbs less than {chosen!r}: set hints.position = {best!r}, then"
            " run the audit and build again",
            style="yellow",
        )
