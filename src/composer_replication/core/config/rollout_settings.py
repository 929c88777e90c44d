"""Settings of live rollouts, of replay, and of evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from composer_replication.core.config.base import Settings
from composer_replication.core.config.teacher_settings import TeacherSettings

BUILT_IN_ENVS: Mapping[str, str] = MappingProxyType(
    {"workshop": "composer_replication.workshop.workshop_tasks:workshop_tasks"}
)
"""The environments that have a name of their own in `rollouts.env`, and the function behind each:
it is loaded like a function of the user's, and no module outside its package imports it."""
EVALUATED_ENV = "workshop"
"""The environment whose unseen tasks `recompose evaluate` plays, whatever a run was trained in."""


class ServerSettings(Settings):
    """A server that writes the student's messages: OpenAI-compatible, and returning token ids and
    log-probs (vLLM does)."""

    url: str = ""
    """Where it answers, e.g. http://127.0.0.1:8000/v1; it reads all that the student reads, so it
    must be your own."""
    model: str = ""
    """Name under which the student is served."""
    handover: Literal["reload", "adapter", "none"] = "reload"
    """How weights reach it: "reload" = vLLM's collective_rpc reload_weights, "adapter" = vLLM's
    load_lora_adapter; "none" = it keeps those of the run's start."""
    weights_dir: str = ""
    """The folder that the server loads: the trainer writes it, the server reads it, under the same
    path."""
    timeout_s: float = Field(default=600.0, gt=0.0)
    """Seconds for one message, and for one hand-over."""
    requests: int = Field(default=32, gt=0)
    """Messages that are asked for at the same time."""
    max_gap: float = Field(default=0.1, gt=0.0)
    """After a hand-over: largest mean distance between the server's and the trainer's log-probs of
    a few tokens, in nats."""


class RolloutSettings(Settings):
    """Where the student acts while it is trained: without an environment, train uses imported logs
    only."""

    env: str = ""
    """"" = no live rollouts; "workshop" = the small coding environment that is built in;
    "path/to/file.py:function" or "package.module:function" = an environment of your own
    (docs/rollouts.md)."""
    groups: int = Field(default=8, gt=0)
    """Tasks per step."""
    group_size: int = Field(default=6, ge=2)
    """Rollouts of each task; their rewards are compared with one another."""
    extra_groups: int = Field(default=0, ge=0)
    """At most so many further tasks replace groups whose rewards are all equal."""
    hint_sites: int = Field(default=32, ge=0)
    """At most so many mistaken messages of a step go to the hint channel; more are drawn from, and
    counted. With fewer the channel weighs less in proportion."""
    temperature: float = Field(default=1.0, gt=0.0)
    max_new_tokens: int = Field(default=64, gt=0)
    """Longest message."""
    max_context_tokens: int = Field(default=1024, gt=0)
    """Longest episode."""
    batch_episodes: int = Field(default=48, gt=0)
    """Episodes that are sampled together; speed and memory only."""
    generator: Literal["local", "served"] = "local"
    """Who writes the student's messages: this process, or the server of [rollouts.server]."""
    server: ServerSettings = ServerSettings()
    refresh_every: int = Field(default=1, gt=0)
    """Steps between two hand-overs of weights to the server; the first step of every launch has
    one."""
    max_staleness: int = Field(default=1, ge=0)
    """A rollout of weights that are more steps old than this is not trained on; it is counted."""
    max_turns: int = Field(default=0, ge=0)
    """Most messages of an episode, beside the environment's own bound; 0 = only that."""
    max_sampled_tokens: int = Field(default=0, ge=0)
    """Most tokens that the student may write in an episode; 0 = no bound but the context's."""
    max_calls: int = Field(default=64, gt=0)
    """Most calls of one message; those beyond are not carried out and answered with an error."""
    max_result_chars: int = Field(default=100_000, gt=0)
    """Longest result of a tool; a longer one is cut and says so."""
    tool_timeout_s: float = Field(default=120.0, gt=0.0)
    """Seconds an environment may take for one answer before its episode is lost; the workshop has
    time-outs of its own."""
    tool_threads: int = Field(default=16, gt=0)
    """Environments that answer at the same time, where they allow it."""

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
        if server.handover != "none" and self.refresh_every - 1 > self.max_staleness:
            raise ValueError(
                f"with refresh_every = {self.refresh_every} rollouts are up to"
                f" {self.refresh_every - 1} steps old and max_staleness = {self.max_staleness}"
                " would leave them out: raise max_staleness or lower refresh_every"
            )
        return self


