"""Your agent's logs and your base model go in, a better coding agent comes out.

    from composer_replication import Session, find_sites, write_hints, load_config

Names are imported on first use, so that `import composer_replication` costs nothing and needs no
PyTorch. `__init__.pyi` lists them with their homes.
"""

from __future__ import annotations

import importlib
from typing import Any

import lazy_loader

# The guide's module paths: composer_replication.trainer.data_collator, ...
__path__ = [*__path__, f"{__path__[0]}/compat/paths"]
_import_name, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
PUBLIC_NAMES = tuple(_names)


def __getattr__(name: str) -> Any:
    """A public name, imported from its home on first use (PEP 562)."""
    if name not in PUBLIC_NAMES:
        gone = importlib.import_module(f"{__name__}.compat.names").missing(name)
        raise gone or AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _import_name(name)
