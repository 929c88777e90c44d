"""When a failed shell call is malformed itself, and when it only ran something that failed."""

from __future__ import annotations

import pytest

from composer_replication.data.sites.shell import parse, shell_command
from composer_replication.data.sites.shell_errors import judge_shell_error, split_exit_code
from tests.data.sites.builder import bash, calls, find, human, one_call, only, results, session

MALFORMED = [
    (
        "shell_syntax",
        "X=$(ls) && grep -B5 f (x) | head",
        "Exit code 1\n(eval):1: parse error near `('",
    ),
    (
        "shell_syntax",
        "echo 'x",
        "Exit code 2\n/bin/bash: -c: line 1: unexpected EOF while looking for matching `''",
    ),
    (
        "shell_syntax",
        "python3 -c 'import sys print(1)'",
        (
            'Exit code 1\n  File "<string>", line 1\n    import sys print(1)\n              '
            " ^\nSyntaxError: invalid syntax"
        ),
    ),
    (
        "shell_syntax",
        "python3 - <<'EOF'\nx = (\nEOF",
        (
            "Exit code 1\n  File \"<stdin>\", line 1\n    x = (\n        ^\nSyntaxError: '(' was"
            " never closed"
        ),
    ),
    (
        "shell_syntax",
        "curl -s http://h/x?page=2",
        "Exit code 1\n(eval):1: no matches found: http://h/x?page=2",
    ),
    (
        "shell_syntax",
        "grep -r x --include=*.go .",
        "Exit code 1\nzsh:1: no matches found: --include=*.go",
    ),
    (
        "shell_syntax",
        "gh api x | jq '.a \\!= 1'",
        (
            "Exit code 3\njq: error: syntax error, unexpected INVALID_CHARACTER at <top-level>,"
            " line 1:\njq: 1 compile error"
        ),
    ),
    (
        "shell_syntax",
        "sed 's/a/b' f",
        'Exit code 1\nsed: 1: "s/a/b": unterminated substitute in regular expression',
    ),
    ("shell_unknown_command", "gti status", "Exit code 127\n(eval):1: command not found: gti"),
    (
        "shell_unknown_command",
        "gti status",
        "Exit code 127\n/bin/bash: line 1: gti: command not found",
    ),
    ("shell_unknown_command", "cd x && gti status", "Exit code 127\n/bin/sh: 1: gti: not found"),
    (
        "shell_unknown_command",
        "timeout 5 gti",
        "Exit code 127\ntimeout: failed to run command 'gti': No such file or directory",
    ),
    (
        "shell_unknown_command",
        "timeout 5 go test",
        "Exit code 127\n(eval):1: command not found: timeout",
    ),
    (
        "shell_unknown_command",
        "A=1 time go test",
        "Exit code 127\n(eval):1: command not found: time",
    ),
    (
        "shell_unknown_command",
        "python -m pytset -q",
        "Exit code 1\n/usr/bin/python: No module named pytset",
    ),
    (
        "shell_bad_option",
        "gh pr diff 88 --stat",
        "Exit code 1\nunknown flag: --stat\n\nUsage:  gh pr diff",
    ),
    (
        "shell_bad_option",
        "sed -n 1p x | cat -A",
        "Exit code 1\ncat: illegal option -- A\nusage: cat [-belnstuv] [file ...]",
    ),
    (
        "shell_bad_option",
        "go test ./... -v 2>&1 | grep -E '--- FAIL'",
        "Exit code 2\ngrep: unrecognized option `--- FAIL'\nusage: grep",
    ),
    (
        "shell_bad_option",
        "git gc --dry-run",
        "Exit code 129\nerror: unknown option `dry-run'\nusage: git gc",
    ),
    (
        "shell_bad_option",
        "git stauts",
        "Exit code 1\ngit: 'stauts' is not a git command. See 'git --help'.",
    ),
    ("shell_bad_option", "npm run biuld", 'Exit code 1\nnpm error Missing script: "biuld"'),
    (
        "shell_bad_option",
        "make chekc",
        "Exit code 2\nmake: *** No rule to make target `chekc'.  Stop.",
    ),
    ("shell_bad_option", "gh pr view 3 --json stat", 'Exit code 1\nUnknown JSON field: "stat"'),
    (
        "shell_missing_path",
        "find src/cmds -name '*.go'",
        "Exit code 1\nfind: ‘src/cmds’: No such file or directory",
    ),
    (
        "shell_missing_path",
        "cd src/cmds && go test .",
        "Exit code 1\n(eval):cd:1: no such file or directory: src/cmds",
    ),
    (
        "shell_missing_path",
        "cd nowhere && ls",
        "Exit code 1\n/bin/bash: line 1: cd: nowhere: No such file or directory",
    ),
    (
        "shell_missing_path",
        "grep -n x a/b.go",
        "Exit code 2\ngrep: a/b.go: No such file or directory",
    ),
    (
        "shell_missing_path",
        "./scripts/run.sh all",
        "Exit code 127\n(eval):1: no such file or directory: ./scripts/run.sh",
    ),
    (
        "shell_missing_path",
        "echo 1 > out/x.txt",
        "Exit code 1\n(eval):1: no such file or directory: out/x.txt",
    ),
    (
        "shell_missing_path",
        "python run.py",
        "Exit code 2\npython: can't open file '/w/run.py': [Errno 2] No such file or directory",
    ),
    (
        "shell_missing_path",
        "pytest tests/test_nope.py",
        "Exit code 4\nERROR: file or directory not found: tests/test_nope.py",
    ),
    (
        "shell_missing_path",
        "D=pkg/x; cat $D/y.py",
        "Exit code 1\ncat: pkg/x/y.py: No such file or directory",
    ),
    (
        "shell_missing_path",
        "go test ./cmd/x",
        "Exit code 1\nstat /w/cmd/x: directory not found\nFAIL ./cmd/x [setup failed]",
    ),
    (
        "shell_missing_path",
        "cd src/test && go test .",
        "Exit code 1\n(eval):cd:1: no such file or directory: src/test",
    ),
    (
        "shell_missing_path",
        "go build ./go/cmd/x",
        "Exit code 1\nmain module (m) does not contain package m/go/cmd/x",
    ),
    ("shell_bad_option", "bun run lnit", 'Exit code 1\nerror: Script not found "lnit"'),
    ("shell_bad_option", "pnpm run lnit", "Exit code 1\n ERR_PNPM_NO_SCRIPT  Missing script: lnit"),
    ("shell_bad_option", "mix tset", 'Exit code 1\n** (Mix) The task "tset" could not be found'),
    ("shell_syntax", "ls; echo ===; ls", "Exit code 1\na.go\n(eval):1: == not found"),
    (
        "shell_bad_option",
        "rtk bun run test",
        "Exit code 2\nerror: unrecognized subcommand 'bun'\n\nUsage: rtk [OPTIONS]",
    ),
    (
        "shell_bad_option",
        "gh api graphql -f query='{ a { body(truncate: 80) } }'",
        "Exit code 1\n{\"errors\":[]}gh: Field 'body' doesn't accept argument 'truncate'",
    ),
    ("is_directory", "cat src", "Exit code 1\ncat: src: Is a directory"),
    (
        "shell_unknown_ref",
        "git diff mian",
        (
            "Exit code 128\nfatal: ambiguous argument 'mian': unknown revision or path not in the"
            " working tree."
        ),
    ),
    (
        "shell_unknown_ref",
        "git add a.go",
        "Exit code 128\nfatal: pathspec 'a.go' did not match any files",
    ),
    (
        "shell_unknown_ref",
        "git show abc:x/y",
        "Exit code 128\nfatal: path 'x/y' does not exist in 'abc'",
    ),
]

