"""A subcommand, task or option that its program does not know: the hint names the list in which it
stands, never the misspelled word, and the decision is that word."""

from __future__ import annotations

import pytest

from composer_replication.core.trace import ToolSpec
from composer_replication.data.hints.context import site_context
from composer_replication.data.hints.decisions import decision_of
from composer_replication.data.sites.shell_errors import judge_shell_error
from tests.data.hints.test_write import hint
from tests.data.hints.test_writers import after
from tests.data.sites.builder import bash, one_call, only

GIT = "git: '{}' is not a git command. See 'git --help'.\n\nThe most similar command is\n\tcommit"
DOCKER = "docker: '{}' is not a docker command.\nSee 'docker --help'"
CLAP = "error: unrecognized subcommand '{}'\n\n  tip: a similar subcommand exists: 'install'"
NPM = (
    'npm error Missing script: "{}"\nnpm error\nnpm error To see a list of scripts, run:\nnpm error'
    "   npm run"
)
DOTNET = (
    "Could not execute because the specified command or file was not found.\nPossible reasons for"
    " this include:\n  * You misspelled a built-in dotnet command.\n  * You intended to execute a"
    " .NET program, but dotnet-{} does not exist."
)
AWS = "aws: error: argument command: Invalid choice, valid choices are:\n\nacm | s3\n\n\n"


