"""Episodes token by token: the record holds exactly the ids that the model read and wrote, with its
log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from composer_replication.core.errors import AlignmentError, ConfigError, RenderError
from composer_replication.core.trace import Text, Thinking, ToolCall, Turn
from composer_replication.models.forward import final_hidden, project, scoring
from composer_replication.rollouts import episode as episode_module
from composer_replication.rollouts.chat_format import CUT, MALFORMED
from composer_replication.rollouts.envs.env import Reply
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.sampler import Sampling, sample_rollouts
from composer_replication.rollouts.sampling import EpisodeLimits
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.tokens.layout import shared_prefix_length
from composer_replication.tokens.renderer import Renderer
from tests.rollouts.small_world import Parrot, Shelf, message_ids, parroted, talks, tiny
from tests.tokens.students import CASES, renderer

QWEN = renderer("qwen3", "qwen3")
every_template = pytest.mark.parametrize(("family", "fixture"), CASES)


def sample(
    model: Any, envs: Sequence[Any], *, render: Renderer = QWEN, label: str = "", **settings: Any
) -> list[Rollout]:
    options: dict[str, Any] = {"max_new_tokens": 12, "max_context_tokens": 4096, **settings}
    return sample_rollouts(
        model, envs, renderer=render, settings=Sampling(**options), author="tiny", label=label
    )


def model_for(render: Renderer, **more: Any) -> Any:
    return tiny(
        len(render.tokenizer),
        arch="llama" if render.family is not None and render.family.name == "llama3" else "qwen3",
        **more,
    )


def sampled_turns(rollout: Rollout) -> list[Turn]:
    return [turn for turn in rollout.session.turns if turn.role == "assistant"]


def written(rollout: Rollout) -> list[tuple[int, ...]]:
    return [turn.sampled.ids for turn in sampled_turns(rollout) if turn.sampled]


def say(text: str, *calls: tuple[str, dict[str, Any]]) -> Turn:
    blocks = (
        *((Text(text),) if text else ()),
        *(ToolCall(f"x{i}", *call) for i, call in enumerate(calls)),
    )
    return Turn(role="assistant", author="m", blocks=blocks)


@every_template
def test_log_probs_are_those_of_a_plain_forward_of_the_final_ids(family: str, fixture: str) -> None:
    render = renderer(family, fixture)
    model = model_for(render)
    rollouts = sample(model, talks((1, 4, 2, 3)), render=render, seed=3)
    # what a random model writes is no harmony message, so there every episode lasts as long as it
    # may
    if family != "gpt-oss":
        # rows leave the batch at different turns
        assert len({len(sampled_turns(r)) for r in rollouts}) >= 3
    for rollout in rollouts:
        with scoring(model):
            logp_TV = project(
                model, final_hidden(model, torch.tensor([rollout.ids]))[0]
            ).log_softmax(-1)
        spans = render.render(rollout.session.turns, tools=rollout.session.tools).spans
        for turn, span in zip(rollout.session.turns, spans, strict=True):
            if turn.sampled is not None:
                a, b = span.body
                assert rollout.ids[a:b] == turn.sampled.ids and turn.context_tokens == a
                expected = logp_TV[range(a - 1, b - 1), list(turn.sampled.ids)]
                assert torch.allclose(torch.tensor(turn.sampled.logprobs), expected, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_gives_what_single_runs_give(temperature: float) -> None:
    model = model_for(QWEN)
    together = sample(model, talks(), temperature=temperature)
    pairs = sample(model, talks(), temperature=temperature, batch_episodes=2)
    alone = [sample(model, [env], temperature=temperature)[0] for env in talks()]
    assert [r.ids for r in together] == [r.ids for r in pairs] == [r.ids for r in alone]
    assert [r.session.turns[-1] for r in together] == [r.session.turns[-1] for r in pairs]


def test_the_same_seed_gives_the_same_rollouts_bit_for_bit_and_another_does_not() -> None:
    model = model_for(QWEN)
    first, again, other_seed = (
        sample(model, talks(), seed=1),
        sample(model, talks(), seed=1),
        sample(model, talks(), seed=2),
    )
    assert first == again
    assert [r.ids for r in first] != [r.ids for r in other_seed]
    assert [r.ids for r in first] != [
        r.ids for r in sample(model, talks(), seed=1, label="step-2:")
    ]


def test_episodes_of_one_task_differ_at_temperature_one_and_not_at_zero() -> None:
    model = model_for(QWEN)
    env = [talks((2,))[0] for _ in range(3)]
    warm = sample(model, env)
    assert [r.session.id for r in warm] == ["talk-0:0", "talk-0:1", "talk-0:2"]
    assert len({r.ids for r in warm}) == 3
    assert (
        len({r.ids for r in sample(model, [talks((2,))[0] for _ in range(3)], temperature=0.0)})
        == 1
    )


def test_greedy_takes_the_best_token_each_time() -> None:
    model = model_for(QWEN)
    (rollout,) = sample(model, talks((2,)), temperature=0.0)
    with scoring(model):
        best_T = (
            project(model, final_hidden(model, torch.tensor([rollout.ids]))[0]).argmax(-1).tolist()
        )
    start = sampled_turns(rollout)[0].context_tokens
    assert list(written(rollout)[0]) == best_T[start - 1 : start - 1 + len(written(rollout)[0])]


# the template's text behind a message with calls, by the beginning of the family's name
BEHIND = {
    "llama3": "<|start_header_id|>", "glm": "\n<tool_response>", "mistral": "[TOOL_RESULTS]",
    "gemma": "\n<start_of_turn>user",
    "gpt": "<|start|>functions.Read to=assistant",
    "deepseek": "<｜tool▁outputs▁begin｜>",
}  # fmt: skip


@every_template
def test_the_end_token_is_sampled_and_what_the_template_writes_behind_it_is_not(
    family: str, fixture: str
) -> None:
    render = renderer(family, fixture)
    call = say("Look.", ("Read", {"path": "a.py"}))
    rollout = parroted(render, [call, say("depth is 3")])
    call_end_id, end_id = message_ids(render, call)[-1], message_ids(render, say("x"))[-1]
    assert rollout.ended == "done" and rollout.reward == 1.0 and rollout.num_cut == 0
    assert [ids[-1] for ids in written(rollout)] == [call_end_id, end_id]
    assert rollout.ids[-1] == end_id
    first = len(rollout.session.turns[2].sampled.ids) + rollout.session.turns[2].context_tokens
    behind = render.codec.decode(rollout.ids[first : first + 24])
    assert behind.startswith(BEHIND.get(family.split("-")[0], "\n<|im_start|>"))
    assert [t.role for t in rollout.session.turns] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert rollout.session.turns[2].calls[0].arguments == {"path": "a.py"}
    assert rollout.session.turns[3].results[0].text == "depth = 3\n"


@every_template
def test_a_message_is_ended_by_force_and_marked(family: str, fixture: str) -> None:
    render = renderer(family, fixture)
    end_id = message_ids(render, say("x"))[-1]
    ids = say("one two three four five six")
    limit = len(message_ids(render, ids)) - 2
    rollout = parroted(render, [ids], max_new_tokens=limit)
    (turn,) = sampled_turns(rollout)
    assert turn.tag == CUT and len(turn.sampled.ids) == limit and turn.sampled.ids[-1] != end_id
    assert rollout.num_cut == 1
    call = say("Look.", ("Read", {"path": "a.py"}))
    length = len(message_ids(render, call))
    rollout = parroted(render, [call, say("depth is 3")], max_new_tokens=length)
    assert rollout.num_cut == 0  # an end token in the last place is an end
    cut = message_ids(render, call)[: length - 1]
    model = Parrot(len(render.tokenizer), [cut, message_ids(render, say("ok"))])
    (rollout,) = sample(model, [Shelf()], render=render, max_new_tokens=length - 1)
    assert rollout.num_cut == 1 and len(sampled_turns(rollout)) == 2
    at = sampled_turns(rollout)[0].context_tokens + length - 1
    assert rollout.ids[at] == message_ids(render, call)[-1]  # written by the template, not sampled


def test_a_message_of_an_end_token_alone_is_a_message() -> None:
    for family, fixture in CASES:
        rollout = parroted(renderer(family, fixture), [""])
        assert (
            len(written(rollout)[0]) == 1
            and rollout.ended == "done"
            and sampled_turns(rollout)[0].blocks == ()
        )


def test_another_end_token_of_the_tokenizer_ends_a_message_too() -> None:
    render = renderer("llama3", "llama3_1")
    other_end = render.codec.control["<|end_of_text|>"]
    model = Parrot(
        len(render.tokenizer),
        [
            [*message_ids(render, say("", ("Count", {})))[:-1], other_end],
            message_ids(render, say("ok")),
        ],
    )
    model.generation_config = SimpleNamespace(eos_token_id=[other_end])
    (rollout,) = sample(model, [Shelf()], render=render, max_new_tokens=64)
    assert written(rollout)[0][-1] == other_end and rollout.num_cut == 0
    assert rollout.session.turns[3].results[0].text == "2"


MALFORMED_TEXTS = [
    ("qwen3", "qwen3", '<tool_call>\n{"name": "Read", "arguments": {"path": \n</tool_call>'),
    ("qwen2.5", "qwen2_5", '<tool_call>\n{"name": "Read"}\n</tool_call>'),
    ("llama3", "llama3_1", '{"name": "Read", "parameters": {"path": }}'),
]


@pytest.mark.parametrize(("family", "fixture", "text"), MALFORMED_TEXTS)
def test_a_malformed_call_is_answered_with_an_error_that_the_model_reads(
    family: str, fixture: str, text: str
) -> None:
    render, env = renderer(family, fixture), Shelf()
    rollout = parroted(render, [text, say("depth is 3")], env=env)
    assert rollout.num_malformed == 1 and rollout.ended == "done" and rollout.reward == 1.0
    call = rollout.session.turns[2].calls[0]
    (result,) = rollout.session.turns[3].results
    assert call.name == MALFORMED and result.call_id == call.id and result.is_error
    assert result.text.startswith("InputValidationError: malformed tool call")
    assert "malformed tool call" in render.codec.decode(rollout.ids)
    # the environment received nothing else
    assert [turn.text for turn in env.heard] == ["depth is 3"]


def test_results_stand_in_the_order_of_the_calls_good_or_bad() -> None:
    good, bad = (
        '<tool_call>\n{"name": "Count", "arguments": {}}\n</tool_call>',
        "<tool_call>\n{oops}\n</tool_call>",
    )
    env = Shelf()
    rollout = parroted(QWEN, ["\n".join([bad, good, bad, good, bad]), say("ok")], env=env)
    calls = rollout.session.turns[2].calls
    results = [r for turn in rollout.session.turns[3:8] for r in turn.results]
    assert [c.id for c in calls] == [r.call_id for r in results]
    assert [r.is_error for r in results] == [True, False, True, False, True]
    assert [c.name for c in env.heard[0].calls] == ["Count", "Count"]


def test_a_cut_call_is_a_malformed_call() -> None:
    call = message_ids(QWEN, say("", ("Read", {"path": "a.py"})))
    model = Parrot(len(QWEN.tokenizer), [call[:-3], message_ids(QWEN, say("ok"))])
    (rollout,) = sample(model, [Shelf()], max_new_tokens=len(call) - 3)
    assert rollout.num_malformed == rollout.num_cut == 1
    assert f"cut off after {len(call) - 3} tokens" in rollout.session.turns[3].results[0].text


def test_an_unknown_tool_is_the_environments_business() -> None:
    rollout = parroted(QWEN, [say("", ("Reed", {"path": "a.py"})), say("ok")])
    assert rollout.num_malformed == 0
    assert rollout.session.turns[3].results[0].text == "No such tool available: Reed"


def test_an_episode_ends_at_its_last_message_or_where_there_is_no_room() -> None:
    look = say("", ("Count", {}))
    rollout = parroted(QWEN, [look, look], env=Shelf(max_turns=2))
    assert (
        rollout.ended == "max_turns"
        and rollout.session.events[0].kind == "max_turns"
        and rollout.reward == 0.0
    )
    assert rollout.session.turns[-1].role == "tool"  # the answer is kept, though nobody reads it
    malformed = parroted(QWEN, ["<tool_call></tool_call>"] * 3, env=Shelf(max_turns=3))
    assert malformed.ended == "max_turns" and malformed.num_malformed == 3
    bounded = parroted(
        QWEN, [look, look, look], env=Shelf(max_turns=2), limits=EpisodeLimits(max_turns=3)
    )
    # the environment's bound is checked beside the setting
    assert bounded.ended == "max_turns" and len(sampled_turns(bounded)) == 2
    (longer,) = sample(
        Parrot(len(QWEN.tokenizer), [message_ids(QWEN, look)] * 9),
        [Shelf(max_turns=9)],
        max_new_tokens=99,
    )
    room = longer.session.turns[6].context_tokens + 2
    (short,) = sample(
        Parrot(len(QWEN.tokenizer), [message_ids(QWEN, look)] * 9),
        [Shelf(max_turns=9)],
        max_new_tokens=99,
        max_context_tokens=room,
    )
    assert short.ended == "max_context" and short.session.events[0].kind == "max_context"
    assert (
        len(short.ids) == room
        and sampled_turns(short)[-1].tag == CUT
        and short.ids == longer.ids[:room]
    )
    with pytest.raises(ConfigError, match="the opening has"):
        sample(model_for(QWEN), [Shelf()], max_context_tokens=20)
    with pytest.raises(ConfigError, match="the student has positions for 4096"):
        sample(model_for(QWEN), [Shelf()], max_context_tokens=5000)


def test_a_conversation_that_renders_to_other_ids_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The turns that are recorded are not those that were read: the whole is rendered once more at
    the end, and compared."""
    finish = episode_module.Episode.finish

    def changed(self: episode_module.Episode, **kwargs: Any) -> Rollout:
        self.turns[1] = replace(self.turns[1], blocks=(Text("Another task."),))
        return finish(self, **kwargs)

    monkeypatch.setattr(episode_module.Episode, "finish", changed)
    env = Shelf()
    with pytest.raises(
        AlignmentError, match="renders to other ids than the student read and wrote, from token"
    ):
        parroted(QWEN, [say("", ("Count", {})), say("ok")], env=env)
    assert env.closed