CORRECT = [
    ("failed_check", "test_failed", "go test ./...", "Exit code 1\n--- FAIL: TestX (0.00s)\nFAIL"),
    (
        "failed_check",
        "test_failed",
        "cd pkg && python -m pytest -q",
        "Exit code 1\nE   FileNotFoundError: [Errno 2] No such file or directory: 'x'\n1 failed",
    ),
    # a script of the project, not this line
    ("failed_check", "test_failed", "npm test", "Exit code 1\nsh: 1: jest: not found"),
    (
        "failed_check",
        "lint_failed",
        "mise run fmt && mise run lint",
        "Exit code 1\n[lint] ERROR task failed\n3 issues:",
    ),
    (
        "failed_check",
        "build_failed",
        "go build ./...",
        "Exit code 1\n# pkg\na.go:3:2: undefined: foo",
    ),
    (
        "failed_check",
        "build_failed",
        "make",
        "Exit code 2\nmake: *** No rule to make target 'foo.h', needed by 'a.o'.  Stop.",
    ),
    (
        "failed_check",
        "lint_failed",
        "npx tsc --noEmit",
        "Exit code 2\nsrc/a.ts(3,1): error TS2304: Cannot find name 'x'.",
    ),
    ("failed_check", "no_match", "git log | grep Entire", "Exit code 1"),
    (
        "failed_check",
        "git_failed",
        "git push",
        "Exit code 1\n ! [rejected] main -> main (fetch first)\nerror: failed to push some refs",
    ),
    (
        "failed_check",
        "git_conflict",
        "git merge origin/main",
        "Exit code 1\nCONFLICT (content): Merge conflict in a.go",
    ),
    ("failed_check", "git_failed", "gh pr checks 1", "Exit code 1\ntest\tfail\t7m"),
    # the project's own program: its usage error is what was tested
    (
        "failed_check",
        "test_failed",
        "go build -o /tmp/app-test . && /tmp/app-test aaaa",
        "Exit code 1\nUsage:\n  app\nError: unknown command: aaaa",
    ),
    ("failed_check", "command_failed", "./app --nope", "Exit code 1\nunknown flag: --nope"),
    (
        "failed_check",
        "command_failed",
        "go run . --nope",
        "Exit code 1\nflag provided but not defined: -nope",
    ),
    (
        "failed_check",
        "command_failed",
        "acme sync --nope",
        "Exit code 1\nError: unknown flag: --nope",
    ),
    # a message from inside a script that the line runs
    (
        "failed_check",
        "command_failed",
        "./run.sh all",
        "Exit code 1\n./run.sh: line 46: /tmp/bin-x: No such file or directory",
    ),
    (
        "failed_check",
        "command_failed",
        "./setup.sh",
        "Exit code 128\nfatal: pathspec '.x/.gitignore' did not match any files",
    ),
    # looking whether something is there
    (
        "failed_check",
        "command_failed",
        "rm -f /tmp/a.txt && ls -la /tmp/a*.txt",
        "Exit code 1\n(eval):1: no matches found: /tmp/a*.txt",
    ),
    (
        "failed_check",
        "path_explored",
        "ls a.yml a.yaml",
        "Exit code 1\nls: a.yml: No such file or directory\na.yaml",
    ),
    (
        "failed_check",
        "path_explored",
        "ls reviews/*.md 2>/dev/null",
        "Exit code 1\n(eval):1: no matches found: reviews/*.md",
    ),
    (
        "failed_check",
        "path_explored",
        "ls src/cmds",
        "Exit code 2\nls: cannot access 'src/cmds': No such file or directory",
    ),
    (
        "failed_check",
        "path_explored",
        "cat a.md || cat b.md",
        "Exit code 1\ncat: a.md: No such file or directory\ncat: b.md: No such file or directory",
    ),
    (
        "failed_check",
        "path_explored",
        "cat nope/*.md",
        "Exit code 1\ncat: nope/*.md: No such file or directory",
    ),
    (
        "failed_check",
        "path_explored",
        "grep -rn x dist/*.js | head",
        "Exit code 1\n(eval):1: no matches found: dist/*.js",
    ),
    (
        "failed_check",
        "path_explored",
        "find a b -name x",
        "Exit code 1\nfind: a: No such file or directory\nb/x",
    ),
    # what git refuses is a conflict, whatever else the line was to do
    (
        "failed_check",
        "git_conflict",
        "git stash pop && make lint",
        "Exit code 1\nCONFLICT (content): Merge conflict in a.go\nThe stash entry is kept",
    ),
    (
        "failed_check",
        "git_conflict",
        "git stash && mise run lint; git stash pop",
        (
            "Exit code 1\nerror: Your local changes to the following files would be overwritten by"
            " merge:\n\ta.go\nlint: error: x"
        ),
    ),
    # code that ran and failed is a check; only code that cannot be read is malformed
    (
        "failed_check",
        "command_failed",
        "python -c 'import yaml'",
        "Exit code 1\n  File \"<string>\", line 1\nModuleNotFoundError: No module named 'yaml'",
    ),
    (
        "failed_check",
        "command_failed",
        "python app.py",
        'Exit code 1\n  File "app.py", line 3\n    x = = 1\nSyntaxError: invalid syntax',
    ),
    ("benign", "differs", "diff a b", "Exit code 1\n1c1\n< x\n> y"),
    ("environment", "network", "curl http://h", "Exit code 6\ncurl: (6) Could not resolve host: h"),
    ("environment", "killed", "go test ./...", "Exit code 137\nok pkg"),
    ("environment", "timeout", "go test ./...", "Command timed out after 2m 0.0s"),
    (
        "interrupted",
        "interrupted",
        "go test ./...",
        "Exit code 137\n[Request interrupted by user for tool use]",
    ),
]


