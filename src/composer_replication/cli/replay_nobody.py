"""What `recompose replay` says if no teacher is set: who could be asked, for how much, and how."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import ExitStack

from composer_replication.cli.job import Job
from composer_replication.cli.replay_estimate import estimate_numbers
from composer_replication.cli.replay_plan import open_plan
from composer_replication.core.codec import read_sessions
from composer_replication.core.config.rollout_settings import ReplaySettings
from composer_replication.core.errors import ConfigError
from composer_replication.data.replay.estimate import Bill
from composer_replication.data.replay.estimate import estimate as estimate_bill
from composer_replication.data.teachers.defaults import CHOSEN_ON, DEFAULT_TEACHERS
from composer_replication.report.html import plural

SUGGESTED_USD = 2.0


def estimate_nobody(job: Job, settings: ReplaySettings) -> int:
    """End an estimate without teachers: whom one could ask, what they would cost, what to do next.
    Nothing is missing to say so, thus no error."""
    names = list(DEFAULT_TEACHERS)
    bill = _bill_of(job, settings, names)
    if bill is None:
        found = plural(sum(1 for _ in read_sessions(job.sessions)), "session")
        job.screen.line(f" {found}; the mistakes to ask about are not looked for yet")
        next_command = job.command("sites")
    else:
        sessions, mistakes = plural(bill.sessions, "session"), plural(bill.sites, "mistake")
        job.screen.line(f" {sessions}, {mistakes} to ask about")
        teachers = f"--replay.teachers {shlex.quote(json.dumps(names))}"
        next_command = job.command("replay", f"--estimate {teachers}")
    print_offer(job, bill)
    job.screen.line(" an estimate: no teacher is set, and nothing was sent")
    # `teachers` are those that are set
    numbers = {} if bill is None else {**estimate_numbers(bill, settings), "teachers": {}}
    offered = {"chosen_on": CHOSEN_ON, "teachers": names}
    return job.finish(
        {**numbers, "offered": offered, "sent": 0}, wrote=[], next_command=next_command
    )


def explain_nobody(job: Job, settings: ReplaySettings, error: ConfigError) -> ConfigError:
    """Print whom one could ask, and return the error that ends the verb. `error` says what the
    scripted teachers lack."""
    names = list(DEFAULT_TEACHERS)
    print_offer(job, _bill_of(job, settings, names))
    job.screen.line(
        " Without the key, replay ends with an error before it sends anything. A model of your own"
        " is a table [replay.teacher.NAME]; `recompose init --explain replay` has its settings."
    )
    return ConfigError(
        f"nobody was asked, and nothing was sent: no teacher is set, and {error.what}",
        where=error.where,
        fix=(
            f"set replay.teachers = {json.dumps(names)} and replay.max_usd, with the key in"
            f" {_key_names()}; or leave replay out: the other channels do not need it"
        ),
    )


def print_offer(job: Job, bill: Bill | None) -> None:
    """Print who can be asked about these logs, what a mistake costs, and the settings to write."""
    screen, names = job.screen, list(DEFAULT_TEACHERS)
    screen.line(
        "\n Replay asks other models what they would have done. That costs money, so nobody is"
        " asked until you name them."
    )
    screen.line()
    screen.line(
        f" Built-in teachers, chosen on {CHOSEN_ON}: open-weight models of three makers, through"
        " openrouter.ai"
    )
    rows = [
        (
            name,
            teacher.model,
            f"{teacher.max_input_usd_per_mtok:g} / {teacher.max_output_usd_per_mtok:g}",
            _per_mistake(bill, [name]),
        )
        for name, teacher in DEFAULT_TEACHERS.items()
    ]
    screen.table(rows, head=("name", "model", "most $ per M tokens in / out", "$ a mistake"))
    if bill is not None and _num_asked(bill):
        screen.line(
            f" all three: about ${_per_mistake(bill, names)} a mistake, ${bill.usd:.2f} for the"
            f" {_num_asked(bill)} of {plural(bill.sites, 'mistake')} of which a pair can come (at"
            f" most ${bill.most_usd:.2f}); less where a later teacher is not needed"
        )
    screen.line("\n 1. write into recompose.toml (or give each as a flag, --replay.max-usd 2):")
    for line in _settings(names):
        screen.line(f"      {line}")
    screen.line(f" 2. export {_key_names()}=...    a key of openrouter.ai; never in a file")
    screen.line(
        f" 3. {job.command('replay', '--estimate')}    the bill; needs no key, sends nothing"
    )


def _settings(names: Sequence[str]) -> list[str]:
    return [
        "[replay]",
        f"teachers = {json.dumps(names)}",
        f"max_usd = {SUGGESTED_USD}    # the most that all calls of this work folder may cost",
    ]


def _key_names() -> str:
    return " and ".join(dict.fromkeys(t.key_env for t in DEFAULT_TEACHERS.values()))


def _bill_of(job: Job, settings: ReplaySettings, names: Sequence[str]) -> Bill | None:
    """The bill of the built-in teachers for the mistakes alone; None if these are not known yet."""
    if not job.is_usable(job.sites):
        return None
    asked = settings.model_copy(
        update={"teachers": tuple(names), "steps": "sites", "sampled_steps": 0}
    )
    with ExitStack() as stack:
        plan = open_plan(job, asked, stack=stack, asking=False)
        return estimate_bill(
            plan.sessions,
            plan.teachers,
            steps=plan.steps,
            settings=asked,
            bought=frozenset(),
            redactor=job.redactor(make=False),
        )


def _num_asked(bill: Bill) -> int:
    """The mistakes of which a pair can come; nobody is paid for the others."""
    return bill.steps - sum(bill.no_pair.values())


def _per_mistake(bill: Bill | None, names: Sequence[str]) -> str:
    if bill is None or not _num_asked(bill):
        return "–"
    each = sum(bill.teachers[name].usd for name in names) / _num_asked(bill)
    return f"{each:.3f}" if each >= 0.001 else f"{each:.1g}"
