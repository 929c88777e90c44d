"""The adapter through prime-rl's own code: its packing, its compute_loss, its settings schema.

prime-rl is on no package index, so these tests need PRIME_RL_SRC, the folder of a checkout; without
it they are reported as not run. The contract on our side: tests/training/test_prime_rl.py.
"""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication.training.backends.prime_rl_loss import loss_fn
from composer_replication.training.backends.prime_rl_samples import TokenStreams, component_tokens
from composer_replication.training.backends.prime_rl_settings import (
    LOSS,
    loss_kwargs,
    write_files,
)
from composer_replication.training.backends.prime_rl_step import Inputs, student_logprobs
from composer_replication.training.run.optimiser import BETAS, learning_rate
from tests.training.small_student import gradients, make_config, make_student, start_trainer
from tests.training.test_channels import perturbed
from tests.training.test_prime_rl import (
    CHANNELS,
    batch_of,
    difference,
    hosted,
    in_two_ranks,
    inputs,
    prime_rl_gradients,
    samples_of,
    train_settings,
)

pytestmark = [pytest.mark.backend, pytest.mark.train]
SEQUENCE = 64


def test_the_streams_have_the_reference_gradient_in_this_environment_too() -> None:
    """The contract on our side of the border, beside prime-rl's packages."""
    trainer = perturbed(
        start_trainer(make_config(**train_settings(tuple(CHANNELS)), layout="rows"), make_student())
    )
    examples, pairs = batch_of(trainer)
    expected = gradients(trainer, examples, pairs, CHANNELS)
    samples = samples_of(trainer, examples, pairs)
    assert difference(expected, prime_rl_gradients(trainer, samples)) < 1e-4


@pytest.fixture(scope="module")
def source() -> Path:
    folder = os.environ.get("PRIME_RL_SRC", "")
    if not folder:
        pytest.skip("PRIME_RL_SRC names no checkout of prime-rl")
    add_source(Path(folder))
    return Path(folder)


