"""Inside the judge's sandbox: runs the asked tests, reports each under a key.

The request is one JSON object on stdin:

    {"tests": ["tests/test_cart.py::test_sum"], "import_root": ".", "guarded": ["shop/cart.py"],
     "known": null or what the original's run noted}

The record goes to the descriptor JUDGE_FD, a JSON line each with an HMAC over it and all lines
before; the key is read once from JUDGE_KEY_FD. The last line is a seal. An exit code, a printed
word, a line without the key: none of them counts. A test counts as passed if its own code (as
compiled here, before any code of the repository ran) returned to this file's caller without an
exception, and pytest says so for its setup, call and teardown too.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import importlib.util
import inspect
import json
import os
import secrets
import sys
import sysconfig
import types
import warnings
from collections.abc import Callable
from typing import Any

JUDGED = "/repo"
SECRET = ("/repo/tests", "/repo/test", "/proc/", "/judge")
"""Beginnings of paths that no tested code needs to open while it is tested."""
PYTEST = ("_pytest", "pytest", "pluggy")
QUIET = ("-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-o", "addopts=")


def judge_requested_tests() -> None:
    """Judge, and end without running anything that the tested code left for the end."""
    request = json.loads(sys.stdin.buffer.read())
    record = open_record(int(os.environ.pop("JUDGE_FD")), int(os.environ.pop("JUDGE_KEY_FD")))
    nowhere = os.open(os.devnull, os.O_RDWR)
    known = request["known"]
    for descriptor in (0, 1) if known is None else (0, 1, 2):
        os.dup2(nowhere, descriptor)
    end = os._exit
    judge_under_guard(request, record, {} if known is None else known)
    end(0)


def open_record(descriptor: int, key_descriptor: int) -> Callable[..., None]:
    """A function that writes lines which only the holder of the key can write."""
    key = os.read(key_descriptor, 64)
    os.close(key_descriptor)
    os.set_inheritable(descriptor, False)
    write, dumps, digest, sha = os.write, json.dumps, hmac.digest, hashlib.sha256
    chain = [b""]

    def record(**row: Any) -> None:
        body = dumps(row).encode()
        chain[0] = digest(key, chain[0] + body, sha)
        data = body + b" " + chain[0].hex().encode() + b"\n"
        while data:
            data = data[write(descriptor, data) :]

    return record


def judge_under_guard(
    request: dict[str, Any], record: Callable[..., None], known: dict[str, Any]
) -> None:
    """Put the guards up, run pytest, seal the record."""
    guards = load_guards()
    import _pytest.assertion.rewrite
    import pytest

    seen: dict[str, set[str]] = {"members": set(), "operands": set(), "events": set()}
    calibrated = {name: frozenset(known[name]) if known else None for name in seen}
    codes: dict[str, bool] = {}

    def report(what: str) -> None:
        record(kind="guard", what=what)

    library = (sysconfig.get_path("stdlib") + "/", sysconfig.get_path("platstdlib") + "/")
    folders = tuple({sysconfig.get_path("purelib") + "/", sysconfig.get_path("platlib") + "/"})
    packages = tuple(f"{folder}{name}/" for folder in folders for name in PYTEST)
    see = guards.track_operands(
        calibrated["operands"],
        seen["operands"],
        lawful=lambda name: (
            name.startswith(packages)
            or (
                name.startswith((*library, "<frozen "))
                and not name.startswith(folders)  # where they lie below the standard library
                and not name.endswith("/unittest/mock.py")
                and not name.startswith(tuple(f"{folder}test/" for folder in library))
            )
        ),
        report=report,
    )
    rewrite_with_looks(see, guards)
    compiled = compile_tests(request["tests"], _pytest.assertion.rewrite, guards.compiled_codes)
    root = request["import_root"]
    sys.path[:1] = [os.path.normpath(f"{JUDGED}/{root}"), JUDGED, "/metadata"]
    os.environ["PYTHONPATH"] = f"{JUDGED}/{root}:{JUDGED}:/metadata"
    os.chdir(JUDGED)
    changed = guards.track_members(calibrated["members"], seen["members"])
    guarded = frozenset(f"{JUDGED}/{path}" for path in request["guarded"])
    guards.track_events(
        calibrated["events"],
        seen["events"],
        guarded=guarded,
        library=library,
        secret=SECRET,
        report=report,
    )()
    plugin = make_plugin(request["tests"], record, changed=changed, compiled=compiled, codes=codes)
    files = sorted({name.partition("::")[0] for name in request["tests"]})
    pytest.main([*QUIET, *files], plugins=[plugin])
    if what := changed(True):
        report(f"at the end: {what}")
    record(kind="seal", codes=codes, **{name: sorted(value) for name, value in seen.items()})


def load_guards() -> Any:
    """judge_guard.py, under no name in sys.modules."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "judge_guard.py")
    spec = importlib.util.spec_from_file_location("judge_guard", path)
    assert spec is not None and spec.loader is not None
    guards = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(guards)
    return guards


