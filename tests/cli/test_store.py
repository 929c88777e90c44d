"""The store accumulates: no ingested session is lost, and every count describes the stored
version."""

from __future__ import annotations

import errno
import json
import os
import re
import tracemalloc
from pathlib import Path

import pytest

from composer_replication.core.codec import read_sessions, write_sessions
from composer_replication.core.errors import BusyError
from composer_replication.core.jsonl import write_json
from composer_replication.core.lock import lock_folder
from composer_replication.core.trace import Parent, Session
from composer_replication.data.ingestion.ingest_record import IngestRecord
from composer_replication.data.ingestion.store import plan_merge, write_merged
from composer_replication.report.html import document, session_mark, sessions_of_page, unpacked
from tests.cli.test_ingest import MADE_UP_KEY, assistant, call, log_lines, record, result
from tests.cli.workspace import CliResult, files, recompose
from tests.data.sites.builder import calls, human, session

SESSION, OTHER = "11111111-2222", "33333333-4444"
LATER = [
    record("u4", "a3", {"role": "user", "content": "And the tax?"}),
    assistant("a4", "u4", call("c3", "Read", file_path="/home/dev/shop/tax.py")),
    result("u5", "a4", "c3", "     1→RATE = 0.19"),
]


def write(path: Path, lines: list[str], *, name: str = SESSION, project: str = "shop") -> Path:
    """A log; one of another name has other ids of messages and calls too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(lines) + "\n"
    if name != SESSION:
        text = re.sub(r'"((?:msg_)?[auc]\d)"', rf'"\1-{name}"', text)
    path.write_text(
        text.replace(SESSION, name).replace("/home/dev/shop", f"/home/dev/{project}"), "utf-8"
    )
    return path


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    write(tmp_path / "logs" / "one.jsonl", log_lines())
    return tmp_path


def ingest(workdir: Path, *more: str) -> dict[str, list[str]]:
    """The store report of `ingest`."""
    result = recompose("ingest", "logs", "--json", *more, cwd=workdir)
    assert result.code == 0, result.out
    return result.value["store"]


def stored(workdir: Path) -> dict[str, Session]:
    return {
        session.id: session for session in read_sessions(workdir / "recompose" / "sessions.jsonl")
    }


def remembered(workdir: Path) -> dict[str, dict[str, str]]:
    return json.loads((workdir / "recompose" / "ingest.json").read_text("utf-8"))["sessions"]


def test_what_the_agent_deleted_stays_and_another_project_adds(workdir: Path) -> None:
    assert ingest(workdir)["added"] == [SESSION]
    (workdir / "logs" / "one.jsonl").unlink()
    write(workdir / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    store_report = ingest(workdir)
    assert (store_report["added"], store_report["gone"], store_report["sessions"]) == (
        [OTHER],
        [SESSION],
        2,
    )
    assert {s.repository for s in stored(workdir).values()} == {"shop", "tide"}
    file_records = json.loads((workdir / "recompose" / "ingest.json").read_text("utf-8"))["files"]
    assert [file["file"] for file in file_records] == ["one.jsonl", "two.jsonl"]


def test_a_log_that_grew_replaces_what_it_grew_from(workdir: Path) -> None:
    ingest(workdir)
    write_json(workdir / "recompose" / "ingest.json", _as_of(workdir, "2026-01-01T00:00:00Z"))
    write(workdir / "logs" / "one.jsonl", [*log_lines(), *LATER])
    store_report = ingest(workdir)
    assert (store_report["grown"], store_report["sessions"]) == ([SESSION], 1)
    assert len(stored(workdir)[SESSION].turns) == 9
    record = remembered(workdir)[SESSION]
    assert record["first_seen"] == "2026-01-01T00:00:00Z" < record["last_seen"]
    assert (record["started"], record["file"], record["project"], record["turns"]) == (
        "2026-01-05T10:00:00Z",
        "one.jsonl",
        "shop",
        9,
    )


def _as_of(workdir: Path, time: str) -> dict[str, object]:
    value = json.loads((workdir / "recompose" / "ingest.json").read_text("utf-8"))
    value["sessions"] = {
        name: {**record, "first_seen": time} for name, record in value["sessions"].items()
    }
    return value


@pytest.mark.parametrize(
    "lines",
    [log_lines()[:4], [*log_lines()[:2], "{broken", *log_lines()[3:]]],
    ids=["cut short", "damaged"],
)
def test_what_holds_less_never_replaces_what_holds_more(workdir: Path, lines: list[str]) -> None:
    ingest(workdir)
    before, known = (
        (workdir / "recompose" / "sessions.jsonl").read_bytes(),
        remembered(workdir)[SESSION],
    )
    write(workdir / "logs" / "one.jsonl", lines)
    assert ingest(workdir)["shorter"] == [SESSION]
    # the report describes the stored version
    assert {**remembered(workdir)[SESSION], "last_seen": known["last_seen"]} == known
    assert (workdir / "recompose" / "sessions.jsonl").read_bytes() == before
    assert "the longer one stays" in recompose("ingest", "logs", cwd=workdir).out


def test_what_differs_without_being_a_continuation_is_kept_apart_and_said(workdir: Path) -> None:
    ingest(workdir)
    other_lines = [
        *log_lines()[:3],
        assistant("b2", "u2", call("d2", "Bash", command="ls")),
        result("v3", "b2", "d2", "cart.py"),
    ]
    write(workdir / "logs" / "one.jsonl", other_lines)
    outcome = recompose("ingest", "logs", cwd=workdir)
    assert f"{SESSION}~2: this log differs" in outcome.out
    sessions = stored(workdir)
    assert [len(s.turns) for s in sessions.values()] == [6, 5]
    assert ingest(workdir)["same"] == [f"{SESSION}~2"]  # and so it stays, under its own name
    write(workdir / "logs" / "one.jsonl", log_lines())
    assert ingest(workdir)["same"] == [SESSION]


def test_the_same_logs_again_change_nothing_so_nothing_is_stale(workdir: Path) -> None:
    ingest(workdir)
    assert recompose("sites", cwd=workdir).code == 0
    before = (workdir / "recompose" / "sessions.jsonl").read_bytes()
    (workdir / "logs" / "one.jsonl").rename(workdir / "logs" / "renamed.jsonl")
    store_report = ingest(workdir)
    assert (store_report["same"], store_report["changed"]) == ([SESSION], False)
    assert (workdir / "recompose" / "sessions.jsonl").read_bytes() == before
    assert recompose("hints", cwd=workdir).code == 0


def test_turns_copied_from_a_session_whose_log_is_gone_are_known_as_copied(workdir: Path) -> None:
    ingest(workdir)
    fork = (
        "\n".join([*log_lines(), *LATER])
        .replace(SESSION, "55555555-6666")
        .replace('"uuid": "', '"uuid": "f')
        .replace("msg_", "msg_f")
    )
    (workdir / "logs" / "one.jsonl").write_text(
        fork.replace('"parentUuid": "', '"parentUuid": "f') + "\n", "utf-8"
    )
    assert ingest(workdir)["added"] == ["55555555-6666"]
    assert stored(workdir)["55555555-6666"].copied == 5
    assert [turn for turn, _ in stored(workdir)["55555555-6666"].assistant_turns()] == [5, 7]


def test_a_subagent_stays_with_the_version_of_its_session_that_started_it(tmp_path: Path) -> None:
    """The log that differs is kept as s1~2: its subagent is written with that name, and not as the
    log has it."""
    old, new = (session(human(text), calls("Yes.")) for text in ("Fix the cart.", "Fix the tax."))
    child = session(
        human("Look it up."),
        calls("Found."),
        id="s1.agent-a7",
        parent=Parent(session_id="s1", call_id=None),
    )
    store, fresh = tmp_path / "sessions.jsonl", tmp_path / "fresh.jsonl"
    write_sessions(store, [old])
    write_sessions(fresh, [new, child])
    plan = plan_merge(store, fresh, record=IngestRecord(), now="2026-11-22T13:31:56Z")
    with (tmp_path / "merged.jsonl").open("wb") as stream:
        assert write_merged(plan, stream) == 3
    merged = {
        merged_session.id: merged_session
        for merged_session in read_sessions(tmp_path / "merged.jsonl")
    }
    assert (plan.outcomes["apart"], plan.outcomes["added"]) == (["s1~2"], ["s1.agent-a7"])
    assert (
        merged["s1.agent-a7"].parent == Parent(session_id="s1~2", call_id=None)
        and merged["s1"] == old
    )


def test_forget_removes_and_keeps_out_until_recalled(workdir: Path) -> None:
    write(workdir / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    ingest(workdir)
    assert recompose("sites", cwd=workdir).code == 0
    result = recompose("ingest", "--forget", "tide", cwd=workdir)
    assert (
        result.code == 0 and f"forgot   {OTHER}" in result.out and "recompose sites" in result.out
    )
    assert list(stored(workdir)) == [SESSION]
    assert b"tide" not in (workdir / "recompose" / "sessions.jsonl").read_bytes()
    assert ingest(workdir)["forgotten"] == [OTHER] and list(stored(workdir)) == [SESSION]
    assert recompose("ingest", "--recall", "tide", cwd=workdir).code == 0
    assert ingest(workdir)["added"] == [OTHER]
    assert recompose("ingest", "--forget", SESSION, cwd=workdir).code == 0
    assert list(stored(workdir)) == [OTHER]


def two_of_one_name(workdir: Path) -> None:
    """Two projects that are both called by the last part of their folder, and a third in one of
    them; no log is left."""
    for number, folder in enumerate(("alpha/app", "beta/app", "beta/app/tools")):
        write(workdir / "logs" / "one.jsonl", log_lines(), name=f"app-{number}", project=folder)
        assert ingest(workdir)["added"] == [f"app-{number}"]
    (workdir / "logs" / "one.jsonl").unlink()


def test_a_name_that_could_mean_several_projects_is_refused_and_says_which(workdir: Path) -> None:
    two_of_one_name(workdir)
    before = (workdir / "recompose" / "sessions.jsonl").read_bytes()
    for more in ([], ["--dry-run"]):
        result = recompose("ingest", "--forget", "app", *more, cwd=workdir)
        assert (
            result.code == 2
            and "/home/dev/alpha/app  (1" in result.err
            and "/home/dev/beta/app  (1" in result.err
        )
    assert (workdir / "recompose" / "sessions.jsonl").read_bytes() == before
    shown = recompose("sessions", cwd=workdir).out
    assert (
        "/home/dev/alpha/app" in shown and "/home/dev/beta/app" in shown and "3 projects" in shown
    )
    assert recompose("ingest", "--forget", "/home/dev/beta/app/", cwd=workdir).code == 0
    assert list(stored(workdir)) == ["app-0", "app-2"]
    assert [
        session["id"]
        for session in recompose("sessions", "/home/dev/alpha/app", "--json", cwd=workdir).value[
            "sessions"
        ]
    ] == ["app-0"]
    assert recompose("ingest", "--forget", "app", cwd=workdir).code == 0  # now it means one
    assert list(stored(workdir)) == ["app-2"]
    assert recompose("ingest", "--recall", "app", cwd=workdir).code == 2
    write(workdir / "logs" / "one.jsonl", log_lines(), name="app-1", project="beta/app")
    assert ingest(workdir)["forgotten"] == ["app-1"]
    assert recompose("ingest", "--recall", "/home/dev/beta/app", cwd=workdir).code == 0
    assert ingest(workdir)["added"] == ["app-1"]


def test_what_was_forgotten_does_not_come_back_under_the_name_of_a_folder_inside(
    workdir: Path,
) -> None:
    write(workdir / "logs" / "two.jsonl", log_lines(), name=OTHER, project="shop/src")
    ingest(workdir)
    assert recompose("ingest", "--forget", "shop", cwd=workdir).code == 0
    assert not stored(workdir)
    (workdir / "logs" / "one.jsonl").unlink()
    assert ingest(workdir)["forgotten"] == [OTHER]


def test_whatever_still_holds_a_forgotten_session_is_removed_or_named(workdir: Path) -> None:
    write(workdir / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    ingest(workdir)
    work = workdir / "recompose"
    for verb in ("sites", "hints", "report"):
        assert recompose(verb, cwd=workdir).code == 0
    run = work / "runs" / "2026-01-01-a" / "tokens"
    run.mkdir(parents=True)
    (run / "step_000000.json").write_text(f'"{SESSION}"', "utf-8")
    (work / "answers.jsonl").write_text(json.dumps({"session_id": OTHER}) + "\n", "utf-8")
    (work / "agent_rules.md").write_text("Check that a program is there: `rg`.\n", "utf-8")
    assert any(SESSION in text for text in unpacked((work / "report.html").read_text("utf-8")))
    output = recompose("ingest", "--forget", SESSION, "--dry-run", cwd=workdir).out
    assert (
        f"would remove {Path('recompose', 'report.html')}" in output
        and (work / "report.html").exists()
    )
    value = recompose("ingest", "--forget", SESSION, "--json", cwd=workdir).value
    assert (
        value["removed"] == [str(Path("recompose", "report.html"))]
        and not (work / "report.html").exists()
    )
    named = {Path(path).name for path in value["may_hold"]} - {"agent_rules.md"}
    assert len(named) == len(value["may_hold"]) - 1
    holding = {
        path.relative_to(work).parts
        for path in work.rglob("*")
        if path.is_file() and SESSION.encode() in path.read_bytes()
    }
    # ingest.json lists the sessions that stay out
    assert {parts[1] if parts[0] == "runs" else parts[0] for parts in holding} - {
        "ingest.json"
    } == named
    assert named == {"sites.jsonl", "hints.jsonl", "2026-01-01-a"}
    for verb in ("sites", "hints"):
        assert recompose(verb, cwd=workdir).code == 0
    assert not any(
        SESSION.encode() in (work / name).read_bytes()
        for name in ("sites.jsonl", "hints.jsonl", "sessions.jsonl")
    )


def test_a_page_that_only_counts_a_forgotten_session_is_removed(workdir: Path) -> None:
    """A row whose article was left out carries no id of its session, and neither do counts."""
    write(workdir / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    ingest(workdir)
    assert recompose("sites", cwd=workdir).code == recompose("report", cwd=workdir).code == 0
    page = workdir / "recompose" / "report.html"
    text = page.read_text("utf-8")
    small = re.sub(r'<script type="text/plain" id="sites-data">[^<]*', "", text)
    assert sessions_of_page(text) == {session_mark(SESSION), session_mark(OTHER)}
    assert SESSION not in small and not any(SESSION in part for part in unpacked(small))
    page.write_text(small, "utf-8")
    value = recompose("ingest", "--forget", SESSION, "--dry-run", "--json", cwd=workdir).value
    assert value["removed"] == [str(Path("recompose", "report.html"))]
    assert recompose("ingest", "--forget", SESSION, cwd=workdir).code == 0 and not page.exists()


def test_a_page_of_other_sessions_stays_and_one_that_does_not_say_goes(workdir: Path) -> None:
    write(workdir / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    ingest(workdir)
    page = workdir / "recompose" / "report.html"
    page.write_text(document("logs", sessions=[OTHER]), "utf-8")
    value = recompose("ingest", "--forget", SESSION, "--dry-run", "--json", cwd=workdir).value
    assert value["removed"] == []
    page.write_text(document("logs"), "utf-8")  # as an earlier version wrote it
    assert "may have been" in recompose("ingest", "--forget", SESSION, "--dry-run", cwd=workdir).out
    assert recompose("ingest", "--forget", SESSION, cwd=workdir).code == 0 and not page.exists()


def test_another_page_that_does_not_say_its_sessions_is_named(workdir: Path) -> None:
    """A comparison of runs, or a copy of a page of an earlier version: nothing makes it anew."""
    write(workdir / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    ingest(workdir)
    work = workdir / "recompose"
    for name, sessions in (("comparison", None), ("mine", [SESSION]), ("theirs", [OTHER])):
        (work / f"{name}.html").write_text(document(name, sessions=sessions), "utf-8")
    value = recompose("ingest", "--forget", SESSION, "--json", cwd=workdir).value
    assert value["removed"] == [] and len(list(work.glob("*.html"))) == 3
    assert {Path(path).name for path in value["may_hold"]} == {"comparison.html", "mine.html"}


def test_a_dry_run_says_what_would_be_forgotten(workdir: Path) -> None:
    ingest(workdir)
    result = recompose("ingest", "--forget", "shop", "--dry-run", cwd=workdir)
    assert (
        f"would forget {SESSION}" in result.out
        and "forgot " not in result.out
        and "recalled" not in result.out
    )


def test_forgetting_what_is_not_there_says_so_and_a_dry_run_forgets_nothing(workdir: Path) -> None:
    ingest(workdir)
    before = {name: (workdir / name).read_bytes() for name in files(workdir)}
    for arguments in (["--forget", "nothing"], ["--recall", "shop"], ["--forget", "shop", "logs"]):
        assert recompose("ingest", *arguments, cwd=workdir).code == 2, arguments
    value = recompose("ingest", "--forget", "shop", "--dry-run", "--json", cwd=workdir).value
    assert value["forgotten"] == [SESSION]
    assert {name: (workdir / name).read_bytes() for name in files(workdir)} == before


def test_words_that_are_redacted_later_leave_sessions_whose_logs_are_gone(workdir: Path) -> None:
    write(workdir / "logs" / "one.jsonl", log_lines("The customer is Initech."))
    ingest(workdir)
    (workdir / "logs" / "one.jsonl").unlink()
    write(workdir / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    assert ingest(workdir, "--ingest.redact_words", "Initech")["cleaned"] == [SESSION]
    assert b"Initech" not in (workdir / "recompose" / "sessions.jsonl").read_bytes()
    assert ingest(workdir, "--ingest.redact_words", "Initech")["cleaned"] == []


def test_what_was_stored_with_secrets_gives_way_to_the_reading_without(workdir: Path) -> None:
    write(workdir / "logs" / "one.jsonl", log_lines(f"The key is {MADE_UP_KEY}."))
    ingest(workdir, "--ingest.redact", "false")
    assert MADE_UP_KEY.encode() in (workdir / "recompose" / "sessions.jsonl").read_bytes()
    # even if it holds less now
    write(workdir / "logs" / "one.jsonl", log_lines(f"The key is {MADE_UP_KEY}.")[:3])
    assert ingest(workdir)["sessions"] == 1
    assert MADE_UP_KEY.encode() not in (workdir / "recompose" / "sessions.jsonl").read_bytes()
    assert len(stored(workdir)[SESSION].turns) == 6


def test_a_store_of_an_earlier_version_keeps_its_sessions(workdir: Path) -> None:
    ingest(workdir)
    (workdir / "recompose" / "ingest.json").unlink()
    os.utime(workdir / "recompose" / "sessions.jsonl", (1.7e9, 1.7e9))
    (workdir / "logs" / "one.jsonl").unlink()
    write(workdir / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    assert ingest(workdir)["added"] == [OTHER]
    assert remembered(workdir)[SESSION]["first_seen"].startswith("2023-11-14T")


def test_two_at_once_are_told(workdir: Path) -> None:
    ingest(workdir)
    with lock_folder(workdir / "recompose", task="ingest"):
        result = recompose("ingest", "logs", cwd=workdir)
        assert result.code == 1 and "another ingest" in result.err
        with pytest.raises(BusyError), lock_folder(workdir / "recompose", task="ingest"):
            pass
    ingest(workdir)


@pytest.mark.parametrize("at", [1, 2, 4, 6])
def test_a_full_disk_is_told_with_the_path_and_the_room(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Whichever write finds no room; the first ones are of the folder and its key."""
    calls, real = [0], os.fsync

    def full(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] >= at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        result = recompose("ingest", "logs", "--json", cwd=workdir)
        error = result.value["error"]
        assert result.code == 1 and error["where"] == str(workdir / "recompose" / "sessions.jsonl")
        assert (
            "No space left" in error["what"]
            and " MB are needed, " in error["what"]
            and "make room" in error["fix"]
        )
    assert ingest(workdir)["sessions"] == 1


