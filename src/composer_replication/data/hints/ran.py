"""Facts from the commands in view: programs that are installed for certain, folders in which a
project's programs ran, help that was shown, branches that git named.

A program counts as run only if the exit status is its own: in `a | b` and `a; b` the status is
that of b, in `a || b` it belongs to neither.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from composer_replication.core.trace import ToolCall, ToolResult
from composer_replication.data.hints.context import SiteContext
from composer_replication.data.hints.seen import track_places
from composer_replication.data.sites.call_verdict import is_error, judge
from composer_replication.data.sites.effects import trace_effects
from composer_replication.data.sites.shell import Command, Simple, parse, shell_command
from composer_replication.data.sites.shell_errors import malformed, split_exit_code
from composer_replication.data.sites.shell_rules import LOOKERS, SEARCHERS, word_set

MAX_REFS = 5
ALIKE_REF = 0.75
"""Smallest likeness (difflib ratio) of two refs that are offered for each other."""
_BUILTINS = word_set(
    "echo cd pwd printf test [ true false : export set unset source . eval type hash read wait"
    " pushd popd alias exit sleep which"
)
_KEYWORDS = word_set("for while until if case select function done fi esac { }")
# Wrappers that do not change where the shell looks for the program.
_PLAIN_WRAPPERS = word_set("sudo time timeout env nohup nice stdbuf setsid doas")
# Wrappers that run a program installed by the project: it exists only in the project's folder.
_LOCAL_WRAPPERS = word_set("npx bunx uvx uv poetry pipenv pnpm bundle npm")
_LOCAL_RUNNERS = word_set("npm pnpm yarn bun bunx poetry pipenv uv bundle make just task")
_INTERPRETERS = word_set("sh bash zsh dash ksh python python3 node ruby perl")
# getopt(3) of BSD and macOS; GNU's says "invalid option" and its programs have --help.
_BSD_GETOPT = re.compile(r": illegal option -- ")
# Runners that print the help of the program behind them: `npx tsc --help`.
_HELP_RUNNERS = word_set("npx uvx bunx")
_WITH_SUBCOMMANDS = word_set("""
    apt apt-get brew bun cargo conda deno docker dotnet git go golangci-lint helm kubectl mise npm
    pip pip3 pnpm podman poetry rtk ruff rustup systemctl terraform uv yarn
