"""What is left out is explained wherever it is counted."""

from __future__ import annotations

import re
from pathlib import Path

from composer_replication.report.explanations import why_left_out

TOKENS = Path(__file__).resolve().parents[2] / "src/composer_replication/tokens"
NAMED = re.compile(r'_skip\(\s*"(\w+)",\s*"(\w+)"|channel="(\w+)",\s*reason="(\w+)"')
NOTED = re.compile(r'\bnotes(?:\["|=\{\*\*item\.notes, ")(\w+)"')


def test_every_reason_that_a_build_counts_says_what_it_is() -> None:
    text = "\n".join(path.read_text("utf-8") for path in sorted(TOKENS.glob("*.py")))
    named = {"/".join(filter(None, found)) for found in NAMED.findall(text)}
    named |= {f"content/{name}" for name in NOTED.findall(text)}
    assert {"content/lost_calls", "content/leading_space", "anchor/no_session"} <= named
    anchors = {name.replace("lm_ce/", "anchor/") for name in named if name.startswith("lm_ce/")}
    assert sorted(name for name in named | anchors if not why_left_out(name)) == []
    assert why_left_out("content/opaque:refusal").endswith("refusal")
