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

    python benchmarks/real_signals.py --twins 41 --work build/real_twins \\
        --json benchmarks/results/real_twins.json \\
        --model smollm2=build/real/folders/smollm2:chatml-tools

reads the twins of kinds_twins.py instead (twins/world.py), in fresh sessions of a seed that nothing
was chosen on. What is right there is known by construction: the message of the scripted player that
does not follow its habit. Contexts and donors are those of real_hints.py, in float32.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from real_hints import MAX_TOKENS as TWIN_TOKENS
from real_hints import NEUTRAL, NOW, NUM_DONORS, neutral_hints, parser_of, prepare, read_models
from real_hints import measure as read_sites_of
from real_wordings import measure
from twins.record import write_scripted
from twins.world import KINDS as TWIN_KINDS

from composer_replication.core.codec import (
    read_hints,
    read_sessions,
    read_sites,
    record_to_json,
    turn_from_json,
    turn_to_json,
)
from composer_replication.core.config.data_settings import HintsSettings, SitesSettings
from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.core.site import Decision, Hint, Site
from composer_replication.core.trace import CallRef, Session, ToolCall, Turn
from composer_replication.data.hints.region import edit_argument
from composer_replication.data.hints.templates import fill
from composer_replication.data.sites.call_verdict import is_error
from composer_replication.data.sites.file_lines import calls_in_order, path_in_call
from composer_replication.tokens.renderer import Renderer

KINDS = (
    "user_rejected",
    "user_interrupted",
    "user_corrected",
    "taken_back",
    "broke_check",
    "wasted_call",
)
SETTINGS = SitesSettings(train_kinds=KINDS, min_confidence=0.0)
TWIN_SITES = SitesSettings(train_kinds=TWIN_KINDS, min_confidence=0.3)
TWIN_HINTS = HintsSettings(writers={"taken_back": "taken_back_later"})
"""As in kinds_twins.py: by default a twin of taken_back has no hint."""
REASON = "wrong file, put it back"
REASONS = {
    "reason": fill("taken_back_words", words=REASON),
    "reason, file named": "What this step is about to change in {name} was taken back. The user, on"
    f" that: {REASON}",
}
"""What the default writer says of an edit that was taken back, now and until this was measured."""
GROUP, TWINS = "all repositories", "twins"
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


def twin_logs(work: Path, *, seed: int, num_each: int) -> Path:
    """The folder of fresh logs of the twins, in which every mistake that is possible is made, with
    a manifest, and beside it the message that would have been right in each (by folder)."""
    folder = work / "logs"
    if not folder.exists():
        logs = write_scripted(folder, seed=seed, num_each=num_each)
        entries = [{"file": log.path.name, "repository": TWINS} for log in logs]
        write_json(folder / "manifest.json", {"files": entries})
        rights = {
            f"/twins/{log.task.id}": turn_to_json(log.right)
            for log in logs
            if log.right is not None
        }
        write_json(work / "rights.json", rights)
    return folder


def twin_rights(work: Path) -> dict[str, Turn]:
    """Site id -> the message that would have been right there."""
    right_of = json.loads((work / "rights.json").read_text("utf-8"))
    cwd_of = {session.id: session.cwd for session in read_sessions(work / "sessions.jsonl")}
    return {
        site.id: turn_from_json(right_of[cwd_of[site.session_id]])
        for site in read_sites(work / "sites.jsonl")
        if site.is_target
    }


def twin_counts(work: Path) -> dict[str, dict[str, Any]]:
    """For each kind how many sites and hints the twins have, by the rule that found the site."""
    counts: dict[str, dict[str, Any]] = {
        kind: {"sites": 0, "hints": 0, "rules": {}} for kind in KINDS
    }
    hinted = {hint.site_id for hint in read_hints(work / "hints.jsonl")}
    for site in read_sites(work / "sites.jsonl"):
        if site.is_target and site.kind in counts:
            count = counts[site.kind]
            count["sites"] += 1
            count["hints"] += site.id in hinted
            count["rules"][site.rule] = count["rules"].get(site.rule, 0) + 1
    return counts


def twin_texts(work: Path) -> dict[str, Path]:
    """Other texts for the twins of taken_back, in which nobody says why: as if a person had."""
    sites = {s.id: s for s in read_sites(work / "sites.jsonl") if s.kind == "taken_back"}
    calls = {
        ref: call
        for session in read_sessions(work / "sessions.jsonl")
        for ref, call in session.calls().items()
    }
    hints = [hint for hint in read_hints(work / "hints.jsonl") if hint.site_id in sites]
    paths = {}
    for name, text in REASONS.items():
        paths[name] = work / f"hints, {name}.jsonl"
        worded = [
            replace(h, text=text.format(name=path_in_call(calls[sites[h.site_id].call_id].call)))
            for h in hints
        ]
        write_lines(paths[name], (record_to_json(hint) for hint in worded))
    return paths


def read_twins(options: argparse.Namespace) -> int:
    """Measure the twins, where what would have been right is known by construction."""
    folder = twin_logs(options.work, seed=options.twins, num_each=options.num_each)
    about = prepare([folder], options.work, settings=TWIN_SITES, writing=TWIN_HINTS)
    about = {i: {**entry, "group": TWINS} for i, entry in about.items()}
    what = {
        "seed": options.twins,
        "tasks_each": options.num_each,
        "dtype": "float32",
        "max_tokens": TWIN_TOKENS,
        "donors": NUM_DONORS,
        "kinds": twin_counts(options.work),
        "reasons": REASONS,
    }
    rights, texts = twin_rights(options.work), twin_texts(options.work)
    measured_by = partial(read_sites_of, work=options.work, texts=texts, rights=rights)
    return read_models(options, what=what, about=about, measured_by=measured_by, keys=())


def main(arguments: Sequence[str]) -> int:
    """Prepare, measure, summarise, write; returns the exit code."""
    parser = parser_of(__doc__, name="real_signals")
    parser.add_argument("--twins", type=int, metavar="SEED", help="the twins in place of folders")
    parser.add_argument("--num-each", type=int, default=20, help="tasks of each kind of twin")
    options = parser.parse_args(arguments)
    if options.twins is not None:
        return read_twins(options)
    about = prepare(options.folders, options.work, settings=SETTINGS)
    about = {i: {**entry, "group": GROUP} for i, entry in about.items()}
    kinds = decide(options.work)
    what = {"dtype": "bfloat16", "max_tokens": MAX_TOKENS, "donors": NUM_DONORS, "kinds": kinds}

    def measured_by(name: str, folder: str, family: str, *, until: float) -> Any:
        records, planned = measure(
            name,
            folder,
            family,
            work=options.work,
            until=until,
            sets_of=wordings_of,
            max_tokens=MAX_TOKENS,
        )
        return [with_donors(record) for record in records], planned

    return read_models(
        options, what=what, about=about, measured_by=measured_by, keys=("repository",)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
