"""Every `next` line, walked as it is printed: none ends in a refusal."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from composer_replication.cli.main import VERBS
from tests.cli.test_verbs import without_torch
from tests.cli.workspace import recompose

LOGS = Path(__file__).resolve().parents[2] / "examples" / "demo_logs"


def words(line: str) -> list[str]:
    """A `next` line as a command line of the program."""
    program, *rest = shlex.split(line)
    assert program == "recompose", line
    return rest


@pytest.mark.train
def test_from_logs_to_a_run_with_the_default_student(tmp_path: Path) -> None:
    """The tiny student of the defaults: no audit is asked for that would keep no hint, and nothing that needs the workshop."""
    line, walked = f"recompose ingest {LOGS}", []
    while line and len(walked) < 12:
        argv = words(line)
        walked.append(argv[0])
        said = recompose(*argv, *(["--dry-run"] if argv[0] == "train" else []), "--json", cwd=tmp_path)
        assert said.code == 0, (line, said.err, said.out)
        if argv[0] == "train":
            break
        line = said.value["next"]
    assert walked == ["ingest", "sites", "hints", "report", "init", "build", "train"]


def test_without_pytorch_the_walk_ends_at_the_doctor(tmp_path: Path) -> None:
    line, walked = f"recompose ingest {LOGS}", []
    while line and (argv := words(line))[0] not in walked:
        walked.append(argv[0])
        done = without_torch(*argv, "--json", cwd=tmp_path)
        assert done.returncode == 0, (line, done.stderr)
        line = json.loads(done.stdout)["next"]
        if argv[0] == "doctor":
            break
    assert walked == ["ingest", "sites", "hints", "report", "doctor"] and line.startswith("pip install")


def test_with_a_student_named_the_audit_comes_before_the_build(tmp_path: Path) -> None:
    for verb in (("ingest", str(LOGS)), ("sites",), ("hints",)):
        assert recompose(*verb, "-q", cwd=tmp_path).code == 0
    said = recompose("report", "--student.model", "some/model", "--json", cwd=tmp_path)
    assert said.value["next"] == "recompose hints --audit"
    (tmp_path / "recompose" / "audit.json").write_text(
        json.dumps({"student": "some/model", "kinds": [{"kind": "all", "keeps": False}]}), "utf-8"
    )
    refused = recompose("report", "--student.model", "some/model", "--json", cwd=tmp_path)
    assert refused.value["next"] == "recompose show site"  # no kind of hint was kept: a build would be refused


def test_of_an_empty_store_the_next_step_brings_sessions_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = tmp_path / "agent" / "projects"
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(agents.parent))
    assert recompose("ingest", str(LOGS), cwd=tmp_path).code == 0
    projects = {one["folder"] for one in recompose("sessions", "--json", cwd=tmp_path).value["sessions"]}
    said = recompose("ingest", *(word for folder in projects for word in ("--forget", folder)), "--json", cwd=tmp_path)
    assert said.code == 0 and said.value["next"] == "recompose doctor"
    shutil.copytree(LOGS, agents)
    for verb in (["sites"], ["hints"], ["report"]):
        line = recompose(*verb, "--json", cwd=tmp_path).value["next"]
        assert line == f"recompose ingest {agents}" and recompose(*words(line), "--dry-run", cwd=tmp_path).code == 0
    assert recompose("sites", "--ingest.logs", str(agents), "--json", cwd=tmp_path).value["next"] == "recompose ingest"


def test_sites_and_report_count_the_same(tmp_path: Path) -> None:
    assert recompose("ingest", str(LOGS), cwd=tmp_path).code == 0
    told = [recompose(verb, cwd=tmp_path).out for verb in ("sites", "report")]
    counts = [found[0] for out in told if (found := re.findall(r"\d+ mistaken messages in \d+ of \d+ sessions", out))]
    assert len(counts) == 2 and counts[0] == counts[1]


def test_doctor_lists_every_verb(tmp_path: Path) -> None:
    listed = recompose("doctor", "--json", cwd=tmp_path).value["verbs"]
    assert set(VERBS) <= {verb.split()[0] for verb in listed}