class ReplaySettings(Settings):
    """Who is asked what it would have done, about which steps, for how much at most, and what it is
    shown."""

    teachers: tuple[str, ...] = ("scripted",)
    """Names in the order of asking: of [replay.teacher.NAME] tables or of built-in ones ("kimi",
    "glm", "deepseek", through OpenRouter). "scripted" = the three players of the workshop, who look
    into its state and cost nothing."""
    teacher: dict[str, TeacherSettings] = Field(default_factory=dict)
    """Teachers of your own, by name."""
    recorded: str = ""
    """A file of answers (answers.jsonl of an earlier replay) to take instead of asking anybody."""
    max_usd: float = Field(default=0.0, ge=0.0)
    """The most that all calls of this work folder together may cost, over all runs; a teacher that
    is not free needs one."""
    steps: Literal["auto", "sites", "all"] = "auto"
    """"sites" = the mistaken messages and sampled_steps others of each session; "auto" = that, but
    all where every teacher is free."""
    sampled_steps: int = Field(default=4, ge=0)
    """So many further messages of each session are asked about, drawn by hash; never one that
    follows an error. With need_evidence hardly any of them can become a pair, and the gate leaves
    those out."""
    gate: Literal["value", "none"] = "value"
    """"value" = a paid teacher is asked only while a pair can still come of it: not about a message
    right after an error, nor where need_evidence asks for evidence and there is none; after the
    first answer only where that did something else than the student or was uncertain, by the tiers
    below. "none" = everybody is asked about every step."""
    min_confidence: float = Field(default=0.0, ge=0.0, le=1.0)
    """An answer whose tokens have a lower mean probability is uncertain; for teachers with
    `logprobs`."""
    settled_after: int = Field(default=4, ge=0)
    """When the first teacher did what the student did at so many sampled steps in a row, the
    session's other sampled steps are left out, but for those against which something speaks; 0 =
    never."""
    max_prompt_tokens: int = Field(default=32_000, gt=0)
    """Longest prompt, by estimate; a longer context is trimmed: its beginning and its last messages
    stay whole."""
    head_tokens: int = Field(default=4_000, gt=0)
    """Of a trimmed context, so much of the beginning stays."""
    tail_tokens: int = Field(default=8_000, gt=0)
    """Of a trimmed context, at least so much of the end stays whole, and at most twice as much: the
    border moves in steps of this size, so that most of the prompt is the same from one step to the
    next and comes from the provider's cache."""
    max_answer_tokens: int = Field(default=1024, gt=0)
    """Longest answer."""
    temperature: float = Field(default=0.0, ge=0.0)
    timeout_s: float = Field(default=180.0, gt=0.0)
    """Seconds that an attempt may take; one that took longer may be billed and stays booked."""
    attempts: int = Field(default=6, gt=0)
    """Attempts at an answer, with growing pauses between them."""
    sessions_at_once: int = Field(default=16, gt=0)
    """Sessions asked about at the same time; the steps of one session go to a teacher one after the
    other."""
    min_families: int = Field(default=3, ge=2)
    """So many model families must give the same action before it is preferred to the student's."""
    tiers: tuple[Literal["exact", "target", "intent", "judge"], ...] = Field(
        default=("exact",), min_length=1
    )
    """How alike answers have to be, from strict to loose; a looser tier is looked at where the
    stricter ones gave nothing. "target" = the same kind of tool on the same file or program,
    "intent" = the same sort of step, "judge" = a model says so."""
    judge: str = ""
    """The teacher that judges whether two messages amount to the same, for the last of `tiers`; it
    does not answer itself, is of no family that does, and has no say over messages of its own
    family. Its calls count under max_usd."""
    need_evidence: bool = True
    """Agreement alone makes no pair: the student's message must have failed (an error of its
    own, a human's refusal, a failed end), or an environment must measure that the other one
    leads further."""

    @model_validator(mode="after")
    def _there_is_room(self) -> Self:
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
    """How a student is measured: on tasks that no training saw, without any hint. All intervals are
    95 % intervals."""

    tasks: int = Field(default=192, gt=0)
    """Episodes of each student, one per task."""
    split: Literal["heldout", "monitor", "words"] = "heldout"
    """"heldout" = other tasks and other tool sets; "words" = also file and value names that stand
    in no training task."""
    level: Literal[1, 2] = 1
    """Level of the student's habits: decides the words that stand beside the results, nothing
    else."""
    targeted_kinds: tuple[str, ...] = ("unknown_tool", "bad_arguments")
    """Kinds of mistakes that hints spoke about; every other kind counts among the other
    mistakes."""
    temperature: float = Field(default=1.0, ge=0.0)
    samples: int = Field(default=2000, ge=200)
    """Bootstrap samples of an interval."""
    workers: int = Field(default=1, gt=0)
    """Students that are played at the same time, each in a process of its own; the numbers do not
    depend on it."""
    log_samples: int = Field(default=4, gt=0)
    """With --logs: messages that each student writes at every held-out site."""
    log_max_new_tokens: int = Field(default=256, gt=0)
    """With --logs: longest message; one that is cut off is undecided."""
