"""The run directory: one folder per run, every path built here, readable while the run goes on.

    runs/2026-11-20-a1/            never shared, never overwritten; runs/latest links to the newest
      run.json                     id, state (running|done|stopped:...|crashed), versions, host, ...
      resolved.json command.txt    the settings that ran; the command that runs them again
      metrics.jsonl events.jsonl   one line per step; events (starved, checkpoint, resume)
      curriculum.jsonl             success by step and task, where tasks are drawn by it
      data/manifest.json           inputs: path, sha256, rows
      tokens/                      per-token log-probs and divergence of a few watched sites
      samples/step_000040.jsonl    a few rollouts, as sessions
      evaluation.json              rows and paired differences
      report.html                  the page that `recompose report` writes
      checkpoints/step_000040/     weights and trainer state
      logs/attempt_1.log           one per launch

Lines are appended whole, and files are replaced atomically. A step that ran again after a kill has
two metric lines, of which the later counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import string
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DataError, StoppedError
from composer_replication.core.files import (
    FOLDER,
    append_text,
    atomic_writer,
    is_alive,
    make_folder,
    make_private,
    make_work,
    open_private,
    remove_leftovers,
    sync,
)
from composer_replication.core.jsonl import dumps, write_json
from composer_replication.core.lock import check_free, lock_folder

LATEST = "latest"
LAUNCH = "launch of this run"
_PACKAGES = ("composer-replication", "torch", "transformers", "accelerate", "peft", "pydantic")
_STEP = re.compile(r"step_(\d{6,})\Z")


@dataclass(frozen=True, slots=True)
class RunDir:
    """One run's folder.

    >>> run = RunDir(Path("runs/2026-11-20-a"))
    >>> run.checkpoint(40).as_posix()
    'runs/2026-11-20-a/checkpoints/step_000040'
    """

    path: Path

    @property
    def run_json(self) -> Path:
        """State and provenance."""
        return self.path / "run.json"

    @property
    def resolved_json(self) -> Path:
        """The settings that ran."""
        return self.path / "resolved.json"

    @property
    def command_txt(self) -> Path:
        """The command that runs it again."""
        return self.path / "command.txt"

    @property
    def metrics_jsonl(self) -> Path:
        """One line per step."""
        return self.path / "metrics.jsonl"

    @property
    def curriculum_jsonl(self) -> Path:
        """What the student did on each task, by step, where tasks are drawn by its success."""
        return self.path / "curriculum.jsonl"

    @property
    def events_jsonl(self) -> Path:
        """Events, one per line."""
        return self.path / "events.jsonl"

    @property
    def manifest_json(self) -> Path:
        """The inputs."""
        return self.path / "data" / "manifest.json"

    @property
    def checkpoints_dir(self) -> Path:
        """Holds one folder per kept checkpoint."""
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """The folder of one checkpoint; the number is that of steps taken."""
        return self.checkpoints_dir / f"step_{step:06d}"

    def tokens(self, step: int) -> Path:
        """Per-token log-probs of the watched sites after `step` steps."""
        return self.path / "tokens" / f"step_{step:06d}.json"

    @property
    def watched_jsonl(self) -> Path:
        """The watched sites, if they were chosen from the run's own rollouts."""
        return self.path / "tokens" / "watched.jsonl"

    @property
    def watched_dir(self) -> Path:
        """The sessions.jsonl, sites.jsonl and hints.jsonl of those rollouts, for the page."""
        return self.path / "tokens" / "watched"

    def token_tables(self) -> list[tuple[int, Path]]:
        """(steps, file) of every token table, first step first."""
        return _numbered(self.path / "tokens", ".json")

    @property
    def evaluation_json(self) -> Path:
        """Rows with intervals and paired differences; absent if no evaluation was run."""
        return self.path / "evaluation.json"

    def evaluated(self, name: str) -> Path:
        """The sessions of the episodes that one row of the evaluation played."""
        return self.path / "evaluation" / f"{name}.jsonl"

    @property
    def evaluation_logs_json(self) -> Path:
        """Recurrence at held-out sites of the user's logs, as `evaluate --logs` measures it."""
        return self.path / "evaluation_logs.json"

    def written_at_sites(self, name: str) -> Path:
        """The messages that one row of that evaluation wrote at each site, with verdicts."""
        return self.path / "evaluation_logs" / f"{name}.jsonl"

    def sample_file(self, step: int) -> Path:
        """A few sessions that the policy sampled after `step` steps."""
        return self.path / "samples" / f"step_{step:06d}.jsonl"

    def samples(self) -> list[tuple[int, Path]]:
        """(steps, file) of every file of sampled sessions, first step first."""
        return _numbered(self.path / "samples", ".jsonl")

    @property
    def report_html(self) -> Path:
        """The page of the run."""
        return self.path / "report.html"

    def log(self, attempt: int) -> Path:
        """The log of one launch, counted from 1."""
        return self.path / "logs" / f"attempt_{attempt}.log"

    def checkpoints(self) -> list[tuple[int, Path]]:
        """(steps, folder) of every complete checkpoint, oldest first."""
        if not self.checkpoints_dir.is_dir():
            return []
        folders = [
            (int(m[1]), p)
            for p in self.checkpoints_dir.iterdir()
            if (m := _STEP.match(p.name)) and p.is_dir()
        ]
        return sorted(folders)

    def info(self) -> dict[str, Any]:
        """The content of run.json; raises DataError if this is not a run directory."""
        if not self.run_json.exists():
            raise DataError(
                "not a run directory: no run.json",
                where=str(self.path),
                fix="give a folder under runs/",
            )
        return _object(self.run_json)

    def resolved(self) -> dict[str, Any]:
        """The settings that ran, as a plain dictionary."""
        return _object(self.resolved_json)

    def metrics(self) -> list[dict[str, Any]]:
        """One dictionary per step, in order; the later one of a step that ran twice.

        An incomplete last line is left out: the run may be writing it.
        """
        return [
            row
            for _, row in sorted(
                {row["step"]: row for row in _whole_lines(self.metrics_jsonl)}.items()
            )
        ]

    def events(self) -> list[dict[str, Any]]:
        """Every event, in order."""
        return list(_whole_lines(self.events_jsonl))

    def add_metrics(self, row: Mapping[str, Any]) -> None:
        """Append one step's line; it must hold "step"."""
        _append(self.metrics_jsonl, {"t": _now(), **row})

    def add_event(self, kind: str, **facts: Any) -> dict[str, Any]:
        """Append one event, e.g. add_event("starved", step=3, channel="hint"); returns it."""
        event = {"t": _now(), "kind": kind, **facts}
        _append(self.events_jsonl, event)
        return event

    def add_log(self, text: str, *, attempt: int) -> None:
        """Append one line to the log of a launch."""
        path = self.log(attempt)
        make_folder(path.parent)
        append_text(path, f"{_now()} {text}\n")

    def sync(self) -> None:
        """Force the lines and folder entries written so far onto the disk.

        Called at every checkpoint and at the end of a launch.
        """
        for path in (self.metrics_jsonl, self.events_jsonl, self.path, self.checkpoints_dir):
            sync(path)

    def update(self, **facts: Any) -> None:
        """Change fields of run.json, atomically."""
        write_json(self.run_json, {**self.info(), **facts})

    @contextmanager
    def attempt(self) -> Iterator[int]:
        """Launch the run: state "running" in the block, then "done", "stopped:..." or "crashed".

        Yields the number of the launch, from 1. Only one launch at a time: BusyError names the
        process at work. Taking over from a launch that died is an event. Half-written files and
        incomplete last lines of a killed launch are removed first; such a line is an event.
        """
        with lock_folder(self.path, task=LAUNCH) as before, self._launch() as number:
            if before is not None:
                self.add_event("took_over", owner=before.text(), attempt=number)
            yield number

    @contextmanager
    def _launch(self) -> Iterator[int]:
        number = int(self.info().get("attempts", 0)) + 1
        self.update(state="running", attempts=number, pid=os.getpid(), ended=None)
        remove_leftovers(self.path, deep=True)
        for path in (self.metrics_jsonl, self.events_jsonl):
            if removed := _drop_torn_line(path):
                self.add_event("torn_line", file=path.name, bytes=removed)
        state = "crashed"
        try:
            yield number
            state = "done"
        except StoppedError as error:
            state = f"stopped:{error.where or 'health'}"
            self.add_event("stopped", reason=error.what, where=error.where)
            raise
        except KeyboardInterrupt:
            state = "stopped:interrupted"
            raise
        finally:
            self.sync()
            self.update(state=state, ended=_now())
            make_private(self.path)  # what libraries wrote, too


