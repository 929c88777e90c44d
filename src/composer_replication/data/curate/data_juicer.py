"""Run a recipe on real data-juicer, as a program in a separate environment, never in this process.

    engine = DataJuicer(Path(".venv-data-juicer/bin/python"))
    engine.check()                             # names missing packages before anything runs
    curator, judged = curate_with(engine, recipe, pairs)

Importing data-juicer installs packages by itself (ray, then PyTorch with several GB of CUDA). So
the environment must hold them already, and the program is given no way to install; missing packages
are named.

Layout: one row per message, not per pair. data-juicer keeps one number per filter and row; in a row
with both messages the rejected one would be judged by the number of the chosen (in the earlier
recipe pairs with an empty rejected message passed that way). A pair is kept if both its rows are.
`skip_op_error` is off: by default data-juicer skips a failing operator and keeps everything.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.jsonl import read_lines, write_lines
from composer_replication.core.surroundings import program_environment
from composer_replication.data.curate.curator import Curator, Dropped
from composer_replication.data.curate.duplicates import key_of
from composer_replication.data.curate.pair import Pair
from composer_replication.data.curate.recipe import EXACT, NEAR, Recipe, RecipeStep
from composer_replication.data.curate.statistics import STATISTICS

PACKAGES = ("data_juicer", "ray", "torch", "aiohttp", "datasets")
_CHECK = (
    "import importlib.util as u, json, sys; print(json.dumps([n for n in sys.argv[1:] if"
    " u.find_spec(n) is None]))"
)
_RUN = "from data_juicer.tools.process_data import main; main()"
TIMEOUT_S = 3600
_ROUNDING = 1e-9
INSTALL_FIX = (
    f"make it an environment of its own: {shlex.quote(sys.executable or 'python')} -m venv"
    " .venv-data-juicer, then with `.venv-data-juicer/bin/python -m pip install` torch (a CPU"
    " build), and after it py-data-juicer==1.6.1 aiohttp ray"
)


@dataclass(frozen=True, slots=True)
class DataJuicer:
    """The Python interpreter of an environment with data-juicer."""

    python: Path

    def check(self) -> None:
        """Raise ConfigError if the environment or a package in it is missing; install nothing."""
        if not self.python.is_file():
            raise ConfigError(
                f"no Python at {str(self.python)!r}",
                where="curate.data_juicer_python",
                fix=INSTALL_FIX,
            )
        process = subprocess.run(
            [str(self.python), "-c", _CHECK, *PACKAGES],
            capture_output=True,
            text=True,
            check=False,
            env=_environment(),
        )
        missing = json.loads(process.stdout) if process.returncode == 0 else list(PACKAGES)
        if missing:
            raise ConfigError(
                f"data-juicer would install {', '.join(missing)} by itself",
                where="curate.data_juicer_python",
                fix=INSTALL_FIX,
            )

    def filter_rows(
        self, rows: Iterable[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the rows that are left after some operators, in their original order."""
        with tempfile.TemporaryDirectory(prefix="recompose-dj-") as folder:
            folder_path = Path(folder)
            write_lines(folder_path / "in.jsonl", rows)
            recipe = {
                "project_name": "recompose",
                "dataset_path": str(folder_path / "in.jsonl"),
                "export_path": str(folder_path / "out" / "kept.jsonl"),
                "np": 1,
                "skip_op_error": False,
                "open_tracer": False,
                "op_fusion": False,
                "process": list(steps),
            }
            (folder_path / "recipe.yaml").write_text(json.dumps(recipe), "utf-8")  # JSON is YAML
            command = [str(self.python), "-c", _RUN, "--config", str(folder_path / "recipe.yaml")]
            process = subprocess.run(
                command,
                cwd=folder_path,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                env=_environment(),
                timeout=TIMEOUT_S,
            )
            kept_file = folder_path / "out" / "kept.jsonl"
            if process.returncode != 0 or not kept_file.is_file():
                raise DataError(
                    f"data-juicer failed: {process.stderr.strip()[-600:]}",
                    where=f"exit code {process.returncode}",
                )
            return [row for _, row in read_lines(kept_file)]


