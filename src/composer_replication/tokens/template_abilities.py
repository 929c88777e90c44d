"""The abilities of a chat template, probed by rendering small conversations of words that occur
nowhere else.

    template_abilities(tokenizer, template=own_template_of(tokenizer)).calls   # False for SmolLM2's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from composer_replication.core.errors import RenderError
from composer_replication.tokens.hf import render_template

_USER = {"role": "user", "content": "qUser"}
_CALL = {
    "type": "function",
    "id": "callabc01",
    "function": {"name": "qTool", "arguments": {"qKey": "qValue"}},
}
_NEXT_CALL = {
    "type": "function",
    "id": "callabc02",
    "function": {"name": "qOther", "arguments": {"qName": "qNext"}},
}
_RESULT = {"role": "tool", "name": "qTool", "tool_call_id": "callabc01", "content": "qResult"}
_NEXT_RESULT = {"role": "tool", "name": "qOther", "tool_call_id": "callabc02", "content": "qMore"}
OfSeveral = Literal["all", "the first", "the last", "none", "rejected"]
"""What a template writes of several calls in one message; "rejected" = it raises an error."""
_TOOL = {
    "type": "function",
    "function": {
        "name": "qOffered",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {}},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateAbilities:
    """Whether each thing that a session holds appears in what a template renders.

    `late_system` is a system message in mid-conversation, `calls` names and arguments of calls,
    `several_calls` those of two calls in one message, `text_and_call` a text and a call in one
    message, `thinking` the thinking of the last message, `stable` says that what was rendered stays
    as it was when more messages follow.
    """

    system: bool
    late_system: bool
    tools: bool
    calls: bool
    several_calls: bool
    text_and_call: bool
    results: bool
    thinking: bool
    stable: bool


def template_abilities(
    tokenizer: Any, *, template: str, options: Mapping[str, Any] | None = None
) -> TemplateAbilities:
    """The messages that a template can write; it lacks an ability whose conversation it rejects."""

    def text(messages: Sequence[Mapping[str, Any]], *, tools: Any = None) -> str:
        try:
            return render_template(
                tokenizer, messages, tools=tools, template=template, **(options or {})
            )
        except RenderError:
            return ""

    def writes(*words: str, messages: Sequence[Mapping[str, Any]], tools: Any = None) -> bool:
        rendered = text(messages, tools=tools)
        return all(word in rendered for word in words)

    well = {"role": "assistant", "content": "qWell"}
    thought = {"role": "assistant", "content": "qWell", "reasoning_content": "qThought"}
    # some templates write a call only if there is no text beside it at all
    result = {**_RESULT, "name": "other"}
    called = [
        {"role": "assistant", "content": words, "tool_calls": [_CALL]} for words in ("", None)
    ]
    system = {"role": "system", "content": "qSystem"}
    before, after = text([_USER, well]), text([_USER, well, {"role": "user", "content": "qMore"}])
    return TemplateAbilities(
        system=writes("qSystem", "qUser", messages=[system, _USER]),
        late_system=writes("qSystem", messages=[_USER, well, system]),
        tools=writes("qOffered", messages=[_USER], tools=[_TOOL]),
        calls=any(
            writes("qTool", "qKey", "qValue", messages=[_USER, message, result])
            for message in called
        ),
        several_calls=of_several_calls(tokenizer, template=template, options=options) == "all",
        text_and_call=writes(
            "qWell",
            "qTool",
            "qKey",
            "qValue",
            messages=[_USER, {**well, "tool_calls": [_CALL]}, result],
        ),
        results=any(writes("qResult", messages=[_USER, message, _RESULT]) for message in called),
        thinking=writes("qThought", messages=[_USER, {**thought, "thinking": "qThought"}]),
        stable=bool(before) and after.startswith(before.rstrip()),
    )


def of_several_calls(
    tokenizer: Any, *, template: str, options: Mapping[str, Any] | None = None
) -> OfSeveral:
    """What a template writes of two calls in one message, by their names and arguments."""
    message = {"role": "assistant", "content": "", "tool_calls": [_CALL, _NEXT_CALL]}
    # the results name no tool, so that a name in the text is that of a call
    results = [{**result, "name": "other"} for result in (_RESULT, _NEXT_RESULT)]
    try:
        rendered = render_template(
            tokenizer,
            [_USER, message, *results],
            tools=None,
            template=template,
            **(options or {}),
        )
    except RenderError:
        return "rejected"
    first, last = (
        all(word in rendered for word in words)
        for words in (("qTool", "qKey", "qValue"), ("qOther", "qName", "qNext"))
    )
    if first:
        return "all" if last else "the first"
    return "the last" if last else "none"
