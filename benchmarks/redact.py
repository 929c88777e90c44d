"""Redaction: speed on one core, and what it leaves alone, as ratios that do not depend on the
machine.

    python benchmarks/redact.py                      made-up tool outputs of usual shape
    python benchmarks/redact.py --logs FOLDER        the strings of your own or the public sessions
    python benchmarks/redact.py --scanner detect-secrets

speed     MB of text a second of CPU time, best of --repeat, and the same for a plain loop over the same rules - every
          pattern of the tokens with `sub` on every text, which is what most scanners do - and, with --scanner, for
          detect-secrets with its default plugins, line by line. A ratio of two speeds of one run holds on any machine;
          MB/s is that of this machine at this hour.
altered   share of the strings that were changed, without addresses of e-mail and with them.
stranger  share of the texts of a list that somebody else made, without sight of the rules, of
          which no secret piece is left, with Wilson's interval: `third` is the number to claim,
          the other lists were tuned on (tests/core/stranger/README.md).
recall    the same of our own planted secrets (tests/core/planting.py), plain and encoded: development data; and, by
          length, that of plainly random letters and digits after the name of a secret (API_KEY) or of a password.

Prints a table, and JSON with --json FILE; exits with 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from composer_replication.core.redact import Redactor, find_secrets
from composer_replication.core.secret_places import PLACE_RULES
from composer_replication.core.secret_tokens import TOKEN_RULES
from composer_replication.core.trace import ToolCall
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find_logs import find_logs

LENGTHS = {"API_KEY": (12, 14, 16, 20, 24, 32), "DB_PASSWORD": (8, 10, 12, 14, 16)}
ROOT = Path(__file__).resolve().parent.parent
MIN_MB_PER_S, MIN_RATIO, MAX_ALTERED, MIN_RECALL = 20.0, 2.0, 0.01, 0.99
MIN_STRANGER, MIN_WRAPPED = 0.95, 0.8
CLAIMED, DEVELOPMENT = "third", ("second", "sealed", "dev")
"""Lists of strangers: the one on which no rule was tuned, and the others."""
SCANNER_CHARS = 200_000
LINES = (
    "    def {0}(self, {1}: str, *, {2}: int = {n}) -> None:",
    '        """Read the {0} of a {1}, or the {2} where there is none."""',
    "        return self._{0}.get({1}, {n}) if {2} is not None else {n}",
    "tests/{0}/test_{1}.py::test_{2}_{0}[{n}] PASSED                    [ 42%]",
    "  {n}\u2192    const {0} = await {1}.fetch(`/api/${{{2}}}/items?page={n}`);",
    "-rw-r--r-- 1 dev dev {n} Jan  5 10:00 src/{0}/{1}_{2}.go",
    "{sha} {0}: keep the {1} when {2} is empty (#{n})",
    '    "{0}": {{"version": "4.{n}.1", "integrity": "sha512-{sha}{sha}=="}},',
    "INFO 2026-01-05 10:00:{n} {0}.{1} - {2} took {n} ms",
    "The {0} is read before the {1} is written, so the {2} must not change in between.",
)
_WORDS = (
    "user order cart invoice token session config parser buffer stream index cache retry worker"
    " queue schema handler response"
)
WORDS = _WORDS.split()


def usual_texts(*, num_chars: int = 3_000_000, seed: int = 7) -> list[str]:
    """Made-up tool outputs: code, listings, test runs, logs, lock files and prose, from a line to
    some hundred."""
    rng, texts, total = random.Random(seed), [], 0
    while total < num_chars:
        lines = []
        for _ in range(rng.choice((1, 1, 3, 10, 40, 150))):
            sha = f"{rng.getrandbits(160):040x}"
            lines.append(
                rng.choice(LINES).format(*rng.sample(WORDS, 3), n=rng.randrange(10**4), sha=sha)
            )
        texts.append("\n".join(lines))
        total += len(texts[-1])
    return texts


def texts_of(paths: Sequence[Path]) -> list[str]:
    """Every text of the sessions in some logs: messages, results, and the strings of arguments."""
    blocks = [
        block
        for r in ingest(find_logs(paths))
        for s in r.sessions
        for turn in s.turns
        for block in turn.blocks
    ]
    return [
        text
        for block in blocks
        for text in (_strings(block.arguments) if isinstance(block, ToolCall) else (block.text,))
        if text
    ]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def mb_per_s(run: Callable[[str], object], texts: Sequence[str], *, repeat: int) -> float:
    """UTF-8 megabytes a second of CPU time, the best of some rounds."""
    num_bytes, best = sum(len(t.encode("utf-8", "surrogatepass")) for t in texts), float("inf")
    for _ in range(repeat):
        start = time.process_time()
        for text in texts:
            run(text)
        best = min(best, time.process_time() - start)
    return num_bytes / 1e6 / best


def plain_loop() -> Callable[[str], object]:
    """Every pattern in turn on every text."""
    patterns: list[re.Pattern[str]] = [rule.pattern for rule in (*TOKEN_RULES, *PLACE_RULES)]

    def run(text: str) -> None:
        for pattern in patterns:
            pattern.sub("", text)

    return run


def detect_secrets() -> Callable[[str], object]:
    """The peer with its default plugins; it has to be installed."""
    scan = importlib.import_module("detect_secrets.core.scan")
    settings = importlib.import_module("detect_secrets.settings")

    def run(text: str) -> None:
        with settings.default_settings():
            for line in text.splitlines():
                list(scan.scan_line(line))

    return run


def recall() -> dict[str, Any]:
    """How many secrets are planted, of how many kinds, the share of them that goes, and that of
    random values by their length."""
    sys.path.insert(0, str(ROOT))
    from tests.core.planting import KINDS, drawn, planted, still_there
    from tests.core.stranger import score

    made, redactor = planted(), Redactor(environ={})
    strangers = {}
    for name in (CLAIMED, *DEVELOPMENT):
        found = score(name)
        strangers[name] = {
            part: {"recall": round(share.value, 4), "interval": share.interval, "texts": share.num}
            for part, share in (("plain", found.plain), ("wrapped", found.wrapped))
        }
    left = sum(bool(still_there(one, redactor.text(one.text))) for one in made)
    by_length = {
        name: {
            str(length): _share_gone(drawn(length=length, name=name, count=4000), redactor)
            for length in lengths
        }
        for name, lengths in LENGTHS.items()
    }
    return {
        "claimed": CLAIMED,
        "stranger": strangers,
        "planted": len(made),
        "kinds": len(KINDS),
        "recall": round(1 - left / len(made), 4),
        "by_length": by_length,
    }


def _share_gone(values: list[tuple[str, str]], redactor: Redactor) -> float:
    return round(1 - sum(value in redactor.text(text) for value, text in values) / len(values), 4)


def main() -> int:
    """Measure, print, compare with the limits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=Path, nargs="+", help="files or folders to measure on")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--scanner",
        choices=("detect-secrets",),
        help="a peer to measure beside, which has to be installed",
    )
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
    texts = texts_of(options.logs) if options.logs else usual_texts()
    few = texts[: max(1, len(texts) // 10)]
    found = [{one.kind for one in find_secrets(text)} for text in texts]
    numbers = {
        "num_texts": len(texts),
        "mb": round(sum(map(len, texts)) / 1e6, 2),
        "mb_per_s": round(mb_per_s(find_secrets, texts, repeat=options.repeat), 1),
        "plain_loop_mb_per_s": round(mb_per_s(plain_loop(), few, repeat=2), 2),
        "altered": round(sum(bool(kinds - {"email"}) for kinds in found) / len(texts), 5),
        "altered_with_email": round(sum(map(bool, found)) / len(texts), 5),
        **recall(),
    }
    numbers["ratio"] = round(numbers["mb_per_s"] / numbers["plain_loop_mb_per_s"], 1)
    if options.scanner:
        sample = [
            text for text, end in zip(texts, _ends(texts), strict=True) if end < SCANNER_CHARS
        ]
        numbers["detect_secrets_mb_per_s"] = round(mb_per_s(detect_secrets(), sample, repeat=1), 3)
    rows = [
        ("MB a second on one core", numbers["mb_per_s"], ">=", MIN_MB_PER_S),
        ("speed / plain loop over the same patterns", numbers["ratio"], ">=", MIN_RATIO),
        ("strings altered", numbers["altered_with_email"], "<=", MAX_ALTERED),
        (
            "recall on a stranger's list, plain",
            numbers["stranger"][CLAIMED]["plain"]["recall"],
            ">=",
            MIN_STRANGER,
        ),
        (
            "recall on a stranger's list, wrapped",
            numbers["stranger"][CLAIMED]["wrapped"]["recall"],
            ">=",
            MIN_WRAPPED,
        ),
        (
            f"development data: {numbers['planted']} secrets of our own",
            numbers["recall"],
            ">=",
            MIN_RECALL,
        ),
    ]
    missed = False
    for name, value, sign, limit in rows:
        good = value >= limit if sign == ">=" else value <= limit
        missed |= not good
        print(f"{name:44s} {value:9.4f}   {sign} {limit}   {'ok' if good else 'MISSED'}")
    print(json.dumps(numbers))
    if options.json:
        from page import about  # beside this file

        options.json.write_text(
            json.dumps({"about": about(sys.argv), **numbers}, indent=1) + "\n", encoding="utf-8"
        )
    return int(missed)


def _ends(texts: Sequence[str]) -> Iterator[int]:
    end = 0
    for text in texts:
        end += len(text)
        yield end


if __name__ == "__main__":
    sys.exit(main())
