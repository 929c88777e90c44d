"""Names of the earlier guide: pairs from teachers' actions, normalized pairs in both shapes, files
in and out, replay in between."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from composer_replication import (
    DJNormalizer,
    DPOPair,
    Scripted,
    TraceState,
    extract_dpo_pairs,
    replay_and_normalize_trace,
    replay_and_normalize_trace_sync,
)
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.jsonl import read_lines
from composer_replication.data.chat import from_chat

READ = {
    "type": "function",
    "function": {
        "name": "Read",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
            "additionalProperties": False,
        },
    },
}


def read(path: Any, *, call_id: str = "c1", name: str = "Read", text: str = "") -> dict[str, Any]:
    arguments = (
        path if isinstance(path, str) and path.startswith("!") else json.dumps({"path": path})
    )
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        ],
    }


def state(
    number: int = 0, *, author: str = "claude-opus-4-5", student_action: str = "Done."
) -> TraceState:
    return TraceState(
        f"s1:{number}",
        [{"role": "user", "content": f"Fix test {number}."}],
        {"role": "assistant", "content": student_action},
        author=author,
    )


KIMI, GLM, QWEN, SONNET = (
    "moonshotai/kimi-k2.5",
    "z-ai/glm-5",
    "qwen/qwen3-coder",
    "anthropic/claude-sonnet-5",
)


def test_families_that_do_the_same_make_a_pair_and_their_words_do_not_matter() -> None:
    actions = [{KIMI: read("a.py", text="I look."), GLM: read("a.py", call_id="x"), QWEN: "Done."}]
    (pair,) = extract_dpo_pairs(states=[state()], teacher_actions=actions, tools=[READ])
    assert (pair.state_id, pair.n_teachers_agreeing, pair.rejected) == ("s1:0", 2, "Done.")
    assert pair.chosen == 'I look.\nRead {"path":"a.py"}' and pair.chosen_message is not None
    assert (
        pair.provenance["families"] == ["moonshot", "zhipu"]
        and pair.provenance["author"] == "claude-opus-4-5"
    )
    assert "usd" not in pair.provenance, "nobody said what these answers cost"
    assert extract_dpo_pairs(states=[state()], teacher_actions=actions, agreement_threshold=3) == []
    assert extract_dpo_pairs(
        states=[state()], teacher_actions={"s1:0": actions[0]}, tools=[READ]
    ) == [pair]


def test_kin_of_the_trace_malformed_calls_and_two_of_one_family_have_no_vote() -> None:
    for first, second in ((KIMI, SONNET), (KIMI, "moonshotai/kimi-k2-thinking")):
        assert (
            extract_dpo_pairs(
                states=[state()],
                teacher_actions=[{first: read("a.py"), second: read("a.py"), QWEN: "Hm."}],
            )
            == []
        )
    assert (
        extract_dpo_pairs(
            states=[state(author="")], teacher_actions=[{KIMI: read("a.py"), SONNET: read("a.py")}]
        )
        != []
    )
    broken = {KIMI: read("!{"), GLM: read("!{"), QWEN: "Hm."}
    with pytest.warns(UserWarning, match=rf"1 answers of {KIMI} are no messages.*{GLM}"):
        assert extract_dpo_pairs(states=[state()], teacher_actions=[broken]) == []
    with pytest.raises(DataError, match="1 entries of teacher_actions"):
        extract_dpo_pairs(states=[state(0), state(1)], teacher_actions=[{}])


def test_normalized_pairs_have_both_shapes_and_all_that_was_known() -> None:
    actions = [{KIMI: read("a.py"), GLM: read("a.py")}]
    normalizer = DJNormalizer()
    (good,) = normalizer.normalize(
        extract_dpo_pairs(states=[state()], teacher_actions=actions, tools=[READ])
    )
    assert (
        good.prompt == "<user>\nFix test 0.\n\n<assistant>\n"
        and good.prompt_messages == state().messages
    )
    assert (
        good.chosen == 'Read {"path":"a.py"}'
        and good.chosen_messages[0]["tool_calls"][0]["function"]["name"] == "Read"
    )
    assert good.rejected == "Done." and good.rejected_messages == [
        {"role": "assistant", "content": "Done."}
    ]
    assert (
        good.provenance["teachers"] == [KIMI, GLM]
        and good.provenance["recipe"] == "default"
        and good.tools == (READ,)
    )
    assert (
        normalizer.report is not None and normalizer.report.kept == 1 and normalizer.dropped == ()
    )


def bad_pairs() -> list[DPOPair]:
    flat = {"state_messages": [{"role": "user", "content": "Go."}], "n_teachers_agreeing": 2}
    return [
        DPOPair(state_id="a", chosen="I read the file that the test needs.", rejected="", **flat),
        DPOPair(state_id="b", chosen="", rejected="I read the file that the test needs.", **flat),
        DPOPair(
            state_id="c",
            chosen="",
            rejected="Done.",
            chosen_message=read("a.py", name="Reed"),
            tools=(READ,),
            **flat,
        ),
        DPOPair(
            state_id="d", chosen="", rejected="Done.", chosen_message=read(3), tools=(READ,), **flat
        ),
        DPOPair(
            state_id="e", chosen="I read the file that the test needs.", rejected="Done.", **flat
        ),
    ]


def test_bad_pairs_are_dropped_and_said_why() -> None:
    normalizer = DJNormalizer("with_disagreement_filter")
    kept_pairs = normalizer.normalize(bad_pairs())
    assert [pair.state_id for pair in kept_pairs] == ["e"]
    assert [d.reason for d in normalizer.dropped] == [
        "answer_not_empty_filter", "answer_not_empty_filter", "tool_offered_filter",
        "tool_arguments_filter",
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


@dataclass(frozen=True)
class Named:
    """A teacher, as far as agreement needs to know it."""

    name: str
    family: str


async def answers(
    *, states: list[TraceState], teachers: Iterable[Any], max_total_usd: float, tools: Any
) -> dict[str, dict[str, Any]]:
    assert max_total_usd == 1.5 and [tool.name for tool in tools] == ["Read"]
    return {
        state_record.state_id: {
            getattr(teacher, "name", teacher): read("a.py") for teacher in teachers
        }
        for state_record in states
    }


def test_replay_and_normalize_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {
        "states": iter([state(0), state(1)]),
        "max_total_usd": 1.5,
        "tools": [READ],
        "replay": answers,
    }
    actions, normalized = asyncio.run(
        replay_and_normalize_trace(
            **arguments, teachers=[Named("one", "moonshot"), Named("two", "zhipu")]
        )
    )
    assert set(actions) == {"s1:0", "s1:1"} and set(actions["s1:0"]) == {
        "one",
        "two",
    }, "two pairs are not the guide's two values"
    assert [pair.state_id for pair in normalized] == ["s1:0", "s1:1"] and normalized[0].provenance[
        "families"
    ] == ["moonshot", "zhipu"]
    arguments["states"] = [state(0), state(1)]
    kin = [Named("one", "moonshot"), Named("two", "moonshot")]
    # two names, one maker
    assert replay_and_normalize_trace_sync(**arguments, teachers=kin).pairs == []
    kin[1] = Named("two", "anthropic")
    assert replay_and_normalize_trace_sync(**arguments, teachers=kin).pairs == []  # the trace's own
    picky = DJNormalizer()
    monkeypatch.setattr(picky, "normalize", lambda pairs: list(pairs)[:1])
    assert (
        len(
            replay_and_normalize_trace_sync(
                **arguments, teachers=[Named("a", "x"), Named("b", "y")], normalizer=picky
            ).pairs
        )
        == 1
    )
    # the default teachers are of two families and more
    assert len(replay_and_normalize_trace_sync(**arguments).pairs) == 2


def test_a_state_that_carries_its_tools_is_weighed_with_them() -> None:
    """The recipe drops a call of a tool that the session does not offer, even if the tools are not
    passed again."""
    state_with_tools = replace(state(), tools=(READ,))
    pairs = extract_dpo_pairs(
        states=[state_with_tools],
        teacher_actions=[{KIMI: read("a.py", name="Reed"), GLM: read("a.py", name="Reed")}],
    )
    assert pairs[0].tools == (READ,) and DJNormalizer().normalize(pairs) == []


def test_inside_a_running_loop_the_sync_name_points_to_the_other() -> None:
    async def notebook() -> None:
        replay_and_normalize_trace_sync(states=[state()], max_total_usd=1.0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no coroutine that was never awaited
        with pytest.raises(ConfigError, match=r"await replay_and_normalize_trace\("):
            asyncio.run(notebook())
        gc.collect()


def test_a_ledger_is_handed_on_to_the_replay(tmp_path: Path) -> None:
    async def kept(*, ledger: Path, **rest: Any) -> dict[str, dict[str, Any]]:
        return await answers(**rest) if ledger == tmp_path else {}

    arguments: dict[str, Any] = {
        "states": [state()],
        "max_total_usd": 1.5,
        "tools": [READ],
        "teachers": [Named("one", "x"), Named("two", "y")],
    }
    assert (
        len(replay_and_normalize_trace_sync(**arguments, replay=kept, ledger=tmp_path).pairs) == 1
    )


def test_pairs_that_the_recipe_drops_are_told() -> None:
    """The teachers agree on a call with an argument that the tool does not take."""

    async def wrong(*, states: list[TraceState], **rest: Any) -> dict[str, dict[str, Any]]:
        return {state_record.state_id: {"one": read(3), "two": read(3)} for state_record in states}

    arguments: dict[str, Any] = {
        "states": [state()],
        "tools": [READ],
        "teachers": [Named("one", "x"), Named("two", "y")],
        "replay": wrong,
    }
    with pytest.warns(
        UserWarning, match=r"'default' drops 1 of 1 pairs: tool_arguments_filter \(1\)"
    ):
        assert replay_and_normalize_trace_sync(**arguments).pairs == []


def test_replay_trace_and_the_normalizer_fit_together(tmp_path: Path) -> None:
    """The package's own `replay_trace`, with teachers that answer from a list."""
    arguments: dict[str, Any] = {"states": [state(0)], "tools": [READ], "ledger": tmp_path}
    teachers = [
        Scripted(name, family, lambda request: from_chat(read("a.py")))
        for name, family in (("one", "moonshot"), ("two", "zhipu"))
    ]
    _, (good,) = replay_and_normalize_trace_sync(**arguments, teachers=teachers)
    assert (
        good.chosen_messages[0]["tool_calls"][0]["function"]["name"] == "Read"
        and good.n_teachers_agreeing == 2
    )


