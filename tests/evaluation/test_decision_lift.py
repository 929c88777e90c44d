"""The log-odds at the decision: against plain transformers, with the right sign, and as the
gate."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.evaluation.audit_verdict import verdicts
from composer_replication.evaluation.hint_lift import Audit, KindLift, audit_hints
from composer_replication.evaluation.power import values_needed
from composer_replication.tokens.example import DecisionTokens, HintView, TrainingExample
from composer_replication.tokens.hint_donors import several_donors
from tests.evaluation.test_hint_lift import AVOID, Avoider, kept, sites

VOCAB = 64


def tiny_model() -> Any:
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
    )
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4.0) if p.ndim > 1 else None
    return model


def random_sites(n: int) -> list[TrainingExample]:
    """Messages of 4 to 7 tokens whose third one decides; two tokens would be right there; every
    fifth message has two decisions of two kinds."""
    rng, examples = random.Random(5), []
    for i in range(n):
        ids = tuple(rng.randrange(1, VOCAB) for _ in range(16 + i % 4))
        a, b = 10, 14 + i % 4
        first = DecisionTokens(
            site_id=f"s{i}",
            spans=((12, 13),),
            fork=12,
            right_ids=(ids[12] - 1, (ids[12] + 1) % VOCAB),
        )
        second = DecisionTokens(site_id=f"s{i}+", spans=((13, 14),), fork=13, right_ids=(0,))
        two = i % 5 == 0
        view = HintView(
            site_id=f"s{i}",
            kind=f"kind{i % 2}",
            at=8,
            hint_ids=tuple(rng.randrange(1, VOCAB) for _ in range(2 + i % 3)),
            span=(a, b),
            target_ids=ids[a:b],
            others=((f"s{i}+", "beside"),) if two else (),
            decisions=(first, second) if two else (first,),
        )
        examples.append(TrainingExample(id=f"e{i}", session_id=f"t{i % 5}", ids=ids, hints=(view,)))
    return examples


def measured(examples: list[TrainingExample], model: Any, **settings: Any) -> Audit:
    options = {"pad_id": 0, "max_tokens": 999, "seed": 7, **settings}
    return audit_hints(model, examples, **options)


def kind_of(audit: Audit, name: str) -> KindLift:
    return next(kind for kind in audit.kinds if kind.kind == name)


def plain_log_odds(
    model: Any, example: TrainingExample, inserted: tuple[int, ...], decision: DecisionTokens
) -> float:
    """The slow way: the whole sequence through the model, and a softmax over its logits."""
    view = example.hints[0]
    ids = list(example.ids)
    ids[view.at : view.at] = inserted
    assert decision.fork is not None
    at = decision.fork + len(inserted)
    with torch.no_grad():
        p = torch.softmax(model(torch.tensor([ids])).logits[0, at - 1].double(), -1)
    right = sum(float(p[i]) for i in decision.right_ids)
    return math.log(right) - math.log(float(p[example.ids[decision.fork]]))


@pytest.mark.parametrize("layout", ["rows", "tree"])
@pytest.mark.parametrize("max_tokens", [30, 999])
def test_the_log_odds_are_those_of_plain_transformers(layout: str, max_tokens: int) -> None:
    model, examples = tiny_model(), random_sites(12)
    neutral = {e.hints[0].site_id: (3, 4, 5) for e in examples}
    audit = measured(examples, model, neutral=neutral, layout=layout, max_tokens=max_tokens)
    donors = several_donors(
        [e.hints[0] for e in examples],
        [e.session_id for e in examples],
        seed=_audit_seed(),
        count=3,
    )
    rows = {d.site_id: d for site in audit.sites for d in site.decisions}
    assert len(rows) == 12 + 3
    for example, chosen in zip(examples, donors, strict=True):
        view = example.hints[0]
        assert len(set(chosen)) == 3
        for decision in view.decisions:
            row = rows[decision.site_id]
            others = [examples[d].hints[0].hint_ids for d in chosen]
            assert view.hint_ids not in others
            values = [
                plain_log_odds(model, example, ids, decision)
                for ids in ((), view.hint_ids, (3, 4, 5), *others)
            ]
            assert [row.none, row.hint, row.neutral] == pytest.approx(values[:3], abs=2e-4)
            # neutral text counts like one donor
            assert row.baseline == pytest.approx(sum(values[2:]) / 4, abs=2e-4)
            assert row.lift == pytest.approx(values[1] - sum(values[2:]) / 4, abs=4e-4)


def _audit_seed() -> int:
    from composer_replication.core.config.base import stage_seed

    return stage_seed(7, "hint_lift")


def test_each_kind_has_the_decisions_of_its_own_sites() -> None:
    audit = measured(random_sites(10), tiny_model())
    counts = {
        k.kind: (k.decision and k.decision.lift.n, k.lift.n, k.unmeasured) for k in audit.kinds
    }
    assert counts == {
        "beside": (2, 2, 0),
        "kind0": (5, 5, 0),
        "kind1": (5, 5, 0),
        "all": (12, 10, 0),
    }
    beside = kind_of(audit, "beside").decision
    own = [d.lift for site in audit.sites for d in site.decisions if d.kind == "beside"]
    assert beside is not None and beside.lift.mean == pytest.approx(sum(own) / 2)


def test_a_hint_that_lowers_the_wrong_token_has_a_positive_lift_of_that_size() -> None:
    """And one that raises it a negative one: the sign is that of the help."""
    for gain in (0.7, -0.7):
        audit = measured(unrelated_rights(sites(18)), Avoider(gain))
        decision = kind_of(audit, "all").decision
        assert decision is not None and decision.lift.mean == pytest.approx(gain, abs=1e-5)
        assert decision.over_none == pytest.approx(gain, abs=1e-5)
        assert list(kept(audit, min_lift=0.1).values()) == [gain > 0] * 3


def unrelated_rights(examples: list[TrainingExample]) -> list[TrainingExample]:
    """Right tokens whose log-odds no hint changes, another one at each site."""
    return [
        dataclasses.replace(
            e,
            hints=tuple(
                dataclasses.replace(
                    v,
                    decisions=tuple(
                        dataclasses.replace(d, right_ids=(v.hint_ids[0],)) for d in v.decisions
                    ),
                )
                for v in e.hints
            ),
        )
        for e in examples
    ]


def test_the_gate_reads_the_decision_and_not_the_whole_message() -> None:
    """Hints that make the message as a whole less likely, and what is right at its decision even
    more so: the message lift is positive, and nothing of it is to be trained on."""
    model, examples = Avoider(0.5), []
    for example in sites(18, tokens=6):
        (view,) = example.hints
        right = view.hint_ids[0]
        with torch.no_grad():
            model.head.weight[right, right] = -2.0
        (decision,) = view.decisions
        told = dataclasses.replace(decision, right_ids=(right,))
        view = dataclasses.replace(view, decisions=(told,))
        examples.append(dataclasses.replace(example, hints=(view,)))
    audit = measured(examples, model)
    everything = kind_of(audit, "all")
    assert everything.lift.low is not None and everything.lift.low > 0
    assert everything.decision is not None and everything.decision.lift.mean == (
        pytest.approx(-1.5, abs=1e-5)
    )
    assert not any(kept(audit).values())


def test_a_kind_without_a_right_side_is_not_measurable_and_the_setting_decides() -> None:
    unknown = sites(6, kinds=1, known=False)
    audit = measured(unknown, Avoider(0.7))
    (kind, _) = audit.kinds
    assert (kind.decision, kind.unmeasured) == (None, 6)
    assert audit.to_json()["kinds"][0]["decision"] is None
    for setting, keeps in (("drop", False), ("keep", True)):
        assert kept(audit, unmeasured=setting) == {"kind0": keeps, "all": keeps}
    # the other measure goes on beside it
    assert kind.lift.mean == pytest.approx(0.7, abs=1e-5)
    # where some sites are known, those are measured, and the setting does not keep a weak kind
    mixed = [*sites(12, kinds=1)[:6], *unknown[3:]]
    mixed = [
        dataclasses.replace(
            e,
            id=f"e{n}",
            hints=tuple(
                dataclasses.replace(
                    v,
                    site_id=f"m{n}",
                    decisions=tuple(dataclasses.replace(d, site_id=f"m{n}") for d in v.decisions),
                )
                for v in e.hints
            ),
        )
        for n, e in enumerate(mixed)
    ]
    audit = measured(mixed, Avoider(-0.7))
    weak = audit.kinds[0]
    assert weak.unmeasured == 3 and weak.decision is not None and weak.decision.lift.n == 6
    assert not any(kept(audit, unmeasured="keep").values())


def advising(examples: list[TrainingExample], right: int) -> list[TrainingExample]:
    """The same sites, where the hint of each names one and the same right token."""
    return [
        dataclasses.replace(
            e,
            hints=tuple(
                dataclasses.replace(
                    v,
                    decisions=tuple(
                        dataclasses.replace(d, right_ids=(right,)) for d in v.decisions
                    ),
                )
                for v in e.hints
            ),
        )
        for e in examples
    ]


def test_good_hints_that_all_advise_the_same_are_kept() -> None:
    """Every hint raises token 1, so none is a baseline for another: neutral text is."""
    model, examples = Avoider(0.0), advising(sites(18, kinds=1), 1)
    with torch.no_grad():
        model.head.weight[1, AVOID:] = 1.6
    audit = measured(examples, model, neutral={e.hints[0].site_id: (0, 1) for e in examples})
    decision = kind_of(audit, "kind0").decision
    assert decision is not None and decision.lift.mean == pytest.approx(1.6, abs=1e-4)
    assert audit.donors["neutral_only"] == 18 == audit.donors["fewer"]
    assert kept(audit) == {"kind0": True, "all": True}
    # without neutral text nothing is left to compare with, which is counted
    assert measured(examples, model).skipped == {"no_donor": 18}


def test_hints_that_harm_less_than_others_are_not_kept() -> None:
    """Any hint raises the wrong token by 2, other sites' by 1 more: the lift over them is 1, and
    the log-odds fall below those without a hint."""
    model, examples = Avoider(1.0), unrelated_rights(sites(18))
    with torch.no_grad():
        model.head.weight[:AVOID, AVOID:] += 3.0
    audit = measured(examples, model)
    decision = kind_of(audit, "all").decision
    assert decision is not None and decision.lift.low is not None and decision.lift.low > 0.9
    assert decision.over_none < 0
    judged = verdicts(audit.to_json(), min_lift=0.0, unmeasured="drop")
    assert {v.text for v in judged} == {"weak: not above no hint"}


def test_the_settings_of_now_decide_about_what_was_measured() -> None:
    audit = measured(unrelated_rights(sites(18)), Avoider(0.7))
    assert all(kept(audit, min_lift=0.6).values()) and not any(kept(audit, min_lift=0.8).values())
    low, high = (
        verdicts(audit.to_json(), min_lift=bound, unmeasured="drop")[0].needed
        for bound in (0.0, 0.8)
    )
    assert low is not None and high is None


def test_power_is_told_by_the_sites_own_spread() -> None:
    values = [2.0, 1.0, 1.5, 0.5, 2.5]
    mean, sd = 1.5, math.sqrt(2.5 / 4)
    needed = values_needed(values)
    assert needed is not None
    # the normal approximation is a lower bound, and Student's t asks for little more
    normal = ((1.959964 + 0.841621) * sd / mean) ** 2
    assert normal <= needed <= normal + 4
    assert values_needed(values, above=1.4) > 100  # type: ignore[operator]
    assert values_needed(values, above=1.6) is values_needed([3.0]) is None


def test_donors_are_others_each_once_and_as_many_as_there_are() -> None:
    examples = sites(12, sessions=6, kinds=3)
    views, sessions = [e.hints[0] for e in examples], [e.session_id for e in examples]
    donors = several_donors(views, sessions, seed=5, count=3)
    for view, chosen in zip(views, donors, strict=True):
        texts = [views[d].hint_ids for d in chosen]
        assert len(texts) == 3 == len(set(texts)) and view.hint_ids not in texts
    assert donors == several_donors(views, sessions, seed=5, count=3)
    # another kind and session where possible, and so it is
    for i, chosen in enumerate(donors):
        assert not any(views[d].kind == views[i].kind or sessions[d] == sessions[i] for d in chosen)
    few = several_donors(views[:3], sessions[:3], seed=5, count=3)
    assert [len(chosen) for chosen in few] == [2, 2, 2]


def test_every_site_has_as_many_donors_as_other_texts_exist() -> None:
    """Of two texts at ten sites and two more at one each, a permutation cannot give everyone three
    different ones."""
    examples = sites(12, sessions=6, kinds=3)
    texts = [(30,), (31,)] * 5 + [(32,), (33,)]
    views = [
        dataclasses.replace(e.hints[0], hint_ids=text)
        for e, text in zip(examples, texts, strict=True)
    ]
    donors = several_donors(views, [e.session_id for e in examples], seed=0, count=3)
    for view, chosen in zip(views, donors, strict=True):
        shares = set(view.decisions[0].right_ids)
        others = {
            v.hint_ids
            for v in views
            if v.hint_ids != view.hint_ids and not shares & set(v.decisions[0].right_ids)
        }
        drawn = [views[d].hint_ids for d in chosen]
        assert len(drawn) == len(set(drawn)) == min(3, len(others)) == 3 and set(drawn) <= others
