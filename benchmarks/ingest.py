"""Reading speed, memory and stored size of ingestion, as ratios that do not depend on the machine.

    python benchmarks/ingest.py
        made-up sessions of usual shape, 0.1 GB for the memory part
    python benchmarks/ingest.py --logs FOLDER --gb 1
        your own or the public sessions, and a gigabyte of copies

reading   decode + merge + join of this package (no redaction, hashing or writing) against msgspec's
          typed decode of the same files in the same run: `for line in file: decode(line)` into a
          struct with typed content blocks, call arguments left as bytes. CPU time, best of
          --repeat. Records much smaller than usual (2.6 kB on average) lower the ratio, because the
          work of merging depends on the number of records and that of decoding on the bytes.
          "buffered" is the same decode with the larger read buffer of this package: it is shown,
          but the limit does not apply to it.
memory    peak resident memory of a full ingest (redaction, hashing, writing) of --gb of copies with
          fresh ids, less the interpreter with its imports and the id index, against the file of the
          largest session.
size      bytes of sessions.jsonl against the UTF-8 bytes of the blocks: texts, thinking, results,
          and of a call its id, name and compact JSON arguments. Headers, roles, authors and JSON
          escapes are the overhead.

Prints a table and writes it as JSON with --json FILE; exits with 1 if a ratio misses its limit.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from composer_replication.core.codec import encode_session, write_sessions
from composer_replication.core.jsonl import dumps
from composer_replication.core.redact import Redactor
from composer_replication.core.trace import Block, Session, ToolCall
from composer_replication.data.ingestion.claude_code import Links, ingest, sessions_of
from composer_replication.data.ingestion.find_logs import LogFile, find_logs
from composer_replication.data.ingestion.lines import BUFFER_BYTES
from composer_replication.data.ingestion.log_reader import FileReader, KnownIds

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MIN_READING, MAX_MEMORY, MAX_SIZE = 0.5, 4.0, 1.1
_ID = re.compile(
    rb"(?<=\")(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?:toolu|msg|req)_[A-Za-z0-9]{8,})"
)
_MIN_TIMED_BYTES = 2 * 10**7


class PlainBlock(msgspec.Struct):
    """A content block with its arguments left as bytes."""

    type: str = ""
    id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None
    input: msgspec.Raw = msgspec.Raw()
    tool_use_id: str | None = None
    is_error: bool | None = None
    content: str | list[dict] | None = None


class PlainMessage(msgspec.Struct):
    """A message."""

    role: str = ""
    id: str | None = None
    model: str | None = None
    content: str | list[PlainBlock] | None = None


class PlainRecord(msgspec.Struct):
    """A record, with what any reader of these logs needs."""

    type: str = ""
    subtype: str | None = None
    uuid: str | None = None
    parentUuid: str | None = None
    sessionId: str | None = None
    isSidechain: bool = False
    isMeta: bool = False
    isCompactSummary: bool = False
    timestamp: str | None = None
    version: str | None = None
    message: PlainMessage | None = None


# ---- logs ----------------------------------------------------------------------------------------


def write_usual_logs(folder: Path, *, num_sessions: int = 12, num_steps: int = 70) -> Path:
    """Made-up sessions whose records have the mix and the sizes of real ones of 2.1 (mean 2.6 kB);
    returns the folder."""
    sys.path.insert(0, str(EXAMPLES))
    # log_writer.py is beside the demonstration logs, not in the package.
    writer = importlib.import_module("log_writer")

    rng = random.Random(7)
    vocabulary = (
        "def",
        "return",
        "self",
        "value",
        "index",
        "total",
        "path",
        "name",
        "for",
        "in",
        "not",
        "None",
        "list",
        "config",
        "error",
        "test",
    )

    def prose(num_chars: int) -> str:
        lines = (
            " ".join(rng.choices(vocabulary, k=rng.randint(3, 11)))
            for _ in range(num_chars // 36 + 1)
        )
        return "\n    ".join(lines)

    for number in range(num_sessions):
        log = writer.LogWriter(f"usual-{number}", version="2.1.30", cwd="/home/dev/shop")
        log.human(prose(300))
        for step in range(num_steps):
            num_calls = 1 if rng.random() < 0.8 else 3
            results = [prose(rng.choice((120, 400, 1200, 4000))) for _ in range(num_calls)]
            calls = [
                writer.Call("Bash", {"command": prose(120), "description": prose(40)}, text)
                for text in results
            ]
            ids = log.act(prose(160), *calls, thinking=prose(700) if rng.random() < 0.6 else None)
            for row in log.records[-num_calls:]:
                row["toolUseResult"] = {
                    "stdout": results[0],
                    "stderr": "",
                    "originalFile": prose(rng.choice((0, 0, 9000))),
                }
            for row in log.records[-2 * num_calls - 2 :]:
                for block in row.get("message", {}).get("content", []):
                    if isinstance(block, dict) and block["type"] == "thinking":
                        block["signature"] = "Ev" * 400
            for _ in range(rng.choice((0, 1, 2))):
                log.progress(
                    {
                        "type": "bash_progress",
                        "output": prose(80),
                        "fullOutput": prose(2500),
                        "totalLines": step,
                    },
                    ids[0],
                )
            if step % 10 == 0:
                log.snapshot()
        log.write(folder)
    return folder


# ---- reading -------------------------------------------------------------------------------------


def _decode_all(
    logs: list[LogFile], decode: Callable[[bytes], object], *, buffer_bytes: int = -1
) -> None:
    for log in logs:
        with log.path.open("rb", buffering=buffer_bytes) as stream:
            for line in stream:
                decode(line)


def _read_all(logs: list[LogFile]) -> None:
    known, links = KnownIds(), Links()
    for log in logs:
        reader = FileReader(log, known, hashed=False)
        reader.read()
        sessions_of(reader, links, log.name)
        known.update(reader.fresh)


def measure_reading(logs: list[LogFile], *, repeat: int) -> dict[str, float]:
    """MB/s of each way and the two ratios."""
    num_bytes = sum(log.num_bytes for log in logs)
    rounds = max(1, -(-_MIN_TIMED_BYTES // num_bytes))
    plain = msgspec.json.Decoder(PlainRecord).decode
    ways: dict[str, Callable[[], None]] = {
        "decode": lambda: _decode_all(logs, plain),
        "decode_buffered": lambda: _decode_all(logs, plain, buffer_bytes=BUFFER_BYTES),
        "pipeline": lambda: _read_all(logs),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(repeat):
        for name, way in ways.items():
            gc.collect()
            start = time.process_time()
            for _ in range(rounds):
                way()
            best[name] = min(best[name], time.process_time() - start)
    speed = {name: rounds * num_bytes / 1e6 / seconds for name, seconds in best.items()}
    return {
        **{f"{name}_mb_per_s": round(value, 1) for name, value in speed.items()},
        "ratio": round(speed["pipeline"] / speed["decode"], 3),
        "ratio_buffered": round(speed["pipeline"] / speed["decode_buffered"], 3),
    }


# ---- size ----------------------------------------------------------------------------------------


def block_bytes(block: Block) -> int:
    """UTF-8 bytes of a block as it is kept, e.g. 5 for Text("abcde")."""
    text = (
        block.id + block.name + dumps(block.arguments)
        if isinstance(block, ToolCall)
        else block.text
    )
    return len(text.encode("utf-8", "surrogatepass"))


def measure_size(logs: list[LogFile]) -> dict[str, float]:
    """Bytes stored, bytes of the blocks, and their ratio."""
    in_blocks = stored = 0
    for result in ingest(logs, redactor=Redactor(environ={}), hashed=False):
        for session in result.sessions:
            in_blocks += sum(block_bytes(block) for turn in session.turns for block in turn.blocks)
            stored += sum(len(line.encode("utf-8")) + 1 for line in encode_session(session))
    return {"stored_bytes": stored, "block_bytes": in_blocks, "ratio": round(stored / in_blocks, 4)}


# ---- memory --------------------------------------------------------------------------------------


def write_copies(logs: list[LogFile], folder: Path, *, num_bytes: int) -> tuple[int, int]:
    """Write copies of logs with fresh ids until `num_bytes` are there; returns (files, bytes)."""
    files = written = 0
    while written < num_bytes:
        for log in logs:
            mark = f"{files:06x}".encode()
            # Every id of the file changes in the same way, so the links between its records hold.
            text = _ID.sub(
                lambda m, mark=mark: m[0][:-6] + mark if m[0][8:9] == b"-" else m[0] + mark,
                log.path.read_bytes(),
            )
            path = folder / f"{files:06d}" / log.path.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
            files, written = files + 1, written + len(text)
            if written >= num_bytes:
                break
    return files, written


def _resident_bytes() -> int:
    """Peak resident bytes of this process; from /proc, because getrusage counts what the parent had
    before exec."""
    status = Path("/proc/self/status")
    if status.exists() and (match := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return int(match[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def ingest_once(folder: Path) -> dict[str, int]:
    """Ingest a folder and return its memory use and counts; run in a fresh process."""
    known = KnownIds()
    before = _resident_bytes()
    logs = find_logs([folder])
    turns = 0

    def sessions() -> Iterator[Session]:
        nonlocal turns
        for result in ingest(logs, redactor=Redactor(environ={}), known=known):
            for session in result.sessions:
                turns += len(session.turns)
                yield session

    num_sessions = write_sessions(folder.parent / "sessions.jsonl", sessions())
    peak = _resident_bytes()
    return {
        "peak_bytes": peak,
        "base_bytes": before,
        "index_bytes": known.num_bytes,
        "num_sessions": num_sessions,
        "num_turns": turns,
    }


def measure_memory(logs: list[LogFile], *, gb: float) -> dict[str, float]:
    """Peak above interpreter and index, and its ratio to the largest file."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "logs"
        num_files, num_bytes = write_copies(logs, folder, num_bytes=int(gb * 1e9))
        command = [sys.executable, __file__, "--ingest-once", str(folder)]
        process = subprocess.run(command, capture_output=True, text=True, check=True)
        usage = json.loads(process.stdout)
    largest = max(log.num_bytes for log in logs)
    above = usage["peak_bytes"] - usage["base_bytes"] - usage["index_bytes"]
    return {
        **usage,
        "num_files": num_files,
        "log_bytes": num_bytes,
        "largest_session_bytes": largest,
        "above_bytes": above,
        "ratio": round(above / largest, 2),
    }


