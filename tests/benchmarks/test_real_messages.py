"""What models write at mistakes: each context is read as it should be, messages are checked whole,
and the page says what was found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from math import inf
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks import real_page

HINT, OTHER_HINT = (7, 8, 9), (5, 6)


@pytest.fixture
def real_messages() -> ModuleType:
    """The script, which imports its neighbours by their own names."""
    pytest.importorskip("torch", reason="the script runs models")
    import real_messages  # pyright: ignore[reportMissingImports]

    return real_messages


@pytest.fixture
def written(
    real_messages: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, str], dict[str, Any], list[list[int]]]:
    """What is decided and written by a student that reads the file first if it was told so, and
    else repeats the edit; and all that it read."""
    import torch

    from composer_replication.rollouts.chat_format import ChatFormat
    from composer_replication.rollouts.static_check import SiteCheck
    from tests.rollouts.logged import MISTAKES, assistant_turn, call, renderer, session, site
    from tests.rollouts.small_world import message_ids

    mistake = message_ids(renderer(), assistant_turn(MISTAKES["edit_not_read"][0]))
    right = message_ids(renderer(), assistant_turn(call("Read", path="src/b.py")))
    fork = next(i for i, (a, b) in enumerate(zip(mistake, right, strict=False)) if a != b)
    read: list[list[int]] = []

    class Scripted:
        def __init__(self, _: Any, *, num_rows: int) -> None:
            self.fed: list[list[int]] = [[] for _ in range(num_rows)]

        def feed(self, rows: Sequence[Sequence[int]]) -> Any:
            if not read:
                read.extend(list(row) for row in rows)
            logits = torch.full((len(rows), 5000), -1e9)
            for row, (known, new) in enumerate(zip(self.fed, rows, strict=True)):
                known += new
                body = known[known.index(1) + 1 :]  # the context below ends with a 1
                script = right if 9 in known[: known.index(1)] else mistake
                logits[row, script[min(len(body), len(script) - 1)]] = 0.0
            return logits

    monkeypatch.setattr(real_messages, "RaggedCache", Scripted)
    monkeypatch.setattr(real_messages, "NEW_TOKENS", 400)
    monkeypatch.setattr(real_messages, "scoring", lambda _: nullcontext())
    log = session("edit_not_read")
    place = real_messages.Place(
        site_id="s1",
        kind="edit_not_read",
        session_id=log.id,
        above=(2, 3, 1),
        at=2,
        hints={"none": (), "now": HINT, "other": OTHER_HINT},
        opening=tuple(mistake[:fork]),
        wrong=mistake[fork],
        right=(right[fork],),
        tools=log.tools,
        check=SiteCheck.of(log, site("edit_not_read")),
    )
    chat_format = ChatFormat.of(renderer(), author="me")
    verdicts = real_messages.written_at(place, SimpleNamespace(), chat_format)
    return real_messages.decided_at(place, SimpleNamespace()), verdicts, read


@pytest.mark.train
def test_a_hint_stands_above_the_message_and_what_is_written_is_checked_whole(
    written: tuple[dict[str, str], dict[str, Any], list[list[int]]],
) -> None:
    decided, verdicts, read = written
    assert decided == {"none": "wrong", "now": "right", "other": "wrong"}
    assert {context: verdict.outcome for context, verdict in verdicts.items()} == {
        f"{begin}/{name}": "ok" if name == "now" else "same"
        for begin in ("start", "decision")
        for name in ("none", "now", "other")
    }
    assert read[:3] == [[2, 3, 1], [2, 3, *HINT, 1], [2, 3, *OTHER_HINT, 1]]
    assert all(len(row) > 6 for row in read[3:])  # the log's message up to the decision


@pytest.mark.train
def test_nothing_is_measured_twice_or_after_the_time_limit(
    real_messages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def places(*_: Any) -> list[Any]:
        kinds = {"a": "too_large", "b": "edit_not_read"}
        return [SimpleNamespace(site_id=i, kind=k, session_id="s") for i, k in kinds.items()]

    def decide(place: Any, *_: Any) -> dict[str, str]:
        asked.append(f"{place.site_id} decides")
        return {"none": "right"}

    def write(place: Any, *_: Any) -> dict[str, Any]:
        asked.append(f"{place.site_id} writes")
        return {"start/none": SimpleNamespace(outcome="ok", reason="checked")}

    student = SimpleNamespace(model=None)
    monkeypatch.setattr(real_messages, "places_of", places)
    monkeypatch.setattr(real_messages, "decided_at", decide)
    monkeypatch.setattr(real_messages, "written_at", write)
    monkeypatch.setattr(real_messages, "load_tokenizer", lambda _: None)
    monkeypatch.setattr(real_messages, "load_student", lambda *_, **__: student)
    monkeypatch.setattr(real_messages.Renderer, "for_tokenizer", lambda *_, **__: None)
    monkeypatch.setattr(real_messages.ChatFormat, "of", lambda *_, **__: None)
    records, planned = real_messages.measure("m", "f", "x", work=tmp_path, until=-inf)
    assert (records, planned, asked) == ([], {"decides": 2, "writes": 1}, [])
    records, _ = real_messages.measure("m", "f", "x", work=tmp_path, until=inf)
    # of a file that is too large the check cannot say that the mistake is absent
    assert asked == ["a decides", "b decides", "b writes"] and len(records) == 3
    again, _ = real_messages.measure("m", "f", "x", work=tmp_path, until=inf)
    assert again == records and len(asked) == 3


@pytest.mark.train
def test_shares_are_of_the_sites_and_differences_are_paired(real_messages: ModuleType) -> None:
    def record(site: str, none: str, now: str, other: str) -> dict[str, Any]:
        of = {"none": none, "now": now, "other": other}
        outcomes = {f"{b}/{name}": v for b in ("start", "decision") for name, v in of.items()}
        return {"site": site, "session": site, "outcomes": outcomes}

    decides = {"none": "wrong", "now": "right", "other": "neither"}
    records = [
        {"site": "c", "session": "a", "decides": decides},
        record("a", "same", "ok", "ok"),
        record("b", "same", "ok", "same"),
    ]
    about = {site: {"cluster": site} for site in "ab"}
    rows = {(r["what"], r["value"]): r for r in real_messages.summarise(records, about)}
    row = rows["decision", "same"]
    assert row["shares"] == {"none": 1.0, "now": 0.0, "other": 0.5} and row["n"] == 2
    assert row["over none"]["mean"] == -1.0 and row["over other"]["mean"] == -0.5
    assert rows["start", "ok"]["shares"]["now"] == 1.0
    assert rows["decides", "right"]["over other"]["mean"] == 1.0
    assert rows["decides", "right"]["n"] == 1


def _page(root: Path, *, low: float, high: float, low_over_other: float | None = None) -> str:
    """The page on a model whose own hint changes each share by that much, over no hint and over
    another one."""

    def row(what: str, value: str) -> dict[str, Any]:
        shift = {"mean": (low + high) / 2, "low": low, "high": high}
        other = shift if low_over_other is None else {**shift, "low": low_over_other}
        shares = {"none": 0.25, "now": 0.5, "other": 0.4}
        over = {"over none": shift, "over other": other}
        return {"what": what, "value": value, "shares": shares, "n": 9, "sessions": 5, **over}

    written = {
        "outcomes": {"start/none": "undecided", "decision/now": "ok"},
        "reasons": {"start/none": "no_call", "decision/now": "checked"},
    }
    model = {
        "family": "chatml-tools",
        "processor": "AVX2",
        "commit": "abc1234",
        "planned": {"decides": 30, "writes": 12},
        "records": [*[{"decides": {}}] * 30, *[written] * 9],
        "rows": [
            row("decides", "right"),
            row("start", "same"),
            row("start", "undecided"),
            {**row("decision", "ok"), "over other": {"mean": 0.0, "low": 0.0, "high": 0.0}},
            {**row("decision", "other"), "shares": {"none": 0.0, "now": 0.0, "other": 0.0}},
        ],
    }
    about: dict[str, Any] = {"new_tokens": 64, "max_tokens": 2048, "dtype": "float32"}
    about["kinds"] = ["edit_not_read"]
    (root / "benchmarks" / "results").mkdir(parents=True, exist_ok=True)
    (root / "docs").mkdir(exist_ok=True)
    value = {"about": about, "models": {"smollm2": model}}
    path = root / "benchmarks" / "results" / "real_messages.json"
    path.write_text(json.dumps(value), "utf-8")
    assert real_page.main([], root=root) == 0
    return (root / "docs" / "evidence_real.md").read_text("utf-8")


def test_the_page_says_what_was_written_and_claims_only_what_each_interval_shows(
    tmp_path: Path,
) -> None:
    page = _page(tmp_path, low=0.1, high=0.4)
    shares = "50% with the hint, 25% without, 40% with another site's (9 sites)"
    assert "smollm2's most probable token is the right one in 50% with the hint" in page
    more = "more often so than with no hint (+0.25 [+0.10, +0.40])"
    assert more in page
    assert f"it repeats the mistake in {shares}. The static check cannot judge 38%" in page
    assert "One token at 30 of 30 sites, messages at 9 of 12. The run was stopped" in page
    assert "| one token at the decision | 9 | 5 | `right` | 0.25 | 0.50 | 0.40 | +0.25" in page
    assert "- the whole message: `undecided`, no call 9." in page
    assert "| `ok` | 0.25 | 0.50 | 0.40 | +0.25 [+0.10, +0.40] | no site differs |" in page
    assert "| `other` |" not in page
    done, _, missing = page.partition("**Not run:**")
    assert "Messages at held-out mistakes, with the hint and without, by smollm2" in done
    assert "held-out mistakes" not in missing.partition("\n## ")[0]
    neither = "not shown to be so more or less often than with "
    assert f"{neither}no hint" not in page
    assert f"{neither}no hint" in _page(tmp_path, low=-0.1, high=0.4)
    other = _page(tmp_path, low=0.1, high=0.4, low_over_other=-0.1)
    assert more in other and f"and {neither}another site's hint" in other
    assert "less often so than with no hint" in _page(tmp_path, low=-0.4, high=-0.1)


def test_a_page_without_messages_says_that_they_were_not_run(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    assert real_page.main([], root=tmp_path) == 0
    page = (tmp_path / "docs" / "evidence_real.md").read_text("utf-8")
    assert "`benchmarks/real_messages.py` has not been completed" in page
