"""What does a real model write at the mistakes of public sessions, with the hint and without? Does
it repeat the mistake? Nothing is trained.

    python benchmarks/real_messages.py FOLDER... --work build/real_hints \\
        --model smollm2=build/real/folders/smollm2:chatml-tools --minutes 40

real_hints.py compares the probabilities of two tokens; here the model's own choice counts, at the
sites of the held-out repositories. It reads no hint, the site's own, or that of another site, as a
system message above the mistake. First: which token does it write behind the log's message, where
right and wrong part? Then, at the sites whose kind can be judged: which message does it write, and
how does it go on from the log's message ("decision")? The most probable token is taken each time,
and the static check of `recompose evaluate --logs` reads the messages; nothing is run.
Any folder can be a --model, a student of real_logs.py too. Sites come in the order of a hash, and
what was measured is kept in the work folder: a run that was cut off goes on. The text is not kept.
Writes benchmarks/results/real_messages.json, in which the models of earlier runs stay.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from real_hints import in_hash_order, models_of, parser_of, prepare, views_of
from record_lines import record_lines
from workshop_evidence.training import checked_out_commit

from composer_replication.core.codec import (
    read_hints,
    read_sessions,
    read_sites,
    record_to_json,
    write_sessions,
)
from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.jsonl import write_lines
from composer_replication.core.trace import Sampled, ToolSpec
from composer_replication.evaluation.stats import bootstrap_mean
from composer_replication.models.forward import scoring
from composer_replication.models.load_student import load_student
from composer_replication.rollouts.chat_format import ChatFormat
from composer_replication.rollouts.ragged import RaggedCache
from composer_replication.rollouts.static_check import OUTCOMES, Checked, SiteCheck, ToolFacts
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.hint_donors import several_donors
from composer_replication.tokens.renderer import Renderer

ROOT = Path(__file__).resolve().parent.parent
GROUP, MAX_TOKENS, SEED = "held_out", 2048, 20261128
NEW_TOKENS = 96
"""At which a message is cut off; the most probable token is taken each time."""
NONE, NOW, OTHER = "none", "now", "other"
KINDS = ("bad_arguments", "edit_not_read", "edit_stale", "file_missing", "unknown_tool")
"""Those of which the static check can say both that the mistake is there and that it is absent."""
CONTEXTS, BEGINS = (NONE, NOW, OTHER), ("start", "decision")
DECISIONS = ("right", "wrong", "neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A site: what stands above its message, the ids of two hints and where they go, how the log's
    message begins, the token behind it and those that lead on to something right, and the check of
    what is written instead."""

    site_id: str
    kind: str
    session_id: str
    above: tuple[int, ...]
    at: int
    hints: Mapping[str, tuple[int, ...]]
    opening: tuple[int, ...]
    wrong: int
    right: tuple[int, ...]
    tools: tuple[ToolSpec, ...]
    check: SiteCheck

    def context(self, name: str) -> list[int]:
        """The ids that the model reads in a context, up to the message."""
        return [*self.above[: self.at], *self.hints[name], *self.above[self.at :]]


def places_of(work: Path, renderer: Renderer) -> list[Place]:
    """The sites whose right decision is known and whose mistake was a call, in the order of a
    hash."""
    part = part_of(work)
    hints = list(read_hints(part / "hints.jsonl"))
    kind_of = {hint.site_id: hint.kind for hint in hints}
    views = views_of(part, hints, renderer, "system", max_tokens=MAX_TOKENS)
    sites = {s.id: s for s in read_sites(part / "sites.jsonl") if s.call_id is not None}
    sessions = {session.id: session for session in read_sessions(part / "sessions.jsonl")}
    ids = in_hash_order([i for i in views if i in sites])
    donors = several_donors(
        [views[i][1] for i in ids],
        [views[i][0].session_id for i in ids],
        seed=stage_seed(SEED, "donors"),
        count=1,
    )
    tools = {name: ToolFacts.of(session) for name, session in sessions.items()}
    places = []
    for number, site_id in enumerate(ids):
        example, view = views[site_id]
        session = sessions[sites[site_id].session_id]
        fork, right = max((d.fork, d.right_ids) for d in view.decisions if d.fork is not None)
        (donor,) = donors[number]
        start = view.span[0]
        places.append(
            Place(
                site_id=site_id,
                kind=kind_of[site_id],
                session_id=session.id,
                above=tuple(example.ids[:start]),
                at=view.at,
                hints={NONE: (), NOW: view.hint_ids, OTHER: views[ids[donor]][1].hint_ids},
                opening=tuple(example.ids[start:fork]),
                wrong=example.ids[fork],
                right=tuple(right),
                tools=session.tools,
                check=SiteCheck.of(session, sites[site_id], tools=tools[session.id]),
            )
        )
    return places