@pytest.mark.parametrize(("kind", "command", "text"), MALFORMED)
def test_a_malformed_command_line_is_a_mistake(kind: str, command: str, text: str) -> None:
    site = only(one_call("Bash", {"command": command}, text))
    assert (site.category, site.kind) == ("mistake", kind), site.detail


@pytest.mark.parametrize(("category", "kind", "command", "text"), CORRECT)
def test_a_correct_call_that_reports_failure_is_not_a_mistake(
    category: str, kind: str, command: str, text: str
) -> None:
    site = only(one_call("Bash", {"command": command}, text))
    assert (site.category, site.kind) == (category, kind), site.detail


@pytest.mark.parametrize(("kind", "command", "text"), MALFORMED)
def test_the_same_words_in_the_output_of_another_command_are_no_mistake(
    kind: str, command: str, text: str
) -> None:
    """A test log that prints the message is not about the line: nothing of it stands in the
    command."""
    log = one_call("Bash", {"command": "mise run test:ci"}, text)
    assert only(log).category == "failed_check"


def test_the_detail_quotes_the_line_that_shows_the_mistake() -> None:
    verdict = judge_shell_error(
        "pwd && ls scripts/", "Exit code 1\n/w\nls: scripts/: No such file or directory\nmore"
    )
    assert (verdict.detail, verdict.subject) == (
        "ls: scripts/: No such file or directory",
        "scripts/",
    )


