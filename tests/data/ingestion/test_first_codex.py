"""Logs of the first versions of Codex: what a stranger's log showed and ours did not hold.

Bare items without an envelope, the folder only in a message, patches inside shell commands, and
every failure blamed on the sandbox.
"""

from __future__ import annotations

import json
from pathlib import Path

from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.data.sites.find_sites import find_sites
from tests.data.ingestion.reading import read_all

SANDBOX = "failed in sandbox LinuxSeccomp with execution error: sandbox denied exec error, "
CALLS: tuple[tuple[str, str, str, tuple[str, str] | None], ...] = (
    ("shell", "ls", json.dumps({"output": "a.py", "metadata": {"exit_code": 0}}), None),
    (
        "shell",
        "apply_patch <<'PATCH'\n*** Begin Patch\n*** End Patch\nPATCH",
        'error: Failed to find expected lines ["def f():"] in /home/dev/shop/a.py',
        ("mistake", "edit_no_match"),
    ),
    (
        "shell",
        'echo "it is',
        f"{SANDBOX}exit code: 2, stdout: , stderr: /bin/bash: -c: line 1: unexpected EOF while"
        " looking for matching `\"'\n",
        ("mistake", "shell_syntax"),
    ),
    (
        "shell",
        "npx tsc --noEmit",
        f"{SANDBOX}exit code: 2, stdout: a.ts(1,2): error TS2323: Cannot redeclare.\n, stderr: ",
        ("failed_check", "lint_failed"),
    ),
    (
        "shell",
        "touch /etc/x",
        f"{SANDBOX}exit code: 1, stdout: , stderr: touch: cannot touch '/etc/x': Permission denied",
        ("permission", "permission_denied"),
    ),
    (
        "memory__add",
        "",
        "tool call error: tool call failed for `memory/add`",
        ("environment", "unclassified"),
    ),
)


def test_failures_of_the_first_versions_of_codex_are_counted_and_named(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"id": "s-1", "timestamp": "2025-09-10T18:58:38.331Z", "instructions": None},
        {
            "type": "message",
            "role": "user",
            "content": [
                {
                    "type": "input_text",
                    "text": "<environment_context>\n  <cwd>/home/dev/shop</cwd>\n"
                    "</environment_context>",
                }
            ],
        },
    ]
    for number, (tool, command, output, _) in enumerate(CALLS):
        arguments = json.dumps({"command": ["bash", "-lc", command]} if command else {})
        call = {"type": "function_call", "name": tool, "arguments": arguments}
        rows += [
            {"record_type": "state"},
            {**call, "call_id": f"c{number}"},
            {"type": "function_call_output", "call_id": f"c{number}", "output": output},
        ]
    log = tmp_path / "rollout.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (result,) = read_all(log)
    (session,) = result.sessions
    assert result.report.counts["tool_use"] == len(CALLS)
    assert result.report.counts["is_error"] == 5
    assert session.cwd == "/home/dev/shop" and "the folder" not in result.report.lacks
    found = {
        site.call_id: (site.category, site.kind)
        for site in find_sites(session, settings=SitesSettings())
    }
    assert found == {f"c{n}": kind for n, (*_, kind) in enumerate(CALLS) if kind is not None}
