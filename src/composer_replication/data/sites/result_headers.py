"""The lines that agents put around the output of a command: exit code, time, folder.

    split_header("Exit code: 2\\nWall time: 0.1 seconds\\nOutput:\\nusage: x").code    -> 2

Claude Code's "Exit code 2" is read by `shell_errors.split_exit_code`, which falls back on these.
The model saw the lines, so results keep them; they are only taken off where a result is judged.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

MAX_JSON_CHARS = 2**20
_SECONDS = r"[\d.]+ seconds?"

# Codex CLI: unified exec; shell and apply_patch; scripts of its code mode.
_UNIFIED = re.compile(
    rf"\A(?:Command: .*\n)?(?:Chunk ID: \S+\n)?Wall time: {_SECONDS}\n"
    r"(?:Process exited with code (?P<code>-?\d+)\n|Process running with session ID .*\n)"
    r"(?:Original token count: \d+\n)?(?:Total output lines: \d+\n)?(?:Output:\n)?"
)
_PLAIN = re.compile(
    rf"\AExit code: (?P<code>-?\d+)\nWall time: {_SECONDS}\n(?:Total output lines: \d+\n)?Output:\n"
)
_SCRIPT = re.compile(
    rf"\AScript (?P<state>\w+)[^\n]*\nWall time:? {_SECONDS}\nOutput:\n(?:Script error:\n)?"
)
PATCH_NOT_FOUND = r"Failed to find (?:expected lines|context)"
"""How Codex says that a patch's text is not in the file; a regular expression."""
_CODEX_REFUSAL = re.compile(
    r"\A(?:exec command rejected by user|patch rejected by user|rejected by user|aborted by user"
    rf"|Wall time: {_SECONDS}\naborted by user|exec_command failed for |apply_patch (?:verification"
    r" failed|was rejected)|failed to parse function arguments|unsupported (?:custom tool )?call:"
    r"|write_stdin failed|execution error:|failed in sandbox|command timed out after "
    rf"|tool call error: |error: {PATCH_NOT_FOUND} )"
)
# Its first versions put the blame for every failure on the sandbox.
_SANDBOX = re.compile(
    r"\Afailed in sandbox \w+ with execution error: sandbox denied exec error, exit code:"
    r" (?P<code>-?\d+), stdout: (?P<out>.*?), stderr: (?P<error>.*)\Z",
    re.DOTALL,
)
_DENIED = re.compile(r"permission denied|operation not permitted|read-only file", re.IGNORECASE)
# Gemini CLI and qwen-code.
_GEMINI = re.compile(
    r"\A(?:Command: .*?\nDirectory: .*?\n)?(?:Output|Stdout): (?P<body>.*?)\n(?:(?:Error|Stderr):"
    r" (?P<error>.*?)\n)?Exit Code: (?P<code>-?\d+|\(none\))\b",
    re.DOTALL,
)
# mini-swe-agent.
_RETURNCODE = re.compile(
    r"\A\s*<returncode>\s*(?P<code>-?\d+)\s*</returncode>\s*(?:<output>\n?)?(?P<body>.*?)"
    r"(?:\n?</output>\s*)?\Z",
    re.DOTALL,
)
# Cline's CLI.
_CLINE = re.compile(
    r"\A\[Command exited with code (?P<code>-?\d+)\]\n(?:\n\[stderr\]\n|\n\[stdout\]\n|\n)?"
)
# OpenHands; Copilot CLI; Roo Code.
_COMPLETED = re.compile(
    r"\n?\[(?:The command completed|Command finished) with exit code (?P<code>-?\d+)\.?\]\s*\Z"
)
_OPENHANDS_STATE = re.compile(
    r"\n\[(?:Current working directory|Python interpreter|The command completed|Command finished)"
    r"[^\n]*\](?=\s*(?:\n\[|\Z))"
)
_EXITED = re.compile(r"\n?<(?:exited|shellId: \S+ completed) with exit code (?P<code>-?\d+)>\s*\Z")
_ROO = re.compile(
    r"\ACommand executed in terminal[^\n]*?\. Exit code: (?P<code>-?\d+)[^\n]*\n(?:Output:\n)?"
)

# pi: a person stopped the command.
_ABORTED = re.compile(r"(?:\A|\n)Command aborted\s*\Z")


class Header(NamedTuple):
    """The exit code (None: not said), whether the call failed (None: not said), and the output."""

    code: int | None
    failed: bool | None
    body: str


def split_header(text: str) -> Header | None:
    """Take the agent's lines off a result; None if there are none.

    >>> split_header("<returncode>1</returncode>\\n<output>\\nno\\n</output>")
    Header(code=1, failed=True, body='no')
    """
    for pattern in (_UNIFIED, _PLAIN, _ROO, _CLINE):
        if match := pattern.match(text):
            return _with_code(match["code"], text[match.end() :])
    if match := _SCRIPT.match(text):
        return _of_script(match["state"], text[match.end() :])
    if (match := _SANDBOX.match(text)) and not _DENIED.search(match["error"]):
        body = "\n".join(part for part in (match["out"].strip(), match["error"].strip()) if part)
        return _with_code(match["code"], body)
    if _CODEX_REFUSAL.match(text):
        return Header(None, True, text)
    if match := _GEMINI.match(text):
        parts = [part for part in (match["body"], match["error"]) if part]
        body = "\n".join(part for part in parts if part not in ("(empty)", "(none)"))
        return _with_code(match["code"], body)
    if match := _RETURNCODE.match(text):
        return _with_code(match["code"], match["body"])
    if match := _COMPLETED.search(text):
        return _with_code(match["code"], _OPENHANDS_STATE.sub("", text[: match.start()]))
    if match := _EXITED.search(text):
        return _with_code(match["code"], text[: match.start()])
    if _ABORTED.search(text[-80:]):
        return Header(None, True, "Command aborted")
    return _of_json(text) if text[:1] == "{" else None


def _with_code(code: str | None, body: str) -> Header:
    if code is None or not code.lstrip("-").isdecimal():
        return Header(None, None, body)
    return Header(int(code), code != "0", body)


def _of_script(state: str, body: str) -> Header:
    """A script that ended well says nothing of the commands in it, unless it prints their codes."""
    if state == "failed":
        return Header(None, True, body)
    return _of_json(body) or Header(None, None, body)


def _of_json(text: str) -> Header | None:
    """The output and exit code of a result that is JSON: {"output", "metadata": {"exit_code"}},
    {"exit_code", "output"} or {"returncode", "output"}."""
    if len(text) > MAX_JSON_CHARS or "code" not in text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    metadata = value.get("metadata")
    code = metadata.get("exit_code") if isinstance(metadata, dict) else None
    for key in ("exit_code", "returncode"):
        code = value.get(key) if code is None else code
    output = value.get("output")
    if not isinstance(code, int) or isinstance(code, bool) or not isinstance(output, str):
        return None
    return Header(code, code != 0, output)
