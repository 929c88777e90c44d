"""`replay` without teachers: whom it could ask, what that costs, and what to write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from composer_replication.data.teachers.defaults import CHOSEN_ON, DEFAULT_TEACHERS
from tests.cli.agent_logs import sessions_on
from tests.cli.workspace import recompose


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    sessions_on(("2026-10-05", "2026-10-06"), to=tmp_path / "logs")
    assert recompose("ingest", "logs", cwd=tmp_path).code == 0
    return tmp_path


@pytest.mark.parametrize("flags", [(), ("--estimate",)])
def test_it_says_who_could_be_asked_for_how_much_and_what_to_write(
    flags: tuple[str, ...], logs: Path
) -> None:
    assert recompose("sites", cwd=logs).code == 0
    result = recompose("replay", *flags, cwd=logs)
    assert result.code == 1 and "nobody was asked, and nothing was sent" in result.err
    assert "That costs money" in result.out and f"chosen on {CHOSEN_ON}" in result.out
    for name, teacher in DEFAULT_TEACHERS.items():
        (price,) = re.findall(rf"^{name} +{teacher.model} .* (\S+)$", result.out, re.MULTILINE)
        assert 0 < float(price) < 0.1
    each, total = re.findall(r"about \$(\S+) a mistake, \$(\S+) for the 2 of 2", result.out)[0]
    assert float(total) == pytest.approx(2 * float(each), abs=0.01)
    assert "export OPENROUTER_API_KEY=..." in result.out and "Without the key" in result.out
    assert not (logs / "recompose" / "ledger.sqlite3").exists()


def test_what_it_says_to_write_is_a_settings_file_that_works(logs: Path) -> None:
    out = recompose("replay", cwd=logs).out
    lines = re.findall(r"^ {6}(.*)$", out, re.MULTILINE)
    assert "–" in out, "without sites.jsonl no price of a mistake is known"
    (logs / "recompose.toml").write_text("\n".join(lines) + "\n", "utf-8")
    assert recompose("sites", cwd=logs).code == 0
    value = recompose("replay", "--estimate", "--json", cwd=logs).value
    assert list(value["teachers"]) == list(DEFAULT_TEACHERS) and value["max_usd"] == 2.0
    refused = recompose("replay", cwd=logs)
    assert refused.code == 1 and "OPENROUTER_API_KEY is not set" in refused.err
