"""The summary at the end of the demo, and the command that starts this program."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.report.claims import OTHER, TARGETED
from composer_replication.report.evaluation_section import AFTER, NEEDED, difference, signed
from composer_replication.report.evaluation_section import verdict as judged

BEFORE, PLACEBO = NEEDED
SUCCESS = {
    "better": "Better than before and than the placebo",
    "worse": "Worse than before and than the placebo",
    "nothing": "Nothing is claimed about success",
}


def summary(table: Mapping[str, Any]) -> list[str]:
    """Three lines: success by row, the claims (for better or worse), and a caveat."""
    paired = [*table["paired"], *table.get("paired_measures", ())]
    rows = ", ".join(f"{row['name']} {row['success']:.2f}" for row in table["rows"])
    return [
        f"Success on {table['n']} unseen tasks: {rows}.",
        f"{SUCCESS[judged(paired)['claim']]}; {_targeted_text(paired)}; {_others_text(paired)}.",
        (
            "The mistakes and the following of hints were planted in the student; real logs say"
            " what yours are."
        ),
    ]


def _targeted_text(paired: Sequence[Mapping[str, Any]]) -> str:
    """Hinted mistakes after / before, if the interval excludes 1."""
    pairs = {
        p["b"]: p
        for p in paired
        if p["a"] == AFTER and p.get("metric") == TARGETED and p.get("ratio") is not None
    }
    side = {
        control: _side(pair.get("ratio_low"), pair.get("ratio_high"), middle=1.0)
        for control, pair in pairs.items()
    }
    number = f"x{pairs[BEFORE]['ratio']:.2f}" if BEFORE in pairs else ""
    return f"hinted mistakes {_direction_text(number, side)}"


def _others_text(paired: Sequence[Mapping[str, Any]]) -> str:
    """Other mistakes after - before, if the interval excludes zero."""
    differences = {control: difference(paired, AFTER, control, metric=OTHER) for control in NEEDED}
    pairs = {control: pair for control, pair in differences.items() if pair is not None}
    side = {
        control: _side(pair["low"], pair["high"], middle=0.0) for control, pair in pairs.items()
    }
    number = f"{signed(pairs[BEFORE]['difference'])} per episode" if BEFORE in pairs else ""
    return f"other mistakes {_direction_text(number, side)}"


def _direction_text(number: str, side: Mapping[str, int]) -> str:
    """The number with its direction.

    A fall is qualified unless it also exceeds that of the placebo; a rise never is.
    """
    if not side.get(BEFORE):
        return "not decided"
    if side[BEFORE] > 0:
        return f"{number} (rose)"
    return f"{number} (fell{'' if side.get(PLACEBO, 0) < 0 else '; vs placebo not decided'})"


def _side(low: float | None, high: float | None, *, middle: float) -> int:
    """1 if the interval lies above `middle`, -1 if below, 0 if it contains it or is unknown."""
    if low is None or high is None:
        return 0
    return 1 if low > middle else -1 if high < middle else 0


def command() -> str:
    """The shell command of this program: its name if it is on the PATH, else the script's path."""
    script = Path(sys.argv[0]).absolute()
    if shutil.which("recompose") or script.name != "recompose" or not script.is_file():
        return "recompose"
    folder = Path.cwd()
    return shlex.quote(str(script.relative_to(folder) if script.is_relative_to(folder) else script))
