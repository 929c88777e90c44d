"""The guide's collator: its keys, 0/1 masks, alignment indices, and no cutting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from composer_replication.compat.guide_collator import CollatorConfig, ComposerDataCollator
from composer_replication.compat.guide_pairs import DJNormalizer, DPOPair
from composer_replication.compat.guide_types import TraceExample, TraceTurn
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.tokens.example import PreferencePair
from composer_replication.tokens.tiny_tokenizer import train_tiny_tokenizer

BAD = {"id": "c1", "function": {"name": "read_flie", "arguments": '{"path": "a.py"}'}}
GOOD = {"id": "c2", "function": {"name": "read_file", "arguments": {"path": "a.py"}}}
EXAMPLE = TraceExample(
    id="s1",
    turns=(
        TraceTurn(role="user", content="Fix the test."),
        TraceTurn(
            role="assistant",
            content="I look.",
            tool_calls=(BAD,),
            error_kind="unknown_tool",
            error_meta={"tool": "read_flie"},
        ),
        TraceTurn(role="tool", content="No such tool.", tool_call_id="c1"),
        TraceTurn(role="assistant", content="", tool_calls=(GOOD,)),
        TraceTurn(role="tool", content="import x", tool_call_id="c2"),
        TraceTurn(role="assistant", content="Done."),
    ),
    final_reward=0.5,
)
SHORT = TraceExample(
    id="s2",
    turns=(TraceTurn(role="user", content="Hi."), TraceTurn(role="assistant", content="Hello.")),
)
PAIR = PreferencePair(
    id="p", session_id="s1", prefix_ids=(5, 6), chosen_ids=(7, 8, 9), rejected_ids=(7, 9)
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tiny_tokenizer(["Fix the test. read_file a.py Done. import"] * 30, vocab_size=400)


def hint(kind: str, meta: Mapping[str, Any]) -> str | None:
    return f"Available tools: read_file ({kind}, not {meta['tool']})."


def make(tokenizer: Any, **options: Any) -> ComposerDataCollator:
    config = CollatorConfig(
        **{"pad_token_id": tokenizer.eos_token_id, "hint_generator": hint, **options}
    )
    return ComposerDataCollator(tokenizer, config)


def test_keys_masks_and_alignment(tokenizer: Any) -> None:
    batch = make(tokenizer)([SHORT, EXAMPLE])
    assert set(batch) == {
        *(
            "input_ids",
            "attention_mask",
            "response_mask",
            "rewards",
            "example_idx",
            "ctx_teacher_input_ids",
            "ctx_teacher_attention_mask",
        ),
        *("sdpo_loss_mask", "sdpo_row", "student_response_idx", "teacher_response_idx"),
    }
    for name in ("attention_mask", "response_mask", "sdpo_loss_mask"):
        assert set(batch[name].unique().tolist()) <= {0, 1}
    assert batch["rewards"].tolist() == [0.0, 0.5] and batch["sdpo_row"].tolist() == [1]
    student, teacher = batch["input_ids"][1], batch["ctx_teacher_input_ids"][0]
    at, teacher_position = batch["student_response_idx"][0], batch["teacher_response_idx"][0]
    assert (
        torch.equal(student[at], teacher[teacher_position])
        and int(teacher_position[0] - at[0]) == int((teacher_position - at).unique()) > 0
    )
    assert batch["sdpo_loss_mask"].nonzero()[:, 1].tolist() == teacher_position.tolist()
    target = tokenizer.decode(student[at])
    assert target.startswith("I look.") and "read_flie" in target and target.endswith("<|im_end|>")
    assert "Available tools: read_file (unknown_tool, not read_flie)." in tokenizer.decode(teacher)
    assert "No such tool" not in tokenizer.decode(
        teacher
    ) and "Available tools" not in tokenizer.decode(student)


def test_the_teachers_hint_stands_in_the_set_position(tokenizer: Any) -> None:
    batch = make(tokenizer, hint_position="reminder")([EXAMPLE])
    teacher = tokenizer.decode(batch["ctx_teacher_input_ids"][0])
    assert "<system-reminder>\nAvailable tools: read_file" in teacher
    assert "<|im_start|>system\nAvailable tools" not in teacher


def test_the_response_mask_is_what_the_model_wrote_without_the_mistake(tokenizer: Any) -> None:
    batch = make(tokenizer)([EXAMPLE])
    text = tokenizer.decode(batch["input_ids"][0][batch["response_mask"][0].bool()])
    assert "read_file" in text and "Done.<|im_end|>" in text
    assert not any(
        word in text for word in ("read_flie", "I look", "Fix", "import x", "assistant\n")
    )


def test_attention_is_from_lengths_although_pad_is_the_end_token(tokenizer: Any) -> None:
    batch = make(tokenizer)([SHORT, EXAMPLE])
    ends = batch["input_ids"] == tokenizer.eos_token_id
    alone = make(tokenizer)([SHORT])["input_ids"].shape[1]
    assert batch["attention_mask"].sum(1).tolist()[0] == alone
    # both real end tokens are attended
    assert int((ends & batch["attention_mask"].bool())[0].sum()) == 2


def test_indices_of_shorter_targets_are_filled_with_ignore_index(tokenizer: Any) -> None:
    twice = TraceExample(
        id="s3",
        turns=(
            *EXAMPLE.turns[:3],
            TraceTurn(
                role="assistant", content="No.", error_kind="other", error_meta={"tool": "?"}
            ),
            TraceTurn(role="user", content="And?"),
        ),
    )
    idx = make(tokenizer, ignore_index=-7)([twice])["student_response_idx"]
    assert idx.shape[0] == 2 and idx[0].min() > 0 and idx[1, -1] == -7


def test_pairs_become_chosen_and_rejected_rows(tokenizer: Any) -> None:
    batch = make(tokenizer, enable_sdpo=False, hint_generator=None, enable_replay_dpo=True)(
        [SHORT], [PAIR]
    )
    assert batch["dpo_chosen_input_ids"].tolist() == [[5, 6, 7, 8, 9]]
    assert batch["dpo_chosen_response_mask"].tolist() == [[0, 0, 1, 1, 1]]
    assert batch["dpo_rejected_attention_mask"].tolist() == [[1, 1, 1, 1, 0]]
    assert (
        batch["dpo_rejected_response_mask"].tolist() == [[0, 0, 1, 1, 0]]
        and "sdpo_row" not in batch
    )


def test_a_hint_generator_may_decline_and_the_mistake_is_still_not_trained(tokenizer: Any) -> None:
    batch = make(tokenizer, hint_generator=lambda kind, meta: None)([EXAMPLE])
    assert batch["ctx_teacher_input_ids"].shape[0] == batch["student_response_idx"].shape[0] == 0
    assert "read_flie" not in tokenizer.decode(
        batch["input_ids"][0][batch["response_mask"][0].bool()]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [({"max_seq_len": 20}, "max_seq_len is 20"), ({"max_dpo_seq_len": 4}, "max_dpo_seq_len is 4")],
)
def test_what_is_too_long_raises_and_is_not_cut(
    tokenizer: Any, options: dict[str, int], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        make(tokenizer, enable_replay_dpo=True, **options)([EXAMPLE], [PAIR])


def test_a_teacher_row_that_is_too_long_is_left_out_and_told(tokenizer: Any) -> None:
    length = make(tokenizer)([EXAMPLE])["input_ids"].shape[1]
    wordy = make(
        tokenizer, max_seq_len=length, hint_generator=lambda kind, meta: "Read this. " * 30
    )
    with pytest.warns(UserWarning, match=r"leaves out: hint/too_long \(1\)"):
        batch = wordy([EXAMPLE])
    assert len(batch["sdpo_row"]) == 0 and wordy.skipped == {"hint/too_long": 1}


def test_a_long_conversation_becomes_windows_and_nothing_is_cut(tokenizer: Any) -> None:
    """Every message of the model is trained once, whole, in some row; each row has the reward of
    its example."""
    texts = [f"I look at file number {n} and say what is in it." for n in range(12)]
    turns = [
        turn
        for text in texts
        for turn in (
            {"role": "user", "content": "And the next?"},
            {"role": "assistant", "content": text},
        )
    ]
    turns[9] = {**turns[9], "error_kind": "file_missing", "error_meta": {"tool": "none"}}
    collator = make(tokenizer, max_seq_len=160)
    batch = collator([SHORT, {"turns": turns, "final_reward": 2.0}])
    rows = batch["input_ids"].shape[0]
    assert (
        rows > 3
        and batch["input_ids"].shape[1] <= 160
        and batch["ctx_teacher_input_ids"].shape == batch["ctx_teacher_attention_mask"].shape
    )
    assert batch["example_idx"].tolist() == [0] + [1] * (rows - 1) and batch[
        "rewards"
    ].tolist() == [0.0] + [2.0] * (rows - 1)
    trained = "".join(
        tokenizer.decode(ids[mask.bool()])
        for ids, mask in zip(batch["input_ids"], batch["response_mask"], strict=True)
    )
    assert [trained.count(f"{text}<|im_end|>") for text in texts] == [
        int(n != 4) for n in range(12)
    ]
    assert collator.skipped == {} and len(batch["sdpo_row"]) == 1
    row, at = int(batch["sdpo_row"][0]), batch["student_response_idx"][0]
    assert tokenizer.decode(batch["input_ids"][row][at]) == f"{texts[4]}<|im_end|>"


def test_examples_are_dictionaries_too_and_rewards_have_any_name(tokenizer: Any) -> None:
    plain = {"turns": [dict(turn) for turn in EXAMPLE.turns], "final_reward": 0.5}
    ours, theirs = make(tokenizer)([EXAMPLE]), make(tokenizer)([plain])
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    named = {"turns": plain["turns"], "score": 3}
    assert make(tokenizer, rlvr_reward_key="score")([named])["rewards"].tolist() == [3.0]
    with pytest.raises(DataError, match="no 'score', the rlvr_reward_key"):
        make(tokenizer, rlvr_reward_key="score")([plain | {"final_reward": 0.5}])


def test_messages_marked_untrained_are_in_no_mask(tokenizer: Any) -> None:
    turns = [TraceTurn.of({**turn, "trained": n != 3}) for n, turn in enumerate(EXAMPLE.turns)]
    batch = make(tokenizer)([TraceExample(turns=tuple(turns))])
    assert (
        tokenizer.decode(batch["input_ids"][0][batch["response_mask"][0].bool()])
        == "Done.<|im_end|>"
    )


def test_without_settings_the_hint_is_the_one_that_a_turn_carries(tokenizer: Any) -> None:
    turns = [
        TraceTurn.of({**turn, "error_meta": {"hint": "Read it first."} if turn.error_kind else {}})
        for turn in EXAMPLE.turns
    ]
    batch = ComposerDataCollator(tokenizer, CollatorConfig())([TraceExample(turns=tuple(turns))])
    assert "Read it first." in tokenizer.decode(batch["ctx_teacher_input_ids"][0]) and set(
        batch
    ) == set(make(tokenizer)([EXAMPLE]))
    same = ComposerDataCollator(tokenizer)([TraceExample(turns=tuple(turns))])
    assert all(torch.equal(same[key], batch[key]) for key in batch)
    with pytest.raises(
        ConfigError, match=r"marked 'unknown_tool', but there is no hint .*hint_generator"
    ):
        ComposerDataCollator(tokenizer, CollatorConfig())([EXAMPLE])


def test_the_pairs_of_the_guide_become_rows_with_the_students_own_template(tokenizer: Any) -> None:
    """The output of DJNormalizer as an object, as a dictionary, and the raw pair give the same
    rows; a call is rendered as a call."""
    messages = [{"role": "user", "content": "Fix the test."}]
    good = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {**GOOD, "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}
        ],
    }
    raw = DPOPair(
        state_id="s1:1",
        state_messages=messages,
        chosen='read_file {"path":"a.py"}',
        rejected="Done.",
        chosen_message=good,
    )
    (normalized,) = DJNormalizer().normalize([raw])
    collator = make(tokenizer, enable_sdpo=False, enable_replay_dpo=True)
    first, *others = [collator([SHORT], [pair]) for pair in (normalized, dict(normalized), raw)]
    for other_row in others:
        assert all(torch.equal(first[key], other_row[key]) for key in first)
    chosen, rejected = (
        tokenizer.decode(
            first[f"dpo_{side}_input_ids"][0][first[f"dpo_{side}_response_mask"][0].bool()]
        )
        for side in ("chosen", "rejected")
    )
    assert (
        "<tool_call>" in chosen
        and "read_file" in chosen
        and chosen.endswith("<|im_end|>")
        and rejected == "Done.<|im_end|>"
    )
    with pytest.raises(DataError, match=r"this is no pair: it has prompt \(at pair 0\)"):
        collator([SHORT], [{"prompt": "x"}])


def test_settings_that_would_give_a_silent_zero_are_refused(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="is a position"):
        CollatorConfig(hint_generator=hint, ignore_index=0)
    with pytest.raises(DataError, match="no pair was given"):
        make(tokenizer, enable_replay_dpo=True)([SHORT])


def test_messages_that_cannot_be_read_are_named(tokenizer: Any) -> None:
    odd = TraceTurn(
        role="assistant",
        content="",
        tool_calls=({"id": "c9", "function": {"name": "f", "arguments": "{"}},),
    )
    for turn, message in (
        (TraceTurn(role="critic", content="x"), "unknown role 'critic'"),
        (odd, "call 'c9' are not JSON"),
    ):
        with pytest.raises(DataError, match=message):
            make(tokenizer)([TraceExample(id="s", turns=(SHORT.turns[0], turn))])
