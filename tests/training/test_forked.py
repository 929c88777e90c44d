"""`train.fork`: at imported sites the student's own failures become hint views on its own ids; all
else is counted and left alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.errors import AlignmentError, ConfigError, DataError, SiteError
from composer_replication.core.trace import Segment, Text
from composer_replication.models.load_student import Student
from composer_replication.tokens.dataset import build_examples
from composer_replication.tokens.example import DecisionTokens, TrainingExample
from composer_replication.training.draws import forked as forked_module
from composer_replication.training.draws.forked import ForkSource, without_views
from composer_replication.training.inputs import StepInputs
from composer_replication.training.loop import train
from tests.rollouts.logged import (
    ERROR,
    MISTAKE,
    answered,
    assistant_turn,
    call,
    hint,
    parrot,
    renderer,
    session,
    site,
)
from tests.rollouts.small_world import message_ids, tiny
from tests.training.small_student import make_run

pytestmark = pytest.mark.train
CAT, READ = (
    assistant_turn(call("Cat", path="src/a.py")),
    assistant_turn(call("Read", path="src/a.py")),
)


def config(**fields: Any) -> Config:
    settings = {
        "fork": True,
        "fork_sites": 1,
        "steps": 2,
        "batch_examples": 2,
        "checkpoint_every": 2,
        "grad_every": 2,
        **fields,
    }
    return Config.model_validate(
        {"train": settings, "rollouts": {"max_new_tokens": 40, "batch_episodes": 1}}
    )


def examples(*names: str, kind: str = "unknown_tool") -> list[TrainingExample]:
    built = build_examples(
        [session(kind, name) for name in names],
        sites=[site(kind, name) for name in names],
        hints=[hint(kind, name) for name in names],
        renderer=renderer(),
        settings=BuildSettings(),
    )
    return [item for item in built if isinstance(item, TrainingExample)]


def producer(*names: str, kind: str = "unknown_tool", **fields: Any) -> ForkSource:
    return ForkSource(
        config=config(**fields),
        renderer=renderer(),
        sessions={name: session(kind, name) for name in names},
        sites={site(kind, name).id: site(kind, name) for name in names},
    )


def test_a_failure_becomes_a_view_on_the_ids_that_were_sampled_below_the_same_hint() -> None:
    (imported,) = examples("s1")
    (view,) = imported.hints
    known = DecisionTokens(site_id=view.site_id, spans=(view.span,))
    imported = replace(imported, hints=(replace(view, decisions=(known,)),))
    live = producer("s1")
    live_step = live.collect(parrot(CAT), live.fork_points([imported]), step=0)
    (example,) = live_step.examples
    (view,), (old,) = example.hints, imported.hints
    written = tuple(message_ids(renderer(), CAT))
    assert (
        view.target_ids == written == example.ids[slice(*view.span)]
        and example.ids[-len(written) :] == written
    )
    assert (example.origin, view.origin, old.origin) == ("student", "student", "trace")
    assert example.ids[: view.span[0]] == imported.ids[: old.span[0]] and example.lm_spans == ()
    assert (view.at, view.hint_ids, view.kind) == (old.at, old.hint_ids, "unknown_tool")
    assert view.decisions == ()  # those of the log's message are no tokens of this one
    text = renderer().codec.decode(list(example.teacher_ids(view)))
    assert "Reminder: available tools" in text and MISTAKE not in text and ERROR not in text
    assert text.index("Reminder") < text.index('"Cat"') and example.turns[-1].body == view.span


def test_a_message_with_two_failing_calls_is_one_fork_point_and_either_mistake_is_the_same() -> (
    None
):
    log, first = session("unknown_tool"), site("unknown_tool")
    wrong = call("Read", "c4", file="x")
    turns = (
        *log.turns[:5],
        replace(log.turns[5], blocks=(*log.turns[5].blocks, wrong)),
        log.turns[6],
    )
    turns = (
        *turns,
        answered("c4", "InputValidationError: Read failed: path is missing", error=True),
        *log.turns[7:],
    )
    log = replace(log, turns=turns, segments=(Segment(start=0, end=len(turns)),))
    second = replace(first, call_id="c4", kind="bad_arguments", evidence=(7,), tool="Read")
    hints = [
        hint(),
        replace(hint(), site_id=second.id, kind="bad_arguments", text="The tool Read takes path."),
    ]
    built = list(
        build_examples(
            [log], sites=[first, second], hints=hints, renderer=renderer(), settings=BuildSettings()
        )
    )
    live = replace(
        producer("s1", fork_samples=3),
        sessions={"s1": log},
        sites={s.id: s for s in (first, second)},
    )
    (fork_point,) = live.fork_points([item for item in built if isinstance(item, TrainingExample)])
    live_step = live.collect(parrot(CAT, assistant_turn(wrong), READ), [fork_point], step=0)
    assert [fork.checked.outcome for fork in live_step.forks] == ["same", "same", "ok"] and len(
        live_step.examples
    ) == 2
    assert all(example.hints[0].site_ids == (first.id, second.id) for example in live_step.examples)
    with pytest.raises(DataError, match="not among those given"):
        replace(live, sites={first.id: first}).fork_points(
            [item for item in built if isinstance(item, TrainingExample)]
        )


def test_what_is_no_failure_of_the_sites_kind_trains_nothing_and_is_counted() -> None:
    live = producer("s1", fork_samples=4)
    unrelated, silent = assistant_turn(call("Read", file="a")), assistant_turn("Nothing.")
    live_step = live.collect(
        parrot(READ, CAT, unrelated, silent), live.fork_points(examples("s1")), step=0
    )
    assert [fork.checked.outcome for fork in live_step.forks] == [
        "ok",
        "same",
        "other",
        "undecided",
    ] and len(live_step.examples) == 1
    facts = live_step.metrics
    assert {
        k: facts[f"fork/{k}"]
        for k in ("sites", "samples", "ok", "same", "other", "malformed", "undecided", "sites_same")
    } == {
        "sites": 1,
        "samples": 4,
        "ok": 1,
        "same": 1,
        "other": 1,
        "malformed": 0,
        "undecided": 1,
        "sites_same": 1,
    }
    assert facts["fork/tokens"] == len(live_step.forks[1].ids)
    assert facts["fork/sampled_tokens"] == sum(
        len(message_ids(renderer(), m)) for m in (READ, CAT, unrelated, silent)
    )


def test_sites_are_drawn_in_passes_and_steps_sample_anew() -> None:
    live = producer("s1", "s2", "s3", fork_sites=2)
    spots = live.fork_points(examples("s1", "s2", "s3"))
    model = tiny(len(renderer().tokenizer))
    steps = [live.collect(model, spots, step=step) for step in range(3)]
    drawn = [fork.site.session_id for live_step in steps for fork in live_step.forks]
    assert sorted(drawn) == ["s1", "s1", "s2", "s2", "s3", "s3"] and len(set(drawn[:3])) == 3
    assert live.num_samples(spots) == 2
    # so many views make a full step
    assert producer("s1", "s2", "s3", fork_sites=2, fork_samples=3).num_samples(spots) == 6
    assert producer("s1", "s2", "s3", fork_sites=9, fork_samples=3).num_samples(spots) == 9
    again = live.collect(model, spots, step=1)
    assert [f.ids for f in again.forks] == [f.ids for f in steps[1].forks]
    by_site = {f.site.session_id: f.ids for f in steps[0].forks}
    assert any(
        by_site.get(f.site.session_id, f.ids) != f.ids
        for live_step in steps[1:]
        for f in live_step.forks
    )


def test_sessions_that_changed_since_the_build_are_refused() -> None:
    built = examples("s1")
    live = producer("s1")
    log = live.sessions["s1"]
    changed = replace(
        log, turns=(replace(log.turns[0], blocks=(Text("Other words."),)), *log.turns[1:])
    )
    changed_source = replace(live, sessions={"s1": changed})
    with pytest.raises(AlignmentError, match="build again"):
        changed_source.collect(parrot(CAT), changed_source.fork_points(built), step=0)
    with pytest.raises(DataError, match="not among those given"):
        replace(live, sessions={}).fork_points(built)
    with pytest.raises(SiteError, match="turn 5, the site is turn 3"):
        moved = replace(site(), turn=3)
        replace(live, sites={site().id: moved}).fork_points(built)
    with pytest.raises(DataError, match="no imported hint view"):
        live.fork_points(without_views(built))
    with pytest.raises(ConfigError, match="in one forward"):
        producer("s1", micro_tokens=600).fork_points(built)


def test_a_run_trains_on_forks_alone_and_writes_them_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The student follows a script; the imported views, which another model wrote, reach no
    step."""
    recorded: list[TrainingExample] = []
    scripts = iter([CAT, READ])
    real = forked_module.sample_forks
    monkeypatch.setattr(
        forked_module,
        "sample_forks",
        lambda model, spots, **kwargs: real(parrot(next(scripts)), spots, **kwargs),
    )
    from composer_replication.training import loop

    step = loop.train_step

    def spied(trainer: Any, inputs: StepInputs, **options: Any) -> Any:
        recorded.extend(inputs.examples)
        assert inputs.hint_sites == 1
        return step(trainer, inputs, **options)

    monkeypatch.setattr(loop, "train_step", spied)
    live, built = producer("s1"), examples("s1")
    model = tiny(len(renderer().tokenizer), seed=5)
    student = Student(name="tiny", model=model.train(), tokenizer=renderer().tokenizer)
    run = make_run(tmp_path, live.config)
    result = train(live.config, student=student, examples=built, run=run, forked=live)
    views = [view for example in recorded for view in example.hints]
    assert [view.origin for view in views] == ["student"] and views[0].target_ids == tuple(
        message_ids(renderer(), CAT)
    )
    # lm_ce still trains on the log's good messages
    assert [e.lm_spans != () for e in recorded].count(True) == 2
    first, second = run.metrics()
    assert (first["hint/status"], first["hint/tokens"], first["fork/same"]) == (
        "active",
        len(views[0].target_ids),
        1,
    )
    assert (second["hint/status"], second["hint/tokens"], second["fork/ok"]) == ("exhausted", 0, 1)
    assert result.statuses["lm_ce"] == "active"
    record = json.loads((run.path / "forks" / "step_000000.jsonl").read_text("utf-8"))
    assert (record["site_id"], record["origin"], record["outcome"]) == (
        site().id,
        "student",
        "same",
    )


def test_the_setting_and_its_producer_come_together(tmp_path: Path) -> None:
    student = Student(
        name="tiny", model=tiny(len(renderer().tokenizer), seed=5), tokenizer=renderer().tokenizer
    )
    for settings, source, message in (
        (config(), None, "given together"),
        (config(fork=False), producer("s1"), "given together"),
        (config(hint={"weight": 0.0}), producer("s1"), "whose weight is 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(
                settings,
                student=student,
                examples=examples("s1"),
                run=make_run(tmp_path, settings),
                forked=source,
            )
