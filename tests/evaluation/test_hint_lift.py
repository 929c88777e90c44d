"""The audit on models with known log-probs: a planted effect is measured, an absent one is not
invented."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.core.errors import DataError
from composer_replication.evaluation.audit_names import MEASURE
from composer_replication.evaluation.audit_verdict import verdicts
from composer_replication.evaluation.hint_lift import Audit, audit_hints
from composer_replication.tokens.example import DecisionTokens, HintView, TrainingExample
from composer_replication.tokens.hint_donors import shuffled_views

VOCAB, AVOID = 40, 20  # the hint token v + AVOID means: do not write v


class Avoider(nn.Module):
    """p(next) is uniform, except that token v loses `gain` in its logit once the hint v + AVOID has
    been read."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.head = nn.Linear(VOCAB, VOCAB, bias=False)
        with torch.no_grad():
            self.head.weight.zero_()
            for v in range(AVOID):
                self.head.weight[v, v + AVOID] = -gain
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace())

    def get_decoder(self) -> nn.Module:
        return _Seen()

    def get_output_embeddings(self) -> nn.Module:
        return self.head


class _Seen(nn.Module):
    """The hidden state at t encodes which tokens occur in 0..t."""

    def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
        counts_so_far = nn.functional.one_hot(input_ids, VOCAB).cumsum(1).clamp(max=1).float()
        return SimpleNamespace(last_hidden_state=counts_so_far)


def sites(
    n: int, *, sessions: int = 8, kinds: int = 2, tokens: int = 2, known: bool = True
) -> list[TrainingExample]:
    """One site per example: the mistaken message is `tokens` times v, its hint is (v + AVOID); v
    occurs nowhere else. It is decided at the first token, where the next v would be right (if that
    is `known`)."""
    rng, examples = random.Random(0), []
    for i in range(n):
        v = 2 + i % (AVOID - 2)
        ids = (0, *(rng.choice((0, 1)) for _ in range(6 + i % 5)), *([v] * tokens), 1, 1)
        b = len(ids) - 2
        site_id = f"s{i % sessions}:{i}:c"
        right = (2 + (i + 1) % (AVOID - 2),)
        decision = DecisionTokens(
            site_id=site_id,
            spans=((b - tokens, b - tokens + 1),),
            fork=b - tokens if known else None,
            right_ids=right if known else (),
        )
        view = HintView(
            site_id=site_id,
            kind=f"kind{i % kinds}",
            at=3,
            hint_ids=(v + AVOID, *[0] * (i % 3)),
            span=(b - tokens, b),
            target_ids=(v,) * tokens,
            decisions=(decision,),
        )
        examples.append(
            TrainingExample(id=f"e{i}", session_id=f"s{i % sessions}", ids=ids, hints=(view,))
        )
    return examples


def kept(audit: Audit, *, min_lift: float = 0.0, unmeasured: Any = "drop") -> dict[str, bool]:
    """Kind -> whether it is kept, as readers of audit.json decide."""
    judged = verdicts(audit.to_json(), min_lift=min_lift, unmeasured=unmeasured)
    return {verdict.kind: not verdict.failed for verdict in judged}


@pytest.mark.parametrize("max_tokens", [10, 64, 10_000])
def test_a_planted_effect_is_measured_to_its_exact_size(max_tokens: int) -> None:
    gain = 0.7
    audit = audit_hints(Avoider(gain), sites(18), pad_id=0, max_tokens=max_tokens, seed=7)
    assert [k.kind for k in audit.kinds] == ["kind0", "kind1", "all"] and audit.skipped == {
        "no_donor": 0
    }
    for kind in audit.kinds:
        assert kind.lift.mean == pytest.approx(gain, abs=1e-5)
        assert kind.none == pytest.approx(-math.log(VOCAB), abs=1e-5)
        assert kind.hint == pytest.approx(-gain - math.log(VOCAB - 1 + math.exp(-gain)), abs=1e-5)
        assert kind.baseline == pytest.approx(-math.log(VOCAB - 1 + math.exp(-gain)), abs=1e-5)
    assert all(kept(audit, min_lift=0.1).values())
    assert audit.kinds[-1].lift.n == 18 and audit.kinds[-1].lift.clusters == 8


def test_a_view_with_the_hints_of_several_calls_counts_under_each_kind() -> None:
    """One message is one view: otherwise a kind that only occurs together with another would never
    be measured, and so never be kept."""
    plain = sites(18)
    joined = [
        dataclasses.replace(
            e,
            hints=tuple(
                dataclasses.replace(v, others=((f"{v.site_id}+", "beside"),)) for v in e.hints
            ),
        )
        for e in plain
    ]
    audit = audit_hints(Avoider(0.7), joined, pad_id=0, max_tokens=999, seed=7)
    rows = {row.kind: row.lift.n for row in audit.kinds}
    assert rows.pop("beside") == rows.pop("all") == 18 == sum(rows.values())


