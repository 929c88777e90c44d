"""Where a message was decided: its wrong tokens, and the first token at which it cannot become
right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.errors import AlignmentError
from composer_replication.core.site import Decision, Hint, Site
from composer_replication.core.trace import Sampled, Session, Text, ToolCall, ToolResult, Turn
from composer_replication.tokens.dataset import build_examples
from composer_replication.tokens.decision_tokens import decision_tokens
from composer_replication.tokens.example import (
    DecisionTokens,
    HintView,
    TrainingExample,
    example_from_json,
    example_to_json,
)
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer
from tests.tokens.students import CASES, TOOLS, renderer, session_of

WRONG = "src/über a.py"
MESSAGE = Turn(
    role="assistant",
    author="m",
    blocks=(
        Text("Edit it: Edit."),
        ToolCall("c1", "Bash", {"command": "ls"}),
        ToolCall("c2", "Edit", {"p": WRONG, "n": 3}),
    ),
)
TURNS = [
    Turn(role="user", author="human", blocks=(Text("Edit the file."),)),
    MESSAGE,
    Turn(role="tool", author="environment", blocks=(ToolResult("c2", "no", is_error=True),)),
]


def found(render: Renderer, decision: Decision, message: Turn = MESSAGE) -> DecisionTokens | None:
    ids = body(render, message)
    return decision_tokens(
        render,
        message,
        site_id="s",
        call_id="c2",
        decision=decision,
        ids=ids,
        start=0,
    )


def body(render: Renderer, message: Turn) -> tuple[int, ...]:
    return render.reply(TURNS[:1], message)[1]


def text_of(render: Renderer, tokens: DecisionTokens) -> list[str]:
    ids = body(render, MESSAGE)
    return [render.codec.decode(ids[a:b]) for a, b in tokens.spans]


@pytest.mark.parametrize(("family", "fixture"), CASES)
def test_every_family_has_the_name_and_the_value_of_the_failing_call(
    family: str, fixture: str
) -> None:
    render = renderer(family, fixture)
    ids = body(render, MESSAGE)
    tool = found(render, Decision(part="tool", wrong="Edit", right=("Read",)))
    assert tool is not None and tool.fork is not None
    (name,) = text_of(render, tool)
    # the tokens of the name, with what shares a token with it; not the "Edit" of the text
    assert "Edit" in name and len(name) <= len("Edit") + 3
    before = render.codec.decode(ids[: tool.spans[0][0]])
    assert before.count("Edit") == 2 and "ls" in before
    # the fork by another way: the whole message with another name, and where they part
    read = body(
        render, replace(MESSAGE, blocks=(*MESSAGE.blocks[:2], ToolCall("c2", "Read", {"p": 1})))
    )
    same = next(i for i, (a, b) in enumerate(zip(ids, read, strict=False)) if a != b)
    assert (tool.fork, tool.right_ids) == (same, (read[same],))
    value = found(render, Decision(part="value", argument="p"))
    assert value is not None and (value.fork, value.right_ids) == (None, ())
    (path,) = text_of(render, value)
    assert "ber a.py" in path and len(path) <= len(WRONG) + 8
    call = found(render, Decision(part="call"))
    assert call is not None and call.spans[0][0] == tool.spans[0][0]
    assert "ber a.py" in text_of(render, call)[0]


def test_the_fork_is_where_the_last_right_continuation_is_lost() -> None:
    """Of src/util.py, src/utils.py and lib/a.py the message can still become the first two until
    their own difference from the wrong path."""
    render = renderer("qwen3", "qwen3")
    message = replace(MESSAGE, blocks=(ToolCall("c2", "Edit", {"p": "src/utlis.py"}),))
    decision = Decision(part="value", argument="p", right=("lib/a.py", "src/utils.py"))
    tokens = found(render, decision, message)
    assert tokens is not None and tokens.fork is not None
    ids = body(render, message)
    right = body(render, replace(message, blocks=(ToolCall("c2", "Edit", {"p": "src/utils.py"}),)))
    assert ids[: tokens.fork] == right[: tokens.fork]
    assert tokens.right_ids == (right[tokens.fork],) != (ids[tokens.fork],)
    far = found(render, replace(decision, right=("lib/a.py",)), message)
    assert far is not None and far.fork is not None and far.fork < tokens.fork


def test_a_right_text_that_is_merged_with_what_stands_before_it() -> None:
    """The workshop's tokenizer has one token for `", "arguments": {"path": "`: right and wrong part
    above the wrong name, and the target of train.hint.focus begins there."""
    folder = str(Path(__file__).resolve().parents[2] / "examples" / "workshop_student")
    render = Renderer.for_tokenizer(load_tokenizer(folder))
    message = replace(MESSAGE, blocks=(ToolCall("c2", "open", {"text": "a.py"}),))
    decision = Decision(part="argument", wrong="text", right=("path",))
    tokens = found(render, decision, message)
    ids = body(render, message)
    assert tokens is not None and tokens.fork is not None
    assert "text" not in render.codec.decode([ids[tokens.fork]])
    ((a, b),) = tokens.spans
    assert a == tokens.fork and "text" in render.codec.decode(ids[a:b])
    view = HintView(
        site_id="s", kind="k", at=1, hint_ids=(5,), span=(2, 2 + len(ids)), target_ids=ids,
        decisions=(replace(tokens, spans=((a + 2, b + 2),), fork=a + 2),),
    )  # fmt: skip
    whole = TrainingExample(id="e", session_id="s", ids=(0, 1, *ids), hints=(view,))
    (narrow,) = whole.focused().hints
    assert narrow.span == (a + 2, b + 2) and narrow.target_ids == ids[a:b]


def test_a_missing_argument_is_missed_where_the_call_ends() -> None:
    render = renderer("qwen3", "qwen3")
    tokens = found(render, Decision(part="argument", right=("limit", "offset")))
    assert tokens is not None and tokens.fork is not None
    assert tokens.spans == ((tokens.fork, tokens.fork + 1),)
    ids = body(render, MESSAGE)
    assert "}" in render.codec.decode(ids[tokens.fork : tokens.fork + 1])
    assert "," in render.codec.decode(list(tokens.right_ids))


def test_a_sampled_message_has_its_decision_if_it_reads_as_the_template_writes_it() -> None:
    render = renderer("qwen3", "qwen3")
    ids = body(render, MESSAGE)
    decision = Decision(part="tool", wrong="Edit", right=("Read",))
    ((a, b),) = found(render, decision).spans  # type: ignore[union-attr]
    # the same text in other tokens: one character each
    letters: list[int] = []
    for i in ids[:-1]:
        text = render.codec.decode([i])
        plain = text.isascii() and not text.startswith("<")
        letters += [x for c in text for x in render.codec.one_go(c)] if plain else [i]
    sampled = (*letters, ids[-1])
    message = replace(MESSAGE, sampled=Sampled(ids=sampled, logprobs=(0.0,) * len(sampled)))
    got = decision_tokens(
        render, message, site_id="s", call_id="c2", decision=decision, ids=sampled, start=0
    )
    assert got is not None and (got.fork, got.right_ids) == (None, ())
    ((c, d),) = got.spans
    assert render.codec.decode(sampled[c:d]).strip('" ') == "Edit"
    assert render.codec.decode(ids[a:b]).strip('" ') == "Edit"
    other = (*ids[:3], *ids[4:])  # another text: where the call stands in it is not known
    assert (
        decision_tokens(
            render, message, site_id="s", call_id="c2", decision=decision, ids=other, start=0
        )
        is None
    )


def built(session: Session, hints: list[Hint], sites: list[Site], **settings: str) -> HintView:
    render = renderer("qwen3", "qwen3")
    items = list(
        build_examples(
            [session],
            sites=sites,
            hints=hints,
            renderer=render,
            settings=BuildSettings.model_validate({"max_tokens": 4096, **settings}),
        )
    )
    (example,) = [item for item in items if isinstance(item, TrainingExample)]
    assert example_from_json(example_to_json(example)) == example
    (view,) = example.hints
    for decision in view.decisions:
        for a, b in decision.spans:
            assert "Edit" in render.codec.decode(example.ids[a:b])
        assert decision.fork is None or decision.fork in range(*decision.spans[0])
    return view


@pytest.mark.parametrize("target", ["message", "call"])
def test_a_built_view_carries_the_decision_at_its_place_in_the_example(target: str) -> None:
    session = session_of(TURNS, tools=TOOLS)
    site = Site(
        session_id="s1",
        turn=1,
        kind="edit_not_read",
        detector="d",
        evidence=(2,),
        call_id="c2",
    )
    decision = Decision(part="tool", wrong="Edit", right=("Read",))
    hint = Hint(site_id=site.id, text="Read it.", writer="w", kind="k", decision=decision)
    view = built(session, [hint], [site], target=target)
    assert [d.site_id for d in view.decisions] == [site.id] and view.decisions[0].fork is not None
    assert not built(session, [replace(hint, decision=None)], [site], target=target).decisions


def test_a_decision_outside_its_target_is_refused() -> None:
    outside = DecisionTokens(site_id="s", spans=((1, 2),))
    with pytest.raises(AlignmentError, match="leaves the target"):
        HintView(
            site_id="s",
            kind="k",
            at=1,
            hint_ids=(9,),
            span=(2, 4),
            target_ids=(7, 8),
            decisions=(outside,),
        )


@pytest.mark.parametrize(("family", "fixture"), CASES)
@pytest.mark.parametrize("wrong", ["🎉", "a🎉", "🎉a", "漢字", "ü"])
def test_the_span_holds_all_tokens_of_its_first_and_last_character(
    family: str, fixture: str, wrong: str
) -> None:
    """Of a character of several tokens the first alone reads as U+FFFD, which is a character."""
    render = renderer(family, fixture)
    message = replace(MESSAGE, blocks=(ToolCall("c2", "Edit", {"p": f"🎉漢{wrong}ü🎉"}),))
    decision = Decision(part="value", argument="p", wrong=wrong, occurrence=wrong == "🎉")
    tokens = found(render, decision, message)
    assert tokens is not None
    ((a, b),) = tokens.spans
    ids = body(render, message)
    forms = (wrong, json.dumps(wrong)[1:-1])  # as it is, or as the family escapes it

    def holds(text: str) -> bool:
        return any(form in text for form in forms)

    assert holds(render.codec.decode(ids[a:b]))
    assert not holds(render.codec.decode(ids[a + 1 : b]))
    assert not holds(render.codec.decode(ids[a : b - 1]))


def test_a_decision_whose_text_the_value_does_not_hold_is_not_known() -> None:
    decision = Decision(part="value", argument="p", wrong="a.py", right=("b.py",))
    assert found(renderer("qwen3", "qwen3"), decision) is not None
    assert found(renderer("qwen3", "qwen3"), replace(decision, wrong="lib/a.py")) is None
    assert found(renderer("qwen3", "qwen3"), replace(decision, occurrence=1)) is None
