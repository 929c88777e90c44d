"""Anchors in the data set: they hold exactly the messages that lm_ce may train, and the others are
counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.site import Anchor, Hint, Preference, Site
from composer_replication.core.trace import Session, Text, Turn
from composer_replication.tokens.artefact import load_dataset, write_dataset
from composer_replication.tokens.dataset import Item, build_examples
from composer_replication.tokens.example import PreferencePair
from tests.tokens.students import long_turns, renderer, session_of
from tests.tokens.test_dataset import SOUND, examples, own_template, skips


def anchor(turn: int, *, session_id: str = "s1") -> Anchor:
    return Anchor(session_id=session_id, turn=turn, reason="agreed")


def build(session: Session, anchors: Sequence[Anchor], **more: Any) -> list[Item]:
    facts = {name: more.pop(name, ()) for name in ("sites", "hints", "preferences")}
    held_out = more.pop("held_out", None)
    settings = BuildSettings(**more)
    build_result = build_examples(
        [session],
        renderer=renderer("qwen3", "qwen3"),
        settings=settings,
        anchors=anchors,
        held_out=held_out,
        **facts,
    )
    return list(build_result)


def anchored_turns(items: Sequence[Item]) -> list[int]:
    return [t.turn for e in examples(items) for t in e.turns if t.body in e.anchored]


def anchors_lost(items: Sequence[Item]) -> dict[str, int]:
    return {name: count for name, count in skips(items).items() if name.startswith("anchor/")}


def assistant_turns_of(session: Session) -> list[int]:
    return [n for n, turn in enumerate(session.turns) if turn.role == "assistant"]


def test_the_body_of_an_anchored_message_is_held_and_nothing_beside_it() -> None:
    session = session_of(long_turns(5, num_words=5))
    a, b = assistant_turns_of(session)[1], assistant_turns_of(session)[3]
    items = build(session, [anchor(b), anchor(a)])
    (example,) = examples(items)
    assert anchored_turns(items) == [a, b] and not anchors_lost(items)
    render = renderer("qwen3", "qwen3")
    for turn, span in zip((a, b), example.anchored, strict=True):
        prefix, body = render.reply(session.turns[:turn], session.turns[turn])
        assert example.ids[: span[1]] == prefix + body and span[0] == len(prefix)
        assert span in example.lm_spans  # lm_ce and the preference channel are weighed apart


def test_a_site_a_pair_a_copy_and_a_filtered_author_are_not_held() -> None:
    session = session_of(long_turns(8, num_words=5), copied=2)
    copied, mistake, rejected, filtered, plain, check = assistant_turns_of(session)[:6]
    foreign = replace(session.turns[filtered], author="someone-else")
    session = replace(
        session, turns=(*session.turns[:filtered], foreign, *session.turns[filtered + 1 :])
    )
    target_site = Site(
        session_id="s1", turn=mistake, kind="k", detector="d", evidence=(mistake + 1,)
    )
    passed = Site(
        session_id="s1",
        turn=check,
        kind="k",
        detector="d",
        evidence=(check + 1,),
        category="failed_check",
    )
    pair = Preference(
        session_id="s1",
        turn=rejected,
        chosen=Turn(role="assistant", author="t", blocks=(Text("Better."),)),
    )
    anchors = [
        anchor(n) for n in (copied, mistake, rejected, filtered, plain, check, plain, 0, 999)
    ] + [anchor(1, session_id="s9")]
    hints = [Hint(site_id=target_site.id, text="HINT", writer="w", kind="k")]
    items = build(
        session,
        anchors,
        sites=[target_site, passed],
        hints=hints,
        preferences=[pair],
        authors=("m1",),
    )
    assert anchored_turns(items) == [plain, check]  # a failed check is a correct call
    assert anchors_lost(items) == {
        "anchor/copied": 1, "anchor/site": 1, "anchor/dispreferred": 1, "anchor/author": 1,
        "anchor/second_anchor": 1,
        "anchor/not_assistant": 2, "anchor/no_session": 1,
    }  # fmt: skip


def test_every_anchor_is_held_once_or_counted_over_all_windows() -> None:
    session = session_of(long_turns(30, num_words=20))
    big = Turn(role="assistant", author="m1", blocks=(Text("word " * 900),))
    session = replace(session_of([*session.turns[:20], big, *session.turns[20:]]))
    anchors = [anchor(n) for n in assistant_turns_of(session)]
    items = build(session, anchors, max_tokens=600)
    held, lost = anchored_turns(items), anchors_lost(items)
    assert len(examples(items)) > 3 and len(set(held)) == len(held)
    assert len(held) + sum(lost.values()) == len(anchors) and lost == {"anchor/too_long": 1}


def test_what_is_held_out_holds_nothing() -> None:
    session = session_of(long_turns(3, num_words=5))
    items = build(
        session,
        [anchor(n) for n in assistant_turns_of(session)],
        held_out=HeldOutSettings(by="session", fraction=0.999999),
    )
    assert not examples(items) and skips(items) == {"session/held_out": 1}


def test_anchors_that_a_template_refuses_are_counted() -> None:
    """Once a window at the end of a session, once the head and with it all of them."""
    rejects = (
        "{%- for m in messages %}{%- if 'POISON' in m.content %}{{- raise_exception('no poison')"
        " }}{%- endif %}"
    )
    render = own_template(SOUND.replace("{%- for m in messages %}", rejects, 1))
    turns = long_turns(30)
    for place in (assistant_turns_of(session_of(turns))[-1], 0):
        session = session_of(
            [replace(t, blocks=(Text("POISON"),)) if n == place else t for n, t in enumerate(turns)]
        )
        anchors = [anchor(n) for n in assistant_turns_of(session)]
        build_result = build_examples(
            [session, good()],
            sites=(),
            hints=(),
            renderer=render,
            settings=BuildSettings(max_tokens=900),
            anchors=anchors,
        )
        items = list(build_result)
        lost = anchors_lost(items)
        assert set(lost) == {"anchor/template"} and len(anchored_turns(items)) + lost[
            "anchor/template"
        ] == len(anchors)
        assert (lost["anchor/template"] == len(anchors)) == (place == 0)


def good() -> Session:
    """A session that any template takes, so that the first error of one is not raised."""
    return session_of(long_turns(1), name="s2")


def test_the_report_counts_anchors_and_they_survive_the_disk(tmp_path: Path) -> None:
    session = session_of(long_turns(5, num_words=5))
    items = build(session, [anchor(n) for n in assistant_turns_of(session)[:3]])
    report = write_dataset(tmp_path, items, meta={})
    (example,) = examples(items)
    assert (report.anchors, report.anchored_tokens) == (3, sum(b - a for a, b in example.anchored))
    assert load_dataset(tmp_path).examples[0].anchored == example.anchored
    assert write_dataset(tmp_path, build(session, []), meta={}).anchors == 0


def test_the_rejected_side_is_the_sessions_own_ids() -> None:
    session = session_of(long_turns(5, num_words=5))
    at = assistant_turns_of(session)[2]
    chosen = Turn(role="assistant", author="t", blocks=(Text("Better."),))
    items = build(session, [], preferences=[Preference(session_id="s1", turn=at, chosen=chosen)])
    (example,) = examples(items)
    (pair,) = [item for item in items if isinstance(item, PreferencePair)]
    body = next(t.body for t in example.turns if t.turn == at)
    assert (
        pair.prefix_ids == example.ids[: body[0]] and pair.rejected_ids == example.ids[slice(*body)]
    )