""")
# The options of a program itself that take the next word as a value: `git -C web log`.
_OWN_VALUES = {
    "aws": word_set("--profile --region --output --endpoint-url"),
    "docker": word_set("-c --context -H --host -f --file -p --project-name"),
    "gh": word_set("-R --repo"),
    "git": word_set("-C -c --git-dir --work-tree"),
    "helm": word_set("-n --namespace --kube-context --kubeconfig"),
    "kubectl": word_set("-n --namespace --context --kubeconfig"),
    "npm": word_set("--prefix -w --workspace"),
    "pnpm": word_set("-C --dir -F --filter"),
    "poetry": word_set("-C --directory -P --project"),
    "uv": word_set("--directory --project"),
}
HELP_WORDS = word_set("--help -h help")
_HELP_WORD_OF = {"git": "-h", "aws": "help"}
"""The word that prints the help, of the programs that know no `--help` for it."""
_TASK_LISTS = {"mise": "mise tasks", "mix": "mix help"}
_SCRIPT_RUNNERS = word_set("npm pnpm yarn bun")
_SUBCOMMANDS = {"gh": 2, "aws": 2, "az": 2, "gcloud": 2, **dict.fromkeys(_WITH_SUBCOMMANDS, 1)}
"""The number of subcommand words that select a help text, per program."""
# After one of these, a line may find programs that another line does not find.
_OTHER_PATH = re.compile(
    r"\bPATH=|(?:^|[;&\n(])\s*(?:source|\.)\s|\bactivate\b|\bnix(?:-shell|"
    r" develop)\b|\w\(\)\s*\{|\balias\s"
)
_NOT_FOUND = re.compile(
    r"command not found: ([\w.+-]+)|(?:^|[\s:])([A-Za-z][\w.+-]*): (?:command )?not"
    r" found(?!:)|^([\w.+-]+) not found$|\bno ([\w.+-]+) in \("
    r"|\"([\w.+-]+)\": executable file not found|\bspawn ([\w.+-]+) ENOENT",
    re.MULTILINE,
)
_GIT_REFS = re.compile(r"^[*+]?\s+(?:remotes/)?([\w./-]+)\s*$", re.MULTILINE)
_GIT_CURRENT = re.compile(r"^\* ([\w./-]+)\s*$", re.MULTILINE)
_GIT_ON = re.compile(r"^(?:On branch|Switched to (?:a new )?branch) '?([\w./-]+)", re.MULTILINE)
_GIT_DELETED = re.compile(
    r"^(?:Deleted branch ([\w./-]+)| - \[deleted\]\s+([\w./-]+))", re.MULTILINE
)


def _shell_calls(context: SiteContext) -> Iterator[tuple[ToolCall, ToolResult, Command]]:
    for call, result in context.answered_calls():
        command = shell_command(call.name, call.arguments)
        if command is not None:
            yield call, result, parse(command)


def ended_well(command: Command) -> list[int]:
    """List the simple commands that are known to have ended well if the line ended with exit 0: the
    last one, and those that `&&` joins to it.

    >>> [parse("a && b | c && d").simple[i].name for i in ended_well(parse("a && b | c && d"))]
    ['d', 'c', 'a']
    >>> [ended_well(parse(line)) for line in ("a || b", "a; b", "a &", "a 2>/dev/null | b")]
    [[], [1], [], [1]]
    """
    if {"||", "&"} & set(command.operators):
        return []
    if any(
        s.program in _KEYWORDS or _KEYWORDS & set(s.wrappers) or "!" in s.wrappers
        for s in command.simple
    ):
        return []
    ended, is_piped = list[int](), False
    for i in range(len(command.simple) - 1, -1, -1):
        simple = command.simple[i]
        if simple.depth:  # the operator between a subshell and the rest is not kept
            break
        if not is_piped and "/dev/null" not in simple.redirects:
            ended.append(i)
        if simple.before not in ("&&", "|", "|&"):
            break
        is_piped = simple.before != "&&"
    return ended


def missing_programs(text: str) -> set[str]:
    """The programs that an output reports as not found.

    >>> sorted(missing_programs("(eval):1: command not found: docker\\nbrew not found"))
    ['brew', 'docker']
    """
    return {name for match in _NOT_FOUND.finditer(text) for name in match.groups() if name}


def commands_that_worked(context: SiteContext) -> list[str]:
    """List the programs that have run without error and that nothing in view reports as missing,
    most used first."""
    counts: dict[str, int] = {}
    for call, result, command in _shell_calls(context):
        if (
            not is_error(call, result)
            and not call.arguments.get("run_in_background")
            and not _OTHER_PATH.search(command.text)
        ):
            for simple in (command.simple[i] for i in ended_well(command)):
                if set(simple.wrappers) <= _PLAIN_WRAPPERS and re.fullmatch(
                    r"[a-z][\w.+-]*", simple.program
                ):
                    counts[simple.program] = counts.get(simple.program, 0) + 1
        verdict = judge(call, result) if is_error(call, result) else None
        missing = (
            {verdict.subject}
            if verdict is not None and verdict.kind == "shell_unknown_command"
            else set[str]()
        )
        for name in missing | missing_programs(result.text):
            counts.pop(name, None)
    return sorted(counts.keys() - _BUILTINS, key=lambda name: (-counts[name], name))


def earlier_run_folder(context: SiteContext, program: str) -> str | None:
    """The folder in which a project's own program ran last (`npx tsc`, `pnpm lint`); None unless
    the mistaken call runs in another folder."""
    command = context.command
    if command is None or not program:
        return None
    places, folder = track_places(context), None
    for call, result, command_line in _shell_calls(context):
        if is_error(call, result) or program in missing_programs(result.text):
            continue
        start = places.folder_of_call.get(call.id)
        # Only the session's own folder is certain; a `cd` of an earlier line may have failed.
        folders = trace_effects(
            command_line, start if start == context.session.cwd else None
        ).folders
        for i in ended_well(command_line):
            folder = (
                folders[i]
                if _runs_local(command_line.simple[i], program) and folders[i]
                else folder
            )
    failing = parse(command)
    pairs = zip(failing.simple, trace_effects(failing, places.cwd).folders, strict=True)
    failing_folder = next(
        (folders for simple, folders in pairs if program in (simple.name, *simple.words[:2])), None
    )
    return folder if folder and failing_folder and folder != failing_folder else None


def was_run_before(context: SiteContext, program: str) -> bool:
    """Whether a task or a project's own program of this name has run in view without error."""
    return any(
        not is_error(call, result)
        and program not in missing_programs(result.text)
        and any(_runs_local(s, program) for s in command.simple)
        for call, result, command in _shell_calls(context)
    )


