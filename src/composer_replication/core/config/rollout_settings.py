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
    """A server that writes the student's messages and returns their token ids and log-probs, as
    vLLM and llama.cpp do."""

    url: str = ""
    """Its address, e.g. http://127.0.0.1:8000/v1; it reads everything that the student reads, so it
    must be your own."""
    model: str = ""
    """Name under which the student is served."""
    protocol: Literal["vllm", "llama.cpp"] = "vllm"
    """The kind of server: vLLM's completions with token ids, or llama-server's `/completion`, which
    keeps the weights of its GGUF file (handover = "none")."""
    handover: Literal["reload", "adapter", "none"] = "reload"
    """The way in which weights reach it: "reload" = vLLM's collective_rpc reload_weights, "adapter"
    = vLLM's load_lora_adapter; "none" = it keeps the weights at the start of the run."""
    weights_dir: str = ""
    """The folder that the server loads: the trainer writes it, the server reads it, under the same
    path."""
    timeout_s: float = Field(default=600.0, gt=0.0)
    """Seconds for one message, and for one hand-over of weights."""
    requests: int = Field(default=32, gt=0)
    """Messages that are requested at the same time."""
    max_gap: float = Field(default=0.1, gt=0.0)
    """The largest mean distance between the server's and the trainer's log-probs of a few tokens
    after a hand-over, in nats."""


class RepoSettings(Settings):
    """Tasks of your own repositories, as `recompose tasks make` wrote them, played with the tools
    of Claude Code; for rollouts.env = "repo"."""

    tasks: str = ""
    """The folder of tasks.jsonl; "" = `tasks` in the work folder."""
    turns: int = Field(default=40, gt=0)
    """Most messages of an episode."""
    command_s: float = Field(default=60.0, gt=0.0)
    """Seconds that one command may take."""
    held_out: tuple[str, ...] = ()
    """Repositories whose tasks are never trained on: they are the monitor's and the evaluation's.
    Without names, `held_out_share` of them, by a hash of the name."""
    held_out_share: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Share of the repositories that are held out; of a single repository, of its tasks."""
    floor: float = Field(default=0.02, gt=0.0, le=0.25)
    """The least weight of a task in the draw: it is p(1 - p), with the student's own success p."""
    compact_tokens: int = Field(default=0, ge=0)
    """Tokens of context from which on the student is asked for a summary; it goes on with the task
    and that summary alone. The summary is trained on, and the reward of the episode is that of each
    part. 0 = never; with an agent program (rollouts.player), that program decides."""
    program_s: float = Field(default=900.0, gt=0.0)
    """Seconds that an agent program (rollouts.player) may take for an episode."""
    program_folders: tuple[str, ...] = ()
    """Folders that the program needs beside its own installation; it sees them read-only, under
    the same path."""


