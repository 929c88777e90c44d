"""What an answer is booked at: our own count at our prices, or the endpoint's number if higher.

    cost_of(reply, teacher.price, call.worst_usd).usd

The endpoint's word alone is never believed. Amounts are kept as whole billionths of a dollar,
rounded up: sums of floating-point numbers would drift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from composer_replication.core.teacher import MOST_USD, Price, TeacherReply, Whose

NANO = 10**9
Basis = Literal["worst_case", "reported", "tokens", "by_hand"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedCost:
    """The cost booked for an answer, its basis, and whose number it is.

    Example: BookedCost(usd=0.003, basis="tokens", whose="ours")
    """

    usd: float
    basis: Basis
    whose: Whose


def to_nano(usd: float) -> int:
    """Return dollars as whole billionths, rounded up.

    >>> to_nano(0.1), to_nano(1e-10)
    (100000000, 1)
    """
    return math.ceil(Fraction(str(usd)) * NANO)


def cost_of(reply: TeacherReply, price: Price, worst: float) -> BookedCost:
    """Return the cost to book: our own count at our prices, or the endpoint's if higher.

    The worst case is booked for an endpoint that reports neither tokens nor a cost, or a cost that
    no call has (below 0, above MOST_USD, not a number): it may have billed anything.

    >>> from composer_replication.core.teacher import Usage
    >>> from composer_replication.core.trace import Turn
    >>> turn = Turn(role="assistant", author="m", blocks=())
    >>> reply = TeacherReply(turn=turn, usage=Usage(usd=0.0), sent_tokens=900)
    >>> cost_of(reply, Price(input_usd_per_mtok=2.0), 0.5)
    BookedCost(usd=0.0018, basis='tokens', whose='ours')
    """
    usage = reply.usage
    ours = price.usd(input_tokens=reply.sent_tokens, output_tokens=reply.received_tokens)
    reported: list[tuple[float, Basis]] = []
    if usage.input_tokens is not None and usage.output_tokens is not None:
        reported.append(
            (
                price.usd(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens),
                "tokens",
            )
        )
    if usage.usd is not None:
        reported.append((usage.usd, "reported"))
    if not reported or not all(0 <= usd <= MOST_USD for usd, _ in reported):
        return BookedCost(usd=max(worst, ours), basis="worst_case", whose="ours")
    most, basis = max(reported)
    if ours >= most:
        return BookedCost(usd=ours, basis="tokens", whose="ours")
    return BookedCost(usd=most, basis=basis, whose="endpoint")
