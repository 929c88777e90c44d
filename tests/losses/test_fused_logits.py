"""Without a head's weight the hidden states are logits: values and gradients as with an identity
matrix."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from composer_replication.losses.fused import (
    fused_divergence,
    fused_entropy,
    fused_logprobs,
    fused_rows,
)

V = 7
IDENTITY = SimpleNamespace(weight_VD=torch.eye(V), bias_V=None, scale=1.0, softcap=None)
LOGITS = SimpleNamespace(weight_VD=None, bias_V=None, scale=1.0, softcap=None)


def logits(seed: int) -> torch.Tensor:
    return 3 * torch.randn(5, V, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("head_gradient", ["forward", "backward"])
@pytest.mark.parametrize("name", ["divergence", "logprobs", "entropy", "rows"])
def test_logits_need_no_head(name: str, head_gradient: Any, chunk: int | None) -> None:
    teacher, ids = logits(2), torch.tensor([0, 3, 6, 1, 1])

    def run(head: Any) -> tuple[torch.Tensor, torch.Tensor]:
        student = logits(1).requires_grad_()
        options = {"head_gradient": head_gradient, "chunk": chunk, "temperature": 1.7}
        values = {
            "divergence": lambda: fused_divergence(
                student, head, teacher, head, divergence="jsd", beta=0.3, **options
            ),
            "logprobs": lambda: fused_logprobs(student, head, ids, **options),
            "entropy": lambda: fused_entropy(student, head, **options),
            "rows": lambda: fused_rows(
                lambda z, t: (z.softmax(-1) * t[0]).sum(-1),
                student,
                head,
                teachers=[(teacher, head)],
                **options,
            ),
        }[name]()
        (values * torch.arange(1.0, 6.0)).sum().backward()
        assert student.grad is not None
        return values.detach(), student.grad

    (values, gradient), (expected, expected_gradient) = run(LOGITS), run(IDENTITY)
    assert torch.allclose(values, expected, atol=1e-6)
    assert torch.allclose(gradient, expected_gradient, atol=1e-6)
    assert float(gradient.abs().sum()) > 0.1


def test_a_bias_on_logits_is_refused() -> None:
    head = SimpleNamespace(weight_VD=None, bias_V=torch.zeros(V), scale=1.0, softcap=None)
    with pytest.raises(ValueError, match="bias to add"):
        fused_entropy(logits(1), head)
