"""The output of `audit`: five sentences, who and where, what people said, and the rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.cli.console import Screen
from composer_replication.report.agent_rules import SUPPORT
from composer_replication.report.audit_sentences import row_text, saving_text, sentences
from composer_replication.report.audit_view import AuditRow, AuditView
from composer_replication.report.kind_titles import kind_title
from composer_replication.report.rates import Rate

TOP_ROWS, TOP_WORDS, WORDS_CHARS = 3, 3, 90
DIMENSIONS = ("models", "tools", "repositories", "versions")
LABELS = ("mistakes", "cost", "which", "trend", "stopped")


def print_log_audit(screen: Screen, view: AuditView, *, look: str) -> None:
    """Print the audit; --verbose prints every row and every word. `look` is the command that shows
    the costliest mistake."""
    screen.line()
    for label, sentence in zip(LABELS, sentences(view), strict=True):
        screen.labelled(label, sentence, style="bold" if label == LABELS[0] else "")
        if label == "which" and look:
            screen.labelled("look", f"{look}   (the costliest mistake)")
    _show_words(screen, view)
    screen.line("\nmistakes per 100 calls", style="bold")
    for name in DIMENSIONS:
        _show_dimension(screen, name, getattr(view, name))
    _show_rules(screen, view)


def _show_words(screen: Screen, view: AuditView) -> None:
    groups = [group for row in view.stopped for group in row.grouped_words]
    for group in groups if screen.verbose else groups[:TOP_WORDS]:
        line = group.text
        cut = line if len(line) <= WORDS_CHARS else line[: WORDS_CHARS - 1] + "…"
        screen.labelled("", f'"{cut}"{group.times}', style="dim")
    if not screen.verbose and len(groups) > TOP_WORDS:
        screen.labelled("", f"{len(groups) - TOP_WORDS} more (-v)", style="dim")


def _show_dimension(screen: Screen, name: str, rows: Sequence[AuditRow]) -> None:
    shown = rows if screen.verbose else rows[:TOP_ROWS]
    more = f"; {len(rows) - len(shown)} more" if len(rows) > len(shown) else ""
    screen.labelled(name, "; ".join(map(row_text, shown)) + more)


def _show_rules(screen: Screen, view: AuditView) -> None:
    if view.rules:
        screen.line(
            "\nrules to copy into CLAUDE.md or AGENTS.md, if you agree (nothing is changed)",
            style="bold",
        )
    for rule in view.rules:
        screen.labelled("-", rule.text, style="green")
        screen.labelled("", saving_text(rule), style="dim")
    if view.unsupported:
        left = "; ".join(
            f"{kind_title(row.kind)} ({row.why.partition(':')[0]})"
            for row in view.unsupported[: None if screen.verbose else TOP_ROWS]
        )
        more = len(view.unsupported) - TOP_ROWS
        text = f"{left}{f'; {more} more' if more > 0 and not screen.verbose else ''}"
        screen.line()
        screen.labelled("no rule", text, style="dim")
    if view.rules or view.unsupported:
        screen.labelled("", f"a rule needs {SUPPORT}", style="dim")


def audit_json(view: AuditView) -> dict[str, Any]:
    """The audit as the value of --json: all but the costs of single sites."""
    fields = {
        f.name: getattr(view, f.name)
        for f in dataclasses.fields(view)
        if f.name not in ("session_ids", "site_spend", "site_days")
    }
    return {"sentences": sentences(view), **{name: _plain(value) for name, value in fields.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, Rate):
        return {**dataclasses.asdict(value), "per_100_calls": value.value}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
