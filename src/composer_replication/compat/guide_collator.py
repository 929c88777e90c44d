"""The earlier guide's `ComposerDataCollator`: a thin front of build and `collate`.

    collator = ComposerDataCollator(tokenizer, CollatorConfig(enable_replay_dpo=True))
    batch = collator(trace_examples, normalized_pairs)        # records or dictionaries
    collator.skipped                                          # messages left out, also in a warning

Differences from the guide: everything is rendered with the student's chat template; masks are 0/1
and attention comes from lengths; the teacher row is the student's with the hint inserted above the
*marked* message, which is the mistake; `student_response_idx` and `teacher_response_idx` are the
positions of its tokens on either side; a conversation that is longer than a row becomes several
windows of whole messages, as `recompose build` cuts them, and no message is ever cut.

Shapes: B student rows, T length, H teacher rows (one per hint), P pairs, N tokens of the longest
target.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from composer_replication.compat.guide_types import TraceExample, TraceTurn
from composer_replication.core.config.data_settings import HintPosition
from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.site import Hint, Preference, Site
from composer_replication.core.trace import Segment, Session, SourceRef, Turn
from composer_replication.data.chat import tool_from_chat
from composer_replication.tokens.batch import Batch, Rows, Targets, collate
from composer_replication.tokens.dataset import build_examples
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.skipped import Skipped

HintGenerator = Callable[[str, Mapping[str, Any]], str | None]
_INTENDED_SKIPS = frozenset(
    (("hint", "no_hint"), ("hint", "category"), ("lm_ce", "site"), ("lm_ce", "author"))
)
"""Skips that the input asks for: a mistake without a hint, a message that is not trained."""
_NOBODY = "\0nobody"


class TokenizerLike(Protocol):
    """The parts of a tokenizer that the collator uses, as PreTrainedTokenizerFast has them."""

    chat_template: Any
    pad_token_id: int | None
    eos_token_id: int | None

    def __len__(self) -> int: ...
    def __call__(self, text: str, **kwargs: Any) -> Any: ...
    def decode(self, ids: Any, **kwargs: Any) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CollatorConfig:
    """The guide's fields, each with a default.

    Without a `hint_generator` a marked turn's hint is `error_meta["hint"]`, which
    `claude_states_to_trace_examples` writes. `pad_token_id` None is the tokenizer's. `ignore_index`
    pads the index tensors after the end of a target. `hint_position` (ours) is hints.position.

    Example: CollatorConfig(max_seq_len=4096, hint_generator=my_hints, enable_replay_dpo=True)
    """

    max_seq_len: int = 4096
    max_dpo_seq_len: int = 2048
    pad_token_id: int | None = None
    ignore_index: int = -100
    enable_sdpo: bool = True
    hint_generator: HintGenerator | None = None
    enable_replay_dpo: bool = False
    rlvr_reward_key: str = "final_reward"
    hint_position: HintPosition = "system"

    def __post_init__(self) -> None:
        if self.ignore_index >= 0:
            raise ConfigError(
                f"ignore_index {self.ignore_index} is a position", fix="use a negative number"
            )


class ComposerDataCollator:
    """Turns the guide's examples and pairs into one batch of tensors.

    Keys: input_ids attention_mask response_mask rewards example_idx; with enable_sdpo
    ctx_teacher_input_ids ctx_teacher_attention_mask sdpo_loss_mask sdpo_row student_response_idx
    teacher_response_idx; with enable_replay_dpo dpo_{chosen,rejected}_{input_ids,
    attention_mask,response_mask}. `example_idx` is the example of each row (a long one has
    several), `sdpo_row` the student row of each teacher row. A marked message is in no
    response_mask. `skipped` counts what was left out of the last batch, by reason.
    """

    def __init__(
        self, tokenizer: Any, config: CollatorConfig | None = None, *, family: str = "auto"
    ) -> None:
        self.config = config or CollatorConfig()
        self.renderer = Renderer.for_tokenizer(tokenizer, family=family)
        self.skipped: Counter[str] = Counter()

    def __call__(
        self,
        examples: Sequence[TraceExample | Mapping[str, Any]],
        pairs: Sequence[PreferencePair | Mapping[str, Any]] = (),
    ) -> dict[str, Tensor]:
        """Return one batch.

        Raises DataError if no example or no pair fits, and if pairs are enabled but none is given.
        """
        config = self.config
        if config.enable_replay_dpo and not pairs:
            raise DataError(
                "enable_replay_dpo is on, but no pair was given", fix="give pairs, or switch it off"
            )
        self.skipped = Counter()
        built = [
            (number, item)
            for number, example in enumerate(examples)
            for item in self.training_examples(example, number=number)
        ]
        if not built:
            raise self._nothing_left("examples", "max_seq_len", config.max_seq_len)
        tokenized = (
            [self._pair(pair, number) for number, pair in enumerate(pairs)]
            if config.enable_replay_dpo
            else []
        )
        sides = [pair for pair in tokenized if pair is not None]
        if tokenized and not sides:
            raise self._nothing_left("pairs", "max_dpo_seq_len", config.max_dpo_seq_len)
        if self.skipped:
            summary = ", ".join(f"{name} ({num})" for name, num in self.skipped.most_common())
            warnings.warn(f"ComposerDataCollator leaves out: {summary}", UserWarning, stacklevel=2)
        batch = collate([item for _, item in built], sides, pad_id=self._pad_id())
        tensors = guide_keys(
            batch,
            ignore_index=config.ignore_index,
            hints=config.enable_sdpo,
            pairs=config.enable_replay_dpo,
        )
        rewards = [self._reward(examples[number], number) for number, _ in built]
        return {
            "rewards": torch.tensor(rewards),
            "example_idx": torch.tensor([number for number, _ in built]),
            **tensors,
        }

    def training_examples(
        self, example: TraceExample | Mapping[str, Any], *, number: int = 0
    ) -> list[TrainingExample]:
        """Return the windows of an example as TrainingExamples."""
        fields = (
            {key: value for key, value in example.items() if key != self.config.rlvr_reward_key}
            if type(example) is dict
            else example
        )
        record = TraceExample.of(fields, where=f"example {number}")
        name = record.id or f"example {number}"
        session = _session(name, [turn.turn() for turn in record.turns], record.tools)
        sites, hints = self._sites_and_hints(record, name)
        settings = BuildSettings(max_tokens=self.config.max_seq_len)
        return [
            item
            for item in self._build(session, settings, sites=sites, hints=hints)
            if isinstance(item, TrainingExample)
        ]

    def _sites_and_hints(self, example: TraceExample, name: str) -> tuple[list[Site], list[Hint]]:
        """Return a site for every message that lm_ce must not train, and hints for the mistakes."""
        sites, hints = [], []
        for number, turn in enumerate(example.turns):
            if turn.role != "assistant" or (turn.trained and turn.error_kind is None):
                continue
            category = "rejected" if turn.error_kind is None else "mistake"
            site = Site(
                session_id=name,
                turn=number,
                kind=turn.error_kind or "",
                detector="guide",
                evidence=(),
                category=category,
            )
            sites.append(site)
            if (
                turn.error_kind is not None
                and self.config.enable_sdpo
                and (text := self._hint(turn, site.id))
            ):
                hints.append(Hint(site_id=site.id, text=text, writer="guide", kind=turn.error_kind))
        return sites, hints

    def _hint(self, turn: TraceTurn, where: str) -> str | None:
        if self.config.hint_generator is not None:
            return self.config.hint_generator(turn.error_kind or "", turn.error_meta)
        if "hint" not in turn.error_meta:
            fix = (
                "give hint_generator(kind, meta) -> text or None, put the text into"
                " error_meta['hint'], or set enable_sdpo=False"
            )
            raise ConfigError(
                f"a turn is marked {turn.error_kind!r}, but there is no hint for it",
                where=where,
                fix=fix,
            )
        return turn.error_meta["hint"]

    def _pair(self, pair: PreferencePair | Mapping[str, Any], number: int) -> PreferencePair | None:
        """Return a pair as tokens.

        It may be tokens already, a pair of `extract_dpo_pairs` or `DJNormalizer`, or a dictionary.
        """
        if isinstance(pair, PreferencePair):
            length = len(pair.prefix_ids) + max(len(pair.chosen_ids), len(pair.rejected_ids))
            if length <= self.config.max_dpo_seq_len:
                return pair
            self.skipped["preference/too_long"] += 1
            return None
        name = f"pair {number}"
        context, chosen, rejected = _sides(pair, where=name)
        session = _session(name, [*context, rejected], pair.get("tools") or ())
        settings = BuildSettings(max_tokens=self.config.max_dpo_seq_len, authors=(_NOBODY,))
        preference = Preference(
            session_id=name, turn=len(context), chosen=chosen, rejected=rejected
        )
        return next(
            (
                item
                for item in self._build(session, settings, pairs=[preference])
                if isinstance(item, PreferencePair)
            ),
            None,
        )

    def _build(
        self,
        session: Session,
        settings: BuildSettings,
        *,
        sites: Sequence[Site] = (),
        hints: Sequence[Hint] = (),
        pairs: Sequence[Preference] = (),
    ) -> list[TrainingExample | PreferencePair]:
        """Build the examples of a conversation, and count those that are left out."""
        items = []
        for item in build_examples(
            [session],
            sites=sites,
            hints=hints,
            preferences=pairs,
            renderer=self.renderer,
            settings=settings,
            position=self.config.hint_position,
        ):
            if not isinstance(item, Skipped):
                items.append(item)
            elif (item.channel, item.reason) not in _INTENDED_SKIPS:
                self.skipped[f"{item.channel}/{item.reason}"] += item.count
        return items

    def _nothing_left(self, noun: str, setting: str, limit: int) -> DataError:
        reasons = (
            ", ".join(f"{name} ({num})" for name, num in self.skipped.most_common())
            or "no message of a model to train on"
        )
        fix = f"raise {setting} if they are too long: no message is cut"
        return DataError(
            f"nothing is left of the {noun}: {reasons}; {setting} is {limit}",
            where="ComposerDataCollator",
            fix=fix,
        )

    def _reward(self, example: Mapping[str, Any], number: int) -> float:
        key = self.config.rlvr_reward_key
        if key not in example and key != "final_reward":
            raise DataError(
                f"there is no {key!r}, the rlvr_reward_key",
                where=f"example {number}",
                fix="give every example its reward",
            )
        return float(example.get(key, 0.0))

    def _pad_id(self) -> int:
        """Return the configured pad id, or the tokenizer's; masks never depend on it."""
        tokenizer = self.renderer.tokenizer
        ids = (
            self.config.pad_token_id,
            getattr(tokenizer, "pad_token_id", None),
            getattr(tokenizer, "eos_token_id", None),
        )
        return next((pad_id for pad_id in ids if pad_id is not None), 0)


