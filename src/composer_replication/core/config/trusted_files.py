"""Which settings files the user has trusted: path and content, in a file of the user's own that no
project can write.

    trusted = Trusted.of(os.environ)
    trusted.how(file)                # "" | "harmless" | "trusted" | "RECOMPOSE_TRUST"
    trusted.add(file)                # what `recompose trust FILE` does

Like direnv: one content at one place. A file that changed, moved, or lies elsewhere with the same
content - where its relative paths name other programs - is not trusted. The programs, scripts,
recipes and modules beside it that it names belong to that content; what these load in turn, and
programs elsewhere on the machine, do not.

RECOMPOSE_TRUST is for CI, which checks out one commit: the SHA-256 of each settings file alone,
separated by commas or spaces. Any other value ("1", "all", the beginning of a hash) is an error: a
project that sets the variable for everybody must not be able to speak for content that it does not
hold yet. Nothing here reads a .env file; tools that do so let a project set this variable, and so
say what they trust.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from composer_replication.core.config.powers import Power
from composer_replication.core.errors import ConfigError, UntrustedError
from composer_replication.core.harmless import one_line
from composer_replication.core.jsonl import write_json

VARIABLE = "RECOMPOSE_TRUST"
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """One file that was read: its place, the hash of the bytes that were parsed, what it can do,
    and why that counts.

    `programs` are the files beside it that it would run, each with its hash.
    """

    path: Path
    sha256: str
    powers: tuple[Power, ...] = ()
    programs: tuple[tuple[str, str], ...] = ()
    trusted_by: str = ""

    @property
    def place(self) -> str:
        """Where its relative paths start from, and its name; a link to a file elsewhere is another
        place than that file."""
        return str(self.path.parent.resolve() / self.path.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """The user's own list, and what this process was told to trust besides."""

    store: Path
    hashes: frozenset[str] = frozenset()

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Trusted:
        """The list of this user; raises ConfigError for a RECOMPOSE_TRUST that holds anything but
        hashes."""
        words = environ.get(VARIABLE, "").replace(",", " ").lower().split()
        if wrong := [word for word in words if not _HASH.fullmatch(word)]:
            fix = (
                "give the SHA-256 of each trusted settings file (sha256sum recompose.toml), or"
                f" unset {VARIABLE}"
            )
            raise ConfigError(f"{wrong[0][:20]!r} is no SHA-256", where=VARIABLE, fix=fix)
        config = Path(environ.get("XDG_CONFIG_HOME", ""))
        home = (
            config if config.is_absolute() else Path(environ.get("HOME") or Path.home()) / ".config"
        )
        return cls(store=home / "recompose" / "trusted.json", hashes=frozenset(words))

    def trusted_by(self, file: SettingsFile) -> str:
        """Why the powers of a file count; "" where they do not."""
        if not file.powers:
            return "harmless"
        if file.sha256 in self.hashes:
            return VARIABLE
        return "trusted" if _key(_row(file)) in [_key(row) for row in self.rows()] else ""

    def rows(self) -> list[dict[str, Any]]:
        """The list; raises ConfigError where others can write it, or it holds something else."""
        try:
            with self.store.open("rb") as stream:
                facts = os.fstat(stream.fileno())
                value = json.loads(stream.read())
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the list of trusted files cannot be read: {error}",
                where=str(self.store),
                fix=_ANEW,
            ) from error
        if hasattr(os, "geteuid") and (
            facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        ):
            raise ConfigError(
                "others can write the list of trusted files", where=str(self.store), fix=_ANEW
            )
        rows = value.get("trusted") if isinstance(value, dict) else None
        if not isinstance(rows, list) or not all(
            isinstance(row, dict) and {"path", "sha256"} <= row.keys() for row in rows
        ):
            raise ConfigError(
                "the list of trusted files is damaged", where=str(self.store), fix=_ANEW
            )
        return rows

    def add(self, file: SettingsFile) -> None:
        """Trust this content at this place, in place of what was trusted there before."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._write([*self._others(file.place), {**_row(file), "since": now}])

    def forget(self, path: Path) -> bool:
        """No longer trust a file; False where it was not trusted."""
        rows, left = self.rows(), self._others(SettingsFile(path=path.absolute(), sha256="").place)
        if len(left) < len(rows):
            self._write(left)
        return len(left) < len(rows)

    def _others(self, place: str) -> list[dict[str, Any]]:
        return [row for row in self.rows() if row["path"] != place]

    def _write(self, rows: list[dict[str, Any]]) -> None:
        write_json(self.store, {"version": 1, "trusted": rows})


_ANEW = "look at it, then remove it and trust your settings files again: recompose trust FILE"


def _row(file: SettingsFile) -> dict[str, Any]:
    return {"path": file.place, "sha256": file.sha256, "programs": dict(file.programs)}


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["path"], row["sha256"], row.get("programs")


def refusal(file: SettingsFile) -> UntrustedError:
    """The error for a file whose powers do not count: each of them in full, and the three ways to
    trust it."""
    listed = "\n".join(f"  {power}" for power in file.powers)
    message = (
        "this settings file is not trusted, and it would do more than set numbers; nothing was run"
        f" or sent:\n{listed}"
    )
    fix = (
        f"read it; if it is yours: recompose trust {_quoted(file.path)}   (it, and the programs"
        " beside it that it names, as they are now)\nfor this call only: --trust-settings; in CI:"
        f" {VARIABLE}={file.sha256}"
    )
    return UntrustedError(message, where=f"{file.path}:{file.powers[0].line or 1}", fix=fix)


def _quoted(path: Path) -> str:
    # a break in it would begin a line that looks like one of the program's own
    text = one_line(str(path))
    return (
        text
        if re.fullmatch(r"[\w./-]+", text, re.ASCII)
        else "'" + text.replace("'", "'\\''") + "'"
    )
