"""From sessions, sites, hints and preferences to examples: what is trained, what is a target, and
counted skips."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.errors import RenderError
from composer_replication.core.site import Category, Hint, Preference, Site
from composer_replication.core.trace import (
    CLEARED_TEXT,
    Sampled,
    Segment,
    Session,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from composer_replication.report.explanations import REASONS
from composer_replication.tokens.dataset import Item, build_examples
from composer_replication.tokens.example import (
    HintView,
    PreferencePair,
    TrainingExample,
    example_from_json,
    example_to_json,
)
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.skipped import Skipped
from tests.tokens.students import (
    CASES,
    TOOLS,
    long_turns,
    plain,
    read,
    renderer,
    session_of,
    turn_lists,
)

QWEN = ("qwen3", "qwen3")


def site(
    session: Session, turn: int, *, category: Category = "mistake", call_id: str | None = None
) -> Site:
    # evidence is a later turn; tests without evidence use a number behind the session's end
    return Site(
        session_id=session.id,
        turn=turn,
        kind="k",
        detector="d",
        evidence=(turn + 1,),
        category=category,
        call_id=call_id,
    )


def hint(of: Site, text: str = "") -> Hint:
    return Hint(
        site_id=of.id, text=text or f"HINT-{of.turn}-{of.call_id}-END", writer="w", kind=of.kind
    )


def build(
    session: Session,
    sites: Sequence[Site] = (),
    hints: Sequence[Hint] = (),
    *,
    render: Renderer | None = None,
    **more: Any,
) -> list[Item]:
    preferences, held_out = more.pop("preferences", ()), more.pop("held_out", None)
    return list(
        build_examples(
            [session],
            sites=sites,
            hints=hints,
            renderer=render or renderer(*QWEN),
            settings=BuildSettings(**more),
            preferences=preferences,
            held_out=held_out,
        )
    )


def examples(items: Sequence[Item]) -> list[TrainingExample]:
    return [item for item in items if isinstance(item, TrainingExample)]


def skips(items: Sequence[Item]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for item in items:
        if isinstance(item, Skipped):
            counts[f"{item.channel}/{item.reason}"] += item.count
    return counts


def trained_turns(items: Sequence[Item]) -> list[int]:
    """The session's numbers of the turns that lm_ce trains, over all windows."""
    return [t.turn for e in examples(items) for t in e.turns if t.body in e.lm_spans]


def views(items: Sequence[Item]) -> dict[str, tuple[TrainingExample, HintView]]:
    return {view.site_id: (example, view) for example in examples(items) for view in example.hints}


@pytest.mark.parametrize(("family", "fixture"), CASES)
@settings(max_examples=20, deadline=None)  # each template has its own sessions: 360 in all
@given(turns=turn_lists(max_steps=6), max_tokens=st.integers(120, 900), data=st.data())
def test_random_sessions(
    family: str, fixture: str, turns: list[Turn], max_tokens: int, data: st.DataObject
) -> None:
    render = renderer(family, fixture)
    session = session_of(turns)
    assistants = [i for i, turn in enumerate(turns) if turn.role == "assistant"]
    places = data.draw(
        st.lists(
            st.tuples(st.sampled_from(assistants), st.sampled_from(["mistake", "failed_check"])),
            max_size=4,
            unique_by=lambda p: p[0],
        )
    )
    sites = [site(session, turn, category=category) for turn, category in places]
    hints = [hint(s) for s in sites if s.category == "mistake"]
    items = build(session, sites, hints, render=render, max_tokens=max_tokens)
    at_mistakes = {s.turn for s in sites if s.category == "mistake"}
    trained = trained_turns(items)
    assert len(trained) == len(set(trained))
    assert not at_mistakes & set(trained)
    assert len(trained) + sum(
        n for name, n in skips(items).items() if name.startswith("lm_ce/")
    ) == len(assistants)
    views_of_items = views(items)
    assert len(views_of_items) + sum(
        n for name, n in skips(items).items() if name.startswith("hint/")
    ) == len(sites)
    for example in examples(items):
        numbers = [t.turn for t in example.turns]
        assert len(example.ids) <= max_tokens
        assert example.ids == render.render([turns[n] for n in numbers], numbers=numbers).ids
        call_ids = {call.id for n in numbers for call in turns[n].calls}
        known = {call.id for turn in turns for call in turn.calls}
        assert all(
            r.call_id in call_ids for n in numbers for r in turns[n].results if r.call_id in known
        )
        assert numbers == sorted(set(numbers)) and numbers[-1] == max(
            [t.turn for t in example.turns if t.body in example.lm_spans]
            + [t.turn for v in example.hints for t in example.turns if t.body == v.span]
        )
    for this in hints:
        if this.site_id in views_of_items:
            example, view = views_of_items[this.site_id]
            teacher = render.codec.decode(example.teacher_ids(view))
            assert len(example.teacher_ids(view)) <= max_tokens
            assert [other_hint.text for other_hint in hints if other_hint.text in teacher] == [
                this.text
            ]
            assert "HINT-" not in render.codec.decode(example.student_ids(view))


