"""Lead a failed test, lint, type check or build back to the edit that caused it.

The finding names a line, and `file_lines.py` knows which edit wrote it: that edit is the mistake,
however many edits came after it. It is sure only if a later edit of the same lines turned the same
check green, and the check was not green between the edit and the failure. Findings that lead to
several edits, or to a file whose name stands in several folders, are ambiguous: the failed check
says so, and nobody is blamed.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from composer_replication.core.site import Site
from composer_replication.core.trace import CallRef, Session
from composer_replication.data.sites.detectors import failed_check, make_site
from composer_replication.data.sites.file_lines import (
    AppliedEdit,
    EditedFiles,
    calls_in_order,
    path_in_call,
)
from composer_replication.data.sites.repeats import READ_ONLY_PROGRAMS
from composer_replication.data.sites.shell import parse, shell_command
from composer_replication.data.sites.verdict import Verdict, quote

FIXED, ALONE, AMBIGUOUS = "blame_line_fixed", "blame_line", "blame_ambiguous"
STYLE = "blame_style"
CONFIDENCE_OF = {FIXED: 0.65, ALONE: 0.5, STYLE: 0.05, AMBIGUOUS: 0.0}
"""Of labelled sites 4 of 6, 1 of 2 and 0 of 3 were mistakes."""
CHECKS = frozenset(("test_failed", "lint_failed", "build_failed"))
MAX_FINDINGS = 20
_FINDING = re.compile(
    r"(?P<path>(?:[A-Za-z]:)?[\w./\\@+-]*\w\.[A-Za-z]{1,5})(?::(?P<a>\d+)|\((?P<b>\d+)[,)]"
    r"|\", line (?P<c>\d+))"
)
_TEST_FILE = re.compile(r"(?:^|[/_.])(?:tests?|specs?|conftest)(?:[/_.]|$)", re.IGNORECASE)
_COMPILES_NOT = re.compile(
    r"undefined:|cannot use|not used|syntax error|redeclared|undeclared|SyntaxError|ImportError"
    r"|NameError|IndentationError|error TS\d|not enough arguments|too many arguments|unknown field"
)
_TYPE_ERROR = re.compile(r"^\S+\(\d+,\d+\): error TS\d+: ", re.MULTILINE)
_IS_STYLE = re.compile(
    r"too long|characters long|\b(?:lll|revive|stylecheck|exported|goconst|dupl|gocyclo|cyclop"
    r"|funlen|gofmt|gofumpt|gci|goimports|nolintlint|wsl|godot|misspell|E501|max-len|quotes|semi|indent"
    r"|prettier|W\d{3}|G\d{3}|I001)\b|complexity|Formatter would|whitespace|import/order"
)
"""Findings about how code is written: a formatter or a rule of taste decides, and no mistake."""


_RAISED = re.compile(
    r"^(?:E\s+)?(?P<error>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b.*|assert .*)"
)
"""The last line of a Python traceback, as the interpreter and as pytest write it."""
_FRAME = re.compile(r"(?:\", line \d+|\.py:\d+:(?: in \S+)?\s*$)")
_PLACE_ALONE = re.compile(r"^\s*--> ")
"""The place of a finding that stands in the line above, as ruff writes it."""
_TRACEBACK_BEGINS = re.compile(r"^(?:Traceback \(most recent|_{3,} |={3,} )")


class CheckFinding(NamedTuple):
    """A place that a failed check names, e.g. CheckFinding("a.py", 12, "a.py:12: E501 ..."); a
    frame of a traceback holds no more than its place, so `error` is what the traceback ends with.
    """

    path: str
    line: int
    text: str
    error: str = ""


@dataclass(slots=True)
class _Suspect:
    """An edit that a red check leads to; `touched` once a later edit replaced its lines."""

    edit: AppliedEdit
    finding: CheckFinding
    evidence: int
    check: tuple[str, ...]
    touched: bool = False
    fixed: bool = False


@dataclass(slots=True)
class _Blamer:
    session: Session
    red: dict[str, Site]
    files: EditedFiles = field(default_factory=EditedFiles)
    edits: dict[str, AppliedEdit] = field(default_factory=dict)
    green: dict[tuple[str, ...], int] = field(default_factory=dict)
    suspects: dict[str, _Suspect] = field(default_factory=dict)
    paths: set[str] = field(default_factory=set)

    def follow(self, ref: CallRef) -> Iterator[Site]:
        """Take over one answered call; yields the failed checks that lead to several edits."""
        if path := path_in_call(ref.call):
            self.paths.add(path)
        edit = self.files.follow(ref)
        if edit is not None:
            self.edits[ref.call.id] = edit
            for suspect in self.suspects.values():
                suspect.touched |= suspect.edit.ref.call.id in edit.replaced
        command = shell_command(ref.call.name, ref.call.arguments)
        check = check_of(command) if command else ()
        if not check or ref.result_turn is None:
            return
        site = self.red.get(ref.call.id)
        if site is None and not (ref.result and _TYPE_ERROR.search(ref.result.text)):
            self._turned_green(check, ref)
        elif self._is_ambiguous(site, ref, check) and site is not None:
            yield dataclasses.replace(site, rule=AMBIGUOUS, confidence=CONFIDENCE_OF[AMBIGUOUS])

    def _turned_green(self, check: tuple[str, ...], ref: CallRef) -> None:
        if ref.result is not None and ref.result.is_error is not True:
            self.green[check] = ref.turn
            for suspect in self.suspects.values():
                suspect.fixed |= suspect.touched and suspect.check == check

    def _is_ambiguous(self, site: Site | None, ref: CallRef, check: tuple[str, ...]) -> bool:
        """Blame the one edit that the findings lead to; whether they lead to several."""
        assert ref.result is not None and ref.result_turn is not None
        owners: dict[str, CheckFinding] = {}
        is_test = site is not None and site.kind == "test_failed"
        for finding in findings(ref.result.text, is_test=is_test):
            owner = self._owner(finding)
            if owner is not None and owner is not AMBIGUOUS:
                owners.setdefault(owner, finding)
            elif owner is AMBIGUOUS:
                return True
        if len(owners) != 1:
            return len(owners) > 1
        ((call_id, finding),) = owners.items()
        edit = self.edits.get(call_id)
        if edit is not None and edit.ref.turn >= self.green.get(check, -1):
            new = _Suspect(edit, finding, ref.result_turn, check)
            self.suspects.setdefault(call_id, new)
        return False

    def _owner(self, finding: CheckFinding) -> str | None:
        """The call that wrote the line of a finding; None if it was no edit of this session,
        AMBIGUOUS if the name stands in several folders."""
        name = finding.path.replace("\\", "/").removeprefix("./")
        same = {
            path
            for path in self.paths
            if path == name or path.replace("\\", "/").endswith(f"/{name}")
        }
        if not same & self.files.edited:
            return None
        if len(same) > 1:
            return AMBIGUOUS
        state = self.files.states.get(same.pop())
        known = state is not None and finding.line <= len(state.owners)
        return state.owners[finding.line - 1] if state is not None and known else None


def blame(session: Session) -> Iterator[Site]:
    """Find the edits after which a check failed at their lines."""
    red = {
        site.call_id: site for site in failed_check(session) if site.call_id and site.kind in CHECKS
    }
    blamer = _Blamer(session, red)
    for ref in calls_in_order(session):
        yield from blamer.follow(ref)
    for suspect in blamer.suspects.values():
        rule = FIXED if suspect.fixed else ALONE
        rule = STYLE if _IS_STYLE.search(suspect.finding.text) else rule
        detail = f"{suspect.finding.text} {suspect.finding.error}".strip()
        verdict = Verdict(category="blamed", kind="broke_check", detail=quote(detail))
        ref = suspect.edit.ref
        site = make_site(session, ref, verdict, detector="blame", evidence=suspect.evidence)
        yield dataclasses.replace(site, rule=rule, confidence=CONFIDENCE_OF[rule])


def findings(text: str, *, is_test: bool) -> Iterable[CheckFinding]:
    """The places that the output of a failed check names.

    The lines of a failing test are what it expects, and a test may be written before its code: of a
    test's own file only what does not compile is a finding.
    """
    places: dict[tuple[str, int], CheckFinding] = {}
    lines = text.splitlines()
    for index, line in enumerate(lines):
        for match in _FINDING.finditer(line):
            number = int(match["a"] or match["b"] or match["c"])
            is_expectation = _TEST_FILE.search(posixpath.basename(match["path"]))
            if is_test and is_expectation and not _COMPILES_NOT.search(line):
                continue
            if 0 < number < 100_000 and len(places) < MAX_FINDINGS:
                error = _raised_below(lines[index + 1 :]) if _FRAME.search(line) else ""
                above = lines[index - 1].strip() if index and _PLACE_ALONE.match(line) else ""
                quoted = f"{above} {line.strip()}".strip()
                finding = CheckFinding(match["path"], number, quoted, error)
                places.setdefault((match["path"], number), finding)
    return places.values()


def _raised_below(lines: Iterable[str]) -> str:
    """The last line of the traceback of which these are the lines below a frame; "" if it is not
    there.

    >>> _raised_below(["    return a.count", "AttributeError: 'dict' object has no attribute"])
    "AttributeError: 'dict' object has no attribute"
    """
    for line in lines:
        if match := _RAISED.match(line):
            return match["error"]
        if _TRACEBACK_BEGINS.match(line):
            break
    return ""


def check_of(command: str) -> tuple[str, ...]:
    """The programs of a command line with their operands, without those that only read; the same
    for two runs of the same check.

    >>> check_of("cd /w && go test ./... 2>&1 | tail -5")
    ('go', 'test', './...')
    """
    words: list[str] = []
    for simple in parse(command).simple:
        if simple.name not in READ_ONLY_PROGRAMS and simple.name not in ("cd", "export", "set"):
            words += [simple.name, *simple.operands]
    return tuple(words)
