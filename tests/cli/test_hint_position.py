"""hints.position = "auto": the audit chooses where hints go, and every verb after it follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import record_to_json
from composer_replication.core.config.data_settings import HintPosition
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Decision, Hint
from composer_replication.evaluation.hint_lift import audit_hints
from composer_replication.evaluation.hint_positions import PositionEffect
from tests.cli.workspace import fill, recompose, session, site
from tests.evaluation.position_effects import position_effect

pytestmark = pytest.mark.train
AUTO = ("--hints.position", "auto")
TRAIN = ("train", "--train.steps", "1", "--train.batch_examples", "1")
SESSIONS = 30
"""More than the sites on which the audit compares positions."""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Sessions with a mistake and a hint each."""
    names = [f"sess-{number:04d}" for number in range(SESSIONS)]
    fill(tmp_path / "recompose", [session(name, text=f"Do {name}.") for name in names])
    sites = [site(name) for name in names]
    write_lines(tmp_path / "recompose" / "sites.jsonl", map(record_to_json, sites))
    decision = Decision(part="tool", wrong="Edit", right=("Read",))
    hints = [
        Hint(
            site_id=s.id,
            text="Call Read on the file first.",
            writer="x",
            kind=s.kind,
            decision=decision,
        )
        for s in sites
    ]
    write_lines(tmp_path / "recompose" / "hints.jsonl", map(record_to_json, hints))
    return tmp_path


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, set[str]]]:
    """A student whom a user message disturbs least: of each audit the number of views that were
    judged, and their positions."""
    seen: list[tuple[int, set[str]]] = []

    def positions(*_: Any, chosen: HintPosition, **__: Any) -> list[PositionEffect]:
        assert chosen == "system"
        return [
            position_effect("system", (0.0, 0.0), 1.5),
            position_effect("user", (-1.0, 0.0), 1.5),
            position_effect("result", (-0.5, 0.0), 1.5),
        ]

    def judge(model: Any, examples: Any, **kwargs: Any) -> Any:
        views = [view for example in examples for view in example.hints]
        seen.append((len(views), {view.position for view in views}))
        return audit_hints(model, examples[:2], **kwargs)

    monkeypatch.setattr(
        "composer_replication.evaluation.hint_positions.measure_positions", positions
    )
    monkeypatch.setattr("composer_replication.evaluation.hint_lift.audit_hints", judge)
    return seen


def positions_of(work: Path) -> set[str]:
    """Where the built examples hold their hints."""
    lines = (work / "recompose" / "examples" / "examples.jsonl").read_text("utf-8").splitlines()
    return {view["position"] for line in lines for view in json.loads(line)["hints"]}


def test_the_audit_chooses_the_position_and_judges_all_hints_there(
    work: Path, judged: list[tuple[int, set[str]]]
) -> None:
    out = recompose("hints", "--audit", *AUTO, cwd=work).out
    assert judged == [(SESSIONS, {"user"})]
    assert "'user' disturbs less than 'system'" in out
    assert "It is used from here on (hints.position = 'auto')" in out
    audit = json.loads((work / "recompose" / "audit.json").read_text("utf-8"))
    assert (audit["position"], audit["compared_with"]) == ("user", "system")
    # a second audit begins again from a system message, whatever the first one chose
    (work / "recompose.toml").write_text("seed = 1\n", "utf-8")
    assert recompose("build", "--train.hint.weight", "0", *AUTO, cwd=work).code == 0
    (work / "recompose" / "audit.json").unlink()
    again = recompose("hints", "--audit", *AUTO, cwd=work)
    assert again.code == 0 and judged[1] == judged[0]
    next_command = again.out.rpartition(" next ")[2]
    assert "recompose" in next_command and "--audit" not in next_command  # it is made


def test_build_and_train_follow_the_audit(work: Path, judged: list[tuple[int, set[str]]]) -> None:
    assert recompose("build", *AUTO, cwd=work).code == 0
    assert positions_of(work) == {"system"}  # no audit yet
    assert recompose("hints", "--audit", *AUTO, cwd=work).code == 0
    unweighted = (*AUTO, "--train.hint.weight", "0")  # the tiny student passes no audit
    refused = recompose(*TRAIN, *unweighted, cwd=work)
    said = " ".join(refused.err.replace("│", " ").split())
    assert refused.code == 1 and "position 'system', hints.position is 'user' (it is" in said
    assert recompose("build", *unweighted, "--hints.unmeasured", "keep", cwd=work).code == 0
    meta = json.loads((work / "recompose" / "examples" / "meta.json").read_text("utf-8"))
    assert meta["hint_position"] == "user"
    assert recompose(*TRAIN, *unweighted, "--name", "run", cwd=work).code == 0
    run = work / "recompose" / "runs" / "run"
    resolved = json.loads((run / "resolved.json").read_text("utf-8"))
    assert resolved["hints"]["position"] == "user"  # what was done, not "auto"
    again = ("train", "--train.steps", "2", "--train.batch_examples", "1", "--resume", "run")
    assert recompose(*again, *unweighted, "--accept-changes", cwd=work).code == 0


def test_a_resumed_run_keeps_its_position_whatever_a_later_audit_chose(
    work: Path, judged: list[tuple[int, set[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was to use the flags of command.txt, where the position is "auto"."""
    unweighted = (*AUTO, "--train.hint.weight", "0", "--hints.unmeasured", "keep")
    for verb in ("hints", "build"):
        flags = ("--audit",) if verb == "hints" else ()
        assert recompose(verb, *flags, *unweighted, cwd=work).code == 0
    assert recompose(*TRAIN, *unweighted, "--name", "run", cwd=work).code == 0
    audit_json = work / "recompose" / "audit.json"
    audit = json.loads(audit_json.read_text("utf-8"))
    audit_json.write_text(json.dumps({**audit, "position": "result"}), "utf-8")
    asked: list[str] = []

    def check(job: Any, resumed: Any, *, accept_changes: bool) -> None:
        asked.append(job.config.hints.position)

    monkeypatch.setattr("composer_replication.cli.train.check_same_settings", check)
    recompose(*TRAIN, *unweighted, "--resume", "run", cwd=work)
    recompose(*TRAIN, *unweighted, "--name", "another", cwd=work)
    assert asked == ["user", "result"]


def test_a_set_position_stays_what_it_is(work: Path, judged: list[tuple[int, set[str]]]) -> None:
    out = recompose("hints", "--audit", cwd=work).out
    assert judged == [(SESSIONS, {"system"})]
    assert "set hints.position = 'user', or 'auto', then run the audit and build again" in out
