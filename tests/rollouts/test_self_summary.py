"""Episodes that go on behind the student's own summary: what it reads, what is trained, and that
the whole counts as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from composer_replication.core.config.rollout_settings import RepoSettings, RolloutSettings
from composer_replication.core.config.train_settings import PolicySettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.trace import Text, ToolCall, Turn
from composer_replication.models.forward import final_hidden, project, scoring
from composer_replication.rollouts.behaviours import BEHAVIOURS
from composer_replication.rollouts.episode import Rollout, episode_name
from composer_replication.rollouts.episode_sessions import episode_sessions, join_conversations
from composer_replication.rollouts.groups import Group, Groups, sample_groups
from composer_replication.rollouts.penalty import effort
from composer_replication.rollouts.ragged import RaggedCache
from composer_replication.rollouts.sampler import sample_rollouts
from composer_replication.rollouts.sampling import EpisodeLimits, Sampling
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.rollouts.self_summary import summary_request, summary_turns
from composer_replication.training.on_policy.live import group_advantages, rollout_example
from composer_replication.training.on_policy.rewards import (
    sampled_example,
    shaped_rewards,
    shaping_terms,
)
from composer_replication.training.on_policy.rollout_metrics import rollout_metrics
from tests.rollouts.small_world import Parrot, Shelf, message_ids, talks, tiny
from tests.tokens.students import CASES, renderer

QWEN = renderer("qwen3", "qwen3")


def say(text: str, *names: str) -> Turn:
    calls = (ToolCall(f"x{i}", name, {}) for i, name in enumerate(names))
    return Turn(role="assistant", author="m", blocks=(*((Text(text),) if text else ()), *calls))


def played(
    messages: list[Turn],
    *,
    env: Any = None,
    compact_tokens: int = 1,
    max_context_tokens: int = 4000,
    stats: SamplingStats | None = None,
    render: Any = QWEN,
) -> list[Rollout]:
    """An episode whose every result brings the context to the limit, with the default."""
    model = Parrot(len(render.tokenizer), [message_ids(render, m) for m in messages])
    return sample_rollouts(
        model,
        [env or Shelf()],
        renderer=render,
        settings=Sampling(
            max_new_tokens=200,
            max_context_tokens=max_context_tokens,
            limits=EpisodeLimits(compact_tokens=compact_tokens),
        ),
        author="tiny",
        stats=stats,
    )


CHAIN = [
    say("", "Count"),
    say("There are 2 files. Next, I will count again."),
    say("", "Count"),
    say("Counted twice."),
    say("depth is 3"),
]


@pytest.mark.parametrize(("family", "fixture"), [case for case in CASES if case[0] != "gpt-oss"])
def test_each_segment_is_task_and_summary_and_its_ids_are_exact(family: str, fixture: str) -> None:
    render = renderer(family, fixture)
    env = Shelf()
    rollouts = played(CHAIN, env=env, render=render)
    assert [r.session.id for r in rollouts] == ["shelf:0", "shelf:0.1", "shelf:0.2"]
    assert {episode_name(r) for r in rollouts} == {"shelf:0"} and {r.ended for r in rollouts} == {
        "done"
    }
    assert [r.reward for r in rollouts] == [1.0, 1.0, 1.0]
    assert len(env.heard) == 3  # two calls and the end: a summary is not the environment's
    words = [[t.text for t in r.session.turns if t.role == "user"] for r in rollouts]
    task, request = "What is depth? (shelf)", summary_request().text
    first, second = ("There are 2 files. Next, I will count again.", "Counted twice.")
    begin = "Your summary of the work so far:\n\n"
    assert words == [[task, request], [task, begin + first, request], [task, begin + second]]
    for rollout in rollouts:
        session = rollout.session
        rendered = render.render(session.turns, tools=session.tools)
        assert rendered.ids[: len(rollout.ids)] == rollout.ids
        for turn, span in zip(session.turns, rendered.spans, strict=True):
            if turn.sampled is not None:
                a, b = turn.context_tokens, turn.context_tokens + len(turn.sampled.ids)
                assert rollout.ids[a:b] == turn.sampled.ids and span.body[0] == a
    written = [t.sampled.ids for r in rollouts for t in r.session.turns if t.sampled]
    assert [list(ids) for ids in written] == [message_ids(render, m) for m in CHAIN]
    assert [r.session.copied for r in rollouts] == [0, 3, 3]
    assert [sorted(summary_turns(r.session)) for r in rollouts] == [[5], [6], []]
    assert [bool(r.session.parent) for r in rollouts] == [False, True, True]


def test_log_probs_behind_a_summary_are_those_of_a_plain_forward() -> None:
    """Rows of a batch are summarised at different times: what a row forgot is not read again."""
    model = tiny(len(QWEN.tokenizer), arch="qwen3")
    stats = SamplingStats()

    def sample(envs: list[Any], compact_tokens: int) -> list[Rollout]:
        settings = Sampling(
            max_new_tokens=12,
            max_context_tokens=4096,
            seed=3,
            limits=EpisodeLimits(compact_tokens=compact_tokens),
        )
        return sample_rollouts(
            model, envs, renderer=QWEN, settings=settings, author="tiny", stats=stats
        )

    rollouts = sample(talks((4, 1, 5, 3)), 300)
    chains = {name: 0 for name in map(episode_name, rollouts)}
    assert len(chains) == 4 == stats.num_episodes
    for rollout in rollouts:
        chains[episode_name(rollout)] += 1
        with scoring(model):
            logp_TV = project(
                model, final_hidden(model, torch.tensor([rollout.ids]))[0]
            ).log_softmax(-1)
        for turn in rollout.session.turns:
            if turn.sampled is not None:
                a, b = turn.context_tokens, turn.context_tokens + len(turn.sampled.ids)
                expected = logp_TV[range(a - 1, b - 1), list(turn.sampled.ids)]
                assert torch.allclose(torch.tensor(turn.sampled.logprobs), expected, atol=1e-4)
    assert len(set(chains.values())) > 1 and max(chains.values()) > 1
    alone = [r for env in talks((4, 1, 5, 3)) for r in sample([env], 300)]
    assert [r.ids for r in alone] == [r.ids for r in rollouts]


def test_a_row_that_is_cut_reads_its_beginning_alone() -> None:
    model = tiny(len(QWEN.tokenizer), arch="qwen3")
    with scoring(model):
        cache = RaggedCache(model, num_rows=2)
        cache.feed([[5, 6, 7, 8], [9, 10]])
        cache.cut(0, 2)
        assert cache.lengths == [2, 2]
        behind_BV = cache.feed([[11], [12]])
        plain_BV = torch.stack(
            [
                project(model, final_hidden(model, torch.tensor([ids]))[0])[-1]
                for ids in ([5, 6, 11], [9, 10, 12])
            ]
        )
    assert torch.allclose(behind_BV, plain_BV.float(), atol=1e-4)


def test_no_summary_below_the_number_and_none_before_the_last_message() -> None:
    (whole,) = played([say("", "Count"), say("depth is 3")], compact_tokens=3000)
    (also,) = played([say("", "Count"), say("depth is 3")], compact_tokens=0)
    assert whole == also and whole.episode == ""
    (last,) = played([say("", "Count"), say("depth is 3")], env=Shelf(max_turns=2))
    assert last.reward == 1.0 and not summary_turns(last.session)


def test_a_summary_that_leaves_no_room_ends_the_episode() -> None:
    """The result fits, the request behind it does not; nothing is asked of a full context."""
    (plain,) = played([say("", "Count"), say("depth is 3")], compact_tokens=0)
    room = plain.session.turns[-1].context_tokens + 1
    (full,) = played([say("", "Count")], max_context_tokens=room)
    assert full.ended == "max_context" and full.reward == 0.0
    assert full.ids == plain.ids[: len(full.ids)]


def test_calls_of_a_summary_are_not_carried_out() -> None:
    env = Shelf()
    rollouts = played([say("", "Count"), say("I count:", "Count"), say("depth is 3")], env=env)
    assert len(rollouts) == 2 and len(env.heard) == 2
    assert rollouts[1].session.turns[2].text.endswith("\n\nI count:")
    empty = played([say("", "Count"), say("", "Count"), say("depth is 3")])
    assert empty[1].session.turns[2].text.endswith("\n\n(no words)")


def test_every_sampled_token_of_a_chain_is_trained_on_once_with_one_advantage() -> None:
    right = played(CHAIN)
    wrong = [
        replace(
            r,
            session=replace(r.session, id=r.session.id.replace(":0", ":1"), outcome=0.0),
            episode="shelf:1",
        )
        for r in played([*CHAIN[:4], say("depth is 4")])
    ]
    groups = Groups(groups=(Group("shelf", (*right, *wrong)),), flat=(), num_extra=0)
    advantage_of = group_advantages(groups, placebos=(), seed=0)
    assert advantage_of == {r.session.id: 0.5 for r in right} | {r.session.id: -0.5 for r in wrong}
    examples = [
        rollout_example(r, advantage=advantage_of[r.session.id], views=()) for r in groups.rollouts
    ]
    trained = [e.ids[a.span[0] : a.span[1]] for e in examples[:3] for a in e.actions]
    assert [list(ids) for ids in trained] == [message_ids(QWEN, m) for m in CHAIN]
    spans = [len(sampled_example(r).lm_spans) for r in right]
    assert spans == [2, 2, 1]
    metrics = rollout_metrics(groups, advantage_of)
    assert metrics["rollouts/episodes"] == 2.0 and metrics["rollouts/success"] == 0.5
    assert metrics["rollouts/summaries"] == 2.0
    mean = sum(len(message_ids(QWEN, CHAIN[i])) for i in (1, 3)) / 2
    assert metrics["rollouts/summary_tokens"] == mean


def test_groups_are_of_episodes() -> None:
    def sample(envs: Any, *, label: str) -> list[Rollout]:
        return [
            replace(
                r,
                session=replace(r.session, id=f"{number}.{r.session.id}"),
                episode=f"{label}{number}",
            )
            for number, env in enumerate(envs)
            for r in played(CHAIN, env=env)
        ]

    groups = sample_groups([Shelf, Shelf], num_groups=2, size=2, sample=sample)
    assert [len(group.rewards) for group in groups.flat] == [2, 2]


def test_penalties_are_those_of_the_whole_chain() -> None:
    """A call behind a summary costs what it costs before it, and the concave penalty is that of the
    sum; what a segment repeats is not counted again."""
    rollouts = played([say("", "Nope"), say("So far."), say("", "Nope"), say("More."), CHAIN[-1]])
    (session,) = episode_sessions(rollouts).values()
    count = QWEN.codec.count
    parts = [effort(replace(r.session, copied=0), count=count) for r in rollouts]
    whole = effort(session, count=count)
    assert whole.calls == 2 and whole.turns == 5
    assert whole.message == sum(part.message for part in parts)
    settings = PolicySettings.model_validate(
        {"length": {"weight": 0.01}, "behaviours": {"invalid_calls": 0.1}, "kl": 0.5}
    )
    kl = {r.session.id: float(number) for number, r in enumerate(rollouts)}
    terms_of = shaping_terms(rollouts, settings, count=count, kl=kl)
    assert list(terms_of) == ["shelf:0"]
    assert terms_of["shelf:0"]["invalid_calls"] == pytest.approx(-0.2)
    assert terms_of["shelf:0"]["kl"] == pytest.approx(-1.5)
    rewards_of = shaped_rewards(rollouts, terms_of)
    assert rewards_of == {"shelf:0": pytest.approx(1.0 + sum(terms_of["shelf:0"].values()))}


def test_a_summary_may_say_what_comes_next() -> None:
    rollouts = played(CHAIN)
    assert BEHAVIOURS["broken_promises"](join_conversations([r.session for r in rollouts])) == 0.0
    promising = played([*CHAIN[:4], say("Let me look at it.")])
    assert BEHAVIOURS["broken_promises"](join_conversations([r.session for r in promising])) == -1.0


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="no room for a summary"):
        RolloutSettings(env="repo", max_context_tokens=1000, repo=RepoSettings(compact_tokens=1000))
    with pytest.raises(ValueError, match="compacts its context by itself"):
        RolloutSettings(
            env="repo",
            player="codex",
            max_context_tokens=9000,
            repo=RepoSettings(compact_tokens=1000),
        )
    settings = RolloutSettings(
        env="repo", max_context_tokens=9000, repo=RepoSettings(compact_tokens=8000)
    )
    assert Sampling.of(settings, seed=1).limits.compact_tokens == 8000
    with pytest.raises(ConfigError, match="compact_tokens must be at least 0"):
        EpisodeLimits(compact_tokens=-1)
