"""`replay_trace` and `DEFAULT_TEACHERS`, as code written against the earlier guide uses them."""

from __future__ import annotations

import asyncio
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import composer_replication
from composer_replication.compat.guide_replay import DEFAULT_LEDGER, replay_trace, tools_at
from composer_replication.compat.guide_types import TraceState
from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.errors import BudgetError, ConfigError, DataError, TeacherError
from composer_replication.core.trace import ToolSpec
from composer_replication.data.chat import tool_to_chat
from composer_replication.data.replay.model_families import family_of
from composer_replication.data.teachers.defaults import DEFAULT_TEACHERS
from tests.data.teachers.endpoint import Endpoint
from tests.data.teachers.fake_teacher import says

CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "read", "arguments": '{"path": "b.py"}'},
}
STATES = [
    TraceState(
        "s1:1",
        [{"role": "user", "content": "Fix it."}],
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
    ),
    TraceState(
        "s1:3",
        [
            {"role": "user", "content": "Fix it."},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "no such file", "is_error": True},
        ],
        {"role": "assistant", "content": "Done."},
    ),
]
TOOLS = (ToolSpec(name="read"),)


def settings(url: str, name: str) -> TeacherSettings:
    return TeacherSettings(
        model=name, base_url=url, max_input_usd_per_mtok=1.0, max_output_usd_per_mtok=4.0
    )


