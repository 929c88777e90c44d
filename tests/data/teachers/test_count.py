"""Our own count: never more than bytes, never below what real tokenizers made of these texts, and every field of an answer counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.data.teachers.count import least_tokens, most_tokens, received_tokens, sent_tokens

PROSE = "The retry loop reads the settings file twice, so that a change in between is lost; move the call above it."
CODE = "def load(path: Path) -> dict[str, Any]:\n    if not path.exists():\n        raise DataError(f'no file {path}', fix=\"run it\")\n"
JSON = '{"tool_use_id":"toolu_01AbCdEf","is_error":true,"content":[{"type":"text","text":"exit code 127"}]}'
HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
CHINESE = "\u4fee\u6539\u914d\u7f6e\u6587\u4ef6\u540e\u91cd\u65b0\u8fd0\u884c\u6d4b\u8bd5\u3002"
RUSSIAN = "\u041e\u0448\u0438\u0431\u043a\u0430 \u043f\u0440\u0438 \u0447\u0442\u0435\u043d\u0438\u0438 \u0444\u0430\u0439\u043b\u0430."
COUNTED = [(PROSE, 25), (CODE, 41), (JSON, 38), (HEX, 59), (CHINESE, 8), (RUSSIAN, 12)]
WORDS = "word " * 50


@pytest.mark.parametrize(("text", "real"), COUNTED)
def test_it_is_above_the_dearest_of_six_tokenizers_and_not_far_above(text: str, real: int) -> None:
    assert least_tokens(text) <= real <= most_tokens(text) <= 3.6 * real


@given(st.text(max_size=300))
def test_it_is_never_more_than_bytes_nor_less_than_words(text: str) -> None:
    assert most_tokens(text) <= len(text.encode("utf-8", "surrogatepass"))
    assert (most_tokens(text) > 0) == bool(text.strip(" ")) or len(text) > 1


def said(text: str, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": text, **more}


def test_an_answer_counts_up_to_its_bound_and_in_full_where_its_words_are_more() -> None:
    words = "word " * 100
    assert received_tokens([said(words)], max_tokens=100) == 100
    assert received_tokens([said(words)], max_tokens=99) > 250
    assert received_tokens([said(words), said(words)], max_tokens=100) == 200  # a choice that nobody asked for


def test_whatever_was_delivered_counts_and_what_is_shown_twice_counts_once() -> None:
    plain = received_tokens([said("Done.")], max_tokens=10**6)
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "' + WORDS + '"}'}}
    for field, value in (
        ("tool_calls", [call]),
        ("refusal", WORDS),
        ("reasoning", WORDS),
        ("audio", {"transcript": WORDS}),
    ):
        assert received_tokens([said("Done.", **{field: value})], max_tokens=10**6) > plain + 100, field
    once = received_tokens([said("Done.", reasoning=WORDS)], max_tokens=10**6)
    assert once == received_tokens([said("Done.", reasoning=WORDS, reasoning_details=[{"text": WORDS}])], max_tokens=10**6)
    assert (
        received_tokens([said("Done.", reasoning=WORDS, reasoning_details=[{"text": WORDS.replace("word", "term")}])], max_tokens=10**6)
        > once + 100
    )


def test_a_request_counts_messages_tools_and_what_stands_around_them() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": PROSE}]}
    assert most_tokens(PROSE) < sent_tokens(body) < most_tokens(PROSE) + 30
    tools = [{"type": "function", "function": {"name": "read", "description": PROSE}}]
    assert sent_tokens({**body, "tools": tools}) > sent_tokens(body) + most_tokens(PROSE) + 100
    longer = [{"type": "function", "function": {"name": "read", "description": " ".join([PROSE] * 5)}}]  # what they say is sent too
    assert sent_tokens({**body, "tools": longer}) >= sent_tokens({**body, "tools": tools}) + 4 * most_tokens(PROSE)
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"description": PROSE}}}
    assert sent_tokens({**body, "response_format": schema}) >= sent_tokens(body) + most_tokens(PROSE)
