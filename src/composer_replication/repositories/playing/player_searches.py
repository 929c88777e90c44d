"""Grep and Glob of a player: what an episode's tree finds, in the words of Claude Code."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any

MAX_FILES = 100
"""Paths that Glob shows."""
Ask = Callable[..., dict[str, Any]]


def find_files(ask: Ask, arguments: Mapping[str, Any], *, cwd: Callable[[], str]) -> str:
    """The answer of Glob: absolute paths, the oldest first."""
    folder = _target(arguments, cwd())
    files = ask("look", pattern=arguments["pattern"], **_place(arguments, folder))["files"]
    if not files:
        return "No files found"
    more = ["(Results are truncated. Consider using a more specific path or pattern.)"]
    return "\n".join(files[:MAX_FILES] + (more if len(files) > MAX_FILES else []))


def search_texts(ask: Ask, arguments: Mapping[str, Any], *, cwd: Callable[[], str]) -> str:
    """The answer of Grep in its three output modes."""
    mode = arguments.get("output_mode", "files_with_matches")
    around = int(arguments.get("-C", 0)) if mode == "content" else 0
    answer = ask(
        "search",
        **_place(arguments, _target(arguments, cwd())),
        pattern=arguments["pattern"],
        glob=arguments.get("glob", ""),
        flags="i" * bool(arguments.get("-i")) + "s" * bool(arguments.get("multiline")),
        before=int(arguments.get("-B", around)) if mode == "content" else 0,
        after=int(arguments.get("-A", around)) if mode == "content" else 0,
    )
    files: list[tuple[str, list[tuple[int, str, bool]]]] = answer["files"]
    if not files:
        return "No files found" if mode == "files_with_matches" else "No matches found"
    page = _Page(arguments)
    if mode == "content":
        rows = _content(files, arguments, alone=_target(arguments, cwd()) == files[0][0])
        return "\n".join([*page.of([_relative(row, cwd()) for row in rows]), *page.note()])
    if mode == "count":
        counts = [f"{_short(name, cwd())}:{len(rows)}" for name, rows in files]
        total = sum(len(rows) for _, rows in files)
        counted = f"\nFound {total} total occurrences across {len(files)} files."
        return "\n".join([*page.of(counts), counted])
    newest = sorted(zip(answer["times"], files, strict=True), key=lambda row: -row[0])
    shown = page.of([_short(name, cwd()) for _, (name, _) in newest])
    limit = f" {page.words()}" if page.words() else ""
    return "\n".join([f"Found {len(shown)} file{'s' * (len(shown) != 1)}{limit}", *shown])


class _Page:
    """The rows that `head_limit` and `offset` leave."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._limit = int(arguments.get("head_limit", 0))
        self._offset = int(arguments.get("offset", 0))
        self._cut = False

    def of(self, rows: list[str]) -> list[str]:
        """The rows of the page."""
        shown = rows[self._offset :]
        shown = shown[: self._limit] if self._limit else shown
        self._cut = len(shown) < len(rows)
        return shown

    def words(self) -> str:
        """What was left out, "" if nothing was."""
        return f"limit: {self._limit}, offset: {self._offset}" if self._cut else ""

    def note(self) -> list[str]:
        """The last line of a page."""
        if not self._cut:
            return []
        return [f"\n[Showing results with pagination = {self.words()}]"]


def _target(arguments: Mapping[str, Any], cwd: str) -> str:
    return posixpath.normpath(posixpath.join(cwd, arguments.get("path") or "."))


def _place(arguments: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A path for the tree, and as the player wrote it."""
    return {"path": path, "written": arguments.get("path") or path}


def _short(path: str, cwd: str) -> str:
    return posixpath.relpath(path, cwd)


def _relative(row: str, cwd: str) -> str:
    """A row with its path relative to where the shell stands. As the agent does it: what stands
    before the first colon counts as the path, so a row of context without one keeps its own."""
    path, colon, rest = row.partition(":")
    return f"{_short(path, cwd)}:{rest}" if colon and path.startswith("/") else row


def _content(
    files: list[tuple[str, list[tuple[int, str, bool]]]],
    arguments: Mapping[str, Any],
    *,
    alone: bool,
) -> list[str]:
    """The lines as ripgrep writes them: the path unless one file was searched, the number, a colon
    behind those of a match and a hyphen behind those around it, "--" between groups."""
    numbered = arguments.get("-n", True)
    grouped = bool(arguments.keys() & {"-A", "-B", "-C"})
    rows: list[str] = []
    for name, lines in files:
        last = 0
        for number, line, matched in lines:
            if grouped and rows and number != last + 1:
                rows.append("--")
            mark = ":" if matched else "-"
            parts = ([] if alone else [name]) + ([str(number)] if numbered else [])
            rows.append(mark.join([*parts, line]))
            last = number
    return rows
