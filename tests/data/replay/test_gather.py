"""Which steps are asked about and by whom: the chosen steps, the gate, the student's own family,
and what ends the asking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import record_to_json
from composer_replication.core.config.rollout_settings import ReplaySettings
from composer_replication.core.errors import DataError, TeacherError
from composer_replication.core.jsonl import write_lines
from composer_replication.core.redact import Redactor
from composer_replication.core.site import Answer
from composer_replication.core.teacher import FREE, Price, Request, TeacherReply
from composer_replication.core.trace import (
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from composer_replication.data.curate.curator import Curator
from composer_replication.data.curate.recipe import load_recipe
from composer_replication.data.replay.agree import AnsweredTurn
from composer_replication.data.replay.ask import replay
from composer_replication.data.replay.gather import Gathered, gather, lookup
from composer_replication.data.replay.price_gate import still_open
from composer_replication.data.replay.steps import all_steps, choose_steps
from composer_replication.data.teachers.asking import Asker, RetryPolicy
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from composer_replication.data.teachers.recorded_teachers import recorded_teachers
from composer_replication.data.teachers.scripted import Scripted
from tests.data.teachers.fake_teacher import READ, FakeTeacher, calling, reply

CENT = Price(input_usd_per_mtok=0.01 * 1e6)
SETTINGS = ReplaySettings(steps="all", min_families=3, settled_after=0, need_evidence=False)


def talk(
    name: str = "s1", *, steps: int = 3, author: str = "tiny", errors: Sequence[int] = ()
) -> Session:
    turns = [Turn(role="user", author="human", blocks=(Text(f"Look at {name}."),))]
    for number in range(steps):
        call = ToolCall(f"{name}-{number}", "read", {"path": f"{number}.py"})
        turns.append(Turn(role="assistant", author=author, blocks=(call,)))
        turns.append(
            Turn(
                role="tool",
                author="environment",
                blocks=(ToolResult(call.id, "text", number in errors),),
            )
        )
    return Session(
        id=name,
        source=SourceRef(file="f"),
        turns=tuple(turns),
        segments=(Segment(start=0, end=len(turns)),),
    )


def same_as_student(request: Request) -> Turn:
    number = (len(request.turns) - 1) // 2
    return calling("read", path=f"{number}.py")


def other(request: Request) -> Turn:
    return calling("search", text="f")


def teacher(
    name: str, act: Callable[[Request], Turn], *, price: Price = CENT, **facts: Any
) -> FakeTeacher:
    async def answer(request: Request) -> TeacherReply:
        return TeacherReply(
            turn=act(request), usage=reply(usd=0.0 if price.free else 0.001).usage, **facts
        )

    return FakeTeacher(answer, name=name, family=name, price=price, salt=name)


def run(
    tmp_path: Path,
    sessions: Sequence[Session],
    teachers: Sequence[Any],
    settings: ReplaySettings = SETTINGS,
    **options: Any,
) -> Gathered:
    steps, max_usd = options.pop("steps", all_steps), options.pop("max_usd", 5.0)

    async def work() -> Gathered:
        with Ledger(tmp_path / LEDGER_NAME, max_usd=max_usd) as ledger:
            asker = Asker(ledger, retry_policy=RetryPolicy(attempts=2, first_wait_s=0.001))
            return await gather(
                sessions,
                teachers,
                asker=asker,
                steps=steps,
                settings=settings,
                redactor=Redactor(key=b"a store"),
                **options,
            )

    return asyncio.run(work())


def who(gathered: Gathered) -> list[str]:
    return [answer.teacher for answer in gathered.answers]


def test_the_second_is_asked_only_where_the_first_did_something_else(tmp_path: Path) -> None:
    def first(request: Request) -> Turn:
        return same_as_student(request) if request.about != "s1:3:-" else other(request)

    gathered = run(
        tmp_path, [talk()], [teacher("a", first), teacher("b", other), teacher("c", other)]
    )
    assert [(a.site_id, a.teacher) for a in gathered.answers] == [
        ("s1:1:-", "a"), ("s1:3:-", "a"), ("s1:3:-", "b"), ("s1:3:-", "c"), ("s1:5:-", "a"),
    ]  # fmt: skip
    assert gathered.counts == {"bought": 5, "settled": 2} and gathered.asked == {
        ("s1", 1),
        ("s1", 3),
        ("s1", 5),
    }
    outcomes = [
        result.outcome for result in replay([talk()], lookup(gathered.answers), min_families=3)
    ]
    assert outcomes == ["too_few_families", "pair", "too_few_families"]


def test_without_a_gate_and_where_it_costs_nothing_everybody_is_asked(tmp_path: Path) -> None:
    paid = [teacher(name, same_as_student) for name in "abc"]
    assert (
        who(run(tmp_path, [talk()], paid, SETTINGS.model_copy(update={"gate": "none"})))
        == list("abc") * 3
    )
    free = [teacher(name, same_as_student, price=FREE) for name in "def"]
    assert who(run(tmp_path, [talk()], free)) == list("def") * 3


def test_the_gate_closes_when_no_answer_can_change_what_comes_of_it() -> None:
    student_call, a, b = calling("own"), calling("x"), calling("y")

    def is_open(
        *turns: Turn, left: int, least: int = 3, problem: str = "", confidence: float | None = None
    ) -> bool:
        answers = [
            Answer(
                site_id="s",
                teacher=str(n),
                family=str(n),
                turn=turn,
                problem=problem,
                confidence=confidence,
            )
            for n, turn in enumerate(turns)
        ]
        place = AnsweredTurn(
            session_id="s", turn=1, student_turn=student_call, answers=tuple(answers)
        )
        return still_open(place, left=left, min_families=least, min_confidence=0.5)

    assert is_open(a, left=2) and is_open(a, a, left=1)
    assert not is_open(student_call, left=2)  # the first agrees with the student
    # three of three cannot be reached any more; two can
    assert not is_open(a, b, left=1) and is_open(a, b, left=1, least=2)
    # a pair already
    assert not is_open(a, a, left=0, least=2) and not is_open(a, a, left=1, least=2)
    assert is_open(a, student_call, left=1, least=2)
    assert (
        is_open(student_call, left=3, problem="cut_off")
        and is_open(student_call, left=3, confidence=0.4)
        and not is_open(student_call, left=3, confidence=0.6)
    )
    # it could not be used, and two are not three
    assert not is_open(student_call, left=2, problem="cut_off")


def test_the_traces_own_family_is_not_asked(tmp_path: Path) -> None:
    teachers = [teacher("anthropic", other), teacher("b", other)]
    gathered = run(
        tmp_path,
        [talk(author="claude-opus-4-5")],
        teachers,
        SETTINGS.model_copy(update={"min_families": 2, "gate": "none"}),
    )
    assert who(gathered) == ["b"] * 3 and gathered.counts["own_family"] == 3


def test_a_trace_on_which_agreement_is_settled_is_left(tmp_path: Path) -> None:
    steps = lambda session: choose_steps(session, sites={19}, sampled=9)  # noqa: E731 - the signature says it all
    settings = SETTINGS.model_copy(update={"settled_after": 3})
    gathered = run(
        tmp_path,
        [talk(steps=10)],
        [teacher("a", same_as_student), teacher("b", other), teacher("c", other)],
        settings,
        steps=steps,
    )
    # a mistake is asked about all the same
    assert [a.site_id for a in gathered.answers] == ["s1:1:-", "s1:3:-", "s1:5:-", "s1:19:-"]
    assert gathered.counts["trace_settled"] == 6


def test_a_failure_is_counted_and_the_others_go_on(tmp_path: Path) -> None:
    async def broken(request: Request) -> TeacherReply:
        raise TeacherError("status 503", again=True, billed=False)

    settings = SETTINGS.model_copy(update={"gate": "none"})
    gathered = run(
        tmp_path,
        [talk()],
        [FakeTeacher(broken, name="a", family="a", price=CENT), teacher("b", other)],
        settings,
    )
    assert who(gathered) == ["b"] * 3 and gathered.stopped is None
    assert gathered.counts == {"bought": 3, "failed": 3, "failed: status 503": 3}


def test_an_answer_with_a_problem_is_kept_and_does_not_vote(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"gate": "none"})
    teachers = [
        teacher("a", other),
        teacher("b", other),
        teacher("c", other, problem="unknown_tool"),
    ]
    gathered = run(tmp_path, [talk(steps=1)], teachers, settings)
    assert (
        len(gathered.answers) == 3
        and gathered.answers[2].problem == "unknown_tool"
        and gathered.counts["problem: unknown_tool"] == 1
    )
    (result,) = replay([talk(steps=1)], lookup(gathered.answers), min_families=3)
    assert result.outcome == "outvoted" and len(result.answers) == 2


def test_the_ceiling_stops_it_and_what_was_bought_comes_back(tmp_path: Path) -> None:
    gathered = run(
        tmp_path,
        [talk(steps=9)],
        [teacher("a", other)],
        SETTINGS.model_copy(update={"gate": "none"}),
        max_usd=0.013,
    )
    # $0.001 each, $0.01 at worst
    assert (
        gathered.stopped is not None
        and gathered.stopped.exit_code == 4
        and len(gathered.answers) == 4
    )
    again = run(
        tmp_path,
        [talk(steps=9)],
        [teacher("a", other)],
        SETTINGS.model_copy(update={"gate": "none"}),
        max_usd=1.0,
    )
    assert (
        len(again.answers) == 9
        and again.counts == {"bought": 5, "kept": 4}
        and again.stopped is None
    )


def test_which_steps_are_asked_about() -> None:
    log = talk(steps=12, errors=(2, 6))  # turns 5 and 13 raise errors, 7 and 15 follow them
    assert [step.turn for step in all_steps(log)] == list(range(1, 25, 2))
    chosen = choose_steps(log, sites={5, 7, 13}, sampled=3, seed=1)
    # 7 is right after an error: no pair is made of it
    assert [step.turn for step in chosen if step.why == "site"] == [5, 13]
    sampled = [step.turn for step in chosen if step.why == "sampled"]
    assert (
        len(sampled) == 3
        and not {5, 7, 13, 15} & set(sampled)
        and chosen == choose_steps(log, sites={5, 7, 13}, sampled=3, seed=1)
    )
    draws = {
        tuple(step.turn for step in choose_steps(log, sampled=3, seed=seed)) for seed in range(20)
    }
    assert len(draws) > 5 and len(choose_steps(log, sampled=99)) == 10


def test_answers_of_a_file_stand_for_the_teachers_that_gave_them(tmp_path: Path) -> None:
    from composer_replication.core.codec import record_to_json
    from composer_replication.core.jsonl import write_lines

    gathered = run(
        tmp_path,
        [talk()],
        [teacher("a", other), teacher("b", other)],
        SETTINGS.model_copy(update={"gate": "none"}),
    )
    file = tmp_path / "answers.jsonl"
    write_lines(file, map(record_to_json, gathered.answers))
    teachers = recorded_teachers(file)
    assert [(t.name, t.family) for t in teachers] == [("a", "a"), ("b", "b")]
    again = run(tmp_path, [talk(), talk("s2")], teachers)
    assert [(a.site_id, a.teacher, a.turn.calls) for a in again.answers] == [
        (a.site_id, a.teacher, a.turn.calls) for a in gathered.answers
    ]
    assert again.counts["failed: no recorded answer"] == 6
    write_lines(file, map(record_to_json, (*gathered.answers, gathered.answers[0])))
    with pytest.raises(DataError, match="twice"):
        recorded_teachers(file)


def test_a_scripted_teacher_is_asked_and_not_kept(tmp_path: Path) -> None:
    gathered = run(tmp_path, [talk()], [Scripted("rule", "rules", other)])
    assert who(gathered) == ["rule"] * 3 and {a.request for a in gathered.answers} == {""}


def failing(name: str = "s1", *, steps: int, at: Sequence[int]) -> Session:
    """A session in which some calls name a missing file, which is evidence against them."""
    log = talk(name, steps=steps)
    turns = list(log.turns)
    for number in at:
        call_id = turns[2 + 2 * number].results[0].call_id
        turns[2 + 2 * number] = replace(
            turns[2 + 2 * number], blocks=(ToolResult(call_id, "File does not exist.", True),)
        )
    calls = [
        replace(turn, blocks=(ToolCall(c.id, "Read", c.arguments),))
        for turn in turns[1::2]
        for c in turn.calls
    ]
    turns[1::2] = calls
    return replace(log, turns=tuple(turns))


def test_with_evidence_asked_for_only_places_with_evidence_are_paid_for(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"need_evidence": True})
    teachers = [
        teacher("a", other),
        teacher("b", other),
        teacher("c", other),
        teacher("free", other, price=FREE),
    ]
    gathered = run(tmp_path, [failing(steps=3, at=[0])], teachers, settings)
    assert [(a.site_id, a.teacher) for a in gathered.answers] == [
        ("s1:1:-", "a"), ("s1:1:-", "b"), ("s1:1:-", "c"), ("s1:1:-", "free"), ("s1:3:-", "free"),
        ("s1:5:-", "free"),
    ]  # fmt: skip
    assert gathered.counts == {"after_error": 1, "bought": 6, "no_evidence": 1}
    assert (
        who(run(tmp_path / "measured", [talk()], teachers[:3], settings, gaps=True))
        == list("abc") * 3
    )
    assert (
        who(
            run(
                tmp_path / "ungated",
                [talk()],
                teachers[:3],
                settings.model_copy(update={"gate": "none"}),
            )
        )
        == list("abc") * 3
    )


def test_a_settled_trace_leaves_out_no_step_that_something_speaks_against(tmp_path: Path) -> None:
    steps = lambda session: choose_steps(session, sampled=9)  # noqa: E731 - the signature says it all
    settings = SETTINGS.model_copy(update={"settled_after": 2})
    teachers = [
        teacher("a", lambda request: calling("Read", path=f"{(len(request.turns) - 1) // 2}.py")),
        teacher("b", other),
    ]
    gathered = run(
        tmp_path,
        [failing(steps=9, at=[5])],
        teachers,
        settings.model_copy(update={"min_families": 2}),
        steps=steps,
    )
    assert [a.site_id for a in gathered.answers] == [
        "s1:1:-",
        "s1:3:-",
        "s1:11:-",
    ] and gathered.counts["trace_settled"] == 5


def test_an_answer_that_cannot_be_used_settles_no_trace(tmp_path: Path) -> None:
    steps = lambda session: choose_steps(session, sampled=9)  # noqa: E731 - the signature says it all
    settings = SETTINGS.model_copy(update={"settled_after": 2})
    teachers = [
        teacher("a", same_as_student, problem="cut_off"),
        teacher("b", other),
        teacher("c", other),
    ]
    gathered = run(tmp_path, [talk(steps=5)], teachers, settings, steps=steps)
    # two are left, and three are needed
    assert who(gathered) == ["a"] * 5 and gathered.counts["settled"] == 5


def test_too_few_families_are_not_paid_for_an_answer_of_which_no_pair_can_come(
    tmp_path: Path,
) -> None:
    teachers = [teacher("a", other), teacher("anthropic", other), teacher("c", other)]
    sessions = [talk("s1", author="claude-opus-4-5"), talk("s2", author="tiny")]
    gathered = run(tmp_path, sessions, teachers)
    assert {a.site_id.partition(":")[0] for a in gathered.answers} == {"s2"} and gathered.counts[
        "too_few_families"
    ] == 3


def test_the_gate_asks_on_where_answers_agree_at_a_looser_tier(tmp_path: Path) -> None:
    ways = {
        name: calling("Bash", command=f"pytest {flag} tests/a.py")
        for name, flag in zip("abc", ("-x", "-q", "-v"), strict=True)
    }
    teachers = [teacher(name, lambda request, turn=turn: turn) for name, turn in ways.items()]
    loose = SETTINGS.model_copy(update={"tiers": ("exact", "target")})
    assert who(run(tmp_path / "exact", [talk(steps=1)], teachers)) == ["a", "b"]
    gathered = run(tmp_path / "target", [talk(steps=1)], teachers, loose)
    (result,) = replay([talk(steps=1)], lookup(gathered.answers), min_families=3, tiers=loose.tiers)
    assert who(gathered) == ["a", "b", "c"] and result.outcome == "pair"


def test_a_bad_answer_is_dropped_while_replay_runs_and_the_next_teacher_is_asked_in_its_place(
    tmp_path: Path,
) -> None:
    """A path that is a number does not fit the tool: the first answer has no vote, so three of the
    others are still needed, and asked."""
    session = replace(talk(steps=1), tools=(READ,))
    curator = Curator(load_recipe("default"))

    def refuse(session: Session, turn: Turn) -> str:
        return curator.check_answer(turn, tools={tool.name: tool for tool in session.tools})

    teachers = [
        teacher("a", lambda request: calling("read", path=7)),
        teacher("b", lambda request: calling("read", path="b.py")),
        teacher("c", lambda request: calling("read", path="b.py")),
        teacher("d", lambda request: calling("read", path="b.py")),
    ]
    gathered = run(tmp_path, [session], teachers, refuse=refuse)
    assert who(gathered) == list("abcd") and [
        bool(answer.problem) for answer in gathered.answers
    ] == [True, False, False, False]
    assert (
        gathered.answers[0].problem.startswith("curate: tool_arguments_filter: read: ")
        and gathered.answers[0].usd == 0.001
    )
    assert gathered.counts == {
        "bought": 4,
        "problem: curate: tool_arguments_filter": 1,
    } and curator.refused == {"tool_arguments_filter": 1}
    (result,) = replay([session], lookup(gathered.answers), min_families=3)
    assert result.outcome == "pair" and [a.teacher for a in result.answers] == ["b", "c", "d"]
    again = run(tmp_path, [session], teachers)  # the ledger keeps the answer, not the verdict on it
    assert again.counts["kept"] == len(again.answers) and not again.answers[0].problem


def test_a_second_run_with_the_same_redactor_key_buys_nothing(tmp_path: Path) -> None:
    secret_request = Turn(
        role="user", author="human", blocks=(Text("The key is ghp_" + "a1B2c3D4" * 5),)
    )
    secret = replace(talk(), turns=(secret_request, *talk().turns[1:]))
    settings = SETTINGS.model_copy(update={"gate": "none"})
    first, second = (run(tmp_path, [secret], [teacher("a", other)], settings) for _ in range(2))
    assert first.counts == {"bought": 3} and second.counts == {"kept": 3}


CLAUDE, OTHER = "anthropic/claude-opus-4-5-20251101", "moonshotai/kimi-k2.6"


def fallen_back(request: Request, *, to: str, act: Callable[[Request], Turn] = other) -> Turn:
    return replace(act(request), author=to)


def test_the_family_is_that_of_the_model_that_answered(tmp_path: Path) -> None:
    """A router that falls back to the maker of the trace's own model, or of another teacher's, adds
    that family's vote and no second one."""
    own_teacher = teacher("a", lambda request: fallen_back(request, to=CLAUDE))
    same = teacher("b", lambda request: fallen_back(request, to=OTHER))
    honest = replace(
        teacher("c", lambda request: fallen_back(request, to="kimi-k2")), family="moonshot"
    )
    settings = SETTINGS.model_copy(update={"gate": "none", "min_families": 2})
    session = talk(steps=1, author="claude-opus-4-5")
    gathered = run(tmp_path, [session], [own_teacher, same, honest], settings)
    assert [answer.family for answer in gathered.answers] == ["anthropic", "moonshot", "moonshot"]
    assert gathered.counts["own_family answered"] == 1
    (asked,) = replay([session], lookup(gathered.answers), min_families=2)
    assert asked.outcome == "too_few_families"
    path = tmp_path / "answers.jsonl"
    write_lines(path, map(record_to_json, gathered.answers))
    again = run(tmp_path, [session], recorded_teachers(path), settings)
    assert again.counts["own_family"] == 1 and [item.family for item in again.answers] == [
        "moonshot",
        "moonshot",
    ]


