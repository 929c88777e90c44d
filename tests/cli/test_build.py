"""`build`: its report on windows and views, and its error if no hint could be built."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from composer_replication.cli import build
from composer_replication.cli.build_refused import lost_channel
from composer_replication.core.codec import write_sessions
from composer_replication.core.config.root import Config
from composer_replication.core.trace import Segment, Text, Turn
from composer_replication.tokens.artefact import build_report
from tests.cli.test_template_refused import save_student
from tests.cli.workspace import fill, recompose, session
from tests.tokens.students import chatml_tokenizer, official

pytestmark = pytest.mark.train


@pytest.fixture
def work(tmp_path: Path) -> Path:
    fill(tmp_path / "recompose", [session(), session("sess-bbbb", text="Now the other one.")])
    return tmp_path


def test_context_evidence_and_views_are_printed_stored_and_shown(work: Path) -> None:
    result = recompose("build", cwd=work)
    assert (
        result.code == 0
        and "2 of 2 views hold every turn" in result.out
        and "2 failing calls in 2 messages, one view each" in result.out
    )
    value = recompose("build", "--json", cwd=work).value
    assert value["context_kept"] == value["context_available"] > 0
    assert (value["hinted_sites"], value["views_with_evidence"], value["effective_views"]) == (
        2,
        2,
        2.0,
    )
    rows = [
        json.loads(line)
        for line in (work / "recompose/examples/examples.jsonl").read_text("utf-8").splitlines()
    ]
    contexts = [view["context"] for row in rows for view in row["hints"]]
    assert sum(c["kept"] for c in contexts) == value["context_kept"] and all(
        c["lost"] == [] for c in contexts
    )
    shown = recompose("show", "example", "e001", cwd=work)
    assert (
        f"context: {contexts[0]['kept']} of {contexts[0]['available']} tokens above it" in shown.out
    )
    (hint,) = recompose("show", "example", "e001", "--json", cwd=work).value["hints"]
    assert hint["context"]["kept"] == contexts[0]["kept"] and hint["sites"] == ["sess-aaaa:3:c2"]


def words(text: str) -> str:
    """A message without the box around it and its line breaks."""
    return " ".join(text.replace("│", " ").split())


def test_a_window_beyond_the_models_context_is_refused(work: Path) -> None:
    model = save_student(work / "m", chatml_tokenizer(), template=official("qwen3"))
    student = ("--student.model", str(model))
    for flags in ((), ("--dry-run",)):
        wide = recompose("build", *student, "--build.max_tokens", "16384", *flags, cwd=work)
        assert wide.code == 1 and "reads at most 8192 tokens" in words(wide.err)
        assert "build.max_tokens = 8192 or less" in words(wide.err)
    assert not (work / "recompose" / "examples").exists()
    assert recompose("build", *student, "--build.max_tokens", "8192", cwd=work).code == 0
    config = json.loads((model / "config.json").read_text("utf-8"))
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 150}))
    train = recompose("train", *student, "--dry-run", cwd=work)
    assert train.code == 1 and "the longest example is" in words(train.err)
    assert "reads at most 150 tokens" in words(train.err)
    live = ("--rollouts.env", "workshop", "--rollouts.max_context_tokens", "8193")
    (model / "config.json").write_text(json.dumps(config))
    train = recompose("train", *student, *live, "--dry-run", cwd=work)
    assert train.code == 1 and "the longest episode is 8193" in words(train.err)
    assert "set rollouts.max_context_tokens = 8192 or less" in words(train.err)
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 150}))
    short = ("--build.max_tokens", "150", "--train.lm-ce.weight", "0")
    lost = recompose("build", *student, *short, cwd=work)
    assert lost.code == 1 and "raise build.max_tokens" not in words(lost.err)
    assert "--build.max_tokens 300" not in words(lost.err)
    assert "take a model that reads more than 150 tokens" in words(lost.err)


def test_the_hints_that_do_not_stand_where_the_settings_say_are_counted(work: Path) -> None:
    """Below an assistant's message no text takes a reminder, so the hint is a user message."""
    other = session("sess-bbbb")
    said = Turn(role="assistant", author="claude-test-1", blocks=(Text("Now I edit."),))
    fill(
        work / "recompose",
        [session(), replace(other, turns=(*other.turns[:2], said, *other.turns[3:]))],
    )
    result = recompose("build", "--hints.position", "reminder", cwd=work)
    assert "hints    1 at the end of the text above (hints.position = reminder)" in result.out
    assert ", 1 as a user message" in result.out
    assert "as a user message" not in recompose("build", cwd=work).out


