"""The logs, data and trained arms of one level and seed; every stage is a `recompose` verb in its
own process.

    student = Path("examples/workshop_student")
    work = Work(root=Path("build/evidence"), level=1, seed=7, student=student)
    prepare(work)              logs -> sessions -> sites -> hints -> answers -> examples
    train_arm(work, "hint", scale=1.0)
        {"code": 0, "cpu_s": 41.2, "steps": 31, "tokens": {...}, ...}

What was made from the same settings, student and data is not made again; a change of the settings
text, of a weight or of an example makes it stale.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from composer_replication.cli.demo_settings import SETTINGS, STEPS
from composer_replication.cli.demo_student import NUM_LOGS
from composer_replication.core.channel_names import CHANNELS
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import RunDir

from .arms import ARMS, flags_of, steps_of
from .code import code_sha256

STOPPED = 3  # the exit code of a health rule: a result, not a failure
VERBS = (("ingest",), ("sites",), ("hints", "--audit"), ("replay",), ("build",))
_DATA = ("examples/examples.jsonl", "examples/pairs.jsonl", "anchors.jsonl")
RECORD = (
    "from workshop_evidence.training import record_here; import sys; record_here(*sys.argv[1:])"
)
TAIL = 2000
ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One level and seed, and the folder of its logs, data and runs."""

    root: Path
    level: int
    seed: int
    student: Path
    verbs: tuple[tuple[str, ...], ...] = VERBS
    record: str = RECORD
    """Python code that records the logs, with the settings file and the student as arguments."""

    @property
    def folder(self) -> Path:
        """E.g. build/evidence/level1/seed7."""
        return self.root / f"level{self.level}" / f"seed{self.seed}"

    @property
    def config(self) -> Path:
        """The settings file of the demo, for this seed and student."""
        return self.folder / "recompose.toml"

    def data(self, name: str) -> Path:
        """The work folder with the examples of an arm: that of the seed, or of one of the sets of
        pairs."""
        return self.folder / "pairs" / ARMS[name].pairs if ARMS[name].pairs else self.folder

    def run(self, name: str) -> RunDir:
        """The run directory of an arm."""
        return RunDir(self.data(name) / "runs" / name)

    def settings(self) -> str:
        """The text of the settings file."""
        return SETTINGS.format(
            seed=self.seed, student=self.student.absolute().as_posix(), steps=STEPS
        )


class ArmError(RuntimeError):
    """A verb ended with an exit code that is not a result."""


def prepare(work: Work) -> None:
    """Record the student's logs with this seed and build the data, once; raises ArmError if a
    verb fails."""
    key = _sha256([work.settings().encode(), _hash_file(work.student / "model.safetensors")])
    done_json = work.folder / "prepared.json"
    if _read_json(done_json).get("key") == key:
        return
    if work.folder.exists():
        shutil.rmtree(work.folder)
    work.folder.mkdir(parents=True)
    work.config.write_text(work.settings(), "utf-8")
    log = work.folder / "prepare.log"
    _run_child(
        [sys.executable, "-c", work.record, str(work.config), str(work.student.absolute())], log=log
    )
    for verb in work.verbs:
        _run_child([*_recompose(), *verb, "-c", str(work.config)], log=log)
    write_json(done_json, {"key": key})


def prepare_pairs(work: Work) -> None:
    """Ask the noisy teachers about the logs of the seed and build the sets of pairs, once. Needs
    `prepare`."""
    from .pairs import MAX_NULL_ROUNDS, SLIPS, TEACHERS, make_sets

    teachers = json.dumps([TEACHERS, SLIPS, MAX_NULL_ROUNDS]).encode()
    key = _sha256(
        [
            teachers,
            work.settings().encode(),
            *(_hash_file(work.folder / path) for path in ("sessions.jsonl", "sites.jsonl")),
        ]
    )
    folder, done_json = work.folder / "pairs", work.folder / "pairs" / "prepared.json"
    if _read_json(done_json).get("key") == key:
        return
    if folder.exists():
        shutil.rmtree(folder)
    log = work.folder / "pairs.log"

    def verb(name: str, out: Path, *arguments: str) -> None:
        _run_child(
            [*_recompose(), name, "-c", str(work.config), "-o", str(out), *arguments], log=log
        )

    make_sets(work.folder, folder, seed=work.seed, verb=verb)
    write_json(done_json, {"key": key})


def record_here(config: str, student: str) -> None:
    """Record the logs as the demo does, in this process; run by `prepare` in a fresh one."""
    from composer_replication.cli.demo_student import record_sessions
    from composer_replication.cli.flags import Common
    from composer_replication.cli.job import open_job

    record_sessions(
        open_job(Common(config=(Path(config),), quiet=True)),
        Path(student),
        Path(config).parent / "logs",
        num_sessions=NUM_LOGS,
    )