def test_a_short_session_is_one_example_with_everything_in_it() -> None:
    session = session_of(long_turns(4), tools=TOOLS)
    numbers = [i for i, t in enumerate(session.turns) if t.role == "assistant"]
    mistake = site(session, numbers[1])
    items = build(session, [mistake], [hint(mistake)])
    (example,) = examples(items)
    assert example.id == f"s1:0-{numbers[-1]}"
    assert trained_turns(items) == [n for n in numbers if n != numbers[1]]
    # the results behind the last message are not trained on
    assert example.turns[-1].turn == numbers[-1]
    _, view = views(items)[mistake.id]
    assert (view.kind, view.rendering, view.origin) == ("k", "message", "trace")
    assert skips(items) == {"lm_ce/site": 1}


def test_a_long_session_is_windowed_and_every_message_is_trained_once() -> None:
    session = session_of(long_turns(60), tools=TOOLS)
    numbers = [i for i, t in enumerate(session.turns) if t.role == "assistant"]
    wrong = [site(session, numbers[k]) for k in (0, 20, 21, 59)]
    items = build(session, wrong, [hint(s) for s in wrong], max_tokens=1600)
    assert len(examples(items)) > 3
    assert sorted(trained_turns(items)) == [n for n in numbers if n not in {s.turn for s in wrong}]
    assert set(views(items)) == {s.id for s in wrong}
    assert views(items)[wrong[1].id][0] is views(items)[wrong[2].id][0]  # neighbours share a window
    for example in examples(items)[1:]:
        text = renderer(*QWEN).codec.decode(example.ids)
        assert (
            text.count('"name": "Read", "description"') == 1
            and "Please fix the failing test." in text
        )


def test_a_message_that_does_not_fit_is_left_out_with_its_reason_and_never_cut() -> None:
    turns = long_turns(3)
    turns[1] = replace(turns[1], blocks=(Text("word " * 800), *turns[1].blocks[1:]))
    session = session_of(turns)
    mistake = site(session, 1)
    items = build(session, [mistake], [hint(mistake)], max_tokens=600)
    assert skips(items)["hint/too_long"] == 1
    assert not any(1 in [t.turn for t in e.turns] for e in examples(items))
    detail = next(i.detail for i in items if isinstance(i, Skipped) and i.reason == "too_long")
    assert "tokens" in detail
    assert (
        build(session, max_tokens=600)[-1:]
        and skips(build(session, max_tokens=600))["lm_ce/too_long"] == 1
    )


@pytest.mark.parametrize(
    ("category", "is_trained"),
    [("mistake", False), ("recovery", False), ("rejected", False), ("interrupted", False),
     ("corrected", False), ("undone", False), ("blamed", False), ("wasted", False),
     ("failed_check", True), ("sibling", True),
     ("permission", True), ("environment", True), ("benign", True)],
)  # fmt: skip
def test_lm_ce_by_category_of_the_site(category: Category, is_trained: bool) -> None:
    session = session_of(long_turns(3))
    target_site = site(session, 1, category=category)
    items = build(session, [target_site], [])
    assert (1 in trained_turns(items)) == is_trained
    assert (
        skips(items)["hint/no_hint" if category in ("mistake", "recovery") else "hint/category"]
        == 1
    )


def test_a_message_with_an_error_that_no_rule_names_is_trained_by_nobody() -> None:
    session = session_of(long_turns(3))
    assert 1 not in trained_turns(
        build(session, [replace(site(session, 1, category="environment"), kind="unclassified")], [])
    )


