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
    """A model that can be asked. Its API key is read from the environment and never stored."""

    kind: Literal["endpoint", "local"] = "endpoint"
    """"endpoint" = any server with the chat completions API (OpenRouter, vLLM, Ollama, llama.cpp);
    "local" = a causal LM loaded with transformers."""
    model: str
    """Model name at the endpoint; for "local", a folder or Hub name."""
    family: str = ""
    """Model family. Models of one family share their mistakes, so agreement is counted over
    families. "" = the maker, as in the model's name."""
    base_url: str = OPENROUTER
    """Base URL without /chat/completions, e.g. "http://localhost:8000/v1"."""
    key_env: str = "OPENROUTER_API_KEY"
    """Environment variable that holds the API key; "" = no key needed."""
    max_input_usd_per_mtok: float = Field(default=0.0, ge=0.0)
    """Maximum price in USD per million input tokens. Booked before each call, and sent as a limit
    if the endpoint supports one."""
    max_output_usd_per_mtok: float = Field(default=0.0, ge=0.0)
    """The same for output tokens. If both are 0, the teacher counts as free, which only an endpoint
    on this machine may be."""
    max_request_usd: float = Field(default=0.0, ge=0.0)
    """Maximum price in USD per request, in addition to its tokens."""
    routing: Literal["auto", "send", "omit"] = "auto"
    """Whether to send the routing preferences (the next four settings); "auto" = to OpenRouter
    only."""
    data_collection: Literal["deny", "allow"] = "deny"
    """"deny" = use only providers that neither store requests nor train on them."""
    distillable: bool = True
    """Use only models whose terms allow training on their answers."""
    zero_retention: bool = False
    """Use only endpoints that store nothing at all."""
    only: tuple[str, ...] = ()
    """Use only these providers. Empty: all."""
    explicit_cache: bool = False
    """Mark the end of the prompt for the provider's prompt cache. Required by Anthropic's and
    Alibaba's models; the others cache automatically."""
    logprobs: bool = False
    """Request token log-probs, so that an answer below replay.min_confidence counts as
    uncertain."""
    output_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the request field that limits the answer's length. Newer OpenAI models accept only
    the second."""
    body: dict[str, Any] = Field(default_factory=dict)
    """Additional request fields, e.g. {reasoning = {effort = "low"}}."""
    batch: bool = False
    """Use the provider's Batch API (OpenAI's format: a file of requests, answers within 24 hours),
    which costs less. Only for teachers of `recompose replay` behind a paid endpoint."""
    batch_discount: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Discount of a batched answer as a share: .5 = half the price. None = what the provider
    publishes, if that is known (OpenAI: .5), else 0."""
    batch_poll_s: float = Field(default=30.0, gt=0.0)
    """Seconds between two polls of an open batch."""
    at_once: int = Field(default=8, gt=0)
    """Maximum concurrent calls to this endpoint."""
    per_minute: float = Field(default=0.0, ge=0.0)
    """Maximum calls per minute to this endpoint; 0 = unlimited."""

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
