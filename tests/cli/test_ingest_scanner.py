"""The user's own scanner as a gate of `ingest`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cli.test_ingest import log_lines
from tests.cli.workspace import files, recompose

FINDS = (
    "import sys; text = open(sys.argv[1]).read(); print('found', text[:200]); sys.exit(200 if"
    " 'Initech' in text else 0)"
)
SCANNER = (sys.executable, "-c", FINDS, "{file}")


def test_ingest_stores_nothing_that_the_scanner_objects_to(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "one.jsonl"
    log.write_text("\n".join(log_lines("nothing of note")) + "\n", "utf-8")
    (tmp_path / "recompose.toml").write_text(f"[ingest]\nscanner = {list(SCANNER)!r}\n", "utf-8")
    assert recompose("ingest", "logs", cwd=tmp_path).code == 0
    stored_before = (tmp_path / "recompose" / "sessions.jsonl").read_bytes()
    log.write_text("\n".join(log_lines("The customer is Initech.")) + "\n", "utf-8")
    result = recompose("ingest", "logs", cwd=tmp_path)
    assert result.code == 1
    assert "objects to the redacted sessions" in result.err
    assert "customer" not in result.err + result.out
    assert (tmp_path / "recompose" / "sessions.jsonl").read_bytes() == stored_before
    assert files(tmp_path / "recompose") == {
        ".gitignore",
        "sessions.jsonl",
        "ingest.json",
        "redaction.key",
    }
    assert recompose("ingest", "logs", "--ingest.redact_words", "Initech", cwd=tmp_path).code == 0
