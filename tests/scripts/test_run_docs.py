"""The documentation site: every page is in the navigation, and a link that leads nowhere is found.
`make docs` builds the site itself."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from run_docs import UNLISTED, broken_links, copy_source, pages_in  # noqa: E402


def test_every_page_is_in_the_navigation_once(repository_root: Path) -> None:
    project = tomllib.loads((repository_root / "zensical.toml").read_text("utf-8"))["project"]
    listed = [page for entry in project["nav"] for page in pages_in(entry)]
    docs = repository_root / "docs"
    pages = [*docs.rglob("*.md"), *docs.rglob("*.ipynb")]
    there = {path.relative_to(docs).with_suffix(".md").as_posix() for path in pages}
    assert sorted(listed) == sorted(there - UNLISTED)


def test_links_out_of_the_docs_become_names_and_others_stay(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "sub").mkdir(parents=True)
    (docs / "a.md").write_text("[x](../README.md) and [b](sub/b.md#c)", "utf-8")
    (docs / "sub" / "b.md").write_text("[a](../a.md) and [y](../../examples/y.toml)", "utf-8")
    copy_source(docs, tmp_path / "out")
    assert (tmp_path / "out" / "a.md").read_text("utf-8") == (
        "x (`README.md` in the repository) and [b](sub/b.md#c)"
    )
    assert (tmp_path / "out" / "sub" / "b.md").read_text("utf-8") == (
        "[a](../a.md) and y (`examples/y.toml` in the repository)"
    )


def test_a_broken_link_and_a_broken_anchor_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text('<h2 id="there">T</h2>', "utf-8")
    links = ["b.html", "b.html#there", "#top", "http://elsewhere/x", "b.html#gone", "c.html"]
    text = '<p id="top">' + "".join(f'<a href="{link}">l</a>' for link in links)
    (tmp_path / "a.html").write_text(text, "utf-8")
    count, broken = broken_links(tmp_path)
    assert count == 5 and broken == ["a.html: b.html#gone", "a.html: c.html"]


def test_what_a_page_loads_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("", "utf-8")
    sheet, script = 'href="https://fonts.example/f.css"', 'src="//cdn.example/a.js"'
    head = f'<link rel="stylesheet" {sheet}><script {script}>'
    (tmp_path / "a.html").write_text(f'{head}</script><link href="style.css">', "utf-8")
    count, broken = broken_links(tmp_path)
    assert count == 1 and broken == [
        "a.html: https://fonts.example/f.css (another host)",
        "a.html: //cdn.example/a.js (another host)",
    ]


def test_the_pages_of_settings_and_errors_are_what_the_code_says(repository_root: Path) -> None:
    command = [sys.executable, "scripts/docs_settings.py", "--check"]
    done = subprocess.run(command, cwd=repository_root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_error_has_a_place_on_the_page(repository_root: Path) -> None:
    from composer_replication.core import errors

    text = (repository_root / "docs" / "errors.md").read_text("utf-8")
    names = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ComposerError)
    ]
    for name in names:
        assert name == "ComposerError" or f"\n## {name}\n" in text, name
