"""Recipes: the operators that judge a pair, in order, with their parameters.

    recipe = load_recipe("default")              # ships with the package
    recipe = load_recipe("my_recipe.yaml")
    recipe.steps[0]                              # RecipeStep(name="answer_not_empty_filter", ...)

A recipe is data-juicer's `process:` list in YAML. Operators of data-juicer keep its names,
parameters and defaults; our own end in `_filter` too. With `text_key: chosen` (or rejected) an
operator reads that message only; without it both are judged, each by itself. An unknown operator or
parameter is an error: a check that is skipped silently does not protect anything. Other operators
of data-juicer (mappers, simhash, perplexity, ...) are accepted with `foreign=True` and run by the
real one (foreign.py). Deduplicators come last, because the first of several duplicates may only
stay if nothing else is wrong with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from composer_replication.core.config.curate_settings import SHIPPED_RECIPES
from composer_replication.core.errors import ConfigError
from composer_replication.data.curate.statistics import STATISTICS
from composer_replication.data.curate.yaml_subset import read_yaml

BY_MEANING = "with_disagreement_by_meaning"
"""A shipped recipe that needs the extra `meaning`."""
SHIPPED = tuple(name for name in SHIPPED_RECIPES if name != BY_MEANING)
EXACT, NEAR = "document_deduplicator", "document_minhash_deduplicator"
DUPLICATES = (EXACT, NEAR)
OUR_OPERATORS: Mapping[str, Mapping[str, Any]] = {
    "answer_not_empty_filter": {},
    "tool_offered_filter": {},
    "tool_arguments_filter": {},
    "call_ids_filter": {},
    "chat_shape_filter": {},
    "chat_template_filter": {},
    "chosen_differs_filter": {},
    "evidence_filter": {"need": True, "tiers": ["exact"]},
    "same_language_filter": {"min_score": 0.8},
    "language_id_score_filter": {"lang": "en", "min_score": 0.8},
    "disagreement_filter": {
        "max_likeness": 0.9,
        "min_likeness": 0.0,
        "field": "words",
        "embed": "",
    },
}
"""Our operators with their defaults: data-juicer has none for these checks (and
language_id_score_filter runs without its model)."""
DUPLICATE_OPERATORS: Mapping[str, Mapping[str, Any]] = {
    EXACT: {"lowercase": False, "ignore_non_character": False, "text_key": ""},
    NEAR: {
        "tokenization": "space",
        "window_size": 5,
        "lowercase": True,
        "jaccard_threshold": 0.7,
        "text_key": "",
    },
}
SIDES = ("chosen", "rejected")
MAPPER, DEDUPLICATOR = "_mapper", "_deduplicator"
_OPERATOR_ENDINGS = (MAPPER, "_filter", DEDUPLICATOR, "_selector")
RUN_CODE = ("python_file_mapper", "python_lambda_mapper")
_TYPO_CUTOFF = 0.75
"""The least similarity to one of our operators for a name to be a typo: real ones share endings."""
_REAL_LOOKALIKES = (
    "document_simhash_deduplicator",
    "document_line_deduplicator",
    "stopwords_filter",
    "token_num_filter",
)
"""Real operators of data-juicer that are as similar but no typos."""
_IGNORED_KEYS = frozenset(
    ("project_name", "process", "dataset_path", "export_path", "np", "text_keys", "open_tracer")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeStep:
    """One operator with all its parameters, defaults included; a `foreign` one without.

    Example: RecipeStep(name="words_num_filter", parameters={"min_num": 2, ...})
    """

    name: str
    parameters: Mapping[str, Any]
    foreign: bool = False

    @property
    def side(self) -> str:
        """The only message that it reads: "chosen", "rejected", or "" for both."""
        key = self.parameters.get("text_key", "")
        return key if key in SIDES else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The operators of a recipe, in order."""

    name: str
    steps: tuple[RecipeStep, ...]

    @property
    def foreign(self) -> bool:
        """Whether real data-juicer has to run one of its operators."""
        return any(step.foreign for step in self.steps)


def load_recipe(name_or_path: str | Path, *, foreign: bool = False) -> Recipe:
    """Return the shipped recipe of that name, else the one in the file of that path.

    With `foreign` the recipe may use all operators of data-juicer. Raises ConfigError if it cannot
    be read.

    >>> [step.name for step in load_recipe("default").steps][:2]
    ['answer_not_empty_filter', 'tool_offered_filter']
    """
    name = (
        str(name_or_path).removesuffix(".yaml")
        if str(name_or_path).removesuffix(".yaml") in SHIPPED_RECIPES
        else ""
    )
    # A shipped name wins over a file "default" in the current folder: nobody asked for that file,
    # and a recipe may name Python code to run.
    if name:
        text = (
            resources.files("composer_replication.data.curate")
            .joinpath("recipes", f"{name}.yaml")
            .read_text("utf-8")
        )
        return read_recipe(text, where=f"{name}.yaml")
    path = Path(name_or_path).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"no recipe {str(name_or_path)!r}",
            where="curate.recipe",
            fix=f"give a file, or one of {', '.join(SHIPPED_RECIPES)}",
        )
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            "a recipe is UTF-8 text, and this is not",
            where=str(path),
            fix="write it anew, or name another file",
        ) from error
    recipe = read_recipe(text, where=str(path), foreign=foreign)
    return replace(recipe, steps=tuple(_resolve_embed(step, path.parent) for step in recipe.steps))


def _resolve_embed(step: RecipeStep, folder: Path) -> RecipeStep:
    """Resolve a file in `embed` relative to the recipe, not to the current folder."""
    embed = step.parameters.get("embed")
    if step.foreign or not (isinstance(embed, str) and ".py:" in embed):
        return step
    file, _, function = embed.rpartition(":")
    return replace(
        step,
        parameters={**step.parameters, "embed": f"{folder / Path(file).expanduser()}:{function}"},
    )


def read_recipe(text: str, *, where: str = "recipe", foreign: bool = False) -> Recipe:
    """Parse a recipe and check every operator and parameter."""
    value = read_yaml(text, where=where)
    if (
        not isinstance(value, dict)
        or not isinstance(value.get("process"), list)
        or not value["process"]
    ):
        raise ConfigError(
            "a recipe needs a list `process` with at least one operator",
            where=where,
            fix="see the recipe `default`",
        )
    if value.get("skip_op_error", False) is not False:
        raise ConfigError(
            "`skip_op_error` would drop the operators that fail and keep their pairs",
            where=where,
            fix="leave it out",
        )
    if unknown := sorted(value.keys() - _IGNORED_KEYS - {"skip_op_error"}):
        raise ConfigError(
            f"unknown key {unknown[0]!r}",
            where=where,
            fix=f"keys that are read: {', '.join(sorted(_IGNORED_KEYS))}",
        )
    steps = tuple(_read_step(entry, where=where, foreign=foreign) for entry in value["process"])
    not_deduplicators = [n for n, step in enumerate(steps) if not step.name.endswith(DEDUPLICATOR)]
    misplaced = [
        steps[n].name
        for n in not_deduplicators
        if any(step.name in DUPLICATES for step in steps[:n])
    ]
    if misplaced:
        raise ConfigError(
            f"{misplaced[0]} stands after a deduplicator",
            where=where,
            fix="deduplicators come last",
        )
    return Recipe(name=str(value.get("project_name", Path(where).stem)), steps=steps)


def defaults_of(name: str) -> Mapping[str, Any] | None:
    """Return an operator's parameters with their defaults, or None if there is no such operator."""
    if statistic := STATISTICS.get(name):
        bounds = dict((statistic.least, statistic.most))
        return {**bounds, **statistic.parameters, "text_key": statistic.field}
    return OUR_OPERATORS.get(name, DUPLICATE_OPERATORS.get(name))


