"""The part of a page between two marks, which a benchmark writes."""

from __future__ import annotations

from pathlib import Path


def write(page: Path, begin: str, end: str, text: str) -> None:
    """Put a text between the marks of a page. Raises ValueError if a mark is missing or stands
    there twice: nothing is written then."""
    try:
        before, rest = page.read_text("utf-8").split(begin)
        _, after = rest.split(end)
    except ValueError:
        raise ValueError(f"{page} must hold {begin} and, after it, {end} once each") from None
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", "utf-8")