# failures without a flag --------------------------------------------------------------------------


def hidden(command: str, text: str) -> list[tuple[str, str]]:
    return [
        (s.category, s.kind) for s in find(one_call("Bash", {"command": command}, text, error=None))
    ]


def test_a_malformed_call_in_a_pipeline_that_ended_well_is_found() -> None:
    assert hidden(
        "golangci-lnt run 2>&1 | head -20", "(eval):1: command not found: golangci-lnt"
    ) == [("mistake", "shell_unknown_command")]
    assert hidden(
        "gh pr diff 3 --stat 2>&1 | head", "unknown flag: --stat\n\nUsage: gh pr diff"
    ) == [("mistake", "shell_bad_option")]
    assert hidden("cat nope.txt 2>&1 | head", "cat: nope.txt: No such file or directory") == [
        ("mistake", "shell_missing_path")
    ]
    assert hidden("rtk bun run test 2>&1 | tail -3", "error: unrecognized subcommand 'bun'") == [
        ("mistake", "shell_bad_option")
    ]
    assert hidden("find src/css -name '*.css'", "find: ‘src/css’: No such file or directory") == [
        ("mistake", "shell_missing_path")
    ]


def test_a_program_that_answers_its_version_with_its_usage_has_no_such_option() -> None:
    usage = "Usage:\n  app [flags]\n  app [command]"
    assert hidden("A=1 bash run.sh --version 2>&1 | head -3", usage) == [
        ("mistake", "shell_bad_option")
    ]
    assert hidden("app version | head", "error: unknown command 'version'\nUsage: app") == [
        ("mistake", "shell_bad_option")
    ]
    assert hidden("app --version | head", "app 1.2.3\nUsage: app [flags]") == []
    assert hidden("app --version | head", "Usage: app v1.2 [flags]") == []
    assert hidden("app --help | head", usage) == []


