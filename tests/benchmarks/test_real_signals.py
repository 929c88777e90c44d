"""The twins as benchmarks/real_signals.py reads them: what is right there, and the audit's own
measure; what their section says of an interval."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import real_page, real_signals_section
from benchmarks.twins.world import KINDS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The script, and its work folder with the twins of a seed."""
    pytest.importorskip("torch", reason="the script runs models")
    import real_hints  # pyright: ignore[reportMissingImports]
    import real_signals  # pyright: ignore[reportMissingImports]

    from benchmarks.twins.student import twin_tokenizer
    from composer_replication.tokens.renderer import Renderer

    work = tmp_path_factory.mktemp("twins")
    folder = real_signals.twin_logs(work, seed=3, num_each=4)
    real_hints.prepare(
        [folder], work, settings=real_signals.TWIN_SITES, writing=real_signals.TWIN_HINTS
    )
    tokenizer = twin_tokenizer()
    return SimpleNamespace(
        work=work,
        real_hints=real_hints,
        real_signals=real_signals,
        tokenizer=tokenizer,
        renderer=Renderer.for_tokenizer(tokenizer),
        rights=real_signals.twin_rights(work),
        hints=list(real_signals.read_hints(work / "hints.jsonl")),
    )


def test_the_right_message_is_that_of_the_player_without_its_habit(twins: SimpleNamespace) -> None:
    views = twins.real_hints.views_of(
        twins.work, twins.hints, twins.renderer, "system", rights=twins.rights
    )
    kinds = {site.id: site for site in twins.real_signals.read_sites(twins.work / "sites.jsonl")}
    assert len(views) == len(twins.rights) == len(twins.hints)
    assert {kinds[site_id].kind for site_id in views} == set(KINDS)
    decode = twins.renderer.codec.decode
    for site_id, (example, view) in views.items():
        (decision,) = view.decisions
        right = twins.rights[site_id]
        written = decode([*example.ids[view.span[0] : decision.fork], *decision.right_ids])
        body = decode(twins.renderer.reply(example_above(), right)[1])
        assert body.startswith(written)
        assert example.ids[decision.fork] not in decision.right_ids
        assert bool(right.calls) == (view.kind != "user_rejected")


def example_above() -> list[object]:
    from composer_replication.core.trace import HUMAN, Text, Turn

    return [Turn(role="user", author=HUMAN, blocks=(Text("x"),))]


def test_the_measure_is_that_of_the_audit(twins: SimpleNamespace) -> None:
    """`recompose hints --audit` measures the same log-odds, where it knows what is right."""
    import dataclasses

    from composer_replication.evaluation.decision_lift import log_odds, row_states, score_states
    from composer_replication.evaluation.hint_lift import audit_hints
    from composer_replication.models.forward import scoring
    from composer_replication.models.tiny import make_tiny

    real_hints = twins.real_hints
    model = make_tiny(twins.tokenizer, seed=1)
    options = {"pad_id": 0, "max_tokens": 4096, "layout": "rows"}
    views = real_hints.views_of(
        twins.work, twins.hints, twins.renderer, "system", rights=twins.rights
    )
    examples = [dataclasses.replace(e, hints=(view,)) for e, view in views.values()]
    audited = {
        decision.site_id: decision
        for site in audit_hints(model, examples, seed=1, **options).sites
        for decision in site.decisions
    }
    measured = set()
    trials = real_hints.trials(
        twins.work, twins.renderer, {real_hints.NOW: twins.hints}, rights=twins.rights
    )
    with scoring(model):
        for site_id, rows, view in trials:
            contexts = [rows["none"], rows["now/system"]]
            logps = score_states(model, contexts, row_states(model, contexts, **options))
            none, own = (log_odds(logp_N, view.decisions)[0] for logp_N in logps)
            assert (none, own) == pytest.approx(
                (audited[site_id].none, audited[site_id].hint), abs=1e-4
            )
            assert sum("/system/donor" in name for name in rows) == 3
            measured.add(site_id)
    assert measured == set(audited) == set(twins.rights)


