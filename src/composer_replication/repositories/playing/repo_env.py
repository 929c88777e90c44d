"""One episode on a repository's task: the agent's tools on a tree of its own, judged at the end.

    env = RepoEnv(task, playable, max_turns=40, command_s=60)
    opening = env.open()            # the statement, the tools
    reply = env.reply(turn)         # results of its calls; done after a message without one
    env.reward()                    # 1.0 if every test passes, the held-out ones too

Only changes to the task's files count, and only of a player that came to an end: whoever runs out
of messages earns nothing. A lost sandbox loses the episode.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from composer_replication.core.trace import (
    ENVIRONMENT,
    HACK_ATTEMPT,
    HARNESS,
    HUMAN,
    JUDGED,
    Text,
    ToolCall,
    Turn,
)
from composer_replication.repositories.playing.judged_reward import judged_reward
from composer_replication.repositories.playing.playable import EpisodeReward, PlayableTasks
from composer_replication.repositories.playing.player_tool_specs import AGENT_TOOLS
from composer_replication.repositories.playing.player_tools import AgentTools
from composer_replication.repositories.repo_task import RepoTask
from composer_replication.repositories.sandbox.episode_tree import EpisodeTree, TreeChanges
from composer_replication.repositories.sandbox.tree_sandbox_child import REPO
from composer_replication.repositories.task_language import language_named
from composer_replication.rollouts.envs.env import Opening, Remark, Reply, RunsIn

SYSTEM_TEXT = (
    f"You work in a repository of {{title}} at {REPO} with the tools. There is no network."
    " `{run_tests}` runs its tests. When the work is done, say so without a call."
)
Judge = Callable[..., EpisodeReward]


class RepoEnv:
    """One episode of one task; `spent_s` is the wall time by part: open, tools, judge."""

    runs_in: RunsIn = "any_thread"

    def __init__(
        self,
        task: RepoTask,
        playable: PlayableTasks,
        *,
        max_turns: int,
        command_s: float,
        judge: Judge = judged_reward,
    ) -> None:
        self.task, self.task_id, self.max_turns = task, task.id, max_turns
        self.spent_s = {"open": 0.0, "tools": 0.0, "judge": 0.0}
        self.calls: list[ToolCall] = []
        self.changes: TreeChanges | None = None
        self.earned = EpisodeReward(reward=0.0, reason="the player did not come to an end")
        self._playable, self._command_s, self._judge = playable, command_s, judge
        self._tree: EpisodeTree | None = None
        self._tools: AgentTools | None = None
        self._judged = False

    def open(self) -> Opening:
        """Open the tree; the system message, the statement, and the tools."""
        start = time.monotonic()
        self._tree = self._playable.open_tree(self.task)
        self._tools = AgentTools(self._tree, command_s=self._command_s)
        self.spent_s["open"] = time.monotonic() - start
        language = language_named(self.task.language)
        text = SYSTEM_TEXT.format(title=language.title, run_tests=language.run_tests)
        system = Turn(role="system", author=HARNESS, blocks=(Text(text),))
        request = Turn(role="user", author=HUMAN, blocks=(Text(self.task.statement),))
        return Opening(turns=(system, request), tools=AGENT_TOOLS)

    def reply(self, turn: Turn) -> Reply:
        """Carry out the calls of a message; one without a call ends the episode."""
        assert self._tools is not None and self._tree is not None
        if not turn.calls:
            self.changes = self._tree.changes()
            self._tree.close()
            return Reply(turns=(), done=True)
        start = time.monotonic()
        self.calls += turn.calls
        results = [self._tools.answer(call) for call in turn.calls]
        self.spent_s["tools"] += time.monotonic() - start
        return Reply(
            turns=tuple(Turn(role="tool", author=ENVIRONMENT, blocks=(r,)) for r in results),
            done=False,
        )

    @property
    def playable(self) -> PlayableTasks:
        """The tasks that this one is of."""
        return self._playable

    def end(self, changes: TreeChanges, calls: Sequence[ToolCall]) -> None:
        """Take what an agent program left, and the calls that it made, for the judge."""
        self.changes, self.calls = changes, list(calls)

    def reward(self) -> float:
        """1.0 or 0.0; judged once."""
        if self.changes is None or self._judged:
            return self.earned.reward
        start, self._judged = time.monotonic(), True
        self.earned = self._judge(
            self.task,
            self._playable.repository(self.task),
            changed=self.changes.texts,
            deleted=self.changes.deleted,
            calls=self.calls,
        )
        self.spent_s["judge"] = time.monotonic() - start
        return self.earned.reward

    def measures(self) -> Mapping[str, float]:
        """How many calls and failed calls there were; the changed files that count, and those that
        do not; what the hack monitor saw."""
        changed = set(self.changes.paths) if self.changes is not None else set[str]()
        inside = changed & set(self.task.paths)
        return {
            "calls": float(len(self.calls)),
            "failed_calls": float(self._tools.num_errors if self._tools else 0),
            "changed_files": float(len(inside)),
            "ignored_changes": float(len(changed - inside)),
            "finished": float(self.changes is not None),
            "hack_attempts": float(len(self.earned.attempts)),
        }

    def remarks(self) -> list[Remark]:
        """Why it earned nothing, and what the hack monitor saw."""
        tried: list[Remark] = [(HACK_ATTEMPT, text) for text in self.earned.attempts]
        return [*tried, (JUDGED, self.earned.reason)] if self.earned.reason else tried

    def close(self) -> None:
        """End everything that the player started."""
        if self._tree is not None:
            self._tree.close()
