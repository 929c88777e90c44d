"""TrainingExample, HintView, PreferencePair: token sequences that cannot be built misaligned.

One session window with a mistake in A1 (P prompt, A assistant messages, E tool results, H the hint
message):

    ids       = P0 + A0 + E0 + [header] + A1 + E1 ...
    lm_spans  = the spans of A0, A2, ...   (never A1, the mistaken message)
    hints[0]  : at = position before A1's header, hint_ids = H,
                span = A1's tokens, end token included, header excluded
    student   = ids[:span[1]]
    teacher   = ids[:at] + H + ids[at:span[1]]      (an insertion and nothing else)

Positions are indices into `ids`; a span (a, b) is half-open. The logits that predict token j are at
position j - 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal, Self

from composer_replication.core.config.data_settings import HintPosition
from composer_replication.core.errors import AlignmentError

Rendering = Literal["message", "appended", "line"]
Span = tuple[int, int]


def merge_spans(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Spans in order, with those that touch merged: two calls may share a token.

    >>> merge_spans([(7, 9), (1, 3), (3, 5)])
    ((1, 5), (7, 9))
    """
    merged: list[Span] = []
    for a, b in sorted(spans):
        if merged and a <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(b, merged[-1][1]))
        else:
            merged.append((a, b))
    return tuple(merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSpan:
    """The span of one message in the ids: its whole rendering, and the part its author wrote.

    `body` is what follows the generation prompt, end token included; it is empty for roles other
    than assistant. Example: TurnSpan(turn=7, role="assistant", start=120, end=151, body=(123, 150),
    author="claude-opus-4-5")
    """

    turn: int
    role: str
    start: int
    end: int
    body: Span
    author: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewContext:
    """The tokens of context above a target that are in its window, and the needed turns that are
    not.

    `refers_to` are turns of the session that the hint or the mistaken call refers to
    (core.site.Hint). Example: ViewContext(kept=3980, available=21400, refers_to=(4, 5), lost=())
    """

    kept: int
    available: int
    refers_to: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTokens:
    """The tokens at which the mistake of one site was decided: those of the wrong tool name or
    argument.

    `fork` is the position of the first token at which the message can no longer become right, and
    `right_ids` are the right tokens there; None and () if it is not known what would be right.
    Example: DecisionTokens(site_id="s1:7:c1", spans=((131, 132),), fork=131, right_ids=(4418,))
    """

    site_id: str
    spans: tuple[Span, ...]
    fork: int | None = None
    right_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HintView:
    """The teacher's context for one mistaken message: the student's, with the hint inserted.

    site_id, kind   of the message's first site; `others` are (site id, kind) of further failed
                    calls of it, whose hints are in `hint_ids` as well
    at, hint_ids    the ids that the teacher sees before ids[at]
    span            the target in the example's ids; `parts` narrows it to spans within it (the
                    calls that failed), () = all of it
    target_ids      the ids of the target: the tokens that the hint channel is trained on
    rendering       how the template wrote the hint: "message" (its own message), "appended" (a
                    separator and the hint, at the end of the message above) or "line" (the hint
                    and a line break, behind the one that ends that message's text)
    position        hints.position
    origin          who wrote the target: "student" (on-policy) or "trace" (context distillation)
    context         how much of the context is in the window
    decisions       the tokens at which each site's mistake was decided, if they are known

    Three fields are set only if train.hint asks for them: `logprobs` of the sampler, one per target
    id; `difficulty`, the weight of the task's group; `wrong_ids`, another site's hint, for a
    contrast.
    """

    site_id: str
    kind: str
    at: int
    hint_ids: tuple[int, ...]
    span: Span
    target_ids: tuple[int, ...]
    rendering: Rendering = "message"
    position: HintPosition = "system"
    origin: Literal["student", "trace"] = "trace"
    logprobs: tuple[float, ...] = ()
    difficulty: float | None = None
    wrong_ids: tuple[int, ...] = ()
    others: tuple[tuple[str, str], ...] = ()
    parts: tuple[Span, ...] = ()
    context: ViewContext | None = None
    decisions: tuple[DecisionTokens, ...] = ()

    @property
    def spans(self) -> tuple[Span, ...]:
        """The stretches of the target, in order."""
        return self.parts or (self.span,)

    @property
    def site_ids(self) -> tuple[str, ...]:
        """Every site of the message whose hint is in the view."""
        return (self.site_id, *(site_id for site_id, _ in self.others))

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of mistakes that the hint addresses."""
        return frozenset((self.kind, *(kind for _, kind in self.others)))

    @property
    def knows_decisions(self) -> bool:
        """Whether the tokens of the decision are known for every site of the message."""
        return {decision.site_id for decision in self.decisions} == set(self.site_ids)

    def __post_init__(self) -> None:
        a, b = self.span
        # flattened, the borders of the parts must rise: the parts are in order and do not touch
        if self.parts and (
            (self.parts[0][0], self.parts[-1][1]) != (a, b)
            or any(c >= d for c, d in pairwise(sum(self.parts, ())))
        ):
            raise AlignmentError(
                f"the parts {self.parts} are not in order, or do not reach from {a} to {b}",
                where=self.site_id,
            )
        if not 0 < self.at <= a < b:
            raise AlignmentError(
                f"the hint at {self.at} must stand above its target {a}-{b}, and something above"
                " the hint",
                where=self.site_id,
            )
        if not self.hint_ids:
            raise AlignmentError(
                "an empty hint: the teacher would be the student", where=self.site_id
            )
        size = sum(d - c for c, d in self.spans)
        if size != len(self.target_ids):
            raise AlignmentError(
                f"the target span {a}-{b} does not hold {len(self.target_ids)} ids",
                where=self.site_id,
            )
        if self.logprobs and len(self.logprobs) != size:
            raise AlignmentError(
                f"{len(self.logprobs)} log-probs for a target of {size} ids", where=self.site_id
            )
        for decision in self.decisions:
            fork = a if decision.fork is None else decision.fork
            if not all(a <= c < d <= b for c, d in ((fork, fork + 1), *decision.spans)):
                raise AlignmentError(
                    f"the decision of {decision.site_id} leaves the target {a}-{b}",
                    where=self.site_id,
                )

    @classmethod
    def from_renderings(
        cls,
        student_ids: Sequence[int],
        teacher_ids: Sequence[int],
        *,
        span: Span,
        at: int,
        hint_text: str,
        decode: Callable[[list[int]], str],
        site_id: str,
        kind: str,
        rendering: Rendering = "message",
        position: HintPosition = "system",
        origin: Literal["student", "trace"] = "trace",
        others: tuple[tuple[str, str], ...] = (),
        parts: tuple[Span, ...] = (),
    ) -> Self:
        """Build a view from two independent renderings, both of which end with the target.

        Raises AlignmentError unless teacher is student with H inserted at `at`. Example: student
        P+T, teacher P+H+T, span of T in the student, at = len(P).
        """
        a, b = span
        if b != len(student_ids):
            raise AlignmentError(
                f"the student must end with its target (length {len(student_ids)}, span {a}-{b})",
                where=site_id,
            )
        num_hint = len(teacher_ids) - len(student_ids)
        student, teacher = list(student_ids), list(teacher_ids)
        if (
            num_hint <= 0
            or teacher[:at] != student[:at]
            or teacher[at + num_hint :] != student[at:]
        ):
            raise AlignmentError(
                "the teacher's ids are not the student's with one insertion",
                where=site_id,
                fix="the template rewrites what stands around a hint",
            )
        hint_ids = teacher[at : at + num_hint]
        text, hint = decode(hint_ids), hint_text.strip()
        # a template may write results as JSON strings
        escaped = json.dumps(hint, ensure_ascii=False)[1:-1]
        if hint not in text and not (rendering == "line" and escaped in text):
            raise AlignmentError(
                "the hint's text is not in the inserted ids",
                where=site_id,
                fix="the template drops or rewrites a message there",
            )
        if rendering == "line" and not text.startswith((hint, escaped)):
            rendering = "appended"
        return cls(
            site_id=site_id,
            kind=kind,
            at=at,
            hint_ids=tuple(hint_ids),
            span=span,
            target_ids=tuple(i for c, d in parts or (span,) for i in student[c:d]),
            rendering=rendering,
            position=position,
            origin=origin,
            others=others,
            parts=parts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledMessage:
    """A message that our own student sampled, with its advantage: the policy channel's input.

    `logprobs` are the sampler's, one per token of the span; `advantage` is the same for all tokens.
    Example: SampledMessage(span=(120, 140), logprobs=(-0.1, ...), advantage=0.75)
    """

    span: Span
    logprobs: tuple[float, ...]
    advantage: float

    def __post_init__(self) -> None:
        a, b = self.span
        if not 0 < a < b or b - a != len(self.logprobs):
            raise AlignmentError(f"an action at {a}-{b} with {len(self.logprobs)} log-probs")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingExample:
    """One token sequence the student is scored on, with what each channel trains of it.

    `lm_spans` are those of lm_ce, `actions` those of the policy channel, `anchored` the messages
    that the preference channel holds in place (teachers agreed with them, or did not agree among
    themselves), `hints` the views of the hint channel. Raises AlignmentError if a span leaves the
    ids, if a view's target ids differ from those at its span, or if lm_ce or an anchor would train
    a token of a target.
    """

    id: str
    session_id: str
    ids: tuple[int, ...]
    lm_spans: tuple[Span, ...] = ()
    hints: tuple[HintView, ...] = ()
    turns: tuple[TurnSpan, ...] = ()
    origin: Literal["student", "trace"] = "trace"
    actions: tuple[SampledMessage, ...] = ()
    anchored: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.ids)
        for channel, spans in (
            ("lm_ce", self.lm_spans),
            ("action", [action.span for action in self.actions]),
            ("anchored", self.anchored),
        ):
            last = 0
            for a, b in spans:
                if not (last <= a < b <= n) or a == 0:
                    raise AlignmentError(
                        f"{channel} span {a}-{b} is out of order, outside 1-{n}, or has nothing"
                        " before it",
                        where=self.id,
                    )
                last = b
        for view in self.hints:
            a, b = view.span
            if b > n or tuple(i for c, d in view.spans for i in self.ids[c:d]) != view.target_ids:
                raise AlignmentError(
                    f"the target of {view.site_id} is not what stands at {a}-{b}", where=self.id
                )
            for channel, spans in (("lm_ce", self.lm_spans), ("an anchor", self.anchored)):
                if any(a < d and c < b for c, d in spans):
                    raise AlignmentError(
                        f"{channel} would train on the mistaken message of {view.site_id}",
                        where=self.id,
                    )

    def student_ids(self, view: HintView) -> tuple[int, ...]:
        """The student's context and the target; nothing after the target is needed."""
        return self.ids[: view.span[1]]

    def teacher_ids(self, view: HintView) -> tuple[int, ...]:
        """The same with this view's hint inserted, and no other view's."""
        return self.ids[: view.at] + view.hint_ids + self.ids[view.at : view.span[1]]

    def teacher_span(self, view: HintView) -> Span:
        """The span of the target in `teacher_ids`."""
        shift = len(view.hint_ids)
        return view.span[0] + shift, view.span[1] + shift

    def teacher_spans(self, view: HintView) -> tuple[Span, ...]:
        """The stretches of the target in `teacher_ids`."""
        shift = self.teacher_span(view)[0] - view.span[0]
        return tuple((a + shift, b + shift) for a, b in view.spans)

    def focused(self) -> TrainingExample:
        """The example with the target of each view narrowed to the tokens of its decisions; a view
        with a site whose decision is not known keeps its whole target."""
        return replace(self, hints=tuple(map(self._focused_view, self.hints)))

    def _focused_view(self, view: HintView) -> HintView:
        if not view.knows_decisions:
            return view
        spans = merge_spans([span for decision in view.decisions for span in decision.spans])
        positions = [p for a, b in spans for p in range(a, b)]
        number = {p: k for k, p in enumerate(p for a, b in view.spans for p in range(a, b))}
        return replace(
            view,
            span=(spans[0][0], spans[-1][1]),
            parts=spans if len(spans) > 1 else (),
            target_ids=tuple(self.ids[p] for p in positions),
            logprobs=tuple(view.logprobs[number[p]] for p in positions) if view.logprobs else (),
        )

    def wrong_view(self, view: HintView) -> HintView:
        """The view with another site's hint at the same place, above the same target.

        Raises AlignmentError if the view carries no such hint.
        """
        return replace(view, hint_ids=view.wrong_ids, wrong_ids=())


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePair:
    """Two messages after one context: prefix + chosen and prefix + rejected, with end tokens.

    `reference` holds the reference model's log-probs of the chosen and then the rejected tokens, if
    they were scored before (training/run/kept_reference.py); it is not part of the data set. Raises
    AlignmentError for an empty side or equal sides.
    """

    id: str
    session_id: str
    prefix_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]
    site_id: str | None = None
    reference: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.reference and len(self.reference) != self.num_response_tokens:
            problem = (
                f"{len(self.reference)} log-probs of the reference for {self.num_response_tokens}"
                " tokens"
            )
            raise AlignmentError(problem, where=self.id)
        if not (self.prefix_ids and self.chosen_ids and self.rejected_ids):
            raise AlignmentError(
                "prefix, chosen and rejected must each hold at least one token", where=self.id
            )
        if self.chosen_ids == self.rejected_ids:
            raise AlignmentError("chosen and rejected are the same tokens", where=self.id)

    @property
    def num_response_tokens(self) -> int:
        """The number of tokens of both sides."""
        return len(self.chosen_ids) + len(self.rejected_ids)


