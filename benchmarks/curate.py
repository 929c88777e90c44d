"""Speed of curation: pairs per second of the embedded engine on the recipe that ships, beside data-juicer where it is at hand.

    python benchmarks/curate.py                                       10,000 made-up pairs of usual shape
    python benchmarks/curate.py --data-juicer .venv-data-juicer/bin/python

judge     every operator of the recipe on pairs that are in memory, in one process; CPU time, best of three.
rows      the same, reading each pair from a row of curated_rows.jsonl first.
answers   one-sided: an answer judged by itself, before it may vote while replay runs.
data-juicer   its counting operators and exact deduplication as a program of its own environment: wall time, start included, and
          whether both engines kept the same pairs.

The pairs are those of tests/data/curate/pairs.py: about half of the messages call a tool without a word, a tenth are broken. Prints a table
and writes it as JSON with --json FILE; exits with 1 where `judge` is below the limit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from composer_replication.data.curate.curator import Curator  # noqa: E402 - the tests' pairs need the root on the path first
from composer_replication.data.curate.data_juicer import DataJuicer, curate_with  # noqa: E402
from composer_replication.data.curate.export import pair_of, row_of  # noqa: E402
from composer_replication.data.curate.pair import Pair  # noqa: E402
from composer_replication.data.curate.recipe import load_recipe  # noqa: E402
from tests.data.curate.pairs import usual_pairs  # noqa: E402

MIN_PAIRS_PER_S = 10_000


def best(run: Callable[[], object], *, times: int = 3) -> float:
    """CPU seconds of the fastest run."""
    found = []
    for _ in range(times):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found)


def judged(pairs: list[Pair], recipe: str) -> list[str]:
    """The ids of the pairs that the embedded engine keeps."""
    curator = Curator(load_recipe(recipe))
    return [pair.id for pair in pairs if curator.judge(pair) is None]


def measure(count: int, recipe: str, data_juicer: str) -> dict[str, object]:
    """All numbers of one run."""
    pairs = usual_pairs(count, seed=1)
    lines = [json.dumps(row_of(pair)) for pair in pairs[: min(count, 2000)]]
    kept = judged(pairs, recipe)
    curator = Curator(load_recipe(recipe))
    result: dict[str, object] = {
        "pairs": count,
        "recipe": recipe,
        "chars_per_pair": round(sum(len(p.chosen.text) + len(p.rejected.text) + len(p.tail) for p in pairs) / count),
        "kept": len(kept),
        "judge_pairs_per_s": round(count / best(lambda: judged(pairs, recipe))),
        "rows_pairs_per_s": round(len(lines) / best(lambda: judged([pair_of(json.loads(line)) for line in lines], recipe))),
        "answers_per_s": round(count / best(lambda: [curator.answer(pair.chosen.turn, tools=pair.tools) for pair in pairs])),
    }
    if data_juicer:
        start = time.perf_counter()
        _, both = curate_with(DataJuicer(Path(data_juicer)), load_recipe(recipe), pairs)
        wall = time.perf_counter() - start
        same = [pair.id for pair, dropped in both if dropped is None] == kept
        result |= {"data_juicer_s": round(wall, 1), "data_juicer_pairs_per_s": round(count / wall), "same_kept_set": same}
    return result


def main() -> int:
    """Measure, print, and say whether the limit is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--data-juicer", default="", help="the Python of an environment with data-juicer")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.pairs, args.recipe, args.data_juicer)
    for name, value in result.items():
        print(f"{name:26s}{value}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    fast = int(str(result["judge_pairs_per_s"])) >= MIN_PAIRS_PER_S
    print(f"limit {MIN_PAIRS_PER_S} pairs/s: {'kept' if fast else 'missed'}")
    return 0 if fast and result.get("same_kept_set", True) else 1


if __name__ == "__main__":
    sys.exit(main())
