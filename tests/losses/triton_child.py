"""Run by test_fused_triton.py under TRITON_INTERPRET=1: every case, eager and Triton side by
side."""

from __future__ import annotations

import itertools
import math

import torch

from composer_replication.losses import fused_eager, fused_triton


def main() -> int:
    """Values and gradients of both kernels on the same logits; how many cases there were."""
    cases = list(itertools.product((50, 9001), (0.0, 0.3, 1.0), (0.01, 1.0, 40.0)))
    for vocab, beta, noise in cases:
        generator = torch.Generator().manual_seed(vocab)
        z_CV = torch.randn(5, vocab, generator=generator) * 4
        t_CV = z_CV + noise * torch.randn(5, vocab, generator=generator)
        t_CV[0] = z_CV[0]  # identity
        z_CV[1, 3] = t_CV[1, 3] = z_CV[2, 4] = t_CV[3, 5] = -math.inf
        results = []
        for kernel in (
            fused_eager.eager_divergence(beta, 2.0),
            fused_triton.triton_divergence(beta, 2.0),
        ):
            grad_CV, other_CV = z_CV.clone(), t_CV.clone()
            values_C, factor_C = kernel.rows(
                grad_CV, other_CV, None, torch.empty(3, 5, vocab), True
            )
            results.append((values_C, grad_CV * factor_C[:, None]))
        (values_C, grad_CV), (other_C, other_CV) = results
        assert other_C[0] == 0 and bool((other_CV[0] == 0).all()), (vocab, beta, noise)
        assert torch.allclose(other_C, values_C, rtol=1e-3, atol=0), (vocab, beta, noise)
        assert bool(((other_CV - grad_CV).norm(dim=1) <= 1e-3 * grad_CV.norm(dim=1)).all()), (
            vocab,
            beta,
            noise,
        )
    return len(cases)


if __name__ == "__main__":
    print(main(), "cases")
