"""Made-up work folders, runs and evaluations for the tests of the pages, and a reader of HTML."""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from composer_replication.core.codec import record_to_json, write_sessions
from composer_replication.core.config.root import Config
from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.core.rundir import RunDir, create_run, sha256_of
from composer_replication.core.site import Anchor, Answer, Hint, Preference, Site, turn_site_id
from composer_replication.core.trace import (
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)

VOID = {"meta", "br", "input"}
EVIL = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" x="',
    "' autofocus onfocus='alert(1)",
    "javascript:alert(1)",
    "</style><style>*{display:none}</style>",
    "--><!-- <svg/onload=alert(1)>",
    "]]><iframe srcdoc=x>",
    "&lt;b&gt; &#x3c;script&#x3e;",
    "\u2028\u2029\u202etxt.exe\u2066\u200f",
    "\x1b[31m\x1b]0;title\x07\x00\x9b2J",
    "\ud800 lone",
    "{{7*7}} ${7*7} <%= 7 %>",
)


@dataclass
class Page(HTMLParser):
    """A parsed page: its elements with their attributes, text by id, and unclosed elements."""

    text_of: dict[str, str] = field(default_factory=dict)

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.open: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.text_of = {}
        self.comments: list[str] = []
        self.lists: dict[str, dict[str, Any]] = {}
        self.feed(text)
        for value in list(self.lists.values()):
            for article in value["articles"]:  # as the script of the page inserts them
                self.feed(article)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        assert len(attributes) == len(attrs), f"an attribute twice in <{tag}>"
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self.open.append((tag, attributes.get("id", "")))

    def handle_endtag(self, tag: str) -> None:
        opened, _ = self.open.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def handle_data(self, data: str) -> None:
        inside, name = self.open[-1] if self.open else ("", "")
        if inside == "script" and name.endswith("-data"):
            unpacked = zlib.decompress(base64.b64decode(data), wbits=-15)
            self.lists[name.removesuffix("-data")] = json.loads(unpacked)
            return
        if inside in ("script", "style"):
            (self.scripts if inside == "script" else self.styles).append(data)
            return
        self.texts.append(data)
        for _, name in self.open:
            if name:
                self.text_of[name] = self.text_of.get(name, "") + data

    @property
    def packed(self) -> dict[str, Any]:
        """The list of sites, unpacked."""
        return self.lists.get("sites", {})

    @property
    def text(self) -> str:
        """Everything a reader sees."""
        return "".join(self.texts)

    @property
    def shape(self) -> Counter[str]:
        """The number of occurrences of each element."""
        return Counter(name for name, _ in self.elements)

    def of_class(self, name: str) -> list[dict[str, str]]:
        """The attributes of every element of a class."""
        return [
            attributes
            for _, attributes in self.elements
            if name in attributes.get("class", "").split()
        ]


def a_session(
    name: str = "s1",
    *,
    text: str = "Fix it.",
    tool: str = "Edit",
    author: str = "model-a",
    repository: str = "demo",
) -> Session:
    """A good read, a mistaken edit with its error, a refused call, and a final message; `text` is
    in every field of a log that can hold text."""
    turns = (
        Turn(role="user", author="human", blocks=(Text(text),)),
        Turn(
            role="assistant",
            author=author,
            blocks=(Text(text), ToolCall("c1", "Read", {"file_path": text})),
        ),
        Turn(role="tool", author="environment", blocks=(ToolResult("c1", text, False),)),
        Turn(role="assistant", author=author, blocks=(ToolCall("c2", tool, {text: text}),)),
        Turn(
            role="tool", author="environment", blocks=(ToolResult("c2", f"no match {text}", True),)
        ),
        Turn(role="assistant", author=author, blocks=(ToolCall("c3", "Bash", {"command": text}),)),
        Turn(role="tool", author="environment", blocks=(ToolResult("c3", "refused", True),)),
        Turn(role="assistant", author=author, blocks=(Text(text),), tag=text),
    )
    source = SourceRef(file="log.jsonl", format="claude_code")
    return Session(
        id=name,
        source=source,
        turns=turns,
        segments=(Segment(start=0, end=len(turns)),),
        repository=repository,
    )


