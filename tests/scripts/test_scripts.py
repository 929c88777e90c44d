"""The scripts that CI trusts: each must be able to say no."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.site import Site
from scripts import capabilities, fetch_traces, measure_labels, mutants, run_tests, setup

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.test_config" name="test_one"/>
<testcase classname="tests.test_config" name="test_two[a]"/>
<testcase classname="tests.test_config" name="test_gone">
<skipped message="Skipped: set X"/></testcase>
<testcase classname="tests.test_config" name="test_era[own]"/>
<testcase classname="tests.test_config" name="test_era[public]">
<skipped message="Skipped: needs the public sessions: set Y"/></testcase>
<testcase classname="tests.test_config" name="test_counts">
<skipped message="needs the public sessions: set Y"/></testcase>
<testcase classname="tests.test_config" name="test_walls"/>
<testcase classname="tests.test_config" name="test_walls[other]">
<skipped message="Skipped: this machine has no other"/></testcase>
<testcase classname="tests.test_config" name="test_container">
<skipped message="Skipped: this machine has no podman"/></testcase>
<testcase classname="tests.test_config" name="test_bad"><failure message="no"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def junit(tmp_path: Path) -> Path:
    path = tmp_path / "junit.xml"
    path.write_text(JUNIT, "utf-8")
    return path


@pytest.mark.parametrize(
    ("tests", "state"),
    [
        (["tests/test_config.py::test_one", "tests/test_config.py::test_two"], "works"),
        (["tests/test_config.py::test_gone"], "not run here"),
        (["tests/test_config.py::test_one", "tests/test_config.py::test_gone"], "not run here"),
        (["tests/test_config.py::test_era"], "works"),
        (["tests/test_config.py::test_counts"], "not run here"),
        (["tests/test_config.py::test_walls"], "works"),
        (["tests/test_config.py::test_container"], "not run here"),
    ],
)
def test_a_capability_works_only_if_its_tests_ran(
    junit: Path, tests: list[str], state: str
) -> None:
    assert (
        capabilities.status({"name": "x", "tests": tests}, capabilities.outcomes(junit))[0] == state
    )


@pytest.mark.parametrize(
    "node",
    [
        "tests/test_config.py::test_bad",
        "tests/test_config.py::test_none",
        "tests/nowhere.py",
        "tests/test_config.py",
    ],
)
def test_a_capability_whose_test_failed_or_is_not_there_is_an_error(junit: Path, node: str) -> None:
    with pytest.raises(SystemExit):
        capabilities.status({"name": "x", "tests": [node]}, capabilities.outcomes(junit))


def test_the_table_tells_absent_and_not_run_apart() -> None:
    rows = capabilities.table(
        [{"name": "a", "absent": "next issue"}, {"name": "b", "not_run": "needs a GPU"}], {}
    )
    assert "| a | absent | next issue |" in rows and "| b | not run here | needs a GPU |" in rows


def test_a_stale_page_of_capabilities_is_refused_and_a_rewritten_one_is_not(
    tmp_path: Path, junit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capabilities, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_config.py").touch()
    (tmp_path / "capabilities.toml").write_text(
        '[[capability]]\nname = "x"\ntests = ["tests/test_config.py::test_one"]\n', "utf-8"
    )
    page = tmp_path / capabilities.PAGE
    page.parent.mkdir()
    page.write_text("old", "utf-8")
    assert capabilities.main([str(junit)]) == 1
    assert page.read_text("utf-8") == "old"
    assert capabilities.main([str(junit), "--write"]) == 0
    assert "| x | works |" in page.read_text("utf-8")
    assert capabilities.main([str(junit)]) == 0


def test_a_row_of_the_public_sessions_is_the_same_with_and_without_them(
    junit: Path, tmp_path: Path
) -> None:
    row = {"name": "x", "public_sessions": ["tests/test_config.py::test_counts"]}
    sessions = tmp_path / "there.xml"
    sessions.write_text(re.sub(r"<skipped message=[^>]*public[^>]*/>", "", JUNIT), "utf-8")
    with_them, without = (
        capabilities.status(row, capabilities.outcomes(path)) for path in (sessions, junit)
    )
    assert (
        with_them == without == ("with the public sessions", "`tests/test_config.py::test_counts`")
    )
    sessions.write_text(
        re.sub(r"<skipped message=[^>]*public[^>]*/>", "<failure/>", JUNIT), "utf-8"
    )
    with pytest.raises(SystemExit):
        capabilities.status(row, capabilities.outcomes(sessions))


def test_a_row_of_some_machines_is_the_same_on_every_machine(junit: Path, tmp_path: Path) -> None:
    row = {"name": "x", "some_machines": ["tests/test_config.py::test_container"]}
    there = tmp_path / "there.xml"
    there.write_text(re.sub(r"<skipped message=[^>]*podman[^>]*/>", "", JUNIT), "utf-8")
    with_it, without = (
        capabilities.status(row, capabilities.outcomes(path)) for path in (there, junit)
    )
    assert with_it == without == ("where the machine can", "`tests/test_config.py::test_container`")
    for outcome in ("<failure/>", '<skipped message="set X"/>'):
        there.write_text(re.sub(r"<skipped message=[^>]*podman[^>]*/>", outcome, JUNIT), "utf-8")
        try:
            state = capabilities.status(row, capabilities.outcomes(there))[0]
        except SystemExit:
            state = "error"
        assert state == ("error" if "failure" in outcome else "not run here")


def test_files_that_a_run_writes_into_the_tree_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    assert run_tests.tree_state() == set()
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "a.md").write_text("one", "utf-8")
    before = run_tests.tree_state()
    assert before == run_tests.tree_state() != set()
    (tmp_path / "a.md").write_text("two", "utf-8")
    assert any("a.md" in entry for entry in run_tests.tree_state() ^ before)


def test_the_closing_line_counts_every_case(junit: Path) -> None:
    assert run_tests.closing_line(junit) == "4 passed, 1 failed, 5 skipped"


def test_a_test_that_passed_alone_is_named_and_one_that_failed_again_stays(
    junit: Path, tmp_path: Path
) -> None:
    again, case = tmp_path / "again.xml", '<testcase classname="tests.test_config" name="test_bad">'
    whole = "<testsuites><testsuite>{}</testsuite></testsuites>"
    for outcome in ("<failure/>", '<skipped message="no"/>'):
        again.write_text(whole.format(f"{case}{outcome}</testcase>"), "utf-8")
        assert run_tests.passed_alone(junit, again) == [] and run_tests.counts_of(junit)[1] == 1
    again.write_text(whole.format(""), "utf-8")  # it did not run
    assert run_tests.passed_alone(junit, again) == [] and run_tests.counts_of(junit)[1] == 1
    again.write_text(whole.format(f"{case}</testcase>"), "utf-8")
    assert run_tests.passed_alone(junit, again) == ["tests.test_config::test_bad"]
    assert run_tests.closing_line(junit) == "5 passed, 0 failed, 5 skipped"


def test_coverage_is_taken_per_room(tmp_path: Path) -> None:
    def summary(covered: int, total: int) -> dict[str, dict[str, int]]:
        return {
            "summary": {
                "covered_lines": covered,
                "num_statements": total,
                "covered_branches": 0,
                "num_branches": 0,
            }
        }

    files = {
        "src/composer_replication/core/a.py": summary(9, 10),
        "src/composer_replication/data/x/b.py": summary(5, 10),
    }
    (tmp_path / "c.json").write_text(json.dumps({"files": files}), "utf-8")
    shares = run_tests.coverage_by_room(tmp_path / "c.json")
    assert (shares["core"], shares["data"], shares["tokens"]) == (90.0, 50.0, 0.0)


@pytest.mark.parametrize(
    ("requires", "count"),
    [
        (["filelock", "sympy>=1.13.3", 'optree; extra == "optree"'], 0),
        (
            [
                "filelock",
                'nvidia-cublas-cu12==12.8; platform_system == "Linux"',
                "cuda-bindings>=12",
            ],
            2,
        ),
        (['nvidia-extra; extra == "gpu"'], 0),
    ],
)
def test_setup_recognises_a_cuda_build_by_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, requires: list[str], count: int
) -> None:
    class Done:
        returncode = 0
        stdout = json.dumps({"install": [{"metadata": {"requires_dist": requires}}]})

    monkeypatch.setattr(setup, "pip", lambda *a, **k: Done())
    assert len(setup.cuda_packages("torch==2.13.0")) == count


def test_setup_stops_before_cuda_packages_on_a_machine_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(setup, "pip", lambda *a, **k: calls.append(a))
    monkeypatch.setattr(setup, "has_gpu", lambda: False)
    monkeypatch.setattr(setup.sys, "platform", "linux")
    monkeypatch.setattr(setup, "cuda_packages", lambda requirement: ["nvidia-cublas"] * 14)
    for name in ("COMPOSER_TORCH_INDEX", "COMPOSER_TORCH_CUDA"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit, match="COMPOSER_TORCH_INDEX"):
        setup.install_torch()
    assert calls == []
    monkeypatch.setenv("COMPOSER_TORCH_INDEX", "file:///wheels")
    setup.install_torch()
    assert calls == [("install", "--quiet", "--index-url", "file:///wheels", setup.pinned("torch"))]


def test_the_pins_are_exact_and_name_no_host(repository_root: Path) -> None:
    for name in setup.PINS:
        lines = [
            line
            for line in (repository_root / "requirements" / name).read_text("utf-8").splitlines()
            if line and line[0] != "#"
        ]
        assert lines and all(
            line.count("==") == 1 and "+" not in line and "://" not in line for line in lines
        )


def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    entry = {"file": "a.jsonl", "path": "x/a.jsonl", "sha256": hashlib.sha256(b"right").hexdigest()}
    fetch_traces.save(b"right", entry, into=tmp_path)
    assert (tmp_path / "a.jsonl").read_bytes() == b"right"
    with pytest.raises(SystemExit, match="refused"):
        fetch_traces.save(b"wrong", {**entry, "file": "b.jsonl"}, into=tmp_path)
    assert not (tmp_path / "b.jsonl").exists()


def test_sessions_are_fetched_by_the_manifest_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.jsonl").write_text("{}\n", "utf-8")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "one"]):
        fetch_traces.git(*arguments, folder=source)
    commit = fetch_traces.git("rev-parse", "HEAD", folder=source).decode().strip()
    entry = {
        "file": "cc_a.jsonl",
        "repository": "x/y",
        "commit": commit,
        "path": "a.jsonl",
        "sha256": hashlib.sha256(b"{}\n").hexdigest(),
    }
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"host": "https://example.org", "files": [entry]}), "utf-8")
    folder = tmp_path / "out"
    assert (
        fetch_traces.main([str(folder), "--manifest", str(manifest), "--from", f"x/y={source}"])
        == 0
    )
    assert [path.name for path in folder.iterdir()] == ["cc_a.jsonl"]
    assert "COMPOSER_REPLICATION_LABEL_SESSIONS" in capsys.readouterr().out


def test_labels_are_measured_by_verdict_and_by_what_a_path_claims() -> None:
    def site(call: str, category: Any, kind: str) -> Site:
        return Site(
            session_id="s",
            turn=1,
            kind=kind,
            detector="d",
            evidence=(2,),
            category=category,
            call_id=call,
        )

    sites = {
        ("f", "a"): site("a", "mistake", "file_missing"),
        ("f", "b"): site("b", "mistake", "edit_no_match"),
        ("f", "c"): site("c", "failed_check", "path_explored"),
        ("f", "d"): site("d", "mistake", "shell_missing_path"),
    }
    labels = [
        {
            "file": "f",
            "call_id": "a",
            "flagged": True,
            "verdict": "mistake",
            "kind": "x",
            "why": "",
            "path_claim": "stated",
        },
        {"file": "f", "call_id": "b", "flagged": True, "verdict": "benign", "kind": "x", "why": ""},
        {
            "file": "f",
            "call_id": "c",
            "flagged": False,
            "verdict": "failed_check",
            "kind": "x",
            "why": "",
            "path_claim": "explored",
        },
        {
            "file": "f",
            "call_id": "d",
            "flagged": True,
            "verdict": "failed_check",
            "kind": "x",
            "why": "",
            "path_claim": "explored",
        },
        {
            "file": "f",
            "call_id": "e",
            "flagged": False,
            "verdict": "mistake",
            "kind": "x",
            "why": "",
            "unsure": True,
        },
    ]
    measured = measure_labels.measure(labels, sites)
    shares = {
        name: (row["precision"]["k"], row["precision"]["n"], row["recall"]["n"])
        for name, row in measured["mistake"].items()
    }
    assert shares == {
        "all": (1, 3, 2),
        "flagged": (1, 3, 1),
        "not flagged": (0, 0, 1),
        "sure": (1, 3, 1),
    }
    assert [(row["k"], row["n"]) for row in measured["paths"].values()] == [
        (1, 1),
        (1, 1),
        (1, 2),
        (1, 2),
    ]
    assert measured["verdicts"]["failed_check"]["recall"]["low"] == 0.0945
    assert measure_labels.misses(labels, sites)[-1].startswith("f e: mistake/x, ours benign")


def test_the_manifest_names_a_commit_and_hash_for_every_expected_file(
    repository_root: Path,
) -> None:
    manifest = json.loads((repository_root / "tests" / "traces_manifest.json").read_text("utf-8"))
    expected = json.loads((repository_root / "tests" / "traces_expected.json").read_text("utf-8"))
    assert {f["file"] for f in manifest["files"]} == {e["file"] for e in expected}
    assert all(
        len(f["commit"]) == 40 and len(f["sha256"]) == 64 and f["repository"].count("/") == 1
        for f in manifest["files"]
    )


MUTANT = """why = "the sum would be a product"
tests = ["tests/test_sum.py"]

