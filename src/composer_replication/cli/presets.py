"""Settings files of models and cards that people have: `recompose init --from qwen3-4b-24gb`.

preset = find_preset("4b-24gb")
preset.text()           # a recompose.toml, with what to expect as comments
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from composer_replication.cli.memory_text import HOW_KNOWN
from composer_replication.cli.problems import UsageError
from composer_replication.core.config.load_config import field_at
from composer_replication.core.config.root import Config
from composer_replication.core.config.student_settings import TINY
from composer_replication.core.errors import ConfigError
from composer_replication.models.model_shape import QWEN3, ModelShape
from composer_replication.training.memory.memory_fit import (
    GB,
    CardMemory,
    disk_bytes,
    longest_window,
    work,
)
from composer_replication.training.memory.memory_model import MemoryNeed, StepSize, memory_need

_FAMILY = "qwen3-"
_THEN = """\
  then    recompose ingest; sites; hints; hints --audit (does a hint change this model
          at all?); evaluate --logs (what can the held-out sites show?); build;
          train --dry-run (does your longest session fit?); train; evaluate. Expect hours,
          not minutes; a run that is cut short goes on with train --resume latest. A loss
          that falls is no evidence: evaluate against a placebo.""".splitlines()
TERA_PER_S = 50.0
"""10^12 operations a second that a card is taken to sustain: an assumption, not a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model of the table `QWEN3` on `cards` cards of so many GB."""

    name: str
    size: str
    card_gb: float
    cards: int = 1

    @property
    def shape(self) -> ModelShape:
        """The widths of its model."""
        return QWEN3[self.size]

    @property
    def card(self) -> CardMemory:
        """One of its cards."""
        return CardMemory.of_gigabytes(self.card_gb, cards=self.cards)

    @property
    def toml(self) -> str:
        """The settings alone."""
        return _settings_text(self.name)

    @property
    def config(self) -> Config:
        """Its settings. Raises ConfigError for one that this version does not have."""
        values = tomllib.loads(self.toml)
        for key in _keys(values):
            if field_at(key) is None:
                setting = ".".join(key)
                raise ConfigError(
                    f"the preset {self.name} needs {setting}, which this version does not have",
                    where="recompose init --from",
                    fix="take another preset, or a version that has the setting",
                )
        return Config.model_validate(values)

    @property
    def need(self) -> MemoryNeed:
        """The memory of one full forward on each card."""
        config = self.config
        size = StepSize.full_window(config.train.micro_tokens)
        return memory_need(self.shape, config, size, ranks=self.cards)

    @property
    def window(self) -> int:
        """The longest window that fits each card."""
        return longest_window(self.shape, self.config, self.card)

    @property
    def minutes(self) -> float:
        """Of a million tokens in windows of train.micro_tokens, by the assumed speed."""
        config = self.config
        operations = 1e6 * work(self.shape, config, config.train.micro_tokens)
        return operations / (self.cards * TERA_PER_S * 1e12) / 60

    def text(self) -> str:
        """The whole file."""
        title, _, settings = self.toml.partition("\n")
        return "\n".join([title, *(f"# {line}".rstrip() for line in self._expect()), settings])

    def _expect(self) -> Iterator[str]:
        """Expectations for the first day."""
        config, need, disk = self.config, self.need, disk_bytes(self.shape, self.config)
        per_card = " on each card" * (self.cards > 1)
        yield ""
        yield f"What to expect ({HOW_KNOWN}; no run of it was made):"
        yield (
            f"  memory  {need.total / GB:.1f} GB{per_card} of {self.card.usable / GB:.1f} that can"
            f" be used, for a forward of {config.train.micro_tokens:,} tokens;"
        )
        yield f"          the longest window that fits is {self.window:,} tokens"
        for name, value in sorted(need.terms.items(), key=lambda term: -term[1]):
            yield f"          {value / GB:6.2f} GB  {name}"
        if need.host:
            yield f"          {need.host / GB:6.2f} GB  of the machine's own memory"
        yield (
            f"  disk    {disk['model'] / GB:.1f} GB to fetch; {disk['checkpoints'] / GB:.1f} GB for"
            f" {config.train.keep_checkpoints + 1} checkpoints"
        )
        yield (
            f"  time    {self.minutes:.0f} minutes for a million tokens in such windows, if a card"
            f" sustains {TERA_PER_S:.0f} TFLOP/s (an assumption)"
        )
        yield from _THEN
        yield ""


def _keys(values: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The dotted names of all values."""
    for name, value in values.items():
        key = (*before, name)
        if isinstance(value, dict):
            yield from _keys(value, key)
        else:
            yield key


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(name="qwen3-0.6b", size="0.6B", card_gb=24),
        Preset(name="qwen3-1.7b", size="1.7B", card_gb=12),
        Preset(name="qwen3-4b-24gb", size="4B", card_gb=24),
        Preset(name="qwen3-8b-24gb-qlora", size="8B", card_gb=24),
        Preset(name="qwen3-14b-48gb", size="14B", card_gb=48),
        Preset(name="qwen3-32b-8x80gb", size="32B", card_gb=80, cards=8),
    )
}


def preset_text(name: str) -> str:
    """The settings file of a preset, by name; "tiny" needs no card and says nothing of one."""
    return _settings_text(TINY) if name == TINY else find_preset(name).text()


def _settings_text(name: str) -> str:
    folder = files("composer_replication.cli") / "preset_settings"
    return (folder / f"{name}.toml").read_text("utf-8")


def find_preset(name: str) -> Preset:
    """The preset of this name, with or without the family in front.

    Example: find_preset("4b-24gb").name == "qwen3-4b-24gb". Raises UsageError for another name.
    """
    found = PRESETS.get(name) or PRESETS.get(_FAMILY + name)
    if found is None:
        names = f"{TINY} (no GPU), {', '.join(PRESETS)}"
        raise UsageError(f"no preset {name!r}", fix=f"presets: {names}")
    return found
