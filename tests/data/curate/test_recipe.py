"""The shipped recipes can be read, by us and by any YAML reader alike; what is not understood is
refused by line."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.core.errors import ConfigError
from composer_replication.data.curate.recipe import OUR_OPERATORS, SHIPPED, load_recipe, read_recipe
from composer_replication.data.curate.yaml_subset import read_yaml

yaml = pytest.importorskip(
    "yaml",
    reason="PyYAML comes with the [train] extra; without it there is nothing to compare with",
)


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships_is_read_as_any_yaml_reader_reads_it(name: str) -> None:
    text = (
        resources.files("composer_replication.data.curate")
        .joinpath("recipes", f"{name}.yaml")
        .read_text("utf-8")
    )
    assert read_yaml(text) == yaml.safe_load(text)
    assert load_recipe(name).name == name == load_recipe(f"{name}.yaml").name


SCALARS = st.one_of(
    st.integers(-999, 999), st.floats(-99, 99, allow_nan=False).map(lambda x: round(x, 3)),
    st.booleans(), st.none(),
    st.from_regex(r"[a-m]{1,8}",
    fullmatch=True).filter(lambda s: s not in ("n", "y", "null", "true")),
    st.sampled_from(["a b", "x: y", "# no", "- z", "1", "true", "", "a, b"]).map(lambda s: s),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4),
        st.dictionaries(
            st.from_regex(r"[a-m_]{2,8}", fullmatch=True), inner, min_size=1, max_size=4
        ),
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.from_regex(r"[a-m_]{2,8}", fullmatch=True), VALUES, min_size=1, max_size=4)
)
def test_what_a_yaml_writer_writes_is_read_the_same_or_refused(value: dict[str, object]) -> None:
    for flow in (False, None, True):
        text = yaml.safe_dump(value, default_flow_style=flow, width=10_000)
        if flow:
            text = f"all: {text}"
        try:
            assert read_yaml(text) == ({"all": value} if flow else value)
        except ConfigError:
            # more of YAML than recipes need
            assert any(sign in text for sign in "'\"[]{}|>&*!?") or "e-" in text or "e+" in text


@pytest.mark.parametrize(
    "text",
    [
        "a: &x 1",
        "a: |\n  b",
        "a: {b: 1",
        "a: {b: 1, b: 2}",
        "a: {b}",
        "a: [1,, 2]",
        "a: yes",
        "---\na: 1",
        "a: 1\n\tb: 2",
        "a: 1\na: 2",
        "a: 1\n  b: 2",
        "just words",
        "a: b: c",
    ],
)
def test_other_yaml_is_refused_and_the_line_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"recipe:\d"):
        read_yaml(text)


def test_lists_and_mappings_on_one_line() -> None:
    assert read_yaml(
        "process:\n  - words_num_filter: {text_key: chosen, min_num: 2}\n  - {a: {b: [1, {c: 'd,"
        " e'}], f: it's}}\n"
    ) == {
        "process": [
            {"words_num_filter": {"text_key": "chosen", "min_num": 2}},
            {"a": {"b": [1, {"c": "d, e"}], "f": "it's"}},
        ]
    }
    assert read_yaml("a: {}\nb: []\nc: [x, 'y', {}]") == {"a": {}, "b": [], "c": ["x", "y", {}]}


def test_comments_and_quotes() -> None:
    assert read_yaml("# head\na: 'b # c'  # d\ne: [f, 'g, h', 2]\n") == {
        "a": "b # c",
        "e": ["f", "g, h", 2],
    }
    assert read_yaml("") is None and read_yaml("- a\n- b: 1\n  c: 2\n-\n  d: 3") == [
        "a",
        {"b": 1, "c": 2},
        {"d": 3},
    ]


def test_a_recipe_of_ones_own_and_one_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("process:\n  - words_num_filter:\n      min_num: 3\n", "utf-8")
    recipe = load_recipe(path)
    assert recipe.name == "mine" and recipe.steps[0].parameters == {
        "min_num": 3,
        "max_num": float("inf"),
        "lang": "en",
        "text_key": "words",
    }
    with pytest.raises(ConfigError, match="no recipe 'defualt'"):
        load_recipe("defualt")


def test_every_operator_of_our_own_stands_in_a_recipe_or_can_be_given() -> None:
    for name in OUR_OPERATORS:
        assert read_recipe(f"process:\n  - {name}\n").steps[0].parameters == OUR_OPERATORS[name]


@pytest.mark.parametrize(
    "step",
    ["clean_links_mapper", "document_simhash_deduplicator: {window_size: 6}",
    "perplexity_filter: {lang: en, max_ppl: 1500}",
     "topk_specified_field_selector: {field_key: x}"],
)  # fmt: skip
def test_an_operator_that_only_the_real_one_has_is_refused_by_name_unless_it_is_at_hand(
    step: str,
) -> None:
    name, text = step.partition(":")[0], f"process:\n  - {step}\n"
    with pytest.raises(ConfigError, match=rf"unknown operator '{name}'.*engine=\"data_juicer\""):
        read_recipe(text)
    recipe = read_recipe(text, foreign=True)
    assert recipe.foreign and recipe.steps[0].foreign and recipe.steps[0].name == name
    assert not load_recipe("default", foreign=True).foreign


@pytest.mark.parametrize(
    ("step", "message"),
    [("python_file_mapper: {file_path: x.py}", "runs code"),
    ("words_num_filtre", "unknown operator"),
     ("word_num_filter", "did you mean words_num"),
     ("clean_links_mapper: {text_key: words}", "chosen or rejected"),
     ("text_length_filter: {text_key: prompt}", "'prompt' is not")],
)  # fmt: skip
def test_what_no_engine_may_run_is_refused_with_it_too(step: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_recipe(f"process:\n  - {step}\n", foreign=True)
