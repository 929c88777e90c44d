"""The gate of `hints --audit`: no lift, no training - in `build`, in `train`, and never by a stale
audit."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from composer_replication.cli.hint_gate import check_examples
from composer_replication.core.codec import record_to_json
from composer_replication.core.config.root import Config
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.core.rundir import sha256_of
from composer_replication.core.site import Decision, Hint, Site
from composer_replication.evaluation.audit_names import MEASURE
from composer_replication.report.explanations import REASONS
from composer_replication.tokens.artefact import Dataset
from composer_replication.tokens.example import HintView, TrainingExample
from tests.cli.workspace import files, fill, recompose, session, site

pytestmark = pytest.mark.train
WEAK, GOOD = "file_missing", "repeated_call"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Two sessions with a mistake each, of two kinds, and a hint for each."""
    folder = tmp_path / "recompose"
    fill(folder, [session("sess-aaaa"), session("sess-bbbb", text="Now the other one.")])
    first_site, second_site = site("sess-aaaa"), site("sess-bbbb")
    second_site = Site(
        **{name: getattr(second_site, name) for name in second_site.__slots__} | {"kind": GOOD}
    )
    write_lines(folder / "sites.jsonl", map(record_to_json, (first_site, second_site)))
    hints = [
        Hint(
            site_id=s.id,
            text=f"Look at the list first: {s.kind}",
            writer="x",
            kind=s.kind,
            decision=Decision(part="tool", wrong="Edit", right=("Read",)),
        )
        for s in (first_site, second_site)
    ]
    write_lines(folder / "hints.jsonl", map(record_to_json, hints))
    return tmp_path


def kind_row(kind: str, low: float | None, *, over_none: float = 1.0) -> dict[str, Any]:
    """A kind as `hints --audit` writes it."""
    decision = {"lift": 0.5, "low": low, "high": 2.0, "over_none": over_none, "sessions": 5}
    return {"kind": kind, "n": 9, "decision": decision}


def audit(work: Path, *strong_kinds: str, student: str = "tiny", **about: Any) -> None:
    """Write the file that `hints --audit` would write for these measurements."""
    folder = work / "recompose"
    kinds = [kind_row(kind, 0.3 if kind in strong_kinds else -0.3) for kind in (WEAK, GOOD)]
    write_json(
        folder / "audit.json",
        {
            "student": student,
            "measure": MEASURE,
            "kinds": [*kinds, kind_row("all", 0.3)],
            **about,
        },
    )
    write_json(
        folder / "audit.meta.json",
        {"made_from": {"hints.jsonl": sha256_of(folder / "hints.jsonl")}},
    )


def test_build_leaves_hints_of_weak_kinds_out_and_counts_them(work: Path) -> None:
    audit(work, GOOD)
    value = recompose("build", "--json", cwd=work).value
    assert (value["views"], value["views_by_kind"], value["kept_kinds"]) == (1, {GOOD: 1}, [GOOD])
    assert value["skipped"]["hint/weak_hint"] == 1 and "hint/no_hint" not in value["skipped"]
    # the mistake keeps its message out of lm_ce all the same
    assert value["skipped"]["lm_ce/site"] == 2
    assert all(key in REASONS for key in value["skipped"])  # the report can explain each
    inputs = json.loads((work / "recompose" / "examples" / "meta.json").read_text("utf-8"))[
        "inputs"
    ]
    assert [Path(i["path"]).name for i in inputs][-1] == "audit.json"
    result = recompose("build", cwd=work).out
    assert "hint/weak_hint" in result and f"the audit kept {GOOD}" in result


def test_without_an_audit_every_kind_is_used_and_it_is_said(work: Path) -> None:
    result = recompose("build", cwd=work)
    assert (
        result.code == 0
        and "no audit was made, so hints of every kind are used: recompose hints --audit"
        in result.out
    )
    value = recompose("build", "--json", cwd=work).value
    assert (
        value["views"] == 2
        and value["kept_kinds"] is None
        and "hint/weak_hint" not in value["skipped"]
    )
    off = recompose("build", "--train.hint.weight", "0", cwd=work)
    assert "no audit was made" not in off.out


def test_where_no_kind_is_kept_nothing_is_built_or_trained(work: Path) -> None:
    assert recompose("build", cwd=work).code == 0
    audit(work)
    files_before = files(work)
    for verb in ("build", "train"):
        result = recompose(verb, cwd=work)
        assert (
            result.code == 3
            and "no lift, nothing to train" in result.err
            and "train.hint.weight = 0" in result.err
        ), verb
        assert "the tiny student knows nothing yet" in " ".join(
            result.err.replace("│", " ").split()
        )
    assert files(work) == files_before
    assert recompose("build", "--train.hint.weight", "0", cwd=work).code == 0


def test_train_refuses_examples_that_hold_weak_hints(work: Path) -> None:
    assert recompose("build", cwd=work).code == 0
    audit(work, GOOD)
    result = recompose("train", "--dry-run", cwd=work)
    assert (
        result.code == 1
        and f"did not keep: {WEAK}" in result.err
        and "recompose build" in result.err
    )
    assert recompose("build", cwd=work).code == 0
    assert recompose("train", "--dry-run", cwd=work).code == 0