def train_arm(work: Work, name: str, *, scale: float) -> dict[str, Any]:
    """Train one arm, or reuse its run if it was made from the same settings, student and data; one
    that was cut off goes on from its newest checkpoint."""
    flags = [*flags_of(name), "--train.steps", str(steps_of(name, scale=scale))]
    key = _sha256(
        [
            work.settings().encode(),
            shlex.join(flags).encode(),
            *(_hash_file(work.data(name) / path) for path in _DATA),
        ]
    )
    key = _sha256([key.encode(), _hash_file(work.student / "model.safetensors")])
    done_json, run = work.folder / "arms" / f"{name}.json", work.run(name)
    recorded = _read_json(done_json)
    if recorded.get("key") == key and run.run_json.exists():
        return recorded
    started_json = work.folder / "arms" / f"{name}.started.json"
    goes_on = _read_json(started_json).get("key") == key and bool(
        run.run_json.exists() and run.checkpoints()
    )
    if run.path.exists() and not goes_on:
        shutil.rmtree(run.path)
    started_json.parent.mkdir(parents=True, exist_ok=True)
    write_json(started_json, {"key": key})
    output = ["-o", str(work.data(name))] if ARMS[name].pairs else []
    which = ["--resume", str(run.path)] if goes_on else ["--name", name]
    command = [*_recompose(name), "train", *which, *flags, "-c", str(work.config), *output]
    provenance = {"commit": _commit(), "code_sha256": code_sha256(ROOT)}
    code, cpu_s = _run_child(
        command, log=work.folder / "arms" / f"{name}.log", allowed=(0, STOPPED)
    )
    result = {
        "key": key,
        "code": code,
        "cpu_s": round(cpu_s, 1),
        "flags": list(flags_of(name)),
        **provenance,
        **read_run(run),
    }
    if ARMS[name].pairs:
        result["pairs"] = _read_json(work.folder / "pairs" / "counts.json")[ARMS[name].pairs]
    write_json(done_json, result)
    return result


def _commit() -> str:
    """The short name of the commit that is checked out, with a + if files differ from it; ""
    outside a checkout."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    process = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return process.stdout.strip()


def read_run(run: RunDir) -> dict[str, Any]:
    """The training record of a run directory. `kept` is the step of the weights that remain: after
    a rollback it is less than `steps`."""
    metrics = run.metrics()
    restored = [event for event in run.events() if event["kind"] == "restored"]
    step_seconds = [row["step_s"] for row in metrics if "step_s" in row]
    drift = [row["health/kl"] for row in metrics if "health/kl" in row]
    checkpoints = run.checkpoints()
    return {
        "steps": len(metrics),
        "kept": checkpoints[-1][0] if checkpoints else 0,
        "state": run.info()["state"],
        "rule": restored[-1]["rule"] if restored else "",
        "tokens": {
            name: sum(row.get(f"{name}/tokens") or 0 for row in metrics) for name in CHANNELS
        },
        "clipped": sum(bool(row.get("clipped")) for row in metrics),
        "kl": drift[-1] if drift else None,
        "step_s": round(sum(step_seconds) / len(step_seconds), 3) if step_seconds else None,
    }


def _run_child(
    command: Sequence[str], *, log: Path, allowed: Iterable[int] = (0,)
) -> tuple[int, float]:
    """Run a command with one thread; (exit code, CPU-seconds of it and its children). Raises
    ArmError for other exit codes."""
    log.parent.mkdir(parents=True, exist_ok=True)
    benchmarks_dir = str(Path(__file__).resolve().parent.parent)
    paths = [
        benchmarks_dir,
        *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    with log.open("ab") as out:
        out.write(f"$ {shlex.join(command)}\n".encode())
        out.flush()
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)
        _, status, usage = os.wait4(child.pid, 0)
    code = child.returncode = os.waitstatus_to_exitcode(status)
    if code not in allowed:
        raise ArmError(
            f"exit code {code}: {shlex.join(command)}\n{log.read_text('utf-8', 'replace')[-TAIL:]}"
        )
    return code, usage.ru_utime + usage.ru_stime


def trl_python() -> str:
    """The interpreter that has TRL: this one, COMPOSER_PEERS_PYTHON, or that of .venv-peers; "" if
    there is none."""
    if find_spec("trl"):
        return sys.executable
    peers_python = ROOT / ".venv-peers" / "bin" / "python"
    return os.environ.get("COMPOSER_PEERS_PYTHON", "") or (
        str(peers_python) if peers_python.exists() else ""
    )


def _recompose(arm: str = "") -> list[str]:
    python = trl_python() if arm and ARMS[arm].needs_trl else sys.executable
    return [python, "-m", "composer_replication.cli"]


def _hash_file(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest() if path.exists() else b"absent"


def _sha256(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.exists() else {}