def test_a_first_answer_of_the_traces_own_maker_does_not_close_the_gate(tmp_path: Path) -> None:
    first = teacher("a", lambda request: fallen_back(request, to=CLAUDE, act=same_as_student))
    rest = [teacher(name, other) for name in "bcd"]
    gathered = run(tmp_path, [talk(steps=1, author="claude-opus-4-5")], [first, *rest])
    assert who(gathered) == ["a", "b", "c", "d"]


def test_answers_of_one_teacher_may_be_of_two_families_where_their_authors_are(
    tmp_path: Path,
) -> None:
    answers = [
        Answer(
            site_id=f"s1:{n}:-",
            teacher="a",
            family=family,
            turn=replace(calling("read"), author=author),
        )
        for n, (family, author) in enumerate(
            [("zhipu", "glm-5"), ("zhipu", "x"), ("anthropic", CLAUDE)]
        )
    ]
    write_lines(tmp_path / "a", map(record_to_json, answers))
    (recorded,) = recorded_teachers(tmp_path / "a")
    assert recorded.family == "zhipu"
    write_lines(
        tmp_path / "b",
        map(record_to_json, [*answers, replace(answers[0], site_id="s1:9:-", family="other")]),
    )
    with pytest.raises(DataError, match="two families"):
        recorded_teachers(tmp_path / "b")