def test_a_hint_that_names_the_mistake_has_negative_lift() -> None:
    audit = audit_hints(Avoider(-0.7), sites(18), pad_id=0, max_tokens=999, seed=7)
    assert all(k.lift.mean == pytest.approx(-0.7, abs=1e-5) for k in audit.kinds)
    assert not any(kept(audit).values())


def test_a_model_that_ignores_hints_has_zero_in_every_interval() -> None:
    audit = audit_hints(Avoider(0.0), sites(18), pad_id=0, max_tokens=999, seed=7)
    for kind in audit.kinds:
        assert kind.lift.low is not None and kind.lift.high is not None
        assert kind.lift.low <= 0.0 <= kind.lift.high
    assert not any(kept(audit).values())


def test_a_model_that_reads_hints_without_understanding_has_zero_in_its_interval() -> None:
    """Random weights: the hint changes the log-probs of every site, but the right one no more than
    another."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4.0) if p.ndim > 1 else None
    audit = audit_hints(model, sites(60, sessions=20), pad_id=0, max_tokens=999, seed=7)
    assert all(abs(site.hint - site.none) > 1e-4 for site in audit.sites)
    overall = audit.kinds[-1].lift
    assert (
        overall.low is not None and overall.high is not None and overall.low <= 0.0 <= overall.high
    )
    assert model.training  # left as it was found


def test_the_mean_is_over_tokens_then_over_sites() -> None:
    """A site with many tokens weighs no more than one with few."""
    view = HintView(
        site_id="long", kind="kind0", at=3, hint_ids=(1,), span=(4, 34), target_ids=(19,) * 30
    )
    long = TrainingExample(
        id="long", session_id="s9", ids=(0, 0, 0, 0, *([19] * 30)), hints=(view,)
    )
    audit = audit_hints(
        Avoider(1.0),
        [*sites(2, sessions=2, tokens=1), long],
        pad_id=0,
        max_tokens=999,
        seed=7,
    )
    lifts = [s.lift for s in audit.sites]
    assert [s.num_tokens for s in audit.sites] == [1, 1, 30] and audit.sites[
        2
    ].lift < 0.02 < 0.9 < min(lifts[:2])
    assert audit.kinds[-1].lift.mean == pytest.approx(sum(lifts) / 3)


# ---- the shuffle ----


def test_every_hint_is_used_once_and_nobody_keeps_its_own() -> None:
    examples = sites(30, sessions=6, kinds=3)
    views, sessions = [e.hints[0] for e in examples], [e.session_id for e in examples]
    donors = shuffled_views(views, sessions, seed=5)
    used = [j for j in donors if j is not None]
    assert sorted(used) == list(range(30)) and donors == shuffled_views(
        views, sessions, seed=5
    ) != shuffled_views(views, sessions, seed=6)
    for i, j in enumerate(donors):
        assert j is not None and views[i].hint_ids != views[j].hint_ids
        # possible here, so it must be so
        assert views[i].kind != views[j].kind and sessions[i] != sessions[j]


def test_what_has_no_usable_donor_is_counted_not_guessed() -> None:
    examples = sites(4, sessions=4)
    same = [HintView(**{**_fields(e.hints[0]), "hint_ids": (1,)}) for e in examples]
    identical = [
        TrainingExample(id=e.id, session_id=e.session_id, ids=e.ids, hints=(v,))
        for e, v in zip(examples, same, strict=True)
    ]
    audit = audit_hints(Avoider(1.0), identical, pad_id=0, max_tokens=999, seed=1)
    assert (audit.skipped, audit.kinds, audit.sites) == ({"no_donor": 4}, (), ())
    appended = HintView(**{**_fields(examples[0].hints[0]), "rendering": "appended"})
    assert shuffled_views([appended, examples[1].hints[0]], ["a", "b"], seed=0) == [None, None]
    assert shuffled_views([appended], ["a"], seed=0) == [None]


def _fields(view: HintView) -> dict[str, Any]:
    return {name: getattr(view, name) for name in HintView.__slots__}


def test_no_hints_is_an_error_and_one_session_gives_no_interval() -> None:
    with pytest.raises(DataError, match="no hint view"):
        audit_hints(Avoider(1.0), [], pad_id=0, max_tokens=9, seed=1)
    audit = audit_hints(Avoider(1.0), sites(4, sessions=1), pad_id=0, max_tokens=999, seed=1)
    assert (
        audit.kinds[-1].lift.low is None
        and not kept(audit)["all"]
        and audit.donors["same_session"] == 4
    )


def test_the_report_is_plain_json() -> None:
    audit = audit_hints(Avoider(0.5), sites(6), pad_id=0, max_tokens=999, seed=1)
    value = json.loads(json.dumps(audit.to_json()))
    (overall,) = (k for k in value["kinds"] if k["kind"] == "all")
    assert (
        overall["n"] == 6
        and kept(audit, min_lift=0.2)["all"]
        and overall["message"]["low"] > 0.2
        and overall["decision"]["low"] > 0.2
        and value["measure"] == MEASURE
        and len(value["sites"]) == 6
    )
    assert value["sites"][0]["lift"] == pytest.approx(0.5, abs=1e-5)
