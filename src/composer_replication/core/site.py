"""Site, ReaderVerdict, Hint, Answer, Preference, Anchor: the records that the pipeline makes of
sessions.

Example: in session s1, turn 7 calls read_flie (call c1), and turn 8 is its error result:

    Site(session_id="s1", turn=7, call_id="c1", evidence=(8,), kind="unknown_tool", ...)
    Hint(site_id="s1:7:c1", text="Reminder: available tools: read_file, ...", ...)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from composer_replication.core.errors import SiteError
from composer_replication.core.trace import Session, ToolCall, Turn

# Only "mistake" is trained on by default. The others look like errors in a log but are not mistakes
# of the model: "failed_check" (a correct call whose command failed; it is evidence about an earlier
# edit), a human's rejection or interrupt, a call cancelled because a parallel sibling failed, a
# permission rule, the environment (network, rate limit). "recovery" is the turn after an error; it
# exists only if a user asks for it (sites.site). "corrected", "undone", "blamed" and "wasted" are
# found in what happened later (sites.signals); `sites.train_kinds` makes mistakes of them.
Category = Literal[
    "mistake",
    "failed_check",
    "rejected",
    "interrupted",
    "sibling",
    "permission",
    "environment",
    "benign",
    "recovery",
    "corrected",
    "undone",
    "blamed",
    "wasted",
]
CATEGORIES: tuple[str, ...] = get_args(Category)
# The only definition of the sites that the hint channel may train on and that a page counts as
# mistakes: every other place asks `Site.is_target`. A target without a hint, or of an author or a
# kind that is left out, is not trained on: tokens/turn_roles.py.
TARGET_CATEGORIES = frozenset({"mistake", "recovery"})
STOPPED_CATEGORIES = ("rejected", "interrupted")
SIGNAL_CATEGORIES = frozenset({"corrected", "undone", "blamed", "wasted"})
LM_CE_EXCLUDED = TARGET_CATEGORIES | {*STOPPED_CATEGORIES} | SIGNAL_CATEGORIES
AnchorReason = Literal["agreed", "no_consensus"]
ANCHOR_REASONS: tuple[str, ...] = get_args(AnchorReason)
Candidate = tuple[int, str | None, str, tuple[int, ...]]
"""What a reader is asked about: message, call, the rule that found it, evidence."""
ReaderOutcome = Literal["mistake", "elsewhere", "wish", "none", "undecided"]
# The kind of a failure that no rule names. Nobody knows whose fault it is: nothing trains on it.
UNCLASSIFIED = "unclassified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The mistaken message (`turn`) and the turns that show the mistake (`evidence`).

    `call_id` names the failing call inside the message (None: the whole message) and `tool` its
    name. `detail` is the shortest quote that shows the mistake. `flagged` = the log itself marked
    the result as an error. `rule` names the rule that found a site of `sites.signals`, `confidence`
    is the share of that rule's sites that are mistakes, moved by a reader's verdict if there is one
    (None: not of such a rule), and `cost` the tokens that a wasted message and its result took, at
    four characters each.
    Raises SiteError if evidence is not later than the mistake: a teacher must never see it.
    """

    session_id: str
    turn: int
    kind: str
    detector: str
    evidence: tuple[int, ...]
    category: Category = "mistake"
    call_id: str | None = None
    tool: str = ""
    author: str | None = None
    detail: str = ""
    flagged: bool = False
    file: str = ""
    repository: str = ""
    rule: str = ""
    confidence: float | None = None
    cost: int = 0

    def __post_init__(self) -> None:
        if self.category not in CATEGORIES:
            raise SiteError(
                f"unknown category {self.category!r}",
                where=self.id,
                fix=f"use one of {', '.join(CATEGORIES)}",
            )
        early = [e for e in self.evidence if e <= self.turn]
        if self.category != "recovery" and early:
            raise SiteError(
                f"evidence at turn {early[0]} is not later than the mistake at turn {self.turn}",
                where=self.id,
            )

    @property
    def id(self) -> str:
        """Stable name, `session:turn:call`."""
        return f"{self.session_id}:{self.turn}:{self.call_id or '-'}"

    @property
    def name(self) -> str:
        """The short name of this site, as stable as its id."""
        return short_name(self.id)

    @property
    def candidate(self) -> Candidate:
        """What a reader's verdict on this site is about, within its session."""
        return self.turn, self.call_id, self.rule, self.evidence

    @property
    def is_target(self) -> bool:
        """Whether the message may get a hint and be trained on: the model's own mistake, or the
        turn after an error where a user asked for that."""
        return self.category in TARGET_CATEGORIES

    @property
    def bars_lm_ce(self) -> bool:
        """Whether lm_ce must skip this message: a mistake, a message that a human rejected or cut
        off, or an unclassified error."""
        return self.category in LM_CE_EXCLUDED or self.kind == UNCLASSIFIED


