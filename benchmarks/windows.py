"""What the windows of `build` keep for hint views on logs: context, evidence, duplicated targets,
and the distribution of the loss over views.

    python benchmarks/windows.py --logs FOLDER --tokenizer FOLDER --max-tokens 4096 16384

kept / available   tokens above the mistaken messages in their windows, and in the sessions
evidence           views whose window holds every turn that the hint or the mistaken call refers to
                   (data/hints/refers.py), and the turn directly above the mistaken message
something          views with at least one turn between the first human message and the message
                   above the mistaken one
duplicate          share of the hint channel's target tokens that another view holds too, at the
                   same place of the same session
effective views    (sum n)^2 / sum n^2 over views with n target tokens each: the number of equally
                   long views that would share the token mean in the same way

Every view is counted first, including those without their evidence (build.without_evidence =
"keep"), then those of the default settings. The tokenizer is a folder with tokenizer.json; its chat
template is replaced by that of --family. Nothing is trained. JSON with --json FILE.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer_replication.core.config.data_settings import HintsSettings, SitesSettings
from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.redact import Redactor
from composer_replication.core.site import Hint, Site
from composer_replication.core.trace import Session
from composer_replication.data.hints.write import write_hints
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.data.sites.find_sites import find_sites
from composer_replication.tokens.dataset import build_examples
from composer_replication.tokens.example import TrainingExample
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.skipped import Skipped
from composer_replication.tokens.window import head_positions


def facts_of(paths: Sequence[Path]) -> tuple[list[Session], list[Site], list[Hint]]:
    """Sessions, sites and hints of some logs by the default rules."""
    redactor = Redactor(environ={}, key=b"windows")
    sessions = [
        session
        for result in ingest(find_logs(paths), redactor=redactor)
        for session in result.sessions
    ]
    sites = {session.id: find_sites(session, settings=SitesSettings()) for session in sessions}
    hints = [
        h for s in sessions for h in write_hints(s, sites[s.id], settings=HintsSettings()).hints
    ]
    return sessions, [site for session_sites in sites.values() for site in session_sites], hints


def measure(
    facts: tuple[list[Session], list[Site], list[Hint]],
    renderer: Renderer,
    *,
    settings: BuildSettings,
) -> dict[str, Any]:
    """The numbers of one build; a view is measured on the turns of its own example."""
    sessions, sites, hints = facts
    items = list(
        build_examples(sessions, sites=sites, hints=hints, renderer=renderer, settings=settings)
    )
    by_id, site_of = {s.id: s for s in sessions}, {s.id: s for s in sites}
    refers: dict[tuple[str, int], set[int]] = {}
    for hint in hints:
        refers.setdefault(
            (site_of[hint.site_id].session_id, site_of[hint.site_id].turn), set()
        ).update(hint.refers_to)
    counts: Counter[str] = Counter()
    lengths: list[int] = []
    places: Counter[tuple[str, int, int]] = Counter()
    for example in (item for item in items if isinstance(item, TrainingExample)):
        counts["examples"] += 1
        counts["tokens"] += len(example.ids)
        counts["trained_messages"] += len(example.lm_spans)
        for view in example.hints:
            session = by_id[example.session_id]
            turn = site_of[view.site_id].turn
            context = session.context_indices(turn)
            spans = [span for span in example.turns if span.turn < turn or span.turn == turn]
            kept_turns = {span.turn for span in spans if span.turn != turn}
            first = {context[p] for p in head_positions([session.turns[i] for i in context])}
            counts["views"] += 1
            counts["kept"] += view.at
            counts["available"] += view.at + _tokens(
                renderer, session, [i for i in context if i not in kept_turns]
            )
            counts["evidence"] += refers[session.id, turn] | set(context[-1:]) <= kept_turns
            counts["refers"] += bool(refers[session.id, turn])
            counts["something"] += len(kept_turns - first) > 1 or len(kept_turns) == len(context)
            message = next(span for span in spans if span.turn == turn)
            parts = getattr(view, "spans", (view.span,))
            places.update(
                (session.id, turn, token - message.body[0])
                for a, b in parts
                for token in range(a, b)
            )
            lengths.append(len(view.target_ids))
    skipped = Counter[str]()
    for item in items:
        if isinstance(item, Skipped) and item.channel in ("hint", "lm_ce"):
            skipped[f"{item.channel}/{item.reason}"] += item.count
    total = sum(lengths)
    return {
        **counts,
        "target_tokens": total,
        "duplicate": round(1 - len(places) / total, 4) if total else 0.0,
        "effective_views": round(total**2 / sum(n * n for n in lengths), 2) if total else 0.0,
        "largest_share": round(max(lengths) / total, 4) if total else 0.0,
        "top3_share": round(sum(sorted(lengths)[-3:]) / total, 4) if total else 0.0,
        "skipped": dict(sorted(skipped.items())),
    }


def _tokens(renderer: Renderer, session: Session, turns: Sequence[int]) -> int:
    spans = renderer.render([session.turns[i] for i in turns], numbers=turns).spans if turns else ()
    return sum(span.end - span.start for span in spans)


def main() -> int:
    """Read, build, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=Path, nargs="+", required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--family", default="qwen3")
    parser.add_argument("--max-tokens", type=int, nargs="+", default=[4096])
    parser.add_argument("--target", choices=("message", "call"), default="message")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    renderer = Renderer.for_tokenizer(load_tokenizer(str(options.tokenizer)), family=options.family)
    facts = facts_of(options.logs)
    print(f"{len(facts[0])} sessions, {len(facts[1])} sites, {len(facts[2])} hints")
    rows = []
    for max_tokens in options.max_tokens:
        for rule in ("keep", "skip"):
            settings = BuildSettings(
                max_tokens=max_tokens, target=options.target, without_evidence=rule
            )
            row = {
                "max_tokens": max_tokens,
                "without_evidence": rule,
                **measure(facts, renderer, settings=settings),
            }
            rows.append(row)
            print(json.dumps(row))
    if options.json:
        from page import about  # beside this file

        options.json.write_text(
            json.dumps({"about": about(sys.argv), "rows": rows}, indent=1) + "\n", encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