def _environment() -> dict[str, str]:
    """Return the program's environment variables: no secrets, no hub, no package index."""
    offline = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "PIP_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        "UV_NO_INDEX": "1",
    }
    return {
        **program_environment(),
        **offline,
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def operator_of(step: RecipeStep) -> dict[str, Any]:
    """Return a step in data-juicer's form.

    Infinite bounds are left out, and bounds of ratios are wider by a billionth: data-juicer keeps
    its numbers as text of ten digits and reads 0.3 back as 0.30000000000000004, so that a ratio
    exactly at the bound would pass or fail by chance. No real text has a ratio so close to a bound
    without being on it.
    """
    if step.foreign:
        return {step.name: {k: v for k, v in step.parameters.items() if k != "text_key"}}
    least, most = STATISTICS[step.name].least[0], STATISTICS[step.name].most[0]
    widening = {least: -_ROUNDING, most: _ROUNDING}
    parameters = {
        k: v + widening[k] if k in widening and isinstance(v, float) else v
        for k, v in step.parameters.items()
    }
    return {
        step.name: {k: v for k, v in parameters.items() if k != "text_key" and v != float("inf")}
    }


def curate_with(
    engine: DataJuicer, recipe: Recipe, pairs: Sequence[Pair]
) -> tuple[Curator, list[tuple[Pair, Dropped | None]]]:
    """Judge pairs with data-juicer's statistics and exact deduplication, and our other operators.

    Near-duplicates are found by our operator too: data-juicer compares texts only, whatever the
    messages call.
    """
    engine.check()
    filters = tuple(step for step in recipe.steps if step.name in STATISTICS)
    dropped = _drop_by_filters(engine, filters, pairs)
    structural = Curator(
        Recipe(
            name=recipe.name,
            steps=tuple(s for s in recipe.steps if s.name not in (*STATISTICS, EXACT, NEAR)),
        )
    )
    judged = {pair.id: dropped.get(pair.id) or structural.judge(pair) for pair in pairs}
    exact = next((step for step in recipe.steps if step.name == EXACT), None)
    if exact is not None:
        remaining = [pair for pair in pairs if judged[pair.id] is None]
        judged |= _drop_exact_duplicates(engine, exact, remaining)
    near = Curator(
        Recipe(name=recipe.name, steps=tuple(s for s in recipe.steps if s.name == NEAR)),
        renders=structural.renders,
    )
    near.idle = structural.idle
    for pair in pairs:
        dropped_pair = judged[pair.id]
        if dropped_pair is None:
            judged[pair.id] = near.judge(pair)
        else:
            near.counts[dropped_pair.reason] += 1
    return near, [(pair, judged[pair.id]) for pair in pairs]


def column_of(step: RecipeStep) -> str:
    """Return what a step reads of a message: "text" or "words".

    `text_key: chosen` says which message, not what is read of it.
    """
    statistic = STATISTICS.get(step.name)
    default_column = statistic.field if statistic is not None else "words"
    return default_column if step.side else step.parameters.get("text_key") or default_column


def _drop_by_filters(
    engine: DataJuicer, steps: Sequence[RecipeStep], pairs: Sequence[Pair]
) -> dict[str, Dropped]:
    """Return the pairs that the filters drop, by id.

    Each column is a data set of its own, because not every message has words.
    """
    dropped: dict[str, Dropped] = {}
    for column, side_name in product(("text", "words"), ("", "chosen", "rejected")):
        column_steps = [
            step for step in steps if (column_of(step), step.side) == (column, side_name)
        ]
        sides = [
            (n, name, side)
            for n, pair in enumerate(pairs)
            for name, side in pair.sides_of(side_name)
        ]
        rows = [
            {"text": side.text if column == "text" else side.words, "pair": n, "side": name}
            for n, name, side in sides
            if column == "text" or not side.calls
        ]
        if not column_steps or not rows:
            continue
        kept_sides = {
            (row["pair"], row["side"])
            for row in engine.filter_rows(rows, [operator_of(step) for step in column_steps])
        }
        for row in rows:
            if (row["pair"], row["side"]) not in kept_sides:
                pair_id = pairs[row["pair"]].id
                dropped.setdefault(
                    pair_id,
                    Dropped(pair_id=pair_id, reason=f"data_juicer_{column}", detail=row["side"]),
                )
    return dropped


def _drop_exact_duplicates(
    engine: DataJuicer, step: RecipeStep, pairs: Sequence[Pair]
) -> dict[str, Dropped | None]:
    settings = {name: bool(step.parameters[name]) for name in ("lowercase", "ignore_non_character")}
    keys = [key_of(pair, side=step.side, **settings) for pair in pairs]
    rows = [{"text": key, "pair": n} for n, key in enumerate(keys)]
    kept_numbers = (
        {
            row["pair"]
            for row in engine.filter_rows(
                rows, [{EXACT: {"lowercase": False, "ignore_non_character": False}}]
            )
        }
        if rows
        else set()
    )
    return {
        pair.id: (
            None
            if n in kept_numbers
            else Dropped(pair_id=pair.id, reason=EXACT, detail=pairs[keys.index(keys[n])].id)
        )
        for n, pair in enumerate(pairs)
    }
