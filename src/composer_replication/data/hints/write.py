"""Hints for the sites of a session: a writer per kind, checked before they are kept.

report = write_hints(session, sites, settings=HintsSettings())
report.hints[0].text -> "Reminder: available tools: Bash, Edit, Read."
report.refused[0].reason -> "too_long"
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from composer_replication.core.config.data_settings import HintsSettings
from composer_replication.core.errors import ConfigError, SiteError
from composer_replication.core.site import Hint, Site
from composer_replication.core.surroundings import without_keys
from composer_replication.core.trace import Session
from composer_replication.data.hints.context import (
    SiteContext,
    Writer,
    json_scalars,
    site_context,
    turn_text,
)
from composer_replication.data.hints.decisions import decision_of
from composer_replication.data.hints.leak import (
    Gram,
    Occurrences,
    argument_turns,
    find_copied_call,
    find_leak,
    grams,
)
from composer_replication.data.hints.mistaken import named_operand, prohibition
from composer_replication.data.hints.persons_writers import ANSWER, PERSON, answer_in_words
from composer_replication.data.hints.refers import listed_names, refers_to
from composer_replication.data.hints.rules import read_rules
from composer_replication.data.hints.seen import known_paths_near, track_places
from composer_replication.data.hints.templates import TEMPLATES
from composer_replication.data.hints.writers import (
    BUILT_IN,
    KNOWS,
    WRITERS,
    kind_rule,
    tool_rule,
    used_hindsight,
)
from composer_replication.data.sites.by_path import did_you_mean, load_function, users_code
from composer_replication.data.sites.shell_rules import SHELL_RULES
from composer_replication.data.sites.tool_errors import CALL_IS_WRONG

_WORD = re.compile(r"\w+")
KNOWN_KINDS = frozenset(
    (*WRITERS, "other", *(r.kind for r in CALL_IS_WRONG), *(r.kind for r in SHELL_RULES))
)
"""The kinds of mistakes that the built-in detectors give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A hint that was written but not kept, with the reason and the words that caused it.

    Reasons: "empty", "too_long", "quotes_later_text", "copies_later_call", "names_the_mistake",
    "gives_the_answer" (a person's words that say what a later call did).
    Example: Refusal(site_id="s1:7:c1", kind="file_missing", writer="mine",
    reason="quotes_later_text", detail="src/b.py (turn 9)")
    """

    site_id: str
    kind: str
    writer: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HintReport:
    """The hints kept, those refused, and the mistakes for which no writer had anything to say.

    `without` counts by kind the mistakes whose writers returned None; `left_out` the sites of other
    categories. `warned` counts the kept hints of the user's own rules and writers that name the
    mistaken operand or forbid something: a person may say "never", but it makes a model likelier to
    do it.
    """

    hints: tuple[Hint, ...] = ()
    refused: tuple[Refusal, ...] = ()
    without: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    warned: int = 0

    @property
    def refusals(self) -> dict[str, int]:
        """The number of refused hints, by reason."""
        return dict(Counter(r.reason for r in self.refused).most_common())


@dataclass(frozen=True, slots=True, kw_only=True)
class HintDraft:
    """A hint as it was written, before anything was checked; `knows` is what hindsight it used."""

    context: SiteContext
    text: str
    writer: str
    knows: tuple[str, ...]


def write_hints(session: Session, sites: Iterable[Site], *, settings: HintsSettings) -> HintReport:
    """At most one hint per mistake of this session, in the order of the sites; nothing is kept that
    quotes a later turn.

    Order of writers: the one set for the kind, a rule of the user's that names the kind, the
    built-in of the kind, a rule that names the tool. Raises ConfigError for a writer that does not
    exist, SiteError for a site of another session.
    """
    rules = read_rules(settings.rules_file)
    drafts: list[HintDraft] = []
    without: Counter[str] = Counter()
    left_out = 0
    sites, calls = list(sites), session.calls()
    _warn_of_kinds(
        tuple(sorted(set(settings.writers) - KNOWN_KINDS - {site.kind for site in sites}))
    )
    for site in sites:
        if site.session_id != session.id:
            raise SiteError(f"site {site.id} is not of session {session.id}", where=session.id)
        if not site.is_target:
            left_out += 1
            continue
        draft = _draft(site_context(session, site, rules=rules, calls=calls), settings=settings)
        if draft is None:
            without[site.kind] += 1
        else:
            drafts.append(draft)
    checked = check_drafts(
        session,
        drafts,
        rules=rules,
        max_words=settings.max_words,
        no_answers=settings.no_answers,
    )
    return HintReport(
        hints=tuple(checked_draft for checked_draft in checked if isinstance(checked_draft, Hint)),
        refused=tuple(
            checked_draft for checked_draft in checked if isinstance(checked_draft, Refusal)
        ),
        without=dict(sorted(without.items())),
        left_out=left_out,
        warned=sum(
            isinstance(checked_draft, Hint) and _is_users(draft) and bool(_named_mistake(draft))
            for draft, checked_draft in zip(drafts, checked, strict=True)
        ),
    )


def check_drafts(
    session: Session,
    drafts: Sequence[HintDraft],
    *,
    rules: Sequence[str],
    max_words: int,
    no_answers: bool = True,
) -> list[Hint | Refusal]:
    """Each draft as a hint, or why it is none: whoever wrote it, it may not be empty, too long, or
    quote what came later; a built-in writer or a reader may not name the mistake either."""
    occurrences = Occurrences.of(session, wanted=grams(d.text for d in drafts))
    arguments = argument_turns(session)
    free = grams((*_fixed_words(), *_tool_words(session), *rules))
    checked: list[Hint | Refusal] = []
    for draft in drafts:
        if PERSON in draft.knows:
            checked.append(
                _check_persons(
                    draft, occurrences=occurrences, max_words=max_words, no_answers=no_answers
                )
            )
            continue
        refusal = _refusal(
            draft, occurrences=occurrences, arguments=arguments, free=free, max_words=max_words
        )
        checked.append(_hint(draft) if refusal is None else refusal)
    return checked


def _check_persons(
    draft: HintDraft, *, occurrences: Occurrences, max_words: int, no_answers: bool
) -> Hint | Refusal:
    """A person's words may come from after the message and forbid it, but where they are what a
    later call then does, they are marked or left out."""
    site, num_words = draft.context.site, len(draft.text.split())
    answer = answer_in_words(
        draft.text,
        session=draft.context.session,
        site_turn=site.turn,
        occurrences=occurrences,
    )
    reason, detail = "", ""
    if num_words > max_words:
        reason, detail = "too_long", f"{num_words} words, hints.max_words is {max_words}"
    elif answer is not None and no_answers:
        reason, detail = "gives_the_answer", f"{answer[0]} (turn {answer[1]})"
    if reason:
        return Refusal(
            site_id=site.id, kind=site.kind, writer=draft.writer, reason=reason, detail=detail
        )
    if answer is not None:
        draft = replace(draft, knows=(*draft.knows, ANSWER))
    return _hint(draft)


def _draft(context: SiteContext, *, settings: HintsSettings) -> HintDraft | None:
    for name, writer in _writers(context.site.kind, settings=settings):
        if writer in KNOWS:
            text = writer(context)
        else:
            with (
                without_keys(),
                users_code(
                    name,
                    writer,
                    setting=f"hints.writers.{context.site.kind}",
                    on=f"session {context.session.id}",
                ),
            ):
                text = writer(context)
        if text is None:
            continue
        if not isinstance(text, str):
            raise ConfigError(
                f"writer {name!r} returned {type(text).__name__}, not text or None",
                where="[hints.writers]",
            )
        return HintDraft(
            context=context,
            text=text.strip(),
            writer=Path(name).name,
            knows=used_hindsight(writer, context, text=text),
        )
    return None


@lru_cache(maxsize=64)
def _warn_of_kinds(unknown: tuple[str, ...]) -> None:
    """Warn, once, of writers for kinds that no built-in detector gives: mistyped, or named by the
    user's own detector."""
    for kind in unknown:
        near = did_you_mean(kind, KNOWN_KINDS)
        warnings.warn(
            f"[hints.writers] {kind!r} is no kind of mistake that a built-in detector"
            f" gives{': ' + near if near else ''}; its writer runs only if a detector or kind"
            " function of your own names it",
            UserWarning,
            stacklevel=3,
        )


def _writers(kind: str, *, settings: HintsSettings) -> list[tuple[str, Writer]]:
    chosen: list[tuple[str, Writer]] = []
    if name := settings.writers.get(kind):
        return [
            (
                name,
                BUILT_IN.get(name)
                or load_function(name, setting=f"hints.writers.{kind}", built_in=BUILT_IN),
            )
        ]
    chosen.append(("rules", kind_rule))
    if kind in WRITERS:
        chosen.append((WRITERS[kind].__name__, WRITERS[kind]))
    chosen.append(("rules", tool_rule))
    return chosen


def _refusal(
    draft: HintDraft,
    *,
    occurrences: Occurrences,
    arguments: Mapping[str, Sequence[int]],
    free: set[Gram],
    max_words: int,
) -> Refusal | None:
    context, site, num_words = draft.context, draft.context.site, len(draft.text.split())

    def refuse(reason: str, detail: str) -> Refusal:
        return Refusal(
            site_id=site.id, kind=site.kind, writer=draft.writer, reason=reason, detail=detail
        )

    if not _WORD.search(draft.text):
        return refuse("empty", "the hint holds no word")
    if num_words > max_words:
        return refuse("too_long", f"{num_words} words, hints.max_words is {max_words}")
    leak = find_leak(
        draft.text,
        session=context.session,
        site_turn=site.turn,
        occurrences=occurrences,
        allowed=free,
    )
    # a listing shows names and its folder apart: the whole path is known from it all the same
    if leak is not None:
        places = track_places(context)  # and so is where the shell stands, from its `cd`s above
        listed = free | grams(
            (
                *places.names.values(),
                *known_paths_near(context),
                *(folder for folder in (places.cwd, *places.folder_of_call.values()) if folder),
            )
        )
        leak = find_leak(
            draft.text,
            session=context.session,
            site_turn=site.turn,
            occurrences=occurrences,
            allowed=listed,
        )
    leak = leak or find_copied_call(
        draft.text, session=context.session, site_turn=site.turn, arguments=arguments
    )
    if leak is not None:
        return refuse(leak.reason, f"{leak.words} (turn {leak.turn})")
    named = "" if _is_users(draft) else _named_mistake(draft)
    return refuse("names_the_mistake", named) if named else None


def _named_mistake(draft: HintDraft) -> str:
    """The part of a hint that makes the mistake more likely: its operand, or a prohibition; "" if
    none.

    A schema may hold any word, so the words of a listing are read for operands alone.
    """
    lists = {"schema", "calls_seen", "paths_seen", "refs_seen"} & set(draft.knows)
    return named_operand(draft.text, draft.context) or ("" if lists else prohibition(draft.text))


def _is_users(draft: HintDraft) -> bool:
    """Whether a person wrote the hint: a rule of theirs, or their own writer."""
    return "rules" in draft.knows or "custom" in draft.knows


def _fixed_words() -> list[str]:
    """The templates' own words between their blanks, and the option that every help is asked for
    with: a later message that reads the help is not quoted by the advice to read it."""
    words = [part for template in TEMPLATES.values() for part in re.split(r"\{\w+\}", template)]
    return [*words, "--help"]


def _tool_words(session: Session) -> list[str]:
    """The model's information about its tools: the list of names, and each description and schema.

    Of an inferred list only the names count: its schemas come from calls, later ones too.
    """
    listed = ", ".join(t.name for t in session.tools)
    if session.tools_origin != "log":
        return [listed]
    from_schemas = [" ".join(json_scalars(t.parameters)) for t in session.tools]
    return [listed, *(t.description for t in session.tools), *from_schemas]


def _hint(draft: HintDraft) -> Hint:
    site = draft.context.site
    target_words = {w.lower() for w in _WORD.findall(turn_text(draft.context.target))}
    words = [w.lower() for w in _WORD.findall(draft.text)]
    return Hint(
        site_id=site.id,
        text=draft.text,
        writer=draft.writer,
        kind=site.kind,
        knows=draft.knows,
        num_words=len(draft.text.split()),
        overlap=round(sum(w in target_words for w in words) / len(words), 4),
        refers_to=refers_to(
            draft.context,
            knows=draft.knows,
            names=listed_names(draft.text, fixed=" ".join(_fixed_words())),
        ),
        decision=decision_of(draft.context, draft.text),
    )
