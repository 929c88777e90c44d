"""Requests that real agent programs sent, recorded once (scrub_requests.py) and sent again.

Claude Code 2.1.330 with a subagent, a compaction and an argument that it added; Codex 0.169.0 with
parallel calls; mini-swe-agent 2.4.6, which drops an answer without a call; opencode 1.18.33, which
asks for a title first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.sampling import Sampling
from composer_replication.serve import episode_record
from composer_replication.serve.episode_record import EpisodeRecord
from composer_replication.serve.recorded_sessions import CHANGED, PURPOSE, played_rollouts
from composer_replication.serve.student_writers import read_script
from tests.serve.clients import events, playing, post, scripted

RECORDED = Path(__file__).with_name("recorded")
ROOM = Sampling(max_new_tokens=1000, max_context_tokens=30_000)


def replay(name: str, *, words: Mapping[str, str] = {}) -> tuple[EpisodeRecord, list[Rollout]]:
    """The episode of a recorded program, with the ids that the endpoint minted then; `words` takes
    the place of texts that were scrubbed."""
    text = (RECORDED / f"{name}.jsonl").read_text("utf-8")
    for scrubbed, word in words.items():
        assert scrubbed in text
        text = text.replace(scrubbed, word)
    lines = text.split("\n")
    head, *rows = [json.loads(line) for line in lines if line]
    script = head["script"]
    main, others = (script.pop("main"), script) if isinstance(script, dict) else (script, {})
    writer = scripted(
        read_script(main), others={purpose: read_script(m) for purpose, m in others.items()}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(episode_record.secrets, "token_hex", lambda size: head["tag"])
        with playing(writer, settings=ROOM) as (record, url):
            for row in rows:
                ask: Any = events if row["body"].get("stream") else post
                answer = ask(f"{url}/v1/{row['path']}", row["body"], **row["headers"])
                assert "status" not in answer
            return record, played_rollouts(record, reward=1.0)


def written(record: EpisodeRecord) -> list[tuple[int, ...]]:
    return [t.sampled.ids for r in record.replies for t in r.turns if t.sampled is not None]


def recorded(rollouts: list[Rollout]) -> list[tuple[int, ...]]:
    """What is trained on, over all sessions."""
    return [
        turn.sampled.ids
        for rollout in rollouts
        for _, turn in rollout.session.assistant_turns()
        if turn.sampled is not None
    ]


@pytest.mark.parametrize("name", ["claude_code", "codex", "mini_swe_agent", "opencode"])
def test_every_sampled_token_is_recorded_once(name: str) -> None:
    record, rollouts = replay(name)
    assert sorted(recorded(rollouts)) == sorted(written(record)) and len(written(record)) >= 3
    for rollout in rollouts:
        for turn in rollout.session.turns:
            if turn.sampled is not None:
                a = turn.context_tokens
                assert rollout.ids[a : a + len(turn.sampled.ids)] == turn.sampled.ids


def test_claude_code_with_a_subagent_and_a_compaction() -> None:
    _, rollouts = replay("claude_code")
    sessions = [rollout.session for rollout in rollouts]
    purposes = [[e.text for e in s.events if e.kind == PURPOSE] for s in sessions]
    assert purposes == [[], ["subagent"], [], []]
    assert [s.outcome for s in sessions] == [1.0] * 4  # the summary and what followed it, too
    task, _, summary, after = sessions
    # The argument that it adds to an edit is seen, and does not end the conversation.
    assert [e.text[:4] for e in task.events if e.kind == CHANGED] == ["Edit"]
    # The request for the summary branches off above the last call, whose message comes back
    # behind the summary, as context.
    assert summary.copied > 0 and "<summary>" in summary.turns[-1].text
    leaf = task.turns[-1].sampled
    assert leaf is not None and leaf.ids in [t.sampled.ids for t in after.turns if t.sampled]
    assert leaf.ids not in recorded([rollouts[-1]])


def test_codex_is_one_conversation() -> None:
    _, (rollout,) = replay("codex")
    assert len(rollout.session.tools) >= 5 and not [
        e for e in rollout.session.events if e.kind == CHANGED
    ]


def test_opencode_s_title_is_a_side_request_without_the_reward() -> None:
    _, (title, task) = replay("opencode")
    assert [e.text for e in title.session.events if e.kind == PURPOSE] == ["side"]
    assert (title.session.outcome, task.session.outcome) == (None, 1.0)
    assert len([t for t in task.session.turns if t.sampled is not None]) == 4
    assert not [e for e in task.session.events if e.kind == PURPOSE]


def test_mini_swe_agent_drops_an_answer_which_stays_a_leaf() -> None:
    _, (dropped, task) = replay("mini_swe_agent")
    assert dropped.session.turns[-1].text == "I forgot to call."
    assert task.session.copied == 4 and task.episode == dropped.episode
