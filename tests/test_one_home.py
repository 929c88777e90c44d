"""One home per concept: each definition is written once and decides everywhere, and a second copy
fails here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from composer_replication.core import site as site_module
from composer_replication.core.config.data_settings import HintsSettings
from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.site import (
    CATEGORIES,
    LM_CE_EXCLUDED,
    TARGET_CATEGORIES,
    Category,
    Hint,
    Site,
)
from composer_replication.core.trace import Session
from composer_replication.data.hints.write import write_hints
from composer_replication.data.sites.summary import summarise
from composer_replication.report.funnel import site_chain
from composer_replication.report.views import APART, MISTAKE, site_view
from composer_replication.tokens.dataset import build_examples
from composer_replication.tokens.forward_size import check_forward_size
from composer_replication.tokens.skipped import Skipped
from tests.test_names import package_files
from tests.tokens.students import long_turns, renderer, session_of


def a_site(session: Session, category: Category) -> Site:
    return Site(
        session_id=session.id, turn=1, kind="k", detector="d", evidence=(2,), category=category
    )


def places_that_train(category: Category) -> dict[str, bool]:
    """The use that each stage makes of a site of this category."""
    session = session_of(long_turns(3))
    site = a_site(session, category)
    hint = Hint(site_id=site.id, text="HINT", writer="w", kind="k")
    examples = build_examples(
        [session],
        sites=[site],
        hints=[hint],
        renderer=renderer("qwen3", "qwen3"),
        settings=BuildSettings(),
    )
    skipped = {(skip.channel, skip.reason) for skip in examples if isinstance(skip, Skipped)}
    chain = site_chain([site], {site.id: hint}, skipped={}, held_out=frozenset(), views=None)
    view = site_view(session, site, hint, number=1, before=1, after=1)
    assert view["message"]["place"] in (MISTAKE, APART)
    return {
        "hints": write_hints(session, [site], settings=HintsSettings()).left_out == 0,
        "summary": summarise([site]).num_mistakes == 1,
        "examples": ("hint", "category") not in skipped,
        "funnel": chain[1]["count"] == 1,
        "page": view["message"]["place"] == MISTAKE,
    }


@pytest.mark.parametrize("category", CATEGORIES)
def test_every_stage_takes_the_same_categories_for_targets(category: Category) -> None:
    assert set(places_that_train(category).values()) == {category in TARGET_CATEGORIES}


def test_a_new_target_category_is_added_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(places_that_train("benign").values())
    # core/site.py derives these from the definition when it is imported
    for name in ("TARGET_CATEGORIES", "LM_CE_EXCLUDED"):
        monkeypatch.setattr(site_module, name, getattr(site_module, name) | {"benign"})
    assert all(places_that_train("benign").values())


def test_what_the_hint_channel_trains_is_kept_out_of_lm_ce() -> None:
    assert TARGET_CATEGORIES < LM_CE_EXCLUDED < set(CATEGORIES)


def test_no_other_file_lists_the_target_categories(repository_root: Path) -> None:
    """A set of categories that holds "mistake" and "recovery" is written in core/site.py alone."""
    copies = [
        f"{path.name}:{node.lineno}"
        for path in package_files(repository_root)
        if path.name != "site.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Tuple | ast.List | ast.Set)
        and {"mistake", "recovery"}
        <= {item.value for item in node.elts if isinstance(item, ast.Constant)}
    ]
    assert copies == []


def test_the_step_back_to_the_predicting_state_is_taken_in_one_place(repository_root: Path) -> None:
    """Hidden states are read one position before a token by `models.forward.predictors` alone."""
    copies = [
        f"{path.name}:{node.lineno}"
        for path in package_files(repository_root)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Subscript)
        and any(
            isinstance(part, ast.BinOp)
            and isinstance(part.op, ast.Sub)
            and isinstance(part.left, ast.Name | ast.Attribute)
            and ast.unparse(part.left).endswith("_N")
            and ast.unparse(part.right) == "1"
            for part in ast.walk(node.slice)
        )
    ]
    assert [copy.split(":")[0] for copy in copies] == ["forward.py"], copies


def test_what_does_not_fit_into_a_forward_is_refused_in_one_place(repository_root: Path) -> None:
    """Every refusal has the same text: the thing that is too long, its tokens, and the meaning of
    train.micro_tokens."""
    texts = [
        f"{path.name}: {node.value}"
        for path in package_files(repository_root)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and "tokens in one forward, " in node.value
    ]
    assert texts == ["forward_size.py:  tokens in one forward, train.micro_tokens is "]
    with pytest.raises(ConfigError, match=r"example e5 needs 9 tokens .* is 8"):
        check_forward_size("example e5", 9, micro_tokens=8)


def test_the_trainer_does_not_ask_the_judge_for_shuffled_hints(repository_root: Path) -> None:
    """One shuffle, below both: tokens/hint_donors.py."""
    training = repository_root / "src" / "composer_replication" / "training"
    rooms = ("composer_replication.evaluation", "composer_replication.report")
    importers = [
        path.name
        for path in sorted(training.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(rooms)
    ]
    assert importers == []


def test_every_page_opens_with_the_same_promise(repository_root: Path) -> None:
    """The README's first sentence; nothing is called measurably better that was not measured."""
    promise = (
        "Your agent's logs and your base model go in; a model trained on its own mistakes comes out"
    )
    for name in (
        "README.md",
        "pyproject.toml",
        "docs/cli.md",
        "src/composer_replication/__init__.py",
        "src/composer_replication/cli/main.py",
    ):
        text = (repository_root / name).read_text("utf-8")
        assert promise in text and "measurably better" not in text, name


PYTHONS = re.compile(
    r"\.py\b|pytest|conftest|PYT(HON|EST)[A-Z_]+|__init__|__pycache__|python_(files|class)"
)
"""What only `repositories/python` has to know of the repositories that tasks are made of."""
NAMED_WITH_A_REASON = {
    "hack_calls.py": "every tree has an interpreter, so Python's tricks are open in any language",
    "machine_searches.py": "as hack_calls.py: where Python's packages lie, and pip",
    "hack_monitor.py": "what running tools leave in any repository",
    "tree_sandbox.py": "the interpreter of the side inside, with the variables that it starts with",
    "bubblewrap.py": "our own modules, as an archive",
    "player_tool_specs.py": "examples of patterns, in Claude Code's words",
    "program_sampler.py": "the name of our own script behind the walls",
}


def test_what_is_pythons_stands_behind_the_interface_of_languages(repository_root: Path) -> None:
    """Outside of repositories/python nothing parses code or names Python's files and tools."""
    repositories = repository_root / "src" / "composer_replication" / "repositories"
    naming: set[str] = set()
    for path in sorted(repositories.rglob("*.py")):
        if (repositories / "python") in path.parents:
            continue
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = [
            node.value
            for node in nodes
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documentation
        ]
        imports = [
            name.name for node in nodes if isinstance(node, ast.Import) for name in node.names
        ]
        if "ast" in imports or any(map(PYTHONS.search, texts)):
            naming.add(path.name)
    assert naming == set(NAMED_WITH_A_REASON)