def rewrite_with_looks(look: Callable[[Any], Any], guards: Any) -> None:
    """From here on pytest's rewriting of a test module also shows what it compares."""
    import ast

    import _pytest.assertion.rewrite as rewriting

    rewrite, compile_tree = rewriting.rewrite_asserts, compile
    mark = secrets.token_hex(12)
    sys.dont_write_bytecode = True  # the look cannot be written

    def rewrite_asserts(tree: Any, source: bytes, *arguments: Any, **options: Any) -> None:
        ast.fix_missing_locations(guards.OperandLooks(mark).visit(tree))
        rewrite(tree, source, *arguments, **options)

    def compile_with_looks(*arguments: Any, **options: Any) -> Any:
        return guards.with_constant(compile_tree(*arguments, **options), mark, look)

    rewriting.rewrite_asserts = rewrite_asserts
    setattr(rewriting, "compile", compile_with_looks)  # noqa: B010


def compile_tests(tests: list[str], rewriting: Any, codes_of: Any) -> frozenset[Any]:
    """Every code object of the test files, before any code of the repository could change them."""
    import ast

    codes: set[Any] = set()
    for name in {name.partition("::")[0] for name in tests}:
        path = f"{JUDGED}/{name}"
        with open(path, "rb") as file:
            source = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, filename=path)
            rewriting.rewrite_asserts(tree, source, path, None)
            codes.update(codes_of(rewriting.compile(tree, path, "exec", dont_inherit=True)))
    return frozenset(codes)


def watched_call(
    name: str, function: Any, returned: dict[str, str], changed: Callable[[bool], str]
) -> Any:
    """A test's function that notes whether it returned, and what had been replaced by then."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*arguments: Any, **options: Any) -> Any:
            returned[name] = "raised"
            result = await function(*arguments, **options)
            returned[name] = changed(False) or "passed"
            return result

        return call_async

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        returned[name] = "raised"
        result = function(*arguments, **options)
        returned[name] = changed(False) or "passed"
        return result

    return call


def make_plugin(
    tests: list[str],
    record: Callable[..., None],
    *,
    changed: Callable[[bool], str],
    compiled: frozenset[Any],
    codes: dict[str, bool],
) -> Any:
    """A plugin without a class: classes can be listed, and lead to the functions' closures."""
    import pytest

    wanted = frozenset(tests)
    returned: dict[str, str] = {}
    outcomes: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid in wanted]
        for item in items:
            function = inspect.unwrap(getattr(item, "obj", None) or record)
            code = getattr(function, "__code__", None)
            codes[item.nodeid] = code in compiled
        if what := changed(True):
            record(kind="guard", what=f"after the collection: {what}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(item: Any) -> Any:
        if what := changed(False):
            record(kind="guard", what=what)
        function = getattr(item, "obj", None)
        if isinstance(function, types.FunctionType | types.MethodType):
            item.obj = watched_call(item.nodeid, function, returned, changed)
        try:
            return (yield)
        finally:
            returned.setdefault(item.nodeid, "" if function is None else "was not called")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(report: Any) -> None:
        name = report.nodeid
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        if (report.when == "call" or outcome != "passed") and outcomes.get(name) in (
            None,
            "passed",
        ):
            outcomes[name] = outcome
        if report.when == "teardown":
            record(
                kind="test",
                id=name,
                outcome=outcomes.get(name, "no outcome"),
                returned=returned.get(name, "did not run"),
            )

    plugin = types.ModuleType("judged")  # hashable, and no class that can be listed
    for hook in (
        pytest_collection_modifyitems,
        pytest_runtest_call,
        pytest_runtest_logreport,
    ):
        setattr(plugin, hook.__name__, hook)
    return plugin


if __name__ == "__main__":
    judge_requested_tests()
