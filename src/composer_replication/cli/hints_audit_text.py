"""The tables of `recompose hints --audit`: the lift of each kind of hint, and the positions."""

from __future__ import annotations

from typing import Any

from composer_replication.cli.hint_gate import verdicts_of, ways_on
from composer_replication.cli.hints_audit_plan import show_not_built
from composer_replication.cli.job import Job
from composer_replication.core.config.student_settings import TINY
from composer_replication.evaluation.audit_names import ALL, NUM_DONORS
from composer_replication.evaluation.audit_verdict import KindVerdict, verdicts
from composer_replication.report.html import plural

NOTE = "a lower bound needs two sessions of a kind; below about ten the interval is too narrow"


def show_audit(job: Job, measured: dict[str, Any]) -> None:
    """Print the table of kinds, what was left out, and what the gate makes of it."""
    screen = job.screen
    settings = job.config.hints
    judged = verdicts(measured, min_lift=settings.min_lift, unmeasured=settings.unmeasured)
    screen.line(
        f"\n audit on {job.config.student.model}: by how many nats the right hint moves the"
        " log-odds of right against wrong, at the token that decides, more than other sites' hints"
        " that advise something else and neutral text"
    )
    screen.table(
        [_row(*pair) for pair in zip(measured["kinds"], judged, strict=True)],
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
            screen.line(f" skipped  {plural(count, 'site')}: {reason}")
    donors = measured["donors"]
    screen.line(
        f" donors   of {donors['sites']} messages: {donors['fewer']} with fewer than"
        f" {NUM_DONORS} other sites' hints that advise something else"
        f" ({donors['neutral_only']} with none: neutral text alone); {donors['same_kind']} with one"
        f" of the same kind, {donors['same_session']} with one of the same session"
    )
    show_not_built(job, measured["not_built"])
    screen.line(
        " columns  lift = over other sites' hints and neutral text; neutral, none = over a neutral"
        " text of the same length alone, and over no hint; needed = sites for 80 % power; message ="
        " mean log-prob of the whole message, nats per token less"
    )
    screen.line(
        " note     kept = the lower bound is above hints.min_lift ="
        f" {job.config.hints.min_lift}, and the mean over no hint above 0; {NOTE}."
    )
    if any(not v.is_measured for v in judged if v.kind != ALL):
        screen.line(
            " note     not measurable = nothing is known to be right there (hints.unmeasured ="
            f" {job.config.hints.unmeasured!r})"
        )
    by_kind = verdicts_of(job, measured)
    if all(v.failed for v in by_kind):
        screen.line(
            " gate     no kind is kept: `build` and `train` refuse while train.hint.weight is"
            " above 0",
            style="yellow",
        )
        for way in ways_on(job, by_kind):
            screen.line(f" fix      {way}", style="yellow")
    else:
        screen.line(
            " gate     `build` and `train` leave out hints of weak kinds, and"
            + (
                " those that were not measured"
                if job.config.hints.unmeasured == "drop"
                else " use those that could not be measured, unless their kind is weak"
            )
        )
    if job.config.student.model == TINY:
        screen.line(
            " note     the tiny student knows nothing yet: a lift of about 0 is what it should"
            " show",
            style="yellow",
        )


def _row(kind: dict[str, Any], verdict: KindVerdict) -> tuple[object, ...]:
    message, decision = kind["message"], kind["decision"] or {}
    names = ("lift", "low", "high", "over_neutral", "over_none")
    return (
        kind["kind"],
        kind["n"],
        kind["unmeasured"] or "",
        decision.get("sessions", ""),
        *(_signed(decision.get(name)) for name in names),
        verdict.needed or "",
        _signed(message["lift"]),
        verdict.text,
    )


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def show_positions(job: Job, measured: dict[str, Any]) -> None:
    """Print the table of positions, and which one is better: it is used with hints.position =
    "auto", and else the line to set."""
    screen, chosen = job.screen, measured["compared_with"]
    for position, count in measured["not_placed"].items():
        if position not in {effect["position"] for effect in measured["positions"]}:
            screen.line(
                f" position {position!r} is impossible with this template:"
                f" {count} of the compared hints cannot be placed there",
                style="yellow",
            )
    effects = {effect["position"]: effect for effect in measured["positions"]}
    if not effects:
        return
    screen.line(
        "\n positions of a hint: what neutral text changes in the message before its decision, in"
        f" nats (sums over tokens), less that in {chosen!r} on the same sites (below, above = its"
        " interval), and how far hints move the log-odds beyond neutral text"
    )
    rows = [
        (
            position,
            effect["disturbance"]["n"],
            measured["not_placed"].get(position, ""),
            *(_signed(effect["disturbance"][name]) for name in ("mean", "low", "high")),
            *(_signed(effect["difference"][name]) for name in ("mean", "low", "high")),
            _signed(effect["logp_change"]),
            _signed(effect["over_neutral"]),
        )
        for position, effect in effects.items()
    ]
    head = ("position", "sites", "not placed", "disturbance", "low", "high")
    screen.table(rows, head=(*head, "less chosen", "below", "above", "log-prob", "hints"))
    advised = measured["advised_position"]
    if advised is None:
        screen.line(
            f" position no position is shown to disturb less than {chosen!r} where hints act as far"
            " (an interval that contains 0 shows no difference)"
        )
        return
    use = (
        f"To use it set hints.position = {advised!r}, or 'auto', then run the audit and build again"
        if measured["position"] != advised
        else "It is used from here on (hints.position = 'auto')"
    )
    difference, lost = effects[advised]["difference"], measured["not_placed"].get(advised, 0)
    screen.line(
        f" position {advised!r} disturbs less than {chosen!r} by {-difference['mean']:.3f} nats"
        f" [{-difference['high']:.3f}, {-difference['low']:.3f}] on {difference['n']} sites;"
        f" {lost} of the compared hints cannot be placed there. {use}",
        style="yellow",
    )
