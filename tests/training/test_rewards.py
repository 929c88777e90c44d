"""The reward of a rollout in training: shaped rewards, advantages by convention, staleness, and the
warning about flat steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from composer_replication.core.config.train_settings import HealthSettings, PolicySettings
from composer_replication.core.errors import AlignmentError
from composer_replication.rollouts.groups import (
    Group,
    Groups,
    advantages,
    drop_stale,
    scaled_advantages,
)
from composer_replication.rollouts.sampler import sample_rollouts
from composer_replication.rollouts.sampling import Sampling
from composer_replication.rollouts.task_source import TaskSource
from composer_replication.training.forwards.reference import frozen_reference
from composer_replication.training.on_policy import live as live_module
from composer_replication.training.on_policy.live import LiveStep
from composer_replication.training.on_policy.rewards import shaped_rewards, shaping_terms, start_kl
from composer_replication.training.run.health import PolicyHealth
from tests.training.scripted import (
    careless_sample,
    live_config,
    make_live,
    renderer,
    tiny_student,
    workshop,
)


@pytest.fixture(scope="module")
def world() -> Iterator[TaskSource]:
    with workshop() as opened:
        yield opened


def played(
    world: TaskSource,
    *,
    sample: Any = careless_sample,
    step: int = 0,
    kl: Any = None,
    **options: Any,
) -> LiveStep:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_module, "sample_rollouts", sample)
        return make_live(world, live_config(**options)).collect(None, step=step, kl=kl)


def weighed(live_step: LiveStep) -> dict[str, float]:
    return {e.id: e.actions[0].advantage for e in live_step.examples if e.actions}


def groups_of(live_step: LiveStep) -> list[tuple[Any, ...]]:
    return [live_step.rollouts[i : i + 4] for i in range(0, len(live_step.rollouts), 4)]


def test_advantages_by_convention() -> None:
    rewards = (1.0, 0.0, 0.0, 0.5)
    mean = 0.375
    deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 3)
    assert advantages(rewards) == pytest.approx([r - mean for r in rewards])
    assert scaled_advantages(rewards) == pytest.approx(
        [(r - mean) / (deviation + 1e-4) for r in rewards]
    )


@pytest.mark.parametrize("objective", ["dr_grpo", "grpo", "dapo", "gspo", "cispo", "dppo"])
def test_the_objective_decides_what_an_advantage_is(world: TaskSource, objective: str) -> None:
    live_step = played(world, train={"policy": {"weight": 1.0, "objective": objective}})
    advantages_found, formula = (
        weighed(live_step),
        advantages if objective in ("dr_grpo", "dppo") else scaled_advantages,
    )
    mixed = [g for g in groups_of(live_step) if len({r.reward for r in g}) > 1]
    assert mixed
    for group in mixed:
        expected = formula([r.reward for r in group])
        assert [advantages_found[r.session.id] for r in group] == pytest.approx(list(expected))


def test_invalid_calls_cost_and_length_costs_and_success_stays_what_it_was(
    world: TaskSource,
) -> None:
    plain = played(world)
    policy: dict[str, Any] = {
        "weight": 1.0,
        "behaviours": {"invalid_calls": 0.25},
        "length": {"weight": 0.01},
    }
    shaped = played(world, train={"policy": policy})
    assert shaped.metrics["rollouts/success"] == plain.metrics["rollouts/success"]
    assert (
        shaped.metrics["rollouts/score"]
        < plain.metrics["rollouts/score"]
        == plain.metrics["rollouts/success"]
    )
    terms_of = shaping_terms(
        shaped.rollouts, PolicySettings.model_validate(policy), count=renderer().codec.count
    )
    rewards_of = shaped_rewards(shaped.rollouts, terms_of)
    for name in ("length", "invalid_calls"):
        mean = sum(terms[name] for terms in terms_of.values()) / len(terms_of)
        assert shaped.metrics[f"score/{name}"] == pytest.approx(mean)
        assert mean < 0.0
    for group in groups_of(shaped):
        group_rewards = [rewards_of[r.session.id] for r in group]
        # else four times the same episode; otherwise no rollout is left out, whatever it did
        if len(set(group_rewards)) > 1:
            assert [weighed(shaped)[r.session.id] for r in group] == pytest.approx(
                list(advantages(group_rewards))
            )
        assert all(w < r.reward for w, r in zip(group_rewards, group, strict=True))
    # a group of equal rewards may differ in length
    assert len(weighed(shaped)) > len(weighed(plain))


def test_the_longer_of_two_successes_has_the_lower_reward(world: TaskSource) -> None:
    rollout = next(r for r in played(world).rollouts if r.reward == 1.0)
    turns = rollout.session.turns
    longer = replace(
        rollout,
        session=replace(
            rollout.session,
            id="longer",
            turns=(*turns, *turns[-1:]),
            segments=(replace(rollout.session.segments[0], end=len(turns) + 1),),
        ),
    )
    settings = PolicySettings.model_validate({"length": {"weight": 0.1}})
    terms_of = shaping_terms([rollout, longer], settings, count=renderer().codec.count)
    rewards_of = shaped_rewards([rollout, longer], terms_of)
    assert rewards_of["longer"] < rewards_of[rollout.session.id] < 1.0


def test_k1_is_the_sum_of_log_ratios_to_the_start_and_is_taken_off(world: TaskSource) -> None:
    student = tiny_student()
    options = Sampling(max_new_tokens=8, max_context_tokens=1024, seed=3)
    envs = [make() for make, _ in zip(world.train(5), range(3), strict=False)]
    rollouts = sample_rollouts(
        student.model, envs, renderer=renderer(), settings=options, author="tiny"
    )
    start = frozen_reference(tiny_student(seed=1))
    kl_of_rollout = start_kl(start, rollouts, pad_id=0, max_tokens=4096, device="cpu")
    other_start = tiny_student(seed=1).model.eval()
    for rollout in rollouts:
        with torch.no_grad():
            logp = (
                other_start(input_ids=torch.tensor([rollout.ids]))
                .logits[0]
                .double()
                .log_softmax(-1)
            )
        expected = sum(
            p - float(logp[t.context_tokens + k - 1, i])
            for t in rollout.session.turns
            if t.sampled
            for k, (i, p) in enumerate(zip(t.sampled.ids, t.sampled.logprobs, strict=True))
        )
        assert (
            kl_of_rollout[rollout.session.id] == pytest.approx(expected, abs=1e-3)
            and abs(expected) > 0.01
        )
    same = start_kl(frozen_reference(student), rollouts, pad_id=0, max_tokens=4096, device="cpu")
    assert all(abs(value) < 1e-3 for value in same.values())
    terms_of = shaping_terms(rollouts, PolicySettings(kl=0.1), count=len, kl=kl_of_rollout)
    rewards_of = shaped_rewards(rollouts, terms_of)
    assert rewards_of == pytest.approx(
        {r.session.id: r.reward - 0.1 * kl_of_rollout[r.session.id] for r in rollouts}
    )
    with pytest.raises(AlignmentError, match="was not measured"):
        shaping_terms(rollouts, PolicySettings(kl=0.1), count=len)


def test_the_step_measures_kl_only_where_it_is_part_of_the_reward(world: TaskSource) -> None:
    asked: list[int] = []

    def kl(rollouts: Any) -> dict[str, float]:
        asked.append(len(rollouts))
        return {r.session.id: float(i % 3) for i, r in enumerate(rollouts)}

    assert "rollouts/kl_start" not in played(world, kl=kl).metrics and not asked
    live_step = played(world, kl=kl, train={"policy": {"weight": 1.0, "kl": 0.5}})
    assert asked == [12] and live_step.metrics["rollouts/kl_start"] == 1.0
    assert live_step.metrics["rollouts/score"] == pytest.approx(
        live_step.metrics["rollouts/success"] - 0.5
    )


# ---- staleness ----


def aged(*versions: int) -> Any:
    """`careless_sample` with rollouts sampled by older weights, in turn."""

    def sample(*args: Any, version: int = -1, **options: Any) -> Any:
        return [
            replace(r, version=versions[i % len(versions)])
            for i, r in enumerate(careless_sample(*args, version=version, **options))
        ]

    return sample


def test_stale_rollouts_are_not_trained_on_and_counted(world: TaskSource) -> None:
    full_step = played(world, step=4)
    assert (
        all(r.version == 4 for r in full_step.rollouts) and full_step.metrics["rollouts/stale"] == 0
    )
    live_step = played(world, step=4, sample=aged(4, 3, 2, 3))
    assert (
        live_step.metrics["rollouts/stale"] == 3
        and live_step.num_rollouts == 9
        and len(live_step.rollouts) == 12
    )
    stale = {r.session.id for r in live_step.rollouts if r.version == 2}
    assert stale and not stale & {e.id for e in live_step.examples}
    for group in groups_of(live_step):
        left = [r for r in group if r.version > 2]
        if len({r.reward for r in left}) > 1:
            assert [weighed(live_step)[r.session.id] for r in left] == pytest.approx(
                list(advantages([r.reward for r in left]))
            )
    assert (
        played(world, step=4, sample=aged(4, 3, 2, 3), max_staleness=2).metrics["rollouts/stale"]
        == 0
    )
    unknown = played(world, step=4, sample=aged(-1))
    assert (
        unknown.metrics["rollouts/stale"] == 12
        and unknown.examples == ()
        and unknown.num_rollouts == 0
    )


def test_a_group_of_one_has_no_difference(world: TaskSource) -> None:
    four = played(world).rollouts[:4]
    group = Group(
        "t", tuple(replace(r, version=v) for r, v in zip(four, (0, 0, 0, 5), strict=True))
    )
    assert (
        drop_stale(Groups(groups=(group,), flat=(), num_extra=0), now=5, max_staleness=1).rollouts
        == ()
    )


# ---- health ----


def test_a_step_without_any_difference_in_rewards_is_said_once() -> None:
    health = PolicyHealth(settings=HealthSettings())
    spreads = [0.5, 0.0, 0.0, 0.4, 0.0]
    warnings = [
        [w["measure"] for w in health.observe_rollouts({"rollouts/advantage_spread": s})]
        for s in spreads
    ]
    assert (
        warnings == [[], ["rollouts/advantage_spread"], [], [], ["rollouts/advantage_spread"]]
        and health.find_breach() is None
    )
    again = PolicyHealth(settings=HealthSettings())
    again.restore(health.state())
    assert (
        again.flat_steps == 1 and again.observe_rollouts({"rollouts/advantage_spread": 0.0}) == []
    )


def test_a_run_whose_environment_fails_is_stopped_by_name() -> None:
    health = PolicyHealth(settings=HealthSettings(max_lost=0.3))
    for lost, rule in ((0.4, None), (0.3, None), (0.5, None), (0.6, "environment")):
        health.observe_rollouts({"rollouts/lost": lost})
        breach = health.find_breach()
        assert (breach.rule if breach else None) == rule
    assert "failed or hung in 60% of the rollouts, 2 steps in a row" in breach.reason  # pyright: ignore[reportOptionalMemberAccess]
