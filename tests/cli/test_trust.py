"""A settings file may come from a stranger: settings that run code, send data or leave the folder
count only after `recompose trust`."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import py_compile
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.config.load_config import load_config, walk_fields
from composer_replication.core.config.powers import HARMLESS, RULES, holds_text, may_be_a_models_key
from composer_replication.core.config.root import Config
from composer_replication.core.config.trusted_files import VARIABLE, Trusted
from composer_replication.core.errors import ConfigError, DataError, UntrustedError
from composer_replication.core.rundir import create_run, open_run
from composer_replication.data.curate.recipe import load_recipe
from tests.cli.test_ingest import log_lines
from tests.cli.test_verbs import on_a_terminal
from tests.cli.workspace import CliResult, files, fill, recompose, session

HARMLESS_FILE = (
    'seed = 11\nwork_dir = "out"\n[ingest]\nscanner = []\nlogs = ["logs"]\nredact_words ='
    ' ["Initech"]\n[rollouts]\nenv = "workshop"\n'
)
MARK = "import pathlib, sys\npathlib.Path({mark!r}).write_text('ran')\n"


@pytest.fixture(autouse=True)
def nobody_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the trust list of a user who has trusted nothing; return its path."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path / "config" / "recompose" / "trusted.json"


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A stranger's project: sessions with a mistake, a log, and Python that leaves a mark when it
    is loaded."""
    folder = tmp_path / "project"
    fill(folder / "recompose", [session()])
    (folder / "logs").mkdir()
    (folder / "logs" / "one.jsonl").write_text(
        "\n".join(log_lines("nothing of note")) + "\n", "utf-8"
    )
    (folder / "evil.py").write_text(
        MARK.format(mark=str(tmp_path / "mark")) + "def find(*a, **k): return []\n", "utf-8"
    )
    return folder


def call(*argv: str, cwd: Path) -> CliResult:
    return recompose(*argv, cwd=cwd, trusting=False)


def flat(text: str) -> str:
    """A box as one line."""
    return re.sub(r"\s+", " ", re.sub(r"[│╭╮╰╯─]", " ", text))


def settings(folder: Path, text: str) -> Path:
    (folder / "recompose.toml").write_text(text, "utf-8")
    return folder / "recompose.toml"


def ran(tmp_path: Path) -> bool:
    return (tmp_path / "mark").exists()


def powers(text: str, tmp_path: Path) -> list[str]:
    """The refused settings of a file with this text."""
    file = settings(tmp_path, text)
    try:
        load_config([file], start=tmp_path)
    except UntrustedError as error:
        return [line.strip() for line in error.what.splitlines()[1:]]
    return []


