"""The rollout source on scripted players: how a rollout becomes examples, and that nothing else is
trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import AlignmentError, ConfigError, DataError
from composer_replication.core.site import Hint, Site
from composer_replication.core.trace import HACK_ATTEMPT, Event, Session
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.groups import sample_groups
from composer_replication.rollouts.task_source import TaskSource, open_world
from composer_replication.training.on_policy import live as live_module
from composer_replication.training.on_policy.live import (
    LiveStep,
    check_rendered_ids,
    group_advantages,
    has_hack_attempts,
    pick_sessions,
    rollout_example,
)
from composer_replication.training.on_policy.rollout_hints import HintedRollouts, draw_messages
from composer_replication.training.on_policy.rollout_metrics import (
    behaviour_metrics,
    num_unresolvable,
)
from composer_replication.workshop import tasks as tasks_module
from composer_replication.workshop.tasks import make_task
from composer_replication.workshop.workshop_tasks import METADATA, check_trainable, training_tasks
from tests.training.scripted import (
    careless_sample,
    live_config,
    make_live,
    perfect_sample,
    renderer,
    workshop,
)


@pytest.fixture(scope="module")
def world() -> Iterator[TaskSource]:
    with workshop() as opened:
        yield opened


def played(
    world: TaskSource,
    *,
    step: int = 0,
    sample: Any = careless_sample,
    strong_kinds: frozenset[str] | None = None,
    **options: Any,
) -> LiveStep:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_module, "sample_rollouts", sample)
        return make_live(world, live_config(**options), strong_kinds=strong_kinds).collect(
            None, step=step
        )


@pytest.fixture(scope="module")
def live_step(world: TaskSource) -> LiveStep:
    return played(world)


def test_each_sampled_message_is_an_action_with_its_groups_advantage(live_step: LiveStep) -> None:
    by_name = {e.id: e for e in live_step.examples}
    kinds = {"flat": 0, "mixed": 0}
    for start in range(0, len(live_step.rollouts), 4):
        group = live_step.rollouts[start : start + 4]
        rewards = [r.reward for r in group]
        flat = len(set(rewards)) == 1
        kinds["flat" if flat else "mixed"] += 1
        for rollout in group:
            messages = [t for t in rollout.session.turns if t.sampled is not None]
            example = by_name.get(rollout.session.id)
            if flat:
                assert example is None or (example.actions == () and example.hints)
                continue
            assert example is not None and len(example.actions) == len(messages) >= 3
            assert (
                example.ids == rollout.ids
                and example.lm_spans == ()
                and example.origin == "student"
            )
            for action, turn in zip(example.actions, messages, strict=True):
                assert turn.sampled is not None
                assert (
                    example.ids[slice(*action.span)] == turn.sampled.ids
                    and action.logprobs == turn.sampled.logprobs
                )
                assert action.advantage == pytest.approx(rollout.reward - sum(rewards) / 4)
    assert kinds["mixed"] >= 1


def test_flat_groups_count_and_still_give_hint_views(world: TaskSource) -> None:
    live_step = played(world, step=1, groups=8)
    flat = [
        live_step.rollouts[i : i + 4]
        for i in range(0, 32, 4)
        if len({r.reward for r in live_step.rollouts[i : i + 4]}) == 1
    ]
    assert flat and live_step.num_rollouts == 32 == live_step.metrics["rollouts/episodes"]
    assert live_step.metrics["rollouts/flat"] == len(flat) / 8
    names = {r.session.id for group in flat for r in group}
    from_flat = [e for e in live_step.examples if e.id in names]
    assert from_flat and all(e.hints and not e.actions for e in from_flat)
    assert live_step.metrics["rollouts/success"] == sum(r.reward for r in live_step.rollouts) / 32


def test_views_are_of_the_mistaken_messages_and_hold_no_error(live_step: LiveStep) -> None:
    sessions: dict[str, Session] = {s.id: s for s in live_step.sessions}
    decode, views = renderer().codec.decode, [(e, v) for e in live_step.examples for v in e.hints]
    assert len(views) == live_step.metrics["sites/used"] >= 4
    for example, view in views:
        turn = int(view.site_id.removeprefix(example.session_id).split(":")[1])
        message = sessions[example.session_id].turns[turn]
        assert (
            message.sampled is not None
            and view.target_ids == message.sampled.ids
            and view.origin == "student"
        )
        call = message.calls[0]
        (error,) = (
            r for t in sessions[example.session_id].turns for r in t.results if r.call_id == call.id
        )
        assert error.is_error and error.text not in decode(list(example.teacher_ids(view)))
        assert view.kind in ("unknown_tool", "bad_arguments")
        assert "Reminder" in decode(list(view.hint_ids))


def test_live_views_hold_their_hints_in_the_set_position(world: TaskSource) -> None:
    config = live_config()
    hints = config.hints.model_copy(update={"position": "reminder"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_module, "sample_rollouts", careless_sample)
        moved = config.model_copy(update={"hints": hints})
        live_step = make_live(world, moved).collect(None, step=0)
    views = [(e, v) for e in live_step.examples for v in e.hints]
    assert views and {v.position for _, v in views} == {"reminder"}
    for example, view in views:
        text = renderer().codec.decode(list(view.hint_ids))
        assert "<system-reminder>" in text and "Reminder" in text
        assert view.context and 0 < view.context.kept - view.at < 8  # what closes the result above
        assert example.student_ids(view)[view.span[0] :] == view.target_ids


def test_the_same_seed_and_step_give_the_same_step(world: TaskSource, live_step: LiveStep) -> None:
    assert played(world) == live_step
    other_step = played(world, step=1)
    assert {r.task_id for r in other_step.rollouts}.isdisjoint(
        r.task_id for r in live_step.rollouts
    )


def test_weights_decide_what_is_made(world: TaskSource) -> None:
    hint_only = played(world, train={"policy": {"weight": 0.0}})
    assert all(e.hints and not e.actions for e in hint_only.examples)
    policy_only = played(world, train={"hint": {"weight": 0.0}})
    assert all(e.actions and not e.hints for e in policy_only.examples) and policy_only.examples
    assert "sites/used" not in policy_only.metrics and policy_only.metrics["sites/found"] > 0


def test_more_sites_than_asked_for_are_drawn_from_and_counted(
    world: TaskSource, live_step: LiveStep
) -> None:
    few_sites = played(world, hint_sites=3)
    chosen = {v.site_id for e in few_sites.examples for v in e.hints}
    assert len(chosen) == 3 == few_sites.metrics["sites/used"]
    assert few_sites.metrics["sites/not_drawn"] == live_step.metrics["sites/used"] - 3 > 0
    site_ids = [v.site_id for e in live_step.examples for v in e.hints]
    assert chosen < set(site_ids) and chosen != set(site_ids[:3])


def test_the_hints_of_one_message_are_drawn_together() -> None:
    """One message is one view: drawn separately, its other mistake would lose its hint. The draws
    of a seed must not change: a resumed run repeats them."""
    sites = {
        s.id: s
        for turn in (1, 3, 5, 7)
        for name in "ab"
        for s in [
            Site(
                session_id="s",
                turn=turn,
                kind="k",
                detector="d",
                evidence=(9,),
                call_id=f"{name}{turn}",
            )
        ]
    }
    hints = tuple(Hint(site_id=name, text="h", writer="w", kind="k") for name in sites)
    written = HintedRollouts(sites=sites, hints=hints, metrics={})
    messages = {message[0].site_id: message for message in written.messages(hints)}
    assert all(len({sites[hint.site_id].turn for hint in m}) == 1 for m in messages.values())
    assert [len(message) for message in messages.values()] == [2, 2, 2, 2]
    for step, turns in enumerate([(3, 5), (1, 7), (1, 3), (1, 7)]):
        lots = {name: stage_seed(7, f"live:site:{step}:{name}") for name in messages}
        chosen = draw_messages(tuple(messages), limit=2, seed_of=lots.__getitem__)
        assert chosen == {f"s:{turn}:a{turn}" for turn in turns}
    assert draw_messages(tuple(messages), limit=None, seed_of=lots.__getitem__) == set(messages)


def test_hints_of_kinds_that_the_audit_did_not_keep_are_not_given(
    world: TaskSource, live_step: LiveStep
) -> None:
    kinds = [v.kind for e in live_step.examples for v in e.hints]
    assert len(set(kinds)) == 2 and live_step.metrics["sites/weak"] == 0
    for kind in sorted(set(kinds)):
        gated = played(world, strong_kinds=frozenset({kind}))
        assert {v.kind for e in gated.examples for v in e.hints} == {kind}
        assert gated.metrics["sites/weak"] == len(kinds) - kinds.count(kind) and gated.metrics[
            "sites/used"
        ] == kinds.count(kind)
        assert gated.metrics["sites/found"] == live_step.metrics["sites/found"]


def test_a_player_without_mistakes_leaves_nothing_to_train_on(world: TaskSource) -> None:
    live_step = played(world, sample=perfect_sample)
    assert live_step.examples == () and live_step.num_rollouts == 12
    assert (
        live_step.metrics["rollouts/success"] == 1.0
        and live_step.metrics["rollouts/flat"] == 1.0
        and live_step.metrics["rollouts/all_failed_groups"] == 0
    )
    assert (
        live_step.metrics["rollouts/unresolvable"] == 0
        and live_step.metrics["rollouts/valid_calls"] == 1.0
    )
    assert live_step.metrics["family/C"] == 0 and live_step.metrics["sites/found"] == 0


def test_ids_that_were_not_sampled_are_an_error(live_step: LiveStep) -> None:
    rollout = next(r for r in live_step.rollouts if len(r.ids) > 200)
    changed = dataclasses.replace(
        rollout, ids=(*rollout.ids[:199], rollout.ids[199] + 1, *rollout.ids[200:])
    )
    with pytest.raises(AlignmentError, match="from token 199 on"):
        check_rendered_ids(
            dataclasses.replace(live_step.examples[0], ids=rollout.ids, hints=(), actions=()),
            changed,
        )
    last = rollout.ids[-1]
    with pytest.raises(AlignmentError, match="are not those of the sampled message"):
        rollout_example(
            dataclasses.replace(rollout, ids=(*rollout.ids[:-1], last + 1)), advantage=0.5, views=()
        )


def test_what_does_not_fit_into_a_forward_is_refused_or_counted(world: TaskSource) -> None:
    with pytest.raises(
        ConfigError, match=r"needs 1024 tokens in one forward, train.micro_tokens is 1000"
    ):
        make_live(world, live_config(train={"micro_tokens": 1000}))
    full_step = played(world)
    longest = max(v.span[1] + len(v.hint_ids) for e in full_step.examples for v in e.hints)
    tight = played(world, train={"micro_tokens": longest - 1}, max_context_tokens=64)
    assert (
        tight.metrics["sites/not_built"] >= 1
        and tight.metrics["sites/used"] + tight.metrics["sites/not_built"]
        == full_step.metrics["sites/used"]
    )


# ---- tasks ----


def test_only_training_tasks_are_played(world: TaskSource) -> None:
    live_step = played(world, groups=12)
    assert all(r.task_id.startswith("workshop-train-") for r in live_step.rollouts)
    monitor = [make().task_id for make in world.monitor(3, 10)]
    assert all(name.startswith("workshop-monitor-") for name in monitor) and len(set(monitor)) == 10


@pytest.mark.parametrize("split", ["heldout", "monitor", "words"])
def test_a_held_out_task_is_refused(split: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tasks_module, "make_task", lambda seed, **options: make_task(seed, split=wanted)
    )
    wanted = split
    with pytest.raises(DataError, match="a held-out task reached training"):
        next(training_tasks(1))
    leaked_task = dataclasses.replace(make_task(1, split="heldout"), split="train")
    with pytest.raises(DataError, match="tool set is held out"):
        check_trainable(leaked_task)


def test_an_environment_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="no environment 'moon'"):
        open_world("moon")


# ---- numbers ----


def test_unresolvable_calls_are_counted_from_the_sessions(live_step: LiveStep) -> None:
    rollout = live_step.rollouts[0]
    assert num_unresolvable(rollout) == 0
    messages = {
        "File does not exist.": 1,
        "String to replace not found in file.\nString: x": 1,
        "Found 2 matches of the string to replace, but only one can be replaced.": 1,
        "Error: No such tool available: cat": 0,
        "File has not been read yet. Read it first before writing to it.": 0,
    }
    for message, counted in messages.items():
        text = f"<tool_use_error>{message}</tool_use_error>"
        assert num_unresolvable(with_error(rollout, text)) == counted, text
    assert (
        num_unresolvable(
            with_error(
                rollout,
                "InputValidationError: malformed tool call: not JSON",
                tool="malformed_call",
            )
        )
        == 1
    )


def with_error(rollout: Rollout, text: str, *, tool: str = "") -> Rollout:
    """The rollout with the result of its last call turned into this error."""
    turns = list(rollout.session.turns)
    at = max(i for i, turn in enumerate(turns) if turn.results)
    (result,) = turns[at].results
    turns[at] = dataclasses.replace(
        turns[at], blocks=(dataclasses.replace(result, text=text, is_error=True),)
    )
    if tool:
        made_at = next(
            i for i, turn in enumerate(turns) if any(c.id == result.call_id for c in turn.calls)
        )
        (call,) = turns[made_at].calls
        turns[made_at] = dataclasses.replace(
            turns[made_at], blocks=(dataclasses.replace(call, name=tool),)
        )
    return dataclasses.replace(
        rollout, session=dataclasses.replace(rollout.session, turns=tuple(turns))
    )


def test_rates_are_over_all_calls_of_the_rollouts(live_step: LiveStep) -> None:
    calls = sum(len(turn.calls) for s in live_step.sessions for turn in s.turns)
    facts = behaviour_metrics(live_step.rollouts, families=METADATA.families)
    assert (
        facts["rollouts/valid_calls"]
        == sum(r.measures["valid_calls"] for r in live_step.rollouts) / calls
    )
    assert 0 < facts["rollouts/changing_calls"] < 0.5
    logprobs = [
        p for s in live_step.sessions for t in s.turns if t.sampled for p in t.sampled.logprobs
    ]
    assert facts["rollouts/entropy"] == pytest.approx(-sum(logprobs) / len(logprobs))
    assert "rollouts/valid_calls" not in behaviour_metrics(
        [dataclasses.replace(r, measures={}) for r in live_step.rollouts]
    )
    assert "rollouts/hack_attempts" not in facts
    tried = [dataclasses.replace(r, measures={"hack_attempts": 2.0}) for r in live_step.rollouts]
    assert behaviour_metrics(tried)["rollouts/hack_attempts"] == 2.0
    last = live_step.sessions[-1]
    cheating = dataclasses.replace(last, events=(Event(kind=HACK_ATTEMPT, turn=1, text="x"),))
    rollouts = [
        *live_step.rollouts[:-1],
        dataclasses.replace(live_step.rollouts[-1], session=cheating),
    ]
    tried_step = dataclasses.replace(live_step, rollouts=tuple(rollouts))
    picked = pick_sessions(tried_step, group_size=4, count=2)
    assert picked == [cheating, live_step.sessions[0]] and has_hack_attempts(cheating)
    assert facts["family/A"] == sum(r.measures["A_made"] for r in live_step.rollouts) / sum(
        r.measures["A_open"] for r in live_step.rollouts
    )


def test_samples_are_one_episode_of_each_group(live_step: LiveStep) -> None:
    assert [s.id for s in pick_sessions(live_step, group_size=4, count=2)] == [
        live_step.sessions[0].id,
        live_step.sessions[4].id,
    ]


# ---- placebos of the producer ----


def test_the_hint_placebo_gives_other_hints_at_the_same_sites(world: TaskSource) -> None:
    true, false = (
        played(world, groups=6),
        played(world, groups=6, train={"placebo": ("shuffled_hints",)}),
    )
    views = {
        name: {v.site_id: v for e in step.examples for v in e.hints}
        for name, step in (("true", true), ("false", false))
    }
    assert len(views["false"]) + false.metrics["sites/no_donor"] == len(views["true"])
    for site_id, view in views["false"].items():
        true_view = views["true"][site_id]
        assert (view.at, view.span, view.target_ids, view.kind) == (
            true_view.at,
            true_view.span,
            true_view.target_ids,
            true_view.kind,
        )
        assert view.hint_ids != true_view.hint_ids
    assert {v.hint_ids for v in views["false"].values()} <= {
        v.hint_ids for v in views["true"].values()
    }
    assert [e.actions for e in false.examples if e.actions] == [
        e.actions for e in true.examples if e.actions
    ]


def test_the_neutral_hint_is_as_long_and_says_nothing(world: TaskSource) -> None:
    true, false = played(world), played(world, train={"placebo": ("neutral_hints",)})
    true_hints = {v.site_id: v for e in true.examples for v in e.hints}
    views = [v for e in false.examples for v in e.hints]
    assert len(views) == len(true_hints)
    for view in views:
        assert abs(len(view.hint_ids) - len(true_hints[view.site_id].hint_ids)) <= 1
        assert "Please go on" in renderer().codec.decode(list(view.hint_ids))


@pytest.mark.parametrize("placebo", ["permuted_rewards", "random_rewards"])
def test_the_reward_placebo_decides_advantages_and_flatness(
    world: TaskSource, placebo: str
) -> None:
    true, false = played(world, groups=8), played(world, groups=8, train={"placebo": (placebo,)})
    # the reported reward is the true one
    assert false.metrics["rollouts/success"] == true.metrics["rollouts/success"]

    def signs(live_step: LiveStep) -> dict[str, float]:
        return {e.id: e.actions[0].advantage for e in live_step.examples if e.actions}

    assert signs(true) != signs(false)
    assert false.metrics["rollouts/flat"] == 1 - len(signs(false)) / 32
    advantage = signs(false)
    for start in range(0, 32, 4):
        inside = [advantage.get(r.session.id) for r in false.rollouts[start : start + 4]]
        assert inside == [None] * 4 or sum(a or 0.0 for a in inside) == pytest.approx(0.0)


def test_true_rewards_are_those_of_the_groups(world: TaskSource) -> None:
    makers = world.train(5)
    groups = sample_groups(
        makers,
        num_groups=6,
        size=4,
        sample=lambda envs, label: careless_sample(
            None,
            envs,
            renderer=renderer(),
            settings=make_live(world).sampling(),
            author="s",
            label=label,
        ),
    )
    advantages_found = group_advantages(groups, placebos=(), seed=1)
    assert advantages_found == {
        r.session.id: a
        for g in groups.groups
        for r, a in zip(g.rollouts, g.advantages, strict=True)
    }
    permuted = group_advantages(groups, placebos=("permuted_rewards",), seed=1)
    assert (
        permuted
        == group_advantages(groups, placebos=("permuted_rewards",), seed=1)
        != advantages_found
    )
