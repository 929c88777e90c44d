"""Do real models follow the hints? Log-odds of right against wrong at the decision, on public
sessions, by wording, position, kind and repository.

    python benchmarks/real_hints.py FOLDER... --work build/real_hints \\
        --model smollm2=build/real/folders/smollm2:chatml-tools \\
        --model gemma3-270m=build/real/folders/gemma3-270m:gemma
    python benchmarks/real_hints.py ... --texts earlier=build/hints.jsonl
        texts that another version wrote for the same sites, as further wordings

Each folder holds session logs and a manifest.json that names the repository of each. Those of the
committed numbers are fetched by scripts/fetch_traces.py, with tests/traces_manifest.json,
tests/labels/manifest.json and benchmarks/real_sessions.json. Repositories are split by the SHA-256
of their names, alternately: wordings and positions are chosen on "train", what is reported is
"held_out". The forward passes are in float32, one session tree per site; what was measured is kept
in the work folder, site by site. Writes benchmarks/results/real_hints.json: no text, only numbers,
kinds and repositories.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("OMP_NUM_THREADS", "1")

from record_lines import record_lines

from composer_replication.core.codec import (
    read_hints,
    read_sessions,
    read_sites,
    record_to_json,
    write_sessions,
)
from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.data_settings import HintsSettings, SitesSettings
from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.jsonl import write_lines
from composer_replication.core.redact import Redactor
from composer_replication.core.site import Hint
from composer_replication.core.trace import HUMAN, Text, Turn
from composer_replication.data.hints.write import write_hints
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.data.sites.find_sites import find_sites
from composer_replication.evaluation.decision_lift import (
    ScoredRow,
    decision_row,
    log_odds,
    row_states,
    score_states,
)
from composer_replication.evaluation.stats import bootstrap_mean
from composer_replication.models.forward import scoring
from composer_replication.models.load_student import load_student
from composer_replication.tokens.dataset import build_examples
from composer_replication.tokens.decision_tokens import fork_between
from composer_replication.tokens.example import DecisionTokens, HintView, TrainingExample
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.hint_donors import several_donors
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.split import split_unit
from composer_replication.training.draws.placebo import neutral_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "real_hints.json"
POSITIONS = ("system", "user", "reminder", "result")
NONE, NEUTRAL, NOW, DONORS = "none", "neutral", "now", "other sites' hints"
MAX_TOKENS, NUM_DONORS, SEED = 2048, 3, 20261123
View = tuple[TrainingExample, HintView]


def repository_groups(repositories: Sequence[str]) -> dict[str, str]:
    """ "train" or "held_out" for each repository, alternating in the order of the names' hashes.

    >>> sorted(repository_groups(["a/x", "b/y", "c/z"]).values())
    ['held_out', 'train', 'train']
    """
    order = sorted(set(repositories), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return {name: ("train", "held_out")[number % 2] for number, name in enumerate(order)}


def prepare(
    folders: Sequence[Path],
    work: Path,
    *,
    settings: SitesSettings | None = None,
    writing: HintsSettings | None = None,
) -> dict[str, dict[str, str]]:
    """Sessions, sites and hints of all folders, once; session id -> repository, group, cluster."""
    settings, writing = settings or SitesSettings(), writing or HintsSettings()
    about = work / "sessions_about.json"
    if about.exists():
        return json.loads(about.read_text("utf-8"))
    work.mkdir(parents=True, exist_ok=True)
    repository_of = {
        entry["file"]: entry.get("repository") or entry["repo"]
        for folder in folders
        for entry in manifest_of(folder)
    }
    groups = repository_groups(list(repository_of.values()))
    redactor = Redactor()
    sessions = [
        session
        for result in ingest(find_logs(list(folders)), redactor=redactor)
        for session in result.sessions
    ]
    unique = {session.id: session for session in sessions}
    sites = {i: find_sites(session, settings=settings) for i, session in unique.items()}
    hints = {
        i: write_hints(session, sites[i], settings=writing).hints for i, session in unique.items()
    }
    used = [session for i, session in unique.items() if hints[i]]
    write_sessions(work / "sessions.jsonl", used)
    for name, of_session in (("sites", sites), ("hints", hints)):
        records = (record_to_json(record) for s in used for record in of_session[s.id])
        write_lines(work / f"{name}.jsonl", records)
    value = {
        session.id: {
            "repository": (repository := repository_of[Path(session.source.file).name]),
            "group": groups[repository],
            "cluster": split_unit(session, by="session"),
        }
        for session in used
    }
    about.write_text(json.dumps(value, indent=1), "utf-8")
    return value


def manifest_of(folder: Path) -> list[dict[str, Any]]:
    """The entries of the manifest in or above the folder."""
    paths = (folder / "manifest.json", folder / "MANIFEST.json", folder.parent / "manifest.json")
    value = json.loads(next(path for path in paths if path.exists()).read_text("utf-8"))
    return value["files"] if isinstance(value, dict) else value


def neutral_hints(hints: Sequence[Hint], renderer: Renderer) -> list[Hint]:
    """Text without information, about as long as each hint."""
    count = renderer.codec.count
    texts = [(hint, neutral_text(count(hint.text), count=count)) for hint in hints]
    return [replace(hint, text=text) for hint, text in texts if text is not None]


def views_of(
    work: Path,
    hints: Sequence[Hint],
    renderer: Renderer,
    position: Any,
    *,
    max_tokens: int = MAX_TOKENS,
    rights: Mapping[str, Turn] | None = None,
) -> dict[str, View]:
    """Site id -> the example and its view with these hints. `rights`: the message that would have
    been right at each site, in place of what the hints' decisions know."""
    wanted = {hint.site_id for hint in hints}
    sites = list(read_sites(work / "sites.jsonl"))
    items = build_examples(
        read_sessions(work / "sessions.jsonl"),
        sites=sites,
        hints=hints,
        renderer=renderer,
        settings=BuildSettings(max_tokens=max_tokens, without_evidence="keep"),
        position=position,
    )
    views = {
        view.site_id: (item, view)
        for item in items
        if isinstance(item, TrainingExample)
        for view in item.hints
        if view.site_id in wanted
    }
    if rights is not None:
        views = {
            site_id: (item, _decided(item, view, rights[site_id], renderer))
            for site_id, (item, view) in views.items()
            if site_id in rights
        }
    return {
        site_id: (item, view)
        for site_id, (item, view) in views.items()
        if any(d.fork is not None for d in view.decisions)
    }