# ---- which settings are powers ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[ingest]\nscanner = ["sh", "-c", "id"]',
            'line 2: ingest.scanner runs ["sh", "-c", "id"]',
        ),
        ("[ingest]\nredact = false", "line 2: ingest.redact keeps secrets"),
        ('[ingest]\nredact = "no"', "line 2: ingest.redact keeps secrets"),
        ('[ingest]\nlogs = ["logs", "~/.claude/projects"]', "line 2: ingest.logs reads outside"),
        ('work_dir = "../elsewhere"', "line 1: work_dir writes outside"),
        (
            '[sites]\ndetectors = ["tool_error", "os:system"]',
            'line 2: sites.detectors runs the Python of "os:system"',
        ),
        ('sites.error_kind = "evil.py:find"', 'line 1: sites.error_kind runs the Python of "/'),
        ('"sites" = { "error_kind" = "a:b" }', "line 1: sites.error_kind runs"),
        ('[hints.writers]\nfile_missing = "a:b"', "line 1: hints.writers runs"),
        ('[hints]\nrules_file = "/etc/passwd"', "line 2: hints.rules_file reads outside"),
        ('[hints]\nwriter = "reader"', "line 2: hints.writer sends"),
        ('[hints.reader]\nteacher = "kimi"', "line 2: hints.reader.teacher sends"),
        ('[sites.reader]\nteacher = "kimi"', "line 2: sites.reader.teacher sends"),
        (
            '[replay]\nteachers = ["kimi"]',
            'line 2: replay.teachers sends your sessions to ["kimi"]',
        ),
        ("[replay]\nmax_usd = 500", "line 2: replay.max_usd spends up to $500"),
        ('[replay]\nrecorded = "../answers.jsonl"', "line 2: replay.recorded reads outside"),
        ('[curate]\nrecipe = "mine.yaml"', "line 2: curate.recipe runs a recipe"),
        ('[curate]\ndata_juicer_python = "./python"', "line 2: curate.data_juicer_python runs"),
        ('[build]\npairs = "/srv/pairs.jsonl"', "line 2: build.pairs reads outside"),
        ('[rollouts]\nenv = "envs/mine.py:make"', "line 2: rollouts.env runs the Python of"),
        ('[rollouts]\nplayer = "sh -c x"', "line 2: rollouts.player runs"),
        (
            '[rollouts.repo]\nprogram_folders = ["/root"]',
            "line 2: rollouts.repo.program_folders reads outside",
        ),
        ('[rollouts.server]\nurl = "http://10.0.0.9:8000/v1"', "line 2: rollouts.server.url sends"),
        ('[rollouts.server]\nweights_dir = "w"', "line 2: rollouts.server.weights_dir writes"),
    ],
)
def test_what_a_file_could_do_is_refused_by_line_setting_and_value(
    tmp_path: Path, text: str, expected: str
) -> None:
    (power,) = powers(text + "\n", tmp_path)
    assert power.startswith(expected)


def test_a_teacher_is_told_with_its_host_and_the_variable_that_would_be_sent(
    tmp_path: Path,
) -> None:
    (power,) = powers(
        '[replay.teacher.kimi]\nmodel = "m"\nbase_url = "https://collect.example/v1"\n', tmp_path
    )
    assert (
        power.startswith("line 1: replay.teacher sends")
        and '"https://collect.example/v1" with the key in $OPENROUTER_API_KEY' in power
    )
    (power,) = powers('[replay.teacher.a]\nmodel = "m"\nkey_env = "MY_API_KEY"\n', tmp_path)
    assert "openrouter.ai" in power and "$MY_API_KEY" in power


def test_every_setting_that_holds_text_was_looked_at() -> None:
    texts = {".".join(key) for key, field in walk_fields() if holds_text(field)}
    assert texts <= {*RULES, *HARMLESS} and not HARMLESS & RULES.keys()
    assert HARMLESS | RULES.keys() <= {".".join(key) for key, _ in walk_fields()}


def test_a_file_of_numbers_and_names_works_without_a_question(
    strange: Path, tmp_path: Path
) -> None:
    settings(strange, HARMLESS_FILE)
    result = call("ingest", "logs", "--json", cwd=strange)
    assert result.code == 0 and result.value["settings_read"]["files"][0]["trust"] == "harmless"
    assert (strange / "out" / "sessions.jsonl").exists() and not (tmp_path / "config").exists()


@pytest.mark.parametrize("work", [".", "recompose", "src"])
def test_a_harmless_file_cannot_put_sessions_into_a_commit(strange: Path, work: str) -> None:
    """Into the repository itself, a folder of it with other files, or a recompose/ that came with
    the clone."""
    (strange / "src").mkdir()
    (strange / "src" / "main.py").write_text("", "utf-8")
    settings(strange, f'work_dir = "{work}"\n')
    for argv in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *argv], cwd=strange, check=True)
    before = files(strange)
    result = call("ingest", "logs", cwd=strange)
    assert result.code == 1 and "can get into a commit" in result.err and files(strange) == before
    assert call("ingest", "logs", "-o", "own", cwd=strange).code == 0
    status = subprocess.run(
        ["git", "status", "--porcelain", "-uall"],
        cwd=strange,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "own/" not in status


def test_a_line_break_in_a_folders_name_begins_no_line(strange: Path) -> None:
    folder = strange / "a\n settings  recompose.toml  (trusted)\x1b[31m"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "one.jsonl").write_text("\n".join(log_lines()) + "\n", "utf-8")
    settings(folder, "seed = 3\n[replay]\nmax_usd = 1\n")
    refused = call("ingest", "logs", cwd=folder)
    assert refused.code == 1
    results = [
        refused,
        *(
            call(*argv, "--trust-settings", cwd=folder)
            for argv in (["ingest", "logs"], ["sites"], ["show", "session"], ["sessions"])
        ),
    ]
    results += [
        call("ingest", str(folder / "logs"), "-o", str(folder / "own"), *more, cwd=strange.parent)
        for more in ([], ["--dry-run"])
    ]
    assert [result.code for result in results[1:]] == [0] * 6
    for result in results:
        shown = result.out + result.err
        assert "\x1b[31m" not in shown
        assert not any(
            line.strip(" │").startswith("settings  recompose.toml") for line in shown.splitlines()
        )
    assert "a␊ settings  recompose.toml" in results[1].out