def test_a_hint_for_a_correct_call_is_not_used() -> None:
    session = session_of(long_turns(3))
    check = site(session, 1, category="failed_check")
    items = build(session, [check], [hint(check)])
    assert not views(items) and skips(items)["hint/category"] == 1


def test_authors_are_filtered_in_both_channels() -> None:
    turns = [
        replace(t, author="other-model") if t.role == "assistant" and i > 4 else t
        for i, t in enumerate(long_turns(5))
    ]
    session = session_of(turns)
    numbers = [i for i, t in enumerate(turns) if t.role == "assistant"]
    ours, theirs = site(session, numbers[0]), site(session, numbers[-1])
    items = build(session, [ours, theirs], [hint(ours), hint(theirs)], authors=("m*",))
    assert {turns[n].author for n in trained_turns(items)} == {"m1"}
    assert set(views(items)) == {ours.id}
    assert (
        skips(items)["hint/author"] == 1
        and skips(items)["lm_ce/author"] == sum(t.author == "other-model" for t in turns) - 1
    )


def test_the_first_message_that_is_not_copied_is_a_target() -> None:
    turns = long_turns(5)
    first_uncopied = next(i for i, turn in enumerate(turns) if i >= 5 and turn.role == "assistant")
    session = replace(session_of(turns), copied=first_uncopied)
    mistake = site(session, first_uncopied)
    items = build(session, [mistake], [hint(mistake)])
    assert list(views(items)) == [mistake.id] and "hint/copied" not in skips(items)


def test_copied_turns_are_context_only() -> None:
    session = replace(session_of(long_turns(5)), copied=5)
    early, late = (
        site(session, 1),
        site(session, max(i for i, t in enumerate(session.turns) if t.role == "assistant")),
    )
    items = build(session, [early, late], [hint(early), hint(late)])
    assert min(trained_turns(items)) >= 5 and set(views(items)) == {late.id}
    assert skips(items)["hint/copied"] == 1 and skips(items)["lm_ce/copied"] == sum(
        t.role == "assistant" for t in session.turns[:5]
    )


def test_what_a_model_saw_after_a_compaction_is_its_context() -> None:
    turns = long_turns(6)
    summary = Turn(role="user", author="harness", blocks=(Text("SUMMARY"),), tag="compact_summary")
    at = 7
    while turns[at].role != "assistant":
        at += 1
    turns = [*turns[:at], summary, *turns[at:]]
    first_call = turns[1].calls[0].id
    segments = (
        Segment(start=0, end=at),
        Segment(start=at, end=len(turns), context=((0, 3),), cleared=(first_call,)),
    )
    session = session_of(turns, segments=segments)
    second = examples(build(session))[1]
    text = renderer(*QWEN).codec.decode(second.ids)
    numbers = [t.turn for t in second.turns]
    assert numbers[:4] == [0, 1, 2, at] and not set(range(3, at)) & set(numbers)
    assert "SUMMARY" in text and CLEARED_TEXT in text
    assert all(t.turn >= at for t in second.turns if t.body in second.lm_spans)


def test_a_message_that_only_calls_is_trained_and_can_be_a_target() -> None:
    turns = long_turns(3)
    turns = [replace(t, blocks=t.calls) if t.role == "assistant" else t for t in turns]
    session = session_of(turns)
    mistake = site(session, 1)
    items = build(session, [mistake], [hint(mistake)])
    decode = renderer(*QWEN).codec.decode
    assert decode(views(items)[mistake.id][1].target_ids).startswith("<tool_call>\n")
    assert len(trained_turns(items)) == 2 and skips(items) == {"lm_ce/site": 1}


def test_interrupted_words_and_thinking_alone_are_not_trained() -> None:
    turns = [
        *long_turns(2),
        Turn(role="assistant", author="m1", blocks=(Text("I will now"),)),
        Turn(role="user", author="human", blocks=(Text("[Request interrupted by user]"),)),
        Turn(role="assistant", author="m1", blocks=(Thinking("hm"),)),
        Turn(role="assistant", author="m1", blocks=(Text("ok"),)),
    ]
    items = build(session_of(turns))
    n = len(turns)
    assert n - 1 in trained_turns(items) and not {n - 2, n - 4} & set(trained_turns(items))
    assert skips(items)["lm_ce/interrupted"] == 1 and skips(items)["lm_ce/no_text_or_call"] == 1