def guide_keys(
    batch: Batch, *, ignore_index: int = -100, hints: bool = True, pairs: bool = True
) -> dict[str, Tensor]:
    """Return a batch of `collate` under the guide's names, without the rewards.

    Example: guide_keys(batch)["sdpo_row"] -> tensor([1]): the only teacher row belongs to row 1
    """
    result = {
        "input_ids": batch.student.ids_BT,
        "attention_mask": batch.student.attention_BT,
        "response_mask": _mask(batch.student, batch.lm),
    }
    if hints:
        rows = {
            int(item): int(row)
            for item, row in zip(batch.hint_student.item_N, batch.hint_student.row_N, strict=True)
        }
        result |= {
            "ctx_teacher_input_ids": batch.teacher.ids_BT,
            "ctx_teacher_attention_mask": batch.teacher.attention_BT,
            "sdpo_loss_mask": _mask(batch.teacher, batch.hint_teacher),
            "sdpo_row": torch.tensor(
                [rows[item] for item in range(batch.hint_student.num_items)], dtype=torch.long
            ),
            "student_response_idx": _positions(batch.hint_student, ignore_index),
            "teacher_response_idx": _positions(batch.hint_teacher, ignore_index),
        }
    if pairs:
        mask_BT = _mask(batch.pair, batch.response)
        for side, part in (
            ("chosen", slice(0, batch.num_pairs)),
            ("rejected", slice(batch.num_pairs, None)),
        ):
            result[f"dpo_{side}_input_ids"] = batch.pair.ids_BT[part]
            result[f"dpo_{side}_attention_mask"] = batch.pair.attention_BT[part]
            result[f"dpo_{side}_response_mask"] = mask_BT[part]
    return result


