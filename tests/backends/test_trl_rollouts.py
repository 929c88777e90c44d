"""TRL's rollouts as sessions with hint views: the ids are TRL's, and each view equals that of a
full rendering. Runs without TRL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from composer_replication.core.config.data_settings import (
    HintPosition,
    HintsSettings,
    SitesSettings,
)
from composer_replication.core.trace import (
    HARNESS,
    HUMAN,
    Sampled,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.backends.trl_rollouts import (
    HintProducer,
    TrlRollout,
    record_rollout,
    written_spans,
)
from composer_replication.training.on_policy.rollout_hints import hint_rollouts
from composer_replication.workshop.as_tools import TOOLS

pytestmark = pytest.mark.train
PROMPT = [
    {"role": "system", "content": "Work."},
    {"role": "user", "content": "Change x from 1 to 2 in a.py."},
]
OPENING = (
    Turn(role="system", author=HARNESS, blocks=(Text("Work."),)),
    Turn(role="user", author=HUMAN, blocks=(Text(PROMPT[1]["content"]),)),
)
_WORDS = (
    "InputValidationError: str_replace failed due to the following issue:\nThe required parameter"
    " `old` is missing"
)
MISSING = f"<tool_use_error>{_WORDS}</tool_use_error>"


@pytest.fixture(scope="module")
def renderer(repository_root: Path) -> Renderer:
    return Renderer.for_tokenizer(
        AutoTokenizer.from_pretrained(str(repository_root / "examples" / "workshop_student"))
    )


def assistant_message(*calls: tuple[str, dict[str, str]], text: str = "") -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {"type": "function", "function": {"name": n, "arguments": a}} for n, a in calls
        ],
    }


def answered(name: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "name": name, "content": content}


def played(
    renderer: Renderer, messages: Sequence[dict[str, Any]], *, name: str = "r0"
) -> TrlRollout:
    """The arguments that TRL's loop would pass: messages end with their end token, everything else
    is masked."""
    turns: list[Turn] = list(OPENING)
    num = 0
    pending: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            turns.append(
                Turn(
                    role="tool",
                    author=None,
                    blocks=(ToolResult(pending.pop(0), message["content"], is_error=False),),
                )
            )
            continue
        calls = []
        for call in message.get("tool_calls") or ():
            calls.append(
                ToolCall(f"c{num}", call["function"]["name"], call["function"]["arguments"])
            )
            num += 1
        pending = [call.id for call in calls]
        blocks = (*((Text(message["content"]),) if message["content"] else ()), *calls)
        turns.append(Turn(role="assistant", author=None, blocks=blocks))
    rendered = renderer.render(turns, tools=TOOLS.specs())
    written = [span.body for span in rendered.spans if span.role == "assistant"]
    start, end = written[0][0], written[-1][1]
    mask = [int(any(a <= i < b for a, b in written)) for i in range(start, end)]
    return TrlRollout(
        name=name,
        prompt=PROMPT,
        prompt_ids=rendered.ids[:start],
        completion_ids=rendered.ids[start:end],
        tool_mask=mask,
        messages=messages,
    )


def producer(renderer: Renderer, **more: Any) -> HintProducer:
    rendering = renderer.render(
        [*OPENING, Turn(role="assistant", author=None, blocks=(Text("x"),))], tools=TOOLS.specs()
    )
    prompt = rendering.ids[rendering.spans[-1].start : rendering.spans[-1].body[0]]
    return HintProducer(renderer=renderer, prompt_ids=prompt, tools=TOOLS.specs(), **more)


EPISODE = [
    assistant_message(("read_file", {"path": "a.py"})),
    answered("read_file", "{'error': 'Tool read_file not found.'}"),
    assistant_message(("view_file", {"path": "a.py"})),
    answered("view_file", "x = 1"),
    assistant_message(("str_replace", {"path": "a.py", "find": "x = 1", "new": "x = 2"})),
    answered("str_replace", MISSING),
    assistant_message(text="Done."),
]


def test_mistakes_of_a_rollout_get_the_view_that_a_full_rendering_gives(renderer: Renderer) -> None:
    rollout = played(renderer, EPISODE)
    live_step = producer(renderer).make([rollout])
    (example,) = live_step.examples
    assert example.ids == (*rollout.prompt_ids, *rollout.completion_ids)
    assert [view.kind for view in example.hints] == ["unknown_tool", "bad_arguments"]
    spans = [
        (a + len(rollout.prompt_ids), b + len(rollout.prompt_ids))
        for a, b in written_spans(rollout.tool_mask)
    ]
    assert [view.span for view in example.hints] == [spans[0], spans[2]]
    session = live_step.sessions[0]
    for view, turn in zip(example.hints, (2, 6), strict=True):
        before = [_as_seen(t) for t in session.turns[:turn]]
        text = (
            renderer.codec.decode(list(view.hint_ids)).split("\n", 1)[1].rsplit("<|im_end|>", 1)[0]
        )
        assert "view_file" in text or "old" in text
        rendering = renderer.hint_view(
            [*before, session.turns[turn]],
            target=turn,
            hint=text,
            site_id="s",
            kind="k",
            tools=TOOLS.specs(),
        )
        assert (view.at, view.hint_ids, view.span, view.target_ids) == (
            rendering.at,
            rendering.hint_ids,
            rendering.span,
            rendering.target_ids,
        )
        assert view.origin == "student"
    assert live_step.metrics["sites/found"] == live_step.metrics["sites/used"] == 2
    # ranks add these up by their order
    assert list(producer(renderer).make([]).metrics) == list(live_step.metrics)


@pytest.mark.parametrize("position", ["user", "reminder", "result"])
def test_a_hint_in_another_position_is_where_a_full_rendering_has_it(
    renderer: Renderer, position: HintPosition
) -> None:
    rollout = played(renderer, EPISODE)
    live_step = producer(renderer, hints=HintsSettings(position=position)).make([rollout])
    (example,) = live_step.examples
    assert [view.kind for view in example.hints] == ["unknown_tool", "bad_arguments"]
    session = live_step.sessions[0]
    hints = hint_rollouts(
        [session], sites=SitesSettings(), hints=HintsSettings(), kept_kinds=None
    ).hints
    for view, hint, turn in zip(example.hints, hints, (2, 6), strict=True):
        expected = renderer.hint_view(
            [*map(_as_seen, session.turns[:turn]), session.turns[turn]],
            target=turn,
            hint=hint.text,
            site_id=view.site_id,
            kind=view.kind,
            tools=TOOLS.specs(),
            position=position,
        )
        assert replace(view, origin="trace") == expected
    (recorded,) = live_step.trl_sessions
    assert recorded is not None and recorded.seen[3] == replace(
        _as_seen(session.turns[3]), blocks=(replace(recorded.seen[3].results[0]),)
    )
    assert recorded.seen[3].results[0].text == EPISODE[1]["content"]


def _as_seen(turn: Turn) -> Turn:
    """The turn with the words that stood in the context: TRL's wrapping was taken off in the
    session."""
    if turn.results and turn.results[0].text.startswith("Tool "):
        return replace(
            turn, blocks=(replace(turn.results[0], text="{'error': 'Tool read_file not found.'}"),)
        )
    return turn


def test_ids_that_no_tokenizer_would_write_are_kept(renderer: Renderer) -> None:
    """A student may sample other tokens for the same letters; encoding again would give others."""
    rollout = played(renderer, EPISODE)
    ids, (a, b) = list(rollout.completion_ids), written_spans(rollout.tool_mask)[0]
    letters = [i for piece in ("read_", "file") for i in renderer.codec.one_go(piece)]
    name_ids = renderer.codec.one_go("read_file")
    at = next(i for i in range(a, b) if ids[i : i + len(name_ids)] == list(name_ids))
    assert letters != list(name_ids)
    changed = [*ids[:at], *letters, *ids[at + len(name_ids) :]]
    mask = [*rollout.tool_mask[:at], *[1] * len(letters), *rollout.tool_mask[at + len(name_ids) :]]
    view = (
        producer(renderer)
        .make([replace(rollout, completion_ids=changed, tool_mask=mask)])
        .examples[0]
        .hints[0]
    )
    assert view.target_ids == tuple(changed[a : b + len(letters) - len(name_ids)])


def test_a_call_that_trl_dropped_without_a_word_is_a_malformed_call(renderer: Renderer) -> None:
    text = '<tool_call>\n{"name": "view_file", "arguments": {"path": "a.py"}\n</tool_call>'
    broken = Turn(
        role="assistant", author=None, blocks=(Text("x"),), sampled=Sampled((1, 2), (0.0, 0.0))
    )
    end = renderer.reply(OPENING, replace(broken, sampled=None), tools=TOOLS.specs())
    ids = (*renderer.codec.one_go(text), end[1][-1])
    rollout = TrlRollout(
        name="r0",
        prompt=PROMPT,
        prompt_ids=end[0],
        completion_ids=ids,
        tool_mask=[1] * len(ids),
        messages=[{"role": "assistant", "content": text}],
    )
    live_step = producer(renderer).make([rollout])
    assert (
        live_step.metrics["rollouts/malformed"] == 1
        and live_step.sessions[0].turns[-1].results[0].is_error
    )
    (view,) = live_step.examples[0].hints
    assert view.kind == "malformed_call" and view.target_ids == ids


def test_what_cannot_be_placed_is_counted(renderer: Renderer) -> None:
    rollout = played(renderer, EPISODE)
    one_less = producer(renderer).make([replace(rollout, messages=EPISODE[:-1])])
    assert one_less.metrics["rollouts/unaligned"] == 1 and not one_less.examples[0].hints
    elsewhere = replace(producer(renderer), prompt_ids=(5, 6)).make([rollout])
    assert elsewhere.metrics["sites/not_built"] == 2 and not elsewhere.examples[0].hints
    longest = producer(renderer).make([rollout], max_tokens=len(rollout.prompt_ids) + 40)
    assert longest.metrics["sites/not_built"] >= 1
    few = producer(renderer).make([rollout, replace(rollout, name="r1")], max_sites=3, seed=1)
    assert few.metrics["sites/used"] == 3 and few.metrics["sites/not_drawn"] == 1


def test_two_failing_calls_of_one_message_are_one_view_with_both_hints(renderer: Renderer) -> None:
    messages = [
        assistant_message(
            ("read_file", {"path": "a.py"}),
            ("str_replace", {"path": "a.py", "find": "x = 1", "new": "x = 2"}),
        ),
        answered("read_file", "{'error': 'Tool read_file not found.'}"),
        answered("str_replace", MISSING),
        assistant_message(text="Done."),
    ]
    live_step = producer(renderer).make([played(renderer, messages)], max_sites=1)
    (view,) = live_step.examples[0].hints
    text = renderer.codec.decode(list(view.hint_ids))
    assert (
        len(view.site_ids) == 2
        and view.kinds == {"unknown_tool", "bad_arguments"}
        and "view_file" in text
        and "old" in text
    )
    facts = live_step.metrics
    assert (
        facts["sites/found"],
        facts["sites/used"],
        facts["sites/messages"],
        facts["sites/not_drawn"],
    ) == (2, 2, 1, 0)


def test_parallel_calls_are_answered_in_order(renderer: Renderer) -> None:
    messages = [
        assistant_message(("view_file", {"path": "a.py"}), ("view_file", {"path": "gone.py"})),
        answered("view_file", "x = 1"),
        answered("view_file", "<tool_use_error>File does not exist.</tool_use_error>"),
        assistant_message(text="Done."),
    ]
    recorded = record_rollout(
        played(renderer, messages), renderer=renderer, tools=TOOLS.specs(), author="student"
    )
    first, second = [ref.result for ref in recorded.session.calls().values()]
    assert (
        first is not None
        and second is not None
        and (first.is_error, second.is_error) == (False, True)
    )
    facts = producer(renderer).make([played(renderer, messages)]).metrics
    assert facts["sites/found"] == 1 and facts["sites/used"] + facts["sites/without_hint"] == 1