[[changes]]
file = "src/thing.py"
within = "add"
search = "a + b"
replace = "a {operator} b"
"""


@pytest.mark.parametrize(
    ("operator", "problem_start"),
    [("*", ""), ("+ 0 +", "SURVIVED"), ("* undefined_name *", "")],
    ids=["caught", "survives", "raises"],
)
def test_a_mutant_is_caught_or_reported(tmp_path: Path, operator: str, problem_start: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "src" / "thing.py").write_text("def add(a, b):\n    return a + b\n", "utf-8")
    (tmp_path / "tests" / "test_sum.py").write_text(
        "import thing\n\n\ndef test_sum():\n    assert thing.add(2, 3) == 5\n", "utf-8"
    )
    path = tmp_path / "one.toml"
    path.write_text(MUTANT.replace("{operator}", operator), "utf-8")
    mutant = mutants.read_mutant(path)
    assert mutants.baseline(tmp_path, [mutant]) == ""
    problem = mutants.judge(tmp_path, mutant)
    assert problem.startswith(problem_start) and bool(problem) == bool(problem_start)


@pytest.mark.parametrize(
    "source",
    [
        "def add(a, b):\n    return a + b\n",
        (
            "# moved down\n\n\ndef add(\n    a,\n    b,\n):\n    # added up\n    return (\n       "
            " a\n        + b\n    )\n"
        ),
        "other = 1\n\nif other:\n    def add(a, b): return a+b\n",
    ],
)
def test_a_mutant_keeps_its_place_through_a_reformat(source: str) -> None:
    change = mutants.Change(file="thing.py", within="add", search="a + b", replace="a - b")
    assert "return a - b" in mutants.mutated(source, change)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def plus(a, b):\n    return a + b\n", "add is defined 0 times"),
        ("def add(a, b):\n    return b + a\n", "'a + b' is 0 times"),
        ("def add(a, b):\n    return a + b + (a + b)\n", "'a + b' is 2 times"),
        ("class Sum:\n    def add(self, a, b):\n        return a + b\n", "add is defined 0 times"),
    ],
)
def test_a_mutant_whose_place_is_gone_is_reported(
    tmp_path: Path, source: str, problem: str
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "thing.py").write_text(source, "utf-8")
    path = tmp_path / "one.toml"
    path.write_text(MUTANT, "utf-8")
    verdict = mutants.judge(tmp_path, mutants.read_mutant(path))
    assert verdict.startswith("lost its place") and problem in verdict


def test_a_mutant_without_why_or_tests_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text(MUTANT.split("\n", 1)[1], "utf-8")
    assert "needs `why` and `tests`" in mutants.baseline(tmp_path, [mutants.read_mutant(path)])


def test_the_baseline_runs_in_shares_of_whole_files_and_misses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tests = ("a.py::x", "b.py::y", "a.py::z", "c.py::w")
    made = mutants.Mutant(path=tmp_path / "m.toml", tests=tests, why="w", changes=())
    runs, answers = list[tuple[str, ...]](), dict[tuple[str, ...], tuple[int, str]]()

    def run(tree: Path, share: tuple[str, ...]) -> tuple[int, str]:
        runs.append(share)
        return answers.get(share, (mutants.GREEN, "2 passed"))

    monkeypatch.setattr(mutants, "run_tests", run)
    monkeypatch.setattr(mutants, "WORKERS", 2)
    first, second = ("a.py::x", "a.py::z", "c.py::w"), ("b.py::y",)
    assert mutants.baseline(tmp_path, [made]) == "" and sorted(runs) == [first, second]
    # what is red in either share runs once more, alone
    answers[second] = (mutants.RED, "FAILED b.py::y - boom")
    answers[first] = (mutants.RED, "FAILED a.py::z[1 2] - boom")
    assert mutants.baseline(tmp_path, [made]) == "" and runs[-1] == ("a.py::z[1 2]", "b.py::y")
    assert "unstable, failed beside others: a.py::z[1 2], b.py::y" in capsys.readouterr().out
    answers[runs[-1]] = (mutants.RED, "1 failed")
    assert mutants.baseline(tmp_path, [made]) == "pytest exit 1 without any mutant: 1 failed"
    # a run that broke is no red test
    answers[second] = (4, "no such test")
    assert "pytest exit 4 without any mutant: no such test" in mutants.baseline(tmp_path, [made])


def test_every_committed_mutant_has_its_place_and_its_tests(repository_root: Path) -> None:
    trees: dict[str, ast.Module] = {}
    for path in sorted((repository_root / "tests" / "mutants").glob("*.toml")):
        mutant = mutants.read_mutant(path)
        assert mutant.why and mutant.tests and mutant.changes, path.name
        for node in mutant.tests:
            assert (repository_root / node.split("::")[0]).exists(), f"{path.name}: {node}"
        for change in mutant.changes:
            assert change.search != change.replace, path.name
        (first, *others), texts = mutant.changes, dict[str, str]()
        if not others and first.file.endswith(".py"):  # most: the file need not be written again
            if first.file not in trees:
                trees[first.file] = ast.parse((repository_root / first.file).read_text("utf-8"))
            ast.parse(mutants.changed_source(trees[first.file], first))
            continue
        for change in mutant.changes:
            text = texts.get(change.file) or (repository_root / change.file).read_text("utf-8")
            texts[change.file] = mutants.mutated(text, change)


def test_what_a_change_touches_is_judged_and_the_rest_within_days(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "mutants"
    folder.mkdir(parents=True)
    for i in range(60):
        (tmp_path / f"f{i}.py").write_text("x = 1\n", "utf-8")
        change = f'[[changes]]\nfile = "f{i}.py"\nsearch = "x"\nreplace = "y"\n'
        (folder / f"m{i:02d}.toml").write_text(
            f'why = "w"\ntests = ["tests/t.py::a"]\n{change}', "utf-8"
        )
    (tmp_path / "tests" / "t.py").write_text("", "utf-8")
    every = [mutants.read_mutant(path) for path in sorted(folder.glob("*.toml"))]
    assert mutants.chosen_of(tmp_path, every, day=5) == every  # nothing was caught yet
    mutants.write_caught(tmp_path, every, every)
    days = [{m.path.stem for m in mutants.chosen_of(tmp_path, every, day=day)} for day in range(5)]
    assert all(len(day) == mutants.SAMPLE for day in days) and len(set.union(*days)) == 60
    (tmp_path / "f7.py").write_text("x = 2\n", "utf-8")
    assert mutants.chosen_of(tmp_path, every, day=0)[0].path.stem == "m07"
    (tmp_path / "tests" / "t.py").write_text("# another test\n", "utf-8")
    assert len(mutants.chosen_of(tmp_path, every, day=0)) == 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mutants, "MOST", 20)
        parts = [
            {m.path.stem for m in mutants.chosen_of(tmp_path, every, day=day)} for day in range(20)
        ]
    assert all(len(part) == 20 for part in parts) and len(set.union(*parts)) == 60
    mutants.write_caught(tmp_path, [], every[:3])
    assert set(mutants.read_caught(tmp_path)) == {"m00", "m01", "m02"}