def test_one_call_as_the_target_and_two_sites_at_one_message() -> None:
    turns = long_turns(2)
    turns[1] = replace(
        turns[1],
        blocks=(
            Text("Both."),
            ToolCall("a", "Read", {"p": "x"}),
            ToolCall("b", "Reed", {"p": "y"}),
        ),
    )
    turns[2:4] = [
        Turn(
            role="tool", author="environment", blocks=(ToolResult("b", "no"), ToolResult("a", "no"))
        )
    ]
    session = session_of(turns)
    two_sites = [site(session, 1, call_id="a"), site(session, 1, call_id="b")]
    decode = renderer(*QWEN).codec.decode
    (narrow_view,) = views(
        build(session, two_sites[1:], [hint(two_sites[1])], target="call")
    ).values()
    assert decode(narrow_view[1].target_ids).split('"')[3] == "Reed" and narrow_view[1].parts == ()
    example, both_calls = views(
        build(session, two_sites[::-1], [hint(s) for s in two_sites], target="call")
    )[two_sites[0].id]
    assert [decode(example.ids[a:b]).split('"')[3] for a, b in both_calls.spans] == ["Read", "Reed"]
    assert "Both." not in decode(both_calls.target_ids)
    items = build(session, two_sites, [hint(s) for s in two_sites])
    ((_, view),) = views(items).values()  # one message is one view
    assert view.site_ids == (two_sites[0].id, two_sites[1].id) and decode(
        view.target_ids
    ).startswith("Both.")
    assert "HINT-1-a-END\nHINT-1-b-END" in decode(view.hint_ids)
    assert not [name for name in skips(items) if name.startswith("hint/")]


def test_several_calls_that_fail_alike_are_one_view_with_the_hint_said_once() -> None:
    turns = long_turns(2)
    calls = tuple(ToolCall(name, "Edit", {"p": name}) for name in "abc")
    results = tuple(ToolResult(name, "no") for name in "abc")
    turns[1:3] = [
        replace(turns[1], blocks=calls),
        Turn(role="tool", author="environment", blocks=results),
    ]
    session = session_of(turns)
    sites = [replace(site(session, 1, call_id=name), kind=f"k{name}") for name in "cab"]
    items = build(session, sites, [hint(s, "Read it first.") for s in sites])
    ((example, view),) = views(items).values()
    assert (
        view.site_ids == ("s1:1:a", "s1:1:b", "s1:1:c")
        and view.kind == "ka"
        and view.kinds == {"ka", "kb", "kc"}
    )
    assert renderer(*QWEN).codec.decode(view.hint_ids).count("Read it first.") == 1
    assert (
        sum(e.teacher_ids(v) == example.teacher_ids(view) for e in examples(items) for v in e.hints)
        == 1
    )
    middle = build(
        session, [sites[0], sites[1]], [hint(s, "Read it first.") for s in sites[:2]], target="call"
    )
    ((example, narrowed),) = views(middle).values()
    decode = renderer(*QWEN).codec.decode
    assert len(narrowed.parts) == 2 and '"p": "b"' not in decode(narrowed.target_ids)
    assert [decode(example.ids[a:b]).count("Edit") for a, b in narrowed.spans] == [1, 1]
    copy = example_from_json(json.loads(json.dumps(example_to_json(example))))
    assert copy == example


def far_apart(*, filler: int = 40) -> tuple[Session, Site, Hint]:
    """A file is read, much else happens, then it is edited without being in view: the hint refers
    to the read and its result."""
    human = Turn(role="user", author="human", blocks=(Text("Please fix a.py."),))
    read_it = Turn(
        role="assistant",
        author="m1",
        blocks=(Text("I read."), ToolCall("r", "Read", {"p": "a.py"})),
    )
    its_text = Turn(role="tool", author="environment", blocks=(ToolResult("r", "THE-FILE " * 10),))
    edit = Turn(
        role="assistant",
        author="m1",
        blocks=(Text("I edit."), ToolCall("e", "Edit", {"p": "a.py"})),
    )
    answer = Turn(
        role="tool", author="environment", blocks=(ToolResult("e", "not found", is_error=True),)
    )
    turns = [human, read_it, its_text, *long_turns(filler)[1:], edit, answer]
    session = session_of(turns)
    mistake = site(session, len(turns) - 2, call_id="e")
    return session, mistake, replace(hint(mistake), refers_to=(1, 2))


