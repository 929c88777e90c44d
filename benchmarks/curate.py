"""Speed of curation: pairs per second of the embedded engine on the shipped recipes, beside
data-juicer if it is available.

    python benchmarks/curate.py                  10,000 made-up pairs of realistic shape
    python benchmarks/curate.py --data-juicer .venv-data-juicer/bin/python

judge          every operator of a recipe on pairs in memory, in one process; CPU time, best of
               three
rows           the same, reading each pair from a row of curated_rows.jsonl first
answers        one-sided: an answer judged by itself, before it may vote during a replay
data-juicer    its counting operators and exact deduplication as a program in its own environment,
               in CPU time of it and its children, including its start. It has no operator for the
               structural checks and near-duplicates; the embedded engine runs them, and they are
               not in its time. The output says whether both engines kept the same pairs.

The pairs are those of tests/data/curate/real_shaped.py, as long as those of real sessions. Prints a
table and writes it as JSON with --json FILE; exits with 1 if `judge` is below the limit or the kept
pairs differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

# Imports after the path: the tests' pairs need the root on it.
from page import about  # noqa: E402
from resident import ended_children_cpu_s  # noqa: E402

from composer_replication.data.curate.curator import Curator  # noqa: E402
from composer_replication.data.curate.data_juicer import DataJuicer, curate_with  # noqa: E402
from composer_replication.data.curate.pair import Pair  # noqa: E402
from composer_replication.data.curate.pair_export import pair_of, row_of  # noqa: E402
from composer_replication.data.curate.recipe import SHIPPED, load_recipe  # noqa: E402
from tests.data.curate.real_shaped import made_up  # noqa: E402

MIN_PAIRS_PER_S = 10_000


def best(run: Callable[[], object], *, times: int = 3) -> float:
    """CPU seconds of the fastest run."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


def judged(pairs: list[Pair], recipe: str) -> list[str]:
    """The ids of the pairs that the embedded engine keeps."""
    curator = Curator(load_recipe(recipe))
    return [pair.id for pair in pairs if curator.judge(pair) is None]


def measure(count: int, data_juicer: str) -> dict[str, Any]:
    """All numbers of one run."""
    pairs = made_up(count, seed=1).pairs
    lines = [json.dumps(row_of(pair)) for pair in pairs[: min(count, 2000)]]
    curator = Curator(load_recipe("default"))
    numbers: dict[str, Any] = {
        "pairs": count,
        "chars_a_side": round(
            sum(len(p.chosen.text) + len(p.rejected.text) for p in pairs) / count / 2
        ),
        "rows_pairs_per_s": round(
            len(lines)
            / best(lambda: judged([pair_of(json.loads(line)) for line in lines], "default"))
        ),
        "answers_per_s": round(
            count
            / best(
                lambda: [curator.check_answer(pair.chosen.turn, tools=pair.tools) for pair in pairs]
            )
        ),
        "recipes": {name: one_recipe(pairs, name, data_juicer) for name in SHIPPED},
    }
    return numbers


def one_recipe(pairs: list[Pair], name: str, data_juicer: str) -> dict[str, Any]:
    """Speed and kept pairs of one recipe, with both engines if data-juicer is given."""
    kept_ids = judged(pairs, name)
    numbers: dict[str, Any] = {
        "kept": len(kept_ids),
        "judge_pairs_per_s": round(len(pairs) / best(lambda: judged(pairs, name))),
    }
    if data_juicer:
        start = ended_children_cpu_s()
        _, judged_pairs = curate_with(DataJuicer(Path(data_juicer)), load_recipe(name), pairs)
        numbers["data_juicer_pairs_per_s"] = round(len(pairs) / (ended_children_cpu_s() - start))
        numbers["same_kept_set"] = [
            pair.id for pair, dropped in judged_pairs if dropped is None
        ] == kept_ids
    return numbers


def main() -> int:
    """Measure, print, and say whether the limit is kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument(
        "--data-juicer", default="", help="the Python of an environment with data-juicer"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.pairs, args.data_juicer)
    for name, value in result.items():
        print(f"{name:26s}{value}")
    if args.json:
        args.json.write_text(
            json.dumps({"about": about(sys.argv), **result}, indent=1) + "\n", "utf-8"
        )
    recipes = result["recipes"]
    fast = recipes["default"]["judge_pairs_per_s"] >= MIN_PAIRS_PER_S
    print(f"limit {MIN_PAIRS_PER_S} pairs/s: {'kept' if fast else 'missed'}")
    return (
        0 if fast and all(recipe.get("same_kept_set", True) for recipe in recipes.values()) else 1
    )


if __name__ == "__main__":
    sys.exit(main())
