"""Chat completions: every sampled token is in the record, whatever the client does with it."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from composer_replication.core.trace import Session
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.sampler import sample_rollouts
from composer_replication.rollouts.sampling import Sampling
from composer_replication.serve.client_messages import StudentReply
from composer_replication.serve.recorded_sessions import (
    CHANGED,
    PURPOSE,
    UNDELIVERED,
    played_rollouts,
    played_sessions,
)
from composer_replication.serve.student_writers import LocalWriter
from tests.rollouts.small_world import TOOLS, Shelf, message_ids, parroted, tiny
from tests.serve.clients import QWEN, ChatClient, chat_tools, message, playing, scripted

READ = ("Read", {"path": "a.py"})


def ask_first(url: str, *, stream: bool = False) -> ChatClient:
    client = ChatClient(url, chat_tools(TOOLS), stream=stream)
    client.say("system", "You work on files.")
    client.say("user", "What is depth? (shelf)")
    return client


def play_shelf(client: ChatClient, env: Shelf) -> None:
    """Play until the student writes a message without a call, or has no room left."""
    while True:
        got = client.ask()
        calls = got.get("tool_calls")
        if not calls:
            return
        for call in calls:
            arguments = json.loads(call["function"]["arguments"])
            turn = env._result(call["id"], call["function"]["name"], arguments)
            client.result(call["id"], turn.results[0].text)


def sampled_ids(session: Session) -> list[tuple[int, ...]]:
    return [turn.sampled.ids for turn in session.turns if turn.sampled is not None]


@pytest.mark.parametrize("stream", [False, True])
def test_an_episode_is_the_same_as_the_samplers(stream: bool) -> None:
    """The same student in the same world, through the sampler and through the endpoint."""
    script = [message("I look.", READ, ("Count", {})), message("", READ), message("depth is 3")]
    writer = scripted(script)
    with playing(writer, name="shelf:0") as (record, url):
        play_shelf(ask_first(url, stream=stream), Shelf())
        (served,) = played_rollouts(record, reward=1.0)
    direct: Rollout = parroted(QWEN, script)
    assert served.ids == direct.ids and sampled_ids(served.session) == sampled_ids(direct.session)
    assert [t.role for t in served.session.turns] == [t.role for t in direct.session.turns]
    assert [t.text for t in served.session.turns] == [t.text for t in direct.session.turns]
    assert served.session.outcome == direct.session.outcome == 1.0
    assert [t.context_tokens for t in served.session.turns] == [
        t.context_tokens for t in direct.session.turns
    ]
    assert served.session.events == () and served.session.copied == 0


def test_a_model_samples_the_same_tokens_as_in_the_sampler() -> None:
    """The same seed: ids bit for bit, log-probs those of a re-scoring of the whole conversation."""
    model = tiny(len(QWEN.tokenizer))
    settings = Sampling(max_new_tokens=24, max_context_tokens=2048, seed=3)
    (direct,) = sample_rollouts(model, [Shelf()], renderer=QWEN, settings=settings, author="tiny")
    stop = frozenset([*QWEN.end_ids, QWEN.tokenizer.eos_token_id])
    writer = LocalWriter(model, settings=settings, stop=stop)
    with playing(writer, name="shelf:0", settings=settings) as (record, url):
        client = ask_first(url)
        for _ in range(3):
            client.ask()
            client.say("user", "go on")
        served, *others = played_rollouts(record)
    assert others == []
    first, *_ = sampled_ids(served.session)
    assert first == sampled_ids(direct.session)[0]
    assert len(sampled_ids(served.session)) >= 3
    check_logprobs(model, served)


def check_logprobs(model: Any, rollout: Rollout) -> None:
    """Every log-prob equals that of one forward over the rollout's ids, within 1e-4."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([rollout.ids])).logits[0].float().log_softmax(-1)
    for turn in rollout.session.turns:
        if turn.sampled is None:
            continue
        a = turn.context_tokens
        assert rollout.ids[a : a + len(turn.sampled.ids)] == turn.sampled.ids
        for offset, (token, logprob) in enumerate(
            zip(turn.sampled.ids, turn.sampled.logprobs, strict=True)
        ):
            assert abs(float(logits[a + offset - 1, token]) - logprob) < 1e-4


def test_what_a_client_rewrites_is_recorded_and_loses_no_token() -> None:
    """Defaults added, keys reordered, text dropped: the prompt keeps what was sampled."""
    with playing(scripted([message("I look.", READ), message("depth is 3")])) as (record, url):
        client = ask_first(url)
        got = client.ask()
        call = got["tool_calls"][0]
        call["function"]["arguments"] = '{"limit": 5, "path": "a.py"}'
        got["content"] = None
        client.result(call["id"], "depth = 3\n")
        client.ask()
        (rollout,) = played_rollouts(record)
    assert sampled_ids(rollout.session) == [
        tuple(message_ids(QWEN, m)) for m in (message("I look.", READ), message("depth is 3"))
    ]
    changes = {e.call_id: e.text for e in rollout.session.events if e.kind == CHANGED}
    assert changes == {None: "", call["id"]: 'Read {"limit": 5, "path": "a.py"}'}


