"""A store's key is made once, is readable by its owner only, and never replaces a damaged one."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_replication.core.errors import DataError
from composer_replication.core.pseudonyms import KEY_BYTES, KEY_FILE, store_key
from composer_replication.core.redact import Redactor

TEXT = "DB_PASSWORD=" + "tr0ub4dor&3x"


def test_a_store_has_one_key_and_another_store_another(tmp_path: Path) -> None:
    first, again, another_store = (
        store_key(tmp_path / "a"),
        store_key(tmp_path / "a"),
        store_key(tmp_path / "b"),
    )
    assert first is not None
    assert first == again != another_store
    assert len(first) == KEY_BYTES
    assert (
        Redactor(key=first, environ={}).text(TEXT)
        == Redactor(key=again, environ={}).text(TEXT)
        != Redactor(key=another_store, environ={}).text(TEXT)
    )


def test_only_the_owner_can_read_it_and_nothing_else_is_left(tmp_path: Path) -> None:
    store_key(tmp_path)
    # git is told to leave it out
    assert sorted(p.name for p in tmp_path.iterdir()) == [".gitignore", KEY_FILE]
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o077 == 0


def test_without_making_nothing_is_written(tmp_path: Path) -> None:
    assert store_key(tmp_path / "a", make=False) is None
    assert not (tmp_path / "a").exists()
    key = store_key(tmp_path / "a")
    assert store_key(tmp_path / "a", make=False) == key


def test_a_key_that_another_process_made_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written_key = store_key(tmp_path)
    exists = Path.exists
    exists_calls: list[bool] = []

    def not_yet(path: Path) -> bool:  # the first look comes before the other process has written
        exists_calls.append(path.name == KEY_FILE)
        return exists(path) and len(exists_calls) > 1

    monkeypatch.setattr(Path, "exists", not_yet)
    assert store_key(tmp_path) == written_key


@pytest.mark.parametrize("text", ["", "abc", "zz" * KEY_BYTES, "ab" * (KEY_BYTES - 1)])
def test_a_damaged_key_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    (tmp_path / KEY_FILE).write_text(text)
    with pytest.raises(DataError, match="key"):
        store_key(tmp_path)
    assert (tmp_path / KEY_FILE).read_text() == text