def its_sites(session: Session, *, detail: str = "no match") -> tuple[Site, Site]:
    """The mistaken edit and the refused call of `a_session`."""
    tool, author = session.turns[3].calls[0].name, session.turns[3].author
    about: dict[str, Any] = {
        "session_id": session.id,
        "detector": "tool_error",
        "author": author,
        "repository": session.repository,
    }
    return (
        Site(
            turn=3,
            call_id="c2",
            kind="edit_no_match",
            evidence=(4,),
            tool=tool,
            detail=detail,
            flagged=True,
            **about,
        ),
        Site(
            turn=5,
            call_id="c3",
            kind="user_rejected",
            category="rejected",
            evidence=(6,),
            tool="Bash",
            **about,
        ),
    )


def fill(
    work: Path,
    sessions: list[Session],
    *,
    hint: str = "Copy the line exactly.",
    hinted: int | None = None,
) -> list[Site]:
    """Write sessions, sites and ingest.json, and a hint for the first `hinted` mistakes; returns
    the sites."""
    work.mkdir(parents=True, exist_ok=True)
    write_sessions(work / "sessions.jsonl", sessions)
    sites = [site for session in sessions for site in its_sites(session)]
    write_lines(work / "sites.jsonl", map(record_to_json, sites))
    wrong = [site for site in sites if site.category == "mistake"][:hinted]
    write_lines(
        work / "hints.jsonl",
        [record_to_json(Hint(site_id=s.id, text=hint, writer="w", kind=s.kind)) for s in wrong],
    )
    files = [
        {"file": "log.jsonl", "status": "read", "redactions": {"email": 2}},
        {"file": "x", "status": "foreign"},
    ]
    write_json(work / "ingest.json", {"files": files})
    return sites


ANSWERERS = (("kimi", "moonshot"), ("glm", "zhipu"), ("deepseek", "deepseek"))


def answer_all(
    work: Path, sites: list[Site], *, text: str = "const x = 1", usd: float = 0.002
) -> None:
    """The files of a replay at every mistake, in turn with three outcomes: a pair (all three do
    something else), an anchor (two did what the log did), and too few families (two unusable)."""
    answers, pairs, anchors, turns = [], [], [], {}
    for number, site in enumerate(s for s in sites if s.category == "mistake"):
        outcome = ("pair", "agreed", "too_few_families")[number % 3]
        votes = ((1, 1, 1), (0, 0, 1), (None, None, None))[number % 3]
        for (teacher, family), vote in zip(ANSWERERS, votes, strict=True):
            edit = {"file_path": "a.py", "old_string": "x", "new_string": f"{text} {vote}"}
            answers.append(
                Answer(
                    site_id=turn_site_id(site.session_id, site.turn),
                    teacher=teacher,
                    family=family,
                    turn=Turn(
                        role="assistant",
                        author=f"{family}/{teacher}-1",
                        blocks=(Text(text), ToolCall("t1", "Edit", edit)),
                    ),
                    usd=usd,
                    usd_by="ours",
                    told_usd=usd / 2,
                    provider="router",
                    problem=""
                    if vote is not None or teacher == "kimi"
                    else f"curate: min_words: {text}",
                )
            )
        name = turn_site_id(site.session_id, site.turn)
        turns[name] = {
            "outcome": outcome,
            "tier": "exact",
            "families": [family for _, family in ANSWERERS] if outcome == "pair" else [],
            "of": sum(vote is not None for vote in votes) or 1,
            "evidence": ["failed"] if outcome == "pair" else [],
            "judge": "",
            "usd": 3 * usd,
            "votes": {
                teacher: vote
                for (teacher, _), vote in zip(ANSWERERS, votes, strict=True)
                if vote is not None
            },
            "no_votes": {"kimi": "not_weighed"} if outcome == "too_few_families" else {},
        }
        about: dict[str, Any] = {"session_id": site.session_id, "turn": site.turn}
        if outcome == "pair":
            pairs.append(Preference(**about, chosen=answers[-3].turn, teachers=("kimi", "glm")))
        elif outcome == "agreed":
            anchors.append(Anchor(**about, reason="agreed", teachers=("kimi", "glm")))
    write_lines(work / "answers.jsonl", map(record_to_json, answers))
    write_lines(work / "preferences.jsonl", map(record_to_json, pairs))
    write_lines(work / "anchors.jsonl", map(record_to_json, anchors))
    counts = Counter(turn["outcome"] for turn in turns.values())
    write(work / "replay.json", {"outcomes": dict(counts), "turns": turns})


