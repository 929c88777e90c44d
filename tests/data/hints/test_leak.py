"""No hint holds what only the future could reveal, and no honest hint is refused for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.core.config.data_settings import HintsSettings
from composer_replication.core.trace import Event, Segment, Session, SourceRef, ToolSpec, Turn
from composer_replication.data.hints.context import SiteContext
from composer_replication.data.hints.leak import RUN, Occurrences, grams, names, passages
from composer_replication.data.hints.write import HintReport, write_hints
from tests.data.sites.builder import bash, calls, failed, find, human, results, session

NO_MATCH = "<tool_use_error>String to replace not found in file.</tool_use_error>"
WRONG = {
    "file_path": "src/app.py",
    "old_string": "def run(args):",
    "new_string": "def run(args, env):",
}
RIGHT = {
    "file_path": "src/app.py",
    "old_string": "def run(self, args, *, quiet=False):",
    "new_string": "def run(self, args, env):",
}
PREPARED: dict[str, str] = {}


def says(context: SiteContext) -> str | None:
    """The hint that a test wants written."""
    return PREPARED["text"]


def checked(
    text: str, *before: Turn, after: tuple[Turn, ...] | None = None, **more: Any
) -> HintReport:
    """What becomes of a hint for a failed edit that a later edit repairs."""
    PREPARED["text"] = text
    later = (calls(("c2", "Edit", RIGHT)), results(("c2", "ok"))) if after is None else after
    log = session(
        human("add env"),
        *before,
        calls(("c1", "Edit", WRONG)),
        failed("c1", NO_MATCH),
        *later,
        **more,
    )
    return write_hints(
        log, find(log), settings=HintsSettings(writers={"edit_no_match": f"{__name__}:says"})
    )


def reason(text: str, *before: Turn, **more: Any) -> str:
    got = checked(text, *before, **more)
    return got.refused[0].reason if got.refused else "kept"


def test_a_hint_that_quotes_the_successful_old_string_is_refused() -> None:
    got = checked("Replace def run(self, args, *, quiet=False): instead.")
    assert got.hints == ()
    assert got.refused[0].reason == "quotes_later_text"
    assert got.refused[0].detail.endswith("(turn 3)")


@pytest.mark.parametrize(
    "text",
    [
        # other spacing and case hide nothing
        "The line is DEF RUN( self , args , * , quiet = False )",
        "The line is `def run` with\nself, args and quiet=False",
        "It now takes quiet=False as well.",  # one name is enough
    ],
)
def test_a_passage_or_a_name_that_only_came_later_is_refused_however_it_is_spelled(
    text: str,
) -> None:
    assert reason(text) == "quotes_later_text"


def test_the_same_words_are_fine_once_they_were_in_view() -> None:
    earlier_turns = (
        calls(("c0", "Read", {"file_path": "src/app.py"})),
        results(("c0", "1\tdef run(self, args, *, quiet=False):")),
    )
    assert reason("Replace def run(self, args, *, quiet=False): instead.", *earlier_turns) == "kept"


def test_words_in_turns_that_had_left_the_view_do_not_count_as_seen() -> None:
    PREPARED["text"] = "Replace def run(self, args, *, quiet=False): instead."
    turns = (
        human("add env"),
        calls(("c0", "Read", {"file_path": "src/app.py"})),
        results(("c0", "def run(self, args, *, quiet=False):")),
        calls(("c1", "Edit", WRONG)),
        failed("c1", NO_MATCH),
        calls(("c2", "Edit", RIGHT)),
    )

    def reasons(*segments: Segment) -> list[str]:
        log = Session(id="s1", source=SourceRef(file="a"), turns=turns, segments=segments)
        got = write_hints(
            log, find(log), settings=HintsSettings(writers={"edit_no_match": f"{__name__}:says"})
        )
        return [r.reason for r in got.refused]

    assert reasons(Segment(start=0, end=6)) == []
    assert reasons(Segment(start=0, end=3), Segment(start=3, end=6, context=((0, 1),))) == [
        "quotes_later_text"
    ]


def test_a_path_found_later_is_refused_and_one_seen_before_is_kept() -> None:
    later = (calls(bash("f", "find . -name setup.go")), results(("f", "./cmd/cli/setup.go:12")))
    assert reason("Look at cmd/cli/setup.go.", after=later) == "quotes_later_text"
    assert reason("Look at ./cmd/cli/setup.go first", after=later) == "quotes_later_text"
    assert reason("Look at setup.go.", after=later) == "quotes_later_text"
    assert reason("Look at /w/cmd/cli/setup.go.", after=later) == "quotes_later_text"
    before = (calls(bash("g", "git ls-files")), results(("g", "cmd/cli/setup.go\ngo.mod")))
    assert reason("Look at cmd/cli/setup.go.", *before, after=later) == "kept"


def test_a_path_that_a_listing_showed_in_parts_is_known_as_a_whole() -> None:
    listing = (
        calls(bash("l", "ls -la cmd/cli")),
        results(("l", "total 8\n-rw-r--r--  1 dev staff 120 Jan  3 10:00 setup.go")),
    )
    later = (calls(("r", "Read", {"file_path": "cmd/cli/setup.go"})), results(("r", "package cli")))
    assert reason("Look at cmd/cli/setup.go.", after=later) == "quotes_later_text"
    assert reason("Look at cmd/cli/setup.go.", *listing, after=later) == "kept"


def test_the_mistaken_message_may_be_named_from_but_not_quoted_from() -> None:
    echoed = (calls("I wrote def run(args, env): into src/app.py"),)
    assert reason("Read app.py again; src/app.py changed.", after=echoed) == "kept"
    assert reason("Mind def run(args, env): too early", after=echoed) == "quotes_later_text"


def test_a_short_repair_in_quotes_is_refused() -> None:
    later = (calls(bash("c2", "make build")), results(("c2", "ok")))
    assert reason("Run `make build` first.", after=later) == "copies_later_call"
    assert reason('Run "make build" first.', after=later) == "copies_later_call"
    assert reason("Run the build first.", after=later) == "kept"
    assert reason("Run `make build` first.", human("we use make build here"), after=later) == "kept"
    assert reason("Run `make test` first.", after=later) == "kept"
    # the next message came before the error
    at_once = (calls(bash("c2", "make build")), failed("c1", NO_MATCH), results(("c2", "ok")))
    PREPARED["text"] = "Run `make build` first."
    log = session(human("add env"), calls(("c1", "Edit", WRONG)), *at_once)
    hints = write_hints(
        log, find(log), settings=HintsSettings(writers={"edit_no_match": f"{__name__}:says"})
    )
    assert [refused.reason for refused in hints.refused] == ["copies_later_call"]


def test_words_of_the_tools_on_offer_may_be_quoted_when_the_log_held_them() -> None:
    spec = ToolSpec(
        name="Edit", description="Set replace_everywhere to change every place at once in one go."
    )
    later = (calls("set replace_everywhere to change every place at once"),)
    hint = "Set replace_everywhere to change every place at once."
    assert reason(hint, after=later, tools=(spec,), tools_origin="log") == "kept"
    assert (
        reason(hint, after=later, tools=(spec,), tools_origin="reconstructed")
        == "quotes_later_text"
    )


def test_what_a_hook_said_later_is_later_text_too() -> None:
    event = (
        Event(
            kind="hook_blocked",
            turn=3,
            call_id="c1",
            text="please run gofmt on every file you touch",
        ),
    )
    assert (
        reason("You should run gofmt on every file.", after=(), events=event) == "quotes_later_text"
    )
    assert reason("You should run gofmt on every file.", after=()) == "kept"


def test_plain_words_that_happen_to_come_later_are_no_leak() -> None:
    later = (calls("I will read the file again, then edit it."),)
    assert reason("Read before you edit.", after=later) == "kept"


def test_what_counts_as_a_name_and_as_a_passage() -> None:
    assert list(names("see src/a.py, --stat=x and user_id (getName) 3.14 plain Word a.b")) == [
        ("src/a.py",),
        ("a.py",),
        ("--stat=x",),
        ("--stat",),
        ("user_id",),
        ("getName",),
    ]
    assert list(passages("one two three four five")) == [
        ("one", "two", "three", "four"),
        ("two", "three", "four", "five"),
    ]
    assert list(passages("cmd/cli/setup/main.go")) == []  # one path is a name, not a passage
    assert list(passages("too short here")) == []


WORDS = st.lists(
    st.sampled_from(
        ["alpha", "beta", "gamma", "delta", "src/x.py", "--flag", "user_id", "(f)", "3"]
    ),
    min_size=RUN,
    max_size=12,
)


@given(WORDS, WORDS)
def test_the_quick_look_finds_exactly_what_the_full_look_finds(
    hint: list[str], turn: list[str]
) -> None:
    wanted = grams([" ".join(hint)])
    log = session(human(" ".join(turn)))
    assert set(Occurrences.of(log, wanted=wanted).turns) == wanted & grams([" ".join(turn)])


@given(WORDS)
def test_any_text_that_is_in_view_may_be_quoted_and_none_that_only_comes_later(
    context_words: list[str],
) -> None:
    text = " ".join(context_words)
    quotable = bool(grams([text]))
    assert reason(text, human(text), after=(calls(text),)) == "kept"
    assert reason(text, after=(calls(text),)) == ("quotes_later_text" if quotable else "kept")
