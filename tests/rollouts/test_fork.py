"""A fork: the student writes one message at a logged site; its context and its message are kept to
the token and checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from composer_replication.core.errors import AlignmentError, ConfigError, DataError
from composer_replication.core.trace import Turn
from composer_replication.rollouts.fork import (
    Fork,
    ForkPoint,
    fork_to_json,
    outcome_counts,
    room_for,
    sample_forks,
)
from composer_replication.rollouts.sampler import Sampling
from composer_replication.rollouts.static_check import SiteCheck
from composer_replication.tokens.prefix import restore
from tests.rollouts.logged import (
    ERROR,
    MISTAKE,
    answered,
    assistant_turn,
    call,
    parrot,
    renderer,
    session,
    site,
)
from tests.rollouts.small_world import message_ids, tiny


def spot(kind: str = "unknown_tool", *, ids: tuple[int, ...] = ()) -> ForkPoint:
    log = session(kind)
    prefix = restore(log, turn=5, renderer=renderer(), max_tokens=4096, room=200)
    assert prefix is not None
    check = SiteCheck.of(log, site(kind))
    return ForkPoint(
        site=site(kind),
        turns=prefix.turns,
        tools=log.tools,
        check=check,
        ids=ids,
        num_tokens=prefix.num_tokens,
    )


def forked(
    *messages: Turn | list[int], spots: tuple[ForkPoint, ...] = (), samples: int = 1
) -> tuple[list[Fork], list[int]]:
    """The forks, and every id that the student was given."""
    model = parrot(*messages)
    sampling = Sampling(max_context_tokens=4096, max_new_tokens=200, batch_episodes=1)
    result = sample_forks(
        model,
        spots or (spot(),),
        samples=samples,
        renderer=renderer(),
        settings=sampling,
        author="me",
    )
    return result, model.decoder.fed


def test_the_student_reads_what_stood_above_the_message_and_nothing_later() -> None:
    (fork,), fed = forked(assistant_turn(call("Read", path="src/a.py")))
    text = renderer().codec.decode(fed)
    assert "x = 1" in text and MISTAKE not in text and ERROR not in text and "Sorry" not in text
    assert (
        tuple(fed[: len(fork.prefix_ids)]) == fork.prefix_ids
        and len(fork.prefix_ids) == spot().num_tokens
    )


def test_the_context_is_the_logs_own_to_the_character() -> None:
    """Text of an environment is cleaned; a log is not, since its context would then differ from
    that of the examples."""
    log = session()
    loud = replace(
        log, turns=(*log.turns[:4], answered("c2", "x = 1 \x1b[31mred\x07"), *log.turns[5:])
    )
    prefix = restore(loud, turn=5, renderer=renderer(), max_tokens=4096, room=200)
    assert prefix is not None
    prefix_ids = tuple(renderer().reply(prefix.turns, assistant_turn("x"), tools=loud.tools)[0])
    fork_point = ForkPoint(
        site=site(),
        turns=prefix.turns,
        tools=loud.tools,
        check=SiteCheck.of(loud, site()),
        ids=prefix_ids,
    )
    (fork,), fed = forked(assistant_turn(call("Read", path="src/a.py")), spots=(fork_point,))
    assert fork.prefix_ids == prefix_ids and "\x1b[31mred\x07" in renderer().codec.decode(fed)
    broken = replace(fork_point, turns=(*fork_point.turns[:4], cast(Any, "no turn")))
    with pytest.raises(DataError, match="no episode could begin there: a message is str"):
        forked(assistant_turn("x"), spots=(broken,))


def test_sampled_ids_stay_as_they_were_sampled() -> None:
    """An unusual spelling of the same text: encoded again it would be other ids."""
    codec = renderer().codec
    message = message_ids(renderer(), assistant_turn(call("Cat", path="src/a.py")))
    at = next(
        i
        for i, token in enumerate(message)
        if len(codec.decode([token])) > 3 and token not in codec.control.values()
    )
    spelled = [
        *message[:at],
        *(codec.one_go(c)[0] for c in codec.decode([message[at]])),
        *message[at + 1 :],
    ]
    assert codec.decode(spelled) == codec.decode(message) and spelled != message
    (fork,), _ = forked(spelled)
    assert (
        list(fork.ids) == spelled
        and len(fork.logprobs) == len(spelled)
        and all(lp <= 0 for lp in fork.logprobs)
    )
    assert fork.checked.outcome == "same" and fork.turn.author == "me"


def test_each_message_is_checked_at_its_own_site() -> None:
    cat, read = (
        assistant_turn(call("Cat", path="src/a.py")),
        assistant_turn(call("Read", path="src/a.py")),
    )
    forks, _ = forked(cat, read, read, cat, spots=(spot(), spot("file_missing")), samples=2)
    assert [(f.site.kind, f.number, f.checked.outcome) for f in forks] == [
        ("unknown_tool", 0, "same"),
        ("unknown_tool", 1, "ok"),
        ("file_missing", 0, "ok"),
        ("file_missing", 1, "other"),
    ]
    assert outcome_counts(forks) == {"ok": 2, "same": 1, "other": 1, "malformed": 0, "undecided": 0}
    record = fork_to_json(forks[0])
    assert (record["origin"], record["outcome"], record["tools"], record["tokens"]) == (
        "student",
        "same",
        ["Cat"],
        len(forks[0].ids),
    )


def test_a_call_that_cannot_be_read_is_malformed_and_one_for_want_of_room_undecided() -> None:
    broken = [
        *renderer().codec.one_go('<tool_call>\n{"name": "Read"\n</tool_call>'),
        message_ids(renderer(), "")[-1],
    ]
    (fork,), _ = forked(broken)
    assert (fork.checked.outcome, fork.checked.reason) == ("malformed", "malformed_call")
    endless = renderer().codec.one_go("la " * 300)[:200]
    (fork,), _ = forked(endless)
    assert (fork.checked.outcome, fork.checked.reason, len(fork.ids)) == (
        "undecided",
        "cut_off",
        200,
    )


def test_samples_of_a_site_differ_and_the_same_seed_repeats_them() -> None:
    model = tiny(len(renderer().tokenizer))
    options = {"samples": 3, "renderer": renderer(), "author": "me"}
    settings = room_for([spot().num_tokens], settings=Sampling(max_new_tokens=8, seed=3))
    assert settings.max_context_tokens == spot().num_tokens + 8
    first = sample_forks(model, [spot()], settings=settings, **options)
    again = sample_forks(model, [spot()], settings=settings, **options)
    assert [f.ids for f in first] == [f.ids for f in again] and len({f.ids for f in first}) == 3
    other_step = sample_forks(model, [spot()], settings=settings, label="step-2:", **options)
    assert [f.ids for f in other_step] != [f.ids for f in first]


def test_a_context_that_is_not_the_one_that_was_built_is_refused() -> None:
    (fork,), _ = forked(assistant_turn(call("Cat")))
    same, _ = forked(assistant_turn(call("Cat")), spots=(spot(ids=fork.prefix_ids),))
    assert same[0].prefix_ids == fork.prefix_ids
    with pytest.raises(AlignmentError, match="not the"):
        forked(assistant_turn(call("Cat")), spots=(spot(ids=fork.prefix_ids[:-1]),))
    small = Sampling(max_context_tokens=64, max_new_tokens=8)
    with pytest.raises(ConfigError, match="max_context_tokens"):
        sample_forks(
            parrot(), [spot()], samples=1, renderer=renderer(), settings=small, author="me"
        )
