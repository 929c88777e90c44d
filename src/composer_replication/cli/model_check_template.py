"""The findings of `model check` about a template: its family, and what it can and cannot say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from composer_replication.cli.build_lost_calls import FEW_LOST_CALLS, MAX_LOST_CALLS
from composer_replication.cli.model_check_files import ModelCheck
from composer_replication.core.errors import RenderError
from composer_replication.core.trace import HARNESS, ToolCall, ToolResult, Turn
from composer_replication.tokens.hf import added_tokens, own_template_of, render_template
from composer_replication.tokens.renderer import PROBE_TURNS, Renderer
from composer_replication.tokens.template_abilities import (
    OfSeveral,
    of_several_calls,
    template_abilities,
)
from composer_replication.tokens.template_families import (
    FAMILIES,
    fitting_families,
    recognise,
    recognised_by_text,
)

_CALLS = {"callabc01": "look", "callabc02": "list"}
_SEVERAL_CALLS = (
    PROBE_TURNS[0],
    Turn(
        role="assistant",
        author=None,
        blocks=tuple(ToolCall(i, name, {"path": f"{name}.py"}) for i, name in _CALLS.items()),
    ),
    Turn(role="tool", author=HARNESS, blocks=tuple(ToolResult(i, "x = 1") for i in _CALLS)),
    PROBE_TURNS[-1],
)
_OF_SEVERAL: Mapping[OfSeveral, str] = {
    "the first": "the template writes the first and drops the others",
    "the last": "the template writes the last and drops the others",
    "none": "the template drops all of them",
    "rejected": "the template refuses such a message",
}


def check_template(check: ModelCheck, tokenizer: Any, named: str) -> None:
    """Look at the model's own template, and at the one that the settings name; raises RenderError
    for one that cannot be trained with."""
    template, tokens = own_template_of(tokenizer), added_tokens(tokenizer)
    check.template = {"families_that_fit": fitting_families(tokens), "family": "none of ours"}
    if template:
        check.template["own"] = asdict(template_abilities(tokenizer, template=template))
    renderer = Renderer.for_tokenizer(tokenizer, family=named)
    if named != "auto":
        _compare_template(check, named, template=template, tokenizer=tokenizer)
    if renderer.family is not None:
        by_text = recognised_by_text(template, tokens=tokens) is not None
        recognised = "its text" if by_text else "what it renders"
        check.template |= {
            "family": renderer.family.name,
            "recognised_by": recognised if named == "auto" else "student.template",
            "note": renderer.family.note,
        }
        check.tokens["end_of_message"] = list(renderer.family.end_tokens)
    check.template["used"] = asdict(template_abilities(tokenizer, template=renderer.template))
    renderer.check_calls()
    _check_several_calls(check, renderer)
    view = renderer.hint_view(
        PROBE_TURNS, target=1, hint="Read the file first.", site_id="probe", kind="probe"
    )
    check.template["hint"] = view.rendering


def _check_several_calls(check: ModelCheck, renderer: Renderer) -> None:
    """Say what becomes of messages with several calls, if the renderer refuses them as `build`
    would: how many the logs hold decides whether the build is refused."""
    try:
        renderer.render(_SEVERAL_CALLS)
    except RenderError as error:
        done = of_several_calls(renderer.tokenizer, template=renderer.template)
        check.provisos.append(
            {
                "what": f"of several calls in one message: {_OF_SEVERAL.get(done, error.what)}."
                " Such messages are left out, and `build` is refused if the logs hold more than a"
                f" few of them: {FEW_LOST_CALLS} or more, and over {MAX_LOST_CALLS:.0%} of the"
                " messages with calls",
                "fix": renderer.family_advice(),
            }
        )


def _compare_template(check: ModelCheck, named: str, *, template: str, tokenizer: Any) -> None:
    """Note a template that works by name, but is another than the model was trained with."""
    tokens = added_tokens(tokenizer)
    lacking = [token for token in FAMILIES[named].inner_tokens if token not in tokens]
    fitting = ", ".join(fitting_families(tokens)) or "none"
    if lacking:
        check.notes.append(
            f"the tokenizer has no token {lacking[0]!r}, which the {named} template writes inside"
            f" a message: it would be text of several tokens; templates that suit: {fitting}"
        )
    trained_with = template and recognise(
        template, partial(render_template, tokenizer), tokens=tokens
    )
    if trained_with and not trained_with.is_variant_of(FAMILIES[named]):
        check.notes.append(
            f"the model's own template is {trained_with.name}, student.template names {named}:"
            f" the model does not know that format yet; templates that suit: auto, {fitting}"
        )
