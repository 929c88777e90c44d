"""`recompose sites` with a reader: paid once, under the ceiling, redacted; its verdicts in the
sites, on the screen and on the page. Without one nothing changes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import read_sites, read_verdicts
from tests.cli.test_ingest import assistant, call, record, result
from tests.cli.workspace import recompose
from tests.core.planting import planted, still_there
from tests.data.hints.test_candidate_reader import vote
from tests.data.teachers.endpoint import Endpoint

REFUSED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected. To tell you"
    " how to proceed, the user said:\ndon't push, just commit"
)
SITES = """\
{"id":"11111111-2222:1:-","session_id":"11111111-2222","turn":1,"kind":"user_corrected",\
"detector":"corrections","evidence":[6],"category":"corrected","author":"claude-test-1",\
"detail":"no, that is wrong: cache.py keeps its name","file":"one.jsonl","repository":"shop",\
"rule":"corrected_named","confidence":0.6,"flagged":false}
{"id":"11111111-2222:9:c3","session_id":"11111111-2222","turn":9,"kind":"user_rejected",\
"detector":"tool_error","evidence":[10],"category":"rejected","call_id":"c3","tool":"Bash",\
"author":"claude-test-1","detail":"don't push, just commit","flagged":true,"file":"one.jsonl",\
"repository":"shop","rule":"rejected_prohibition","confidence":0.65}
"""
SCREEN = """\
 0 mistaken messages in 0 of 1 session; 2 sites in all
what went wrong  kind  sites

 apart from mistakes, never trained on by default:
what happened          kind            category   sites
corrected by a person  user_corrected  corrected      1
refused by a person    user_rejected   rejected       1

 author of the mistaken message: none  (imported text is off-policy: context distillation)
 no mistaken message found; detectors: tool_error, repeated_call, hidden_error, failed_check
 wrote  recompose/sites.jsonl  670 B
 next   recompose show session
