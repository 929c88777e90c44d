"""The tasks of a small repository, to play, or in a work folder with a tiny student for runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from composer_replication.repositories.checkout import read_checkout
from composer_replication.repositories.making.make_repo_tasks import TaskSettings, make_repo_tasks
from composer_replication.repositories.playing.playable import PlayableTasks
from tests.repositories.shop import make_shop, this_environment


def make_tasks(shop: Path, tasks: Path, *, settings: TaskSettings) -> None:
    """Make the tasks of a repository that make_shop wrote."""
    environment = this_environment(shop, tasks / "environments" / shop.name)
    for _ in make_repo_tasks(read_checkout(shop), environment, folder=tasks, settings=settings):
        pass


@contextmanager
def playing_shop(place: Path, *, settings: TaskSettings) -> Iterator[PlayableTasks]:
    """The open tasks of a shop that is written to `place`."""
    make_tasks(make_shop(place / "shop"), place / "out", settings=settings)
    with PlayableTasks(place / "out") as playable:
        yield playable


def repo_work(folder: Path, settings: str, *, repositories: tuple[str, ...] = ("shop",)) -> Path:
    """Write recompose.toml, the tasks, and the student that it names "student"."""
    from tests.training.scripted import tiny_student

    tasks = folder / "recompose" / "tasks"
    wanted = TaskSettings(functions=3, classes=0, bugs=2)
    for name in repositories:
        make_tasks(make_shop(folder / name), tasks, settings=wanted)
    student = tiny_student()
    student.model.config.max_position_embeddings = 8192
    student.model.save_pretrained(str(folder / "student"))
    student.tokenizer.save_pretrained(str(folder / "student"))
    (folder / "recompose.toml").write_text(settings, "utf-8")
    return folder