def test_a_path_that_was_only_looked_for_stands_apart_also_without_a_flag() -> None:
    assert hidden("ls nope 2>&1 | head", "ls: nope: No such file or directory") == [
        ("failed_check", "path_explored")
    ]
    assert hidden("ls x/*.md 2>/dev/null | wc -l", "(eval):1: no matches found: x/*.md\n 0") == [
        ("failed_check", "path_explored")
    ]


def test_an_option_that_the_program_was_never_given_is_no_mistake_of_its_line() -> None:
    assert (
        hidden("cat a.log\necho '---'\nls", "cat: unrecognized option '---'\nTry 'cat --help'")
        == []
    )
    assert hidden("cat --- a.log; ls", "cat: unrecognized option '---'\nTry 'cat --help'") == [
        ("mistake", "shell_bad_option")
    ]


def test_a_summary_without_failures_outweighs_what_the_log_quotes() -> None:
    log = "error: expected failure of a case\n 12 pass\n {} fail\n"
    assert hidden("bun run test 2>&1 | tail", log.format(0)) == []
    assert hidden("bun run test 2>&1 | tail", log.format(2)) == [("failed_check", "test_failed")]
    assert hidden("mix test 2>&1 | tail", "14 doctests, 297 tests, 11 failures") == [
        ("failed_check", "test_failed")
    ]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("cat a.log", "bash: gti: command not found\nError: unknown flag: --stat"),
        ("cat a.log", "cat: b.log: No such file or directory"),
        ("grep -rn 'No such file' src", "src/a.go:3: ls: x: No such file or directory"),
        ("cat nope 2>&1 || echo none", "cat: nope: No such file or directory\nnone"),
        ("ls nope || true", "ls: nope: No such file or directory"),
        ("if cat nope; then echo; fi", "cat: nope: No such file or directory"),
        ("git branch -D gone 2>&1; echo $?", "error: branch 'gone' not found\n1"),
        ("shellcheck --version 2>&1; ls", "(eval):1: command not found: shellcheck\na.go"),
        ("git log -3", "fix: error: unknown option `stat'"),
    ],
)
def test_output_that_only_shows_an_error_or_a_probe_is_no_hidden_error(
    command: str, text: str
) -> None:
    assert hidden(command, text) == []


def test_failures_printed_with_exit_zero_are_failed_checks() -> None:
    assert hidden("go test ./... 2>&1 | tail -5", "ok a\nFAIL\tb 0.2s") == [
        ("failed_check", "test_failed")
    ]
    assert hidden("mise run lint 2>&1 | tail -5", "1 issues:\n* gosec: 1") == [
        ("failed_check", "lint_failed")
    ]
    assert hidden("mise run lint 2>&1 | tail -5", "0 issues:") == []
    assert hidden("cat test.log", "FAIL\tb 0.2s") == []


