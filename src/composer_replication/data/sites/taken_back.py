"""Edits that were taken back later: by an edit that is their inverse, by git, or by a person.

Every undo names its file, and a file is its full path: one of the same name in another folder is
another file. An edit that later edits go on from is refined, and no site; neither is one that was
moved elsewhere, nor a stash that is popped again.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from composer_replication.core.site import Site
from composer_replication.core.trace import CallRef, Session
from composer_replication.data.sites.call_verdict import is_error
from composer_replication.data.sites.detectors import make_site
from composer_replication.data.sites.file_lines import (
    Replacement,
    calls_in_order,
    path_in_call,
    replacements_of,
)
from composer_replication.data.sites.git_undo import commits, restores, undone_by
from composer_replication.data.sites.persons_words import is_typed, remark_of, undid_it
from composer_replication.data.sites.shell import parse, shell_command
from composer_replication.data.sites.verdict import Verdict, quote

INVERSE, REMOVED, ASKED = "undone_inverse", "undone_removed", "undone_asked"
BY_GIT, OUTSIDE, BY_PERSON = "undone_by_git", "undone_outside", "undone_by_person"
CONFIDENCE_IN_UNDO = {
    ASKED: 0.5,
    BY_GIT: 0.5,
    BY_PERSON: 0.5,
    INVERSE: 0.4,
    OUTSIDE: 0.4,
    REMOVED: 0.3,
}
"""Guessed on development sessions: most of what is taken back was no mistake."""
_PERSON_CHANGED = "user modified your proposed changes"
_DEBUG = re.compile(r"\b(?:print\w*|console\.\w+|log\w*\.\w+|fmt\.Print\w*|debugger|dbg!|echo)\b")
_MIN_CHARS = 8
_LINE_NUMBER = re.compile(r"^ *\d+(?:→|\t)", re.MULTILINE)


@dataclass(slots=True)
class _Edit:
    """An edit that was carried out, and the text of the whole file before it, if it is known."""

    ref: CallRef
    path: str
    changes: tuple[Replacement, ...]
    before: str | None


@dataclass(slots=True)
class _Undoer:
    session: Session
    alive: list[_Edit] = field(default_factory=list)
    uncommitted: list[_Edit] = field(default_factory=list)
    commits: list[tuple[str, tuple[_Edit, ...]]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    last_person: int = -1

    def follow(self, ref: CallRef) -> Iterator[Site]:
        """Take over one answered call; yields the edits that it takes back."""
        assert ref.result is not None
        if is_error(ref.call, ref.result):
            return
        path, changes = path_in_call(ref.call), replacements_of(ref.call)
        command = shell_command(ref.call.name, ref.call.arguments)
        if command is not None:
            yield from self._git(command, ref)
        elif path and changes:
            yield from self._edited(_Edit(ref, path, changes, self.texts.get(path)))
        elif path:
            yield from self._shown(path, ref)

    def heard(self, index: int) -> Iterator[Site]:
        """Take over a person's message; yields the edits since their last that they took back."""
        start, self.last_person = self.last_person, index
        if undid_it(self.session.turns[index].text):
            for edit in [e for e in self.alive if e.ref.turn > start]:
                self.alive.remove(edit)
                yield self._record(edit, BY_PERSON, by="the person", turns=(index,))
            self.texts.clear()

    def _edited(self, new: _Edit) -> Iterator[Site]:
        for old in [edit for edit in self.alive if edit.path == new.path]:
            rule = undone(old.changes, new.changes)
            if rule == REMOVED and self._is_moved(old):
                rule = ""
            if not rule and old.before is not None and _text_after(new) == old.before:
                rule = INVERSE
            if rule:
                yield self._site(old, rule, by=new.ref)
        self.alive.append(new)
        self.uncommitted.append(new)
        after = _text_after(new)
        if after is None:
            self.texts.pop(new.path, None)
        else:
            self.texts[new.path] = after
        assert new.ref.result is not None
        if _PERSON_CHANGED in new.ref.result.text:
            yield self._site(new, BY_PERSON, by=new.ref)

    def _is_moved(self, edit: _Edit) -> bool:
        """Whether another edit of the session writes the lines that this one wrote."""
        wrote = {line for change in edit.changes for line in _added(change)}
        return any(
            wrote <= {line for change in replacements_of(call) for line in _lines(change.new)}
            for turn in self.session.turns[edit.ref.turn + 1 :]
            for call in turn.calls
        )

    def _shown(self, path: str, ref: CallRef) -> Iterator[Site]:
        """Find edits whose old text a reading shows again, although nothing of the agent wrote it:
        an edit replaces a text that stands there once."""
        assert ref.result is not None
        shown = _LINE_NUMBER.sub("", ref.result.text)
        for edit in [edit for edit in self.alive if edit.path == path]:
            for change in edit.changes:
                old = (change.old or "").strip("\n")
                if (
                    len(old.strip()) >= _MIN_CHARS
                    and not change.everywhere
                    and change.new.strip()
                    and old in shown
                    and change.new.strip("\n") not in shown
                    and old not in change.new
                    and not self._wrote(path, old, after=edit)
                ):
                    yield self._site(edit, OUTSIDE, by=ref)
                    break

    def _wrote(self, path: str, text: str, *, after: _Edit) -> bool:
        later = self.uncommitted + [e for _, edits in self.commits for e in edits]
        return any(
            text in change.new
            for edit in later
            if edit.path == path and edit.ref.turn >= after.ref.turn and edit is not after
            for change in edit.changes
        )

    def _git(self, command: str, ref: CallRef) -> Iterator[Site]:
        assert ref.result is not None
        parsed = parse(command)
        if sha := commits(parsed, ref.result.text):
            self.commits.append((sha, tuple(self.uncommitted)))
            self.uncommitted.clear()
        undo = undone_by(parsed, cwd=self.session.cwd)
        edits = list(self.uncommitted) if undo.paths else []
        known = {edit.path for edit in self.alive}
        taken = [edit for edit in edits if restores(undo.paths, edit.path, known=known)]
        for revision in undo.reverts:
            taken += self._edits_of(revision)
        for edit in taken:
            if edit in self.alive:
                yield self._site(edit, BY_GIT, by=ref)
        if undo.paths or undo.reverts:
            self.texts.clear()

    def _edits_of(self, revision: str) -> Iterable[_Edit]:
        """The edits of a commit of this session: HEAD, or the beginning of its hash."""
        if revision == "HEAD":
            return self.commits[-1][1] if self.commits else ()
        same = [edits for sha, edits in self.commits if sha[:7] == revision[:7]]
        return same[0] if same else ()

    def _site(self, edit: _Edit, rule: str, *, by: CallRef) -> Site:
        """The site of an edit that was taken back; a person who asked for it is evidence, too."""
        assert by.result_turn is not None
        self.alive.remove(edit)
        asked = self._asked(edit.ref.turn, by.turn)
        if asked is not None and rule in (INVERSE, REMOVED, BY_GIT):
            rule = ASKED
        turns = (by.result_turn,) if asked is None else (asked, by.result_turn)
        return self._record(edit, rule, by=by.call.name, turns=turns)

    def _record(self, edit: _Edit, rule: str, *, by: str, turns: tuple[int, ...]) -> Site:
        first = next((line for c in edit.changes for line in sorted(_added(c))), "")
        detail = quote(f"{by} took back: {first}")
        verdict = Verdict(category="undone", kind="taken_back", detail=detail)
        site = make_site(self.session, edit.ref, verdict, detector="taken_back", evidence=turns[-1])
        confidence = CONFIDENCE_IN_UNDO[rule]
        return dataclasses.replace(site, rule=rule, confidence=confidence, evidence=turns)

    def _asked(self, start: int, end: int) -> int | None:
        """The last message of a person between an edit and its undo, if it corrects or asks for
        another way."""
        for index in range(end - 1, start, -1):
            turn = self.session.turns[index]
            if is_typed(turn):
                remark = remark_of(turn.text)
                wanted = ("correction", "prohibition", "instead")
                return index if remark is not None and remark.stance in wanted else None
        return None


