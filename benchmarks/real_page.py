"""Write docs/evidence_real.md from what the benchmarks on real models measured.

    python benchmarks/real_page.py            write the page from benchmarks/results/real_*.json
    python benchmarks/real_page.py --check    fail if the page does not match these files

A part whose file is missing is said not to have been run. Every number of the page comes from a
file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from real_logs_section import logs_in_words, logs_section, seeds_of
from real_messages_section import messages_in_words, messages_section
from real_signals_section import signals_section, twins_in_words
from real_tables import in_words, interval, table
from real_workshop_section import (
    MORE_SFT,
    cost_of_gemma,
    seeds_in_words,
    workshop_in_words,
    workshop_section,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs") / "evidence_real.md"
RESULTS = Path("benchmarks") / "results"
Json = Mapping[str, Any]
NOW, EARLIER = "now/system", "earlier/system"
OTHERS, NEUTRAL, NONE = "other sites' hints", "neutral", "none"
POSITIONS = ("system", "user", "reminder", "result")
WORKSHOPS = ("real_workshop", "real_workshop_restarted")
ARMS, SEEDS = ("before", "more_sft", "placebo", "after"), ("11", "12", "13")
"""Planned for the workshop, and for every training."""
HEAD = """# Evidence on real weights

Written by `python benchmarks/real_page.py` from `benchmarks/results/real_*.json`; do not edit.
`python benchmarks/real_page.py --check` fails if this page is stale. The evidence on the toy
student is in [evidence.md](evidence.md).

The models are the two that are available without a hub (`make real`): SmolLM2-135M-Instruct and
Gemma 3 270M (base). They are far smaller than anything that a person would serve as a coding
agent, and neither was made for tool calls. This page shows whether the machinery acts on
real weights as intended, and how much of that is measurable at this size.

**Summary:**

{summary}
"""
HINTS_HEAD = """## Does a real model follow the hints?

Nothing is trained here. At each site, the logged message is scored up to the first token at
which it can no longer become right. The log-odds of right against wrong at that token are compared
between contexts (`recompose hints --audit` measures the same). Positive is good. Sites without a
known right side are left out.

- **Sites**: those of {sessions} sessions of {repositories} public repositories.
- **Split**: by the hash of the repository's name. Wordings and positions were meant to be chosen on
  *train*. Quote the results on *held out*.
- **Intervals**: 95 %, by bootstrap over sessions. There is no correction for multiple comparisons.
- **Setup**: windows of {max_tokens} tokens, float32.

Four caveats:

- A mean over all sites can hide a kind of mistake whose hints do harm. Read the tables by kind,
  too.
- The current wordings were chosen on constructed sites and on sessions of entireio/cli, which is in
  *train*. No text was fitted to log-odds of the held-out repositories. But some of their sessions
  had been read earlier in the search for wrong hints, so they are held out from training, not
  unseen.
- A hint often names the tool that is scored as right. So part of its lift is that the name is in
  the context. This is what a hint is for, and not evidence that the model understood the mistake.
- The log-odds are of the first token at which right and wrong diverge, not of a whole message.

What was changed after a first look:

- Edits whose text is in view had been scored as if reading again were right, although their hint
  says to copy the text. They now have no known right side and are left out. With them, SmolLM2's
  lift on held-out repositories was +0.85 [+0.05, +1.71] over other sites' hints, for 59 sites.
- All numbers use the hints and decisions of commit 6920c34. Later that day the decisions of refused
  options, of large files and of a few other kinds were corrected, so a new run has a few other
  sites.