def create_run(
    runs: Path,
    *,
    resolved: Mapping[str, Any],
    command: str,
    seed: int,
    inputs: Iterable[tuple[Path, int]] = (),
    name: str = "",
    about: Mapping[str, str] | None = None,
) -> RunDir:
    """Make a new run folder under `runs` and point runs/latest at it.

    Without a name the folder is named by the date and a letter: 2026-11-20-a, -b, ... `inputs` are
    (file, rows); `about` are further facts of run.json. Raises DataError if `name` is taken.
    """
    if not runs.parent.exists():
        make_work(runs.parent)
    make_folder(runs)
    path = _claim(runs, name)
    run = RunDir(path)
    write_json(run.resolved_json, dict(resolved))
    with atomic_writer(run.command_txt) as stream:
        stream.write(command.rstrip("\n") + "\n")
    write_json(
        run.manifest_json,
        {"inputs": [{"path": str(p), "sha256": sha256_of(p), "rows": rows} for p, rows in inputs]},
    )
    write_json(
        run.run_json,
        {
            "id": path.name,
            "state": "created",
            "seed": seed,
            "started": _now(),
            "ended": None,
            "attempts": 0,
            **(about or {}),
            **_provenance(),
        },
    )
    _point_latest(runs, path.name)
    return run


def open_run(path: Path) -> RunDir:
    """Open an existing run by its folder, or by runs/latest; raises DataError if there is none."""
    path = path.resolve()
    if path.name == LATEST and path.is_file():  # written where links cannot be made
        path = path.parent / Path(path.read_text(encoding="utf-8").strip()).name
    run = RunDir(path)
    run.info()
    return run


