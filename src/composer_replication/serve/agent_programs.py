"""The agent programs that can play, and how each is started against the endpoint.

    launch = launch_of("claude-code", Assignment(task="Fix it.", url=url, home=home))
    launch.command, launch.env

A name of `PROGRAMS`, or any command line; in it "{task}" and "{url}" are replaced, and the task is
also in RECOMPOSE_TASK. Versions that were tried stand in docs/serve.md. Each program gets a home
folder of its own, telemetry and updates off, and the small set of tools that a small student can
use.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from composer_replication.core.errors import ConfigError
from composer_replication.data.sites.by_path import did_you_mean

MODEL = "student"
_KEY = "dummy"  # programs insist on one; the endpoint reads none


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLaunch:
    """A command line, the variables of its environment, and the files of its home by path."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a program is started for: the task, the address of the endpoint, a home folder, and how
    many tokens the student can read and may write in one message."""

    task: str
    url: str
    home: Path
    context_tokens: int = 32_768
    message_tokens: int = 4_096


def base_env(assignment: Assignment) -> dict[str, str]:
    """The variables that every program gets: the endpoint under the names that libraries read."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(assignment.home),
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "OPENAI_BASE_URL": f"{assignment.url}/v1",
        "OPENAI_API_BASE": f"{assignment.url}/v1",
        "OPENAI_API_KEY": _KEY,
        "ANTHROPIC_BASE_URL": assignment.url,
        "ANTHROPIC_API_KEY": _KEY,
        "RECOMPOSE_TASK": assignment.task,
        "RECOMPOSE_URL": assignment.url,
    }


def _mini_swe_agent(assignment: Assignment) -> ProgramLaunch:
    return ProgramLaunch(
        command=(
            "mini", "-t", assignment.task, "-y", "--exit-immediately", "-m", f"openai/{MODEL}",
            "-c", "mini.yaml", "-o", str(assignment.home / "trajectory.json"),
        ),
        env={
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_GLOBAL_CONFIG_DIR": str(assignment.home / "mswea"),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_TELEMETRY": "False",
        },
    )  # fmt: skip


def _claude_code(assignment: Assignment) -> ProgramLaunch:
    off = (
        "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "CLAUDE_CODE_DISABLE_BUNDLED_SKILLS",
        "CLAUDE_CODE_DISABLE_AUTO_MEMORY", "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS",
        "CLAUDE_CODE_DISABLE_THINKING",
    )  # fmt: skip
    return ProgramLaunch(
        command=(
            "claude", "-p", assignment.task, "--output-format", "stream-json", "--verbose",
            "--dangerously-skip-permissions", "--model", MODEL, "--tools", "Read,Edit,Write,Bash",
        ),
        env={
            **dict.fromkeys(off, "1"),
            "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
            # an unknown model would count as one of a million tokens
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(assignment.context_tokens),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(assignment.message_tokens),
            "IS_SANDBOX": "1",  # it refuses to skip permissions as root otherwise
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # else the system prompt holds a changing hash
        },
    )  # fmt: skip


def _codex(assignment: Assignment) -> ProgramLaunch:
    settings = (
        f'model = "{MODEL}"',
        'model_provider = "local"',
        'approval_policy = "never"',
        'sandbox_mode = "danger-full-access"',
        f"model_context_window = {assignment.context_tokens}",
        f"model_auto_compact_token_limit = {assignment.context_tokens * 4 // 5}",
        "[model_providers.local]",
        'name = "local"',
        f'base_url = "{assignment.url}/v1"',
        'env_key = "OPENAI_API_KEY"',
        'wire_api = "responses"',
        "[analytics]",
        "enabled = false",
        "[otel]",
        'exporter = "none"',
    )
    return ProgramLaunch(
        command=("codex", "exec", "--json", "--skip-git-repo-check", assignment.task),
        env={"CODEX_HOME": str(assignment.home / ".codex")},
        files={".codex/config.toml": "\n".join(settings) + "\n"},
    )


def _opencode(assignment: Assignment) -> ProgramLaunch:
    limit = {"context": assignment.context_tokens, "output": assignment.message_tokens}
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "model": f"local/{MODEL}",
        "small_model": f"local/{MODEL}",  # else it looks for a provider's own for the title
        "permission": {"edit": "allow", "bash": "allow"},
        "tools": dict.fromkeys(("task", "todowrite", "webfetch", "websearch", "skill"), False),
        "provider": {
            "local": {
                "npm": "@ai-sdk/openai-compatible",  # in its binary: nothing is fetched
                "name": "local",
                "options": {"baseURL": f"{assignment.url}/v1", "apiKey": _KEY},
                "models": {MODEL: {"name": MODEL, "limit": limit}},
            }
        },
    }
    off = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "CLAUDE_CODE")
    return ProgramLaunch(
        command=(
            "opencode", "run", "--model", f"local/{MODEL}", "--format", "json", assignment.task,
        ),
        env={
            "OPENCODE_CONFIG": str(assignment.home / "opencode.json"),
            **{f"OPENCODE_DISABLE_{name}": "1" for name in off},
        },
        files={"opencode.json": json.dumps(settings, indent=1)},
    )  # fmt: skip


PROGRAMS: Mapping[str, Callable[[Assignment], ProgramLaunch]] = {
    "mini-swe-agent": _mini_swe_agent,
    "claude-code": _claude_code,
    "codex": _codex,
    "opencode": _opencode,
}
"""Programs that have an adapter: how each is started with a task, the address, and a home."""


def launch_of(player: str, assignment: Assignment) -> ProgramLaunch:
    """How a player is started; `player` is a name of PROGRAMS or a command line.

    >>> assignment = Assignment(task="Fix it.", url="http://u", home=Path("h"))
    >>> launch_of("my-agent --do {task}", assignment).command
    ('my-agent', '--do', 'Fix it.')

    Raises ConfigError for an empty command line, one that cannot be split, or one word that is
    nearly the name of a program.
    """
    if player in PROGRAMS:
        launch = PROGRAMS[player](assignment)
    else:
        try:
            words = shlex.split(player)
        except ValueError as error:
            raise ConfigError(f"not a command line: {error}", where=player) from error
        if not words:
            raise ConfigError("no player", fix=f"one of {', '.join(PROGRAMS)}, or a command line")
        if len(words) == 1 and (near := did_you_mean(player, PROGRAMS)):
            raise ConfigError(f"no agent program is called {player!r}", fix=near)
        launch = ProgramLaunch(
            command=tuple(
                assignment.task if word == "{task}" else word.replace("{url}", assignment.url)
                for word in words
            )
        )
    return replace(launch, env={**base_env(assignment), **launch.env})
