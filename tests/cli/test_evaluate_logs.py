"""`train.fork` and `evaluate --logs` in a small work folder: the plan before training, the rows
after it, and the refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from composer_replication.core.codec import record_to_json, write_sessions
from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.core.jsonl import write_lines
from composer_replication.evaluation.power import smallest_difference
from composer_replication.tokens.split import is_held_out, unit_number
from tests.cli.workspace import CliResult, files, recompose
from tests.rollouts.logged import hint, session, site

pytestmark = pytest.mark.train
HELD = ("--held_out.fraction", "0.5")
TRAIN = (
    "--train.steps",
    "2",
    "--train.batch_examples",
    "2",
    "--train.checkpoint_every",
    "2",
    *HELD,
)
FLAGS = (
    "--evaluate.log_samples",
    "2",
    "--evaluate.log_max_new_tokens",
    "8",
    "--evaluate.samples",
    "200",
)
NAMES = {f"s{n}": f"acme/app{n}" for n in range(6)}
OUT = {
    n
    for n, r in NAMES.items()
    if is_held_out(
        session(name=n, repository=r), settings=HeldOutSettings(by="repository", fraction=0.5)
    )
}


def fill(work: Path) -> None:
    """Six sessions of six repositories, each with one mistake and its hint; the hints differ, so
    that a placebo can shuffle them."""
    write_sessions(
        work / "sessions.jsonl", [session(name=n, repository=r) for n, r in NAMES.items()]
    )
    write_lines(work / "sites.jsonl", [record_to_json(site(name=n)) for n in NAMES])
    hints = [
        replace(hint(name=n), text=f"Reminder number {n}: available tools: Read, Edit, Bash.")
        for n in NAMES
    ]
    write_lines(work / "hints.jsonl", map(record_to_json, hints))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A work folder with a run on the logs, its placebo, and a run that forks."""
    place = tmp_path_factory.mktemp("logs")
    fill(place / "recompose")
    assert recompose("build", *HELD, "-q", cwd=place).code == 0
    for name, more in (("main", ()), ("null", ("--train.placebo", "shuffled_hints"))):
        assert recompose("train", "--name", name, *TRAIN, *more, "-q", cwd=place).code == 0
    yield place


def read(result: CliResult) -> str:
    return " ".join((result.out + result.err).replace("│", " ").split())


def test_before_training_it_says_how_many_sites_there_are_and_what_they_can_show(
    tmp_path: Path,
) -> None:
    fill(tmp_path / "recompose")
    files_before = files(tmp_path)
    result = recompose("evaluate", "--logs", *HELD, cwd=tmp_path)
    assert result.code == 0 and files(tmp_path) == files_before and 1 < len(OUT) < 6
    assert f"{len(OUT)} mistakes in {len(OUT)} of {len(OUT)} held-out sessions" in read(result)
    assert (
        "80 % power" in read(result)
        and "Connor 1987" in read(result)
        and f"left out {6 - len(OUT)} training" in read(result)
    )
    value = recompose("evaluate", "--logs", *HELD, "--json", cwd=tmp_path).value
    assert (value["plan"]["sites"], value["plan"]["kinds"]) == (
        len(OUT),
        {"unknown_tool": len(OUT)},
    )
    none = recompose("evaluate", "--logs", cwd=tmp_path)
    assert none.code == 0 and "0 mistakes" in read(none) and "held_out.fraction = 0.2" in read(none)


def test_build_says_if_the_held_out_mistakes_are_too_few_and_which_share_is_enough(
    tmp_path: Path,
) -> None:
    """Two held-out mistakes beside 31 in training sessions can show nothing, after a training."""
    names = [f"s{n:02d}" for n in range(33)]
    work = tmp_path / "recompose"
    write_sessions(
        work / "sessions.jsonl", [session(name=n, repository=f"acme/{n}") for n in names]
    )
    write_lines(work / "sites.jsonl", [record_to_json(site(name=n)) for n in names])
    write_lines(work / "hints.jsonl", [record_to_json(hint(name=n)) for n in names])
    numbers = sorted(unit_number(f"acme/{n}") for n in names)
    two = ("--held_out.fraction", f"{(numbers[1] + numbers[2]) / 2}")
    said = read(recompose("build", *two, "--dry-run", cwd=tmp_path))
    line = r"few 2 mistakes held out, too few to show any change; 31 in training sessions: set"
    (fraction,) = re.findall(rf"{line} held_out.fraction = ([\d.]+)", said)
    more = ("--held_out.fraction", fraction)
    value = recompose("build", *more, "--dry-run", "--json", cwd=tmp_path).value["evaluable"]
    enough = smallest_difference(value["sites"], clusters=value["sites"])
    assert not value["too_few"] and enough is not None and value["left_out"]["training"] > 20
    assert " few " not in read(recompose("build", *more, "--dry-run", cwd=tmp_path))
    most = max(n for n in range(2, 20) if smallest_difference(n, clusters=n) is None)
    for num, too_few in ((most, True), (most + 1, False)):
        share = ("--held_out.fraction", f"{(numbers[num - 1] + numbers[num]) / 2}")
        value = recompose("build", *share, "--dry-run", "--json", cwd=tmp_path).value["evaluable"]
        assert (value["sites"], value["too_few"]) == (num, too_few)


