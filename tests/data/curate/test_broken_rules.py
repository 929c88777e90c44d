"""Rules of the earlier recipe that were broken: for each, the bad pair is dropped and the good one
is kept."""

from __future__ import annotations

import pytest

from composer_replication.data.curate.curator import Curator
from composer_replication.data.curate.pair import Pair
from composer_replication.data.curate.recipe import Recipe, load_recipe, read_recipe
from tests.data.curate.pairs import call, pair, say

EARLIER = """
process:
  - text_length_filter:
      min_len: 10
      max_len: 8000
  - words_num_filter:
      min_num: 2
  - special_characters_filter:
      max_ratio: 0.4
  - document_deduplicator:
      lowercase: true
      ignore_non_character: true
"""
GOOD = say("I will read the file that the test imports.")
BETTER = call("Read", file_path="src/limit.py")


@pytest.fixture(params=["earlier operators", "default"])
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return read_recipe(EARLIER) if request.param == "earlier operators" else load_recipe("default")


def reasons(recipe: Recipe, *pairs: Pair) -> list[str]:
    curator = Curator(recipe)
    return [dropped.reason if (dropped := curator.judge(item)) else "" for item in pairs]


@pytest.mark.parametrize("empty", ["", " \n "])
def test_a_pair_with_an_empty_side_is_dropped_on_either_side(recipe: Recipe, empty: str) -> None:
    """data-juicer keeps one number per row, so the rejected side got the chosen side's, and ""
    passed."""
    drop_reasons = reasons(
        recipe, pair(BETTER, say(empty)), pair(say(empty), GOOD), pair(BETTER, GOOD)
    )
    assert drop_reasons[0] and drop_reasons[1] and not drop_reasons[2]


def test_every_side_is_counted_by_itself() -> None:
    long, short = say("I will read the file that the test imports, and then decide."), say("y")
    drop_reasons = reasons(
        read_recipe(EARLIER), pair(long, short), pair(short, long), pair(long, GOOD)
    )
    assert drop_reasons == ["text_length_filter", "text_length_filter", ""]


def test_an_operator_that_names_a_side_looks_at_that_message_only() -> None:
    """The guide's own recipes say `text_key: chosen`."""
    long, short = say("I will read the file that the test imports."), say("y")
    pairs = (pair(long, short), pair(short, long), pair(short, say("z")))
    for side, wanted in (("chosen", [1, 2]), ("rejected", [0, 2])):
        drop_reasons = reasons(
            read_recipe(f"process:\n  - text_length_filter: {{text_key: {side}, min_len: 10}}\n"),
            *pairs,
        )
        assert [n for n, reason in enumerate(drop_reasons) if reason] == wanted
    # a side says whose text is looked at, not that a call has words
    compact = call("Read", file_path="src/config/limit_17.py")
    assert reasons(
        read_recipe("process:\n  - words_num_filter: {text_key: chosen, min_num: 3}\n"),
        pair(compact, short),
    ) == [""]
    votes = Curator(
        read_recipe("process:\n  - words_num_filter: {text_key: rejected, min_num: 3}\n")
    )
    assert votes.check_answer(short, tools={}) == "", "an answer would be the chosen message"


def test_duplicates_by_one_side_are_looked_for_as_asked_and_the_price_is_told() -> None:
    first_state, second_state = (
        pair(BETTER, GOOD, id="s1", file_text="x = 1"),
        pair(BETTER, say("No."), id="s2", file_text="y = 2", task="Write the docs."),
    )
    for name in ("document_deduplicator", "document_minhash_deduplicator"):
        with pytest.warns(UserWarning, match="chosen alone drops the same action in another state"):
            recipe = read_recipe(f"process:\n  - {name}: {{text_key: chosen}}\n")
        assert reasons(recipe, first_state, second_state) == [
            "",
            name if name == "document_deduplicator" else "",
        ]
    drop_reasons = [
        pair(say("I will read the file that the test imports, all of it."), say(text), id=text)
        for text in ("a", "b")
    ]
    assert reasons(recipe, *drop_reasons) == ["", "document_minhash_deduplicator"]


def test_calls_without_a_blank_are_not_taken_for_one_word(recipe: Recipe) -> None:
    """words_num_filter with 2 dropped 42 % of compact calls."""
    compact = call("Read", file_path="src/config/limit_17.py")
    assert reasons(recipe, pair(compact, call("Read", file_path="src/limit.py"))) == [""]
    # a name and its JSON would be two words
    three = read_recipe("process:\n  - words_num_filter:\n      min_num: 3\n")
    assert reasons(three, pair(compact, BETTER), pair(BETTER, say("Look there!"))) == [
        "",
        "words_num_filter",
    ]
    one_word = pair(BETTER, say("Look!"))
    assert reasons(
        read_recipe("process:\n  - words_num_filter:\n      min_num: 2\n"), one_word
    ) == ["words_num_filter"]


def test_signs_of_a_call_are_no_special_characters(recipe: Recipe) -> None:
    signs = call(
        "Bash",
        command=(
            "awk -F: '{print $1,$2}' <(sed 's/[^0-9]//g' x.txt) | sort -n | uniq -c > ../../o.txt"
            " 2>&1"
        ),
    )
    assert reasons(recipe, pair(signs, GOOD)) == [""]
    assert reasons(recipe, pair(signs, say("a $$$ ### b !!! 1234567890 %%%"))) == [
        "special_characters_filter"
    ]


def test_calls_that_differ_in_a_digit_are_two(recipe: Recipe) -> None:
    """Digits and signs were stripped before comparing: 17 % of distinct calls were merged."""
    first, second = (pair(call("Read", file_path=f"b_{n}.py"), GOOD, id=f"s{n}") for n in (1, 2))
    again = pair(call("Read", file_path="b_1.py"), GOOD, id="s3")
    drop_reasons = reasons(recipe, first, second, again)
    assert drop_reasons[:2] == ["", ""] and drop_reasons[2] in (
        "document_deduplicator",
        "document_minhash_deduplicator",
    )


def test_the_same_action_in_another_state_is_no_duplicate(recipe: Recipe) -> None:
    """Duplicates were looked for by `chosen` alone."""
    first_state, second_state = (
        pair(BETTER, GOOD, id="s1", file_text="x = 1"),
        pair(BETTER, GOOD, id="s2", file_text="y = 2", task="Write the docs."),
    )
    copied = pair(BETTER, GOOD, id="s3", file_text="x = 1")
    other_rejected = pair(
        BETTER, say("I will list the files that the test needs."), id="s4", file_text="x = 1"
    )
    assert reasons(recipe, first_state, second_state, copied, other_rejected) == [
        "",
        "",
        "document_deduplicator",
        "",
    ]


def test_an_operator_that_cannot_run_is_an_error_and_not_skipped() -> None:
    for text, message in (
        ("process:\n  - text_lenght_filter\n", "did you mean text_length_filter"),
        ("process:\n  - text_length_filter:\n      minimum: 3\n", "no parameter 'minimum'"),
        ("process:\n  - words_num_filter:\n      min_num: two\n", "'two' is not a number"),
        (
            "process:\n  - text_length_filter:\n      min_len: 5\n      max_len: 1\n",
            "nothing could pass",
        ),
        ("skip_op_error: true\nprocess:\n  - words_num_filter\n", "skip_op_error"),
        ("process: []\n", "at least one operator"),
        # it would make a model write the rejected message
        ("process:\n  - pair_preference_mapper\n", "unknown operator"),
        (
            "process:\n  - document_deduplicator\n  - words_num_filter\n",
            "stands after a deduplicator",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            read_recipe(text)
