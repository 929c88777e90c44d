"""Textbook formulae in float64 NumPy, written without regard for speed or cancellation, and
gradients by central differences.

Nothing here is shared with the package. Functions take student, teacher and `held`: the student's
logits as a constant, for terms inside a stop-gradient. Shapes: (N, V) in, (N,) out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Rows = Callable[[Array, Array, Array], Array]


def random_logits(n: int = 5, v: int = 9, scale: float = 1.5, seed: int = 0) -> tuple[Array, Array]:
    """Logits of a student and of a teacher."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, v)) * scale, rng.normal(size=(n, v)) * scale


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def kl(p: Array, q: Array) -> Array:
    """Over the columns where p > 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0).sum(-1)


def divergence_of(p_s: Array, p_t: Array, beta: float) -> Array:
    if beta == 0:
        return kl(p_t, p_s)
    if beta == 1:
        return kl(p_s, p_t)
    m = (1 - beta) * p_s + beta * p_t
    return beta * kl(p_t, m) + (1 - beta) * kl(p_s, m)


def raw_jsd(beta: float, temperature: float = 1.0) -> Rows:
    return lambda s, t, held: divergence_of(
        softmax(s / temperature), softmax(t / temperature), beta
    )


def entropy(p: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.where(p > 0, p * np.log(p), 0.0).sum(-1)


def entry_parts(p_s: Array, p_t: Array, beta: float) -> Array:
    if beta == 0:
        return p_t * np.log(p_t / p_s)
    if beta == 1:
        return p_s * np.log(p_s / p_t)
    m = (1 - beta) * p_s + beta * p_t
    return beta * p_t * np.log(p_t / m) + (1 - beta) * p_s * np.log(p_s / m)


def entry_clipped(beta: float, clip: float, temperature: float = 1.0) -> Rows:
    return lambda s, t, held: np.minimum(
        entry_parts(softmax(s / temperature), softmax(t / temperature), beta), clip
    ).sum(-1)


def topk(
    k: int, support: str, rest: str, beta: float, temperature: float = 1.0, clip: float = np.inf
) -> Rows:
    def rows(s: Array, t: Array, held: Array) -> Array:
        out = []
        for zs, zt in zip(s / temperature, t / temperature, strict=True):
            ids = np.argsort(-(zs if support == "student" else zt))[:k]
            p_s, p_t = softmax(zs)[ids], softmax(zt)[ids]
            if rest == "tail":
                p_s, p_t = np.append(p_s, 1 - p_s.sum()), np.append(p_t, 1 - p_t.sum())
            if rest == "renormalised":
                p_s, p_t = p_s / p_s.sum(), p_t / p_t.sum()
            out.append(np.minimum(entry_parts(p_s, p_t, beta), clip).sum())
        return np.array(out)

    return rows


def taid(t_mix: float, temperature: float = 1.0) -> Rows:
    def rows(s: Array, t: Array, held: Array) -> Array:
        q = softmax(((1 - t_mix) * held + t_mix * t) / temperature)
        return -(q * np.log(softmax(s / temperature))).sum(-1)

    return rows


def total_variation(s: Array, t: Array, held: Array) -> Array:
    return 0.5 * np.abs(softmax(s) - softmax(t)).sum(-1)


def skewed_teacher(skew: float) -> Rows:
    return lambda s, t, held: kl(softmax(t), skew * softmax(t) + (1 - skew) * softmax(s))


def skewed_student(skew: float) -> Rows:
    return lambda s, t, held: kl(softmax(s), skew * softmax(s) + (1 - skew) * softmax(t))


def symmetric(lam: float) -> Rows:
    return lambda s, t, held: (
        lam * kl(softmax(s), softmax(t)) + (1 - lam) * kl(softmax(t), softmax(s))
    )


def eopd_paper(tau: float, k: int, alpha: float) -> Rows:
    def rows(s: Array, t: Array, held: Array) -> Array:
        gate = entropy(softmax(t)) > tau
        return kl(softmax(s), softmax(t)) + alpha * gate * topk(k, "teacher", "dropped", 0.0)(
            s, t, held
        )

    return rows


def eopd_soft(h_max: float | None) -> Rows:
    def rows(s: Array, t: Array, held: Array) -> Array:
        w = np.clip(entropy(softmax(t)) / (np.log(s.shape[-1]) if h_max is None else h_max), 0, 1)
        return w * kl(softmax(t), softmax(s)) + (1 - w) * kl(softmax(s), softmax(t))

    return rows


def gradient(fn: Rows, s: Array, t: Array, h: float = 1e-5) -> Array:
    """Gradient of the sum of the rows with respect to s; values inside a stop-gradient stay
    constant."""
    out = np.zeros_like(s)
    for index in np.ndindex(*s.shape):
        step = np.zeros_like(s)
        step[index] = h
        row = index[0]
        out[index] = (fn(s + step, t, s)[row] - fn(s - step, t, s)[row]) / (2 * h)
    return out