def part_of(work: Path) -> Path:
    """A work folder with the sessions of the group alone, of those with a hint: only they are
    rendered. What is built from a session does not depend on the others."""
    part = work / GROUP
    if not (part / "hints.jsonl").exists():
        part.mkdir(exist_ok=True)
        about = json.loads((work / "sessions_about.json").read_text("utf-8"))
        sites = list(read_sites(work / "sites.jsonl"))
        session_of = {site.id: site.session_id for site in sites}
        hints = [
            hint
            for hint in read_hints(work / "hints.jsonl")
            if about[session_of[hint.site_id]]["group"] == GROUP
        ]
        used = {session_of[hint.site_id] for hint in hints}
        sessions = [s for s in read_sessions(work / "sessions.jsonl") if s.id in used]
        own = (record_to_json(site) for site in sites if site.session_id in used)
        write_sessions(part / "sessions.jsonl", sessions)
        write_lines(part / "sites.jsonl", own)
        write_lines(part / "hints.jsonl", map(record_to_json, hints))
    return part


def decided_at(place: Place, model: Any) -> dict[str, str]:
    """The most probable token behind the log's message up to the decision, in every context:
    "right", "wrong" or "neither"."""
    rows = [place.context(name) + list(place.opening) for name in CONTEXTS]
    with scoring(model):
        tokens = RaggedCache(model, num_rows=len(rows)).feed(rows).argmax(dim=-1).tolist()
    return {
        name: "right" if token in place.right else "wrong" if token == place.wrong else "neither"
        for name, token in zip(CONTEXTS, tokens, strict=True)
    }


def written_at(place: Place, model: Any, chat_format: ChatFormat) -> dict[str, Checked]:
    """The verdicts on the messages that the model writes at a site, e.g. of "decision/now"."""
    rows = list(itertools.product(BEGINS, CONTEXTS))
    written = [list(place.opening) if begin == "decision" else [] for begin, _ in rows]
    most = [len(ids) + NEW_TOKENS for ids in written]
    stop, is_open = chat_format.stop_ids(model), [True] * len(rows)
    new_ids = [place.context(name) + ids for (_, name), ids in zip(rows, written, strict=True)]
    with scoring(model):
        cache = RaggedCache(model, num_rows=len(rows))
        while any(is_open):
            for row, token in enumerate(cache.feed(new_ids).argmax(dim=-1).tolist()):
                if is_open[row]:
                    written[row].append(token)
                    is_open[row] = token not in stop and len(written[row]) < most[row]
            new_ids = [ids[-1:] if is_open[row] else [] for row, ids in enumerate(written)]
    verdicts: dict[str, Checked] = {}
    for (begin, name), ids in zip(rows, written, strict=True):
        message = chat_format.read_message(
            Sampled(ids=tuple(ids), logprobs=(0.0,) * len(ids)),
            ended=ids[-1] in stop,
            tools=place.tools,
            call_ids=(f"written-{number}" for number in itertools.count()),
            position=len(place.above),
            max_calls=100,
        )
        verdicts[f"{begin}/{name}"] = place.check.message(message.turn)
    return verdicts


