"""The names of the channels, and the states that a channel can be in."""

from __future__ import annotations

from typing import Literal

Channel = Literal["policy", "lm_ce", "hint", "preference"]
CHANNELS: tuple[Channel, ...] = ("policy", "lm_ce", "hint", "preference")
Status = Literal["off", "active", "exhausted", "starved", "dead"]
