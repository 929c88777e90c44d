"""All kinds of `sites.signals` at once, from the log to the tokens of lm_ce."""

from __future__ import annotations

from typing import get_args

from composer_replication.core.config.data_settings import Signal, SitesSettings
from composer_replication.core.trace import Turn
from composer_replication.data.sites.find_sites import SIGNALS, find_sites
from composer_replication.tokens.dataset import Skipped
from tests.data.sites.builder import bash, calls, failed, human, results, session
from tests.data.sites.test_rejections import REFUSED
from tests.tokens.test_dataset import build, trained_turns

SPOKEN = REFUSED + "To tell you how to proceed, the user said:\n"
TEXT = "\n".join(f"{number:>6}→line {number}" for number in range(1, 9))


def edit(call_id: str, path: str, old: str, new: str) -> tuple[Turn, Turn]:
    arguments = {"file_path": path, "old_string": old, "new_string": new}
    return calls((call_id, "Edit", arguments)), results((call_id, "ok", False))


def test_lm_ce_never_trains_a_message_of_any_of_these_kinds() -> None:
    read = {"file_path": "/w/c.py"}
    log = session(
        human("go"),
        *edit("undone", "/w/a.py", "retries = 3", "retries = 30"),
        *edit("back", "/w/a.py", "retries = 30", "retries = 3"),
        calls(("w", "Write", {"file_path": "/w/b.go", "content": "one\ntwo\nthree"})),
        results(("w", "ok", False)),
        calls(bash("red", "go vet ./...")),
        failed("red", "Exit code 1\nb.go:2:1: undefined: two"),
        calls(("r", "Read", read)),
        results(("r", TEXT, False)),
        *edit("other", "/w/b.go", "two", "2"),
        calls(("again", "Read", read)),
        results(("again", TEXT, False)),
        calls(bash("push", "git push")),
        failed("push", SPOKEN + "don't push, just commit"),
        calls("All is done."),
        human("that is wrong, it fails"),
        calls("I will look."),
    )
    sites = find_sites(log, settings=SitesSettings())
    ours = {site.kind: site.turn for site in sites if site.rule}
    assert ours == {
        "taken_back": 1,
        "broke_check": 5,
        "wasted_call": 13,
        "user_rejected": 15,
        "user_corrected": 11,
    }
    items = build(log, sites)
    assert not any(isinstance(i, Skipped) and i.reason == "no_session" for i in items)
    assert set(trained_turns(items)).isdisjoint(ours.values())
    assert {3, 7, 9, 17} <= set(trained_turns(items))


def test_every_signal_has_a_finder() -> None:
    assert set(SIGNALS) == set(get_args(Signal)) == set(SitesSettings().signals)
