"""Open a page in the user's browser, or say where it is."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from composer_replication.cli.console import Screen


def open_in_browser(screen: Screen, page: Path) -> None:
    """Open the page; prints its path if no browser could be started."""
    path = page.absolute()
    if not webbrowser.open(path.as_uri()):
        screen.line(f" no browser could be opened here: open {path} in one", style="yellow")
