"""Recipes: which operators judge a pair, in what order, with which parameters; YAML with
data-juicer's names and parameters.

    recipe = load_recipe("default")                      # ships with the package; so does "with_disagreement_filter"
    recipe = load_recipe("my_recipe.yaml")
    recipe.steps[0]                                      # RecipeStep(name="answer_not_empty_filter", parameters={})

A recipe is data-juicer's `process:` list. Operators of data-juicer keep its names, parameters and
defaults; those that data-juicer does not have end in `_filter`, too. `text_key: chosen` (or
rejected) has an operator look at that message only; without it both are judged, each by itself. An
unknown operator or parameter is an error: what is skipped in silence is not judged. Other operators
of data-juicer (mappers, simhash, perplexity, ...) are read with `foreign=True` and run by the real
one (foreign.py). Duplicates come last, because the first of several may only stay if nothing else
is wrong with it.
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
"""Ships too, and needs the extra `meaning`."""
SHIPPED = tuple(name for name in SHIPPED_RECIPES if name != BY_MEANING)
EXACT, NEAR = "document_deduplicator", "document_minhash_deduplicator"
DUPLICATES = (EXACT, NEAR)
OWN: Mapping[str, Mapping[str, Any]] = {
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
"""Operators that judge what data-juicer has no operator for (language_id_score_filter: without its
model), with their defaults."""
OF_DUPLICATES: Mapping[str, Mapping[str, Any]] = {
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
_OF_DATA_JUICER = (MAPPER, "_filter", DEDUPLICATOR, "_selector")
RUN_CODE = ("python_file_mapper", "python_lambda_mapper")
_NEAR = 0.75
"""So alike a name has to be for an operator of ours to be meant: real ones share their endings."""
_ALIKE = (
    "document_simhash_deduplicator",
    "document_line_deduplicator",
    "stopwords_filter",
    "token_num_filter",
)
"""Operators of data-juicer for text that are as alike and are meant all the same."""
_NOT_JUDGING = frozenset(
    ("project_name", "process", "dataset_path", "export_path", "np", "text_keys", "open_tracer")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeStep:
    """One operator with all its parameters, defaults filled in; a `foreign` one is data-juicer's,
    with the parameters as they are given.

    Example: RecipeStep(name="words_num_filter", parameters={"min_num": 2, ...})
    """

    name: str
    parameters: Mapping[str, Any]
    foreign: bool = False

    @property
    def side(self) -> str:
        """The only message that it looks at: "chosen", "rejected", or "" for both."""
        key = self.parameters.get("text_key", "")
        return key if key in SIDES else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The operators of a recipe, in order."""

    name: str
    steps: tuple[RecipeStep, ...]

    @property
    def foreign(self) -> bool:
        """Whether an operator of it has to be run by real data-juicer."""
        return any(step.foreign for step in self.steps)


def load_recipe(which: str | Path, *, foreign: bool = False) -> Recipe:
    """A recipe that ships with the package by its name, else the file of that path, e.g.
    "./default".

    `foreign` = real data-juicer is at hand, so its other operators may stand in it. Raises
    ConfigError for what it cannot be read as.

    >>> [step.name for step in load_recipe("default").steps][:2]
    ['answer_not_empty_filter', 'tool_offered_filter']
    """
    name = (
        str(which).removesuffix(".yaml")
        if str(which).removesuffix(".yaml") in SHIPPED_RECIPES
        else ""
    )
    # also where a file of that name lies in the current folder: nobody has named that one, and a
    # recipe may name Python
    if name:
        text = (
            resources.files("composer_replication.data.curate")
            .joinpath("recipes", f"{name}.yaml")
            .read_text("utf-8")
        )
        return read_recipe(text, where=f"{name}.yaml")
    path = Path(which).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"no recipe {str(which)!r}",
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
    return replace(recipe, steps=tuple(_beside(step, path.parent) for step in recipe.steps))


def _beside(step: RecipeStep, folder: Path) -> RecipeStep:
    """An operator whose `embed` names a file: it is looked for beside the recipe, not in the folder
    that the call comes from."""
    embed = step.parameters.get("embed")
    if step.foreign or not (isinstance(embed, str) and ".py:" in embed):
        return step
    file, _, function = embed.rpartition(":")
    return replace(
        step,
        parameters={**step.parameters, "embed": f"{folder / Path(file).expanduser()}:{function}"},
    )


