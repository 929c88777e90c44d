"""`ComposerDataCollator` and `CollatorConfig`, as the earlier public framework's guide names them: a thin front of `collate`.

    config = CollatorConfig(pad_token_id=tokenizer.pad_token_id, hint_generator=lambda kind, meta: "Read the file first.")
    batch = ComposerDataCollator(tokenizer, config)(trace_examples)

What differs from the guide: everything is rendered with the student's own chat template; masks are 0/1 and attention comes from lengths;
the teacher row is the student's with the hint inserted above the *marked* message, which is the mistake; `student_response_idx` and
`teacher_response_idx` say where its tokens stand on either side; what is too long raises and is never cut.

Shapes: B student rows, T length, H teacher rows (one per hint), P pairs, N tokens of the longest target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.guide import TraceExample, TraceTurn
from composer_replication.core.trace import Text, ToolCall, ToolResult, Turn
from composer_replication.tokens.batch import Batch, Rows, Targets, collate
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.tokens.renderer import Renderer

HintGenerator = Callable[[str, Mapping[str, Any]], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollatorConfig:
    """The guide's fields; `ignore_index` fills the index tensors behind the end of a target, where a gather must not go.

    Example: CollatorConfig(max_seq_len=4096, pad_token_id=0, hint_generator=my_hints, enable_replay_dpo=True)
    """

    max_seq_len: int = 4096
    max_dpo_seq_len: int = 2048
    pad_token_id: int = 0
    ignore_index: int = -100
    enable_sdpo: bool = True
    hint_generator: HintGenerator | None = None
    enable_replay_dpo: bool = False
    rlvr_reward_key: str = "final_reward"

    def __post_init__(self) -> None:
        if self.enable_sdpo and self.hint_generator is None:
            raise ConfigError("enable_sdpo needs a hint_generator", fix="give hint_generator(kind, meta) -> text or None, or switch it off")
        if self.ignore_index >= 0:
            raise ConfigError(f"ignore_index {self.ignore_index} is a position", fix="use a negative number")


class ComposerDataCollator:
    """Turns the guide's examples into one batch of tensors, e.g. ComposerDataCollator(tokenizer, config)(examples, pairs).

    Keys: input_ids attention_mask response_mask rewards; with enable_sdpo ctx_teacher_input_ids ctx_teacher_attention_mask
    sdpo_loss_mask sdpo_row student_response_idx teacher_response_idx; with enable_replay_dpo dpo_{chosen,rejected}_{input_ids,
    attention_mask,response_mask}. `sdpo_row` is the student row of each teacher row. A marked message is in no response_mask.
    """

    def __init__(self, tokenizer: Any, config: CollatorConfig, *, family: str = "auto") -> None:
        self.config = config
        self.renderer = Renderer.for_tokenizer(tokenizer, family=family)

    def __call__(self, examples: Sequence[TraceExample], pairs: Sequence[PreferencePair] = ()) -> dict[str, Tensor]:
        """One batch; raises DataError for a row that is too long, or where enable_replay_dpo is on and no pair is given."""
        config = self.config
        if config.enable_replay_dpo and not pairs:
            raise DataError("enable_replay_dpo is on, but no pair was given", fix="give pairs, or switch it off")
        built = [self.training_example(example) for example in examples]
        batch = collate(built, pairs if config.enable_replay_dpo else (), pad_id=config.pad_token_id)
        _check_length(batch.student, config.max_seq_len, [e.id for e in built], "max_seq_len")
        if config.enable_sdpo:
            _check_length(batch.teacher, config.max_seq_len, [v.site_id for e in built for v in e.hints], "max_seq_len")
        if config.enable_replay_dpo:
            _check_length(batch.pair, config.max_dpo_seq_len, [p.id for p in pairs] * 2, "max_dpo_seq_len")
        rewards = torch.tensor([float(getattr(e, config.rlvr_reward_key)) for e in examples])
        kept = guide_keys(batch, ignore_index=config.ignore_index, hints=config.enable_sdpo, pairs=config.enable_replay_dpo)
        return {"rewards": rewards, **kept}

    def training_example(self, example: TraceExample) -> TrainingExample:
        """The guide's example in the project's own form, rendered with the student's template."""
        turns = [_turn(t) for t in example.turns]
        rendered = self.renderer.render(turns)
        marked = [i for i, t in enumerate(example.turns) if t.error_kind is not None]
        views = []
        for i in marked if self.config.enable_sdpo else ():
            hint = (
                self.config.hint_generator(example.turns[i].error_kind or "", example.turns[i].error_meta)
                if self.config.hint_generator
                else None
            )
            if hint is not None:
                kind, site_id = example.turns[i].error_kind or "", f"{example.id}:{i}"
                views.append(self.renderer.hint_view(turns, target=i, hint=hint, site_id=site_id, kind=kind, within=rendered))
        fine = {i for i, t in enumerate(example.turns) if t.trained and t.error_kind is None}
        trained = tuple(s.body for s in rendered.spans if s.role == "assistant" and s.turn in fine and s.body[0] < s.body[1])
        return TrainingExample(
            id=example.id, session_id=example.id, ids=rendered.ids, trained=trained, hints=tuple(views), turns=rendered.spans
        )