def test_a_pair_reads_as_the_dictionary_that_the_guide_had() -> None:
    actions = [{KIMI: read("a.py"), GLM: read("a.py")}]
    (pair,) = extract_dpo_pairs(states=[state()], teacher_actions=actions, tools=[READ])
    assert (
        pair["chosen"] == pair.chosen == 'Read {"path":"a.py"}'
        and "rejected" in pair
        and pair.get("price") is None
    )
    assert set(dict(pair)) >= {
        "state_id",
        "state_messages",
        "chosen",
        "rejected",
        "n_teachers_agreeing",
    }
    with pytest.raises(KeyError, match="of"):
        pair["of"]  # a method, not a field
    (good,), (again,) = (
        DJNormalizer().normalize([pair]),
        DJNormalizer().normalize([{**pair, "tools": list(pair.tools)}]),
    )
    assert good == again and good["prompt_messages"] == state().messages
    with pytest.raises(DataError, match=r"a DPOPair has no 'prompt' \(at pair 0\)"):
        DJNormalizer().normalize([{"prompt": "x"}])


def test_states_are_records_dictionaries_or_sessions() -> None:
    """The guide's states were dictionaries, and their action was often plain text."""
    record = {"state_id": "s1:0", "messages": state().messages, "student_action": "Done."}
    actions = [{KIMI: read("a.py"), GLM: read("a.py")}]
    (pair,) = extract_dpo_pairs(states=[record], teacher_actions=actions, tools=[READ])
    assert pair.rejected == "Done." and pair.state_messages == state().messages
    with pytest.raises(DataError, match=r"a TraceState without 'student_action' \(at state 0\)"):
        extract_dpo_pairs(states=[{"state_id": "x", "messages": []}], teacher_actions=[{}])
    with pytest.raises(DataError, match="str is no TraceState"):
        extract_dpo_pairs(states=["s1:0"], teacher_actions=[{}])  # pyright: ignore[reportArgumentType] - the wrong value is the test