def test_values_are_shown_in_ascii_so_that_nothing_hides(tmp_path: Path) -> None:
    (power,) = powers('[ingest]\nscanner = ["sh\\u001b[8m", "\\u202exe"]\n', tmp_path)
    assert power.endswith(r'runs ["sh\u001b[8m", "\u202exe"]')


def test_links_are_followed_before_it_is_said_where_a_path_leads(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "out").symlink_to(tmp_path)
    assert powers('work_dir = "out/x"\n', tmp_path / "project") and not powers(
        'work_dir = "new/x"\n', tmp_path / "project"
    )
    (tmp_path / "project" / "round").symlink_to("round")
    assert powers('[build]\npairs = "round/x"\n', tmp_path / "project")


def test_a_work_folder_that_nobody_named_is_no_link_out_of_the_project(
    strange: Path, tmp_path: Path
) -> None:
    (strange / "recompose").rename(tmp_path / "theirs")
    (strange / "recompose").symlink_to(tmp_path / "theirs")
    for text in (None, "seed = 3\n"):
        if text:
            settings(strange, text)
        result = call("sites", cwd=strange)
        assert result.code == 1 and "outside of this folder" in " ".join(
            result.err.replace("│", " ").split()
        )
    assert call("sites", "-o", "recompose", cwd=strange).code == 0


# ---- refused, whatever the verb, also with --dry-run, also from above ----


@pytest.mark.parametrize("flags", [(), ("--dry-run",), ("--json",), ("--quiet",)])
@pytest.mark.parametrize(
    ("verb", "text"),
    [
        (("sites",), '[sites]\ndetectors = ["evil.py:find"]\n'),
        (("sites",), '[sites]\nerror_kind = "evil.py:find"\n'),
        (("hints",), '[hints.writers]\nfile_missing = "evil.py:find"\n'),
        (("ingest", "logs"), "[ingest]\nscanner = ['{python}', 'evil.py']\n"),
        (("show", "session"), "[ingest]\nscanner = ['{python}', 'evil.py']\n"),
    ],
)
def test_nothing_of_a_strange_file_runs(
    strange: Path, tmp_path: Path, verb: tuple[str, ...], text: str, flags: tuple[str, ...]
) -> None:
    file = settings(strange, text.replace("{python}", sys.executable))
    (strange / "deep" / "er").mkdir(parents=True)
    (strange / "deep" / "er" / "logs").symlink_to(strange / "logs")
    for cwd, named in ((strange, ()), (strange / "deep" / "er", ()), (tmp_path, ("-c", str(file)))):
        result = call(*verb, *flags, *named, cwd=cwd)
        message = " ".join((result.err + result.out).replace("│", " ").split())
        assert result.code == 1 and not ran(tmp_path), message
        assert (
            "is not trusted" in message
            and text.split(" =")[0].partition("\n")[0].strip("[]") in message
            and "recompose trust" in message
        )


