"""`audit`: one command, nothing to configure: what it says, writes and leaves alone."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import read_sessions
from tests.cli.agent_logs import (
    NO_MATCH,
    REFUSED,
    USAGE,
    USAGE_USD,
    LogBuilder,
    edit_of,
    sessions_on,
)
from tests.cli.test_verbs import without_torch
from tests.cli.workspace import HOSTILE, CliResult, files, recompose

WEEKS = ("2026-10-05", "2026-10-06", "2026-10-13", "2026-10-20", "2026-10-27", "2026-11-03")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with the logs of six sessions, an edit that fails in each; the current folder
    is empty."""
    home = tmp_path / "home"
    for name in ("XDG_DATA_HOME", "LOCALAPPDATA", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    sessions_on(WEEKS, to=home / ".claude" / "projects")
    (tmp_path / "here").mkdir()
    return home


def here(machine: Path) -> Path:
    return machine.parent / "here"


def store(machine: Path) -> Path:
    return machine / ".local" / "share" / "recompose"


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def said(result: CliResult) -> str:
    """The error without the box around it."""
    return " ".join(result.err.replace("│", " ").split())


def labelled(out: str, label: str) -> str:
    """The line of the output that has this label."""
    (line,) = re.findall(rf"^ {label} +(.*)$", out, re.MULTILINE)
    return line


def test_one_command_without_any_setting_says_it_in_five_lines(machine: Path) -> None:
    logs = digests(machine / ".claude")
    result = recompose("audit", cwd=here(machine))
    assert (result.code, result.err) == (0, "")
    assert labelled(result.out, "mistakes") == (
        "Your agent made 6 mistakes in 24 tool calls (25.0 per 100), in 6 of 6 sessions, 2026-10-05"
        " to 2026-11-03."
    )
    # Each failed edit is a message of its own: 10 seconds until it is written, 10 to its result.
    assert labelled(result.out, "cost").startswith(
        f"They cost 21k tokens (321k with what was read from the cache), 2 minutes,"
        f" ${6 * USAGE_USD:.2f} of ${24 * USAGE_USD:.2f} in all, at the list"
        " prices of "
    )
    assert labelled(result.out, "which") == (
        f"Costliest: Edit: text not found 6x (${6 * USAGE_USD:.2f})."
    )
    assert labelled(result.out, "trend").startswith("Better or worse? Too early to say")
    assert labelled(result.out, "stopped") == "People stopped no message."
    assert digests(machine / ".claude") == logs, "the user's logs were changed"
    assert list(here(machine).iterdir()) == [], "the current folder was written to"
    assert {"sessions.jsonl", "sites.jsonl", "report.html", "agent_rules.md"} <= set(
        files(store(machine))
    )


def test_after_an_audit_show_and_forget_find_its_store(machine: Path) -> None:
    assert recompose("audit", cwd=here(machine)).code == 0
    shown = recompose("show", "site", "s001", cwd=here(machine))
    assert shown.code == 0 and "that of `recompose audit`" in shown.out
    assert (
        "\n-" in shown.out and "old_string" not in shown.out and "no sites.jsonl" not in shown.err
    )
    held = {session.id for session in read_sessions(store(machine) / "sessions.jsonl")}
    name = sorted(held)[0]
    assert recompose("ingest", "--forget", name, "--yes", cwd=here(machine)).code == 2
    gone = recompose("ingest", "--forget", name, cwd=here(machine))
    assert gone.code == 0, gone.err
    kept = {session.id for session in read_sessions(store(machine) / "sessions.jsonl")}
    assert kept == held - {name} and list(here(machine).iterdir()) == []
    again = recompose("audit", cwd=here(machine))
    assert again.code == 0 and labelled(again.out, "kept out").startswith(
        "1 session that you forgot"
    )
    assert {s.id for s in read_sessions(store(machine) / "sessions.jsonl")} == kept


def test_a_site_keeps_its_name_when_sessions_are_forgotten_and_recalled(machine: Path) -> None:
    assert recompose("audit", cwd=here(machine)).code == 0
    sites = recompose("show", "site", "--json", cwd=here(machine)).value["sites"]
    first, last = sites[0], sites[-1]
    look = recompose("audit", "--json", cwd=here(machine)).value["look"]
    assert look.split()[-1] in {site["name"] for site in sites}
    listed = recompose("show", "site", cwd=here(machine)).out
    assert all(site["name"] in listed for site in sites) and "s001" not in listed
    session = first["id"].partition(":")[0]
    for verb in ("--forget", "--recall"):
        assert recompose("audit", verb, session, cwd=here(machine)).code == 0
        assert recompose("audit", cwd=here(machine)).code == 0
        shown = recompose("show", "site", last["name"], cwd=here(machine))
        assert shown.code == 0 and last["id"] in shown.out and last["name"] in shown.out
    assert recompose("show", "site", first["name"], cwd=here(machine)).code == 0


def test_forget_says_what_a_site_or_a_short_name_is_instead(machine: Path) -> None:
    assert recompose("audit", cwd=here(machine)).code == 0
    site = recompose("show", "site", "--json", cwd=here(machine)).value["sites"][0]
    session = site["id"].partition(":")[0]
    for word in (site["name"], site["id"]):
        answer = recompose("audit", "--forget", word, cwd=here(machine))
        assert answer.code == 2 and f"is one message of the session {session}" in answer.err
        assert f"--forget {session}" in " ".join(answer.err.split())
    answer = recompose("audit", "--forget", "s001", cwd=here(machine))
    assert answer.code == 2 and "places change" in answer.err
    answer = recompose("audit", "--forget", session[:1], cwd=here(machine))
    assert answer.code == 2 and "only the beginning of" in answer.err and session in answer.err
    assert len(list(read_sessions(store(machine) / "sessions.jsonl"))) == 6, "one was forgotten"


def test_sessions_and_replay_find_the_audit_s_store(machine: Path) -> None:
    assert recompose("audit", cwd=here(machine)).code == 0
    assert " 6 sessions of 1 project," in recompose("sessions", cwd=here(machine)).out
    asked = recompose("replay", cwd=here(machine))
    assert "nobody was asked" in asked.err and "no sessions.jsonl" not in asked.err
    assert list(here(machine).iterdir()) == []


def test_a_folder_without_logs_is_told_from_the_store(machine: Path) -> None:
    assert recompose("audit", cwd=here(machine)).code == 0
    (machine / "empty").mkdir()
    result = recompose("audit", str(machine / "empty"), cwd=here(machine))
    assert "what follows is of the sessions stored before" in result.out
    assert "stored before" not in recompose("audit", cwd=here(machine)).out


def test_the_settings_file_is_named_once_whatever_was_looked_for(machine: Path) -> None:
    assert recompose("ingest", "--yes", cwd=here(machine)).code == 0
    (here(machine) / "recompose.toml").write_text("seed = 1\n", "utf-8")
    for command in ("sites", "sessions"):
        result = recompose(command, cwd=here(machine))
        assert (result.out + result.err).count(" settings  ") == 1, result.err


def test_the_costliest_mistake_is_named_by_a_command_that_shows_it(machine: Path) -> None:
    log = LogBuilder("dear", day="2026-11-04", folder="shop")
    (edit,) = log.calls(("Edit", edit_of("shop", 1)), usage={**USAGE, "output_tokens": 9_000})
    log.result(edit, NO_MATCH, error=True)
    log.write(machine / ".claude" / "projects")
    for made in ((), ("recompose",)):  # with a work folder here, the command has to say which
        for name in made:
            (here(machine) / name).mkdir()
        look = labelled(recompose("audit", cwd=here(machine)).out, "look").partition("   (")[0]
        shown = recompose(*shlex.split(look)[1:], "--json", cwd=here(machine))
        assert shown.value["session"] == "dear", look
        assert ("-o" in look) == bool(made)
    one = recompose("audit", "--since", "2026-11-05", cwd=here(machine))
    assert "look" not in one.out


def test_show_lists_the_mistakes_that_the_audit_counts_and_names_the_others(
    machine: Path,
) -> None:
    log = LogBuilder("checked", day="2026-11-04", folder="shop")
    (check,) = log.calls(("Bash", {"command": "pytest -q"}))
    log.result(check, "Exit code 1\n1 failed in 0.1s", error=True)
    log.write(machine / ".claude" / "projects")
    counted = recompose("audit", "--json", cwd=here(machine)).value["rate"]["mistakes"]
    out = recompose("show", "site", cwd=here(machine)).out
    rows = [line for line in out.splitlines() if re.match(r"s[0-9a-f]{8} ", line)]
    assert len(rows) == counted == 6 and all("Edit: text not found" in row for row in rows)
    assert " 6 mistakes of the agent: these are what `recompose audit` counts." in out
    assert "1 other message not counted as mistakes (failed check 1): -v lists them too." in out
    listed = recompose("show", "site", "-v", cwd=here(machine)).out
    assert len(re.findall(r"^s[0-9a-f]{8} ", listed, re.MULTILINE)) == 7
    assert len(recompose("show", "site", "--json", cwd=here(machine)).value["sites"]) == 7


@pytest.mark.parametrize("verb", ["audit", "ingest"])
def test_after_forgetting_in_an_audit_s_store_the_next_command_is_an_audit(
    machine: Path, verb: str
) -> None:
    assert recompose("audit", cwd=here(machine)).code == 0
    names = sorted(session.id for session in read_sessions(store(machine) / "sessions.jsonl"))
    for name in names[:2]:  # the second finds no page, sites or rules any more
        value = recompose(verb, "--forget", name, "--json", cwd=here(machine)).value
        assert (value["forgotten"], value["next"]) == ([name], "recompose audit")
        assert (value["may_hold"], value["stale"]) == ([], [])
    left = set(files(store(machine)))
    assert left.isdisjoint({"report.html", "sites.jsonl", "agent_rules.md"})
    assert names[0] not in (store(machine) / "reading.json").read_text("utf-8")
    shown = recompose("show", "site", cwd=here(machine))
    assert "run first: recompose audit" in shown.err
    recalled = recompose(verb, "--recall", names[0], cwd=here(machine))
    assert "the next audit takes it in again" in recalled.out
    assert recompose("audit", "--json", cwd=here(machine)).value["stored"] == len(names) - 1


def test_after_forgetting_in_a_store_with_hints_the_next_command_is_a_trainer_s(
    machine: Path,
) -> None:
    assert recompose("audit", cwd=here(machine)).code == 0
    assert recompose("hints", cwd=here(machine)).code == 0
    name = next(read_sessions(store(machine) / "sessions.jsonl")).id
    value = recompose("audit", "--forget", name, "--json", cwd=here(machine)).value
    assert value["next"].startswith("recompose sites")


def test_audit_refuses_to_forget_and_count_at_once(machine: Path) -> None:
    assert recompose("audit", "--forget", "x", "--since", "4w", cwd=here(machine)).code == 2


def test_a_work_folder_here_comes_before_the_audit_s_store(machine: Path) -> None:
    assert recompose("audit", cwd=here(machine)).code == 0
    (here(machine) / "recompose").mkdir()
    shown = recompose("show", "site", "s001", cwd=here(machine))
    assert shown.code == 1 and "no sites.jsonl" in shown.err


def test_an_audit_says_when_its_sessions_are_in_a_folder_that_is_trained_from(
    machine: Path,
) -> None:
    said = "from which this folder trains"
    assert said not in " ".join(recompose("audit", cwd=here(machine)).out.split())
    (here(machine) / "recompose.toml").write_text("seed = 1\n", "utf-8")
    projects = machine / ".claude" / "projects"
    assert recompose("ingest", str(projects), cwd=here(machine)).code == 0
    assert said not in " ".join(recompose("audit", cwd=here(machine)).out.split()), "none is new"
    sessions_on(("2026-11-20",), to=projects)
    assert said in " ".join(recompose("audit", cwd=here(machine)).out.split())


def test_a_rule_is_offered_with_its_evidence_and_nothing_is_applied(machine: Path) -> None:
    (machine / ".claude" / "CLAUDE.md").write_text("# mine\n", "utf-8")
    result = recompose("audit", cwd=here(machine))
    assert "6 failures in 6 calls, 6 sessions, 6 days" in result.out
    rules = (store(machine) / "agent_rules.md").read_text("utf-8")
    assert "- Copy the old text of an edit verbatim" in rules and "6 failures" in rules
    assert (machine / ".claude" / "CLAUDE.md").read_text("utf-8") == "# mine\n"
    assert recompose("audit", "--since", "2026-10-20", cwd=here(machine)).code == 0
    assert not (store(machine) / "agent_rules.md").exists(), "three failures support no rule"


@pytest.mark.parametrize(
    ("days", "failures", "supported"),
    [
        (WEEKS[:5], 1, True),
        (WEEKS[:4], 1, False),  # four failures
        (WEEKS[:2], 5, False),  # ten, in two sessions
        (("2026-10-05",) * 5, 1, False),  # five, in five sessions, on one day
    ],
)
def test_a_rule_needs_failures_sessions_and_days(
    tmp_path: Path, days: tuple[str, ...], failures: int, supported: bool
) -> None:
    sessions_on(days, to=tmp_path / "logs", failures=failures)
    value = recompose("audit", "logs", "-o", "work", "--json", cwd=tmp_path).value
    assert [rule["kind"] for rule in value["rules"]] == ["edit_no_match"] * supported
    assert [row["kind"] for row in value["unsupported"]] == ["edit_no_match"] * (not supported)


def test_a_mistake_of_the_past_gets_no_rule(tmp_path: Path) -> None:
    sessions_on(WEEKS[:5], to=tmp_path / "logs")
    sessions_on(("2027-03-01",), to=tmp_path / "logs", failures=0)
    value = recompose("audit", "logs", "-o", "work", "--json", cwd=tmp_path).value
    assert value["rules"] == []
    assert value["unsupported"][0]["why"] == "not made again in the later half of the time"


def test_one_old_session_spoils_neither_the_trend_nor_the_savings(tmp_path: Path) -> None:
    weeks = [f"2026-{month:02}-{day:02}" for month in (9, 10) for day in (1, 6, 11, 16, 21)]
    sessions_on(tuple(weeks), to=tmp_path / "logs")
    sessions_on(("2025-09-01",), to=tmp_path / "more")
    value = recompose("audit", "logs", "-o", "one", "--json", cwd=tmp_path).value
    with_old = recompose("audit", "logs", "more", "-o", "two", "--json", cwd=tmp_path).value
    assert value["change"]["verdict"] == with_old["change"]["verdict"] == "unclear"
    (rule,), (same,) = value["rules"], with_old["rules"]
    saved = [r["saving"]["new_tokens"] / r["failures"] for r in (rule, same)]
    assert saved[1] > 0.8 * saved[0] > 0


def test_what_people_stopped_is_counted_once_and_in_their_words(tmp_path: Path) -> None:
    log = LogBuilder("s1", day="2026-11-02")
    log.refused_edit("no, do not touch the cart")
    log.add("user", {"role": "user", "content": "[Request interrupted by user for tool use]"})
    log.read()
    log.add("assistant", {"role": "assistant", "id": "msg_x", "model": "m", "content": "I go on"})
    log.add("user", {"role": "user", "content": "[Request interrupted by user]"})
    log.write(tmp_path / "logs")
    result = recompose("audit", "logs", "-o", "work", cwd=tmp_path)
    assert labelled(result.out, "stopped") == (
        f"People stopped 2 messages (${USAGE_USD:.2f} spent on them): they refused a call in 1 and"
        " cut off 1, with a reason for 1 of them."
    )
    assert '"no, do not touch the cart"' in result.out


def test_a_message_of_which_two_calls_were_refused_is_one_with_two_tools(tmp_path: Path) -> None:
    log = LogBuilder("s1", day="2026-11-02")
    for call_id in log.calls(("Edit", edit_of("shop", 1)), ("Bash", {"command": "rm cart.py"})):
        log.result(call_id, f"{REFUSED}no", error=True)
    log.write(tmp_path / "logs")
    value = recompose("audit", "logs", "-o", "work", "--json", cwd=tmp_path).value
    (row,) = value["stopped"]
    assert row["count"] == 1 and sorted(map(tuple, row["tools"])) == [("Bash", 1), ("Edit", 1)]


def test_no_mistake_costs_nothing_that_is_called_theirs(tmp_path: Path) -> None:
    sessions_on(WEEKS[:1], to=tmp_path / "logs", failures=0)
    out = recompose("audit", "logs", "-o", "work", cwd=tmp_path).out
    assert "They cost" not in out and labelled(out, "cost").startswith("The messages cost $")


def test_the_same_words_are_shown_once_with_their_number(tmp_path: Path) -> None:
    for number in range(4):
        log = LogBuilder(f"s{number}", day="2026-11-02")
        log.refused_edit("ask me first" if number % 2 else f"no, not {number}")
        log.write(tmp_path / "logs")
    log = LogBuilder("s9", day="2026-11-03")
    log.refused_edit("ask  me first")
    log.write(tmp_path / "logs")
    out = recompose("audit", "logs", "-o", "work", cwd=tmp_path).out
    assert re.findall(r'^ +"(.*)$', out, re.MULTILINE) == [
        'ask me first" (3 times)',
        'no, not 0"',
        'no, not 2"',
    ]
    page = (tmp_path / "work" / "report.html").read_text("utf-8")
    assert len(re.findall(r"<li>ask me first \(3 times\) <a ", page)) == 1
    assert "<li>no, not 0 <a " in page


def test_a_newcomer_meets_no_word_that_only_this_project_uses(tmp_path: Path) -> None:
    log = LogBuilder("s1", day="2026-11-02")
    log.failed_edit()
    first, second = log.calls(
        ("Read", {"file_path": "/home/dev/shop/a.py"}),
        ("Read", {"file_path": "/home/dev/shop/b.py"}),
    )
    log.result(first, "<tool_use_error>File does not exist.</tool_use_error>", error=True)
    log.result(second, "<tool_use_error>Sibling tool call errored</tool_use_error>", error=True)
    log.write(tmp_path / "logs")
    result = recompose("audit", "logs", "-o", "work", cwd=tmp_path)
    page = (tmp_path / "work" / "report.html").read_text("utf-8")
    assert "cancelled with another call of its message" in page
    text = re.sub(r"(?s)<(script|style|code|pre|dfn|option|small)\b.*?</\1>|<[^>]*>", " ", page)
    own = r"\b(sites?|siblings?|lift|donors?|decision|anchor|recurrence)\b"
    for shown in (text, result.out.replace("recompose show site", "")):
        assert re.findall(own, shown, re.IGNORECASE) == []
    (title,) = re.findall(r'<dfn title="([^"]+)">site</dfn>', page)
    assert title == "the mistaken message, and the later evidence for it"


def test_since_and_project_choose_sessions_and_the_store_keeps_all(machine: Path) -> None:
    sessions_on(("2026-11-03",), to=machine / ".claude" / "projects", folder="bank", failures=2)
    since = recompose("audit", "--since", "2026-10-27", "--json", cwd=here(machine)).value
    assert (since["sessions"], since["rate"]["mistakes"], since["stored"]) == (3, 4, 7)
    bank = recompose("audit", "--project", "BANK", "--json", cwd=here(machine)).value
    assert (bank["sessions"], bank["rate"]["mistakes"]) == (1, 2)
    nothing = recompose("audit", "--project", "nowhere", cwd=here(machine))
    assert nothing.code == 1 and "no session is left" in nothing.err
    assert "7 sessions, of shop, bank" in said(nothing)
    assert "--project nowhere" in nothing.err and "--since" not in nothing.err
    assert recompose("audit", "--since", "soon", cwd=here(machine)).code == 2


def test_what_the_agent_deleted_is_still_counted(machine: Path) -> None:
    first = recompose("audit", "--json", cwd=here(machine)).value
    for path in (machine / ".claude" / "projects").rglob("*.jsonl"):
        path.unlink()
    sessions_on(("2026-11-10",), to=machine / ".claude" / "projects")
    assert (first["sessions"], first["rate"]["mistakes"]) == (6, 6)
    again = recompose("audit", "--json", cwd=here(machine)).value
    assert (again["sessions"], again["rate"]["mistakes"], again["changed"]) == (7, 7, 1)
    for path in sorted((machine / ".claude").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert recompose("audit", "--json", cwd=here(machine)).value["sessions"] == 7


def test_a_machine_without_logs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    result = recompose("audit", cwd=tmp_path)
    assert result.code == 1 and "no logs of an agent on this machine" in result.err
    assert "recompose audit PATH" in result.err
    for folder in (
        "/.claude/projects",
        "~/.codex/sessions",
        "~/.gemini/tmp",
        "Roo Code in VS Code",
    ):
        assert folder in said(result), "every agent's folder was looked at"


def test_a_choice_that_leaves_nothing_names_what_there_is(machine: Path) -> None:
    for folder in ("bank", "banking-api", "zoo"):
        sessions_on(("2026-11-03",), to=machine / ".claude" / "projects", folder=folder)
    future = recompose("audit", "--since", "2027-01-01", cwd=here(machine))
    assert future.code == 1 and "no session since 2027-01-01" in said(future)
    assert "9 sessions; the newest ended on 2026-11-03: --since 2026-11-03" in said(future)
    both = recompose("audit", "--since", "2027-01-01", "--project", "shop", cwd=here(machine))
    assert "the newest of shop ended on 2026-11-03" in said(both)
    near = said(recompose("audit", "--project", "banks", cwd=here(machine)))
    assert "9 sessions, of bank, banking-api and 2 others" in near


def test_files_that_are_no_logs_are_named_or_counted(machine: Path) -> None:
    folder = machine / "mixed"
    sessions_on(("2026-11-03",), to=folder)
    (folder / "notes.md").write_text("hello", "utf-8")
    named = recompose("audit", str(folder), str(folder / "notes.md"), cwd=here(machine))
    assert labelled(named.out, "skipped").startswith("notes.md: damaged")
    assert labelled(named.out, "not read") == "1 file of another kind (.md 1)"
    assert " not read " not in recompose("audit", cwd=here(machine)).out, "nobody named a folder"


def test_a_store_of_an_earlier_version_gets_its_times_and_tokens(machine: Path) -> None:
    recompose("audit", cwd=here(machine))
    sessions = store(machine) / "sessions.jsonl"
    text = re.sub(r',"u":\[[^]]*\],"at":[\d.]+', "", sessions.read_text("utf-8"))
    sessions.write_text(text, "utf-8")
    assert not any(turn.usage for session in read_sessions(sessions) for turn in session.turns)
    value = recompose("audit", "--json", cwd=here(machine)).value
    assert (value["changed"], value["messages"], value["messages_with_usage"]) == (6, 24, 24)


def test_a_work_folder_that_is_here_is_the_store(machine: Path) -> None:
    assert recompose("ingest", "--yes", cwd=here(machine)).code == 0
    assert recompose("audit", cwd=here(machine)).code == 0
    assert (here(machine) / "recompose" / "report.html").exists()
    assert not store(machine).exists()


def test_the_page_opens_in_the_browser(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    recompose("audit", "--open", cwd=here(machine))
    assert opened == [(store(machine) / "report.html").as_uri()]
    page = (store(machine) / "report.html").read_text("utf-8")
    assert "Your agent made 6 mistakes in 24 tool calls" in page


def test_where_no_browser_opens_the_page_is_named(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for opens in (False, True):
        monkeypatch.setattr(webbrowser, "open", lambda _, opens=opens: opens)
        for verb in ("audit", "report"):
            out = recompose(verb, "--open", cwd=here(machine)).out
            told = f"no browser could be opened here: open {store(machine) / 'report.html'}"
            assert (told in out.replace("\n", "")) is not opens


def test_hostile_words_reach_no_terminal(tmp_path: Path) -> None:
    log = LogBuilder("s1", day="2026-11-02")
    log.refused_edit("no, " + HOSTILE)
    log.write(tmp_path / "logs")
    out = recompose("audit", "logs", "-o", "work", cwd=tmp_path).out
    assert "\x1b" not in out and "\u202e" not in out and "[bold]markup[/bold]" in out


def as_elsewhere(system: str, machine: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """A command without what another system lacks, and with its encoding of pipes."""
    options = ("-X", "warn_default_encoding", "-W", "error::EncodingWarning")
    encoding = {"windows": "cp1252", "macos": "utf-8"}[system]
    script = str(Path(__file__).with_name("as_elsewhere.py"))
    return subprocess.run(
        [sys.executable, *options, script, system, *argv],
        cwd=here(machine),
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C"},
        capture_output=True,
        encoding=encoding,
        check=False,
    )


@pytest.mark.parametrize("system", ["windows", "macos"])
def test_it_needs_nothing_that_another_system_lacks(system: str, machine: Path) -> None:
    log = LogBuilder("s7", day="2026-11-02")
    log.refused_edit("nein, 漢字 ✗")  # characters that cp1252 lacks
    log.write(machine / ".claude" / "projects" / "words")
    for _ in range(2):  # the second time there is a store
        done = as_elsewhere(system, machine, "audit", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["rate"]["mistakes"] == 6
    assert "漢字" in (store(machine) / "sessions.jsonl").read_text("utf-8")
    done = as_elsewhere(system, machine, "audit")
    assert done.returncode == 0 and "nein" in done.stdout, done.stderr
    done = as_elsewhere(system, machine, "show", "site", "s001")
    assert done.returncode == 0 and "return 2" in done.stdout, done.stderr
    assert "String to replace not found" in done.stdout
    done = as_elsewhere(system, machine, "ingest", "--forget", "s7")
    assert done.returncode == 0 and "report.html" in done.stdout, done.stderr
    assert not any(path.name.endswith(".part") for path in store(machine).iterdir())


def in_windows_form(log: str) -> str:
    """A log whose paths below /home/dev are those of Windows.

    >>> in_windows_form('"/home/dev/shop/cart.py"')
    '"C:\\\\Users\\\\dev\\\\shop\\\\cart.py"'
    """
    return re.sub(
        r"/home/dev(/[\w./-]*)?",
        lambda path: json.dumps("C:\\Users\\dev" + (path[1] or "").replace("/", "\\"))[1:-1],
        log,
    )


def test_the_same_log_with_paths_of_windows_has_the_same_mistakes_of_tools(machine: Path) -> None:
    """A shell's messages are left out: what programs of Windows print is not known here."""
    log = LogBuilder("s8", day="2026-11-02")
    for tool, name, said in (
        ("Read", "src/missing.py", "<tool_use_error>File does not exist.</tool_use_error>"),
        ("Read", "src/cart.py", "     1\u2192def total():"),
        ("Write", "src/other.py", "<tool_use_error>File has not been read yet.</tool_use_error>"),
        ("Read", "src/cart.py", "     1\u2192def total():"),
    ):
        text = {"content": "x"} if tool == "Write" else {}
        (call_id,) = log.calls((tool, {"file_path": f"/home/dev/shop/{name}", **text}))
        log.result(call_id, said, error="error" in said)
    log.refused_edit("no, not there")
    log.write(machine / ".claude" / "projects")
    counted: list[Any] = []
    for _ in range(2):
        value = recompose("audit", "--json", cwd=here(machine)).value
        counted.append([value[name] for name in ("rate", "kinds", "stopped", "repositories")])
        sites = [json.loads(line) for line in (store(machine) / "sites.jsonl").open("rb")]
        counted.append([(site["id"], site["kind"], site["category"]) for site in sites])
        shutil.rmtree(store(machine))
        for path in (machine / ".claude").rglob("*.jsonl"):
            path.write_text(in_windows_form(path.read_text("utf-8")), "utf-8")
    assert counted[:2] == counted[2:]
    assert {"file_missing", "edit_not_read", "edit_no_match"} <= {kind for _, kind, _ in counted[1]}
    gone = recompose("ingest", "--forget", "C:\\Users\\dev\\shop", cwd=here(machine))
    assert gone.code == 1 and "no sessions.jsonl" in gone.err
    recompose("audit", cwd=here(machine))
    gone = recompose("ingest", "--forget", "C:\\Users\\dev\\shop", cwd=here(machine))
    assert gone.code == 0 and gone.out.count(" forgot ") == 7, gone.err


def test_it_needs_no_torch(machine: Path) -> None:
    result = without_torch("audit", cwd=here(machine))
    assert result.returncode == 0, result.stderr


def test_a_dry_run_writes_nothing(machine: Path) -> None:
    result = recompose("audit", "--dry-run", cwd=here(machine))
    assert result.code == 0 and "would write" in result.out
    assert not store(machine).exists()
