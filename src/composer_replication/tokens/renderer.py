"""Turns of a session to the token ids that the student reads, with the span of each turn.

`recompose build` (tokens/dataset.py) makes training examples with it, samplers make prompts
(rollouts/chat_format.py). Text comes from the student's own chat template, ids from its tokenizer:

    renderer = Renderer.for_tokenizer(tokenizer)
    rendered = renderer.render(session.turns, tools=session.tools)
    rendered.spans[3].body        # [start, end) of the tokens that the author of turn 3 wrote
    view = renderer.hint_view(session.turns, target=3, hint="Tools: Read, Edit",
                              site_id="s1:3:c2", kind="unknown_tool")

A turn's *body* is what its author wrote. For an assistant turn it follows the generation prompt and
ends with the end token, without the line break that templates add. A body is encoded apart from the
text before it, as when the student samples it, so the body's ids are the same whatever its context
is. If a body begins with a line break, encoding the whole text in one go could merge it with the
line break of the header; `Rendered.straddles` names such turns.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

from composer_replication.core.config.data_settings import HintPosition
from composer_replication.core.errors import AlignmentError, RenderError
from composer_replication.core.jsonl import json_strings
from composer_replication.core.trace import HARNESS, Text, ToolCall, ToolResult, ToolSpec, Turn
from composer_replication.tokens.example import (
    HintView,
    Rendering,
    Span,
    TurnSpan,
    merge_spans,
)
from composer_replication.tokens.hf import (
    Encoded,
    TextCodec,
    added_tokens,
    own_template_of,
    render_template,
)
from composer_replication.tokens.layout import (
    Layout,
    marked_layout,
    prefix_layout,
    shared_prefix_length,
)
from composer_replication.tokens.messages import (
    Message,
    TurnMessages,
    conversation,
    replace_surrogates,
    tool_messages,
)
from composer_replication.tokens.template_families import (
    FAMILIES,
    Family,
    fitting_families,
    recognise,
    template_sha256,
)

PROBE_TURNS = (
    Turn(role="user", author=HARNESS, blocks=(Text("Fix it."),)),
    Turn(
        role="assistant",
        author=None,
        blocks=(Text("Now."), ToolCall("callabc01", "look", {"path": "a b/ö.py", "line": 3})),
    ),
    Turn(role="tool", author=HARNESS, blocks=(ToolResult("callabc01", "x = 1"),)),
    Turn(role="assistant", author=None, blocks=(Text("Done."),)),
)
Placement = Literal["message", "joined", "appended", "line", "user", "alone"]
"""How a hint is put above the target message:

    message    a system message of its own
    joined     a system message, which the template joins to the text above
    appended   added to the text of the message above, behind a separator
    line       added to the text of the user message or tool result above, as a line of its own
    user       a user message of its own
    alone      the same, where there is a message above to which it could not be added
"""
# The placements that are tried in order; the first that inserts tokens and changes none is used.
# By the template family's `hint`; None = an unknown template, which may accept a system message
# anywhere or not.
_PLACEMENTS: Mapping[str | None, tuple[Placement, ...]] = {
    "message": ("message",),
    "joined": ("joined", "appended"),
    "appended": ("appended", "alone"),
    None: ("message", "appended"),
}
# The same by hints.position, other than "system".
_PLACEMENTS_AT: Mapping[HintPosition, tuple[Placement, ...]] = {
    "user": ("user", "appended"),
    "reminder": ("line", "alone"),
    "result": ("line", "alone"),
}
_RENDERINGS: Mapping[Placement, Rendering] = {
    "joined": "appended",
    "appended": "appended",
    "line": "line",
}
# Between a message and a hint appended to it. A full stop and the line break behind it are one
# token in many vocabularies, so the second begins with a space.
_SEPARATORS = ("\n\n", " \n\n", " ")
# (before, behind) a hint that is a line of its own. A tool result that the template writes as a
# JSON string may need a line break behind the hint, too; and if its last characters and the closing
# quote are one token (`."`, `}"`), nothing can be added without changing that token.
_LINE_FRAMES = tuple((before, behind) for behind in ("", "\n") for before in ("\n", *_SEPARATORS))
_REMINDER = "<system-reminder>\n{}\n</system-reminder>"
_PLACEHOLDER_REPLY = Turn(role="assistant", author=None, blocks=(Text("x"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A conversation as token ids.

    `spans`, one a turn, cover `ids` without gaps from the first message on; what the template
    writes before it (a preamble, tools without a system message) belongs to no turn. `text` is the
    rendered text. `notes` counts what was left out, see `TurnMessages`. `straddles` are the turns
    whose body would have other ids if it were encoded in one go with its header.
    """

    ids: tuple[int, ...]
    spans: tuple[TurnSpan, ...]
    text: str
    notes: Mapping[str, int]
    straddles: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HintInsertion:
    """A hint's ids, and `tail`: the ids between the hint and the body of the message below it.

    Example: HintInsertion(hint_ids=H, tail=(<|im_start|>, "assistant", "\\n"), rendering="message")
    """

    hint_ids: tuple[int, ...]
    tail: tuple[int, ...]
    rendering: Rendering


