"""Is a message that a student wrote at a site mistaken? Decided statically, or not at all.

    check = SiteCheck.of(session, site)
    check.message(turn)
    # Checked(outcome="same", reason="unknown_tool", detail="Reed: the log refuses this name")

Nothing is run; the session alone decides. Each call is tested four times: can it be read, does the
tool exist, do the arguments fit its schema, was its path seen. data/hints/seen.py defines which
paths exist, data/sites what an error is. The log itself answers if it can: the very call that
failed in this state fails again, and so does a call that shares the refused part with it
(`DECIDED_BY`). "ok" means that the site's kind of mistake was tested for, would be visible, and is
absent; not that the message is good. What only running it would show - a shell line, text that an
edit looks for, a file that nothing has shown - stays "undecided".
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from composer_replication.core.errors import SiteError
from composer_replication.core.site import Site
from composer_replication.core.trace import JSON, Session, ToolCall, ToolSpec, Turn
from composer_replication.data.hints.context import site_context
from composer_replication.data.hints.seen import PATH_KEYS, track_places
from composer_replication.data.sites.arguments import find_misfit
from composer_replication.data.sites.call_verdict import is_error, judge
from composer_replication.data.sites.effects import resolve
from composer_replication.data.sites.repeats import same_call
from composer_replication.data.sites.shell import SHELL_TOOLS
from composer_replication.data.sites.shell_rules import PATH_EXPLORED, word_set
from composer_replication.rollouts.chat_format import CUT, MALFORMED

Outcome = Literal["ok", "same", "other", "malformed", "undecided"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "same", "other", "malformed", "undecided")

UNKNOWN_TOOL, BAD_ARGUMENTS, FILE_MISSING = "unknown_tool", "bad_arguments", "file_missing"
PATHS_MISSING = frozenset((FILE_MISSING, PATH_EXPLORED))
WRITING_TOOLS = word_set("Write write write_file")
EDITING_TOOLS = word_set("Edit MultiEdit NotebookEdit edit edit_file") | WRITING_TOOLS

# The arguments that a refusal of each kind depends on: a call of the same tool (for file_missing,
# of any file tool) that shares them is refused as well.
_PATH = ("path",)
DECIDED_BY: dict[str, tuple[str, ...]] = {
    FILE_MISSING: _PATH,
    PATH_EXPLORED: _PATH,
    "is_directory": _PATH,
    "edit_not_read": _PATH,
    "edit_stale": _PATH,
    "edit_no_match": ("path", "old_string"),
    "edit_multi_match": ("path", "old_string", "replace_all"),
}
_NEEDS_PATHS = PATHS_MISSING | {"is_directory", "too_large"}
# the tests that every call gets decide these kinds
_ASKED_OF_ALL = frozenset((UNKNOWN_TOOL, BAD_ARGUMENTS, MALFORMED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The verdict on one message: `outcome` as in the module's docstring, a reason, and details.

    outcome   ok, same (the site's mistake again), other (another certain mistake),
              malformed (a call that cannot be read), undecided
    reason    checked, no_call, cut_off, malformed_call, same_call, unknown_tool, bad_arguments,
              file_missing, tools_unknown, schema_unknown, path_not_seen, needs_running, or the
              kind of the site
    """

    outcome: Outcome
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFacts:
    """The tools that a session lists, used or was refused.

    `listed` are those listed in the log, `worked` those that worked, with the shapes of their
    arguments, `refused` the names that were refused as unknown and never worked.
    """

    listed: Mapping[str, ToolSpec]
    worked: Mapping[str, frozenset[tuple[tuple[str, str], ...]]]
    refused: frozenset[str]

    @classmethod
    def of(cls, session: Session) -> ToolFacts:
        """Read every answered call of a session, including later ones.

        That a tool exists is a fact about the agent, not about the moment.
        """
        worked: dict[str, set[tuple[tuple[str, str], ...]]] = {}
        refused: set[str] = set()
        for ref in session.calls().values():
            if ref.result is None:
                continue
            if not is_error(ref.call, ref.result):
                worked.setdefault(ref.call.name, set()).add(_shape(ref.call))
            elif judge(ref.call, ref.result).kind == UNKNOWN_TOOL:
                refused.add(ref.call.name)
        return cls(
            listed=(
                {tool.name: tool for tool in session.tools} if session.tools_origin == "log" else {}
            ),
            worked={name: frozenset(shapes) for name, shapes in worked.items()},
            refused=frozenset(refused - worked.keys()),
        )


