"""The restored context of a message: the earlier turns of the window and ids that `build` gives it,
and no later ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.errors import DataError
from composer_replication.core.trace import Segment, Text, Turn
from composer_replication.evaluation.held_out_logs import fork_points_of
from composer_replication.evaluation.held_out_sites import HeldOut, HeldSite, restore_contexts
from composer_replication.tokens.dataset import build_examples
from composer_replication.tokens.example import TrainingExample
from composer_replication.tokens.prefix import restore
from tests.rollouts.logged import (
    ERROR,
    MISTAKE,
    answered,
    assistant_turn,
    call,
    hint,
    renderer,
    session,
    site,
)

PROBE = Turn(role="assistant", author=None, blocks=(Text("x"),))


def ids_above(turns: tuple[Turn, ...]) -> tuple[int, ...]:
    return renderer().reply(turns, PROBE, tools=session().tools)[0]


def test_it_ends_above_the_message_and_holds_neither_it_nor_its_error() -> None:
    prefix = restore(session(), turn=5, renderer=renderer(), max_tokens=4096, room=64)
    assert (
        prefix is not None
        and prefix.numbers == (0, 1, 2, 3, 4)
        and prefix.turns == session().turns[:5]
    )
    text = renderer().codec.decode(list(ids_above(prefix.turns)))
    assert "x = 1" in text and MISTAKE not in text and ERROR not in text
    assert prefix.num_tokens == len(ids_above(prefix.turns))


@pytest.mark.parametrize("max_tokens", [4096, 1400])
def test_its_ids_are_those_that_build_puts_above_the_target(max_tokens: int) -> None:
    """A session that fits is one window. One that does not is cut: there only the room for the
    message may move the cut."""
    filler = tuple(
        t
        for n in range(8)
        for t in (
            assistant_turn(call("Read", f"f{n}", path="src/a.py")),
            answered(f"f{n}", "x = 1 " * 20),
        )
    )
    log = session()
    turns = (*log.turns[:5], *filler, *log.turns[5:])
    log = replace(
        log, turns=turns, segments=(Segment(start=0, end=len(turns)),), tools=log.tools[:1]
    )
    at = 5 + len(filler)
    moved = replace(site(), turn=at, evidence=(at + 1,))
    named = replace(hint(), site_id=moved.id)
    built = build_examples(
        [log],
        sites=[moved],
        hints=[named],
        renderer=renderer(),
        settings=BuildSettings(max_tokens=max_tokens),
    )
    example, view = next((e, v) for e in built if isinstance(e, TrainingExample) for v in e.hints)
    prefix = restore(log, turn=at, renderer=renderer(), max_tokens=max_tokens, room=64)
    assert prefix is not None and prefix.numbers[0] == 0 and prefix.numbers[-1] == at - 1
    prefix_ids = renderer().reply(prefix.turns, PROBE, tools=log.tools)[0]
    assert len(prefix_ids) == prefix.num_tokens <= max_tokens - 64
    if max_tokens == 4096:
        assert prefix.numbers == tuple(range(at)) and example.ids[: view.span[0]] == prefix_ids
    else:
        assert len(prefix.numbers) < at
        shared = min(len(prefix_ids), view.span[0]) // 3
        assert (
            example.ids[: view.span[0]][-shared:] == prefix_ids[-shared:]
            and example.ids[:20] == prefix_ids[:20]
        )


def test_what_the_call_refers_to_is_restored_too() -> None:
    """`build` puts the last read of the file into the window, so the student that is judged reads
    it as well."""
    filler = tuple(
        t
        for n in range(12)
        for t in (
            assistant_turn(call("Bash", f"f{n}", command="ls")),
            answered(f"f{n}", "x = 1 " * 20),
        )
    )
    log = session("edit_no_match")
    turns = (*log.turns[:5], *filler, *log.turns[5:])
    log = replace(
        log, turns=turns, segments=(Segment(start=0, end=len(turns)),), tools=log.tools[:1]
    )
    at = 5 + len(filler)
    named = replace(
        hint("edit_no_match"),
        site_id=replace(site("edit_no_match"), turn=at, evidence=(at + 1,)).id,
        refers_to=(3, 4),
    )
    moved = replace(site("edit_no_match"), turn=at, evidence=(at + 1,))
    built = build_examples(
        [log],
        sites=[moved],
        hints=[named],
        renderer=renderer(),
        settings=BuildSettings(max_tokens=1400),
    )
    example = next(e for e in built if isinstance(e, TrainingExample) and e.hints)
    above = [span.turn for span in example.turns if span.turn < at]
    prefix = restore(log, turn=at, renderer=renderer(), max_tokens=1400, room=64, refers_to=(3, 4))
    alone = restore(log, turn=at, renderer=renderer(), max_tokens=1400, room=64)
    assert prefix is not None and alone is not None
    assert above[:3] == list(prefix.numbers[:3]) == [0, 3, 4] and 5 not in prefix.numbers
    assert alone.numbers[1] > 4
    held_site = HeldSite(session=log, site=moved, cluster="c", repository="r", shared=False)
    held = HeldOut(
        sites=(held_site,), left_out={}, num_training_sessions=1, num_held_out_sessions=1
    )
    restored = restore_contexts(held, renderer=renderer(), max_tokens=1400, room=64)
    (fork_point,) = fork_points_of(restored)
    assert fork_point.turns == prefix.turns  # evaluation finds the references itself


def test_a_compaction_is_kept_as_the_model_saw_it() -> None:
    log = session()
    summary = Turn(
        role="user",
        author="harness",
        tag="compact_summary",
        blocks=(Text("Summary: fix the file."),),
    )
    turns = (*log.turns[:5], summary, *log.turns[5:])
    segments = (Segment(start=0, end=5), Segment(start=5, end=len(turns)))
    prefix = restore(
        replace(log, turns=turns, segments=segments),
        turn=6,
        renderer=renderer(),
        max_tokens=4096,
        room=64,
    )
    assert prefix is not None and prefix.numbers == (5,)


def test_no_room_is_none_and_a_turn_of_nobody_is_refused() -> None:
    assert restore(session(), turn=5, renderer=renderer(), max_tokens=200, room=190) is None
    for turn in (0, 99):
        with pytest.raises(DataError, match="no message of a model"):
            restore(session(), turn=turn, renderer=renderer(), max_tokens=4096, room=64)
