"""Settings of one teacher: its endpoint, its prices, and what the provider may do with the data."""

from __future__ import annotations

from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

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
    """A model that can be asked. Its key is read from the environment and is stored nowhere."""

    kind: Literal["endpoint", "local"] = "endpoint"
    """"endpoint" = any server of the chat-completions API (OpenRouter, vLLM, Ollama, llama.cpp);
    "local" = a causal LM of transformers."""
    model: str
    """The model's name at its endpoint, or for "local" a folder or hub name."""
    family: str = ""
    """Models of one family share their mistakes, so agreement counts families. "" = the maker, as
    in the model's name."""
    base_url: str = OPENROUTER
    """Address without /chat/completions, e.g. "http://localhost:8000/v1"."""
    key_env: str = "OPENROUTER_API_KEY"
    """Name of the environment variable that holds the key; "" = none is needed."""
    max_input_usd_per_mtok: float = Field(default=0.0, ge=0.0)
    """The most that a million input tokens may cost: booked before each call, and sent as a bound
    if the endpoint supports one."""
    max_output_usd_per_mtok: float = Field(default=0.0, ge=0.0)
    """The same for output tokens. If both are 0 the teacher counts as free, which only an endpoint
    on this machine may be."""
    max_request_usd: float = Field(default=0.0, ge=0.0)
    """The most that a request may cost in addition to its tokens."""
    routing: Literal["auto", "send", "omit"] = "auto"
    """Whether the routing preferences (the next four settings) are sent; "auto" = to OpenRouter
    only."""
    data_collection: Literal["deny", "allow"] = "deny"
    """"deny" = only providers that neither store nor train on what they are sent."""
    distillable: bool = True
    """Only models whose terms allow training on their answers."""
    zero_retention: bool = False
    """Only endpoints that store nothing at all."""
    only: tuple[str, ...] = ()
    """Only these providers; none = all."""
    explicit_cache: bool = False
    """Mark the end of the prompt for the provider's cache; Anthropic's and Alibaba's models need
    this, the others cache automatically."""
    logprobs: bool = False
    """Ask for the answer's token probabilities: an answer below replay.min_confidence is
    uncertain."""
    output_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the field that bounds the answer's length; newer OpenAI models accept only the
    second."""
    body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the request, e.g. {reasoning = {effort = "low"}}."""
    batch: bool = False
    """Ask through the provider's Batch API (OpenAI's format: a file of questions, answers within
    24 hours), which costs less. Only teachers of `recompose replay` behind a paid endpoint."""
    batch_discount: float | None = Field(default=None, ge=0.0, lt=1.0)
    """The share by which an answer in a batch is cheaper: .5 = half the price. None = what the
    provider publishes where that is known (OpenAI: .5), else 0."""
    batch_poll_s: float = Field(default=30.0, gt=0.0)
    """Seconds between two looks at a batch that is being answered."""
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

    @model_validator(mode="after")
    def _batches_are_paid_and_in_openais_format(self) -> Self:
        if not self.batch:
            return self
        if self.kind == "local" or not (
            self.max_input_usd_per_mtok or self.max_output_usd_per_mtok or self.max_request_usd
        ):
            raise ValueError("batch is for paid endpoints: a free teacher answers at once")
        if urlsplit(self.base_url).hostname == urlsplit(OPENROUTER).hostname:
            raise ValueError(
                "OpenRouter takes batches in a format of its own, which is not supported: set"
                " base_url to the provider's own address, or leave batch out"
            )
        return self
