"""The powers of a settings file: to start programs, load Python, send data to a host, and read or
write outside its folder.

    powers_of({"ingest": {"scanner": ["sh", "x.sh"]}}, folder=Path("/p"), ...)
    # Power(key="ingest.scanner", does="runs", detail='["sh", "x.sh"]', ...)

Every setting that holds text is listed in RULES or in HARMLESS. A setting in neither counts as a
power, and a test fails. Numbers, choices and switches are harmless unless RULES names them. A rule
sees the raw value, before it is validated, so every value that it does not recognise as harmless is
a power.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic.fields import FieldInfo

from composer_replication.core.config.curate_settings import SHIPPED_RECIPES
from composer_replication.core.config.rollout_settings import BUILT_IN_ENVS
from composer_replication.core.config.teacher_settings import TeacherSettings

Key = tuple[str, ...]
Does = Literal["runs", "sends", "reads", "writes", "spends", "keeps"]
Rule = Callable[[Any, Path], tuple[Does, str] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """One setting that counts only in a trusted file.

    `programs` are the files beside the settings that it would run; their content is trusted, or
    not, together with the settings. `modules` are the Python modules that it would import by name;
    Python may find others of that name on its path (`shadowed_modules`).
    Example: Power(key="ingest.scanner", does="runs", detail='["sh", "x.sh"]', line=4)
    """

    key: str
    does: Does
    detail: str
    line: int | None = None
    programs: tuple[Path, ...] = ()
    modules: tuple[str, ...] = ()

    def __str__(self) -> str:
        at = f"line {self.line}: " if self.line else ""
        return f"{at}{self.key} {self.does} {self.detail}"


def quote_value(value: object) -> str:
    """The whole value as ASCII JSON, so that control characters and look-alikes hide nothing.

    >>> quote_value(["sh", "-c", "id\\x1b[8m"])
    '["sh", "-c", "id\\\\u001b[8m"]'
    """
    return json.dumps(value, ensure_ascii=True, default=str)


def inside(path: Path, folder: Path) -> bool:
    """Whether a path stays inside a folder once every link and ".." in it is resolved.

    >>> inside(Path("/p/a/../b"), Path("/p")), inside(Path("/p/../q"), Path("/p"))
    (True, False)
    """
    try:
        return path.resolve().is_relative_to(folder.resolve())
    # a loop of links, or an invalid path: it cannot be resolved
    except (OSError, RuntimeError, ValueError):
        return False


def is_shipped(recipe: object) -> bool:
    """Whether a recipe is one of the package's own, with or without ".yaml"."""
    return isinstance(recipe, str) and recipe.removesuffix(".yaml") in SHIPPED_RECIPES


def _if_set(does: Does, about: str = "") -> Rule:
    """A rule for which every non-empty value is a power."""
    return lambda value, folder: (
        None if value in ("", [], {}) else (does, f"{about}{quote_value(value)}")
    )


def _python(value: Any, folder: Path) -> tuple[Does, str] | None:
    """The Python that a value would load: "module:function" or "file.py:function"; plain names are
    built in."""
    names = (
        list(value.values())
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else [value]
    )
    loaded = [name for name in names if not isinstance(name, str) or ":" in name]
    return ("runs", f"the Python of {', '.join(map(quote_value, loaded))}") if loaded else None


def _path(value: Any, folder: Path) -> tuple[Does, str] | None:
    paths = value if isinstance(value, list) else [value]
    outside = [
        path
        for path in paths
        if not isinstance(path, str) or (path and not inside(folder / path, folder))
    ]
    return (
        ("reads", f"outside of the file's folder: {', '.join(map(quote_value, outside))}")
        if outside
        else None
    )


def _work_dir(value: Any, folder: Path) -> tuple[Does, str] | None:
    if isinstance(value, str) and inside(folder / value, folder):
        return None
    return "writes", f"outside of the file's folder: {quote_value(value)}"


def _recipe(value: Any, folder: Path) -> tuple[Does, str] | None:
    return (
        None
        if is_shipped(value)
        else ("runs", f"a recipe, which may name Python: {quote_value(value)}")
    )


def _names_of_teachers(value: Any, folder: Path) -> tuple[Does, str] | None:
    return None if value == ["scripted"] else ("sends", f"your sessions to {quote_value(value)}")


def _teachers(value: Any, folder: Path) -> tuple[Does, str] | None:
    if not isinstance(value, dict):
        return "sends", quote_value(value)
    return (
        (
            "sends",
            "your sessions to "
            + "; ".join(_teacher(name, teacher) for name, teacher in value.items()),
        )
        if value
        else None
    )


def _teacher(name: str, settings: Any) -> str:
    defaults = {
        field: TeacherSettings.model_fields[field].default
        for field in ("kind", "base_url", "key_env")
    }
    facts = {**defaults, **(settings if isinstance(settings, dict) else {})}
    if facts["kind"] == "local":
        return f"{quote_value(name)}: a model on this machine, {quote_value(facts.get('model'))}"
    key = (
        f"with the key in ${quote_value(facts['key_env'])[1:-1]}"
        if facts["key_env"]
        else "without a key"
    )
    return f"{quote_value(name)}: {quote_value(facts['base_url'])} {key}"


