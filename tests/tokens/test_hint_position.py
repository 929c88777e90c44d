"""Where a hint stands (hints.position): in every family an insertion and nothing else, as the
template itself would write the conversation with the hint in it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from composer_replication.core.config.data_settings import HintPosition
from composer_replication.core.errors import AlignmentError
from composer_replication.core.trace import Block, Text, ToolCall, ToolResult, Turn
from composer_replication.tokens.example import HintView
from composer_replication.tokens.hint_donors import shuffled_views
from composer_replication.tokens.renderer import Renderer, hint_in_position
from tests.tokens.students import CASES, TOOLS, plain, read, renderer
from tests.tokens.test_renderer import example_with

every_template = pytest.mark.parametrize(("family", "fixture"), CASES)
POSITIONS: tuple[HintPosition, ...] = get_args(HintPosition)
INSIDE = ("reminder", "result")
HINT = "Call Read on src/app.py first."
ENDINGS = (
    "one file", "No such file.", "</tool_use_error>", "f(x)", '{"a": 1}', "x = 1\n", "", 'see "x"',
)  # fmt: skip
MERGED = ("", 'see "x"')
"""The endings that the toy tokenizers make one token of together with the quote behind them."""
AS_JSON = ("llama3", "gpt-oss")
"""The families that write a result as a JSON string: its last characters and the closing quote may
be one token."""


def conversation(above: str, text: str) -> list[Turn]:
    """Three turns and the mistaken message below `above`: a result, a user's or an assistant's."""
    call = ToolCall("c1", "Read", {"p": "a.py"})
    last: dict[str, tuple[str, Block]] = {
        "result": ("tool", ToolResult("c1", text)),
        "user": ("user", Text(text or "x")),
        "assistant": ("assistant", Text("Well.")),
        "system": ("system", Text("Be brief.")),
    }
    role, block = last[above]
    return [
        Turn(role="user", author="human", blocks=(Text("Fix it."),)),
        Turn(role="assistant", author="m1", blocks=(Text("Look."), call)),
        Turn(role=role, author=None, blocks=(block,)),
        Turn(role="assistant", author="m1", blocks=(Text("Done."),)),
    ]


def added_to(turn: Turn, in_front: str, text: str, behind: str = "") -> Turn:
    (block,) = turn.blocks
    assert isinstance(block, (Text, ToolResult))
    return replace(turn, blocks=(replace(block, text=block.text + in_front + text + behind),))


def written(render: Renderer, turns: list[Turn]) -> str:
    return read(render, plain(render, turns, tools=TOOLS).removesuffix("\n"))


def of_its_own(turns: list[Turn], role: str, text: str) -> list[Turn]:
    return [*turns[:-1], Turn(role=role, author=None, blocks=(Text(text),)), turns[-1]]


def inside(turns: list[Turn], text: str) -> list[list[Turn]]:
    gaps = ("\n", "\n\n", " \n\n", " ")
    return [
        [*turns[:2], added_to(turns[2], gap, text, behind), turns[3]]
        for gap in gaps
        for behind in ("", "\n")
    ]


@pytest.mark.parametrize("position", POSITIONS)
@every_template
def test_the_teacher_is_the_conversation_with_the_hint_there(
    family: str, fixture: str, position: HintPosition
) -> None:
    render = renderer(family, fixture)
    text = hint_in_position(HINT, position=position)
    for above, ending in [("result", e) for e in ENDINGS] + [("user", e) for e in ENDINGS]:
        turns = conversation(above, ending)
        student = render.render(turns, tools=TOOLS)
        view = render.hint_view(
            turns,
            target=3,
            hint=HINT,
            site_id="s",
            kind="k",
            tools=TOOLS,
            within=student,
            position=position,
        )
        example = example_with(student, view)
        teacher = example.teacher_ids(view)
        assert view.position == position
        assert (
            teacher
            == student.ids[: view.at]
            + view.hint_ids
            + student.ids[view.at :][: view.span[1] - view.at]
        )
        expected = inside(turns, text)
        # a JSON string whose last characters share a token with its quote takes no text behind them
        if alone := (
            position in INSIDE and family in AS_JSON and above == "result" and ending in MERGED
        ):
            expected = [of_its_own(turns, "user", text)]
        elif position not in INSIDE:
            expected += [of_its_own(turns, position, text)]
        decoded = render.codec.decode(teacher)
        assert decoded in [written(render, t) for t in expected]
        hint_alone = render.codec.decode(view.hint_ids).startswith(text)
        assert (view.rendering == "line") == (position in INSIDE and hint_alone and not alone)
        assert view.rendering != "message" or view.at == student.spans[-1].start
        assert view.rendering == "message" or not alone


@pytest.mark.parametrize("position", INSIDE)
@pytest.mark.parametrize("above", ["assistant", "system"])
@every_template
def test_a_hint_below_neither_result_nor_user_becomes_a_users(
    family: str, fixture: str, above: str, position: HintPosition
) -> None:
    render, turns = renderer(family, fixture), conversation(above, "")
    view = render.hint_view(
        turns, target=3, hint=HINT, site_id="s", kind="k", tools=TOOLS, position=position
    )
    student = render.render(turns, tools=TOOLS)
    text = hint_in_position(HINT, position=position)
    decoded = render.codec.decode(example_with(student, view).teacher_ids(view))
    assert decoded == written(render, of_its_own(turns, "user", text))
    assert view.rendering in ("message", "appended")  # gemma and others join a user's to a system's


@pytest.mark.parametrize("position", POSITIONS)
@every_template
def test_the_ids_of_any_text_belong_in_front_of_the_tail(
    family: str, fixture: str, position: HintPosition
) -> None:
    render, turns = renderer(family, fixture), conversation("result", "no such file")
    neutral = render.hint_ids("The museum opened.", above=turns[:3], position=position, tools=TOOLS)
    hint = render.hint_ids(HINT, above=turns[:3], position=position, tools=TOOLS)
    ids = render.render(turns, tools=TOOLS)
    begin = ids.spans[-1].body[0]
    at = begin - len(neutral.tail)
    assert ids.ids[at:begin] == neutral.tail == hint.tail
    view = render.hint_view(
        turns, target=3, hint=HINT, site_id="s", kind="k", tools=TOOLS, position=position
    )
    assert (at, hint.hint_ids, hint.rendering) == (view.at, view.hint_ids, view.rendering)
    # another text there is that text's own rendering: a donor's hint is as good as its own
    assert hint.rendering == neutral.rendering


def test_a_donor_has_its_hint_in_the_same_position_and_form() -> None:
    render = renderer("qwen3", "qwen3")

    def view(hint: str, position: HintPosition, above: str = "result") -> HintView:
        turns = conversation(above, "no such file")
        return render.hint_view(
            turns, target=3, hint=hint, site_id=hint, kind="k", position=position
        )

    first, second = view("Call Read.", "reminder"), view("Call Edit.", "reminder")
    assert shuffled_views([first, second], ["a", "b"], seed=0) == [1, 0]
    elsewhere = view("Call Edit.", "user")
    alone = view("Call Edit.", "reminder", "assistant")
    to_user = view("Call Edit.", "reminder", "user")
    own_message = view("Call Read.", "system")
    renderings = [v.rendering for v in (first, to_user, alone, own_message)]
    assert renderings == ["line", "appended", "message", "message"]
    for other in (elsewhere, alone, to_user):
        assert shuffled_views([first, other], ["a", "b"], seed=0) == [None, None]
    assert shuffled_views([own_message, elsewhere], ["a", "b"], seed=0) == [None, None]


def test_a_hint_that_shares_a_token_with_its_end_is_refused() -> None:
    """Student [a] [!+break], teacher [a] [!] [break] [b] [!+break]: an insertion of [!] [break]
    [b] by its ids."""
    pieces = {1: "a", 2: "!\n", 3: "!", 4: "\n", 5: "b", 9: "T"}
    view = {"span": (2, 3), "hint_text": "b!", "site_id": "s", "kind": "k", "rendering": "line"}
    with pytest.raises(AlignmentError, match="the hint's text is not in the inserted ids"):
        HintView.from_renderings(
            (1, 2, 9),
            (1, 3, 4, 5, 2, 9),
            at=1,
            decode=lambda ids: "".join(pieces[i] for i in ids),
            **view,  # pyright: ignore[reportArgumentType]
        )
