"""Every golden case of the field's own implementations, values and gradients, through the public
functions.

golden/losses.json holds numbers that third-party code returned (its `meta` says which, at which
commit). A case is run by the runner whose prefix is the longest that fits its id; a case without a
runner fails, and so does a runner without a case.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from composer_replication.losses import preference, surrogates, trust_region
from composer_replication.losses.distances import (
    skewed_kl_student_teacher,
    skewed_kl_teacher_student,
    symmetric_kl,
    teacher_cross_entropy,
    total_variation,
)
from composer_replication.losses.divergence import jsd, kl_student_teacher, kl_teacher_student
from composer_replication.losses.entries import entry_clipped
from composer_replication.losses.entropy import (
    entropy,
    eopd_paper,
    eopd_soft_gate,
    soft_gate,
    teacher_entropy,
)
from composer_replication.losses.policy import token_logprobs
from composer_replication.losses.reduction import PUBLISHED, Reduction, Units, reduce, weights
from composer_replication.losses.sampled import (
    Estimator,
    importance_weights,
    kl_estimate,
    ratio,
    sampled_token,
)
from composer_replication.losses.schedules import TaidSchedule
from composer_replication.losses.taid import taid
from composer_replication.losses.topk import topk_divergence

GOLDEN = json.loads((Path(__file__).parent / "golden" / "losses.json").read_text(encoding="utf-8"))
INPUTS = GOLDEN["inputs"]
Case = dict[str, Any]
Got = dict[str, Any]
MODES: dict[str, Reduction] = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean_token_mean",
    "seq-mean-token-sum": "sequence_mean_token_sum",
    "seq-mean-token-sum-norm": "constant",
}
ESTIMATORS: dict[str, Estimator] = {
    "k1": "k1",
    "kl": "k1",
    "k2": "k2",
    "mse": "k2",
    "k3": "k3",
    "low_var_kl": "k3",
    "abs": "abs",
}


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def mask(name: str = "mask") -> Tensor:
    values = torch.tensor(INPUTS["mask" if name == "labels" else name])
    assert name != "labels" or torch.equal(torch.tensor(INPUTS["labels"]) != -100, values.bool())
    return values.bool()


class Logits:
    """Student (a leaf) and teacher logits of a case, both (2, 4, 7), and the loss of its masked
    rows."""

    def __init__(self, case: Case) -> None:
        pair = INPUTS[case["inputs"]]
        self.student, self.teacher = f64(pair["student"]).requires_grad_(), f64(pair["teacher"])
        self.mask, self.ids = mask(), torch.tensor(INPUTS["ids"])
        self.sequence_N = self.mask.nonzero()[:, 0]

    def rows(self, fn: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The function on the masked rows only, as (N, V): rows outside a mask never reach a
        loss."""
        return fn(self.student[self.mask], self.teacher[self.mask])

    def logp(self, logits: Tensor) -> Tensor:
        return token_logprobs(logits[self.mask], self.ids[self.mask])

    def loss(
        self, values_N: Tensor, reduction: Reduction = "token_mean", constant: float | None = None
    ) -> Got:
        w_N = weights(
            self.sequence_N,
            reduction=reduction,
            counts=Units.of(self.sequence_N),
            constant=constant,
            dtype=values_N.dtype,
        )
        total = reduce(values_N, w_N)
        total.backward()
        return {
            "loss": total.item(),
            "masked_sum": values_N.sum().item(),
            "grad_student": self.student.grad,
        }


def run_jsd(case: Case) -> Got:
    p, x = case["params"], Logits(case)
    clip, k = p.get("token_clip"), p.get("top_k")
    beta, temperature = float(p["beta"]), p.get("temperature", 1.0)
    if "labels" in p and p["labels"] is None:  # TRL divides by rows of the batch, not by tokens
        x.mask, x.sequence_N = (
            torch.ones(2, 4, dtype=torch.bool),
            torch.arange(2).repeat_interleave(4),
        )
        return x.loss(x.rows(lambda s, t: jsd(s, t, beta=beta, raw=True)), "constant", constant=2)
    if k is not None:
        options = {"k": k, "support": "teacher", "rest": "renormalised", "entry_clip": clip}
        return x.loss(
            x.rows(
                lambda s, t: topk_divergence(s, t, beta=beta, temperature=temperature, **options)
            )
        )
    if clip is not None:
        return x.loss(
            x.rows(
                lambda s, t: entry_clipped(
                    s, t, entry_clip=clip, beta=beta, temperature=temperature
                )
            )
        )
    return x.loss(x.rows(lambda s, t: jsd(s, t, beta=beta, temperature=temperature, raw=True)))