"""


def render(root: Path) -> str:
    """The text of the page."""
    hints = _read(root, "real_hints")
    logs = [v for name in ("real_logs", "real_logs_float32") if (v := _read(root, name))]
    workshops = [v for name in WORKSHOPS if (v := _read(root, name))]
    gemma = _read(root, "real_gemma")
    worded, messages = _read(root, "real_wordings"), _read(root, "real_messages")
    twins, first = _read(root, "real_twins"), _read(root, "real_twins_41")
    signals = _read(root, "real_signals")
    cost = _read(root, "real_logs_cost")
    what = _what_was_run(hints, logs, workshops, gemma, worded, messages, cost)
    findings = [
        *_summary(hints, logs, workshops),
        *_wordings_in_words(worded),
        *messages_in_words(messages),
        *twins_in_words(twins),
    ]
    parts = [HEAD.format(summary=f"{_bullets(findings)}\n\n{what}")]
    parts.append(_hints(hints) if hints else _not_run("real_hints.py", "whether hints act"))
    parts.append(
        _worded(worded) if worded else _not_run("real_wordings.py", "several wordings of a hint")
    )
    parts.append(
        messages_section(messages)
        if messages
        else _not_run("real_messages.py", "what models write at the mistakes")
    )
    parts.append(
        signals_section(twins, first, signals)
        if twins and first and signals
        else _not_run("real_signals.py", "mistakes that no tool reports")
    )
    parts.append(
        logs_section(logs) if logs else _not_run("real_logs.py", "training on public sessions")
    )
    parts.append(
        workshop_section(workshops, gemma)
        if workshops
        else _not_run("real_workshop.py", "the workshop's arms")
    )
    return "\n".join(parts)


def _summary(hints: Json | None, logs: Sequence[Json], workshops: Sequence[Json]) -> list[str]:
    """What a model of this size did and did not do, in sentences with the numbers of the files."""
    sentences = []
    for name, model in (hints or {"models": {}})["models"].items():
        rows = {(r["group"], r["kind"], r["contrast"]): r for r in model["rows"]}
        neutral, others = (rows["held_out", "all", f"{NOW} - {base}"] for base in (NEUTRAL, OTHERS))
        sentences.append(
            f"With a hint in its context, {name}"
            f" {in_words(neutral, _MOVES)} the right decision at mistakes in held-out"
            f" repositories: {interval(neutral)} in log-odds over text without information in"
            f" the same place, {interval(others)} over the hints of other sites"
            f" ({neutral['n']} sites)."
        )
    sentences += logs_in_words(logs)
    if not workshops:
        sentences.append("Whether a real model learns the workshop's tasks was not run.")
    sentences += workshop_in_words(workshops)
    sentences.append("No real model is shown to have become a better coding agent.")
    return sentences


def _what_was_run(
    hints: Json | None,
    logs: Sequence[Json],
    workshops: Sequence[Json],
    gemma: Json | None,
    worded: Json | None,
    messages: Json | None,
    cost: Json | None,
) -> str:
    """Which of the planned measurements are on this page, and which are not."""
    done, missing = [], []
    if hints:
        done.append(f"whether hints act, on {_listed(list(hints['models']))}, without any training")
    if worded:
        done.append(f"several wordings of a hint, on {_listed(list(worded['models']))}")
    models = list((messages or {"models": {}})["models"])
    if models:
        done.append(
            f"messages at held-out mistakes, with the hint and without, by {_listed(models)},"
            " without any training"
        )
    if rest := sorted({*(hints or {"models": {}})["models"]} - {*models}):
        missing.append(f"messages at held-out mistakes, by {_listed(rest)}, without any training")
    if rest := sorted(
        set((hints or {"models": {}})["models"]) - set((worded or {}).get("models", ()))
    ):
        missing.append(f"several wordings of a hint, on {_listed(rest)}")
    for value in logs:
        done.append(
            f"SmolLM2 trained on public sessions in {value['about'].get('dtype', 'bfloat16')}, with"
            f" {seeds_in_words(seeds_of(value))}"
        )
    if rest := sorted(set(SEEDS) - {seed for value in logs for seed in seeds_of(value)}):
        missing.append(
            f"the training on public sessions with {seeds_in_words(rest)}{_cost_of_logs(cost)}"
        )
    if logs:
        missing.append(
            "whole messages of the students of that training: only the token at the decision was"
            " looked at"
        )
    for number, value in enumerate(workshops):
        start = " from a second start" if number else ""
        by_seeds: dict[str, list[str]] = {}
        for row in sorted(value["rows"], key=lambda row: ARMS.index(row["name"])):
            seeds = seeds_in_words([*row["by_seed"]])
            by_seeds.setdefault(seeds, []).append(f"`{row['name']}`")
        done += [
            f"SmolLM2 in the workshop{start}, {_listed(names)}, with {seeds}"
            for seeds, names in by_seeds.items()
        ]
    if not any(row["name"] == MORE_SFT for value in workshops for row in value["rows"]):
        missing.append(
            "plain fine-tuning in the workshop (`more_sft`), so nothing here says whether the"
            " channels do better than more of the same logs"
        )
    missing.append(
        f"Gemma 3 in the workshop{cost_of_gemma(gemma, workshops[0] if workshops else None)}"
    )
    run, not_run = (_bullets([f"{line}." for line in lines]) for lines in (done, missing))
    return f"**Run:**\n\n{run}\n\n**Not run:**\n\n{not_run}"


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line[:1].upper()}{line[1:]}" for line in lines)


def _cost_of_logs(cost: Json | None) -> str:
    """Where the next seed was stopped."""
    if cost is None:
        return ""
    return (
        f" (`{cost['arm']}` with seed {cost['seed']} was stopped after {cost['steps']} of"
        f" {cost['planned']} steps, which took {cost['cpu_s'] / 60:.0f} CPU-minutes in"
        f" {cost['dtype']} on a processor with {cost['processor']}; nothing was measured on it)"
    )


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


_MOVES = ("moves towards", "moves away from", "is not shown to move towards or away from")


def _read(root: Path, name: str) -> Json | None:
    path = root / RESULTS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def _not_run(script: str, what: str) -> str:
    return f"## Not run yet: {what}\n\n`benchmarks/{script}` has not been completed.\n"


def _hints(value: Json) -> str:
    about = value["about"]
    parts = [
        HINTS_HEAD.format(
            sessions=about["sessions"],
            repositories=len(about["repositories"]),
            max_tokens=about["max_tokens"],
        )
    ]
    for name, model in value["models"].items():
        rows = {(r["group"], r["kind"], r["contrast"]): r for r in model["rows"]}
        parts.append(f"### {name} (as `{model['family']}`)\n")
        parts.append(_wordings(rows))
        parts.append(_positions(rows))
        parts.append(_kinds(rows))
    return "\n".join(parts)


def _wordings(rows: Mapping[tuple[str, str, str], Json]) -> str:
    lines = [
        (
            group.replace("_", " "),
            label,
            str(row["n"]),
            str(row["sessions"]),
            *(interval(rows.get((group, "all", f"{key} - {b}"))) for b in (OTHERS, NEUTRAL, NONE)),
        )
        for group in ("train", "held_out")
        for key, label in ((EARLIER, "as before 2026-11-23"), (NOW, "now: the right action"))
        if (row := rows.get((group, "all", f"{key} - {NONE}")))
    ]
    head = (
        "repositories",
        "wording",
        "sites",
        "sessions",
        f"over {OTHERS}",
        "over neutral text",
        "over no hint",
    )
    return "Wordings, as a system message directly above the mistake:\n\n" + table(head, lines)


def _positions(rows: Mapping[tuple[str, str, str], Json]) -> str:
    lines = [
        (
            group.replace("_", " "),
            position,
            str(row["n"]),
            interval(row),
            interval(rows.get((group, "all", f"now/{position} - {NONE}"))),
            interval(rows.get((group, "all", f"neutral/{position} - {NONE}"))),
        )
        for group in ("train", "held_out")
        for position in POSITIONS
        if (row := rows.get((group, "all", f"now/{position} - {NEUTRAL}")))
    ]
    head = (
        "repositories",
        "position",
        "sites",
        "over neutral text there",
        "over no hint",
        "neutral text over no hint",
    )
    return "Positions (`hints.position`), current wording:\n\n" + table(head, lines)


def _kinds(rows: Mapping[tuple[str, str, str], Json]) -> str:
    kinds = sorted({kind for _, kind, _ in rows} - {"all"})
    lines = [
        (
            kind,
            str(row["n"]),
            str(row["sessions"]),
            interval(rows.get(("held_out", kind, f"{EARLIER} - {OTHERS}"))),
            interval(rows.get(("held_out", kind, f"{NOW} - {OTHERS}"))),
            interval(rows.get(("held_out", kind, f"now/user - {NEUTRAL}"))),
            f"{row['positive']} of {row['n']}",
        )
        for kind in kinds
        if (row := rows.get(("held_out", kind, f"{NOW} - {OTHERS}")))
    ]
    head = (
        "kind",
        "sites",
        "sessions",
        f"wording before, over {OTHERS}",
        f"now, over {OTHERS}",
        "now, as a user message, over neutral text there",
        f"above {OTHERS}",
    )
    return "By kind, held-out repositories:\n\n" + table(head, lines)


def _worded(value: Json) -> str:
    about = value["about"]
    texts = "; ".join(f"*{name}*: `{text}`" for name, text in about["wordings"].items())
    parts = [
        "## Which wording?\n\n"
        "Again without training. The table has the log-odds of right against wrong at the"
        " decision, for several wordings at the same sites. Each is a system message directly above"
        " the mistake. *now* is what"
        f" `recompose hints` writes for the site; the others are templates: {texts}. The sites are"
        " those whose right and wrong texts are both known, in the order of a hash; windows of"
        f" {about['max_tokens']} tokens, {about['dtype']}. A text that names the right tool makes"
        " it likelier partly because the name is in the context, and so does one that names the"
        " wrong tool. That is what is compared here.\n"
    ]
    for name, model in value["models"].items():
        rows = {(r["group"], r["contrast"]): r for r in model["rows"] if r["kind"] == "all"}
        wordings = ("now", *about["wordings"])
        key = "{}/system - neutral".format
        train = {w: row for w in wordings if (row := rows.get(("train", key(w))))}
        chosen = max(train, key=lambda w: train[w]["mean"]) if train else None
        parts.append(
            f"### {name} (as `{model['family']}`), {len(model['sites'])} of"
            f" {model['sites_planned']} sites\n"
        )
        if chosen and (row := rows.get(("held_out", key(chosen)))):
            parts.append(
                f"Chosen on *train*: *{chosen}*. On held out it moves the log-odds by"
                f" {interval(row)} over text without information ({row['n']} sites).\n"
            )
        lines = [
            (
                group.replace("_", " "),
                wording,
                str(row["n"]),
                str(row["sessions"]),
                interval(row),
                interval(rows.get((group, f"{wording}/system - {NONE}"))),
                f"{row['positive']} of {row['n']}",
            )
            for group in ("train", "held_out")
            for wording in wordings
            if (row := rows.get((group, key(wording))))
        ]
        head = ("repositories", "wording", "sites", "sessions", "over neutral text")
        parts.append(table((*head, "over no hint", "above neutral text"), lines))
    return "\n".join(parts)


def _wordings_in_words(value: Json | None) -> list[str]:
    """The wordings that move a model away from what is right, on held-out repositories."""
    return [
        f"A hint in the words `{text}` moves {name} away from what is right: {interval(row)} over"
        f" text without information ({row['n']} sites, held out)."
        for name, model in (value or {"models": {}})["models"].items()
        for wording, text in (value or {})["about"]["wordings"].items()
        for row in model["rows"]
        if (row["group"], row["kind"]) == ("held_out", "all")
        if row["contrast"] == f"{wording}/system - {NEUTRAL}"
        if row["high"] is not None and row["high"] < 0
    ]


def main(arguments: Sequence[str], *, root: Path = ROOT) -> int:
    """Write or check the page; returns the exit code."""
    text, path = render(root), root / PAGE
    if "--check" in arguments:
        fresh = path.exists() and path.read_text("utf-8") == text
        print(f"real page: {PAGE} is {'what its JSON says' if fresh else 'stale'}")
        return 0 if fresh else 1
    path.write_text(text, "utf-8")
    print(f"real page: wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
