"""What a curator drops, which reasons it gives, and that single answers can be judged before they
vote."""

from __future__ import annotations

from dataclasses import replace

import pytest

from composer_replication.core.errors import DataError
from composer_replication.core.trace import Thinking, ToolCall, Turn
from composer_replication.data.curate.curator import LEAKS, Curator, Dropped
from composer_replication.data.curate.pair import Pair
from composer_replication.data.curate.recipe import Recipe, load_recipe, read_recipe
from composer_replication.data.curate.structure import chat_problem
from tests.data.curate.pairs import TEXT, TOOLS, call, pair, say, session

OWN = say("I will look at what the test reads.")
READ = call("Read", file_path="src/limit.py")
TOOL_TABLE = {tool.name: tool for tool in TOOLS}


def judged(judged_pair: Pair, recipe: Recipe | None = None) -> Dropped | None:
    return Curator(recipe or load_recipe("default")).judge(judged_pair)


def only(*lines: str) -> Recipe:
    return read_recipe("process:\n" + "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("chosen", "reason", "detail"),
    [
        (call("Reed", file_path="a.py"), "tool_offered_filter", "chosen: there is no tool 'Reed'"),
        (call("Read", path="a.py"), "tool_arguments_filter", "'file_path' is missing"),
        (call("Read", file_path=3), "tool_arguments_filter", "3 is not a string"),
        (
            call("Read", file_path="a.py", call_id=""),
            "call_ids_filter",
            "calls without an id of their own",
        ),
        (
            Turn(role="assistant", author="a", blocks=(Thinking("I should read a.py"),)),
            "answer_not_empty_filter",
            "says nothing",
        ),
        (
            say("I will look at\n  what the test   reads."),
            "chosen_differs_filter",
            "both do the same",
        ),
        (say("y" * 40001), "text_length_filter", "40001 is above 40000"),
        (say("we look at the same line and " * 30), "word_repetition_filter", "chosen: "),
        (say("ha" * 300), "character_repetition_filter", "chosen: "),
        (
            say(
                "Ich lese jetzt die Datei, die der Test nicht findet, und dann ist es für alle"
                " klar."
            ),
            "same_language_filter",
            "chosen is de",
        ),
        (
            say("まずテストが読み込むファイルを見てみましょう。"),
            "same_language_filter",
            "chosen is ja",
        ),
    ],
)
def test_a_bad_answer_is_dropped_by_name_and_says_why(
    chosen: Turn, reason: str, detail: str
) -> None:
    student_turn = (
        say("I will look at what the test reads.")
        if reason != "same_language_filter"
        else say(TEXT)
    )
    dropped = judged(pair(chosen, student_turn))
    assert dropped is not None and dropped.reason == reason and detail in dropped.detail
    assert judged(pair(READ, student_turn)) is None


def test_the_rejected_message_may_be_a_call_that_no_tool_takes() -> None:
    for wrong in (call("Reed", file_path="a.py"), call("Read", path="a.py")):
        assert judged(pair(READ, wrong)) is None
        assert judged(pair(wrong, READ)) is not None


def test_a_short_last_word_is_an_action() -> None:
    """ "Done." against running the tests once more: one word, and a fair pair."""
    assert judged(pair(say("Done."), call("Bash", command="pytest -q"))) is None
    assert judged(pair(call("Bash", command="pytest -q"), say("Done."))) is None


def test_edits_that_leave_the_same_file_are_the_same_action() -> None:
    tools = (*TOOLS, replace(TOOLS[0], name="Edit", parameters={}))
    small = call("Edit", file_path="a.py", old_string="1", new_string="2")
    large = call("Edit", file_path="a.py", old_string="x = 1", new_string="x = 2")
    different_edit = call("Edit", file_path="a.py", old_string="x = 1", new_string="x = 3")
    from composer_replication.core.site import Preference
    from composer_replication.data.curate.pair import session_pairs

    recorded = replace(session(small, file_text="     1→x = 1"), tools=tools)
    same, differs = (
        next(session_pairs(recorded, [Preference(session_id="s1", turn=3, chosen=chosen)]))
        for chosen in (large, different_edit)
    )
    dropped = judged(same)
    assert dropped is not None and dropped.reason == "chosen_differs_filter"
    assert judged(differs) is None


def test_nearly_the_same_state_and_words_are_a_duplicate_only_with_the_same_calls() -> None:
    file_text = "\n".join(f"value_{n} = {n} # set by the loader of settings" for n in range(60))
    pairs = [
        pair(READ, OWN, id="s1", file_text=file_text),
        pair(READ, OWN, id="s2", file_text=file_text + "."),  # one sign more
        pair(call("Read", file_path="src/limits.py"), OWN, id="s3", file_text=file_text + ".."),
        pair(READ, OWN, id="s4", file_text=" ".join(reversed(file_text.split()))),
    ]
    curator = Curator(load_recipe("default"))
    verdicts = [curator.judge(candidate) for candidate in pairs]
    assert [verdict.reason if verdict else "" for verdict in verdicts] == [
        "",
        "document_minhash_deduplicator",
        "",
        "",
    ]
    assert verdicts[1] is not None and verdicts[1].detail == "s1:3"


def test_a_training_pair_that_is_held_out_too_leaks_and_goes() -> None:
    curator = Curator(load_recipe("default"))
    assert curator.judge(pair(READ, OWN, id="s1", repository="acme/held", held_out=True)) is None
    leak = curator.judge(pair(READ, OWN, id="s2", repository="acme/app"))
    assert leak is not None and leak.reason == LEAKS and leak.detail == "s1:3"
    assert curator.judge(pair(READ, say("Something else is rejected here."), id="s3")) is None
    report = curator.report()
    assert (
        report.kept_held_out,
        report.kept_train,
        report.repositories,
        report.sessions,
        report.dropped,
    ) == (1, 1, 2, 2, {LEAKS: 1})
    with pytest.raises(DataError, match="held-out pair came after"):
        curator.judge(pair(READ, OWN, id="s9", held_out=True))


