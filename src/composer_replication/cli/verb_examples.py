"""One or two command lines for each verb, which its --help prints last."""

from __future__ import annotations

from collections.abc import Mapping

VERB_EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "audit": (
        "recompose audit --open",
        "recompose audit --since 4w --project shop",
        "recompose audit ~/old-logs --json",
    ),
    "demo": ("recompose demo", "recompose demo --logs-only"),
    "doctor": ("recompose doctor", "recompose doctor --memory-gb 24"),
    "init": ("recompose init", "recompose init --from qwen3-4b-24gb"),
    "trust": ("recompose trust recompose.toml",),
    "model": ("recompose model check Qwen/Qwen3-0.6B",),
    "ingest": ("recompose ingest ~/.claude/projects", "recompose ingest --forget ~/code/secret"),
    "sessions": ("recompose sessions",),
    "sites": ("recompose sites", "recompose sites -o work --json"),
    "hints": ("recompose hints", "recompose hints --audit"),
    "replay": ("recompose replay --estimate", "recompose replay --max-usd 2"),
    "curate": ("recompose curate",),
    "build": ("recompose build --student.model Qwen/Qwen3-0.6B",),
    "train": (
        "recompose train --dry-run",
        "recompose train --train.steps 50",
        "recompose train --backend trl",
    ),
    "diloco": ("recompose diloco simulate --replicas 8 --trained 80.7e6 --step-s 30",),
    "tasks": (
        "recompose tasks make ~/code/shop ~/code/parser",
        "recompose tasks check",
        "recompose tasks list",
    ),
    "serve": ("recompose serve --port 8000",),
    "evaluate": ("recompose evaluate latest --logs",),
    "report": ("recompose report --open", "recompose report --audit"),
    "export": ("recompose export latest --to student",),
    "push": ("recompose push exports/main --to me/my-agent --dry-run",),
    "show": ("recompose show site s001", "recompose show session -o work"),
    "completion": (
        "recompose completion bash > ~/.local/share/bash-completion/completions/recompose",
        "recompose completion zsh > ~/.zfunc/_recompose",
    ),
}
