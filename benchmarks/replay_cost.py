"""What one teacher bills for replaying real sessions: every step with the whole context, or the
mistakes with a trimmed one, with and without a cache.

    python benchmarks/replay_cost.py --logs FOLDER [--input-usd 1.5] [--cached 0.1] [--json FILE]

full      every message of a model, with the whole context it had: what a replay of everything sends
chosen    the mistakes that the rules find and --sampled other steps of each session, with the
          trimmed prompt of `recompose replay`
uncached  every input token at full price
in order  the steps of a session one after another: the common beginning of a prompt and the one
          before it is read from the provider's cache at --cached of the price (0.1: Anthropic; 0.25
          to 0.5: others), the rest at full price
reported  the prompt tokens that the log's own provider counted for the same calls, with the agent's
          system prompt and tools, which the logs do not hold: the estimate is lower by about these

Tokens are estimated from bytes (data/replay/prompt.py); "bytes a token" is measured on these logs,
from the growth of the reported counts between neighbouring calls. Answers are not counted. Prints a
table; --json FILE writes its numbers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from composer_replication.core.config.data_settings import IngestSettings, SitesSettings
from composer_replication.core.config.rollout_settings import ReplaySettings
from composer_replication.core.redact import Redactor
from composer_replication.core.trace import Session, Turn
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.data.replay.gather import teacher_requests
from composer_replication.data.replay.prompt import (
    BYTES_PER_TOKEN,
    MESSAGE_TOKENS,
    estimate_message_tokens,
    without_thinking,
)
from composer_replication.data.replay.steps import ReplayStep, all_steps, choose_steps
from composer_replication.data.sites.find_sites import find_sites

WHOLE = ReplaySettings(max_prompt_tokens=10**9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Input tokens of one teacher for one session: those sent, and their full-price equivalent if
    the steps are sent in order and the provider caches."""

    calls: int
    sent: int
    in_order: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One session."""

    session: str
    steps: int
    sites: int
    reported: int
    full: Bill
    chosen: Bill


def bill_of(
    session: Session, steps: Sequence[ReplayStep], *, settings: ReplaySettings, cached: float
) -> Bill:
    """The bill of asking about these steps; the common beginning of a prompt and the one before it
    costs `cached` of the price."""
    calls = sent = 0
    in_order = 0.0
    before: tuple[Turn, ...] = ()
    tools = int(
        sum(len(t.description) + len(json.dumps(t.parameters)) for t in session.tools)
        / BYTES_PER_TOKEN
    )
    sizes: dict[int, int] = {}
    for asking in teacher_requests(session, steps, settings=settings, redactor=_NO_REDACTION):
        shown = asking.prompt.turns
        common = sum(
            1
            for _ in itertools.takewhile(
                lambda pair: pair[0] is pair[1] or pair[0] == pair[1],
                zip(before, shown, strict=False),
            )
        )
        shared = sum(
            sizes.setdefault(id(turn), estimate_message_tokens(turn)) for turn in shown[:common]
        ) + (tools if before else 0)
        total = asking.prompt.tokens + tools
        calls, sent, in_order, before = (
            calls + 1,
            sent + total,
            in_order + (total - shared) + cached * shared,
            shown,
        )
        sizes.clear()
    return Bill(calls=calls, sent=sent, in_order=in_order)


_NO_REDACTION = Redactor(environ={})


def row_of(session: Session, *, sampled: int, cached: float) -> Row:
    """The four bills of one session."""
    sites = {site.turn for site in find_sites(session, settings=SitesSettings()) if site.is_target}
    steps = all_steps(session)
    return Row(
        session=session.id[:8],
        steps=len(steps),
        sites=len(sites),
        reported=sum(session.turns[step.turn].context_tokens for step in steps),
        full=bill_of(session, steps, settings=WHOLE, cached=cached),
        chosen=bill_of(
            session,
            choose_steps(session, sites=sites, sampled=sampled, seed=7),
            settings=ReplaySettings(),
            cached=cached,
        ),
    )


def bytes_a_token(sessions: Sequence[Session]) -> float:
    """Bytes of the turns between two neighbouring calls, per token by which the provider's count
    grew; the median over calls."""
    return statistics.median(ratio for session in sessions for ratio in _growth(session))


def _growth(session: Session) -> Iterator[float]:
    calls = [n for n, turn in session.assistant_turns() if turn.context_tokens]
    for a, b in itertools.pairwise(calls):
        new_turns, token_growth = (
            session.turns[a:b],
            session.turns[b].context_tokens - session.turns[a].context_tokens,
        )
        if token_growth > 500 and session.segment_of(a) is session.segment_of(b):
            estimated = (
                sum(
                    estimate_message_tokens(without_thinking(turn)) - MESSAGE_TOKENS
                    for turn in new_turns
                )
                * BYTES_PER_TOKEN
            )
            yield estimated / token_growth


def table(rows: Sequence[Row], *, usd: float) -> str:
    """The table, one line a session, with the sum and the mean in dollars."""
    head = (
        "session   steps sites  reported M |     full M  in order M |  calls  chosen M  in order M"
        " | full/chosen in order"
    )
    lines = [head]
    for row in (*rows, total := _sum(rows)):
        ratio = row.full.sent / row.chosen.in_order if row.chosen.in_order else float("nan")
        first = f"{row.session:9} {row.steps:5} {row.sites:5} {row.reported / 1e6:11.3f}"
        full = f"{row.full.sent / 1e6:10.3f} {row.full.in_order / 1e6:11.3f}"
        chosen = (
            f"{row.chosen.calls:6} {row.chosen.sent / 1e6:9.3f} {row.chosen.in_order / 1e6:11.3f}"
        )
        lines.append(f"{first} | {full} | {chosen} | {ratio:8.1f}")
    mean_usd = [
        bill / 1e6 * usd / max(1, len(rows))
        for bill in (total.full.sent, total.full.in_order, total.chosen.sent, total.chosen.in_order)
    ]
    names = ("full, uncached", "full, in order", "chosen, uncached", "chosen, in order")
    costs = "; ".join(f"{name} ${cost:.3f}" for name, cost in zip(names, mean_usd, strict=True))
    return "\n".join([*lines, f"a session and teacher at ${usd:g} a million input tokens: {costs}"])


def _sum(rows: Sequence[Row]) -> Row:
    def bills(name: str) -> Bill:
        parts: list[Bill] = [getattr(row, name) for row in rows]
        return Bill(
            calls=sum(b.calls for b in parts),
            sent=sum(b.sent for b in parts),
            in_order=sum(b.in_order for b in parts),
        )

    counts = {
        name: sum(getattr(row, name) for row in rows) for name in ("steps", "sites", "reported")
    }
    return Row(session="all", full=bills("full"), chosen=bills("chosen"), **counts)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--logs",
        type=Path,
        default=Path(__file__).resolve().parent.parent / "examples" / "demo_logs",
    )
    parser.add_argument("--sampled", type=int, default=ReplaySettings().sampled_steps)
    parser.add_argument("--cached", type=float, default=0.1)
    parser.add_argument("--input-usd", type=float, default=1.5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    sessions = [
        s
        for result in ingest(find_logs([str(args.logs)]), settings=IngestSettings(), redactor=None)
        for s in result.sessions
    ]
    rows = [
        row_of(session, sampled=args.sampled, cached=args.cached)
        for session in sessions
        if all_steps(session)
    ]
    ratios = [ratio for session in sessions for ratio in _growth(session)]
    print(table(rows, usd=args.input_usd))
    if ratios:
        print(
            f"bytes a token, median over {len(ratios)} calls: {bytes_a_token(sessions):.2f} (the"
            f" estimate uses {BYTES_PER_TOKEN})"
        )
    if args.json:
        from page import about  # beside this file

        numbers = {
            "cached": args.cached,
            "usd": args.input_usd,
            "bytes_a_token": bytes_a_token(sessions) if ratios else None,
        }
        numbers |= {"estimate": BYTES_PER_TOKEN, "rows": [asdict(row) for row in rows]}
        args.json.write_text(
            json.dumps({"about": about(sys.argv), **numbers}, indent=1) + "\n", "utf-8"
        )


if __name__ == "__main__":
    main()
