"""The part of `doctor` about the backends and environment libraries (docs/backends.md)."""

from __future__ import annotations

from collections.abc import Iterator

from composer_replication.cli.job import Job
from composer_replication.training.backends.registry import BACKENDS, FEATURES


def print_backends(job: Job) -> list[dict[str, str]]:
    """Print and return the row of each backend; all but the reference trainer are optional."""
    backends = list(backend_rows())
    for row in backends:
        mark, tested = "--" if row["problem"] else "ok", f", tested: {row['tested']}"
        state = row["problem"] or f"{row['version']}{tested if row['tested'] else ''}"
        job.screen.line(f"{mark}  {row['name']:<12}  {state}")
        job.screen.line(f"    {'':<12}  hosts: {row['hosts']}", style="dim")
        if row["fix"]:
            job.screen.line(f"    {'':<12}  {row['fix']}", style="dim")
    job.screen.line()
    return backends


def backend_rows() -> Iterator[dict[str, str]]:
    """One row per trainer and environment library: its installed version, the tested ones, what it
    hosts, and the command that installs it. None is needed for the reference trainer."""
    for backend in BACKENDS.values():
        hosted = [
            FEATURES[key] if word == "yes" else f"{FEATURES[key]} ({word})"
            for key, word in backend.hosts.items()
        ]
        problem = backend.problem()
        yield {
            "name": backend.name,
            "version": backend.installed() or "part of this package",
            "tested": backend.tested,
            "problem": problem,
            "hosts": "; ".join(hosted) or backend.limit,
            "limit": backend.limit,
            "fix": backend.command() if problem else "",
        }