def run_missing_column(case: Case) -> Got:
    """TRL returns NaN here. Required of us: the loss on the six columns that exist."""
    x = Logits(case)
    s, t = (
        z.detach().masked_fill(torch.arange(7) == 6, -torch.inf).requires_grad_()
        for z in (x.student, x.teacher)
    )
    ours, dropped = (
        jsd(a, b, beta=case["params"]["beta"], raw=True)
        for a, b in ((s, t), (s[..., :6], t[..., :6]))
    )
    ours.sum().backward()
    assert (
        s.grad is not None and bool(s.grad.isfinite().all()) and bool((s.grad[..., 6] == 0).all())
    )
    assert torch.allclose(ours, dropped, rtol=1e-12)
    return {"loss": ours[x.mask].mean().item()}


def run_sdpo(case: Case) -> Got:
    p, x = case["params"], Logits(case)
    alpha = p.get("alpha", 1.0)
    reduction = MODES[p.get("loss_agg_mode", "token-mean")]

    def values(s: Tensor, t: Tensor) -> Tensor:
        if "sampled" in case["id"]:
            ids = x.ids[x.mask] if s.ndim == 2 else x.ids
            return sampled_token(
                *(z.log_softmax(-1).gather(-1, ids[..., None])[..., 0] for z in (s, t))
            )
        if "topk" in p and p["topk"] is not None:
            rest = "tail" if p.get("add_tail", True) else "renormalised"
            return topk_divergence(
                s, t, k=p["topk"], support="student", rest=rest, beta=alpha, tail_floor=1e-7
            )
        return jsd(s, t, beta=alpha, raw=True)

    per_token = values(x.student.detach(), x.teacher)
    if p.get("self_distillation_mask"):
        x.mask = x.mask & torch.tensor(p["self_distillation_mask"]).bool()[:, None]
        x.sequence_N = x.mask.nonzero()[:, 0]
    values_N = x.rows(values)
    if p.get("is_clip") is not None:
        values_N = values_N * importance_weights(
            x.logp(x.student), f64(INPUTS["old_logps"])[x.mask], cap=p["is_clip"]
        )
    got = x.loss(values_N, "sum" if "sum_over" in p else reduction, constant=4)
    return {**got, "per_token": per_token}


def run_linear(case: Case) -> Got:
    """The projection by hand, the divergence on logits: the fused kernel must equal it."""
    p, x = case["params"], INPUTS["linear"]
    hidden, weight = (
        f64(x["student_hidden"]).requires_grad_(),
        f64(x["student_weight"]).requires_grad_(),
    )
    bias = f64(x["student_bias"]).requires_grad_() if p["with_bias"] else None
    student, teacher = (
        F.linear(hidden, weight, bias),
        F.linear(f64(x["teacher_hidden"]), f64(x["teacher_weight"])),
    )
    values_N = jsd(student, teacher, beta=p["beta"], temperature=p["temperature"], raw=True)
    w_N = f64(x["tok_weight"])
    loss = reduce(values_N, w_N / w_N.sum())
    loss.backward()
    got = {
        "loss": loss.item(),
        "per_token": values_N,
        "grad_hidden": hidden.grad,
        "grad_weight": weight.grad,
    }
    return {**got, "entropy": entropy(student), "grad_bias": None if bias is None else bias.grad}


def run_taid(case: Case) -> Got:
    x = Logits(case)
    got = x.loss(x.rows(lambda s, t: taid(s, t, t=case["params"]["t"])))
    single = x.rows(lambda s, t: taid(s.detach().float(), t.float(), t=case["params"]["t"]))
    return {**got, "loss_f32": single.mean().item()}