def measure(
    name: str, folder: str, family: str, *, work: Path, until: float
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """What was decided and written at the sites that were reached before `until`, and how many
    sites there are for each; kept in the work folder, line by line."""
    torch.set_num_threads(1)
    made = work / f"places_{family}_{MAX_TOKENS}.pickle"
    kept = work / f"messages_{name}_{MAX_TOKENS}_{NEW_TOKENS}.jsonl"
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
    records = {(r["site"], "outcomes" in r): r for r in map(json.loads, lines)}
    tokenizer = load_tokenizer(folder)
    renderer = Renderer.for_tokenizer(tokenizer, family=family)
    if not made.exists():
        made.write_bytes(pickle.dumps(places_of(work, renderer)))
    places: list[Place] = pickle.loads(made.read_bytes())
    print(f"{name}: {len(places)} sites, {len(records)} records", flush=True)
    settings = StudentSettings(model=folder, dtype="float32")
    model = load_student(settings, tokenizer=tokenizer, seed=SEED).model
    chat_format = ChatFormat.of(renderer, author=name)
    plan = [(place, False) for place in places]
    plan += [(place, True) for place in places if place.kind in KINDS]
    with kept.open("a", encoding="utf-8") as out:
        for place, writes in plan:
            if (place.site_id, writes) in records or time.monotonic() > until:
                continue
            record: dict[str, Any] = {"site": place.site_id, "kind": place.kind}
            record["session"] = place.session_id
            if writes:
                verdicts = written_at(place, model, chat_format)
                record["outcomes"] = {c: verdict.outcome for c, verdict in verdicts.items()}
                record["reasons"] = {c: verdict.reason for c, verdict in verdicts.items()}
            else:
                record["decides"] = decided_at(place, model)
            records[place.site_id, writes] = record
            out.write(json.dumps(record) + "\n")
            out.flush()
            print(f"{name}: {len(records)} of {len(plan)} records", flush=True)
    planned = {"decides": len(places), "writes": len(plan) - len(places)}
    return [records[p.site_id, w] for p, w in plan if (p.site_id, w) in records], planned


def summarise(
    records: Sequence[Mapping[str, Any]], about: Mapping[str, Mapping[str, str]]
) -> list[dict[str, Any]]:
    """The share of each decision and verdict in every context, and the paired differences between
    contexts, with intervals over sessions."""
    decides = [r for r in records if "decides" in r]
    writes = [r for r in records if "outcomes" in r]
    rows = [
        _row(decides, about, what="decides", prefix="", value=value)
        for value in DECISIONS
        if decides
    ]
    return rows + [
        _row(writes, about, what="outcomes", prefix=f"{begin}/", value=outcome)
        for begin, outcome in itertools.product(BEGINS, OUTCOMES)
        if writes
    ]


def _row(
    records: Sequence[Mapping[str, Any]],
    about: Mapping[str, Mapping[str, str]],
    *,
    what: str,
    prefix: str,
    value: str,
) -> dict[str, Any]:
    clusters = [about[record["session"]]["cluster"] for record in records]
    is_value = {
        name: [float(record[what][prefix + name] == value) for record in records]
        for name in CONTEXTS
    }
    row: dict[str, Any] = {
        "what": prefix.rstrip("/") or what,
        "value": value,
        "n": len(records),
        "sessions": len(set(clusters)),
        "shares": {name: round(sum(of) / len(of), 4) for name, of in is_value.items()},
    }
    for base in (NONE, OTHER):
        differences = [a - b for a, b in zip(is_value[NOW], is_value[base], strict=True)]
        seed = stage_seed(SEED, f"{row['what']}:{value}:{base}")
        interval = bootstrap_mean(differences, clusters, seed=seed)
        row[f"over {base}"] = {
            "mean": round(interval.mean, 4),
            "low": None if interval.low is None else round(interval.low, 4),
            "high": None if interval.high is None else round(interval.high, 4),
        }
    return row


def main(arguments: Sequence[str]) -> int:
    """Prepare, write messages, check them, summarise; returns the exit code."""
    parser = parser_of(__doc__, name="real_messages")
    parser.set_defaults(work=ROOT / "build" / "real_hints")
    options = parser.parse_args(arguments)
    until = time.monotonic() + 60 * options.minutes
    about = prepare(options.folders, options.work)
    what = {
        "max_tokens": MAX_TOKENS,
        "new_tokens": NEW_TOKENS,
        "kinds": list(KINDS),
        "seed": SEED,
        "dtype": "float32",
    }
    models = models_of(options.json, what)
    for entry in options.model:
        name, _, rest = entry.partition("=")
        folder, _, family = rest.rpartition(":")
        records, planned = measure(name, folder, family, work=options.work, until=until)
        models[name] = {
            "family": family,
            "processor": torch.backends.cpu.get_cpu_capability(),
            "commit": checked_out_commit(),
            "versions": {key: metadata.version(key) for key in ("torch", "transformers")},
            "planned": planned,
            "rows": summarise(records, about),
            "records": [
                {**record, "session": about[record["session"]]["cluster"][:8]}
                | {"repository": about[record["session"]]["repository"]}
                for record in records
            ],
        }
    options.json.write_text(
        record_lines({"about": what, "models": models}, depth=5) + "\n", "utf-8"
    )
    print(f"real: wrote {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