def remove_run(path: Path) -> None:
    """Remove a run, if it exists; raises BusyError if a process is at work on it."""
    if path.exists():
        check_free(path, task=LAUNCH)
        shutil.rmtree(path)


def remove_unstarted(run: RunDir) -> None:
    """Remove a run that no process has started, so that its name is free again."""
    if run.info()["state"] == "created":
        shutil.rmtree(run.path)
        others = sorted(
            (file.parent for file in run.path.parent.glob("*/run.json")),
            key=lambda path: path.stat().st_mtime,
        )
        if others:
            _point_latest(run.path.parent, others[-1].name)
        else:
            (run.path.parent / LATEST).unlink(missing_ok=True)


def sweep_work(work: Path) -> list[str]:
    """Remove what killed processes left in a work folder and its runs; returns the names.

    Files that a live process writes are kept. Half-written checkpoints are removed only if the
    run's process, by its run.json, is gone from this machine.
    """
    names = [
        *remove_leftovers(work),
        *(
            name
            for below in ("runs", "examples", "reference", "exports")
            for name in remove_leftovers(work / below, deep=True)
        ),
    ]
    for file in sorted(work.glob("runs/*/run.json")):
        halves = [
            path
            for path in (file.parent / "checkpoints").glob(".step_*.part")
            if path.is_dir() and not path.is_symlink()
        ]
        if halves and not _may_run(file):
            for half in halves:
                shutil.rmtree(half)
                names.append(half.name)
    return names


def _may_run(run_json: Path) -> bool:
    """Whether the process of a run may be alive; True for a run of another machine."""
    try:
        info = json.loads(run_json.read_text(encoding="utf-8"))
        return info["state"] == "running" and (
            info["host"] != platform.node() or is_alive(int(info["pid"]))
        )
    except (OSError, ValueError, KeyError, TypeError):
        return True