# ---- main ----------------------------------------------------------------------------------------


def main() -> int:
    """Measure, print, compare with the limits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=Path, nargs="+", help="files or folders to measure on")
    parser.add_argument(
        "--gb",
        type=float,
        default=0.1,
        help="size of the copies for the memory part; 0 leaves it out",
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    parser.add_argument("--ingest-once", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ingest_once:
        print(json.dumps(ingest_once(options.ingest_once)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        logs = list(find_logs(options.logs or [write_usual_logs(Path(scratch))]))
        reading, size = measure_reading(logs, repeat=options.repeat), measure_size(logs)
        memory = measure_memory(logs, gb=options.gb) if options.gb else {}
    rows = [
        ("reading / typed decode of the same files", reading["ratio"], ">=", MIN_READING),
        ("stored bytes / bytes of the blocks", size["ratio"], "<=", MAX_SIZE),
    ]
    if memory:
        rows.append(
            (
                f"memory above base and index / largest session ({options.gb:g} GB)",
                memory["ratio"],
                "<=",
                MAX_MEMORY,
            )
        )
    missed = False
    for name, value, sign, limit in rows:
        is_met = value >= limit if sign == ">=" else value <= limit
        missed |= not is_met
        print(f"{name:68s} {value:8.3f}   {sign} {limit}   {'ok' if is_met else 'MISSED'}")
    numbers = {"reading": reading, "size": size, "memory": memory}
    print(json.dumps(numbers))
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
