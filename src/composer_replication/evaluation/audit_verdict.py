"""The kinds of hints that an audit keeps: decided by the measured numbers and the current settings.

    [v.failed for v in verdicts(audit, min_lift=0.0, unmeasured="drop")]    # ["", "lower bound"]

A kind is kept if the lower bound of its decision lift is above hints.min_lift and its mean log-odds
over no hint are above 0: a hint may do less harm than other texts, and harm all the same. A kind's
measured sites decide for the kind; one without any is kept if hints.unmeasured = "keep".
Needs no PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from composer_replication.evaluation.audit_names import ALL
from composer_replication.evaluation.power import values_needed

ONE_SESSION, LOWER_BOUND = "one session", "lower bound"
BELOW_NONE, NOT_MEASURABLE = "not above no hint", "not measurable"


@dataclass(frozen=True, slots=True, kw_only=True)
class KindVerdict:
    """One kind of an audit: which conditions it fails ("" = it is kept), whether it was measured,
    and how many sites this mean and spread need for 80 % power (None: more do not help).

    Example: KindVerdict(kind="file_missing", failed="lower bound", is_measured=True, needed=9)
    """

    kind: str
    failed: str
    is_measured: bool
    needed: int | None = None

    @property
    def text(self) -> str:
        """The verdict in words, e.g. "weak: lower bound"."""
        if not self.is_measured:
            return NOT_MEASURABLE + ("" if self.failed else ", kept")
        return f"weak: {self.failed}" if self.failed else "kept"


def verdicts(
    audit: Mapping[str, Any], *, min_lift: float, unmeasured: Literal["drop", "keep"]
) -> list[KindVerdict]:
    """The verdict on each row of audit.json, "all" included; raises KeyError or TypeError for what
    is no audit.

    >>> decision = {"low": 0.3, "over_none": -0.2}
    >>> row = {"kind": "k", "decision": decision}
    >>> verdicts({"kinds": [row]}, min_lift=0.0, unmeasured="drop")[0].text
    'weak: not above no hint'
    """
    found: list[KindVerdict] = []
    for row in audit["kinds"]:
        kind, decision = row["kind"], row["decision"]
        if decision is None:
            failed = "" if unmeasured == "keep" else NOT_MEASURABLE
            found.append(KindVerdict(kind=kind, failed=failed, is_measured=False))
            continue
        low = decision["low"]
        fails = {
            ONE_SESSION: low is None,
            LOWER_BOUND: low is not None and not low > min_lift,
            BELOW_NONE: not decision["over_none"] > 0,
        }
        lifts = [
            decided["lift"]
            for site in audit.get("sites", ())
            for decided in site["decisions"]
            if kind in (ALL, decided["kind"])
        ]
        failed = ", ".join(name for name, fail in fails.items() if fail)
        needed = values_needed(lifts, above=min_lift)
        found.append(KindVerdict(kind=kind, failed=failed, is_measured=True, needed=needed))
    return found
