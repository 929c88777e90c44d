"""Check docs/capabilities.md against capabilities.toml and the result of the last test run, or
write it.

    python scripts/capabilities.py [build/junit.xml]            exits with 1 if the page is stale
    python scripts/capabilities.py [build/junit.xml] --write    writes the page (make table)

    [[capability]]
    name = "Ingest Claude Code sessions"
    tests = ["tests/data/ingestion/test_claude_code.py::test_eras"]    # works: all of them passed
    # or: not_run = "needs a GPU"
    # or: absent = "next issue"
    # or: public_sessions = ["tests/..."]
    # or: some_machines = ["tests/..."]

A named test that does not exist, or that failed, is an error; one skipped case makes the row "not
run here". The table is the same with the public sessions and without, and on every machine: a case
that was skipped for want of them, or for "this machine ...", does not count if another case of the
row passed, and rows of `public_sessions` and `some_machines` always say what they need. Where that
is there, a failure is an error like any other.
"""

from __future__ import annotations

import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDS_PUBLIC_SESSIONS = "needs the public sessions"
"""The beginning of the skip reason if the public sessions are missing."""
THIS_MACHINE = "this machine "
"""The beginning of the skip reason if the machine cannot run a test, whatever is installed."""
SOMETIMES: dict[str, tuple[str, str | tuple[str, ...]]] = {
    "public_sessions": ("with the public sessions", NEEDS_PUBLIC_SESSIONS),
    "some_machines": ("where the machine can", THIS_MACHINE),
}
"""Key of a row whose tests may all be skipped -> its status, and the reason that is allowed."""
PAGE = Path("docs/capabilities.md")
HEAD = """# What works, and which test says so

<!-- written by scripts/capabilities.py from capabilities.toml and the result of the last
     `make test`: do not edit -->
The table is the same with and without the public sessions. Rows with "not run here" say why.

"""


def outcomes(junit: Path) -> dict[str, dict[str, str]]:
    """ "tests/a/test_b.py" -> test name -> "" (passed), "failed" or the reason it was skipped."""
    results: dict[str, dict[str, str]] = defaultdict(dict)
    for case in ET.parse(junit).iter("testcase"):
        parts = case.get("classname", "").split(".")
        while parts and not (ROOT / ("/".join(parts) + ".py")).exists():
            parts.pop()  # a class inside the file
        state = ""
        for child in case:
            if child.tag in ("failure", "error"):
                state = "failed"
            elif child.tag == "skipped":
                state = child.get("message", "skipped").removeprefix("Skipped: ")
        results["/".join(parts) + ".py"][case.get("name", "")] = state
    return results


def status(entry: dict[str, object], results: dict[str, dict[str, str]]) -> tuple[str, str]:
    """(status, reason or tests) of one capability; raises SystemExit for a test that does not exist
    or that failed."""
    if "absent" in entry:
        return "absent", str(entry["absent"])
    if "not_run" in entry:
        return "not run here", str(entry["not_run"])
    key = next((key for key in ("tests", *SOMETIMES) if key in entry), "tests")
    tests = entry.get(key)
    assert isinstance(tests, list) and tests, (
        f"{entry['name']}: needs tests, {', '.join(SOMETIMES)}, not_run or absent"
    )
    state, needs = SOMETIMES.get(key, ("works", ()))
    for node in tests:
        path, _, name = str(node).partition("::")
        cases = {
            n: s
            for n, s in results.get(path, {}).items()
            if not name or n == name or n.startswith(name + "[")
        }
        if not cases:
            raise SystemExit(f"capabilities: {entry['name']}: no test {node} ran")
        if "failed" in cases.values():
            raise SystemExit(f"capabilities: {entry['name']}: {node} failed")
        allowed = (NEEDS_PUBLIC_SESSIONS, THIS_MACHINE) if "" in cases.values() else needs
        reasons = [r for r in cases.values() if r and not r.startswith(allowed)]
        if reasons:
            return "not run here", reasons[0]
    return state, "<br>".join(f"`{node}`" for node in tests)


def table(entries: list[dict[str, object]], results: dict[str, dict[str, str]]) -> str:
    """The Markdown table."""
    rows = ["| capability | status | test, or why |", "|---|---|---|"]
    for entry in entries:
        state, note = status(entry, results)
        rows.append(f"| {entry['name']} | {state} | {note} |")
    return "\n".join(rows)


def main(arguments: list[str]) -> int:
    """Check the table, or write it; returns the exit code."""
    junit = Path(next((a for a in arguments if not a.startswith("-")), "build/junit.xml"))
    entries = tomllib.loads((ROOT / "capabilities.toml").read_text("utf-8"))["capability"]
    page = ROOT / PAGE
    wanted = HEAD + table(entries, outcomes(junit)) + "\n"
    if page.exists() and page.read_text("utf-8") == wanted:
        print(f"capabilities: {PAGE} is up to date")
        return 0
    if "--write" not in arguments:
        print(f"capabilities: {PAGE} is stale; `make table` writes it from the last `make test`")
        return 1
    page.write_text(wanted, "utf-8")
    print(f"capabilities: {PAGE} was rewritten; commit it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
