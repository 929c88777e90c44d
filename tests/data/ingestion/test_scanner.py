"""The scanner is a gate: findings keep the sessions from being stored, and are not repeated in
messages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from composer_replication.core.config.data_settings import IngestSettings
from composer_replication.core.errors import ConfigError, SecretsFoundError
from composer_replication.data.ingestion.scanner import check_file

FINDS = (
    "import sys; text = open(sys.argv[1]).read(); print('found', text[:200]); sys.exit(200 if"
    " 'Initech' in text else 0)"
)
SCANNER = (sys.executable, "-c", FINDS, "{file}")


def test_a_file_without_findings_passes_and_one_with_does_not(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("all is well")
    check_file(path, command=SCANNER)
    check_file(path, command=SCANNER[:3])  # the file is added where no part names it
    path.write_text("the customer is Initech")
    with pytest.raises(SecretsFoundError, match="exit code 200, 1 lines") as raised:
        check_file(path, command=SCANNER)
    assert "customer" not in str(raised.value)


def test_a_scanner_that_cannot_run_stops_too(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("x")
    with pytest.raises(ConfigError, match="cannot be run"):
        check_file(path, command=(str(tmp_path / "no-such-scanner"),))
    with pytest.raises(ConfigError, match="not done within"):
        check_file(
            path, command=(sys.executable, "-c", "import time; time.sleep(60)"), timeout_s=0.2
        )


def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl; touch owned"
    path.write_text("x")
    check_file(path, command=(sys.executable, "-c", "", "$(touch owned)"))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


STUB = """#!{python}
import json, sys
file, options = sys.argv[2], dict(a.partition("=")[::2] for a in sys.argv[3:])
assert sys.argv[1] == "dir" and "--redact" in options and options["--report-format"] == "json"
text = open(file).read()
if "broken" in text:
    sys.exit(1)
found = [{{"RuleID": "customer", "Secret": "Initech", "StartLine": 1}}] * text.count("Initech")
open(options["--report-path"], "w").write(json.dumps(found) if "torn" not in text else "[{{")
sys.exit(int(options["--exit-code"]) if found else 0)
"""


def test_gitleaks_is_set_up_by_its_name_and_its_report_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of that name stands in for it: it checks the options, writes a report and ends as
    it is told to."""
    program = tmp_path / "bin" / "gitleaks"
    program.parent.mkdir()
    program.write_text(STUB.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    path = tmp_path / "s.jsonl"
    path.write_text("all is well")
    check_file(path, command=IngestSettings.model_validate({"scanner": "gitleaks"}).scanner)
    path.write_text("Initech and Initech")
    with pytest.raises(SecretsFoundError, match="customer: 2") as raised:
        check_file(path, command=("gitleaks",))
    assert "Initech" not in str(raised.value)
    path.write_text("broken")
    with pytest.raises(ConfigError, match="failed"):
        check_file(path, command=("gitleaks",))
    path.write_text("torn")
    with pytest.raises(ConfigError, match="report"):
        check_file(path, command=("gitleaks",))
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".scan-")] == []


def test_a_scanner_of_a_known_name_that_is_not_installed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "s.jsonl"
    path.write_text("x")
    with pytest.raises(ConfigError, match="'gitleaks' cannot be run"):
        check_file(path, command=("gitleaks",))
