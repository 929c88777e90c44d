"""Assign examples and pairs to the forwards of the tree layout, and to ranks.

    tree     the items of one session whose tokens fit into train.micro_tokens together; a session
             that does not fit becomes several trees
    rank     trees go, most expensive first, to the rank with the least work so far (longest
             processing time first)
    micro    a rank's trees are packed into as few forwards as greedy packing finds

No item is cut: one that does not fit by itself is an error. Every rank computes the same plan from
the same lists. The bound holds for the forward with a gradient; passes without one are sliced on
their own (training/forwards/passes.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.tokens.forward_size import check_forward_size
from composer_replication.tokens.tree import Forest, ForestBuilder, TreeCost

Micro = tuple[list[TrainingExample], list[PreferencePair]]
Item = TrainingExample | PreferencePair

_WITH_GRADIENT = 3  # a backward costs two forwards


@dataclass(slots=True)
class Tree:
    """Items of one session that are computed together, and the forest of their rows so far."""

    items: list[Item] = field(default_factory=list)
    builder: ForestBuilder = field(default_factory=ForestBuilder)

    @property
    def tokens(self) -> int:
        """Tokens of the forward with gradient."""
        return self.builder.tokens

    def count_new_tokens(self, item: Item) -> int:
        """The number of tokens that an item would add; for a pair an upper bound, because only its
        prefix is known to be shared by its two sides."""
        first, *rest = gradient_rows(item)
        shared = len(item.prefix_ids) if isinstance(item, PreferencePair) else 0
        return self.builder.missing(first) + sum(
            min(self.builder.missing(row), len(row) - shared) for row in rest
        )

    def add(self, item: Item) -> None:
        """Add an item, and its rows to the forest."""
        self.items.append(item)
        for row in gradient_rows(item):
            self.builder.add(row)

    def work(self, *, pair_weight: float) -> float:
        """The cost of its passes, in tokens through the layers: three forwards with a gradient, and
        the hint branches without one.

        `pair_weight` is the cost of one (query, key) pair in tokens: about 1 / (6 * hidden size).
        """
        rows = [row for item in self.items for row in gradient_rows(item)]
        hints = [
            e.teacher_ids(view)
            for e in self.items
            if isinstance(e, TrainingExample)
            for view in e.hints
        ]
        forest = Forest.grow([*rows, *hints])
        gradient_cost = forest.over(range(len(rows))).cost
        total_cost = forest.over(range(len(rows) + len(hints))).cost
        branches = TreeCost(
            total_cost.tokens - gradient_cost.tokens, total_cost.pairs - gradient_cost.pairs
        )
        tokens, pairs = (
            _WITH_GRADIENT * a + b for a, b in zip(gradient_cost, branches, strict=True)
        )
        return tokens + pair_weight * pairs


def gradient_rows(item: Item) -> list[tuple[int, ...]]:
    """The rows of an item that get a gradient."""
    if isinstance(item, TrainingExample):
        return [item.ids]
    return [item.prefix_ids + item.chosen_ids, item.prefix_ids + item.rejected_ids]


def tree_size(item: Item) -> int:
    """The number of tokens in a forward that holds only this item."""
    return Tree().count_new_tokens(item)


def session_trees(
    examples: Sequence[TrainingExample], pairs: Sequence[PreferencePair], *, micro_tokens: int
) -> list[Tree]:
    """The trees of a step, session by session. Raises ConfigError for an item that does not fit
    into a forward by itself.

    Longer items come first, and each joins the tree to which it adds least among those with room
    for it.
    """
    sessions: dict[str, list[Item]] = {}
    for item in (*examples, *pairs):
        name = f"{'example' if isinstance(item, TrainingExample) else 'pair'} {item.id}"
        check_forward_size(name, tree_size(item), micro_tokens=micro_tokens)
        sessions.setdefault(item.session_id, []).append(item)
    trees: list[Tree] = []
    for items in sessions.values():
        trees_of_session: list[Tree] = []
        for item in sorted(items, key=lambda i: (isinstance(i, PreferencePair), -tree_size(i))):
            fitting = [
                (need, tree)
                for tree in trees_of_session
                if (need := tree.count_new_tokens(item)) + tree.tokens <= micro_tokens
            ]
            if fitting:
                tree = min(fitting, key=lambda need_and_tree: need_and_tree[0])[1]
            else:
                trees_of_session.append(tree := Tree())
            tree.add(item)
        trees += trees_of_session
    return trees


def assign_to_ranks(trees: Sequence[Tree], *, ranks: int, pair_weight: float) -> list[list[Tree]]:
    """Each rank's trees: the most expensive first, each to the rank with the least work so far."""
    if ranks == 1:
        return [list(trees)]
    shares: list[list[Tree]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    for work, number in sorted(
        ((tree.work(pair_weight=pair_weight), -n) for n, tree in enumerate(trees)), reverse=True
    ):
        rank = load.index(min(load))
        shares[rank].append(trees[-number])
        load[rank] += work
    return shares


def pack_micro_batches(trees: Sequence[Tree], *, micro_tokens: int) -> list[Micro]:
    """A rank's trees in forwards of at most `micro_tokens` tokens: the largest first, each into the
    first forward with room (first-fit decreasing)."""
    parts: list[list[Tree]] = []
    for tree in sorted(trees, key=lambda t: -t.tokens):
        room = (part for part in parts if sum(t.tokens for t in part) + tree.tokens <= micro_tokens)
        if (part := next(room, None)) is None:
            parts.append(part := [])
        part.append(tree)
    items_of_parts = [[item for tree in part for item in tree.items] for part in parts]
    return [
        (
            [i for i in p if isinstance(i, TrainingExample)],
            [i for i in p if isinstance(i, PreferencePair)],
        )
        for p in items_of_parts
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The numbers of hint views and pairs that share a trunk, and of pairs that need their own
    context.

    A view always shares its example's trunk. A pair shares a trunk if an example of its session
    holds its whole prefix.
    """

    sites: int
    pairs: int
    pairs_alone: int

    def text(self) -> str:
        """In words, e.g. "12 sites and 9 pairs share their session's tokens; 3 pairs bring a
        context of their own (25 %)"."""
        shared = (
            f"{self.sites} sites and {self.pairs - self.pairs_alone} pairs share their session's"
            " tokens"
        )
        share = (
            f" ({100 * self.pairs_alone / (self.sites + self.pairs):.0f} %)"
            if self.pairs_alone
            else ""
        )
        return f"{shared}; {self.pairs_alone} pairs bring a context of their own{share}"


def measure_sharing(
    examples: Sequence[TrainingExample], pairs: Sequence[PreferencePair]
) -> Sharing:
    """The part of the data that can share a trunk, session by session."""
    trunks: dict[str, ForestBuilder] = {}
    for example in examples:
        trunks.setdefault(example.session_id, ForestBuilder()).add(example.ids)
    alone = sum(
        p.session_id not in trunks or trunks[p.session_id].missing(p.prefix_ids) > 0 for p in pairs
    )
    return Sharing(sites=sum(len(e.hints) for e in examples), pairs=len(pairs), pairs_alone=alone)
