"""What `doctor` says of student.model: its kind, whether it is there and could be loaded.

Only headers and small files are read, and the hub is not asked: `model check` looks closer.
"""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

from composer_replication.cli.doctor_next import INSTALL_TRAIN
from composer_replication.cli.finding import Finding
from composer_replication.cli.job import Job
from composer_replication.cli.model import KINDS
from composer_replication.cli.model_check_files import ModelCheck, check_files
from composer_replication.cli.next_step import NEEDED_TO_TRAIN
from composer_replication.models.adapter_folder import base_model, with_adapter
from composer_replication.models.hub_files import is_offline, kept_folder
from composer_replication.models.model_files import check_path, model_kind


def student(job: Job) -> Finding:
    """Whether student.model is there and could be loaded."""
    settings = job.config.student
    check = ModelCheck(model=settings.model, kind=model_kind(settings.model))
    named = f"{settings.model}, {KINDS[check.kind]}"
    if missing := [name for name in NEEDED_TO_TRAIN if find_spec(name) is None]:
        found = f"{named}; {', '.join(missing)} to load it: not installed"
        return Finding(name="student", ok=False, found=found, fix=INSTALL_TRAIN)
    if check.kind == "tiny":
        return Finding(name="student", ok=True, found=f"{named}, made here")
    absent = ""
    with check.collecting():
        base = base_model(with_adapter(settings))
        is_base = check.kind == "adapter"
        check_path(base, where="student.base" if is_base else "student.model", is_base=is_base)
        kept = kept_folder(base) if model_kind(base) == "hub" else Path(base)
        if kept is not None:
            check_files(check, str(kept), dtype=settings.dtype)
        elif is_offline():
            check.refuse(
                f"{base} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it",
                "give a local folder or a GGUF file, or unset HF_HUB_OFFLINE",
            )
        else:
            absent = f"; {base} is not on this machine yet, so it was not looked at"
    if check.refused:
        what = "; ".join(refusal["what"] for refusal in check.refused)
        fix = check.refused[0]["fix"] or job.command(f"model check {shlex.quote(settings.model)}")
        return Finding(name="student", ok=False, found=f"{named}: {what}", fix=fix)
    facts = [str(check.facts[key]) for key in ("model_type", "quantisation") if key in check.facts]
    facts += [f"{check.facts['num_weights']:,} weights"] if "num_weights" in check.facts else []
    seen = f": {', '.join(facts)}" if facts else ""
    return Finding(name="student", ok=True, found=named + seen + absent)
