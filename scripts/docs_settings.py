"""Write docs/settings.md and docs/errors.md: every setting with its default, and every error with
what to do.

    python scripts/docs_settings.py [--check]
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, get_args, get_origin

from composer_replication.cli.init import toml_value
from composer_replication.core import errors
from composer_replication.core.config.base import Settings
from composer_replication.core.config.load_config import table_of
from composer_replication.core.config.root import Config

DOCS = Path(__file__).resolve().parent.parent / "docs"
SETTINGS_HEAD = """# Every setting

Written by `python scripts/docs_settings.py`; a test fails if it is stale.

Put a setting in `recompose.toml`, or pass it as a flag with its dotted name:
`--train.hint.weight 0.3`. `recompose init` writes a `recompose.toml` with all settings;
`recompose init --explain GROUP` prints a group. Flags override files, later files override earlier
ones, and files override presets. An unknown name is an error. Settings that run programs, name keys
or send data count only from a file that you [trusted](trust.md).
"""
ERRORS_HEAD = """# Every error

Written by `python scripts/docs_settings.py` from `core/errors.py`; a test fails if it is stale.

An error says what happened, where, and how to fix it. With `--json` it is
`{"error": {"what", "where", "fix", "exit_code"}}`; with `--debug` it has its traceback. In Python
every error is a `ComposerError`, and also the standard exception that is named here.

Exit codes: 0 done, 1 a problem you can fix, 2 a wrong command line, 3 stopped by a health rule,
4 the budget is reached, 17 another replica has this one's slot.
"""
REMEDIES: Mapping[str, str] = {
    "ConfigError": "Change the setting that it names; `recompose init --explain GROUP` explains it.",
    "UntrustedError": "Read the lines that it shows, then `recompose trust FILE`; see [trust](trust.md).",
    "DataError": "Run the command that writes the file again; the error names it. What you ingested is kept.",
    "SessionError": "A log was edited by hand, or your own importer builds sessions wrongly.",
    "DamagedError": "Run `recompose train --resume` with the earlier checkpoint that it names.",
    "SecretsFoundError": "Your scanner (`ingest.scanner`) found a secret. Leave the log out, or add a rule; see [redaction](redaction.md).",
    "SiteError": "Your own detector or hint writer points at a message that does not exist.",
    "AlignmentError": "Do not build token views by hand; use `recompose build`.",
    "RenderError": "`recompose model check MODEL` says what the chat template can do. Set a template family with `student.template`; see [models](models.md).",
    "MissingExtraError": "Run the install line that it prints.",
    "SandboxError": "`recompose doctor` says what the sandbox lacks; see [tasks](tasks.md#the-sandbox).",
    "TeacherError": "Usually a key, a limit or a time-out. Run the same command again; answers are kept.",
    "BusyError": "Wait for the process that it names, or use another folder (`-o`).",
    "UnwrittenError": "Free some disk space; the old content is unchanged.",
    "BudgetError": "Raise the ceiling (`--max-usd`), or continue with the answers you have.",
    "NoSpaceError": "Free some disk space and run it again; paid answers are in the ledger.",
    "ReplicaError": "Read the logs of the replicas that it names; `--resume` continues the run.",
    "SyncError": "Check that the folder or bucket is reachable and writable; see [replicas](replicas.md).",
    "SlotTakenError": "Another process runs as this replica; see `train.sync.takeover` in [replicas](replicas.md).",
    "StoppedError": "Read the rule and the curves on the page (`recompose report`). The last good checkpoint is kept.",
}


def settings_page() -> str:
    """The page of settings: a list per group, an anchor per setting."""
    return SETTINGS_HEAD + "\n".join(_group(Config, ())) + "\n"


def _group(group: type[Settings], prefix: tuple[str, ...]) -> Iterator[str]:
    """The lines of a group: its own settings, then its inner groups."""
    rows: list[str] = []
    inner: list[tuple[tuple[str, ...], type[Settings]]] = []
    for name, field in group.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            inner.append(((*prefix, name), field.annotation))
            continue
        if (table := table_of(field)) is not None:
            inner.append(((*prefix, name, "NAME"), table))
        default = field.get_default(call_default_factory=True)
        shown = "(required)" if field.is_required() else f"`{toml_value(default)}`"
        dotted = ".".join((*prefix, name))
        if not (meaning := _meaning(field)):
            raise SystemExit(f"docs: the setting {dotted} has no docstring")
        rows.append(f'- <a id="{dotted}"></a>**`{name}`** = {shown}: {_escaped(meaning)}')
    if rows:
        about = " ".join((group.__doc__ or "").strip().partition("\n\n")[0].split())
        yield f"\n## {'.'.join(prefix) or 'top level'}\n"
        if prefix and about:
            yield f"{_escaped(about)}\n"
        yield from rows
    for path, settings in inner:
        yield from _group(settings, path)


def _meaning(field: object) -> str:
    """A setting's text, with its choices."""
    text = " ".join((getattr(field, "description", None) or "").split())
    annotation = getattr(field, "annotation", None)
    if get_origin(annotation) is Literal:
        text += f" One of: {', '.join(f'`{toml_value(a)}`' for a in get_args(annotation))}."
    return text.strip()


def _escaped(text: str) -> str:
    """Text that is not taken for HTML."""
    return text.replace("<", "&lt;")


def errors_page() -> str:
    """The page of errors, one heading each."""
    parts = [ERRORS_HEAD]
    for name, remedy in REMEDIES.items():
        error = getattr(errors, name)
        about = " ".join((inspect.getdoc(error) or "").partition("\n\n")[0].split())
        bases = [base for base in error.__mro__[1:] if base.__module__ == "builtins"]
        parts.append(
            f"## {name}\n{about} Also a `{bases[0].__name__}`; exit code {error.exit_code}.\n\n"
            f"{remedy}\n"
        )
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write the pages, or check them; returns the exit code."""
    pages = {"settings.md": settings_page(), "errors.md": errors_page()}
    stale = [
        name
        for name, text in pages.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text("utf-8") != text
    ]
    if "--check" in arguments:
        for name in stale:
            print(f"docs/{name} is stale; run: python scripts/docs_settings.py")
        return int(bool(stale))
    for name, text in pages.items():
        (DOCS / name).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
