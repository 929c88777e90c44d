"""Repeat what the first trial on real weights did on SmolLM2 (2026-11-22, commit 8293b27), and
measure what became of its bad numbers.

    python benchmarks/real_trial.py FOLDER --model build/real/folders/smollm2

FOLDER holds the public sessions of tests/traces_manifest.json. Runs the verbs one by one in a work
folder: build with the model's own template, build at two windows, the audit and two LoRA steps in
bfloat16, the merge; and times the output head on one token. Writes
benchmarks/results/real_trial.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from record_lines import record_lines
from workshop_evidence.training import checked_out_commit

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "real_trial.json"
SHORT, LONG, TRAINED = 1024, 4096, 2500
HEAD_CALLS = 20


def recompose(*arguments: str, work: Path, as_json: bool = True) -> dict[str, Any]:
    """Run a verb; its exit code, its JSON, its text, its CPU seconds, and the largest memory of any
    process so far in GB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "composer_replication.cli", *arguments, *["--json"] * as_json],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"trial: {' '.join(arguments)}: exit code {done.returncode}", flush=True)
    return {
        "code": done.returncode,
        "value": json.loads(done.stdout) if as_json and done.stdout.strip() else {},
        "said": done.stdout + done.stderr,
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "peak_gb": round(after.ru_maxrss / 1e6, 2),
    }


def head_milliseconds(model: str) -> dict[str, float]:
    """CPU milliseconds of SmolLM2's head on one token: cast at every call, and cast once."""
    import torch

    from composer_replication.core.config.student_settings import StudentSettings
    from composer_replication.models.forward import head_of
    from composer_replication.models.load_student import load_student
    from composer_replication.tokens.hf import load_tokenizer

    torch.set_num_threads(1)
    settings = StudentSettings(model=model, dtype="bfloat16")
    student = load_student(settings, tokenizer=load_tokenizer(model), seed=0)
    head = head_of(student.model)
    hidden = torch.randn(1, student.model.config.hidden_size, dtype=torch.bfloat16)
    times = {}
    for name, of in (("every call", head), ("once", head.raised())):
        of.logits(hidden)
        began = time.process_time()
        for _ in range(HEAD_CALLS):
            of.logits(hidden)
        times[name] = round(1000 * (time.process_time() - began) / HEAD_CALLS, 1)
    return times


def main(arguments: Sequence[str]) -> int:
    """Run the verbs, measure, write; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "real_trial")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    work, model = options.work, str(options.model.absolute())
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    recompose("ingest", str(options.folder.absolute()), work=work)
    recompose("sites", work=work)
    hints = recompose("hints", work=work)["value"]["hints"]
    student = ("--student.model", model, "--student.dtype", "bfloat16")
    own = recompose("build", *student, work=work)
    named = (*student, "--student.template", "chatml-tools")
    views: dict[str, int] = {}
    for window in (LONG, SHORT):
        size = ("--build.max_tokens", str(window))
        views[str(window)] = recompose("build", *named, *size, work=work)["value"]["views"]
    size = ("--build.max_tokens", str(TRAINED))
    recompose("build", *named, *size, work=work)
    flags = ("--student.lora.rank", "8", "--train.batch_examples", "2", "--train.steps", "2")
    trained = recompose("train", "--name", "trial", *named, *size, *flags, work=work)
    exported = recompose("export", "trial", "--to", "out", work=work)
    # last: where it shows no kind to act, build refuses
    audited = ("hints", "--audit", *named, "--build.max_tokens", str(SHORT))
    planned = recompose(*audited, "--dry-run", work=work, as_json=False)
    audit = recompose(*audited, work=work)
    facts = json.loads((work / "out" / "recompose.json").read_text("utf-8"))
    value = {
        "about": {
            "commit": checked_out_commit(),
            "trained_tokens": TRAINED,
            "sessions": len(list(options.folder.glob("*.jsonl"))),
            "hints": hints,
        },
        "own_template": {
            "exit_code": own["code"],
            "names_a_template": "chatml-tools" in own["said"],
        },
        "views": views,
        "audit": {
            "exit_code": audit["code"],
            "measured": sum(row["n"] for row in audit["value"]["audit"]["kinds"]),
            "not_built": audit["value"]["audit"]["not_built"],
            "names_the_setting": "build.max_tokens" in planned["said"],
        },
        "train": {key: trained[key] for key in ("code", "cpu_s", "peak_gb")},
        "export": {"exit_code": exported["code"], "merge": facts["merge"]},
        "head_ms": head_milliseconds(model),
    }
    options.json.write_text(record_lines(value, depth=1) + "\n", "utf-8")
    print(f"trial: wrote {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
