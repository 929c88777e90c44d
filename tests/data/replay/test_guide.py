"""`replay_trace` and `DEFAULT_TEACHERS` as code written against the earlier guide uses them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import composer_replication
from composer_replication.core.config.teachers import TeacherSettings
from composer_replication.core.errors import BudgetError, TeacherError
from composer_replication.core.guide import TraceState
from composer_replication.core.trace import ToolSpec
from composer_replication.data.chat import tool_to_chat
from composer_replication.data.replay.families import family_of
from composer_replication.data.replay.guide import replay_trace
from composer_replication.data.teachers.defaults import DEFAULT_TEACHERS
from tests.data.teachers.endpoint import Endpoint
from tests.data.teachers.made import says

CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "b.py"}'}}
STATES = [
    TraceState("s1:1", [{"role": "user", "content": "Fix it."}], {"role": "assistant", "content": "", "tool_calls": [CALL]}),
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
    return TeacherSettings(model=name, base_url=url, max_input_usd_per_mtok=1.0, max_output_usd_per_mtok=4.0)


def test_states_in_actions_out(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        teachers = {name: settings(endpoint.url, f"maker/{name}") for name in ("ash", "elm")}
        how = {"states": STATES, "teachers": teachers, "tools": TOOLS, "ledger": tmp_path}
        actions = asyncio.run(replay_trace(max_total_usd=0.1, **how))
        assert set(actions) == {"s1:1", "s1:3"} and set(actions["s1:3"]) == {"ash", "elm"}
        assert actions["s1:1"]["elm"]["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"path": "a.py"}'}
        assert [m["role"] for m in endpoint.seen[-1].body["messages"]] == ["user", "assistant", "tool"]
        assert asyncio.run(replay_trace(max_total_usd=0.0, **how)) == actions and len(endpoint.seen) == 4


def test_a_state_with_a_secret_is_bought_once_and_goes_out_without_it(tmp_path: Path) -> None:
    """The name that stands for a secret is the same in the next call, or the request would be another one."""
    secret = "AKIA" + "Q7ZP3MX2L2WK5RT4"
    states = [TraceState("s1:1", [{"role": "user", "content": f"The key is {secret}."}], STATES[1].student_action)]
    with Endpoint() as endpoint:
        how = {"states": states, "teachers": {"ash": settings(endpoint.url, "maker/ash")}, "tools": TOOLS, "ledger": tmp_path}
        actions = asyncio.run(replay_trace(max_total_usd=0.1, **how))
        assert asyncio.run(replay_trace(max_total_usd=0.0, **how)) == actions and len(endpoint.seen) == 1
        assert secret not in str(endpoint.seen[0].body) and "[REDACTED:" in str(endpoint.seen[0].body)


def test_the_ceiling_is_not_overshot_and_an_unusable_answer_is_left_out() -> None:
    with Endpoint() as endpoint:
        teachers = {"ash": settings(endpoint.url, "maker/ash")}
        with pytest.raises(BudgetError):
            asyncio.run(replay_trace(states=STATES, teachers=teachers, max_total_usd=0.00001))
        assert not endpoint.seen
        assert asyncio.run(replay_trace(states=STATES[:1], teachers=teachers, max_total_usd=1.0)) == {"s1:1": {}}  # `read` is not on offer
        endpoint.plan = lambda number, body: "401"
        with pytest.raises(TeacherError, match="401"):
            asyncio.run(replay_trace(states=STATES, teachers=teachers, max_total_usd=1.0))


def test_states_to_normalized_pairs_in_one_call() -> None:
    """Two makers agree on another file than the student's, whose call raised an error: a pair in both shapes."""
    with Endpoint() as endpoint:
        teachers = {name: settings(endpoint.url, f"maker/{name}") for name in ("ash", "elm")}
        tools = [tool_to_chat(tool) for tool in TOOLS]
        how = {"states": STATES[:1], "teachers": teachers, "max_total_usd": 0.1, "tools": tools}
        pairs = composer_replication.replay_and_normalize_trace_sync(**how)
    (pair,) = pairs
    assert "a.py" in pair.chosen and "b.py" in pair.rejected and pair.n_teachers_agreeing == 2


def test_teachers_of_ones_own() -> None:
    actions = asyncio.run(replay_trace(states=STATES[:1], teachers=[says("Done.")], max_total_usd=5.0))
    assert actions == {"s1:1": {"made": {"role": "assistant", "content": "Done."}}}


def test_the_default_teachers_are_of_three_makers_and_have_a_bound() -> None:
    assert composer_replication.DEFAULT_TEACHERS is DEFAULT_TEACHERS and composer_replication.replay_trace is replay_trace
    families = {family_of(one.model) for one in DEFAULT_TEACHERS.values()}
    assert len(families) == len(DEFAULT_TEACHERS) == 3 and "anthropic" not in families
    for one in DEFAULT_TEACHERS.values():
        assert one.max_input_usd_per_mtok > 0 and one.max_output_usd_per_mtok > 0
        assert one.data_collection == "deny" and one.distillable
