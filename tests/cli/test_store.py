"""The store accumulates: nothing that was ingested is lost, nothing that is told about it is of an
older one."""

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
from tests.cli.test_ingest import MADE_UP_KEY, assistant, call, log_lines, record, result
from tests.cli.workspace import Said, files, recompose
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
def here(tmp_path: Path) -> Path:
    write(tmp_path / "logs" / "one.jsonl", log_lines())
    return tmp_path


def ingest(here: Path, *more: str) -> dict[str, list[str]]:
    """What `ingest` says became of the store."""
    result = recompose("ingest", "logs", "--json", *more, cwd=here)
    assert result.code == 0, result.out
    return result.value["store"]


def stored(here: Path) -> dict[str, Session]:
    return {session.id: session for session in read_sessions(here / "recompose" / "sessions.jsonl")}


def remembered(here: Path) -> dict[str, dict[str, str]]:
    return json.loads((here / "recompose" / "ingest.json").read_text("utf-8"))["sessions"]


def test_what_the_agent_deleted_stays_and_another_project_adds(here: Path) -> None:
    assert ingest(here)["added"] == [SESSION]
    (here / "logs" / "one.jsonl").unlink()
    write(here / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    told = ingest(here)
    assert (told["added"], told["gone"], told["sessions"]) == ([OTHER], [SESSION], 2)
    assert {s.repository for s in stored(here).values()} == {"shop", "tide"}
    kept = json.loads((here / "recompose" / "ingest.json").read_text("utf-8"))["files"]
    assert [file["file"] for file in kept] == ["one.jsonl", "two.jsonl"]


def test_a_log_that_grew_replaces_what_it_grew_from(here: Path) -> None:
    ingest(here)
    write_json(here / "recompose" / "ingest.json", _as_of(here, "2026-01-01T00:00:00Z"))
    write(here / "logs" / "one.jsonl", [*log_lines(), *LATER])
    told = ingest(here)
    assert (told["grown"], told["sessions"]) == ([SESSION], 1)
    assert len(stored(here)[SESSION].turns) == 9
    seen = remembered(here)[SESSION]
    assert seen["first_seen"] == "2026-01-01T00:00:00Z" < seen["last_seen"]
    assert (seen["started"], seen["file"], seen["project"], seen["turns"]) == (
        "2026-01-05T10:00:00Z",
        "one.jsonl",
        "shop",
        9,
    )


def _as_of(here: Path, time: str) -> dict[str, object]:
    value = json.loads((here / "recompose" / "ingest.json").read_text("utf-8"))
    value["sessions"] = {
        name: {**seen, "first_seen": time} for name, seen in value["sessions"].items()
    }
    return value


@pytest.mark.parametrize(
    "lines",
    [log_lines()[:4], [*log_lines()[:2], "{broken", *log_lines()[3:]]],
    ids=["cut short", "damaged"],
)
def test_what_holds_less_never_replaces_what_holds_more(here: Path, lines: list[str]) -> None:
    ingest(here)
    before, known = (here / "recompose" / "sessions.jsonl").read_bytes(), remembered(here)[SESSION]
    write(here / "logs" / "one.jsonl", lines)
    assert ingest(here)["shorter"] == [SESSION]
    # what is told of it is of what is stored
    assert {**remembered(here)[SESSION], "last_seen": known["last_seen"]} == known
    assert (here / "recompose" / "sessions.jsonl").read_bytes() == before
    assert "the longer one stays" in recompose("ingest", "logs", cwd=here).out


def test_what_differs_without_being_a_continuation_is_kept_apart_and_said(here: Path) -> None:
    ingest(here)
    other = [
        *log_lines()[:3],
        assistant("b2", "u2", call("d2", "Bash", command="ls")),
        result("v3", "b2", "d2", "cart.py"),
    ]
    write(here / "logs" / "one.jsonl", other)
    outcome = recompose("ingest", "logs", cwd=here)
    assert f"{SESSION}~2: this log differs" in outcome.out
    sessions = stored(here)
    assert [len(s.turns) for s in sessions.values()] == [6, 5]
    assert ingest(here)["same"] == [f"{SESSION}~2"]  # and so it stays, under its own name
    write(here / "logs" / "one.jsonl", log_lines())
    assert ingest(here)["same"] == [SESSION]


def test_the_same_logs_again_change_nothing_so_nothing_is_stale(here: Path) -> None:
    ingest(here)
    assert recompose("sites", cwd=here).code == 0
    before = (here / "recompose" / "sessions.jsonl").read_bytes()
    (here / "logs" / "one.jsonl").rename(here / "logs" / "renamed.jsonl")
    told = ingest(here)
    assert (told["same"], told["changed"]) == ([SESSION], False)
    assert (here / "recompose" / "sessions.jsonl").read_bytes() == before
    assert recompose("hints", cwd=here).code == 0


def test_turns_copied_from_a_session_whose_log_is_gone_are_known_as_copied(here: Path) -> None:
    ingest(here)
    fork = (
        "\n".join([*log_lines(), *LATER])
        .replace(SESSION, "55555555-6666")
        .replace('"uuid": "', '"uuid": "f')
        .replace("msg_", "msg_f")
    )
    (here / "logs" / "one.jsonl").write_text(
        fork.replace('"parentUuid": "', '"parentUuid": "f') + "\n", "utf-8"
    )
    assert ingest(here)["added"] == ["55555555-6666"]
    assert stored(here)["55555555-6666"].copied == 5
    assert [turn for turn, _ in stored(here)["55555555-6666"].assistant_turns()] == [5, 7]


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
    merged = {one.id: one for one in read_sessions(tmp_path / "merged.jsonl")}
    assert (plan.outcomes["apart"], plan.outcomes["added"]) == (["s1~2"], ["s1.agent-a7"])
    assert (
        merged["s1.agent-a7"].parent == Parent(session_id="s1~2", call_id=None)
        and merged["s1"] == old
    )


def test_forget_removes_and_keeps_out_until_recalled(here: Path) -> None:
    write(here / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    ingest(here)
    assert recompose("sites", cwd=here).code == 0
    result = recompose("ingest", "--forget", "tide", cwd=here)
    assert (
        result.code == 0 and f"forgot   {OTHER}" in result.out and "recompose sites" in result.out
    )
    assert list(stored(here)) == [SESSION]
    assert b"tide" not in (here / "recompose" / "sessions.jsonl").read_bytes()
    assert ingest(here)["forgotten"] == [OTHER] and list(stored(here)) == [SESSION]
    assert recompose("ingest", "--recall", "tide", cwd=here).code == 0
    assert ingest(here)["added"] == [OTHER]
    assert recompose("ingest", "--forget", SESSION, cwd=here).code == 0
    assert list(stored(here)) == [OTHER]


def two_of_one_name(here: Path) -> None:
    """Two projects that are both called by the last part of their folder, and a third in one of
    them; no log is left."""
    for number, folder in enumerate(("alpha/app", "beta/app", "beta/app/tools")):
        write(here / "logs" / "one.jsonl", log_lines(), name=f"app-{number}", project=folder)
        assert ingest(here)["added"] == [f"app-{number}"]
    (here / "logs" / "one.jsonl").unlink()


def test_a_name_that_could_mean_several_projects_is_refused_and_says_which(here: Path) -> None:
    two_of_one_name(here)
    before = (here / "recompose" / "sessions.jsonl").read_bytes()
    for more in ([], ["--dry-run"]):
        result = recompose("ingest", "--forget", "app", *more, cwd=here)
        assert (
            result.code == 2
            and "/home/dev/alpha/app  (1" in result.err
            and "/home/dev/beta/app  (1" in result.err
        )
    assert (here / "recompose" / "sessions.jsonl").read_bytes() == before
    shown = recompose("sessions", cwd=here).out
    assert (
        "/home/dev/alpha/app" in shown and "/home/dev/beta/app" in shown and "3 projects" in shown
    )
    assert recompose("ingest", "--forget", "/home/dev/beta/app/", cwd=here).code == 0
    assert list(stored(here)) == ["app-0", "app-2"]
    assert [
        one["id"]
        for one in recompose("sessions", "/home/dev/alpha/app", "--json", cwd=here).value[
            "sessions"
        ]
    ] == ["app-0"]
    assert recompose("ingest", "--forget", "app", cwd=here).code == 0  # now it means one
    assert list(stored(here)) == ["app-2"]
    assert recompose("ingest", "--recall", "app", cwd=here).code == 2
    write(here / "logs" / "one.jsonl", log_lines(), name="app-1", project="beta/app")
    assert ingest(here)["forgotten"] == ["app-1"]
    assert recompose("ingest", "--recall", "/home/dev/beta/app", cwd=here).code == 0
    assert ingest(here)["added"] == ["app-1"]


def test_what_was_forgotten_does_not_come_back_under_the_name_of_a_folder_inside(
    here: Path,
) -> None:
    write(here / "logs" / "two.jsonl", log_lines(), name=OTHER, project="shop/src")
    ingest(here)
    assert recompose("ingest", "--forget", "shop", cwd=here).code == 0
    assert not stored(here)
    (here / "logs" / "one.jsonl").unlink()
    assert ingest(here)["forgotten"] == [OTHER]


def test_whatever_still_holds_a_forgotten_session_is_removed_or_named(here: Path) -> None:
    write(here / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    ingest(here)
    work = here / "recompose"
    for verb in ("sites", "hints", "report"):
        assert recompose(verb, cwd=here).code == 0
    run = work / "runs" / "2026-01-01-a" / "tokens"
    run.mkdir(parents=True)
    (run / "step_000000.json").write_text(f'"{SESSION}"', "utf-8")
    (work / "answers.jsonl").write_text(json.dumps({"session_id": OTHER}) + "\n", "utf-8")
    assert SESSION in (work / "report.html").read_text("utf-8")
    told = recompose("ingest", "--forget", SESSION, "--dry-run", cwd=here).out
    assert (
        f"would remove {Path('recompose', 'report.html')}" in told
        and (work / "report.html").exists()
    )
    value = recompose("ingest", "--forget", SESSION, "--json", cwd=here).value
    assert (
        value["removed"] == [str(Path("recompose", "report.html"))]
        and not (work / "report.html").exists()
    )
    named = {Path(path).name for path in value["may_hold"]}
    holding = {
        path.relative_to(work).parts
        for path in work.rglob("*")
        if path.is_file() and SESSION.encode() in path.read_bytes()
    }
    # ingest.json: what stays out
    assert {parts[1] if parts[0] == "runs" else parts[0] for parts in holding} - {
        "ingest.json"
    } == named
    assert named == {"sites.jsonl", "hints.jsonl", "2026-01-01-a"}
    for verb in ("sites", "hints"):
        assert recompose(verb, cwd=here).code == 0
    assert not any(
        SESSION.encode() in (work / name).read_bytes()
        for name in ("sites.jsonl", "hints.jsonl", "sessions.jsonl")
    )


def test_a_dry_run_says_what_would_be_forgotten(here: Path) -> None:
    ingest(here)
    result = recompose("ingest", "--forget", "shop", "--dry-run", cwd=here)
    assert (
        f"would forget {SESSION}" in result.out
        and "forgot " not in result.out
        and "recalled" not in result.out
    )


def test_forgetting_what_is_not_there_says_so_and_a_dry_run_forgets_nothing(here: Path) -> None:
    ingest(here)
    before = {name: (here / name).read_bytes() for name in files(here)}
    for arguments in (["--forget", "nothing"], ["--recall", "shop"], ["--forget", "shop", "logs"]):
        assert recompose("ingest", *arguments, cwd=here).code == 2, arguments
    value = recompose("ingest", "--forget", "shop", "--dry-run", "--json", cwd=here).value
    assert value["forgotten"] == [SESSION]
    assert {name: (here / name).read_bytes() for name in files(here)} == before


def test_words_that_are_redacted_later_leave_sessions_whose_logs_are_gone(here: Path) -> None:
    write(here / "logs" / "one.jsonl", log_lines("The customer is Initech."))
    ingest(here)
    (here / "logs" / "one.jsonl").unlink()
    write(here / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    assert ingest(here, "--ingest.redact_words", "Initech")["cleaned"] == [SESSION]
    assert b"Initech" not in (here / "recompose" / "sessions.jsonl").read_bytes()
    assert ingest(here, "--ingest.redact_words", "Initech")["cleaned"] == []


def test_what_was_stored_with_secrets_gives_way_to_the_reading_without(here: Path) -> None:
    write(here / "logs" / "one.jsonl", log_lines(f"The key is {MADE_UP_KEY}."))
    ingest(here, "--ingest.redact", "false")
    assert MADE_UP_KEY.encode() in (here / "recompose" / "sessions.jsonl").read_bytes()
    # even where it holds less now
    write(here / "logs" / "one.jsonl", log_lines(f"The key is {MADE_UP_KEY}.")[:3])
    assert ingest(here)["sessions"] == 1
    assert MADE_UP_KEY.encode() not in (here / "recompose" / "sessions.jsonl").read_bytes()
    assert len(stored(here)[SESSION].turns) == 6


def test_a_store_of_an_earlier_version_keeps_its_sessions(here: Path) -> None:
    ingest(here)
    (here / "recompose" / "ingest.json").unlink()
    os.utime(here / "recompose" / "sessions.jsonl", (1.7e9, 1.7e9))
    (here / "logs" / "one.jsonl").unlink()
    write(here / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    assert ingest(here)["added"] == [OTHER]
    assert remembered(here)[SESSION]["first_seen"].startswith("2023-11-14T")


def test_two_at_once_are_told(here: Path) -> None:
    ingest(here)
    with lock_folder(here / "recompose", task="ingest"):
        result = recompose("ingest", "logs", cwd=here)
        assert result.code == 1 and "another ingest" in result.err
        with pytest.raises(BusyError), lock_folder(here / "recompose", task="ingest"):
            pass
    ingest(here)


@pytest.mark.parametrize("at", [1, 2, 4, 6])
def test_a_full_disk_is_told_with_the_path_and_the_room(
    here: Path, monkeypatch: pytest.MonkeyPatch, at: int
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
        result = recompose("ingest", "logs", "--json", cwd=here)
        error = result.value["error"]
        assert result.code == 1 and error["where"] == str(here / "recompose" / "sessions.jsonl")
        assert (
            "No space left" in error["what"]
            and " MB are needed, " in error["what"]
            and "make room" in error["fix"]
        )
    assert ingest(here)["sessions"] == 1


def test_sessions_lists_what_the_store_holds(here: Path) -> None:
    write(here / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    ingest(here)
    result = recompose("sessions", cwd=here)
    assert result.code == 0 and "2 sessions of 2 projects" in result.out and "s002" in result.out
    (row,) = recompose("sessions", "tide", "--json", cwd=here).value["sessions"]
    assert (row["id"], row["project"], row["turns"], row["ordinal"]) == (OTHER, "tide", 6, 1)
    assert row["started"] == "2026-01-05T10:00:00Z" and row["first_seen"] <= row["last_seen"]
    assert recompose("sessions", cwd=here.parent).code == 1


@pytest.fixture
def older(here: Path) -> Path:
    """Sites and hints of a store that has grown since."""
    ingest(here)
    assert recompose("sites", cwd=here).code == 0 and recompose("hints", cwd=here).code == 0
    write(here / "logs" / "two.jsonl", log_lines(), name=OTHER, project="tide")
    result = recompose("ingest", "logs", cwd=here)
    assert (
        result.out.count("stale  ") == 1 and "recompose sites, then recompose hints" in result.out
    )
    return here


def test_no_verb_uses_what_was_made_from_an_older_store(older: Path) -> None:
    def refused(result: Said) -> bool:
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
    # the session itself is what it is; what was found in it is left out
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


def test_a_large_store_is_merged_one_session_at_a_time(here: Path) -> None:
    for i in range(24):
        write(
            here / "logs" / f"{i}.jsonl",
            [*log_lines("word " * 100_000), *LATER],
            name=f"{i:08d}-7777",
        )
    ingest(here, "--ingest.redact", "false")
    fresh = write(here / "logs" / "one.jsonl", [*log_lines(), *LATER])
    for path in (here / "logs").iterdir():
        if path != fresh:
            path.unlink()
    tracemalloc.start()
    told = ingest(here, "--ingest.redact", "false")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (told["grown"], told["sessions"]) == ([SESSION], 25)
    assert peak < 6e6 < (here / "recompose" / "sessions.jsonl").stat().st_size
