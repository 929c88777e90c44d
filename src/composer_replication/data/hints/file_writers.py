"""Template writers for mistakes with files: paths, reads and edits."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from composer_replication.data.hints.context import SiteContext
from composer_replication.data.hints.region import region_of
from composer_replication.data.hints.seen import (
    LISTERS,
    known_paths_near,
    path_argument,
    track_places,
    was_looked_for,
    was_refused,
    was_used,
    wrong_path,
)
from composer_replication.data.hints.templates import fill
from composer_replication.data.hints.tool_names import (
    look_action,
    read_action,
    search_action,
)
from composer_replication.data.sites.call_verdict import is_error
from composer_replication.data.sites.effects import resolve
from composer_replication.data.sites.repeats import canonical_arguments
from composer_replication.data.sites.shell import (
    parse,
)
from composer_replication.data.sites.shell_rules import LOOKERS, PATH_STATED

_SIZE = re.compile(r"\((\d[\d.,]* ?(?:tokens|[KMG]?B))\)")


def known_paths(context: SiteContext) -> str | None:
    """List the known paths that are nearest to the wrong one by name; if there are none, advise to
    look.

    The hint does not name the folder of the shell: a restarted shell is in another folder, and no
    message says so.
    """
    paths, wrong = known_paths_near(context), wrong_path(context).removeprefix("./").rstrip("/")
    if paths:
        same = [path for path in paths if "/" in wrong and path.rstrip("/").endswith(f"/{wrong}")]
        return fill("known_paths", paths=", ".join(same or paths))
    if (
        context.site.kind not in PATH_STATED
        or _is_search(context)
        or was_looked_for(context)
        or was_used(context)
    ):
        return None
    look = look_action(context)
    return (
        fill("refused_path", look=look) if was_refused(context) else fill("list_folder", look=look)
    )


def _is_search(context: SiteContext) -> bool:
    """Whether the mistaken call was itself a listing or a search, or its subject is not a path, so
    that the advice to list first would not help."""
    error_text = context.evidence.text if context.evidence else ""
    if (
        context.call is None
        or "..." in wrong_path(context)
        or "does not contain package" in error_text
        or _is_drive(context)
    ):
        return True
    if context.command is None:
        return context.call.name in LISTERS
    return bool(parse(context.command).names & (LOOKERS | {"fd"}))


def _is_drive(context: SiteContext) -> bool:
    """Whether the path names a drive as a Unix shell on Windows does (`/d/x`): it exists, but
    Windows programs cannot find it."""
    return bool(
        re.match(r"[A-Za-z]:[\\/]", context.session.cwd)
        and re.match(r"/[a-z]/", wrong_path(context))
    )


def file_name(context: SiteContext) -> str:
    name = posixpath.basename(wrong_path(context).rstrip("/"))
    return f"`{name}`" if name else "the file"


def _read(context: SiteContext) -> str:
    return read_action(context, file_name(context))


def _parameters(context: SiteContext) -> set[str]:
    """The parameters of the tool: those of its schema, and those of the call."""
    spec = next((t for t in context.session.tools if t.name == context.site.tool), None)
    known = spec.parameters.get("properties", {}) if spec is not None else {}
    return {*known, *(context.call.arguments if context.call is not None else ())}


def _was_read(context: SiteContext) -> bool:
    """Whether a file tool has read or edited the file in view."""
    return resolve(wrong_path(context), context.session.cwd) in track_places(context).read


def reread(context: SiteContext) -> str | None:
    """Advise to read the region again before editing or, if it is in view and unchanged, to copy it
    from there."""
    read = _read(context)
    if context.site.kind == "edit_stale" and _was_read(context):
        return fill("stale", read=read)
    region = region_of(context)
    if context.site.kind == "edit_no_match" and region.edit_not_applied:
        return fill("not_applied", read=read)
    if context.site.kind == "edit_no_match" and region.can_be_copied:
        if region.has_odd_character or region.edit_failed:
            return fill("copy_in_parts", name=file_name(context))
        return fill("copy_exactly", name=file_name(context))
    return fill("reread", read=read, when="again" if region.was_shown else "first")


def read_first(context: SiteContext) -> str | None:
    """Remind that a file must be read before an edit; if it was read above, that this no longer
    counts."""
    return (
        fill("read_again", read=_read(context))
        if _was_read(context)
        else fill("read_first", read=_read(context))
    )


def edit_multi_match(context: SiteContext) -> str | None:
    """Advise to include more lines, or to replace all occurrences."""
    if "replace_all" in _parameters(context):
        return fill("edit_multi_match_all", name=file_name(context))
    return fill("edit_multi_match", name=file_name(context))


def edit_no_change(context: SiteContext) -> str | None:
    """Remind that the old and the new text must differ."""
    return fill("edit_no_change", read=_read(context))


def too_large(context: SiteContext) -> str | None:
    """Advise to read a smaller part; if fewer lines gave the same size, the lines are too long."""
    is_partial = context.call is not None and bool(
        {"limit", "offset", "pages"} & context.call.arguments.keys()
    )
    search = search_action(context, file_name(context))
    size = _SIZE.search(context.evidence.text) if context.evidence else None
    if is_partial and size and size[1] in _refused_sizes(context):
        return fill("too_large_lines", search=search)
    part = ", with offset and limit" if {"offset", "limit"} <= _parameters(context) else ""
    if is_partial:
        return fill("too_large_part", search=search, part=part)
    return fill("too_large", search=search, part=part)


def _refused_sizes(context: SiteContext) -> Iterator[str]:
    """Yield the sizes for which other reads of the file were refused in view."""
    assert context.call is not None
    for call, result in context.answered_calls():
        same_file = path_argument(call) == wrong_path(context) and canonical_arguments(
            call
        ) != canonical_arguments(context.call)
        if same_file and is_error(call, result) and (size := _SIZE.search(result.text)):
            yield size[1]


def is_directory(context: SiteContext) -> str | None:
    """Advise to list the directory instead of reading it."""
    return fill("is_directory", name=file_name(context), look=look_action(context))
