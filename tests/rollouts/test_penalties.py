"""Length penalty and behaviour rewards: closed forms, and the model's gain from breaking its
calls."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from composer_replication.core.config.train_settings import (
    BehaviourName,
    LengthSettings,
    PolicySettings,
)
from composer_replication.core.trace import (
    Segment,
    Session,
    SourceRef,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.rollouts.behaviours import BEHAVIOURS, behaviour_rewards
from composer_replication.rollouts.penalty import Effort, effort, length_penalty, penalty, weighed
from tests.rollouts.small_world import Shelf, parroted
from tests.tokens.students import renderer

QWEN = renderer("qwen3", "qwen3")


@pytest.mark.parametrize(
    ("k", "q"), [(0.01, 0.5), (1.0, 0.0), (0.3, 2.0), (0.3, 1.0), (0.3, 1.0 + 1e-10)]
)
def test_the_penalty_is_the_integral_of_its_slope(k: float, q: float) -> None:
    """C(0) = 0 and C'(x) = (1 + k x)^-q: the formula's own derivative, summed up by hand."""
    steps, x = 20_000, 7.0
    area = sum((1 + k * (i + 0.5) * x / steps) ** -q for i in range(steps)) * x / steps
    assert penalty(x, k=k, q=q) == pytest.approx(area, rel=1e-6) and penalty(0.0, k=k, q=q) == 0.0
    if q:
        assert penalty(2 * x, k=k, q=q) < 2 * penalty(x, k=k, q=q)
    assert penalty(2 * x, k=k, q=q) > penalty(x, k=k, q=q) > 0


def test_the_penalty_by_its_formula_and_its_limits() -> None:
    assert penalty(300.0, k=0.01, q=0.5) == pytest.approx(((1 + 3.0) ** 0.5 - 1) / (0.01 * 0.5))
    assert penalty(5.0, k=0.2, q=1.0) == pytest.approx(math.log(2.0) / 0.2)
    # above q = 1 there is a ceiling, 1 / (k (q - 1))
    assert penalty(1e12, k=1.0, q=2.0) == pytest.approx(1.0)
    for wrong in (
        {"x": -1.0, "k": 1.0, "q": 0.5},
        {"x": 1.0, "k": 0.0, "q": 0.5},
        {"x": 1.0, "k": 1.0, "q": -1.0},
    ):
        with pytest.raises(ValueError, match="must be"):
            penalty(wrong["x"], k=wrong["k"], q=wrong["q"])


def test_effort_shares_out_every_sampled_token() -> None:
    think = Turn(
        role="assistant",
        author="m",
        blocks=(Text("Let me look at it."), ToolCall("c", "Count", {})),
    )
    rollout = parroted(QWEN, [think, "depth is 3"])
    count = QWEN.codec.count
    tokens = effort(rollout.session, count=count)
    first, last = (len(t.sampled.ids) for t in rollout.session.turns if t.sampled)
    text = count("Let me look at it.")
    assert tokens == Effort(
        thinking=0, calling=first - text, output=count("2"), message=text + last, calls=1, turns=2
    )
    assert tokens.thinking + tokens.calling + tokens.message == first + last
    settings = LengthSettings(
        weight=0.5,
        k=0.1,
        q=1.0,
        thinking=3,
        calling=2.0,
        output=5.0,
        message=1.0,
        call=10.0,
        turn=7.0,
    )
    x = 2.0 * (first - text) + 5.0 * count("2") + text + last + 10.0 + 14.0
    assert weighed(tokens, settings) == x
    assert length_penalty(rollout.session, settings, count=count) == pytest.approx(
        0.5 * math.log(1 + 0.1 * x) / 0.1
    )


def test_thinking_is_told_apart() -> None:
    render = renderer("qwen3-thinking", "qwen3")
    message = Turn(
        role="assistant", author="m", blocks=(Thinking("Hm, let me see."), Text("depth is 3"))
    )
    rollout = parroted(render, [message])
    tokens = effort(rollout.session, count=render.codec.count)
    assert tokens.thinking == render.codec.count("Hm, let me see.") > 0 and tokens.calling == 0
    assert tokens.thinking + tokens.message == len(rollout.session.turns[-1].sampled.ids)


# ---- behaviours ----


def session(*messages: tuple[ToolCall, ...], error: str = "", tools: int = 3) -> Session:
    turns: list[Turn] = []
    for calls in messages:
        turns.append(Turn(role="assistant", author="m", blocks=calls))
        turns += [
            Turn(
                role="tool",
                author="environment",
                blocks=(ToolResult(c.id, error or "ok", bool(error)),),
            )
            for c in calls
        ]
    specs = tuple(ToolSpec(name=f"t{i}") for i in range(tools))
    return Session(
        id="s",
        source=SourceRef(file="f"),
        turns=tuple(turns),
        segments=(Segment(start=0, end=len(turns)),),
        tools=specs,
    )


def call(name: str, number: int = 0, **arguments: Any) -> ToolCall:
    return ToolCall(f"c{name}{number}", name, arguments)


MALFORMED = "<tool_call>\n{oops}\n</tool_call>"
UNKNOWN = '<tool_call>\n{"name": "Reed", "arguments": {}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "Read", "arguments": {}}\n</tool_call>'
RIGHT = '<tool_call>\n{"name": "Read", "arguments": {"path": "a.py"}}\n</tool_call>'
MISSING = '<tool_call>\n{"name": "Read", "arguments": {"path": "z.py"}}\n</tool_call>'


def test_every_invalid_call_is_counted_whatever_became_of_it() -> None:
    rollout = parroted(
        QWEN, [MALFORMED, UNKNOWN, WRONG, RIGHT, MISSING, "depth is 3"], env=Shelf(max_turns=9)
    )
    # a file that is not there is a mistake, but a valid call
    assert BEHAVIOURS["invalid_calls"](rollout.session) == -3.0
    # the one that cannot be read, and the file that is not there
    assert BEHAVIOURS["unresolvable_calls"](rollout.session) == -2.0
    assert behaviour_rewards(
        rollout.session, {"invalid_calls": 0.1, "one_tool_only": 1.0}
    ) == pytest.approx({"invalid_calls": -0.3, "one_tool_only": 0.0})
    right = parroted(QWEN, [RIGHT, "depth is 3"]).session
    assert behaviour_rewards(right, {"invalid_calls": 0.1}) == {"invalid_calls": 0.0}


def test_breaking_a_call_on_purpose_is_never_cheaper_than_making_it() -> None:
    """The hack that Cursor observed: a broken call on a task that is expected to fail."""
    weights: dict[BehaviourName, float] = {"invalid_calls": 0.1}
    for broken in (MALFORMED, UNKNOWN, WRONG):
        for _ in range(2):
            bad = parroted(QWEN, [broken, "I give up"], env=Shelf())
            honest = parroted(QWEN, [RIGHT, "I give up"], env=Shelf())
            scores = [
                rollout.reward + sum(behaviour_rewards(rollout.session, weights).values())
                for rollout in (bad, honest)
            ]
            assert scores[0] < scores[1]


def test_unfinished_to_do_lists() -> None:
    finished, open_ = (
        {"content": "a", "status": "completed"},
        {"content": "b", "status": "in_progress"},
    )
    todos = [
        call("TodoWrite", 1, todos=[open_, open_]),
        call("TodoWrite", 2, todos=[finished, open_]),
    ]
    assert BEHAVIOURS["unfinished_todos"](session((todos[0],), (todos[1],))) == -0.5
    assert BEHAVIOURS["unfinished_todos"](session((call("TodoWrite", 1, todos=[finished]),))) == 0.0
    assert (
        BEHAVIOURS["unfinished_todos"](session((call("TodoWrite", 1, todos="x"),)))
        == 0.0
        == BEHAVIOURS["unfinished_todos"](session())
    )


def test_repeated_calls_and_one_tool_only() -> None:
    again = [(call("read", i, path="a"),) for i in range(3)]
    assert BEHAVIOURS["repeated_calls"](session(*again)) == -2.0
    assert (
        BEHAVIOURS["repeated_calls"](
            session((call("read", 0, path="a"), call("read", 1, path="a")))
        )
        == -1.0
    )
    # something was done in between
    assert BEHAVIOURS["repeated_calls"](session(again[0], (call("edit", 5),), again[1])) == 0.0
    five = [(call("Bash", i, command=str(i)),) for i in range(5)]
    assert BEHAVIOURS["one_tool_only"](session(*five)) == -1.0
    assert (
        BEHAVIOURS["one_tool_only"](session(*five, tools=1))
        == 0.0
        == BEHAVIOURS["one_tool_only"](session(*five[:4]))
    )
    assert BEHAVIOURS["one_tool_only"](session(*five, (call("read", 9),))) == 0.0


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("The test fails. Let me fix it.", True),
        ("Now I'll run the tests:", True),
        ("Done with the first file.\n\nNext, I will change the second", True),
        ("I’m going to look at the log first.", True),
        ("I'll fix it. It is fixed now.", False),
        ("All tests pass. Let me know if you need more.", False),
        ("I will not change the tests.", False),
        ("The user said: let me see.", False),
        ("", False),
    ],
)
def test_a_promise_without_an_action_is_counted(text: str, broken: bool) -> None:
    def message(*calls: ToolCall) -> Session:
        turn = Turn(role="assistant", author="m", blocks=(Text(text), *calls) if text else calls)
        return replace(session(), turns=(turn,), segments=(Segment(start=0, end=1),))

    assert BEHAVIOURS["broken_promises"](message()) == (-1.0 if broken else 0.0)
    assert BEHAVIOURS["broken_promises"](message(call("edit"))) == 0.0


@pytest.mark.parametrize(
    "wrong", [{"politeness": 1.0}, {"invalid_calls": -1.0}, {"invalid_calls": float("nan")}]
)
def test_a_behaviour_that_is_not_there_or_would_be_paid_for_is_refused(
    wrong: dict[str, float],
) -> None:
    with pytest.raises(ValidationError, match=r"Input should be|give 0 or more"):
        PolicySettings.model_validate({"behaviours": wrong})


def test_the_settings_know_every_behaviour() -> None:
    assert set(get_args(BehaviourName)) == set(BEHAVIOURS)
