"""A server that samples the student's messages: how it gets the weights, which version it holds,
and a check that it holds them.

    generator = Generator.of(config.rollouts, lora=False, ranks=1)  # None: sampling in this process
    model = generator.writer(student, step=12, note=run_logger.event)
    model.version                       # 12, or an older one between two hand-overs

A hand-over has three parts: the weights are written into `rollouts.server.weights_dir`, the server
loads them, and a few tokens that it samples are scored here. That reveals a server that holds other
weights, or whose log-probs are of another kind.

    reload     POST /collective_rpc {"method": "reload_weights"}, then POST /reset_prefix_cache:
               vLLM, started on that very folder with VLLM_SERVER_DEV_MODE=1 (both addresses are
               beside /v1, not below it)
    adapter    POST /v1/load_lora_adapter {"lora_name", "lora_path", "load_inplace": true}: vLLM
               with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, for a LoRA student; the
               server's base model must be the student's
    none       nothing: the server keeps the weights of the run's start, version 0

The requests are those of vLLM's documentation (features: sleep mode, LoRA adapters). They were
tested against a small server with the same interface, not against vLLM itself. If a hand-over
fails, the server keeps its older version: its rollouts carry that version, and
rollouts.max_staleness leaves out those that are too old. Only the first hand-over of a launch must
succeed.
"""

from __future__ import annotations

import http.client
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import torch

from composer_replication.core.config.rollout_settings import RolloutSettings
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.losses.policy import token_logprobs
from composer_replication.models.forward import final_hidden, predictors, project, scoring
from composer_replication.models.load_student import Student
from composer_replication.models.pretrained_folder import save_student
from composer_replication.rollouts.served import Completion, GenerationRequest, ServedModel, post

# any ids will do, as long as the server and the trainer agree on their log-probs
_PROBE = tuple(range(1, 9))
_PROBE_TOKENS = 16
_PART = ".part"


