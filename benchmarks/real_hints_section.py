"""Whether hints act without any training, for docs/evidence_real.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from real_tables import in_words, interval, table

Json = Mapping[str, Any]
NOW, EARLIER = "now/system", "earlier/system"
OTHERS, NEUTRAL, NONE = "other sites' hints", "neutral", "none"
POSITIONS = ("system", "user", "reminder", "result")
_MOVES = ("moves towards", "moves away from", "is not shown to move towards or away from")
_HEAD = """## Does a real model follow the hints?

Nothing is trained here. At each site, the logged message is scored up to the first token at
which it can no longer become right. The log-odds of right against wrong at that token are compared
between contexts (`recompose hints --audit` measures the same). Positive is good. Sites without a
known right side are left out.

- **Sites**: those of {sessions} sessions of {repositories} public repositories.
- **Split**: by the hash of the repository's name. Wordings and positions were meant to be chosen on
  *train*. Quote the results on *held out*.
- **Intervals**: 95 %, by bootstrap over sessions. There is no correction for multiple comparisons.
- **Setup**: windows of {max_tokens} tokens, float32.

Four caveats:

- A mean over all sites can hide a kind of mistake whose hints do harm. Read the tables by kind,
  too.
- The current wordings were chosen on constructed sites and on sessions of entireio/cli, which is in
  *train*. No text was fitted to log-odds of the held-out repositories. But some of their sessions
  had been read earlier in the search for wrong hints, so they are held out from training, not
  unseen.
- A hint often names the tool that is scored as right. So part of its lift is that the name is in
  the context. This is what a hint is for, and not evidence that the model understood the mistake.
- The log-odds are of the first token at which right and wrong diverge, not of a whole message.

What was changed after a first look:

- Edits whose text is in view had been scored as if reading again were right, although their hint
  says to copy the text. They now have no known right side and are left out. With them, SmolLM2's
  lift on held-out repositories was +0.85 [+0.05, +1.71] over other sites' hints, for 59 sites.
- All numbers use the hints and decisions of commit 6920c34. Later that day the decisions of refused
  options, of large files and of a few other kinds were corrected, so a new run has a few other
  sites.
"""


def hints_in_words(value: Json | None) -> list[str]:
    """What the hints do at held-out mistakes, in all and by kind."""
    sentences = []
    for name, model in (value or {"models": {}})["models"].items():
        rows = rows_of(model)
        neutral, others = (rows["held_out", "all", f"{NOW} - {base}"] for base in (NEUTRAL, OTHERS))
        sentences.append(
            f"With a hint in its context, {name}"
            f" {in_words(neutral, _MOVES)} the right decision at mistakes in held-out"
            f" repositories: {interval(neutral)} in log-odds over text without information in"
            f" the same place, {interval(others)} over the hints of other sites"
            f" ({neutral['n']} sites)."
        )
        harmful = [
            f"`{kind}` ({interval(row)}, {row['n']} sites)"
            for (group, kind, contrast), row in rows.items()
            if (group, contrast) == ("held_out", f"{NOW} - {OTHERS}") and kind != "all"
            if row["high"] is not None and row["high"] < 0
        ]
        if harmful:
            sentences.append(
                f"Not so for every kind: as a system message, the hints of {', '.join(harmful)}"
                f" move {name} less towards the right decision than other sites' hints do."
            )
    return sentences


def rows_of(model: Json) -> dict[tuple[str, str, str], Json]:
    """The rows of a model by group, kind and contrast."""
    return {(r["group"], r["kind"], r["contrast"]): r for r in model["rows"]}


def hints_section(value: Json) -> str:
    """How it was measured, and the tables of every model."""
    about = value["about"]
    parts = [
        _HEAD.format(
            sessions=about["sessions"],
            repositories=len(about["repositories"]),
            max_tokens=about["max_tokens"],
        )
    ]
    for name, model in value["models"].items():
        rows = rows_of(model)
        parts.append(f"### {name} (as `{model['family']}`)\n")
        parts.append(_wordings(rows))
        parts.append(_positions(rows))
        parts += [_kinds(rows, group) for group in ("held_out", "train")]
    return "\n".join(parts)


def _wordings(rows: Mapping[tuple[str, str, str], Json]) -> str:
    lines = [
        (
            group.replace("_", " "),
            label,
            str(row["n"]),
            str(row["sessions"]),
            *(interval(rows.get((group, "all", f"{key} - {b}"))) for b in (OTHERS, NEUTRAL, NONE)),
        )
        for group in ("train", "held_out")
        for key, label in ((EARLIER, "as before 2026-11-23"), (NOW, "now: the right action"))
        if (row := rows.get((group, "all", f"{key} - {NONE}")))
    ]
    head = (
        "repositories",
        "wording",
        "sites",
        "sessions",
        f"over {OTHERS}",
        "over neutral text",
        "over no hint",
    )
    return "Wordings, as a system message directly above the mistake:\n\n" + table(head, lines)


def _positions(rows: Mapping[tuple[str, str, str], Json]) -> str:
    lines = [
        (
            group.replace("_", " "),
            position,
            str(row["n"]),
            interval(row),
            interval(rows.get((group, "all", f"now/{position} - {NONE}"))),
            interval(rows.get((group, "all", f"neutral/{position} - {NONE}"))),
        )
        for group in ("train", "held_out")
        for position in POSITIONS
        if (row := rows.get((group, "all", f"now/{position} - {NEUTRAL}")))
    ]
    head = (
        "repositories",
        "position",
        "sites",
        "over neutral text there",
        "over no hint",
        "neutral text over no hint",
    )
    return "Positions (`hints.position`), current wording:\n\n" + table(head, lines)


def _kinds(rows: Mapping[tuple[str, str, str], Json], group: str) -> str:
    kinds = sorted({kind for _, kind, _ in rows} - {"all"})
    lines = [
        (
            kind,
            str(row["n"]),
            str(row["sessions"]),
            interval(rows.get((group, kind, f"{EARLIER} - {OTHERS}"))),
            interval(rows.get((group, kind, f"{NOW} - {OTHERS}"))),
            interval(rows.get((group, kind, f"now/user - {NEUTRAL}"))),
            f"{row['positive']} of {row['n']}",
        )
        for kind in kinds
        if (row := rows.get((group, kind, f"{NOW} - {OTHERS}")))
    ]
    head = (
        "kind",
        "sites",
        "sessions",
        f"wording before, over {OTHERS}",
        f"now, over {OTHERS}",
        "now, as a user message, over neutral text there",
        f"above {OTHERS}",
    )
    repositories = {"held_out": "held-out repositories", "train": "repositories of *train*"}
    return f"By kind, {repositories[group]}:\n\n" + table(head, lines)