def build(work: Path, *, views: int, trained: int, skipped: list[dict[str, Any]]) -> None:
    """The artefacts of `build`, as far as the report reads them."""
    write_lines(work / "examples" / "examples.jsonl", [{}])
    write_lines(work / "examples" / "skipped.jsonl", skipped)
    inputs = [
        {"path": f"somewhere/{n}", "sha256": sha256_of(work / n)}
        for n in ("sessions.jsonl", "sites.jsonl", "hints.jsonl")
    ]
    write_json(
        work / "examples" / "meta.json",
        {"inputs": inputs, "counts": {"views": views, "trained_messages": trained}},
    )


def a_run(
    work: Path, *, steps: int = 3, sites: list[Site] | None = None, text: str = "tok"
) -> RunDir:
    """A finished run in a work folder, with metrics, a starved step and token tables for the first
    mistakes."""
    settings = Config().model_dump(mode="json")
    settings["train"]["steps"] = steps
    inputs = [(work / "examples" / "examples.jsonl", 1)] if (work / "examples").exists() else []
    run = create_run(
        work / "runs", resolved=settings, command="recompose train -o work", seed=7, inputs=inputs
    )
    with run.attempt():
        for step in range(1, steps + 1):
            metrics: dict[str, Any] = {
                "step": step,
                "loss": 1.0,
                "hint/scale": 2.0,
                "health/kl": 0.01 * step,
                f"health/{text}": 1.0,
            }
            for name, loss in (("lm_ce", 7.0), ("hint", 0.5)):
                metrics |= {
                    f"{name}/status": "active",
                    f"{name}/tokens": 10 * step,
                    f"{name}/loss": loss / step,
                    f"{name}/grad_norm": 0.1,
                    "clipped": step == 2,
                }
            if step == 2:
                metrics |= {
                    "hint/status": "starved",
                    "hint/tokens": 0,
                    "hint/loss": None,
                    "hint/grad_norm": 0.0,
                }
            run.add_metrics(metrics)
        run.add_event("starved", step=2, channel="hint", why=text)
    for step in (0, steps):
        rows = [
            {
                "site_id": s.id, "kind": s.kind, "measure": "jsd", "ids": [5, 6],
                "texts": [text, "\n"],
                "student": [-2.0, -0.5], "teacher": [-1.0, -0.25],
                "divergence": [0.4 / (step + 1), 0.0],
            }
            for s in sites or () if s.category == "mistake"
        ]  # fmt: skip
        run.tokens(step).parent.mkdir(exist_ok=True)
        write(run.tokens(step), {"step": step, "sites": rows})
    return run


def evaluation(
    *, before: tuple[float, float], placebo: tuple[float, float], **more: Any
) -> dict[str, Any]:
    """An evaluation.json with the two given intervals."""

    def pair(row: str, low: float, high: float) -> dict[str, Any]:
        return {"a": "after", "b": row, "difference": (low + high) / 2, "low": low, "high": high}

    rows = [
        {
            "name": n,
            "n": 200,
            "success": s,
            "success_low": s - 0.06,
            "success_high": s + 0.06,
            "targeted_mistakes_per_episode": 0.61,
        }
        for n, s in (("before", 0.312), ("placebo", 0.338), ("after", 0.588))
    ]
    return {"rows": rows, "paired": [pair("before", *before), pair("placebo", *placebo)], **more}


def write(path: Path, value: Any) -> None:
    """A JSON file that may hold anything, lone surrogates too."""
    path.write_text(json.dumps(value), "utf-8")