class RolloutSettings(Settings):
    """The environment in which the student acts while it is trained; without one, `train` uses
    imported logs only."""

    env: str = ""
    """"" = no live rollouts; "workshop" = the built-in small coding environment; "repo" = tasks of
    your own repositories (docs/tasks.md);
    "path/to/file.py:function" or "package.module:function" = your own environment
    (docs/rollouts.md)."""
    player: str = ""
    """Who plays the tasks of your repositories with the student's messages: "" = this program with
    Claude Code's tools; "claude-code", "codex", "opencode", "mini-swe-agent", or a command line
    with {task} and {url} = that agent program, in the sandbox (docs/tasks.md)."""
    groups: int = Field(default=8, gt=0)
    """Tasks per step."""
    group_size: int = Field(default=6, ge=2)
    """Rollouts of each task; their rewards are compared with one another."""
    extra_groups: int = Field(default=0, ge=0)
    """At most this many further tasks replace groups whose rewards are all equal."""
    hint_sites: int = Field(default=32, ge=0)
    """At most this many mistaken messages of a step go to the hint channel; if there are more, they
    are sampled and the others counted. With fewer, the channel weighs less in proportion."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Temperature of the student's sampling. The log-probs that are kept are the model's
    own, at 1."""
    max_new_tokens: int = Field(default=64, gt=0)
    """Longest message."""
    max_context_tokens: int = Field(default=1024, gt=0)
    """Longest episode."""
    batch_episodes: int = Field(default=48, gt=0)
    """Episodes that are sampled together; speed and memory only."""
    generator: Literal["local", "served"] = "local"
    """Who writes the student's messages: this process, or the server of [rollouts.server]."""
    server: ServerSettings = ServerSettings()
    repo: RepoSettings = RepoSettings()
    refresh_every: int = Field(default=1, gt=0)
    """Steps between two hand-overs of weights to the server; the first step of every launch has
    one."""
    max_staleness: int = Field(default=1, ge=0)
    """A rollout of weights that are more than this many steps old is counted, not trained on."""
    overlap: int = Field(default=0, ge=0, le=1)
    """1 = the rollouts of a step are sampled while the step before trains, with weights that are
    one step older; 0 = before the step, with its own weights."""
    max_turns: int = Field(default=0, ge=0)
    """Most messages of an episode, in addition to the environment's own bound; 0 = only that."""
    max_sampled_tokens: int = Field(default=0, ge=0)
    """Most tokens that the student may write in an episode; 0 = no bound but the context's."""
    max_calls: int = Field(default=64, gt=0)
    """Most calls of one message; further calls are not executed and get an error as result."""
    max_result_chars: int = Field(default=100_000, gt=0)
    """Longest result of a tool; a longer one is cut, with a note."""
    tool_timeout_s: float = Field(default=120.0, gt=0.0)
    """Seconds an environment may take for one answer before its episode is lost; the workshop has
    time-outs of its own."""
    tool_threads: int = Field(default=16, gt=0)
    """Environments that answer at the same time, if they allow it."""

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
    """The teachers that are asked what they would have done, the steps and contexts they see, and
    the budget."""

    teachers: tuple[str, ...] = ("scripted",)
    """Names, in the order in which they are asked: of [replay.teacher.NAME] tables or of built-in
    teachers ("kimi", "glm", "deepseek", through OpenRouter). "scripted" = the workshop's three
    scripted players, which read its state and cost nothing."""
    teacher: dict[str, TeacherSettings] = Field(default_factory=dict)
    """Your own teachers, by name."""
    recorded: str = ""
    """A file of answers (answers.jsonl of an earlier replay) to use instead of asking teachers."""
    max_usd: float = Field(default=0.0, ge=0.0)
    """The most that all calls of this work folder may cost together, over all runs; required for a
    teacher that is not free."""
    steps: Literal["auto", "sites", "all"] = "auto"
    """"sites" = the mistaken messages and `sampled_steps` others of each session; "all" = every
    message; "auto" = "all" if every teacher is free, else "sites"."""
    sampled_steps: int = Field(default=4, ge=0)
    """Number of further messages of each session to ask about, drawn by hash; never one that
    follows an error. With need_evidence, hardly any of them can become a pair, and the gate leaves
    out those that cannot."""
    gate: Literal["value", "none"] = "value"
    """"value" = a paid teacher is asked only while a pair can still come of it: not about a message
    right after an error, and not if need_evidence requires evidence and there is none; after the
    first answer only if that differed from the student's message (by `tiers`) or was uncertain.
    "none" = every teacher is asked about every step."""
    min_confidence: float = Field(default=0.0, ge=0.0, le=1.0)
    """An answer whose tokens have a lower mean probability is uncertain; for teachers with
    `logprobs`."""
    settled_after: int = Field(default=4, ge=0)
    """If the first teacher did what the student did at this many sampled steps in a row, the
    session's other sampled steps are left out, except those with evidence against them; 0 =
    never."""
    max_prompt_tokens: int = Field(default=32_000, gt=0)
    """Longest prompt, by estimate; a longer context is trimmed: its beginning and its last messages
    stay whole."""
    head_tokens: int = Field(default=4_000, gt=0)
    """Tokens of the beginning that a trimmed context keeps."""
    tail_tokens: int = Field(default=8_000, gt=0)
    """Tokens of the end that a trimmed context keeps: at least this many, at most twice as many.
    The cut moves in steps of this size, so that most of the prompt is the same from one step to the
    next and comes from the provider's cache."""
    max_answer_tokens: int = Field(default=1024, gt=0)
    """Longest answer."""
    temperature: float = Field(default=0.0, ge=0.0)
    """Temperature of the answers; 0 = the likeliest."""
    timeout_s: float = Field(default=180.0, gt=0.0)
    """Seconds that an attempt may take; one that takes longer may be billed and stays booked."""
    attempts: int = Field(default=6, gt=0)
    """Attempts at an answer, with growing pauses between them."""
    sessions_at_once: int = Field(default=16, gt=0)
    """Sessions asked about at the same time; the steps of one session go to a teacher one after the
    other."""
    min_families: int = Field(default=3, ge=2)
    """Number of model families that must agree on an action before it is preferred to the
    student's."""
    tiers: tuple[Literal["exact", "target", "intent", "judge"], ...] = Field(
        default=("exact",), min_length=1
    )
    """The measures of agreement between answers, from strict to loose; a looser tier is tried if
    the stricter ones find no agreement. "target" = the same kind of tool on the same file or
    program, "intent" = the same kind of step, "judge" = a model decides."""
    judge: str = ""
    """The teacher that judges whether two messages amount to the same, for the last of `tiers`. It
    gives no answers, shares no family with a teacher that does, and does not judge messages of its
    own family. Its calls count towards max_usd."""
    need_evidence: bool = True
    """Agreement alone makes no pair: the student's message must also have failed (an error, a
    human's rejection, a failed session), or an environment must measure that the other message
    leads further."""

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
    """The evaluation of a student: on held-out tasks, without any hint. All intervals are 95 %
    intervals."""

    tasks: int = Field(default=192, gt=0)
    """Episodes of each student, one per task."""
    split: Literal["heldout", "monitor", "words"] = "heldout"
    """"heldout" = other tasks and other tool sets; "words" = also file and value names that occur
    in no training task."""
    level: Literal[1, 2] = 1
    """Level of the student's habits; it only decides the notes beside the results."""
    targeted_kinds: tuple[str, ...] = ("unknown_tool", "bad_arguments")
    """Kinds of mistakes that the hints are about; all other kinds are counted together."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Temperature of the students that are played; 0 = the likeliest token."""
    samples: int = Field(default=2000, ge=200)
    """Bootstrap samples of an interval."""
    workers: int = Field(default=1, gt=0)
    """Students that are played at the same time, each in a process of its own; the numbers do not
    depend on it."""
    log_samples: int = Field(default=4, gt=0)
    """With --logs: messages that each student writes at every held-out site."""
    log_max_new_tokens: int = Field(default=256, gt=0)
    """With --logs: longest message; one that is cut off is undecided."""
