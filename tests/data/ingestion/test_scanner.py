"""The scanner as a gate: its findings keep the sessions from being stored, and are not repeated."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from composer_replication.core.errors import ConfigError, SecretsFoundError
from composer_replication.data.ingestion.scanner import check_file

FINDS = "import sys; text = open(sys.argv[1]).read(); print('found', text[:200]); sys.exit(200 if 'Initech' in text else 0)"
SCANNER = (sys.executable, "-c", FINDS, "{file}")


def test_a_file_without_findings_passes_and_one_with_does_not(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("all is well")
    check_file(path, command=SCANNER)
    check_file(path, command=SCANNER[:3])  # the file is added where no part names it
    path.write_text("the customer is Initech")
    with pytest.raises(SecretsFoundError, match="exit code 200, 1 lines") as told:
        check_file(path, command=SCANNER)
    assert "customer" not in str(told.value)


def test_a_scanner_that_cannot_run_stops_too(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("x")
    with pytest.raises(ConfigError, match="cannot be run"):
        check_file(path, command=(str(tmp_path / "no-such-scanner"),))
    with pytest.raises(ConfigError, match="not done within"):
        check_file(path, command=(sys.executable, "-c", "import time; time.sleep(60)"), timeout_s=0.2)


def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl; touch owned"
    path.write_text("x")
    check_file(path, command=(sys.executable, "-c", "", "$(touch owned)"))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
