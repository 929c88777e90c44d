"""Every control of train.hint against a direct computation from plain logits in float64: loss and
gradient of a step, tree and rows."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from composer_replication.core.config.hint_settings import HintSettings
from composer_replication.core.errors import AlignmentError, ConfigError
from composer_replication.models.forward import Head
from composer_replication.models.load_student import Student
from composer_replication.tokens.batch import collate, count
from composer_replication.tokens.example import HintView, SampledMessage, TrainingExample
from composer_replication.training.draws.hint_inputs import (
    check_hint_settings,
    check_views,
    views_with_donor,
    with_wrong_hints,
)
from composer_replication.training.forwards.channels import channel_losses
from composer_replication.training.forwards.hinting import hint_credit, view_weights
from composer_replication.training.on_policy.live import annotate_views
from composer_replication.training.run.state import Trainer
from tests.models.tree_models import gap, make
from tests.training.small_student import VOCAB, WordTokenizer, make_example
from tests.training.trees import outcome, trainer_of

LAYOUTS = ("tree", "rows")
Rows = dict[str, Tensor]


def student() -> Student:
    torch.manual_seed(0)
    return Student(name="test", model=make("qwen3").double(), tokenizer=WordTokenizer())


@cache
def examples() -> tuple[TrainingExample, ...]:
    """Two rollouts whose views have all inputs of every control; one sampled message is a view's
    target, the other is not."""
    built = []
    for number, weight in ((1, 0.5), (2, 0.3)):
        rng = random.Random(number)
        plain = make_example(number, hints=2, lm=False)
        # messages of two lengths: a mean over messages is not one over tokens
        a, b = plain.hints[1].span
        short = dataclasses.replace(
            plain.hints[1], span=(a, b - 2), target_ids=plain.ids[a : b - 2]
        )
        plain = dataclasses.replace(plain, hints=(plain.hints[0], short))
        views = tuple(
            dataclasses.replace(
                v,
                origin="student",
                logprobs=tuple(-3.7 + rng.gauss(0, 0.6) for _ in v.target_ids),
                difficulty=weight,
                wrong_ids=tuple(rng.randrange(2, VOCAB) for _ in range(3)),
            )
            for v in plain.hints
        )
        spans = ((3, 6), views[0].span)
        actions = tuple(
            SampledMessage(
                span=s,
                logprobs=tuple(-3.6 + rng.gauss(0, 0.2) for _ in range(3)),
                advantage=0.5 * number - 1.2,
            )
            for s in spans
        )
        built.append(dataclasses.replace(plain, hints=views, actions=actions, origin="student"))
    return tuple(built)


def rows_of(
    live: Any, start: Any, *, contrast: bool
) -> list[tuple[TrainingExample, HintView, Rows]]:
    """For each view the logits that predict its target: of the student, and below the hint (and
    another's) by both models."""
    collected = []
    for e in examples():
        for v in e.hints if contrast else [dataclasses.replace(v, wrong_ids=()) for v in e.hints]:
            a, b = v.span

            def logits(model: Any, ids: tuple[int, ...], a: int, b: int) -> Tensor:
                return model(input_ids=torch.tensor([ids[:b]])).logits[0, a - 1 : b - 1]

            rows = {"student": logits(live, e.ids, a, b)}
            for name, hint in (("right", v.hint_ids), ("wrong", v.wrong_ids)):
                below, shift = e.ids[: v.at] + hint + e.ids[v.at : b], len(hint)
                with torch.no_grad():
                    rows |= {
                        f"{name}:{who}": logits(m, below, a + shift, b + shift)
                        for who, m in (("live", live), ("start", start))
                    }
            collected.append((e, v, rows | {"ids": torch.tensor(v.target_ids)}))
    return collected


# ---- the formulae, as their sources have them ----


def both(rows: Rows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    s, t = rows["student"].log_softmax(-1), rows["teacher"].log_softmax(-1)
    return s, t, s.exp(), t.exp()


def kl_st(rows: Rows) -> Tensor:
    s, t, ps, _ = both(rows)
    return (ps * (s - t)).sum(-1)


def kl_ts(rows: Rows) -> Tensor:
    s, t, _, pt = both(rows)
    return (pt * (t - s)).sum(-1)


def raw_jsd(ps: Tensor, pt: Tensor, beta: float) -> Tensor:
    m = (1 - beta) * ps + beta * pt
    return (beta * pt * (pt / m).log() + (1 - beta) * ps * (ps / m).log()).sum(-1)


def unit_jsd(beta: float) -> Callable[[Rows], Tensor]:
    return lambda rows: raw_jsd(*both(rows)[2:], beta) / (beta * (1 - beta))


def top_entries(rows: Rows, k: int, side: str, rest: str) -> tuple[Tensor, Tensor]:
    _, _, ps, pt = both(rows)
    ids = (ps if side == "student" else pt).detach().topk(k, -1).indices
    qs, qt = ps.gather(-1, ids), pt.gather(-1, ids)
    if rest == "tail":
        return torch.cat([qs, 1 - qs.sum(-1, keepdim=True)], -1), torch.cat(
            [qt, 1 - qt.sum(-1, keepdim=True)], -1
        )
    return (
        (qs / qs.sum(-1, keepdim=True), qt / qt.sum(-1, keepdim=True))
        if rest == "renormalised"
        else (qs, qt)
    )


def top_kl_ts(k: int, side: str, rest: str) -> Callable[[Rows], Tensor]:
    def value(rows: Rows) -> Tensor:
        qs, qt = top_entries(rows, k, side, rest)
        return (qt * (qt / qs).log()).sum(-1)

    return value


def token(rows: Rows, log: Tensor) -> Tensor:
    return log.gather(-1, rows["ids"][:, None])[:, 0]


def sampled(rows: Rows) -> Tensor:
    s, t, _, _ = both(rows)
    return (token(rows, s) - token(rows, t)).detach() * token(rows, s)


def taid_at(t: float) -> Callable[[Rows], Tensor]:
    def value(rows: Rows) -> Tensor:
        mixed = (1 - t) * rows["student"].detach() + t * rows["teacher"]
        return -(mixed.softmax(-1) * rows["student"].log_softmax(-1)).sum(-1)

    return value


def eopd(
    first: Callable[[Rows], Tensor], tau: float, k: int, alpha: float
) -> Callable[[Rows], Tensor]:
    def value(rows: Rows) -> Tensor:
        s, t, _, pt = both(rows)
        open_ = (-(pt * t).sum(-1) > tau).double()
        ids = pt.topk(k, -1).indices
        return first(rows) + alpha * open_ * (pt * (t - s)).gather(-1, ids).sum(-1)

    return value


def paper_first(rows: Rows) -> Tensor:
    s, t, _, _ = both(rows)
    now = token(rows, s)
    return -(token(rows, t) - now).detach() * (now - now.detach()).exp()


def soft_gate(h_max: float) -> Callable[[Rows], Tensor]:
    def value(rows: Rows) -> Tensor:
        _, t, _, pt = both(rows)
        w = (-(pt * t).sum(-1) / h_max).clamp(0, 1)
        return w * kl_ts(rows) + (1 - w) * kl_st(rows)

    return value


def entry_clipped(clip: float) -> Callable[[Rows], Tensor]:
    def value(rows: Rows) -> Tensor:
        s, t, _, pt = both(rows)
        return (pt * (t - s)).clamp(max=clip).sum(-1)

    return value


KL_ST, KL_TS = "kl(student, teacher)", "kl(teacher, student)"
CASES: dict[str, tuple[dict[str, Any], Callable[[Rows], Tensor]]] = {
    "kl(student, teacher)": ({"divergence": KL_ST}, kl_st),
    "kl(teacher, student)": ({"divergence": KL_TS}, kl_ts),
    "jsd": ({"beta": 0.3}, unit_jsd(0.3)),
    "temperature": ({"divergence": KL_TS, "temperature": 1.7}, kl_ts),
    "live": ({"divergence": KL_ST, "teacher": "live"}, kl_st),
    "trust region": ({"divergence": KL_ST, "teacher": "trust_region", "trust": 0.3}, kl_st),
    "top k of the student": (
        {"divergence": KL_TS, "estimator": "top_k", "top_k": 5},
        top_kl_ts(5, "student", "tail"),
    ),
    "top k of the teacher": (
        {
            "divergence": KL_TS,
            "estimator": "top_k",
            "top_k": 5,
            "support": "teacher",
            "rest": "renormalised",
        },
        top_kl_ts(5, "teacher", "renormalised"),
    ),
    "top k, rest dropped": (
        {
            "divergence": KL_TS,
            "estimator": "top_k",
            "top_k": 5,
            "support": "teacher",
            "rest": "dropped",
        },
        top_kl_ts(5, "teacher", "dropped"),
    ),
    "top k jsd is raw": (
        {"estimator": "top_k", "top_k": 5},
        lambda rows: raw_jsd(*top_entries(rows, 5, "student", "tail"), 0.5),
    ),
    "sampled token": ({"divergence": KL_ST, "estimator": "sampled_token"}, sampled),
    "sampled token in a trust region": (
        {
            "divergence": KL_ST,
            "estimator": "sampled_token",
            "teacher": "trust_region",
            "trust": 0.3,
        },
        sampled,
    ),
    "taid": ({"divergence": "taid", "taid": {"schedule": "fixed", "t_start": 0.6}}, taid_at(0.6)),
    "eopd": (
        {"divergence": "eopd", "entropy": {"tau": 3.4, "top": 6, "alpha": 0.7}},
        eopd(kl_st, 3.4, 6, 0.7),
    ),
    "eopd of the paper": (
        {
            "divergence": "eopd",
            "estimator": "sampled_token",
            "entropy": {"tau": 3.4, "top": 6, "alpha": 0.7},
        },
        eopd(paper_first, 3.4, 6, 0.7),
    ),
    "soft gate": ({"divergence": "soft_gate", "entropy": {"h_max": 5.0}}, soft_gate(5.0)),
    "entry clip": ({"divergence": KL_TS, "entry_clip": 0.002}, entry_clipped(0.002)),
    "token clip": (
        {"divergence": KL_ST, "token_clip": 0.15},
        lambda rows: kl_st(rows).clamp(max=0.15),
    ),
    "importance clip": ({"divergence": KL_ST, "importance_clip": 1.1}, kl_st),
    "difficulty": ({"divergence": KL_ST, "difficulty": True}, kl_st),
    "mean over tokens": ({"divergence": KL_ST, "mean": "token"}, kl_st),
    "difficulty over tokens": ({"divergence": KL_ST, "difficulty": True, "mean": "token"}, kl_st),
    "contrast": ({"divergence": KL_ST, "contrast": True}, kl_st),
    "contrast in a trust region": (
        {"divergence": KL_ST, "contrast": True, "teacher": "trust_region", "trust": 0.3},
        kl_st,
    ),
}


def direct(
    settings: HintSettings, formula: Callable[[Rows], Tensor], live: Any, start: Any
) -> tuple[Tensor, list[Tensor]]:
    """The channel's mean over all views, and its gradient, one view at a time."""
    total, units = torch.zeros((), dtype=torch.float64), 0.0
    for _, v, rows in rows_of(live, start, contrast=settings.contrast):

        def teacher(name: str, rows: Rows = rows) -> Tensor:
            a, b = rows[f"{name}:start"], rows[f"{name}:live"]
            return {"frozen": a, "live": b}.get(
                settings.teacher, (1 - settings.trust) * a + settings.trust * b
            ) / settings.temperature

        tempered = {
            "student": rows["student"] / settings.temperature,
            "teacher": teacher("right"),
            "ids": rows["ids"],
        }
        if settings.contrast:
            shift = (teacher("right").log_softmax(-1) - teacher("wrong").log_softmax(-1)).clamp(
                -5, 5
            )
            tempered["teacher"] = tempered["student"].detach() + shift
        values, weight = (
            formula(tempered),
            torch.tensor(v.difficulty if settings.difficulty else 1.0).double(),
        )
        if settings.importance_clip:
            now = token(rows, rows["student"].log_softmax(-1)).detach()
            values = values * (now - torch.tensor(v.logprobs).double()).exp().clamp(
                max=settings.importance_clip
            )
        total = total + weight * (values.mean() if settings.mean == "site" else values.sum())
        units += float(weight) * (1 if settings.mean == "site" else len(v.target_ids))
    mean = total / units
    return mean.detach(), list(
        torch.autograd.grad(mean, [p for p in live.parameters() if p.requires_grad])
    )


def with_only(settings: HintSettings) -> list[TrainingExample]:
    """The examples, with another site's hint only if a contrast reads it."""
    if settings.contrast:
        return list(examples())
    return [
        dataclasses.replace(e, hints=tuple(dataclasses.replace(v, wrong_ids=()) for v in e.hints))
        for e in examples()
    ]


def moved_trainer(layout: str, hint: dict[str, Any], **train: Any) -> tuple[Trainer, Any]:
    """A trainer whose student has moved away from its start, and a copy of that start."""
    small = student()
    start = copy.deepcopy(small.model)
    return (
        trainer_of(small, layout, hint={"weight": 1.0, "teacher": "frozen", **hint}, **train),
        start,
    )


@pytest.mark.parametrize("name", CASES, ids=lambda name: name.replace(" ", "_"))
def test_a_step_is_the_direct_computation_in_both_layouts(name: str) -> None:
    hint, formula = CASES[name]
    grads_of_layout = {}
    for layout in LAYOUTS:
        trainer, start = moved_trainer(layout, hint)
        settings = trainer.settings.hint
        value, gradient = direct(
            settings, formula, trainer.models.student.model.eval(), start.eval()
        )
        steps, grads = outcome(trainer, (with_only(settings), []), {"hint": 1.0})
        assert steps["hint"].loss == pytest.approx(float(value), rel=1e-6, abs=1e-9)
        assert gap(grads, gradient) <= 2e-6
        grads_of_layout[layout] = grads
    assert gap(grads_of_layout["tree"], grads_of_layout["rows"]) <= 1e-6
    plain, start = moved_trainer("rows", {"divergence": "kl(student, teacher)"})
    if name != KL_ST:
        _, unchanged = outcome(plain, (with_only(plain.settings.hint), []), {"hint": 1.0})
        assert gap(grads_of_layout["rows"], unchanged) > 1e-3  # the control is not without effect


@pytest.mark.parametrize("mean", ["site", "token"])
def test_the_mean_does_not_depend_on_how_a_step_is_cut(mean: str) -> None:
    """Micro-batches, layouts and shares of two ranks: parts by global counts add up to the whole
    step's loss and gradient."""
    results: list[tuple[float, list[Tensor]]] = []
    wholes = with_only(HintSettings())
    for layout, room in (("tree", 100_000), ("rows", 100_000), ("rows", 30), ("tree", 30)):
        trainer, _ = moved_trainer(layout, {"divergence": KL_ST, "mean": mean}, micro_tokens=room)
        steps, grads = outcome(trainer, (wholes, []), {"hint": 1.0})
        results.append((steps["hint"].loss, grads))
    trainer, _ = moved_trainer("rows", {"divergence": KL_ST, "mean": mean})
    losses = []
    for share in (wholes[:1], wholes[1:]):  # each of two ranks' part, by the counts of both
        batch = collate(share, pad_id=0)
        scored, _ = channel_losses(trainer.models, batch, count(wholes))
        losses += [loss.mean_part().item() for loss in scored if loss.name == "hint"]
    assert sum(losses) == pytest.approx(results[0][0], rel=1e-6) and all(losses)
    for loss, grads in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-6) and gap(grads, results[0][1]) <= 1e-6


def test_a_long_message_weighs_what_a_short_one_does_and_by_tokens_as_much_as_it_has() -> None:
    batch, counts = collate(with_only(HintSettings()), pad_id=0), count(with_only(HintSettings()))
    for mean, shares in (("site", [0.25] * 4), ("token", [3 / 8, 1 / 8] * 2)):
        settings = HintSettings(mean=mean)
        weights_N = view_weights(settings, batch, counts)
        weights_N = torch.full((8,), 1 / counts.hint_tokens) if weights_N is None else weights_N
        per_view = torch.zeros(4).index_add(0, batch.hint_student.item_N, weights_N)
        assert per_view.tolist() == pytest.approx(shares)


def test_what_is_told_beside_the_loss() -> None:
    trainer, start = moved_trainer(
        "tree", {"divergence": KL_ST, "token_clip": 0.15, "importance_clip": 1.1}
    )
    live = trainer.models.student.model.eval()
    steps, _ = outcome(trainer, (with_only(trainer.settings.hint), []), {"hint": 1.0})
    rows = [
        r | {"teacher": r["right:start"]} for _, _, r in rows_of(live, start.eval(), contrast=False)
    ]
    values = torch.cat([kl_st(r).detach() for r in rows])
    assert (
        steps["hint"].metrics["clipped"] == pytest.approx(float((values > 0.15).double().mean()))
        and 0 < steps["hint"].metrics["clipped"] < 1
    )
    assert steps["hint"].metrics["raw"] == pytest.approx(float(values.mean()), rel=1e-6)
    now = torch.cat([token(r, r["student"].log_softmax(-1)).detach() for r in rows])
    then = torch.tensor([x for e in examples() for v in e.hints for x in v.logprobs]).double()
    assert steps["hint"].metrics["importance_cut"] == pytest.approx(
        float(((now - then).exp() > 1.1).double().mean())
    )


# ---- credit ----


def evidence_of(settings: HintSettings, live: Any, start: Any) -> dict[tuple[str, int], float]:
    """log p_teacher - log p_student (or the contrast of two hints) of each target token of the
    views, by example and position."""
    evidence = {}
    for e, v, rows in rows_of(live, start, contrast=settings.contrast):
        right = token(rows, rows["right:start"].log_softmax(-1))
        below = token(
            rows, (rows["wrong:start"] if settings.contrast else rows["student"]).log_softmax(-1)
        )
        evidence |= {
            (e.id, v.span[0] + k): float(x) for k, x in enumerate((right - below).detach())
        }
    return evidence


def direct_policy(settings: HintSettings, live: Any, start: Any) -> tuple[Tensor, list[Tensor]]:
    """Dr.GRPO's sum over tokens by the number of rollouts, on advantages that the hint has
    moved."""
    evidence, total = evidence_of(settings, live, start), torch.zeros((), dtype=torch.float64)
    for e in examples():
        log = live(input_ids=torch.tensor([e.ids])).logits[0].log_softmax(-1)
        for action in e.actions:
            for position, then in zip(range(*action.span), action.logprobs, strict=True):
                a = action.advantage
                if (e.id, position) in evidence and settings.is_credit:
                    credit = torch.tensor(settings.weight * evidence[e.id, position]).double()
                    if settings.combination == "bounded":
                        credit = settings.bound * torch.tanh(credit / settings.bound)
                        a = max(a + float(credit), 0.0) if a > 0 else min(a + float(credit), 0.0)
                    else:
                        a = a + float(credit)
                total = total - a * (log[position - 1, e.ids[position]] - then).exp()
    total = total / len(examples())
    return total.detach(), list(
        torch.autograd.grad(total, [p for p in live.parameters() if p.requires_grad])
    )


@pytest.mark.parametrize(
    "hint",
    [
        {"combination": "advantage", "weight": 2.0},
        {"combination": "bounded", "weight": 20.0, "bound": 0.4},
        {"combination": "bounded", "weight": 3.0, "bound": 0.4, "contrast": True},
    ],
    ids=["advantage", "bounded", "bounded_contrast"],
)
def test_credit_moves_the_advantages_of_the_views_tokens_alone(hint: dict[str, Any]) -> None:
    grads_of_layout = {}
    for layout in LAYOUTS:
        trainer, start = moved_trainer(layout, hint)
        settings = trainer.settings.hint
        live = trainer.models.student.model.eval()
        value, gradient = direct_policy(settings, live, start.eval())
        steps, grads = outcome(trainer, (with_only(settings), []), {"policy": 1.0})
        assert trainer.weights["hint"] == 0.0 and trainer.weights["policy"] == 1.0
        assert steps["policy"].loss == pytest.approx(float(value), rel=1e-6)
        assert gap(grads, gradient) <= 2e-6
        # two targets of three tokens were sampled by the policy; the other two views have no action
        assert steps["hint"].tokens == 6
        grads_of_layout[layout] = grads
    assert gap(grads_of_layout["tree"], grads_of_layout["rows"]) <= 1e-6
    plain, start = moved_trainer("rows", {"combination": "additive"})
    _, unchanged = outcome(plain, (with_only(plain.settings.hint), []), {"policy": 1.0})
    assert gap(grads_of_layout["rows"], unchanged) > 1e-3


def test_two_views_of_one_message_do_not_give_its_tokens_credit_twice() -> None:
    """The same hint above the same message, once and twice: the tokens' credit is the mean over
    their views, not the sum."""
    settings, rng = (
        HintSettings(combination="advantage", weight=2.0),
        torch.Generator().manual_seed(3),
    )
    example = examples()[0]
    view = dataclasses.replace(example.hints[0], wrong_ids=())
    student_ND, teacher_ND = (
        torch.randn(3, 8, generator=rng, dtype=torch.float64) for _ in range(2)
    )
    head = Head(weight_VD=torch.randn(VOCAB, 8, generator=rng, dtype=torch.float64))
    credits = []
    for views in ((view,), (view, dataclasses.replace(view, site_id="again"))):
        batch = collate([dataclasses.replace(example, hints=views)], pad_id=0)
        counts, times = count([dataclasses.replace(example, hints=views)]), len(views)
        credit = hint_credit(
            settings,
            (student_ND.repeat(times, 1), head),
            [(teacher_ND.repeat(times, 1), head)],
            batch,
            counts=counts,
        )
        assert counts.credited_tokens == credit.loss.tokens == 3
        credits.append(credit.advantage_A)
    assert torch.allclose(*credits) and not torch.allclose(
        credits[0], torch.full_like(credits[0], example.actions[0].advantage)
    )


def test_bounded_credit_is_bounded_in_the_step_and_says_how_often_it_stands_at_its_bound() -> None:
    trainer, start = moved_trainer(
        "tree", {"combination": "bounded", "weight": 1000.0, "bound": 0.1}
    )
    settings = trainer.settings.hint
    steps, _ = outcome(trainer, (with_only(settings), []), {"policy": 1.0})
    assert 0 < steps["hint"].loss <= 0.1 + 1e-12
    values = [
        abs(torch.tensor(1000.0 * x / 0.1).tanh())
        for x in evidence_of(settings, trainer.models.student.model.eval(), start.eval()).values()
    ]
    assert steps["hint"].metrics["bounded"] > 0.5 and max(values) > 0.95


def test_a_convex_combination_shares_one() -> None:
    trainer, _ = moved_trainer(
        "tree", {"combination": "convex", "weight": 0.25}, policy={"weight": 2.0}
    )
    assert trainer.weights["hint"] == 0.25 and trainer.weights["policy"] == 1.5


# ---- other hints, and the inputs that a view must have ----


def test_the_wrong_hint_is_another_sites_and_who_has_none_is_left_out_and_counted() -> None:
    plain = [make_example(1, hints=2), make_example(2, hints=1)]
    shuffled, dropped = with_wrong_hints(plain, seed=3)
    texts = {v.site_id: v.hint_ids for e in plain for v in e.hints}
    assert dropped == 0
    for view in (v for e in shuffled for v in e.hints):
        assert view.wrong_ids != view.hint_ids and view.wrong_ids in [
            t for name, t in texts.items() if name != view.site_id
        ]
    assert with_wrong_hints(plain, seed=3) == (shuffled, 0)
    alone, dropped = with_wrong_hints([make_example(1, hints=1)], seed=3)
    assert dropped == 1 and alone[0].hints == ()


def test_a_step_of_one_view_is_compared_with_a_hint_of_the_whole_data_set() -> None:
    """A step of real sessions holds one or two views: nearly all of them were left out."""
    dataset = [make_example(number, hints=1 + number % 2) for number in range(6)]
    owner = {v.hint_ids: (e.session_id, v.kind) for e in dataset for v in e.hints}
    drawn = set()
    for seed in range(20):
        (contrasted,), dropped = with_wrong_hints(dataset[3:4], seed=seed, dataset=dataset)
        assert dropped == 0 and len(contrasted.hints) == 2
        for view in contrasted.hints:
            session_id, kind = owner[view.wrong_ids]
            assert session_id != contrasted.session_id and kind != view.kind
            drawn.add((view.site_id, view.wrong_ids))
        again = with_wrong_hints(dataset[3:4], seed=seed, dataset=dataset)
        assert again == ([contrasted], 0)
    assert len(drawn) > 6  # another one in another step
    (first, second) = dataset[3].hints
    one_session = [dataclasses.replace(dataset[3], hints=(first,)), dataset[3]]
    assert with_wrong_hints(one_session[:1], seed=0, dataset=one_session)[1] == 1
    assert (views_with_donor(dataset), views_with_donor(one_session)) == (9, 0)
    elsewhere = dataclasses.replace(second, position="user")
    unlike = [dataset[2], dataclasses.replace(dataset[3], hints=(elsewhere,))]
    assert views_with_donor(unlike) == 0
    with pytest.raises(ConfigError) as caught:
        check_hint_settings(one_session, HintSettings(contrast=True), fork=False)
    assert caught.value.where == "train.hint.contrast"


def test_a_rollouts_view_is_compared_with_a_hint_of_its_step() -> None:
    dataset, played = [make_example(1)], [make_example(7, hints=2), make_example(8)]
    contrasted, dropped = with_wrong_hints([*played, *dataset], seed=0, dataset=dataset)
    of_step = {v.hint_ids for e in (*played, *dataset) for v in e.hints}
    assert all(v.wrong_ids in of_step for e in contrasted for v in e.hints)
    # the data set holds one session only, so its own view has none
    assert dropped == 1 and contrasted[-1].hints == ()


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ({"estimator": "sampled_token", "divergence": KL_ST}, "train.hint.estimator"),
        ({"importance_clip": 2.0}, "train.hint.importance_clip"),
        ({"difficulty": True}, "train.hint.difficulty"),
    ],
)
def test_imported_views_do_not_have_what_some_controls_need(
    hint: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_views([make_example(1)], HintSettings.model_validate(hint))
    assert caught.value.where == expected and "s1:0:c" in caught.value.what
    check_views(list(examples()), HintSettings.model_validate(hint))


def test_live_views_learn_their_log_probs_and_their_tasks_difficulty() -> None:
    """A view's log-probs are those of its part of the sampled message; a task always or never
    solved leaves the channel, counted."""

    def rollout(name: str, reward: float) -> Any:
        sampled = SimpleNamespace(ids=(7, 8, 9, 10), logprobs=(-0.1, -0.2, -0.3, -0.4))
        turns = [
            SimpleNamespace(sampled=None, context_tokens=0),
            SimpleNamespace(sampled=sampled, context_tokens=5),
        ]
        return SimpleNamespace(session=SimpleNamespace(id=name, turns=turns), reward=reward)

    def group(**rewards: float) -> Any:
        return SimpleNamespace(
            rollouts=[rollout(name, r) for name, r in rewards.items()],
            rewards=tuple(rewards.values()),
        )

    groups: Any = SimpleNamespace(
        groups=[group(a=1.0, b=0.0, c=0.0, d=0.0)], flat=[group(e=0.0, f=0.0)]
    )
    view = HintView(
        site_id="s",
        kind="bad_args",
        at=4,
        hint_ids=(3,),
        span=(6, 9),
        target_ids=(8, 9, 10),
        origin="student",
    )
    views = {"a": (view,), "e": (view,)}
    informed_views, facts = annotate_views(
        groups, views, HintSettings(importance_clip=2.0, difficulty=True)
    )
    (known,) = informed_views["a"]
    assert known.logprobs == (-0.2, -0.3, -0.4) and known.difficulty == pytest.approx(
        (0.25 * 0.75) ** 0.5
    )
    assert informed_views["e"] == () and facts == {"sites/no_difficulty": 1.0}
    assert annotate_views(groups, views, HintSettings()) == (views, {})
    with pytest.raises(AlignmentError, match="not part of one sampled message"):
        annotate_views(
            groups,
            {"a": (dataclasses.replace(view, span=(4, 7), at=3),)},
            HintSettings(importance_clip=2.0),
        )