def _shape(call: ToolCall) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, type(value).__name__) for name, value in call.arguments.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCheck:
    """The static check of one site, built once and used for every message sampled there.

    `seen` and `missing` are absolute paths: shown to exist in view of the site (with their
    folders), and refused as missing by then.
    """

    site: Site
    call: ToolCall | None
    cwd: str | None
    tools: ToolFacts
    seen_paths: frozenset[str]
    missing_paths: frozenset[str]
    fine: tuple[ToolCall, ...] = field(default=())

    @classmethod
    def of(cls, session: Session, site: Site, *, tools: ToolFacts | None = None) -> SiteCheck:
        """Gather what the session knows at a site; SiteError for a site of another session."""
        if site.session_id != session.id:
            raise SiteError(
                f"the site belongs to session {site.session_id}",
                where=site.id,
                fix="run again: recompose sites",
            )
        context = site_context(session, site)
        seen_paths = track_places(context)
        visible = (
            {*seen_paths.names, posixpath.normpath(session.cwd)}
            if session.cwd
            else set(seen_paths.names)
        )
        missing = set(seen_paths.refused)  # without paths that were shown or written since
        if (
            site.kind in PATHS_MISSING
            and context.call is not None
            and (path := _path(context.call, seen_paths.cwd))
        ):
            missing.add(path)  # it may have been seen before, but at this state it was missing
        refs = session.calls()
        siblings = [refs[c.id] for c in session.turns[site.turn].calls if c.id in refs]
        return cls(
            site=site,
            call=context.call,
            cwd=seen_paths.cwd,
            tools=tools or ToolFacts.of(session),
            seen_paths=frozenset(folder for path in visible for folder in _with_parents(path))
            - missing,
            missing_paths=frozenset(missing),
            fine=tuple(
                ref.call
                for ref in siblings
                if ref.result is not None and not is_error(ref.call, ref.result)
            ),
        )

    def message(self, turn: Turn) -> Checked:
        """The verdict on a message: first the site's mistake, then certain errors, then doubt."""
        verdicts = [self._call(call) for call in turn.calls]
        first = {
            outcome: next((verdict for verdict in verdicts if verdict.outcome == outcome), None)
            for outcome in OUTCOMES
        }
        if (same := first["same"]) is not None:
            return same
        # The rest of a cut message is unknown, and its last call may be half a call.
        if turn.tag == CUT:
            return first["other"] or Checked(outcome="undecided", reason="cut_off")
        worst = first["malformed"] or first["other"] or first["undecided"] or first["ok"]
        return worst or Checked(
            outcome="undecided",
            reason="no_call",
            detail="a message without a call can be right or wrong",
        )

    def _call(self, call: ToolCall) -> Checked:
        if call.name == MALFORMED:
            return Checked(
                outcome="same" if self.site.kind == MALFORMED else "malformed",
                reason="malformed_call",
            )
        if any(same_call(call, working) for working in self.fine):
            return Checked(
                outcome="ok",
                reason="same_call",
                detail=f"{call.name}: the log made this call here, and it worked",
            )
        if self._repeats(call):
            return Checked(
                outcome="same",
                reason="same_call",
                detail=f"{call.name}: refused in the log at this very state",
            )
        mistake = self._name(call) or self._arguments(call) or self._place(call)
        if mistake is not None:
            return mistake
        return self._kind(call) or Checked(outcome="ok", reason="checked")

    def _repeats(self, call: ToolCall) -> bool:
        """Whether the log already answers: the call that failed here, or one with its fault."""
        if self.call is None:
            return False
        if same_call(call, self.call):
            return True
        keys = DECIDED_BY.get(self.site.kind, ())
        comparable = call.name == self.call.name or (
            self.site.kind in PATHS_MISSING and call.name not in WRITING_TOOLS
        )
        return (
            bool(keys)
            and comparable
            and call.name not in SHELL_TOOLS
            and all(self._shared(call, key) for key in keys)
        )

    def _shared(self, call: ToolCall, key: str) -> bool:
        if self.call is None:
            return False
        if key == "path":
            path = _path(call, self.cwd)
            return path != "" and path == _path(self.call, self.cwd)
        return call.arguments.get(key) == self.call.arguments.get(key)

    def _wrong(self, kind: str, call: ToolCall, detail: str) -> Checked:
        """A certain mistake; "same" if it is of the site's kind.

        Bad arguments are the same mistake only for the same tool, because the hint is about that
        tool's schema.
        """
        is_same = (self.site.kind == kind or {kind, self.site.kind} <= PATHS_MISSING) and (
            kind != BAD_ARGUMENTS or call.name == self.site.tool
        )
        return Checked(
            outcome="same" if is_same else "other", reason=kind, detail=f"{call.name}: {detail}"
        )

    def _name(self, call: ToolCall) -> Checked | None:
        tools = self.tools
        if call.name in tools.worked:
            return None
        if call.name in tools.refused:
            return self._wrong(UNKNOWN_TOOL, call, "the log refuses this name")
        if call.name in tools.listed:
            return None
        if tools.listed:
            return self._wrong(UNKNOWN_TOOL, call, "not among the tools offered")
        return Checked(
            outcome="undecided",
            reason="tools_unknown",
            detail=f"{call.name}: the log does not list its tools",
        )

    def _arguments(self, call: ToolCall) -> Checked | None:
        spec = self.tools.listed.get(call.name)
        if spec is None or not spec.parameters:
            if _shape(call) in self.tools.worked.get(call.name, ()):
                return None
            return Checked(
                outcome="undecided",
                reason="schema_unknown",
                detail=f"{call.name}: no schema, and no call like this worked",
            )
        schema_check = find_misfit(call.arguments, spec.parameters)
        if schema_check.problem:
            return self._wrong(BAD_ARGUMENTS, call, schema_check.problem)
        if schema_check.unread and _shape(call) not in self.tools.worked.get(call.name, ()):
            return Checked(
                outcome="undecided",
                reason="schema_unknown",
                detail=f"{call.name}: its schema has {schema_check.unread}",
            )
        return None

    def _place(self, call: ToolCall) -> Checked | None:
        """A path argument must have been seen.

        A tool that writes a file needs no existing path, and a shell line is no path.
        """
        path = _path(call, self.cwd)
        if not path or call.name in SHELL_TOOLS or call.name in WRITING_TOOLS:
            return None
        if path in self.missing_paths:
            return self._wrong(FILE_MISSING, call, f"{path} was refused as missing")
        if path in self.seen_paths:
            return None
        return Checked(
            outcome="undecided",
            reason="path_not_seen",
            detail=f"{call.name}: nothing in view shows {path}",
        )

    def _kind(self, call: ToolCall) -> Checked | None:
        """ "undecided" if this call could still make the site's kind of mistake.

        Only running it would tell.
        """
        kind = self.site.kind
        if kind in _ASKED_OF_ALL:
            return None
        if kind in _NEEDS_PATHS:
            at_risk = call.name in SHELL_TOOLS or (
                kind not in PATHS_MISSING and bool(_path(call, self.cwd))
            )
        elif kind.startswith("edit_"):
            at_risk = call.name in EDITING_TOOLS
        elif kind.startswith("shell_"):
            at_risk = call.name in SHELL_TOOLS
        else:
            at_risk = True
        return (
            Checked(
                outcome="undecided", reason="needs_running", detail=f"{call.name}: could be {kind}"
            )
            if at_risk
            else None
        )


def _path(call: ToolCall, cwd: str | None) -> str:
    """The absolute path in a call's arguments, "" if there is none.

    It stays as written if the shell's folder is unknown.
    """
    value: JSON = next((call.arguments[key] for key in PATH_KEYS if key in call.arguments), "")
    if not isinstance(value, str) or not value:
        return ""
    return resolve(value.rstrip("/") or "/", cwd) or posixpath.normpath(value)


def _with_parents(path: str) -> list[str]:
    """A path and its folders: if a file was seen, they exist.

    >>> _with_parents("/app/src/a.py")
    ['/app/src/a.py', '/app/src', '/app', '/']
    """
    folders = [path]
    while "/" in path and path != "/":
        path = path.rsplit("/", 1)[0] or "/"
        folders.append(path)
    return folders
