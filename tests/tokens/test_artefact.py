"""The data set on disk: written in one pass, counted, and checked again by every constructor on
reading."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.errors import AlignmentError, DataError
from composer_replication.core.site import Hint, Preference, Site
from composer_replication.core.trace import Text, Turn
from composer_replication.tokens.artefact import (
    EXAMPLES,
    META,
    PAIRS,
    SKIPPED,
    BuildReport,
    load_dataset,
    write_dataset,
)
from composer_replication.tokens.dataset import build_examples
from tests.tokens.students import TOOLS, long_turns, renderer, session_of


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, BuildReport]:
    render = renderer("qwen3", "qwen3")
    session = session_of(long_turns(12), tools=TOOLS)
    numbers = [i for i, t in enumerate(session.turns) if t.role == "assistant"]
    sites = [
        Site(session_id="s1", turn=n, kind="file_missing", detector="d", evidence=(n + 1,))
        for n in (numbers[1], numbers[3])
    ]
    hints = [Hint(site_id=sites[0].id, text="Paths: a.py", writer="w", kind="file_missing")]
    chosen = Turn(role="assistant", author="t", blocks=(Text("Better."),))
    items = build_examples(
        [session],
        sites=sites,
        hints=hints,
        renderer=render,
        settings=BuildSettings(max_tokens=1000),
        preferences=[Preference(session_id="s1", turn=numbers[5], chosen=chosen)],
    )
    return tmp_path, write_dataset(
        tmp_path, items, meta=render.describe() | {"settings": {"max_tokens": 1000}}
    )


def test_what_is_written_is_read_back_and_counted(written: tuple[Path, BuildReport]) -> None:
    folder, report = written
    data = load_dataset(folder, tokenizer_sha256=renderer("qwen3", "qwen3").codec.sha256())
    assert (report.examples, report.pairs, report.views) == (len(data.examples), len(data.pairs), 1)
    assert report.tokens == sum(len(e.ids) for e in data.examples) and report.longest == max(
        len(e.ids) for e in data.examples
    )
    assert report.trained_tokens == sum(b - a for e in data.examples for a, b in e.lm_spans)
    assert report.target_tokens == sum(len(v.target_ids) for e in data.examples for v in e.hints)
    assert report.views_by_kind == {"file_missing": 1} and report.views_by_rendering == {
        "message": 1
    }
    assert report.skipped == {"hint/no_hint": 1, "lm_ce/dispreferred": 1, "lm_ce/site": 2}
    assert report.trained_messages == 12 - 3
    assert data.meta["family"] == "qwen3" and data.meta["settings"] == {"max_tokens": 1000}
    assert data.meta["counts"]["skipped"] == report.skipped
    reasons = [json.loads(line) for line in (folder / SKIPPED).read_text().splitlines()]
    assert {"channel": "hint", "reason": "no_hint"}.items() <= next(
        r for r in reasons if r["channel"] == "hint"
    ).items()


def shift_target(row: dict[str, Any]) -> None:
    view = next(view for view in row["hints"])
    view["span"] = [view["span"][0] + 1, view["span"][1] + 1]


def train_target(row: dict[str, Any]) -> None:
    row["trained"] = [row["hints"][0]["span"]]


@pytest.mark.parametrize(
    ("damage", "message"),
    [(shift_target, "is not what stands at"), (train_target, "lm_ce would train on the mistaken")],
)
def test_a_damaged_example_is_refused(
    written: tuple[Path, BuildReport], damage: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = written[0] / EXAMPLES
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    damage(next(row for row in rows if row["hints"]))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(AlignmentError, match=message):
        load_dataset(written[0])


def test_a_lost_line_another_schema_and_another_tokenizer_are_refused(
    written: tuple[Path, BuildReport],
) -> None:
    folder = written[0]
    with pytest.raises(DataError, match="another tokenizer"):
        load_dataset(folder, tokenizer_sha256="0" * 64)
    meta = (folder / META).read_text()
    (folder / META).write_text(meta.replace('"schema": 1', '"schema": 9'))
    with pytest.raises(DataError, match="schema 9"):
        load_dataset(folder)
    (folder / META).write_text(meta)
    (folder / PAIRS).write_text("")
    with pytest.raises(DataError, match=r"0 pairs, but meta\.json counts .* and 1"):
        load_dataset(folder)
    for text, message in (("{", "not JSON"), ("[]", "not a JSON object")):
        (folder / META).write_text(text)
        with pytest.raises(DataError, match=message):
            load_dataset(folder)
    (folder / META).unlink()
    with pytest.raises(DataError, match=r"no file .*meta\.json"):
        load_dataset(folder)


def test_the_fingerprint_of_a_tokenizer_is_its_vocabulary_not_its_folder() -> None:
    assert (
        renderer("qwen3", "qwen3").codec.sha256()
        == renderer("qwen3-2507", "qwen3_instruct_2507").codec.sha256()
    )
    assert (
        renderer("qwen3", "qwen3").codec.sha256() != renderer("llama3", "llama3_1").codec.sha256()
    )