def test_states_in_actions_out(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        teachers = {name: settings(endpoint.url, f"maker/{name}") for name in ("ash", "elm")}
        arguments = {"states": STATES, "teachers": teachers, "tools": TOOLS, "ledger": tmp_path}
        actions = asyncio.run(replay_trace(max_total_usd=0.1, **arguments))
        assert set(actions) == {"s1:1", "s1:3"} and set(actions["s1:3"]) == {"ash", "elm"}
        dictionaries = [
            {
                "state_id": state.state_id,
                "messages": state.messages,
                "student_action": state.student_action,
            }
            for state in STATES
        ]
        assert (
            asyncio.run(replay_trace(max_total_usd=0.0, **{**arguments, "states": dictionaries}))
            == actions
        ), "nothing new is bought"
        assert actions["s1:1"]["elm"]["tool_calls"][0]["function"] == {
            "name": "read",
            "arguments": '{"path": "a.py"}',
        }
        assert [m["role"] for m in endpoint.seen[-1].body["messages"]] == [
            "user",
            "assistant",
            "tool",
        ]
        assert (
            asyncio.run(replay_trace(max_total_usd=0.0, **arguments)) == actions
            and len(endpoint.seen) == 4
        )


def test_a_state_with_a_secret_is_bought_once_and_goes_out_without_it(tmp_path: Path) -> None:
    """The placeholder of a secret is the same in the next call; otherwise it would be another
    request."""
    secret = "AKIA" + "Q7ZP3MX2L2WK5RT4"
    states = [
        TraceState(
            "s1:1", [{"role": "user", "content": f"The key is {secret}."}], STATES[1].student_action
        )
    ]
    with Endpoint() as endpoint:
        arguments = {
            "states": states,
            "teachers": {"ash": settings(endpoint.url, "maker/ash")},
            "tools": TOOLS,
            "ledger": tmp_path,
        }
        actions = asyncio.run(replay_trace(max_total_usd=0.1, **arguments))
        assert (
            asyncio.run(replay_trace(max_total_usd=0.0, **arguments)) == actions
            and len(endpoint.seen) == 1
        )
        assert secret not in str(endpoint.seen[0].body) and "[REDACTED:" in str(
            endpoint.seen[0].body
        )


def test_the_ceiling_is_not_overshot(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        arguments = {
            "states": STATES,
            "teachers": {"ash": settings(endpoint.url, "maker/ash")},
            "ledger": tmp_path,
        }
        with pytest.raises(BudgetError, match="max_total_usd"):
            asyncio.run(replay_trace(max_total_usd=0.00001, **arguments))
        assert not endpoint.seen
        endpoint.plan = lambda number, body: "401"
        with pytest.raises(TeacherError, match="401"):
            asyncio.run(replay_trace(max_total_usd=1.0, **arguments))


def test_a_real_session_is_asked_with_its_tools_and_makes_pairs(tmp_path: Path) -> None:
    """A log, its states, actions and pairs, with only the guide's arguments and the ledger's
    folder."""

    def record(number: int, kind: str, content: list[dict[str, Any]]) -> str:
        message = {"id": f"m{number}", "role": kind, "model": "claude-x", "content": content}
        return (
            json.dumps({"type": kind, "uuid": f"u{number}", "sessionId": "s1", "message": message})
            + "\n"
        )

    call = {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "b.py"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": "no such file",
        "is_error": True,
    }
    log = tmp_path / "log.jsonl"
    lines: list[tuple[str, list[dict[str, Any]]]] = [
        ("user", [{"type": "text", "text": "Fix it."}]),
        ("assistant", [call]),
        ("user", [result]),
    ]
    log.write_text(
        "".join(
            record(n, *line)
            for n, line in enumerate([*lines, ("assistant", [{"type": "text", "text": "Done."}])])
        )
    )
    sessions = composer_replication.ClaudeCodeIngester().ingest(log)
    states = list(sessions.to_states())
    assert [tool["function"]["name"] for tool in states[0].tools] == ["read"]
    with Endpoint() as endpoint:
        teachers = {
            "ash": settings(endpoint.url, "moonshotai/kimi-k2.5"),
            "elm": settings(endpoint.url, "z-ai/glm-5"),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            actions = asyncio.run(
                replay_trace(
                    states=sessions, teachers=teachers, max_total_usd=0.1, ledger=tmp_path / "kept"
                )
            )
        assert (
            all(
                tool["function"]["name"] == "read"
                for sent in endpoint.seen
                for tool in sent.body["tools"]
            )
            and len(endpoint.seen) == 4
        )
        assert actions.problems == {} and all(
            set(by_teacher) == {"ash", "elm"} for by_teacher in actions.values()
        )
        pairs = composer_replication.extract_dpo_pairs(states=sessions, teacher_actions=actions)
        assert pairs == composer_replication.extract_dpo_pairs(
            states=states, teacher_actions=actions
        )
        paid = {name: actions.usd["s1:1"][name] for name in ("ash", "elm")}
        assert [pair.state_id for pair in pairs] == ["s1:1", "s1:3"] and pairs[0].tools == states[
            0
        ].tools
        assert pairs[0].provenance["usd"] == paid and pairs[0].provenance["families"] == [
            "moonshot",
            "zhipu",
        ]
        booked = sum(
            map(sum, (cost_by_teacher.values() for cost_by_teacher in actions.usd.values()))
        )
        # our own count, at full prices
        assert endpoint.billed_usd <= booked < 10 * endpoint.billed_usd and min(paid.values()) > 0
        assert (tmp_path / "kept" / "ledger.sqlite3").exists()


def test_states_that_carry_no_tools_are_asked_with_those_their_session_called(
    tmp_path: Path,
) -> None:
    refused = {"id": "c2", "type": "function", "function": {"name": "reed", "arguments": "{}"}}
    refusal = {
        "role": "tool",
        "tool_call_id": "c2",
        "content": "No such tool available: reed",
        "is_error": True,
    }
    action = {"role": "assistant", "content": "", "tool_calls": [refused]}
    unread = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{**CALL, "function": {"name": "write", "arguments": "{"}}],
    }
    states = [
        *STATES,
        TraceState("s1:5", STATES[1].messages, action, answers=(refusal,)),
        TraceState("s2:1", STATES[0].messages, unread),
    ]
    assert [[tool.name for tool in specs] for specs in tools_at(states)] == [["read"]] * 3 + [[]]
    assert [
        [tool.name for tool in specs] for specs in tools_at(states, (ToolSpec(name="edit"),))
    ] == [["edit"]] * 4
    with Endpoint() as endpoint:
        arguments = {
            "teachers": {"ash": settings(endpoint.url, "maker/ash")},
            "max_total_usd": 0.1,
            "ledger": tmp_path,
        }
        actions = asyncio.run(replay_trace(states=STATES, **arguments))
        assert [list(by_teacher) for by_teacher in actions.values()] == [
            ["ash"],
            ["ash"],
        ] and "tools" in endpoint.seen[0].body
        with pytest.raises(DataError, match="two states have one id"):
            asyncio.run(replay_trace(states=[*STATES, *STATES], **arguments))


def test_what_brings_no_message_is_told_by_name_and_number(tmp_path: Path) -> None:
    """An unusable answer, a failed call and a state with nothing before it are counted and warned
    about, also before an error."""
    states = [TraceState("s1:0", [], STATES[0].student_action), *STATES]
    with Endpoint(plan=lambda number, body: ("unknown_tool", "403")[number % 2]) as endpoint:
        arguments = {
            "teachers": {"ash": settings(endpoint.url, "maker/ash")},
            "max_total_usd": 0.1,
            "ledger": tmp_path,
        }
        with pytest.warns(UserWarning, match="3 times no message came of 2 calls") as warned:
            actions = asyncio.run(replay_trace(states=states, **arguments))
        assert actions == {"s1:0": {}, "s1:1": {}, "s1:3": {}} and len(endpoint.seen) == 2
        names = sorted(actions.problems)
        assert (
            names[0].startswith("ash: failed: ")
            and "403" in names[0]
            and names[1:] == ["ash: unknown_tool", "no message before the state"]
        )
        assert set(actions.problems.values()) == {1} and all(
            name in str(warned[0].message) for name in names
        )
        with pytest.warns(UserWarning, match="3 of 3 states have no answer"):
            assert (
                composer_replication.extract_dpo_pairs(states=states, teacher_actions=actions) == []
            )
        endpoint.plan = lambda number, body: "401"
        with (
            pytest.warns(UserWarning, match="unknown_tool"),
            pytest.raises(TeacherError, match="401"),
        ):
            asyncio.run(replay_trace(states=STATES, **arguments))


def test_without_a_ceiling_the_bill_is_told_and_nothing_is_sent(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        arguments = {
            "states": STATES,
            "teachers": {"ash": settings(endpoint.url, "maker/ash")},
            "ledger": tmp_path,
        }
        with pytest.raises(
            BudgetError, match=r"2 calls could cost .*max_total_usd=\d+\.\d\d"
        ) as refused:
            asyncio.run(replay_trace(**arguments))
        assert not endpoint.seen
        ceiling = float(refused.value.fix.partition("max_total_usd=")[2].partition(",")[0])
        actions = asyncio.run(replay_trace(max_total_usd=ceiling, **arguments))
        assert len(endpoint.seen) == 2
        # all of it is bought: no ceiling is needed
        assert asyncio.run(replay_trace(**arguments)) == actions and len(endpoint.seen) == 2


def test_a_local_model_is_refused_by_name_and_nothing_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Endpoint() as endpoint:
        local = settings(endpoint.url, "models/mine").model_copy(update={"kind": "local"})
        with pytest.raises(ConfigError, match=r"'ash' is a model of this machine.*LocalTeacher\("):
            asyncio.run(replay_trace(states=STATES, teachers={"ash": local}, max_total_usd=1.0))
        assert not endpoint.seen and not list(tmp_path.iterdir())


def test_what_was_bought_is_kept_where_no_ledger_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Endpoint() as endpoint:
        arguments = {"states": STATES, "teachers": {"ash": settings(endpoint.url, "maker/ash")}}
        room = 0.0003  # less than the worst case of any call
        actions = asyncio.run(replay_trace(max_total_usd=0.1, **arguments))
        assert (
            asyncio.run(replay_trace(max_total_usd=room, **arguments)) == actions
            and len(endpoint.seen) == 2
        )
        assert (tmp_path / DEFAULT_LEDGER / "ledger.sqlite3").exists()
        more = [
            *STATES,
            TraceState(
                "s1:5",
                [{"role": "user", "content": "And now?"}],
                {"role": "assistant", "content": "Hm."},
            ),
        ]
        with pytest.raises(BudgetError) as stopped:
            asyncio.run(replay_trace(max_total_usd=room, **{**arguments, "states": more}))
        assert (
            Path(stopped.value.where).exists()
            and "max_total_usd" in stopped.value.fix
            and "--max-usd" not in str(stopped.value)
        )


def test_states_to_normalized_pairs_in_one_call(tmp_path: Path) -> None:
    """Two makers agree on another file than the student's, whose call raised an error: that makes a
    pair in both shapes."""
    with Endpoint() as endpoint:
        teachers = {name: settings(endpoint.url, f"maker/{name}") for name in ("ash", "elm")}
        tools = [tool_to_chat(tool) for tool in TOOLS]
        arguments = {
            "states": STATES[:1],
            "teachers": teachers,
            "max_total_usd": 0.1,
            "tools": tools,
            "ledger": tmp_path,
        }
        actions, pairs = composer_replication.replay_and_normalize_trace_sync(**arguments)
        assert composer_replication.replay_and_normalize_trace_sync(
            **{**arguments, "max_total_usd": None}
        ) == (actions, pairs)
        assert len(endpoint.seen) == 2, "the second time nothing is bought"
    (pair,) = pairs
    assert (
        0 < endpoint.billed_usd <= sum(pair.provenance["usd"].values()) < 10 * endpoint.billed_usd
    )
    assert "a.py" in pair.chosen and "b.py" in pair.rejected and pair.n_teachers_agreeing == 2


def test_teachers_of_ones_own(tmp_path: Path) -> None:
    actions = asyncio.run(
        replay_trace(
            states=STATES[:1], teachers=[says("Done.")], max_total_usd=5.0, ledger=tmp_path
        )
    )
    assert actions == {"s1:1": {"made": {"role": "assistant", "content": "Done."}}}


def test_the_default_teachers_are_of_three_makers_and_have_a_bound() -> None:
    assert (
        composer_replication.DEFAULT_TEACHERS is DEFAULT_TEACHERS
        and composer_replication.replay_trace is replay_trace
    )
    families = {family_of(default.model) for default in DEFAULT_TEACHERS.values()}
    assert len(families) == len(DEFAULT_TEACHERS) == 3 and "anthropic" not in families
    for default in DEFAULT_TEACHERS.values():
        assert default.max_input_usd_per_mtok > 0 and default.max_output_usd_per_mtok > 0
        assert default.data_collection == "deny" and default.distillable