def _switched_off(value: Any, folder: Path) -> tuple[Does, str] | None:
    return None if value is True else ("keeps", "secrets in what is stored")


def _dollars(value: Any, folder: Path) -> tuple[Does, str] | None:
    return (
        None
        if value == 0 and not isinstance(value, str)
        else ("spends", f"up to ${quote_value(value)}")
    )


def _reader(value: Any, folder: Path) -> tuple[Does, str] | None:
    return None if value == "rules" else ("sends", "your sessions to the model of hints.reader")


def _env(value: Any, folder: Path) -> tuple[Does, str] | None:
    return (
        None if value in ("", *BUILT_IN_ENVS) else ("runs", f"the Python of {quote_value(value)}")
    )


RULES: Mapping[str, Rule] = {
    "work_dir": _work_dir,
    "ingest.logs": _path,
    "ingest.redact": _switched_off,
    "ingest.scanner": _if_set("runs"),
    "sites.detectors": _python,
    "sites.error_kind": _if_set("runs", "the Python of "),
    "sites.reader.teacher": _if_set("sends", "your sessions to "),
    "sites.reader.recorded": _path,
    "hints.writer": _reader,
    "hints.reader.teacher": _if_set("sends", "your sessions to "),
    "hints.reader.recorded": _path,
    "hints.writers": _python,
    "hints.rules_file": _path,
    "replay.teachers": _names_of_teachers,
    "replay.teacher": _teachers,
    "replay.recorded": _path,
    "replay.judge": _if_set("sends", "answers to "),
    "replay.max_usd": _dollars,
    "curate.recipe": _recipe,
    "curate.data_juicer_python": _if_set("runs"),
    "build.pairs": _path,
    "rollouts.env": _env,
    "rollouts.player": _if_set("runs"),
    "rollouts.repo.program_folders": _path,
    "train.sync.url": _if_set("sends", "the student's weights to "),
    "rollouts.server.url": _if_set("sends", "what the student reads to "),
    "rollouts.repo.tasks": _if_set("runs", "the interpreters that are named in "),
    "rollouts.server.weights_dir": _if_set("writes", "weights into "),
}
"""Setting -> rule that says what a value can do; the rule returns None for a harmless value."""

CODE_KEYS = ("sites.detectors", "sites.error_kind", "hints.writers", "rollouts.env")
"""Settings that name functions, "package.module:function" or "file.py:function"
(data/sites/by_path.py)."""

HARMLESS = frozenset(
    (
        # models/load_student.py never runs a model's code and reads no pickled weights
        "student.model",
        "student.base",
        "ingest.redact_words",
        "ingest.authors",
        "build.authors",
        "rollouts.server.model",
        "rollouts.repo.held_out",
        "sites.train_kinds",
        "evaluate.targeted_kinds",
    )
)
"""Settings that hold text but give no power."""


def holds_text(field: FieldInfo) -> bool:
    """Whether a setting's value is or holds text, which could name a program, address or path.

    False for numbers, switches, choices among fixed words, and tables of numbers.
    """
    return bool(
        re.search(
            r"\bstr\b|\bAny\b|Settings\b", str(field.annotation).replace("dict[str, float]", "")
        )
    )


def powers_of(
    tree: Mapping[str, Any],
    *,
    folder: Path,
    lines: Mapping[Key, int],
    text_keys: frozenset[str],
    flag_keys: frozenset[str] = frozenset(),
    prefix: Key = (),
) -> Iterator[Power]:
    """The powers of one file's tree, whose paths are absolute already.

    `text_keys` are the settings that hold text. A value that a flag overrides (`flag_keys`) gives
    no power. A table gives powers even then: flags are merged into it, and its other entries count.
    """
    for name, value in tree.items():
        key = (*prefix, name)
        dotted = ".".join(key)
        if dotted in flag_keys and not isinstance(value, dict):
            continue
        if (rule := RULES.get(dotted)) is not None:
            effect = rule(value, folder)
        elif dotted in text_keys and dotted not in HARMLESS:
            # in neither table: nobody has judged this setting yet
            effect = ("runs", f"perhaps something: {quote_value(value)}")
        elif isinstance(value, dict):
            yield from powers_of(
                value,
                folder=folder,
                lines=lines,
                text_keys=text_keys,
                flag_keys=flag_keys,
                prefix=key,
            )
            continue
        else:
            continue
        if effect is not None:
            does, detail = effect
            programs = tuple(programs_of(value, folder)) if does == "runs" else ()
            line = next((lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in lines), None)
            if line is None:  # only a table below it has a header: [replay.teacher.NAME]
                line = min(
                    (at for path, at in lines.items() if path[: len(key)] == key), default=None
                )
            yield Power(
                key=dotted,
                does=does,
                detail=detail,
                line=line,
                programs=programs,
                modules=tuple(_modules(dotted, value)),
            )