# reading command lines ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("cd /x && FOO=1 timeout -k 5 10s go test ./... | tee out.log", ["cd", "go", "tee"]),
        ("uv run pytest -q; poetry run mypy .", ["pytest", "mypy"]),
        ("cat <<'EOF' > a.py\nrm -rf /; (x\nEOF\nls", ["cat", "ls"]),
        ("for f in *; do wc -l $f; done", ["for", "wc", "done"]),
        ("echo 'unclosed; ls", ["echo", "ls"]),
        ("export A=1", ["export"]),
        ("time", ["time"]),
        ("A=x; B=${A}/y; cat $A $B", ["cat"]),
        ("A=1", []),
    ],
)
def test_programs_of_a_line(command: str, names: list[str]) -> None:
    assert [s.name for s in parse(command).simple] == names


def test_a_log_that_wants_to_take_forever_does_not() -> None:
    command = ";".join(f"A{i}={'x' * 20}" for i in range(20_000)) + "; cat " + "$A1" * 1000
    assert [s.name for s in parse(command).simple] == ["cat"]


def test_redirections_are_no_words() -> None:
    (command,) = parse("grep -n x a.py 2>/dev/null > out.txt").simple
    assert (command.words, command.redirects) == (("-n", "x", "a.py"), ("/dev/null", "out.txt"))


def test_a_line_names_a_path_by_its_tail_its_home_or_its_pattern() -> None:
    line = parse("cat src/a.py ~/logs/*.txt")
    assert line.mentions("/w/src/a.py")
    assert line.mentions("/home/x/logs/b.txt") or line.mentions("logs/b.txt")
    assert not line.mentions("other/src2/a.py")
    assert not line.mentions("a.py") and not line.mentions(".")


def test_the_command_of_a_shell_call() -> None:
    assert shell_command("exec_command", {"cmd": "ls"}) == "ls"
    assert shell_command("shell", {"command": ["bash", "-lc", "ls -a"]}) == "ls -a"
    assert shell_command("shell", {"command": ["ls", "a b"]}) == "ls 'a b'"
    assert shell_command("Bash", {"command": 3}) is None
    assert shell_command("Read", {"command": "ls"}) is None


@pytest.mark.parametrize(
    ("text", "code", "body"),
    [
        ("Exit code 2\nx", 2, "x"),
        ("x\n\nCommand exited with code 1", 1, "x"),
        ("fine", None, "fine"),
        ("saw Exit code 1", None, "saw Exit code 1"),
    ],
)
def test_the_exit_code_around_an_output(text: str, code: int | None, body: str) -> None:
    assert split_exit_code(text) == (code, body)


def test_a_very_long_output_is_read_at_both_ends() -> None:
    noise = "ok line\n" * 5000
    assert hidden("cat nope.txt big 2>&1", noise + "cat: nope.txt: No such file or directory") == [
        ("mistake", "shell_missing_path")
    ]


def test_parallel_shell_calls_are_judged_each_by_its_own_command() -> None:
    log = session(
        human("x"),
        calls(bash("a", "go test ./..."), bash("b", "gti status")),
        results(
            ("b", "Exit code 127\n(eval):1: command not found: gti", True),
            ("a", "Exit code 1\nFAIL", True),
        ),
    )
    assert [(s.call_id, s.category) for s in find(log)] == [("a", "failed_check"), ("b", "mistake")]


PARSE_ERROR = "Exit code 1\n(eval):1: parse error near `('"


