"""Settings of live rollouts, of replay, and of evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from composer_replication.core.config.base import Settings
from composer_replication.core.config.teacher_settings import TeacherSettings

BUILT_IN_ENVS: Mapping[str, str] = MappingProxyType(
    {
        "workshop": "composer_replication.workshop.workshop_tasks:workshop_tasks",
        "repo": "composer_replication.repositories.playing.repo_source:repo_tasks",
    }
)
"""The environments that have a name of their own in `rollouts.env`, and the function behind each:
it is loaded like a function of the user's, and no module outside its package imports it."""
DEFAULT_ENV = next(iter(BUILT_IN_ENVS))
"""The environment whose unseen tasks `recompose evaluate` plays if a run was trained in none of the
user's."""


class ServerSettings(Settings):
    """An inference server that generates the student's messages and returns their token ids and
    log-probs, as vLLM and llama.cpp do."""

    url: str = ""
    """Base URL, e.g. http://127.0.0.1:8000/v1. The server reads everything that the student reads,
    so it must be your own."""
    model: str = ""
    """Name under which the student is served."""
    protocol: Literal["vllm", "llama.cpp"] = "vllm"
    """API of the server: vLLM's completions with token ids, or llama-server's `/completion`, which
    keeps the weights of its GGUF file (handover = "none")."""
    handover: Literal["reload", "adapter", "none"] = "reload"
    """How new weights reach the server: "reload" = vLLM's collective_rpc reload_weights; "adapter"
    = vLLM's load_lora_adapter; "none" = it keeps the weights from the start of the run."""
    weights_dir: str = ""
    """Folder through which weights are passed: the trainer writes it and the server reads it, under
    the same path."""
    timeout_s: float = Field(default=600.0, gt=0.0)
    """Time-out in seconds of one message, and of one weight sync."""
    requests: int = Field(default=32, gt=0)
    """Maximum concurrent requests."""
    max_gap: float = Field(default=0.1, gt=0.0)
    """Maximum mean difference, in nats, between the server's and the trainer's log-probs of a few
    tokens after a weight sync."""


