"""A model behind an OpenAI-compatible server as the writer of the student's messages.

    model = ServedModel(url="http://127.0.0.1:8000/v1", model="my-student", version=12)
    rollouts = sample_rollouts(model, envs, renderer=renderer, settings=Sampling(), author="me")
    rollouts[0].version    # 12: the weights on the server, as stated by the caller who loaded them

Prompt ids go in, sampled ids and their log-probs come out. Text is never requested, and nothing is
encoded again: a server that does not return token ids is refused by name. vLLM does (`vllm serve
MODEL`, since its pull request 22587 of 2025): POST URL/completions with {"prompt": [ids],
"return_token_ids": true, "logprobs": 0, ...} is answered in choices[0] with "token_ids",
"prompt_token_ids" and "logprobs.token_logprobs". Its log-probs are by default those of the model
itself, at temperature 1 (`--logprobs-mode raw_logprobs`), which the local sampler keeps, too; other
modes cannot be detected from here. llama.cpp's server is asked in its own way
(rollouts/llama_server.py). A server's numbers differ from the trainer's in the last digits:
train.policy.importance_cap corrects for that. Tested here against a small server that speaks this
protocol, not against vLLM itself.

The server receives the agent's whole context: it must be your own. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard
from urllib.parse import urlsplit

from composer_replication.core.errors import ConfigError, DataError
from composer_replication.rollouts.llama_server import llama_answer, llama_body, llama_url

MAX_REPLY_BYTES = 64 * 2**20
Protocol = Literal["vllm", "llama.cpp"]
_START = (
    "serve it with a vLLM that knows return_token_ids, or with llama-server and"
    " rollouts.server.protocol = 'llama.cpp'"
)
_ROUNDING = 1e-3  # half-precision logits may give a log-prob this far above 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """The request for one message, e.g. GenerationRequest(ids=(5, 9), max_tokens=64, seed=3)."""

    ids: tuple[int, ...]
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The sampled ids and the log-prob of each, or the reason of a `failure`.

    An end token is included if one was sampled.
    """

    ids: list[int]
    logprobs: list[float]
    failure: str = ""


