"""Hostile environments and a hostile policy through a whole training run: each costs its rollouts,
by name, and never the run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from composer_replication.core.codec import read_sessions
from composer_replication.core.rundir import RunDir
from composer_replication.report.funnel import lost_rows
from composer_replication.report.run_page import run_page
from composer_replication.report.run_report import run_report
from composer_replication.rollouts.chat_format import CUT
from tests.training.hostile_run import GROUPS, MAX_CHARS, NUM_CALLS, SIZE, STEPS

pytestmark = pytest.mark.train
TIMEOUT_S = 500


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, repository_root: Path) -> RunDir:
    """The finished run; its process ends too, although some of its threads hang for ever."""
    folder = tmp_path_factory.mktemp("hostile")
    begun = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "tests.training.hostile_run", str(folder)],
        cwd=repository_root,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert time.monotonic() - begun < TIMEOUT_S
    return RunDir(folder / "runs" / "r")


@pytest.mark.timeout(TIMEOUT_S)
def test_the_run_ends_as_if_nothing_had_happened(run: RunDir) -> None:
    lines = run.metrics()
    assert run.info()["state"] == "done" and [metrics["step"] for metrics in lines] == list(
        range(1, STEPS + 1)
    )
    assert [metrics["rollouts/episodes"] for metrics in lines] == [GROUPS * SIZE] * STEPS
    assert all(
        metrics["policy/status"] == "active" and metrics["policy/tokens"] > 100 for metrics in lines
    )
    assert [step for step, _ in run.checkpoints()][-1] == STEPS


@pytest.mark.timeout(TIMEOUT_S)
def test_each_hostile_environment_costs_its_own_rollouts_and_says_why(run: RunDir) -> None:
    """Two tasks of eight hang, at their opening or in an answer, one raises."""
    for metrics in run.metrics():
        assert metrics["lost/env_error"] <= SIZE and SIZE <= metrics["lost/env_timeout"] <= 2 * SIZE
        assert metrics["rollouts/lost"] == (
            metrics["lost/env_error"] + metrics["lost/env_timeout"]
        ) / (GROUPS * SIZE)
    reasons = {word for event in run.events() if event["kind"] == "lost" for word in event["words"]}
    assert reasons == {"no answer within 0.3 s", "RuntimeError: ␛[31mboom␛[0m"}


@pytest.mark.timeout(TIMEOUT_S)
def test_what_a_policy_does_to_itself_is_counted(run: RunDir) -> None:
    lines = run.metrics()
    assert sum(metrics["rollouts/refused_calls"] for metrics in lines) == NUM_CALLS - 8
    assert sum(metrics["rollouts/cut_off"] for metrics in lines) * GROUPS * SIZE >= 1
    # half a call is answered as malformed, and penalised
    assert all(metrics["rollouts/unresolvable"] > 0 for metrics in lines)


@pytest.mark.timeout(TIMEOUT_S)
def test_nothing_hostile_reaches_a_file(run: RunDir) -> None:
    """Results are short and plain in the kept sessions, in the events and in the log; the 100 MB
    are nowhere."""
    sessions = [s for _, path in run.samples() for s in read_sessions(path)]
    texts = [r.text for s in sessions for t in s.turns for r in t.results]
    assert any("more characters are left out" in text for text in texts) and any(
        "␛[2J" in text for text in texts
    )
    assert all(len(text) < MAX_CHARS + 100 for text in texts)
    raw = b"".join(
        p.read_bytes() for p in run.path.rglob("*") if p.suffix in (".jsonl", ".log", ".txt")
    )
    assert len(raw) < 20_000_000 and not any(
        c in raw for c in (b"\x1b", b"\\u001b", b"\\x1b", b"\x00")
    )
    assert all(t.tag in ("", CUT) for s in sessions for t in s.turns if t.role == "assistant")


@pytest.mark.timeout(TIMEOUT_S)
def test_the_page_has_a_table_of_what_was_lost(run: RunDir) -> None:
    rows = {row["name"]: row for row in lost_rows(run.metrics())}
    lines = run.metrics()
    for name in ("lost/env_error", "lost/env_timeout", "rollouts/refused_calls"):
        assert (
            rows[name]["count"] == sum(metrics[name] for metrics in lines)
            and rows[name]["of"] == GROUPS * SIZE * STEPS
        )
    page = run_page(run_report(run.path))
    assert "losses on the way, of 64 rollouts" in page and all(
        row["what"] in page for row in rows.values()
    )
    assert json.dumps(lost_rows([{"loss": 1.0}])) == "[]"