class RepoSettings(Settings):
    """Tasks from your own repositories, written by `recompose tasks make` and played with Claude
    Code's tools. Used if rollouts.env = "repo"."""

    tasks: str = ""
    """Folder that contains tasks.jsonl; "" = `tasks` in the work folder."""
    turns: int = Field(default=40, gt=0)
    """Maximum messages per episode."""
    command_s: float = Field(default=60.0, gt=0.0)
    """Time-out of one command in seconds."""
    held_out: tuple[str, ...] = ()
    """Repositories whose tasks are never trained on; they are used by the monitor and the
    evaluation. Empty: `held_out_share` of them, chosen by a hash of the name."""
    held_out_share: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Share of repositories to hold out. With a single repository: share of its tasks."""
    replayed_only: bool = False
    """Use only tasks whose results are replayed outside of the player's interpreter, in training
    and in the evaluation: on the others, an object that decides what it equals can earn.
    `recompose tasks check` finds out which tasks are replayed."""
    floor: float = Field(default=0.02, gt=0.0, le=0.25)
    """Minimum sampling weight of a task. The weight is p(1 - p), where p is the student's own
    success rate."""
    compact_tokens: int = Field(default=0, ge=0)
    """Context length in tokens from which the student is asked for a summary; it continues with
    only the task and that summary. The summary is trained on, and every part gets the episode's
    reward. 0 = never. With an agent program (rollouts.player), that program decides."""
    program_s: float = Field(default=900.0, gt=0.0)
    """Time-out in seconds of an agent program (rollouts.player) for one episode."""
    program_folders: tuple[str, ...] = ()
    """Folders that the agent program needs besides its own installation. It sees them read-only,
    under the same path."""


class RolloutSettings(Settings):
    """The environment in which the student acts during training. Without one, `train` uses imported
    logs only."""

    env: str = ""
    """"" = no live rollouts; "workshop" = the built-in small coding environment; "repo" = tasks
    from your own repositories (docs/tasks.md); "path/to/file.py:function" or
    "package.module:function" = your own environment (docs/rollouts.md)."""
    player: str = ""
    """The agent program that plays the tasks of your repositories with the student's messages. "" =
    this program with Claude Code's tools; "claude-code", "codex", "opencode", "mini-swe-agent", or
    a command line with {task} and {url} = that program, in the sandbox (docs/tasks.md)."""
    groups: int = Field(default=8, gt=0)
    """Groups (tasks) per step."""
    group_size: int = Field(default=6, ge=2)
    """Rollouts per group. Their rewards are compared with one another."""
    extra_groups: int = Field(default=0, ge=0)
    """Maximum number of additional groups per step that replace flat ones (all rewards equal)."""
    hint_sites: int = Field(default=32, ge=0)
    """Maximum number of mistaken messages per step that go to the hint channel. If there are more,
    they are sampled and the others counted; with fewer, the channel weighs proportionally less."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Sampling temperature of the student. The recorded log-probs are the model's own, at
    temperature 1."""
    max_new_tokens: int = Field(default=64, gt=0)
    """Maximum length of a message in tokens."""
    max_context_tokens: int = Field(default=1024, gt=0)
    """Maximum length of an episode in tokens."""
    batch_episodes: int = Field(default=48, gt=0)
    """Episodes sampled together. Affects speed and memory only."""
    generator: Literal["local", "served"] = "local"
    """What generates the student's messages: this process ("local"), or the server of
    [rollouts.server] ("served")."""
    server: ServerSettings = ServerSettings()
    repo: RepoSettings = RepoSettings()
    refresh_every: int = Field(default=1, gt=0)
    """Steps between weight syncs to the server. The first step of every launch has one."""
    max_staleness: int = Field(default=1, ge=0)
    """Maximum age, in steps, of the weights that sampled a rollout. An older rollout is counted,
    not trained on."""
    overlap: int = Field(default=0, ge=0, le=1)
    """1 = sample a step's rollouts while the previous step trains, with weights that are one step
    older; 0 = sample before the step, with current weights."""
    max_turns: int = Field(default=0, ge=0)
    """Maximum messages per episode, in addition to the environment's own limit; 0 = only that
    limit."""
    max_sampled_tokens: int = Field(default=0, ge=0)
    """Maximum tokens that the student may sample in an episode; 0 = limited only by the context."""
    max_calls: int = Field(default=64, gt=0)
    """Maximum calls per message. Further calls are not executed and get an error as their
    result."""
    max_result_chars: int = Field(default=100_000, gt=0)
    """Maximum length of a tool result in characters. A longer one is truncated, with a note."""
    tool_timeout_s: float = Field(default=120.0, gt=0.0)
    """Time-out of one environment response in seconds, after which its episode is lost. The
    workshop has time-outs of its own."""
    tool_threads: int = Field(default=16, gt=0)
    """Environments that may respond concurrently, if they support it."""

    @field_validator("env")
    @classmethod
    def _env(cls, name: str) -> str:
        if name in ("", *BUILT_IN_ENVS) or ":" in name:
            return name
        built_in = " nor ".join(map(repr, BUILT_IN_ENVS))
        raise ValueError(
            f"{name!r} is neither {built_in} nor 'path/to/file.py:function' nor"
            " 'package.module:function'"
        )

    @model_validator(mode="after")
    def _generator(self) -> Self:
        server = self.server
        if self.player and self.env != "repo":
            raise ValueError("player is about tasks of your repositories: set env = 'repo'")
        if self.repo.compact_tokens and self.player:
            raise ValueError(
                "repo.compact_tokens is about this program's own player: an agent program compacts"
                " its context by itself; leave player or repo.compact_tokens out"
            )
        if self.repo.compact_tokens >= self.max_context_tokens:
            raise ValueError(
                f"repo.compact_tokens = {self.repo.compact_tokens} leaves no room for a summary in"
                f" max_context_tokens = {self.max_context_tokens}: lower it, or raise"
                " max_context_tokens"
            )
        if self.overlap and not self.env:
            raise ValueError("overlap is about live rollouts: set env, or overlap = 0")
        if self.overlap > self.max_staleness:
            raise ValueError(
                f"with overlap = {self.overlap} rollouts are {self.overlap} step old and"
                f" max_staleness = {self.max_staleness} would leave them out: raise max_staleness"
            )
        if self.generator == "local":
            if self.refresh_every != 1:
                raise ValueError(
                    "refresh_every is about a served generator: set generator = 'served', or"
                    " refresh_every = 1"
                )
            return self
        if (
            not server.url
            or not server.model
            or not (server.weights_dir or server.handover == "none")
        ):
            raise ValueError(
                "generator = 'served' needs server.url, server.model and, unless server.handover ="
                " 'none', server.weights_dir"
            )
        if server.protocol == "llama.cpp" and server.handover != "none":
            raise ValueError(
                "server.protocol = 'llama.cpp' needs server.handover = 'none': llama-server keeps"
                " the weights of its GGUF file"
            )
        oldest = self.refresh_every - 1 + self.overlap
        if server.handover != "none" and oldest > self.max_staleness:
            ahead = " and overlap = 1" if self.overlap else ""
            raise ValueError(
                f"with refresh_every = {self.refresh_every}{ahead} rollouts are up to {oldest}"
                f" steps old and max_staleness = {self.max_staleness} would leave them out: raise"
                " max_staleness or lower refresh_every"
            )
        return self


class ReplaySettings(Settings):
    """The teachers that are asked what they would have done, the turns and context they see, and
    the budget."""

    teachers: tuple[str, ...] = ("scripted",)
    """Teachers in the order in which they are asked: names of [replay.teacher.NAME] tables or of
    built-in teachers ("kimi", "glm", "deepseek", through OpenRouter). "scripted" = the workshop's
    three scripted players, which read its state and cost nothing."""
    teacher: dict[str, TeacherSettings] = Field(default_factory=dict)
    """Your own teachers, by name."""
    recorded: str = ""
    """Recorded answers (answers.jsonl of an earlier replay), used instead of asking teachers."""
    max_usd: float = Field(default=0.0, ge=0.0)
    """Budget in USD for all calls from this work folder, over all runs. Required unless every
    teacher is free."""
    steps: Literal["auto", "sites", "all"] = "auto"
    """Which messages to ask about. "sites" = the mistaken messages and `sampled_steps` others per
    session; "all" = every message; "auto" = "all" if every teacher is free, else "sites"."""
    sampled_steps: int = Field(default=4, ge=0)
    """Additional messages per session to ask about, chosen by hash; never one that follows an
    error. With need_evidence hardly any of them can become a pair, and the gate skips those that
    cannot."""
    gate: Literal["value", "none"] = "value"
    """"value" asks a paid teacher only while a pair is still possible: not about a message right
    after an error, and not if need_evidence requires evidence and there is none. After the first
    answer it goes on only if that answer differed from the student's message (by `tiers`) or was
    uncertain. "none" asks every teacher about every step."""
    min_confidence: float = Field(default=0.0, ge=0.0, le=1.0)
    """An answer whose mean token probability is lower counts as uncertain. For teachers with
    `logprobs`."""
    settled_after: int = Field(default=4, ge=0)
    """If the first teacher agreed with the student at this many sampled steps in a row, skip the
    session's other sampled steps, except those with evidence against them. 0 = never."""
    max_prompt_tokens: int = Field(default=32_000, gt=0)
    """Maximum prompt length in estimated tokens. A longer context is trimmed in the middle: its
    beginning and its last messages stay whole."""
    head_tokens: int = Field(default=4_000, gt=0)
    """Tokens to keep from the beginning of a trimmed context."""
    tail_tokens: int = Field(default=8_000, gt=0)
    """Tokens to keep from the end of a trimmed context: at least this many, at most twice as many.
    The cut advances in steps of this size, so most of the prompt stays the same from one step to
    the next and comes from the provider's cache."""
    max_answer_tokens: int = Field(default=1024, gt=0)
    """Maximum answer length in tokens."""
    temperature: float = Field(default=0.0, ge=0.0)
    """Sampling temperature of the answers; 0 = greedy."""
    timeout_s: float = Field(default=180.0, gt=0.0)
    """Time-out of one attempt in seconds. An attempt that times out may be billed and stays
    booked."""
    attempts: int = Field(default=6, gt=0)
    """Maximum attempts per answer, with growing pauses between them."""
    sessions_at_once: int = Field(default=16, gt=0)
    """Sessions processed concurrently. The steps of one session go to a teacher one at a time."""
    min_families: int = Field(default=3, ge=2)
    """Number of model families that must agree on an action for it to be preferred to the
    student's."""
    tiers: tuple[Literal["exact", "target", "intent", "judge"], ...] = Field(
        default=("exact",), min_length=1
    )
    """How agreement between answers is measured, from strict to loose. A looser tier is tried if
    the stricter ones find no agreement. "target" = the same kind of tool on the same file or
    program, "intent" = the same kind of step, "judge" = a model decides."""
    judge: str = ""
    """Teacher that decides whether two messages are equivalent, for the last of `tiers`. It gives
    no answers, shares no family with a teacher that does, and does not judge messages of its own
    family. Its calls count towards max_usd."""
    need_evidence: bool = True
    """Require more than agreement for a pair: the student's message must also have failed (an
    error, a human's rejection, a failed session), or an environment must measure that the other
    message gets further."""

    @model_validator(mode="after")
    def _prompt_has_room(self) -> Self:
        if self.head_tokens + 2 * self.tail_tokens > self.max_prompt_tokens:
            raise ValueError("max_prompt_tokens must hold head_tokens and twice tail_tokens")
        return self

    @field_validator("teachers")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("name at least one teacher")
        if twice := [name for number, name in enumerate(names) if name in names[:number]]:
            raise ValueError(f"{twice[0]!r} stands there twice: it would answer once")
        return names

    @model_validator(mode="after")
    def _a_judge_is_named_and_comes_last(self) -> Self:
        if ("judge" in self.tiers) != bool(self.judge):
            raise ValueError(
                "a judge needs both: tiers that end with 'judge', and judge = the name of a teacher"
            )
        if "judge" in self.tiers[:-1]:
            raise ValueError(
                "the judge comes last in tiers: it costs money, and the other tiers do not"
            )
        if self.judge and self.judge in self.teachers:
            raise ValueError(
                f"{self.judge!r} cannot judge its own answers: name a judge that is not among"
                " teachers"
            )
        return self


class EvaluateSettings(Settings):
    """How a student is evaluated: on held-out tasks, without hints. All intervals are 95 %
    intervals."""

    tasks: int = Field(default=192, gt=0)
    """Episodes per student, one per task. Short: --tasks 64."""
    split: Literal["heldout", "monitor", "words"] = "heldout"
    """"heldout" = other tasks and other tool sets; "words" = also file and value names that occur
    in no training task."""
    level: Literal[1, 2] = 1
    """Level of the student's habits. It only decides which notes are shown with the results."""
    targeted_kinds: tuple[str, ...] = ("unknown_tool", "bad_arguments")
    """Kinds of mistakes that the hints target. All other kinds are counted together."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature of the evaluated students; 0 = greedy."""
    samples: int = Field(default=2000, ge=200)
    """Bootstrap samples per interval."""
    workers: int = Field(default=1, gt=0)
    """Students evaluated in parallel, each in its own process. Does not change the numbers."""
    log_samples: int = Field(default=4, gt=0)
    """With --logs: messages that each student writes at every held-out site."""
    log_max_new_tokens: int = Field(default=256, gt=0)
    """With --logs: maximum length of a message in tokens. One that is cut off counts as
    undecided."""
