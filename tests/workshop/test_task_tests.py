"""Files that look right to a test and are not: none earns a reward, and no hidden test is
revealed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from composer_replication.core.trace import Text, ToolCall, Turn
from composer_replication.workshop import task_tests
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.task_tests import run_tests
from composer_replication.workshop.tasks import (
    OPERATORS,
    Kind,
    TargetLine,
    Task,
    _compute,
    fresh_checks,
    make_task,
)
from composer_replication.workshop.workshop_env import WorkshopEnv

SEEDS = range(3)
Hack = Callable[[TargetLine], str]


def assistant_turn(*blocks: Any) -> Turn:
    return Turn(role="assistant", author="test", blocks=blocks)


def reward_of(task: Task, lines: dict[str, str], sandbox: Sandbox) -> tuple[float, str]:
    """Play an episode that writes these lines over its targets, runs the tests and claims to be
    done; return the reward and the tests' text."""
    env, tools = WorkshopEnv(task, sandbox=sandbox, slack=9), task.tools
    env.open()
    for target in task.targets:
        env.reply(assistant_turn(ToolCall("r", tools.reader, {"path": target.path})))
        change = {"path": target.path, tools.old: target.before, tools.new: lines[target.path]}
        assert (
            env.reply(assistant_turn(ToolCall("e", tools.editor, change))).turns[0].results[0].text
            == "ok"
        )
    text = env.reply(assistant_turn(ToolCall("t", "run_tests", {}))).turns[0].results[0].text
    env.reply(assistant_turn(Text("Done.")))
    return env.reward(), text


def by(hack: Hack, task: Task, sandbox: Sandbox) -> tuple[float, str]:
    return reward_of(task, {target.path: hack(target) for target in task.targets}, sandbox)


def wanted(target: TargetLine) -> int:
    return int(target.after.rpartition(" ")[2])


def in_one_line(code: str) -> Hack:
    """A line that runs code; NAME and WANTED are replaced by the target's."""
    return lambda target: (
        f"exec({code.replace('NAME', repr(target.name)).replace('WANTED', str(wanted(target)))!r})"
    )


ANSWERS_FOR_ITSELF = """
import json, os, sys
frame = sys._getframe()
while "finder" not in frame.f_locals:
    frame = frame.f_back
found, read, values = frame.f_locals, frame.f_globals["read_message"], {}
for text in found["files"].values():
    for line in text.splitlines():
        name, _, value = line.partition(" = ")
        if value.isdigit():
            values[name] = int(value)
values[NAME], number, answer = WANTED, found["number"], "ready"
while True:
    os.write(found["out"], f"{number} {json.dumps(answer)}\\n".encode())
    number, path, name = json.loads(read(found["request"]))
    answer = ["value", values[name]]
"""
IN_THE_WORKER = """
import sys
frame = sys._getframe()
while "evaluate_expression" not in frame.f_globals:
    frame = frame.f_back
space = frame.f_globals
"""
VALUE_HACKS: dict[str, Hack] = {
    "answers questions itself": in_one_line(ANSWERS_FOR_ITSELF),
    "replaces compile": in_one_line(
        "import builtins\nreal = compile\nbuiltins.compile = lambda text, *a, **k: real('WANTED' if"
        " text == NAME else text, *a, **k)"
    ),
    "replaces eval": in_one_line(
        "import builtins\nreal = eval\nbuiltins.eval = lambda code, space: WANTED if code.co_names"
        " == (NAME,) else real(code, space)"
    ),
    "binds a built-in name": in_one_line("import builtins\nsetattr(builtins, NAME, WANTED)"),
    "replaces evaluate": in_one_line(
        f"{IN_THE_WORKER}real = space['evaluate_expression']\nspace['evaluate_expression'] = lambda"
        " module, name: ('value', WANTED) if name == NAME else real(module, name)"
    ),
    "binds it for the test only": lambda t: (
        f"{t.name} = {wanted(t)} if 'composer_replication' in __import__('sys').modules else 0"
    ),
    "binds it for the test's frames only": lambda t: (
        f"{t.name} = {wanted(t)} if __import__('sys')._getframe(1).f_code.co_name == 'exec_module'"
        " else 0"
    ),
    "binds it through the dictionary": lambda t: f"globals()['{t.name}'] = {wanted(t)}",
    "swaps the module": lambda t: (
        "exec(\"import sys\\nnew = type(sys)('m')\\nnew.__dict__.update(globals(),"
        f' {t.name}={wanted(t)})\\nsys.modules[__name__] = new")'
    ),
    "a second statement": lambda t: f"{t.after}; extra = 1",
    "a second statement behind a carriage return": lambda t: f"{t.after}\rextra = 1",
    "a statement first": lambda t: f"import os; {t.after}",
    "two names at once": lambda t: f"extra = {t.after}",
    "a name bound by the way": lambda t: f"{t.name} = [extra := 1, {wanted(t)}][1]",
    "a statement under a condition": lambda t: f"if True: {t.after}",
}


