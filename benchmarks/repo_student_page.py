"""What a student's episodes on repositories show besides the reward, and their table in
docs/tasks.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.core.trace import Session, ToolCall, ToolResult
from composer_replication.repositories.playing.player_tool_specs import AGENT_TOOLS
from composer_replication.repositories.repo_task import RepoTask
from composer_replication.repositories.sandbox.tree_sandbox_child import REPO

BEGIN, END = "<!-- student -->", "<!-- /student -->"
STEPS = {
    "opened": "opened the right file",
    "searched": "searched for the right name",
    "edited": "changed the right file",
    "tested": "ran the task's tests",
}
"""What a solution does on the way, as the table heads it."""
_TOOLS = frozenset(spec.name for spec in AGENT_TOOLS)


def behaviours(sessions: Sequence[Session], tasks: Mapping[str, RepoTask]) -> dict[str, float]:
    """The share of episodes in which each step of a solution was made and succeeded, and the share
    of calls that can be read and name a tool."""
    made = [_steps(session, tasks[session.source.file]) for session in sessions]
    calls = [call for session in sessions for turn in session.turns for call in turn.calls]
    known = sum(call.name in _TOOLS for call in calls)
    shares = {name: sum(name in steps for steps in made) / len(made) for name in STEPS}
    return {**shares, "readable_calls": known / len(calls) if calls else 0.0}


def _steps(session: Session, task: RepoTask) -> set[str]:
    blocks = [block for turn in session.turns for block in turn.blocks]
    failed = {b.call_id for b in blocks if isinstance(b, ToolResult) and b.is_error}
    name = task.symbol.rpartition(".")[2]
    shown = [test.partition("[")[0] for test in task.must_pass if test not in task.held_out]
    places = {f"{REPO}/{path}" for path in task.paths}
    steps: set[str] = set()
    for call in blocks:
        if not isinstance(call, ToolCall):
            continue
        arguments, good = call.arguments, call.id not in failed
        if call.name == "Bash" and any(t in str(arguments.get("command")) for t in shown):
            steps.add("tested")  # tests that fail are an error of the call
        elif call.name == "Grep" and good and name in str(arguments.get("pattern")):
            steps.add("searched")
        elif good and arguments.get("file_path") in places:
            steps |= {"Read": {"opened"}, "Edit": {"edited"}, "Write": {"edited"}}.get(
                call.name, set()
            )
    return steps


def render(results: Mapping[str, Any]) -> str:
    """The table of docs/tasks.md."""
    lines = [
        f"| player | episodes | earned | parsable calls | {' | '.join(STEPS.values())}"
        " | finished |",
        "|---|---|---|---|" + "---|" * (len(STEPS) + 1),
    ]
    for row in results["rows"]:
        shares = " | ".join(f"{row[name]:.0%}" for name in STEPS)
        lines.append(
            f"| {row['name']} | {row['n']} |"
            f" {row['success']:.0%} [{row['success_low']:.0%}, {row['success_high']:.0%}] |"
            f" {row['readable_calls']:.0%} | {shares} | {row['finished']:.0%} |"
        )
    warmup, split = results["warmup"], results["split"]
    first, last = warmup["held_out_loss"]
    practice = ", ".join(
        f"{name} {row['passed']} of {row['played']}"
        for name, row in results["training_tasks"].items()
    )
    lines += [
        "",
        f"{warmup['parameters'] / 1e6:.1f}M parameters; {warmup['demonstrations']} demonstrations"
        f" of {len(split['training'])} repositories, {warmup['steps']} steps of warm-up. The loss"
        f" on the {split['tasks']} held-out solutions ({', '.join(split['held_out'])}) fell from"
        f" {first:.2f} to {last:.2f} (on the training solutions: {warmup['training_loss'][1]:.2f})."
        f" Then {results['steps']} training steps. Earned on training tasks meanwhile: {practice}."
        f" {split['fit']} of {split['wanted']} tasks fit into the context.",
    ]
    shares = [
        f"{name} {before:.0%} -> {after:.0%}"
        for name, (before, after) in results["right_tokens"].items()
    ]
    lines += [
        "",
        "Share of the held-out solutions' tokens that are its most likely next token (teacher"
        f" forcing), before and after warm-up, by message: {', '.join(shares)}.",
    ]
    return "\n".join(lines)
