"""Code in the sandbox computes and answers, and gets nowhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from composer_replication.core.errors import SandboxError
from composer_replication.core.isolation import ALLOWED
from composer_replication.workshop import sandbox as sandbox_module
from composer_replication.workshop.sandbox import (
    ESCAPES,
    ExpressionResult,
    Sandbox,
    SandboxLimits,
    refused_by_the_sandbox,
    sandbox_mechanisms,
)

LIBC = "__import__('ctypes').CDLL(None)"
LAYERS = ["namespaces", "empty_root", "landlock", "seccomp"]


def answer(sandbox: Sandbox, code: str, *, expression: str = "result") -> ExpressionResult:
    """The value of one expression after a file with this code was imported."""
    return sandbox.run({"main.py": code}, [("main.py", expression)]).answers[0]


def test_values_come_back_with_their_types(sandbox: Sandbox) -> None:
    files = {
        "main.py": "from other import base\ndef add(a, b):\n    return a + b + base\n",
        "other.py": "base = 10",
    }
    asked = [
        ("main.py", "add(2, 3)"),
        ("other.py", "base"),
        ("main.py", "[True, None, 'x', 1.5]"),
        ("main.py", "nothing"),
    ]
    run = sandbox.run(files, asked)
    assert run.end == "answered"
    assert [a.value for a in run.answers] == [15, 10, [True, None, "x", 1.5], None]
    assert run.answers[3].error.startswith("NameError")
    assert run.answers[0].equals(15) and not run.answers[0].equals(16)
    assert not ExpressionResult(value=True).equals(1) and not ExpressionResult(value=1.0).equals(1)


def test_a_file_stands_before_a_module_of_the_same_name(sandbox: Sandbox) -> None:
    assert answer(sandbox, "result = __import__('token').x + __import__('re').x").error
    run = sandbox.run(
        {"token.py": "x = 1", "re.py": "x = 2", "main.py": "import token, re"},
        [("main.py", "token.x + re.x")],
    )
    assert run.answers[0].equals(3)


def test_a_file_means_what_it_means_to_any_importer(sandbox: Sandbox) -> None:
    """The worker's own `from __future__ import annotations` would leave an annotation unread that
    ends every other import."""
    in_a_plain_process = subprocess.run(
        [sys.executable, "-c", "result: nothing = 15"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    error = answer(sandbox, "result: nothing = 15").error
    # from Python 3.14 on nobody reads it
    assert (error.startswith("NameError")) == ("NameError" in in_a_plain_process.stderr)


def test_an_object_that_equals_everything_is_no_answer(sandbox: Sandbox) -> None:
    code = "class Any(int):\n    def __eq__(self, other):\n        return True\nresult = Any(3)\n"
    assert "not a number" in answer(sandbox, code).error


@pytest.mark.parametrize("way", ESCAPES)
def test_every_way_out_is_refused(sandbox: Sandbox, way: str) -> None:
    assert refused_by_the_sandbox(answer(sandbox, "", expression=ESCAPES[way]))


@pytest.mark.parametrize("way", ESCAPES)
def test_every_way_out_is_open_without_walls(way: str, tmp_path: Path) -> None:
    """Otherwise the test above would prove nothing: each attempt works in a plain process (in a
    copy, which it may well end)."""
    code = f"""
