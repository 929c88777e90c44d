"""The settings files that the user has trusted, kept in a file that no project can write.

    trusted = Trusted.of(os.environ)
    trusted.trusted_by(file)         # "" | "harmless" | "trusted" | "RECOMPOSE_TRUST"
    trusted.add(file)                # what `recompose trust FILE` does

As in direnv, trust is for one content at one path. A file that was changed, moved or copied (its
relative paths then name other programs) is not trusted. The content includes the programs, scripts,
recipes and modules beside the file that it names, but not what these load in turn, nor programs
elsewhere on the machine.

RECOMPOSE_TRUST is for CI, which checks out one commit: the SHA-256 of each settings file,
separated by commas or spaces. Any other value ("1", "all", the prefix of a hash) is an error: a
project that sets the variable for everybody must not be able to vouch for content that does not
exist yet. Nothing here reads a .env file; a tool that does lets a project set this variable.
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
    """A settings file: its path, the hash of its bytes, its powers, and why they count.

    `programs` are the files beside it that it would run, each with its hash.
    """

    path: Path
    sha256: str
    powers: tuple[Power, ...] = ()
    programs: tuple[tuple[str, str], ...] = ()
    trusted_by: str = ""

    @property
    def place(self) -> str:
        """The resolved folder and the file's name. A link is not resolved to its target, because
        relative paths start from the link's folder."""
        return str(self.path.parent.resolve() / self.path.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """The user's list of trusted files (`store`), and the hashes in RECOMPOSE_TRUST."""

    store: Path
    hashes: frozenset[str] = frozenset()

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Trusted:
        """This user's list; raises ConfigError if RECOMPOSE_TRUST holds anything but hashes."""
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
        """Why the powers of a file count; "" if they do not."""
        if not file.powers:
            return "harmless"
        if file.sha256 in self.hashes:
            return VARIABLE
        return "trusted" if _key(_row(file)) in [_key(row) for row in self.rows()] else ""

    def rows(self) -> list[dict[str, Any]]:
        """The entries of the list; raises ConfigError if it is damaged or others can write it."""
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
        """Trust this content at this path, replacing an earlier entry for the path."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._write([*self._others(file.place), {**_row(file), "since": now}])

    def forget(self, path: Path) -> bool:
        """Stop trusting a file; False if it was not trusted."""
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
    """The error for an untrusted file: all of its powers, and the three ways to trust it."""
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
    # a line break in the path could forge a line of the program's output
    text = one_line(str(path))
    return (
        text
        if re.fullmatch(r"[\w./-]+", text, re.ASCII)
        else "'" + text.replace("'", "'\\''") + "'"
    )
