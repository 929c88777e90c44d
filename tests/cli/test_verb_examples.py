"""The examples of each verb's help are command lines that it takes; a shell can complete them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from cyclopts import CycloptsError

from composer_replication.cli.flags import split_settings
from composer_replication.cli.main import VERBS, build_app
from composer_replication.cli.verb_examples import VERB_EXAMPLES
from tests.cli.workspace import recompose

LINES = [line for lines in VERB_EXAMPLES.values() for line in lines]


def parses(line: str) -> bool:
    """Whether the verb takes these arguments; nothing is run."""
    words = shlex.split(line.partition(" > ")[0])[1:]
    with split_settings(words) as rest:
        try:
            build_app().parse_args(rest, exit_on_error=False, print_error=False)
        except CycloptsError:
            return False
    return True


def test_every_verb_has_an_example() -> None:
    assert list(VERB_EXAMPLES) == list(VERBS)
    assert all(line.split()[:2] == ["recompose", v] for v in VERBS for line in VERB_EXAMPLES[v])


@pytest.mark.parametrize("line", LINES)
def test_an_example_is_taken(line: str) -> None:
    assert parses(line)


def test_a_wrong_example_would_be_seen() -> None:
    assert not parses("recompose audit --sinse 4w")


def test_help_ends_with_the_examples(tmp_path: Path) -> None:
    out = recompose("audit", "--help", cwd=tmp_path).out
    assert "recompose audit --since 4w --project shop" in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_the_completion_script_knows_verbs_and_flags(tmp_path: Path, shell: str) -> None:
    result = recompose("completion", shell, cwd=tmp_path)
    assert result.code == 0 and "# to install: recompose completion" in result.err
    assert all(word in result.out for word in ("audit", "project", "hints", "estimate"))
    program = shutil.which(shell)
    if program is not None and shell in ("bash", "zsh", "fish"):
        checked = subprocess.run(
            [program, "-n"], input=result.out, capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr
