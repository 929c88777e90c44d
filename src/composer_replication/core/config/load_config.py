"""Settings from TOML files and dotted flags: defaults < file(s) left to right < flags.

    load_config([Path("recompose.toml")], flags={"train.hint.weight": "0.3"}, start=Path.cwd())

Every problem names its file and line (or flag), and an unknown key is answered with the nearest
known one. Paths in a file are relative to that file; paths in a flag are relative to the current
folder.

A file may come from a stranger. A setting that runs code, sends data or reaches outside the file's
folder (core/config/powers.py) counts only if the user has trusted these very bytes
(core/config/trusted_files.py): each file is read once, and the bytes that are hashed are those that
are parsed. Flags are the user's own; a flag replaces the value of the same setting in a file.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from composer_replication.core.config.base import Settings
from composer_replication.core.config.powers import (
    CODE_KEYS,
    holds_text,
    is_shipped,
    may_be_a_models_key,
    powers_of,
    quote_value,
    shadowed_modules,
)
from composer_replication.core.config.root import Config
from composer_replication.core.config.trusted_files import SettingsFile, Trusted, refusal
from composer_replication.core.errors import ConfigError
from composer_replication.core.redact import Redactor

FILE_NAME = "recompose.toml"
MAX_BYTES = 2**20  # of a settings file
PATH_KEYS = (
    "work_dir",
    "ingest.logs",
    "sites.reader.recorded",
    "hints.rules_file",
    "hints.reader.recorded",
    "build.pairs",
    "replay.recorded",
    "rollouts.server.weights_dir",
    "rollouts.repo.tasks",
    "rollouts.repo.program_folders",
)
"""Settings whose values are paths, or lists of them."""
_SECRET_KEY = re.compile(r"(api_?key|token|secret|passw(or)?d|credential)s?$", re.IGNORECASE)
_HEADER = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?")
_KEY = re.compile(
    r"""^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*="""
)

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A validated configuration and its sources; relative defaults are relative to `base`."""

    config: Config
    sources: tuple[SettingsFile, ...]
    base: Path

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that were read; later ones override earlier ones."""
        return tuple(source.path for source in self.sources)

    @property
    def work_dir(self) -> Path:
        """The work folder as a path, e.g. /home/me/project/recompose."""
        return self.base / Path(self.config.work_dir).expanduser()


def find_config(start: Path) -> Path | None:
    """Find the nearest recompose.toml at or above a folder; None if there is none.

    Example: find_config(Path("/home/me/project/src")) -> Path("/home/me/project/recompose.toml")
    """
    for folder in (start, *start.parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    return None


def field_at(key: Key) -> FieldInfo | None:
    """The field that a dotted key names, or None; groups are fields too.

    >>> field_at(("train", "hint", "weight")).annotation
    <class 'float'>
    """
    group: type[Settings] = Config
    for i, part in enumerate(key):
        field = group.model_fields.get(part)
        if field is None or i == len(key) - 1:
            return field
        inner = field.annotation
        if (table := table_of(field)) is not None:
            return _field_in(table, key[i + 2 :])
        if not (isinstance(inner, type) and issubclass(inner, Settings)):
            return None
        group = inner
    return None


def _field_in(group: type[Settings], key: Key) -> FieldInfo | None:
    """The field of a group that is an entry of a table; such groups hold no further groups."""
    return group.model_fields.get(key[0]) if len(key) == 1 else None


def table_of(field: FieldInfo) -> type[Settings] | None:
    """The settings class of a table's entries; None for a field that is no table of groups.

    >>> table_of(Config.model_fields["replay"].annotation.model_fields["teacher"]).__name__
    'TeacherSettings'
    """
    inner = get_args(field.annotation)[1] if get_origin(field.annotation) is dict else None
    return inner if isinstance(inner, type) and issubclass(inner, Settings) else None


def walk_fields(
    group: type[Settings] = Config, prefix: Key = ()
) -> Iterator[tuple[Key, FieldInfo]]:
    """(dotted key, field) of every setting that is not a group, in the order of the classes."""
    for name, field in group.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Settings):
            yield from walk_fields(inner, (*prefix, name))
        else:
            yield (*prefix, name), field


def settings_paths(files: Sequence[Path], *, start: Path) -> list[Path]:
    """The files that a call reads: the given ones, else the nearest recompose.toml, else none."""
    paths = [p if p.is_absolute() else start / p for p in files]
    if not paths and (nearest := find_config(start)) is not None:
        paths = [nearest]
    return paths


def load_config(
    files: Sequence[Path] = (),
    *,
    flags: Mapping[str, str] | None = None,
    start: Path,
    trusted_by: Callable[[SettingsFile], str] | None = None,
) -> LoadedConfig:
    """Read, merge and validate the settings; without `files`, the nearest recompose.toml is read.

    `trusted_by` says why a file with powers is trusted, "" if it is not; by default the user's list
    decides (core/config/trusted_files.py).
    Raises ConfigError, which names the file and line, or the flag, of every setting that cannot be
    used, and UntrustedError for a file with powers that is not trusted.
    """
    paths = settings_paths(files, start=start)
    typed = {
        tuple(dotted.replace("-", "_").split(".")): text for dotted, text in (flags or {}).items()
    }
    merged: dict[str, Any] = {}
    origins: dict[Key, str] = {}
    sources: list[SettingsFile] = []
    for path in paths:
        source, tree, lines = read_settings(
            path, flag_keys=frozenset(".".join(key) for key in typed)
        )
        reason = (
            (trusted_by or Trusted.of(os.environ).trusted_by)(source)
            if source.powers
            else "harmless"
        )
        if not reason:
            raise refusal(source)
        _check_modules(source)
        sources.append(replace(source, trusted_by=reason))
        _merge(merged, tree)
        origins.update(
            {
                key: f"{path}:{line}  [{'.'.join(key[:-1])}]" if key[:-1] else f"{path}:{line}"
                for key, line in lines.items()
            }
        )
    for (key, text), dotted in zip(typed.items(), flags or (), strict=True):
        tree = _flag_tree(key, text)
        _anchor_paths(tree, start)
        _merge(merged, tree)
        origins[key] = f"--{dotted}"
    return LoadedConfig(
        config=_validate(merged, origins),
        sources=tuple(sources),
        base=paths[0].parent if paths else start,
    )


def read_settings(
    path: Path, *, flag_keys: frozenset[str] = frozenset()
) -> tuple[SettingsFile, dict[str, Any], dict[Key, int]]:
    """Read one file: its hash and powers, its tree with absolute paths, and the line of each key.

    Flags override the settings in `flag_keys`, so these are no powers of the file.
    """
    data = _read_bytes(path)
    tree, lines = _parse_toml(data, path)
    _check_keys(tree, lines=lines, path=path)
    _check_key_variables(tree, lines, path)
    _anchor_paths(tree, path.parent)
    powers = tuple(
        powers_of(
            tree, folder=path.parent, lines=lines, text_keys=_text_keys(), flag_keys=flag_keys
        )
    )
    programs = tuple(
        (str(file), _hash_of(file))
        for file in sorted({file for power in powers for file in power.programs})
    )
    return (
        SettingsFile(
            path=path, sha256=hashlib.sha256(data).hexdigest(), powers=powers, programs=programs
        ),
        tree,
        lines,
    )


def _check_modules(source: SettingsFile) -> None:
    """Raise ConfigError if Python would import another file than the trusted one beside the
    settings."""
    for power in source.powers:
        for module, python_file, beside in shadowed_modules(power, source.path.parent):
            message = (
                f"{power.key} names the module {module!r}: {beside} was trusted with this file, but"
                f" Python would run {python_file}"
            )
            fix = (
                f"name the file itself ({quote_value(f'{beside.name}:...')}), or put"
                f" {beside.parent} first on PYTHONPATH"
            )
            raise ConfigError(message, where=f"{source.path}:{power.line or 1}", fix=fix)


def _hash_of(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(
            f"cannot read what the settings name: {error.strerror}", where=str(file)
        ) from error


def _text_keys() -> frozenset[str]:
    return frozenset(".".join(key) for key, field in walk_fields() if holds_text(field))


def _check_key_variables(tree: Mapping[str, Any], lines: Mapping[Key, int], path: Path) -> None:
    """Refuse a file, trusted or not, whose `key_env` names a variable that is no model's key.

    The variable would be sent to the file's host. Only a flag of the user's own may ask for that.
    """
    replay = tree.get("replay")
    teachers = replay.get("teacher") if isinstance(replay, dict) else None
    for name, settings in teachers.items() if isinstance(teachers, dict) else ():
        variable = settings.get("key_env") if isinstance(settings, dict) else None
        if isinstance(variable, str) and variable and not may_be_a_models_key(variable):
            key = ("replay", "teacher", name, "key_env")
            line = _nearest(key, lines)
            message = (
                f"{'.'.join(key)} names {variable!r}, which does not look like the key of a model"
                " service: it was not read"
            )
            fix = (
                "name a variable such as OPENAI_API_KEY; if you mean this one, say so yourself:"
                f" --{'.'.join(key)} {variable}"
            )
            raise ConfigError(message, where=f"{path}:{line}" if line else str(path), fix=fix)


def _read_bytes(path: Path) -> bytes:
    """Read the file once, so that the bytes that are hashed are those that are parsed."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(
            f"no config file {path}",
            fix="give the path of a TOML file, or write one: recompose init",
        ) from error
    except OSError as error:
        raise ConfigError(
            f"cannot read the config file: {error.strerror}", where=str(path)
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"more than {MAX_BYTES} bytes: that is no settings file",
            where=str(path),
            fix="give another file",
        )
    return data


