"""Four sessions about inkwell, a made-up note-taking package: Claude Code 1.0.71, 2.0.76, 2.1.30
and 2.1.284."""

from __future__ import annotations

from pathlib import Path

from demo_answers import (
    bad_arguments,
    bash,
    denied,
    edit,
    edit_many,
    edit_no_match,
    edit_not_read,
    grep,
    no_tool,
    read,
    read_missing,
    rejected,
    sibling,
)
from demo_tools import SYSTEM_PROMPT, TOOLS
from log_writer import Call, LogWriter

CWD = "/home/dev/inkwell"
NOTES = (
    "class Note:\n"
    "    def __init__(self, title, body=''):\n"
    "        self.title = title\n"
    "        self.body = body\n"
    "\n"
    "    def slug(self):\n"
    "        return self.title.lower().replace(' ', '-')"
)
STORE = (
    "import json\n"
    "\n"
    "\n"
    "class Store:\n"
    "    def __init__(self, path):\n"
    "        self.path = path\n"
    "\n"
    "    def load(self):\n"
    "        return json.loads(self.path.read_text())"
)
TEST = (
    "from inkwell.notes import Note\n\n\ndef test_slug():\n    assert Note('Hello, World').slug()"
    " == 'hello-world'"
)
FAILED = (
    "============ FAILURES ============\n"
    "tests/test_notes.py:5: AssertionError\n"
    "assert 'hello,-world' == 'hello-world'\n"
    "FAILED tests/test_notes.py::test_slug\n"
    "1 failed, 3 passed in 0.04s"
)


def inkwell_logs(folder: Path) -> list[Path]:
    """Write the sessions below `folder` and return the paths."""
    return [_first(folder), _second(folder), _third(folder), _fourth(folder)]


def _first(folder: Path) -> Path:
    """1.0.71: summaries of another session, a subagent in the same file, a repeated record."""
    log = LogWriter("inkwell-1", version="1.0.71", cwd=CWD, model="claude-opus-4-1-20250805")
    log.bare(
        "summary", summary="Slug rules for notes", leafUuid=log._uuid("leaf of another session")
    )
    log.human("test_slug fails. Find out why and fix it.")
    log.act("I'll read the test first.", read_missing(f"{CWD}/test_notes.py"))
    log.act("", bash("ls tests", "test_notes.py\ntest_store.py"))
    log.act("", read(f"{CWD}/tests/test_notes.py", TEST))
    prompt = (
        "Find every place in inkwell that builds a slug, and say which of them strip punctuation."
    )
    task = Call(
        "Task",
        {"description": "Find slug code", "prompt": prompt, "subagent_type": "general-purpose"},
        None,
    )
    call_id = log.act("Let me have the slug code searched.", task)[0]
    owner, log.parent = log.parent, None
    log.agent_id = "side"
    log.human(prompt)
    log.act(
        "",
        grep(
            "slug",
            "inkwell/notes.py:6:    def slug(self):\ninkwell/export.py:11:    name = note.slug()",
        ),
    )
    log.act("", no_tool("SearchFiles", query="punctuation", path="inkwell"))
    log.act("", grep("punctuation", "No matches found"))
    log.act("Only Note.slug builds one (inkwell/notes.py:6); nothing strips punctuation.")
    log.agent_id, log.parent = "", owner
    answer = [
        {
            "type": "text",
            "text": "Only Note.slug builds one (inkwell/notes.py:6); nothing strips punctuation.",
        }
    ]
    log.result(call_id, Call("Task", {}, answer), owner or "")
    fixed = "return re.sub(r'[^a-z0-9]+', '-', self.title.lower()).strip('-')"
    log.act(
        "",
        edit_not_read(
            f"{CWD}/inkwell/notes.py", "return self.title.lower().replace(' ', '-')", fixed
        ),
    )
    log.act("I have to read the file before I can edit it.", read(f"{CWD}/inkwell/notes.py", NOTES))
    log.act(
        "",
        edit(
            f"{CWD}/inkwell/notes.py",
            "        return self.title.lower().replace(' ', '-')",
            f"        {fixed}",
        ),
    )
    log.act(
        "", bash("pyhton -m pytest -q", "/bin/bash: line 1: pyhton: command not found", code=127)
    )
    log.act(
        "",
        bash(
            "python -m pytest -q",
            "NameError: name 're' is not defined\n1 failed, 3 passed in 0.05s",
            code=1,
        ),
    )
    log.act(
        "The import is missing.",
        edit(f"{CWD}/inkwell/notes.py", "class Note:", "import re\n\n\nclass Note:"),
    )
    log.act("", bash("python -m pytest -q", "4 passed in 0.03s"))
    log.act("test_slug passes: Note.slug now turns every run of other characters into one dash.")
    log.records.append({**log.records[-1], "uuid": log._uuid("again"), "parentUuid": None})
    return log.write(folder)


def _second(folder: Path) -> Path:
    """2.0.76: snapshots, thinking, parallel calls, a failed sibling, a refusal by the human."""
    log = LogWriter(
        "inkwell-2",
        version="2.0.76",
        cwd=CWD,
        model="claude-opus-4-5-20251101",
        branch="store-errors",
    )
    log.snapshot()
    log.human("Store.load crashes on an empty file. Make it return an empty list, with a test.")
    log.act(
        "",
        read(f"{CWD}/inkwell/store.py", STORE),
        read(f"{CWD}/tests/test_store.py", "def test_load(tmp_path):\n    ..."),
        thinking="Read the store and its tests before changing anything.",
    )
    old = "    def load(self):\n        return json.load(self.path.open())"
    new = (
        "    def load(self):\n        text = self.path.read_text()\n        return json.loads(text)"
        " if text.strip() else []"
    )
    log.act(
        "",
        edit_no_match(f"{CWD}/inkwell/store.py", old, new),
        thinking="load reads the whole file; an empty one is no JSON.",
    )
    log.act("", edit_no_match(f"{CWD}/inkwell/store.py", old, new))
    log.act(
        "",
        edit(
            f"{CWD}/inkwell/store.py",
            "        return json.loads(self.path.read_text())",
            new.partition("\n")[2],
        ),
    )
    log.act(
        "",
        bad_arguments(
            "Write",
            "The required parameter `content` is missing",
            file_path=f"{CWD}/tests/test_empty.py",
        ),
    )
    body = (
        "from inkwell.store import Store\n\n\ndef test_empty(tmp_path):\n    path = tmp_path /"
        " 'n.json'\n    path.write_text('')\n    assert Store(path).load() == []"
    )
    log.act(
        "",
        Call(
            "Write",
            {"file_path": f"{CWD}/tests/test_empty.py", "content": body},
            f"File created successfully at: {CWD}/tests/test_empty.py",
        ),
    )
    log.act(
        "",
        bash(
            "python -m pytest -q --fial-fast",
            "ERROR: usage: pytest [options] [file_or_dir]\npytest: error: unrecognized arguments:"
            " --fial-fast",
            code=4,
        ),
        sibling("Bash", command="ruff check ."),
    )
    log.act(
        "",
        bash("python -m pytest -q", "5 passed in 0.04s"),
        bash("ruff check .", "All checks passed!"),
    )
    log.act(
        "",
        rejected(
            "Bash", "Don't commit, I will look at it first.", command="git commit -am 'Empty store'"
        ),
    )
    log.act(
        "Nothing is committed. Store.load returns [] for an empty file; tests/test_empty.py"
        " covers it."
    )
    log.record(
        "system", subtype="stop_hook_summary", hookCount=1, hookErrors=[], level="suggestion"
    )
    return log.write(folder)