@pytest.mark.parametrize(
    ("command", "text", "kind"),
    [
        (
            'D=$(go env GOMODCACHE) && grep -B5 "type C" "$D/a.go" | head -40',
            PARSE_ERROR,
            "shell_requoted",
        ),
        ("echo $(ls 'a)b') | wc", "Exit code 1\n(eval):1: parse error near `)'", "shell_requoted"),
        # no pipe: nothing is quoted anew
        ("D=$(go env GOMODCACHE) && ls $D", PARSE_ERROR, "shell_syntax"),
        ("echo $(ls) | head (", PARSE_ERROR, "shell_syntax"),  # the model's own bracket
        ("echo a(b) $(ls) | head", PARSE_ERROR, "shell_syntax"),
        ("echo $(ls | head", PARSE_ERROR, "shell_syntax"),
        ("echo $(ls) 'open | head", PARSE_ERROR, "shell_syntax"),
        (
            "gh run list | jq '.[] | select(.a != 1)'",
            (
                "Exit code 3\njq: error: syntax error, unexpected INVALID_CHARACTER\n.[] |"
                " select(.a \\!= 1)"
            ),
            "shell_requoted",
        ),
        (
            "A=$(ls) time ls | head",
            "Exit code 1\n(eval):1: parse error near `time'",
            "shell_syntax",
        ),
    ],
)
def test_a_sound_line_that_the_agents_wrapper_quoted_anew_is_the_environments(
    command: str, text: str, kind: str
) -> None:
    verdict = judge_shell_error(command, text)
    assert (verdict.kind, verdict.category) == (
        kind,
        "environment" if kind == "shell_requoted" else "mistake",
    )


@pytest.mark.parametrize(
    "line",
    [
        'npm ERR! Missing script: "tset"',
        "npm ERR! missing script: tset",
        'npm error Missing script: "tset"',
    ],
)
def test_npm_names_a_missing_script_in_either_spelling(line: str) -> None:
    assert judge_shell_error("npm run tset", f"Exit code 1\n{line}").kind == "shell_bad_option"


@pytest.mark.parametrize(
    ("command", "text", "category"),
    [
        # the line asks whether a program is there
        (
            "command -v ruby gfortran; ruby -e 1",
            "Exit code 127\n(eval):1: command not found: ruby",
            "failed_check",
        ),
        (
            "which ruby && ruby x.rb",
            "Exit code 127\n(eval):1: command not found: ruby",
            "failed_check",
        ),
        ("ruby --version", "Exit code 127\n(eval):1: command not found: ruby", "failed_check"),
        ("which python; ruby x.rb", "Exit code 127\n(eval):1: command not found: ruby", "mistake"),
        ("ruby --version x.rb", "Exit code 127\n(eval):1: command not found: ruby", "mistake"),
        # or git whether a ref or a file of it is, and goes on where it is not
        (
            "git cat-file -e v1:a.md",
            "Exit code 128\nfatal: path 'a.md' does not exist in 'v1'",
            "failed_check",
        ),
        (
            "git rev-parse --verify nope",
            "Exit code 128\nfatal: Not a valid object name nope",
            "failed_check",
        ),
        (
            "git show v1:a.md | head || echo none; false",
            "Exit code 1\nfatal: path 'a.md' does not exist in 'v1'",
            "failed_check",
        ),
        (
            "if git show v1:a.md; then ls; fi; false",
            "Exit code 1\nfatal: path 'a.md' does not exist in 'v1'",
            "failed_check",
        ),
        (
            "git show v1:a.md; ls x || true",
            "Exit code 128\nfatal: path 'a.md' does not exist in 'v1'",
            "mistake",
        ),
        ("git show v1:a.md", "Exit code 128\nfatal: path 'a.md' does not exist in 'v1'", "mistake"),
        (
            "git checkout nope && git log",
            "Exit code 1\nerror: pathspec 'nope' did not match any file(s) known to git",
            "mistake",
        ),
    ],
)
def test_a_line_that_asks_whether_something_is_there_is_no_mistake(
    command: str, text: str, category: str
) -> None:
    assert judge_shell_error(command, text).category == category


def test_words_that_ask_whether_a_program_is_installed_are_a_question() -> None:
    error = "Exit code 127\n(eval):1: command not found: ruby"
    for text, category in (
        ("Let me check whether Ruby is installed.", "failed_check"),
        ("Now I run the script.", "mistake"),
    ):
        (site,) = find(
            session(human("x"), calls(text, bash("a", "ruby x.rb")), results(("a", error, True)))
        )
        assert (site.category, site.kind) == (
            category,
            "command_failed" if category != "mistake" else "shell_unknown_command",
        )