"""


def log_lines(asked: str = "rename it") -> list[str]:
    """1 and 3 edit, 6 corrects 1, 8 is no correction of any rule, 10 rejects the call of 9."""

    def human(uuid: str, parent: str | None, text: str) -> str:
        return record(uuid, parent, {"role": "user", "content": text})

    def text(uuid: str, parent: str, words: str) -> str:
        return assistant(uuid, parent, {"type": "text", "text": words})

    def edit(call_id: str, name: str) -> dict[str, Any]:
        path = f"/home/dev/shop/{name}"
        return call(call_id, "Edit", file_path=path, old_string="x", new_string="y")

    return [
        human("u1", None, asked),
        assistant("a1", "u1", edit("c1", "cache.py")),
        result("u2", "a1", "c1", "updated"),
        assistant("a2", "u2", edit("c2", "store.py")),
        result("u3", "a2", "c2", "updated"),
        text("a3", "u3", "All of it is renamed."),
        human("u4", "a3", "no, that is wrong: cache.py keeps its name"),
        text("a4", "u4", "I will put it back."),
        human("u5", "a4", "the shop page shows the old name"),
        assistant("a5", "u5", call("c3", "Bash", command="git push")),
        result("u6", "a5", "c3", REFUSED, error=True),
        text("a6", "u6", "Done."),
    ]


def respond(body: dict[str, Any]) -> str:
    """Agrees on the correction, calls the rejection a wish, and names 3 where no rule fired."""
    shown = body["messages"][-1]["content"]
    answers = {6: vote(1), 8: vote(3), 10: vote(None, wish=True)}
    (event,) = re.findall(r"\ALater events: #(\d+)\n", shown)
    return json.dumps(answers[int(event)])


def settings(url: str, *, max_usd: float = 1.0, more: str = "") -> str:
    return (
        f'[sites.reader]\nteacher = "mine"\n{more}[replay]\nmax_usd = {max_usd}\nattempts = 1\n'
        '[replay.teacher.mine]\nmodel = "acme/m"\nfamily = "acme"\nkey_env = ""\n'
        f'base_url = "{url}"\nmax_input_usd_per_mtok = 1.0\nmax_output_usd_per_mtok = 4.0\n'
    )


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "one.jsonl").write_text("\n".join(log_lines()) + "\n", "utf-8")
    recompose("ingest", "logs", cwd=tmp_path)
    return tmp_path


def files(work: Path) -> set[str]:
    return {path.name for path in (work / "recompose").iterdir()}


def rows(work: Path) -> dict[int, tuple[str, str, int, int]]:
    verdicts = read_verdicts(work / "recompose" / "site_verdicts.jsonl")
    return {v.evidence[0]: (v.rule, v.outcome, v.votes, v.readings) for v in verdicts}


def test_without_a_reader_nothing_changes(work: Path) -> None:
    """The text of the file and of the screen from before there was a reader."""
    before = files(work)
    result = recompose("sites", cwd=work)
    assert (result.code, result.out, result.err) == (0, SCREEN, "")
    assert (work / "recompose" / "sites.jsonl").read_text("utf-8") == SITES
    assert files(work) - before == {"sites.jsonl", "sites.meta.json"}
    assert "reader" not in recompose("sites", "--json", cwd=work).value
    recompose("report", cwd=work)
    page = (work / "recompose" / "report.html").read_text("utf-8")
    assert "Nothing was trained, and no model was asked." in page
    assert "reader" not in page
    assert "reader" not in recompose("audit", "logs", "-o", "recompose", "--json", cwd=work).value
    assert recompose("sites", "--estimate", cwd=work).code == 2


def test_the_verdicts_are_in_the_sites_on_the_screen_and_on_the_page(work: Path) -> None:
    with Endpoint(act=respond) as endpoint:
        (work / "recompose.toml").write_text(settings(endpoint.url), "utf-8")
        shown = recompose("sites", cwd=work)
        assert shown.code == 0, shown.err
        assert len(endpoint.seen) == 3
        assert endpoint.seen[0].body["response_format"]["json_schema"]["strict"] is True
    found = {site.turn: (site.rule, site.confidence) for site in _sites(work)}
    assert found == {
        1: ("corrected_named", 0.733),
        3: ("reader_alone", 0.3),
        9: ("rejected_prohibition", 0.325),
    }
    assert not any(site.is_target for site in _sites(work))
    assert rows(work) == {
        6: ("corrected_named", "mistake", 1, 1),
        8: ("reader_alone", "mistake", 1, 1),
        10: ("rejected_prohibition", "wish", 1, 1),
    }
    assert "reader   3 candidates read by a model, 2 mistaken, for $0." in shown.out
    assert re.search(r"user_corrected +2 +2 +0 +0 +2 +0 +1 of 2 +–", shown.out)
    assert re.search(r"user_rejected +1 +0 +1 +0 +1 +0 +0 of 1 +–", shown.out)
    recompose("report", cwd=work)
    page = (work / "recompose" / "report.html").read_text("utf-8")
    assert "3 candidates read by a model, 2 mistaken, for $0." in page
    assert "no model was asked" not in page and "What a reader model says of them" in page


def _sites(work: Path) -> list[Any]:
    return list(read_sites(work / "recompose" / "sites.jsonl"))


def test_a_second_run_asks_nobody_and_counts_no_vote_twice(work: Path) -> None:
    with Endpoint(act=respond) as endpoint:
        three = settings(endpoint.url, more="votes = 3\n")
        (work / "recompose.toml").write_text(three, "utf-8")
        first = recompose("sites", "--json", cwd=work)
        once, sites = rows(work), _sites(work)
        assert len(endpoint.seen) == 9
        again = recompose("sites", "--json", cwd=work)
        assert len(endpoint.seen) == 9
    assert again.value["reader"] == first.value["reader"]
    assert (rows(work), _sites(work)) == (once, sites)
    assert once[6] == ("corrected_named", "mistake", 3, 3)


def test_the_audit_uses_the_verdicts_and_asks_nobody(work: Path) -> None:
    with Endpoint(act=respond) as endpoint:
        (work / "recompose.toml").write_text(settings(endpoint.url), "utf-8")
        recompose("sites", cwd=work)
        sites = _sites(work)
        (work / "recompose" / "sites.jsonl").unlink()
        audited = recompose("audit", "logs", "-o", "recompose", "--json", cwd=work)
        assert audited.code == 0, audited.err
        assert len(endpoint.seen) == 3
    assert _sites(work) == sites
    assert [row["read"] for row in audited.value["reader"]["kinds"]] == [2, 1]
    # Once no reader is set any more, its verdicts do not count, and are not shown.
    (work / "recompose.toml").unlink()
    recompose("sites", cwd=work)
    assert (work / "recompose" / "sites.jsonl").read_text("utf-8") == SITES
    assert "site_verdicts.jsonl" not in files(work) and "ledger.sqlite3" in files(work)


def test_recorded_answers_give_the_same_verdicts(work: Path) -> None:
    with Endpoint(act=respond) as endpoint:
        (work / "recompose.toml").write_text(settings(endpoint.url), "utf-8")
        recompose("sites", cwd=work)
    asked, sites = rows(work), _sites(work)
    (work / "recompose" / "site_answers.jsonl").rename(work / "read.jsonl")
    (work / "recompose.toml").unlink()
    result = recompose("sites", "--sites.reader.recorded", "read.jsonl", cwd=work)
    assert result.code == 0, result.err
    assert (rows(work), _sites(work)) == (asked, sites)


def test_an_estimate_sends_nothing_and_a_paid_reader_needs_a_ceiling(work: Path) -> None:
    with Endpoint(act=respond) as endpoint:
        free = settings(endpoint.url, max_usd=0.0)
        (work / "recompose.toml").write_text(free, "utf-8")
        result = recompose("sites", "--estimate", "--json", cwd=work)
        assert (result.value["candidates"], result.value["readings"]) == (3, 3)
        assert 0 < result.value["worst_usd"] < 0.1
        refused = recompose("sites", cwd=work)
        assert refused.code == 1 and "there is no ceiling" in refused.err
        assert endpoint.seen == []
    assert "ledger.sqlite3" not in files(work)


def test_at_the_ceiling_it_stops_with_code_4_and_keeps_what_was_bought(work: Path) -> None:
    with Endpoint(act=respond) as endpoint:
        (work / "recompose.toml").write_text(settings(endpoint.url), "utf-8")
        worst_usd = recompose("sites", "--estimate", "--json", cwd=work).value["worst_usd"]
        low = settings(endpoint.url, max_usd=1.1 * worst_usd / 3)
        (work / "recompose.toml").write_text(low, "utf-8")
        result = recompose("sites", "--json", cwd=work)
        assert result.code == 4, result.err
        assert result.value["reader"]["stopped"] is True
        assert endpoint.billed_usd <= 1.1 * worst_usd / 3
        assert 0 < len(endpoint.seen) == len(rows(work)) < 3
        (work / "recompose.toml").write_text(settings(endpoint.url), "utf-8")
        assert recompose("sites", cwd=work).code == 0
        assert len(endpoint.seen) == len(rows(work)) == 3


def test_an_answer_that_is_no_json_is_no_verdict(work: Path) -> None:
    with Endpoint(act=lambda body: "Yes, message 1 is mistaken.") as endpoint:
        (work / "recompose.toml").write_text(settings(endpoint.url), "utf-8")
        result = recompose("sites", "--json", cwd=work)
    assert result.value["reader"]["void"] == {"not JSON": 3}
    assert {outcome for _, outcome, *_ in rows(work).values()} == {"undecided"}
    assert (work / "recompose" / "sites.jsonl").read_text("utf-8") == SITES


def test_people_who_are_not_corrected_by_a_rule_are_bounded(work: Path) -> None:
    with Endpoint(act=respond) as endpoint:
        none = settings(endpoint.url, more="unmatched = 0\n")
        (work / "recompose.toml").write_text(none, "utf-8")
        recompose("sites", cwd=work)
        assert len(endpoint.seen) == 2
    assert set(rows(work)) == {6, 10}


def test_no_secret_is_sent(work: Path) -> None:
    secrets = planted(per_kind=2)
    text = "\n".join(secret.text for secret in secrets)
    (work / "logs" / "one.jsonl").write_text("\n".join(log_lines(text)) + "\n", "utf-8")
    (work / "recompose" / "sessions.jsonl").unlink()
    recompose("ingest", "logs", "--ingest.redact", "false", cwd=work)
    with Endpoint(act=respond) as endpoint:
        long = settings(endpoint.url, more="prompt_tokens = 100000\n")
        (work / "recompose.toml").write_text(long, "utf-8")
        assert recompose("sites", cwd=work).code == 0
        sent = json.dumps([request.body for request in endpoint.seen], ensure_ascii=False)
    assert "[REDACTED:" in sent
    assert [secret.kind for secret in secrets if still_there(secret, sent)] == []


def test_a_killed_reading_goes_on_and_pays_for_no_answer_twice(work: Path) -> None:
    with Endpoint(plan=lambda number, body: "hang" if number == 1 else "ok", act=respond) as first:
        one_at_a_time = settings(first.url) + "at_once = 1\n"
        (work / "recompose.toml").write_text(one_at_a_time, "utf-8")
        command = [sys.executable, "-m", "composer_replication.cli", "sites", "--trust-settings"]
        process = subprocess.Popen(command, cwd=work, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while len(first.seen) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (work / "recompose" / "site_verdicts.jsonl").exists()
        bought = first.seen[0].body
        assert recompose("sites", cwd=work).code == 0
        assert len(first.seen) == 4
        assert bought not in [request.body for request in first.seen[1:]]
    assert {votes for *_, votes, _ in rows(work).values()} == {1}
