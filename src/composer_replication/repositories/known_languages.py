"""The languages that tasks can be made in, by the name that stands on a task line.

    load_language("python", where="tasks.jsonl:3")     # PYTHON

A name leads to an object of this package: a task file is data, and names no code of its own. The
place is a text, because an implementation (python/) stands above what only knows the interface.
"""

from __future__ import annotations

import importlib
from typing import Any

from composer_replication.core.errors import DataError

DEFAULT_LANGUAGE = "python"
"""The language of tasks that were made before a task named one."""
LANGUAGES: dict[str, str] = {
    "python": "composer_replication.repositories.python.python_language:PYTHON",
}


def check_language(name: str, *, where: str) -> None:
    """Raise DataError if there is no such language."""
    if name not in LANGUAGES:
        raise DataError(
            f"there is no language {name!r}",
            where=where,
            fix=f"known: {', '.join(LANGUAGES)}; docs/tasks.md says what a new one has to bring",
        )


def load_language(name: str, *, where: str = "") -> Any:
    """The implementation of a language; raises DataError if there is none."""
    check_language(name, where=where)
    module, _, attribute = LANGUAGES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