def guide_keys(batch: Batch, *, ignore_index: int = -100, hints: bool = True, pairs: bool = True) -> dict[str, Tensor]:
    """A batch of `collate` under the guide's names; what the collator gives, without the rewards.

    Example: guide_keys(batch)["sdpo_row"] -> tensor([1]): the only teacher row belongs to student row 1
    """
    result = {
        "input_ids": batch.student.ids_BT,
        "attention_mask": batch.student.attention_BT,
        "response_mask": _mask(batch.student, batch.lm),
    }
    if hints:
        rows = {int(item): int(row) for item, row in zip(batch.hint_student.item_N, batch.hint_student.row_N, strict=True)}
        result |= {
            "ctx_teacher_input_ids": batch.teacher.ids_BT,
            "ctx_teacher_attention_mask": batch.teacher.attention_BT,
            "sdpo_loss_mask": _mask(batch.teacher, batch.hint_teacher),
            "sdpo_row": torch.tensor([rows[item] for item in range(batch.hint_student.num_items)], dtype=torch.long),
            "student_response_idx": _positions(batch.hint_student, ignore_index),
            "teacher_response_idx": _positions(batch.hint_teacher, ignore_index),
        }
    if pairs:
        mask_BT = _mask(batch.pair, batch.response)
        for side, part in (("chosen", slice(0, batch.num_pairs)), ("rejected", slice(batch.num_pairs, None))):
            result[f"dpo_{side}_input_ids"] = batch.pair.ids_BT[part]
            result[f"dpo_{side}_attention_mask"] = batch.pair.attention_BT[part]
            result[f"dpo_{side}_response_mask"] = mask_BT[part]
    return result


def _turn(turn: TraceTurn) -> Turn:
    """A chat message as a Turn; raises DataError for a call whose arguments are not JSON."""
    if turn.role == "tool":
        return Turn(role="tool", author=None, blocks=(ToolResult(turn.tool_call_id or "", turn.content),))
    if turn.role not in ("system", "user", "assistant"):
        raise DataError(f"unknown role {turn.role!r}", fix="use system, user, assistant or tool")
    text = (Text(turn.content),) if turn.content else ()
    return Turn(role=turn.role, author=None, blocks=text + tuple(_call(c) for c in turn.tool_calls))


def _call(call: Mapping[str, Any]) -> ToolCall:
    arguments = call["function"]["arguments"]
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    except json.JSONDecodeError as error:
        raise DataError(f"the arguments of call {call.get('id')!r} are not JSON: {error}") from error
    return ToolCall(call["id"], call["function"]["name"], parsed)


def _check_length(rows: Rows, limit: int, names: Sequence[str], knob: str) -> None:
    for name, length in zip(names, rows.lengths_B.tolist(), strict=True):
        if length > limit:
            raise DataError(f"{name} has {length} tokens, {knob} is {limit}", fix=f"raise {knob} or window the session; nothing is cut")


def _mask(rows: Rows, targets: Targets) -> Tensor:
    """1 at every target token, 0 elsewhere."""
    mask_BT = torch.zeros_like(rows.ids_BT)
    mask_BT[targets.row_N, targets.position_N] = 1
    return mask_BT


def _positions(targets: Targets, fill: int) -> Tensor:
    """(H, N): where each target token stands in its row; the logits that predict it stand one before."""
    counts = torch.bincount(targets.item_N, minlength=targets.num_items)
    positions_HN = torch.full((targets.num_items, int(counts.max()) if targets.num_items else 0), fill, dtype=torch.long)
    for item in range(targets.num_items):
        positions_HN[item, : int(counts[item])] = targets.position_N[targets.item_N == item]
    return positions_HN
