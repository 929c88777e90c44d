"""Build the documentation site, check every link in it, and say whether that ran.

    python3 scripts/run_docs.py            (make docs)

1. .venv-docs: the packages of .venv, and those of requirements/docs.txt on top.
2. build/docs_src: docs/, with links to files outside of it as plain names, and the notebooks, run
   (docs_notebooks.py).
3. `zensical build --strict` into build/site, then every href and #anchor of its pages.

Ends with "docs: 42 pages, 3 notebooks ran, 1,204 links, in 40 s". "docs: not installed (why)" if
the packages cannot be had, which is no failure (exit code 0); a page outside the navigation or a
broken link is one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import run_peers

ROOT = Path(__file__).resolve().parent.parent
FOLDER, PINS = ROOT / ".venv-docs", ROOT / "requirements" / "docs.txt"
SOURCE, SITE = ROOT / "build" / "docs_src", ROOT / "build" / "site"
OUTSIDE = re.compile(r"\[([^\]]*)\]\((\.\./[^)]*)\)")
UNLISTED = frozenset({"backends/trl.md", "backends/verl.md", "backends/monarch.md"}) | {
    "backends/prime_rl.md"
}
"""Pages without a place of their own in the navigation; backends.md leads to them."""


def copy_source(docs: Path, source: Path) -> None:
    """Copy the pages; a link that leads out of docs/ becomes the name of its file."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(docs, source, ignore=shutil.ignore_patterns("*.ipynb"))
    for page in source.rglob("*.md"):

        def plain(link: re.Match[str], folder: Path = page.parent) -> str:
            if (folder / link[2]).resolve().is_relative_to(source.resolve()):
                return link[0]
            return f"{link[1]} (`{link[2].replace('../', '')}` in the repository)"

        page.write_text(OUTSIDE.sub(plain, page.read_text("utf-8")), "utf-8")


def pages_in(nav: Any) -> Iterator[str]:
    """The pages that the navigation leads to."""
    for entry in nav if isinstance(nav, list) else nav.values():
        if isinstance(entry, str):
            yield entry
        else:
            yield from pages_in(entry)


class Page(HTMLParser):
    """The links and anchors of a page, and what a browser would load from other hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
                if tag != "a" and urlsplit(value).netloc:
                    self.loads.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(site: Path) -> tuple[int, list[str]]:
    """(links looked at, those that lead nowhere, as "page: link") of the pages of a site.
    What a page loads from another host leads nowhere for a reader without a network."""
    pages: dict[Path, Page] = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = page = Page()
        page.feed(path.read_text("utf-8"))
    count, broken = 0, list[str]()
    for path, page in pages.items():
        if path.name == "404.html":  # its links are from the root of a server
            continue
        broken += [f"{path.relative_to(site)}: {load} (another host)" for load in page.loads]
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            count += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            there = target.exists() and (
                not parts.fragment
                or target not in pages
                or unquote(parts.fragment) in pages[target].anchors
            )
            if not there:
                broken.append(f"{path.relative_to(site)}: {link}")
    return count, broken


def main() -> int:
    """Build and check; returns the exit code."""
    began = time.monotonic()
    if problem := run_peers.install(FOLDER, pins=PINS):
        print(f"docs: not installed ({problem})")
        return 0
    copy_source(ROOT / "docs", SOURCE)
    python = run_peers.python_in(FOLDER)
    command = [str(python), str(ROOT / "scripts" / "docs_notebooks.py"), str(SOURCE / "notebooks")]
    notebooks = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    env = {**run_peers.offline_environment(), "IPYTHONDIR": str(ROOT / "build" / "ipython")}
    ran = subprocess.run([*command, *map(str, notebooks)], cwd=ROOT, env=env, check=False)
    if ran.returncode or not notebooks:
        print("docs: a notebook failed")
        return 1
    nav = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    listed = {page for entry in nav for page in pages_in(entry)}
    there = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.md")} - UNLISTED
    if listed != there:
        print(f"docs: in one of navigation and docs/ only: {', '.join(sorted(listed ^ there))}")
        return 1
    program = [str(python), "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(program, cwd=ROOT, env=env, check=False)
    if done.returncode:
        print("docs: the build failed")
        return 1
    count, broken = broken_links(SITE)
    for link in broken:
        print(f"docs: leads nowhere: {link}")
    pages = len(list(SITE.rglob("*.html")))
    if broken or not count:
        print(f"docs: {len(broken)} of {count} links are broken")
        return 1
    seconds = time.monotonic() - began
    print(
        f"docs: {pages} pages, {len(notebooks)} notebooks ran, {count:,} links, in {seconds:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
