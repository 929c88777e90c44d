"""What messages cost, by the usage that the log itself reports: tokens, minutes, dollars.

    usd_of(turn)         # a message of claude-opus-4-6 with 90,000 cached tokens -> 0.05
    Spend.of(turn, seconds=12.0) + other

Dollars are the log's own where it names them, else list prices: what a subscription pays is not in
a log. The prices are those of the makers' public lists as of `PRICES_AS_OF`; a model that is not
listed has no price, and its messages are counted as unpriced, never as free.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from composer_replication.core.teacher import Price
from composer_replication.core.trace import Turn

PRICES_AS_OF = "2026-11-24"
CACHE_READ, CACHE_WRITE, HOUR_WRITE = 0.1, 1.25, 2.0
"""The price of a token read from the cache, written to it for five minutes, or for an hour, as a
multiple of a plain input token's: Anthropic's list, and OpenAI's for reading (which has no price
for writing, and reports none)."""


def _price(input_usd: float, output_usd: float) -> Price:
    return Price(input_usd_per_mtok=input_usd, output_usd_per_mtok=output_usd)


MODEL_PRICES: Mapping[str, Price] = MappingProxyType(
    {
        "claude-3-opus": _price(15.0, 75.0),
        "claude-3-haiku": _price(0.25, 1.25),
        "claude-3-5-haiku": _price(0.8, 4.0),
        "claude-3-5-sonnet": _price(3.0, 15.0),
        "claude-3-7-sonnet": _price(3.0, 15.0),
        "claude-opus-4": _price(15.0, 75.0),
        "claude-opus-4-5": _price(5.0, 25.0),
        "claude-opus-4-6": _price(5.0, 25.0),
        "claude-opus-4-7": _price(5.0, 25.0),
        "claude-opus-4-8": _price(5.0, 25.0),
        "claude-opus-5": _price(5.0, 25.0),
        "claude-opus-4-1": _price(15.0, 75.0),
        "claude-sonnet-4": _price(3.0, 15.0),
        "claude-sonnet-4-5": _price(3.0, 15.0),
        "claude-sonnet-4-6": _price(3.0, 15.0),
        "claude-sonnet-5": _price(2.0, 10.0),
        "claude-haiku-4-5": _price(1.0, 5.0),
        "claude-fable-5": _price(10.0, 50.0),
        "gpt-5": _price(1.25, 10.0),
        "gpt-5.1": _price(1.25, 10.0),
        "gpt-5.2": _price(1.75, 14.0),
        "gpt-5.3": _price(1.75, 14.0),
        "gpt-5.4": _price(2.5, 15.0),
        "gpt-5.4-mini": _price(0.75, 4.5),
        "gpt-5.5": _price(5.0, 30.0),
        "gpt-5.6-sol": _price(4.0, 20.0),
        "gemini-2.5-pro": _price(1.25, 10.0),
        "gemini-2.5-flash": _price(0.3, 2.5),
        "gemini-3-pro": _price(2.0, 12.0),
    }
)
"""By a model's name without its maker, date and variant."""
_MAKER = re.compile(r"^.*/|^(?:\w+\.)?anthropic\.")
_VARIANT = re.compile(r"(?:\[\w+\]|-v\d+(?::\d+)?|[-@]20\d{6}|-latest|-preview|-codex|-thinking)$")


def list_price(model: str | None) -> Price | None:
    """The list price of a model, None if it has none here.

    A newer version of a listed model has none: its price may differ.

    >>> list_price("claude-opus-4-5-20251101").output_usd_per_mtok, list_price("claude-opus-4-99")
    (25.0, None)
    """
    name = _MAKER.sub("", model or "")
    while name not in MODEL_PRICES and (shorter := _VARIANT.sub("", name)) != name:
        name = shorter
    return MODEL_PRICES.get(name)


def usd_of(turn: Turn) -> float | None:
    """The dollars of a message: the log's own figure, else its tokens at list prices; None if its
    model has no price.

    >>> from composer_replication.core.trace import TurnUsage
    >>> usage = TurnUsage(output_tokens=1000, cached_tokens=90_000)
    >>> model = "claude-opus-4-6"
    >>> turn = Turn(
    ...     role="assistant", author=model, blocks=(), context_tokens=90_000, usage=usage
    ... )
    >>> round(usd_of(turn), 6)
    0.07
    """
    usage = turn.usage
    if usage is None:
        return None
    if usage.usd is not None:
        return usage.usd
    price = list_price(turn.author)
    if price is None:
        return None
    plain = max(0, turn.context_tokens - usage.cached_tokens - usage.cache_write_tokens)
    minutes_write = usage.cache_write_tokens - usage.hour_write_tokens
    tokens = (
        plain
        + CACHE_READ * usage.cached_tokens
        + CACHE_WRITE * minutes_write
        + HOUR_WRITE * usage.hour_write_tokens
    )
    return (
        tokens * price.input_usd_per_mtok + usage.output_tokens * price.output_usd_per_mtok
    ) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """Tokens, dollars and seconds of some messages, which may be parts of messages.

    `tokens` are all that the provider reported, the prompt's included; `new_tokens` leaves out what
    was read from the cache. `unpriced` counts the messages of models without a price: `usd` does
    not hold them.
    """

    tokens: float = 0.0
    new_tokens: float = 0.0
    output_tokens: float = 0.0
    usd: float = 0.0
    seconds: float = 0.0
    unpriced: float = 0.0

    @classmethod
    def of(cls, turn: Turn, *, seconds: float = 0.0) -> Spend:
        """The spend of one message that took these seconds."""
        usage, usd = turn.usage, usd_of(turn)
        output = usage.output_tokens if usage is not None else 0
        cached = usage.cached_tokens if usage is not None else 0
        return cls(
            tokens=turn.context_tokens + output,
            new_tokens=turn.context_tokens - cached + output,
            output_tokens=output,
            usd=usd or 0.0,
            seconds=seconds,
            unpriced=float(usage is not None and usd is None),
        )

    def __add__(self, other: Spend) -> Spend:
        """The sum of two spends."""
        return Spend(
            tokens=self.tokens + other.tokens,
            new_tokens=self.new_tokens + other.new_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            usd=self.usd + other.usd,
            seconds=self.seconds + other.seconds,
            unpriced=self.unpriced + other.unpriced,
        )

    def times(self, share: float) -> Spend:
        """A share of it, e.g. of a message in which one of two calls failed."""
        return Spend(
            tokens=self.tokens * share,
            new_tokens=self.new_tokens * share,
            output_tokens=self.output_tokens * share,
            usd=self.usd * share,
            seconds=self.seconds * share,
            unpriced=self.unpriced * share,
        )


NOTHING = Spend()
