"""The messages by which shells and stock programs report a wrong command line.

A rule is a pattern and a condition on the command (`Needs`) under which the message is about it.
Named groups: `x`, `x1`, `x2` ... hold the subject of the message, `prog`, `prog1` ... the program
that wrote it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal


def word_set(text: str) -> frozenset[str]:
    """Split a string into a set of words.

    >>> sorted(word_set("a b"))
    ['a', 'b']
    """
    return frozenset(text.split())


# Programs whose usage errors are about the call. A usage error of any other program may be what its
# developer is testing.
STOCK = word_set("""
    apt apt-get awk aws base64 basename brew bun bunx cargo cat cd chmod chown clang claude cmake
    cmp codex comm conda cp curl cut date dd deno df diff dig dirname docker dotnet du echo egrep
    env eslint expr fd fgrep file find fold gawk gcc gcloud gh git go gofmt golangci-lint gradle
    grep gunzip gzip head helm hexdump id install jest join jq kill kubectl less ln ls lsof make
    mise mkdir mktemp mv mypy nc nix nl node npm npx od open paste patch perl pgrep pip pip3 pkill
    pnpm podman poetry prettier printf ps psql pwd py.test pyright pytest python python3 readlink
    realpath redis-cli rg rm rmdir rsync rtk ruby ruff rustc scp sed seq shasum shellcheck sleep
    sort split sqlite3 ssh stat strings sudo systemctl tail tar tee terraform test timeout touch tox
    tr tree tsc tsx uname uniq unzip uv vitest wc wget which xargs xxd yarn yq zip