def read_recipe(text: str, *, where: str = "recipe", foreign: bool = False) -> Recipe:
    """A recipe from its text; every operator and parameter is checked."""
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
    if unknown := sorted(value.keys() - _NOT_JUDGING - {"skip_op_error"}):
        raise ConfigError(
            f"unknown key {unknown[0]!r}",
            where=where,
            fix=f"keys that are read: {', '.join(sorted(_NOT_JUDGING))}",
        )
    steps = tuple(_step(entry, where=where, foreign=foreign) for entry in value["process"])
    last = [n for n, step in enumerate(steps) if not step.name.endswith(DEDUPLICATOR)]
    late = [steps[n].name for n in last if any(step.name in DUPLICATES for step in steps[:n])]
    if late:
        raise ConfigError(
            f"{late[0]} stands after a deduplicator", where=where, fix="deduplicators come last"
        )
    return Recipe(name=str(value.get("project_name", Path(where).stem)), steps=steps)


def defaults_of(name: str) -> Mapping[str, Any] | None:
    """The parameters of an operator with their defaults; None where there is no such operator."""
    if statistic := STATISTICS.get(name):
        bounds = dict((statistic.least, statistic.most))
        return {**bounds, **statistic.parameters, "text_key": statistic.field}
    return OWN.get(name, OF_DUPLICATES.get(name))


def _step(entry: Any, *, where: str, foreign: bool) -> RecipeStep:
    if isinstance(entry, str):
        entry = {entry: None}
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ConfigError(
            f"an operator is one name with its parameters, not {entry!r}", where=where
        )
    ((name, given),) = entry.items()
    defaults, given = defaults_of(name), given if given is not None else {}
    if not isinstance(given, dict):
        raise ConfigError(f"{name}: parameters are `key: value` lines, not {given!r}", where=where)
    if defaults is None:
        return _foreign(name, given, where=where, foreign=foreign)
    if unknown := sorted(given.keys() - defaults.keys()):
        raise ConfigError(
            f"{name} has no parameter {unknown[0]!r}",
            where=where,
            fix=f"it has: {', '.join(defaults) or 'none'}",
        )
    for key, value in given.items():
        _check(name, key, value, defaults[key], where=where)
    parameters = {**defaults, **given}
    if statistic := STATISTICS.get(name):
        low, high = statistic.least[0], statistic.most[0]
        if parameters[low] > parameters[high]:
            what = (
                f"{name}: {low} {parameters[low]} is above {high} {parameters[high]}: nothing could"
                " pass"
            )
            raise ConfigError(what, where=where, fix="swap them, or leave one out")
    if name in DUPLICATES and parameters["text_key"]:
        what = (
            f"{name} by {parameters['text_key']} alone drops the same action in another state, too"
        )
        warnings.warn(
            f"{what}; without text_key it compares state, chosen and rejected",
            UserWarning,
            stacklevel=2,
        )
    return RecipeStep(name=name, parameters=parameters)


def _foreign(name: str, given: Mapping[str, Any], *, where: str, foreign: bool) -> RecipeStep:
    """An operator that only real data-juicer has; raises ConfigError where that is not at hand, and
    for a name that nobody has."""
    known = sorted({*STATISTICS, *OWN, *OF_DUPLICATES})
    near = get_close_matches(name, known, n=1, cutoff=_NEAR) if name not in _ALIKE else []
    if near or not name.endswith(_OF_DATA_JUICER):
        fix = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
        raise ConfigError(f"unknown operator {name!r}", where=where, fix=fix)
    if name in RUN_CODE:
        raise ConfigError(
            f"{name} runs code that a recipe names",
            where=where,
            fix="run that code yourself, before the recipe",
        )
    if not foreign:
        how = (
            'DJNormalizer(recipe, engine="data_juicer", data_juicer_python=...) asks the real one'
            " (make data-juicer sets one up)"
        )
        raise ConfigError(
            f"unknown operator {name!r}: if data-juicer has it, only the real one runs it",
            where=where,
            fix=how,
        )
    allowed = (
        ("", *SIDES) if name.endswith((MAPPER, DEDUPLICATOR)) else ("", *SIDES, "text", "words")
    )
    if given.get("text_key", "") not in allowed:
        raise ConfigError(
            f"{name}.text_key: {given['text_key']!r} is not {' or '.join(allowed[1:])}", where=where
        )
    return RecipeStep(name=name, parameters=given, foreign=True)


def _check(name: str, key: str, value: Any, default: Any, *, where: str) -> None:
    number = isinstance(default, (int, float)) and not isinstance(default, bool)
    fits = (
        isinstance(value, (int, float)) and not isinstance(value, bool)
        if number
        else isinstance(value, type(default))
    )
    if key == "lang":
        fits = isinstance(value, str) or (
            isinstance(value, list) and all(isinstance(one, str) for one in value)
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