def test_an_audit_of_other_hints_or_of_another_student_is_refused(work: Path) -> None:
    audit(work, GOOD, WEAK, student="other/model")
    result = recompose("build", cwd=work)
    assert (
        result.code == 1
        and "made with 'other/model', the student is 'tiny'" in result.err
        and "hints --audit" in result.err
    )
    audit(work, GOOD, WEAK)
    with (work / "recompose" / "hints.jsonl").open("a", encoding="utf-8") as out:
        out.write("\n")
    result = recompose("build", cwd=work)
    assert (
        result.code == 1 and "another hints.jsonl" in result.err and "hints --audit" in result.err
    )


def test_an_audit_in_another_position_is_refused(work: Path) -> None:
    audit(work, GOOD)
    result = recompose("build", "--hints.position", "user", cwd=work)
    assert result.code == 1 and "hints --audit" in result.err
    assert "measured hints in position 'system'" in " ".join(result.err.replace("│", " ").split())


def test_an_audit_of_another_template_is_refused_and_another_dtype_is_said(work: Path) -> None:
    audit(work, GOOD, template="qwen3", dtype="bfloat16")
    result = recompose("build", cwd=work)
    assert result.code == 1 and "hints --audit" in result.err
    assert "the template 'qwen3', student.template is 'auto'" in " ".join(
        result.err.replace("│", " ").split()
    )
    audit(work, GOOD, template="auto", dtype="bfloat16")
    out = recompose("build", cwd=work).out
    assert "the audit was measured in bfloat16, student.dtype is float32" in out


def test_the_gate_follows_the_settings_of_now(work: Path) -> None:
    """min_lift and unmeasured are read with the numbers: what an old audit said of them is not."""
    audit(work, GOOD)

    def kept(*flags: str) -> list[str]:
        return recompose("build", "--json", "--dry-run", *flags, cwd=work).value["kept_kinds"]

    assert kept() == [GOOD] and kept("--hints.min_lift", "-1") == sorted((WEAK, GOOD))
    refused = recompose("build", "--hints.min_lift", "0.4", cwd=work)
    assert refused.code == 3 and "hints.min_lift = 0.4" in " ".join(
        refused.err.replace("│", " ").split()
    )
    unknown = {"kind": WEAK, "n": 3, "decision": None}
    audit(work, kinds=[unknown, kind_row(GOOD, 0.3, over_none=-0.1)])
    refused = recompose("build", cwd=work)
    assert refused.code == 3
    assert f'set hints.unmeasured = "keep" to use {WEAK} unmeasured' in " ".join(
        refused.err.replace("│", " ").split()
    )
    assert kept("--hints.unmeasured", "keep") == [WEAK]


def test_a_hint_that_no_audit_can_measure_follows_the_setting_in_a_kept_kind(work: Path) -> None:
    path = work / "recompose" / "hints.jsonl"
    hints = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for hint in hints:
        hint["decision"]["right"] = []
    write_lines(path, hints)
    audit(work, GOOD)
    value = recompose("build", "--json", cwd=work).value
    assert value["views"] == 0 and value["skipped"]["hint/unmeasured_hint"] == 1
    assert "hint/unmeasured_hint" in REASONS
    value = recompose("build", "--json", "--hints.unmeasured", "keep", cwd=work).value
    assert value["views"] == 1 and "hint/unmeasured_hint" not in value["skipped"]
    assert recompose("train", "--dry-run", "--hints.unmeasured", "keep", cwd=work).code == 0
    result = recompose("train", "--dry-run", cwd=work)
    assert result.code == 1 and "no audit can measure" in " ".join(
        result.err.replace("│", " ").split()
    )


def test_the_audit_is_stamped_and_names_its_student(work: Path) -> None:
    assert recompose("sites", cwd=work).code == 0
    value = recompose("hints", "--audit", "--json", cwd=work).value
    folder = work / "recompose"
    assert value["audit"]["student"] == "tiny"
    stamp = json.loads((folder / "audit.meta.json").read_text("utf-8"))["made_from"]
    assert stamp == {"hints.jsonl": sha256_of(folder / "hints.jsonl")}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"kinds": []}', '{"student": "tiny", "kinds": [{"kind": "x"}]}']
)
def test_a_damaged_audit_is_named(work: Path, text: str) -> None:
    (work / "recompose" / "audit.json").write_text(text, "utf-8")
    result = recompose("build", cwd=work)
    assert result.code == 1 and "no audit of this version" in result.err


def test_an_audit_by_the_earlier_measure_is_refused_with_the_way_on(work: Path) -> None:
    audit(work, GOOD)
    path = work / "recompose" / "audit.json"
    old = json.loads(path.read_text("utf-8"))
    del old["measure"]
    path.write_text(json.dumps(old), "utf-8")
    result = recompose("build", cwd=work)
    assert result.code == 1 and "hints --audit" in result.err
    assert "measured the lift over the whole message" in " ".join(
        result.err.replace("│", " ").split()
    )


def test_every_kind_that_a_view_speaks_of_must_have_been_kept() -> None:
    """A message of two failing calls is one view with both hints: that of the second one counts as
    well."""
    job: Any = SimpleNamespace(config=Config(), examples=Path("examples"), command=str)
    view = HintView(
        site_id="s:1:a",
        kind=GOOD,
        others=(("s:1:b", WEAK),),
        at=1,
        hint_ids=(9,),
        span=(2, 3),
        target_ids=(7,),
    )
    data = Dataset(
        examples=(TrainingExample(id="e", session_id="s", ids=(5, 6, 7), hints=(view,)),),
        pairs=(),
        meta={},
    )
    check_examples(job, data, {GOOD, WEAK})
    with pytest.raises(DataError, match=f"did not keep: {WEAK}"):
        check_examples(job, data, {GOOD})