def test_what_the_hint_refers_to_is_in_the_window_and_what_lies_between_is_told() -> None:
    session, mistake, about = far_apart()
    items = build(session, [mistake], [about], max_tokens=700)
    example, view = views(items)[mistake.id]
    numbers = [t.turn for t in example.turns]
    gap = numbers.index(2)
    # not contiguous, and nothing after the target
    assert numbers[:3] == [0, 1, 2] and numbers[gap + 1] > 3 and numbers[-1] == mistake.turn
    assert "THE-FILE" in renderer(*QWEN).codec.decode(example.student_ids(view))
    rendering = renderer(*QWEN).render(session.turns[: mistake.turn + 1]).spans
    assert view.context is not None and (view.context.refers_to, view.context.lost) == ((1, 2), ())
    assert view.context.available == rendering[-1].start
    assert view.context.kept == next(t.start for t in example.turns if t.turn == mistake.turn)
    assert 450 < view.context.kept < view.context.available  # the budget is spent
    assert trained_turns(items) == sorted(set(trained_turns(items)))


def test_a_view_that_lost_what_its_hint_refers_to_is_a_counted_skip_unless_it_is_kept() -> None:
    session, mistake, about = far_apart()
    turns = list(session.turns)
    turns[2] = replace(turns[2], blocks=(ToolResult("r", "THE-FILE " * 500),))
    session = replace(session, turns=tuple(turns))
    items = build(session, [mistake], [about], max_tokens=700)
    assert not views(items) and skips(items)["hint/evidence_lost"] == 1
    assert "turns 1, 2" in next(
        i.detail for i in items if isinstance(i, Skipped) and i.reason == "evidence_lost"
    )
    kept_view = views(build(session, [mistake], [about], max_tokens=700, without_evidence="keep"))[
        mistake.id
    ][1]
    assert kept_view.context is not None and kept_view.context.lost == (1, 2)
    # it is the reference that counts
    assert views(build(session, [mistake], [replace(about, refers_to=())], max_tokens=700))


def test_a_mistake_whose_last_result_does_not_fit_is_no_view() -> None:
    """Directly below the head, the message would answer text that the model had not just read."""
    session, mistake, _ = far_apart()
    turns = list(session.turns)
    turns[mistake.turn - 1] = replace(
        turns[-3], blocks=tuple(replace(r, text="x " * 900) for r in turns[-3].results)
    )
    session = replace(session, turns=tuple(turns))
    items = build(session, [mistake], [hint(mistake)], max_tokens=700)
    assert not views(items) and skips(items)["hint/evidence_lost"] == 1


def test_the_last_words_of_a_human_are_in_the_window_too() -> None:
    turns = long_turns(40)
    turns.insert(9, Turn(role="user", author="human", blocks=(Text("Now do it otherwise."),)))
    last = max(i for i, t in enumerate(turns) if t.role == "assistant")
    session = session_of(turns)
    mistake = site(session, last)
    example, _ = views(build(session, [mistake], [hint(mistake)], max_tokens=700))[mistake.id]
    assert [t.turn for t in example.turns][:2] == [0, 9]


def test_a_student_s_own_turns_keep_their_ids_and_their_origin() -> None:
    turns = long_turns(2)
    turns[1] = replace(turns[1], sampled=Sampled((3, 5, 8), (0.0, 0.0, 0.0)))
    session = replace(session_of(turns), origin="student")
    mistake = site(session, 1)
    (example,) = examples(build(session, [mistake], [hint(mistake)]))
    assert example.hints[0].target_ids == (3, 5, 8)
    assert (example.origin, example.hints[0].origin) == ("student", "student")


def reply(text: str) -> Turn:
    return Turn(
        role="assistant",
        author="teacher",
        blocks=(Text(text), ToolCall("p", "Read", {"p": "right.py"})),
    )


