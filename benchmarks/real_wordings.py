"""Which wording of a hint moves a real model most from the mistake to what is right? Log-odds at
the decision, without any training, on the sessions of real_hints.py.

    python benchmarks/real_wordings.py FOLDER... --work build/real_hints \\
        --model smollm2=build/real/folders/smollm2:chatml-tools --minutes 40

Every wording stands as a system message above the mistaken message, at the same sites: those whose
right and wrong texts are known. The wording is chosen on the repositories of "train", what it does
is reported on "held_out"; the sites come in the order of a hash, so a run that is cut off has seen
a random part of them, and goes on. In bfloat16. Writes benchmarks/results/real_wordings.json, in
which the models of earlier runs stay.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from real_hints import (
    MAX_TOKENS,
    NEUTRAL,
    NONE,
    NOW,
    SEED,
    in_hash_order,
    neutral_hints,
    parser_of,
    prepare,
    read_models,
    row_with,
    views_of,
)

from composer_replication.core.codec import read_hints, read_sites
from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.site import Hint
from composer_replication.evaluation.decision_lift import log_odds, row_states, score_states
from composer_replication.models.forward import scoring
from composer_replication.models.load_student import load_student
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer

ROOT = Path(__file__).resolve().parent.parent
WORDINGS: Mapping[str, str] = {
    "right": "Use {right}.",
    "right, not wrong": "Use {right}, not {wrong}.",
    "do not": "Do not use {wrong}.",
    "no operand": "Check this call before you make it.",
}
"""Beside "now", which is what `recompose hints` writes for the site."""


def worded(hints: Sequence[Hint], text: str) -> list[Hint]:
    """The hints with the right and the wrong text of their decision put into `text`."""
    return [
        replace(hint, text=text.format(right=d.right[0], wrong=d.wrong))
        for hint in hints
        if (d := hint.decision) is not None
    ]


def wordings_of(hints: Sequence[Hint], renderer: Renderer) -> dict[str, list[Hint]]:
    """The hints in every wording."""
    sets = {NOW: list(hints), NEUTRAL: neutral_hints(hints, renderer)}
    return sets | {wording: worded(hints, text) for wording, text in WORDINGS.items()}


def measure(
    name: str,
    folder: str,
    family: str,
    *,
    work: Path,
    until: float,
    sets_of: Callable[[Sequence[Hint], Renderer], Mapping[str, list[Hint]]] = wordings_of,
    max_tokens: int = MAX_TOKENS,
) -> tuple[list[dict[str, Any]], int]:
    """The log-odds of every wording at the sites, as far as they were measured before `until`; and
    how many sites there are. Kept in the work folder, line by line."""
    import torch

    torch.set_num_threads(1)
    kept = work / f"worded_{name}.jsonl"
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
    records = {record["site"]: record for record in map(json.loads, lines)}
    tokenizer = load_tokenizer(folder)
    renderer = Renderer.for_tokenizer(tokenizer, family=family)
    session_of = {site.id: site.session_id for site in read_sites(work / "sites.jsonl")}
    hints = [
        hint
        for hint in read_hints(work / "hints.jsonl")
        if hint.decision is not None and hint.decision.right and hint.decision.wrong
    ]
    kind_of = {hint.site_id: hint.kind for hint in hints}
    sets = sets_of(hints, renderer)
    views = {
        wording: views_of(work, own, renderer, "system", max_tokens=max_tokens)
        for wording, own in sets.items()
    }
    common = in_hash_order([s for s in views[NOW] if all(s in v for v in views.values())])
    print(f"{name}: {len(common)} sites, {len(records)} of them measured", flush=True)
    settings = StudentSettings(model=folder, dtype="bfloat16")
    student = load_student(settings, tokenizer=tokenizer, seed=SEED)
    with scoring(student.model), kept.open("a", encoding="utf-8") as out:
        for site_id in common:
            if site_id in records or time.monotonic() > until:
                continue
            rows = {NONE: row_with(*views[NOW][site_id], ())}
            for wording, by_site in views.items():
                example, view = by_site[site_id]
                rows[f"{wording}/system"] = row_with(example, view, view.hint_ids)
            contexts = list(rows.values())
            hidden_ND = row_states(
                student.model,
                contexts,
                pad_id=student.pad_id,
                max_tokens=2 * max_tokens,
                layout="tree",
            )
            logps = score_states(student.model, contexts, hidden_ND)
            decisions = views[NOW][site_id][1].decisions
            values = {
                key: round(log_odds(logp_N, decisions)[0], 5)
                for key, logp_N in zip(rows, logps, strict=True)
            }
            records[site_id] = {
                "site": site_id,
                "kind": kind_of[site_id],
                "session": session_of[site_id],
                "log_odds": values,
            }
            out.write(json.dumps(records[site_id]) + "\n")
            out.flush()
            if len(records) % 10 == 0:
                print(f"{name}: {len(records)} sites", flush=True)
    return [records[site_id] for site_id in common if site_id in records], len(common)


def main(arguments: Sequence[str]) -> int:
    """Prepare, measure, summarise, write; returns the exit code."""
    parser = parser_of(__doc__, name="real_wordings")
    parser.set_defaults(work=ROOT / "build" / "real_hints")
    options = parser.parse_args(arguments)
    return read_models(
        options,
        what={"dtype": "bfloat16", "max_tokens": MAX_TOKENS, "wordings": dict(WORDINGS)},
        about=prepare(options.folders, options.work),
        measured_by=partial(measure, work=options.work),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
