"""A step's examples and pairs as prime-rl's training samples: token ids and one value per token and
stream.

    prime-rl's loss = rl / N_rl + ce / N_ce + ref_kl / N_ref_kl

N_x counts the tokens of the whole step whose weight in stream x is not 0. The weights here hold
what is missing to our means over the same step (docs/backends/prime_rl.md), so its sum is ours; the
policy's own weight is in the arguments of loss_fn (`loss_kwargs`):

    policy       rl       N_rl / policy tokens                           advantages, sampler's logps
    hint         ref_kl   weight * N_ref_kl / (tokens of the message * messages)     ref_logprobs
    preference   ce       + for the chosen side, - for the rejected one: minus the derivative of the
                          pair's loss by that side's log-prob, * weight * N_ce / pairs

A signed cross-entropy has the pair's gradient at the weights that scored it, and no others: samples
are of one step. The value of prime-rl's loss is not that of ours; its gradient is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch

from composer_replication.core.config.train_settings import PreferenceSettings, TrainSettings
from composer_replication.core.errors import AlignmentError
from composer_replication.tokens.example import PreferencePair, Span, TrainingExample
from composer_replication.training.forwards.pairs import pair_values

Scores = Mapping[str, Sequence[float]]
"""Log-probs of a response's tokens, by the name of what was scored: a site or a side of a pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStreams:
    """One sequence with prime-rl's streams, named as the fields of its TrainingSample.

    Every stream has one value per token. `mask` are the tokens that our student sampled; a token is
    trained by a component if its weight there is not 0.
    """

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    rl_weights: tuple[float, ...]
    ref_logprobs: tuple[float, ...] | None = None
    ref_kl_weights: tuple[float, ...] | None = None
    ce_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in (*_FIELDS, "ref_logprobs", "ref_kl_weights", "ce_weights"):
            stream = getattr(self, name)
            if stream is not None and len(stream) != len(self.token_ids):
                raise AlignmentError(
                    f"{name} has {len(stream)} values for {len(self.token_ids)} tokens",
                    where="prime-rl sample",
                )
        if any(w and not m for w, m in zip(self.rl_weights, self.mask, strict=True)):
            raise AlignmentError(
                "rl_weights trains a token that the student did not sample",
                where="prime-rl sample",
            )
        kl = self.ref_kl_weights
        if kl is not None and any(w and not m for w, m in zip(kl, self.mask, strict=True)):
            raise AlignmentError(
                "ref_kl_weights trains a token that the student did not sample: without the"
                " sampler's log-prob its importance ratio is unknown",
                where="prime-rl sample",
            )
        if kl is not None and any(kl) and self.ref_logprobs is None:
            raise AlignmentError("ref_kl_weights without ref_logprobs", where="prime-rl sample")


_FIELDS = ("mask", "logprobs", "advantages", "rl_weights")


def step_samples(
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair],
    *,
    settings: TrainSettings,
    hinted: Scores,
    policy: Scores,
) -> list[TokenStreams]:
    """The samples of one step: one per example, two per pair.

    `hinted[site_id]` are the teacher's log-probs of the mistaken message, which read the hint;
    `policy["ID:chosen"]` and `policy["ID:rejected"]` those of the student, now, for each pair. The
    reference's are the pair's own (`PreferencePair.reference`). Example: step_samples(rollouts, [],
    settings=settings, hinted={"s1:4:c1": (-0.2, -1.5)}, policy={})
    """
    samples = [_policy_sample(example, settings) for example in examples]
    if settings.hint.weight:
        views = sum(len(example.hints) for example in examples)
        samples = [
            _with_hints(sample, example, settings, hinted=hinted, views=views)
            for sample, example in zip(samples, examples, strict=True)
        ]
    if settings.preference.weight:
        samples += chain.from_iterable(
            _pair_samples(pair, settings.preference, policy, weight=1 / len(pairs))
            for pair in pairs
        )
    policy_tokens = sum(len(action.logprobs) for e in examples for action in e.actions)
    return _scaled_to_counts(samples, settings, policy_tokens=policy_tokens)


def _policy_sample(example: TrainingExample, settings: TrainSettings) -> TokenStreams:
    """What an example's sampled messages train: every token with an advantage."""
    size, weight = len(example.ids), float(settings.policy.weight > 0)  # loss_kwargs has the rest
    mask, logprobs = [False] * size, [0.0] * size
    advantages, weights = [0.0] * size, [0.0] * size
    for action in example.actions:
        a, b = action.span
        mask[a:b], logprobs[a:b] = [True] * (b - a), list(action.logprobs)
        advantages[a:b] = [action.advantage] * (b - a)
        weights[a:b] = [weight if action.advantage else 0.0] * (b - a)
    return TokenStreams(
        token_ids=example.ids,
        mask=tuple(mask),
        logprobs=tuple(logprobs),
        advantages=tuple(advantages),
        rl_weights=tuple(weights),
    )


