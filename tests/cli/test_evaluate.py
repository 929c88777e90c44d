"""`evaluate`: rows of a run, of its start and of its controls; the same seed gives the same
episodes bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from composer_replication.core.codec import read_sessions
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import RunDir
from tests.cli.workspace import CliResult, files, recompose
from tests.evaluation.small_judge import a_run
from tests.report.pages import Page

pytestmark = pytest.mark.train
FLAGS = ("--evaluate.tasks", "8", "--evaluate.samples", "200")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with a run and three controls, the last of which nulls no signal."""
    work = tmp_path_factory.mktemp("judged") / "recompose"
    for name, shift, placebo in (
        ("not", 0.05, ()),
        ("sft", 0.02, ()),
        ("null", 0.03, ("shuffled_hints", "permuted_rewards")),
    ):
        a_run(work, name, shift=shift, placebo=placebo)
    a_run(work, "main")
    return work.parent


def evaluated(work: Path, *more: str) -> CliResult:
    return recompose(
        "evaluate",
        "main",
        *FLAGS,
        "--against",
        "placebo=null",
        "--against",
        "more_sft=sft",
        *more,
        cwd=work,
    )


def test_it_writes_the_rows_and_pairs_that_are_asked_for(runs: Path) -> None:
    result = evaluated(runs, "--json")
    assert (result.code, result.err) == (0, "")
    run = RunDir(runs / "recompose" / "runs" / "main")
    value = json.loads(run.evaluation_json.read_text("utf-8"))
    assert {key: result.value[key] for key in value} == value
    assert [row["name"] for row in value["rows"]] == ["before", "more_sft", "placebo", "after"]
    wanted = {
        "n",
        "success",
        "success_low",
        "success_high",
        "targeted_mistakes_per_episode",
        "other_mistakes_per_episode",
    }
    assert all(wanted <= row.keys() and row["n"] == 8 for row in value["rows"])
    plain = [(pair["a"], pair["b"]) for pair in value["paired"] if "metric" not in pair]
    assert plain == [
        ("after", "before"),
        ("after", "more_sft"),
        ("after", "placebo"),
        ("more_sft", "before"),
        ("placebo", "before"),
    ]
    assert all({"difference", "low", "high"} <= pair.keys() for pair in value["paired"])
    assert any("By construction" in note for note in value["notes"]) and any(
        "warm-up" in note for note in value["notes"]
    )
    assert any("shuffled_hints" in note for note in value["notes"])
    assert (value["split"], value["n"], value["steps"]) == (
        "heldout",
        8,
        {"before": 0, "after": 2, "placebo": 2, "more_sft": 2},
    )
    assert len(set(value["weights_sha256"].values())) == 4
    for row in value["rows"]:
        sessions = list(read_sessions(run.path / "evaluation" / f"{row['name']}.jsonl"))
        assert len(sessions) == 8 and {s.origin for s in sessions} == {"student"}
        assert sum(s.outcome or 0 for s in sessions) == row["success"] * 8
    page = recompose("report", "main", cwd=runs)
    assert page.code == 0 and "By construction" in (run.path / "report.html").read_text("utf-8")


def test_tasks_that_are_not_the_users_are_called_so_on_the_screen_in_the_table_and_on_the_page(
    tmp_path: Path,
) -> None:
    """A run on logs was judged on 192 tasks of the workshop, without a word."""
    run = a_run(tmp_path / "recompose", "main")
    settings = run.resolved()
    for env, message in (
        ("", "not yours"),
        ("mine.py:make", "not of your environment 'mine.py:make'"),
        ("workshop", ""),
    ):
        write_json(
            run.resolved_json, {**settings, "rollouts": {**settings["rollouts"], "env": env}}
        )
        result = recompose("evaluate", "main", *FLAGS, cwd=tmp_path)
        assert result.code == 0, result.err
        assert recompose("report", "main", "-q", cwd=tmp_path).code == 0
        notes, page = (
            json.loads(run.evaluation_json.read_text("utf-8"))["notes"],
            Page(run.report_html.read_text("utf-8")).text,
        )
        if not message:
            assert (
                "not yours" not in result.out + page
                and "not of your" not in result.out + page + "".join(notes)
            )
            continue
        assert message in notes[0] and "`recompose evaluate main --logs`" in notes[0]
        assert "In the workshop (a toy, not your work)" in result.out
        assert result.out.rstrip().index("Your own logs: not evaluated yet") > result.out.index(
            "Nothing is claimed"
        )
        lead = page.index("Not evaluated on your own logs yet, so nothing is claimed")
        assert lead < page.index("a toy and not your work: Success on held-out tasks")
        assert result.out.index(message) < result.out.index(" for each of")
        assert notes[0].replace("`", "") in page  # a command is code there
        dry = recompose("evaluate", "main", *FLAGS, "--dry-run", "--json", cwd=tmp_path)
        assert message in dry.value["notes"][0]