def test_what_is_trusted_runs_and_is_told_before_it_does(
    strange: Path, tmp_path: Path, nobody_is_trusted: Path
) -> None:
    file = settings(strange, '[sites]\ndetectors = ["evil.py:find"]\n')
    assert call("sites", cwd=strange).code == 1
    result = call("trust", cwd=strange)
    assert (
        result.code == 0
        and f'sites.detectors runs the Python of "{strange}/evil.py:find"' in result.out
    )
    assert (
        nobody_is_trusted.stat().st_mode & 0o777 == 0o600
        and nobody_is_trusted.parent.stat().st_mode & 0o777 == 0o700
    )
    result = call("sites", cwd=strange)
    assert result.code == 0 and ran(tmp_path) and f"settings  {file}  (trusted)" in result.out
    assert result.out.index("runs") < result.out.index("mistaken messages")
    read = call("sites", "--json", cwd=strange).value["settings_read"]
    assert (
        read["runs"] == [f'"{strange}/evil.py:find"  (sites)']
        and read["sends"] == []
        and read["files"][0]["trust"] == "trusted"
    )


def test_a_changed_moved_or_copied_file_is_not_trusted(strange: Path, tmp_path: Path) -> None:
    text = '[sites]\ndetectors = ["evil.py:find"]\n'
    file = settings(strange, text)
    assert call("trust", str(file), cwd=tmp_path).code == 0
    settings(strange, text + "# one more word\n")
    assert call("sites", cwd=strange).code == 1
    settings(strange, text)
    assert call("sites", "--dry-run", cwd=strange).code == 0
    other_folder = tmp_path / "other"
    fill(other_folder / "recompose", [session()])
    settings(other_folder, text)
    result = call("sites", cwd=other_folder)
    assert result.code == 1 and "is not trusted" in result.err
    assert call("trust", "--forget", cwd=strange).code == 0
    assert call("sites", cwd=strange).code == 1


def test_a_link_to_a_trusted_file_is_another_place(strange: Path, tmp_path: Path) -> None:
    """Its relative paths would name other files there."""
    file = settings(strange, '[ingest]\nscanner = ["true"]\n')
    assert call("trust", str(file), cwd=tmp_path).code == 0 and call("sites", cwd=strange).code == 0
    other_folder = tmp_path / "other"
    fill(other_folder / "recompose", [session()])
    (other_folder / "recompose.toml").symlink_to(file)
    result = call("sites", cwd=other_folder)
    assert result.code == 1 and "is not trusted" in result.err


@pytest.mark.parametrize(
    ("verb", "text", "program"),
    [
        (("sites",), '[sites]\ndetectors = ["evil.py:find"]\n', "evil.py"),
        (("sites",), '[sites]\ndetectors = ["mine.kinds:find"]\n', "mine/kinds.py"),
        (("sites",), '[sites]\ndetectors = ["mine.kinds:find"]\n', "mine/__init__.py"),
        (("ingest", "logs"), '[ingest]\nscanner = ["./scan.sh", "{file}"]\n', "scan.sh"),
        (("ingest", "logs"), '[ingest]\nscanner = ["sh", "scan.sh", "{file}"]\n', "scan.sh"),
    ],
)
def test_a_program_beside_the_file_is_trusted_as_it_was(
    strange: Path, tmp_path: Path, verb: tuple[str, ...], text: str, program: str
) -> None:
    """After a pull the settings may be unchanged while a program that they name has changed."""
    (strange / "scan.sh").write_text("#!/bin/sh\nexit 0\n")
    (strange / "scan.sh").chmod(0o755)
    (strange / "mine").mkdir()
    (strange / "mine" / "__init__.py").write_text("")
    (strange / "mine" / "kinds.py").write_text("def find(session): return []\n")
    settings(strange, text)
    assert call("trust", cwd=strange).code == 0
    assert "is not trusted" not in call(*verb, cwd=strange).err
    (tmp_path / "mark").unlink(missing_ok=True)
    with (strange / program).open("a") as stream:
        stream.write(f"\ntouch {tmp_path / 'mark'}\n" if program == "scan.sh" else "\n# changed\n")
    result = call(*verb, cwd=strange)
    assert result.code == 1 and "is not trusted" in result.err and not ran(tmp_path)


