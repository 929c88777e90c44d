"""llama.cpp's own `/completion` as a source of sampled ids: requests, and answers in vLLM's shape.

    llama-server -m student.gguf --alias student        # URL http://127.0.0.1:8080/v1
    ServedModel(url="http://127.0.0.1:8080/v1", model="student", protocol="llama.cpp")

Its OpenAI-compatible addresses return no token ids; `/completion`, which lies beside /v1 and not
below it, returns the ids (`return_tokens`), and for each the log-prob under the model itself, at
temperature 1 over the whole vocabulary (`n_probs`, `post_sampling_probs` false). Without `samplers`
it would cut the distribution (top_k 40, top_p .95, min_p .05). It ends a message at the end tokens
of the GGUF alone; a message that goes on behind one of the template's is cut there. Tried with
llama.cpp's server from the wheel xllamacpp (docs/rollouts.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer_replication.core.errors import DataError


def llama_url(url: str) -> str:
    """The address for completions of a server that is known by its OpenAI-compatible one.

    >>> llama_url("http://127.0.0.1:8080/v1/")
    'http://127.0.0.1:8080/completion'
    """
    return url.rstrip("/").removesuffix("/v1") + "/completion"


def llama_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The request for one message, from that for vLLM.

    >>> body = {"prompt": [5], "max_tokens": 3, "temperature": 1.0, "top_p": 1.0, "seed": 7}
    >>> llama_body(body)["samplers"]
    ['temperature', 'top_p']
    """
    return {
        "prompt": body["prompt"],
        "n_predict": body["max_tokens"],
        "temperature": body["temperature"],
        "top_p": body["top_p"],
        "samplers": ["temperature", "top_p"],
        "seed": body["seed"],
        "n_probs": 1,
        "post_sampling_probs": False,
        "return_tokens": True,
        "stream": False,
    }


def llama_answer(
    answer: Mapping[str, Any], *, prompt_ids: tuple[int, ...], stop: frozenset[int], where: str
) -> dict[str, Any]:
    """An answer in vLLM's shape, to be checked like one of vLLM.

    >>> probs = [{"id": 7, "logprob": -0.5}, {"id": 2, "logprob": -0.1}, {"id": 9, "logprob": -1.0}]
    >>> answer = {"tokens": [7, 2, 9], "tokens_evaluated": 1, "completion_probabilities": probs}
    >>> checked = llama_answer(answer, prompt_ids=(5,), stop=frozenset({2}), where="here")
    >>> checked["choices"][0]["token_ids"], checked["choices"][0]["logprobs"]
    ([7, 2], {'token_logprobs': [-0.5, -0.1]})

    Raises DataError if the server dropped a part of the prompt, or if its ids and its log-probs
    are not of the same tokens.
    """
    ids, probs = answer.get("tokens"), answer.get("completion_probabilities")
    if not isinstance(ids, list) or not isinstance(probs, list):
        raise DataError(
            "the server returns no token ids with log-probs",
            where=where,
            fix="is it llama-server? rollouts.server.protocol says which server it is",
        )
    if answer.get("tokens_evaluated") != len(prompt_ids) or answer.get("truncated"):
        raise DataError(
            f"the server read {answer.get('tokens_evaluated')} of {len(prompt_ids)} tokens or cut"
            " the context",
            where=where,
            fix="start it with a larger --ctx-size, which its --parallel slots share",
        )
    if [p.get("id") if isinstance(p, dict) else None for p in probs] != ids:
        raise DataError(
            "the server's log-probs are not those of its token ids",
            where=where,
            fix="use a llama-server that returns completion_probabilities for every token",
        )
    end = next((place + 1 for place, i in enumerate(ids) if i in stop), len(ids))
    return {
        "model": answer.get("model"),
        "choices": [
            {
                "token_ids": ids[:end],
                "prompt_token_ids": list(prompt_ids),
                "logprobs": {"token_logprobs": [p.get("logprob") for p in probs[:end]]},
                "finish_reason": answer.get("stop_type"),
            }
        ],
    }
