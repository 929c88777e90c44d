"""HTML elements and the frame of a page. Text is escaped unless this module produced it, so log
content cannot become an element or an attribute.

    el("p", "a < b", cls="note")  -> <p class="note">a &lt; b</p>

Only the elements and attributes listed below can be written: no event handlers, no style
attributes, no links except within the page. The content security policy allows one inline style
sheet and one inline script, by their hashes, and forbids everything else. Long content travels
packed (`packed`): the script inserts only what `el` wrote.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from composer_replication.core.harmless import harmless

_NAMES = """
a article aside b br button caption code dd del details dfn div dl dt em figcaption figure footer
h1 h2 h3 header input ins label li main nav ol option output p pre section select small span strong
summary table tbody td th thead tr ul svg g line path polyline rect circle text title
"""
_ATTRIBUTES = """class id href title role lang scope colspan tabindex hidden open type
value autocomplete spellcheck viewBox width height x y x1 x2 y1 y2 cx cy r points rx
preserveAspectRatio focusable"""
ELEMENTS, ATTRIBUTES = frozenset(_NAMES.split()), frozenset(_ATTRIBUTES.split())
PREFIXES = ("aria-", "data-")
VOID = frozenset({"br", "input"})
SCRIPTS = ("page.js", "lists.js")
_SESSIONS_META = '<meta name="recompose-sessions" content="'
_SESSIONS = re.compile(_SESSIONS_META + r'([\w-]*)">')
_PACKED = re.compile(r'<script type="text/plain" id="[\w-]+">([^<]*)</script>')


class Html(str):
    """Text that is safe in a page because `el` or `join` produced it."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


def escape(text: str) -> Html:
    """Text for a page, with control characters made visible and markup characters escaped.

    >>> escape('</script>\\x1b[31m')
    '&lt;/script&gt;␛[31m'
    """
    return Html(html.escape(harmless(text), quote=True))


def join(*children: Child) -> Html:
    """The children concatenated: text is escaped, None is skipped, lists are flattened."""
    return Html("".join(_parts(children)))


def _parts(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, Html):
            yield child
        elif isinstance(child, (str, int, float)):
            yield escape(str(child))
        elif child is not None:
            yield from _parts(child)


