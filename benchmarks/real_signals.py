"""Do real models follow the hints of the mistakes that no tool reports (sites.signals)? Log-odds at
the decision, without any training, on public sessions.

    python benchmarks/real_signals.py FOLDER... --work build/real_signals \\
        --model smollm2=build/real/folders/smollm2:chatml-tools --minutes 40

The audit measures right against wrong where a hint's decision says what is right. Of these kinds
none does (it is counted). So what is measured is a proxy that only a benchmark may use: "right"
is what the agent did next that was accepted, in the same place of the call:

user_rejected, user_interrupted, user_corrected, wasted_call   the next call that was carried out
broke_check     the edit with the later edit of its lines in it, after which the check was green
taken_back      nothing: what is right is to write nothing there

Contexts: no hint, the hint, text without information, the hints of three sites of other sessions.
In bfloat16, one session tree per site, in the order of a hash, so that a run that is cut off has
seen a random part. Writes benchmarks/results/real_signals.json: numbers, kinds, repositories.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from real_hints import DONORS, NEUTRAL, NOW, NUM_DONORS, neutral_hints, prepare
from real_hints import summarise as summarise_rows
from real_wordings import measure, models_of
from record_lines import record_lines

from composer_replication.core.codec import (
    read_hints,
    read_sessions,
    read_sites,
    record_to_json,
)
from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Decision, Hint, Site
from composer_replication.core.trace import CallRef, Session, ToolCall
from composer_replication.data.hints.region import edit_argument
from composer_replication.data.sites.call_verdict import is_error
from composer_replication.data.sites.file_lines import calls_in_order, path_in_call
from composer_replication.tokens.renderer import Renderer

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "real_signals.json"
KINDS = (
    "user_rejected",
    "user_interrupted",
    "user_corrected",
    "taken_back",
    "broke_check",
    "wasted_call",
)
SETTINGS = SitesSettings(train_kinds=KINDS, min_confidence=0.0)
GROUP = "all repositories"
MAX_TOKENS = 1024


def next_decision(session: Session, site: Site) -> Decision | str:
    """Where the call and what was accepted in its place part, or why that is not known."""
    ref = session.calls().get(site.call_id or "")
    if ref is None:
        return "the site is a message without a call"
    if site.kind == "taken_back":
        return "what is right is to write nothing there"
    if site.kind == "broke_check":
        return _fixed(session, ref) or "no later edit of the same text"
    later = (r for r in _accepted(session) if r.turn > site.evidence[-1])
    right = next(later, None)
    if right is None:
        return "no later call was carried out"
    return _parted(ref.call, right.call) or "the next call is the same, or differs in no text"


def _accepted(session: Session) -> Iterator[CallRef]:
    """The calls that were carried out, in the order of their results."""
    for ref in calls_in_order(session):
        if ref.result is not None and not is_error(ref.call, ref.result):
            yield ref


def _parted(wrong: ToolCall, right: ToolCall) -> Decision | None:
    """The tool, or the first argument, in which two calls differ."""
    if wrong.name != right.name:
        return Decision(part="tool", wrong=wrong.name, right=(right.name,))
    for name, value in wrong.arguments.items():
        other = right.arguments.get(name)
        if value != other:
            if isinstance(value, str) and isinstance(other, str) and value and other:
                return Decision(part="value", argument=name, wrong=value, right=(other,))
            return None
    return None


def _fixed(session: Session, ref: CallRef) -> Decision | None:
    """The new text of an edit, against the same text with the first later edit of it carried
    out."""
    name = edit_argument(ref.call, "new")
    if name is None:
        return None
    wrong = str(ref.call.arguments[name])
    for later in _accepted(session):
        if later.turn <= ref.turn or path_in_call(later.call) != path_in_call(ref.call):
            continue
        old, new = (edit_argument(later.call, side) for side in ("old", "new"))
        if old is None or new is None:
            continue
        text, fixed = str(later.call.arguments[old]), str(later.call.arguments[new])
        if text and text in wrong:
            right = wrong.replace(text, fixed, 1)
            return Decision(part="value", argument=name, wrong=wrong, right=(right,))
    return None


def decide(work: Path) -> dict[str, dict[str, Any]]:
    """Give the hints of these kinds their decisions, in the work folder; what became of each kind:
    sites, hints, those that the audit could measure, those measured here, and why others are
    not."""
    kept = work / "kinds.json"
    if kept.exists():
        return json.loads(kept.read_text("utf-8"))
    sites = [site for site in read_sites(work / "sites.jsonl") if site.kind in KINDS]
    site_of = {site.id: site for site in sites}
    hints = {h.site_id: h for h in read_hints(work / "hints.jsonl") if h.site_id in site_of}
    counts = {kind: Counter[str]() for kind in KINDS}
    for site in sites:
        counts[site.kind].update(sites=1, hints=int(site.id in hints))
    decided: list[Hint] = []
    for session in read_sessions(work / "sessions.jsonl"):
        for hint in [h for i, h in hints.items() if site_of[i].session_id == session.id]:
            count, own = counts[hint.kind], hint.decision
            count["for_the_audit"] += int(own is not None and bool(own.right))
            found = next_decision(session, site_of[hint.site_id])
            if isinstance(found, str):
                count[found] += 1
            else:
                count["for_this"] += 1
                decided.append(replace(hint, decision=found))
    write_lines(work / "hints.jsonl", (record_to_json(hint) for hint in decided))
    value = {kind: dict(count) for kind, count in counts.items()}
    kept.write_text(json.dumps(value, indent=1), "utf-8")
    return value


def wordings_of(hints: Sequence[Hint], renderer: Renderer) -> dict[str, list[Hint]]:
    """The hints, text without information, and three other sites' hints for each site."""
    sets = {NOW: list(hints), NEUTRAL: neutral_hints(hints, renderer)}
    for number in range(NUM_DONORS):
        sets[f"donor{number}"] = [replace(h, text=donors_of(h, hints)[number].text) for h in hints]
    return sets