def _parse_toml(data: bytes, path: Path) -> tuple[dict[str, Any], dict[Key, int]]:
    """The parsed file, and the line number of each key."""
    try:
        text = data.decode("utf-8")
        return tomllib.loads(text), _line_numbers(text)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"not UTF-8 text: {error}", where=str(path), fix="save the file as UTF-8"
        ) from error
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        where = f"{path}:{line.group(1)}" if line else str(path)
        raise ConfigError(
            f"not valid TOML: {error}",
            where=where,
            fix="text needs quotes, lists brackets: key = ['a']",
        ) from error
    except RecursionError as error:
        raise ConfigError("not valid TOML: nested too deep", where=str(path)) from error


def _line_numbers(text: str) -> dict[Key, int]:
    """Line numbers of keys and table headers; a key in an inline table has its table's line."""
    lines: dict[Key, int] = {}
    table: Key = ()
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.match(line):
            table = _parts(header.group(1))
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, *_parts(key.group(1))), number)
    return lines


def _parts(dotted: str) -> Key:
    return tuple(
        part.strip().strip("\"'") for part in re.findall(r"""[\w-]+|"[^"]*"|'[^']*'""", dotted)
    )


def _nearest(key: Key, table: Mapping[Key, Any]) -> Any:
    """The entry of the longest prefix of a key, or None."""
    return next((table[key[:n]] for n in range(len(key), 0, -1) if key[:n] in table), None)


