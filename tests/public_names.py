"""The public names of the package by the module that each comes from, as `__init__.pyi` lists them."""

from __future__ import annotations

import ast
from pathlib import Path

import composer_replication


def public_homes() -> dict[str, list[str]]:
    """{"core.trace": ["CallRef", ...]}"""
    stub = Path(composer_replication.__file__ or "").with_suffix(".pyi")
    return {
        node.module or "": [alias.name for alias in node.names]
        for node in ast.parse(stub.read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom)
    }
