"""The table of verbs; each verb's module is imported only when it is used, so `--help` is fast."""

# Only fast imports up here: a Ctrl-C during a slow one would end in a traceback, because `main`
# does not run yet.
from __future__ import annotations

import _thread
import io
import os
import signal
import sys
import time

from composer_replication.cli import INTERRUPTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from cyclopts import App

HELP = """\
Your agent's logs and your base model go in; a model trained on its own mistakes comes out.

Start with `recompose audit --open` (your own logs, no GPU) or `recompose demo` (the whole pipeline,
four minutes). Each command suggests the next one.

Settings are read from the nearest recompose.toml (in this folder or above), or from --config FILE.
Override any of them with its dotted name: `--train.hint.weight 0.3`. Every command accepts --json
and --dry-run."""

# In the order of the pipeline: verb -> what it reads and writes.
VERBS: dict[str, str] = {
    "audit": "Start here: report what your agents do wrong, what it costs, and rules against it.",
    "demo": (
        "Run everything below on a tiny student and its own logs, with a placebo, in three to"
        " four minutes."
    ),
    "doctor": "Check what is installed and what works, with a fix for what does not.",
    "init": "Write a commented recompose.toml.",
    "trust": "Allow a settings file to run code and send data.",
    "model": "Show what a model is, what it supports, and what would be refused: `model check X`.",
    "ingest": "Import agent logs into the store: logs -> sessions.jsonl.",
    "sessions": "List the sessions in the store, or export them for other tools.",
    "sites": "Find the mistaken messages: sessions -> sites.jsonl.",
    "hints": "Write hints: sites -> hints.jsonl. --audit measures whether they change the model.",
    "replay": (
        "Ask other models what they would have done: sessions -> answers, preferences, anchors."
    ),
    "curate": "Filter the pairs, with a reason for each one dropped: preferences -> curated.jsonl.",
    "build": "Tokenize sessions, sites, hints and preferences for the student -> examples/.",
    "train": "Train the student: examples -> a run directory.",
    "diloco": "Simulate the time, bytes and cost of many replicas: `diloco simulate`.",
    "tasks": "Turn repositories into tasks that their tests judge: `tasks make REPO ...`.",
    "serve": "Serve the student to any agent program and record every sampled token, as sessions.",
    "evaluate": "Evaluate a run and its controls on unseen tasks -> evaluation.json.",
    "report": "Write one HTML page about a run, or about the audit of your logs.",
    "export": "Export a run's student to a folder, with the command that serves it.",
    "push": "Upload an exported student, or sessions as Parquet, after a secret scan.",
    "show": "Show a session, site, example, pair or run in the terminal.",
    "completion": "Print the completion script for your shell.",
}

MODULE_OF = {"tasks": "repo_tasks"}
"""Verbs whose module has another name: workshop/tasks.py has the verb's."""


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
    from composer_replication.cli.flags import SETTINGS_OF
    from composer_replication.cli.verb_examples import VERB_EXAMPLES

    examples = "\n".join(f"- `{line}`" for line in VERB_EXAMPLES[verb])
    groups = ", ".join(SETTINGS_OF.get(verb, ()))
    settings = f"Settings: {groups}. `recompose init --explain GROUP` explains them."
    return f"Examples:\n\n{examples}" + (f"\n\n{settings}" if groups else "")


def _version() -> str:
    from importlib.metadata import version

    return version("composer-replication")


MEANT = {
    "compare": '"report A B"',
    "next": '"doctor", which names the next step',
    "status": '"doctor", which names the next step',
}
"""Words that people type, and what does it."""


def _check_verb(argv: Sequence[str]) -> None:
    """Refuse an unknown verb before cyclopts does, which would import every verb for that."""
    import difflib

    from composer_replication.cli.problems import UsageError

    verb = argv[0] if argv else "--help"
    if not verb.startswith("-") and verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1, cutoff=0.65)
        meant = MEANT.get(verb) or (f'"{near[0]}"' if near else "")
        guess = f"did you mean {meant}?\n" if meant else ""
        raise UsageError(
            f'unknown command "{verb}"',
            where=f"recompose {verb}",
            fix=f"{guess}commands: {', '.join(VERBS)}",
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


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """Interrupt again where Python ignores a Ctrl-C, as in the callback of an import's lock."""
    if isinstance(what.exc_value, KeyboardInterrupt):
        _thread.start_new_thread(_interrupt_soon, ())  # at once it would be ignored here, too
    else:
        sys.__unraisablehook__(what)


def _interrupt_soon() -> None:
    time.sleep(0.01)
    _thread.interrupt_main()


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
            sys.unraisablehook = _unraisable
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