def test_a_kind_moves_only_beyond_neutral_text_and_beyond_other_hints(tmp_path: Path) -> None:
    """One of the two intervals alone is no evidence."""
    for folder in ("docs", "benchmarks/results"):
        (tmp_path / folder).mkdir(parents=True)
    results = ROOT / "benchmarks" / "results"
    names = ("real_twins", "real_twins_41", "real_signals")
    values = {name: json.loads((results / f"{name}.json").read_text("utf-8")) for name in names}
    model = values["real_twins"]["models"]["smollm2"]
    values["real_twins"]["models"] = {"smollm2": model}

    def words(neutral: tuple[float, float], others: tuple[float, float]) -> str:
        for row in model["rows"]:
            for base, interval in (("neutral", neutral), ("other sites' hints", others)):
                if (row["kind"], row["contrast"]) == ("broke_check", f"now/system - {base}"):
                    row["low"], row["high"] = interval
        for name, value in values.items():
            path = tmp_path / "benchmarks" / "results" / f"{name}.json"
            path.write_text(json.dumps(value), "utf-8")
        assert real_page.main([], root=tmp_path) == 0
        page = (tmp_path / "docs" / "evidence_real.md").read_text("utf-8")
        line = next(line for line in page.splitlines() if "hints move smollm2" in line)
        said = line.partition("what is right is known, the hints move smollm2 ")[2]
        return next(part for part in said.split("; ") if "`broke_check`" in part)

    assert words((0.1, 0.5), (0.2, 0.9)).startswith("towards the right decision")
    assert words((0.1, 0.5), (-0.2, 0.9)).startswith("not demonstrably")
    assert words((-0.5, -0.1), (-0.9, -0.2)).startswith("away from the right decision")
    for row in model["rows"]:
        row["sessions"] = 9
    assert words((0.1, 0.5), (0.2, 0.9)).startswith("in a way that fewer than 10 sites cannot tell")


def test_a_reason_is_told_with_the_files_name_and_without(twins: SimpleNamespace) -> None:
    read = twins.real_signals.read_hints
    paths = twins.real_signals.twin_texts(twins.work)
    texts = {name: [hint.text for hint in read(path)] for name, path in paths.items()}
    assert len(texts["reason"]) == sum(hint.kind == "taken_back" for hint in twins.hints) > 0
    assert not any(".py" in text for text in texts["reason"])
    assert all(".py was taken back" in text for text in texts["reason, file named"])


def test_the_files_of_the_page_are_of_different_seeds_and_whole() -> None:
    values = [
        json.loads((ROOT / "benchmarks/results" / f"{name}.json").read_text("utf-8"))
        for name in ("real_twins", "real_twins_41")
    ]
    assert [value["about"]["seed"] for value in values] == [42, 41]
    for value in values:
        model = value["models"]["smollm2"]
        assert len(model["sites"]) == model["sites_planned"]
        assert {site["kind"] for site in model["sites"]} == set(KINDS)


def side_of(
    rows: Mapping[tuple[str, str], dict[str, float]],
    kind: str,
    base: str,
    place: str = "now/system",
) -> int:
    """1 = the interval is above 0, -1 = below, 0 = it holds 0."""
    row = rows[kind, f"{place} - {base}"]
    return (row["low"] > 0) - (row["high"] < 0)


def test_what_the_page_says_of_smollm2_is_so_in_both_seeds() -> None:
    """The text between the tables was written by hand."""
    page = (ROOT / "docs" / "evidence_real.md").read_text("utf-8")
    assert real_signals_section.READ in page
    for name in ("real_twins", "real_twins_41"):
        value = json.loads((ROOT / "benchmarks/results" / f"{name}.json").read_text("utf-8"))
        rows = {(row["kind"], row["contrast"]): row for row in value["models"]["smollm2"]["rows"]}

        side = partial(side_of, rows)
        others = "other sites' hints"
        assert side("user_rejected", "neutral") == side("user_rejected", others) == 1
        assert side("user_rejected", "neutral", "now/user") == -1
        assert rows["user_rejected", "neutral/system - none"]["mean"] > 3
        assert (side("wasted_call", "neutral"), side("wasted_call", others)) == (0, 1)
        assert side("broke_check", "neutral") == side("broke_check", others) == 0
        assert side("user_corrected", others) == -1
        assert side("taken_back", "neutral") == side("taken_back", others) == -1
        sites = [s for s in value["models"]["smollm2"]["sites"] if s["kind"] == "user_rejected"]
        for context, mean in (("none", -11.4), ("now/system", -6.8)):
            odds = [site["log_odds"][context] for site in sites]
            assert sum(odds) / len(odds) == pytest.approx(mean, abs=0.3)
