"""`replay` without teachers: whom it could ask, what that costs, and what to write."""

from __future__ import annotations

import re
import shlex
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


@pytest.mark.parametrize("flags", [(), ("--dry-run",), ("--estimate",)])
def test_it_says_who_could_be_asked_for_how_much_and_what_to_write(
    flags: tuple[str, ...], logs: Path
) -> None:
    assert recompose("sites", cwd=logs).code == 0
    result = recompose("replay", *flags, cwd=logs)
    if flags == ("--estimate",):
        assert result.code == 0 and not result.err, "an estimate lacks nothing"
        assert " 2 sessions, 2 mistakes to ask about\n" in result.out
        assert "no teacher is set, and nothing was sent" in result.out
    else:
        assert result.code == 1 and "nobody was asked, and nothing was sent" in result.err
        assert "Without the key" in result.out
    assert "That costs money" in result.out and f"chosen on {CHOSEN_ON}" in result.out
    for name, teacher in DEFAULT_TEACHERS.items():
        (price,) = re.findall(rf"^{name} +{teacher.model} .* (\S+)$", result.out, re.MULTILINE)
        assert 0 < float(price) < 0.1
    each, total = re.findall(r"about \$(\S+) a mistake, \$(\S+) for the 2 of 2", result.out)[0]
    assert float(total) == pytest.approx(2 * float(each), abs=0.01)
    assert "export OPENROUTER_API_KEY=..." in result.out
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


def test_an_estimate_without_teachers_leads_on_to_one_with_them(logs: Path) -> None:
    before = recompose("replay", "--estimate", "--json", cwd=logs)
    assert before.code == 0 and before.value["sent"] == 0
    assert before.value["next"] == "recompose sites", "the mistakes are not known yet"
    assert recompose("sites", cwd=logs).code == 0
    value = recompose("replay", "--estimate", "--json", cwd=logs).value
    assert value["teachers"] == {} and value["offered"]["teachers"] == list(DEFAULT_TEACHERS)
    assert value["sites"] == 2 and 0 < value["usd"] <= value["most_usd"]
    followed = recompose(*shlex.split(value["next"])[1:], "--json", cwd=logs)
    assert followed.code == 0 and list(followed.value["teachers"]) == list(DEFAULT_TEACHERS)


def test_an_estimate_counts_one_session_and_one_step_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    sessions_on(("2026-10-05",), to=tmp_path / "logs")
    for verb in (("ingest", "logs"), ("sites",)):
        assert recompose(*verb, cwd=tmp_path).code == 0
    assert (
        " 1 session, 1 mistake to ask about\n"
        in recompose("replay", "--estimate", cwd=tmp_path).out
    )
    flags = ("--replay.teachers", '["kimi"]', "--replay.sampled-steps", "0")
    out = recompose("replay", "--estimate", *flags, cwd=tmp_path).out
    assert " 1 session, 1 step to ask about, 1 mistake among them\n" in out
