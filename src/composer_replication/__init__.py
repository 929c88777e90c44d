"""Your agent's logs and your base model go in, a better coding agent comes out.

    from composer_replication import Session, find_sites, write_hints, load_config

Names are imported on first use, so that `import composer_replication` costs nothing and needs no
PyTorch.
"""

from __future__ import annotations

import importlib
from typing import Any

# the guide's module paths: composer_replication.trainer.data_collator, ...
__path__ = [*__path__, f"{__path__[0]}/compat/paths"]
_HOMES: dict[str, str] = {
    "core.trace": (
        "CallRef Event Opaque Parent Sampled Segment Session SourceRef Text Thinking ToolCall"
        " ToolResult ToolSpec Turn"
    ),
    "core.site": "Anchor Answer Hint Preference Site",
    "core.codec": (
        "read_anchors read_answers read_hints read_preferences read_sessions read_sites"
        " write_sessions"
    ),
    "core.errors": (
        "AlignmentError ComposerError ConfigError DataError MissingExtraError RenderError"
        " SandboxError SessionError SiteError StoppedError BudgetError TeacherError"
    ),
    "core.config.root": "Config",
    "core.config.load_config": "load_config",
    "core.redact": "Redactor",
    "core.rundir": "RunDir create_run open_run",
    "data.ingestion.claude_code": "ingest",
    "data.ingestion.find_logs": "find_logs",
    "data.sites.find_sites": "find_sites",
    # from here on: names of the earlier framework's guide
    "compat.guide_types": "TOOL_ERROR_TAG TraceExample TraceState TraceTurn",
    "compat.guide_ingestion": "ClaudeCodeIngester claude_states_to_trace_examples",
    "compat.guide_replay": "replay_trace",
    "data.teachers.defaults": "DEFAULT_TEACHERS",
    "compat.guide_errors": "default_classify_error",
    "compat.guide_pairs": (
        "DJNormalizer DPOPair NormalizedDPOPair extract_dpo_pairs replay_and_normalize_trace"
        " replay_and_normalize_trace_sync"
    ),
    "compat.guide_collator": "CollatorConfig ComposerDataCollator TokenizerLike",
    "losses.entropy": "teacher_entropy",
    "compat.guide_losses": (
        "TAIDScheduler entropy_aware_opd_loss generalized_jsd_loss simpo_loss taid_loss"
    ),
    "compat.guide_compose": "LossComponents compose_loss",
    "data.hints.write": "write_hints",
    "data.replay.agree": "agree",
    "data.replay.ask": "replay",
    "core.teacher": "Price Request Teacher Usage",
    "core.config.teacher_settings": "TeacherSettings",
    "data.teachers.asking": "Asker",
    "data.teachers.ledger": "Ledger",
    "data.teachers.openai_compatible": "OpenAICompatible",
    "data.teachers.scripted": "Scripted",
    "rollouts.local_teacher": "LocalTeacher",
    "data.curate.curator": "Curator",
    "data.curate.recipe": "load_recipe",
    "report.claims": "claims",
    "report.run_view": "run_view",
    "report.run_report": "run_report",
    "report.run_page": "run_page",
    "report.work": "work_view",
    "report.audit_page": "audit_page",
    "tokens.example": "HintView PreferencePair TrainingExample TurnSpan",
    "tokens.dataset": "build_examples",
    "tokens.artefact": "load_dataset write_dataset",
    "tokens.hf": "load_tokenizer",
    "tokens.renderer": "Renderer",
    "models.load_student": "Student load_student",
    "rollouts.envs.env": "Env Opening Reply",
    "rollouts.episode": "Rollout",
    "rollouts.groups": "sample_groups",
    "workshop.record_episodes": "record_logs",
    "rollouts.sampler": "Sampling sample_rollouts",
    "evaluation.hint_lift": "audit_hints",
    "evaluation.players": "play_all player_of start_of",
    "evaluation.success": "EpisodeResult play_tasks",
    "evaluation.table": "evaluation_table",
    "training.backends.trl": "ComposerReplicationConfig ComposerReplicationTrainer",
    "training.live": "RolloutSource",
    "training.loop": "train",
    "rollouts.task_source": "TaskSource open_world",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
PUBLIC_NAMES = tuple(sorted(_HOME_OF))


def __getattr__(name: str) -> Any:
    """A public name, imported from its home on first use (PEP 562)."""
    if name not in _HOME_OF:
        gone = importlib.import_module(f"{__name__}.compat.names").missing(name)
        raise gone or AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC_NAMES})
