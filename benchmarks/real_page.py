"""Write docs/evidence_real.md from what the benchmarks on real models measured.

    python benchmarks/real_page.py            write the page from benchmarks/results/real_*.json
    python benchmarks/real_page.py --check    fail if the page does not match these files

A part whose file is missing is said not to have been run. Every number of the page comes from a
file, but for those of two earlier looks, which the text names as such.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from real_defaults_section import defaults_section
from real_hints_section import NEUTRAL, NONE, hints_in_words, hints_section
from real_logs_section import TRAINED, logs_in_words, logs_section, seeds_of
from real_messages_section import messages_in_words, messages_section
from real_newcomer import newcomer
from real_signals_section import signals_section, twins_in_words
from real_tables import interval, table
from real_trial_section import trial_section
from real_workshop_section import (
    GEMMA,
    SMOLLM2,
    cost_of_gemma,
    seeds_in_words,
    workshop_in_words,
    workshop_section,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs") / "evidence_real.md"
RESULTS = Path("benchmarks") / "results"
TOKENIZERS = Path("docs") / "real_models.md"
Json = Mapping[str, Any]
LOGS = ("real_logs", "real_logs_hint", "real_logs_float32", "real_logs_first")
WORKSHOPS = {SMOLLM2: "real_workshop", GEMMA: "real_workshop_gemma"}
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

{newcomer}

**Summary:**

{summary}
"""
COMMANDS = """## Commands

`FOLDER...` are three folders of public sessions, each with its manifest beside it, that
`python scripts/fetch_traces.py FOLDER` fetches: `tests/traces_manifest.json` (the default), and
with `--manifest` `tests/labels/manifest.json` and `benchmarks/real_sessions.json`. Each script says
in its first lines what it does; all go on where they were cut off, except the trial.

```
python scripts/real_models.py
S=smollm2=build/real/folders/smollm2:chatml-tools
G=gemma3-270m=build/real/folders/gemma3-270m:gemma
python benchmarks/real_hints.py FOLDER... --model $S --model $G
python benchmarks/real_wordings.py FOLDER... --work build/real_hints --model $S
python benchmarks/real_messages.py FOLDER... --work build/real_hints --model $S
python benchmarks/real_signals.py FOLDER... --model $S
python benchmarks/real_signals.py --twins 42 --work build/real_twins --model $S --model $G \\
    --json benchmarks/results/real_twins.json
python benchmarks/real_logs.py FOLDER... --hints-work build/real_hints --model ${S#*=}
python benchmarks/real_warmup.py build/real/folders/smollm2 --out build/real_workshop/student
python benchmarks/real_workshop.py
W=build/real_workshop_gemma
python benchmarks/real_warmup.py build/real/folders/gemma3-270m --template gemma \\
    --out $W/student
python benchmarks/real_workshop.py --work $W --json benchmarks/results/real_workshop_gemma.json
python benchmarks/real_trial.py FOLDER --model build/real/folders/smollm2
python benchmarks/real_page.py
```
"""


def render(root: Path) -> str:
    """The text of the page."""
    hints = _read(root, "real_hints")
    logs = [v for name in LOGS if (v := _read(root, name))]
    workshop, step_of_gemma = _read(root, "real_workshop"), _read(root, "real_gemma")
    workshops = {name: v for name, of in WORKSHOPS.items() if (v := _read(root, of))}
    worded, messages = _read(root, "real_wordings"), _read(root, "real_messages")
    twins, first = _read(root, "real_twins"), _read(root, "real_twins_41")
    signals = _read(root, "real_signals")
    what = _what_was_run(hints, logs, workshops, step_of_gemma, worded, messages)
    findings = [
        *_summary(hints, logs, workshops),
        *_wordings_in_words(worded),
        *messages_in_words(messages),
        *twins_in_words(twins),
    ]
    words = newcomer(hints, messages, logs, workshop, workshops.get(GEMMA))
    parts = [HEAD.format(newcomer=words, summary=f"{_bullets(findings)}\n\n{what}")]
    parts.append(hints_section(hints) if hints else _not_run("real_hints.py", "whether hints act"))
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
        workshop_section(workshops, step_of_gemma)
        if workshop
        else _not_run("real_workshop.py", "the workshop's arms")
    )
    if hints:
        parts.append(defaults_section(hints, logs))
    if trial := _read(root, "real_trial"):
        parts.append(trial_section(trial, _hints_by_family(ROOT / TOKENIZERS)))
    parts.append(COMMANDS)
    return "\n".join(parts)


