"""Memory of this process and CPU time of its children, for measurements that run in their own
process.

After `with HighWater() as water: step()`, `water.mib` is the highest resident size above the size
at the start of the block. Linux only.
"""

from __future__ import annotations

import gc
import resource
from pathlib import Path


def resident_mib(key: str) -> float:
    """A line of /proc/self/status in MiB: VmRSS is the current size, VmHWM the highest so far."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {key} in /proc/self/status")


def ended_children_cpu_s() -> float:
    """CPU-seconds of all children that have ended and were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class HighWater:
    """The rise of the resident size inside a `with` block; it resets the high-water mark of the
    process at its start."""

    mib: float = 0.0

    def __enter__(self) -> HighWater:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", "ascii")
        self._held = resident_mib("VmRSS")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.mib = resident_mib("VmHWM") - self._held
