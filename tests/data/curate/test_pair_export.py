"""Pairs in both shapes, written and read back, with all that is known about them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import read_lines, write_lines
from composer_replication.core.trace import Text, Thinking
from composer_replication.data.curate.pair import Pair
from composer_replication.data.curate.pair_export import export_rows, pair_of, row_of
from tests.data.curate.pairs import call, pair, say
from tests.data.curate.real_shaped import made_up

ONE = pair(
    call("Read", message_text="I read it — first.", file_path="src/ü.py"),
    say("Done."),
    held_out=True,
)


def chat(item: Pair) -> Pair:
    """Drop the authors of the messages in view, which a chat does not hold; everything else of a
    pair is equal."""
    return replace(
        item,
        context=tuple(
            replace(turn, author=None) if turn.role != "tool" else turn for turn in item.context
        ),
    )


def test_a_row_has_flat_text_and_chat_messages() -> None:
    row = json.loads(json.dumps(row_of(ONE)))
    assert row["prompt"].startswith("<user>\nFix the failing test.\n\n<assistant>\nRead {") and row[
        "prompt"
    ].endswith("<assistant>\n")
    assert (
        row["chosen"] == 'I read it — first.\nRead {"file_path":"src/ü.py"}'
        and row["rejected"] == "Done."
    )
    assert [m["role"] for m in row["prompt_messages"]] == ["user", "assistant", "tool"]
    called = row["chosen_messages"][0]["tool_calls"][0]["function"]
    assert called["name"] == "Read" and json.loads(called["arguments"]) == {"file_path": "src/ü.py"}
    assert row["rejected_messages"] == [{"role": "assistant", "content": "Done."}]
    about = row["provenance"]
    assert about["preference"]["teachers"] == ["kimi", "glm"] and about["preference"]["evidence"][
        "usd"
    ] == {"kimi": 0.002}
    assert (
        about["preference"]["evidence"]["families"] == ["a", "b", "c"]
        and about["held_out"]
        and about["repository"] == "acme/app"
    )
    assert about["authors"] == {"chosen": "student", "rejected": "student"}


def test_pairs_come_back_as_they_were(tmp_path: Path) -> None:
    pairs = [ONE, *made_up(60, seed=3).pairs]
    path = tmp_path / "rows.jsonl"
    write_lines(path, export_rows(pairs))
    read = [pair_of(row) for _, row in read_lines(path)]
    assert read == [chat(item) for item in pairs]
    assert [row_of(item) for item in read] == [row_of(item) for item in pairs]


def test_thinking_stays_with_the_messages_that_are_judged() -> None:
    thought = replace(
        ONE.chosen.turn, blocks=(Thinking("hm"), Text("Look."), *ONE.chosen.turn.blocks[1:])
    )
    original = pair(thought, say("Done."))
    assert pair_of(json.loads(json.dumps(row_of(original)))).chosen.turn == thought


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen": "something else"}, "the shapes of the chosen message"),
        ({"rejected_messages": []}, "the shapes of the rejected message"),
        ({"schema": 9}, "schema 9"),
        ({"provenance": {}}, "not a pair"),
        ({"prompt_messages": [{"content": "x"}]}, "not a chat message"),
    ],
)
def test_a_damaged_row_is_refused_with_its_place(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    write_lines(path, [row_of(ONE), {**row_of(ONE), **change}])
    with pytest.raises(DataError, match=message) as caught:
        for number, row in read_lines(path):
            pair_of(row, where=f"{path}:{number}")
    assert message == "not a chat message" or "rows.jsonl:2" in str(caught.value)
