"""Edits that were taken back later."""

from __future__ import annotations

import pytest

from composer_replication.core.config.data_settings import HintsSettings
from composer_replication.core.site import Site
from composer_replication.core.trace import Session, Turn
from composer_replication.data.hints.write import write_hints
from composer_replication.data.sites.git_undo import undone_by
from composer_replication.data.sites.shell import parse
from tests.data.sites.builder import bash, calls, find, human, results, session

PATH, OLD, NEW = "/w/cli/a.py", "retries = 3  # few", "retries = 30"


def edit(call_id: str, old: str, new: str, path: str = PATH) -> tuple[Turn, Turn]:
    arguments = {"file_path": path, "old_string": old, "new_string": new}
    return calls((call_id, "Edit", arguments)), results((call_id, "has been updated", False))


def ran(call_id: str, command: str, text: str = "") -> tuple[Turn, Turn]:
    return calls(bash(call_id, command)), results((call_id, text, False))


def edited(*after: Turn, old: str = OLD, new: str = NEW, path: str = PATH) -> Session:
    """The edit `e` at turn 1, and what came after it."""
    return session(human("go"), *edit("e", old, new, path), *after, cwd="/w")


def undone(log: Session, **settings: object) -> list[Site]:
    return [site for site in find(log, **settings) if site.kind == "taken_back"]


@pytest.mark.parametrize(
    ("after", "rule"),
    [
        (edit("u", NEW, OLD), "undone_inverse"),
        (edit("u", f"x = 1\n{NEW}", f"x = 1\n{OLD}"), "undone_inverse"),
        (ran("u", "git checkout -- cli/a.py"), "undone_by_git"),
        (ran("u", "cd cli && git restore a.py"), "undone_by_git"),
        (ran("u", "git -C /w reset --hard"), "undone_by_git"),
        (
            (*ran("c", "git commit -am x", "[main 1a2b3c4d] x"), *ran("u", "git revert 1a2b3c4")),
            "undone_by_git",
        ),
    ],
)
def test_an_edit_that_is_undone_is_the_site(after: tuple[Turn, ...], rule: str) -> None:
    (site,) = undone(edited(*after))
    assert (site.call_id, site.turn, site.rule) == ("e", 1, rule)
    assert site.evidence == (2 + len(after),) and site.category == "undone"
    assert site.bars_lm_ce and not site.is_target


@pytest.mark.parametrize(
    "after",
    [
        edit("u", NEW, "retries = 10"),
        edit("u", NEW, OLD, "/w/web/a.py"),
        ran("u", "git checkout -- web/a.py"),
        ran("u", "git restore --staged cli/a.py"),
        ran("u", "git checkout -b next"),
        ran("u", "git stash && go test ./... ; git stash pop"),
        (*ran("c", "git commit -am x", "[main 1a2b3c4d] x"), *ran("u", "git checkout .")),
        (*ran("c", "git commit -am x", "[main 1a2b3c4d] x"), *ran("u", "git revert ffff999")),
    ],
)
def test_refined_and_other_files_are_not_taken_back(after: tuple[Turn, ...]) -> None:
    assert undone(edited(*after)) == []


def test_a_file_of_the_same_name_elsewhere_keeps_its_edit() -> None:
    there = edit("f", OLD, NEW, "/w/web/a.py")
    log = edited(*there, *ran("u", "git checkout -- web/a.py"))
    assert [site.call_id for site in undone(log)] == ["f"]


def test_added_lines_that_are_removed_again_unless_moved_or_for_debugging() -> None:
    def log(line: str, *more: Turn) -> Session:
        added, removed = f"x = 1\n{line}", "x = 1"
        return edited(*edit("u", added, removed), *more, old="x = 1", new=added)

    (site,) = undone(log("retry = True"))
    assert (site.call_id, site.rule) == ("e", "undone_removed")
    assert undone(log("print(retry_count)")) == []
    assert undone(log("retry = True", *edit("m", "y", "y\nretry = True", "/w/b.py"))) == []


def test_a_text_that_a_reading_shows_again_was_taken_back_outside() -> None:
    read = calls(("r", "Read", {"file_path": PATH}))
    (site,) = undone(edited(read, results(("r", f"     1→{OLD}\n     2→", False))))
    assert (site.rule, site.evidence) == ("undone_outside", (4,))
    assert undone(edited(read, results(("r", f"     1→{NEW}\n     2→", False)))) == []


def test_a_result_that_says_the_person_changed_the_edit() -> None:
    text = "has been updated. The user modified your proposed changes before accepting them."
    arguments = {"file_path": PATH, "old_string": OLD, "new_string": NEW}
    log = session(human("go"), calls(("e", "Edit", arguments)), results(("e", text, False)))
    assert [s.rule for s in undone(log)] == ["undone_by_person"]


def test_a_person_who_says_that_they_undid_it() -> None:
    (site,) = undone(edited(calls("Done."), human("I've reverted your changes, only the tests")))
    assert (site.rule, site.evidence) == ("undone_by_person", (4,))
    later = edited(human("thanks"), calls("ok"), human("I've reverted your changes"))
    assert undone(later) == []


TRAINED = {"train_kinds": ("taken_back",), "min_confidence": 0.4}
PLAIN = "Leave a.py as it is in the lines that this step is about to change: this was taken back."


def hint_for(log: Session, **settings: object) -> str:
    """The text of the hint for the edit `e`; "" if it has none."""
    site = next(site for site in undone(log, **TRAINED) if site.call_id == "e")
    report = write_hints(log, [site], settings=HintsSettings.model_validate(settings))
    assert report.without == ({} if report.hints else {"taken_back": 1})
    return report.hints[0].text if report.hints else ""


@pytest.mark.parametrize(
    "after",
    [
        edit("u", NEW, OLD),
        ran("u", "git checkout -- cli/a.py"),
        (human("now the docs"), *edit("u", NEW, OLD)),
        (calls("Done."), human("I've reverted your last changes.")),
        (
            calls("Done."),
            human("I've reverted your changes: only the tests"),
            *edit("again", OLD, NEW),
        ),
    ],
)
def test_an_edit_that_nobody_gave_a_reason_against_gets_no_hint(after: tuple[Turn, ...]) -> None:
    assert hint_for(edited(*after)) == ""


def test_the_hint_holds_what_the_person_said_of_the_edit() -> None:
    asked = edited(human("no, I said that the server is slow"), *edit("u", NEW, OLD))
    assert [site.evidence for site in undone(asked)] == [(3, 5)]
    said = "The user, on that: the user said that the server is slow"
    assert hint_for(asked) == f"What this step is about to change was taken back. {said}"
    other = edit("again", OLD, NEW, "/w/web/a.py")
    assert hint_for(edited(*asked.turns[3:], *other)).endswith(said)
    assert hint_for(edited(*asked.turns[3:], *edit("again", OLD, NEW))) == ""


def test_the_writer_that_names_every_undo_can_be_chosen() -> None:
    log = edited(*edit("u", NEW, OLD))
    assert hint_for(log, writers={"taken_back": "taken_back_later"}) == PLAIN


def test_the_paths_of_a_git_command() -> None:
    assert undone_by(parse("git checkout main -- b.py"), cwd="/w").paths == ("/w/b.py",)
    assert undone_by(parse("git checkout main"), cwd="/w").paths == ()
    assert undone_by(parse("git checkout ."), cwd="/w").paths == ("/w",)