class NoAnswerError(Exception):
    """The server was busy, gone or too slow; the request is lost, but no answer was wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A server and the model it serves; `version` names the weights it holds, `protocol` the kind
    of server.

    A busy or vanished server is asked `tries` times in all; one that has not answered after
    `timeout_s` seconds is not asked again. Raises ConfigError for an invalid address.
    """

    url: str
    model: str
    version: int = -1
    protocol: Protocol = "vllm"
    timeout_s: float = 600.0
    num_requests: int = 32
    tries: int = 3

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{self.url!r} is not the address of a server", fix="give it as http://host:port/v1"
            )
        if self.num_requests < 1 or self.tries < 1 or not 0 < self.timeout_s < math.inf:
            raise ConfigError(
                "num_requests and tries must be at least 1, timeout_s above 0 and finite"
            )

    def check(self) -> None:
        """Ask for one token.

        Raises DataError if the server cannot be reached or does not say which token it sampled.
        """
        completion = self._complete(
            GenerationRequest(ids=(0,), max_tokens=1, seed=0),
            temperature=1.0,
            top_p=1.0,
            stop=frozenset(),
        )
        if completion.failure:
            raise DataError(
                f"the server gave no completion: {completion.failure}",
                where=self.url,
                fix=f"is {self.model!r} served there? Then resume the run",
            )

    def complete(
        self,
        prompts: Sequence[GenerationRequest],
        *,
        temperature: float,
        top_p: float,
        stop: frozenset[int],
    ) -> list[Completion]:
        """One message behind each prompt, `num_requests` of them at a time.

        A message that the server left unanswered has a `failure`. Raises DataError if the server
        refuses a request, or if its answer cannot be what was sampled.
        """
        with ThreadPoolExecutor(max_workers=min(self.num_requests, max(1, len(prompts)))) as pool:
            return list(
                pool.map(
                    lambda prompt: self._complete(
                        prompt, temperature=temperature, top_p=top_p, stop=stop
                    ),
                    prompts,
                )
            )

    def _complete(
        self, prompt: GenerationRequest, *, temperature: float, top_p: float, stop: frozenset[int]
    ) -> Completion:
        body = {
            "model": self.model,
            "prompt": list(prompt.ids),
            "max_tokens": prompt.max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "seed": prompt.seed,
            "stop_token_ids": sorted(stop),
            "logprobs": 0,
            "return_token_ids": True,
            "add_special_tokens": False,
            "skip_special_tokens": False,
            "stream": False,
        }
        llama = self.protocol == "llama.cpp"
        try:
            answer = self._post(llama_body(body) if llama else body)
        except NoAnswerError as error:
            return Completion(ids=[], logprobs=[], failure=str(error))
        if llama:
            answer = llama_answer(answer, prompt_ids=prompt.ids, stop=stop, where=self.url)
        if answer.get("model") not in (None, self.model):
            raise DataError(
                f"the server answered as {answer['model']!r}",
                where=self.url,
                fix=f"serve {self.model!r} there",
            )
        return read_completion(answer, prompt=prompt, stop=stop, where=self.url)

    def _post(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer as JSON.

        Raises NoAnswerError if none came, DataError if the request was refused.
        """
        problem = ""
        url = (
            llama_url(self.url)
            if self.protocol == "llama.cpp"
            else f"{self.url.rstrip('/')}/completions"
        )
        for number in range(self.tries):
            time.sleep(min(2.0, 0.1 * number))
            try:
                return _json(post(url, body, timeout_s=self.timeout_s), where=self.url)
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}: {error.read(300).decode('utf-8', 'replace')}"
                if error.code < 500 and error.code != 429:
                    fix = f"is {self.model!r} served there, with room for the whole context?"
                    raise DataError(
                        f"the server gave no completion: {problem}", where=self.url, fix=fix
                    ) from error
            except TimeoutError:
                raise NoAnswerError(f"no answer within {self.timeout_s:g} s") from None
            except (OSError, http.client.HTTPException) as error:
                problem = f"{type(error).__name__}: {error}"
                if isinstance(getattr(error, "reason", None), TimeoutError):
                    raise NoAnswerError(f"no answer within {self.timeout_s:g} s") from None
        raise NoAnswerError(problem)


def post(url: str, body: Mapping[str, Any], *, timeout_s: float) -> bytes:
    """A server's answer to a JSON body, at most MAX_REPLY_BYTES + 1 bytes of it.

    Raises OSError or HTTPException if there is none. The whole answer must arrive within
    `timeout_s` seconds: a server that sends a byte now and then does not block the run.
    """
    request = urllib.request.Request(
        url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    end, parts, size = time.monotonic() + timeout_s, [], 0
    with urllib.request.urlopen(request, timeout=timeout_s) as reply:
        while size <= MAX_REPLY_BYTES and (part := reply.read1(1 << 16)):
            parts.append(part)
            size += len(part)
            if time.monotonic() > end:
                raise TimeoutError
    return b"".join(parts)


def read_completion(
    answer: Mapping[str, Any], *, prompt: GenerationRequest, stop: frozenset[int], where: str
) -> Completion:
    """The sampled ids and log-probs of an answer, checked.

    >>> logprobs = {"token_logprobs": [-0.5, -0.1]}
    >>> choice = {"token_ids": [7, 2], "prompt_token_ids": [5], "logprobs": logprobs}
    >>> prompt = GenerationRequest(ids=(5,), max_tokens=4, seed=0)
    >>> read_completion({"choices": [choice]}, prompt=prompt, stop=frozenset({2}), where="here").ids
    [7, 2]

    Raises DataError for every way in which they may not be those that were sampled.
    """
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise DataError("the server's answer does not hold one choice", where=where)
    choice: dict[str, Any] = choices[0]
    ids, read_ids = choice.get("token_ids"), choice.get("prompt_token_ids")
    if not _are_ids(ids) or not _are_ids(read_ids):
        raise DataError(
            "the server does not return token ids, and text would have to be encoded again",
            where=where,
            fix=_START,
        )
    if tuple(read_ids) != prompt.ids:
        raise DataError(
            f"the server read other ids than it was given ({len(read_ids)} for {len(prompt.ids)})",
            where=where,
            fix=_START,
        )
    returned = choice.get("logprobs")
    logprobs = returned.get("token_logprobs") if isinstance(returned, dict) else None
    if not _are_logprobs(logprobs) or len(logprobs) != len(ids):
        raise DataError(
            "the server does not return a log-prob for each sampled token", where=where, fix=_START
        )
    if not 1 <= len(ids) <= prompt.max_tokens or any(i in stop for i in ids[:-1]):
        raise DataError(
            f"{len(ids)} tokens came back where 1 to {prompt.max_tokens} were asked for, up to an"
            " end token",
            where=where,
        )
    if stop and ids[-1] not in stop and len(ids) < prompt.max_tokens:
        reason = choice.get("finish_reason")
        raise DataError(
            f"the message ended early without an end token (finish_reason {reason!r}): a sampled"
            " token is missing",
            where=where,
            fix=(
                "the server must return the end token too, and must not end messages by rules of"
                " its own"
            ),
        )
    return Completion(ids=list(ids), logprobs=[min(float(value), 0.0) for value in logprobs])


def _are_ids(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(i) is int and i >= 0 for i in value)


def _are_logprobs(value: Any) -> TypeGuard[list[float]]:
    return isinstance(value, list) and all(
        isinstance(p, (int, float)) and math.isfinite(p) and p <= _ROUNDING for p in value
    )


def _json(raw: bytes, *, where: str) -> dict[str, Any]:
    try:
        answer = json.loads(raw) if len(raw) <= MAX_REPLY_BYTES else None
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise DataError("the server's answer is not a JSON object of a bearable size", where=where)
    return answer
