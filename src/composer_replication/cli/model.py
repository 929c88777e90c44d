"""`recompose model check X`: what a model is and can do, and what would be refused, before it is
used."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from composer_replication.cli.flags import Common
from composer_replication.cli.job import Job, settings_only
from composer_replication.cli.model_check import check_model
from composer_replication.cli.model_check_files import ModelCheck
from composer_replication.cli.problems import FIXABLE
from composer_replication.core.errors import need
from composer_replication.models.model_files import is_missing_path

KINDS = {
    "gguf": "a GGUF file",
    "adapter": "a LoRA adapter",
    "folder": "a folder",
    "hub": "a hub name",
    "tiny": "the tiny student",
}
ABILITIES = {
    "system": "system messages",
    "late_system": "system messages in mid-conversation",
    "tools": "the tools on offer",
    "calls": "calls, with names and arguments",
    "several_calls": "several calls in one message",
    "text_and_call": "a text and a call in one message",
    "results": "results of calls",
    "thinking": "thinking",
    "stable": "earlier text stays as it was",
}
HINTS = {
    "message": "as a system message above the mistaken message",
    "appended": "at the end of what a user or tool said above",
}


def model_command(what: Literal["check"], model: str = "", /, *, common: Common = Common()) -> int:
    """Describe a model: its files, its abilities, and the reasons for which verbs would refuse it.

    Exit code 1 if it would be refused. No weight is loaded, and nothing is written.

    Parameters
    ----------
    what
        `check`.
    model
        Folder, Hub name, GGUF file or adapter folder. Default: student.model.
    """
    job = settings_only(common)
    need("transformers", extra="train")
    student = job.config.student
    settings = student.model_copy(update={"model": model}) if model else student
    check = check_model(settings)
    _show(job, check)
    value = asdict(check)
    if check.refused:
        job.screen.result(value)
        return FIXABLE
    return job.finish(value, wrote=[], next_command=job.command("build"))


def _show(job: Job, check: ModelCheck) -> None:
    screen, facts, tokens = job.screen, check.facts, check.tokens
    base = f" on {facts['base']}, rank {facts['rank']}" if "base" in facts else ""
    screen.line(f" model    {check.model}, {_kind(check)}{base}")
    if facts.get("model_type"):
        context = f", context {facts['context']} tokens" if facts.get("context") else ""
        screen.line(f" type     {facts['model_type']}{context}")
    if "num_weights" in facts:
        screen.line(f" weights  {_weights(facts)}")
    if memory := facts.get("memory_bytes"):
        held, training = _gigabytes(memory["weights"]), _gigabytes(memory["training_all"])
        screen.line(
            f" memory   {held} for the weights in {memory['dtype']}; {training} to train all of"
            f" them, {held} and the adapters with LoRA; activations and a frozen copy come on top"
        )
    if tokens:
        special = ", ".join(f"{name} {text}" for name, text in tokens["special"].items())
        rows = facts.get("embedded_tokens")
        embeds = f", the model embeds {rows}" if rows is not None else ""
        screen.line(f" tokens   {tokens['vocabulary']}{embeds}; {special}")
        if ends := ", ".join(tokens.get("end_of_message", ())):
            screen.line(f" end      a message ends with {ends}")
    if check.template:
        _show_template(job, check.template)
    for note in check.notes:
        screen.line(f" note     {note}", style="dim")
    for name, colour, problems in (
        ("build", "yellow", check.provisos),
        ("refused", "red", check.refused),
    ):
        for problem in problems:
            screen.line(f" {name:<8} {problem['what']}", style=colour)
            for line in problem["fix"].splitlines():
                screen.line(f"          {line}", style="green")
    if not check.refused:
        screen.line(" refused  nothing", style="green")


def _kind(check: ModelCheck) -> str:
    return "which is not there" if is_missing_path(check.model) else KINDS[check.kind]


def _show_template(job: Job, template: dict[str, Any]) -> None:
    screen = job.screen
    by = f", recognised by {template['recognised_by']}" if "recognised_by" in template else ""
    screen.line(f" family   {template['family']}{by}")
    fitting = ", ".join(template["families_that_fit"]) or "none"
    if template.get("note"):
        screen.line(f" note     {template['note']}")
    screen.line(f" allowed  by its control tokens (student.template): {fitting}")
    carried, used = template.get("own"), template.get("used")

    def word(abilities: dict[str, bool] | None, name: str) -> str:
        return "" if abilities is None else "yes" if abilities[name] else "no"

    screen.table(
        [(text, word(carried, name), word(used, name)) for name, text in ABILITIES.items()],
        head=("what a session holds", "its own template", "the one used"),
    )
    if "hint" in template:
        screen.line(f" hint     is inserted {HINTS[template['hint']]}; nothing else changes")


def _weights(facts: dict[str, Any]) -> str:
    """The weights in words, e.g. "134515008 in float32, 0.54 GB on disk"."""
    stored = facts.get("quantisation") or ", ".join(facts.get("dtypes", {}))
    unpacked = "; de-quantised when loaded" if "quantisation" in facts else ""
    return (
        f"{facts['num_weights']} in {stored}, {_gigabytes(facts['disk_bytes'])} on disk{unpacked}"
    )


def _gigabytes(count: int) -> str:
    """A size in words.

    >>> _gigabytes(538_090_408)
    '0.54 GB'
    """
    return f"{count / 1e9:.2f} GB"
