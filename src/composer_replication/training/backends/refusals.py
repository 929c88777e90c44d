"""How an adapter refuses settings that its backend cannot host, before a run exists.

    refuse("verl", [(train.tile > 0, "train.tile", "its forward has no tiles", "set it to 0")])

A setting that is added to core/config later must stay at its default until an adapter names it
(`unread_rules`), so none is ever ignored silently.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from composer_replication.core.config.base import Settings
from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError

Rule = tuple[bool, str, str, str]
"""(broken, setting, problem, what works)."""


def refuse(backend: str, rules: Iterable[Rule]) -> None:
    """Raise ConfigError if a rule is broken; its text has all that are, its `where` the first.

    >>> refuse("verl", [(False, "train.tile", "its forward has no tiles", "set it to 0")])
    """
    broken = [(where, problem, fix) for is_broken, where, problem, fix in rules if is_broken]
    if not broken:
        return
    (where, problem, fix), *others = broken
    also = "".join(f"\nand {name}: {what}; {remedy}" for name, what, remedy in others)
    raise ConfigError(
        f"the {backend} backend cannot do this: {problem}", where=where, fix=f"{fix}{also}"
    )


def unread_rules(config: Config, *, groups: Iterable[str], read: Collection[str]) -> Iterator[Rule]:
    """A broken rule for each setting of these groups that is not at its default and is not among
    those that the backend reads."""
    for name, value, default in changed_settings(config, groups=groups):
        if name not in read:
            yield (
                True,
                name,
                f"it does not read {name} (= {value!r})",
                f"leave it at {default!r}, or use train.backend = reference",
            )


def changed_settings(config: Config, *, groups: Iterable[str]) -> Iterator[tuple[str, Any, Any]]:
    """(name, value, default) of the settings of these groups that are not at their default.

    >>> config = Config.model_validate({"train": {"steps": 7}})
    >>> list(changed_settings(config, groups=["train"]))
    [('train.steps', 7, 20)]
    """
    for group in groups:
        settings = getattr(config, group)
        pairs = zip(
            walk_settings(group, settings), walk_settings(group, type(settings)()), strict=True
        )
        yield from ((name, value, plain) for (name, value), (_, plain) in pairs if value != plain)


def walk_settings(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Settings and their values, by dotted name."""
    if not isinstance(value, Settings):
        yield name, value
        return
    for key in type(value).model_fields:
        yield from walk_settings(f"{name}.{key}", getattr(value, key))
