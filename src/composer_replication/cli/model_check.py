"""The findings of `model check`: a model's files, its tokenizer and its template, and refusals.

Weights are not loaded: their headers say how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from composer_replication.cli.build_lost_calls import FEW_LOST_CALLS, MAX_LOST_CALLS
from composer_replication.cli.model_check_files import ModelCheck, check_files
from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.errors import ComposerError, RenderError
from composer_replication.core.trace import HARNESS, ToolCall, ToolResult, Turn
from composer_replication.models.adapter_folder import base_model, with_adapter
from composer_replication.models.hub_files import HUB_FIX, kept_folder, why_unreachable
from composer_replication.models.model_files import (
    is_missing_path,
    model_kind,
    tokens_without_a_row,
)
from composer_replication.tokens.hf import (
    added_tokens,
    own_template_of,
    render_template,
    student_tokenizer,
)
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
from composer_replication.tokens.tiny_tokenizer import train_tiny_tokenizer

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


def check_model(settings: StudentSettings) -> ModelCheck:
    """Look at the model that the settings name; nothing of it is run, and no weight is read."""
    check = ModelCheck(model=settings.model, kind=model_kind(settings.model))
    if check.kind == "tiny":
        check.notes.append("made here, with a tokenizer that `build` trains on your sessions")
        with check.collecting():  # its control tokens do not depend on the sessions
            Renderer.for_tokenizer(train_tiny_tokenizer(()), family=settings.template)
        return check
    settings, is_there = _from_this_machine(check, settings)
    if not is_there:
        return check
    with check.collecting():
        settings = with_adapter(settings)
        base = base_model(settings)
        if check.kind == "adapter":
            lora = settings.lora
            check.facts |= {"base": base, "rank": lora.rank, "alpha": lora.alpha}
        check_files(check, base, dtype=settings.dtype)
    with check.collecting():
        tokenizer = student_tokenizer(settings)
        _check_tokens(check, tokenizer)
        _check_template(check, tokenizer, settings.template)
    return check


def _from_this_machine(
    check: ModelCheck, settings: StudentSettings
) -> tuple[StudentSettings, bool]:
    """If the hub cannot be reached, the settings with the folder of what is kept here of the model;
    False if nothing is."""
    try:
        base = base_model(settings)
    except ComposerError:  # what follows says it, with the rest
        return settings, True
    if model_kind(base) != "hub" or is_missing_path(base) or not (why := why_unreachable(base)):
        return settings, True
    kept = kept_folder(base)
    if kept is None:
        check.refuse(f"{why}, and nothing of {base} is on this machine (at student.model)", HUB_FIX)
        return settings, False
    check.notes.append(f"{why}; what is on this machine of {base} was looked at")
    changed = "base" if check.kind == "adapter" else "model"
    return settings.model_copy(update={changed: str(kept)}), True


def _check_tokens(check: ModelCheck, tokenizer: Any) -> None:
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    check.tokens = {
        "vocabulary": len(tokenizer),
        "special": {name: text for name in names if (text := getattr(tokenizer, name, None))},
    }
    rows = check.facts.get("embedded_tokens")
    if rows is not None and (surplus := tokens_without_a_row(tokenizer, rows)):
        check.refuse(
            f"the tokenizer has {rows + surplus} tokens, the model embeds {rows}",
            "give the folder of the model's own tokenizer",
        )
    elif rows is not None:
        names = {i: text for text, i in tokenizer.get_vocab().items() if i >= rows}
        if names:
            check.notes.append(
                f"{len(names)} of the tokenizer's tokens have no row in the model's embedding"
                f" ({', '.join(names[i] for i in sorted(names)[:4])}): no rendering contains one"
            )


def _check_template(check: ModelCheck, tokenizer: Any, named: str) -> None:
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