def _check_keys(
    tree: Mapping[str, Any],
    *,
    lines: Mapping[Key, int],
    path: Path,
    group: type[Settings] = Config,
    prefix: Key = (),
) -> None:
    """Refuse unknown keys and secrets in one file, before anything is merged."""
    for name, value in tree.items():
        key = (*prefix, name)
        line = _nearest(key, lines)
        where = f"{path}:{line}" if line else str(path)
        if prefix:
            where += f"  [{'.'.join(prefix)}]"
        field = group.model_fields.get(name)
        table = table_of(field) if field is not None else None
        group_of = field.annotation if field is not None else None
        holds_groups = table is not None or (
            isinstance(group_of, type) and issubclass(group_of, Settings)
        )
        if (field is None and _SECRET_KEY.search(name)) or (
            not holds_groups and any(map(_is_secret, _strings(value)))
        ):
            fix = "take it out and give it as an environment variable"
            raise ConfigError(f"a secret in a config file ({'.'.join(key)})", where=where, fix=fix)
        if field is None:
            raise _unknown(key, group, where=where)
        inner = field.annotation
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, Settings):
            _check_keys(value, lines=lines, path=path, group=inner, prefix=key)
        if table is not None and isinstance(value, dict):
            for entry, fields in value.items():
                if isinstance(fields, dict):
                    _check_keys(fields, lines=lines, path=path, group=table, prefix=(*key, entry))


def _is_secret(text: str) -> bool:
    """Whether a redactor would remove something from the text other than an e-mail address."""
    redactor = Redactor()
    redactor.text(text)
    return bool(set(redactor.counts) - {"email"})


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _unknown(key: Key, group: type[Settings], *, where: str) -> ConfigError:
    """The error for an unknown key, with the nearest known one: of its group, else of all keys."""
    table, known = ".".join(key[:-1]), list(group.model_fields)
    near = difflib.get_close_matches(key[-1], known, n=1)
    if not near:
        near = difflib.get_close_matches(
            ".".join(key), [".".join(k) for k, _ in walk_fields()], n=1, cutoff=0.75
        )
    guess = f'did you mean "{near[0]}"?\n' if near else ""
    return ConfigError(
        f'unknown key "{key[-1]}"' + (f" in [{table}]" if table else ""),
        where=where,
        fix=f"{guess}keys here: {', '.join(known)}",
    )


def _flag_tree(key: Key, text: str) -> dict[str, Any]:
    """{"train": {"steps": 3}} for --train.steps 3; raises ConfigError for an unknown setting."""
    group: type[Settings] = Config
    name_at = -1  # where the name of a table's entry stands
    for i, part in enumerate(key):
        if i == name_at:
            continue
        field = group.model_fields.get(part)
        if field is None:
            raise _unknown(key[: i + 1], group, where=f"--{'.'.join(key)}")
        inner = field.annotation
        if (table := table_of(field)) is not None and i < len(key) - 2:
            group, name_at = table, i + 1
        elif isinstance(inner, type) and issubclass(inner, Settings):
            group = inner
        # one entry of a table, e.g. hints.writers.file_missing
        elif get_origin(inner) is dict and i == len(key) - 2:
            break
        elif i < len(key) - 1:
            raise ConfigError(
                f"{'.'.join(key[: i + 1])} holds a value, not a group", where=f"--{'.'.join(key)}"
            )
    value: Any = _flag_value(text, field_at(key))
    for part in reversed(key):
        value = {part: value}
    return value


