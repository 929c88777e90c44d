"""Decide whether a failed shell call was itself malformed, or only ran something that failed.

A command that fails is usually a correct call: a red test, a lint finding or a grep without a match
is news about an earlier edit. The call is a mistake only if a message says that the *command line*
was wrong (a parse error, an unknown command, option, path or ref) and that message can be traced to
the line: its subject occurs in the command, or the calling shell or a stock program of the line
wrote it. A usage error of the project's own program may be what its developer wants to see.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator

from composer_replication.data.sites.result_headers import split_header
from composer_replication.data.sites.shell import Command, Simple, is_own_program, parse
from composer_replication.data.sites.shell_rules import (
    CHECK_COMMANDS,
    CHECK_KINDS,
    CONFLICT,
    FAILURE_LINES,
    INLINE_CODE,
    LOOKERS,
    NETWORK,
    NO_FAILURES,
    ONLINE,
    PATH_EXPLORED,
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
"""The length of each end of an output that is read: a shell's messages come first or last."""
_ASKERS, _ASKING_WORDS = (
    frozenset(("test", "[", "[[", "which")),
    frozenset(("if", "while", "until")),
)
_ASKS = re.compile(r"\bset \+e\b|\bcommand -v\b|\$\?")
_PROGRAM_ASKERS = frozenset(("which", "type", "hash", "whereis", "whence", "where"))
_GIT_ASKS = re.compile(
    r"(?:-C \S+ )?(?:cat-file -e|rev-parse (?:-\S+ )*--verify|show-ref|ls-remote"
    r" --exit-code|ls-files --error-unmatch)\b"
)
# zsh's message for a line that the agent ran through `eval`. A bare bracket that the model wrote
# causes the same message; `is_sound_substitution` tells the two apart.
_REQUOTED = re.compile(r"\(eval\):\d+: parse error near `[()]'")
_VERSION = re.compile(r"\bv?\d+\.\d+")
_OPTION = re.compile(
    r"(?:option|switch)(?: --|:)? ?(?:['\"`‘](?P<option>[^'\"`’\n]+)['\"`’]|(?P<bare>[^\s'\"`’]+))"
)
KILLED_CODES = frozenset((130, 137, 143))
_EXIT = re.compile(
    r"\AExit code:? (\d+)\n?|\n?\n?Command exited with code (\d+)\s*\Z|\AProcess exited with code"
    r" (\d+)\n?"
)


def split_exit_code(text: str) -> tuple[int | None, str]:
    """Split a result into the exit code that the agent program added, and the output.

    >>> split_exit_code("Exit code 2\\nusage: x")
    (2, 'usage: x')
    """
    match = _EXIT.search(text)
    header = split_header(text) if match is None or text.startswith("Exit code:") else None
    if header is not None:
        return header.code, header.body
    if match is None:
        return None, text
    code = next(g for g in match.groups() if g is not None)
    return int(code), (text[: match.start()] + text[match.end() :]).strip("\n")


def judge_shell_error(command: str, text: str) -> Verdict:
    """Judge a shell call that failed; `ls` asks whether a path exists, `cat` takes it for granted.

    >>> judge_shell_error("cat srcs", "Exit code 1\\ncat: srcs: No such file or directory").kind
    'shell_missing_path'
    >>> judge_shell_error("ls srcs", "Exit code 1\\nls: srcs: No such file or directory").kind
    'path_explored'
    >>> judge_shell_error("go test ./...", "Exit code 1\\nFAIL").category
    'failed_check'
    """
    code, body = split_exit_code(text)
    apart = not_the_model(text if code is None else body)
    if apart is not None and (code is None or apart.category == "interrupted"):
        return apart
    parsed = parse(command)
    mistake = malformed(parsed, body)
    if mistake is not None:
        return mistake
    if code in KILLED_CODES:
        return Verdict(category="environment", kind="killed", detail=quote(text))
    last = parsed.simple[-1] if parsed.simple else None
    if (
        code == 1
        and last is not None
        and (last.name in ("diff", "cmp") or (last.name == "git" and "diff" in last.words))
    ):
        return Verdict(category="benign", kind="differs", detail=quote(body))
    if parsed.names & ONLINE and NETWORK.search(body):
        return Verdict(category="environment", kind="network", detail=quote(body))
    return Verdict(
        category="failed_check",
        kind=_check_kind(parsed, body),
        detail=_failure_quote(body) or quote(body) or quote(text),
    )