def test_the_report_accounts_for_every_pair() -> None:
    curator = Curator(load_recipe("default"))
    for verdict in (
        pair(READ, OWN),
        pair(READ, OWN, id="s2"),
        pair(say(""), OWN),
        pair(call("Reed"), OWN),
        pair(READ, say(" ")),
    ):
        curator.judge(verdict)
    report = curator.report()
    assert report.pairs == 5 == report.kept + sum(report.dropped.values())
    assert report.dropped == {
        "answer_not_empty_filter": 2,
        "document_deduplicator": 1,
        "tool_offered_filter": 1,
    }
    assert curator.idle == ("chat_template_filter",)  # no template was given to try


def test_a_template_that_refuses_a_message_drops_its_pair() -> None:
    curator = Curator(
        load_recipe("default"),
        renders=lambda judged_pair: (
            "the template knows no tools" if judged_pair.chosen.turn.calls else ""
        ),
    )
    dropped = curator.judge(pair(READ, OWN))
    assert dropped is not None and (dropped.reason, dropped.detail) == (
        "chat_template_filter",
        "the template knows no tools",
    )
    assert curator.idle == () and curator.judge(pair(OWN, READ)) is None


def test_an_answer_is_judged_by_itself_before_it_votes() -> None:
    curator = Curator(load_recipe("default"))
    problems = [
        curator.check_answer(turn, tools=TOOL_TABLE)
        for turn in (READ, say(""), call("Reed"), call("Read"), say("..."), OWN)
    ]
    assert [problem.partition(":")[0] for problem in problems] == [
        "", "answer_not_empty_filter", "tool_offered_filter", "tool_arguments_filter",
        "words_num_filter", "",
    ]  # fmt: skip
    assert sum(curator.report().answers_refused.values()) == 4 and curator.report().pairs == 0


def test_disagreement_is_asked_of_words_and_not_of_calls() -> None:
    recipe = load_recipe("with_disagreement_filter")
    nearly = say("I will look at what the test reads!")
    dropped = judged(pair(nearly, OWN), recipe)
    assert dropped is not None and dropped.reason == "disagreement_filter"
    assert judged(pair(say("The limit is never set, so I add it to config."), OWN), recipe) is None
    # one letter is all the difference
    assert judged(pair(READ, call("Read", file_path="src/limits.py")), recipe) is None
    everywhere = only("  - disagreement_filter:", "      field: text", "      max_likeness: 0.7")
    assert judged(pair(READ, call("Read", file_path="src/limits.py")), everywhere) is not None


def embed_by_length(texts: list[str]) -> list[list[float]]:
    return [[1.0, float(len(text) > 40)] for text in texts]


def test_an_embedding_of_ones_own_may_say_how_alike_two_messages_are() -> None:
    recipe = only(
        "  - disagreement_filter:",
        "      max_likeness: 0.9",
        f"      embed: '{__name__}:embed_by_length'",
    )
    assert judged(pair(say("short words"), say("other words")), recipe) is not None
    assert (
        judged(
            pair(say("short words"), say("these are many more words than the others have in them")),
            recipe,
        )
        is None
    )


def test_evidence_can_be_asked_for() -> None:
    recipe = only("  - evidence_filter:", "      tiers: [exact, target]")
    assert judged(pair(READ, OWN), recipe) is None
    dropped = judged(pair(READ, OWN, evidence={"tier": "exact", "evidence": []}), recipe)
    assert dropped is not None and dropped.detail == "nothing but agreement speaks for it"
    loose = judged(pair(READ, OWN, evidence={"tier": "intent", "evidence": ["gap:1"]}), recipe)
    assert loose is not None and loose.detail == "the answers agree by intent only"


def test_one_language_can_be_asked_for_and_code_has_none() -> None:
    recipe = only("  - language_id_score_filter:", "      lang: [en, de]")
    german = say(
        "Ich lese jetzt die Datei, die der Test nicht findet, und dann ist es für alle klar."
    )
    french = say(
        "Je vais lire le fichier que le test ne trouve pas, et je le corrige pour vous dans la"
        " suite."
    )
    assert judged(pair(german, say(TEXT)), recipe) is None
    dropped = judged(pair(french, say(TEXT)), recipe)
    assert dropped is not None and dropped.detail == "chosen: fr"
    assert judged(pair(say("x = [f(i) for i in range(9)]"), READ), recipe) is None


def test_a_state_that_is_no_chat_is_dropped() -> None:
    good = session(OWN).context(3)
    assert chat_problem(good) == ""
    assert chat_problem(good[1:]) == "nobody asked for anything"
    assert chat_problem((good[0], good[2])) == "a result without its call"
    assert chat_problem(good[:2]) == "calls that were not answered yet"
    assert (
        chat_problem((*good[:2], say("and then"), good[2]))
        == "a message before the results of the calls above it"
    )
    dropped = judged(replace(pair(READ, OWN), context=good[:2]))
    assert dropped is not None and dropped.reason == "chat_shape_filter"


def test_the_ids_of_parallel_calls_have_to_differ() -> None:
    parallel_calls = Turn(
        role="assistant",
        author="a",
        blocks=(*READ.blocks, ToolCall("c1", "Bash", {"command": "ls"})),
    )
    dropped = judged(pair(parallel_calls, OWN))
    assert dropped is not None and dropped.reason == "call_ids_filter"