def _with_hints(
    sample: TokenStreams,
    example: TrainingExample,
    settings: TrainSettings,
    *,
    hinted: Scores,
    views: int,
) -> TokenStreams:
    """The sample with the teacher's log-probs at the mistaken messages, and their weights. The
    message of a group whose rewards are equal is sampled too: its view has the sampler's log-probs.

    Raises AlignmentError if a site was not scored, or not token by token.
    """
    size, hint = len(example.ids), settings.hint
    reference, weights = [0.0] * size, [0.0] * size
    mask, logprobs = list(sample.mask), list(sample.logprobs)
    for view in example.hints:
        scores, places = hinted.get(view.site_id, ()), _places(view.spans)
        if len(scores) != len(places):
            raise AlignmentError(
                f"{len(scores)} log-probs of the teacher for a target of {len(places)} tokens",
                where=view.site_id,
            )
        weight = hint.weight if hint.mean == "token" else hint.weight / (len(places) * views)
        for place, score in zip(places, scores, strict=True):
            reference[place], weights[place] = score, weight
        for place, sampled in zip(places, view.logprobs, strict=False):
            mask[place], logprobs[place] = True, sampled
    if not any(weights):
        return sample
    return replace(
        sample,
        mask=tuple(mask),
        logprobs=tuple(logprobs),
        ref_logprobs=tuple(reference),
        ref_kl_weights=tuple(weights),
    )


def _places(spans: Sequence[Span]) -> list[int]:
    return [place for a, b in spans for place in range(a, b)]


def _pair_samples(
    pair: PreferencePair, settings: PreferenceSettings, policy: Scores, *, weight: float
) -> list[TokenStreams]:
    """Both sides of a pair with signed weights of their cross-entropy."""
    chosen, rejected = (policy.get(f"{pair.id}:{side}", ()) for side in ("chosen", "rejected"))
    for side, scores, ids in (
        ("chosen", chosen, pair.chosen_ids),
        ("rejected", rejected, pair.rejected_ids),
    ):
        if len(scores) != len(ids):
            raise AlignmentError(
                f"{len(scores)} log-probs of the {side} side's {len(ids)} tokens", where=pair.id
            )
    weights = side_weights(pair, settings, chosen=chosen, rejected=rejected)
    return [
        _side_sample(pair.prefix_ids, ids, weight=settings.weight * weight * side_weight)
        for ids, side_weight in zip((pair.chosen_ids, pair.rejected_ids), weights, strict=True)
    ]


def side_weights(
    pair: PreferencePair,
    settings: PreferenceSettings,
    *,
    chosen: Sequence[float],
    rejected: Sequence[float],
) -> tuple[float, float]:
    """The weight of each token of the chosen and the rejected side in the cross-entropy that has
    the gradient of the pair's loss: for DPO +w and -w, with w = beta * sigmoid(-beta * margin).

    >>> pair = PreferencePair(id="p", session_id="s", prefix_ids=(1,), chosen_ids=(2, 3),
    ...                       rejected_ids=(4,), reference=(-1.0, -1.0, -2.0))
    >>> settings = PreferenceSettings(beta=0.5)
    >>> side_weights(pair, settings, chosen=(-1.0, -1.0), rejected=(-2.0,))  # margin 0
    (0.25, -0.25)
    """
    divide = settings.objective != "dpo"  # the others score by the mean over a side's tokens
    sides = [(chosen, len(chosen)), (rejected, len(rejected))]
    scores = [
        torch.tensor(
            [sum(logps) / (size if divide else 1)], dtype=torch.float64, requires_grad=True
        )
        for logps, size in sides
    ]
    split, reference = len(chosen), None
    if settings.has_reference:
        if len(pair.reference) != pair.num_response_tokens:
            raise AlignmentError(
                f"{settings.objective} without the reference's log-probs", where=pair.id
            )
        halves = (pair.reference[:split], pair.reference[split:])
        reference = tuple(
            torch.tensor([sum(half) / (len(half) if divide else 1)], dtype=torch.float64)
            for half in halves
        )
    values_P = pair_values(settings, (scores[0], scores[1]), reference).values_P  # pyright: ignore[reportArgumentType]
    gradients = torch.autograd.grad(values_P.sum(), scores)
    chosen_weight, rejected_weight = (
        -float(gradient) / (size if divide else 1)
        for gradient, (_, size) in zip(gradients, sides, strict=True)
    )
    return chosen_weight, rejected_weight


def _side_sample(prefix: tuple[int, ...], ids: tuple[int, ...], *, weight: float) -> TokenStreams:
    size = len(prefix) + len(ids)
    zeros = (0.0,) * size
    return TokenStreams(
        token_ids=prefix + ids,
        mask=(False,) * size,
        logprobs=zeros,
        advantages=zeros,
        rl_weights=zeros,
        ce_weights=(0.0,) * len(prefix) + (weight,) * len(ids),
    )


def component_tokens(samples: Sequence[TokenStreams]) -> dict[str, int]:
    """How many tokens of a step each component trains: what prime-rl divides by.

    >>> component_tokens([])
    {'rl': 0, 'ce': 0, 'ref_kl': 0}
    """
    return {
        name: sum(1 for s in samples for w in getattr(s, f"{name}_weights") or () if w)
        for name in ("rl", "ce", "ref_kl")
    }


def _scaled_to_counts(
    samples: Sequence[TokenStreams], settings: TrainSettings, *, policy_tokens: int
) -> list[TokenStreams]:
    """The samples with the weights of each stream times the number that prime-rl divides by, over
    the number that our mean divides by where that is not in the weights yet."""
    counted = component_tokens(samples)
    by_token = settings.hint.mean == "token"
    factors = {
        "rl": counted["rl"] / max(policy_tokens, 1),
        "ce": float(counted["ce"]),
        "ref_kl": 1.0 if by_token else float(counted["ref_kl"]),
    }
    return [
        replace(
            sample,
            **{
                f"{name}_weights": tuple(w * factor for w in stream)
                for name, factor in factors.items()
                if (stream := getattr(sample, f"{name}_weights")) is not None
            },
        )
        for sample in samples
    ]
