"""Calls that could bring nothing new."""

from __future__ import annotations

from composer_replication.core.config.data_settings import HintsSettings
from composer_replication.core.site import Site
from composer_replication.core.trace import Segment, Turn
from composer_replication.data.hints.write import write_hints
from tests.data.sites.builder import bash, calls, failed, find, human, results, session

TEXT = "\n".join(f"{number:>6}→line {number}" for number in range(1, 21))
PART = "\n".join(f"{number:>6}→line {number}" for number in range(5, 12))
A, B = {"file_path": "/w/a.py"}, {"file_path": "/w/b.py"}


def read(call_id: str, text: str = TEXT, **more: int) -> tuple[Turn, Turn]:
    return calls((call_id, "Read", {**A, **more})), results((call_id, text, False))


def edit(call_id: str, arguments: dict[str, str]) -> tuple[Turn, Turn]:
    change = {**arguments, "old_string": "x", "new_string": "y"}
    return calls((call_id, "Edit", change)), results((call_id, "ok", False))


def wasted(*turns: Turn, **more: object) -> list[Site]:
    return [
        site for site in find(session(human("go"), *turns, **more)) if site.category == "wasted"
    ]


def test_an_equal_reading_is_waste_where_only_other_files_changed() -> None:
    (site,) = wasted(*read("r"), *edit("e", B), *read("s"))
    assert (site.call_id, site.rule, site.kind) == ("s", "wasted_reread", "wasted_call")
    assert site.cost == len('{"file_path":"/w/a.py"}' + TEXT) // 4
    assert site.bars_lm_ce and not site.is_target


def test_a_reading_is_no_waste_after_an_edit_a_new_request_or_before_an_edit() -> None:
    assert wasted(*read("r"), *edit("e", A), *read("s")) == []
    assert wasted(*read("r"), *edit("e", B), human("and now?"), *read("s")) == []
    assert wasted(*read("r"), *edit("e", B), *read("s"), *edit("f", A)) == []
    assert wasted(*read("r"), *edit("e", B), *read("s", TEXT + "\n    21→new")) == []
    compacted = (Segment(start=0, end=5), Segment(start=5, end=7))
    assert wasted(*read("r"), *edit("e", B), *read("s"), segments=compacted) == []


def test_a_reading_of_lines_that_stand_in_view_is_waste() -> None:
    (site,) = wasted(*read("r"), *edit("e", B), *read("s", PART, offset=5, limit=7))
    assert (site.call_id, site.rule) == ("s", "wasted_part")
    assert wasted(*read("r", PART, offset=5), *read("s")) == []
    both = calls(("r", "Read", A), ("s", "Read", {**A, "offset": 5}))
    assert wasted(both, results(("r", TEXT, False), ("s", PART, False))) == []


def test_a_command_that_times_out_twice_is_waste_the_second_time() -> None:
    late = "Command timed out after 2m"
    first = (calls(bash("a", "npm run dev")), failed("a", late))
    again = (calls(bash("b", "npm run dev")), failed("b", late))
    (site,) = wasted(*first, *again)
    assert (site.call_id, site.rule) == ("b", "wasted_timeout")
    assert wasted(*first, calls(bash("b", "npm run dev -- --once")), failed("b", late)) == []


def test_a_detour_that_is_given_up_is_one_site_with_the_cost_of_all_its_calls() -> None:
    tries = [
        turn
        for i in range(3)
        for turn in (calls(bash(f"t{i}", f"docker run a{i}")), failed(f"t{i}", "Exit code 1\nno"))
    ]
    other = calls("Let me try a different approach.", bash("o", "python a.py"))
    (site,) = wasted(*tries, other, results(("o", "ok", False)))
    assert (site.turn, site.call_id, site.rule) == (3, None, "wasted_detour")
    assert site.cost == 3 * (len('{"command":"docker run a0"}Exit code 1\nno') // 4)
    assert wasted(*tries, calls("Once more.", bash("o", "ls")), results(("o", "ok", False))) == []


def test_a_wasted_call_has_a_hint_only_if_the_kind_is_trained() -> None:
    log = session(human("go"), *read("r"), *edit("e", B), *read("s"))
    assert write_hints(log, find(log), settings=HintsSettings()).hints == ()
    sites = find(log, train_kinds=("wasted_call",), min_confidence=0.5)
    (hint,) = write_hints(log, sites, settings=HintsSettings()).hints
    assert "view" in hint.text or "above" in hint.text