def test_a_retry_after_a_dropped_connection_gets_the_same_answer() -> None:
    with playing(scripted([message("", READ), message("depth is 3")])) as (record, url):
        client = ask_first(url)
        fields = {"model": "student", "messages": client.messages, "tools": client.tools}
        body = json.dumps({**fields, "stream": True, "max_tokens": 99})
        host, path = url.removeprefix("http://").split("/", 1)
        gone = http.client.HTTPConnection(host)
        gone.request("POST", f"/{path}/v1/chat/completions", body)
        gone.close()  # before the answer
        first = client.ask()
        again = ChatClient(url, client.tools, messages=client.messages[:-1]).ask()
        assert again == first
        client.result(first["tool_calls"][0]["id"], "depth = 3\n")
        client.ask()
        (rollout,) = played_rollouts(record)
    assert len(sampled_ids(rollout.session)) == 2 and record.num_retries == 2
    assert rollout.session.events == ()


def test_a_retry_that_allows_more_tokens_gets_a_whole_message() -> None:
    with playing(scripted([message("depth is 3"), message("all of it")])) as (record, _):
        from composer_replication.serve.endpoint import read_request

        def answer(limit: int) -> StudentReply:
            asked = {"messages": [{"role": "user", "content": "x"}], "max_tokens": limit}
            reply = record.answer(read_request("chat", json.dumps(asked).encode(), {}))
            record.mark_delivered(reply.id)
            return reply

        first, again, more = answer(2), answer(2), answer(40)
        assert first.finish == "length" and again.id == first.id and answer(2).id == more.id
    assert more.finish == "stop" and more.message.text == "all of it"


def test_a_message_that_nobody_got_says_so() -> None:
    with playing(scripted([message("depth is 3")])) as (record, _):
        from composer_replication.serve.endpoint import read_request

        raw = json.dumps({"messages": [{"role": "user", "content": "x"}]}).encode()
        record.answer(read_request("chat", raw, {}))
        (session,) = played_sessions(record)
    assert [e.kind for e in session.events] == [UNDELIVERED]


def test_a_dropped_answer_is_a_leaf_and_the_conversation_goes_on_from_above_it() -> None:
    """mini-swe-agent removes an answer without a call and says what was wrong with it."""
    with playing(scripted([message("I think."), message("", READ)])) as (record, url):
        client = ask_first(url)
        client.ask()
        client.messages.pop()
        client.say("user", "Write a call.")
        client.ask()
        first, second = played_rollouts(record, reward=1.0)
    assert sampled_ids(first.session) == [tuple(message_ids(QWEN, message("I think.")))]
    assert sampled_ids(second.session) == [tuple(message_ids(QWEN, message("", READ)))]
    assert (first.session.copied, second.session.copied) == (0, 2)
    assert second.ids[:20] == first.ids[:20] and second.session.outcome == 1.0


def test_a_malformed_call_is_answered_here_and_stays_in_the_record() -> None:
    broken = [*QWEN.codec.one_go('<tool_call>\n{"name": "Read"\n</tool_call>'), QWEN.end_ids[0]]
    with playing(scripted([broken, message("", READ), message("depth is 3")])) as (record, url):
        play_shelf(ask_first(url), Shelf())
        (rollout,) = played_rollouts(record)
    direct = parroted(
        QWEN,
        ['<tool_call>\n{"name": "Read"\n</tool_call>', message("", READ), message("depth is 3")],
    )
    assert rollout.ids == direct.ids and rollout.num_malformed == direct.num_malformed == 1


def test_an_answer_counts_the_tokens_that_its_client_sees() -> None:
    """As if the messages that were answered here had never been."""
    broken = [*QWEN.codec.one_go('<tool_call>\n{"name": "Read"\n</tool_call>'), QWEN.end_ids[0]]
    right = [message("", READ), message("depth is 3")]
    counts: list[list[tuple[int, int]]] = []
    for script in ([broken, *right], right):
        with playing(scripted(script)) as (record, url):
            play_shelf(ask_first(url), Shelf())
            replies = [reply.sent for reply in record.replies]
            assert len(played_rollouts(record)[0].ids) > 0
        counts.append([(sent.prompt_tokens, sent.sampled_tokens) for sent in replies])
    assert counts[0] == counts[1] and len(counts[0]) == 2


