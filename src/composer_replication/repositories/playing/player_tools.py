"""Claude Code's tools on an episode's tree, with its results and its errors.

    tools = AgentTools(tree, command_s=60)
    tools.answer(ToolCall("c0", "Read", {"file_path": "/repo/shop/cart.py"})).text

The texts are those that recorded sessions show, so the same detectors find the mistakes of logs
and of rollouts, and the same writers hint at them. Not as there: calls of one message run one after
the other and do not cancel each other; a file that was read is not followed by a reminder.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from composer_replication.core.trace import JSON, ToolCall, ToolResult
from composer_replication.repositories.playing.player_searches import find_files, search_texts
from composer_replication.repositories.playing.player_tool_specs import AGENT_TOOLS
from composer_replication.repositories.sandbox.episode_tree import EpisodeTree
from composer_replication.repositories.sandbox.tree_sandbox_child import REPO
from composer_replication.rollouts.tools import Tool, call_issue

MAX_LINES, MAX_LINE = 2000, 2000
"""Lines of a file that Read shows by itself, and characters of a line."""
MAX_KB = 256
"""The largest file that Read shows without an offset or a limit."""
MAX_SHOWN = 30_000
"""Characters of a result; of a longer one the beginning is shown, and the rest kept in a file."""
_PREVIEW = 2000
_SECONDS = re.compile(r"(?<=\bin )\d+\.\d+s\b")
"""How long pytest and unittest took; written alike, so that the same episode has the same text."""
_NOT_READ = "File has not been read yet. Read it first before writing to it."
_STALE = (
    "File has been modified since read, either by the user or by a linter. Read it again before"
    " attempting to write it."
)


class RefusedCallError(Exception):
    """A tool refuses a call, with these words."""


class AgentTools:
    """The tools of one episode: which files were read, and where the shell stands."""

    def __init__(self, tree: EpisodeTree, *, command_s: float) -> None:
        self.tree, self.command_s = tree, command_s
        self.cwd = REPO
        self.num_calls = self.num_errors = 0
        self._read_at: dict[str, int] = {}
        self._num_kept = 0
        self._run: dict[str, Callable[[Mapping[str, Any]], str]] = {
            "Bash": self._bash,
            "Read": self._read,
            "Edit": self._edit,
            "Write": self._write,
            "Grep": partial(search_texts, self.ask, cwd=lambda: self.cwd),
            "Glob": partial(find_files, self.ask, cwd=lambda: self.cwd),
        }
        self._known = {spec.name: Tool(spec=spec, run=self._run[spec.name]) for spec in AGENT_TOOLS}

    def answer(self, call: ToolCall) -> ToolResult:
        """Carry out a call; one that cannot be is answered with an error."""
        self.num_calls += 1
        issue = call_issue(call, self._known)
        if issue:
            issue = f"Error: {issue}" if call.name not in self._known else issue
            return self._error(call, f"<tool_use_error>{issue}</tool_use_error>")
        try:
            return ToolResult(call.id, self._kept(self._run[call.name](call.arguments)), False)
        except RefusedCallError as error:
            shown = str(error)
            if call.name != "Bash":
                shown = f"<tool_use_error>{shown}</tool_use_error>"
            return self._error(call, self._kept(shown))

    def ask(self, what: str, **request: JSON) -> dict[str, Any]:
        """Ask the tree, with a path as the player wrote it; raises RefusedCallError in the words of
        the tools if there is no such path."""
        written = request.pop("written", request.get("path"))
        answer = self.tree.ask(what, **request)
        if error := answer.get("error"):
            facts = {**request, **answer, "what": what, "path": written}
            raise RefusedCallError(_words(error, facts))
        return answer

    def _error(self, call: ToolCall, text: str) -> ToolResult:
        self.num_errors += 1
        return ToolResult(call.id, text, True)

    def _path(self, arguments: Mapping[str, Any]) -> str:
        return posixpath.normpath(posixpath.join(self.cwd, arguments["file_path"]))

    def _kept(self, text: str) -> str:
        """The result as it is shown: a long one is kept in a file of the player's."""
        if len(text) <= MAX_SHOWN:
            return text
        self._num_kept += 1
        path = f"/tmp/tool-results/{self._num_kept}.txt"
        self.tree.write(path, text)
        preview = text[:_PREVIEW].rpartition("\n")[0] or text[:_PREVIEW]
        return (
            f"<persisted-output>\nOutput too large ({len(text) / 1024:.0f}KB). Full output saved"
            f" to: {path}\n\nPreview (first 2KB):\n{preview}\n...\n</persisted-output>"
        )

    def _bash(self, arguments: Mapping[str, Any]) -> str:
        limit_s = min(self.command_s, arguments.get("timeout", 1e9) / 1000)
        done = self.tree.run(arguments["command"], cwd=self.cwd, limit_s=max(limit_s, 0.001))
        out, err = (_SECONDS.sub("0.10s", part) for part in (done.out.rstrip("\n"), done.err))
        self.cwd = done.cwd
        if done.cwd != REPO and not done.cwd.startswith(f"{REPO}/"):
            self.cwd = REPO
            err = f"{err}Shell cwd was reset to {REPO}"
        if done.late:
            shown = [f"Command timed out after {limit_s:g}s", err.rstrip("\n"), out]
            raise RefusedCallError("\n".join(filter(None, shown)))
        if done.code:
            shown = [f"Exit code {done.code}", err, out]
            raise RefusedCallError("\n".join(filter(None, shown)).rstrip("\n"))
        return "\n".join(filter(None, [out, err.rstrip("\n")]))

    def _read(self, arguments: Mapping[str, Any]) -> str:
        path = self._path(arguments)
        facts = self._file(path)
        offset, limit = int(arguments.get("offset", 1)), int(arguments.get("limit", 0))
        text: str = facts["text"]
        size = len(text.encode(errors="replace")) / 1024
        if size > MAX_KB and not arguments.keys() & {"offset", "limit"}:
            raise RefusedCallError(_too_large(size))
        if facts["binary"]:
            raise RefusedCallError(
                "This tool cannot read binary files. The file appears to be a binary"
                f" {posixpath.splitext(path)[1]} file. Please use appropriate tools for binary file"
                " analysis."
            )
        self._read_at[path] = facts["time"]
        if not text:
            return _warning("the contents are empty.")
        lines = text.replace("\r\n", "\n").split("\n")
        first = max(offset, 1)
        shown = lines[first - 1 : first - 1 + (limit or MAX_LINES)]
        if not shown:
            return _warning(
                f"is shorter than the provided offset ({offset}). The file has {len(lines)} lines."
            )
        return "\n".join(
            f"{number:>6}→{line[:MAX_LINE]}" for number, line in enumerate(shown, start=first)
        )

    def _edit(self, arguments: Mapping[str, Any]) -> str:
        path, old, new = self._path(arguments), arguments["old_string"], arguments["new_string"]
        everywhere = arguments.get("replace_all", False)
        if old == new:
            raise RefusedCallError(
                "No changes to make: old_string and new_string are exactly the same."
            )
        if not old and self.tree.read(path).get("error") == "ENOENT":
            return self._save(path, new, f"The file {path} has been updated successfully.")
        text = self._unchanged(path)
        ends = "\r\n" in text
        text = text.replace("\r\n", "\n") if ends else text
        count = text.count(old) if old else 0
        if not count:
            raise RefusedCallError(f"String to replace not found in file.\nString: {old}")
        if count > 1 and not everywhere:
            raise RefusedCallError(
                f"Found {count} matches of the string to replace, but replace_all is false. To"
                " replace all occurrences, set replace_all to true. To replace only one occurrence,"
                f" please provide more context to uniquely identify the instance.\nString: {old}"
            )
        text = text.replace(old, new)
        words = (
            f"The file {path} has been updated. All occurrences of '{old}' were successfully"
            f" replaced with '{new}'."
            if everywhere
            else f"The file {path} has been updated successfully."
        )
        return self._save(path, text.replace("\n", "\r\n") if ends else text, words)

    def _write(self, arguments: Mapping[str, Any]) -> str:
        path = self._path(arguments)
        if self.tree.read(path).get("error") == "ENOENT":
            return self._save(path, arguments["content"], f"File created successfully at: {path}")
        self._unchanged(path)
        words = f"The file {path} has been updated successfully."
        return self._save(path, arguments["content"], words)

    def _file(self, path: str) -> dict[str, Any]:
        """A file that exists."""
        facts = self.tree.read(path)
        if facts.get("error") == "ENOENT":
            folder, name = posixpath.split(path)
            looked = self.tree.ask("look", path=folder, pattern="*").get("files", [])
            stem = posixpath.splitext(name)[0]
            near = [posixpath.basename(p) for p in looked if posixpath.dirname(p) == folder]
            like = [other for other in near if posixpath.splitext(other)[0] == stem]
            meant = f" Did you mean {like[0]}?" if like else ""
            raise RefusedCallError(f"File does not exist.{meant}")
        if "error" in facts:
            raise RefusedCallError(_words(facts["error"], {"path": path, **facts}))
        return facts

    def _unchanged(self, path: str) -> str:
        """The text of a file that was read, as it was read."""
        facts = self._file(path)
        if path not in self._read_at:
            raise RefusedCallError(_NOT_READ)
        if facts["time"] != self._read_at[path]:
            raise RefusedCallError(_STALE)
        return facts["text"]

    def _save(self, path: str, text: str, words: str) -> str:
        self._read_at[path] = self.ask("write", path=path, text=text)["time"]
        return words


def _words(error: str, request: Mapping[str, Any]) -> str:
    """An error of the kernel as the tools say it."""
    path = request.get("path", "")
    if error.startswith("regex: "):
        return f"regex parse error:\n    {request['pattern']}\nerror: {error[7:]}"
    if error == "EFBIG" and "size" in request:
        return _too_large(request["size"] / 1024)
    if error == "ENOENT":
        kind = "Directory" if request.get("what") == "look" else "Path"
        return f"{kind} does not exist: {path}"
    named = {
        "EISDIR": "EISDIR: illegal operation on a directory, read",
        "ETIMEDOUT": "The operation timed out. Use a more specific path or pattern.",
        "EFBIG": "The result is too large. Use a more specific path or pattern.",
    }
    return named.get(error, f"{error}: cannot open '{path}'")


def _too_large(kilobytes: float) -> str:
    return (
        f"File content ({kilobytes:.1f}KB) exceeds maximum allowed size ({MAX_KB}KB). Please use"
        " offset and limit parameters to read specific portions of the file, or search for specific"
        " content."
    )


def _warning(what: str) -> str:
    return f"<system-reminder>Warning: the file exists but {what}</system-reminder>"