def _hints_by_family(page: Path) -> dict[str, str]:
    """The column "hints" of the table of `make real`, e.g. {"gemma": "31 of 31"}."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.read_text("utf-8").splitlines()
        if line.startswith("| ")
    ]
    head = next(cells for cells in lines if cells[0] == "family")
    return {cells[0]: cells[head.index("hints")] for cells in lines if len(cells) == len(head)}


def _summary(hints: Json | None, logs: Sequence[Json], workshops: Mapping[str, Json]) -> list[str]:
    """What a model of this size did and did not do, in sentences with the numbers of the files."""
    sentences = [*hints_in_words(hints), *logs_in_words(logs)]
    if not workshops:
        sentences.append("Whether a real model learns the workshop's tasks was not run.")
    for name, value in workshops.items():
        sentences += workshop_in_words(name, value)
    sentences.append("No real model is shown to have become a better coding agent.")
    return sentences


def _what_was_run(
    hints: Json | None,
    logs: Sequence[Json],
    workshops: Mapping[str, Json],
    step_of_gemma: Json | None,
    worded: Json | None,
    messages: Json | None,
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
    seeds_run: dict[str, set[str]] = {arm: set() for arm in TRAINED}
    for value in logs:
        arms = {arm: seeds_of(value, arm) for arm in TRAINED}
        told = " and ".join(f"`{arm}` with {seeds_in_words(s)}" for arm, s in arms.items() if s)
        done.append(
            "SmolLM2 trained on public sessions in"
            f" {value['about'].get('dtype', 'bfloat16')}: {told}, and a placebo of each"
        )
        for arm, seeds in arms.items():
            seeds_run[arm] |= {*seeds}
    for arm, seeds in seeds_run.items():
        if rest := sorted({*SEEDS} - seeds):
            missing.append(f"the training on public sessions, `{arm}`, with {seeds_in_words(rest)}")
    if logs:
        missing.append(
            "whole messages of the students of that training: only the token at the decision was"
            " looked at"
        )
    for model, value in workshops.items():
        seeds_of_arm = {row["name"]: {*row["by_seed"]} for row in value["rows"]}
        done += [
            f"{model} in the workshop, {arms}, with {seeds}"
            for seeds, arms in _by_seeds(seeds_of_arm).items()
        ]
        left = {arm: {*SEEDS} - seeds_of_arm.get(arm, set()) for arm in ARMS}
        missing += [
            f"{model} in the workshop, {arms}, with {seeds}"
            for seeds, arms in _by_seeds(left).items()
        ]
    if GEMMA not in workshops:
        cost = cost_of_gemma(step_of_gemma, workshops.get(SMOLLM2))
        missing.append(f"{GEMMA} in the workshop{cost}")
    run, not_run = (_bullets([f"{line}." for line in lines]) for lines in (done, missing))
    return f"**Run:**\n\n{run}\n\n**Not run:**\n\n{not_run}"


def _by_seeds(seeds_of_arm: Mapping[str, Collection[str]]) -> dict[str, str]:
    """The arms that share their seeds, in words; an arm without a seed is left out.

    >>> _by_seeds({"before": ["11"], "after": ["11"], "placebo": []})
    {'seed 11': '`before` and `after`'}
    """
    arms: dict[str, list[str]] = {}
    for arm in ARMS:
        if seeds := seeds_of_arm.get(arm):
            arms.setdefault(seeds_in_words(sorted(seeds)), []).append(f"`{arm}`")
    return {seeds: _listed(names) for seeds, names in arms.items()}


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line[:1].upper()}{line[1:]}" for line in lines)


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _read(root: Path, name: str) -> Json | None:
    path = root / RESULTS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def _not_run(script: str, what: str) -> str:
    return f"## Not run yet: {what}\n\n`benchmarks/{script}` has not been completed.\n"


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
