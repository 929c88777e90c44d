"""What must be so in a process before it makes Monarch's first actor."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from composer_replication.core.errors import need
from composer_replication.training.backends.registry import MONARCH

DELIVERY_TIMEOUT = "7d"
"""How long Monarch keeps a message for a process that is dead. Monarch 0.7 returns it to the sender
after that (30 s by default), and where the sender is gone too (the run ended, or both were killed)
it ends this process with exit(1): hyperactor/src/client.rs, "client received undeliverable message:
crashing". Dead processes are noticed without it, by their exit."""


def prepare_process() -> None:
    """Neither a fault nor an undeliverable message is a reason to end this process, and the actors'
    processes find the same modules."""
    monarch("actor").unhandled_fault_hook = lambda failure: None
    monarch("config").configure(message_delivery_timeout=DELIVERY_TIMEOUT)
    paths = [str(Path(path).resolve()) for path in sys.path if path and Path(path).exists()]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def monarch(part: str) -> Any:
    """A module of Monarch, or an error that says how it is installed."""
    return need(f"monarch.{part}", extra="monarch")


def actor_names() -> tuple[Any, Any]:
    """Monarch's Actor and endpoint; stand-ins without it, so that the classes can be named: making
    one says what to install."""
    if MONARCH.problem():
        return object, lambda method: method
    actor = monarch("actor")
    return actor.Actor, actor.endpoint
