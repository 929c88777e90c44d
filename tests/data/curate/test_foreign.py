"""data-juicer operators that the embedded engine lacks; a stand-in for the program runs here, the
real one in tests/peers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from composer_replication.compat.guide_pairs import DJNormalizer, DPOPair
from composer_replication.core.errors import ConfigError, DataError
from tests.data.curate.test_data_juicer_setup import fake_engine

PROGRAM = """
import json, os, sys
config = json.load(open(sys.argv[sys.argv.index("--config") + 1]))
rows = [json.loads(line) for line in open(config["dataset_path"])]
open(os.environ["HOME"] + "/runs.jsonl", "a").write(json.dumps([config["process"], rows]) + "\\n")
for step in config["process"]:
    (name, told), = step.items()
    if name == "no_such_filter":
        raise SystemExit("Unknown operator")
    if name == "upper_case_mapper":
        rows = [{**row, "text": row["text"].upper()} for row in rows]
    elif name == "remove_all_mapper":
        rows = [{**row, "text": ""} for row in rows]
    elif name == "text_chunk_mapper":
        rows = [row for row in rows for _ in range(2)]
    elif name == "perplexity_filter":
        rows = [row for row in rows if "zzz" not in row["text"]]
    elif name == "text_length_filter":
        rows = [row for row in rows if len(row["text"]) >= told["min_len"]]
    elif name == "document_simhash_deduplicator":
        rows = list({row["text"][:10]: row for row in reversed(rows)}.values())[::-1]
out = config["export_path"]
os.makedirs(os.path.dirname(out))
open(out, "w").write("".join(json.dumps(row) + "\\n" for row in rows))
"""
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "Read", "arguments": '{"path": "a.py"}'},
}
GO = [{"role": "user", "content": "Go."}]


def made(name: str, chosen: str, rejected: str, **more: Any) -> DPOPair:
    return DPOPair(
        state_id=f"{name}:1", state_messages=GO, chosen=chosen, rejected=rejected, **more
    )


@pytest.fixture
def normalizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HOME", str(tmp_path))

    def of(*steps: str) -> DJNormalizer:
        path = tmp_path / "recipe.yaml"
        path.write_text("process:\n" + "".join(f"  - {step}\n" for step in steps), "utf-8")
        return DJNormalizer(
            path,
            engine="data_juicer",
            data_juicer_python=fake_engine(tmp_path, program=PROGRAM).python,
        )

    return of


def test_a_mapper_rewrites_what_messages_say_and_never_their_calls(normalizer: Any) -> None:
    calling = {"role": "assistant", "content": "i look.", "tool_calls": [CALL]}
    pairs = [made("a", "x", "done.", chosen_message=calling), made("b", "fine.", "OK.")]
    mapper = normalizer("upper_case_mapper")
    first, second = mapper.normalize(pairs)
    assert (
        first.chosen == 'I LOOK.\nRead {"path":"a.py"}'
        and first.chosen_messages[0]["tool_calls"][0]["function"] == CALL["function"]
    )
    assert (first.rejected, second.chosen, second.rejected) == ("DONE.", "FINE.", "OK.")
    assert first.provenance["rewritten"] == ["chosen", "rejected"] and second.provenance[
        "rewritten"
    ] == ["chosen"]
    assert mapper.rewritten == {"upper_case_mapper": 3} and mapper.report.kept == 2
    (rewritten,) = normalizer("upper_case_mapper: {text_key: rejected}").normalize(pairs[1:])
    assert (rewritten.chosen, rewritten.rejected) == (
        "fine.",
        "OK.",
    ) and "rewritten" not in rewritten.provenance


def test_a_recipe_runs_in_its_order_and_every_pair_is_accounted_for(normalizer: Any) -> None:
    """The filters after a mapper see the mapper's output."""
    pairs = [
        made("a", "a long enough text", "zzz"),
        made("b", "a long enough text", "no"),
        made("c", "a long enough word", "yes"),
        made("d", "x", "y"),
    ]
    recipe = [
        "answer_not_empty_filter",
        "text_length_filter: {text_key: chosen, min_len: 5}",
        "upper_case_mapper",
    ]
    judge = normalizer(
        *recipe, "perplexity_filter", "document_simhash_deduplicator: {text_key: chosen}"
    )
    kept_pairs = judge.normalize(pairs)
    assert [pair.chosen for pair in kept_pairs] == ["A LONG ENOUGH TEXT"] and [
        pair.rejected for pair in kept_pairs
    ] == ["ZZZ"], "ZZZ is not zzz"
    assert [(dropped_pair.pair_id, dropped_pair.reason) for dropped_pair in judge.dropped] == [
        ("b:1#1", "document_simhash_deduplicator"), ("c:1#2", "document_simhash_deduplicator"),
        ("d:1#3", "text_length_filter"),
    ]  # fmt: skip
    assert judge.report.pairs == 4 == judge.report.kept + sum(judge.report.dropped.values())
    (kept_pair,) = normalizer("perplexity_filter").normalize([pairs[0], pairs[1]])
    assert kept_pair.state_id == "b:1"


def test_a_message_of_which_nothing_is_left_goes_and_a_call_stays(normalizer: Any) -> None:
    calling = {"role": "assistant", "content": "i look.", "tool_calls": [CALL]}
    judge = normalizer("remove_all_mapper: {text_key: chosen}")
    (kept_pair,) = judge.normalize(
        [made("a", "fine.", "no"), made("b", "x", "no", chosen_message=calling)]
    )
    assert kept_pair.chosen_messages == [{"role": "assistant", "content": "", "tool_calls": [CALL]}]
    assert [dropped_pair.detail for dropped_pair in judge.dropped] == [
        "chosen: nothing is left of it"
    ]


def test_what_cannot_be_run_there_is_named(normalizer: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="text_chunk_mapper makes several messages of one"):
        normalizer("text_chunk_mapper").normalize([made("a", "fine.", "no")])
    with pytest.raises(DataError, match="Unknown operator"):
        normalizer("no_such_filter").normalize([made("a", "fine.", "no")])
    with pytest.raises(ConfigError, match=r"unknown operator 'upper_case_mapper'.*DJNormalizer"):
        normalizer("upper_case_mapper")
        DJNormalizer(tmp_path / "recipe.yaml")
    missing = DJNormalizer(
        tmp_path / "recipe.yaml", engine="data_juicer", data_juicer_python="/nowhere/python"
    )
    with pytest.raises(ConfigError, match="no Python at '/nowhere/python'"):
        missing.normalize([made("a", "fine.", "no")])