def short_name(site_id: str) -> str:
    """The short name of a site, for people: it depends on the id alone, so it stays the same if
    other sessions come and go.

    >>> short_name("s1:7:c1")
    's7ecd45f6'
    """
    return f"s{hashlib.sha256(site_id.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def turn_site_id(session_id: str, turn: int) -> str:
    """The id of a whole message, as answers carry it.

    >>> turn_site_id("s1", 7)
    's1:7:-'
    """
    return f"{session_id}:{turn}:-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderVerdict:
    """What a reader model makes of a candidate of `sites.signals`, the message `turn`.

    `prior` is the confidence of the candidate's rule. `votes` of `readings` usable answers gave the
    `outcome`: this message is mistaken ("mistake"), another one is ("elsewhere"), the person has a
    new wish or changed their mind ("wish"), nothing is mistaken ("none"), or too few agree
    ("undecided"). `named` is the message that they name, `void` counts unusable answers.
    Example: ReaderVerdict(session_id="s1", turn=7, kind="user_corrected", rule="corrected_last",
    evidence=(9,), prior=0.5, outcome="mistake", named=7, votes=2, readings=3)
    """

    session_id: str
    turn: int
    kind: str
    rule: str
    evidence: tuple[int, ...]
    prior: float
    outcome: ReaderOutcome
    call_id: str | None = None
    named: int | None = None
    votes: int = 0
    readings: int = 0
    void: int = 0
    usd: float = 0.0

    @property
    def candidate(self) -> Candidate:
        """What the verdict is about, within its session: a candidate that has changed since has no
        verdict."""
        return self.turn, self.call_id, self.rule, self.evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The part of a mistaken call that was wrong, and what would have been right in its place.

    `part`: "tool" = the tool's name; "argument" = the name of an argument (`wrong` is "" if one is
    missing); "value" = the text `wrong` in the value of `argument` ("" = all of it); "call" = all
    of the call. `occurrence` counts the places above it in the value at which the same text stands,
    but was not wrong. `right` are texts that could stand there; empty = unknown, and then no
    log-odds of right against wrong can be measured.
    Example: Decision(part="tool", wrong="Edit", right=("Read",))
    """

    part: Literal["tool", "argument", "value", "call"]
    wrong: str = ""
    argument: str = ""
    occurrence: int = 0
    right: tuple[str, ...] = ()

    def with_text(self, call: ToolCall, text: str) -> ToolCall:
        """The call with `text` in place of what was wrong; the same call for the part "call", and
        if its argument does not hold the wrong text.

        >>> call = ToolCall("c1", "Read", {"path": "src/a.py"})
        >>> Decision(part="argument", wrong="path").with_text(call, "file_path").arguments
        {'file_path': 'src/a.py'}
        >>> Decision(part="value", wrong="a.py", argument="path").with_text(call, "b.py").arguments
        {'path': 'src/b.py'}
        >>> line = ToolCall("c2", "Bash", {"command": "ls target/ && rg foo"})
        >>> program = Decision(part="value", wrong="rg", argument="command", occurrence=1)
        >>> program.with_text(line, "grep").arguments
        {'command': 'ls target/ && grep foo'}
        """
        arguments = dict(call.arguments)
        if self.part == "tool":
            return replace(call, name=text)
        if self.part == "argument" and not self.wrong:
            return replace(call, arguments={**arguments, text: ""})
        if self.part == "argument":
            renamed = {text if key == self.wrong else key: v for key, v in arguments.items()}
            return replace(call, arguments=renamed)
        if self.part == "value":
            value = arguments.get(self.argument)
            if self.wrong and isinstance(value, str):
                at = -1
                for _ in range(self.occurrence + 1):
                    if (at := value.find(self.wrong, at + 1)) < 0:
                        return call
                text = value[:at] + text + value[at + len(self.wrong) :]
            return replace(call, arguments={**arguments, self.argument: text})
        return call


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A short text placed directly above the mistaken message, seen only by the teacher.

    `knows` lists the hindsight that the hint used, e.g. ("kind", "tools"): "kind" is the kind of
    the error, "later:..." anything that was taken from after the message. `overlap` is the share of
    the hint's words that also stand in the target message. `refers_to` are the turns above the
    message that the hint or the mistaken call refers to; a window without them is not used.
    `decision` is what the mistaken call got wrong (None: the mistake is not in one call).
    """

    site_id: str
    text: str
    writer: str
    kind: str
    knows: tuple[str, ...] = ()
    num_words: int = 0
    overlap: float = 0.0
    refers_to: tuple[int, ...] = ()
    decision: Decision | None = None

    @property
    def is_measurable(self) -> bool:
        """Whether anything is known to be right in place of the mistake, so that an audit can
        measure the hint."""
        return self.decision is not None and bool(self.decision.right)


def joined_text(hints: Sequence[Hint]) -> str:
    """The hints of one message as one text, in the order of its calls, each text once."""
    return "\n".join(dict.fromkeys(hint.text for hint in hints))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Another model's answer at a turn: its message, its family and the booked cost.

    `usd_by` says who counted `usd`: "ours" (our count of what was sent and received, or the worst
    case) or "endpoint" (its report, because it was higher); `told_usd` is the cost that the
    endpoint reported. `problem` says why the message cannot be used (core/teacher.py); only answers
    with "" count. `request` is the ledger's key for the prompt and the raw answer.
    """

    site_id: str
    teacher: str
    family: str
    turn: Turn
    usd: float = 0.0
    problem: str = ""
    confidence: float | None = None
    provider: str = ""
    input_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int | None = None
    request: str = ""
    usd_by: Literal["", "ours", "endpoint"] = ""
    told_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """At turn `turn` of a session, `chosen` is preferred to `rejected` (None: the session's turn).

    Example: Preference(session_id="s1", turn=7, chosen=Turn(...), teachers=("kimi", "glm"))
    """

    session_id: str
    turn: int
    chosen: Turn
    rejected: Turn | None = None
    site_id: str | None = None
    teachers: tuple[str, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)

    def rejected_turn(self, session: Session) -> Turn:
        """The rejected message: `rejected`, or the session's own turn if that is None."""
        return self.rejected if self.rejected is not None else session.turns[self.turn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A turn whose likelihood the preference channel holds in place, by cross-entropy.

    The teachers agreed with it, or did not agree among themselves (`reason`). Without anchors,
    behaviour that no pair is about drifts (measured: a habit that only the reward sees fell from
    .51 to .07).
    Example: Anchor(session_id="s1", turn=9, reason="no_consensus", teachers=("kimi", "glm"))
    """

    session_id: str
    turn: int
    reason: AnchorReason
    teachers: tuple[str, ...] = ()