def test_the_official_hybrid_template_rewrites_history_and_is_refused() -> None:
    """Qwen3's own template strips earlier think blocks: taken as it is, it cannot be sampled from
    token by token."""
    family = renderer("qwen3-thinking", "qwen3")
    official_renderer = Renderer(
        family.tokenizer, family=None, own_template=family.tokenizer.chat_template
    )
    think = message_ids(
        family,
        Turn(role="assistant", author="m", blocks=(Thinking("Hm."), ToolCall("c", "Count", {}))),
    )
    model = Parrot(len(family.tokenizer), [think, message_ids(family, say("ok"))])
    with pytest.raises(RenderError, match="rewrites what came earlier"):
        sample(model, [Shelf()], render=official_renderer, max_new_tokens=99)


def test_an_unknown_template_is_rendered_from_the_beginning_and_works() -> None:
    tokenizer = renderer("qwen2.5", "qwen2_5").tokenizer
    template = renderer("qwen2.5", "qwen2_5").template.replace(
        "You may call one or more", "You can call one or more"
    )
    render = Renderer(tokenizer, family=None, own_template=template)
    rollout = parroted(
        render,
        [say("Look.", ("Read", {"path": "a.py"})), say("", ("Count", {})), say("depth is 3")],
    )
    assert rollout.reward == 1.0 and len(written(rollout)) == 3
    assert "You can call one or more" in render.codec.decode(rollout.ids)