def el(name: str, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """One element. `cls` is its class; "_" in an attribute name becomes "-".

    >>> el("td", 3, cls="number", aria_label="three")
    '<td class="number" aria-label="three">3</td>'

    None and False leave an attribute out. Raises ValueError for an element or attribute that is not
    on the list, and for a link that leaves the page.
    """
    if name not in ELEMENTS:
        raise ValueError(f"no element {name!r} on this page")
    attribute_texts: list[str] = []
    for key, value in attributes.items():
        key = "class" if key == "cls" else key.replace("_", "-")
        if value is None or value is False:
            continue
        if key not in ATTRIBUTES and not key.startswith(PREFIXES):
            raise ValueError(f"no attribute {key!r} on this page")
        if key == "href" and not str(value).startswith("#"):
            raise ValueError(f"a link to {value!r} leads out of this page")
        attribute_texts.append(f" {key}" if value is True else f' {key}="{escape(str(value))}"')
    opening = f"<{name}{''.join(attribute_texts)}>"
    return Html(opening if name in VOID else f"{opening}{join(*children)}</{name}>")


def table(
    rows: Iterable[Iterable[Child]],
    *,
    head: Sequence[Child],
    numbers: Iterable[int] = (),
    caption: str = "",
    label: str = "",
) -> Html:
    """A table with one header row and right-aligned columns `numbers`; `label` names it to a screen
    reader where a heading above says what a caption would.

    On a narrow screen each row is a block, its cells below each other with their headings.
    """
    right = set(numbers)

    names = [str(name) if isinstance(name, str) else "" for name in head]

    def cells(row: Iterable[Child]) -> list[Html]:
        return [
            el("td", cell, cls="number" if i in right else None, data_label=names[i] or None)
            for i, cell in enumerate(row)
        ]

    top = el(
        "tr",
        [
            el("th", name, scope="col", cls="number" if i in right else None)
            for i, name in enumerate(head)
        ],
    )
    inside = [
        el("caption", caption) if caption else None,
        el("thead", top),
        el("tbody", [el("tr", cells(row)) for row in rows]),
    ]
    return el(
        "div",
        el("table", inside),
        cls="wide",
        tabindex=0,
        role="group",
        aria_label=caption or label or "table",
    )


def listed_counts(rows: Sequence[tuple[str, int]], *, most: int) -> str:
    """The first counts as text, and the number of the others.

    >>> listed_counts([("Edit", 9), ("Read", 2), ("Bash", 1)], most=2)
    'Edit 9, Read 2, and 1 more'
    """
    counts = ", ".join(f"{name} {n}" for name, n in rows[:most])
    return counts + (f", and {len(rows) - most} more" if len(rows) > most else "")


def plural(count: int, noun: str, nouns: str = "") -> str:
    """A count with its noun; `nouns` if its plural is not made with an s.

    >>> plural(1, "turn"), plural(2, "turn"), plural(2, "launch", "launches")
    ('1 turn', '2 turns', '2 launches')
    """
    return f"{count} {noun if count == 1 else nouns or f'{noun}s'}"


def with_code(text: str) -> Html:
    """A sentence in which what stands between backticks is code.

    >>> with_code("`recompose report` writes it")
    '<code>recompose report</code> writes it'
    """
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one backtick without its partner
        return join(text)
    return join(el("code", part) if i % 2 else part for i, part in enumerate(parts))


def asset(name: str) -> str:
    """The text of page.css, page.js or lists.js."""
    return (files("composer_replication.report") / name).read_text("utf-8")


def script_text() -> str:
    """The script of every page."""
    return "".join(map(asset, SCRIPTS))


def packed(name: str, value: Any) -> Html:
    """A value that the script unpacks: JSON, deflated, in base64, as a block that cannot run."""
    if not name.replace("-", "").isalnum():
        raise ValueError(f"no name for packed data: {name!r}")
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    deflated = zlib.compress(text.encode("utf-8", "replace"), 9, wbits=-15)
    data = base64.b64encode(deflated).decode("ascii")
    return Html(f'<script type="text/plain" id="{name}">{data}</script>')


def unpacked(page: str) -> list[str]:
    """The JSON texts that a page holds packed.

    >>> unpacked(packed("sites-data", ["a < b"]))
    ['["a < b"]']
    """
    return [
        zlib.decompress(base64.b64decode(data), wbits=-15).decode("utf-8")
        for data in _PACKED.findall(page)
    ]


def _source(text: str) -> str:
    """A source of the policy: the hash of an inline text, as browsers compute it."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def session_mark(session_id: str) -> str:
    """What a page holds of the id of a session that it was made of: eight characters of its hash.

    >>> session_mark("s1")
    '6LwWPILu'
    """
    digest = hashlib.sha256(session_id.encode("utf-8", "replace")).digest()
    return base64.urlsafe_b64encode(digest[:6]).decode("ascii")


def sessions_of_page(page: str) -> frozenset[str] | None:
    """The marks of the sessions that a page was made of; None = it does not say.

    >>> sessions_of_page(document("logs", sessions=["s1"])) == {session_mark("s1")}
    True
    """
    found = _SESSIONS.search(page)
    return None if found is None else frozenset(re.findall(r".{8}", found[1]))


def document(title: str, *body: Child, sessions: Iterable[str] | None = None) -> str:
    """A complete page: one file that sends no request and runs no other script.

    `sessions` are the ids of all sessions that it was made of, those that it only counts included:
    `recompose ingest --forget` finds them by their marks. None = not made of sessions.
    """
    marks = "" if sessions is None else "".join(sorted(map(session_mark, sessions)))
    made_of = "" if sessions is None else f'{_SESSIONS_META}{marks}">\n'
    style, script = asset("page.css"), script_text()
    policy = (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; base-uri"
        " 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en" data-step="first">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer"'
        ' content="no-referrer">\n'
        f"{made_of}<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{join(*body)}\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )
