"""The twins of docs/kinds.md: what is planted is what the pipeline finds, and lm_ce trains none of
it; the table is what its JSON says."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import pytest

from benchmarks.twins.page import PAGE, RESULTS, ROWS, render
from benchmarks.twins.players import by_habit, right, twin_lesson
from benchmarks.twins.record import Scripted, write_scripted
from benchmarks.twins.student import twin_tokenizer
from benchmarks.twins.world import KINDS, Kind, TwinEnv, make_twin
from composer_replication.core.config.data_settings import HintsSettings, SitesSettings
from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.redact import Redactor
from composer_replication.core.site import Hint, Site
from composer_replication.core.trace import Session
from composer_replication.data.hints.templates import template_of
from composer_replication.data.hints.write import write_hints
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.data.sites.find_sites import find_sites
from composer_replication.tokens.dataset import build_examples
from composer_replication.tokens.example import TrainingExample
from composer_replication.tokens.renderer import Renderer

TRAINED = SitesSettings(train_kinds=KINDS, min_confidence=0.3)
WRITERS = HintsSettings(writers={"taken_back": "taken_back_later"})
RULES: dict[Kind, str] = {
    "user_rejected": "rejected_prohibition",
    "user_corrected": "corrected_last",
    "taken_back": "undone_inverse",
    "broke_check": "blame_line_fixed",
    "wasted_call": "wasted_reread",
}


@dataclass(frozen=True)
class Recorded:
    """A log as `recompose ingest` reads it, beside what was planted."""

    log: Scripted
    session: Session


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    logs = write_scripted(tmp_path_factory.mktemp("logs"), seed=3, num_each=8)
    found = ingest(find_logs([log.path for log in logs]), redactor=Redactor())
    by_name = {session.cwd: session for result in found for session in result.sessions}
    return [Recorded(log, by_name[f"/twins/{log.task.id}"]) for log in logs]


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer.for_tokenizer(twin_tokenizer())


def hints_of(session: Session, sites: list[Site]) -> list[Hint]:
    report = write_hints(session, sites, settings=WRITERS)
    assert not report.refused and not report.without
    return list(report.hints)


def built(one: Recorded, renderer: Renderer, *, settings: SitesSettings) -> TrainingExample:
    """The one example of a session, with what each channel trains."""
    sites = find_sites(one.session, settings=settings)
    items = build_examples(
        [one.session],
        sites=sites,
        hints=hints_of(one.session, sites),
        renderer=renderer,
        settings=BuildSettings(),
    )
    (example,) = [item for item in items if isinstance(item, TrainingExample)]
    assert len(example.turns) == len(one.session.turns)
    return example


@pytest.mark.parametrize("kind", KINDS)
def test_the_planted_message_is_the_only_site(recorded: list[Recorded], kind: Kind) -> None:
    of_kind = [one for one in recorded if one.log.task.kind == kind]
    assert {one.log.mistake is None for one in of_kind} == {True, False}
    for one in of_kind:
        sites = find_sites(one.session, settings=TRAINED)
        found = [(s.kind, s.rule, s.turn) for s in sites if s.is_target]
        planted = [(kind, RULES[kind], one.log.mistake)]
        assert found == ([] if one.log.mistake is None else planted)
        assert {s.kind for s in sites if not s.is_target} <= {"test_failed"}
        assert len(hints_of(one.session, sites)) == len(found)


def test_the_hint_channel_trains_the_planted_message_and_nothing_else(
    recorded: list[Recorded], renderer: Renderer
) -> None:
    for one in recorded:
        example = built(one, renderer, settings=TRAINED)
        wanted = [] if one.log.mistake is None else [example.turns[one.log.mistake].body]
        assert [view.span for view in example.hints] == wanted


@pytest.mark.parametrize("settings", [SitesSettings(), TRAINED], ids=["by default", "trained"])
def test_lm_ce_trains_every_message_but_the_planted_one(
    recorded: list[Recorded], renderer: Renderer, settings: SitesSettings
) -> None:
    """By default no channel trains it at all: a twin of each kind is kept out of lm_ce."""
    kept_out: Counter[str] = Counter()
    for one in recorded:
        example = built(one, renderer, settings=settings)
        wanted = tuple(
            span.body
            for number, (span, turn) in enumerate(
                zip(example.turns, one.session.turns, strict=True)
            )
            if turn.role == "assistant" and number != one.log.mistake
        )
        assert example.lm_spans == wanted
        kept_out[one.log.task.kind] += one.log.mistake is not None
        assert settings.train_kinds or not example.hints
    assert all(kept_out[kind] > 1 for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_habit_is_rewarded_only_where_it_is_right(kind: Kind) -> None:
    seen: set[tuple[bool, bool]] = set()
    for seed in range(20):
        task = make_twin(f"{seed}", kind=kind, split="heldout")
        for careless in (False, True):
            env = TwinEnv(task, person=False)
            env.open()
            while not env.done:
                env.reply((by_habit(env) if careless else None) or right(env))
            name = kind if task.open else f"{kind}_control"
            measures = env.measures()
            is_mistaken = careless and task.open
            assert (
                measures[f"{name}_open"]
                == 1.0
                == sum(value for key, value in measures.items() if key.endswith("_open"))
            )
            assert measures[f"{name}_made"] == is_mistaken
            assert env.reward() == (not is_mistaken)
            seen.add((careless, task.open))
    assert len(seen) == 4


def test_the_words_that_the_hints_of_lessons_are_made_of_are_the_writers(
    recorded: list[Recorded],
) -> None:
    """A lesson teaches to follow texts that the writers write, and no others."""
    written = {
        hint.text
        for one in recorded
        for hint in hints_of(one.session, find_sites(one.session, settings=TRAINED))
    }
    lessons = [twin_lesson(f"{number}") for number in range(150)]
    taught = {turn.text for lesson in lessons for turn in lesson.turns if turn.tag == "hint"}
    assert {template_of(text) for text in written} <= {template_of(text) for text in taught}
    fixed = {text for text in written if template_of(text) != "taken_back"}
    assert fixed <= taught


def test_the_table_is_what_its_json_says() -> None:
    value = json.loads(RESULTS.read_text("utf-8"))
    assert render(value) in PAGE.read_text("utf-8")
    assert value["about"]["seeds"] == [11, 12, 13]
    steps = value["about"]["steps"]
    assert steps["after"] == steps["placebo"]
    for name in ROWS:
        for kind in (*KINDS, *(f"{kind}_control" for kind in KINDS)):
            row = value["rows"][name][kind]
            bits = "".join(row["bits"].values())
            assert len(bits) == row["n"] and bits.count("1") / len(bits) == row["made"]
    for seed in value["about"]["seeds"]:
        data = value["data"][str(seed)]
        assert data["lm_ce_on_sites"] == 0 and set(data["views"]) == set(KINDS)
