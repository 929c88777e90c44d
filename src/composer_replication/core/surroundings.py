"""The environment variables that other people's code can read: enough to run, but no keys.

    subprocess.run(command, env=program_environment())
    with without_keys(): function(session)

A program gets a few variables. Python code that is loaded into this process shares its memory:
`without_keys` guards against accidents (a variable that is logged, or inherited by a child), not
against code that looks for keys. Against that, settings files must be trusted (`recompose trust`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SYSTEMROOT")
"""Variables that a program needs to start, to find its own settings, and to read text."""
_NOT_KEYS = (
    "PYTHON",
    "OMP_",
    "MKL_",
    "CUDA_",
    "NVIDIA_",
    "TORCH_",
    "NCCL_",
    "LD_",
    "DYLD_",
    "XDG_",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "TERM",
)
"""Prefixes of variables that Python code in this process may need, and that hold no keys."""


def program_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a program that the user's settings name.

    >>> program_environment({"PATH": "/bin", "OPENAI_API_KEY": "x"})
    {'PATH': '/bin'}
    """
    return {name: environ[name] for name in KEPT if name in environ}


@contextmanager
def without_keys() -> Iterator[None]:
    """Hide every variable that might be a key from os.environ, and so from children, in this block.

    Hidden variables are restored afterwards, even if the block set them anew; other variables that
    the block sets stay. Not thread-safe.
    """
    hidden = {
        name: value
        for name, value in os.environ.items()
        if name not in KEPT and not name.startswith(_NOT_KEYS)
    }
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
