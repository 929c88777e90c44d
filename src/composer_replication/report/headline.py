"""What the evaluations of a run show, in sentences: the same on the page and on the terminal.

evaluation_sentences(read_evaluation(path), read_logs(run))
-> ["On your own logs (held-out mistakes): share of messages that repeat the mistake: 40 %..."]

The first sentence is the headline. It is about the user's work; the workshop comes last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer_replication.report.logs_view import RECURRENCE, is_undecided
from composer_replication.report.run_view import is_number

NO_EVALUATION = (
    "No evaluation was run, so nothing is claimed about the trained model. A falling loss is not"
    " evidence of learning."
)
NOT_ON_LOGS = (
    "Not evaluated on your own logs yet, so nothing is claimed: `recompose evaluate RUN --logs`"
    " does that."
)
ON_LOGS = "On your own logs (held-out mistakes): "
TOY = "Beside it, tasks of {env}, a toy and not your work: "
TOY_TITLE = "In the workshop (a toy, not your work)"
ENDS_OF_RUN = ("before", "after")


def evaluation_sentences(
    evaluation: Mapping[str, Any] | None, logs: Mapping[str, Any] | None
) -> list[str]:
    """The headline, then the other evaluation if there is one.

    >>> evaluation_sentences(None, None) == [NO_EVALUATION]
    True
    """
    on_logs = [logs_sentence(logs)] if logs is not None else []
    if evaluation is None:
        return on_logs or [NO_EVALUATION]
    on_tasks = _success(evaluation) + str(evaluation["verdict"]["sentence"])
    if evaluation["own_tasks"]:
        return [on_tasks, *on_logs]
    toy = TOY.format(env=evaluation["about"].get("env", "the built-in workshop"))
    return [*(on_logs or [NOT_ON_LOGS]), toy + on_tasks]


def logs_sentence(logs: Mapping[str, Any]) -> str:
    """How often the mistakes of the held-out logs came back, and the verdict."""
    rows = {str(row["name"]): row for row in logs["rows"]}
    shares = [
        f"{'undecided' if is_undecided(rows[name]) else f'{100 * rows[name][RECURRENCE]:.0f} %'}"
        f" {name}"
        for name in ENDS_OF_RUN
        if name in rows and is_number(rows[name].get(RECURRENCE))
    ]
    counts = f"share of messages that repeat the mistake: {', '.join(shares)}. " if shares else ""
    return f"{ON_LOGS}{counts}{logs['verdict']['sentence']}"


def _success(evaluation: Mapping[str, Any]) -> str:
    """Success before and after as shares, if both rows have one."""
    rows: dict[str, Any] = {str(row["name"]): row.get("success") for row in evaluation["rows"]}
    shares = [
        f"{100 * rows[name]:.0f} % {name}" for name in ENDS_OF_RUN if is_number(rows.get(name))
    ]
    return f"Success on held-out tasks: {', '.join(shares)}. " if len(shares) > 1 else ""