def programs_of(value: Any, folder: Path) -> Iterator[Path]:
    """The existing files of a folder that a setting names: programs, scripts, recipes or modules.

    Files that these load in turn are not considered.
    Example: programs_of(["./scan.sh", "{file}"], Path("/p")) -> Path("/p/scan.sh"), if it exists
    """
    for text in _texts(value):
        module = text.rpartition(":")[0]
        packages = module.split(".")
        inits = (f"{'/'.join(packages[:n])}/__init__.py" for n in range(1, len(packages) + 1))
        for name in (text, module, f"{'/'.join(packages)}.py", *inits):
            if (
                name
                and name != ".py"
                and inside(folder / name, folder)
                and (folder / name).is_file()
            ):
                yield folder / name


def _texts(value: Any) -> Iterator[str]:
    """The texts of a value, list or table, without those that cannot be a path (NUL, "")."""
    texts = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    )
    return (text for text in texts if isinstance(text, str) and text and "\0" not in text)


def _modules(key: str, value: Any) -> Iterator[str]:
    """The modules that a setting imports by name: "mine" for sites.detectors = ["mine:find"]."""
    if key in CODE_KEYS:
        names = (text.rpartition(":")[0] for text in _texts(value))
        yield from (name for name in names if name and not name.endswith(".py"))


def shadowed_modules(power: Power, folder: Path) -> Iterator[tuple[str, Path, Path]]:
    """Yield (module, file that Python would run, trusted file) for every module that differs.

    The trusted file lies beside the settings. A module without such a file is installed by the
    user and is not checked. Nothing is imported.
    """
    for module in power.modules:
        beside = list(programs_of(f"{module}:", folder))
        trusted = {file.resolve() for file in beside}
        yield from (
            (module, python_file, beside[0])
            for python_file in files_of_module(module)
            if trusted and python_file.resolve() not in trusted
        )


def files_of_module(module: str) -> Iterator[Path]:
    """The files that Python would run to import a module, parent packages first; runs none.

    >>> [file.name for file in files_of_module("json.decoder")]
    ['__init__.py', 'decoder.py']
    """
    names, search = module.split("."), None
    for name in (".".join(names[:n]) for n in range(1, len(names) + 1)):
        loaded = sys.modules.get(name)
        if loaded is not None:
            origin, search = getattr(loaded, "__file__", None), getattr(loaded, "__path__", None)
        else:
            specs = (finder.find_spec(name, search) for finder in sys.meta_path)
            spec = next((spec for spec in specs if spec is not None), None)
            if spec is None:
                return
            origin, search = (
                (spec.origin if spec.has_location else None),
                spec.submodule_search_locations,
            )
        if origin is not None:
            yield Path(origin)
        if search is None:
            return


_FOREIGN = re.compile(
    r"(^|_)(AWS|AMAZON|GITHUB|GH|GITLAB|BITBUCKET|NPM|PYPI|TWINE|CARGO|GEM|NUGET|DOCKER|KUBE\w*|SSH|GPG|PGP|VAULT|CONSUL|TERRAFORM|TF|STRIPE"
    r"|PAYPAL|SQUARE|PLAID|TWILIO|SENDGRID|MAILGUN|MAILCHIMP|SLACK|DISCORD|TELEGRAM|DATADOG|DD|NEWRELIC|SENTRY|GRAFANA|CLOUDFLARE|CF"
    r"|DIGITALOCEAN|DO|LINODE|HEROKU|VERCEL|NETLIFY|FLY|RAILWAY|SUPABASE|FIREBASE|DATABASE|DB|PG|POSTGRES\w*|MYSQL|MONGO\w*|REDIS|JWT"
    r"|JIRA|ATLASSIAN|LINEAR|NOTION|SHOPIFY|WANDB|CODECOV|SONAR\w*|SNYK|ARTIFACTORY|JFROG|OKTA|AUTH0|CIRCLE\w*|TRAVIS|BUILDKITE|CI)(_|$)"
    r"|SECRET|PASSW|PASSP|PRIVATE|SIGNING|ENCRYPT|ACCESS_KEY|SESSION|COOKIE|WEBHOOK|REFRESH"
)
_A_MODELS_KEY = re.compile(r"\w*?(API)?(KEY|TOKEN)\d*(_\w*)?", re.ASCII)


def may_be_a_models_key(variable: str) -> bool:
    """Whether a settings file may name this variable as a model's key.

    Its name must say key or token, and must not be that of another service's credential.

    >>> [may_be_a_models_key(name) for name in ("OPENAI_API_KEY", "GITHUB_TOKEN", "HOME")]
    [True, False, False]
    """
    name = variable.upper()
    if name == "AWS_BEARER_TOKEN_BEDROCK":
        return True
    return _A_MODELS_KEY.fullmatch(name) is not None and _FOREIGN.search(name) is None
