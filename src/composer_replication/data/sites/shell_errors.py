"""Whether a failed shell call was itself malformed, or only ran something that reported failure.

A command that fails is usually a correct call: a red test, a lint finding, a grep without a match tell about an earlier
edit. The call is a mistake only where a message says that the *command line* was wrong - a parse error, an unknown
command, option, path or ref - and that message can be traced to the line: its subject stands in the command, or it was
written by the calling shell or by a stock program that the line runs. A usage error of the project's own program is
what its developer wanted to see.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator

from composer_replication.data.sites.shell import Command, Simple, is_own_program, parse
from composer_replication.data.sites.shell_rules import (
    CHECK_COMMANDS,
    CHECK_KINDS,
    FAILURE_LINES,
    INLINE_CODE,
    LOOKERS,
    NETWORK,
    ONLINE,
    REMOVERS,
    RUNNERS,
    SEARCHERS,
    SHELL_RULES,
    STOCK,
    ShellRule,
)
from composer_replication.data.sites.tool_errors import not_the_model
from composer_replication.data.sites.verdict import Verdict, quote

READ_CHARS = 6000
"""How much of each end of an output is read: the messages of a shell stand first or last."""
# The line itself asks how a command ended: `if`, `[ -f x ]`, `echo $?`.
_ASKS = re.compile(r"(?:^|[\s;&(])(?:if|while|until|test|\[\[?) |\bset \+e\b|command -v|\bwhich\b|\$\?")
# How zsh words it for a line that the agent ran through `eval`; a bracket the model wrote bare is told apart by the line itself.
_REQUOTED = re.compile(r"\(eval\):\d+: parse error near `[()]'")
KILLED_CODES = frozenset((130, 137, 143))
_EXIT = re.compile(r"\AExit code:? (\d+)\n?|\n?\n?Command exited with code (\d+)\s*\Z|\AProcess exited with code (\d+)\n?")


def split_exit_code(text: str) -> tuple[int | None, str]:
    """The exit code that the agent wrote around an output, and the output.

    >>> split_exit_code("Exit code 2\\nusage: x")
    (2, 'usage: x')
    """
    match = _EXIT.search(text)
    if match is None:
        return None, text
    code = next(g for g in match.groups() if g is not None)
    return int(code), (text[: match.start()] + text[match.end() :]).strip("\n")


def judge_shell_error(command: str, text: str) -> Verdict:
    """The verdict on a shell call that failed.

    >>> judge_shell_error("ls srcs", "Exit code 1\\nls: srcs: No such file or directory").kind
    'shell_missing_path'
    >>> judge_shell_error("go test ./...", "Exit code 1\\nFAIL").category
    'failed_check'
    """
    code, body = split_exit_code(text)
    apart = not_the_model(text if code is None else body)
    if apart is not None and (code is None or apart.category == "interrupted"):
        return apart
    parsed = parse(command)
    wrong = malformed(parsed, body)
    if wrong is not None:
        return wrong
    if code in KILLED_CODES:
        return Verdict(category="environment", kind="killed", detail=quote(text))
    last = parsed.simple[-1] if parsed.simple else None
    if code == 1 and last is not None and (last.name in ("diff", "cmp") or (last.name == "git" and "diff" in last.words)):
        return Verdict(category="benign", kind="differs", detail=quote(body))
    if parsed.names & ONLINE and NETWORK.search(body):
        return Verdict(category="environment", kind="network", detail=quote(body))
    return Verdict(category="failed_check", kind=_check_kind(parsed, body), detail=_failure_quote(body) or quote(body) or quote(text))


def malformed(command: Command, body: str, *, hidden: bool = False) -> Verdict | None:
    """A verdict "mistake" where the output says that the command line itself was wrong; None where it does not.

    "environment" where the agent's own wrapper broke a sound line: it quotes a line with a pipe anew, `$(` becomes `\\$(`, and zsh
    stumbles over the bracket.
    `hidden` = the call did not fail: what looks like a probe (`a || b`, `if`, `ls`, `test`) then does not count.
    """
    output = body if len(body) <= 2 * READ_CHARS else body[:READ_CHARS] + "\n" + body[-READ_CHARS:]
    for rule in SHELL_RULES:
        for match in rule.pattern.finditer(output):
            subject = _group(match, "x")
            if not _about_the_line(rule, command, subject=subject, writer=_group(match, "prog")):
                continue
            if hidden and _is_probe(rule, command, match):
                continue
            if rule.kind in ("shell_missing_path", "is_directory") and _expected_missing(command, subject, body):
                return None
            detail = quote(output[output.rfind("\n", 0, match.end() - 1) + 1 :])
            if _REQUOTED.match(detail) and "|" in command.operators and is_sound_substitution(command.text):
                return Verdict(category="environment", kind="shell_requoted", detail=detail)
            return Verdict(category="mistake", kind=rule.kind, detail=detail, subject=subject)
    return None


def is_sound_substitution(text: str) -> bool:
    """Whether a line holds `$(...)`, every quote and bracket of it is closed, and no bracket stands bare.

    >>> [is_sound_substitution(t) for t in ("x=$(go env) | head", "echo $(go env | head", "echo a(b) $(c) | head")]
    [True, False, False]
    """
    found, stack, i = False, list[str](), 0
    while i < len(text):
        char, top = text[i], stack[-1] if stack else ""
        if top == "'":
            stack = stack[:-1] if char == "'" else stack
        elif char == "\\":
            i += 1
        elif text.startswith("$(", i):
            found, i = True, i + 1
            stack.append("(")
        elif char == '"':
            stack = stack[:-1] if top == '"' else [*stack, '"']
        elif top != '"' and char == "'":
            stack.append("'")
        elif top != '"' and char == "(":
            return False
        elif top != '"' and char == ")":
            if top != "(":
                return False
            stack.pop()
        i += 1
    return found and not stack


def failing_lines(command: Command, body: str) -> Verdict | None:
    """A verdict "failed_check" where a test, lint or build printed failures though the call itself ended well."""
    if not any(CHECK_COMMANDS.search(" ".join((s.name, *s.words))) for s in command.simple):
        return None
    detail = _failure_quote(body)
    return Verdict(category="failed_check", kind=_check_kind(command, body), detail=detail) if detail else None


def _failure_quote(body: str) -> str:
    match = FAILURE_LINES.search(body)
    return quote(body[match.start() :]) if match else ""


def _group(match: re.Match[str], prefix: str) -> str:
    """The numbered group that took part: x3 of x0, x1, ..."""
    return next((v for k, v in match.groupdict().items() if v and k.removeprefix(prefix).isdigit()), "")


def _about_the_line(rule: ShellRule, command: Command, *, subject: str, writer: str) -> bool:
    if writer and (writer not in command.names or writer not in STOCK):
        return False
    if rule.needs == "shell":
        return not command.names & RUNNERS
    if rule.needs == "inline":
        return bool(INLINE_CODE.search(command.text))
    if rule.needs == "program":
        return bool(writer)
    if rule.needs == "command":
        return any(subject in (s.program, s.name, *s.words[:1]) or subject in _nested(s) for s in command.simple)
    if rule.needs == "option":
        # A message that names nothing can be about any part of the line: all of it must be stock then.
        return (any if subject else all)(_takes(s, subject) for s in command.simple)
    return command.names_thing(subject)


def _nested(simple: Simple) -> Iterator[str]:
    """Programs inside `bash -c '...'` and command substitutions."""
    for word in simple.words:
        if " " in word or "$(" in word:
            yield from re.findall(r"[\w./+-]+", word)


def _takes(simple: Simple, subject: str) -> bool:
    """Whether a stock program of the line was given this option, subcommand or field."""
    if is_own_program(simple) or simple.name not in STOCK:
        return False
    if simple.name in RUNNERS and subject.startswith("-"):
        return False  # an option after a task's name is the task's
    if simple.name in ("go", "cargo") and simple.words[:1] == ("run",):
        return False
    if not subject:
        return True
    bare = subject.lstrip("-")
    for word in simple.words:
        if word.lstrip("-").split("=")[0] == bare or (not word.startswith("-") and bare in re.split(r"[,\s]+", word)):
            return True
        if len(bare) == 1 and re.fullmatch(r"-\w+", word) and bare in word:
            return True
    return False


def _is_probe(rule: ShellRule, command: Command, match: re.Match[str]) -> bool:
    """Whether a line that ended well shows that it reckoned with the failure, or that the words may be quoted content."""
    if "||" in command.operators or _ASKS.search(command.text):
        return True
    if rule.kind == "shell_unknown_command":
        return any(word in ("--version", "-version", "--help") for s in command.simple for word in s.words[:1])
    if rule.kind in ("shell_missing_path", "is_directory", "shell_unknown_ref"):
        return bool(command.names & LOOKERS)
    if rule.kind == "shell_bad_option":
        return "--help" in command.text or match.start() > 0
    return False


def _expected_missing(command: Command, subject: str, body: str) -> bool:
    """Whether the line removes the thing itself, looks for it with errors silenced, or looks for several things of which some are there."""
    for simple in command.simple:
        removes = simple.name in REMOVERS or (simple.name == "git" and simple.words[:1] in (("rm",), ("mv",)))
        if removes and any(
            fnmatch.fnmatchcase(w, subject) or fnmatch.fnmatchcase(subject, w) or subject.startswith(w + "/") for w in simple.operands
        ):
            return True
    looked = [s for s in command.simple if s.name in LOOKERS]
    if any("/dev/null" in s.redirects and subject in s.operands for s in looked):
        return True
    if sum(len(s.operands) for s in looked) < 2 or not any(subject.rstrip("/") == w.rstrip("/") for s in looked for w in s.operands):
        return False
    return any(line.strip() and not re.search(r"no such file|no matches", line, re.IGNORECASE) for line in body.splitlines())


def _check_kind(command: Command, body: str) -> str:
    if not body.strip() and command.names & SEARCHERS:
        return "no_match"
    lines = [" ".join((s.name, *s.words[:3])) for s in command.simple]
    for kind, pattern in CHECK_KINDS:
        if any(pattern.search(line) for line in lines):
            return kind
    return "git_failed" if command.names & {"git", "gh"} else "command_failed"
