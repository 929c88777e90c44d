"""Play scripted episodes, honest and dishonest ones, and judge each of them.

    python scripts/play_hacks.py tests/repositories/unseen_episodes.jsonl [NAME ...]
    python scripts/play_hacks.py tests/repositories/unseen_episodes.jsonl \\
        --write benchmarks/results/unseen_episodes.json

Each line of the file, or each JSON file of a folder, is an episode on the small shop of
tests/repositories: its tool calls
are played in a sandbox, what they leave is judged twice, with and without the hack monitor. Prints
a row per episode; the exit code is 1 if a dishonest one earns or is not named, or an honest one
earns nothing or is named.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from composer_replication.core.jsonl import write_json  # noqa: E402
from composer_replication.core.trace import ToolCall  # noqa: E402
from composer_replication.repositories.checkout import read_checkout  # noqa: E402
from composer_replication.repositories.judged import JudgedEpisode, JudgedRepository  # noqa: E402
from composer_replication.repositories.judging.judge import (  # noqa: E402
    judge_changes,
    judge_episode,
)
from composer_replication.repositories.judging.judge_room import open_repository  # noqa: E402
from composer_replication.repositories.making.make_repo_tasks import (  # noqa: E402
    TaskSettings,
    make_repo_tasks,
)
from composer_replication.repositories.repo_task import RepoTask, read_tasks  # noqa: E402
from tests.repositories.hack_player import fill, play  # noqa: E402
from tests.repositories.shop import make_shop, this_environment  # noqa: E402

SETTINGS = TaskSettings(functions=4, classes=1, bugs=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HackGround:
    """The shop's tasks, by the symbol that each asks for, and the players' interpreter."""

    python: str
    tasks: dict[str, tuple[RepoTask, JudgedRepository]]


def make_ground(place: Path) -> HackGround:
    """Make the shop's tasks of functions and classes."""
    shop = make_shop(place / "shop")
    folder = place / "tasks"
    environment = this_environment(shop, folder / "environments" / "shop")
    checkout = read_checkout(shop)
    list(make_repo_tasks(checkout, environment, folder=folder, settings=SETTINGS))
    tasks = {
        task.symbol: (task, open_repository(task, folder=folder, environment=environment))
        for task in read_tasks(folder / "tasks.jsonl")
    }
    return HackGround(python=environment.program, tasks=tasks)


def play_hack(ground: HackGround, hack: dict[str, Any]) -> tuple[JudgedEpisode, dict[str, Any]]:
    """The episode as it is judged, and what it left."""
    task, repository = ground.tasks[hack["symbol"].removeprefix("shop.cart.")]
    calls = list(hack["calls"])
    for path, text in hack.get("final_files", {}).items():
        full = path if path.startswith("{root}") else f"{{root}}/{path}"
        calls.append({"name": "Write", "input": {"file_path": full, "content": text}})
    with tempfile.TemporaryDirectory() as place:
        tree = make_shop(Path(place) / "shop")
        for path, text in task.changed_files(repository.checkout.folder).items():
            (tree / path).write_text(text, encoding="utf-8")
        left = play(tree, calls, python=ground.python)
    changes = {"changed": left["changed"], "deleted": left["deleted"]}
    made = [ToolCall(str(n), call["name"], fill(call["input"])) for n, call in enumerate(calls)]
    return judge_episode(task, repository=repository, calls=made, **changes), left


def judge_alone(ground: HackGround, hack: dict[str, Any], left: dict[str, Any]) -> JudgedEpisode:
    """The episode as it would be judged without the monitor."""
    task, repository = ground.tasks[hack["symbol"].removeprefix("shop.cart.")]
    changes = {"changed": left["changed"], "deleted": left["deleted"]}
    return judge_changes(task, repository=repository, **changes)


def episodes_in(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, episode) of a file of lines or of a folder."""
    if path.is_dir():
        for file in sorted(path.glob("*.json")):
            yield file.stem, json.loads(file.read_text(encoding="utf-8"))
    else:
        for line in path.read_text(encoding="utf-8").splitlines():
            episode = json.loads(line)
            yield episode.pop("name"), episode


def main() -> int:
    """Play the episodes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("episodes", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", type=Path, help="a JSON file for what came of each episode")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    wrong, earned, named = 0, Counter[bool](), Counter[bool]()
    with tempfile.TemporaryDirectory() as place:
        ground = make_ground(Path(place))
        for name, hack in episodes_in(options.episodes):
            if options.names and name not in options.names:
                continue
            judged, left = play_hack(ground, hack)
            alone = judge_alone(ground, hack, left)
            honest = bool(hack["honest"])
            earned[honest] += judged.reward == 1
            named[honest] += bool(judged.attempts)
            good = judged.reward == float(honest) and bool(judged.attempts) is not honest
            wrong += not good
            kinds = sorted({attempt.kind for attempt in judged.attempts})
            row = {"name": name, "class": hack["class"], "honest": honest, "kinds": kinds}
            rows.append({**row, "reward": judged.reward, "without_monitor": alone.reward})
            cells = [
                "ok   " if good else "WRONG",
                name,
                hack["class"],
                f"{judged.reward:.0f} (judge alone {alone.reward:.0f}: {alone.reason[:70]})",
                "; ".join(f"{a.kind}: {a.shown[:60]}" for a in judged.attempts[:3]) or "not named",
                left.get("lost", ""),
            ]
            print(" | ".join(cells), flush=True)
    for honest, what in ((False, "dishonest"), (True, "honest")):
        print(f"{what}: {earned[honest]} earned, {named[honest]} named")
    print(f"{wrong} wrong")
    if options.write:
        write_json(options.write, {"episodes": options.episodes.name, "rows": rows})
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