def example_to_json(example: TrainingExample) -> dict[str, Any]:
    """A plain JSON object; the inverse is `example_from_json`."""
    return {
        "id": example.id,
        "session_id": example.session_id,
        "origin": example.origin,
        "ids": example.ids,
        "trained": example.lm_spans,
        "hints": [
            {
                "site_id": v.site_id,
                "kind": v.kind,
                "at": v.at,
                "hint_ids": v.hint_ids,
                "span": v.span,
                "target_ids": v.target_ids,
                "rendering": v.rendering,
                "position": v.position,
                "origin": v.origin,
                **({"logprobs": v.logprobs} if v.logprobs else {}),
                **({"difficulty": v.difficulty} if v.difficulty is not None else {}),
                **({"wrong_ids": v.wrong_ids} if v.wrong_ids else {}),
                **({"others": v.others} if v.others else {}),
                **({"parts": v.parts} if v.parts else {}),
                **({"context": asdict(v.context)} if v.context else {}),
                **({"decisions": [asdict(d) for d in v.decisions]} if v.decisions else {}),
            }
            for v in example.hints
        ],
        "turns": [
            [t.turn, t.role, t.start, t.end, t.body[0], t.body[1], t.author] for t in example.turns
        ],
        "actions": [
            [*action.span, action.logprobs, action.advantage] for action in example.actions
        ],
        "anchored": example.anchored,
    }


