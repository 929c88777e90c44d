"""A teacher on this machine: any causal LM of transformers, asked through its own chat template.

    settings = TeacherSettings(kind="local", model="./qwen-coder", family="alibaba")
    teacher = LocalTeacher("mine", settings)
    reply = await teacher.ask(request)

The sampler lets the model write one message, with the same rendering and parsing as for the
student. Weights are loaded when it is first asked. It costs nothing but time, one message at a
time; its answers are stored like bought ones.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.errors import ComposerError, ConfigError, TeacherError
from composer_replication.core.jsonl import dumps
from composer_replication.core.teacher import FreeTeacher, Request, TeacherReply, Usage
from composer_replication.core.trace import Block, Opaque, ToolCall, Turn
from composer_replication.models.load_student import load_student
from composer_replication.rollouts.chat_format import CUT, MALFORMED
from composer_replication.rollouts.envs.env import Opening
from composer_replication.rollouts.envs.env import Reply as Heard
from composer_replication.rollouts.sampler import sample_rollouts
from composer_replication.rollouts.sampling import EpisodeLimits, Sampling
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer


@dataclass(slots=True)
class _PromptEnv:
    """An environment that shows one prompt, takes one message and ends."""

    task_id: str
    request: Request
    max_turns: int = 1

    def open(self) -> Opening:
        return Opening(turns=self.request.turns, tools=self.request.tools)

    def reply(self, turn: Turn) -> Heard:
        return Heard(turns=(), done=True)

    def reward(self) -> float:
        return 0.0

    def measures(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is held."""


class LocalTeacher(FreeTeacher):
    """See the module's docstring.

    Raises ConfigError, when it is first asked, for a model or template that cannot be used.
    """

    provider = "local"

    def __init__(self, name: str, settings: TeacherSettings) -> None:
        self.name, self.family, self.settings = name, settings.family, settings
        self._loaded: tuple[Any, Renderer] | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        """The model by name; a folder whose weights change needs another name."""
        return {"kind": "local", "model": self.settings.model}

    async def ask(self, request: Request) -> TeacherReply:
        """One message of the model.

        Raises TeacherError if the prompt cannot be rendered or does not fit.
        """
        if request.schema is not None:
            raise TeacherError(
                "a local model cannot be held to a schema",
                where=self.name,
                again=False,
                billed=False,
            )
        model, renderer = self._load()
        try:
            prompt = renderer.render(request.turns, tools=request.tools).ids
            settings = self._sampling(model, request, num_prompt_tokens=len(prompt))
            rollout = sample_rollouts(
                model,
                [_PromptEnv(prompt_name(request), request)],
                renderer=renderer,
                settings=settings,
                author=self.settings.model,
            )[0]
        except ConfigError:
            raise
        except ComposerError as error:  # a template that refuses these messages
            raise TeacherError(
                error.what,
                where=f"{self.name}, {request.about}",
                fix=error.fix,
                again=False,
                billed=False,
            ) from error
        sampled_turns = [turn for turn in rollout.session.turns if turn.sampled is not None]
        if not sampled_turns:
            raise TeacherError(
                f"no message was written ({rollout.ended})",
                where=self.name,
                again=False,
                billed=False,
            )
        return _reply(sampled_turns[-1], request, num_prompt_tokens=len(prompt))

    def _load(self) -> tuple[Any, Renderer]:
        if self._loaded is None:
            tokenizer = load_tokenizer(self.settings.model)
            student = load_student(
                StudentSettings(model=self.settings.model), tokenizer=tokenizer, seed=0
            )
            device = "cuda" if torch.cuda.is_available() else "cpu"
            self._loaded = student.model.to(device).eval(), Renderer.for_tokenizer(tokenizer)
        return self._loaded

    def _sampling(self, model: Any, request: Request, *, num_prompt_tokens: int) -> Sampling:
        max_positions = getattr(model.config, "max_position_embeddings", None)
        room = num_prompt_tokens + request.max_tokens + 16  # the generation prompt
        if isinstance(max_positions, int) and room > max_positions:
            problem = (
                f"the prompt of {num_prompt_tokens} tokens and an answer of {request.max_tokens}"
                f" are more than the model's {max_positions}"
            )
            fix = "lower replay.max_prompt_tokens"
            raise TeacherError(problem, where=self.name, fix=fix, again=False, billed=False)
        seed = int(hashlib.sha256(prompt_name(request).encode()).hexdigest()[:8], 16)
        limits = EpisodeLimits(max_calls=1000)
        return Sampling(
            temperature=request.temperature,
            max_new_tokens=request.max_tokens,
            max_context_tokens=room,
            seed=seed,
            limits=limits,
        )


def prompt_name(request: Request) -> str:
    """A name for one draw, so that k votes draw from k streams."""
    return f"{request.about or 'request'}#{request.sample}"


def _reply(turn: Turn, request: Request, *, num_prompt_tokens: int) -> TeacherReply:
    """The message as a teacher's answer.

    A call that cannot be read stays as it was written, as with an endpoint.
    """
    sampled = turn.sampled
    assert sampled is not None
    offered_tools = {tool.name for tool in request.tools}
    blocks: list[Block] = []
    problem = "cut_off" if turn.tag == CUT else ""
    for block in turn.blocks:
        if isinstance(block, ToolCall) and block.name == MALFORMED:
            blocks.append(Opaque("tool_call", dumps(block.arguments)))
            problem = problem or "bad_arguments"
        else:
            blocks.append(block)
            if isinstance(block, ToolCall) and block.name not in offered_tools:
                problem = problem or "unknown_tool"
    logprobs = sampled.logprobs
    return TeacherReply(
        turn=replace(turn, blocks=tuple(blocks), sampled=None, tag="", context_tokens=0),
        usage=Usage(input_tokens=num_prompt_tokens, output_tokens=len(sampled.ids), usd=0.0),
        problem=problem or ("" if blocks else "empty"),
        provider="local",
        confidence=math.exp(sum(logprobs) / len(logprobs)) if logprobs else None,
    )
