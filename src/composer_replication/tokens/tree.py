"""Prefix sharing within a micro-batch: tokens that several rows begin with are computed once.

A hint's teacher row repeats the session above the mistake, a pair's two sides repeat their prompt.
With train.layout = "tree" the rows of a micro-batch form a forest of prefix trees (radix trees over
token ids), and training/forwards/passes.py plans the forwards over it:

    forest = Forest.grow([student_0, pair_0, teacher_0])   # rows are sequences of ids
    student = forest.over([0, 1])                 # a forward over all tokens of rows 0 and 1
    hints = forest.over([2], cached=student)      # the other tokens of row 2, on its KV cache
    hints.packed(2)                               # the index of each token of row 2, cache first

A node is a run of ids with a parent. A session is one tree: the session itself is the trunk, each
hint and each chosen answer a branch; a rejected answer that is the session's own turn is part of
the trunk. A token attends to the ancestors of its node and to the earlier tokens of its node, so
every row gets the values that it would have alone. A pass packs its nodes into *chains*, each node
the child of the one before, so that the trunk stays in one piece. If a template rewrites history,
rows part where they differ, like any others.

Shapes: Q tokens of a pass, K tokens that it can attend to: those of the cached pass, then its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from composer_replication.core.errors import AlignmentError
from composer_replication.models.tree_plan import Chain, ForwardSpan, dense_mask

_BLOCK = 512  # ids compared at once


class TreeCost(NamedTuple):
    """The cost of a pass: tokens that go through the layers, and (query, key) pairs of one full
    attention layer."""

    tokens: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Node:
    """A run of ids that the same rows hold.

    `parent` is the number of the node above, -1 for a root. The first id is at position `depth` of
    each of these rows.
    """

    ids: tuple[int, ...]
    parent: int
    depth: int


class _Match(NamedTuple):
    """How far a row is in the forest already: its first `num_found` ids.

    `node` is the last node with some of them, -1 if none has; its first `num_in_node` ids are the
    row's. `parent` is the node above it.
    """

    parent: int
    node: int
    num_found: int
    num_in_node: int


@dataclass(slots=True)
class ForestBuilder:
    """A forest under construction: rows are added one by one, and nodes split where rows part.

    `children` and `roots` lead from the first id of a node to its number. `tokens` is the number of
    ids in all nodes.

    >>> builder = ForestBuilder(); builder.add((1, 2, 3, 4)); builder.missing((1, 2, 9))
    0
    1
    """

    nodes: list[Node] = field(default_factory=list)
    children: list[dict[int, int]] = field(default_factory=list)
    roots: dict[int, int] = field(default_factory=dict)
    tokens: int = 0

    def add(self, row: Sequence[int]) -> int:
        """Insert a row and return the node that it ends with; AlignmentError for an empty row."""
        ids = tuple(row)
        if not ids:
            raise AlignmentError("a row without a token has no place in a tree")
        match = self._match(ids)
        node = match.node
        if node >= 0 and match.num_in_node < len(self.nodes[node].ids):
            node = self._split(node, match.num_in_node)  # the row parts from it, or ends, inside
        if match.num_found < len(ids):
            parent = node if node >= 0 else match.parent
            node = self._new(ids[match.num_found :], parent, match.num_found)
        return node

    def missing(self, row: Sequence[int]) -> int:
        """The number of tokens of a row that are not in the forest yet."""
        ids = tuple(row)
        return len(ids) - self._match(ids).num_found

    def _match(self, ids: tuple[int, ...]) -> _Match:
        """Follow a row down the forest as far as its ids are there."""
        below, parent, node, num_found, num_in_node = self.roots, -1, -1, 0, 0
        while num_found < len(ids) and (child := below.get(ids[num_found])) is not None:
            parent, node = node, child
            num_in_node = _num_common(self.nodes[node].ids, ids, num_found)
            num_found += num_in_node
            if num_in_node < len(self.nodes[node].ids):
                break
            below = self.children[node]
        return _Match(parent, node, num_found, num_in_node)

    def _new(self, ids: tuple[int, ...], parent: int, depth: int) -> int:
        self.nodes.append(Node(ids, parent, depth))
        self.children.append({})
        self._below(parent)[ids[0]] = len(self.nodes) - 1
        self.tokens += len(ids)
        return len(self.nodes) - 1

    def _split(self, node: int, at: int) -> int:
        """Cut a node in two in front of its id `at`, and return the upper part.

        The lower part keeps the node's number, so rows that end there still do.
        """
        uncut = self.nodes[node]
        upper = self._new(uncut.ids[:at], uncut.parent, uncut.depth)
        self.tokens -= at  # `_new` has counted them a second time
        self.nodes[node] = Node(uncut.ids[at:], upper, uncut.depth + at)
        self.children[upper] = {uncut.ids[at]: node}
        return upper

    def _below(self, parent: int) -> dict[int, int]:
        return self.roots if parent < 0 else self.children[parent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """The prefix trees of some rows; `paths[row]` are a row's nodes from its root on.

    `enter` and `exit` number the nodes in depth-first order: the descendants of a node, itself
    included, are those whose `enter` lies in [enter, exit) of the node.
    """

    nodes: tuple[Node, ...]
    paths: tuple[tuple[int, ...], ...]
    enter: tuple[int, ...]
    exit: tuple[int, ...]

    @classmethod
    def grow(cls, rows: Sequence[Sequence[int]]) -> Forest:
        """The forest of these rows.

        >>> forest = Forest.grow([(1, 2, 3, 4), (1, 2, 9), (7,)])
        >>> [node.ids for node in forest.nodes], forest.paths
        ([(3, 4), (1, 2), (9,), (7,)], ((1, 0), (1, 2), (3,)))
        """
        builder = ForestBuilder()
        last_nodes = [builder.add(row) for row in rows]
        paths = []
        for node in last_nodes:
            path = [node]
            while (parent := builder.nodes[path[-1]].parent) >= 0:
                path.append(parent)
            paths.append(tuple(reversed(path)))
        enter, leave = _intervals(builder)
        return cls(nodes=tuple(builder.nodes), paths=tuple(paths), enter=enter, exit=leave)

    def over(self, rows: Sequence[int], *, cached: Pass | None = None) -> Pass:
        """A pass over the tokens of these rows, except those that `cached` has computed already.

        A row that is cached whole adds nothing. Raises AlignmentError if `cached` uses the cache of
        a further pass.
        """
        if cached is not None and cached.cached is not None:
            raise AlignmentError("a pass can stand on the cache of one other pass only")
        cached_nodes = cached.starts if cached is not None else {}
        wanted = {node for row in rows for node in self.paths[row] if node not in cached_nodes}
        return _pack(self, wanted, cached)

    def part_of(self, below: Pass, rows: Sequence[int]) -> tuple[Pass, Tensor]:
        """The part of `below` that these rows go through, as a pass, and the index in `below` of
        each of its tokens: what a pass over these rows needs of the KV cache of `below`.

        >>> forest = Forest.grow([(1, 2, 3), (1, 2, 9), (7,)])
        >>> part, place_Q = forest.part_of(forest.over([2, 0]), [1])
        >>> part.ids_Q.tolist(), place_Q.tolist()
        ([1, 2], [0, 1])
        """
        shared = {node for row in rows for node in self.paths[row] if node in below.starts}
        part = _pack(self, shared, None)
        places = [
            torch.arange(start := below.starts[node], start + len(self.nodes[node].ids))
            for node in part.starts
        ]
        return part, torch.cat([torch.zeros(0, dtype=torch.long), *places])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward over some nodes of a forest, e.g. forest.over([0, 1]); see `TreePlan`.

    `cached` is the pass whose KV cache it uses. `starts[node]` is the index of a node's first token
    in the forward. `position_Q` is a token's position in its rows: a branch goes on counting from
    its fork. `interval_Q2` is [enter, exit) of each token's node.
    """

    forest: Forest
    starts: dict[int, int]
    chains: tuple[Chain, ...]
    ids_Q: Tensor
    position_Q: Tensor
    interval_Q2: Tensor
    cached: Pass | None = None

    @property
    def size(self) -> int:
        """The number of tokens that go through the model."""
        return sum(chain.span.end - chain.span.start for chain in self.chains)

    @property
    def offset(self) -> int:
        """The number of tokens in the cache; 0 without one."""
        return self.cached.size if self.cached is not None else 0

    @property
    def cost(self) -> TreeCost:
        """Tokens, and the pairs of one full attention layer.

        >>> Forest.grow([(1, 2, 3), (1, 2, 4)]).over([0, 1]).cost  # they see 1, 2, 3 and 3 tokens
        TreeCost(tokens=4, pairs=9)
        """
        sizes = [
            (span.depth, span.end - span.start) for span in (chain.span for chain in self.chains)
        ]
        return TreeCost(self.size, sum(n * depth + n * (n + 1) // 2 for depth, n in sizes))

    @property
    def seen(self) -> tuple[Tensor, Tensor]:
        """(position_K, interval_K2) of the tokens this pass sees: the cache's, then its own."""
        if self.cached is None:
            return self.position_Q, self.interval_Q2
        below = self.cached
        return torch.cat([below.position_Q, self.position_Q]), torch.cat(
            [below.interval_Q2, self.interval_Q2]
        )

    def mask_QK(self, *, window: int | None = None) -> Tensor:
        """The attention mask from the intervals: an independent check on the chains.

        >>> Forest.grow([(1, 2), (1, 3)]).over([0, 1]).mask_QK().int().tolist()
        [[1, 0, 0], [1, 1, 0], [1, 0, 1]]

        See `dense_mask`.
        """
        return dense_mask(self, window=window)

    def packed(self, row: int) -> Tensor:
        """The index of each token of a row in [tokens of `cached`, tokens of the pass].

        Raises AlignmentError if the pass does not hold the row.

        >>> Forest.grow([(1, 2), (1, 3)]).over([0, 1]).packed(1).tolist()
        [0, 2]
        """
        parts, below = [], self.cached.starts if self.cached is not None else {}
        for node in self.forest.paths[row]:
            if node not in self.starts and node not in below:
                raise AlignmentError(f"row {row} is not part of this pass")
            start = below[node] if node in below else self.offset + self.starts[node]
            parts.append(torch.arange(start, start + len(self.forest.nodes[node].ids)))
        return torch.cat(parts)


def _num_common(node: tuple[int, ...], row: tuple[int, ...], at: int) -> int:
    """The length of the common prefix of a node's ids and row[at:]; whole blocks are compared
    first, as tuples compare fast."""
    limit, shared = min(len(node), len(row) - at), 0
    while (
        shared < limit and node[shared : shared + _BLOCK] == row[at + shared : at + shared + _BLOCK]
    ):
        shared += _BLOCK
    shared = min(shared, limit)
    while shared < limit and node[shared] == row[at + shared]:
        shared += 1
    return shared


def _intervals(builder: ForestBuilder) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(enter, exit) of every node, from one depth-first walk over the forest."""
    enter, leave, counter = [0] * len(builder.nodes), [0] * len(builder.nodes), 0
    stack = [(node, False) for node in reversed(builder.roots.values())]
    while stack:
        node, is_exit = stack.pop()
        if is_exit:
            leave[node] = counter
            continue
        enter[node], counter = counter, counter + 1
        stack.append((node, True))
        stack += [(child, False) for child in reversed(builder.children[node].values())]
    return tuple(enter), tuple(leave)


def _pack(forest: Forest, wanted: set[int], cached: Pass | None) -> Pass:
    """A pass over the wanted nodes, packed into chains.

    A chain goes on with the child that has the most tokens at and below it; each other child begins
    a chain of its own.
    """
    # 1. The children of each wanted node; a node whose parent is not wanted begins a chain.
    children: dict[int, list[int]] = {node: [] for node in wanted}
    tops: list[int] = []
    for node in sorted(wanted, key=lambda n: forest.enter[n]):
        parent = forest.nodes[node].parent
        children[parent].append(node) if parent in wanted else tops.append(node)
    # 2. The number of tokens at and below each node; backwards, so that children come first.
    weight = {node: len(forest.nodes[node].ids) for node in wanted}
    for node in sorted(wanted, key=lambda n: -forest.enter[n]):
        if (parent := forest.nodes[node].parent) in wanted:
            weight[parent] += weight[node]
    # 3. Lay out the chains, parents before children.
    starts: dict[int, int] = {}
    chains: list[Chain] = []
    chain_of: dict[int, int] = {}
    position, stack = 0, list(reversed(tops))
    while stack:
        top = node = stack.pop()
        first = position
        while True:
            starts[node], chain_of[node] = position, len(chains)
            position += len(forest.nodes[node].ids)
            below = sorted(children[node], key=lambda n: -weight[n])
            stack += reversed(below[1:])
            if not below:
                break
            node = below[0]
        above = _spans_above(
            forest,
            parent=forest.nodes[top].parent,
            starts=starts,
            chains=chains,
            chain_of=chain_of,
            cached=cached,
        )
        chains.append(Chain(ForwardSpan(first, position, forest.nodes[top].depth), above))
    return Pass(
        forest=forest,
        starts=starts,
        chains=tuple(chains),
        cached=cached,
        **_tensors(forest, starts, chains),
    )


def _tensors(forest: Forest, starts: dict[int, int], chains: list[Chain]) -> dict[str, Tensor]:
    """Ids, positions and intervals of the tokens, in the order of the nodes."""
    spans = [
        torch.arange(span.depth, span.depth + span.end - span.start)
        for span in (chain.span for chain in chains)
    ]
    sizes = torch.tensor([len(forest.nodes[node].ids) for node in starts], dtype=torch.long)
    intervals = torch.tensor(
        [(forest.enter[node], forest.exit[node]) for node in starts], dtype=torch.long
    ).view(-1, 2)
    return {
        "ids_Q": torch.tensor(
            [i for node in starts for i in forest.nodes[node].ids], dtype=torch.long
        ),
        "position_Q": torch.cat(spans) if spans else torch.zeros(0, dtype=torch.long),
        "interval_Q2": intervals.repeat_interleave(sizes, dim=0),
    }


def _spans_above(
    forest: Forest,
    *,
    parent: int,
    starts: dict[int, int],
    chains: list[Chain],
    chain_of: dict[int, int],
    cached: Pass | None,
) -> tuple[ForwardSpan, ...]:
    """The spans above a chain whose first node has this parent, root first: those above the
    parent's chain, then that chain down to the fork. The parent may be in the cached pass."""
    if parent < 0:
        return ()
    end = forest.nodes[parent].depth + len(forest.nodes[parent].ids)
    if parent in starts:
        chain = chains[chain_of[parent]]
        cut = chain.span.start + end - chain.span.depth
        return (*chain.above, ForwardSpan(chain.span.start, cut, chain.span.depth))
    if cached is None or parent not in cached.starts:
        raise AlignmentError(
            "a node of this pass has a parent that is neither in it nor in the cache"
        )
    at = cached.starts[parent]
    (chain,) = [c for c in cached.chains if c.span.start <= at < c.span.end]
    cut = chain.span.start + end - chain.span.depth
    parts = (*chain.above, ForwardSpan(chain.span.start, cut, chain.span.depth))
    return tuple(ForwardSpan(part.start, part.end, part.depth, True) for part in parts)