def example_from_json(value: dict[str, Any]) -> TrainingExample:
    """Read an example back; every check of the constructors runs again."""
    try:
        hints = tuple(_view_from_json(v) for v in value["hints"])
        turns = tuple(
            TurnSpan(turn=t[0], role=t[1], start=t[2], end=t[3], body=(t[4], t[5]), author=t[6])
            for t in value["turns"]
        )
        return TrainingExample(
            id=value["id"],
            session_id=value["session_id"],
            origin=value["origin"],
            ids=tuple(value["ids"]),
            lm_spans=tuple((a, b) for a, b in value["trained"]),
            hints=hints,
            turns=turns,
            actions=tuple(
                SampledMessage(span=(a, b), logprobs=tuple(logps), advantage=adv)
                for a, b, logps, adv in value.get("actions", ())
            ),
            anchored=tuple((a, b) for a, b in value.get("anchored", ())),
        )
    except (KeyError, TypeError, IndexError) as error:
        raise AlignmentError(
            f"not an example: {error!r}",
            where=str(value.get("id", "")),
            fix="run `recompose build` again",
        ) from error


def _view_from_json(value: dict[str, Any]) -> HintView:
    flat = {
        key: tuple(value[key])
        for key in ("hint_ids", "span", "target_ids", "logprobs", "wrong_ids")
        if key in value
    }
    nested: dict[str, Any] = {
        key: tuple(map(tuple, value[key])) for key in ("others", "parts") if key in value
    }
    if "context" in value:
        context = value["context"]
        turns = {name: tuple(context[name]) for name in ("refers_to", "lost")}
        nested["context"] = ViewContext(
            kept=context["kept"], available=context["available"], **turns
        )
    if "decisions" in value:
        nested["decisions"] = tuple(
            DecisionTokens(
                site_id=decision["site_id"],
                spans=tuple(map(tuple, decision["spans"])),
                fork=decision["fork"],
                right_ids=tuple(decision["right_ids"]),
            )
            for decision in value["decisions"]
        )
    return HintView(**{**value, **flat, **nested})


def pair_to_json(pair: PreferencePair) -> dict[str, Any]:
    """A plain JSON object; the inverse is `pair_from_json`."""
    return {
        "id": pair.id,
        "session_id": pair.session_id,
        "site_id": pair.site_id,
        "prefix_ids": pair.prefix_ids,
        "chosen_ids": pair.chosen_ids,
        "rejected_ids": pair.rejected_ids,
    }


def pair_from_json(value: dict[str, Any]) -> PreferencePair:
    """Read a pair back; every check of the constructor runs again."""
    try:
        return PreferencePair(
            id=value["id"],
            session_id=value["session_id"],
            site_id=value.get("site_id"),
            prefix_ids=tuple(value["prefix_ids"]),
            chosen_ids=tuple(value["chosen_ids"]),
            rejected_ids=tuple(value["rejected_ids"]),
        )
    except (KeyError, TypeError) as error:
        raise AlignmentError(
            f"not a pair: {error!r}",
            where=str(value.get("id", "")),
            fix="run `recompose build` again",
        ) from error
