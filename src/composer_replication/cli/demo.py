"""`recompose demo`: every stage, on small made-up logs that ship with the package."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from composer_replication.cli.build import build
from composer_replication.cli.flags import Common
from composer_replication.cli.hints import hints
from composer_replication.cli.ingest import ingest
from composer_replication.cli.job import open_job
from composer_replication.cli.sites import sites
from composer_replication.cli.train import train
from composer_replication.core.errors import DataError, need

FOLDER = Path("demo")
LOGS, PAIRS = "demo_logs", "demo_pairs.jsonl"
SETTINGS = """# Settings of `recompose demo`: the tiny student, all three channels.
work_dir = "."

[ingest]
logs = ["{logs}"]

[build]
max_tokens = 1536
pairs = "{pairs}"            # pairs made by hand for the demo, so that the preference channel has something to train on

[train]
steps = 12
batch_examples = 3
learning_rate = 1e-3
preference = {{ weight = 0.5 }}
"""


def demo(*, common: Common = Common()) -> int:
    """Every stage on small made-up logs: ingest, sites, hints, build, train. No network, no GPU, about a minute.

    It shows that the machinery runs; the tiny student knows nothing and learns no skill. Writes demo/ (-o for another folder).
    """
    start = time.monotonic()
    folder = common.out if common.out is not None else FOLDER
    logs, pairs = shipped(LOGS), shipped(PAIRS)
    job = open_job(Common(json=common.json, quiet=common.quiet, verbose=common.verbose, dry_run=common.dry_run, out=folder))
    config = folder / "recompose.toml"
    if job.dry_run:
        job.screen.line(f" reads  {logs}")
        return job.finish({"logs": str(logs)}, wrote=[config, job.sessions, job.sites, job.hints, job.examples, job.runs])
    for package in ("torch", "transformers", "accelerate"):
        need(package, extra="train")
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text(SETTINGS.format(logs=logs.as_posix(), pairs=pairs.as_posix()), "utf-8")
    inner = Common(config=(config,), json=common.json, quiet=common.quiet, verbose=common.verbose)
    stages: list[tuple[str, Callable[[], int]]] = [
        ("ingest", lambda: ingest(common=inner)),
        ("sites", lambda: sites(common=inner)),
        ("hints", lambda: hints(common=inner)),
        ("build", lambda: build(common=inner)),
        ("train", lambda: train(common=inner)),
    ]
    done: dict[str, float] = {}
    told: dict[str, Any] = {}
    for name, stage in stages:
        began = time.monotonic()
        job.screen.line(f"\n$ recompose {name} -c {config}", style="bold")
        said = io.StringIO()  # with --json every stage prints an object; they go into the one of the demo
        with contextlib.redirect_stdout(said) if common.json else contextlib.nullcontext():
            code = stage()
        told[name] = json.loads(said.getvalue() or "{}")
        if code:
            job.screen.result({"folder": str(folder), "stages": told, "problem": f"{name} ended with exit code {code}"})
            return code
        done[name] = round(time.monotonic() - began, 1)
    job.screen.line(f"\n The demo is done in {time.monotonic() - start:.0f} s. The logs were made up and the pairs are made by hand;")
    job.screen.line(" that a loss fell says nothing about a better agent. Each command above can be run again by itself.")
    return job.finish(
        {"folder": str(folder), "seconds": done, "stages": told}, wrote=[folder], next_command=f"{command()} ingest ~/.claude/projects"
    )


def command() -> str:
    """How a shell calls this program: by name where it is on the PATH, else by the path of the installed script."""
    script = Path(sys.argv[0]).absolute()
    if shutil.which("recompose") or script.name != "recompose" or not script.is_file():
        return "recompose"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))


def shipped(name: str) -> Path:
    """A file or folder that the wheel carries; in a clone it lies under examples/."""
    inside = Path(str(files("composer_replication"))) / name
    clone = Path(__file__).resolve().parents[3] / "examples" / name
    for path in (inside, clone):
        if path.exists():
            return path
    raise DataError(f"{name} is not installed", where=str(inside), fix="run the demo from a clone of the repository: make demo")