def run_scheduler(case: Case) -> Got:
    p = case["params"]
    options = {k: p[k] for k in ("t_start", "t_end", "alpha", "beta") if k in p}
    schedule = TaidSchedule(
        num_steps=p["num_train_steps"], adaptive=not p.get("disable_adaptive", False), **options
    )
    after = [schedule.update(loss, step=step, tokens=1) for step, loss in enumerate(p["losses"])]
    return {
        "t_after": after,
        "momentum_last": schedule.momentum,
        "prev_loss": schedule.previous_loss,
    }


def run_distance(case: Case) -> Got:
    """DistiLLM and TAID's repository. Their forward KLs are cross-entropies: ours plus the
    teacher's entropy."""
    p, x, name = case["params"], Logits(case), case["function"]
    lam = p.get("lam", 0.0)
    functions: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "forward_kl": teacher_cross_entropy,
        "reverse_kl": kl_student_teacher,
        "symmetric_kl": lambda s, t: symmetric_kl(s, t, lam=lam) + (1.0 - lam) * teacher_entropy(t),
        "js_distance": lambda s, t: jsd(s, t, beta=1.0 - lam, raw=True),
        "tv_distance": total_variation,
        "tvd": total_variation,
        "skewed_forward_kl": (
            lambda s, t: skewed_kl_teacher_student(s, t, skew=lam) + teacher_entropy(t)
        ),
        "skewed_reverse_kl": lambda s, t: skewed_kl_student_teacher(s, t, skew=lam),
    }
    return x.loss(x.rows(functions[name]))


def run_entropy(case: Case) -> Got:
    return {"entropy": teacher_entropy(Logits(case).teacher)}


def run_opd(case: Case) -> Got:
    x = Logits(case)
    if "pieces" in case["id"]:
        s, t = x.student, x.teacher
        return {
            "teacher_entropy": teacher_entropy(t),
            "forward_kl": kl_teacher_student(s, t),
            "reverse_kl": kl_student_teacher(s, t),
        }

    def top_k_rows(s: Tensor, t: Tensor) -> Tensor:
        return topk_divergence(
            s, t, k=case["params"]["topk"], support="teacher", rest="dropped", beta=0.0
        )

    return {**x.loss(x.rows(top_k_rows), "sum"), "per_token": top_k_rows(x.student, x.teacher)}


def run_eopd(case: Case) -> Got:
    p, x = case["params"], Logits(case)
    if "paper" in case["id"]:
        got = x.loss(
            x.rows(lambda s, t: eopd_paper(s, t, tau=p["tau"], k=p["k"], alpha=p["alpha"]))
        )
        return {**got, "gate": (teacher_entropy(x.teacher) > p["tau"]).double()}
    return {
        **x.loss(x.rows(lambda s, t: eopd_soft_gate(s, t, h_max=p["h_max"]))),
        "w": soft_gate(x.teacher, h_max=p["h_max"]),
    }


def run_preference(case: Case) -> Got:
    p = case["params"]
    x = {name: f64(values) for name, values in INPUTS["pref_logps"].items()}
    c, r = x["policy_chosen"].requires_grad_(), x["policy_rejected"].requires_grad_()
    if case["id"].startswith("simpo"):
        kind = "hinge" if "hinge" in case["id"] else "sigmoid"
        options = {
            "beta": p["beta"],
            "gamma": p["gamma"],
            "label_smoothing": p.get("label_smoothing", 0.0),
            "loss": kind,
        }
        loss = preference.simpo(0.1 * c, 0.1 * r, **options).mean()
    else:
        policy = (x["ref_chosen"], x["ref_rejected"]) if p.get("policy") == "ref" else (c, r)
        logps, beta = (*policy, x["ref_chosen"], x["ref_rejected"]), p["beta"]
        kind = p.get("loss_type", next((k for k in ("hinge", "ipo") if k in case["id"]), "sigmoid"))
        if kind == "sigmoid":
            loss = preference.dpo(
                *logps, beta=beta, label_smoothing=p.get("label_smoothing", 0.0)
            ).mean()
        else:
            loss = {"hinge": preference.dpo_hinge, "ipo": preference.ipo}[kind](
                *logps, beta=beta
            ).mean()
    if loss.requires_grad:
        loss.backward()
    return {"loss": loss.item(), "grad_policy_chosen": c.grad, "grad_policy_rejected": r.grad}


