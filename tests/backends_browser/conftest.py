"""A browser is optional: these tests run where Playwright and a Chromium are installed (`make
backends` installs Playwright), and elsewhere say what is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="`make backends` runs this test")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium-headless-shell")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens the text of a page; fails at the end on any error, refusal or request of it."""
    problems: list[str] = []
    contexts: list[Any] = []

    def open_page(text: str, *, anchor: str = "", phone: bool = False, dark: bool = False) -> Any:
        path = tmp_path / "page.html"
        path.write_text(text, "utf-8")
        size = {"width": 390, "height": 844} if phone else {"width": 1200, "height": 900}
        context = chromium.new_context(viewport=size, color_scheme="dark" if dark else "light")
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(f"error {error}"))
        page.on("console", lambda message: problems.append(f"console {message.text}"))
        page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
        page.on("request", lambda r: r.url.startswith("file:") or problems.append(r.url))
        page.goto(path.as_uri() + anchor)
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