def _decided(example: TrainingExample, view: HintView, right: Turn, renderer: Renderer) -> HintView:
    """The view with the first token at which its message parts from the right one."""
    start, end = view.span
    body = renderer.reply([Turn(role="user", author=HUMAN, blocks=(Text("x"),))], right)[1]
    fork, right_ids = fork_between(example.ids[start:end], [body])
    if fork is None:
        return replace(view, decisions=())
    at = start + fork
    token = DecisionTokens(
        site_id=view.site_id, spans=((at, at + 1),), fork=at, right_ids=right_ids
    )
    return replace(view, decisions=(token,))


def row_with(example: TrainingExample, view: HintView, hint_ids: tuple[int, ...]) -> ScoredRow:
    """The context, a hint (or none), and the message up to its last decision."""
    end = 1 + max(d.fork for d in view.decisions if d.fork is not None)
    ids = example.ids[: view.at] + hint_ids + example.ids[view.at : end]
    return decision_row(ids, view.decisions, shift=len(hint_ids))


def in_hash_order(site_ids: Sequence[str]) -> list[str]:
    """A random order that does not depend on the machine."""
    return sorted(site_ids, key=lambda name: hashlib.sha256(name.encode()).hexdigest())


def trials(
    work: Path,
    renderer: Renderer,
    wordings: Mapping[str, Sequence[Hint]],
    *,
    rights: Mapping[str, Turn] | None = None,
) -> Iterator[tuple[str, dict[str, ScoredRow], HintView]]:
    """Site by site, in the order of a hash, the rows of every context by name: "none", "now/user",
    "now/system/donor0"."""
    now = wordings[NOW]
    sets = {(name, "system"): hints for name, hints in wordings.items()}
    neutral = neutral_hints(now, renderer)
    for position in POSITIONS:
        sets[NOW, position] = now
        sets[NEUTRAL, position] = neutral
    views = {
        key: views_of(work, hints, renderer, key[1], rights=rights) for key, hints in sets.items()
    }
    base = views[NOW, "system"]
    donors: dict[Any, dict[str, list[tuple[int, ...]]]] = {}
    for key, by_site in views.items():
        if key[0] != NEUTRAL:
            ids = list(by_site)
            chosen = several_donors(
                [by_site[i][1] for i in ids],
                [by_site[i][0].session_id for i in ids],
                seed=stage_seed(SEED, "donors"),
                count=NUM_DONORS,
            )
            donors[key] = {
                i: [by_site[ids[j]][1].hint_ids for j in chosen[n]] for n, i in enumerate(ids)
            }
    for site_id in in_hash_order(list(base)):
        example, view = base[site_id]
        rows = {NONE: row_with(example, view, ())}
        for (name, position), by_site in views.items():
            if site_id not in by_site:
                continue
            own_example, own_view = by_site[site_id]
            rows[f"{name}/{position}"] = row_with(own_example, own_view, own_view.hint_ids)
            if name != NEUTRAL and position == "system":
                for number, hint_ids in enumerate(donors[name, position][site_id]):
                    rows[f"{name}/{position}/donor{number}"] = row_with(
                        own_example, own_view, hint_ids
                    )
        yield site_id, rows, view


