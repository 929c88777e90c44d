"""Does a hint change what the model decides? The log-odds of right against wrong, at one token.

    LO(context)   = log p(right tokens | context) - log p(wrong token | context)
    decision lift = LO(own hint) - mean of LO(other text) over other sites' hints and neutral text

The token is the first one at which the mistaken message can no longer become right
(tokens/decision_tokens.py); everything above it is the message's own. If several tokens lead on to
something right there, their probabilities are added. A positive lift means that the hint moves the
model from the mistake towards what is right, more than a hint about something else does.

The measure is ours. On 72 constructed and 29 real messages it separated hints that say what is
right from those that name the mistake, which the mean over the whole message does not: the right
hint often names the same file as the mistaken call, and hundreds of tokens that nothing depends on
dilute the few that decide (SmolLM2-135M-Instruct, 2026-11-22). Two limits: a first token may be
shared by other words (`G` of Glob and of Grep), and the message up to there is the log's, not the
student's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from composer_replication.losses.fused import fused_logprobs
from composer_replication.models.forward import head_of, sliced_predictors
from composer_replication.models.tree_forward import tree_hidden
from composer_replication.tokens.example import DecisionTokens, HintView, TrainingExample
from composer_replication.tokens.tree import Forest


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteDecision:
    """One site: the log-odds of right against wrong under four contexts, in nats.

    `baseline` is the mean over other sites' hints and neutral text, `neutral` a text without
    information at the same place alone (None if it was not measured), `none` no hint.
    """

    site_id: str
    kind: str
    session_id: str
    hint: float
    baseline: float
    neutral: float | None
    none: float

    @property
    def lift(self) -> float:
        """The lift: the log-odds of right against wrong with the site's own hint, less the
        baseline's."""
        return self.hint - self.baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRow:
    """A sequence, and the tokens to score in it: token_ids[k] in place of what is at positions[k].

    Example: ScoredRow(ids=(5, 6, 7), positions=(2, 2), token_ids=(7, 9))
    """

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    token_ids: tuple[int, ...]


def row_states(
    model: Any,
    rows: Sequence[ScoredRow],
    *,
    pad_id: int,
    max_tokens: int,
    layout: str = "rows",
    device: Any = "cpu",
) -> Tensor:
    """The hidden states (N, D) that predict the tokens of all rows; "tree" computes the rows'
    common prefix once."""
    if layout == "tree":
        plan = Forest.grow([row.ids for row in rows]).over(range(len(rows)))
        # the hidden state at position - 1 predicts the token at a position
        places = [
            plan.packed(number)[torch.tensor(row.positions, dtype=torch.long) - 1]
            for number, row in enumerate(rows)
        ]
        return tree_hidden(model, plan)[torch.cat(places).to(device)]
    lengths_B = torch.tensor([len(row.ids) for row in rows])
    ids_BT = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row.ids) for row in rows], batch_first=True, padding_value=pad_id
    )
    return sliced_predictors(
        model,
        ids_BT.to(device),
        lengths_B.to(device),
        row_N=torch.tensor([n for n, row in enumerate(rows) for _ in row.positions]).to(device),
        position_N=torch.tensor([p for row in rows for p in row.positions]).to(device),
        max_tokens=max_tokens,
    )


def score_states(model: Any, rows: Sequence[ScoredRow], hidden_ND: Tensor) -> list[Tensor]:
    """The log-probs of the tokens of each row, from `row_states`."""
    ids_N = torch.tensor([i for row in rows for i in row.token_ids], device=hidden_ND.device)
    logp_N = fused_logprobs(hidden_ND, head_of(model), ids_N)
    return list(logp_N.split([len(row.token_ids) for row in rows]))


def trial_row(
    example: TrainingExample, view: HintView, inserted: tuple[int, ...], *, upto: int | None = None
) -> ScoredRow:
    """The context, some inserted ids (or none), and the message: its tokens (before position
    `upto` of the example, if given) are scored, then its decisions."""
    ids = example.ids[: view.at] + inserted + example.ids[view.at : view.span[1]]
    shift = len(inserted)
    decisions = decision_row(ids, view.decisions, shift=shift)
    positions = [p + shift for a, b in view.spans for p in range(a, b) if upto is None or p < upto]
    return ScoredRow(
        ids=ids,
        positions=(*positions, *decisions.positions),
        token_ids=(*(ids[p] for p in positions), *decisions.token_ids),
    )


def decision_row(
    ids: Sequence[int], decisions: Sequence[DecisionTokens], *, shift: int
) -> ScoredRow:
    """The wrong token and the right ones at each decision that has a fork, in a row whose target
    stands `shift` places further right than in the example."""
    positions: list[int] = []
    token_ids: list[int] = []
    for decision in decisions:
        if decision.fork is not None:
            at = decision.fork + shift
            positions += [at] * (1 + len(decision.right_ids))
            token_ids += [ids[at], *decision.right_ids]
    return ScoredRow(ids=tuple(ids), positions=tuple(positions), token_ids=tuple(token_ids))


def log_odds(logp_N: Tensor, decisions: Sequence[DecisionTokens]) -> list[float]:
    """The log-odds of each decision that has a fork, from the log-probs of its `decision_row`.

    >>> decision = DecisionTokens(site_id="s", spans=((4, 5),), fork=4, right_ids=(7, 9))
    >>> [round(v, 4) for v in log_odds(torch.tensor([0.2, 0.1, 0.3]).log(), [decision])]
    [0.6931]
    """
    sizes = [1 + len(d.right_ids) for d in decisions if d.fork is not None]
    return [
        float(part_N[1:].logsumexp(0) - part_N[0]) for part_N in logp_N.split(sizes) if len(part_N)
    ]
