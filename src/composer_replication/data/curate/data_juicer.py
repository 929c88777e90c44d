"""The same recipe on real data-juicer: its counting operators run as a program in an environment of
its own, never in this process.

    engine = DataJuicer(Path(".venv-data-juicer/bin/python"))
    engine.check()                                             # what is missing there, before anything runs
    curator, judged = curate_with(engine, recipe, pairs)

Importing data-juicer installs packages by itself (ray, then PyTorch with several GB of CUDA), so it
never happens here: the environment must already hold what it would fetch, it is given no way to
install, and what is missing is named.

Layout: one row per message, not per pair. data-juicer keeps one number per filter and row; a row
that holds both messages would give the rejected one the number of the chosen (pairs with an empty
rejected message passed the earlier recipe that way). A pair is kept where both its rows are.
`skip_op_error` is off: by default a failing operator is skipped, and everything is kept.
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
    """The Python of an environment with data-juicer in it."""

    python: Path

    def check(self) -> None:
        """Raise ConfigError where the environment or a package in it is missing; nothing is
        installed."""
        if not self.python.is_file():
            raise ConfigError(
                f"no Python at {str(self.python)!r}",
                where="curate.data_juicer_python",
                fix=INSTALL_FIX,
            )
        done = subprocess.run(
            [str(self.python), "-c", _CHECK, *PACKAGES],
            capture_output=True,
            text=True,
            check=False,
            env=_environment(),
        )
        missing = json.loads(done.stdout) if done.returncode == 0 else list(PACKAGES)
        if missing:
            raise ConfigError(
                f"data-juicer would install {', '.join(missing)} by itself",
                where="curate.data_juicer_python",
                fix=INSTALL_FIX,
            )

    def filter_rows(
        self, rows: Iterable[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """The rows that are left after some operators, in the order in which they were given."""
        with tempfile.TemporaryDirectory(prefix="recompose-dj-") as folder:
            work = Path(folder)
            write_lines(work / "in.jsonl", rows)
            recipe = {
                "project_name": "recompose",
                "dataset_path": str(work / "in.jsonl"),
                "export_path": str(work / "out" / "kept.jsonl"),
                "np": 1,
                "skip_op_error": False,
                "open_tracer": False,
                "op_fusion": False,
                "process": list(steps),
            }
            (work / "recipe.yaml").write_text(json.dumps(recipe), "utf-8")  # JSON is YAML
            command = [str(self.python), "-c", _RUN, "--config", str(work / "recipe.yaml")]
            done = subprocess.run(
                command,
                cwd=work,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                env=_environment(),
                timeout=TIMEOUT_S,
            )
            out = work / "out" / "kept.jsonl"
            if done.returncode != 0 or not out.is_file():
                raise DataError(
                    f"data-juicer failed: {done.stderr.strip()[-600:]}",
                    where=f"exit code {done.returncode}",
                )
            return [row for _, row in read_lines(out)]


def _environment() -> dict[str, str]:
    """The surroundings of the other program: no secrets of ours, no hub, and nowhere to install
    from."""
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
    """A step as data-juicer is told it. Bounds without an end are left out, those of shares are
    wider by a billionth.

    data-juicer keeps its numbers as text of ten digits and reads 0.3 back as 0.30000000000000004: a
    share that is exactly the bound would fall on either side by chance. No share of a text that
    anybody writes lies that close to a bound without being it.
    """
    if step.foreign:
        return {step.name: {k: v for k, v in step.parameters.items() if k != "text_key"}}
    least, most = STATISTICS[step.name].least[0], STATISTICS[step.name].most[0]
    wider = {least: -_ROUNDING, most: _ROUNDING}
    told = {
        k: v + wider[k] if k in wider and isinstance(v, float) else v
        for k, v in step.parameters.items()
    }
    return {step.name: {k: v for k, v in told.items() if k != "text_key" and v != float("inf")}}


def curate_with(
    engine: DataJuicer, recipe: Recipe, pairs: Sequence[Pair]
) -> tuple[Curator, list[tuple[Pair, Dropped | None]]]:
    """Judge pairs with data-juicer's own counting and exact deduplication; what it has no operator
    for is judged as always.

    Near-duplicates are looked for as always, too: data-juicer would look for them among texts,
    whatever these call.
    """
    engine.check()
    counting = tuple(step for step in recipe.steps if step.name in STATISTICS)
    dropped = _by_counting(engine, counting, pairs)
    before = Curator(
        Recipe(
            name=recipe.name,
            steps=tuple(s for s in recipe.steps if s.name not in (*STATISTICS, EXACT, NEAR)),
        )
    )
    judged = {pair.id: dropped.get(pair.id) or before.judge(pair) for pair in pairs}
    exact = next((step for step in recipe.steps if step.name == EXACT), None)
    if exact is not None:
        left = [pair for pair in pairs if judged[pair.id] is None]
        judged |= _by_key(engine, exact, left)
    last = Curator(
        Recipe(name=recipe.name, steps=tuple(s for s in recipe.steps if s.name == NEAR)),
        renders=before.renders,
    )
    last.idle = before.idle
    for pair in pairs:
        found = judged[pair.id]
        if found is None:
            judged[pair.id] = last.judge(pair)
        else:
            last.counts[found.reason] += 1
    return last, [(pair, judged[pair.id]) for pair in pairs]


def column_of(step: RecipeStep) -> str:
    """What a step reads of a message: "text", or "words"; text_key: chosen says whose, not what."""
    statistic = STATISTICS.get(step.name)
    usual = statistic.field if statistic is not None else "words"
    return usual if step.side else step.parameters.get("text_key") or usual


def _by_counting(
    engine: DataJuicer, steps: Sequence[RecipeStep], pairs: Sequence[Pair]
) -> dict[str, Dropped]:
    """What the filters drop. Those of one column run together; two columns are two data sets,
    because not every message has words."""
    found: dict[str, Dropped] = {}
    for column, only in product(("text", "words"), ("", "chosen", "rejected")):
        mine = [step for step in steps if (column_of(step), step.side) == (column, only)]
        sides = [
            (n, name, side) for n, pair in enumerate(pairs) for name, side in pair.sides_of(only)
        ]
        rows = [
            {"text": side.text if column == "text" else side.words, "pair": n, "side": name}
            for n, name, side in sides
            if column == "text" or not side.calls
        ]
        if not mine or not rows:
            continue
        left = {
            (row["pair"], row["side"])
            for row in engine.filter_rows(rows, [operator_of(step) for step in mine])
        }
        for row in rows:
            if (row["pair"], row["side"]) not in left:
                pair_id = pairs[row["pair"]].id
                found.setdefault(
                    pair_id,
                    Dropped(pair_id=pair_id, reason=f"data_juicer_{column}", detail=row["side"]),
                )
    return found


def _by_key(
    engine: DataJuicer, step: RecipeStep, pairs: Sequence[Pair]
) -> dict[str, Dropped | None]:
    how = {name: bool(step.parameters[name]) for name in ("lowercase", "ignore_non_character")}
    keys = [key_of(pair, side=step.side, **how) for pair in pairs]
    rows = [{"text": key, "pair": n} for n, key in enumerate(keys)]
    left = (
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
            if n in left
            else Dropped(pair_id=pair.id, reason=EXACT, detail=pairs[keys.index(keys[n])].id)
        )
        for n, pair in enumerate(pairs)
    }
