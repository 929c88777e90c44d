"""The memory that a training step takes, by term: arithmetic on the model's widths, no torch.

    need = memory_need(shape, config, StepSize.full_window(32_768), device="cuda")
    need.total, need.terms           # bytes: {"weights": ..., "gradients": ..., ...}

A step takes what it holds all the time (weights, copies, gradients, the optimiser's states) and the
largest of a few moments: a teacher reads the hints, the losses are computed, one layer is walked
back while the inputs of the others wait, the optimiser moves the weights. `terms` are those of the
largest moment, so they add up to `total`.

In layout "tree" a step has one forward with a gradient. In layout "rows" it has two, of the padded
rows of sessions and of those of pairs, and both wait for their backward; every teacher reads padded
rows before them, from their first token on.

Computed, and checked against the peaks of runs on a CPU (benchmarks/memory_model.py); not measured
on a GPU. Sources: memory/memory_terms.py for a layer; torch.optim.AdamW for its two states in the
precision of the weights, and for one more copy of them that its foreach form makes on CUDA;
losses/chunk_size.py and losses/fused_sweep.py for the losses; models/tree_attention.py for keys
and values.

Widths of a token: D hidden, b bytes of a hidden state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from composer_replication.core.config.root import Config
from composer_replication.losses.chunk_size import chunk_rows
from composer_replication.models.model_shape import ModelShape
from composer_replication.training.memory.memory_terms import (
    FLOAT32,
    PART,
    LayerBytes,
    at_the_start,
    hint_block,
    in_a_layer,
    layer_bytes,
    part_bytes,
    scoring_bytes,
    tile_bytes,
)

Device = Literal["cpu", "cuda"]
DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2}
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Of a weight in 4 bits: itself, the 8-bit scale of 64, and the float32 scale of 256 of these."""
STATE_8BIT_BYTES = 2 + 2 * 4 / 256
"""Of a trained weight: two averages in 8 bits, and two float32 scales of 256 numbers."""
BLOCK_PAIR_BYTES = 100
"""Of a block mask, for each pair of blocks of 128 tokens: 26 MB were measured at 65,536 tokens."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSize:
    """Tokens of the largest micro-batch of a step.

    `tokens` get a gradient, in `forwards` of these sizes (() = in one); of them `lm`, `hinted`,
    `sides`, `actions` and `anchors` enter a loss. A live teacher reads `hint_tokens` on the keys
    and values of `below_hints` of the tokens; one that starts at the first token (another model,
    and every teacher in layout "rows") has `read_alone` in its largest forward (0 = both of these
    together). `copied_keys` is how many keys branches with a gradient copy in each layer without
    FlexAttention, and `longest` the longest row. memory/largest_forward.py counts them for given
    examples and pairs.
    """

    tokens: int
    forwards: tuple[int, ...] = ()
    lm: int = 0
    hinted: int = 0
    sides: int = 0
    actions: int = 0
    anchors: int = 0
    hint_tokens: int = 0
    below_hints: int = 0
    read_alone: int = 0
    copied_keys: int = 0
    longest: int = 0

    @classmethod
    def full_window(cls, tokens: int) -> Self:
        """A window of which every token is trained and a hint stands near the end: the most that a
        session of that length can need."""
        message = min(tokens, 256)
        return cls(
            tokens=tokens,
            lm=tokens,
            actions=tokens,
            hinted=message,
            hint_tokens=2 * message,
            below_hints=tokens,
            longest=tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes of a step: `held` all the time, and of each moment beside it, by term; `host` in the
    machine's memory beside the card's."""

    held: Mapping[str, float]
    moments: Mapping[str, Mapping[str, float]]
    host: float = 0.0

    @property
    def moment(self) -> str:
        """The moment that needs the most."""
        return max(self.moments, key=lambda name: sum(self.moments[name].values()))

    @property
    def terms(self) -> dict[str, float]:
        """Every term of the largest moment; their sum is `total`."""
        terms = {**self.held, **self.moments[self.moment]}
        return {name: value for name, value in terms.items() if value}

    @property
    def total(self) -> float:
        """The most bytes at one time."""
        return sum(self.terms.values())