@dataclass(slots=True, kw_only=True)
class Generator:
    """The server of a run; `version` is the number of steps that its weights have taken, -1 =
    nothing was handed over yet."""

    settings: RolloutSettings
    version: int = -1

    @classmethod
    def of(cls, settings: RolloutSettings, *, lora: bool, ranks: int) -> Self | None:
        """The generator of these settings, None for the local one; raises ConfigError if a server
        cannot serve this run."""
        if settings.generator == "local":
            return None
        if ranks > 1:
            problem = "several ranks would each get other messages from a server"
            raise ConfigError(
                problem,
                where="rollouts.generator",
                fix="train on one rank, or set rollouts.generator = local",
            )
        handover = settings.server.handover
        if handover != "none" and lora != (handover == "adapter"):
            student, fix = (
                ("a LoRA student", "adapter") if lora else ("a student without LoRA", "reload")
            )
            raise ConfigError(
                f"handover {handover!r} is not for {student}",
                where="rollouts.server.handover",
                fix=f"set it to {fix!r}",
            )
        return cls(settings=settings)

    def writer(self, student: Student, *, step: int, note: Callable[..., None]) -> ServedModel:
        """The served student for the rollouts of one step, after a hand-over if one is due.

        `note(kind, **facts)` is called for a hand-over. Raises DataError if the first one of a
        launch fails, or if the server's log-probs are not those of the weights it should hold.
        """
        is_due = self.version < 0 or step % self.settings.refresh_every == 0
        if is_due and self.version != step:  # rollouts begun ahead are of the same weights
            self._hand_over(student, step=step, note=note)
        return self._model()

    def _model(self) -> ServedModel:
        server = self.settings.server
        return ServedModel(
            url=server.url,
            model=server.model,
            version=self.version,
            protocol=server.protocol,
            timeout_s=server.timeout_s,
            num_requests=server.requests,
        )

    def _hand_over(self, student: Student, *, step: int, note: Callable[..., None]) -> None:
        server = self.settings.server
        if server.handover == "none":
            if self.version < 0 and step == 0:
                note("handover", step=step, version=0, gap=self._checked_gap(student))
            self.version = 0
            return
        try:
            publish(student, Path(server.weights_dir))
            self._load_weights()
        except (OSError, http.client.HTTPException) as error:
            problem = f"the server did not take the weights: {type(error).__name__}: {error}"
            if self.version < 0:
                fix = "start it as docs/rollouts.md says, and resume the run"
                raise DataError(problem, where=server.url, fix=fix) from error
            note("handover_failed", step=step, version=self.version, reason=problem)
            return
        gap = self._checked_gap(student)
        self.version = step
        note("handover", step=step, version=step, gap=gap)

    def _load_weights(self) -> None:
        """Make the server load the weights that `publish` wrote."""
        server = self.settings.server
        if server.handover == "adapter":
            url, body = (
                f"{server.url.rstrip('/')}/load_lora_adapter",
                {
                    "lora_name": server.model,
                    "lora_path": server.weights_dir,
                },
            )
            post(url, {**body, "load_inplace": True}, timeout_s=server.timeout_s)
            return
        root = urlunsplit(urlsplit(server.url)._replace(path="", query="", fragment=""))
        post(
            f"{root}/collective_rpc",
            {"method": "reload_weights", "timeout": server.timeout_s},
            timeout_s=server.timeout_s,
        )
        # its cached prefixes were computed with the old weights
        post(f"{root}/reset_prefix_cache", {}, timeout_s=server.timeout_s)

    def _checked_gap(self, student: Student) -> float:
        """The mean distance, in nats, between the server's and the trainer's log-probs of a few
        tokens that the server samples. Raises DataError if it is above max_gap."""
        server = self.settings.server
        prompt = GenerationRequest(ids=_PROBE, max_tokens=_PROBE_TOKENS, seed=0)
        (completion,) = self._model().complete(
            [prompt], temperature=1.0, top_p=1.0, stop=frozenset()
        )
        if completion.failure:
            raise DataError(
                f"the server gave no completion: {completion.failure}",
                where=server.url,
                fix="resume the run once it answers",
            )
        gap = log_prob_gap(student, prompt, completion)
        if not gap <= server.max_gap:
            raise DataError(
                f"the server's log-probs are {gap:.3g} nats from those of the weights that it"
                f" should hold, max_gap is {server.max_gap:g}",
                where=server.url,
                fix=(
                    "does it load rollouts.server.weights_dir, and give raw log-probs (vLLM:"
                    " --logprobs-mode raw_logprobs)?"
                ),
            )
        return gap


def publish(student: Student, folder: Path) -> None:
    """Write the student (config.json, model.safetensors, tokenizer.json, ...) into a folder that a
    server loads; each file is replaced as a whole, so the server never sees half of one."""
    scratch = folder / _PART
    if scratch.exists():
        shutil.rmtree(scratch)
    save_student(student, scratch)
    for file in sorted(p for p in scratch.rglob("*") if p.is_file()):
        target = folder / file.relative_to(scratch)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, target)
    shutil.rmtree(scratch)


def log_prob_gap(student: Student, prompt: GenerationRequest, completion: Completion) -> float:
    """Mean of |log p - log p_server| over the tokens that a server sampled behind a prompt, in
    nats."""
    device = next(student.model.parameters()).device
    ids = torch.tensor([[*prompt.ids, *completion.ids]], device=device)
    position_N = torch.arange(len(prompt.ids), ids.shape[1], device=device)
    with scoring(student.model):
        hidden_BTD = final_hidden(student.model, ids)
        hidden_ND = predictors(hidden_BTD, torch.zeros_like(position_N), position_N)
        student_N = token_logprobs(project(student.model, hidden_ND), ids[0, position_N])
    return float(
        (student_N.double().cpu() - torch.tensor(completion.logprobs, dtype=torch.float64))
        .abs()
        .mean()
    )
