"""The whole way on real logs, our own of every era and the public ones: ingest, sites, hints, build
and a few steps of training."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.workspace import recompose


@pytest.mark.train
def test_real_sessions_train_every_weighted_channel(
    log_folders: tuple[Path, ...], tmp_path: Path
) -> None:
    """Short windows and few steps keep it quick; `recompose train --train.steps 20` on the defaults
    is the same, longer."""
    assert recompose("ingest", *map(str, log_folders), "-q", cwd=tmp_path).code == 0
    assert recompose("sites", "--json", cwd=tmp_path).value["num_mistakes"] > 20
    assert recompose("hints", "--json", cwd=tmp_path).value["hints"] > 10
    full_build = recompose(
        "build", "--build.max_tokens", "16384", "--json", "--dry-run", cwd=tmp_path
    ).value
    assert (
        full_build["views_with_evidence"] == full_build["views"] >= 8
        and full_build["hinted_sites"] >= full_build["views"]
    )
    # a window this short holds hardly any evidence
    flags = ("--build.max_tokens", "1024", "--build.without_evidence", "keep")
    built = recompose("build", *flags, "--json", cwd=tmp_path).value
    assert built["views_with_evidence"] < built["views"]
    assert built["longest"] <= 1024 and built["views"] > 0 and built["trained_messages"] > 50
    # failed checks, rejections and siblings are not trained on
    assert built["skipped"]["hint/category"] > 10
    result = recompose(
        "train", "--train.steps", "2", "--train.batch_examples", "3", "--json", cwd=tmp_path
    )
    assert result.code == 0, result.out
    assert result.value["statuses"] == {
        "policy": "off",
        "lm_ce": "active",
        "hint": "active",
        "preference": "off",
    }