value = {ESCAPES[way].replace("/tmp/workshop-escape", str(tmp_path / "escape"))}
import os
if value != 0 or {way!r} != "start a process":  # the forked child prints nothing
    os._exit(0 if not isinstance(value, int) or value >= 0 else 1)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("layers", "ways"),
    [
        ("seccomp", list(ESCAPES)),
        ("landlock", ["read a file", "write a file", "list a folder", "start a program"]),
        ("namespaces,empty_root", ["read a file", "write a file", "start a program"]),
    ],
)
def test_each_layer_holds_by_itself(layers: str, ways: list[str]) -> None:
    """The walls back one another up; here each is tested alone, in a worker that `Sandbox` itself
    would refuse to use."""
    worker = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-B",
            "-c",
            sandbox_module._START,
            layers,
            "5",
            "30",
            str(512 << 20),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert worker.stdin and worker.stdout
    hello = json.loads(worker.stdout.read(int.from_bytes(worker.stdout.read(4), "big")))
    if missing := set(layers.split(",")) - set(hello["in_force"]):
        worker.kill()
        worker.communicate()
        pytest.skip(f"this machine does not offer {', '.join(missing)}: {hello['missing']}")
    request = json.dumps(
        {"files": {"a.py": ""}, "asked": [["a.py", ESCAPES[way]] for way in ways]}
    ).encode()
    out, _ = worker.communicate(len(request).to_bytes(4, "big") + request, timeout=30)
    answers = [sandbox_module._read_result(text) for text in json.loads(out[4:])["answers"]]
    assert {
        way: a
        for way, a in zip(ways, answers, strict=True)
        if a is None or not refused_by_the_sandbox(a)
    } == {}


def test_without_a_filter_nothing_runs() -> None:
    with pytest.raises(
        SandboxError, match=r"system call filter cannot be put in force.*run on Linux"
    ):
        Sandbox(layers=("namespaces", "empty_root", "landlock")).start()


def test_on_another_system_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module.sys, "platform", "darwin")
    with pytest.raises(SandboxError, match=r"darwin.*nothing runs without walls"):
        Sandbox().run({}, [])


def test_a_hole_in_the_filter_is_found_before_the_first_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker whose filter lets `socket` pass (and has no other wall) is refused by the probe."""
    hole = (
        "from composer_replication.core import isolation; isolation.ALLOWED['socket'] = (41, 198);"
    )
    hole += "m = isolation.this_machine(); arm = m.audit_arch == 0xC00000B7;"
    hole += (
        "isolation.MACHINES[__import__('os').uname().machine] = m._replace(allowed=(*m.allowed, 198"
        " if arm else 41)); import sys"
    )
    monkeypatch.setattr(
        sandbox_module,
        "_START",
        sandbox_module._START.replace("; serve_requests()", f"; {hole}; serve_requests()"),
    )
    with pytest.raises(
        SandboxError, match="was able to open an internet socket, open a local socket"
    ):
        Sandbox(layers=("seccomp",)).start()


def test_what_is_in_force_is_named() -> None:
    mechanisms = sandbox_mechanisms()
    assert f"{len(ALLOWED)} system calls pass" in mechanisms["seccomp"]
    assert "CPU time" in mechanisms["rlimits"]


def test_nothing_is_left_for_the_next_run(sandbox: Sandbox) -> None:
    code = (
        "import builtins, sys\nbuiltins.left = 1\nsys.left = 2\nsys.modules['left'] = sys\nresult"
        " = 1\n"
    )
    assert answer(sandbox, code).equals(1)
    assert answer(
        sandbox, "import builtins, sys\nresult = [hasattr(builtins, 'left'), hasattr(sys, 'left')]"
    ).value == [False, False]
    assert answer(sandbox, "import left").error.startswith("ModuleNotFoundError")


@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    pass\n",
        "import time\ntime.sleep(1000)\n",
        f"{LIBC}.close(3)\n[{LIBC}.close(i) for i in range(99)]\nwhile True:\n    pass\n",
    ],
)
def test_code_that_does_not_end_is_ended(code: str) -> None:
    with Sandbox(limits=SandboxLimits(time_s=0.3, wall_s=2.0)) as sandbox:
        sandbox.start()
        before = time.monotonic()
        assert answer(sandbox, code).error.startswith("Stopped")
        assert time.monotonic() - before < 10
        assert answer(sandbox, "result = 2").equals(2)


def test_a_run_that_waits_for_a_busy_machine_is_not_one_that_does_not_end() -> None:
    with Sandbox(limits=SandboxLimits(time_s=0.2)) as sandbox:
        assert answer(sandbox, "import time\ntime.sleep(0.6)\nresult = 1\n").equals(1)
        assert answer(sandbox, "while True:\n    pass\n").error == "Stopped: time limit"


def test_memory_has_a_limit(sandbox: Sandbox) -> None:
    assert answer(sandbox, "result = len(bytearray(16 << 20))").equals(16 << 20)
    assert answer(sandbox, "result = len(bytearray(256 << 20))").error.startswith("MemoryError")


def test_a_fork_bomb_does_not_start(sandbox: Sandbox) -> None:
    code = (
        "import os\nresult = 0\nfor _ in range(50):\n    try:\n        os.fork()\n        result +="
        " 1\n    except OSError:\n        pass\n"
    )
    assert answer(sandbox, code).equals(0)
    assert (
        "can't start new thread"
        in answer(sandbox, "import _thread\n_thread.start_new_thread(print, ())").error
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('x' * 10**7)\nresult = 1", ""),
        ("import os\nos._exit(0)", "the process died"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f():\n    return f()\nf()", "RecursionError"),
        ("def f(:", "SyntaxError"),
        ("x = '\\ud800'\nraise ValueError(x)", "ValueError"),
        ("import os\nos.kill(os.getppid(), 9)", "PermissionError"),
        ("import os\nos.abort()", "the process died"),
        ("class E(Exception):\n    def __str__(self):\n        raise self\nraise E", "Stopped"),
        ("import json\njson.dumps = None\nimport os\nos._exit = print\nresult = 1", ""),
    ],
)
def test_hostile_code_harms_its_own_run_only(sandbox: Sandbox, code: str, expected: str) -> None:
    answers = answer(sandbox, code)
    assert expected in answers.error if expected else answers.equals(1)
    assert answer(sandbox, "result = 2").equals(2)


FORGERY = """
import os
for descriptor in range(64):
    try:
        os.write(descriptor, {record!r})
    except OSError:
        pass
os._exit(0)
"""
KNOWS_THE_NUMBER = """
import os, sys
frame = sys._getframe()
while "number" not in frame.f_locals:
    frame = frame.f_back
ready = frame.f_locals["number"].encode() + b' "ready"\\n'
"""
"""Looks up the number of the first message, whose answer is that the files have been run."""


@pytest.mark.parametrize(
    "record",
    [
        b'{"passed": true}',
        b"[[" * 9000,
        b'["value", 5]\n' * 3,
        b'0 ["value", 5]\n',
        b"\xff\xfe\n",
        b"\n",
        b'["error", 3]\n',
    ],
)
def test_a_forged_record_is_no_answer(sandbox: Sandbox, record: bytes) -> None:
    assert (
        answer(sandbox, FORGERY.format(record=record)).error
        == "Stopped: no answer that can be read"
    )


def test_an_answer_that_was_written_ahead_is_no_answer(sandbox: Sandbox) -> None:
    """It knows the wanted value and the number of the message it holds, but not the number of a
    question that was not yet asked."""
    code = KNOWS_THE_NUMBER + FORGERY.replace(
        "{record!r}", "ready + ready.replace(b'\"ready\"', b'[\"value\", 5]')"
    )
    assert answer(sandbox, code).error == "Stopped: no answer that can be read"


def test_what_comes_in_another_form_is_no_answer(sandbox: Sandbox) -> None:
    code = "import sys\nsys._getframe(1).f_globals\nimport builtins\nframe = sys._getframe()\n"
    code += "while 'evaluate_expression' not in frame.f_globals:\n    frame = frame.f_back\n"
    code += "frame.f_globals['evaluate_expression'] = lambda *asked: {form}\n"
    for form in ("['value']", "['error', 3]", "{'value': 5}", "5", "['value', 5, 5]", "[[]]"):
        answers = sandbox.run(
            {"main.py": code.replace("{form}", form)}, [("main.py", "5"), ("main.py", "6")]
        )
        assert {a.error for a in answers.answers} == {"Stopped: no answer that can be read"}
    forged = sandbox.run({"main.py": code.replace("{form}", "['value', 5]")}, [("main.py", "6")])
    # in its own process, code can print anything: task_tests.py decides what is believed
    assert forged.answers[0].equals(5)


WITNESS = """
import gc, sys
def seen():
    frame, texts = sys._getframe(), []
    while frame:
        texts.append(repr(frame.f_locals) + repr(frame.f_code.co_consts))
        frame = frame.f_back
    return texts + [repr(o) for o in gc.get_objects() if type(o) in (list, tuple, dict)]