def _read_step(entry: Any, *, where: str, foreign: bool) -> RecipeStep:
    if isinstance(entry, str):
        entry = {entry: None}
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ConfigError(
            f"an operator is one name with its parameters, not {entry!r}", where=where
        )
    ((name, parameters_given),) = entry.items()
    defaults, parameters_given = (
        defaults_of(name),
        parameters_given if parameters_given is not None else {},
    )
    if not isinstance(parameters_given, dict):
        raise ConfigError(
            f"{name}: parameters are `key: value` lines, not {parameters_given!r}", where=where
        )
    if defaults is None:
        return _read_foreign_step(name, parameters_given, where=where, foreign=foreign)
    if unknown := sorted(parameters_given.keys() - defaults.keys()):
        raise ConfigError(
            f"{name} has no parameter {unknown[0]!r}",
            where=where,
            fix=f"it has: {', '.join(defaults) or 'none'}",
        )
    for key, value in parameters_given.items():
        _check_parameter(name, key, value, defaults[key], where=where)
    parameters = {**defaults, **parameters_given}
    if statistic := STATISTICS.get(name):
        low, high = statistic.least[0], statistic.most[0]
        if parameters[low] > parameters[high]:
            message = (
                f"{name}: {low} {parameters[low]} is above {high} {parameters[high]}: nothing could"
                " pass"
            )
            raise ConfigError(message, where=where, fix="swap them, or leave one out")
    if name in DUPLICATES and parameters["text_key"]:
        message = (
            f"{name} by {parameters['text_key']} alone drops the same action in another state, too"
        )
        warnings.warn(
            f"{message}; without text_key it compares state, chosen and rejected",
            UserWarning,
            stacklevel=2,
        )
    return RecipeStep(name=name, parameters=parameters)


def _read_foreign_step(
    name: str, parameters: Mapping[str, Any], *, where: str, foreign: bool
) -> RecipeStep:
    """Return a step that only real data-juicer can run.

    Raises ConfigError if data-juicer is not in use, and for a name that looks like a typo.
    """
    known_names = sorted({*STATISTICS, *OUR_OPERATORS, *DUPLICATE_OPERATORS})
    close_matches = (
        get_close_matches(name, known_names, n=1, cutoff=_TYPO_CUTOFF)
        if name not in _REAL_LOOKALIKES
        else []
    )
    if close_matches or not name.endswith(_OPERATOR_ENDINGS):
        fix = (
            f"did you mean {close_matches[0]}?"
            if close_matches
            else f"one of {', '.join(known_names)}"
        )
        raise ConfigError(f"unknown operator {name!r}", where=where, fix=fix)
    if name in RUN_CODE:
        raise ConfigError(
            f"{name} runs code that a recipe names",
            where=where,
            fix="run that code yourself, before the recipe",
        )
    if not foreign:
        advice = (
            'DJNormalizer(recipe, engine="data_juicer", data_juicer_python=...) asks the real one'
            " (make data-juicer sets one up)"
        )
        raise ConfigError(
            f"unknown operator {name!r}: if data-juicer has it, only the real one runs it",
            where=where,
            fix=advice,
        )
    allowed = (
        ("", *SIDES) if name.endswith((MAPPER, DEDUPLICATOR)) else ("", *SIDES, "text", "words")
    )
    if parameters.get("text_key", "") not in allowed:
        raise ConfigError(
            f"{name}.text_key: {parameters['text_key']!r} is not {' or '.join(allowed[1:])}",
            where=where,
        )
    return RecipeStep(name=name, parameters=parameters, foreign=True)


def _check_parameter(name: str, key: str, value: Any, default: Any, *, where: str) -> None:
    number = isinstance(default, (int, float)) and not isinstance(default, bool)
    fits = (
        isinstance(value, (int, float)) and not isinstance(value, bool)
        if number
        else isinstance(value, type(default))
    )
    if key == "lang":
        fits = isinstance(value, str) or (
            isinstance(value, list) and all(isinstance(language, str) for language in value)
        )
    sides = ("", *SIDES) if name in DUPLICATES else ("text", "words", *SIDES)
    choices = {"text_key": sides, "field": ("text", "words"), "tokenization": ("space",)}.get(key)
    if not fits or (choices and value not in choices):
        wanted = (
            " or ".join(filter(None, choices))
            if choices
            else f"a {'number' if number else type(default).__name__}"
        )
        raise ConfigError(f"{name}.{key}: {value!r} is not {wanted}", where=where)
