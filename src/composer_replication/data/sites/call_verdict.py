"""The verdict on one call and its result, for any tool."""

from __future__ import annotations

import re

from composer_replication.core.trace import ToolCall, ToolResult
from composer_replication.data.sites.result_headers import PATCH_NOT_FOUND, split_header
from composer_replication.data.sites.shell import SHELL_TOOLS, shell_command
from composer_replication.data.sites.shell_errors import judge_shell_error
from composer_replication.data.sites.tool_errors import (
    is_error_text,
    judge_tool_error,
    not_the_model,
)
from composer_replication.data.sites.verdict import Verdict

_OF_PATCH = re.compile(rf"apply_patch verification failed|error: {PATCH_NOT_FOUND}")
"""Codex takes a patch out of a shell command and applies it itself."""


def is_error(call: ToolCall, result: ToolResult) -> bool:
    """Whether a result is an error: by the log's flag or, if there is none, by words that only an
    agent program writes."""
    if result.is_error is not None:
        return result.is_error
    return is_error_text(result.text, is_shell=call.name in SHELL_TOOLS)


def judge(call: ToolCall, result: ToolResult) -> Verdict:
    """Judge a call by its error result.

    >>> call = ToolCall("c1", "Read", {"file_path": "a.py"})
    >>> judge(call, ToolResult("c1", "File does not exist.", True)).category
    'mistake'
    """
    command, header = shell_command(call.name, call.arguments), split_header(result.text)
    output = header.body if header else result.text
    is_agents = result.text.lstrip().startswith("<tool_use_error>") or _OF_PATCH.match(output)
    if command is None or is_agents:
        return judge_tool_error(output, tool=call.name)
    ran = header is not None and header.code is not None
    apart = None if ran else not_the_model(output)
    return apart or judge_shell_error(command, result.text)
