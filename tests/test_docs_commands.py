"""The commands of README.md and docs/: each runs here, or says why not (tests/docs_commands.toml).

Those that are not run are parsed at least: verb, flags and settings exist.
"""

from __future__ import annotations

import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from composer_replication.cli.flags import Common, dotted_settings, split_settings
from composer_replication.cli.main import VERBS, build_app
from composer_replication.core.config.load_config import load_config
from tests.cli.agent_logs import sessions_on
from tests.cli.workspace import recompose

pytestmark = pytest.mark.train
GENERATED = {
    "cli.md",
    "capabilities.md",
    "evidence.md",
    "evidence_real.md",
    "benchmarks.md",
    "real_models.md",
    "settings.md",
    "errors.md",
}
PROGRAMS = r"(recompose|make|python|pip|uvx|source|npm|torchrun|tensorboard|git|sbatch) "
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.S | re.M)
DAYS = [(date.today() - timedelta(days=ago)).isoformat() for ago in range(24, 0, -1)]
SETTINGS = """
[student]
model = "tiny"
[held_out]
by = "session"
fraction = 0.3
[replay]
teachers = ["kimi", "glm", "deepseek"]
[rollouts]
max_new_tokens = 16
[train]
steps = 2
grad_every = 2
"""


def commands_of(text: str) -> Iterator[str]:
    """The commands in the shell blocks of a page, without comments, one by one."""
    for language, block in FENCE.findall(text):
        if language not in ("", "bash", "sh"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if re.match(PROGRAMS, line.strip() + " "):
                line = re.split(r"\s+# ", line.strip() + " ")[0]
                yield from (" ".join(part.split()) for part in line.split("&&"))


def documented(root: Path) -> dict[str, str]:
    """Command -> the page that has it first."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    found: dict[str, str] = {}
    for page in pages:
        if page.name not in GENERATED:
            for command in commands_of(page.read_text("utf-8")):
                found.setdefault(command, page.relative_to(root).as_posix())
    return found


@pytest.fixture(scope="module")
def table(repository_root: Path) -> dict[str, Any]:
    return tomllib.loads((repository_root / "tests" / "docs_commands.toml").read_text("utf-8"))


def test_every_command_is_run_or_says_why_not(repository_root: Path, table: Any) -> None:
    found = documented(repository_root)
    run = {entry["command"] for entry in table["run"]}
    marked = {command for entry in table["not_run"] for command in entry["commands"]}
    known = {c for c in found if c in run or c in marked or c.split()[0] in marked}
    assert found.keys() == known, "say in tests/docs_commands.toml how it is tried"
    gone = {c for c in run | marked if c not in found and not any(f.split()[0] == c for f in found)}
    assert not gone, "no page has these any more"
    assert not run & marked and all(entry["why"] for entry in table["not_run"])
    print(f"docs: {len(found)} commands, {len(run)} run, {len(found) - len(run)} marked")
    assert len(run) > 25


def test_every_documented_flag_and_setting_exists(repository_root: Path) -> None:
    app = build_app()
    checked = 0
    for command, page in documented(repository_root).items():
        words = shlex.split(command)
        if words[0] != "recompose":
            continue
        with split_settings(words[1:]) as rest:
            flags = {"rollouts.env": "workshop", **dotted_settings()}  # as in the page's settings
            load_config(flags=flags, start=repository_root / "tests")
            function, bound, _ = app.parse_args(rest, exit_on_error=False, print_error=False)
            assert rest[0] in VERBS and callable(function), (page, command)
            assert isinstance(bound, inspect.BoundArguments)
        checked += 1
    assert checked > 40


def test_the_commands_that_run_here_run(
    tmp_path: Path, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    sessions_on(DAYS, to=home / ".claude" / "projects")
    (tmp_path / "recompose.toml").write_text(SETTINGS, "utf-8")
    for entry in table["run"]:
        words = shlex.split(entry.get("as", entry["command"]))
        done = recompose(*words[1:], cwd=tmp_path)
        assert done.code == 0, f"{entry['command']}\n{done.out[-1500:]}\n{done.err}"


def test_a_flag_that_is_not_there_would_be_found(repository_root: Path) -> None:
    with split_settings(["audit", "--opne"]) as rest, pytest.raises(Exception, match="opne"):
        build_app().parse_args(rest, exit_on_error=False, print_error=False)
    assert list(commands_of("```\nrecompose a && recompose b  # c\nx\n```\n")) == [
        "recompose a",
        "recompose b",
    ]
    assert Common  # the flags of every verb are parsed too
