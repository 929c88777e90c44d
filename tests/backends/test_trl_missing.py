"""Without TRL, or with another version of it, the trainer imports, and its constructor names the
install command."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError
from composer_replication.training.backends import _compat
from composer_replication.training.backends.registry import TRL
from composer_replication.training.backends.trl_settings import check_hosted
from tests.training.small_student import make_pair

pytestmark = pytest.mark.train


def test_without_trl_making_the_trainer_says_what_to_install() -> None:
    code = """
import importlib.metadata as metadata
real = metadata.version
def version(name):
    if name == "trl":
        raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.version = version
import composer_replication as c
for make in (lambda: c.ComposerReplicationConfig(), lambda: c.ComposerReplicationTrainer()):
    try:
        make()
    except c.MissingExtraError as error:
        assert "trl is not installed" in str(error), error
        assert "pip install 'trl>=1.16,<1.17'" in str(error), error
    else:
        raise SystemExit("no error")
"""
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr + completed.stdout


@pytest.mark.parametrize(
    ("version", "fits"),
    [("1.15.0", False), ("1.16.0", True), ("1.16.3", True), ("1.17.0", False), ("0.24", False)],
)
def test_another_version_is_refused_in_one_sentence(
    version: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    problem = TRL.problem()
    assert (problem == "") is fits
    if not fits:
        assert problem == f"trl {version} is installed, >=1.16,<1.17 was tested"
        with pytest.raises(ConfigError, match=r"trl>=1\.16,<1\.17"):
            _compat.require_trl()


def test_a_model_without_a_tokenizer_beside_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="the model does not say where it came from; give the student's tokenizer"
    ):
        _compat.load_tokenizer_of(object())
    with pytest.raises(ConfigError, match="no tokenizer lies at"):
        _compat.load_tokenizer_of(str(tmp_path))
    beside = _compat.load_tokenizer_of(
        str(Path(__file__).resolve().parents[2] / "examples" / "workshop_student")
    )
    assert beside.padding_side == "left" and beside.chat_template


LIVE = {
    "rollouts": {"env": "workshop"},
    "train": {"policy": {"weight": 1.0}, "lm_ce": {"weight": 0.0}},
}
PAIRED = {"weight": 1.0, "anchor": 0.0, "batch_pairs": 4}


@pytest.mark.parametrize(
    ("group", "setting", "field"),
    [
        ("rollouts", {"env": ""}, "rollouts.env"),
        ("train", {"lm_ce": {"weight": 1.0}}, "train.lm_ce"),
        ("train", {"hint": {"teacher": "ema"}}, "train.hint.teacher"),
        ("train", {"placebo": ("shuffled_hints",)}, "train.placebo"),
        ("rollouts", {"extra_groups": 2}, "rollouts.extra_groups"),
        ("rollouts", {"max_calls": 3}, "rollouts.max_calls"),
        ("train", {"policy": {"weight": 1.0, "objective": "dapo"}}, "train.policy.objective"),
        (
            "train",
            {"policy": {"weight": 1.0, "importance_cap": 2.0}},
            "train.policy.importance_cap",
        ),
        (
            "train",
            {"policy": {"weight": 1.0, "length": {"weight": 0.1}}},
            "train.policy.length.weight",
        ),
        (
            "train",
            {"policy": {"weight": 1.0, "behaviours": {"invalid_calls": 0.1}}},
            "train.policy.behaviours",
        ),
        ("train", {"hint": {"token_clip": 0.5}}, "train.hint.token_clip"),
        ("train", {"hint": {"focus": "decision"}}, "train.hint.focus"),
        ("train", {"hint": {"divergence": "taid"}}, "train.hint.taid.schedule"),
        ("train", {"preference": {**PAIRED, "objective": "clone"}}, "train.preference.objective"),
        ("train", {"preference": {**PAIRED, "anchor": 1.0}}, "train.preference.anchor"),
        ("train", {"preference": {**PAIRED, "batch_pairs": 0}}, "train.preference.batch_pairs"),
    ],
)
def test_what_it_does_not_host_is_refused_by_name(group: str, setting: dict, field: str) -> None:
    pairs = [make_pair(0)]
    check_hosted(Config.model_validate(LIVE), pairs=pairs)
    check_hosted(
        Config.model_validate({**LIVE, "train": {**LIVE["train"], "preference": PAIRED}}),
        pairs=pairs,
    )
    config = Config.model_validate({**LIVE, group: {**LIVE[group], **setting}})
    with pytest.raises(ConfigError) as caught:
        check_hosted(config, pairs=pairs)
    assert caught.value.where == field and caught.value.fix
    with pytest.raises(ConfigError, match="no pairs"):
        check_hosted(
            Config.model_validate({**LIVE, "train": {**LIVE["train"], "preference": PAIRED}}),
            pairs=(),
        )


def test_every_setting_is_hosted_said_or_refused() -> None:
    """Names that exist: a setting that was renamed would silently be refused or ignored."""
    from composer_replication.core.config.rollout_settings import RolloutSettings
    from composer_replication.core.config.train_settings import TrainSettings
    from composer_replication.training.backends.refusals import walk_settings
    from composer_replication.training.backends.trl_settings import HOSTED, WITHOUT_EFFECT

    names = {name for name, _ in walk_settings("train", TrainSettings())} | {
        name for name, _ in walk_settings("rollouts", RolloutSettings())
    }
    assert names >= HOSTED | WITHOUT_EFFECT.keys() and not HOSTED & WITHOUT_EFFECT.keys()
