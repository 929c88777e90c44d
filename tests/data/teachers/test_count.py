"""Our own token count is never above the bytes and never below real tokenizers on these texts, and
counts every field of an answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.data.teachers.count import (
    FREE_CHARACTERS,
    least_tokens,
    most_tokens,
    received_tokens,
    sent_tokens,
)

PROSE = (
    "The retry loop reads the settings file twice, so that a change in between is lost; move the"
    " call above it."
)
CODE = (
    "def load(path: Path) -> dict[str, Any]:\n    if not path.exists():\n        raise"
    " DataError(f'no file {path}', fix=\"run it\")\n"
)
JSON = (
    '{"tool_use_id":"toolu_01AbCdEf","is_error":true,"content":[{"type":"text","text":"exit code'
    ' 127"}]}'
)
HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
CHINESE = "\u4fee\u6539\u914d\u7f6e\u6587\u4ef6\u540e\u91cd\u65b0\u8fd0\u884c\u6d4b\u8bd5\u3002"
RUSSIAN = (
    "\u041e\u0448\u0438\u0431\u043a\u0430 \u043f\u0440\u0438 \u0447\u0442\u0435\u043d\u0438\u0438"
    " \u0444\u0430\u0439\u043b\u0430."
)
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
    return {"message": {"role": "assistant", "content": text, **more}, "finish_reason": "stop"}


def answer(*choices: dict[str, object], **more: object) -> dict[str, Any]:
    return {
        "id": "gen-1",
        "object": "chat.completion",
        "model": "maker/model-1",
        "choices": list(choices),
        **more,
    }


def test_an_answer_counts_up_to_its_bound_and_in_full_where_its_words_are_more() -> None:
    text = "word " * 100
    assert received_tokens(answer(said(text)), max_tokens=100) == 100
    assert received_tokens(answer(said(text)), max_tokens=99) > 250
    # a choice that nobody asked for
    assert received_tokens(answer(said(text), said(text)), max_tokens=100) == 200


def test_whatever_was_delivered_counts_and_what_is_shown_twice_counts_once() -> None:
    plain = received_tokens(answer(said("Done.")), max_tokens=10**6)
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "read", "arguments": '{"path": "' + WORDS + '"}'},
    }
    for field, value in (
        ("tool_calls", [call]),
        ("refusal", WORDS),
        ("reasoning", WORDS),
        ("audio", {"transcript": WORDS}),
    ):
        assert (
            received_tokens(answer(said("Done.", **{field: value})), max_tokens=10**6) > plain + 100
        ), field
    once = received_tokens(answer(said("Done.", reasoning=WORDS)), max_tokens=10**6)
    assert once == received_tokens(
        answer(said("Done.", reasoning=WORDS, reasoning_details=[{"text": WORDS}])),
        max_tokens=10**6,
    )
    assert (
        received_tokens(
            answer(
                said(
                    "Done.",
                    reasoning=WORDS,
                    reasoning_details=[{"text": WORDS.replace("word", "term")}],
                )
            ),
            max_tokens=10**6,
        )
        > once + 100
    )


UNSPACED = {
    "chinese": "\u7684" * 20_000,
    "base64": "QUJDREVG" * 2_500,
    "hex": HEX * 300,
    "digits": "1234567890" * 2_000,
    "lines": "\n" * 200_000,
}


@pytest.mark.parametrize("kind", UNSPACED)
def test_an_answer_without_spaces_is_not_taken_for_one_word(kind: str) -> None:
    text = UNSPACED[kind]
    assert received_tokens(answer(said(text)), max_tokens=1024) >= most_tokens(text) > 9_000
    assert (
        received_tokens(
            answer(said("", tool_calls=[{"function": {"arguments": text}}])), max_tokens=1024
        )
        > 9_000
    )


@pytest.mark.parametrize(("text", "real"), COUNTED)
def test_an_answer_that_was_held_to_its_bound_is_never_booked_above_it(
    text: str, real: int
) -> None:
    assert received_tokens(answer(said(text * 20)), max_tokens=20 * real) == 20 * real


@pytest.mark.parametrize(
    "place",
    [
        "choice",
        "choice, in a field of its own",
        "body",
        "id",
        "signature",
        "a field's name",
        "usage",
    ],
)
def test_what_stands_beside_the_message_counts(place: str) -> None:
    text, plain = "deep " * 5_000, said("Done.")
    bodies = {
        "choice": answer({**plain, "reasoning": text}),
        "choice, in a field of its own": answer(
            {**plain, "thoughts": {"id": "t1", "parts": [text]}}
        ),
        "body": answer(plain, output=text),
        "id": answer(plain) | {"id": text},
        "signature": answer(said("Done.", signature=text)),
        "a field's name": answer(plain, more={text: 1}),
        "usage": answer(plain, usage={"completion_tokens": 1, "note": text}),
    }
    assert received_tokens(bodies[place], max_tokens=1024) >= most_tokens(text) > 10_000


def test_what_an_honest_server_adds_is_free_and_log_probs_are_the_words_again() -> None:
    text = "Read the file, then the test. " * 10
    plain = received_tokens(
        {"choices": [{"message": {"role": "assistant", "content": text}}]}, max_tokens=1024
    )
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 80,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert (
        received_tokens(
            answer(said(text), usage=usage, provider="Maker", system_fingerprint="fp_1"),
            max_tokens=1024,
        )
        == plain
    )
    spelled = {
        "content": [
            {"token": word + " ", "bytes": [1], "top_logprobs": []} for word in text.split()
        ]
    }
    assert received_tokens(answer(said(text) | {"logprobs": spelled}), max_tokens=1024) == plain
    assert (
        received_tokens(
            answer(said(text) | {"logprobs": {"content": [{"token": "deep "}] * 9_000}}),
            max_tokens=1024,
        )
        > 9_000
    )


def test_sealed_thinking_is_no_answer_that_broke_its_bound() -> None:
    sealed = "QUJDREVG" * 500  # about 800 tokens of thinking
    shown = said("Done.", reasoning_details=[{"type": "reasoning.encrypted", "data": sealed}])
    assert len(sealed) > FREE_CHARACTERS and received_tokens(answer(shown), max_tokens=1024) == 1024
    assert received_tokens(answer(shown), max_tokens=256) > 1024


def test_nesting_does_not_end_the_count() -> None:
    deep: Any = "word " * 2_000
    for _ in range(5_000):
        deep = [deep]
    assert received_tokens(answer(said("Done."), output=deep), max_tokens=1024) > 2_000


def test_a_request_counts_messages_tools_and_what_stands_around_them() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": PROSE}]}
    assert most_tokens(PROSE) < sent_tokens(body) < most_tokens(PROSE) + 30
    tools = [{"type": "function", "function": {"name": "read", "description": PROSE}}]
    assert sent_tokens({**body, "tools": tools}) > sent_tokens(body) + most_tokens(PROSE) + 100
    # their text is sent too
    longer = [
        {"type": "function", "function": {"name": "read", "description": " ".join([PROSE] * 5)}}
    ]
    assert sent_tokens({**body, "tools": longer}) >= sent_tokens(
        {**body, "tools": tools}
    ) + 4 * most_tokens(PROSE)
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"description": PROSE}},
    }
    assert sent_tokens({**body, "response_format": schema}) >= sent_tokens(body) + most_tokens(
        PROSE
    )
