"""What `sessions --form training_trace` writes is a TrainingTrace of OpenEnv's own class."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_serve import needs_namespaces, workplace
from tests.cli.workspace import recompose

pytestmark = pytest.mark.backend


@needs_namespaces
def test_openenv_reads_the_traces(tmp_path: Path, repository_root: Path) -> None:
    from openenv.core.harness.training import TrainingTrace

    flags = workplace(tmp_path, repository_root)
    assert recompose("serve", *flags, "-q", cwd=tmp_path).code == 0
    student = ("--student.model", str(repository_root / "examples" / "workshop_student"))
    argv = ("sessions", "-o", "recompose/served", "--form", "training_trace", *student)
    assert recompose(*argv, "--write", "traces.jsonl", cwd=tmp_path).code == 0
    (line,) = (tmp_path / "traces.jsonl").read_text("utf-8").splitlines()
    trace = TrainingTrace.model_validate_json(line)
    assert len(trace.turns) == 3
    written = json.loads(trace.model_dump_json(exclude_defaults=True))
    assert written == {"turns": json.loads(line)["turns"]}
    broken = json.loads(line)
    broken["turns"][0]["loss_mask"].pop()
    with pytest.raises(ValueError, match="mask"):  # the class does check
        TrainingTrace.model_validate(broken)
