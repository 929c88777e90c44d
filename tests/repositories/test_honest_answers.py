"""The honest answers that docs/tasks.md counts: each has a result, and the page shows it."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.honest_answers import ANSWERS, PAGE, RESULTS, answered, render
from composer_replication.repositories.edits import Edit, apply_edits
from tests.repositories.test_repo_train import a_task

ROWS = json.loads(RESULTS.read_text("utf-8"))["answers"]


def test_every_answer_was_judged_and_is_on_the_page() -> None:
    answers = [json.loads(line) for line in ANSWERS.read_text("utf-8").splitlines()]
    keys = [(a["repository"], a["symbol"], a["style"]) for a in answers]
    assert keys == [(row["repository"], row["symbol"], row["style"]) for row in ROWS]
    assert len(set(keys)) == len(keys)
    assert render(ROWS) in PAGE.read_text("utf-8")


def test_an_answer_stands_where_the_original_was_removed(tmp_path: Path) -> None:
    """Not where the same words stand first: an abstract method raises NotImplementedError too."""
    text = "def a():\n    raise NotImplementedError\n\n\ndef b():\n    return 7\n"
    (tmp_path / "m.py").write_text(text, "utf-8")
    task = a_task("t")
    start = text.index("return 7")
    task.edits["m.py"] = [Edit(start, start + len("return 7"), "raise NotImplementedError")]
    assert "return 7" not in apply_edits(text, task.edits["m.py"])
    answer = {"bodies": ["return 3 + 4"], "append": "\nC = 1\n"}
    assert answered(task, tmp_path, answer) == {
        "m.py": text.replace("return 7", "return 3 + 4") + "\nC = 1\n"
    }