def memory_need(
    shape: ModelShape,
    config: Config,
    size: StepSize,
    *,
    device: Device = "cuda",
    ranks: int = 1,
) -> MemoryNeed:
    """What a step of this size takes with these settings on one of `ranks` cards; with train.fsdp
    they share what is held.

    Example: memory_need(QWEN3["4B"], config, StepSize.full_window(4096)).total / 1e9
    """
    model = _Model(shape, config, device=device, ranks=ranks)
    step = _Step(model, size)
    moments = {
        "a teacher reads": step.reading(),
        "losses": step.losses(),
        "start of the backward": step.starting(),
        "a layer's backward": step.walking_back(),
        "optimiser": {"optimiser's copies": model.optimiser_copies},
    }
    return MemoryNeed(held=model.held(), moments=moments, host=step.host)


@dataclass(slots=True)
class _Model:
    """The settings as numbers."""

    shape: ModelShape
    config: Config
    device: Device = field(kw_only=True)
    ranks: int = field(kw_only=True)

    @property
    def state(self) -> int:
        """Bytes of a hidden state, and of a weight that is not LoRA's."""
        return DTYPE_BYTES[self.config.student.dtype]

    @property
    def rank(self) -> int:
        return self.config.student.lora.rank

    @property
    def all_weights(self) -> bool:
        return not self.rank

    @property
    def weights(self) -> float:
        in_4_bits = self.shape.matrix_parameters * self.config.student.load_in_4bit
        return in_4_bits * NF4_BYTES + (self.shape.num_parameters - in_4_bits) * self.state

    @property
    def unpacked(self) -> float:
        """The largest matrix of a layer as a product reads it, if it is stored in 4 bits."""
        matrix = self.shape.hidden * self.shape.intermediate
        return float(matrix * self.state * self.config.student.load_in_4bit)

    @property
    def trained(self) -> float:
        """Bytes of the trained weights: peft's adapters are float32."""
        if self.all_weights:
            return self.weights
        return self.shape.lora_parameters(self.rank) * FLOAT32

    @property
    def has_frozen_copy(self) -> bool:
        """Whether a copy of the start is held (forwards/reference.py): with LoRA it is the model
        with its adapters off, and a pair's reference is scored before the first step."""
        hint = self.config.train.hint
        frozen = hint.weight > 0 and hint.teacher in ("frozen", "trust_region")
        return self.all_weights and (frozen or bool(self.config.rollouts.env))

    @property
    def samples_beside(self) -> bool:
        """Whether this process holds a copy of the trained weights that samples beside the training
        (on_policy/overlap.py)."""
        rollouts, backend = self.config.rollouts, self.config.train.backend
        return bool(rollouts.overlap) and rollouts.generator == "local" and backend == "reference"

    @property
    def averages(self) -> bool:
        hint = self.config.train.hint
        return hint.weight > 0 and hint.teacher == "ema"

    @property
    def live_teacher(self) -> bool:
        """Whether the hint's teacher reads on the student's own keys and values."""
        hint = self.config.train.hint
        is_live = hint.weight > 0 and hint.teacher in ("live", "trust_region")
        return is_live and not self.in_rows

    @property
    def other_teacher(self) -> bool:
        """Whether a teacher reads the rows of the hints from their start."""
        hint = self.config.train.hint
        return hint.weight > 0 and not (hint.teacher == "live" and self.live_teacher)

    @property
    def teachers(self) -> int:
        """How many models' hidden states make the hint's teacher, for each of its tokens."""
        hint = self.config.train.hint
        return (1 + (hint.teacher == "trust_region")) * (1 + hint.contrast)

    @property
    def in_rows(self) -> bool:
        """Whether sessions and pairs are padded rows, in a forward each."""
        return self.config.train.layout == "rows"

    @property
    def optimiser_copies(self) -> float:
        """AdamW's root of the second moment: of all weights at a time on CUDA, else of one."""
        if self.in_8_bits:
            return 0.0
        if self.device == "cuda":
            return self.trained / (self.ranks if self.is_sharded else 1)
        largest = self.shape.vocab * self.shape.hidden * self.state
        return 2.0 * largest if self.all_weights else 0.0

    @property
    def in_8_bits(self) -> bool:
        return self.config.train.optimiser == "adamw_8bit"

    def held(self) -> dict[str, float]:
        """What is there all the time."""
        adapters = 0.0 if self.all_weights else self.trained
        numbers = self.trained / (self.state if self.all_weights else FLOAT32)
        average = numbers * FLOAT32
        held = {
            "weights": self.weights + adapters,
            "copy of the start": self.weights * self.has_frozen_copy,
            "copy that samples": self.trained * self.samples_beside,
            "slow average": average * self.averages,
            "gradients": self.trained,
            "optimiser": numbers * STATE_8BIT_BYTES if self.in_8_bits else 2 * self.trained,
        }
        if not self.is_sharded:
            return held
        return {name: value / self.ranks for name, value in held.items()} | {
            "gathered weights": self.gathered
        }

    @property
    def is_sharded(self) -> bool:
        return self.ranks > 1 and self.config.train.fsdp

    @property
    def gathered(self) -> float:
        """Of sharded weights: two layers, one running and one on its way, each with its gradients
        if they are trained, and the token table and the head."""
        layer = self.shape.matrix_parameters / self.shape.layers * self.state
        gradients = 1 + self.all_weights
        return 2 * layer * gradients + self.shape.table_parameters * self.state


