"""The prime-rl adapter on our side of the border: its loss function, the streams of a step, and
the settings that it refuses. Nothing of prime-rl is needed."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication.core.config.root import Config
from composer_replication.core.errors import AlignmentError, ConfigError
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training.backends import prime_rl_samples, prime_rl_settings
from composer_replication.training.backends.prime_rl_check import prime_rl_steps
from composer_replication.training.backends.prime_rl_loss import loss_fn
from composer_replication.training.backends.prime_rl_samples import TokenStreams, step_samples
from composer_replication.training.backends.prime_rl_settings import check_prime_rl
from composer_replication.training.backends.prime_rl_step import (
    Inputs,
    scores_of,
    step_loss,
    student_logprobs,
)
from composer_replication.training.backends.refusals import walk_settings
from composer_replication.training.backends.step_check import check_steps, registered_steps
from composer_replication.training.inputs import StepInputs
from composer_replication.training.run.optimiser import BETAS, learning_rate
from composer_replication.training.run.state import Trainer
from tests.training.small_student import (
    gradients,
    make_config,
    make_pair,
    make_rollout,
    make_student,
    start_trainer,
)
from tests.training.test_channels import perturbed

HINT = {"divergence": "kl(student, teacher)", "estimator": "sampled_token", "teacher": "live"}
CHANNELS = {"policy": 1.0, "hint": 0.7, "preference": 0.4}


def train_settings(channels: Sequence[str], *, objective: str = "dppo", mean: str = "site") -> Any:
    on = {name: CHANNELS[name] if name in channels else 0.0 for name in CHANNELS}
    return {
        "balance": "none",
        "max_grad_norm_ratio": 0.0,
        "lm_ce": {"weight": 0.0},
        "policy": {"weight": on["policy"], "objective": objective},
        "hint": {"weight": on["hint"], "mean": mean, **HINT},
        "preference": {"weight": on["preference"], "anchor": 0.0},
    }


def on_policy(model: Any, rollouts: Sequence[TrainingExample]) -> list[TrainingExample]:
    """The rollouts with the log-probs of these weights, also at their mistaken messages."""
    fresh = []
    for example in rollouts:
        logp = student_logprobs(model, example.ids).tolist()
        actions = tuple(
            dataclasses.replace(action, logprobs=tuple(logp[slice(*action.span)]))
            for action in example.actions
        )
        fresh.append(dataclasses.replace(example, actions=actions))
    return fresh


def batch_of(trainer: Trainer) -> tuple[list[TrainingExample], list[PreferencePair]]:
    """Rollouts whose last message is mistaken, of this student; pairs scored by another model."""
    spans = ((3, 6), (10, 13), (17, 20))
    rollouts = [
        make_rollout(0, advantage=1.5, length=20, hints=1, lm=False, spans=spans),
        make_rollout(1, advantage=-0.5, length=20, hints=1, lm=False, spans=spans),
        make_rollout(2, advantage=-1.0, length=25, hints=0, lm=False),
        make_rollout(3, advantage=0.0, length=22, hints=0, lm=False),
    ]
    start = make_student().model
    pairs = []
    for pair in (make_pair(0), make_pair(1, chosen=2, rejected=9)):
        sides = [
            student_logprobs(start, pair.prefix_ids + ids)[len(pair.prefix_ids) :].tolist()
            for ids in (pair.chosen_ids, pair.rejected_ids)
        ]
        pairs.append(dataclasses.replace(pair, reference=(*sides[0], *sides[1])))
    return on_policy(trainer.models.student.model, rollouts), pairs


def samples_of(
    trainer: Trainer, examples: list[TrainingExample], pairs: list[PreferencePair]
) -> Any:
    model = trainer.models.student.model
    hinted, policy = scores_of(model, model, examples, pairs)
    return step_samples(examples, pairs, settings=trainer.settings, hinted=hinted, policy=policy)


def prime_rl_gradients(trainer: Trainer, samples: list[TokenStreams]) -> list[torch.Tensor]:
    model = trainer.models.student.model
    logprobs = [student_logprobs(model, sample.token_ids) for sample in samples]
    loss = step_loss(samples, logprobs, settings=trainer.settings)
    return [
        torch.zeros_like(p) if g is None else g
        for p, g in zip(
            trainer.trainable(),
            torch.autograd.grad(loss, trainer.trainable(), allow_unused=True),
            strict=True,
        )
    ]


def difference(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The norm of the difference over the norm."""
    square = sum(float((x - y).square().sum()) for x, y in zip(ours, theirs, strict=True))
    return (square / sum(float(x.square().sum()) for x in ours)) ** 0.5