def sha256_of(path: Path) -> str:
    """Hash of a file's bytes, or of the names and bytes of all files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        if path.is_dir():
            digest.update(
                file.relative_to(path).as_posix().encode("utf-8", "surrogateescape") + b"\0"
            )
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def diff_settings(old: Mapping[str, Any], new: Mapping[str, Any], *, prefix: str = "") -> list[str]:
    """List the settings that differ, one line each.

    >>> diff_settings({"train": {"steps": 20}}, {"train": {"steps": 40}})
    ['train.steps: 20 -> 40']
    """
    lines: list[str] = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += diff_settings(a, b, prefix=f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {json.dumps(a)} -> {json.dumps(b)}")
    return lines


def _claim(runs: Path, name: str) -> Path:
    """Create the run's folder; mkdir is atomic, so two runs that start at once get two folders."""
    if name:
        if name == LATEST or Path(name).name != name:
            raise DataError(
                f"{name!r} cannot be the name of a run", fix="use letters, digits, '-' and '_'"
            )
        try:
            _mkdir(runs / name)
        except FileExistsError as error:
            raise DataError(
                f"the run {name!r} exists already",
                where=str(runs),
                fix="choose another name, or resume it",
            ) from error
        return runs / name
    day, letters = datetime.now().strftime("%Y-%m-%d"), string.ascii_lowercase
    for suffix in (*letters, *(a + b for a in letters for b in letters)):
        try:
            _mkdir(runs / f"{day}-{suffix}")
            return runs / f"{day}-{suffix}"
        except FileExistsError:
            continue
    raise DataError(
        f"{len(letters) * 27} runs of today stand in {runs} already", fix="give this one a name"
    )


def _mkdir(path: Path) -> None:
    path.mkdir(FOLDER)
    path.chmod(FOLDER)  # whatever the umask


def _numbered(folder: Path, suffix: str) -> list[tuple[int, Path]]:
    """(step, file) of the files step_000040<suffix> of a folder; [] if there is no folder."""
    paths = folder.glob(f"step_*{suffix}") if folder.is_dir() else ()
    return sorted((int(m[1]), p) for p in paths if (m := _STEP.match(p.name.removesuffix(suffix))))


def _point_latest(runs: Path, name: str) -> None:
    """Make runs/latest a link to a run, or a file with its name if links cannot be made."""
    link, scratch = runs / LATEST, runs / f".{LATEST}.{os.getpid()}.part"
    scratch.unlink(missing_ok=True)
    if link.is_dir() and not link.is_symlink():
        raise DataError(
            "a folder stands where the link 'latest' belongs", where=str(link), fix="move it away"
        )
    try:
        scratch.symlink_to(name, target_is_directory=True)
    except OSError:
        with atomic_writer(link) as stream:
            stream.write(name + "\n")
        return
    os.replace(scratch, link)


def _provenance() -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "versions": versions,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _append(path: Path, value: Mapping[str, Any]) -> None:
    append_text(path, dumps(dict(value)) + "\n")


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    raw = path.read_bytes()
    for number, line in enumerate(raw[: raw.rfind(b"\n") + 1].splitlines(), 1):
        try:
            yield json.loads(line)
        # some file systems leave zeros at the end after a power cut
        except ValueError as error:
            raise DataError(
                f"line {number} is damaged: {error}",
                where=f"{path}:{number}",
                fix="remove the line",
            ) from error


def _object(path: Path) -> dict[str, Any]:
    """Read a JSON object of a run."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError) as error:
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged: {error}"
        raise DataError(
            f"{path.name} {problem}",
            where=str(path),
            fix="put it back from a copy, or start a new run",
        ) from error


def _drop_torn_line(path: Path) -> int:
    """Cut off what follows the last newline; returns how many bytes that was."""
    if not path.exists():
        return 0
    raw = path.read_bytes()
    torn = len(raw) - (raw.rfind(b"\n") + 1)
    if torn:
        descriptor = open_private(path, os.O_WRONLY)  # refuses a link: it would cut another file
        try:
            os.ftruncate(descriptor, len(raw) - torn)
        finally:
            os.close(descriptor)
    return torn