def test_the_same_seed_gives_the_same_table_bit_for_bit_and_another_does_not(runs: Path) -> None:
    path = runs / "recompose" / "runs" / "sft" / "evaluation.json"
    call = ("evaluate", "sft", *FLAGS)
    assert recompose(*call, cwd=runs).code == 0
    first = path.read_bytes()
    path.unlink()
    assert recompose(*call, "--evaluate.workers", "2", cwd=runs).code == 0
    assert path.read_bytes() == first
    assert recompose(*call, "--seed", "8", cwd=runs).code == 0
    assert json.loads(path.read_bytes())["rows"] != json.loads(first)["rows"]


def test_other_weights_give_other_rows_although_a_table_lies_there(tmp_path: Path) -> None:
    run = a_run(tmp_path / "recompose", "main")
    call = ("evaluate", "main", *FLAGS)
    assert recompose(*call, cwd=tmp_path).code == 0
    old = json.loads(run.evaluation_json.read_bytes())
    later = a_run(tmp_path / "elsewhere", "main", shift=0.2)
    later.checkpoint(2).rename(run.checkpoint(3))
    assert recompose(*call, cwd=tmp_path).code == 0
    new = json.loads(run.evaluation_json.read_bytes())
    rows = [{row["name"]: row for row in table["rows"]} for table in (old, new)]
    assert rows[0]["before"] == rows[1]["before"] and rows[0]["after"] != rows[1]["after"]
    assert (
        old["weights_sha256"]["after"] != new["weights_sha256"]["after"]
        and new["steps"]["after"] == 3
    )


def test_a_dry_run_names_the_rows_and_writes_nothing(runs: Path) -> None:
    files_before = files(runs)
    result = recompose("evaluate", "sft", "--dry-run", "--json", cwd=runs)
    assert (
        result.code == 0
        and result.value["rows"] == ["before", "after"]
        and files(runs) == files_before
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--against", "placebo=not"), "nulls no signal"),
        (("--against", "more_sft=main"), "the same student, weight by weight"),
        (("--against", "sft=sft", "--against", "sft=not"), "two rows are named"),
        (("--against", "after=sft"), "two rows are named"),
        (("--against", "sft"), "not NAME=RUN"),
        (("--against", "../x=sft"), "not NAME=RUN"),
        (("--evaluate.split", "train"), "evaluate.split"),
    ],
)
def test_a_row_that_is_not_what_it_is_called_is_refused(
    runs: Path, flags: tuple[str, ...], message: str
) -> None:
    result = recompose("evaluate", "main", "--evaluate.tasks", "2", *flags, cwd=runs)
    assert (
        result.code in (1, 2)
        and message in " ".join(result.err.replace("│", " ").split())
        and "Traceback" not in result.err
    )


def test_controls_from_another_start_or_of_other_steps_are_refused(tmp_path: Path) -> None:
    work = tmp_path / "recompose"
    a_run(work, "main")
    a_run(work, "other", placebo=("swapped_pairs",), seed=8)
    a_run(work, "short", placebo=("swapped_pairs",), steps=1, shift=0.01)
    a_run(work, "long", placebo=("swapped_pairs",), steps=3, shift=0.02)
    asked = {
        "other": "started from another student",
        "short": "a placebo of 1 steps, the run has 2",
        "long": "a placebo of 3 steps",
    }
    for name, message in asked.items():
        result = recompose(
            "evaluate",
            "main",
            "--evaluate.tasks",
            "2",
            "--against",
            f"placebo={name}",
            cwd=tmp_path,
        )
        assert result.code == 1 and message in " ".join(result.err.replace("│", " ").split())
