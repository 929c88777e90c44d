"""Names of the earlier guide: pairs from teachers' actions, normalized pairs in both shapes, file in and file out, replay in between."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import composer_replication as top
from composer_replication import (
    DJNormalizer,
    DPOPair,
    TraceState,
    extract_dpo_pairs,
    replay_and_normalize_trace,
    replay_and_normalize_trace_sync,
)
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.jsonl import read_lines

READ = {
    "type": "function",
    "function": {
        "name": "Read",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False},
    },
}


def read(path: Any, *, call_id: str = "c1", name: str = "Read", text: str = "") -> dict[str, Any]:
    arguments = path if isinstance(path, str) and path.startswith("!") else json.dumps({"path": path})
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def state(number: int = 0, *, author: str = "claude-opus-4-5", own: str = "Done.") -> TraceState:
    return TraceState(
        f"s1:{number}", [{"role": "user", "content": f"Fix test {number}."}], {"role": "assistant", "content": own}, author=author
    )


KIMI, GLM, QWEN, SONNET = "moonshotai/kimi-k2.5", "z-ai/glm-5", "qwen/qwen3-coder", "anthropic/claude-sonnet-5"


def test_families_that_do_the_same_make_a_pair_and_their_words_do_not_matter() -> None:
    actions = [{KIMI: read("a.py", text="I look."), GLM: read("a.py", call_id="x"), QWEN: "Done."}]
    (pair,) = extract_dpo_pairs(states=[state()], teacher_actions=actions, tools=[READ])
    assert (pair.state_id, pair.n_teachers_agreeing, pair.rejected) == ("s1:0", 2, "Done.")
    assert pair.chosen == 'I look.\nRead {"path":"a.py"}' and pair.chosen_message is not None
    assert pair.provenance["families"] == ["moonshot", "zhipu"] and pair.provenance["author"] == "claude-opus-4-5"
    assert extract_dpo_pairs(states=[state()], teacher_actions=actions, agreement_threshold=3) == []
    assert extract_dpo_pairs(states=[state()], teacher_actions={"s1:0": actions[0]}, tools=[READ]) == [pair]


def test_kin_of_the_trace_malformed_calls_and_two_of_one_family_have_no_vote() -> None:
    for one, other in ((KIMI, SONNET), (KIMI, "moonshotai/kimi-k2-thinking")):
        assert extract_dpo_pairs(states=[state()], teacher_actions=[{one: read("a.py"), other: read("a.py"), QWEN: "Hm."}]) == []
    assert extract_dpo_pairs(states=[state(author="")], teacher_actions=[{KIMI: read("a.py"), SONNET: read("a.py")}]) != []
    broken = {KIMI: read("!{"), GLM: read("!{"), QWEN: "Hm."}
    assert extract_dpo_pairs(states=[state()], teacher_actions=[broken]) == []
    with pytest.raises(DataError, match="1 entries of teacher_actions"):
        extract_dpo_pairs(states=[state(0), state(1)], teacher_actions=[{}])


def test_normalized_pairs_have_both_shapes_and_all_that_was_known() -> None:
    actions = [{KIMI: read("a.py"), GLM: read("a.py")}]
    normalizer = DJNormalizer()
    (good,) = normalizer.normalize(extract_dpo_pairs(states=[state()], teacher_actions=actions, tools=[READ]))
    assert good.prompt == "<user>\nFix test 0.\n\n<assistant>\n" and good.prompt_messages == state().messages
    assert good.chosen == 'Read {"path":"a.py"}' and good.chosen_messages[0]["tool_calls"][0]["function"]["name"] == "Read"
    assert good.rejected == "Done." and good.rejected_messages == [{"role": "assistant", "content": "Done."}]
    assert good.provenance["teachers"] == [KIMI, GLM] and good.provenance["recipe"] == "default" and good.tools == (READ,)
    assert normalizer.report is not None and normalizer.report.kept == 1 and normalizer.dropped == ()


def bad_pairs() -> list[DPOPair]:
    flat = {"state_messages": [{"role": "user", "content": "Go."}], "n_teachers_agreeing": 2}
    return [
        DPOPair(state_id="a", chosen="I read the file that the test needs.", rejected="", **flat),
        DPOPair(state_id="b", chosen="", rejected="I read the file that the test needs.", **flat),
        DPOPair(state_id="c", chosen="", rejected="Done.", chosen_message=read("a.py", name="Reed"), tools=(READ,), **flat),
        DPOPair(state_id="d", chosen="", rejected="Done.", chosen_message=read(3), tools=(READ,), **flat),
        DPOPair(state_id="e", chosen="I read the file that the test needs.", rejected="Done.", **flat),
    ]


def test_bad_pairs_are_dropped_and_said_why() -> None:
    normalizer = DJNormalizer("with_disagreement_filter")
    kept = normalizer.normalize(bad_pairs())
    assert [pair.state_id for pair in kept] == ["e"]
    assert [d.reason for d in normalizer.dropped] == [
        "answer_not_empty_filter", "answer_not_empty_filter", "tool_offered_filter", "tool_arguments_filter",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="unknown engine 'spark'"):
        DJNormalizer(engine="spark")  # pyright: ignore[reportArgumentType] - the wrong value is the test


def test_file_in_and_file_out(tmp_path: Path) -> None:
    from dataclasses import asdict

    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(asdict(pair)) + "\n" for pair in bad_pairs()), "utf-8")
    report = DJNormalizer().normalize_file(source, target)
    assert (report.pairs, report.kept) == (5, 1)
    ((_, row),) = read_lines(target)
    assert row["state_id"] == "e" and row["chosen_messages"][0]["content"] == row["chosen"]
    source.write_text('{"state_id": "x", "prompt": 1}\n', "utf-8")
    with pytest.raises(DataError, match=r"in\.jsonl:1"):
        DJNormalizer().normalize_file(source, target)


async def answers(*, states: list[TraceState], teachers: list[str], max_total_usd: float) -> list[dict[str, Any]]:
    assert max_total_usd == 1.5
    return [{teacher: read("a.py") for teacher in teachers} for _ in states]


def test_replay_and_normalize_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"states": [state(0), state(1)], "teachers": [KIMI, GLM], "max_total_usd": 1.5, "tools": [READ]}
    found = asyncio.run(replay_and_normalize_trace(**given, replay=answers))
    assert [pair.state_id for pair in found] == ["s1:0", "s1:1"]
    picky = DJNormalizer()
    monkeypatch.setattr(picky, "normalize", lambda pairs: list(pairs)[:1])
    assert len(replay_and_normalize_trace_sync(**given, replay=answers, normalizer=picky)) == 1
    monkeypatch.setattr(top, "replay_trace", answers, raising=False)
    assert len(replay_and_normalize_trace_sync(**given)) == 2  # without `replay`, the package's own