def test_more_logs_are_asked_for_where_no_share_holds_out_enough(tmp_path: Path) -> None:
    fill(tmp_path / "recompose")
    said = read(recompose("build", *HELD, "--dry-run", cwd=tmp_path))
    assert f"{len(OUT)} mistakes held out, too few to show any change" in said
    assert "no share up to half does; only more logs help" in said


def test_where_no_mistake_is_held_out_build_and_evaluate_name_a_split_that_holds_some(
    tmp_path: Path,
) -> None:
    """The one repository that is held out has no mistake: a training would end in a refusal."""
    names, work = [f"s{n}" for n in range(6)], tmp_path / "recompose"
    units = {n: f"acme/{n}" for n in names}
    lowest = min(map(unit_number, units.values()))
    units["good"] = next(u for u in map("acme/{}".format, range(999)) if unit_number(u) < lowest)
    write_sessions(
        work / "sessions.jsonl", [session(name=n, repository=unit) for n, unit in units.items()]
    )
    write_lines(work / "sites.jsonl", [record_to_json(site(name=n)) for n in names])
    write_lines(work / "hints.jsonl", [record_to_json(hint(name=n)) for n in names])
    flags = ("--held_out.by", "repository", "--held_out.fraction", f"{lowest}")
    said = read(recompose("build", *flags, cwd=tmp_path))
    line = r"only more logs help\. set (.*?) to evaluate at (\d) of them"
    ((what, count),) = re.findall(rf"0 mistakes held out, .*{line}", said)
    assert recompose("train", "--name", "main", *TRAIN, *flags, "-q", cwd=tmp_path).code == 0
    refused = recompose("evaluate", "main", "--logs", *flags, cwd=tmp_path)
    assert refused.code == 1 and f"set {what}, which holds out {count} mistakes" in read(refused)
    values = dict(setting.split(" = ") for setting in what.split(" and "))
    better = [word for name, value in values.items() for word in (f"--{name}", json.loads(value))]
    built = recompose("build", *flags, *map(str, better), "--json", cwd=tmp_path).value
    assert built["evaluable"]["sites"] == int(count) > 0


def test_build_and_a_dry_run_say_how_many_sites_fit_and_what_would_help(tmp_path: Path) -> None:
    """The window is the run's: a person must learn before training that no site fits it."""
    fill(tmp_path / "recompose")
    built = recompose("build", *HELD, "--json", cwd=tmp_path).value["evaluable"]
    assert built["sites"] == built["evaluable"] == len(OUT) and built["lost"] == {}
    assert built["left_out"] == {"training": 6 - len(OUT)}
    room = ("--evaluate.log_max_new_tokens", "4090")
    for argv in (("build", *HELD, *room), ("train", "--dry-run", *TRAIN, *room)):
        said = read(recompose(*argv, cwd=tmp_path))
        assert f"evaluate 0 of {len(OUT)} held-out mistakes fit" in said, said
        assert f"too_long {len(OUT)}" in said and "--build.max_tokens 8192" in said
    wide = recompose("build", *HELD, *room, "--build.max_tokens", "8192", "--json", cwd=tmp_path)
    assert wide.value["evaluable"]["evaluable"] == len(OUT)
    assert recompose("build", "--json", cwd=tmp_path).value["evaluable"] is None


def test_sites_that_do_not_fit_name_the_runs_setting_and_one_that_helps(folder: Path) -> None:
    long = ("--evaluate.log_max_new_tokens", "4090")
    result = recompose("evaluate", "main", "--logs", *HELD, *long, cwd=folder)
    assert result.code == 1, result.out
    said = read(result)
    assert f"no context of {len(OUT)} held-out sites fits: too_long {len(OUT)}" in said
    assert "build.max_tokens = 4096 of the run" in said
    assert f"recompose build {' '.join(HELD)} --build.max_tokens 8192, and train with that" in said


