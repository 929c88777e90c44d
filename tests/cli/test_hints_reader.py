"""`recompose hints --writer reader`: from recorded readings to sites and hints, a paid reader under
a ceiling, and the refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from composer_replication.cli import replay_teachers
from composer_replication.core.codec import read_hints, read_sessions, read_sites, record_to_json
from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Answer
from composer_replication.core.trace import Text, Turn
from composer_replication.data.teachers.scripted import Scripted
from tests.cli.test_ingest import log_lines
from tests.cli.workspace import recompose
from tests.core.planting import planted, still_there
from tests.data.hints.scripted_reader import mistake
from tests.data.teachers.endpoint import Endpoint

HINT = "Look at what stands in the file before you change it."


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "one.jsonl").write_text("\n".join(log_lines()) + "\n", "utf-8")
    recompose("ingest", "logs", cwd=tmp_path)
    recompose("sites", cwd=tmp_path)
    return tmp_path


def record_readings(work: Path, *, votes: int = 3, hint: str = HINT) -> None:
    """The answers of a reader that names the mistake of the rules, written by hand: no model was
    asked."""
    (session,) = read_sessions(work / "recompose" / "sessions.jsonl")
    (site,) = [s for s in read_sites(work / "recompose" / "sites.jsonl") if s.category == "mistake"]
    entry = mistake(site.turn, None, site.evidence[0], hint=hint)
    turn = Turn(role="assistant", author="r", blocks=(Text(json.dumps({"mistakes": [entry]})),))
    places = [f"{session.id}#0-{len(session.turns)}.{vote}" for vote in range(votes)]
    write_lines(
        work / "read.jsonl",
        [record_to_json(Answer(site_id=p, teacher="r", family="f", turn=turn)) for p in places],
    )


RECORDED = ("--writer", "reader", "--hints.reader.recorded", "read.jsonl")


def test_recorded_readings_become_hints_of_the_rules_sites(work: Path) -> None:
    record_readings(work)
    before = list(read_sites(work / "recompose" / "sites.jsonl"))
    result = recompose("hints", *RECORDED, "--json", cwd=work)
    assert result.code == 0, result.err
    assert result.value["hints"] == 1
    (hint,) = read_hints(work / "recompose" / "hints.jsonl")
    assert (hint.text, hint.writer) == (HINT, "reader")
    assert list(read_sites(work / "recompose" / "sites.jsonl")) == before
    assert len((work / "recompose" / "reader_answers.jsonl").read_text().splitlines()) == 3
    again = recompose(
        "hints",
        *RECORDED[:2],
        "--hints.reader.recorded",
        "recompose/reader_answers.jsonl",
        "--json",
        cwd=work,
    )
    assert again.value["hints"] == 1  # what it keeps can be read again


def test_one_vote_of_three_is_dropped_and_a_leak_is_refused(work: Path) -> None:
    record_readings(work, votes=1)
    result = recompose("hints", *RECORDED, "--json", cwd=work)
    assert (result.value["hints"], result.value["unsure"], result.value["void"]) == (0, 1, 2)
    record_readings(work, hint="The old string was: String to replace not found in file.")
    result = recompose("hints", *RECORDED, "--json", cwd=work)
    assert (result.value["hints"], result.value["refused: quotes_later_text"]) == (0, 1)


def test_a_paid_reader_needs_a_ceiling_and_an_estimate_sends_nothing(work: Path) -> None:
    table = (
        '[hints]\nwriter = "reader"\n[hints.reader]\nteacher = "mine"\n[replay.teacher.mine]\nmodel'
        ' = "acme/m"\nfamily = "acme"\n'
    )
    prices = (
        'base_url = "https://models.invalid/v1"\nmax_input_usd_per_mtok ='
        ' 1.0\nmax_output_usd_per_mtok = 2.0\nkey_env = "NO_SUCH_KEY_X1"\n'
    )
    (work / "recompose.toml").write_text(table + prices, "utf-8")
    result = recompose("hints", "--estimate", "--json", cwd=work)
    assert result.code == 0, result.err
    assert result.value["readings"] == 3
    assert 0 < result.value["worst_usd"] < 0.1
    assert not (work / "recompose" / "ledger.sqlite3").exists()
    result = recompose("hints", cwd=work)
    assert result.code != 0
    assert "NO_SUCH_KEY_X1" in result.err or "ceiling" in result.err


def test_what_does_not_fit_together_is_named(work: Path) -> None:
    assert "hints.reader.teacher" in recompose("hints", "--writer", "reader", cwd=work).err
    assert recompose("hints", "--estimate", cwd=work).code == 2
    result = recompose("hints", "--writer", "reader", "--hints.reader.votes", "1", cwd=work)
    assert result.code != 0
    assert "min_votes" in result.err


def endpoint_config(url: str, *, max_usd: float = 1.0) -> str:
    return (
        '[hints]\nwriter = "reader"\n[hints.reader]\nteacher = "mine"\n[replay]\nmax_usd ='
        f' {max_usd}\nattempts = 1\n[replay.teacher.mine]\nmodel = "acme/m"\nfamily ='
        f' "acme"\nbase_url = "{url}"\nkey_env = ""\nmax_input_usd_per_mtok ='
        " 1.0\nmax_output_usd_per_mtok = 4.0\n"
    )


def test_a_reader_behind_an_endpoint_is_paid_once_and_sent_no_secret(work: Path) -> None:
    """A real HTTP server on this machine; the sessions were ingested without redaction, and the
    requests are redacted all the same."""
    secrets = planted(per_kind=2)
    text = "\n".join(secret.text for secret in secrets)
    (work / "logs" / "one.jsonl").write_text("\n".join(log_lines(text)) + "\n", "utf-8")
    # another log of the same name: it would be kept apart
    (work / "recompose" / "sessions.jsonl").unlink()
    recompose("ingest", "logs", "--ingest.redact", "false", cwd=work)
    recompose("sites", cwd=work)
    (site,) = [s for s in read_sites(work / "recompose" / "sites.jsonl") if s.category == "mistake"]
    reading = json.dumps({"mistakes": [mistake(site.turn, None, site.evidence[0], hint=HINT)]})
    with Endpoint(act=lambda body: reading) as endpoint:
        (work / "recompose.toml").write_text(endpoint_config(endpoint.url), "utf-8")
        result = recompose("hints", "--json", cwd=work)
        assert result.code == 0, result.err
        assert (result.value["hints"], len(endpoint.seen)) == (1, 3)
        sent = json.dumps([request.body for request in endpoint.seen], ensure_ascii=False)
        assert "[REDACTED:" in sent
        assert [secret.kind for secret in secrets if still_there(secret, sent)] == []
        assert endpoint.seen[0].body["response_format"]["json_schema"]["strict"] is True
        again = recompose("hints", "--json", cwd=work)
        # the ledger had all of it: nobody was asked twice
        assert (again.value["hints"], len(endpoint.seen)) == (1, 3)


def test_at_the_ceiling_it_stops_with_code_4_and_keeps_what_was_bought(work: Path) -> None:
    with Endpoint(act=lambda body: '{"mistakes": []}') as endpoint:
        (work / "recompose.toml").write_text(endpoint_config(endpoint.url, max_usd=0.012), "utf-8")
        result = recompose("hints", "--json", cwd=work)
        assert result.code == 4, result.err
        assert result.value["stopped"] is True
        assert endpoint.billed_usd <= 0.012
        assert (
            len((work / "recompose" / "reader_answers.jsonl").read_text().splitlines())
            == len(endpoint.seen)
            < 3
        )


def test_a_reader_on_this_machine_is_not_asked_over_http(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kind = "local" means a model on this machine, for the reader as for `replay`; a script
    replaces it here."""
    opened: list[str] = []
    with Endpoint(act=lambda body: '{"mistakes": []}') as endpoint:
        (work / "recompose.toml").write_text(
            endpoint_config(endpoint.url) + 'kind = "local"\n', "utf-8"
        )
        turn = Turn(role="assistant", author="r", blocks=(Text('{"mistakes": []}'),))

        def local(name: str, settings: TeacherSettings) -> Scripted:
            opened.append(f"{name}: {settings.model}")
            return Scripted(name, family="acme", act=lambda request: turn)

        monkeypatch.setattr(replay_teachers, "_local", local)
        result = recompose("hints", "--json", cwd=work)
        assert result.code == 0, result.err
        assert (opened, result.value["asked"], endpoint.seen) == (["mine: acme/m"], 3, [])