def both_gradients(
    channels: Sequence[str], **options: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    settings = train_settings(channels, **options)
    trainer = perturbed(start_trainer(make_config(**settings, layout="rows"), make_student()))
    examples, pairs = batch_of(trainer)
    pairs = pairs if "preference" in channels else []
    expected = gradients(trainer, examples, pairs, {name: CHANNELS[name] for name in channels})
    return expected, prime_rl_gradients(trainer, samples_of(trainer, examples, pairs))


@pytest.mark.train
@pytest.mark.parametrize(
    "channels",
    [("policy",), ("policy", "hint"), ("policy", "preference"), ("policy", "hint", "preference")],
    ids="+".join,
)
@pytest.mark.parametrize("mean", ["site", "token"])
def test_the_gradient_of_the_components_is_that_of_the_reference_trainer(
    channels: tuple[str, ...], mean: str
) -> None:
    expected, found = both_gradients(channels, mean=mean)
    assert difference(expected, found) < 1e-4


@pytest.mark.train
@pytest.mark.parametrize("objective", ["dpo", "dpo_norm", "ipo", "simpo"])
def test_signed_cross_entropy_has_the_gradient_of_each_preference_loss(objective: str) -> None:
    settings = train_settings(("preference",))
    settings["preference"] |= {"objective": objective, "label_smoothing": 0.0}
    trainer = perturbed(start_trainer(make_config(**settings, layout="rows"), make_student()))
    _, pairs = batch_of(trainer)
    expected = gradients(trainer, [], pairs, {"preference": CHANNELS["preference"]})
    assert difference(expected, prime_rl_gradients(trainer, samples_of(trainer, [], pairs))) < 1e-4


# ---- planted faults ----


def _wrong_turn(sample: TokenStreams) -> TokenStreams:
    """The hint's streams at the student's first message instead of the mistaken one."""
    if sample.ref_kl_weights is None:
        return sample
    reference, weights = [0.0] * len(sample.token_ids), [0.0] * len(sample.token_ids)
    found = [k for k, w in enumerate(sample.ref_kl_weights) if w]
    assert sample.ref_logprobs is not None
    for place, k in zip(range(3, 6), found, strict=True):
        reference[place], weights[place] = sample.ref_logprobs[k], sample.ref_kl_weights[k]
    return dataclasses.replace(sample, ref_logprobs=tuple(reference), ref_kl_weights=tuple(weights))


def _swapped(sample: TokenStreams) -> TokenStreams:
    """KL(teacher, student) in the place of KL(student, teacher): the difference the other way."""
    if sample.ref_kl_weights is None:
        return sample
    return dataclasses.replace(sample, ref_kl_weights=tuple(-w for w in sample.ref_kl_weights))


def _no_mask(sample: TokenStreams) -> TokenStreams:
    """Every token of a rollout counts as sampled."""
    if not any(sample.mask):
        return sample
    advantage = max(sample.advantages, key=abs)
    size = len(sample.token_ids)
    return dataclasses.replace(
        sample,
        mask=(True,) * size,
        advantages=(advantage,) * size,
        rl_weights=(0.0, *(1.0,) * (size - 1)),
    )


@pytest.mark.train
@pytest.mark.parametrize("fault", [_wrong_turn, _swapped, _no_mask])
def test_a_planted_fault_leaves_the_reference_trainers_gradient(fault: Any) -> None:
    channels = ("policy", "hint", "preference")
    settings = train_settings(channels)
    trainer = perturbed(start_trainer(make_config(**settings, layout="rows"), make_student()))
    examples, pairs = batch_of(trainer)
    expected = gradients(trainer, examples, pairs, CHANNELS)
    samples = samples_of(trainer, examples, pairs)
    assert difference(expected, prime_rl_gradients(trainer, samples)) < 1e-4
    broken = prime_rl_gradients(trainer, [fault(sample) for sample in samples])
    assert difference(expected, broken) > 1e-2


# ---- the loss function ----


def inputs(size: int = 4, **fields: Any) -> Inputs:
    plain: dict[str, Any] = {
        "trainer_logprobs": torch.tensor([0.9, 0.3, 0.2, 0.5]).log()[:size],
        "inference_logprobs": torch.tensor([0.5, 0.2, 0.6, 0.5]).log()[:size],
        "ref_logprobs": None,
        "advantages": torch.tensor([1.0, 1.0, -1.0, 2.0])[:size],
        "loss_mask": torch.tensor([True, True, True, False])[:size],
        "loss_weights": None,
    }
    return Inputs(**{**plain, **fields})


def test_the_loss_is_the_guides_formula() -> None:
    """Token 0 rose by 0.4 with A > 0 and token 2 fell by 0.4 with A < 0: both are dropped, and keep
    their squared log-ratio."""
    out = loss_fn(inputs(), dppo_mask_high=0.2, dppo_mask_low=0.3, adv_tau=2.0, kl_tau=0.1)
    squares = [torch.tensor(x).log().item() ** 2 for x in (0.9 / 0.5, 0.3 / 0.2, 0.2 / 0.6)]
    assert out.loss.item() == pytest.approx(-2.0 * 1.5 + 0.1 * sum(squares), rel=1e-6)
    assert out.metrics["is_masked"].item() == pytest.approx(2 / 3)
    assert out.metrics["is_masked_high"].item() == pytest.approx(1 / 3)


def test_the_ipo_mask_ignores_the_advantages_sign() -> None:
    away = inputs(advantages=torch.tensor([-1.0, 1.0, 1.0, 2.0]))
    kept = loss_fn(away, kl_tau=0.0)
    assert kept.loss.item() == pytest.approx(1.8 - 1.5 - 1 / 3, rel=1e-5)
    assert loss_fn(away, mask="ipo", ipo_threshold=0.2, kl_tau=0.0).loss.item() == pytest.approx(
        -1.5, rel=1e-5
    )


def test_weights_scale_and_a_token_outside_the_mask_is_nothing() -> None:
    plain, half = (
        loss_fn(inputs(loss_weights=torch.full((4,), weight)), kl_tau=0.1).loss.item()
        for weight in (1.0, 0.5)
    )
    assert half == pytest.approx(plain / 2)
    bad = torch.tensor([0.9, 0.3, 0.2, 0.5]).log()
    bad[3] = torch.nan
    assert loss_fn(inputs(trainer_logprobs=bad), kl_tau=0.1).loss.item() == pytest.approx(plain)


@pytest.mark.parametrize(
    "fields",
    [
        {"advantages": torch.ones(3)},
        {"loss_mask": torch.ones(1, 4, dtype=torch.bool)},
        {"ref_logprobs": torch.ones(5)},
        {"loss_weights": torch.tensor(1.0)},
        {"trainer_logprobs": torch.zeros(1, 4)},
        {"loss_mask": torch.tensor([1, 1, 1, 0])},
    ],
)
def test_a_stream_of_another_shape_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(AlignmentError, match="LossInputs"):
        loss_fn(inputs(**fields))


@pytest.mark.parametrize(
    ("weight", "stream"), [("alpha_sdpo", "ref_kl_weights"), ("beta_dpo", "ce_weights")]
)
def test_the_weights_of_other_components_are_refused_with_the_stream_that_has_them(
    weight: str, stream: str
) -> None:
    with pytest.raises(ConfigError, match=stream) as error:
        loss_fn(inputs(), **{weight: 0.1})  # pyright: ignore[reportArgumentType]
    assert weight in str(error.value)


def test_a_stream_that_trains_what_the_student_did_not_sample_is_refused() -> None:
    zeros = (0.0, 0.0, 0.0)
    fields = {"token_ids": (1, 2, 3), "mask": (False, True, False), "logprobs": zeros}
    plain = {**fields, "advantages": zeros, "rl_weights": zeros}
    for wrong, what in (
        ({"rl_weights": (0.0, 0.0, 1.0)}, "rl_weights"),
        ({"ref_kl_weights": (0.0, 0.0, 1.0), "ref_logprobs": zeros}, "ref_kl_weights"),
        ({"ref_kl_weights": (0.0, 1.0, 0.0)}, "ref_logprobs"),
        ({"ce_weights": (0.0, 1.0)}, "ce_weights has 2 values"),
    ):
        with pytest.raises(AlignmentError, match=what):
            TokenStreams(**{**plain, **wrong})  # pyright: ignore[reportArgumentType]


def test_a_site_without_the_teachers_log_probs_is_refused() -> None:
    rollout = make_rollout(0, length=20, hints=1, lm=False, spans=((17, 20),))
    settings = Config.model_validate({"train": train_settings(("hint",))}).train
    with pytest.raises(AlignmentError, match="0 log-probs of the teacher for a target of 3"):
        step_samples([rollout], [], settings=settings, hinted={}, policy={})


# ---- settings ----


def hosted(**changes: Any) -> Config:
    train = train_settings(("policy", "hint"))
    rollouts = {"env": "workshop", **changes.pop("rollouts", {})}
    student = changes.pop("student", {})
    return Config.model_validate(
        {
            "student": student,
            "train": {**train, "backend": "prime_rl", **changes},
            "rollouts": rollouts,
        }
    )


def test_the_recipe_is_hosted() -> None:
    check_prime_rl(hosted())


@pytest.mark.parametrize(
    ("changes", "where", "works"),
    [
        ({"policy": {"weight": 1.0}}, "train.policy.objective", "dppo"),
        ({"hint": {"weight": 1.0}}, "train.hint.estimator", "sampled_token"),
        ({"hint": {**HINT, "teacher": "frozen"}}, "train.hint.teacher", "live"),
        ({"lm_ce": {"weight": 1.0}}, "train.lm_ce", "train.lm_ce.weight = 0"),
        ({"balance": "grad_norm"}, "train.balance", "none"),
        ({"max_grad_norm_ratio": 4.0}, "train.max_grad_norm_ratio", "max_grad_norm, e.g. 1"),
        ({"preference": {"weight": 1.0, "anchor": 0.0}}, "train.preference", "build.pairs"),
        ({"weight_decay": 0.1}, "train.weight_decay", "weight_decay = 0"),
        ({"student": {"lora": {"rank": 4}}}, "student.lora.rank", "leave it at 0"),
        ({"student": {"dtype": "bfloat16"}}, "student.dtype", "leave it at 'float32'"),
        ({"rollouts": {"env": ""}}, "rollouts.env", "workshop"),
        ({"rollouts": {"extra_groups": 2}}, "rollouts.extra_groups", "leave it at 0"),
        ({"hint": {**HINT, "importance_clip": 2.0}}, "train.hint.importance_clip", "reference"),
    ],
)
def test_what_prime_rl_cannot_host_is_refused_with_what_works(
    changes: dict[str, Any], where: str, works: str
) -> None:
    with pytest.raises(ConfigError) as error:
        check_prime_rl(hosted(**changes))
    assert error.value.where == where
    assert works in str(error.value)


def test_a_refusal_names_every_setting_that_is_not_hosted() -> None:
    with pytest.raises(ConfigError) as error:
        check_prime_rl(hosted(balance="grad_norm", weight_decay=0.1, tile=8, checkpoint="layers"))
    assert error.value.where == "train.balance"
    for name in ("train.weight_decay", "train.tile", "train.checkpoint"):
        assert f"\nand {name}: " in str(error.value)


def test_every_hosted_setting_exists() -> None:
    config = Config()
    names = {
        name
        for group in ("student", "train", "rollouts")
        for name, _ in walk_settings(group, getattr(config, group))
    }
    assert names >= prime_rl_settings.HOSTED_THERE
    assert names >= prime_rl_settings.NOT_READ_THERE


def test_the_file_of_a_run_is_prime_rls(tmp_path: Path) -> None:
    path = prime_rl_settings.write_files(hosted(steps=7), folder=tmp_path / "prime_rl")
    settings = tomllib.loads(path.read_text("utf-8"))
    assert settings["max_steps"] == 7
    assert settings["trainer"]["loss"]["import_path"] == prime_rl_settings.LOSS
    assert settings["trainer"]["loss"]["kwargs"]["mask"] == "dppo"
    assert settings["deployment"] == {
        "gpus_per_node": 8,
        "num_train_gpus": 4,
        "num_infer_gpus": 4,
    }
    assert settings["orchestrator"]["batch_size"] == 48
    assert prime_rl_settings.launch_line(path).endswith(f"uv run rl @ {path}")
    assert (path.parent / "composer_tasks.py").is_file()
    assert (
        settings["orchestrator"]["train"]["source"][0]["env"]["taskset"]["id"] == "composer_tasks"
    )
    module, _, function = prime_rl_settings.LOSS.rpartition(".")
    assert module == loss_fn.__module__
    assert function == loss_fn.__name__


def file_of(config: Config, folder: Path) -> dict[str, Any]:
    return tomllib.loads(prime_rl_settings.write_files(config, folder=folder).read_text("utf-8"))


def test_the_file_alone_trains_what_was_asked_for(tmp_path: Path) -> None:
    """What prime-rl would otherwise fill with defaults of its own."""
    config = hosted(
        policy={"weight": 0.5, "objective": "dppo"},
        steps=12,
        warmup_steps=3,
        learning_rate=1e-3,
        rollouts={"max_staleness": 2},
    )
    check_prime_rl(config)
    settings = file_of(config, tmp_path)
    kwargs = settings["trainer"]["loss"]["kwargs"]
    assert (kwargs["adv_tau"], kwargs["kl_tau"]) == (0.5, 0.0005)
    half, whole = (loss_fn(inputs(), adv_tau=w, kl_tau=1e-3 * w).loss.item() for w in (0.5, 1.0))
    assert half == pytest.approx(whole / 2)
    optimiser = settings["trainer"]["optim"]
    assert (optimiser["betas1"], optimiser["betas2"]) == BETAS
    assert settings["orchestrator"]["max_off_policy_steps"] == 2
    scheduler = settings["trainer"]["scheduler"]
    assert scheduler == {"type": "linear", "warmup_steps": 3, "decay_steps": 9}
    # linear from the top at the end of the warm-up to 0 behind the last step, as ours
    ours = [learning_rate(config.train, step) for step in range(3, 12)]
    assert ours == pytest.approx([1e-3 * (9 - n) / 9 for n in range(9)])


def test_several_nodes_are_started_by_slurm(tmp_path: Path) -> None:
    settings = file_of(hosted(prime_rl={"nodes": 4}), tmp_path)
    assert settings["deployment"] == {
        "type": "multi_node",
        "gpus_per_node": 8,
        "num_train_nodes": 2,
        "num_infer_nodes": 2,
    }
    assert "slurm" in settings


def test_names_with_quotes_and_spaces_stay_names(tmp_path: Path) -> None:
    model = 'a "b" \\ c'
    assert file_of(hosted(student={"model": model}), tmp_path)["model"]["name"] == model
    line = prime_rl_settings.launch_line(tmp_path / "my run" / "rl.toml")
    assert line.count("'") == 4


def test_the_weights_count_what_prime_rl_divides_by() -> None:
    """Two messages of 3 tokens: with mean = "site" each token weighs 6 / (3 * 2)."""
    rollouts = [make_rollout(n, length=20, hints=1, lm=False, spans=((17, 20),)) for n in range(2)]
    settings = Config.model_validate({"train": train_settings(("hint",))}).train
    hinted = {view.site_id: (-1.0, -1.0, -1.0) for e in rollouts for view in e.hints}
    samples = step_samples(rollouts, [], settings=settings, hinted=hinted, policy={})
    assert prime_rl_samples.component_tokens(samples)["ref_kl"] == 6
    assert samples[0].ref_kl_weights is not None
    assert samples[0].ref_kl_weights[17:] == pytest.approx((0.7, 0.7, 0.7))


@pytest.mark.train
def test_the_check_compares_every_channel_on_off_policy_rollouts() -> None:
    """Rollouts of older weights, hints on messages without an advantage, pairs without a
    reference: what the first step of a run holds."""
    config = make_config(**train_settings(tuple(CHANNELS)), layout="rows")
    rollouts = [make_rollout(n, advantage=(0.5, -0.5, 0.0)[n % 3], lm=False) for n in range(3)]
    inputs_of_step = StepInputs(
        [
            dataclasses.replace(
                rollout,
                hints=tuple(dataclasses.replace(v, origin="student") for v in rollout.hints),
            )
            for rollout in rollouts
        ],
        [make_pair(n) for n in range(2)],
    )
    comparisons = check_steps(
        config, student=make_student(), inputs=inputs_of_step, open_steps=prime_rl_steps
    )
    assert len(comparisons) == 4
    for comparison in comparisons:
        assert comparison.passes, comparison.text()
    assert registered_steps("prime_rl") is prime_rl_steps


# ---- several ranks ----


def in_two_ranks(module: str, out: Path, *words: str) -> Any:
    """What the first of two ranks over gloo wrote to `out`."""
    torchrun = ["-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, *torchrun, "-m", module, str(out), *words],
        cwd=root,
        env={**os.environ, "ACCELERATE_USE_CPU": "true", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(out.read_text("utf-8"))


@pytest.mark.train
@pytest.mark.timeout(200)
def test_two_ranks_take_the_reference_trainers_step_and_a_fault_is_seen(tmp_path: Path) -> None:
    found = in_two_ranks("tests.training.prime_rl_ranks", tmp_path / "out.json")
    assert [line["channels"] for line in found[""]] == [
        "policy",
        "policy + hint",
        "policy + preference",
        "policy + hint + preference",
    ]
    failing = {fault: [not line["passes"] for line in lines] for fault, lines in found.items()}
    assert failing == {
        "": [False] * 4,
        "own_counts": [True] * 4,
        "pairs_split_across_ranks": [False, False, True, True],
        "lost_mask": [True] * 4,
    }, found