def test_a_command_of_the_file_names_programs_beside_the_file(
    strange: Path, tmp_path: Path
) -> None:
    """A file of that name in the current folder is never used instead."""
    below = strange / "vendor"
    below.mkdir()
    for folder, code in ((strange, "exit 0"), (below, f"touch {tmp_path / 'mark'}")):
        (folder / "scan.sh").write_text(f"#!/bin/sh\n{code}\n")
        (folder / "scan.sh").chmod(0o755)
    for scanner in ('["./scan.sh", "{file}"]', '["sh", "scan.sh", "{file}"]'):
        settings(strange, f"[ingest]\nscanner = {scanner}\n")
        assert call("trust", cwd=strange).code == 0
        assert call("ingest", "../logs", cwd=below).code == 0 and not ran(tmp_path)


FIND = "def find(session): return []\n"
NAMED = {
    "sites.detectors": '[sites]\ndetectors = ["{}:find"]\n',
    "sites.error_kind": '[sites]\nerror_kind = "{}:find"\n',
    "hints.writers": '[hints]\nwriters = {{file_missing = "{}:find"}}\n',
    "rollouts.env": '[rollouts]\nenv = "{}:find"\n',
}
VERB_OF = {"sites": ("sites",), "hints": ("hints",), "rollouts": ("train", "--dry-run")}


@pytest.mark.parametrize("key", NAMED)
@pytest.mark.parametrize("package", [False, True])
def test_a_module_that_python_finds_elsewhere_is_not_the_one_that_was_trusted(
    strange: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, package: bool
) -> None:
    """The call came from a subfolder that has its own mine.py, and "." was on PYTHONPATH: that file
    ran, reported as "(trusted)"."""
    name = f"mine_{key.replace('.', '_')}_{package}"
    below = strange / "sub"
    for folder, code in ((strange, FIND), (below, MARK.format(mark=str(tmp_path / "mark")) + FIND)):
        file = folder / name / "kinds.py" if package else folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code, "utf-8")
    settings(strange, NAMED[key].format(f"{name}.kinds" if package else name))
    assert call("trust", cwd=strange).code == 0
    monkeypatch.syspath_prepend(str(below))
    result = call(*VERB_OF[key.partition(".")[0]], cwd=below)
    assert result.code == 1 and "Python would run" in flat(result.err) and not ran(tmp_path)
    monkeypatch.syspath_prepend(str(strange))
    importlib.invalidate_caches()
    assert "Python would run" not in flat(
        call(*VERB_OF[key.partition(".")[0]], cwd=below).err
    ) and not ran(tmp_path)


@pytest.mark.parametrize("key", NAMED)
def test_a_file_of_the_settings_is_the_one_beside_them_wherever_the_call_comes_from(
    strange: Path, tmp_path: Path, key: str
) -> None:
    below = strange / "sub"
    below.mkdir()
    (strange / "own.py").write_text(FIND, "utf-8")
    (below / "own.py").write_text(MARK.format(mark=str(tmp_path / "mark")) + FIND, "utf-8")
    settings(strange, NAMED[key].format("own.py"))
    assert call("trust", cwd=strange).code == 0
    call(*VERB_OF[key.partition(".")[0]], cwd=below)
    assert not ran(tmp_path)
    config = load_config(start=below, trusted_by=lambda file: "trusted").config
    assert f"{strange / 'own.py'}:find" in str(config)


def test_a_file_that_a_recipe_names_is_the_one_beside_the_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("process:\n  - disagreement_filter:\n      embed: own.py:embed\n", "utf-8")
    assert load_recipe(recipe).steps[0].parameters["embed"] == f"{tmp_path / 'own.py'}:embed"