def run_logps(case: Case) -> Got:
    x = Logits(case)
    # labels[:, 1:] are predicted by logits[:, :-1]
    row_N, position_N = x.mask[:, 1:].nonzero(as_tuple=True)
    logp_N = token_logprobs(x.student[row_N, position_N], x.ids[row_N, position_N + 1])
    return {
        "sum": preference.sequence_logprobs(logp_N, row_N, num_sequences=2),
        "avg": preference.sequence_mean_logprobs(logp_N, row_N, num_sequences=2),
    }


class Rollouts:
    """Four rollouts of up to five tokens, flat: shared by the `grpo` cases."""

    def __init__(self) -> None:
        x = INPUTS["grpo"]
        self.leaf, self.mask = f64(x["logps"]).requires_grad_(), torch.tensor(x["mask"]).bool()
        self.logp, self.old, self.ref = (
            z[self.mask] for z in (self.leaf, f64(x["old_logps"]), f64(x["ref_logps"]))
        )
        self.sequence_N = self.mask.nonzero()[:, 0]
        self.advantage = f64(x["advantages"])[self.sequence_N]

    def loss(self, values_N: Tensor, reduction: Reduction, constant: float | None = None) -> Got:
        w_N = weights(
            self.sequence_N,
            reduction=reduction,
            counts=Units.of(self.sequence_N),
            constant=constant,
            dtype=values_N.dtype,
        )
        total = reduce(values_N, w_N)
        total.backward()
        return {
            "loss": total.item(),
            "masked_sum": values_N.sum().item(),
            "grad_logps": self.leaf.grad,
        }


def run_grpo(case: Case) -> Got:
    p, x = case["params"], Rollouts()
    low, high = p.get("epsilon_low", 0.2), p.get("epsilon_high", p.get("eps_high", 0.2))
    old = x.logp.detach() if p.get("old") == "None" else x.old
    arguments, sequences = (
        (x.logp, old, x.advantage),
        {"sequence_N": x.sequence_N, "num_sequences": 4},
    )
    level, name = p.get("importance_sampling_level", "token"), p["loss_type"]
    if name == "cispo":
        values_N = surrogates.cispo(*arguments, cap=high)
    elif name == "sapo":
        values_N = surrogates.sapo(*arguments)
    elif name == "vespo":
        values_N = surrogates.vespo(*arguments, **sequences)
    elif level == "sequence":
        values_N = surrogates.gspo(
            *arguments, **sequences, clip_low=low, clip_high=high, delta=p.get("delta")
        )
    else:
        values_N = surrogates.ppo_clip(
            *arguments, clip_low=low, clip_high=high, delta=p.get("delta")
        )
    if p.get("opm") is not None:
        values_N = values_N * surrogates.off_policy_keep(
            *arguments, **sequences, threshold=p["opm"]
        )
    if p.get("beta"):
        kl_N = kl_estimate(x.logp, x.ref, kind="k3")
        values_N = values_N + p["beta"] * (
            kl_N * ratio(x.logp, old) if p.get("bias_corr") else kl_N
        )
    return x.loss(values_N, PUBLISHED[name], constant=4 * p.get("max_completion_length", 8))


def run_aggregation(case: Case) -> Got:
    x = Rollouts()
    return x.loss(x.logp, MODES[case["params"]["mode"]], constant=x.mask.shape[1])


def run_kl(case: Case) -> Got:
    x, kind = Rollouts(), case["params"]["kind"]
    return x.loss(
        kl_estimate(
            x.logp, x.ref, kind=ESTIMATORS[kind.rstrip("+")], straight_through=kind.endswith("+")
        ),
        "sum",
    )


def run_verl(case: Case) -> Got:
    p, x = case["params"], Rollouts()
    low, high = p.get("clip_ratio_low", p["clip_ratio"]), p.get("clip_ratio_high", p["clip_ratio"])
    arguments = (x.logp, x.old, x.advantage)
    if "gspo" in case["id"]:
        options = {
            "sequence_N": x.sequence_N,
            "num_sequences": 4,
            "clip_low": low,
            "clip_high": high,
        }
        return x.loss(surrogates.gspo(*arguments, **options, gradient="token"), PUBLISHED["gspo"])
    if "cispo" in case["id"]:
        return x.loss(surrogates.cispo(*arguments, floor=1.0 - low, cap=1.0 + high), "token_mean")
    return x.loss(
        surrogates.ppo_clip(
            *arguments, clip_low=low, clip_high=high, dual_clip=p.get("clip_ratio_c", 3.0)
        ),
        "token_mean",
    )


def run_prime(case: Case) -> Got:
    x, name = Rollouts(), case["id"].split("/")[1]
    c = case["params"]["cfg"] or {}
    advantage, tau = c.get("adv_tau", 1.0) * x.advantage, {"kl_tau": c.get("kl_tau", 1e-3)}
    if name == "dppo_default":
        return x.loss(
            trust_region.dppo(
                x.logp,
                x.old,
                advantage,
                mask_low=c["dppo_mask_low"],
                mask_high=c["dppo_mask_high"],
                **tau,
            ),
            PUBLISHED["dppo"],
        )
    if name == "ipo":
        return x.loss(
            trust_region.dppo_symmetric(
                x.logp, x.old, advantage, threshold=c["ipo_threshold"], **tau
            ),
            PUBLISHED["dppo_symmetric"],
        )
    return x.loss(trust_region.reference_kl(x.logp, x.old, x.ref, **tau), PUBLISHED["reference_kl"])


RUNNERS: dict[str, Callable[[Case], Got]] = {
    "jsd/": run_jsd,
    "jsd/trl_gkd/neg_inf_column": run_missing_column,
    "sdpo/": run_sdpo,
    "linear_jsd/": run_linear,
    "taid/": run_taid,
    "taid_scheduler/": run_scheduler,
    "taid_repo/": run_distance,
    "distillm/": run_distance,
    "entropy/": run_entropy,
    "opd/": run_opd,
    "eopd/": run_eopd,
    "simpo/": run_preference,
    "simpo/get_batch_logps": run_logps,
    "dpo/": run_preference,
    "grpo/": run_grpo,
    "agg/": run_aggregation,
    "kl_penalty/": run_kl,
    "policy_loss/": run_verl,
    "prime_rl/": run_prime,
}
# golden numbers that are not ours to reproduce, and why; the runner checks what is required instead
NOT_APPLICABLE = {
    ("jsd/trl_gkd/neg_inf_column", "loss"): "TRL's NaN is its bug: a column of -inf does not exist"
}


def runner(case: Case) -> Callable[[Case], Got]:
    fitting = [prefix for prefix in RUNNERS if case["id"].startswith(prefix)]
    assert fitting, f"no runner for the golden case {case['id']}"
    return RUNNERS[max(fitting, key=len)]


def close(got: Any, expected: Any, tol: float) -> bool:
    if isinstance(expected, str):
        return got == expected
    if isinstance(expected, list):
        return torch.allclose(
            torch.as_tensor(got, dtype=torch.float64).detach(), f64(expected), rtol=tol, atol=tol
        )
    return math.isclose(got, expected, abs_tol=tol * max(1.0, abs(expected)))


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: c["id"])
def test_golden_case(case: Case) -> None:
    got = runner(case)(case)
    for name, expected in case["expected"].items():
        assert got.get(name) is not None, f"the runner does not return {name}"
        if (case["id"], name) in NOT_APPLICABLE:
            assert not close(got[name], expected, case["tol"])
            continue
        assert close(got[name], expected, case["tol"]), f"{name}: {got[name]} is not {expected}"


def test_every_runner_has_a_case() -> None:
    used = {runner(case).__name__ for case in GOLDEN["cases"]}
    assert used == {fn.__name__ for fn in RUNNERS.values()}


def test_a_case_of_an_unknown_kind_is_not_skipped() -> None:
    with pytest.raises(AssertionError, match="no runner"):
        runner({"id": "new_kind/case"})
