"""Your agent's logs and your base model go in, a better coding agent comes out.

    from composer_replication import Session, find_sites, write_hints, load_config

Names are imported on first use, so that `import composer_replication` costs nothing and needs no
PyTorch. `__init__.pyi` lists them with their homes. Only the standard library is imported here: the
sandbox's worker imports the package without any site-packages.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

# The guide's module paths: composer_replication.trainer.data_collator, ...
__path__ = [*__path__, f"{__path__[0]}/compat/paths"]


@functools.cache
def _homes() -> dict[str, str]:
    """Public name -> module, as the stub beside this file imports them."""
    import ast
    from pathlib import Path

    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
    return {
        alias.name: f"{__name__}.{node.module}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def __getattr__(name: str) -> Any:
    """A public name, imported from its home on first use (PEP 562)."""
    if name == "PUBLIC_NAMES":
        return tuple(sorted(_homes()))
    if name not in _homes():
        gone = importlib.import_module(f"{__name__}.compat.names").missing(name)
        raise gone or AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_homes()[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})