def add_source(root: Path) -> None:
    """Let the modules of a checkout be imported."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    for path in (root / "src", root / "packages" / "prime-rl-configs" / "src"):
        assert path.is_dir(), f"{path} is not there: is {root} a checkout of prime-rl?"
        sys.path.insert(0, str(path))


def theirs(name: str) -> Any:
    return importlib.import_module(f"prime_rl.{name}")


def custom_loss(settings: Any) -> Any:
    """Our loss as prime-rl imports it from its settings."""
    config = theirs("configs.trainer").CustomLossConfig(
        import_path=LOSS, kwargs=loss_kwargs(settings)
    )
    return theirs("trainer.rl.loss").setup_rl_loss_fn(config)


def packed(samples: list[TokenStreams], *, ranks: int = 1) -> list[list[Any]]:
    """The samples through prime-rl's pruning, packing and tensors: the micro-batches of each
    rank."""
    types = theirs("transports.rollouts.types")
    prune = theirs("orchestrator.train_sink")._prune_zero_advantages
    rows = []
    for sample in samples:
        streams = {
            name: list(value)
            for name in TokenStreams.__dataclass_fields__
            if (value := getattr(sample, name)) is not None
        }
        size = len(sample.token_ids)
        row = types.TrainingSample(**streams, temperatures=[1.0] * size, env_name="composer")
        assert prune(row), "prime-rl would drop a sample that a component trains"
        rows.append(row)
    batches = theirs("trainer.batch").prepare_batch(
        rows, seq_len=SEQUENCE, num_train_workers=ranks, bin_cost=sum
    )
    loader = theirs("trainer.rl.data").DataLoader
    return [[loader._micro_batch_to_tensor(object(), batch) for batch in part] for part in batches]


def split(batch: Any, name: str) -> list[torch.Tensor] | None:
    value = batch[name]
    return None if value is None else list(value.squeeze(0).split(batch["sequence_lengths"]))


def their_counts(batches: list[Any]) -> dict[str, int]:
    """The tokens of each component, as its trainer counts them."""
    counts = dict.fromkeys(("rl", "ce", "ref_kl"), 0)
    for batch in batches:
        mask = batch["loss_mask"]
        weights = batch["rl_weights"]
        counts["rl"] += int((mask if weights is None else mask & (weights != 0)).sum())
        for name in ("ce", "ref_kl"):
            stream = batch[f"{name}_weights"]
            counts[name] += 0 if stream is None else int((stream != 0).sum())
    return counts


def their_loss(
    batches: list[Any], model: Any, settings: Any, *, counts: dict[str, int]
) -> torch.Tensor:
    """compute_loss over the micro-batches, each component divided by its tokens of the step."""
    compute = theirs("trainer.rl.loss").compute_loss
    total = torch.zeros(())
    for batch in batches:
        sequences = batch["input_ids"].squeeze(0).split(batch["sequence_lengths"])
        loss, _ = compute(
            trainer_logprobs=[student_logprobs(model, ids.tolist()) for ids in sequences],
            **{
                name: split(batch, name)
                for name in (
                    "inference_logprobs",
                    "ref_logprobs",
                    "advantages",
                    "loss_mask",
                    "rl_weights",
                    "ce_weights",
                    "ref_kl_weights",
                )
            },
            rl_loss_fn=custom_loss(settings),
            **{f"{name}_scale": max(number, 1) for name, number in counts.items()},
        )
        total = total + loss
    return total


@pytest.mark.parametrize("channels", [("policy",), ("policy", "hint"), tuple(CHANNELS)])
def test_prime_rls_own_compute_loss_has_the_reference_gradient(
    source: Path, channels: tuple[str, ...]
) -> None:
    trainer = perturbed(
        start_trainer(make_config(**train_settings(channels), layout="rows"), make_student())
    )
    examples, pairs = batch_of(trainer)
    pairs = pairs if "preference" in channels else []
    expected = gradients(trainer, examples, pairs, {name: CHANNELS[name] for name in channels})
    samples = samples_of(trainer, examples, pairs)
    (batches,) = packed(samples)
    model = trainer.models.student.model
    loss = their_loss(batches, model, trainer.settings, counts=their_counts(batches))
    assert component_tokens(samples)["rl"] > 0
    found = torch.autograd.grad(loss, trainer.trainable())
    assert difference(expected, list(found)) < 1e-4


@pytest.mark.timeout(300)
def test_two_ranks_of_their_compute_loss_have_the_reference_gradient(
    source: Path, tmp_path: Path
) -> None:
    found = in_two_ranks("tests.backends_prime_rl.ranks", tmp_path / "out.json")
    assert len(found) == 8
    for name, distance in found.items():
        if name.endswith("own counts"):
            assert distance > 1e-2, (name, "each rank divides by its own tokens: not seen")
        else:
            assert distance < 1e-4, (name, distance)


def test_loss_inputs_have_the_fields_that_we_read(source: Path) -> None:
    fields = theirs("trainer.rl.loss").LossInputs.__dataclass_fields__
    assert set(Inputs.__dataclass_fields__) <= set(fields)
    assert set(theirs("trainer.rl.loss").LossOutputs.__dataclass_fields__) == {"loss", "metrics"}


@pytest.mark.parametrize("mask", ["dppo", "ipo"])
def test_our_loss_is_theirs_where_the_checkout_has_it(source: Path, mask: str) -> None:
    module, configs = theirs("trainer.rl.loss"), theirs("configs.trainer")
    function, config = {
        "dppo": ("default_loss_fn", "DefaultLossConfig"),
        "ipo": ("ipo_loss_fn", "IPOLossConfig"),
    }[mask]
    if not hasattr(module, function):
        pytest.skip(f"this checkout of prime-rl has no {function} any more")
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.rand(200, generator=generator) * 0.98 + 0.01 for _ in range(2))
    fields = {
        "inference_logprobs": q.log(),
        "advantages": torch.randn(200, generator=generator),
        "loss_mask": torch.rand(200, generator=generator) < 0.7,
        "loss_weights": torch.rand(200, generator=generator),
    }
    results = []
    for make, call in (
        (module.LossInputs, lambda x: getattr(module, function)(x, getattr(configs, config)())),
        (Inputs, lambda x: loss_fn(x, mask=mask)),  # pyright: ignore[reportArgumentType]
    ):
        logp = p.log().requires_grad_()
        out = call(make(trainer_logprobs=logp, ref_logprobs=None, **fields))
        results.append((out, torch.autograd.grad(out.loss, logp)[0]))
    (their_out, their_grad), (our_out, our_grad) = results
    assert our_out.loss.item() == pytest.approx(their_out.loss.item(), rel=1e-5, abs=1e-5)
    assert torch.allclose(our_grad, their_grad, rtol=1e-4, atol=1e-6)
    assert our_out.metrics["is_masked"].item() == pytest.approx(
        their_out.metrics["is_masked"].item()
    )


def test_a_wrong_shape_is_refused_inside_prime_rl(source: Path) -> None:
    from composer_replication.core.errors import AlignmentError

    with pytest.raises(AlignmentError, match="advantages has shape"):
        custom_loss(hosted().train)(inputs(advantages=torch.ones(3)))


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_settings_file_is_one_of_prime_rls(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    config = hosted(
        student={"model": "Qwen/Qwen3-0.6B"}, prime_rl={"nodes": nodes}, max_grad_norm=1.0
    )
    path = write_files(config, folder=tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # where the plugin with our tasks lies
    values = tomllib.loads(path.read_text("utf-8"))
    read = theirs("configs.rl").RLConfig.model_validate(values)
    assert read.deployment.gpus_per_node == 8 and (read.slurm is not None) == (nodes > 1)
    assert read.trainer.loss.import_path == LOSS
    assert (read.trainer.optim.betas1, read.trainer.optim.betas2) == BETAS
    assert read.trainer.optim.max_norm == 1.0
    assert read.orchestrator.max_off_policy_steps == config.rollouts.max_staleness
    assert read.orchestrator.algo.type == "grpo"
    assert read.orchestrator.train.sampling.temperature == 1.0
    assert read.ckpt.interval == 10


def test_the_schedule_of_the_file_is_the_reference_trainers(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their warm-up starts at 0, one step before ours; behind it the rates are one step apart."""
    optimisers = types.ModuleType("prime_rl.trainer.optim")  # the real one imports Muon and CUDA
    optimisers.OffloadOptimizer = optimisers.OptimizerLike = type("Offload", (), {})  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "prime_rl.trainer.optim", optimisers)
    train = hosted(steps=12, warmup_steps=3).train
    values = tomllib.loads(
        write_files(hosted(steps=12, warmup_steps=3), folder=tmp_path).read_text("utf-8")
    )
    config = theirs("configs.trainer").TrainerConfig.model_validate(
        {"scheduler": values["trainer"]["scheduler"], "max_steps": values["max_steps"]}
    )
    weight = torch.nn.Parameter(torch.zeros(()))
    optimiser = torch.optim.AdamW([weight], lr=train.learning_rate)
    rates = theirs("trainer.scheduler").setup_scheduler(
        optimiser, config.scheduler, max_steps=train.steps, lr=train.learning_rate
    )
    found = []
    for _ in range(train.steps):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        rates.step()
    wanted = [learning_rate(train, step) for step in range(train.steps)]
    assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) <= train.learning_rate / 3
    assert found[4:] == pytest.approx(wanted[4:], abs=train.learning_rate / 8)
