"""What a hint loss makes beside its logits, as the memory model counts it, beside what PyTorch's
allocator gives out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the [train] extra")
import torch

from benchmarks.memory_model import AllocatorPeak
from composer_replication.core.config.hint_settings import HintSettings
from composer_replication.losses.chunk_size import AUTOGRAD_BLOCKS, BLOCKS
from composer_replication.losses.fused_eager import autograd_rows, eager_divergence
from composer_replication.training.forwards.hinting import _divergences, _sampled
from composer_replication.training.memory.memory_terms import hint_block

pytestmark = pytest.mark.train
VOCAB, HIDDEN, ROWS = 4096, 8, 512
FORWARD, TRUST = "kl(student, teacher)", {"teacher": "trust_region"}
SETTINGS: dict[str, dict[str, Any]] = {
    "jsd": {},
    "kl": {"divergence": FORWARD},
    "taid": {"divergence": "taid"},
    "eopd": {"divergence": "eopd"},
    "soft_gate": {"divergence": "soft_gate"},
    "top_k": {"estimator": "top_k"},
    "entry_clip": {"entry_clip": 1.0},
    "contrast": {"contrast": True},
    "contrast, kl": {"contrast": True, "divergence": FORWARD},
    "trust region": TRUST,
    "trust region, contrast": {**TRUST, "contrast": True},
    "trust region, soft_gate": {**TRUST, "divergence": "soft_gate"},
    "sampled, trust region, contrast": {
        **TRUST, "contrast": True, "estimator": "sampled_token", "divergence": FORWARD,
    },
}  # fmt: skip


def measured(settings: HintSettings, models: int) -> int:
    """Bytes of the loss beside the logits of the student and the teachers."""
    torch.manual_seed(0)
    weight_VD = torch.randn(VOCAB, HIDDEN)
    head: Any = SimpleNamespace(weight_VD=weight_VD, bias_V=None, scale=1.0, softcap=None)
    student = (torch.randn(ROWS, HIDDEN, requires_grad=True), head)
    teachers = [(torch.randn(ROWS, HIDDEN), head) for _ in range(models)]
    ids_N = torch.randint(VOCAB, (ROWS,))
    with AllocatorPeak() as found:
        if settings.estimator == "sampled_token":
            _sampled(settings, student, teachers, ids_N)
        else:
            _divergences(settings, student, teachers, ids_N, weights_N=None, taid_t=0.4)
    return found.bytes - 4 * ROWS * VOCAB * (1 + models)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_loss_makes_as_many_blocks_as_are_counted(name: str) -> None:
    settings = HintSettings.model_validate(SETTINGS[name])
    models = (1 + (settings.teacher == "trust_region")) * (1 + settings.contrast)
    blocks, matrices = hint_block(settings)
    rows = min(ROWS, blocks["cpu"] // VOCAB)
    counted = matrices * 4 * rows * VOCAB
    assert measured(settings, models) == pytest.approx(counted, rel=0.1, abs=1e6)


def test_a_block_whose_gradient_autograd_takes_is_small_on_a_gpu() -> None:
    """14 matrices of 2^26 numbers would be 3.8 GB."""
    kernel = autograd_rows(lambda z_RV: z_RV.sum(-1))
    assert (kernel.block, kernel.cuda_block) == (AUTOGRAD_BLOCKS["cpu"], AUTOGRAD_BLOCKS["cuda"])
    assert 15 * 4 * kernel.cuda_block < 1.1e9
    plain = eager_divergence(0.5, 4.0)
    assert (plain.block, plain.cuda_block) == (BLOCKS["cpu"], BLOCKS["cuda"])