def told(*parts):
    return any("".join(parts) in text for text in seen())
at_import = told("anot", "her")
"""


def test_no_question_is_there_before_the_last_is_answered(sandbox: Sandbox) -> None:
    """Code that searches its whole process finds the current question, and none of the following
    ones."""
    asked = [
        ("main.py", "told('to', 'ld(')"),
        ("main.py", "told('anot', 'her')"),
        ("main.py", "at_import"),
        ("main.py", "another"),
    ]
    run = sandbox.run({"main.py": WITNESS}, asked)
    assert [a.value for a in run.answers[:3]] == [True, False, False] and run.answers[
        3
    ].error.startswith("NameError")


FLOOD = """
import os
def flood():
    for descriptor in range(64):
        try:
            while True:
                os.write(descriptor, b"x" * 4096)
        except OSError:
            pass
"""


@pytest.mark.parametrize("end", ["os._exit(0)", "[0 for _ in iter(int, 1)]", "flood()"])
def test_an_answer_that_was_given_stands_however_the_run_ends(end: str) -> None:
    """Otherwise the first answer would reveal a later question."""
    with Sandbox(limits=SandboxLimits(time_s=0.3, wall_s=2.0)) as sandbox:
        run = sandbox.run(
            {"main.py": f"{FLOOD}\nresult = 1\n"},
            [("main.py", "result"), ("main.py", end), ("main.py", "result")],
        )
        assert run.answers[0].equals(1)
        assert [a.error.partition(":")[0] for a in run.answers[1:]] == ["Stopped", "Stopped"]


def test_a_flood_of_output_is_cut(sandbox: Sandbox) -> None:
    assert answer(sandbox, f"{FLOOD}\nflood()\n").error == "Stopped: too much output"


def test_the_code_holds_two_descriptors_at_most(sandbox: Sandbox) -> None:
    code = f"libc = {LIBC}\nresult = sum(libc.close(i) == 0 for i in range(1024))\n"
    answers = answer(sandbox, code)
    assert answers.error == "Stopped: the process died"  # the answer's pipe was among them
    code = (
        f"libc = {LIBC}\nimport os\nopen_ones = []\nbuffer ="
        " __import__('ctypes').create_string_buffer(256)\n"
    )
    code += (
        "for i in range(1024):\n    if libc.fstat(i, buffer) == 0:\n       "
        " open_ones.append(i)\nresult = len(open_ones)\n"
    )
    # 0 if the C library uses another system call, which is refused
    assert answer(sandbox, code).value in (0, 2)


def test_the_worker_knows_no_torch(sandbox: Sandbox) -> None:
    code = (
        "import sys\nresult = sorted({name.split('.')[0] for name in sys.modules} & {'torch',"
        " 'numpy', 'pydantic', 'transformers'})"
    )
    assert answer(sandbox, code).value == []


def test_a_worker_that_was_killed_is_an_error_and_not_an_answer() -> None:
    with Sandbox() as sandbox:
        sandbox.start()
        assert sandbox._worker is not None
        sandbox._worker.kill()
        sandbox._worker.wait()
        with pytest.raises(SandboxError, match="ended"):
            sandbox.run({"main.py": ""}, [("main.py", "1")])
        assert answer(sandbox, "result = 1").equals(1)  # and the next run has a new worker


def test_a_worker_started_in_a_thread_outlives_the_thread() -> None:
    with Sandbox() as sandbox:
        thread = threading.Thread(target=sandbox.start)
        thread.start()
        thread.join()
        time.sleep(0.05)
        assert answer(sandbox, "result = 1").equals(1)


def test_no_process_is_left_behind() -> None:
    with Sandbox() as sandbox:
        sandbox.start()
        assert sandbox._worker is not None
        # the worker leads its own session, its children are in its group
        group = sandbox._worker.pid
        os.killpg(group, 0)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError("processes of the sandbox live on after close()")