""")
# Task runners start programs of the project: an option or a shell message under them is not about
# this line.
RUNNERS = word_set(
    "make mise just task npm yarn pnpm bun turbo nx tox nox gradle gradlew mvn docker"
)
# Programs that look for something: a path that they do not find is an answer, not a wrong path.
LOOKERS = word_set("ls stat file find which test [ du readlink realpath tree")
REMOVERS = word_set("rm rmdir mv unlink trash shred")
ONLINE = word_set(
    "curl wget git gh npm pip pip3 uv brew docker ssh scp rsync kubectl yarn pnpm gcloud"
)
SEARCHERS = word_set("grep egrep fgrep rg ag pgrep which test [ fd")

PATH_STATED = frozenset(("file_missing", "shell_missing_path"))
"""The path is missing, and the message used it as a fact: a mistake."""
PATH_EXPLORED = "path_explored"
"""The path is missing, and the message looked for it: a sound question whose answer is no. By
default never trained on."""

Needs = Literal["shell", "named", "command", "option", "inline", "program"]


@dataclass(frozen=True, slots=True)
class ShellRule:
    """A message, and the condition (`needs`) under which it is about the command line.

    shell: the calling shell wrote it · named: its subject occurs in the line, and its writer, if
    named, is stock · command: its subject is a program of the line · option: its subject is a word
    of a stock program of the line · inline: the line contains code · program: its writer is a stock
    program of the line.
    """

    kind: str
    needs: Needs
    pattern: re.Pattern[str]


def _rule(kind: str, needs: Needs, *patterns: str) -> ShellRule:
    """Build one rule of several patterns, numbering their groups `x` and `prog`."""
    numbered: list[str] = []
    for i, pattern in enumerate(patterns):
        numbered.append(
            pattern.replace("(?P<x>", f"(?P<x{i}>").replace("(?P<prog>", f"(?P<prog{i}>")
        )
    return ShellRule(kind, needs, re.compile("|".join(numbered), re.MULTILINE))


# The prefix of the calling shell's messages: (eval):1: · (eval):cd:1: · zsh:1: · bash: line 3: ·
# /bin/sh: 1: · eval: line 2:
_SHELL = (
    r"^(?:\(eval\):(?:\w+:)?\d+: |\(eval\): |(?:/\S*/)?(?:ba|z|da|k)?sh: (?:-c: |eval: )?(?:line"
    r" )?(?:\d+: )?"
    r"|(?:/\S*/)?zsh:(?:\w+:)?\d+: |(?:-\w+: )?eval: line \d+: )"
)
_Q = r"['\"`‘’]?"
_PROG = r"^(?P<prog>[\w.+-]+): "
_NO_FILE = r"[Nn]o such file or directory"
_BAD = (
    r"(?:[Uu]nknown|[Uu]nrecogni[sz]ed|[Ii]nvalid|[Ii]llegal|[Uu]nexpected|[Nn]o such|[Uu]ndefined)"
)

SHELL_RULES: tuple[ShellRule, ...] = (
    _rule(
        "shell_syntax",
        "shell",
        _SHELL + r"(?:parse error|[Ss]yntax error|unexpected EOF|unmatched|bad substitution|bad"
        r" pattern|event not found|[Uu]nterminated)",
        _SHELL
        + r"(?:conditional (?:binary )?(?:operator|expression)|bad math expression|here-document)",
        _SHELL + r"[^:\n]*: (?:event not found|bad substitution|ambiguous redirect)",
    ),
    # zsh refuses a pattern without a match: `?` and `[` mostly occur in URLs and keys that should
    # have been quoted, while `*` mostly means a search (the next rule).
    _rule(
        "shell_syntax",
        "named",
        _SHELL + r"no matches found: (?P<x>-\S+)",
        _SHELL + r"no matches found: (?P<x>[^*\n]+)$",
    ),
    _rule(PATH_EXPLORED, "named", _SHELL + r"no matches found: (?P<x>[^\n]+)"),
    # zsh takes a word that begins with `=` for the name of a program: `echo ===`.
    _rule("shell_syntax", "shell", _SHELL + r"=\S* not found$"),
    _rule(
        "shell_syntax",
        "inline",
        r"^  File \"<(?:string|stdin)>\", line"
        r" \d+\n(?:.*\n){1,3}(?:SyntaxError|IndentationError|TabError): .*",
        r"^\[eval\](?:-wrapper)?:\d+\n(?:.*\n){1,4}SyntaxError: .*",
        r"^syntax error at -e line \d+.*",
    ),
    _rule(
        "shell_syntax",
        "program",
        r"^(?P<prog>jq): (?:error: syntax error|\d+ compile error|error: .* is not defined).*",
        r"^(?P<prog>g?awk): (?:syntax error|cmd\. line:\d+: .*syntax error).*",
        r"^(?P<prog>sed): (?:\d+: .*(?:invalid command|unterminated|bad flag|extra"
        r" characters|unexpected)|-e expression #\d+).*",
        r"^(?P<prog>[ef]?grep|rg|fd): ?"
        r"(?:[Uu]nmatched|[Ii]nvalid|regex parse error|parentheses not"
        r" balanced|brackets|repetition|error parsing).*",
    ),
    _rule("shell_syntax", "option", r"^failed to parse jq expression.*"),
    _rule(
        "shell_unknown_command",
        "command",
        _SHELL + r"command not found: (?P<x>\S+)",
        _SHELL + r"(?P<x>[^\s:]+): (?:command )?not found",
        r"^(?:env|timeout|xargs|nohup|sudo): (?:failed to run command )?"
        + _Q
        + r"(?P<x>[^'\"`‘’:\s]+)"
        + _Q
        + rf": (?:{_NO_FILE}|command not found)",
    ),
    _rule("shell_unknown_command", "named", r"^\S*python[\d.]*: No module named (?P<x>[\w.]+)"),
    _rule(
        "shell_bad_option",
        "program",
        _PROG + _BAD + r" (?:option|switch|argument|operand)\b.*",
        _PROG + r"(?P<x>-\S+): unknown (?:primary or operator|option).*",
        r"^(?P<prog>curl): option (?P<x>-[^\s:]+): .*",
        r"^(?P<prog>head|tail): (?:illegal|invalid) (?:line|byte) count.*",
    ),
    _rule(
        "shell_bad_option",
        "option",
        r"^.{0,60}?"
        + _BAD
        + r" (?:shorthand |long )?(?:flag|option|switch|argument|predicate)s?(?:: | -- | )"
        + _Q
        + r"(?P<x>-{0,2}\w[\w-]*)"
        + _Q,
        r"^(?:error: )?flag provided but not defined: (?P<x>-\S+)",
        r"^[Uu]nknown JSON field: " + _Q + r"(?P<x>\w+)",
        r"^.{0,40}?"
        + _BAD
        + r" (?:docker |sub)?(?:command|operation):? (?:verb )?"
        + _Q
        + r"(?:(?:brew|compose|docker|podman) (?:[\w-]+ )*)?(?P<x>[\w:-]+)",
        r"^(?:git|docker): '(?P<x>[\w-]+)' is not a (?:git|docker) command",
        r"^fatal: subcommand wasn't specified; .* unexpected token '(?P<x>[\w-]+)'",
        r"^go (?:[\w-]+ )*(?P<x>[\w-]+): unknown command",
        r"^Terraform has no command named \"(?P<x>[\w-]+)\"",
        r"^(?:ERROR: \(gcloud[\w.-]*\) |aws: error: .* Found )?[Ii]nvalid choice:?"
        r" '(?P<x>[\w.-]+)'",
        r"^conda(?:: error|Error): .*invalid choice: '(?P<x>[\w-]+)'",
        r"^The (?:requested )?command \"?(?P<x>[\w:-]+)\"? does not exist",
        r"^ *\* You intended to execute a \.NET program, but dotnet-(?P<x>[\w-]+) does not exist",
        r"^accepts (?:at (?:most|least) |between \d+ and )?\d+ arg\(s\), received \d+",
        r"^(?:npm (?:ERR!|error)|\s*ERR_PNPM_\w+) +[Mm]issing script: " + _Q + r"(?P<x>[\w:.-]+)",
        r"^make(?:\[\d+\])?: \*\*\* No rule to make target " + _Q + r"(?P<x>[\w./-]+)" + _Q + r"\.",
        r"^.{0,40}?no tasks? " + _Q + r"(?P<x>[\w:.-]+)" + _Q + r" found",
        r"^.{0,60}?\bCommand \"(?P<x>[\w:.-]+)\" (?:not found|is not defined)",
        r"^Usage Error: Couldn't find a script named \"(?P<x>[\w:.-]+)\"",
        r"^error: Script not found " + _Q + r"(?P<x>[\w:.-]+)",
    ),
    _rule(
        "shell_bad_option",
        "named",
        r"\bgh: Field '\w+' doesn't accept argument '(?P<x>\w+)'",
        r"\bgh: Field '(?P<x>\w+)' doesn't exist on type",
        r"^\*\* \(Mix\) The task " + _Q + r"(?P<x>[\w.]+)" + _Q + r" could not be found",
    ),
    # Behind the rules that name what was refused, which git prints above its usage.
    _rule("shell_bad_option", "program", r"^usage: (?P<prog>git) \w"),
    _rule(
        "shell_missing_path",
        "named",
        _PROG + r"(?:(?:cannot|can't) (?:access|stat|open|read|remove|touch|create (?:regular"
        r" file|directory)|change to|find) "
        + r"|can't open file |rename |error: Could not open (?:file )?)?"
        + rf"{_Q}(?P<x>[^'\"`‘’:\n]+){_Q}(?: for (?:reading|writing)| to [^:\n]+)?: (?:open: |stat:"
        rf" |\[Errno 2\] )?{_NO_FILE}",
        _SHELL + r"(?:(?:cd|source|\.): )?(?:can't cd to |cannot open |can't open"
        rf" )?{_Q}(?P<x>[^'\"‘’:\n]+?){_Q}: (?:{_NO_FILE}|Not a directory)",
        _SHELL
        + r"(?:(?:cd|source|\.): )?(?:no such file or directory|not a directory): (?P<x>[^\n]+)$",
        r"^cd: no such file or directory: (?P<x>[^:\n]+)$",
        r"^ERROR: (?:file or directory not found|not found): (?P<x>\S+)",
        r"^rg: (?P<x>[^:\n]+): (?:No such file or directory|IO error)",
        r"^stat (?P<x>[^:\n]+): (?:directory not found|no such file or directory)",
        r"^Error: Cannot find module '(?P<x>/[^'\n]+)'",
        r"^main module \(\S+\) does not contain package (?P<x>\S+)",
        r"^(?:error|fatal): cannot change to '(?P<x>[^'\n]+)'",
        r"^error TS6053: File '(?P<x>[^'\n]+)' not found",
    ),
    _rule(
        "is_directory",
        "named",
        _PROG + rf"(?:error reading |read error on )?{_Q}(?P<x>[^'\"`‘’:\n]+){_Q}: (?:read: )?Is a"
        r" directory",
    ),
    _rule(
        "shell_unknown_ref",
        "named",
        r"^(?:fatal|error): (?:ambiguous argument|bad revision|invalid reference:|Not a valid"
        r" object name:?"
        r"|[Nn]o such (?:branch|remote|ref)[:,]?|couldn't find remote ref) ?"
        + _Q
        + r"(?P<x>[^'\"\n:]+)",
        r"^(?:fatal|error): (?:pathspec|src refspec) ?"
        + _Q
        + r"(?P<x>[^'\"\n]+?)"
        + _Q
        + r" (?:did not match|does not match)",
        r"^(?:fatal|error): path '(?P<x>[^'\n]+)' (?:does not exist in|exists on disk, but not in)",
        r"^(?:fatal|error): (?:branch )?'(?P<x>[^'\n]+)' (?:not found|does not appear to be a git"
        r" repository|is not a (?:commit|valid))",
        r"^merge: (?P<x>\S+) - not something we can merge",
    ),
)

INLINE_CODE = re.compile(
    r"\b(?:python[\d.]*|node|perl|ruby)\b[^\n|;&]*?(?:\s-[a-zA-Z]*[ce]\b|\s-\s*<<|<<)|<<-?\s*['\"]?\w"
)
NETWORK = re.compile(
    r"^(?:curl: \((?:5|6|7|28|35|52|56|60)\)|fatal: unable to access|ssh: |npm (?:ERR!|error)"
    r" network"
    r"|.*(?:Could not resolve host|Connection (?:refused|timed out|reset by peer)|Temporary failure"
    r" in name resolution"
    r"|TLS handshake|No space left on device|dial tcp|i/o timeout))",
    re.MULTILINE,
)
# The purpose of a failed command line, from its first words; the first kind that matches any simple
# command counts.
CHECK_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "test_failed",
        re.compile(
            r"\b(?:py\.?test|jest|vitest|mocha|tox|nox|ctest|rspec|phpunit|bats|unittest)\b|\b(?:run"
            r" )?[\w:.-]*test(?:s|:\w+)?\b"
        ),
    ),
    (
        "lint_failed",
        re.compile(
            r"lint|\b(?:ruff|eslint|shellcheck|prettier|mypy|pyright|clippy|vet|fmt|gofmt|black|typecheck|tsc|biome)\b"
        ),
    ),
    (
        "build_failed",
        re.compile(
            r"\b(?:build|make|check|compile|cmake|ninja|gradle|mvn|rustc|gcc|clang|install)\b"
        ),
    ),
)
# A summary without failures: whatever the output above it quotes, nothing failed.
NO_FAILURES = re.compile(r"^(?:\s*0 fail$|.*\b\d+ tests?, 0 failures\b)", re.MULTILINE)
CONFLICT = re.compile(
    r"^CONFLICT \(|^(?:error|fatal): .*(?:would be overwritten|unmerged files|not possible"
    r" because)|^\S+: needs merge",
    re.MULTILINE,
)
CHECK_COMMANDS = re.compile(
    r"^(?:go (?:test|build|vet)|cargo (?:test|build|check|clippy)|(?:python[\d.]* -m"
    r" )?(?:pytest|unittest|mypy|pyright|ruff)\b"
    r"|(?:npm|pnpm|yarn|bun|mise|make|just|task)\b.*\b(?:test|lint|build|check|typecheck)"
    r"|jest|vitest|mocha|tsc\b|eslint|golangci-lint|tox|rspec|mix test|make$)"
)
FAILURE_LINES = re.compile(
    r"^(?:\s*--- FAIL: |FAIL\t|FAIL$|FAILED \S+|npm (?:ERR!|error) |error(?:\[E\d+\])?:"
    r" |(?:\S+|.*\(\d+,\d+\)): error TS\d+"
    r"|=+ .*\b[1-9]\d* (?:failed|error)|Tests?:\s+[1-9]\d* failed|\s*[1-9]\d* fail$"
    r"|.*\b\d+ tests?, [1-9]\d* failures?\b|.*\bERROR task failed|[1-9]\d* issues:|make: \*\*\* "
    r"|Found [1-9]\d* errors?)",
    re.MULTILINE,
)
