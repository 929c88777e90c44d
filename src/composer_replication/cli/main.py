"""The table of verbs; each verb's module is imported only when it is used, so `--help` is fast."""

# Only fast imports up here: a Ctrl-C during a slow one would end in a traceback, because `main`
# does not run yet.
from __future__ import annotations

import io
import os
import signal
import sys

from composer_replication.cli import INTERRUPTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from cyclopts import App

HELP = """\
Your agent's logs and your base model go in; a model trained on its own mistakes comes out.

Begin with `recompose audit --open` (your own logs, no GPU) or `recompose demo` (the whole pipeline,
four minutes); each verb names the next one.

Settings come from recompose.toml (looked for upward), or --config FILE; any of them can be set on
the command line by its dotted name: `--train.hint.weight 0.3`. Every verb takes --json and
--dry-run."""

# In the order of the pipeline: verb -> what it reads and writes.
VERBS: dict[str, str] = {
    "audit": "Start here: what your agents do wrong, what it costs, rules against it; one page.",
    "demo": (
        "Everything below, on a tiny student and its own logs, with a placebo, in three to four"
        " minutes."
    ),
    "doctor": "What is installed, what would work, and the command that fixes what would not.",
    "init": "Write a commented recompose.toml.",
    "trust": "Let a settings file run code and send: it counts only once you have trusted it.",
    "model": "`model check X`: what a model is and can do, and what would be refused.",
    "ingest": "Agent logs -> sessions.jsonl, the store, which accumulates.",
    "sessions": "What the store holds, since when.",
    "sites": "Sessions -> sites.jsonl: find the mistaken messages.",
    "hints": "Sites -> hints.jsonl; --audit measures whether a hint changes the model: a gate.",
    "replay": "Sessions -> answers, preferences and anchors: what others would have done.",
    "curate": (
        "Preferences -> curated.jsonl: the pairs that are fit to train on, and why the others are"
        " not."
    ),
    "build": "Sessions, sites, hints and preferences -> examples/: tokens for the student.",
    "train": "Examples -> a run directory.",
    "diloco": "`diloco simulate`: time, bytes and dollars of many replicas, before any is rented.",
    "tasks": "`tasks make REPO...`: your repositories with tests -> tasks that tests judge.",
    "serve": "Any agent program plays the student; every sampled token is recorded, as sessions.",
    "evaluate": "A run and its controls on unseen tasks -> evaluation.json.",
    "report": "A run, or the audit of your logs, as one HTML page.",
    "export": "A run's student -> a folder that servers read, and the command that serves it.",
    "push": "An exported student, or sessions as Parquet -> a hub, searched for secrets once more.",
    "show": "One session, site, example or run, in the terminal.",
    "completion": "Print the completion script of your shell.",
}

MODULE_OF = {"tasks": "repo_tasks"}
"""Verbs whose module has another name: workshop/tasks.py has the verb's."""
SETTINGS_OF = {
    "audit": "ingest, sites",
    "ingest": "ingest",
    "sites": "sites",
    "hints": "hints",
    "replay": "replay, curate",
    "curate": "curate, held_out",
    "model": "student",
    "build": "student, held_out, build",
    "train": "student, rollouts, train",
    "serve": "student, rollouts",
    "evaluate": "evaluate",
}


def build_app() -> App:
    """The command line, with every verb as an import path."""
    from cyclopts import App, Parameter

    flags = Parameter(negative="", show_default=False)
    # suppress_keyboard_interrupt would end the program without a word: `run` says what happened
    app = App(
        suppress_keyboard_interrupt=False,
        name="recompose",
        help=HELP,
        help_format="markdown",
        default_parameter=flags,
        version_flags=["--version"],
        version=_version,
    )
    for verb, text in VERBS.items():
        epilogue = _epilogue(verb)
        module = MODULE_OF.get(verb, verb)
        path = f"composer_replication.cli.{module}:{verb}_command"
        app.command(
            path, name=verb, help=text, help_epilogue=epilogue, sort_key=list(VERBS).index(verb)
        )
    return app


def _epilogue(verb: str) -> str:
    """The end of a verb's help: examples, and which settings it reads."""
    from composer_replication.cli.verb_examples import VERB_EXAMPLES

    examples = "\n".join(f"- `{line}`" for line in VERB_EXAMPLES[verb])
    groups = SETTINGS_OF.get(verb, "")
    settings = f"Settings: {groups}. `recompose init --explain GROUP` says what each means."
    return f"Examples:\n\n{examples}" + (f"\n\n{settings}" if groups else "")


def _version() -> str:
    from importlib.metadata import version

    return version("composer-replication")


def _check_verb(argv: Sequence[str]) -> None:
    """Refuse an unknown verb before cyclopts does, which would import every verb for that."""
    import difflib

    from composer_replication.cli.problems import UsageError

    verb = argv[0] if argv else "--help"
    if not verb.startswith("-") and verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        guess = f'did you mean "{near[0]}"?\n' if near else ""
        raise UsageError(
            f'unknown verb "{verb}"',
            where=f"recompose {verb}",
            fix=f"{guess}verbs: {', '.join(VERBS)}",
        )


def run(argv: Sequence[str], *, interrupted: Callable[[], bool] = lambda: False) -> int:
    """Run one command line and return its exit code; errors are shown, never raised.

    `interrupted` says whether a Ctrl-C has come.
    """
    from composer_replication.cli.flags import split_settings
    from composer_replication.cli.problems import DONE, report_error
    from composer_replication.core.errors import ComposerError

    as_json, debug = "--json" in argv, "--debug" in argv
    try:
        with split_settings(argv) as rest:
            _check_verb(rest)
            code = build_app()(
                rest, exit_on_error=False, print_error=False, result_action="return_value"
            )
        return code if isinstance(code, int) else DONE
    except BrokenPipeError:  # the reader of a pipe left, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt as error:
        return report_error(error, as_json=as_json, debug=debug)
    except Exception as error:  # noqa: BLE001 - the top of the program: every error becomes a box and an exit code
        # an import can turn a Ctrl-C into another error, e.g. a RuntimeError
        if interrupted() and not isinstance(error, ComposerError):
            return report_error(KeyboardInterrupt(), as_json=as_json, debug=debug)
        return report_error(error, as_json=as_json, debug=debug)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM like Ctrl-C, once: a second one (`timeout` sends two) would interrupt the
    clean-up of child processes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


class _CtrlC:
    """Handler of SIGINT: raises KeyboardInterrupt, and remembers it, because an import may turn it
    into another error."""

    came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        raise KeyboardInterrupt


def main() -> None:
    """The `recompose` command; no Ctrl-C ends it with a traceback, not even during imports."""
    code, ctrl_c = INTERRUPTED, _CtrlC()
    try:
        signal.signal(signal.SIGTERM, _terminate)
        if isinstance(sys.stdout, io.TextIOWrapper):  # a log may hold what cp1252 lacks
            sys.stdout.reconfigure(errors="backslashreplace")
        # otherwise SIGINT is ignored, as for a command with `&` in a script
        if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
            signal.signal(signal.SIGINT, ctrl_c)
        code = run(sys.argv[1:], interrupted=lambda: ctrl_c.came)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
    except Exception:
        if not ctrl_c.came:
            raise
        sys.stderr.write("interrupted\n")
    if ctrl_c.came:
        # the work is done: a second Ctrl-C may end the process at once
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)
