"""Sites -> hints: write at most one hint per mistake, and keep only those that leak nothing.

Third stage of the data pipeline, after `find_sites`. Each hint is written (`_draft`) by the writer
of its kind of mistake and then checked (`check_drafts`): the hint channel puts it in the teacher's
context, and a teacher that is told the repair would teach the student to copy an answer that it
cannot see. Most checks are for words that only later turns contain (leak.py).

    report = write_hints(session, sites, settings=HintsSettings())
    report.hints[0].text  # "Reminder: available tools: Bash, Edit, Read."
    report.refused[0].reason  # "too_long"
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
    Leak,
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
    """A hint that was written but failed a check. `detail` quotes the words that failed it.

    Reasons:
    - "empty", "too_long" (`hints.max_words`);
    - "quotes_later_text": a passage or name that only turns after the mistake contain;
    - "copies_later_call": it quotes an argument of a later call;
    - "names_the_mistake": it names the wrong operand, or forbids something;
    - "gives_the_answer": a person's words that say what a later call then did.

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
    """What became of each site: a hint, a refused hint, or none.

    `without` counts, by kind, the mistakes for which no writer had anything to say; `left_out` the
    sites that are no mistakes, so get no hint. `warned` counts kept hints of the user's own rules
    and writers that name the wrong operand or forbid something. From a built-in writer these would
    be refused, because naming a mistake makes it likelier; the user may decide otherwise.
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
    """A hint before its checks. `knows`: the hindsight that it used, as in `Hint.knows`."""

    context: SiteContext
    text: str
    writer: str
    knows: tuple[str, ...]


def write_hints(session: Session, sites: Iterable[Site], *, settings: HintsSettings) -> HintReport:
    """Write and check the hints of one session, at most one per mistake, in the order of the sites.

    The writer that `hints.writers` sets for a kind is the only one asked. Without one, the first
    that has something to say writes the hint: a rule of `hints.rules_file` that names the kind, the
    built-in writer of the kind, a rule that names the tool. Raises ConfigError for a writer that
    does not exist, SiteError for a site of another session.
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
    hints: list[Hint] = []
    refused: list[Refusal] = []
    warned = 0
    for draft, outcome in zip(drafts, checked, strict=True):
        if isinstance(outcome, Refusal):
            refused.append(outcome)
            continue
        hints.append(outcome)
        if _is_users(draft) and _named_mistake(draft):
            warned += 1
    return HintReport(
        hints=tuple(hints),
        refused=tuple(refused),
        without=dict(sorted(without.items())),
        left_out=left_out,
        warned=warned,
    )


def check_drafts(
    session: Session,
    drafts: Sequence[HintDraft],
    *,
    rules: Sequence[str],
    max_words: int,
    no_answers: bool = True,
) -> list[Hint | Refusal]:
    """Check the drafts of one session; each becomes a Hint or, if it fails, a Refusal.

    No hint may be empty, too long, or quote what came later. Only the user's own may name the
    mistake. Drafts that quote a person have rules of their own (`_check_persons_words`).
    """
    occurrences = Occurrences.of(session, wanted=grams(d.text for d in drafts))
    arguments = argument_turns(session)
    allowed = grams((*_fixed_words(), *_tool_words(session), *rules))
    checked: list[Hint | Refusal] = []
    for draft in drafts:
        if PERSON in draft.knows:
            checked.append(
                _check_persons_words(
                    draft, occurrences=occurrences, max_words=max_words, no_answers=no_answers
                )
            )
            continue
        refusal = _find_refusal(
            draft,
            occurrences=occurrences,
            arguments=arguments,
            allowed=allowed,
            max_words=max_words,
        )
        checked.append(_hint(draft) if refusal is None else refusal)
    return checked


def _check_persons_words(
    draft: HintDraft, *, occurrences: Occurrences, max_words: int, no_answers: bool
) -> Hint | Refusal:
    """Check a hint that repeats what a person typed about the message.

    People comment on a message after it was written, so a quote from later is allowed here, and so
    is a prohibition. But if a later call does what they said, the words are the answer: the hint is
    refused, or (`hints.no_answers = false`) kept and marked "later:answer".
    """
    num_words = len(draft.text.split())
    if num_words > max_words:
        return _refuse(draft, "too_long", f"{num_words} words, hints.max_words is {max_words}")
    answer = answer_in_words(
        draft.text,
        session=draft.context.session,
        site_turn=draft.context.site.turn,
        occurrences=occurrences,
    )
    if answer is None:
        return _hint(draft)
    if no_answers:
        return _refuse(draft, "gives_the_answer", f"{answer[0]} (turn {answer[1]})")
    return _hint(replace(draft, knows=(*draft.knows, ANSWER)))