@dataclass(frozen=True, slots=True, kw_only=True)
class _LaidOut:
    """A conversation as text, before it is encoded.

    `turn_indices` holds the turn of each of `messages`; `layout` the text, and each message's
    position in it. In all texts `mark`, a character found nowhere in the conversation, breaks what
    only looks like a control token (`TextCodec.shield`).
    """

    layout: Layout
    messages: list[Message]
    turn_indices: list[int]
    mark: str
    notes: Counter[str]


class Renderer:
    """Turns to ids for one tokenizer and one chat template.

    `family` is an entry of template_families.py, whose template replaces the tokenizer's own. It is
    None for an unknown template (`own_template`), which is checked on every conversation.
    """

    def __init__(self, tokenizer: Any, *, family: Family | None, own_template: str = "") -> None:
        self.tokenizer = tokenizer
        self.family = family
        self.template = family.template if family else own_template
        self.codec = TextCodec(tokenizer, template=self.template)
        if family:
            missing = [
                t
                for t in (*family.end_tokens, *family.header_tokens)
                if t not in self.codec.control
            ]
            if missing:
                fitting = fitting_families(added_tokens(tokenizer))
                auto = ["auto"] if own_template_of(tokenizer) else []
                raise RenderError(
                    f"the tokenizer has no token {missing[0]!r}, which the {family.name} template"
                    " writes",
                    where="student.template",
                    fix=(
                        "name a template that suits its control tokens in student.template:"
                        f" {', '.join([*auto, *fitting]) or 'none known here does'}"
                    ),
                )

    @classmethod
    def for_tokenizer(cls, tokenizer: Any, *, family: str = "auto") -> Self:
        """A renderer for a tokenizer; "auto" recognises the family of the tokenizer's template.

        An unrecognised template is used as it is and checked on every conversation. Raises
        RenderError for an unknown family name, or if "auto" finds no template at all.
        """
        if family != "auto":
            if family not in FAMILIES:
                raise RenderError(
                    f"unknown template family {family!r}",
                    where="student.template",
                    fix=f"one of: auto, {', '.join(FAMILIES)}",
                )
            return cls(tokenizer, family=FAMILIES[family])
        own_template = own_template_of(tokenizer)
        if not own_template:
            fitting = fitting_families(added_tokens(tokenizer))
            raise RenderError(
                "the tokenizer has no chat template",
                where="student.template",
                fix=f"name its family: one of {', '.join(fitting or FAMILIES)}",
            )
        return cls(
            tokenizer,
            family=recognise(
                own_template, partial(render_template, tokenizer), tokens=added_tokens(tokenizer)
            ),
            own_template=own_template,
        )

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids of every token that can end a sampled message; empty for an unknown template."""
        return (
            tuple(self.codec.control[token] for token in self.family.end_tokens)
            if self.family
            else ()
        )

    def check_calls(self) -> None:
        """Raise RenderError for an unknown template that cannot write a call and its result.

        It would lose most of every agent's session; the error names the families that fit.
        """
        if self.family is None:
            try:
                self.render(PROBE_TURNS)
            except RenderError as error:
                raise RenderError(
                    f"the chat template cannot write a tool call and its result: {error.what}",
                    where="student.template",
                    fix=error.fix,
                ) from error

    def messages_of(self, turns: Sequence[Turn]) -> list[TurnMessages]:
        """The messages of each turn for the template, and counts of what they lack."""
        if self.family is None:
            return conversation(turns, thinking=False)
        return conversation(
            turns,
            thinking=self.family.thinking == "kept",
            short_ids=self.family.short_ids,
            call_each=self.family.call_each,
            lstrip=self.family.lstrip,
        )

    def describe(self) -> dict[str, Any]:
        """The renderer in a data set's metadata: family, template and tokenizer, with hashes."""
        return {
            "family": self.family.name if self.family else "own template",
            "note": (
                self.family.note
                if self.family
                else (
                    "the tokenizer's own template, checked on every conversation; thinking is"
                    " left out"
                )
            ),
            "template_sha256": template_sha256(self.template),
            "tokenizer": str(getattr(self.tokenizer, "name_or_path", "")),
            "tokenizer_sha256": self.codec.sha256(),
            "vocab_size": len(self.tokenizer),
        }

    def render(
        self,
        turns: Sequence[Turn],
        *,
        tools: Sequence[ToolSpec] = (),
        numbers: Sequence[int] | None = None,
    ) -> Rendered:
        """A conversation as ids with the span of every turn.

        `numbers` are the turns' indices in their session (default 0, 1, ...). A turn that the
        student sampled keeps the ids that it sampled. Raises RenderError if the position of a
        message in the template's output cannot be told.
        """
        numbers = range(len(turns)) if numbers is None else numbers
        laid = self._lay_out(turns, tools=tools, names=[f"turn {n}" for n in numbers])
        bodies = [
            (message_span.body, turns[index])
            for message_span, index in zip(laid.layout.spans, laid.turn_indices, strict=True)
        ]
        verbatim = {
            body: self._sampled_ids(body, turn, laid.layout.text)
            for body, turn in bodies
            if turn.sampled and body[0] < body[1]
        }
        encoded = self.codec.encode(
            laid.layout.text,
            cuts=[c for (a, b), _ in bodies if a < b for c in (a, b)],
            mark=laid.mark,
            verbatim=verbatim,
        )
        if self.family is None:
            self._check_one_go(laid)
        spans = self._spans(turns, numbers, laid, encoded)
        straddles = [
            numbers[index]
            for message_span, index in zip(laid.layout.spans, laid.turn_indices, strict=True)
            if self._straddles(message_span.body, encoded, laid)
            and message_span.body not in verbatim
        ]
        return Rendered(
            ids=tuple(encoded.ids),
            spans=spans,
            text=laid.layout.text.replace(laid.mark, ""),
            notes={name: count for name, count in laid.notes.items() if count},
            straddles=tuple(straddles),
        )

    def hint_view(
        self,
        turns: Sequence[Turn],
        *,
        target: int,
        hint: str,
        site_id: str,
        kind: str,
        tools: Sequence[ToolSpec] = (),
        call_ids: Sequence[str] = (),
        others: tuple[tuple[str, str], ...] = (),
        within: Rendered | None = None,
        position: HintPosition = "system",
    ) -> HintView:
        """The teacher's view of a mistaken message: its context with the hint directly above it.

        `turns[target]` is the mistaken message, `call_ids` narrows the target to some of its calls.
        Turns behind it are ignored. Student and teacher are rendered independently, and the
        teacher's ids must be the student's with one insertion. `position` is hints.position:
        "reminder" and "result" add the hint to the user message or tool result directly above; if
        there is none, or if its last tokens would change, the hint is a user message of its own.
        `others` goes into the view as it is.

        Raises AlignmentError or RenderError if the hint cannot be inserted, if the target has no
        tokens, or if `within`, the rendering of the whole example, does not begin with the
        student's ids.
        """
        # 1. The student's side, without turns that render to nothing: the hint has to be put below
        #    the message that the student sees last.
        before, message = list(turns[:target]), turns[target]
        before = [
            turn
            for turn, item in zip(before, self.messages_of(before), strict=True)
            if item.messages
        ]
        hint = hint_in_position(replace_surrogates(hint, Counter()), position=position)
        student = self.render([*before, message], tools=tools)
        begin, end = student.spans[-1].body
        # 2. The target: the whole message, or the calls that failed.
        parts = merge_spans(
            [
                self._call_span([*before, message], tools=tools, call_id=c, rendered=student)
                for c in dict.fromkeys(call_ids)
            ]
        )
        if parts:
            begin, end = parts[0][0], parts[-1][1]
        if begin == end:
            raise RenderError("the mistaken message has no tokens of its own", where=site_id)
        if within is not None and within.ids[:end] != student.ids[:end]:
            raise AlignmentError(
                "what follows the message changes how it and its context are rendered",
                where=site_id,
            )
        # 3. The first placement of the hint that is an exact insertion becomes the view.
        message_start, message_end = student.spans[-1].start, student.spans[-1].body[1]
        num_behind_target = message_end - end
        hinted_contexts: list[tuple[Placement, list[Turn]]] = [
            (placement, context)
            for placement in self._placements(position)
            for context in _hinted_contexts(before, hint, placement)
        ]
        errors: list[str] = []
        if not hinted_contexts:
            errors.append(
                "the template knows no system message there, and the message above is no text of a"
                " user or tool to append it to"
            )
        for placement, hinted_context in hinted_contexts:
            try:
                teacher = self.render([*hinted_context, message], tools=tools)
                teacher_ids = teacher.ids[: teacher.spans[-1].body[1] - num_behind_target]
                at = message_start
                if placement != "message":
                    at = min(shared_prefix_length(student.ids, teacher_ids), message_start)
                return HintView.from_renderings(
                    student.ids[:end],
                    teacher_ids,
                    span=(begin, end),
                    at=at,
                    hint_text=self.codec.normalise(hint),
                    decode=self.codec.decode,
                    site_id=site_id,
                    kind=kind,
                    rendering=_RENDERINGS.get(
                        placement, "appended" if at < message_start else "message"
                    ),
                    position=position,
                    origin="student" if message.sampled else "trace",
                    others=others,
                    parts=parts if len(parts) > 1 else (),
                )
            except (AlignmentError, RenderError) as error:
                errors.append(f"as {placement}: {error.what}")
        raise RenderError(
            f"the hint cannot be inserted above the message ({'; '.join(errors)})", where=site_id
        )

    def _placements(self, position: HintPosition) -> tuple[Placement, ...]:
        """The placements to try for a hint, in order."""
        if position != "system":
            return _PLACEMENTS_AT[position]
        return _PLACEMENTS[self.family.hint if self.family else None]

    def hint_ids(
        self,
        text: str,
        *,
        above: Sequence[Turn],
        position: HintPosition = "system",
        tools: Sequence[ToolSpec] = (),
    ) -> HintInsertion:
        """The ids of a text as the hint for the message that follows `above`.

        Raises AlignmentError or RenderError if the text cannot be inserted there.
        """
        turns = [*above, _PLACEHOLDER_REPLY]
        view = self.hint_view(
            turns,
            target=len(above),
            hint=text,
            site_id="",
            kind="",
            tools=tools,
            position=position,
        )
        student = self.render(turns, tools=tools)
        return HintInsertion(
            hint_ids=view.hint_ids,
            tail=student.ids[view.at : view.span[0]],
            rendering=view.rendering,
        )

    def reply(
        self, turns: Sequence[Turn], reply: Turn, *, tools: Sequence[ToolSpec] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(ids up to and including the generation prompt, ids of the reply with its end token)."""
        rendered = self.render([*turns, reply], tools=tools)
        a, b = rendered.spans[-1].body
        return rendered.ids[:a], rendered.ids[a:b]

    def measure(
        self, turns: Sequence[Turn], *, head: Sequence[Turn], tools: Sequence[ToolSpec] = ()
    ) -> tuple[int, list[int]]:
        """(number of tokens of `head` with tools and preamble, number of tokens of each turn).

        For planning windows (tokens/window.py): `turns` follow `head`. An estimate for an unknown
        template; as windows are rendered afterwards, a wrong estimate costs a second attempt, never
        a wrong window.
        """
        if self.family:
            spans = self.render([*head, *turns], tools=tools).spans
            overhead = spans[len(head)].start if turns else 0
            return overhead, [span.end - span.start for span in spans[len(head) :]]
        overhead = len(self.render(head, tools=tools).ids) if head else 0
        laid = conversation(turns, thinking=False)
        return overhead, [
            sum(
                self.codec.count(m["content"])
                + self.codec.count(json.dumps(m.get("tool_calls", "")))
                + 8
                for m in item.messages
            )
            for item in laid
        ]

    def _lay_out(
        self, turns: Sequence[Turn], *, tools: Sequence[ToolSpec], names: Sequence[str]
    ) -> _LaidOut:
        """The turns as text, with the position of each message; `names` are those of the turns in
        error messages."""
        items = self.messages_of(turns)
        messages = [message for item in items for message in item.messages]
        turn_indices = [index for index, item in enumerate(items) for _ in item.messages]
        notes: Counter[str] = Counter()
        for item in items:
            notes.update(item.notes)
        if not messages:
            raise RenderError(
                "none of the turns has anything that can be rendered",
                where=names[0] if names else "",
            )
        schemas = tool_messages(tools)
        unused = self.codec.free_characters([*json_strings(messages), *json_strings(schemas)], 4)
        position_marks, shield_mark = unused[:3], unused[3]
        shielded = self.codec.shield(messages, shield_mark)
        layout = self._layout(
            shielded,
            tools=self.codec.shield(schemas, shield_mark),
            marks=position_marks,
            names=[names[i] for i in turn_indices],
        )
        return _LaidOut(
            layout=layout,
            messages=shielded,
            turn_indices=turn_indices,
            mark=shield_mark,
            notes=notes,
        )

    def _layout(
        self, messages: list[Message], *, tools: Any, marks: str, names: Sequence[str]
    ) -> Layout:
        """The text of messages and their positions: from the three marks that the templates of
        known families write, or by rendering prefixes of the conversation."""
        render = partial(render_template, self.tokenizer, tools=tools, template=self.template)
        if self.family is None:
            try:
                return prefix_layout(render, messages, names=names, ends=self.codec.pattern)
            except RenderError as error:
                model = getattr(self.tokenizer, "name_or_path", "") or "this tokenizer"
                template_name = (
                    f"the chat template of {model}, sha256 {template_sha256(self.template)[:12]}"
                )
                raise RenderError(
                    error.what,
                    where=f"{error.where}, {template_name}" if error.where else template_name,
                    fix=self.family_advice(),
                ) from error
        marked = render(messages, at_message=marks[0], at_body=marks[1], at_end=marks[2])
        return marked_layout(marked, marks=marks, messages=messages)

    def family_advice(self) -> str:
        """The remedy for an error: the families with which this tokenizer could be used."""
        if fitting := fitting_families(added_tokens(self.tokenizer)):
            return (
                "set student.template to a family whose template is prefix-preserving and loses"
                f" nothing: {', '.join(fitting)}"
                + (
                    " (ChatML with calls as text: the model learns the format in training)"
                    if fitting == ["chatml-tools"]
                    else ""
                )
            )
        return (
            f"no family known here ({', '.join(FAMILIES)}) fits its control tokens: use another"
            " student"
        )

    def _spans(
        self, turns: Sequence[Turn], numbers: Sequence[int], laid: _LaidOut, encoded: Encoded
    ) -> tuple[TurnSpan, ...]:
        """The token span of each turn, from the character positions of its messages."""
        token = partial(self.codec.token_at, encoded, mark=laid.mark)
        starts: dict[int, int] = {}
        bodies: dict[int, Span] = {}
        for message_span, index in zip(laid.layout.spans, laid.turn_indices, strict=True):
            starts.setdefault(index, token(message_span.start))
            a, b = message_span.body
            if a < b:
                sampled = turns[index].sampled
                start = token(a)
                bodies[index] = (start, start + len(sampled.ids) if sampled else token(b))
        # backwards: a turn ends where the next begins; one without a message is empty
        spans: list[TurnSpan] = []
        end = len(encoded.ids)
        for index in reversed(range(len(turns))):
            start = starts.get(index, end)
            turn = turns[index]
            spans.append(
                TurnSpan(
                    turn=numbers[index],
                    role=turn.role,
                    start=start,
                    end=end,
                    body=bodies.get(index, (start, start)),
                    author=turn.author,
                )
            )
            end = start
        return tuple(reversed(spans))

    def _straddles(self, body: Span, encoded: Encoded, laid: _LaidOut) -> bool:
        """Whether a body's first token would be merged with the header if encoded in one go."""
        if body[0] == body[1]:
            return False
        # the tokenizers of known families (byte-level BPE) merge a header's line break only with
        # white space behind it
        if self.family is not None and not laid.layout.text[body[0]].isspace():
            return False
        return self.codec.straddles(encoded, body[0], mark=laid.mark)

    def _sampled_ids(self, body: Span, turn: Turn, text: str) -> tuple[int, ...]:
        """The ids that the student sampled for a turn, with the template's end token if it was cut
        off before it wrote one."""
        ids = turn.sampled.ids if turn.sampled else ()
        end = [match.group() for match in self.codec.pattern.finditer(text, *body)][-1]
        end_id = self.codec.control[end]
        return ids if ids and ids[-1] in (end_id, *self.end_ids) else (*ids, end_id)

    def _check_one_go(self, laid: _LaidOut) -> None:
        """Raise RenderError if encoding a text by pieces between control tokens gives other ids
        than encoding it in one go."""
        text = laid.layout.text
        if laid.mark in text:
            return  # in one go the tokenizer would read the log's look-alikes as control tokens
        pieces, one_go = self.codec.encode(text, cuts=()).ids, self.codec.one_go(text)
        if pieces != one_go:
            at = shared_prefix_length(pieces, one_go)
            raise RenderError(
                "the tokenizer does not treat its control tokens as plain cuts: "
                f"ids differ at {self.codec.decode(one_go[max(0, at - 5) : at + 5])!r}",
                fix=(
                    "use a byte-level BPE tokenizer whose control tokens take no white space with"
                    " them"
                ),
            )

    def _call_span(
        self, turns: Sequence[Turn], *, tools: Sequence[ToolSpec], call_id: str, rendered: Rendered
    ) -> Span:
        """The tokens [start, end) in `rendered` of one call of the last message."""
        ids = [call.id for call in turns[-1].calls]
        if call_id not in ids:
            raise RenderError(f"the message holds no call {call_id}")
        if turns[-1].sampled:
            raise RenderError(
                "a sampled message keeps its own ids, so its calls have no spans",
                fix="use build.target = 'message'",
            )
        # 1. The call's characters in the text.
        laid = self._lay_out(turns, tools=tools, names=[f"turn {i}" for i in range(len(turns))])
        at = max(i for i, message in enumerate(laid.messages) if message["role"] == "assistant")
        schemas = self.codec.shield(tool_messages(tools), laid.mark)
        marks = self.codec.free_characters(
            [*json_strings(laid.messages), *json_strings(schemas), laid.mark], 4
        )
        find = self._marked_call if "at_call" in self.template else self._added_call
        start, end = find(laid, at=at, number=ids.index(call_id), tools=schemas, marks=marks)
        # 2. Its tokens: `rendered` differs from this encoding above the message only (sampled ids).
        body = laid.layout.spans[at].body
        encoded = self.codec.encode(
            laid.layout.text,
            cuts=[c for p in laid.layout.spans for c in p.body if p.body[0] < p.body[1]],
            mark=laid.mark,
        )
        shift = rendered.spans[-1].body[0] - self.codec.token_at(encoded, body[0], mark=laid.mark)
        a = self.codec.token_at(encoded, start, mark=laid.mark)
        if self.codec.token_at(encoded, start + 1, mark=laid.mark) == a:
            a -= 1  # no token begins at `start`: the one before holds the call's first character
        return a + shift, self.codec.token_at(encoded, end, mark=laid.mark) + shift

    def _marked_call(self, laid: _LaidOut, *, at: int, number: int, tools: Any, marks: str) -> Span:
        """The characters of call `number` of message `at`, for a template that writes a mark before
        and after each call."""
        marked = render_template(
            self.tokenizer, laid.messages, tools=tools, template=self.template, at_call=marks[3]
        )
        num_before = sum(len(message.get("tool_calls", ())) for message in laid.messages[:at])
        pieces = marked.split(marks[3])  # text, call, text, call, ..., text
        index = 2 * (num_before + number) + 1
        start = sum(map(len, pieces[:index]))
        return start, start + len(pieces[index])

    def _added_call(self, laid: _LaidOut, *, at: int, number: int, tools: Any, marks: str) -> Span:
        """The characters of call `number` of message `at`, for a template without such marks: what
        is added if the message is rendered with `number` + 1 calls instead of `number`."""

        def text_with_calls(num_calls: int) -> str:
            """The text up to the message's end token, with its first `num_calls` calls only."""
            calls = laid.messages[at]["tool_calls"][:num_calls]
            message = {k: v for k, v in laid.messages[at].items() if k != "tool_calls"} | (
                {"tool_calls": calls} if calls else {}
            )
            layout = self._layout(
                [*laid.messages[:at], message],
                tools=tools,
                marks=marks[:3],
                names=["the message"] * (at + 1),
            )
            begin, end = layout.spans[at].body
            end_tokens = [
                match.start() for match in self.codec.pattern.finditer(layout.text, begin, end)
            ][-1]
            return layout.text[:end_tokens]

        without, with_call = text_with_calls(number), text_with_calls(number + 1)
        text = laid.layout.text
        if not (text.startswith(with_call) and with_call.startswith(without)):
            raise RenderError(
                "the template does not write the calls of a message one after the other, so a call"
                " of it has no span"
            )
        call = with_call[len(without) :].lstrip()
        return len(with_call) - len(call), len(with_call)


def hint_in_position(text: str, *, position: HintPosition) -> str:
    """The hint's text for hints.position: a reminder gets the tags that agents know.

    >>> hint_in_position("Call Read.", position="reminder")
    '<system-reminder>\\nCall Read.\\n</system-reminder>'
    """
    return _REMINDER.format(text) if position == "reminder" else text


def _hinted_contexts(before: Sequence[Turn], hint: str, placement: Placement) -> list[list[Turn]]:
    """The context with the hint in it, by this placement: one list of turns for each separator that
    may be tried; none if the placement does not apply."""
    if placement in ("appended", "line"):
        extended_turns = _turns_with_hint(before, hint, placement)
        return [[*before[:-1], turn] for turn in extended_turns]
    if placement == "alone" and not before:
        return []
    role = "system" if placement in ("message", "joined") else "user"
    return [[*before, Turn(role=role, author=HARNESS, blocks=(Text(hint),), tag="hint")]]


def _turns_with_hint(before: Sequence[Turn], hint: str, placement: Placement) -> list[Turn]:
    """The last turn of a context with the hint added to the text at its end, once for each
    separator; none if it is an assistant's, or does not end with text."""
    above = before[-1] if before else None
    if above is None or above.role == "assistant" or not above.blocks:
        return []
    *first, last = above.blocks
    if not isinstance(last, (Text, ToolResult)):
        return []
    frames: Sequence[tuple[str, str]] = [(separator, "") for separator in _SEPARATORS]
    if placement != "appended":
        frames = _LINE_FRAMES if above.role in ("user", "tool") else ()
    return [
        replace(above, blocks=(*first, replace(last, text=f"{last.text}{front}{hint}{behind}")))
        for front, behind in frames
    ]
