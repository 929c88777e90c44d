"""How large the audit page and the run page are, with and without answers, how long they take to
draw, and how long a browser takes to paint them, to make their lists usable, to search, to filter.

    python benchmarks/page_size.py [--sites 28 1000 10000] [--work FOLDER] [--json FILE]

With a work folder its sessions are repeated, under new names, until there are enough sites; without
one sessions of random words are made. Without Playwright and a Chromium only size and drawing are
measured; the environment that has both: `python scripts/run_backend.py browser`, then
`PYTHONPATH=src .venv-browser/bin/python benchmarks/page_size.py`.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from composer_replication.core.codec import (
    read_hints,
    read_sessions,
    read_sites,
    record_to_json,
    write_sessions,
)
from composer_replication.core.config.root import Config
from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.core.rundir import create_run
from composer_replication.core.site import Anchor, Answer, Hint, Preference, Site, turn_site_id
from composer_replication.core.trace import (
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from composer_replication.data.replay.ask import replay
from composer_replication.data.replay.gather import lookup
from composer_replication.report.audit_page import audit_page
from composer_replication.report.audit_view import audit_view
from composer_replication.report.html import unpacked
from composer_replication.report.run_page import run_page
from composer_replication.report.run_report import run_report
from composer_replication.report.work import work_view

Group = tuple[Session, list[Site], list[Hint]]
WORDS = [
    f"{a}{b}" for a in ("re", "un", "pre", "co", "de") for b in ("read", "make", "test", "run")
]
KINDS = ("edit_no_match", "file_missing", "shell_syntax", "edit_not_read")
TEACHERS = ("ash", "elm", "oak")
FILTERS = {"sites": "kind", "answers": "outcome"}
FILTER_VALUES = {"sites": "file_missing", "answers": "pair"}
WHEN_READY = """new MutationObserver((_, watching) => {
  if (document.documentElement?.dataset.ready) {
    window.readyAt = performance.now();
    watching.disconnect();
  }
}).observe(document, { subtree: true, attributes: true });"""
PAINTED = "() => performance.getEntriesByName('first-contentful-paint').length"
OPENED = """() => ({
  "first paint": performance.getEntriesByName("first-contentful-paint")[0].startTime,
  usable: window.readyAt,
})"""
CHANGED = """async ([part, facet, value]) => {
  const control = document.querySelector(`[data-list=${part}] [data-facet=${facet}]`);
  control.value = value;
  const begin = performance.now();
  control.dispatchEvent(new Event("input"));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - begin;
}"""
CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def words(source: random.Random, number: int) -> str:
    """Words and numbers, which deflate about as well as code."""
    return " ".join(f"{source.choice(WORDS)}_{source.randrange(999)}" for _ in range(number))


def made_up() -> Iterator[Group]:
    """Sessions with one mistaken edit each."""
    source = random.Random(0)
    for number in count():
        name, kind = f"made{number}", source.choice(KINDS)
        edit = {"file_path": words(source, 1), "old_string": words(source, 40)}
        turns = (
            Turn(role="user", author="human", blocks=(Text(words(source, 30)),)),
            Turn(
                role="assistant",
                author="model",
                blocks=(
                    Text(words(source, 20)),
                    ToolCall("c", "Edit", {**edit, "new_string": words(source, 40)}),
                ),
            ),
            Turn(
                role="tool",
                author="environment",
                blocks=(ToolResult("c", words(source, 100), True),),
            ),
        )
        session = Session(
            id=name,
            source=SourceRef(file="log.jsonl", format="claude_code"),
            turns=turns,
            segments=(Segment(start=0, end=3),),
            repository=f"repository{number % 7}",
            started=f"2026-{1 + number % 9:02d}-01T00:00:00Z",
        )
        site = Site(
            session_id=name,
            turn=1,
            call_id="c",
            kind=kind,
            detector="tool_error",
            evidence=(2,),
            tool="Edit",
            author="model",
            repository=session.repository,
            detail=words(source, 8),
        )
        yield (
            session,
            [site],
            [Hint(site_id=site.id, text=words(source, 15), writer="w", kind=kind)],
        )


def repeated_sessions(folder: Path) -> Iterator[Group]:
    """The sessions of a work folder again and again, each time under new names."""
    sites, hints = (
        list(read_sites(folder / "sites.jsonl")),
        list(read_hints(folder / "hints.jsonl")),
    )
    for round_number in count():
        for session in read_sessions(folder / "sessions.jsonl"):
            name = f"{session.id}x{round_number}"
            mine = [site for site in sites if site.session_id == session.id]
            again = [replace(site, session_id=name) for site in mine]
            ids = dict(zip((site.id for site in mine), (site.id for site in again), strict=True))
            renamed = [replace(h, site_id=ids[h.site_id]) for h in hints if h.site_id in ids]
            if again:
                yield replace(session, id=name), again, renamed


def write_work(folder: Path, groups: Iterator[Group], num_sites: int) -> None:
    """A work folder of exactly so many sites."""
    sessions: list[Session] = []
    sites: list[Site] = []
    hints: list[Hint] = []
    for session, its_sites, its_hints in groups:
        sessions.append(session)
        sites += its_sites
        hints += its_hints
        if len(sites) >= num_sites:
            break
    sites = sites[:num_sites]
    kept = {site.id for site in sites}
    write_sessions(folder / "sessions.jsonl", sessions)
    write_lines(folder / "sites.jsonl", map(record_to_json, sites))
    write_lines(
        folder / "hints.jsonl", [record_to_json(hint) for hint in hints if hint.site_id in kept]
    )


def write_answers(folder: Path) -> None:
    """The files of a replay in which three teachers answered at every site: in two of three both
    others join the first, which does something else than the log."""
    source, by_turn = random.Random(1), dict[str, list[Answer]]()
    for site in read_sites(folder / "sites.jsonl"):
        name = turn_site_id(site.session_id, site.turn)
        better = {"file_path": words(source, 1), "old_string": words(source, 40)}
        for number, teacher in enumerate(TEACHERS):
            if number == 0 or source.random() < 0.2:
                better = {**better, "new_string": words(source, 40)}
            call = ToolCall("t", "Edit", better)
            text = Text(words(source, 20))
            answer = Answer(
                site_id=name,
                teacher=teacher,
                family=teacher,
                turn=Turn(role="assistant", author=f"{teacher}/1", blocks=(text, call)),
                usd=0.002,
                usd_by="ours",
            )
            by_turn.setdefault(name, []).append(answer)
    answers = [answer for turn_answers in by_turn.values() for answer in turn_answers[:3]]
    sessions = read_sessions(folder / "sessions.jsonl")
    turns = [
        turn
        for turn in replay(sessions, lookup(answers), min_families=3)
        if turn.agreement is not None
    ]
    results = [turn.result for turn in turns]
    pairs = [record_to_json(row) for row in results if isinstance(row, Preference)]
    anchors = [record_to_json(row) for row in results if isinstance(row, Anchor)]
    write_lines(folder / "answers.jsonl", map(record_to_json, answers))
    write_lines(folder / "preferences.jsonl", pairs)
    write_lines(folder / "anchors.jsonl", anchors)
    records = {turn_site_id(turn.session_id, turn.turn): turn.record() for turn in turns}
    counts = Counter(turn.outcome for turn in turns)
    write_json(folder / "replay.json", {"outcomes": dict(counts), "turns": records})


def write_run(folder: Path) -> Path:
    """A finished run of 300 steps in a work folder."""
    settings = Config().model_dump(mode="json")
    run = create_run(
        folder / "runs", resolved=settings, command="recompose train", seed=0, inputs=[]
    )
    with run.attempt():
        for step in range(1, 301):
            metrics: dict[str, object] = {"step": step}
            for name in ("lm_ce", "hint"):
                metrics |= {f"{name}/status": "active", f"{name}/tokens": 100}
                metrics |= {f"{name}/loss": 1 / step, f"{name}/grad_norm": 0.1}
            run.add_metrics(metrics)
    return run.path


def drawn_page(folder: Path, page: str) -> str:
    """The text of the audit page or of the run page of a work folder."""
    if page == "run":
        return run_page(run_report(write_run(folder)))
    return audit_page(work_view(folder), view=audit_view(folder))


def opened(text: str, *, part: str) -> dict[str, float]:
    """What a browser takes, in milliseconds, each the median of three new windows: from the address
    to the first paint and to lists that can be used, then in the list `part` the first search, the
    next one, and a filter, each to the next painted frame. {} without a browser."""
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {}
    if program is None:
        return {}
    runs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "page.html"
        path.write_text(text, "utf-8")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for _ in range(3):
            page = browser.new_context().new_page()
            page.add_init_script(WHEN_READY)
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready]")
            page.wait_for_function(PAINTED)
            times = page.evaluate(OPENED)
            values = [("first search", "q", "test_12"), ("next search", "q", "make_34")]
            values += [("filter", "q", ""), ("filter", FILTERS[part], FILTER_VALUES[part])]
            for name, facet, value in values:
                times[name] = page.evaluate(CHANGED, [part, facet, value])
            runs.append(times)
            page.context.close()
        browser.close()
    return {name: round(sorted(run[name] for run in runs)[1]) for name in runs[0]}


def measured(number: int, *, page: str, answers: bool, work: Path | None) -> dict[str, object]:
    """One row: the size of a page, how many sites and answered turns it holds in full and not only
    as rows, the seconds to draw it, and what `opened` measures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_work(folder, repeated_sessions(work) if work else made_up(), number)
        if answers:
            write_answers(folder)
        begin = time.perf_counter()
        text = drawn_page(folder, page)
        drawn = time.perf_counter() - begin
    times = opened(text, part="answers" if answers else "sites")
    about = {"page": page, "answers": answers, "sites": number}
    in_full = sum(len(json.loads(part)["articles"]) for part in unpacked(text))
    sizes = {"kb": round(len(text.encode()) / 1000), "in_full": in_full, "drawn_s": round(drawn, 2)}
    return {**about, **sizes, "ms": times}


def main() -> None:
    """Print one line per page and number of sites, and write them with --json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[28, 1000, 10_000])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    names = ("first paint", "usable", "first search", "next search", "filter")
    print("page   answers  sites  size kB  in full  drawn s", *(f"{name:>12}" for name in names))
    for page in ("audit", "run"):
        for answers in (False, True):
            for number in arguments.sites:
                row = measured(number, page=page, answers=answers, work=arguments.work)
                ms: Any = row["ms"]
                shown = [f"{ms[name]:9.0f} ms" if name in ms else "not measured" for name in names]
                asked = "yes" if answers else "no"
                sizes = f"{row['kb']:7.0f}  {row['in_full']:7}  {row['drawn_s']:7.1f}"
                print(f"{page:6} {asked:7}  {number:5}  {sizes}", *shown, flush=True)
                rows.append(row)
    if arguments.json:
        from page import about

        value = {"about": about(sys.argv), "rows": rows}
        arguments.json.write_text(json.dumps(value, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