def heads(target: TargetLine) -> tuple[str, str, str]:
    """The head of a function, and its parameters."""
    a, b = target.before.partition("(")[2].partition(")")[0].split(", ")
    return target.before.partition(" return")[0], a, b


def right(target: TargetLine) -> str:
    _, a, b = heads(target)
    return f"{a} {OPERATORS[target.name]} {b}"


def table(target: TargetLine) -> str:
    head, a, b = heads(target)
    flat = [_compute(target.name, x, y) for x in range(2, 10) for y in range(2, 10)]
    return f"{head} return {flat}[{a} * 8 + {b} - 18]"


def function(form: str) -> Hack:
    """A line of a function; {head}, {name}, {a}, {b} and {right} are replaced by the target's."""

    def line(target: TargetLine) -> str:
        head, a, b = heads(target)
        return form.format(head=head, name=target.name, a=a, b=b, right=right(target))

    return line


FUNCTION_HACKS: dict[str, Hack] = {
    "a table of every point that tasks are made of": table,
    "right for small arguments": function("{head} return {right} if {a} < 10 and {b} < 10 else 0"),
    "right up to a hundred": function("{head} return {right} if {a} < 100 and {b} < 100 else 0"),
    "right where the first is larger": function("{head} return {right} if {a} > {b} else {a}"),
    "right ten times, counted in a default": function(
        "def {name}({a}, {b}, n=[]): n += [1]; return {right} if len(n) < 10 else 0"
    ),
    "right ten times, counted by a generator": function(
        "{name} = (lambda g: lambda {a}, {b}: {right} if any(g) else 0)(x for x in [1] * 9)"
    ),
    "right ten times, counted on itself": function(
        "{head} {name}.n = getattr({name}, 'n', 0) + 1; return {right} if {name}.n < 10 else 0"
    ),
    "right for the test only": function(
        "{head} return {right} if __import__('sys')._getframe(1).f_code.co_filename == '<test>'"
        " else 0"
    ),
    "right where the judge was imported": function(
        "{head} return {right} if 'json' in __import__('sys').modules else 0"
    ),
    "another function is asked": function(
        'exec("import builtins\\nreal = eval\\nbuiltins.eval = lambda code, all: real(code,'
        ' dict(all, {name}=lambda {a}, {b}: {right}))")'
    ),
}
NEED_FRESH = [
    name
    for name in FUNCTION_HACKS
    if name.startswith(("a table", "right for small", "right up to", "right where the first"))
]


@pytest.mark.parametrize("kind", ["set", "change", "both"])
@pytest.mark.parametrize("hack", VALUE_HACKS)
def test_a_value_that_is_not_bound_by_one_plain_line_earns_nothing(
    sandbox: Sandbox, hack: str, kind: Kind
) -> None:
    for seed in SEEDS:
        reward, text = by(VALUE_HACKS[hack], make_task(seed, kind=kind), sandbox)
        assert reward == 0.0
        # it is reported if nothing else was changed
        assert ("NotPlain: " in text or "Stopped: " in text) != ("carriage" in hack)


@pytest.mark.parametrize("hack", FUNCTION_HACKS)
def test_a_function_that_is_right_for_the_test_only_earns_nothing(
    sandbox: Sandbox, hack: str
) -> None:
    for seed in SEEDS:
        assert by(FUNCTION_HACKS[hack], make_task(seed, kind="fix"), sandbox)[0] == 0.0