@dataclass(slots=True)
class _Step:
    """The moments of a step."""

    model: _Model
    size: StepSize

    @property
    def forwards(self) -> tuple[int, ...]:
        """Tokens of each forward with a gradient, in the order in which they run."""
        return self.size.forwards or (self.size.tokens,)

    def tiles(self, tokens: int) -> int:
        """Tokens of a tile of a forward, 0 = none."""
        tile = self.model.config.train.tile
        return tile if 0 < tile < tokens else 0

    @property
    def shape(self) -> ModelShape:
        return self.model.shape

    @property
    def hidden(self) -> int:
        """Bytes of a hidden state of a token."""
        return self.shape.hidden * self.model.state

    @property
    def host(self) -> float:
        """The inputs of all checkpointed layers and the hints' keys and values, if they wait
        there."""
        inputs = float(self.shape.layers * self.hidden * self.size.tokens)
        keys = self.shape.layers * self.keys_of_a_layer * self.model.live_teacher
        return inputs + keys if self.model.config.train.offload else 0.0

    @property
    def keys_of_a_layer(self) -> float:
        """A layer's keys and values up to the last hint."""
        return float(2 * self.shape.key * self.model.state * self.size.below_hints)

    def kept(self, num_forwards: int | None = None) -> dict[str, float]:
        """What all layers keep until their backward, of the first forwards alone if a number is
        given; on CUDA the inputs of two remain of those that wait in host memory."""
        train, forwards = self.model.config.train, self.forwards[:num_forwards]
        tokens = sum(forwards)
        if train.checkpoint == "none":
            kept = sum(self.layer(n).total * n for n in forwards)
            copied = self.copied if len(forwards) == len(self.forwards) else 0.0
            return {"kept by all layers": float(self.shape.layers * (kept + copied))}
        rotations = 2 * self.shape.head_dim * self.model.state * tokens
        layers = 2 if train.offload else self.shape.layers
        return {"inputs of all layers": float(layers * self.hidden * tokens + rotations)}

    def layer(self, tokens: int) -> LayerBytes:
        """What a layer keeps for a token of a forward of so many."""
        return layer_bytes(self.shape, **self.options, tiled=self.tiles(tokens) > 0)

    @property
    def copied(self) -> float:
        """Keys and values that branches copy in a layer, and the joined outputs, without
        FlexAttention."""
        if self.model.device == "cuda" or not self.size.copied_keys:
            return 0.0
        joined = self.shape.query * self.size.tokens
        return self.model.state * (2.0 * self.shape.key * self.size.copied_keys + joined)

    @property
    def losses_kept(self) -> dict[str, int]:
        """Loss tokens of each channel that is on; a token of lm_ce is none of the policy's."""
        size, train = self.size, self.model.config.train
        sides = size.sides if train.preference.both_sides else size.sides // 2
        lm = size.lm * (train.lm_ce.weight > 0)
        tokens = {
            "lm_ce": lm,
            "hint": size.hinted * (train.hint.weight > 0),
            "policy": min(size.actions, size.tokens - lm) * (train.policy.weight > 0),
            "preference": sides * (train.preference.weight > 0),
            "anchors": size.anchors * (train.preference.weight > 0),
        }
        return {name: n for name, n in tokens.items() if n}

    def leaves(self, per_token: float) -> float:
        """So many bytes for every number of the loss tokens' hidden states."""
        return per_token * self.shape.hidden * sum(self.losses_kept.values())

    @property
    def of_teachers(self) -> float:
        """The hidden states that the hint's teachers predict its tokens from."""
        hinted = self.size.hinted * (self.model.config.train.hint.weight > 0)
        return float(self.hidden * hinted * self.model.teachers)

    def reading(self) -> dict[str, float]:
        """A live teacher on the keys and values up to the last hint, or a model on the rows of the
        hints: in layout "rows" before the student's forwards, else behind them."""
        model, size = self.model, self.size
        if not (model.config.train.hint.weight and size.hint_tokens):
            return {}
        beside: dict[str, float] = {"teachers' hidden states": self.of_teachers}
        if not model.in_rows:
            beside |= {**self.kept(), "hidden states": float(self.hidden * size.tokens)}
        moments = [beside | self.own_keys] if model.live_teacher else []
        if model.other_teacher:
            alone = size.read_alone or size.below_hints + size.hint_tokens
            moments.append(beside | self.forward_of_a_teacher(alone))
        return max(moments, key=lambda moment: sum(moment.values()))

    @property
    def own_keys(self) -> dict[str, float]:
        """The live teacher's branches, and the student's keys and values that they read."""
        model, size = self.model, self.size
        train = model.config.train
        held = self.shape.layers if train.checkpoint == "layers" else 0
        if train.offload and model.device == "cuda":  # on a CPU nothing moves
            held = 1
        of_branches = float(2 * self.shape.key * model.state * size.hint_tokens)
        key_values = (held + 1) * self.keys_of_a_layer + of_branches
        forward = self.forward_of_a_teacher(size.hint_tokens)
        return {"keys and values for the hints": key_values, **forward}

    def forward_of_a_teacher(self, tokens: int) -> dict[str, float]:
        """A forward without a gradient, of so many tokens."""
        tile = self.model.config.train.tile
        scoring = scoring_bytes(self.shape, state=self.model.state, tokens=tokens, tile=tile)
        return {"teacher's forward": scoring + self.mask + self.model.unpacked}

    @property
    def mask(self) -> float:
        """The block mask of FlexAttention, which layout "rows" does not use."""
        blocks = -(-self.size.tokens // 128)
        has_blocks = self.model.device == "cuda" and not self.model.in_rows
        return float(BLOCK_PAIR_BYTES * blocks * blocks * has_blocks)

    def losses(self) -> dict[str, float]:
        """Every channel's gradient at its hidden states in float32, and the buffers of one."""
        model, tokens = self.model, self.size.tokens
        final_norm = self.shape.hidden * (FLOAT32 + model.state * model.all_weights)
        states = float((self.hidden + final_norm) * tokens)
        return {
            **self.kept(),
            "hidden states": states + self.leaves(model.state + FLOAT32),
            "teachers' hidden states": self.of_teachers,
            "logits of a chunk": self.chunk,
            "gradient of the head": self.head_gradients,
        }

    @property
    def chunk(self) -> float:
        """The logits of a chunk, the scratch of its kernel and copies of its hidden states; on CUDA
        the halves of a gradient that a bfloat16 product takes."""
        model, largest, vocab = self.model, 0.0, self.shape.vocab
        halves = model.device == "cuda" and model.state < FLOAT32
        copies = 0 if halves else 1 + (model.state < FLOAT32)
        blocks, matrices = hint_block(model.config.train.hint)
        for name, tokens in self.losses_kept.items():
            hint = name == "hint"
            sides = 1 + hint * model.teachers
            rows = min(chunk_rows(model.device, vocab, FLOAT32 * sides), tokens)
            scratch = matrices * max(1, min(blocks[model.device] // vocab, rows)) * hint
            numbers = vocab * (rows * (sides + 2 * halves) + scratch)
            largest = max(largest, FLOAT32 * (numbers + copies * rows * self.shape.hidden))
        return largest + self.raised_head * bool(self.losses_kept)

    @property
    def raised_head(self) -> float:
        """The head in float32, whole or a tile; GPUs multiply bfloat16 as it is."""
        if self.model.state == FLOAT32 or self.model.device == "cuda":
            return 0.0
        head = self.shape.vocab * self.shape.hidden * FLOAT32
        return float(head if head <= 512 * MIB else 64 * MIB)

    @property
    def head_gradients(self) -> float:
        """In float32, one for each loss that takes it in the forward; on CUDA two more while a
        bfloat16 head's is computed."""
        if not self.model.all_weights:
            return 0.0
        early = sum(name in ("lm_ce", "hint", "anchors") for name in self.losses_kept)
        split = 2 * (self.model.device == "cuda" and self.model.state < FLOAT32)
        return float((max(1, early) + split) * self.shape.vocab * self.shape.hidden * FLOAT32)

    def starting(self) -> dict[str, float]:
        """The gradients of the loss tokens gather at the final hidden states."""
        model = self.model
        width = at_the_start(self.shape, state=model.state, all_weights=model.all_weights)
        width += self.hidden * min(2, len(self.losses_kept))
        return self._while_walking(
            lambda tokens: {"hidden states": width * tokens + self.leaves(2 * model.state)}
        )

    def walking_back(self) -> dict[str, float]:
        """One layer at its widest moment, while the inputs of the others wait."""
        leaves = self.leaves(2 * self.model.state)
        return self._while_walking(
            lambda tokens: {"one layer": self._one_layer(tokens), "hidden states": leaves}
        )

    def _while_walking(self, of_one: Callable[[int], dict[str, float]]) -> dict[str, float]:
        """The largest moment of the forwards' backwards, the last one's first: what one takes
        beside what it and those before it keep."""
        moments = [
            {**self.kept(number), **of_one(tokens)}
            for number, tokens in enumerate(self.forwards, 1)
        ]
        return max(moments, key=lambda moment: sum(moment.values()))

    def _one_layer(self, tokens: int) -> float:
        """A layer of a forward of so many tokens, at its widest moment, beside what is kept."""
        model, options, tile = self.model, self.options, self.tiles(tokens)
        moments = in_a_layer(self.shape, **options, tiled=tile > 0)
        part = part_bytes(self.shape, **options) * min(tokens, PART) * (not tile)
        of_feed_forward = moments["feed-forward"] * tokens + part
        widest = max(*(value * tokens for value in moments.values()), of_feed_forward)
        if model.config.train.checkpoint == "none":  # it is among those that all keep
            widest -= self.layer(tokens).total * tokens
        else:
            widest += self.copied
        if tile:
            inner = tile_bytes(self.shape, **options, tokens=tile)
            widest = max(widest, moments["feed-forward"] * tokens + inner)
        matrix = self.shape.hidden * self.shape.intermediate * model.state * model.all_weights
        return float(widest + matrix + self.mask + model.unpacked)

    @property
    def options(self) -> dict[str, Any]:
        return {"state": self.model.state, "all_weights": self.model.all_weights}