def _session(name: str, turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]]) -> Session:
    segments = (Segment(start=0, end=len(turns)),)
    return Session(
        id=name,
        source=SourceRef(file=""),
        turns=tuple(turns),
        segments=segments,
        tools=tuple(map(tool_from_chat, tools)),
    )


def _sides(pair: Mapping[str, Any], *, where: str) -> tuple[list[Turn], Turn, Turn]:
    """Return context, chosen and rejected message of a pair.

    Chat messages are preferred to flat text, in which calls are lost.
    """
    context = pair.get("prompt_messages") or pair.get("state_messages")
    if not context or "chosen" not in pair or "rejected" not in pair:
        fix = (
            "give a pair of extract_dpo_pairs or DJNormalizer, or its fields: state_messages,"
            " chosen, rejected"
        )
        raise DataError(
            f"this is no pair: it has {', '.join(map(str, pair)) or 'nothing'}",
            where=where,
            fix=fix,
        )

    def side(name: str) -> Turn:
        message = (pair.get(f"{name}_messages") or [pair.get(f"{name}_message")])[0] or {
            "role": "assistant",
            "content": pair[name],
        }
        return TraceTurn.of(message, where=f"{where}, {name}").turn()

    return (
        [TraceTurn.of(m, where=f"{where}, message {n}").turn() for n, m in enumerate(context)],
        side("chosen"),
        side("rejected"),
    )


def _mask(rows: Rows, targets: Targets) -> Tensor:
    """Return a mask with 1 at every target token, 0 elsewhere."""
    mask_BT = torch.zeros_like(rows.ids_BT)
    mask_BT[targets.row_N, targets.position_N] = 1
    return mask_BT


def _positions(targets: Targets, fill: int) -> Tensor:
    """Return (H, N): the position of each target token; its logits are one position earlier."""
    counts = torch.bincount(targets.item_N, minlength=targets.num_items)
    positions_HN = torch.full(
        (targets.num_items, int(counts.max()) if targets.num_items else 0), fill, dtype=torch.long
    )
    for item in range(targets.num_items):
        positions_HN[item, : int(counts[item])] = targets.position_N[targets.item_N == item]
    return positions_HN