def bare_trials(
    work: Path, renderer: Renderer, hints: Sequence[Hint], *, max_tokens: int
) -> Iterator[tuple[str, dict[str, ScoredRow], HintView]]:
    """Site by site, the row without any hint."""
    views = views_of(work, hints, renderer, "system", max_tokens=max_tokens)
    for site_id, (example, view) in views.items():
        yield site_id, {NONE: row_with(example, view, ())}, view


def measure(
    name: str,
    folder: str,
    family: str,
    *,
    work: Path,
    texts: Mapping[str, Path],
    rights: Mapping[str, Turn] | None = None,
    until: float = math.inf,
    bare: bool = False,
    group: str = "",
    max_tokens: int = MAX_TOKENS,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> tuple[list[dict[str, Any]], int]:
    """The log-odds of every context at every site, and how many sites there are; kept in the work
    folder, line by line.

    `rights`: the message that would have been right at each site (None: by the hints' decisions);
    `until`: the time (time.monotonic) at which it stops; `bare`: only without a hint; `group`: only
    the sites of one group of repositories.
    """
    import torch

    torch.set_num_threads(1)
    kept = work / f"measured_{name}.jsonl"
    done = {}
    if kept.exists():
        done = {r["site"]: r for r in map(json.loads, kept.read_text("utf-8").splitlines())}
    tokenizer = load_tokenizer(folder)
    renderer = Renderer.for_tokenizer(tokenizer, family=family)
    about = json.loads((work / "sessions_about.json").read_text("utf-8"))
    session_of = {site.id: site.session_id for site in read_sites(work / "sites.jsonl")}
    hints = [
        hint
        for hint in read_hints(work / "hints.jsonl")
        if group in ("", about[session_of[hint.site_id]]["group"])
    ]
    wordings = {NOW: hints} | {other: _with_texts(hints, path) for other, path in texts.items()}
    settings = StudentSettings(model=folder, dtype=dtype)
    student = load_student(settings, tokenizer=tokenizer, seed=SEED)
    kind_of = {hint.site_id: hint.kind for hint in hints}
    began, number = time.monotonic(), -1
    records = []
    with scoring(student.model), kept.open("a", encoding="utf-8") as out:
        sites = (
            bare_trials(work, renderer, hints, max_tokens=max_tokens)
            if bare
            else trials(work, renderer, wordings, rights=rights)
        )
        for number, (site_id, rows, view) in enumerate(sites):
            if site_id in done:
                records.append(done[site_id])
                continue
            if time.monotonic() > until:
                continue
            names = list(rows)
            contexts = [rows[n] for n in names]
            hidden_ND = row_states(
                student.model,
                contexts,
                pad_id=student.pad_id,
                max_tokens=2 * MAX_TOKENS,
                layout="tree",
            )
            logps = score_states(student.model, contexts, hidden_ND)
            values = {
                n: round(log_odds(logp_N, view.decisions)[0], 5)
                for n, logp_N in zip(names, logps, strict=True)
            }
            record = {
                "site": site_id,
                "kind": kind_of[site_id],
                "session": session_of[site_id],
                "log_odds": values,
            }
            if bare:
                logits_V = student.model.get_output_embeddings()(hidden_ND[0])
                record["writes"] = choice(int(logits_V.argmax()), contexts[0], view.decisions)
            out.write(json.dumps(record) + "\n")
            out.flush()
            records.append(record)
            if number % 10 == 9:
                print(f"{name}: {number + 1} sites, {time.monotonic() - began:.0f} s", flush=True)
    return records, number + 1


def choice(token_id: int, row: ScoredRow, decisions: Sequence[DecisionTokens]) -> str:
    """Whether the token written at the first decision of a bare row is "right", "wrong" (the log's)
    or "neither"."""
    right_ids = next(d.right_ids for d in decisions if d.fork is not None)
    if token_id in right_ids:
        return "right"
    return "wrong" if token_id == row.token_ids[0] else "neither"


def _with_texts(hints: Sequence[Hint], path: Path) -> list[Hint]:
    """The hints with the texts that a file holds for the same sites; sites without one stay out."""
    text_of = {hint.site_id: hint.text for hint in read_hints(path)}
    return [replace(h, text=text_of[h.site_id]) for h in hints if h.site_id in text_of]


def contrasts(values: Mapping[str, float]) -> dict[str, float]:
    """What is averaged for a site: the lift of each wording and position."""
    result: dict[str, float] = {}
    for key, value in values.items():
        name, _, place = key.partition("/")
        if key == NONE or "donor" in place:
            continue
        result[f"{key} - {NONE}"] = value - values[NONE]
        if name != NEUTRAL and f"{NEUTRAL}/{place}" in values:
            result[f"{key} - {NEUTRAL}"] = value - values[f"{NEUTRAL}/{place}"]
        others = [v for k, v in values.items() if k.startswith(f"{key}/donor")]
        if others:
            result[f"{key} - {DONORS}"] = value - sum(others) / len(others)
    return result


def summarise(
    measured: Sequence[Mapping[str, Any]], about: Mapping[str, Mapping[str, str]]
) -> list[dict[str, Any]]:
    """One record per group, kind and contrast: n, sessions, repositories, mean and interval."""
    cells: dict[tuple[str, str, str], list[tuple[float, str, str]]] = defaultdict(list)
    for record in measured:
        session = about[record["session"]]
        for contrast, value in contrasts(record["log_odds"]).items():
            for kind in (record["kind"], "all"):
                cells[session["group"], kind, contrast].append(
                    (value, session["cluster"], session["repository"])
                )
    rows: list[dict[str, Any]] = []
    for (group, kind, contrast), cell in sorted(cells.items()):
        interval = bootstrap_mean(
            [value for value, _, _ in cell],
            [cluster for _, cluster, _ in cell],
            seed=stage_seed(SEED, f"{group}:{kind}:{contrast}"),
        )
        rows.append(
            {
                "group": group,
                "kind": kind,
                "contrast": contrast,
                "n": interval.n,
                "sessions": interval.clusters,
                "repositories": len({repository for _, _, repository in cell}),
                "mean": round(interval.mean, 4),
                "low": None if interval.low is None else round(interval.low, 4),
                "high": None if interval.high is None else round(interval.high, 4),
                "positive": sum(value > 0 for value, _, _ in cell),
            }
        )
    return rows


def parser_of(doc: str | None, *, name: str) -> argparse.ArgumentParser:
    """The options of a benchmark that reads models: of real_hints.py and of its neighbours."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--model", action="append", required=True, metavar="NAME=FOLDER:FAMILY")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / name)
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after this time")
    parser.add_argument("--json", type=Path, default=RESULTS.with_name(f"{name}.json"))
    return parser


def models_of(file: Path, what: Mapping[str, Any]) -> dict[str, Any]:
    """The models of an earlier run in the same way: they stay beside those of this one."""
    value = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return value["models"] if value.get("about") == what else {}


def read_models(
    options: argparse.Namespace,
    *,
    what: Mapping[str, Any],
    about: Mapping[str, Mapping[str, str]],
    measured_by: Callable[..., tuple[list[dict[str, Any]], int]],
    keys: Sequence[str] = ("repository", "group"),
) -> int:
    """Measure with every model and write the JSON; returns the exit code.

    `measured_by(name, folder, family, until=...)` gives the records of the sites and how many there
    are; of `about` the page shows `keys` for each site.
    """
    until = time.monotonic() + 60 * options.minutes
    models = models_of(options.json, what)
    for entry in options.model:
        name, _, rest = entry.partition("=")
        folder, _, family = rest.rpartition(":")
        records, planned = measured_by(name, folder, family, until=until)
        models[name] = {
            "family": family,
            "sites_planned": planned,
            "rows": summarise(records, about),
            "sites": [
                {**record, "session": about[record["session"]]["cluster"][:8]}
                | {key: about[record["session"]][key] for key in keys}
                for record in records
            ],
        }
    value = {"about": what, "models": models}
    options.json.write_text(record_lines(value, depth=5) + "\n", "utf-8")
    print(f"real: wrote {options.json}")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Prepare, measure, summarise, write; returns the exit code."""
    parser = parser_of(__doc__, name="real_hints")
    parser.add_argument("--texts", action="append", default=[], metavar="NAME=HINTS.JSONL")
    options = parser.parse_args(arguments)
    about = prepare(options.folders, options.work)
    texts = {name: Path(path) for name, path in (text.split("=", 1) for text in options.texts)}
    what = {
        "folders": [folder.name for folder in options.folders],
        "max_tokens": MAX_TOKENS,
        "donors": NUM_DONORS,
        "seed": SEED,
        "sessions": len(about),
        "hints": sum(1 for _ in read_hints(options.work / "hints.jsonl")),
        "repositories": {entry["repository"]: entry["group"] for entry in about.values()},
    }
    measured_by = partial(measure, work=options.work, texts=texts)
    return read_models(options, what=what, about=about, measured_by=measured_by)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