def taken_back(session: Session) -> Iterator[Site]:
    """Find the edits that were undone later, in the order of the undoing."""
    undoer = _Undoer(session)
    people = [i for i, turn in enumerate(session.turns) if is_typed(turn)]
    for ref in calls_in_order(session):
        while people and people[0] < ref.turn:
            yield from undoer.heard(people.pop(0))
        yield from undoer.follow(ref)
    for index in people:
        yield from undoer.heard(index)


def undone(old: tuple[Replacement, ...], new: tuple[Replacement, ...]) -> str:
    """The rule by which new changes take back old ones; "" if they do not.

    >>> undone((Replacement("a = one()", "a = two()"),), (Replacement("a = two()", "a = one()"),))
    'undone_inverse'
    """
    for before in old:
        wrote, removed = _added(before), _lines(before.old or "") - _lines(before.new)
        if before.old is None or sum(map(len, wrote)) < _MIN_CHARS:
            continue
        for after in new:
            if after.old is None or not wrote <= _lines(after.old) - _lines(after.new):
                continue
            if removed and removed <= _added(after):
                return INVERSE
            gone = not _added(after) and not removed
            if gone and not all(_DEBUG.search(line) for line in wrote):
                return REMOVED
    return ""


def made_again(session: Session, site: Site) -> bool:
    """Whether an edit after the last evidence of a site writes all lines that its edit wrote into
    the same file: what a person took back as a whole, they may have wanted in part."""
    ref = session.calls().get(site.call_id or "")
    wrote = {line for c in replacements_of(ref.call) for line in _added(c)} if ref else set[str]()
    if ref is None or not wrote:
        return False
    return any(
        path_in_call(call) == path_in_call(ref.call)
        and wrote <= {line for change in replacements_of(call) for line in _lines(change.new)}
        for turn in session.turns[site.evidence[-1] + 1 :]
        for call in turn.calls
    )


def _lines(text: str) -> set[str]:
    return {line.strip() for line in text.split("\n") if line.strip()}


def _added(change: Replacement) -> set[str]:
    return _lines(change.new) - _lines(change.old or "")


def _text_after(edit: _Edit) -> str | None:
    """The text of the whole file after an edit, if it is known."""
    text = edit.before
    for change in edit.changes:
        if change.old is None:
            text = change.new
        elif text is None or change.old not in text:
            return None
        else:
            text = text.replace(change.old, change.new, -1 if change.everywhere else 1)
    return text