def test_a_pair_has_one_prefix_and_two_messages_with_their_end() -> None:
    session = session_of(long_turns(5), tools=TOOLS)
    at = [i for i, t in enumerate(session.turns) if t.role == "assistant"][2]
    preference = Preference(session_id="s1", turn=at, chosen=reply("Better."), site_id="s1:x")
    items = build(session, preferences=[preference])
    (pair,) = [item for item in items if isinstance(item, PreferencePair)]
    render = renderer(*QWEN)
    prompt = plain(render, list(session.turns[:at]), tools=TOOLS, prompt=True)
    assert render.codec.decode(pair.prefix_ids) == read(render, prompt)
    assert render.codec.decode(pair.chosen_ids).startswith("Better.\n<tool_call>")
    assert render.codec.decode(pair.rejected_ids).startswith("Step 2.\n<tool_call>")
    assert render.codec.decode(pair.chosen_ids).endswith("</tool_call><|im_end|>")
    assert at not in trained_turns(items) and skips(items)["lm_ce/dispreferred"] == 1
    assert pair.site_id == "s1:x"


def test_a_pair_late_in_a_long_session_keeps_its_end_and_as_much_context_as_fits() -> None:
    session = session_of(long_turns(60))
    at = [i for i, t in enumerate(session.turns) if t.role == "assistant"][50]
    items = build(
        session,
        preferences=[Preference(session_id="s1", turn=at, chosen=reply("Better."))],
        max_tokens=700,
    )
    (pair,) = [item for item in items if isinstance(item, PreferencePair)]
    length = len(pair.prefix_ids) + max(len(pair.chosen_ids), len(pair.rejected_ids))
    text = renderer(*QWEN).codec.decode(pair.prefix_ids)
    # the window of an example, whose trunk it shares, leaves at least half of the room
    assert 350 < length <= 700
    assert "Please fix the failing test." in text and "Step 49." in text and "Step 20." not in text


def test_a_pair_at_a_site_shares_the_window_of_its_example() -> None:
    """Site and pair at one message, in a session of many windows: the pair's context and rejected
    side are a span of the example."""
    session = session_of(long_turns(60))
    assistants = [i for i, t in enumerate(session.turns) if t.role == "assistant"]
    shared = 0
    for turn in assistants[10:55:4]:
        target_site = site(session, turn)
        preferences = [
            Preference(session_id="s1", turn=turn, chosen=reply("Better."), site_id=target_site.id)
        ]
        # it takes room from the example's window; a window of the pair's own would begin earlier
        long = hint(target_site, "word " * 60)
        items = build(session, [target_site], [long], preferences=preferences, max_tokens=700)
        (pair,) = [item for item in items if isinstance(item, PreferencePair)]
        (example,) = [item for item in items if isinstance(item, TrainingExample) and item.hints]
        row = pair.prefix_ids + pair.rejected_ids
        assert example.ids[: len(row)] == row
        shared += 1
    assert shared > 10


def test_pairs_that_cannot_be_built_are_named() -> None:
    session = replace(session_of(long_turns(3)), copied=2)
    last = max(i for i, t in enumerate(session.turns) if t.role == "assistant")
    human = session.turns[0]
    preferences = [
        Preference(session_id="s1", turn=last, chosen=reply("x"), rejected=reply("x")),
        Preference(session_id="s1", turn=last, chosen=reply("word " * 600), rejected=reply("y")),
        Preference(session_id="s1", turn=last, chosen=human, rejected=reply("y")),
        Preference(session_id="s1", turn=1, chosen=reply("x")),
        Preference(session_id="other", turn=1, chosen=reply("x")),
    ]
    counts = skips(build(session, preferences=preferences, max_tokens=600))
    assert {k: v for k, v in counts.items() if k.startswith("preference/")} == {
        "preference/same_tokens": 1, "preference/too_long": 1, "preference/not_assistant": 1,
        "preference/copied": 1,
        "preference/no_session": 1,
    }  # fmt: skip


def test_facts_without_a_session_and_hints_without_a_site_are_counted() -> None:
    session, other_session = session_of(long_turns(2)), session_of(long_turns(2), name="s2")
    first_site, other_site = site(session, 1), site(other_session, 1)
    hints = [
        hint(first_site),
        hint(first_site, "again"),
        hint(other_site),
        replace(hint(first_site), site_id="s1:9:-"),
    ]
    counts = skips(build(session, [first_site, other_site, replace(first_site, turn=0)], hints))
    assert (
        counts["hint/no_session"] == 1
        and counts["hint/no_site"] == 1
        and counts["hint/second_hint"] == 1
    )
    assert counts["hint/not_assistant"] == 1