def _flag_value(text: str, field: FieldInfo | None) -> Any:
    """Parse a flag's text: strings as they are, lists by comma or as TOML, all else as TOML."""
    annotation = field.annotation if field is not None else str
    if annotation is str:
        return text
    if get_origin(annotation) is tuple and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _anchor_paths(tree: dict[str, Any], base: Path) -> None:
    """Make the relative paths of one file or flag absolute, in place."""
    for dotted in PATH_KEYS:
        *groups, name = dotted.split(".")
        node: Any = tree
        for part in groups:
            node = node.get(part) if isinstance(node, dict) else None
        value = node.get(name) if isinstance(node, dict) else None
        if isinstance(value, str) and value:
            node[name] = _absolute(base, value)
        elif isinstance(value, list):
            node[name] = [_absolute(base, v) if isinstance(v, str) else v for v in value]
    ingest = tree.get("ingest")
    scanner = ingest.get("scanner") if isinstance(ingest, dict) else None
    if isinstance(ingest, dict) and isinstance(scanner, list):
        ingest["scanner"] = [
            _program(base, word, first=n == 0) if isinstance(word, str) else word
            for n, word in enumerate(scanner)
        ]
    student = tree.get("student")
    model = student.get("model") if isinstance(student, dict) else None
    # a folder, not a hub name
    if isinstance(student, dict) and isinstance(model, str) and model.startswith((".", "~")):
        student["model"] = _absolute(base, model)
    curate = tree.get("curate")
    recipe = curate.get("recipe") if isinstance(curate, dict) else None
    if (
        isinstance(curate, dict)
        and isinstance(recipe, str)
        and not is_shipped(recipe)
        and not recipe.isidentifier()
    ):
        curate["recipe"] = _absolute(base, recipe)
    python = curate.get("data_juicer_python") if isinstance(curate, dict) else None
    if isinstance(curate, dict) and isinstance(python, str) and python:
        curate["data_juicer_python"] = _program(base, python, first=True)
    for group, _, name in (key.partition(".") for key in CODE_KEYS):
        settings = tree.get(group)
        if isinstance(settings, dict) and name in settings:
            settings[name] = _functions(settings[name], base)


def _functions(value: Any, base: Path) -> Any:
    """Make the files of functions (mine.py:find) absolute; module names are left as they are."""
    if isinstance(value, dict):
        return {key: _functions(item, base) for key, item in value.items()}
    if isinstance(value, list):
        return [_functions(item, base) for item in value]
    if not (isinstance(value, str) and ".py:" in value):
        return value
    file, _, function = value.rpartition(":")
    return f"{_absolute(base, file)}:{function}"


def _program(base: Path, word: str, *, first: bool) -> str:
    """Make a word of a command absolute if it is a path: the first word if it has a slash, an
    argument if it looks like a path or names an existing file.

    Otherwise the command would run files of whatever folder is the current one.
    """
    is_path = (
        "/" in word
        if first
        else (word.startswith(("./", "../", "~")) or ("\0" not in word and (base / word).is_file()))
    )
    return _absolute(base, word) if is_path else word


def _absolute(base: Path, path: str) -> str:
    """A path relative to a folder, with "~" expanded; raises ConfigError for an unknown user."""
    try:
        return str(base / Path(path).expanduser())
    except RuntimeError as error:
        raise ConfigError(
            f"no such home folder: {path!r}", where=str(base), fix="write the path out"
        ) from error


def _merge(into: dict[str, Any], tree: Mapping[str, Any]) -> None:
    """Merge one tree into another; lists and values replace the old ones."""
    for name, value in tree.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value


def _validate(tree: dict[str, Any], origins: Mapping[Key, str]) -> Config:
    """Validate the tree; raises ConfigError with one line per invalid value."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        problems = error.errors()
    messages: list[str] = []
    first = ""
    for problem in problems:
        key = tuple(str(part) for part in problem["loc"])
        where = _nearest(key, origins) or ".".join(key)
        message = problem["msg"].removeprefix("Value error, ")
        value = problem["input"]
        shown = (
            f", not {Redactor().text(repr(value))}"
            if not isinstance(value, (dict, Settings))
            else ""
        )
        messages.append(f"{'.'.join(key)}: {message}{shown}" + (f"  ({where})" if messages else ""))
        first = first or where
    field = field_at(tuple(str(p) for p in problems[0]["loc"]))
    fix = " ".join((field.description or "").split()) if field is not None else ""
    raise ConfigError("\n".join(messages), where=first, fix=fix)
