"""verl's platform interface for a machine without an accelerator: gloo, one device.

verl has no CPU platform of its own. With this one its real FSDP2 engine runs on a laptop and in CI;
it shows nothing about NCCL, flash-attention or vLLM. Chosen by VERL_PLATFORM=cpu
(training/backends/verl_launch.py sets it where no CUDA is found).
"""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_base import PlatformBase


def _cpu_module() -> types.ModuleType:
    """torch.cpu with the memory functions that torch.cuda has, which do nothing."""
    module = types.ModuleType("torch_cpu_with_memory_functions")
    for name in dir(torch.cpu):
        setattr(module, name, getattr(torch.cpu, name))
    stubs: dict[str, Any] = {
        **dict.fromkeys(
            ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
            lambda *args, **kwargs: 0,
        ),
        **dict.fromkeys(
            ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "manual_seed"),
            lambda *args, **kwargs: None,
        ),
        "mem_get_info": lambda *args, **kwargs: (0, 0),
        "get_device_name": lambda *args, **kwargs: "cpu",
    }
    for name, function in stubs.items():
        setattr(module, name, function)
    return module


class CpuPlatform(PlatformBase):
    """One CPU as verl's device."""

    _module = _cpu_module()
    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: self._module)

    def is_available(self) -> bool:
        """A CPU always is."""
        return True

    def current_device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def device_count(self) -> int:
        """One per process."""
        return 1

    def set_device(self, device_index: int) -> None:
        """There is only one."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing is asynchronous."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """The CPU's allocator has none."""

    def empty_cache(self) -> None:
        """There is no cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        """None."""
        return None, None

    def communication_backend_name(self) -> str:
        """Gloo."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """A name that nobody sets."""
        return "CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No range."""
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        """Ray's resource."""
        return "CPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        """CPUs instead of GPUs."""
        return {"num_cpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        """None."""
        return []

    def is_ipc_supported(self) -> bool:
        """No device memory to share."""
        return False

    def cudart(self) -> None:
        """None."""


def use_cpu_platform() -> None:
    """Make it verl's platform in this process."""
    platform_manager.PlatformRegistry.register("cpu")(CpuPlatform)
    platform_manager.set_platform(CpuPlatform())
