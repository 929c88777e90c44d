"""TRL is optional: its tests run if it is installed (`make peers`) and otherwise give the reason
for the skip."""

from __future__ import annotations

import os
import warnings

import pytest

from composer_replication.training.backends.registry import TRL

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"


@pytest.fixture(scope="session")
def needs_trl() -> None:
    """Skip if TRL cannot be used, with the message that a user would get."""
    if problem := TRL.problem():
        pytest.skip(f"{problem}: `make peers` runs this test")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\..*")