@pytest.mark.parametrize("words", ["", "<think>\nI look.\n</think>\n\n", "I look.\n"])
def test_without_tools_a_call_is_text(words: str) -> None:
    call = '<tool_call>\n{"name": "list_files", "arguments": {}}\n</tool_call>'
    written = [*QWEN.codec.one_go(words + call), QWEN.end_ids[0]]
    with playing(scripted([written, message("Done.")])) as (record, url):
        client = ChatClient(url, [])
        client.say("user", "List the files.")
        got = client.ask()
        client.say("user", "Go on.")
        assert client.ask()["content"] == "Done."
        (rollout,) = played_rollouts(record)
    assert "tool_calls" not in got and got["content"].endswith(call)
    assert ("I look." in got["content"]) == words.startswith("I")
    assert sampled_ids(rollout.session)[0] == tuple(written)


def test_a_compaction_is_a_new_root_whose_known_messages_are_context() -> None:
    """The summary is trained on, once; what follows it earns the same reward."""
    script = [message("", READ), message("", ("Count", {})), message("We read a.py."), message("3")]
    with playing(scripted(script)) as (record, url):
        client = ask_first(url)
        for text in ("depth = 3\n", "2"):
            client.result(client.ask()["tool_calls"][0]["id"], text)
        last_two = client.messages[-2:]
        client.say("user", "Summarise the conversation.")
        summary = client.ask()["content"]
        after = ChatClient(url, client.tools, messages=client.messages[:1])
        after.say("user", f"So far: {summary}")
        after.messages += last_two
        after.ask()
        first, second = played_rollouts(record, reward=0.5)
    ids = [tuple(message_ids(QWEN, m)) for m in script]
    assert sampled_ids(first.session) == ids[:3]
    assert sampled_ids(second.session) == [ids[1], ids[3]]  # the first of them is context
    assert second.session.copied == 3 and len(second.session.turns) == 5
    assert first.session.outcome == second.session.outcome == 0.5
    assert first.episode == second.episode == "ep"


def test_changed_tools_begin_a_conversation_in_which_known_messages_are_context() -> None:
    with playing(scripted([message("", READ), message("depth is 3")])) as (record, url):
        client = ask_first(url)
        client.result(client.ask()["tool_calls"][0]["id"], "depth = 3\n")
        client.tools = client.tools[:1]
        client.ask()
        first, second = played_rollouts(record)
    assert len(first.session.tools) == 2 and len(second.session.tools) == 1
    assert second.session.copied == 3 and len(sampled_ids(second.session)) == 2


def test_a_request_without_tools_beside_the_task_is_a_side_request() -> None:
    script = scripted([message("", READ), message("depth is 3")], others={})
    with playing(script) as (record, url):
        title = ChatClient(url, [])
        title.say("user", "Name this conversation.")
        client = ask_first(url)
        client.ask()
        title.ask()
        main, side = played_sessions(record, reward=1.0)
    assert [e.text for e in side.events if e.kind == PURPOSE] == ["side"]
    assert (main.outcome, side.outcome) == (1.0, None)


@pytest.mark.parametrize("title_first", [True, False])
def test_a_title_takes_no_message_of_a_script_that_calls_tools(title_first: bool) -> None:
    """opencode sends both requests at once, and they arrive in either order."""
    script = [message("", READ), message("depth is 3")]
    with playing(scripted(script, others={"side": [message("Depth")]})) as (record, url):
        title = ChatClient(url, [])
        title.say("user", "Name this conversation.")
        client = ask_first(url)
        first, second = (title, client) if title_first else (client, title)
        answers = {id(first): first.ask(), id(second): second.ask()}
        sessions = played_sessions(record, reward=1.0)
    assert answers[id(title)]["content"] == "Depth"
    assert [call["function"]["name"] for call in answers[id(client)]["tool_calls"]] == ["Read"]
    side, main = sessions if title_first else sessions[::-1]
    assert (main.outcome, side.outcome) == (1.0, None)


def test_parallel_calls_answered_out_of_order_are_one_conversation() -> None:
    script = [message("", READ, ("Read", {"path": "b.py"})), message("depth is 3")]
    with playing(scripted(script)) as (record, url):
        client = ask_first(url)
        first, second = client.ask()["tool_calls"]
        client.result(second["id"], 'name = "x"\n')
        client.result(first["id"], "depth = 3\n")
        client.ask()
        (rollout,) = played_rollouts(record)
    assert [t.results[0].call_id for t in rollout.session.turns if t.results] == [
        second["id"],
        first["id"],
    ]


def test_refusals_are_errors_of_the_wire() -> None:
    settings = Sampling(max_new_tokens=20, max_context_tokens=150)
    with playing(scripted([message("", READ)]), settings=settings) as (_, url):
        client = ask_first(url)
        client.say("user", "long " * 400)
        error = client.ask()
        assert error["status"] == 400 and error["error"]["code"] == "context_length_exceeded"
        client.url = url.replace("/e/ep", "/e/other")
        assert client.ask()["status"] == 404