def _runs_local(simple: Simple, program: str) -> bool:
    if simple.name == program:
        return bool(_LOCAL_WRAPPERS & set(simple.wrappers))
    return simple.name in _LOCAL_RUNNERS and program in simple.operands[:2]


def help_was_shown(context: SiteContext, refused: Simple) -> bool:
    """Whether the complete help of this program, or of its subcommand, is in view, as the output of
    a call that asked for nothing else."""
    program, *subcommands = _program_and_operands(refused)
    for call, result, command in _shell_calls(context):
        if is_error(call, result) or len(command.simple) > 1 or len(result.text.splitlines()) <= 3:
            continue
        for simple in command.simple:
            name, *helped_subcommands = _program_and_operands(simple)
            is_its_help = (
                name == program
                and helped_subcommands == subcommands[: len(helped_subcommands)]
                and len(helped_subcommands) >= _num_subcommands(context, refused)
            )
            if is_its_help and HELP_WORDS & set(simple.words):
                return True
    return False


def named_commands(command: Command, error_text: str) -> list[Simple]:
    """The simple commands of a line whose program the message names; all of them if it names
    none."""
    named = [
        s
        for s in command.simple
        if re.search(rf"(?<![\w-]){re.escape(s.name)}(?![\w-])", error_text)
    ]
    return named or list(command.simple)


def help_line(context: SiteContext) -> str:
    """The command line that prints the help of the program that refused the mistaken call, e.g. "gh
    pr list --help" or "bash run.sh --help"; "man cat" for a program of BSD or macOS, which has no
    such option; "" for code and for a word of the shell."""
    if context.command is None:
        return ""
    text = context.evidence.text if context.evidence else ""
    command, subject = parse(context.command), context.subject
    named = _with_option(command, subject) or _refusing(named_commands(command, text))
    starts = {_start_of_help(simple) for simple in named}
    start = starts.pop() if len(starts) == 1 else ()
    if not start:
        return ""
    if len(start) == 1 and _BSD_GETOPT.search(text):
        return f"man {start[0]}"
    subcommands: list[str] = []
    for word in _subject_words(named[0])[: _num_subcommands(context, named[0])]:
        if word == subject or not re.fullmatch(r"[a-z][\w-]*", word):
            break
        subcommands.append(word)
    return " ".join((*start, *subcommands, _HELP_WORD_OF.get(" ".join(start), "--help")))


def _subject_words(simple: Simple) -> list[str]:
    """The operands without the values of the program's own options."""
    takes_value = _OWN_VALUES.get(simple.name, frozenset())
    pairs = zip(("", *simple.words), simple.words, strict=False)
    return [w for before, w in pairs if not w.startswith("-") and before not in takes_value]


def list_tasks_line(context: SiteContext) -> str:
    """The command line that lists the tasks among which the mistaken call looked for one, e.g. "npm
    --prefix web run"; "" if the program has none."""
    if context.command is None:
        return ""
    for simple in parse(context.command).simple:
        if context.subject not in simple.words:
            continue
        if simple.name in _TASK_LISTS:
            return _TASK_LISTS[simple.name]
        words = simple.words[: simple.words.index(context.subject)]
        if simple.name in _SCRIPT_RUNNERS and not set(words) & simple.open:
            runs = words[-1:] in (("run",), ("run-script",))
            return " ".join((simple.name, *words, *(() if runs else ("run",))))
    return ""


def _refusing(named: list[Simple]) -> list[Simple]:
    """Of several commands those that read no pipe; of several of these, those with an option."""
    heads = [s for s in named if s.before not in ("|", "|&")]
    if len(heads) > 1:
        heads = [s for s in heads if any(word.startswith("-") for word in s.words)]
    return heads or named


def _start_of_help(simple: Simple) -> tuple[str, ...]:
    """The words that run the program, as the line runs it: with its folder, its runner, or for a
    script its interpreter; none if the help cannot be asked for in the same way."""
    words = [simple.program]
    if simple.name in _INTERPRETERS:
        words += simple.words[: 2 if simple.words[:1] == ("-m",) else 1]
        if len(words) < 2 or (words[1].startswith("-") and len(words) < 3):
            return ()
    runners = [word for word in simple.wrappers if word not in _PLAIN_WRAPPERS]
    if (
        len(runners) > 1
        or not set(runners) <= _HELP_RUNNERS
        or set(words) & simple.open
        or simple.name in _BUILTINS | _KEYWORDS
        or not all(re.fullmatch(r"-m|[A-Za-z.~/][\w.+/~-]*", word) for word in words)
    ):
        return ()
    return (*runners, *words)


