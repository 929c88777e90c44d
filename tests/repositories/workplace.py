"""A work folder with tasks of a small repository and a tiny student, for runs on them."""

from __future__ import annotations

from pathlib import Path

from composer_replication.repositories.checkout import read_checkout
from composer_replication.repositories.making.make_repo_tasks import TaskSettings, make_repo_tasks
from tests.repositories.shop import make_shop, this_environment


def repo_work(folder: Path, settings: str, *, repositories: tuple[str, ...] = ("shop",)) -> Path:
    """Write recompose.toml, the tasks, and the student that it names "student"."""
    from tests.training.scripted import tiny_student

    tasks = folder / "recompose" / "tasks"
    wanted = TaskSettings(functions=3, classes=0, bugs=2)
    for name in repositories:
        shop = make_shop(folder / name)
        environment = this_environment(shop, tasks / "environments" / name)
        for _ in make_repo_tasks(read_checkout(shop), environment, folder=tasks, settings=wanted):
            pass
    student = tiny_student()
    student.model.config.max_position_embeddings = 8192
    student.model.save_pretrained(str(folder / "student"))
    student.tokenizer.save_pretrained(str(folder / "student"))
    (folder / "recompose.toml").write_text(settings, "utf-8")
    return folder