def _third(folder: Path) -> Path:
    """2.1.30: progress records, a subagent in them, interleaved results, micro-compaction,
    compaction, a rewind."""
    log = LogWriter("inkwell-3", version="2.1.30", cwd=CWD, branch="export")
    log.record(
        "progress",
        data={"type": "hook_progress", "hookEvent": "SessionStart"},
        toolUseID="h0",
        parentToolUseID="h0",
    )
    log.snapshot()
    log.human("Add an export command that writes all notes to one markdown file.")
    prompt = "List the commands that inkwell/cli.py defines."
    task = Call(
        "Task", {"description": "List commands", "prompt": prompt, "subagent_type": "Explore"}, None
    )
    call_id = log.act("First, what is there.", task, thinking="Explore before writing.")[0]
    owner = log.parent or ""
    _agent_progress(log, call_id, prompt)
    log.result(
        call_id,
        Call("Task", {}, [{"type": "text", "text": "inkwell/cli.py defines add and list."}]),
        owner,
    )
    log.act(
        "",
        read(f"{CWD}/inkwell/cli.py", "import click\n\n\n@click.group()\ndef cli(): ..."),
        read_missing(f"{CWD}/inkwell/exporter.py"),
        interleaved=True,
    )
    log.bare(
        "queue-operation",
        operation="enqueue",
        timestamp=log._stamp(),
        sessionId=log.session_id,
        content="keep the titles as headings",
    )
    log.bare(
        "queue-operation", operation="remove", timestamp=log._stamp(), sessionId=log.session_id
    )
    log.act(
        "",
        bash(
            "cat inkwell/export.py | head -n",
            "head: option requires an argument -- 'n'\nTry 'head --help' for more information.",
            code=1,
        ),
    )
    ids = log.act(
        "",
        bash(
            "cat inkwell/export.py",
            "def export(note):\n    return f'# {note.title}\\n{note.body}'",
            description="Show export",
        ),
    )
    metadata = {
        "trigger": "auto",
        "preTokens": 9000,
        "tokensSaved": 2100,
        "compactedToolIds": [ids[0]],
        "clearedAttachmentUUIDs": [],
    }
    log.record(
        "system",
        subtype="microcompact_boundary",
        content="Context microcompacted",
        microcompactMetadata=metadata,
    )
    human_uuid = log.human("Write it as a click command called export.")
    log.act(
        "",
        edit_many(
            f"{CWD}/inkwell/cli.py", "@click.group()", "@click.group()\n@click.version_option()"
        ),
    )
    log.parent = human_uuid  # the human went back and asked differently
    log.human(
        "Write it as a click command called export, in inkwell/cli.py, and keep cli() as it is.",
        parent=human_uuid,
    )
    command = (
        "@cli.command()\ndef export():\n    for note in Store(PATH).load():\n        click.echo(f'#"
        " {note.title}\\n{note.body}')"
    )
    log.act("", edit(f"{CWD}/inkwell/cli.py", "def cli(): ...", f"def cli(): ...\n\n\n{command}"))
    log.progress(
        {"type": "bash_progress", "output": "running", "elapsedTimeSeconds": 2, "totalLines": 1},
        call_id,
    )
    log.act(
        "",
        bash(
            "python -m pytest -q tests/test_cli.py",
            FAILED.replace("test_notes", "test_cli"),
            code=1,
        ),
    )
    log.record("system", subtype="turn_duration", durationMs=5120)
    tail = log.parent
    metadata = {"trigger": "auto", "preTokens": 150000, "preservedMessages": {"uuids": [tail]}}
    log.record(
        "system",
        parent=None,
        logicalParentUuid=tail,
        subtype="compact_boundary",
        content="Conversation compacted",
        compactMetadata=metadata,
    )
    summary = (
        "This session is being continued from a previous conversation that ran out of context. "
        "Summary: an export command was added to inkwell/cli.py; "
        "tests/test_cli.py still fails."
    )
    log.human(summary, isCompactSummary=True, isVisibleInTranscriptOnly=True)
    log.act(
        "",
        edit_not_read(
            f"{CWD}/inkwell/export.py", "return f'# {note.title}", "return f'## {note.title}"
        ),
    )
    log.act(
        "",
        read(
            f"{CWD}/inkwell/export.py",
            "def export(note):\n    return f'# {note.title}\\n{note.body}'",
        ),
    )
    log.act("", edit(f"{CWD}/inkwell/export.py", "'# {note", "'## {note"))
    log.act("", bash("python -m pytest -q tests/test_cli.py", "2 passed in 0.05s"))
    log.act("The export command works; titles are headings of the second level.")
    return log.write(folder)


