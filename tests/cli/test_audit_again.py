"""A second `audit` reads what has changed and no more, and says the same as a full reading."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer_replication.cli import ingest_logs, sites, sites_of_before
from composer_replication.core.codec import read_sites
from composer_replication.core.site import Site
from composer_replication.data.sites.find_sites import find_sites
from tests.cli.agent_logs import LogBuilder, sessions_on
from tests.cli.workspace import recompose

OTHERS = Path(__file__).resolve().parents[1] / "data" / "ingestion" / "other_agents"
WORK = "store"
DAYS = ("2026-10-05", "2026-10-06", "2026-10-13", "2026-10-20")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Four logs, and a fifth that resumes the first: it holds all of its messages, so the first
    counts as a copy."""
    sessions_on(DAYS, to=tmp_path / "logs")
    resumed = LogBuilder(f"shop-{DAYS[0]}-0", day=DAYS[0], folder="shop")
    for _ in range(3):
        resumed.read()
    resumed.failed_edit()
    resumed.failed_edit()
    text = resumed.write(tmp_path / "made").read_text("utf-8")
    folder = tmp_path / "logs" / "-home-dev-shop"
    (folder / "resumed.jsonl").write_text(
        text.replace(f'"sessionId": "shop-{DAYS[0]}-0"', '"sessionId": "resumed"'), "utf-8"
    )
    return tmp_path / "logs"


def audit(logs: Path, *more: str) -> dict[str, Any]:
    result = recompose("audit", logs.name, "-o", WORK, "--json", *more, cwd=logs.parent)
    assert result.code == 0, result.err
    return result.value


def stored(logs: Path) -> tuple[bytes, list[Site]]:
    """The sessions without their order, and the sites."""
    work = logs.parent / WORK
    return (work / "sessions.jsonl").read_bytes(), list(read_sites(work / "sites.jsonl"))


def without_reading(value: dict[str, Any]) -> dict[str, Any]:
    """What an audit says, without how much it read."""
    return {k: v for k, v in value.items() if k not in ("unchanged", "changed")}


def one_log(logs: Path, number: int) -> Path:
    return logs / "-home-dev-shop" / f"shop-{DAYS[number]}-{number}.jsonl"


def append(logs: Path) -> None:
    path = one_log(logs, 1)
    log = LogBuilder(path.stem, day=DAYS[1], folder="shop")
    for _ in range(3):
        log.read()
    log.failed_edit()
    log.failed_edit()
    log.write(logs)


def change(logs: Path) -> None:
    """Another path of the same length, at the same size and time of modification."""
    path, text = one_log(logs, 2), one_log(logs, 2).read_text("utf-8")
    status = path.stat()
    path.write_text(text.replace("cart.py", "card.py"), "utf-8")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def cut_the_resumed(logs: Path) -> None:
    """What is left of the copy is smaller than the original, which is now read first."""
    path = logs / "-home-dev-shop" / "resumed.jsonl"
    path.write_text("\n".join(path.read_text("utf-8").splitlines()[:3]) + "\n", "utf-8")


def remove_the_resumed(logs: Path) -> None:
    (logs / "-home-dev-shop" / "resumed.jsonl").unlink()


def add(logs: Path) -> None:
    sessions_on(("2026-11-03",), to=logs, folder="bank", failures=2)


def touch(logs: Path) -> None:
    os.utime(one_log(logs, 3), (1, 1))


CASES: tuple[tuple[Callable[[Path], None], int], ...] = (
    (lambda _: None, 5),
    (append, 4),
    (change, 4),
    (cut_the_resumed, 3),
    (remove_the_resumed, 3),
    (add, 5),
    (touch, 5),
)


@pytest.mark.parametrize(
    ("happens", "unread"), CASES, ids=[getattr(c, "__name__", "") for c, _ in CASES]
)
def test_the_second_audit_says_what_a_full_reading_says(
    happens: Callable[[Path], None], unread: int, logs: Path
) -> None:
    audit(logs)
    happens(logs)
    before = logs.parent / "before"
    shutil.copytree(logs.parent / WORK, before)
    again = audit(logs)
    incremental = stored(logs)
    shutil.rmtree(logs.parent / WORK)
    shutil.copytree(before, logs.parent / WORK)
    (logs.parent / WORK / "reading.json").unlink()
    (logs.parent / WORK / "sites.jsonl").unlink()
    full = audit(logs)
    assert (again["unchanged"], full["unchanged"]) == (unread, 0)
    assert without_reading(again) == without_reading(full)
    assert (again["changed"], incremental) == (full["changed"], stored(logs))