def malformed(command: Command, body: str, *, hidden: bool = False) -> Verdict | None:
    """Return a verdict "mistake" if the output says that the command line itself was wrong, else
    None.

    The verdict is "environment" if the agent's wrapper broke a sound line: it re-quotes a line with
    a pipe, `$(` becomes `\\$(`, and zsh fails at the bracket. `hidden`: the call did not fail; then
    a line that looks like a probe (`a || b`, `if`, `ls`, `test`) does not count.
    """
    if hidden and (usage := _usage_for_version(command, body)):
        return usage
    # A message convicts the line only if (1) it is about the line, (2) the line did not expect it,
    # and (3) the agent's wrapper did not cause it.
    output = body if len(body) <= 2 * READ_CHARS else body[:READ_CHARS] + "\n" + body[-READ_CHARS:]
    for rule in SHELL_RULES:
        for match in rule.pattern.finditer(output):
            subject = _matched_group(match, "x")
            option = None if subject else _OPTION.search(match.group())
            if not _is_about_line(
                rule,
                command,
                subject=subject,
                writer=_matched_group(match, "prog"),
                option=option,
            ):
                continue
            if option is not None and rule.kind == "shell_bad_option":
                subject = _named_option(option)
            if hidden and _is_probe(rule, command, match):
                continue
            # `rm x; ls x`: nothing else in this output convicts the line, either.
            if rule.kind in ("shell_missing_path", "is_directory", PATH_EXPLORED) and _removes(
                command, subject
            ):
                return None
            if (rule.kind == "shell_unknown_command" and _checks_for_program(command, subject)) or (
                rule.kind == "shell_unknown_ref" and _handles_missing_ref(command)
            ):
                continue
            detail = quote(output[output.rfind("\n", 0, match.end() - 1) + 1 :])
            if _was_requoted(rule, command, output[match.start() :], detail):
                return Verdict(category="environment", kind="shell_requoted", detail=detail)
            if rule.kind == PATH_EXPLORED or (
                rule.kind == "shell_missing_path" and _explores(command, subject, body)
            ):
                return Verdict(
                    category="failed_check", kind=PATH_EXPLORED, detail=detail, subject=subject
                )
            return Verdict(category="mistake", kind=rule.kind, detail=detail, subject=subject)
    return None


def _usage_for_version(command: Command, body: str) -> Verdict | None:
    """Return a verdict if a program was asked for its version and printed its usage: it has no such
    option, and a pipe hid the failure."""
    line = body.lstrip()
    asking = next(
        (
            s
            for s in command.simple
            if s.words[-1:] in (("--version",), ("-version",), ("version",))
        ),
        None,
    )
    if (
        asking is None
        or _VERSION.search(body)
        or not re.match(r"(?:usage\b|error: .*(?:--version|version)\b)", line, re.IGNORECASE)
    ):
        return None
    return Verdict(
        category="mistake", kind="shell_bad_option", detail=quote(line), subject=asking.words[-1]
    )


def _was_requoted(rule: ShellRule, command: Command, message: str, detail: str) -> bool:
    """Whether the agent's wrapper corrupted a sound line: it breaks `$(` in a line with a pipe, and
    writes `!=` as `\\!=`."""
    if _REQUOTED.match(detail) and "|" in command.operators and is_sound_substitution(command.text):
        return True
    return (
        rule.kind == "shell_syntax"
        and "\\!" in message[:READ_CHARS]
        and "!" in command.text
        and "\\!" not in command.text
    )


