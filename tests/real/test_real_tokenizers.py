"""Every family on its real tokenizer, over the public sessions (make real); the counts go into the
table of docs/real_models.md."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from composer_replication.core.config.data_settings import HintPosition
from composer_replication.core.errors import RenderError
from composer_replication.core.site import joined_text
from composer_replication.core.trace import Session, Turn
from composer_replication.tokens.example import TrainingExample
from composer_replication.tokens.hf import load_tokenizer, render_template
from composer_replication.tokens.messages import Message
from composer_replication.tokens.renderer import Renderer, hint_in_position
from composer_replication.tokens.template_families import FAMILIES, recognise, template_sha256
from tests.real.real_tokenizers import (
    OnLogs,
    SeenSegment,
    cache_folder,
    conversation_of,
    message_text,
    record,
    texts_of,
)
from tests.tokens.test_hint_position import AS_JSON
from tests.tokens.test_renderer import parallel_turns

pytestmark = [pytest.mark.real, pytest.mark.train]


def last_turns(session: Session, target: int) -> list[Turn]:
    """The opening of a session and the turns from the last call above the target on."""
    start = target - 1
    while start > 1 and session.turns[start].role != "assistant":
        start -= 1
    return [session.turns[0], *session.turns[max(1, start) : target + 1]]


def test_the_family_is_recognised_by_the_models_own_template(on: OnLogs) -> None:
    case, own = on.case, on.tokenizer.chat_template
    assert on.renderer.family is FAMILIES[case.family]
    if case.recognised_by == "name":
        found = "name"
        auto = recognise(own, partial(render_template, on.tokenizer))
        if case.compared:  # the template serves another family first
            same = set(on.family.sha256)
            first = next(f.name for f in FAMILIES.values() if same & set(f.sha256))
            assert auto and auto.name == first != case.family
        else:  # it is of none
            assert auto is None and not on.family.sha256
    else:
        edited = "{#- a comment that no list of hashes knows -#}" + own
        by_rendering = recognise(edited, partial(render_template, on.tokenizer))
        assert by_rendering is on.family, "by what it renders, too"
        found = "text" if template_sha256(own) in on.family.sha256 else "what it renders"
    assert found == case.recognised_by
    record(case, "recognised", by=found)


def test_the_tokenizer_reads_as_its_file_says(on: OnLogs) -> None:
    """transformers may build a tokenizer from its class and not from tokenizer.json: the library
    that the file is for is asked for the same ids."""
    plain = Tokenizer.from_file(str(on.path / "tokenizer.json"))
    texts = [text for session in on.logs.sessions.values() for text in texts_of(session)]
    ours = on.tokenizer(texts, add_special_tokens=False)["input_ids"]
    theirs = [encoding.ids for encoding in plain.encode_batch(texts, add_special_tokens=False)]
    assert ours == theirs
    record(on.case, "as its file", texts=len(texts), tokens=sum(map(len, ours)))


def test_every_text_of_the_logs_comes_back_from_its_ids(on: OnLogs) -> None:
    texts = [text for session in on.logs.sessions.values() for text in texts_of(session)]
    codec, changed = on.renderer.codec, 0
    for text in texts:
        back = codec.normalise(text)
        assert back == on.read(text)
        changed += back != text
    record(on.case, "round trip", texts=len(texts), changed=changed)


def test_a_target_is_the_message_with_its_end_token_behind_the_exact_header(on: OnLogs) -> None:
    decode, bodies, tokens = on.renderer.codec.decode, 0, 0
    notes: Counter[str] = Counter()
    for segment in on.segments:
        notes.update(segment.rendered.notes)
        ids = segment.rendered.ids
        assert decode(ids) == on.read(segment.rendered.text)
        tokens += len(ids)
        for position, (turn, span) in enumerate(
            zip(segment.turns, segment.rendered.spans, strict=True)
        ):
            a, b = span.body
            if turn.role != "assistant" or span.start == span.end:
                assert a == b
                continue
            bodies += 1
            expected = message_text(on.family, turn)
            assert decode(ids[a:b]) == on.read(expected)
            assert ids[b - 1] in on.renderer.end_ids and expected.endswith(decode([ids[b - 1]]))
            assert decode(ids[span.start : a]) == on.header(segment, position)
    record(
        on.case,
        "targets",
        segments=len(on.segments),
        tokens=tokens,
        messages=bodies,
        leading_space=notes["leading_space"],
    )


def test_the_teacher_of_every_hint_is_the_student_with_one_insertion(on: OnLogs) -> None:
    ways: Counter[str] = Counter()
    for hint in on.logs.hints:
        site = on.logs.sites[hint.site_id]
        session = on.logs.sessions[site.session_id]
        number = session.segments.index(session.segment_of(site.turn))
        segment = next(
            s
            for s in on.segments
            if s.session is session and s.numbers[-1] == session.segments[number].end - 1
        )
        at = segment.numbers.index(site.turn)
        view = on.renderer.hint_view(
            segment.turns,
            target=at,
            hint=joined_text([hint]),
            site_id=site.id,
            kind=site.kind,
            tools=session.tools,
            within=segment.rendered,
        )
        ids, (_, end) = segment.rendered.ids, segment.rendered.spans[at].body
        example = TrainingExample(id="e", session_id=session.id, ids=ids, hints=(view,))
        student, teacher = example.student_ids(view), example.teacher_ids(view)
        assert student == ids[:end]
        assert teacher == student[: view.at] + view.hint_ids + student[view.at :]
        assert on.read(hint.text.strip()) in on.renderer.codec.decode(view.hint_ids)
        before = partial(_plain, on, segment)
        text = on.renderer.codec.decode(teacher)
        # the same text with the hint cut out again is the rendering without it
        inserted = on.renderer.codec.decode(view.hint_ids)
        position = len(on.renderer.codec.decode(teacher[: view.at]))
        assert text[position:].startswith(inserted)
        rest = text[:position] + text[position + len(inserted) :]
        assert rest == on.read(before(at + 1))[: len(rest)]
        ways[view.rendering] += 1
    assert sum(ways.values()) == len(on.logs.hints) > 0
    record(on.case, "teacher", hints=len(on.logs.hints), views=sum(ways.values()), **ways)


@pytest.mark.parametrize("position", ["user", "reminder", "result"])
def test_a_hint_elsewhere_is_one_insertion_too(on: OnLogs, position: HintPosition) -> None:
    """Below the last turns of its session; below a result that is written as a JSON string and ends
    in a token that its closing quote shares, a user message."""
    ways: Counter[str] = Counter()
    for hint in on.logs.hints:
        site = on.logs.sites[hint.site_id]
        session = on.logs.sessions[site.session_id]
        turns = last_turns(session, site.turn)
        student = on.renderer.render(turns, tools=session.tools)
        text = hint_in_position(hint.text, position=position)
        inserted = on.renderer.hint_ids(
            hint.text, above=turns[:-1], position=position, tools=session.tools
        )
        ways[inserted.rendering] += 1
        begin = student.spans[-1].body[0]
        at = begin - len(inserted.tail)
        assert student.ids[at:begin] == inserted.tail
        view = on.renderer.hint_view(
            turns,
            target=len(turns) - 1,
            hint=hint.text,
            site_id=site.id,
            kind=site.kind,
            tools=session.tools,
            within=student,
            position=position,
        )
        assert (view.at, view.hint_ids) == (at, inserted.hint_ids)
        example = TrainingExample(id="e", session_id=session.id, ids=student.ids, hints=(view,))
        decode = on.renderer.codec.decode
        teacher = decode(example.teacher_ids(view))
        expected = on.read(text)
        if on.case.family in AS_JSON and text not in teacher:
            expected = json.dumps(expected, ensure_ascii=False)[1:-1]
        # the text stands there once more than in the student's, where H was inserted
        assert teacher.count(expected) == decode(example.student_ids(view)).count(expected) + 1
        assert decode(view.hint_ids).count(expected) == 1
    if position != "user":
        assert ways.total() > ways["message"] > 0 if on.case.family in AS_JSON else True


def _plain(on: OnLogs, segment: SeenSegment, count: int, *, prompt: bool = False) -> str:
    """The first turns of a segment as apply_chat_template renders them."""
    items = on.renderer.messages_of(segment.turns[:count])
    return render_template(
        on.tokenizer,
        [message for item in items for message in item.messages],
        tools=conversation_of(on, segment)[1],
        template=on.renderer.template,
        add_generation_prompt=prompt,
    )


def test_a_border_cuts_no_token_that_a_student_would_sample_whole(on: OnLogs) -> None:
    """Where the text encoded in one go merges across a border, the prompt and the message are what
    they are when a student samples: each encoded alone."""
    codec, counts = on.renderer.codec, Counter[str]()
    for segment in on.segments:
        rendered = segment.rendered
        spans = {span.turn: (i, span) for i, span in enumerate(rendered.spans)}
        counts["borders"] += 2 * sum(a < b for a, b in (s.body for s in rendered.spans))
        counts["merges"] += len(rendered.straddles)
        one_go = tuple(codec.one_go(rendered.text))
        control = set(codec.control.values())
        if [i for i in one_go if i in control] != [i for i in rendered.ids if i in control]:
            counts["segments_with_look_alikes"] += 1
            assert rendered.ids != one_go
        else:
            assert (rendered.ids == one_go) == (not rendered.straddles)
        for number, turn in enumerate(rendered.straddles):
            at, span = spans[turn]
            a, b = span.body
            body = message_text(on.family, segment.turns[at])
            assert rendered.ids[a:b] == tuple(codec.one_go(body))
            assert rendered.ids[span.start : a] == tuple(codec.one_go(on.header(segment, at)))
            if number == 0:  # a later prompt holds this border itself
                prompt = _plain(on, segment, at, prompt=True)
                assert rendered.ids[:a] == tuple(codec.one_go(prompt))
    record(on.case, "borders", **counts)


Change = Callable[[Message], Message]


def _without(name: str) -> Change:
    return lambda message: {key: value for key, value in message.items() if key != name}


# What an official template does to a message that ours does not do, by family: how the table names
# it, and the message as it would have to be for ours to write the same.
CALLS_UNWRITTEN: tuple[str, Change] = ("does not write the calls", _without("tool_calls"))
TRIMMED: tuple[str, Change] = (
    "strips white space behind the text",
    lambda message: {**message, "content": message["content"].strip()},
)
TEXT_DROPPED: tuple[str, Change] = (
    "drops the text beside a call",
    lambda message: {**message, "content": ""} if message.get("tool_calls") else message,
)
THOUGHT_TRIMMED: tuple[str, Change] = (
    "strips line breaks around the thinking",
    lambda message: {**message, "reasoning_content": message["reasoning_content"].strip("\n")},
)
FIRST_CALL: tuple[str, Change] = (
    "writes the first call only",
    lambda message: {**message, "tool_calls": message.get("tool_calls", [])[:1]},
)
THOUGHT_DROPPED: tuple[str, Change] = (
    "drops the thinking of a message with text and calls",
    lambda message: {**message, "reasoning_content": ""},
)
DIFFERENCES: dict[str, tuple[tuple[str, Change], ...]] = {
    "qwen2.5": (),
    "qwen3": (),
    "qwen3-thinking": (THOUGHT_TRIMMED,),
    "qwen3-2507": (),
    "chatml-tools": (),
    "llama3": (TRIMMED, TEXT_DROPPED),
    "gemma": (CALLS_UNWRITTEN, TRIMMED),
    "gpt-oss": (FIRST_CALL, THOUGHT_DROPPED),
    "deepseek-v3": (CALLS_UNWRITTEN,),
}
REFUSED = {
    "only supports single tool-calls": "refuses several calls in one message",
    "both content and thinking": "refuses thinking and text beside a call",
}
"""Words of an official template that raises, and what it says by them."""
OPEN_CALL = "does not close a single call"


def test_a_message_is_what_the_official_template_writes_or_the_difference_is_named(
    on: OnLogs,
) -> None:
    if not on.case.compared:
        pytest.skip("the family is named: the tokenizer's own template is of no family")
    counts: Counter[str] = Counter()
    ask: Message = {"role": "user", "content": "Go on."}
    for segment in on.segments:
        for item in on.renderer.messages_of(segment.turns):
            for message in item.messages:
                if message["role"] == "assistant":
                    counts[_difference(on, [ask, message])] += 1
    assert not counts["unexplained"], counts
    equal = counts.pop("", 0)
    record(on.case, "official", messages=equal + counts.total(), equal=equal, **counts)


def _difference(on: OnLogs, messages: Sequence[Message]) -> str:
    """ "" if both templates write the same, else what the official one does otherwise."""
    ask, message = messages
    ours = partial(
        render_template,
        on.tokenizer,
        tools=None,
        template=on.renderer.template,
        **on.family.as_of_today(),
    )
    try:
        theirs = _official(on, [ask, message])
    except RenderError as error:
        return next((name for words, name in REFUSED.items() if words in error.what), "unexplained")
    if ours(messages) == theirs:
        return ""
    if on.case.family == "deepseek-v3" and message.get("tool_calls") and not message["content"]:
        whole = ours(messages)
        if whole == f"{theirs}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>":
            return OPEN_CALL
        if theirs.replace("<｜tool▁calls▁end｜><｜end▁of▁sentence｜>", "") == whole.replace(
            "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>", ""
        ):
            return "closes the calls once for each call behind the first"
    blank = on.case.family.startswith("qwen3") and not message["content"].strip()
    if blank and ours(messages).replace("<tool_call>", "\n<tool_call>", 1) == theirs:
        return "writes a line break for a text that is blank"
    changes = DIFFERENCES[on.case.family]
    for count in range(1, len(changes) + 1):
        for chosen in itertools.combinations(changes, count):
            changed = message
            for _, change in chosen:
                changed = change(changed)
            if ours([ask, changed]) == theirs:
                return ", ".join(name for name, _ in chosen)
    return "unexplained"


def _official(on: OnLogs, messages: Sequence[Message], *, tools: Any = None) -> str:
    """What the official template writes.

    transformers takes a text that is None out of a message, and DeepSeek's template, which writes
    calls beside None only, fails without it: that one is rendered by Jinja itself.
    """
    asked = [_as_documented(on, m) if m["role"] == "assistant" else m for m in messages]
    if on.case.family != "deepseek-v3":
        template = on.tokenizer.chat_template
        return render_template(
            on.tokenizer, asked, tools=tools, template=template, **on.family.options
        )
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    bos = on.tokenizer.bos_token
    try:
        return jinja.from_string(on.tokenizer.chat_template).render(messages=asked, bos_token=bos)
    except TypeError as error:
        raise RenderError(str(error)) from error


def _as_documented(on: OnLogs, message: Message) -> Message:
    """A message in the shape that the official template is made for."""
    message = dict(message)
    if on.case.family == "gpt-oss":
        if message.get("reasoning_content"):
            message["thinking"] = message["reasoning_content"]
        else:
            message.pop("reasoning_content", None)
    if on.case.family == "deepseek-v3" and message.get("tool_calls") and not message["content"]:
        message["content"] = None
        message["tool_calls"] = [
            {
                **call,
                "function": {
                    **call["function"],
                    "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
                },
            }
            for call in message["tool_calls"]
        ]
    return message


WHOLE = ("qwen2.5", "qwen3-2507")
"""Families whose official template writes a whole conversation as ours does, whatever is in it."""
REWRITES_THOUGHTS = ("qwen3", "qwen3-thinking")
"""Families whose official template takes the think blocks, and the stripping behind them, from all
messages but the last; nothing else differs."""


def test_a_whole_conversation_is_what_the_official_template_writes_where_that_is_promised(
    on: OnLogs,
) -> None:
    if not on.case.compared:
        pytest.skip("the family is named: the tokenizer's own template is of no family")
    equal = refused = thoughts = 0
    for segment in on.segments:
        messages, tools = conversation_of(on, segment)
        try:
            theirs = _official(on, messages, tools=tools)
        except RenderError:
            refused += 1
            continue
        ours = render_template(
            on.tokenizer,
            messages,
            tools=tools,
            template=on.renderer.template,
            **on.family.as_of_today(),
        )
        equal += ours == theirs
        thoughts += ours != theirs and _without_thoughts(ours) == _without_thoughts(theirs)
    if on.case.family in WHOLE:
        assert equal == len(on.segments)
    if on.case.family in REWRITES_THOUGHTS:
        assert equal + thoughts == len(on.segments)
    counts = {"equal": equal, "refused": refused, "thoughts": thoughts}
    record(on.case, "whole conversations", segments=len(on.segments), **counts)


def _without_thoughts(text: str) -> str:
    """A conversation of Qwen3 without its think blocks, and what stood behind them stripped."""
    text = re.sub(r"<think>\n(?:(?!</think>).)*?\n</think>\n\n", "", text, flags=re.DOTALL)
    return re.sub(r"(<\|im_start\|>assistant\n)\n+", r"\1", text)


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("tokenizer-gptoss", "has no chat template"),
        ("tokenizer-llama3_1", "loses the name of a call"),
        ("smollm2", "loses the name of a call"),
    ],
)
def test_a_template_that_cannot_say_calls_is_refused_by_name(folder: str, words: str) -> None:
    tokenizer = load_tokenizer(str(cache_folder() / "folders" / folder))
    with pytest.raises(RenderError, match=words):
        Renderer.for_tokenizer(tokenizer).render(parallel_turns())
