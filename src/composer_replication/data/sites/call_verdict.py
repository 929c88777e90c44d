"""The verdict on one call and its result, for any tool."""

from __future__ import annotations

from composer_replication.core.trace import ToolCall, ToolResult
from composer_replication.data.sites.result_headers import split_header
from composer_replication.data.sites.shell import SHELL_TOOLS, shell_command
from composer_replication.data.sites.shell_errors import judge_shell_error
from composer_replication.data.sites.tool_errors import (
    is_error_text,
    judge_tool_error,
    not_the_model,
)
from composer_replication.data.sites.verdict import Verdict


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
    if command is None or result.text.lstrip().startswith("<tool_use_error>"):
        return judge_tool_error(header.body if header else result.text, tool=call.name)
    body = header.body if header and header.code is None else result.text
    return not_the_model(body) or judge_shell_error(command, result.text)