def is_sound_substitution(text: str) -> bool:
    """Whether a line contains `$(...)`, closes every quote and bracket, and has no bare bracket.

    >>> lines = ("x=$(go env) | head", "echo $(go env | head", "echo a(b) $(c) | head")
    >>> [is_sound_substitution(line) for line in lines]
    [True, False, False]
    """
    has_substitution, stack, i = False, list[str](), 0
    while i < len(text):
        char, top = text[i], stack[-1] if stack else ""
        if top == "'":
            stack = stack[:-1] if char == "'" else stack
        elif char == "\\":
            i += 1
        elif text.startswith("$(", i):
            has_substitution, i = True, i + 1
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
    return has_substitution and not stack


def failing_lines(command: Command, body: str) -> Verdict | None:
    """Return a verdict "failed_check" if a test, lint or build printed failures although the call
    ended well."""
    if not any(CHECK_COMMANDS.search(" ".join((s.name, *s.words))) for s in command.simple):
        return None
    detail = "" if NO_FAILURES.search(body) else _failure_quote(body)
    return (
        Verdict(category="failed_check", kind=_check_kind(command, body), detail=detail)
        if detail
        else None
    )


def _failure_quote(body: str) -> str:
    match = FAILURE_LINES.search(body)
    return quote(body[match.start() :]) if match else ""


def _matched_group(match: re.Match[str], prefix: str) -> str:
    """The text of the numbered group that matched: x3 of x0, x1, ..."""
    return next(
        (v for k, v in match.groupdict().items() if v and k.removeprefix(prefix).isdigit()), ""
    )


def _named_option(option: re.Match[str]) -> str:
    return option["option"] or option["bare"]


def _was_passed(command: Command, writer: str, option: re.Match[str]) -> bool:
    """Whether a program of the line was passed the option that it rejects; assumed so if its words
    come from a variable or a pipe."""
    name = _named_option(option).lstrip("-")
    for simple in command.simple:
        if simple.name == writer and (
            simple.open
            or "xargs" in simple.wrappers
            or any(_is_option_in(word, name) for word in simple.words)
        ):
            return True
    return False


def _is_option_in(word: str, option: str) -> bool:
    bare = word.lstrip("-")
    if not option:  # the message rejects bare dashes
        return bool(word) and not bare
    return (
        bare == option
        or bare.startswith(option)
        or (len(option) == 1 and word.startswith("-") and option in word)
    )


def _is_about_line(
    rule: ShellRule, command: Command, *, subject: str, writer: str, option: re.Match[str] | None
) -> bool:
    if writer and (writer not in command.names or writer not in STOCK):
        return False
    if rule.needs == "shell":
        return not command.names & RUNNERS
    if rule.needs == "inline":
        return bool(INLINE_CODE.search(command.text))
    if rule.needs == "program":
        return bool(writer) and (option is None or _was_passed(command, writer, option))
    if rule.needs == "command":
        return any(
            subject in (s.program, s.name, *s.words[:1], *s.wrappers)
            or subject in _nested_programs(s)
            for s in command.simple
        )
    if rule.needs == "option":
        # A message without a subject can be about any command of the line: all must be stock.
        return (any if subject else all)(_takes(s, subject) for s in command.simple)
    return command.mentions(subject)


def _nested_programs(simple: Simple) -> Iterator[str]:
    """Yield the words inside `bash -c '...'` and command substitutions."""
    for word in simple.words:
        if " " in word or "$(" in word:
            yield from re.findall(r"[\w./+-]+", word)


def _takes(simple: Simple, subject: str) -> bool:
    """Whether this command is a stock program that was passed this option, subcommand or field."""
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
        if word.lstrip("-").split("=")[0] == bare or (
            not word.startswith("-") and bare in re.split(r"[,\s]+", word)
        ):
            return True
        if len(bare) == 1 and re.fullmatch(r"-\w+", word) and bare in word:
            return True
    return False


