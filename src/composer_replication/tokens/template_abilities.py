"""The abilities of a chat template, probed by rendering small conversations of words that occur
nowhere else.

    template_abilities(tokenizer, template=own_template_of(tokenizer)).calls   # False for SmolLM2's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.core.errors import RenderError
from composer_replication.tokens.hf import render_template

_USER = {"role": "user", "content": "qUser"}
_CALL = {
    "type": "function",
    "id": "callabc01",
    "function": {"name": "qTool", "arguments": {"qKey": "qValue"}},
}
_RESULT = {"role": "tool", "name": "qTool", "tool_call_id": "callabc01", "content": "qResult"}
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
    `thinking` the thinking of the last message, `stable` says that what was rendered stays as it
    was when more messages follow.
    """

    system: bool
    late_system: bool
    tools: bool
    calls: bool
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
        results=any(writes("qResult", messages=[_USER, message, _RESULT]) for message in called),
        thinking=writes("qThought", messages=[_USER, {**thought, "thinking": "qThought"}]),
        stable=bool(before) and after.startswith(before.rstrip()),
    )
