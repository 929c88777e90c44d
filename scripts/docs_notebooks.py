"""Run notebooks and write each with its outputs as a page; a cell that raises ends it with 1.

    .venv-docs/bin/python scripts/docs_notebooks.py FOLDER NOTEBOOK...

Part of `make docs`. The notebooks are committed without outputs, and run from the repository's
root.
"""

from __future__ import annotations

import re
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CELL_S = 120
"""Seconds after which a cell counts as hanging."""
_TERMINAL = re.compile(r"\x1b\[[0-9;]*m")


def page(notebook: Any) -> str:
    """A notebook's cells as Markdown, each with what it put out.

    >>> cell = {"cell_type": "code", "source": "1 + 1", "outputs": [{"data": {"text/plain": "2"}}]}
    >>> print(page({"cells": [cell]}))
    ```python
    1 + 1
    ```
    <BLANKLINE>
    ```text
    2
    ```
    <BLANKLINE>
    """
    parts: list[str] = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(cell["source"].strip())
            continue
        parts.append(f"```python\n{cell['source'].strip()}\n```")
        parts += [shown for output in cell["outputs"] if (shown := output_of(output))]
    return "\n\n".join(parts) + "\n"


def output_of(output: Any) -> str:
    """One output: a picture or HTML as it is, text as a block; warnings stay out of the page.

    >>> output_of({"name": "stderr", "text": "TqdmWarning: IProgress not found"})
    ''
    """
    if output.get("name") == "stderr":
        return ""
    data = output.get("data", {})
    for kind in ("image/svg+xml", "text/html"):
        if kind in data:
            return f'<div class="output">{"".join(data[kind]).strip()}</div>'
    text = output.get("text") or data.get("text/plain") or ""
    text = _TERMINAL.sub("", "".join(text)).rstrip()
    return f"```text\n{text}\n```" if text else ""


def main(arguments: list[str]) -> int:
    """Run each notebook and write its page; returns 1 if a cell raised."""
    # .venv-docs has them, .venv does not
    nbformat, nbclient = import_module("nbformat"), import_module("nbclient")
    errors = import_module("nbclient.exceptions")
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for path in map(Path, arguments[1:]):
        began = time.monotonic()
        notebook: Any = nbformat.read(path, as_version=4)
        client = nbclient.NotebookClient(
            notebook,
            timeout=CELL_S,
            kernel_name="python3",
            resources={"metadata": {"path": str(ROOT)}},
        )
        client.create_kernel_manager().transport = "ipc"  # no port is opened
        try:
            client.execute()
        except (errors.CellExecutionError, errors.CellTimeoutError) as error:
            print(f"docs: {path.name}: {_TERMINAL.sub('', str(error))}")
            failed = 1
            continue
        (folder / path.with_suffix(".md").name).write_text(page(notebook), "utf-8")
        print(f"docs: {path.name} ran in {time.monotonic() - began:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
