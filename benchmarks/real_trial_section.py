"""The bad numbers of the first trial on real weights, and what became of them, for
docs/evidence_real.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from real_tables import table

Json = Mapping[str, Any]


def trial_section(value: Json, families: Mapping[str, str]) -> str:
    """A table of before and after; `families` are the hints that docs/real_models.md counts, by
    family."""
    own, audit, train = value["own_template"], value["audit"], value["train"]
    merge, head, views = value["export"]["merge"], value["head_ms"], value["views"]
    hints = value["about"]["hints"]
    rows = [
        ("hints that Gemma 3's tokenizer takes", "0 of 18", families["gemma"]),
        ("hints that DeepSeek-V3's template takes", "none: refused", families["deepseek-v3"]),
        (
            "`build` with SmolLM2's own template, which cannot write calls",
            "exit code 0, 667 messages lost",
            f"exit code {own['exit_code']}"
            + (", names `chatml-tools`" if own["names_a_template"] else ""),
        ),
        *(
            (f"hints kept in windows of {int(window):,} tokens", was, f"{views[window]} of {hints}")
            for window, was in (("1024", "4 of 17"), ("4096", "17 of 18"))
        ),
        (
            "sites that the audit leaves out at 1,024 tokens",
            "13, unsaid",
            f"{_left_out(audit['not_built'])}, counted by reason"
            + (", with the setting that helps" if audit["names_the_setting"] else ""),
        ),
        (
            f"memory of LoRA steps at {value['about']['trained_tokens']:,} tokens, at most",
            "18.3 GB",
            f"{train['peak_gb']:.1f} GB",
        ),
        (
            "export of a bfloat16 LoRA, merged",
            "refused: .707 nats at one log-prob",
            f"exit code {value['export']['exit_code']}: {merge['mean_kl']:.1g} nats per token on"
            f" text (KL), of which rounding explains {merge['rounding_kl']:.1g}",
        ),
        (
            "the output head on one token, in bfloat16",
            "70.8 ms, cast at every call",
            f"{head['once']:.1f} ms, cast once ({head['every call']:.1f} ms at every call here)",
        ),
    ]
    return (
        "## What a first trial found, before and after\n\n"
        "The trial of 2026-11-22 (commit 8293b27) tried SmolLM2 and the real tokenizers on the 18"
        " public sessions of `tests/traces_manifest.json`. *Before* is what it noted; *after* is"
        f" measured again with the code of commit {value['about']['commit']}, on another processor"
        " (the rows of tokenizers: by `make real`, [real_models.md](real_models.md)). There are"
        " more hints than then, since more mistakes are found. Of those that no window keeps,"
        " `build` counts the reasons: a held-out session, too long, or what the hint rests on would"
        " be outside the window, which nobody looked at then.\n\n"
        + table(("what", "before", "after"), rows)
        + "\nWithout a number: leading line breaks are dropped where the official template drops"
        " them (*space stripped* in real_models.md); `evaluate --logs` names the run's"
        " `build.max_tokens` and the smallest that fits, and `train` says it before; an ETA comes"
        " after the first step; the report says of a message at a merged boundary that it is"
        " trained on.\n"
    )


def _left_out(not_built: Any) -> str:
    """How many sites; the audit counts them by reason."""
    return str(sum(not_built.values()) if isinstance(not_built, Mapping) else not_built)
