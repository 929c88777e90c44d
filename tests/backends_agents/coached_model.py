"""A real model at the sampler, coached: what it writes is drawn token by token from its own
distribution, but its calls are those of a menu.

    coach = Coach(tokenizer, plans=[Plan(text=8, menu=[[LOOK, LIST], [LIST, LOOK]]), Plan(text=24)])
    coach.install(monkeypatch)

A model of 135M parameters calls no tool by itself, and a call that it did invent would run on this
machine. So a message is up to `text` free tokens, and then one of the menu's lists of calls: where
these differ, the model decides. The log-prob that is kept is the model's own, without the mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from composer_replication.core.trace import HUMAN, Text, Turn
from composer_replication.rollouts import choose
from composer_replication.rollouts.served import Completion
from composer_replication.serve.student_writers import LocalWriter, MessagePrompt
from composer_replication.tokens.renderer import Renderer
from tests.serve.clients import message

Call = tuple[str, dict[str, Any]]
MARKUP = "<"  # of a message's end and of its calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One message: how many free tokens at most, and the calls that may follow; without a menu, the
    text ends when the model ends it, or then."""

    text: int
    menu: Sequence[Sequence[Call]] = ()


SUMMARY = Plan(text=40)


@dataclass(slots=True)
class Drawn:
    """One message as the sampler drew it, and what the model had read."""

    prompt: tuple[int, ...]
    is_summary: bool
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Coach:
    """Says which tokens may come next, and keeps what was drawn.

    `plans` are for the messages in order. A request whose last message of a user has `compacts` in
    it asks for a summary, which is free text.
    """

    def __init__(self, renderer: Renderer, *, plans: Sequence[Plan], compacts: str = "") -> None:
        self.renderer, self.plans, self.compacts = renderer, plans, compacts
        self.drawn: list[Drawn] = []
        self.end = renderer.end_ids[0]
        tokenizer = renderer.tokenizer
        self.words = [  # no mark-up: neither an end nor the beginning of a call
            token
            for token in range(len(tokenizer))
            if token not in tokenizer.all_special_ids and MARKUP not in tokenizer.decode([token])
        ]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stand between the writer of this process and its sampler."""
        write, sample = LocalWriter.write, choose.sample_tokens

        def coached_write(writer: LocalWriter, prompt: MessagePrompt) -> Completion:
            asked = self.renderer.tokenizer.decode(prompt.ids).rpartition("<|im_start|>user")[2]
            is_summary = bool(self.compacts) and self.compacts in asked
            self.drawn.append(Drawn(prompt.ids, is_summary))
            return write(writer, prompt)

        def coached_sample(logits_BV: torch.Tensor, **options: Any) -> choose.Chosen:
            allowed = self._allowed(self.drawn[-1])
            mask_V = torch.full_like(logits_BV[0], -torch.inf)
            mask_V[allowed] = 0.0
            (token,) = sample(logits_BV + mask_V, **options).tokens
            logprob = float(logits_BV[0].log_softmax(-1)[token])
            self.drawn[-1].ids.append(token)
            self.drawn[-1].logprobs.append(logprob)
            return choose.Chosen([token], [logprob])

        monkeypatch.setattr(LocalWriter, "write", coached_write)
        monkeypatch.setattr(choose, "sample_tokens", coached_sample)

    def _allowed(self, drawn: Drawn) -> list[int]:
        """The tokens that may follow those of a message."""
        number = sum(not d.is_summary for d in self.drawn) - 1
        plan = SUMMARY if drawn.is_summary else self.plans[min(number, len(self.plans) - 1)]
        done = len(drawn.ids)
        if done < plan.text:
            return self.words if plan.menu or not done else [*self.words, self.end]
        if not plan.menu:
            return [self.end]
        behind = drawn.ids[plan.text :]
        return [ids[len(behind)] for ids in self._menu(plan) if ids[: len(behind)] == behind]

    def _menu(self, plan: Plan) -> Iterator[list[int]]:
        """The ids of each list of calls, up to the end of the message."""
        ask = Turn(role="user", author=HUMAN, blocks=(Text("x"),))
        for calls in plan.menu:
            _, ids = self.renderer.reply([ask], message("x" if plan.text else "", *calls))
            yield list(ids[1:] if plan.text else ids)
