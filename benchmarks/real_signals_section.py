"""The part of docs/evidence_real.md on the mistakes that no tool reports, from real_twins.json and
real_signals.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from real_tables import interval, table

Json = Mapping[str, Any]
OTHERS, NEUTRAL, NONE = "other sites' hints", "neutral", "none"
NOW, AS_USER = "now/system", "now/user"
FEW = 10
"""With fewer sessions an interval by bootstrap is too narrow."""
TITLE = "## Mistakes that no tool reports: does a real model follow their hints?"
HOW = (
    "How to read it: *over other sites' hints* and *over neutral text* have to be above 0 together"
    " before one can say that the hint itself moves the model; over no hint, any text may."
    " *Right without a hint* counts the sites at which the model already prefers what is right:"
    " if that is nearly all of them, a hint has little left to do, and they say little about it."
    " Below ten sites the intervals are too narrow. A model with fewer sites than planned was"
    " stopped by the time limit, in the order of a hash."
)
READ = (
    "What SmolLM2 makes of them. `user_rejected` is the one kind whose hint, the person's words,"
    " moves it towards what is right beyond what any text does: but from log-odds of about -11 to"
    " about -7, so it would still push, most of it is what neutral text does as well, and in a user"
    " message the same words make the call likelier. `wasted_call` beats other sites' hints only"
    " because these mislead; over neutral text there is nothing. `broke_check` does nothing, where"
    " the model is right already. `user_corrected` does slight harm: its text is the person's words"
    " ('the comment must stay'), and we see nothing to mend in them. `taken_back` does harm: its"
    " text names the file. Right is one message here: that another way of not pushing got likelier"
    " is not seen. And a model of this size says little about a larger one."
)
WORDINGS = (
    "A name that stands in the context gets likelier, a wrong one too, even in a text that warns"
    " of it: this was seen in the first look. So since then the text of a person's reason does not"
    " name the file, and the second line is what `recompose hints` writes by default if a person"
    " says these words; the third line is what it wrote before. No person says why in the twins:"
    " one sentence was put in their mouth, the same at each site, and it was chosen on the first"
    " look. `taken_back_later` without a reason still names the file, because the twins'"
    " trainings in [kinds.md](kinds.md) were run with that text: do not use it on real logs."
)
FIRST = (
    "These sessions were read first. That they showed the hint of `taken_back` to do harm led to"
    " the change above, and to the second seed, on which the tables above were made."
)
PUBLIC = (
    "The audit cannot measure these kinds on real logs: of the hints on the 120 sessions of"
    " `tests/labels/signals` (`sites.min_confidence = 0`) none names what would be right."
    " `benchmarks/real_signals.py` on folders takes a proxy there: right is what the agent did next"
    " that was carried out, or for an edit that broke a check the same text with the later edit in"
    " it. The last 1,024 tokens, bfloat16, a system message above the call."
)
PUBLIC_LIMITS = (
    "The run was stopped by its time limit, in the order of a hash; what it measured is of one"
    " repository. The next call is often another step and not the repair, which makes the proxy"
    " weak, and most contexts do not fit."
)


def twins_in_words(twins: Json | None) -> list[str]:
    """For a newcomer, what each model makes of the hints of each kind."""
    sentences: list[str] = []
    for name, model in (twins or {"models": {}})["models"].items():
        rows = _rows(model)
        groups: dict[str, list[str]] = {}
        for kind in _kinds(model):
            groups.setdefault(_effect(rows, kind), []).append(f"`{kind}`")
        effects = "; ".join(f"{effect} at {', '.join(kinds)}" for effect, kinds in groups.items())
        sentences.append(
            "At scripted mistakes that no tool reports, where what is right is known, the hints"
            f" move {name} {effects}: both over text without information and over other sites'"
            " hints."
        )
    return sentences


def signals_section(twins: Json, first: Json, signals: Json) -> str:
    """The twins, where what is right is known, an earlier look at them, and the public sessions,
    where a proxy stands."""
    parts = [TITLE, _about_twins(twins), HOW]
    parts += [_table(name, model) for name, model in twins["models"].items()]
    parts += [READ, *_wordings(twins), *_first_look(first), *_public(signals)]
    return "\n\n".join(parts) + "\n"


def _about_twins(twins: Json) -> str:
    """What was measured, and which kinds are not measurable."""
    about = twins["about"]
    missing = [f"`{kind}`" for kind, count in about["kinds"].items() if not count["sites"]]
    rules = ", ".join(
        f"`{kind}` {', '.join(f'`{rule}`' for rule in count['rules'])}"
        for kind, count in about["kinds"].items()
        if count["rules"]
    )
    return (
        "On public sessions nobody knows what would have been right there. In the workshop's twins"
        " (`benchmarks/twins/world.py`) it is known by construction: each is a small scripted"
        " session of one kind, in which a player with a habit makes the mistake, and a person or a"
        " later check reacts. Right is what the same player does without its habit: say that it is"
        " done instead of pushing (`user_rejected`), keep the comment (`user_corrected`), edit the"
        " other file (`taken_back`), use the name that is defined (`broke_check`), go on with the"
        " next edit (`wasted_call`). The log-odds are those of the audit, at the first token at"
        " which the two messages part; nothing is trained. Fresh sessions of seed"
        f" {about['seed']}, {about['tasks_each']} tasks of each kind (in three of ten the habit is"
        f" right, so there is no site); {about['donors']} other sites' hints for each site, that"
        f" advise something else; {about['dtype']}. Intervals are 95 %, by bootstrap over sessions."
        f" Rules that found the sites: {rules}. Not measurable: {', '.join(missing) or 'none'} (no"
        " twin, 0 sites), and the other rules of the kinds above. `taken_back` has here the hints"
        " of `taken_back_later`: by default it has one only where a person said why, so none."
    )


def _table(name: str, model: Json) -> str:
    """One line per kind."""
    rows = _rows(model)
    head = (
        "kind",
        "sites",
        "right without a hint",
        "over other sites' hints",
        "over neutral text",
        "over no hint",
        "as a user message, over neutral text there",
    )
    lines = []
    for kind in _kinds(model):
        sites = [site for site in model["sites"] if site["kind"] == kind]
        right = sum(site["log_odds"]["none"] > 0 for site in sites)
        cells = [interval(rows.get((kind, NOW, base))) for base in (OTHERS, NEUTRAL, NONE)]
        as_user = interval(rows.get((kind, AS_USER, NEUTRAL)))
        lines.append((f"`{kind}`", str(len(sites)), str(right), *cells, as_user))
    title = f"### The twins: {name} (as `{model['family']}`), {len(model['sites'])} of"
    return f"{title} {model['sites_planned']} sites\n\n{table(head, lines).rstrip()}"


def _wordings(twins: Json) -> Sequence[str]:
    """What a person's reason for taking an edit back does, with the file's name and without it."""
    texts = {"now": "as in the tables: the file's name, no reason"}
    texts |= {name: f"`{text}`" for name, text in twins["about"]["reasons"].items()}
    lines = []
    for name, model in twins["models"].items():
        rows = _rows(model)
        for wording, text in texts.items():
            row = rows.get(("taken_back", f"{wording}/system", NEUTRAL))
            over_none = rows.get(("taken_back", f"{wording}/system", NONE))
            if row:
                lines.append((name, text, str(row["n"]), interval(row), interval(over_none)))
    head = ("model", "the hint at `taken_back`", "sites", "over neutral text", "over no hint")
    return ("### The name of the file that was taken back", table(head, lines).rstrip(), WORDINGS)


def _first_look(first: Json) -> Sequence[str]:
    """The sessions on which the fault of a wording was seen."""
    about = first["about"]
    tables = [_table(name, model) for name, model in first["models"].items()]
    return (
        f"### First look: seed {about['seed']}",
        FIRST,
        *(text.replace("### The twins: ", "#### ") for text in tables),
    )


def _public(signals: Json) -> Sequence[str]:
    """The proxy on public sessions, and why most of their sites could not be measured."""
    lines = []
    for name, model in signals["models"].items():
        rows = _rows(model)
        for kind, count in signals["about"]["kinds"].items():
            row = rows.get((kind, NOW, OTHERS))
            measured = str(row["n"]) if row else "0"
            reasons = sorted(set(count) - {"sites", "hints", "for_the_audit", "for_this"})
            lines.append(
                (
                    name,
                    f"`{kind}`",
                    *(str(number) for number in (count["hints"], count.get("for_this", 0))),
                    measured,
                    *(interval(rows.get((kind, NOW, base))) for base in (OTHERS, NEUTRAL)),
                    "; ".join(f"{reason}: {count[reason]}" for reason in reasons),
                )
            )
    head = ("model", "kind", "hints", "with a next call", "measured", "over other sites' hints")
    shown = table((*head, "over neutral text", "not measurable"), lines).rstrip()
    return ("### Public sessions: a proxy", PUBLIC, shown, PUBLIC_LIMITS)


def _effect(rows: Mapping[tuple[str, str, str], Json], kind: str) -> str:
    """What the intervals over neutral text and over other sites' hints say together."""
    both = [rows[kind, NOW, base] for base in (NEUTRAL, OTHERS)]
    if any(row["sessions"] < FEW for row in both):
        return f"in a way that fewer than {FEW} sites cannot tell"
    if all(row["low"] > 0 for row in both):
        return "towards the right decision"
    if all(row["high"] < 0 for row in both):
        return "away from the right decision"
    return "not demonstrably"


def _kinds(model: Json) -> list[str]:
    return sorted({site["kind"] for site in model["sites"]})


def _rows(model: Json) -> dict[tuple[str, str, str], Json]:
    """(kind, text and place, what it is compared with) -> the row."""
    return {(row["kind"], *row["contrast"].split(" - ")): row for row in model["rows"]}