def test_it_writes_the_rows_with_intervals_and_a_null_result_is_told_as_one(folder: Path) -> None:
    call = ("evaluate", "main", "--logs", *FLAGS, *HELD, "--against", "placebo=null")
    dry = recompose(*call, "--dry-run", "--json", cwd=folder)
    assert (
        dry.code == 0
        and dry.value["rows"] == ["before", "after", "placebo"]
        and dry.value["plan"]["sites"] == len(OUT)
    )
    assert not (folder / "recompose" / "runs" / "main" / "evaluation_logs.json").exists()
    result = recompose(*call, "--json", cwd=folder)
    assert (result.code, result.err) == (0, "")
    run = folder / "recompose" / "runs" / "main"
    table = json.loads((run / "evaluation_logs.json").read_text("utf-8"))
    assert {key: result.value[key] for key in table} == table
    assert [row["name"] for row in table["rows"]] == ["before", "placebo", "after"]
    for row in table["rows"]:
        assert row["n"] == row["sessions"] == len(OUT) and row["samples"] == 2 * len(OUT)
        # eight tokens of a student that knows nothing
        assert row["recurrence"] == 0.0 and row["undecided"] + row["malformed"] == 1.0
        assert row["recurrence_low"] == 0.0 < row["recurrence_high"]
        lines = [
            json.loads(line)
            for line in (
                (run / "evaluation_logs" / f"{row['name']}.jsonl").read_text("utf-8").splitlines()
            )
        ]
        assert all(
            fork["message"]["role"] == "assistant" and fork["message"]["author"] == row["name"]
            for fork in lines
        )
        assert {fork["session_id"] for fork in lines} == OUT and {
            fork["origin"] for fork in lines
        } == {"student"}
    pairs = {(p["a"], p["b"]) for p in table["paired"]}
    assert pairs == {("after", "before"), ("after", "placebo"), ("placebo", "before")}
    assert table["verdict"]["claim"] == "nothing" and table["verdict"]["sentence"].startswith(
        "Null result"
    )
    assert len(set(table["weights_sha256"].values())) == 3 and table["steps"] == {
        "before": 0,
        "after": 2,
        "placebo": 2,
    }
    again = recompose(*call, cwd=folder)
    assert (
        again.code == 0 and json.loads((run / "evaluation_logs.json").read_text("utf-8")) == table
    )
    assert "Null result" in read(again) and "recurrence: after - before" in read(again)
    assert "h001 unknown_tool" in read(again) and "log Reed {" in read(again)
    shown = recompose("show", "run", "main", "--full", cwd=folder)
    assert (
        shown.code == 0
        and "Null result" in read(shown)
        and f"h{len(OUT):03d} unknown_tool" in read(shown)
    )
    assert recompose("report", "main", "-q", cwd=folder).code == 0
    page = (run / "report.html").read_text("utf-8")
    assert (
        page.count('class="held"') == len(OUT) == page.count("in the log") and "Null result" in page
    )


def test_what_the_run_was_trained_on_is_not_judged(folder: Path, tmp_path: Path) -> None:
    """The split is that of the run; examples of a held-out session are found, and missing examples
    are reported."""
    # these flags do not name the split
    result = recompose("evaluate", "main", "--logs", "--dry-run", "--json", cwd=folder)
    assert (
        result.code == 0
        and result.value["plan"]["sites"] == len(OUT)
        and result.value["notes"] == []
    )
    work = tmp_path / "recompose"
    fill(work)
    assert recompose("build", "-q", cwd=tmp_path).code == 0
    assert recompose("train", "--name", "all", *TRAIN, "-q", cwd=tmp_path).code == 0
    # trained on all, though its settings hold some out: as an earlier version wrote it
    resolved = work / "runs" / "all" / "resolved.json"
    settings = json.loads(resolved.read_text("utf-8"))
    resolved.write_text(
        json.dumps({**settings, "held_out": {"by": "repository", "fraction": 0.5}}), "utf-8"
    )
    second_result = recompose("evaluate", "all", "--logs", "--dry-run", cwd=tmp_path)
    assert second_result.code == 1 and "the run was trained on it" in read(second_result)
    (work / "examples" / "examples.jsonl").unlink()
    gone = recompose("evaluate", "all", "--logs", "--dry-run", "--json", cwd=tmp_path)
    assert gone.code == 0 and "no longer here" in gone.value["notes"][0]


def test_a_run_that_forks_says_so_and_stale_sessions_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    fork = ("--train.fork", "true", "--train.fork_sites", "2", "--rollouts.max_new_tokens", "8")
    result = recompose("train", "--name", "forked", *TRAIN, *fork, cwd=folder)
    assert result.code == 0 and f"{6 - len(OUT)} imported sites" in read(result)
    run = folder / "recompose" / "runs" / "forked"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [
        (
            metrics["fork/sites"],
            metrics["fork/samples"],
            metrics["fork/same"],
            metrics["hint/tokens"],
        )
        for metrics in steps
    ] == [(2, 2, 0, 0)] * 2
    rows = [
        json.loads(line)
        for step in (0, 1)
        for line in (run / "forks" / f"step_00000{step}.jsonl").read_text("utf-8").splitlines()
    ]
    assert {row["session_id"] for row in rows}.isdisjoint(OUT) and {
        row["tokens"] for row in rows
    } <= set(range(1, 9))
    fill(tmp_path / "recompose")
    assert recompose("build", *HELD, "-q", cwd=tmp_path).code == 0
    write_sessions(tmp_path / "recompose" / "sessions.jsonl", [session(name=n) for n in NAMES])
    stale = recompose("train", *TRAIN, *fork, "--dry-run", cwd=tmp_path)
    assert stale.code == 1 and "built from another sessions.jsonl" in read(stale)
