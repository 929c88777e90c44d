"""Settings: every problem names its file and line or flag, nothing is ignored, precedence is
defaults < files < flags."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from composer_replication.cli.init import toml_text
from composer_replication.core.config.load_config import find_config, load_config, walk_fields
from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def problem(folder: Path, text: str, **flags: str) -> ConfigError:
    file = write(folder / "recompose.toml", text)
    with pytest.raises(ConfigError) as caught:
        load_config([file], flags={k.replace("__", "."): v for k, v in flags.items()}, start=folder)
    return caught.value


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    loaded = load_config(start=tmp_path)
    assert loaded.config == Config()
    assert loaded.files == ()
    assert loaded.work_dir == tmp_path / "recompose"


def test_the_file_is_found_upward_and_paths_are_relative_to_it(tmp_path: Path) -> None:
    file = write(
        tmp_path / "recompose.toml", 'work_dir = "out"\n[ingest]\nlogs = ["logs", "/abs/logs"]\n'
    )
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_config(below) == file
    loaded = load_config(start=below, trusted_by=lambda _: "this test")
    assert loaded.work_dir == tmp_path / "out"
    assert loaded.config.ingest.logs == (str(tmp_path / "logs"), "/abs/logs")


def test_paths_in_flags_are_relative_to_the_current_folder(tmp_path: Path) -> None:
    write(tmp_path / "recompose.toml", "")
    folder = tmp_path / "here"
    folder.mkdir()
    assert load_config(
        flags={"build.pairs": "pairs.jsonl"}, start=folder
    ).config.build.pairs == str(folder / "pairs.jsonl")


def test_later_files_win_and_flags_win_over_files(tmp_path: Path) -> None:
    a = write(
        tmp_path / "a.toml",
        "seed = 1\n[train]\nsteps = 5\nbatch_examples = 2\n[train.hint]\nweight = 0.5\n",
    )
    b = write(tmp_path / "b.toml", "[train]\nsteps = 6\n")
    train = load_config([a, b], flags={"train.hint.weight": "0.25"}, start=tmp_path).config.train
    assert (train.steps, train.batch_examples, train.hint.weight) == (6, 2, 0.25)


@pytest.mark.parametrize(
    ("flag", "text", "expected"),
    [
        ("sites.detectors", "tool_error, repeated_call", ("tool_error", "repeated_call")),
        ("sites.detectors", '["tool_error"]', ("tool_error",)),
        ("ingest.redact", "false", False),
        ("train.learning_rate", "3e-5", 3e-5),
        ("student.model", "12", "12"),
        ("hints.writers", '{bad_arguments = "pkg.mod:fn"}', {"bad_arguments": "pkg.mod:fn"}),
        ("train.hint.divergence", "kl(student, teacher)", "kl(student, teacher)"),
        ("build.max-tokens", "99", 99),
    ],
)
def test_flags_become_values_of_the_right_type(
    tmp_path: Path, flag: str, text: str, expected: object
) -> None:
    value: object = load_config(flags={flag: text}, start=tmp_path).config
    for part in flag.replace("-", "_").split("."):
        value = getattr(value, part)
    assert value == expected


def test_one_entry_of_a_table_is_set_by_its_dotted_name_and_joins_those_of_the_file(
    tmp_path: Path,
) -> None:
    write(
        tmp_path / "recompose.toml",
        '[hints.writers]\nbad_arguments = "a:b"\nfile_missing = "c:d"\n',
    )
    loaded = load_config(
        flags={"hints.writers.file_missing": "pkg.mod:fn"},
        start=tmp_path,
        trusted_by=lambda _: "this test",
    )
    assert loaded.config.hints.writers == {"bad_arguments": "a:b", "file_missing": "pkg.mod:fn"}
    with pytest.raises(ConfigError, match="holds a value, not a group"):
        load_config(
            flags={"hints.writers.file_missing.more": "x"},
            start=tmp_path,
            trusted_by=lambda _: "this test",
        )


def test_a_mistyped_key_names_file_line_group_and_the_nearest_key(tmp_path: Path) -> None:
    error = problem(tmp_path, "seed = 3\n\n[train.hint]\nwieght = 0.5\n")
    assert error.where == f"{tmp_path / 'recompose.toml'}:4  [train.hint]"
    assert error.what == 'unknown key "wieght" in [train.hint]'
    assert error.fix.splitlines()[0] == 'did you mean "weight"?' and error.fix.splitlines()[
        1
    ].startswith("keys here: weight, divergence, beta")


def test_a_mistyped_key_in_an_inline_table_is_found_at_the_table(tmp_path: Path) -> None:
    error = problem(tmp_path, "[train]\nsteps = 3\nhint = { wieght = 0.5 }\n")
    assert error.where.startswith(f"{tmp_path / 'recompose.toml'}:3")


def test_a_mistyped_table_is_unknown_too(tmp_path: Path) -> None:
    error = problem(tmp_path, "[trian]\nsteps = 3\n")
    assert error.where.endswith(":1") and 'did you mean "train"?' in error.fix


def test_a_mistyped_flag_is_named_as_a_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(flags={"train.stepz": "3"}, start=tmp_path)
    assert caught.value.where == "--train.stepz" and 'did you mean "steps"?' in caught.value.fix


def test_a_wrong_type_names_the_line_and_says_what_the_setting_is_for(tmp_path: Path) -> None:
    error = problem(tmp_path, '[build]\n# how long\nmax_tokens = "many"\n')
    assert error.where.startswith(f"{tmp_path / 'recompose.toml'}:3")
    assert "build.max_tokens" in error.what and "'many'" in error.what
    assert error.fix.startswith("Maximum sequence length")


def test_two_wrong_values_are_told_together(tmp_path: Path) -> None:
    error = problem(tmp_path, "[train]\nsteps = 0\nlearning_rate = -1.0\n")
    assert (
        "train.steps" in error.what
        and "train.learning_rate" in error.what
        and "recompose.toml:3" in error.what
    )


def test_a_wrong_flag_value_names_the_flag_not_the_file(tmp_path: Path) -> None:
    assert problem(tmp_path, "[train]\nsteps = 3\n", train__steps="x").where == "--train.steps"


def test_a_value_where_a_group_belongs(tmp_path: Path) -> None:
    assert problem(tmp_path, "train = 3\n").where.endswith(":1")
    with pytest.raises(ConfigError, match="holds a value, not a group"):
        load_config(flags={"train.steps.more": "1"}, start=tmp_path)


def test_all_channels_off_is_refused(tmp_path: Path) -> None:
    error = problem(tmp_path, "[train]\nlm_ce = {weight = 0.0}\nhint = {weight = 0.0}\n")
    assert "every channel has weight 0" in error.what


def test_toml_that_does_not_parse_names_the_line(tmp_path: Path) -> None:
    error = problem(tmp_path, "seed = 3\nwork_dir = out\n")
    assert error.where == f"{tmp_path / 'recompose.toml'}:2"


def test_a_missing_config_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config file"):
        load_config([tmp_path / "none.toml"], start=tmp_path)


def test_a_config_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "recompose.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(start=tmp_path)


# put together here, so that no scanner takes this file for a leak
MADE_UP_KEY = "sk-" + "a1B2c3D4" * 4


@pytest.mark.parametrize(
    "line", ['api_key = "abc"', f'redact_words = ["{MADE_UP_KEY}"]', 'rules_token = "x"']
)
def test_a_secret_in_a_config_file_is_refused_without_repeating_it(
    tmp_path: Path, line: str
) -> None:
    error = problem(tmp_path, f"[ingest]\n{line}\n")
    assert "secret" in error.what and "environment variable" in error.fix
    assert MADE_UP_KEY not in str(error) and ":2" in error.where


def test_settings_are_frozen_and_refuse_unknown_fields() -> None:
    with pytest.raises(ValidationError):
        setattr(Config(), "seed", 8)  # noqa: B010 - a plain assignment would not pass the type checker
    with pytest.raises(ValidationError):
        Config.model_validate({"sede": 7})


def test_every_setting_is_documented_or_speaks_for_itself() -> None:
    """A name that has a unit or is a common term needs no sentence; the list is short on
    purpose."""
    plain = {
        "weight",
        "beta",
        "temperature",
        "divergence",
        "steps",
        "batch_examples",
        "learning_rate",
    }
    plain |= {
        "label_smoothing",
        "warmup_steps",
        "weight_decay",
        "max_grad_norm",
        "checkpoint_every",
        "keep_checkpoints",
    }
    bare = {key[-1] for key, field in walk_fields() if not field.description}
    assert bare <= plain


def test_the_written_file_holds_every_default(tmp_path: Path) -> None:
    text = toml_text()
    assert (
        load_config([write(tmp_path / "as_written.toml", text)], start=tmp_path).config == Config()
    )
    lines = [re.sub(r"^# (?=\w+ = )", "", line) for line in text.splitlines()]
    written = tomllib.loads("\n".join(lines))
    assert Config.model_validate(written) == Config()
    assert sum(len(values) for values in written.values() if isinstance(values, dict)) > 20
    assert written["train"]["hint"]["beta"] == 0.5


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_a_policy_that_samples_at_another_temperature_is_refused(temperature: float) -> None:
    """Log-probs are those of the model, at temperature 1; turns that only the hint channel trains
    on may be sampled at any."""
    rollouts = {"env": "workshop", "temperature": temperature}
    with pytest.raises(
        ValueError, match=r"rollouts.temperature is .* set it to 1, or train.policy.weight = 0"
    ):
        Config.model_validate({"rollouts": rollouts, "train": {"policy": {"weight": 1.0}}})
    assert (
        Config.model_validate(
            {"rollouts": rollouts, "train": {"hint": {"weight": 1.0}}}
        ).rollouts.temperature
        == temperature
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rollouts": {"env": "workshop"}}, r"cannot play rollouts .* verl or prime-rl"),
        ({"train": {"fork": True}}, r"cannot write with a part of them; set fork = false"),
        (
            {"train": {"backend": "trl"}, "rollouts": {"env": "workshop"}},
            r"fsdp is for the reference trainer, the backend is trl",
        ),
        ({"train": {"optimiser": "adamw_8bit"}}, r"8-bit ones cannot be sharded"),
        (
            {"student": {"load_in_4bit": True, "lora": {"rank": 4, "alpha": 8}}},
            r"stores in 4 bits; set train.fsdp = false",
        ),
    ],
)
def test_what_sharded_weights_cannot_do_is_refused(settings: dict[str, Any], problem: str) -> None:
    assert Config.model_validate(settings)
    train = {**settings.get("train", {}), "fsdp": True}
    with pytest.raises(ValueError, match=problem):
        Config.model_validate({**settings, "train": train})


def test_the_defaults_that_decide_what_is_trained_do_not_change_unnoticed() -> None:
    """Each is a decision with its reason elsewhere (DESIGN, docs/evidence.md): who makes another
    one changes it here, too."""
    config = Config()
    hint, policy, preference, health = (
        config.train.hint,
        config.train.policy,
        config.train.preference,
        config.train.health,
    )
    assert (config.build.target, config.build.without_evidence, config.held_out.by) == (
        "message",
        "skip",
        "auto",
    )
    assert (hint.divergence, hint.beta, hint.teacher, hint.mean, hint.combination) == (
        "jsd",
        0.5,
        "frozen",
        "site",
        "additive",
    )
    assert (hint.ema, hint.trust, hint.temperature, hint.bound) == (0.05, 0.05, 1.0, 0.5)
    assert (
        policy.objective,
        policy.kl,
        config.rollouts.temperature,
        config.rollouts.max_staleness,
    ) == ("dr_grpo", 0.0, 1.0, 1)
    assert (
        preference.objective,
        preference.beta,
        preference.anchor,
        preference.label_smoothing,
    ) == ("dpo", 0.1, 10.0, 0.0)
    assert (config.train.balance, config.train.max_grad_norm_ratio, config.train.max_grad_norm) == (
        "grad_norm",
        4.0,
        0.0,
    )
    assert (config.replay.min_families, config.replay.need_evidence, config.replay.tiers) == (
        3,
        True,
        ("exact",),
    )
    assert (
        health.max_kl,
        health.max_unresolvable,
        health.max_monitor_loss,
        config.train.starved_steps,
    ) == (0.3, 0.1, 0.5, 10)