def test_sessions_lists_what_the_store_holds(workdir: Path) -> None:
    write(workdir / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    ingest(workdir)
    result = recompose("sessions", cwd=workdir)
    assert result.code == 0 and "2 sessions of 2 projects" in result.out and "s002" in result.out
    (row,) = recompose("sessions", "tide", "--json", cwd=workdir).value["sessions"]
    assert (row["id"], row["project"], row["turns"], row["ordinal"]) == (OTHER, "tide", 6, 1)
    assert row["started"] == "2026-01-05T10:00:00Z" and row["first_seen"] <= row["last_seen"]
    assert recompose("sessions", cwd=workdir.parent).code == 1


@pytest.fixture
def older(workdir: Path) -> Path:
    """Sites and hints of a store that has grown since."""
    ingest(workdir)
    assert recompose("sites", cwd=workdir).code == 0 and recompose("hints", cwd=workdir).code == 0
    write(workdir / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    result = recompose("ingest", "logs", cwd=workdir)
    assert (
        result.out.count("stale  ") == 1 and "recompose sites, then recompose hints" in result.out
    )
    return workdir


def test_no_verb_uses_what_was_made_from_an_older_store(older: Path) -> None:
    def refused(result: CliResult) -> bool:
        return (
            result.code == 1
            and "another sessions.jsonl" in result.err
            and "recompose sites" in result.err
        )

    for arguments in (
        ["report"],
        ["report", "--audit"],
        ["show", "site"],
        ["show", "site", "s001"],
        ["hints"],
        ["build"],
    ):
        assert refused(recompose(*arguments, cwd=older)), arguments
    # told once, all of it
    assert "recompose sites, then recompose hints" in recompose("build", cwd=older).err
    # the session is unchanged; its sites are left out
    outcome = recompose("show", "session", "s001", cwd=older)
    assert (
        outcome.code == 0
        and "edit_no_match" not in outcome.out
        and "recompose sites" in outcome.out
    )
    assert recompose("sessions", "--json", cwd=older).code == 0


def test_hints_of_older_sites_do_not_count_in_the_report(older: Path) -> None:
    assert recompose("sites", cwd=older).code == 0
    result = recompose("report", cwd=older)
    assert result.code == 0 and "2 mistaken messages in 2 of 2 sessions" in result.out
    assert result.out.count("stale  ") == 1 and "run again: recompose hints" in result.out
    page = recompose("report", "--json", cwd=older).value["pages"][0]
    assert (page["hints"], page["stale"]) == (0, ["hints.jsonl"])
    assert recompose("hints", cwd=older).code == 0
    page = recompose("report", "--json", cwd=older).value["pages"][0]
    assert (page["hints"], page["stale"]) == (2, [])


def test_a_large_store_is_merged_one_session_at_a_time(workdir: Path) -> None:
    for i in range(24):
        write(
            workdir / "logs" / f"{i}.jsonl",
            [*log_lines("word " * 100_000), *LATER],
            name=f"{i:08d}-7777",
        )
    ingest(workdir, "--ingest.redact", "false")
    fresh = write(workdir / "logs" / "one.jsonl", [*log_lines(), *LATER])
    for path in (workdir / "logs").iterdir():
        if path != fresh:
            path.unlink()
    tracemalloc.start()
    store_report = ingest(workdir, "--ingest.redact", "false")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (store_report["grown"], store_report["sessions"]) == ([SESSION], 25)
    assert peak < 6e6 < (workdir / "recompose" / "sessions.jsonl").stat().st_size
