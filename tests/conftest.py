"""Fixtures that every room's tests may use."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from composer_replication.core.rundir import RunDir
from scripts.capabilities import NEEDS_PUBLIC_SESSIONS
from scripts.docs_metrics import row_of
from scripts.run_tests import ROOMS

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test reaches for a hub
# before torch: threads of two test processes would wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# no test sees or changes what the user has trusted
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="recompose-tests-")
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="recompose-tests-")

# No deadline: the time that an input takes depends on the machine's load more than on the code. CI
# repeats the same inputs.
settings.register_profile(
    "here",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
# A mutant is caught by any failing input; looking for the smallest one would take minutes
# (scripts/mutants.py sets this). Always the same inputs: whether a mistake is noticed is no matter
# of luck.
settings.register_profile(
    "mutant",
    settings.get_profile("here"),
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
)
settings.load_profile("mutant" if os.environ.get("COMPOSER_REPLICATION_MUTANT") else "here")

TRACES_VARIABLE = "COMPOSER_REPLICATION_TRACES"
OWN_LOGS = (ROOT / "examples" / "demo_logs", ROOT / "tests" / "data" / "ingestion" / "newest_logs")
"""Small sessions of our own: one or more of every era."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure the coverage of the rooms with a floor by their own tests and those of no room:
    tracing makes a test half as slow again."""
    for item in items:
        place = item.path.relative_to(ROOT / "tests").parts
        if len(place) > 1 and place[0] not in ROOMS:
            item.add_marker("no_cover")


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """The folder of public sessions (see tests/traces_manifest.json); tests that need it are
    skipped if it is absent."""
    folder = os.environ.get(TRACES_VARIABLE, "")
    if not folder:
        pytest.skip(
            f"{NEEDS_PUBLIC_SESSIONS}: set {TRACES_VARIABLE} (python scripts/fetch_traces.py"
            " FOLDER)"
        )
    path = Path(folder).resolve()
    if not path.is_dir():
        pytest.fail(f"{TRACES_VARIABLE} names {path}, which is no folder")
    return path


@pytest.fixture(scope="session", params=["own", pytest.param("public", marks=pytest.mark.real)])
def log_folders(request: pytest.FixtureRequest) -> tuple[Path, ...]:
    """Folders of logs: ours of every era, which run everywhere, and the public sessions if they are
    present."""
    return OWN_LOGS if request.param == "own" else (request.getfixturevalue("traces_dir"),)


@pytest.fixture(scope="session")
def repository_root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(autouse=True)
def every_metric_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """No training of a test writes a metric without a row in docs/metrics.md. A row that a test
    makes up itself has no number of an attempt."""
    add_metrics = RunDir.add_metrics

    def checked(run: RunDir, row: Mapping[str, Any]) -> None:
        missing = [key for key in row if row_of(key) is None]
        assert "attempt" not in row or not missing, (
            f"no row in scripts/docs_metrics.py for {missing}"
        )
        add_metrics(run, row)

    monkeypatch.setattr(RunDir, "add_metrics", checked)
