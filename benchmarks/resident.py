"""Resident memory of this process on Linux, for measurements that each have a process of their own.

`with HighWater() as water: step()`, then `water.mib` is the highest resident size above what the
process held at the start.
"""

from __future__ import annotations

import gc
from pathlib import Path


def resident_mib(key: str) -> float:
    """A line of /proc/self/status in MiB: VmRSS = now, VmHWM = the highest so far."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {key} in /proc/self/status")


class HighWater:
    """How far the resident size rises inside a `with` block; the high-water mark of the process is
    reset at its start."""

    mib: float = 0.0

    def __enter__(self) -> HighWater:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", "ascii")
        self._held = resident_mib("VmRSS")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.mib = resident_mib("VmHWM") - self._held