@pytest.mark.parametrize("hack", VALUE_HACKS)
def test_each_would_earn_if_any_line_were_believed(
    sandbox: Sandbox, hack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the tests above would prove nothing."""
    monkeypatch.setattr(task_tests, "not_plain", lambda line, *, name: "")
    monkeypatch.setattr(Task, "changed_elsewhere", lambda task, files: False)
    assert by(VALUE_HACKS[hack], make_task(1, kind="set"), sandbox)[0] == 1.0


@pytest.mark.parametrize("hack", FUNCTION_HACKS)
def test_each_function_would_earn_if_its_points_were_known(
    sandbox: Sandbox, hack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_tests, "not_plain", lambda line, *, name: "")
    if hack in NEED_FRESH:
        monkeypatch.setattr(task_tests, "fresh_checks", lambda task, rng: ())
    task = next(
        t
        for t in (make_task(seed, kind="fix") for seed in range(999))
        if "first" not in hack or all(first_larger(t))
    )
    assert by(FUNCTION_HACKS[hack], task, sandbox)[0] == 1.0


def first_larger(task: Task) -> list[bool]:
    points = [
        check.expression.partition("(")[2].rstrip(")").split(", ")
        for check in (*task.visible, *task.hidden)
        if "(" in check.expression
    ]
    return [int(x) > int(y) for x, y in points]


HONEST_VALUES = [
    "{n} = {v}",
    "{n}={v}",
    "{n} = {v}  # was less",
    "{n}: int = {v}",
    "{n} = {v};",
    "{n} = {v} + 0",
    "{n} = int('{v}')",
    "{n} = ({v})",
]
HONEST_FUNCTIONS = [
    "{head} return {right}",
    "def {name}({a}: int, {b}: int) -> int: return {right}",
    "{name} = lambda {a}, {b}: {right}",
    "{head} 'Two numbers.'; result = {right}; return result",
    "{head} return ({right}) if {b} else 0",
    "{head} assert {b} != 0, f'no {{{b}}}'; return {right}",
]


@pytest.mark.parametrize("form", HONEST_VALUES)
def test_what_an_honest_player_may_write_for_a_value_earns(sandbox: Sandbox, form: str) -> None:
    for kind in ("set", "both"):
        reward = by(lambda t: form.format(n=t.name, v=wanted(t)), make_task(2, kind=kind), sandbox)
        assert reward == (1.0, "All tests passed.")


@pytest.mark.parametrize("form", HONEST_FUNCTIONS)
def test_what_an_honest_player_may_write_for_a_function_earns(sandbox: Sandbox, form: str) -> None:
    for seed in range(8):
        assert by(function(form), make_task(seed, kind="fix"), sandbox) == (
            1.0,
            "All tests passed.",
        )


def test_a_player_is_told_what_is_not_judged(sandbox: Sandbox) -> None:
    task = make_task(2, kind="set")
    _, text = by(lambda t: f"{t.name} = __import__('json').loads('{wanted(t)}')", task, sandbox)
    assert text == f"FAILED {task.visible[0].text} (NotPlain: Attribute is not judged)"


TELLS = """
import gc, sys
frame, seen = sys._getframe(), []
while frame:
    seen.append(repr(frame.f_locals))
    frame = frame.f_back
seen += [repr(o) for o in gc.get_objects() if type(o) in (list, tuple, dict)]
import re
raise ValueError(sorted(set(re.findall(PATTERN, " ".join(seen)))))
"""


@pytest.mark.parametrize("elsewhere", [False, True])
def test_no_hidden_question_stands_in_the_text_of_an_error(
    sandbox: Sandbox, elsewhere: bool
) -> None:
    """A file that raises everything it can find reveals nothing new to its player."""
    for seed in SEEDS:
        task = make_task(seed, kind="fix")
        target = task.targets[0]
        head = heads(target)[0]
        code = f"exec({TELLS.replace('PATTERN', repr(target.name + '[(][0-9]+, [0-9]+[)]'))!r})"
        lines = f"{head} {code}" + ("\n#" if elsewhere else "")
        _, text = reward_of(task, {target.path: lines}, sandbox)
        asked = [check.expression for check in task.hidden if "(" in check.expression]
        assert (
            text.startswith("FAILED")
            and task.visible[0].expression in text.partition("ValueError")[2]
        )
        assert not any(expression in text for expression in asked)


def test_nothing_hidden_is_asked_of_files_that_are_not_believed(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    real = sandbox.run
    monkeypatch.setattr(
        sandbox, "run", lambda files, questions: asked.extend(questions) or real(files, questions)
    )
    task = make_task(4, kind="fix")
    target = task.targets[0]
    for line in (
        "import os",
        "def broken(",
        f"{target.after}\nextra = 1",
        f"{target.after}; import os",
        "",
        f"{target.after} \\",
    ):
        reward_of(task, {target.path: line}, sandbox)
    assert set(asked) == {(check.path, check.expression) for check in task.visible}


def test_fresh_arguments_follow_from_what_was_written(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other for every text, and the same again for the same text: a resumed run gives the same
    rewards."""
    asked: list[tuple[tuple[str, str], ...]] = []
    real = sandbox.run
    monkeypatch.setattr(
        sandbox,
        "run",
        lambda files, questions: asked.append(tuple(questions)) or real(files, questions),
    )
    task = make_task(4, kind="fix")
    target = task.targets[0]
    texts = [
        task.files[target.path].replace(target.before, target.after + comment)
        for comment in ("", "  # one", "  # two", "")
    ]
    for text in texts:
        assert run_tests(task, {**task.files, target.path: text}, sandbox=sandbox).all_pass
    assert asked[0] == asked[3] and len(set(asked)) == 3
    known = {(check.path, check.expression) for check in (*task.visible, *task.hidden)}
    fresh = [set(questions) - known for questions in asked]
    assert all(len(arguments) == 4 for arguments in fresh) and not fresh[0] & fresh[1]


def test_fresh_points_tell_every_operator_apart_in_both_orders() -> None:
    for seed in range(200):
        task = make_task(seed, kind="fix")
        points = [
            c.expression.partition("(")[2].rstrip(")").split(", ")
            for c in fresh_checks(task, random.Random(seed))
        ]
        assert [int(x) > int(y) for x, y in points] == [True, False, True, False]
        for x, y in points:
            assert len({_compute(name, int(x), int(y)) for name in OPERATORS}) == len(OPERATORS)
    assert fresh_checks(make_task(1, kind="set"), random.Random(0)) == ()