def test_the_last_seen_day_of_what_was_not_read_moves_on(logs: Path) -> None:
    audit(logs)
    record = (logs.parent / WORK / "ingest.json").read_text("utf-8")
    last = record.partition('"last_seen": "')[2][:20]
    (logs.parent / WORK / "ingest.json").write_text(
        record.replace(last, "2026-01-01T00:00:00Z"), "utf-8"
    )
    audit(logs)
    assert '"last_seen": "2026-01-01' not in (logs.parent / WORK / "ingest.json").read_text("utf-8")


@pytest.mark.parametrize("who", ["another setting", "another store", "forgotten", "other code"])
def test_a_reading_under_other_conditions_is_not_used(
    who: str, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit(logs)
    more: tuple[str, ...] = ()
    if who == "another setting":
        more = ("--ingest.redact-words", "cart")
    elif who == "another store":
        store = logs.parent / WORK / "sessions.jsonl"
        lines = store.read_text("utf-8").splitlines(keepends=True)
        start = next(i for i, line in enumerate(lines) if i and line.startswith('{"session"'))
        store.write_text("".join(lines[start:]), "utf-8")
    elif who == "forgotten":
        name = f"shop-{DAYS[3]}-3"
        recompose("ingest", "--forget", name, "-o", WORK, cwd=logs.parent)
        assert name not in (logs.parent / WORK / "reading.json").read_text("utf-8")
    else:
        monkeypatch.setattr(ingest_logs, "hash_of_code", lambda *_: "other")
    value = audit(logs, *more)
    assert value["unchanged"] == 0
    assert value["stored"] == (3 if who == "forgotten" else 4)


def test_the_detectors_see_only_sessions_that_changed_and_all_after_they_changed(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def counted(session: Any, **settings: Any) -> list[Site]:
        seen.append(session.id)
        return find_sites(session, **settings)

    monkeypatch.setattr(sites, "find_sites", counted)
    audit(logs)
    assert len(seen) == 4
    audit(logs)
    assert len(seen) == 4
    append(logs)
    audit(logs)
    assert seen[4:] == [f"shop-{DAYS[1]}-1"]
    monkeypatch.setattr(sites_of_before, "hash_of_code", lambda *_: "other detectors")
    audit(logs)
    assert len(seen) == 9


def test_sites_of_the_user_s_own_are_left_as_they_are(logs: Path) -> None:
    audit(logs)
    path = logs.parent / WORK / "sites.jsonl"
    path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:2]), "utf-8")
    path.with_suffix(".meta.json").unlink()
    assert audit(logs)["rate"]["mistakes"] == 2


def database_in(folder: Path, *, text: str = "Please fix it.") -> sqlite3.Connection:
    """A database of OpenCode with one session, whose changes wait beside it, as while it runs."""
    database = sqlite3.connect(folder / "opencode.db")
    database.execute("PRAGMA journal_mode = WAL")
    database.executescript(
        """
        CREATE TABLE session (id, directory, version, parent_id, time_created);
        CREATE TABLE message (id, session_id, time_created, data);
        CREATE TABLE part (id, message_id, session_id, data);
        INSERT INTO session VALUES ('ses_1', '/home/dev/shop', '1.0', NULL, 1);
        INSERT INTO message VALUES ('msg_1', 'ses_1', 1, '{"role": "user"}');
        INSERT INTO message VALUES ('msg_2', 'ses_1', 2, '{"role": "assistant", "modelID": "m"}');
        INSERT INTO part VALUES ('p1', 'msg_1', 'ses_1', '{"type": "text", "text": "Hi."}');
        """
    )
    add_part(database, text)
    return database


def add_part(database: sqlite3.Connection, text: str) -> None:
    row = ("msg_2", "ses_1", json.dumps({"type": "text", "text": text}))
    number = database.execute("SELECT count(*) FROM part").fetchone()[0]
    database.execute("INSERT INTO part VALUES (?, ?, ?, ?)", (f"p{number + 1}", *row))
    database.commit()


def test_logs_that_are_documents_or_databases_are_not_read_again_either(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(OTHERS, logs)
    database = database_in(logs)
    first = audit(logs)
    again = audit(logs)
    assert (first["unchanged"], again["unchanged"]) == (0, first["files"])
    assert without_reading(again) == without_reading(first) and again["changed"] == 0
    part = next((logs / "opencode_storage" / "storage" / "part").rglob("prt_003.json"))
    part.write_text(part.read_text("utf-8").replace("old", "new") + " ", "utf-8")
    add_part(database, "Done.")
    (logs / "gemini_cli.json").write_text(
        (logs / "gemini_cli.json").read_text("utf-8") + "\n", "utf-8"
    )
    changed = audit(logs)
    # Gemini's other log begins with the same messages, so it may be a copy
    assert changed["files"] - changed["unchanged"] == 4, "of OpenCode two, and of Gemini two"
    assert changed["changed"] >= 1
    database.close()
    assert "Done." in (tmp_path / WORK / "sessions.jsonl").read_text("utf-8")