def test_held_out_sessions_are_named_and_not_built() -> None:
    session = session_of(long_turns(2))
    items = build(session, held_out=HeldOutSettings(by="session", fraction=0.999999))
    assert items == [Skipped(channel="session", reason="held_out", session_id="s1")]
    assert examples(build(session, held_out=HeldOutSettings(fraction=0.0)))


def own_template(text: str) -> Renderer:
    import copy

    tokenizer = copy.copy(renderer(*QWEN).tokenizer)
    tokenizer.chat_template = text
    return Renderer.for_tokenizer(tokenizer)


SOUND = (
    "{%- for m in messages %}{{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content }}"
    "{{- (m.tool_calls | tojson if m.tool_calls else '') ~ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def test_an_unknown_template_is_planned_by_estimate_and_still_keeps_the_budget() -> None:
    render = own_template(SOUND)
    assert render.family is None
    session = session_of(long_turns(30))
    mistake = site(session, [i for i, t in enumerate(session.turns) if t.role == "assistant"][20])
    items = build(session, [mistake], [hint(mistake)], render=render, max_tokens=900)
    assert all(len(e.ids) <= 900 for e in examples(items)) and set(views(items)) == {mistake.id}
    assert (
        len(set(trained_turns(items)))
        == len(trained_turns(items))
        == sum(t.role == "assistant" for t in session.turns) - 1
    )


def test_a_template_that_never_works_stops_the_build_by_name_after_counting_what_it_cost() -> None:
    render = own_template(SOUND.replace(" ~ m.content", ""))
    session = session_of(long_turns(3))
    items: list[Item] = []
    with pytest.raises(RenderError, match="loses the text of turn 0"):
        for item in build_examples(
            [session], sites=[], hints=[], renderer=render, settings=BuildSettings()
        ):
            items.append(item)
    assert skips(items) == {"lm_ce/template": 3, "content/lost_calls": 3}


def test_a_big_session_is_built_in_seconds() -> None:
    """1.5 MB: quadratic work (a prefix rendered or encoded per message) takes minutes here."""
    session = session_of(long_turns(1500, num_words=100), tools=TOOLS)
    size = sum(
        len(b.text) for t in session.turns for b in t.blocks if isinstance(b, (Text, ToolResult))
    )
    numbers = [i for i, t in enumerate(session.turns) if t.role == "assistant"]
    wrong = [site(session, n) for n in numbers[::30]]
    begun = time.process_time()
    items = build(session, wrong, [hint(s) for s in wrong])
    spent = time.process_time() - begun
    assert size > 1_200_000 and len(views(items)) == len(wrong)
    assert len(trained_turns(items)) == len(numbers) - len(wrong)
    assert spent < 30  # about 4 s of one core; a bound that only a wrong order of growth breaks


def test_one_window_that_the_template_rejects_is_counted_and_the_others_are_built() -> None:
    rejects = (
        "{%- for m in messages %}{%- if 'POISON' in m.content %}{{- raise_exception('no poison')"
        " }}{%- endif %}"
    )
    render = own_template(SOUND.replace("{%- for m in messages %}", rejects, 1))
    turns = long_turns(30)
    last = max(i for i, t in enumerate(turns) if t.role == "assistant")
    turns[last] = replace(turns[last], blocks=(Text("POISON"),))
    session = session_of(turns)
    mistake = site(session, last)
    preference = Preference(session_id="s1", turn=1, chosen=reply("POISON"), rejected=reply("y"))
    items = build(
        session, [mistake], [hint(mistake)], render=render, max_tokens=900, preferences=[preference]
    )
    counts = skips(items)
    assert counts["hint/template"] == 1 and counts["preference/template"] == 1
    assert (
        len(trained_turns(items)) + counts["lm_ce/template"]
        == sum(t.role == "assistant" for t in turns) - 1
    )
    assert trained_turns(items)
    assert any(
        "no poison" in i.detail for i in items if isinstance(i, Skipped) and i.reason == "template"
    )


def test_a_head_that_the_template_rejects_takes_the_segment_with_it_and_nothing_else() -> None:
    rejects = (
        "{%- for m in messages %}{%- if 'POISON' in m.content %}{{- raise_exception('no poison')"
        " }}{%- endif %}"
    )
    render = own_template(SOUND.replace("{%- for m in messages %}", rejects, 1))
    good, bad = (
        session_of(long_turns(2)),
        session_of(
            [replace(long_turns(1)[0], blocks=(Text("POISON"),)), *long_turns(2)[1:]], name="s2"
        ),
    )
    target_site = site(bad, 1)
    preference = Preference(session_id="s2", turn=1, chosen=reply("x"), rejected=reply("y"))
    items = list(
        build_examples(
            [good, bad],
            sites=[target_site],
            hints=[hint(target_site)],
            renderer=render,
            settings=BuildSettings(),
            preferences=[preference],
        )
    )
    assert [e.session_id for e in examples(items)] == ["s1"]
    assert {k: n for k, n in skips(items).items() if k.endswith("/template")} == {
        "lm_ce/template": 1, "hint/template": 1, "preference/template": 1
    }  # fmt: skip


def test_a_hint_that_fits_nowhere_is_named_and_its_window_is_still_built() -> None:
    rejects = (
        "{%- for m in messages %}{%- if 'NO-HINT' in m.content %}{{- raise_exception('not here')"
        " }}{%- endif %}"
    )
    render = own_template(SOUND.replace("{%- for m in messages %}", rejects, 1))
    session = session_of(long_turns(3))
    mistake = site(session, 1)
    items = build(session, [mistake], [hint(mistake, "NO-HINT")], render=render)
    assert skips(items)["hint/not_insertable"] == 1 and len(trained_turns(items)) == 2


def test_straddles_are_counted_over_windows_once() -> None:
    turns = long_turns(3)
    turns[1] = replace(turns[1], blocks=(Text("\nLine first."),))
    items = build(session_of(turns), render=renderer("qwen2.5", "qwen2_5"))
    assert skips(items)["content/straddle"] == 1
    # counted, and trained on all the same, as the page says
    assert 1 in trained_turns(items) and "trained on" in REASONS["content/straddle"]


@pytest.mark.parametrize("times", [2, 6, 40])
def test_a_template_that_writes_more_than_was_estimated_gets_fewer_turns_not_cut_ones(
    times: int,
) -> None:
    """Texts occur several times in this rendering, so the plan's estimate is far too low."""
    render = own_template(SOUND.replace(" ~ m.content", " ~ (m.content ~ ' ') * " + str(times)))
    session = session_of(long_turns(30))
    wrong = [site(session, i) for i, t in enumerate(session.turns) if t.role == "assistant"][::7]
    preference = Preference(
        session_id="s1", turn=wrong[-1].turn, chosen=reply("x"), rejected=reply("y")
    )
    items = build(
        session,
        wrong,
        [hint(s, "H" * 300) for s in wrong],
        render=render,
        max_tokens=700,
        preferences=[preference],
    )
    counts = skips(items)
    for example in examples(items):
        numbers = [t.turn for t in example.turns]
        assert len(example.ids) <= 700
        assert (
            example.ids == render.render([session.turns[n] for n in numbers], numbers=numbers).ids
        )
        assert all(len(example.teacher_ids(view)) <= 700 for view in example.hints)
    assert len(views(items)) + counts["hint/too_long"] + counts["hint/evidence_lost"] == len(wrong)
    assert len(trained_turns(items)) + counts["lm_ce/too_long"] == 30 - len(wrong)
    # a window that was planned too long is split, not given up
    assert (counts["lm_ce/too_long"] == 0) == (times < 40)
    pairs = [item for item in items if isinstance(item, PreferencePair)]
    assert len(pairs) + counts["preference/too_long"] == 1
    assert all(
        len(p.prefix_ids) + max(len(p.chosen_ids), len(p.rejected_ids)) <= 700 for p in pairs
    )


def test_the_teacher_must_fit_too() -> None:
    session = session_of(long_turns(40))
    wrong = [site(session, i) for i, t in enumerate(session.turns) if t.role == "assistant"][::3]
    items = build(session, wrong, [hint(s, "word " * 90) for s in wrong], max_tokens=500)
    assert set(views(items)) == {s.id for s in wrong}
    assert all(len(e.teacher_ids(v)) <= 500 for e, v in views(items).values())
