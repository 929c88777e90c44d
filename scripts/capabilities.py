"""Write the README's table of capabilities from capabilities.toml and the result of the last test run.

    python scripts/capabilities.py build/junit.xml [--check]

    [[capability]]
    name = "Ingest Claude Code sessions"
    tests = ["tests/data/ingestion/test_claude_code.py::test_eras"]     # works: all of them passed
    # or: not_run = "needs a GPU"    or: absent = "next issue"

A test that is named and does not exist, or failed, is an error; one case that was skipped makes the row "not run here".
With --check nothing is written, and a README that differs is an error.
"""

from __future__ import annotations

import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- capabilities: begin (written by scripts/capabilities.py) -->", "<!-- capabilities: end -->"


def outcomes(junit: Path) -> dict[str, dict[str, str]]:
    """ "tests/a/test_b.py" -> test name -> "" (passed), "failed" or the reason it was skipped."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
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
        found["/".join(parts) + ".py"][case.get("name", "")] = state
    return found


def status(entry: dict[str, object], results: dict[str, dict[str, str]]) -> tuple[str, str]:
    """(status, why or which test) of one capability; raises SystemExit for a test that does not exist or failed."""
    if "absent" in entry:
        return "absent", str(entry["absent"])
    if "not_run" in entry:
        return "not run here", str(entry["not_run"])
    tests = entry["tests"]
    assert isinstance(tests, list) and tests, f"{entry['name']}: needs tests, not_run or absent"
    for node in tests:
        path, _, name = str(node).partition("::")
        cases = {n: s for n, s in results.get(path, {}).items() if not name or n == name or n.startswith(name + "[")}
        if not cases:
            raise SystemExit(f"capabilities: {entry['name']}: no test {node} ran")
        if "failed" in cases.values():
            raise SystemExit(f"capabilities: {entry['name']}: {node} failed")
        reasons = [reason for reason in cases.values() if reason]
        if reasons:
            return "not run here", reasons[0]
    return "works", "<br>".join(f"`{node}`" for node in tests)


def table(entries: list[dict[str, object]], results: dict[str, dict[str, str]]) -> str:
    """The Markdown table."""
    rows = ["| capability | status | test, or why |", "|---|---|---|"]
    for entry in entries:
        state, note = status(entry, results)
        rows.append(f"| {entry['name']} | {state} | {note} |")
    return "\n".join(rows)


def main(arguments: list[str]) -> int:
    """Write the table, or check it; returns the exit code."""
    junit = Path(next((a for a in arguments if not a.startswith("-")), "build/junit.xml"))
    entries = tomllib.loads((ROOT / "capabilities.toml").read_text("utf-8"))["capability"]
    readme = ROOT / "README.md"
    text = readme.read_text("utf-8")
    if BEGIN not in text or END not in text:
        print(f"capabilities: README.md needs the lines {BEGIN!r} and {END!r}")
        return 1
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    wanted = f"{head}{BEGIN}\n{table(entries, outcomes(junit))}\n{END}{tail}"
    if wanted == text:
        print("capabilities: README.md is up to date")
        return 0
    if "--check" in arguments:
        print("capabilities: README.md is stale; run `make test` and commit README.md")
        return 1
    readme.write_text(wanted, "utf-8")
    print("capabilities: README.md was rewritten; commit it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
