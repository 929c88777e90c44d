"""The clock of the exchange: monotonic, and replaceable by a simulated one."""

from __future__ import annotations

import time


class Clock:
    """Monotonic seconds and sleep; no decision of the exchange reads the time of day."""

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