def donors_of(hint: Hint, hints: Sequence[Hint]) -> list[Hint]:
    """Hints of other sessions, in an order that does not depend on the machine."""
    own = hint.site_id.split(":")[0]
    others = [h for h in hints if h.site_id.split(":")[0] != own and h.text != hint.text]
    return sorted(
        others, key=lambda h: hashlib.sha256(f"{hint.site_id} {h.site_id}".encode()).hexdigest()
    )


def with_donors(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record in which the other sites' hints are the donors of the hint."""
    values = {
        f"{NOW}/system/{key.partition('/')[0]}" if key.startswith("donor") else key: value
        for key, value in record["log_odds"].items()
    }
    return {**record, "log_odds": values}


def main(arguments: Sequence[str]) -> int:
    """Prepare, measure, summarise, write; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--model", action="append", required=True, metavar="NAME=FOLDER:FAMILY")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "real_signals")
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after this time")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    until = time.monotonic() + 60 * options.minutes
    about = prepare(options.folders, options.work, settings=SETTINGS)
    about = {i: {**entry, "group": GROUP} for i, entry in about.items()}
    kinds = decide(options.work)
    what = {"dtype": "bfloat16", "max_tokens": MAX_TOKENS, "donors": NUM_DONORS, "kinds": kinds}
    models = models_of(options.json, what)
    for entry in options.model:
        name, _, rest = entry.partition("=")
        folder, _, family = rest.rpartition(":")
        measured, planned = measure(
            name,
            folder,
            family,
            work=options.work,
            until=until,
            sets_of=wordings_of,
            max_tokens=MAX_TOKENS,
        )
        records = [with_donors(record) for record in measured]
        models[name] = {
            "family": family,
            "sites_planned": planned,
            "rows": summarise_rows(records, about),
            "sites": [
                {**record, "session": about[record["session"]]["cluster"][:8]}
                | {"repository": about[record["session"]]["repository"]}
                for record in records
            ],
        }
        for row in models[name]["rows"]:
            if row["contrast"] in (f"{NOW}/system - {DONORS}", f"{NOW}/system - {NEUTRAL}"):
                print(row, flush=True)
    value = {"about": what, "models": models}
    options.json.write_text(record_lines(value, depth=5) + "\n", "utf-8")
    print(f"real: wrote {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