def _num_subcommands(context: SiteContext, simple: Simple) -> int:
    """The number of words behind the program that select its help: by the table; else one, if the
    program ran above with the same bare word first and other words behind it."""
    if simple.name in _INTERPRETERS | LOOKERS | SEARCHERS:
        return 0
    if simple.name in _SUBCOMMANDS:
        return _SUBCOMMANDS[simple.name]
    return int(
        bool(simple.words)
        and re.fullmatch(r"[a-z][a-z-]+", simple.words[0]) is not None
        and any(
            s.program == simple.program
            and s.words[:1] == simple.words[:1]
            and s.words != simple.words
            and not is_error(call, result)
            for call, result, command in _shell_calls(context)
            for s in command.simple
        )
    )


def was_refused_before(context: SiteContext) -> bool:
    """Whether a call in view was refused for the same option or subcommand of the same program."""
    if context.call is None or context.evidence is None:
        return False
    refused = _refused_option(context.call, context.evidence)
    return bool(refused) and any(
        _refused_option(call, result) == refused for call, result, _ in _shell_calls(context)
    )


def _refused_option(call: ToolCall, result: ToolResult) -> tuple[str, str] | None:
    """The program, and its option or subcommand that a result refuses; None if it names none."""
    line = shell_command(call.name, call.arguments)
    if line is None:
        return None
    command = parse(line)
    verdict = malformed(command, split_exit_code(result.text)[1], hidden=not is_error(call, result))
    if verdict is None or verdict.kind != "shell_bad_option" or not verdict.subject:
        return None
    refused_by = _with_option(command, verdict.subject)
    option = verdict.subject.lstrip("-")
    return (_program_and_operands(refused_by[0])[0], option) if refused_by else None


def _with_option(command: Command, option: str) -> list[Simple]:
    """The simple commands of a line that have this option or word."""
    bare = option.lstrip("-")
    return [
        s
        for s in command.simple
        if bare and any(w.lstrip("-").partition("=")[0] == bare for w in s.words)
    ]


def _program_and_operands(simple: Simple) -> list[str]:
    """The program, or the script that it runs, and its operands, e.g. `gh pr diff --help` -> ["gh",
    "pr", "diff"]."""
    words = [simple.name, *(w for w in simple.operands if w != "help")]
    return words[1:] if simple.name in _INTERPRETERS and len(words) > 1 else words


def branches_shown(context: SiteContext) -> list[str]:
    """List the branches that git has named (`git branch`, `git status`, `git checkout`) and that
    were not deleted or renamed since, in the order of appearance."""
    refs: dict[str, None] = {}
    current = ""
    for call, result, command in _shell_calls(context):
        if is_error(call, result):
            continue
        for simple in command.simple:
            if simple.name != "git" or not simple.operands:
                continue
            if simple.operands[0] == "branch":
                refs.update(dict.fromkeys(_GIT_REFS.findall(result.text)))
            refs.update(dict.fromkeys(_GIT_ON.findall(result.text)))
            removed = {
                name for names in _GIT_DELETED.findall(result.text) for name in names if name
            }
            removed |= _removed_branches(simple, current)
            for name in [
                name for name in refs if name in removed or name.removeprefix("origin/") in removed
            ]:
                del refs[name]
        current = _current_branch(result.text) or current
    return list(refs)


def _removed_branches(simple: Simple, current: str) -> set[str]:
    """The branch that a `git branch` command deletes or renames; `current` is the one checked
    out."""
    if simple.operands[0] != "branch":
        return set()
    options, operands = set(simple.words), simple.operands[1:]
    if {"-m", "-M"} & options and len(operands) == 1:
        return {current}  # the only operand is the new name
    return set(operands[:1]) if {"-d", "-D", "-m", "-M", "--delete"} & options else set()


def _current_branch(text: str) -> str:
    """The branch that git's output calls the current one; "" if it names none."""
    named = [*_GIT_CURRENT.findall(text), *_GIT_ON.findall(text)]
    return named[-1] if named else ""


def branches_were_listed(context: SiteContext) -> bool:
    """Whether the output of `git branch` is in view."""
    return any(
        s.name == "git" and s.operands[:1] == ("branch",) and not is_error(call, result)
        for call, result, command in _shell_calls(context)
        for s in command.simple
    )


def closest_names(
    name: str, names: Iterable[str], *, limit: int = MAX_REFS, cutoff: float = ALIKE_REF
) -> list[str]:
    """List the names most similar to a given one, by difflib's ratio, best first."""
    return difflib.get_close_matches(name, list(names), n=limit, cutoff=cutoff)
