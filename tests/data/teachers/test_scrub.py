"""The key in every form in which an endpoint may return it, in every field of an answer, and the
time that the search takes."""

from __future__ import annotations

import base64
import json
import time

import pytest

from composer_replication.core.teacher import TeacherReply
from composer_replication.core.trace import Opaque, Text, ToolCall, Turn
from composer_replication.data.teachers.scrub import HELD_THE_KEY, MARK, KeyScrub

KEY = "sk-planted-" + "7hJ2mQ9x" * 4
SCRUB = KeyScrub(KEY)


def u(text: str) -> str:
    return "".join(f"\\u{ord(letter):04x}" for letter in text)


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


DRESSES = {
    "plain": KEY,
    "capitals": KEY.upper(),
    "JSON escapes": u(KEY),
    "escapes of escapes": u(u(KEY)),
    "escapes within JSON within JSON": json.dumps(json.dumps(u(KEY))),
    "\\x": "".join(f"\\x{ord(letter):02x}" for letter in KEY),
    "octal": "".join(f"\\{ord(letter):03o}" for letter in KEY),
    "URL": "".join(f"%{ord(letter):02X}" for letter in KEY),
    "URL of URL": "".join(f"%25{ord(letter):02X}" for letter in KEY),
    "HTML": "".join(f"&#{ord(letter)};" for letter in KEY),
    "HTML in hexadecimal": "".join(f"&#x{ord(letter):x};" for letter in KEY),
    "base64": b64(KEY),
    "base64 one off": b64("x" + KEY + " and more"),
    "base64 two off": b64("xy" + KEY + " and more"),
    "base64 of base64": b64(b64(f"key: {KEY} yes")),
    "base64 in lines": "\n".join(b64(KEY)[at : at + 8] for at in range(0, 60, 8)),
    "base64 with signs between": "-".join(b64(KEY)[at : at + 4] for at in range(0, 60, 4)),
    "hexadecimal": KEY.encode().hex(),
    "hexadecimal with colons": KEY.encode().hex(":").upper(),
    "backwards": KEY[::-1],
    "spaces": " ".join(KEY),
    "zero width": "\u200b".join(KEY),
    "colours": "\x1b[31m".join(KEY),
    "full width": "".join(chr(ord(letter) + 0xFEE0) for letter in KEY),
}


@pytest.mark.parametrize("dress", DRESSES)
def test_every_dress_is_taken_off_and_the_words_around_it_stay(dress: str) -> None:
    clean = SCRUB.text(f'before it: "{DRESSES[dress]}" and after.')
    assert (
        MARK in clean
        and clean.startswith('before it: "')
        and clean.endswith('" and after.')
        and not SCRUB.holds(clean)
    )


def test_every_string_of_an_answer_is_looked_at() -> None:
    call = ToolCall(u(KEY), KEY, {KEY: [u(KEY), {"deep": b64(KEY)}], "fine": 1})
    turn = Turn(
        role="assistant",
        author=f"m-{KEY}",
        blocks=(Text(f"it is {u(KEY)}"), Opaque("tool_call", u(KEY)), call),
    )
    clean = SCRUB.reply(
        TeacherReply(turn=turn, problem=KEY, provider=u(KEY), raw=json.dumps({"id": u(KEY)}))
    )
    assert (
        not SCRUB.holds(repr(clean))
        and repr(clean).count(MARK) == 11
        and clean.turn.text == f"it is {MARK}"
    )


def test_a_key_in_pieces_takes_the_words_with_it() -> None:
    half, rest = KEY[:20], KEY[20:]
    turn = Turn(
        role="assistant",
        author="m",
        blocks=(Text(f"first {half}"), ToolCall("c1", "read", {"path": "x"})),
    )
    assert SCRUB.reply(TeacherReply(turn=turn)).turn == turn
    split = Turn(role="assistant", author="m", blocks=(Text(half), Text(rest)))
    clean = SCRUB.reply(TeacherReply(turn=split))
    assert clean.turn.blocks == (Text(MARK),) and clean.problem == HELD_THE_KEY
    assert SCRUB.in_pieces(
        [{"token": letter, "logprob": -0.1} for letter in KEY]
    ) and not SCRUB.in_pieces([{"token": half}])


def test_ordinary_text_and_other_keys_stay() -> None:
    for text in (
        "sk-planted- is how they begin",
        b64("an ordinary text, with nothing that is secret"),
        "%7B%22a%22%3A1%7D",
        "\\u0041",
    ):
        assert SCRUB.text(text) == text
    assert KeyScrub("").text(KEY) == KEY and KeyScrub("abc").text("a b c abc") == f"a b c {MARK}"


def test_the_time_grows_with_the_length_alone() -> None:
    """Twenty times the text takes less than eighty times the time: nothing is looked at from every
    place to the end."""
    for piece in ("\\", "%25", "\\u0073k-pla", "a ", "QUJD", "7f:", "\x1b[", " ", "&#0"):
        spent: list[float] = []
        for num in (2_000, 40_000):
            runs: list[float] = []
            for _ in range(3):  # the best of three: a busy machine is not our slowness
                begun = time.process_time()
                SCRUB.text(piece * (num // len(piece)))
                runs.append(time.process_time() - begun)
            spent.append(min(runs))
        assert spent[1] < 80 * max(spent[0], 0.002), piece
