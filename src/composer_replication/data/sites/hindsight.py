"""Revise a verdict by the rest of the session: a call and its result alone do not distinguish a
guess from a question.

A missing path is a mistake if the message used it as a fact, and a sound question if the message
looked for it. A command that is not found is no mistake if the program turns out to be installed
outside the search path. Neither is an edit of a file that has changed although the model had just
read it and no call in view touched it.
"""

from __future__ import annotations

import dataclasses
import re

from composer_replication.core.trace import CallRef, Session, Text
from composer_replication.data.sites.call_verdict import is_error
from composer_replication.data.sites.repeats import only_reads
from composer_replication.data.sites.shell import parse, shell_command
from composer_replication.data.sites.shell_rules import PATH_EXPLORED, PATH_STATED
from composer_replication.data.sites.verdict import Verdict

# "Let me check if there is a config for this", "see whether it exists": the last sentence before
# the call, or the call's description.
_LOOKS_FOR = re.compile(
    r"\b(?:if|whether)\b(?:[^.!?\n]|\.(?=\S)){0,60}\b(?:exists?|there(?:'s| is|"
    r" are)|present|available|ha(?:s|ve) an?)\b"
    r"|\b(?:is|are) there (?:an?|any)\b|\bany existing\b",
    re.IGNORECASE,
)
_ASKS_IF_INSTALLED = re.compile(
    r"\b(?:if|whether|is|are)\b[^.!?\n]{0,60}\b(?:installed|available)\b", re.IGNORECASE
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
JUST_READ = 2
"""A file counts as just read if one of the last so many messages of the model read it."""
_CHANGES_A_FILE = re.compile(r"edit|write|insert|replace", re.IGNORECASE)


def with_hindsight(session: Session, ref: CallRef, verdict: Verdict) -> Verdict:
    """Revise the verdict on a call by the text of its message and by later turns."""
    if verdict.category != "mistake":
        return verdict
    if (
        verdict.kind in PATH_STATED
        and not _CHANGES_A_FILE.search(ref.call.name)
        and _LOOKS_FOR.search(_stated_intent(session, ref))
    ):
        return dataclasses.replace(verdict, category="failed_check", kind=PATH_EXPLORED)
    if verdict.kind == "shell_unknown_command" and _ASKS_IF_INSTALLED.search(
        _stated_intent(session, ref)
    ):
        return dataclasses.replace(verdict, category="failed_check", kind="command_failed")
    if (
        verdict.kind == "shell_unknown_command"
        and verdict.subject
        and _is_installed(session, ref, verdict.subject)
    ):
        return dataclasses.replace(verdict, category="environment", kind="not_on_path")
    if verdict.kind == "edit_stale" and _was_just_read(session, ref):
        return dataclasses.replace(verdict, category="environment", kind="changed_meanwhile")
    return verdict


def _stated_intent(session: Session, ref: CallRef) -> str:
    """The last sentence of the message before the call, and the `description` argument of the
    call."""
    last_text = ""
    for block in session.turns[ref.turn].blocks:
        if isinstance(block, Text) and block.text.strip():
            last_text = block.text
    sentences = [sentence for sentence in _SENTENCE.split(last_text.strip()) if sentence]
    description = ref.call.arguments.get("description")
    last_sentence = sentences[-1] if sentences else ""
    return f"{last_sentence}\n{description if isinstance(description, str) else ''}"


def _was_just_read(session: Session, ref: CallRef) -> bool:
    """Whether one of the last `JUST_READ` messages read the file, and no call since can have
    changed it."""
    in_view = session.context_indices(ref.turn)
    model_turns = [i for i in in_view if session.turns[i].role == "assistant"]
    first_turn = model_turns[-JUST_READ] if len(model_turns) >= JUST_READ else 0
    path = ref.call.arguments.get("file_path")
    was_read = False
    for earlier in session.calls().values():
        if (
            earlier.call.id == ref.call.id
            or earlier.result is None
            or not first_turn <= earlier.turn <= ref.turn
        ):
            continue
        if not only_reads(earlier.call):
            was_read = False
            if earlier.turn == ref.turn:
                return False
        elif (
            earlier.turn in in_view
            and earlier.call.arguments.get("file_path") == path
            and not is_error(earlier.call, earlier.result)
        ):
            was_read = path is not None
    return was_read


def _is_installed(session: Session, ref: CallRef, program: str) -> bool:
    """Whether a later call runs the program by its full path and no earlier one did: until then the
    model could not know the path."""
    was_run_later = False
    for candidate in session.calls().values():
        command = shell_command(candidate.call.name, candidate.call.arguments)
        if (
            command is None
            or f"/{program}" not in command
            or candidate.result is None
            or candidate.result.text.startswith("Exit code 127")
        ):
            continue
        if any(
            s.name == program and s.program.startswith(("/", "~")) for s in parse(command).simple
        ):
            if candidate.turn <= ref.turn:
                return False
            was_run_later = True
    return was_run_later
