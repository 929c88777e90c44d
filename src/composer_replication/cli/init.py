"""`recompose init`: a commented recompose.toml, written from the settings' own docstrings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from cyclopts import Parameter

from composer_replication.cli.console import Screen
from composer_replication.cli.flags import Common
from composer_replication.cli.job import settings_only
from composer_replication.cli.next_step import next_step
from composer_replication.cli.presets import preset_text
from composer_replication.cli.problems import UsageError
from composer_replication.core.config.base import Settings
from composer_replication.core.config.load_config import FILE_NAME, field_at, table_of
from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError
from composer_replication.core.files import write_text

HEAD = """# Settings of composer-replication.
# A line "# key = value" shows the default; remove the "# " to change it.
# Flags win over this file: recompose train --train.steps 50
"""


def init_command(
    *,
    schema: bool = False,
    explain: str = "",
    preset: Annotated[str, Parameter(name="--from")] = "",
    force: bool = False,
    common: Common = Common(),
) -> int:
    """Write a commented recompose.toml.

    Parameters
    ----------
    schema
        Print the JSON Schema of the settings, for editors, and write nothing.
    explain
        Print the settings of one group, e.g. train.hint, and write nothing.
    preset
        Start from the preset for a model and a card, and print what to expect: tiny (no GPU; shows
        every step), qwen3-0.6b, qwen3-1.7b, qwen3-4b-24gb, qwen3-8b-24gb-qlora, qwen3-14b-48gb,
        qwen3-32b-8x80gb.
    force
        Overwrite an existing file.
    """
    if schema:
        Screen(json=True).result(Config.model_json_schema())
        return 0
    job = settings_only(common)
    if explain:
        return _explain(explain, job.screen)
    path = common.out if common.out is not None else Path(FILE_NAME)
    path = path / FILE_NAME if path.is_dir() else path
    if path.exists() and not force and not job.dry_run:
        raise ConfigError(
            "the file exists",
            where=str(path),
            fix="give another path with -o, or --force to replace it",
        )
    text = preset_text(preset) if preset else toml_text()
    if not job.dry_run:
        write_text(path, text)
    return job.finish(
        {"file": str(path), "text": text},
        wrote=[path],
        next_command=next_step(job, has_settings=True),
    )


def toml_text() -> str:
    """A TOML file that lists every setting with its doc and default; all values are commented
    out."""
    return HEAD + "\n".join(_group_lines(Config, ())) + "\n"


def _group_lines(group: type[Settings], prefix: tuple[str, ...]) -> Iterator[str]:
    """The lines of one group: its values first, then its inner groups, as TOML requires."""
    if prefix:
        yield f"\n[{'.'.join(prefix)}]" + (
            f"  # {_first_paragraph(group)}" if group.__doc__ else ""
        )
    inner: list[tuple[str, type[Settings]]] = []
    tables: list[tuple[str, type[Settings]]] = []
    for name, field in group.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            inner.append((name, field.annotation))
            continue
        if (table := table_of(field)) is not None:
            tables.append((name, table))
        for line in (field.description or "").splitlines():
            yield f"#   {line.strip()}"
        if choices := _choices(field.annotation):
            yield f"#   One of: {choices}."
        default = field.get_default(call_default_factory=True)
        yield f"# {name} = {'...' if field.is_required() else toml_value(default)}"
    for name, settings in inner:
        yield from _group_lines(settings, (*prefix, name))
    # the user names the entries of a table, so their headers stay comments
    for name, table in tables:
        yield from (f"#   {line.strip()}" for line in _group_lines(table, (*prefix, name, "NAME")))


def _first_paragraph(group: type[Settings]) -> str:
    return " ".join((group.__doc__ or "").strip().partition("\n\n")[0].split())


def _choices(annotation: Any) -> str:
    return (
        ", ".join(toml_value(a) for a in get_args(annotation))
        if get_origin(annotation) is Literal
        else ""
    )


def toml_value(value: object) -> str:
    """A setting's default as TOML.

    >>> toml_value(("a", "b")), toml_value(True), toml_value(1e-4)
    ('["a", "b"]', 'true', '0.0001')
    """
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _explain(dotted: str, screen: Screen) -> int:
    """The settings of one group, or of one key, with docs and defaults."""
    key = tuple(dotted.split("."))
    field = field_at(key)
    if field is None:
        raise UsageError(f"no settings {dotted!r}", fix=f"groups: {', '.join(Config.model_fields)}")
    group = field.annotation
    if isinstance(group, type) and issubclass(group, Settings):
        lines = list(_group_lines(group, key))
    else:
        lines = [
            f"#   {field.description or ''}",
            f"# {key[-1]} = {toml_value(field.get_default(call_default_factory=True))}",
        ]
    for line in "\n".join(lines).strip().split("\n"):
        screen.line(line)
    screen.result({"key": dotted, "text": "\n".join(lines).strip()})
    return 0