def test_a_module_runs_from_its_source_not_from_a_pyc_beside_it(
    strange: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A .pyc that a project ships is not part of the hashed files."""
    file, spoiled = strange / "cached_kinds.py", tmp_path / "spoiled.py"
    file.write_text(FIND, "utf-8")
    spoiled.write_text(MARK.format(mark=str(tmp_path / "mark")) + FIND, "utf-8")
    target = importlib.util.cache_from_source(str(file))
    py_compile.compile(
        str(spoiled),
        cfile=target,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        doraise=True,
    )
    settings(strange, NAMED["sites.detectors"].format("cached_kinds"))
    monkeypatch.syspath_prepend(str(strange))
    assert call("trust", cwd=strange).code == 0
    result = call("sites", cwd=strange)
    assert result.code == 0 and not ran(tmp_path), result.err


def test_what_is_hashed_is_what_is_parsed(strange: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changes between two reads: it is opened once."""
    file = settings(strange, "seed = 3\n")
    opened: list[Path] = []
    plain = Path.open

    def counted(self: Path, *args: Any, **kwargs: Any) -> Any:
        opened.extend([self] if self.name == "recompose.toml" else [])
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", counted)
    assert load_config(start=strange).sources[0].sha256 == hashlib.sha256(b"seed = 3\n").hexdigest()
    assert opened == [file]


# ---- the other ways to trust ----


def test_the_variable_of_ci_takes_whole_hashes_only(
    strange: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = settings(strange, '[sites]\ndetectors = ["evil.py:find"]\n')
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    for wrong in ("1", "true", "all", digest[:16], f"{digest},*"):
        monkeypatch.setenv(VARIABLE, wrong)
        result = call("sites", cwd=strange)
        assert result.code == 1 and "is no SHA-256" in result.err and not ran(tmp_path)
    monkeypatch.setenv(VARIABLE, "0" * 64)
    assert "is not trusted" in call("sites", cwd=strange).err
    monkeypatch.setenv(VARIABLE, f"{'0' * 64}, {digest.upper()}")
    assert call("sites", cwd=strange).code == 0 and ran(tmp_path)
    (strange / ".env").write_text(f"{VARIABLE}={digest}\n", "utf-8")
    monkeypatch.delenv(VARIABLE)
    assert call("sites", cwd=strange).code == 1


def test_the_flag_is_for_one_call(strange: Path, nobody_is_trusted: Path) -> None:
    settings(strange, '[sites]\ndetectors = ["evil.py:find"]\n')
    result = call("sites", "--trust-settings", cwd=strange)
    assert (
        result.code == 0
        and "(--trust-settings)" in result.out
        and "show session --trust-settings" in result.out
    )
    assert not nobody_is_trusted.exists() and call("sites", cwd=strange).code == 1


def test_flags_are_the_users_own_and_take_the_files_place(strange: Path, tmp_path: Path) -> None:
    settings(strange, "seed = 3\n")
    assert call(
        "sites", "--sites.detectors", f"{strange}/evil.py:find", cwd=strange
    ).code == 0 and ran(tmp_path)
    settings(strange, '[sites]\ndetectors = ["evil.py:find"]\n')
    assert call("sites", "--sites.detectors", "tool_error", cwd=strange).code == 0
    # a flag is laid over a table, and leaves the rest of it
    settings(strange, '[hints.writers]\nfile_missing = "evil.py:find"\n')
    result = call("hints", "--hints.writers", '{bad_arguments = "seen_paths"}', cwd=strange)
    assert result.code == 1 and "is not trusted" in result.err


def test_a_terminal_is_asked_once_and_no_is_no(strange: Path, tmp_path: Path) -> None:
    settings(strange, '[sites]\ndetectors = ["evil.py:find"]\n')
    output = on_a_terminal("sites", cwd=strange, typed="n\n")
    assert (
        f'sites.detectors runs the Python of "{strange}/evil.py:find"' in output
        and "[y/N]" in output
        and "not trusted" in output
        and not ran(tmp_path)
    )
    output = on_a_terminal("sites", cwd=strange, typed="\x04")  # Ctrl-D, at the end of input
    assert "not trusted" in output and "bug" not in output and not ran(tmp_path)
    output = on_a_terminal("sites", "--dry-run", cwd=strange, typed="y\n")
    assert "[y/N]" not in output and not ran(tmp_path)
    assert "[y/N]" in on_a_terminal("sites", cwd=strange, typed="y\n") and ran(tmp_path)
    assert "[y/N]" not in on_a_terminal("sites", cwd=strange)
    settings(strange, '[sites]\ndetectors = ["evil.py:find"]\n# changed\n')
    assert "[y/N]" in on_a_terminal("sites", cwd=strange, typed="n\n")


def test_what_init_writes_is_not_asked_about(tmp_path: Path) -> None:
    for argv in (("init",), ("doctor",)):
        assert call(*argv, cwd=tmp_path).code == 0
    assert "it needs no trust" in call("trust", cwd=tmp_path).out


def test_doctor_and_init_work_beside_a_strange_file_and_read_nothing_of_it(
    strange: Path, tmp_path: Path
) -> None:
    settings(strange, 'work_dir = "/srv/x"\n[ingest]\nlogs = ["/"]\n')
    findings = {
        finding["name"]: finding
        for finding in call("doctor", "--json", cwd=strange).value["findings"]
    }
    assert (
        "not trusted" in findings["settings"]["found"]
        and findings["settings"]["fix"] == "recompose trust"
    )
    assert "in /" not in findings["logs"]["found"].replace("in /root", "").replace(
        f"in {tmp_path}", ""
    )
    assert call("init", "--explain", "train", cwd=strange).code == 0


def test_a_list_that_others_can_write_or_that_is_damaged_is_not_believed(
    strange: Path, nobody_is_trusted: Path
) -> None:
    file = settings(strange, '[sites]\ndetectors = ["evil.py:find"]\n')
    assert call("trust", cwd=strange).code == 0
    for mode in (0o666, 0o620, 0o602):  # everybody, a group, all others
        nobody_is_trusted.chmod(mode)
        result = call("sites", cwd=strange)
        assert result.code == 1 and "others can write" in result.err
    nobody_is_trusted.chmod(0o600)
    assert call("sites", "--dry-run", cwd=strange).code == 0
    for damage in ("{", "[]", json.dumps({"trusted": [str(file)]})):
        nobody_is_trusted.write_text(damage, "utf-8")
        assert call("sites", cwd=strange).code == 1


def test_a_relative_config_home_is_not_the_projects(
    strange: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    assert (
        Trusted.of(os.environ).store
        == Path(os.environ["HOME"]) / ".config" / "recompose" / "trusted.json"
    )


# ---- keys ----


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "MY_VLLM_TOKEN",
        "HF_TOKEN",
        "KEY",
        "KEY_2",
        "AWS_BEARER_TOKEN_BEDROCK",
        "my_key",
    ],
)
def test_a_models_key_may_be_named(name: str) -> None:
    assert may_be_a_models_key(name)


@pytest.mark.parametrize(
    "name",
    ["AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "gh_token", "NPM_TOKEN", "STRIPE_API_KEY",
     "DATABASE_URL", "HOME", "SSH_AUTH_SOCK", "PATH",
     "DJANGO_SECRET_KEY", "PRIVATE_KEY", "CI_JOB_TOKEN", "PGPASSWORD", "SLACK_BOT_TOKEN",
     "KEY PATH", "REFRESH_TOKEN", "JWT_KEY"],
)  # fmt: skip
def test_a_foreign_credential_is_sent_only_by_the_users_own_flag(tmp_path: Path, name: str) -> None:
    assert not may_be_a_models_key(name)
    table = f'[replay.teacher.x]\nmodel = "m"\nkey_env = "{name}"\n'
    file = settings(tmp_path, table)
    with pytest.raises(
        ConfigError, match=r"key_env names .* does not look like the key of a model"
    ) as caught:
        load_config([file], start=tmp_path, trusted_by=lambda _: "trusted")
    assert (
        caught.value.where.endswith(":3")
        and f"--replay.teacher.x.key_env {name}" in caught.value.fix
    )
    file = settings(tmp_path, '[replay.teacher.x]\nmodel = "m"\n')
    loaded = load_config(
        [file],
        flags={"replay.teacher.x.key_env": name},
        start=tmp_path,
        trusted_by=lambda _: "trusted",
    )
    assert loaded.config.replay.teacher["x"].key_env == name


def test_replay_says_to_which_host_with_which_variable(strange: Path) -> None:
    settings(
        strange,
        '[replay]\nteachers = ["mine", "glm"]\nsteps = "all"\n'
        '[replay.teacher.mine]\nmodel = "acme/m"\n'
        'base_url = "http://localhost:1/v1"\nkey_env = ""\n',
    )
    result = call("replay", "--estimate", "--trust-settings", "--json", cwd=strange)
    assert result.value["settings_read"]["sends"] == [
        'your sessions, redacted, to "mine" at http://localhost:1 without a key',
        (
            'your sessions, redacted, to "glm" at https://openrouter.ai with the key in'
            " $OPENROUTER_API_KEY"
        ),
    ]


def test_programs_and_detectors_see_no_keys(
    strange: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_API_KEY", "planted")
    show = "import os, pathlib; pathlib.Path({mark!r}).write_text(' '.join(sorted(os.environ)))"
    (strange / "look.py").write_text(
        "import os, pathlib\nseen = [dict(os.environ)]\ndef find(session):\n   "
        " seen.append(dict(os.environ))\n   "
        f" pathlib.Path({str(tmp_path / 'mark')!r}).write_text(repr(seen))\n    return []\n",
        "utf-8",
    )
    assert call("sites", "--sites.detectors", f"{strange}/look.py:find", cwd=strange).code == 0
    assert (
        "PATH" in (tmp_path / "mark").read_text()
        and "ACME_API_KEY" not in (tmp_path / "mark").read_text()
    )
    assert os.environ["ACME_API_KEY"] == "planted"
    scanner = json.dumps([sys.executable, "-c", show.format(mark=str(tmp_path / "mark"))])
    assert call("ingest", "logs", "--ingest.scanner", scanner, cwd=strange).code == 0
    assert set((tmp_path / "mark").read_text().split()) <= {
        "PATH",
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "TMPDIR",
    }


# ---- other things in a stranger's folder that could run ----


def test_a_file_called_default_is_no_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "default").write_text(
        "process:\n  - disagreement_filter:\n      embed: 'evil:find'\n", "utf-8"
    )
    monkeypatch.chdir(tmp_path)
    assert load_recipe("default").steps[0].name == "answer_not_empty_filter"
    assert [step.name for step in load_recipe("./default").steps] == ["disagreement_filter"]


def test_a_run_that_says_latest_does_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    for place in (tmp_path / "runs" / "a", tmp_path / "elsewhere"):
        place.mkdir(parents=True)
        (place / "run.json").write_text("{}", "utf-8")
    (tmp_path / "runs" / "latest").write_text("../elsewhere\n", "utf-8")
    with pytest.raises(DataError, match="not a run directory"):
        open_run(tmp_path / "runs" / "latest")


@pytest.mark.train
def test_the_settings_in_a_strangers_run_folder_run_nothing(tmp_path: Path) -> None:
    """`evaluate`, `export`, `show` and `report` read resolved.json: its environment, scanner and
    detectors are never loaded."""
    evil = tmp_path / "evil.py"
    evil.write_text(
        MARK.format(mark=str(tmp_path / "mark")) + "def find(*a, **k): return []\n", "utf-8"
    )
    config = Config().model_dump(mode="json")
    config["rollouts"]["env"] = config["sites"]["error_kind"] = f"{evil}:find"
    config["sites"]["detectors"], config["ingest"]["scanner"] = (
        [f"{evil}:find"],
        [
            sys.executable,
            str(evil),
        ],
    )
    run = create_run(
        tmp_path / "recompose" / "runs",
        resolved=config,
        command="touch mark",
        seed=1,
        name="theirs",
    )
    step = run.checkpoint(2)
    step.mkdir(parents=True)
    (step / "trainer.json").write_text('{"schema": 2, "start_sha256": "0", "step": 2}', "utf-8")
    for verb in ("evaluate", "evaluate --logs", "export", "show run", "report"):
        call(*verb.split(), "theirs", cwd=tmp_path)
    assert not ran(tmp_path)
