"""A rollout is a Session like an imported log: the same detectors, hints, files and dataset
builder, and the very ids that were sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import read_sessions, write_sessions
from composer_replication.core.config.data_settings import HintsSettings, SitesSettings
from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.trace import Session, Text, ToolCall, Turn
from composer_replication.data.hints.write import write_hints
from composer_replication.data.sites.find_sites import find_sites
from composer_replication.rollouts.chat_format import MALFORMED
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.sampler import Sampling, sample_rollouts
from composer_replication.tokens.dataset import build_examples
from composer_replication.tokens.example import TrainingExample
from tests.rollouts.small_world import parroted, talks, tiny
from tests.tokens.students import CASES, renderer

every_template = pytest.mark.parametrize(("family", "fixture"), CASES)


def build(
    rollout: Rollout, family: str, fixture: str, **settings: Any
) -> tuple[list[Any], list[TrainingExample]]:
    """(hints, examples) of one rollout, by the functions that serve imported logs."""
    session = rollout.session
    sites = find_sites(session, settings=SitesSettings())
    hints = write_hints(session, sites, settings=HintsSettings()).hints
    options: dict[str, Any] = {"max_tokens": 8192, **settings}
    items = build_examples(
        [session],
        sites=sites,
        hints=hints,
        renderer=renderer(family, fixture),
        settings=BuildSettings(**options),
    )
    return list(hints), [item for item in items if isinstance(item, TrainingExample)]


def say(*parts: str | tuple[str, dict[str, Any]]) -> Turn:
    blocks = tuple(
        Text(p) if isinstance(p, str) else ToolCall(f"x{i}", *p) for i, p in enumerate(parts)
    )
    return Turn(role="assistant", author="m", blocks=blocks)


BROKEN = {
    "llama3": '{"name": "Read", "parameters": {',
    "gemma": '{"name": "Read", "parameters": {',
    "glm-4.5": "<tool_call>Read\n<arg_key>oops\n</tool_call>",
    "glm-4.5-thinking": "<tool_call>Read\n<arg_key>oops\n</tool_call>",
    "mistral-v7": "[TOOL_CALLS][{oops",
    "mistral-v11": "[TOOL_CALLS]Read[ARGS]{oops",
    "mistral-v13": "[TOOL_CALLS]Read[ARGS]{oops",
    "deepseek-v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>Read\n```json\n{oops"
    ),
}


def careless(family: str, fixture: str) -> Rollout:
    broken = BROKEN.get(family, "<tool_call>\n{oops\n</tool_call>")
    # a message of gpt-oss ends with its first call: the sampler stops there
    calls = [("Read", {"path": "a.py"}), ("Count", {})][: 1 if family == "gpt-oss" else 2]
    return parroted(
        renderer(family, fixture),
        [
            say("Let me look.", ("Reed", {"path": "a.py"})),
            say(("Read", {"file": "a.py"})),
            broken,
            say(*calls),
            say("depth is 3"),
        ],
    )


@every_template
def test_mistakes_of_a_rollout_are_found_hinted_and_built(family: str, fixture: str) -> None:
    rollout = careless(family, fixture)
    session = rollout.session
    sites = find_sites(session, settings=SitesSettings())
    assert [(s.kind, s.category, s.turn, s.tool) for s in sites] == [
        ("unknown_tool", "mistake", 2, "Reed"),
        ("bad_arguments", "mistake", 4, "Read"),
        ("malformed_call", "mistake", 6, MALFORMED),
    ]
    assert {s.author for s in sites} == {"tiny"}
    hints, (example,) = build(rollout, family, fixture)
    assert [h.site_id for h in hints] == [s.id for s in sites]
    assert (
        hints[0].text == "Reminder: available tools: Read, Count."
        and "path: string (required)" in hints[1].text
    )
    assert "one complete JSON object" in hints[2].text and "oops" not in hints[2].text
    assert [v.origin for v in example.hints] == ["student"] * 3 and example.origin == "student"
    for view, turn in zip(example.hints, (2, 4, 6), strict=True):
        sampled = session.turns[turn].sampled
        assert sampled is not None and view.target_ids == sampled.ids
        assert example.student_ids(view) == rollout.ids[: view.span[1]]
    trained = [rollout.ids[a:b] for a, b in example.lm_spans]
    # no message that holds a mistake
    assert trained == [t.sampled.ids for t in session.turns[8:] if t.sampled]
    assert example.ids[: len(rollout.ids)] == rollout.ids
    # the line break behind the last end token
    assert renderer(family, fixture).codec.decode(example.ids[len(rollout.ids) :]).strip() == ""


def same_ids(rollout: Rollout, family: str, fixture: str) -> int:
    """Check that the example holds the ids that the student read and wrote, message by message;
    return the number of its messages.

    An example ends with its last trained message, so malformed calls at the end of an episode are
    in none.
    """
    _, built = build(rollout, family, fixture)
    held = 0
    for example in built:
        length = min(len(rollout.ids), len(example.ids))
        assert example.ids[:length] == rollout.ids[:length]
        for span in example.turns:
            turn = rollout.session.turns[span.turn]
            if turn.sampled is not None:
                assert (
                    span.body[0] == turn.context_tokens
                    and example.ids[slice(*span.body)] == turn.sampled.ids
                )
                held += 1
    return held


@every_template
def test_the_ids_of_an_example_are_those_the_student_read_and_wrote(
    family: str, fixture: str
) -> None:
    """Random students write text that no template would: broken characters, control tokens in
    mid-message, empty messages."""
    render = renderer(family, fixture)
    model, control = tiny(len(render.tokenizer), seed=3), set(render.codec.control.values())
    rollouts: list[Rollout] = []
    inside: set[int] = set()
    # the tokenizer is trained on this package's source, so which seed writes one changes with it
    for seed in range(5, 15):
        settings = Sampling(max_new_tokens=14, max_context_tokens=4096, seed=seed)
        rollouts = sample_rollouts(
            model, talks((3, 5, 2, 4, 3, 4)), renderer=render, settings=settings, author="tiny"
        )
        inside = {
            i for r in rollouts for t in r.session.turns if t.sampled for i in t.sampled.ids[:-1]
        }
        if control & inside:
            break
    assert control & inside  # else this test would be about well-behaved students only
    # of 21 messages and more
    assert sum(same_ids(rollout, family, fixture) for rollout in rollouts) >= 15


def test_rollouts_survive_the_file(tmp_path: Path) -> None:
    rollouts = [careless("qwen3", "qwen3"), careless("llama3", "llama3_1")]
    render = renderer("qwen3", "qwen3")
    settings = Sampling(max_new_tokens=14, max_context_tokens=4096)
    rollouts += sample_rollouts(
        tiny(len(render.tokenizer)),
        talks((3, 2)),
        renderer=render,
        settings=settings,
        author="tiny",
    )
    sessions: list[Session] = [rollout.session for rollout in rollouts]
    write_sessions(tmp_path / "rollouts.jsonl", sessions)
    assert list(read_sessions(tmp_path / "rollouts.jsonl")) == sessions
    assert [s.outcome for s in sessions[:2]] == [1.0, 1.0] and {s.origin for s in sessions} == {
        "student"
    }
    assert sessions[0].tools_origin == "log"