def _agent_progress(log: LogWriter, call_id: str, prompt: str) -> None:
    """The messages of a subagent as progress records carry them."""
    child = log.subagent("a41c9d2")
    child.human(prompt)
    child.act("", no_tool("ListFiles", path="inkwell"))
    child.act("", read(f"{CWD}/inkwell/cli.py", "import click\n\n\n@click.group()\ndef cli(): ..."))
    for row in child.records:
        message = {k: row[k] for k in ("type", "message", "uuid", "timestamp")}
        log.progress(
            {
                "type": "agent_progress",
                "message": message,
                "normalizedMessages": [],
                "prompt": prompt,
                "agentId": "a41c9d2",
            },
            call_id,
        )


def _fourth(folder: Path) -> Path:
    """2.1.284: system prompt and tool schemas in the log, reminders as they were rendered, thinking
    without text."""
    log = LogWriter("inkwell-4", version="2.1.284", cwd=CWD, model="claude-opus-5", branch="tags")
    log.attachment(
        {
            "type": "prompt_snapshot",
            "systemPrompt": SYSTEM_PROMPT,
            "tools": TOOLS,
            "cliPrefix": "claude",
        }
    )
    log.human(
        "Notes need tags. Add a tags field and a --tag filter to list.",
        turnOrigin="human",
        turnPosition={"promptIndex": 0, "turnIndex": 0},
    )
    reminder = (
        "<system-reminder>\nThe file CLAUDE.md says: always run the tests with `python -m pytest"
        " -q`.\n</system-reminder>"
    )
    log.attachment(
        {
            "type": "nested_memory",
            "path": f"{CWD}/CLAUDE.md",
            "content": {"content": "Run the tests with python -m pytest -q."},
        },
        rendered=reminder,
    )
    log.act("", no_tool("ReadFile", path=f"{CWD}/inkwell/notes.py"), thinking="")
    log.act("", read(f"{CWD}/inkwell/notes.py", NOTES))
    log.act(
        "",
        edit_no_match(
            f"{CWD}/inkwell/notes.py",
            "def __init__(self, title, body):",
            "def __init__(self, title, body='', tags=()):",
        ),
    )
    log.act(
        "",
        edit(
            f"{CWD}/inkwell/notes.py",
            "def __init__(self, title, body=''):",
            "def __init__(self, title, body='', tags=()):",
        ),
    )
    log.act(
        "", bad_arguments("Grep", "An unexpected parameter `query` was provided", query="def list")
    )
    log.act("", grep("def list", "inkwell/cli.py:12:def list_notes():"))
    log.act("", edit_not_read(f"{CWD}/inkwell/cli.py", "def list_notes():", "def list_notes(tag):"))
    log.act(
        "",
        read(
            f"{CWD}/inkwell/cli.py",
            "@cli.command('list')\ndef list_notes():\n    for note in Store(PATH).load():\n       "
            " click.echo(note.title)",
        ),
    )
    log.act(
        "",
        edit(
            f"{CWD}/inkwell/cli.py",
            "def list_notes():",
            "@click.option('--tag', default='')\ndef list_notes(tag):",
        ),
    )
    log.act(
        "",
        bash(
            "python -m pytest -q 'tests",
            "/bin/bash: -c: line 1: unexpected EOF while looking for matching `''",
            code=2,
        ),
    )
    log.act("", bash("python -m pytest -q", "6 passed in 0.05s"))
    log.act("", denied("git push --force"))
    log.act(
        "Tags are stored and `inkwell list --tag x` filters by them. Nothing was pushed.",
        thinking="",
    )
    return log.write(folder)