def test_the_split_is_told_in_sessions_and_repositories(work: Path) -> None:
    """It used to print "(18 and 0 units)" without defining a unit."""
    result = recompose("build", "--held_out.by", "repository", cwd=work)
    assert (
        "by repository: 2 sessions to train on, 0 held out (of 1 and 0 repositories)" in result.out
    )
    result = recompose("build", "--held_out.by", "session", cwd=work)
    assert (
        "by session: 2 sessions to train on, 0 held out\n" in result.out
        and " units)" not in result.out
    )


def test_a_window_that_left_turns_out_says_so(work: Path) -> None:
    log = session("sess-cccc")
    filler = tuple(
        Turn(role="user", author="harness", blocks=(Text(f"note {n} " * 20),), tag="reminder")
        for n in range(60)
    )
    turns = (*log.turns[:1], *filler, *log.turns[1:])
    long = replace(log, turns=turns, segments=(Segment(start=0, end=len(turns)),))
    (work / "recompose" / "sites.jsonl").write_text("")
    (work / "recompose" / "hints.jsonl").write_text("")
    write_sessions(work / "recompose" / "sessions.jsonl", [long])
    assert recompose("build", "--build.max-tokens", "700", cwd=work).code == 0
    out = recompose("show", "example", "e001", cwd=work).out
    assert "of the session are not in this window)" in out and "(turns 1 to" in out


def test_a_build_that_lost_every_hint_is_a_problem_with_its_remedy(work: Path) -> None:
    result = recompose("build", "--build.max-tokens", "150", "--train.lm-ce.weight", "0", cwd=work)
    assert (
        result.code == 1
        and "0 of 2 hints could be built for hint" in result.err
        and "raise build.max_tokens" in result.err
    )
    assert "recompose train" not in result.out
    assert (work / "recompose/examples/skipped.jsonl").exists()  # the lost views can be inspected
    dry = recompose("build", "--dry-run", "--json", "--build.max-tokens", "150", cwd=work)
    assert dry.code == 1 and dry.value["error"]["exit_code"] == 1
    weights = (
        "--train.hint.weight",
        "0",
        "--train.lm-ce.weight",
        "0",
        "--train.preference.weight",
        "1",
    )
    off = recompose("build", "--build.max-tokens", "150", *weights, cwd=work)
    assert off.code == 0


def test_a_build_that_is_stopped_while_it_looks_for_a_way_out_is_refused_already(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search takes a pass over the sessions for each window; it may be interrupted."""

    def interrupted(config: Config) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "wider_windows", interrupted)
    assert recompose("build", "--build.max-tokens", "150", cwd=work).code == 130
    refused = recompose("train", "--dry-run", cwd=work)
    assert refused.code == 1 and "build of these examples was refused" in words(refused.err)
    assert "of 2 hints could be built for hint" in words(refused.err)


def test_an_earlier_version_noted_no_remedy(work: Path) -> None:
    assert recompose("build", cwd=work).code == 0
    path = work / "recompose" / "examples" / "meta.json"
    noted = {"refused": {"what": "no hints", "flags": ""}}
    path.write_text(json.dumps(json.loads(path.read_bytes()) | noted))
    refused = words(recompose("train", "--dry-run", cwd=work).err)
    assert "was refused: no hints" in refused and "run `recompose build` again" in refused


@pytest.mark.parametrize(
    ("counts", "settings", "problem"),
    [
        (
            {"skipped hint/template": 17, "trained_messages": 6, "skipped lm_ce/template": 667},
            {},
            "0 of 17 hints",
        ),
        (
            {"skipped hint/template": 17, "trained_messages": 6, "skipped lm_ce/template": 667},
            {"hint": {"weight": 0}},
            "6 of 673 messages",
        ),
        (
            {"views": 1, "hinted_sites": 1, "skipped hint/evidence_lost": 9, "trained_messages": 9},
            {},
            "",
        ),
        # the gate: nothing was lost
        ({"skipped hint/weak_hint": 3, "skipped hint/category": 2, "trained_messages": 9}, {}, ""),
        # its windows are what they are
        (
            {"hinted_sites": 5, "views": 5, "trained_messages": 6, "skipped lm_ce/too_long": 90},
            {},
            "",
        ),
    ],
)
def test_what_counts_as_lost(
    counts: dict[str, int], settings: dict[str, Any], problem: str
) -> None:
    lost = lost_channel(Config.model_validate({"train": settings}), build_report(Counter(counts)))
    assert (problem in str(lost)) if problem else lost is None


def test_live_rollouts_bring_their_own_hints() -> None:
    config = Config.model_validate(
        {
            "rollouts": {"env": "workshop"},
            "train": {"lm_ce": {"weight": 0.0}, "policy": {"weight": 1.0}},
        }
    )
    assert lost_channel(config, build_report(Counter({"skipped hint/too_long": 3}))) is None
