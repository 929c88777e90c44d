"""Merging, joining, and what was in context: each way in which a log can mislead, on a log made for
it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from examples.log_writer import Call, LogWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_replication.core.trace import Opaque, Text, Thinking
from tests.data.ingestion.reading import lines, new_log, read_log, read_text, seen, shape


def ok(tool: str, text: str = "ok") -> Call:
    return Call(tool, {"x": 1}, text)


def test_blocks_of_one_message_are_one_turn_though_a_result_stands_between(tmp_path: Path) -> None:
    log = new_log()
    log.human("go")
    log.act("both", ok("A", "ra"), ok("B", "rb"), ok("C", "rc"), interleaved=True, thinking="hm")
    log.act("done")
    session = read_log(tmp_path, log)
    assert shape(session) == ["u:go", "a:both", "t:ra", "t:rb", "t:rc", "a:done"]
    assert [type(b) for b in session.turns[1].blocks[:2]] == [Thinking, Text]
    assert [c.name for c in session.turns[1].calls] == ["A", "B", "C"]
    # the chain alone would lose two of them
    assert seen(session, 5) == ["u:go", "a:both", "t:ra", "t:rb", "t:rc"]
    assert len(session.segments) == 1


def test_results_are_joined_by_call_id_whatever_their_order(tmp_path: Path) -> None:
    log = new_log()
    log.human("go")
    calls = [Call("A", {"n": n}, None) for n in range(3)]
    ids = log.act("", *calls)
    owners = [r["uuid"] for r in log.records if r["type"] == "assistant"]
    for place in (2, 0, 1):
        log.result(ids[place], Call("A", {}, f"answer {place}", is_error=place == 1), owners[place])
    session = read_log(tmp_path, log)
    refs = session.calls()
    assert [r.text for i in ids if (r := refs[i].result)] == ["answer 0", "answer 1", "answer 2"]
    assert [r.result.is_error for r in refs.values() if r.result] == [False, True, False]


def test_is_error_that_the_log_does_not_give_stays_unknown(tmp_path: Path) -> None:
    log = new_log()
    log.human("go")
    log.act("", ok("A"))
    assert read_log(tmp_path, log).turns[2].results[0].is_error is None


def test_text_typed_beside_a_result_is_a_turn_of_the_human_after_all_results(
    tmp_path: Path,
) -> None:
    log = new_log()
    log.human("go")
    log.act("", Call("A", {}, "ra", beside="and hurry"), ok("B", "rb"))
    session = read_log(tmp_path, log)
    assert shape(session) == ["u:go", "a:A,B", "t:ra", "t:rb", "u:and hurry"]
    assert (session.turns[4].role, session.turns[4].author) == ("user", "human")
    assert len(session.segments) == 1


def test_repeated_records_blocks_and_results_count_once(tmp_path: Path) -> None:
    log = new_log()
    log.human("go")
    log.act("text", ok("A"))
    log.act("end")
    once = read_text(tmp_path, log.text())
    fresh = [
        {**r, "uuid": f"copy-{i}", "parentUuid": None}
        for i, r in enumerate(log.records)
        if r["type"] == "assistant"
    ]
    for extra in (log.records, fresh, [log.records[3]], [{**log.records[3], "uuid": "other"}]):
        twice = read_text(tmp_path, lines([*log.records, *extra]))
        assert [s.turns for s in twice.sessions] == [s.turns for s in once.sessions]
        assert twice.report.raw.duplicates >= len(extra) - 1


def test_going_back_to_an_earlier_message_starts_a_segment_without_what_was_left(
    tmp_path: Path,
) -> None:
    log = new_log()
    log.human("one")
    log.act("first", ok("A"))
    back = log.parent
    log.human("two")
    log.act("second")
    log.parent = back
    log.human("two, better")
    log.act("third")
    session = read_log(tmp_path, log)
    assert shape(session)[-2:] == ["u:two, better", "a:third"]
    assert seen(session, 6) == ["u:one", "a:first", "t:ok", "u:two, better"]
    assert seen(session, 4) == ["u:one", "a:first", "t:ok", "u:two"]


def test_going_back_twice_and_then_on_in_the_first_branch(tmp_path: Path) -> None:
    log = new_log()
    root = log.human("root")
    log.act("a1")
    first = log.parent
    log.human("b", parent=root)
    log.act("b1")
    log.human("a again", parent=first)
    log.act("a2")
    session = read_log(tmp_path, log)
    assert seen(session, 5) == ["u:root", "a:a1", "u:a again"]
    assert seen(session, 3) == ["u:root", "u:b"]


def test_going_back_to_a_message_with_parallel_calls_keeps_all_its_results(tmp_path: Path) -> None:
    log = new_log()
    log.human("go")
    log.act("", ok("A", "ra"), ok("B", "rb"))
    first_result = next(r["uuid"] for r in log.records if "toolUseResult" in r)
    log.human("x")
    log.human("y", parent=first_result)
    log.act("end")
    session = read_log(tmp_path, log)
    assert seen(session, 6) == ["u:go", "a:A,B", "t:ra", "t:rb", "u:y"]


def test_a_message_that_was_broken_off_and_asked_for_again_is_not_in_context(
    tmp_path: Path,
) -> None:
    log = new_log()
    asked = log.human("go")
    log.act("half a sen")
    log.parent = asked
    log.act("a whole sentence")
    log.human("thanks")
    log.act("bye")
    session = read_log(tmp_path, log)
    assert seen(session, 4) == ["u:go", "a:a whole sentence", "u:thanks"]


def test_a_message_without_a_parent_in_the_middle_starts_afresh(tmp_path: Path) -> None:
    log = new_log()
    log.human("one")
    log.act("first")
    log.human("two", parent=None)
    log.act("second")
    session = read_log(tmp_path, log)
    assert seen(session, 3) == ["u:two"]


def test_an_unknown_parent_goes_on_in_file_order_and_is_counted(tmp_path: Path) -> None:
    log = new_log()
    log.human("one")
    log.act("first")
    log.human("two", parent="nobody")
    result = read_text(tmp_path, log.text())
    assert len(result.sessions[0].segments) == 1
    assert result.report.raw.dangling_parents == 1


def test_file_order_counts_and_not_the_clock(tmp_path: Path) -> None:
    log = new_log()
    log.human("one")
    log.act("first")
    log.human("two")
    stamps = [r["timestamp"] for r in log.records]
    for row, stamp in zip(log.records, reversed(stamps), strict=True):
        row["timestamp"] = stamp
    assert shape(read_log(tmp_path, log)) == ["u:one", "a:first", "u:two"]


def compacted(log: LogWriter, metadata: Mapping[str, object]) -> None:
    log.record(
        "system",
        parent=None,
        subtype="compact_boundary",
        content="Conversation compacted",
        compactMetadata=metadata,
    )
    log.human("This session is being continued.", isCompactSummary=True)


def test_after_compaction_only_the_summary_is_in_context(tmp_path: Path) -> None:
    log = new_log()
    log.human("one")
    log.act("first")
    compacted(log, {"trigger": "auto"})
    log.act("second")
    session = read_log(tmp_path, log)
    assert seen(session, 3) == ["u:This session is being continued."]
    assert [(e.kind, e.turn) for e in session.events] == [("compaction", 2)]
    assert session.turns[2].tag == "compact_summary"


def test_a_summary_without_a_boundary_record_compacts_as_well(tmp_path: Path) -> None:
    log = new_log(version="1.0.71")
    log.human("one")
    log.act("first")
    log.human("Summary of it all.", isCompactSummary=True)
    log.act("second")
    session = read_log(tmp_path, log)
    assert seen(session, 3) == ["u:Summary of it all."]
    assert [e.kind for e in session.events] == ["compaction"]


def test_preserved_messages_stay_and_the_chain_may_go_on_from_the_last_of_them(
    tmp_path: Path,
) -> None:
    for kind in ("listed", "segment"):
        log = new_log()
        log.human("one")
        preserved = log.human("two")
        log.act("second")
        tail = log.parent
        listed = {"preservedMessages": {"uuids": [preserved, tail]}}
        compacted(
            log,
            (
                listed
                if kind == "listed"
                else {
                    "preservedSegment": {
                        "headUuid": preserved,
                        "anchorUuid": preserved,
                        "tailUuid": tail,
                    }
                }
            ),
        )
        log.parent = tail  # newer versions attach the next message to the preserved tail
        log.human("three")
        log.act("third")
        session = read_log(tmp_path, log)
        assert seen(session, 5) == [
            "u:two",
            "a:second",
            "u:This session is being continued.",
            "u:three",
        ], kind
        assert len(session.segments) == 2


def test_going_back_to_a_preserved_message_keeps_the_summary(tmp_path: Path) -> None:
    log = new_log()
    preserved = log.human("two")
    log.act("second")
    compacted(log, {"preservedMessages": {"uuids": [preserved, log.parent]}})
    log.human("three")
    log.act("third")
    log.human("other", parent=preserved)
    log.act("fourth")
    session = read_log(tmp_path, log)
    assert seen(session, 6) == ["u:two", "u:This session is being continued.", "u:other"]


def test_micro_compaction_clears_results_and_attachments_from_then_on(tmp_path: Path) -> None:
    log = new_log(version="2.1.210")
    log.human("go")
    log.attachment({"type": "nested_memory", "content": {"content": "be kind"}})
    note = log.records[-1]["uuid"]
    ids = log.act("", ok("A", "long"))
    metadata = {"compactedToolIds": [ids[0], "unknown"], "clearedAttachmentUUIDs": [note]}
    log.record("system", subtype="microcompact_boundary", microcompactMetadata=metadata)
    log.act("end")
    session = read_log(tmp_path, log)
    assert session.context(2)[1].text == "be kind"
    assert [t.results[0].text for t in session.context(4) if t.results] == [
        "[Old tool result content cleared]"
    ]
    assert all(t.text != "be kind" for t in session.context(4))
    assert session.segments[1].cleared == (ids[0],)


def test_attachments_beside_each_other_are_no_way_back(tmp_path: Path) -> None:
    log = new_log(version="2.1.210")
    asked = log.human("go")
    for text in ("x", "y"):
        log.parent = asked
        log.attachment({"type": "nested_memory", "content": {"content": text}})
    log.parent = asked
    log.act("end")
    session = read_log(tmp_path, log)
    assert seen(session, 3) == ["u:go", "u:x", "u:y"]


def test_a_changed_system_prompt_is_in_force_from_there_on(tmp_path: Path) -> None:
    log = new_log(version="2.1.284")
    log.attachment({"type": "prompt_snapshot", "systemPrompt": ["old"], "tools": []})
    log.human("go")
    log.act("first")
    log.attachment({"type": "prompt_snapshot", "systemPrompt": ["old"], "tools": []})
    log.act("second")
    log.attachment({"type": "prompt_snapshot", "systemPrompt": ["new"], "tools": []})
    log.act("third")
    session = read_log(tmp_path, log)
    assert seen(session, 3) == ["s:old", "u:go", "a:first"]
    assert "s:old" not in seen(session, 5)
    assert "s:new" in seen(session, 5)


def test_usage_of_the_last_record_is_the_size_of_the_context(tmp_path: Path) -> None:
    log = new_log()
    log.human("go")
    log.act("text", ok("A"))
    log.records[-2]["message"]["usage"]["input_tokens"] = 1006
    assert read_log(tmp_path, log).turns[1].context_tokens == 4000 + 350 + 1006


def test_empty_thinking_is_kept_as_such_and_pictures_without_their_bytes(tmp_path: Path) -> None:
    log = new_log()
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo" * 50},
    }
    log.record(
        "user",
        message={"role": "user", "content": [picture, {"type": "text", "text": "what is it"}]},
    )
    log.act("", Call("Read", {}, [{"type": "text", "text": "see"}, picture]), thinking="")
    session = read_log(tmp_path, log)
    assert session.turns[0].blocks == (
        Opaque("image", '{"media_type": "image/png"}'),
        Text("what is it"),
    )
    assert session.turns[1].blocks[0] == Thinking("")
    result = session.turns[2].results[0]
    assert (result.text, result.images) == ("see", ("image/png",))


def test_harness_texts_are_told_from_the_human(tmp_path: Path) -> None:
    log = new_log()
    texts = {
        "<command-name>/clear</command-name>": ("harness", "command"),
        "<local-command-stdout>ok</local-command-stdout>": ("harness", "command"),
        "Caveat: The messages below were generated by the user": ("harness", "caveat"),
        "<bash-input>ls</bash-input>": ("harness", "bash"),
        "<task-notification>done</task-notification>": ("harness", "task_notification"),
        "<system-reminder>hm</system-reminder>": ("harness", "reminder"),
        "[Request interrupted by user]": ("harness", "interrupt"),
        "<div> is not closed": ("human", ""),
        "Can you fix it?": ("human", ""),
    }
    for text in texts:
        log.human(text)
    log.human("Base directory for this skill: /x", isMeta=True)
    session = read_log(tmp_path, log)
    assert [(t.author, t.tag) for t in session.turns] == [*texts.values(), ("harness", "meta")]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 10**6))
def test_any_mix_of_parallel_calls_copies_and_order_of_results(tmp_path: Path, seed: int) -> None:
    """Random parallel groups, results in any order and between the records, lines repeated: the
    same conversation."""
    rng = random.Random(seed)
    log = LogWriter(f"random {seed}", version="2.1.30", cwd="/home/dev/shop")
    log.human("go")
    answers: dict[str, str] = {}
    groups: list[tuple[str, ...]] = []
    for step in range(rng.randint(1, 6)):
        if rng.random() < 0.2:
            log.human(f"more {step}")
        calls = [Call("A", {"n": n}, None) for n in range(rng.randint(0, 4))]
        message_id = f"msg_{step}"
        ids = [f"toolu_{step}_{n}" for n in range(len(calls))]
        waiting: list[tuple[str, str]] = []
        owners = log.assistant([{"type": "text", "text": f"step {step}"}], message_id=message_id)
        for call_id in ids:
            use = {"type": "tool_use", "id": call_id, "name": "A", "input": {}}
            owners = log.assistant([use], message_id=message_id)
            waiting.append((call_id, owners[-1]))
            if rng.random() < 0.3:  # a result while the message still streams
                answer_one(log, waiting, rng, answers)
        while waiting:
            answer_one(log, waiting, rng, answers)
        groups.append(tuple(ids))
    rows = [row for row in log.records for _ in range(1 + (rng.random() < 0.1))]
    session = read_text(tmp_path, lines(rows)).sessions[0]
    assert [tuple(c.id for c in t.calls) for t in session.turns if t.role == "assistant"] == groups
    refs = session.calls()
    assert {i: r.text for i in answers if (r := refs[i].result)} == answers
    assert len(session.segments) == 1  # nobody went back
    for index, turn in enumerate(session.turns):
        assert session.context_indices(index) == tuple(range(index))
        for result in turn.results:
            assert refs[result.call_id].turn < index


def answer_one(
    log: LogWriter, waiting: list[tuple[str, str]], rng: random.Random, answers: dict[str, str]
) -> None:
    call_id, owner = waiting.pop(rng.randrange(len(waiting)))
    answers[call_id] = f"answer to {call_id}"
    chain = log.parent
    log.result(call_id, Call("A", {}, answers[call_id]), owner)
    if rng.random() < 0.5:
        log.parent = chain  # the next record's parent is the call's record, not this result
