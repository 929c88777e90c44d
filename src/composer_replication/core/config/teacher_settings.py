"""Settings of one teacher: where it is asked, what it may cost at most, what may happen to what is
sent."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from composer_replication.core.config.base import Settings

OPENROUTER = "https://openrouter.ai/api/v1"
_OURS = {
    "model",
    "messages",
    "tools",
    "stream",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "provider",
    "logprobs",
    "models",
}


class TeacherSettings(Settings):
    """A model that can be asked. The key is read from the environment and stands nowhere else."""

    kind: Literal["endpoint", "local"] = "endpoint"
    """"endpoint" = anything that speaks chat completions (OpenRouter, vLLM, Ollama, llama.cpp);
    "local" = a causal LM of transformers."""
    model: str
    """The model's name at its endpoint, or for "local" a folder or hub name."""
    family: str = ""
    """Models of one family share their mistakes: agreement counts families. "" = the maker that the
    model's name tells."""
    base_url: str = OPENROUTER
    """Address up to and without /chat/completions, e.g. "http://localhost:8000/v1"."""
    key_env: str = "OPENROUTER_API_KEY"
    """Name of the environment variable that holds the key; "" = none is needed."""
    max_input_usd_per_mtok: float = Field(default=0.0, ge=0.0)
    """The most that a million input tokens may cost: booked before each call, and sent along as a
    bound where the endpoint knows one."""
    max_output_usd_per_mtok: float = Field(default=0.0, ge=0.0)
    """The same for output tokens. With both 0 the teacher counts as free of charge, which only an
    endpoint on this machine may be."""
    max_request_usd: float = Field(default=0.0, ge=0.0)
    """The most that a request may cost beside its tokens."""
    routing: Literal["auto", "send", "omit"] = "auto"
    """Whether the preferences of a router (the next four) are sent along; "auto" = to OpenRouter
    only."""
    data_collection: Literal["deny", "allow"] = "deny"
    """"deny" = only providers that do not keep or train on what they are sent."""
    distillable: bool = True
    """Only models whose terms allow training on their answers."""
    zero_retention: bool = False
    """Only endpoints that keep nothing at all."""
    only: tuple[str, ...] = ()
    """Only these providers; none = all."""
    explicit_cache: bool = False
    """Mark the end of the prompt for the provider's cache; Anthropic's and Alibaba's models need
    it, the others cache by themselves."""
    logprobs: bool = False
    """Ask for the answer's token probabilities: an answer below replay.min_confidence is
    uncertain."""
    output_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the bound of the answer's length; newer models of OpenAI take only the second."""
    body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the request, e.g. {reasoning = {effort = "low"}}."""
    at_once: int = Field(default=8, gt=0)
    """Calls to this endpoint at the same time."""
    per_minute: float = Field(default=0.0, ge=0.0)
    """Calls to this endpoint in a minute; 0 = no bound."""

    @field_validator("base_url")
    @classmethod
    def _an_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("give an address that begins with http:// or https://")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(
                "an address without user, password, ? or #: the key comes from the environment"
            )
        return url.rstrip("/")

    @field_validator("body")
    @classmethod
    def _not_what_is_ours(cls, body: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_OURS & body.keys()):
            raise ValueError(
                f"{taken[0]} is set by the program: another value would change what is booked or"
                " kept"
            )
        return body
