"""What other people's code gets to see of the environment: enough to run, no keys.

    subprocess.run(command, env=program_environment())
    with without_keys(): function(session)

A program gets a handful of variables. Python that is loaded into this process shares its memory:
`without_keys` guards against accidents
- a variable that is logged, or handed on to a child - and not against code that is out for a key.
  That is what trust is for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SYSTEMROOT")
"""What a program needs to start, to find its own settings, and to read text."""
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
"""Beginnings of names that Python in this process may need, and that hold no keys."""


def program_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a program that the user's settings name.

    >>> program_environment({"PATH": "/bin", "OPENAI_API_KEY": "x"})
    {'PATH': '/bin'}
    """
    return {name: environ[name] for name in KEPT if name in environ}


@contextmanager
def without_keys() -> Iterator[None]:
    """While this block runs, os.environ - and so what a child would inherit - holds no variable
    that might be a key.

    What the block itself sets is gone afterwards only where it stood in the way of what was there
    before. Not for several threads at once.
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