def _tests_exit_status(command: Command) -> bool:
    """Whether the line tests how a command ended: `if`, `[ -f x ]`, `echo $?`."""
    return (
        bool(command.names & _ASKERS)
        or any(_ASKING_WORDS & set(s.wrappers) for s in command.simple)
        or bool(_ASKS.search(command.text))
    )


def _checks_for_program(command: Command, program: str) -> bool:
    """Whether the line checks if a program is installed: `command -v x y`, `which x`, `x
    --version`."""
    for simple in command.simple:
        if simple.name in _PROGRAM_ASKERS and program in simple.words:
            return True
        if (
            simple.name == program
            and simple.words
            and set(simple.words) <= {"--version", "-version", "version", "-V"}
        ):
            return True
    return bool(
        re.search(
            rf"\bcommand\s+-[vV]\b[^;&|\n]*(?<![\w-]){re.escape(program)}(?![\w-])", command.text
        )
    )


def _handles_missing_ref(command: Command) -> bool:
    """Whether a line asks git if a ref or file exists and handles a no: `git cat-file -e x || ...`,
    `if git show a:b`."""
    for i, simple in enumerate(command.simple):
        if simple.name != "git":
            continue
        if (
            _ASKING_WORDS & set(simple.wrappers)
            or "!" in simple.wrappers
            or _GIT_ASKS.match(" ".join(simple.words))
        ):
            return True
        for following in command.simple[i + 1 :]:
            if following.before == "||":
                return True
            if following.before not in ("&&", "|"):
                break
    return bool(_ASKS.search(command.text))


def _is_probe(rule: ShellRule, command: Command, match: re.Match[str]) -> bool:
    """Whether a line that ended well expected the failure, or the message may be quoted content."""
    if "||" in command.operators or _tests_exit_status(command):
        return True
    if rule.kind == "shell_unknown_command":
        return any(
            word in ("--version", "-version", "--help")
            for s in command.simple
            for word in s.words[:1]
        )
    if rule.kind in ("is_directory", "shell_unknown_ref"):
        return bool(command.names & LOOKERS)
    if rule.kind == "shell_bad_option":
        return "--help" in command.text or match.start() > 0
    return False


def _removes(command: Command, subject: str) -> bool:
    """Whether the line removes the missing path, so that its absence was to be expected."""
    for simple in command.simple:
        removes = simple.name in REMOVERS or (
            simple.name == "git" and simple.words[:1] in (("rm",), ("mv",))
        )
        if removes and any(
            fnmatch.fnmatchcase(w, subject)
            or fnmatch.fnmatchcase(subject, w)
            or subject.startswith(w + "/")
            for w in simple.operands
        ):
            return True
    return False


def _explores(command: Command, subject: str, body: str) -> bool:
    """Whether the line asks if the path exists: it lists it, silences errors, has an alternative
    (`||`), or names several candidates."""
    if "*" in subject or "||" in command.operators or _tests_exit_status(command):
        return True
    path = subject.rstrip("/")
    using = [s for s in command.simple if path in (w.rstrip("/") for w in (s.program, *s.words))]
    if any("/dev/null" in s.redirects for s in using):
        return True
    lookers = [s for s in using if s.name in LOOKERS]
    if any(s.name != "find" for s in lookers):
        return True
    return any(_count_starts(s) > 1 for s in lookers) and any(
        line.strip() and "o such file" not in line for line in body.splitlines()
    )


def _count_starts(find: Simple) -> int:
    """The number of folders in which a `find` starts."""
    return next((i for i, word in enumerate(find.words) if word.startswith("-")), len(find.words))


def _check_kind(command: Command, body: str) -> str:
    if not body.strip() and command.names & SEARCHERS:
        return "no_match"
    if command.names & {"git", "gh"} and CONFLICT.search(body):
        return "git_conflict"  # the rest of the line did not run
    lines = [" ".join((s.name, *s.words[:3])) for s in command.simple]
    for kind, pattern in CHECK_KINDS:
        if any(pattern.search(line) for line in lines):
            return kind
    return "git_failed" if command.names & {"git", "gh"} else "command_failed"