def _refuse(draft: HintDraft, reason: str, detail: str) -> Refusal:
    site = draft.context.site
    return Refusal(
        site_id=site.id, kind=site.kind, writer=draft.writer, reason=reason, detail=detail
    )


def _draft(context: SiteContext, *, settings: HintsSettings) -> HintDraft | None:
    """The text of the first writer that returns one; None if none does."""
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
    """Warn of entries in `hints.writers` for kinds that no built-in detector gives: mistyped, or
    kinds of the user's own detector. The cache makes it one warning, not one per session."""
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
    """The writers for a kind of mistake, with their names, in the order in which they are asked."""
    if name := settings.writers.get(kind):
        writer = BUILT_IN.get(name) or load_function(
            name, setting=f"hints.writers.{kind}", built_in=BUILT_IN
        )
        return [(name, writer)]
    writers: list[tuple[str, Writer]] = [("rules", kind_rule)]
    if kind in WRITERS:
        writers.append((WRITERS[kind].__name__, WRITERS[kind]))
    writers.append(("rules", tool_rule))
    return writers


def _find_refusal(
    draft: HintDraft,
    *,
    occurrences: Occurrences,
    arguments: Mapping[str, Sequence[int]],
    allowed: set[Gram],
    max_words: int,
) -> Refusal | None:
    """The first check that a hint fails, cheapest first; None if it passes all."""
    num_words = len(draft.text.split())
    if not _WORD.search(draft.text):
        return _refuse(draft, "empty", "the hint holds no word")
    if num_words > max_words:
        return _refuse(draft, "too_long", f"{num_words} words, hints.max_words is {max_words}")
    leak = _leak_in(draft, occurrences=occurrences, allowed=allowed) or find_copied_call(
        draft.text,
        session=draft.context.session,
        site_turn=draft.context.site.turn,
        arguments=arguments,
    )
    if leak is not None:
        return _refuse(draft, leak.reason, f"{leak.words} (turn {leak.turn})")
    named = "" if _is_users(draft) else _named_mistake(draft)
    return _refuse(draft, "names_the_mistake", named) if named else None


def _leak_in(draft: HintDraft, *, occurrences: Occurrences, allowed: set[Gram]) -> Leak | None:
    """The first words of a hint that only later turns contain; None if there are none.

    Paths need a second look. A listing of `src` that shows `a.py` makes `src/a.py` known, though
    these letters stand nowhere above; the same holds for folders that the shell went to by `cd`.
    """
    context = draft.context

    def find(allowed: set[Gram]) -> Leak | None:
        return find_leak(
            draft.text,
            session=context.session,
            site_turn=context.site.turn,
            occurrences=occurrences,
            allowed=allowed,
        )

    if find(allowed) is None:
        return None
    places = track_places(context)  # slow, so only for hints that seem to leak
    folders = [folder for folder in (places.cwd, *places.folder_of_call.values()) if folder]
    return find(allowed | grams((*places.names.values(), *known_paths_near(context), *folders)))


def _named_mistake(draft: HintDraft) -> str:
    """The words of a hint that would make the mistake likelier: the wrong operand, or a
    prohibition such as "do not"; "" if there are none.

    A hint that lists a schema, or what was seen above, may hold such words by chance ("never" in a
    parameter's name): there only operands are looked for.
    """
    lists_things = {"schema", "calls_seen", "paths_seen", "refs_seen"} & set(draft.knows)
    operand = named_operand(draft.text, draft.context)
    return operand or ("" if lists_things else prohibition(draft.text))


def _is_users(draft: HintDraft) -> bool:
    """Whether the hint is a rule of the user's, or from the user's own writer."""
    return "rules" in draft.knows or "custom" in draft.knows


def _fixed_words() -> list[str]:
    """Words that any hint may contain: the templates' own, and `--help`, because many hints advise
    to read a program's help, and the model's next call often does that."""
    words = [part for template in TEMPLATES.values() for part in re.split(r"\{\w+\}", template)]
    return [*words, "--help"]


def _tool_words(session: Session) -> list[str]:
    """What the model was told about its tools: names, descriptions, schemas.

    If the log holds no tool list, it was inferred from the session's calls. Then only the names
    count, since a schema may come from calls after the mistake.
    """
    listed = ", ".join(t.name for t in session.tools)
    if session.tools_origin != "log":
        return [listed]
    from_schemas = [" ".join(json_scalars(t.parameters)) for t in session.tools]
    return [listed, *(t.description for t in session.tools), *from_schemas]


def _hint(draft: HintDraft) -> Hint:
    """The hint of a draft that passed its checks, with what the audit and the window need."""
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
