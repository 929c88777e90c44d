"""What `recompose train --replicas` prints of its replicas: their rounds, warnings and restarts."""

from __future__ import annotations

import threading

from composer_replication.cli.job import Job
from composer_replication.cli.train_text import WARNINGS, event_text, round_text
from composer_replication.core.rundir import RunDir
from composer_replication.report.replicas_view import is_told, replica_runs, rounds_of


class RoundWatcher:
    """Prints each round once all its replicas have written it down, and the replicas' warnings."""

    def __init__(self, job: Job, run: RunDir, *, every_s: float = 1.0) -> None:
        self.job, self.run, self.every_s = job, run, every_s
        runs = replica_runs(run.path)
        self._over, self._said = threading.Event(), max(rounds_of(runs), default=-1)
        self._seen = {slot: len(replica.events()) for slot, replica in runs.items()}
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> RoundWatcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._print(last=True)

    def print_restart(self, slot: int, why: str) -> None:
        """Print that a replica died, and is started again."""
        self.job.screen.line(
            f" WARNING  replica {slot} ended ({why}) and is started again; the others go on",
            style="bold red",
        )

    def _follow(self) -> None:
        while not self._over.wait(self.every_s):
            self._print()

    def _print(self, *, last: bool = False) -> None:
        runs = replica_runs(self.run.path)
        for slot, replica in runs.items():
            events = replica.events()
            for event in events[self._seen.get(slot, 0) :]:
                if event["kind"] in WARNINGS:
                    self.job.screen.line(
                        f" WARNING  replica {slot}: {event_text(event)}", style="bold red"
                    )
            self._seen[slot] = len(events)
        rounds = rounds_of(runs)
        for number, facts in rounds.items():
            if number <= self._said:
                continue
            if not (last or is_told(facts, runs) or number < max(rounds)):
                break
            self._said = number
            self.job.screen.line(" " + round_text(facts))