@pytest.mark.parametrize(
    ("command", "error", "wrong", "run"),
    [
        ('git comit -m "x"', GIT, "comit", "git -h"),
        ("git stauts --short", GIT, "stauts", "git -h"),
        ("git -C web chekout main", GIT, "chekout", "git -h"),
        ("git remote -v ad x", "error: unknown subcommand: `{}'\nusage: git remote", "ad", ""),
        (
            "git stash psuh -m x",
            "fatal: subcommand wasn't specified; 'push' can't be assumed due to unexpected token"
            " '{}'",
            "psuh",
            "git stash -h",
        ),
        ("docker compsoe up", DOCKER, "compsoe", "docker --help"),
        (
            "docker container lss -a",
            "docker: unknown command: docker container {}",
            "lss",
            "docker container --help",
        ),
        (
            "docker compose upp -d",
            'unknown docker command: "compose {}"',
            "upp",
            "docker compose --help",
        ),
        (
            "podman biuld .",
            "Error: unrecognized command `podman {}`",
            "biuld",
            "podman --help",
        ),
        ("gh pr lst --limit 3", 'unknown command "{}" for "gh pr"', "lst", "gh pr --help"),
        ("pip instal x", 'ERROR: unknown command "{}" - maybe you meant', "instal", "pip --help"),
        ("npm isntall x", 'Unknown command: "{}"\n\nDid you mean this?', "isntall", "npm --help"),
        ("cargo biuld --release", "error: no such command: `{}`", "biuld", "cargo --help"),
        (
            "kubectl -n web gett pods",
            'Error: unknown command "{}" for "kubectl"\n\nDid you mean this?',
            "gett",
            "kubectl --help",
        ),
        ("go biuld ./...", "go {}: unknown command\nRun 'go help' for usage.", "biuld", ""),
        ("go mod tiddy -v", "go mod {}: unknown command", "tiddy", "go mod --help"),
        ("poetry instal -v", '\nThe command "{}" does not exist.', "instal", "poetry --help"),
        ("poetry instal -v", "The requested command {} does not exist.", "instal", ""),
        ("poetry instal -v", '\n  Command "{}" is not defined.', "instal", "poetry --help"),
        ("uv pip isntall x", CLAP, "isntall", "uv pip --help"),
        ("brew isntall jq", "Error: Unknown command: {}", "isntall", "brew --help"),
        ("brew isntall jq", "Error: Unknown command: brew {}\nDid you mean", "isntall", ""),
        ("sudo apt instal jq", "E: Invalid operation {}", "instal", "apt --help"),
        ("systemctl statsu x", "Unknown command verb {}.", "statsu", "systemctl --help"),
        ("systemctl statsu x", "Unknown command verb '{}', did you mean", "statsu", ""),
        (
            "terraform pln -out=x",
            'Terraform has no command named "{}". Did you mean "plan"?',
            "pln",
            "terraform --help",
        ),
        ("aws s33 ls", AWS + "Invalid choice: '{}', maybe you meant:", "s33", "aws help"),
        (
            "aws --region eu s3 lss",
            "aws: error: argument subcommand: Found invalid choice '{}'",
            "lss",
            "aws s3 help",
        ),
        (
            "gcloud compue instances list",
            "ERROR: (gcloud) Invalid choice: '{}'.\nMaybe you meant:",
            "compue",
            "gcloud --help",
        ),
        (
            "conda instal x",
            "conda: error: argument COMMAND: invalid choice: '{}' (choose from 'clean')",
            "instal",
            "conda --help",
        ),
        ("dotnet biuld -c Release", DOTNET, "biuld", "dotnet --help"),
        # tasks that a project defines
        ("npm run biuld -- -x", NPM, "biuld", "npm run"),
        ("npm --prefix web run biuld", NPM, "biuld", "npm --prefix web run"),
        ("yarn biuld -x", 'error Command "{}" not found.', "biuld", "yarn run"),
        ("yarn biuld", 'Usage Error: Couldn\'t find a script named "{}".', "biuld", "yarn run"),
        (
            "pnpm biuld",
            ' ERR_PNPM_RECURSIVE_EXEC_FIRST_FAIL  Command "{}" not found',
            "biuld",
            "pnpm run",
        ),
        ("bun run lnit", 'error: Script not found "{}"', "lnit", "bun run"),
        ("mise run biuld", "mise ERROR no task {} found", "biuld", "mise tasks"),
        # options: the one that is refused, behind others
        ("ls -la --srt x", "ls: unrecognized option '{}'\nTry 'ls --help'", "--srt", "ls --help"),
        ("git gc --prune --dry", "error: unknown option `{}'\nusage: git gc", "--dry", "git gc -h"),
        ("curl -s --foo x", "curl: option {}: is unknown", "--foo", "curl --help"),
        ("find . -type f -nam x", "find: {}: unknown primary or operator", "-nam", "find --help"),
    ],
)
def test_a_word_that_the_program_does_not_know_is_the_decision_and_not_named(
    command: str, error: str, wrong: str, run: str
) -> None:
    log = one_call("Bash", {"command": command}, f"Exit code 1\n{error.format(wrong)}")
    found, decision = hint(log), hint(log).decision
    assert found.text.startswith(f"Run `{run}` first" if run else "Run `")
    assert wrong not in found.text.split() and f"`{wrong}" not in found.text
    assert decision is not None and decision.wrong == wrong
    assert decision == decision_of(site_context(log, only(log)), found.text)


def test_a_letter_among_several_is_refused_in_its_own_word() -> None:
    error = "Exit code 2\nsort: invalid option -- 'Y'\nTry 'sort --help'"
    decision = hint(one_call("Bash", {"command": "sort -n -uY a"}, error)).decision
    assert decision is not None and (decision.wrong, decision.right) == ("-uY", ("--help",))


@pytest.mark.parametrize(
    ("tools", "advice"),
    [(("Bash", "Read"), "Call Read on the makefile first"), (("Bash",), "Read the makefile first")],
)
def test_the_targets_of_make_are_read_with_the_sessions_own_tool(
    tools: tuple[str, ...], advice: str
) -> None:
    (text,) = after(
        call=bash("w", "make -C web nosuch"),
        text="Exit code 2\nmake: *** No rule to make target 'nosuch'.  Stop.",
        tools=tuple(ToolSpec(name=name) for name in tools),
        tools_origin="log",
    )
    assert text.startswith(advice) and "nosuch" not in text


def test_a_subcommand_that_a_hook_of_git_misses_is_not_the_lines_mistake() -> None:
    error = "Exit code 1\n" + GIT.format("lfs")
    assert judge_shell_error("git push origin main", error).category == "failed_check"