class Mute(Shelf):
    def reply(self, turn: Turn) -> Reply:
        return Reply(turns=(), done=False)


class Deaf(Shelf):
    def reply(self, turn: Turn) -> Reply:
        return Reply(turns=super().reply(turn).turns[:1], done=False)


def test_an_environment_that_leaves_a_call_unanswered_loses_its_episode_and_is_named() -> None:
    mute = parroted(QWEN, [say("Hello")], env=Mute())
    deaf = parroted(QWEN, [say("", ("Count", {}), ("Read", {"path": "a.py"}))], env=Deaf())
    assert mute.ended == deaf.ended == "env_error" and mute.reward == deaf.reward == 0.0
    assert (
        "neither answered nor ended" in mute.failure
        and "gave no result to 1 of 2 calls" in deaf.failure
    )
    assert (
        deaf.session.events[0].kind == "env_error" and deaf.session.events[0].text == deaf.failure
    )


def test_every_environment_is_closed_and_the_model_left_in_its_mode() -> None:
    envs, model = talks((1, 2)), model_for(QWEN)
    model.train()
    meter = SamplingStats()
    rollouts = sample_rollouts(
        model,
        envs,
        renderer=QWEN,
        settings=Sampling(max_new_tokens=5, max_context_tokens=999),
        author="a",
        stats=meter,
    )
    assert model.training and all(env.closed for env in envs)
    model.eval()
    assert (
        meter.num_episodes == meter.num_ended == 2
        and meter.num_turns == 3
        and meter.num_sampled == sum(len(i) for r in rollouts for i in written(r))
    )
    # every token once, the last of an episode never, and the tools for both episodes together
    shared = shared_prefix_length(*(r.ids for r in rollouts))
    assert shared > 100
    assert meter.num_fed == sum(len(r.ids) for r in rollouts) - len(rollouts) - shared
    parts = sum(meter.seconds[part] for part in ("model", "choose", "environment", "render"))
    assert 0 < parts < meter.seconds["total"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"max_new_tokens": 0},
        {"batch_episodes": 0},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Sampling(**wrong)


def test_a_result_that_would_fill_the_context_ends_the_episode() -> None:
    """The next prompt must leave room for at least one token: equal to the limit is too long."""
    text, (call,) = (
        "depth is 3",
        ('<tool_call>\n{"name": "Read", "arguments": {"path": "a.py"}}\n</tool_call>',),
    )
    full = parroted(QWEN, [call, text])
    last = full.session.turns[-1]
    assert last.sampled is not None
    room = last.context_tokens  # of the context that the last message was written in
    for limit, ended in ((room, "max_context"), (room + 1, "cut")):
        model = Parrot(len(QWEN.tokenizer), [message_ids(QWEN, m) for m in (call, text)])
        settings = Sampling(max_context_tokens=limit)
        (rollout,) = sample_rollouts(
            model, [Shelf()], renderer=QWEN, settings=settings, author="tiny"
        )
        assert (rollout.ended == "max_context") is (ended == "max_context"), (limit, rollout.ended)
