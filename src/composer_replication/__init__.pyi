# ruff: noqa: I001 - one statement a module, however many names
"""The public names and their homes: type checkers read this file, and so does `__init__.py`."""

from .compat.guide_collator import (
    CollatorConfig as CollatorConfig,
    ComposerDataCollator as ComposerDataCollator,
    TokenizerLike as TokenizerLike,
)
from .compat.guide_compose import (
    LossComponents as LossComponents,
    compose_loss as compose_loss,
)
from .compat.guide_errors import (
    default_classify_error as default_classify_error,
)
from .compat.guide_ingestion import (
    ClaudeCodeIngester as ClaudeCodeIngester,
    claude_states_to_trace_examples as claude_states_to_trace_examples,
)
from .compat.guide_losses import (
    TAIDScheduler as TAIDScheduler,
    entropy_aware_opd_loss as entropy_aware_opd_loss,
    generalized_jsd_loss as generalized_jsd_loss,
    simpo_loss as simpo_loss,
    taid_loss as taid_loss,
)
from .compat.guide_pairs import (
    DJNormalizer as DJNormalizer,
    DPOPair as DPOPair,
    NormalizedDPOPair as NormalizedDPOPair,
    extract_dpo_pairs as extract_dpo_pairs,
    replay_and_normalize_trace as replay_and_normalize_trace,
    replay_and_normalize_trace_sync as replay_and_normalize_trace_sync,
)
from .compat.guide_replay import (
    replay_trace as replay_trace,
)

# From here on: names of the earlier framework's guide.
from .compat.guide_types import (
    TOOL_ERROR_TAG as TOOL_ERROR_TAG,
    TraceExample as TraceExample,
    TraceState as TraceState,
    TraceTurn as TraceTurn,
)
from .core.codec import (
    read_anchors as read_anchors,
    read_answers as read_answers,
    read_hints as read_hints,
    read_preferences as read_preferences,
    read_sessions as read_sessions,
    read_sites as read_sites,
    write_sessions as write_sessions,
)
from .core.config.load_config import (
    load_config as load_config,
)
from .core.config.root import (
    Config as Config,
)
from .core.config.teacher_settings import (
    TeacherSettings as TeacherSettings,
)
from .core.errors import (
    AlignmentError as AlignmentError,
    BudgetError as BudgetError,
    ComposerError as ComposerError,
    ConfigError as ConfigError,
    DataError as DataError,
    MissingExtraError as MissingExtraError,
    RenderError as RenderError,
    SandboxError as SandboxError,
    SessionError as SessionError,
    SiteError as SiteError,
    StoppedError as StoppedError,
    TeacherError as TeacherError,
)
from .core.redact import (
    Redactor as Redactor,
)
from .core.rundir import (
    RunDir as RunDir,
    create_run as create_run,
    open_run as open_run,
)
from .core.site import (
    Anchor as Anchor,
    Answer as Answer,
    Hint as Hint,
    Preference as Preference,
    Site as Site,
)
from .core.teacher import (
    Price as Price,
    Request as Request,
    Teacher as Teacher,
    Usage as Usage,
)
from .core.trace import (
    CallRef as CallRef,
    Event as Event,
    Opaque as Opaque,
    Parent as Parent,
    Sampled as Sampled,
    Segment as Segment,
    Session as Session,
    SourceRef as SourceRef,
    Text as Text,
    Thinking as Thinking,
    ToolCall as ToolCall,
    ToolResult as ToolResult,
    ToolSpec as ToolSpec,
    Turn as Turn,
)
from .data.curate.curator import (
    Curator as Curator,
)
from .data.curate.recipe import (
    load_recipe as load_recipe,
)

# From here on: names of this package.
from .data.hints.write import (
    write_hints as write_hints,
)
from .data.ingestion.claude_code import (
    ingest as ingest,
)
from .data.ingestion.find_logs import (
    find_logs as find_logs,
)
from .data.replay.agree import (
    agree as agree,
)
from .data.replay.ask import (
    replay as replay,
)
from .data.sites.find_sites import (
    find_sites as find_sites,
)
from .data.teachers.asking import (
    Asker as Asker,
)
from .data.teachers.defaults import (
    DEFAULT_TEACHERS as DEFAULT_TEACHERS,
)
from .data.teachers.ledger import (
    Ledger as Ledger,
)
from .data.teachers.openai_compatible import (
    OpenAICompatible as OpenAICompatible,
)
from .data.teachers.scripted import (
    Scripted as Scripted,
)
from .evaluation.hint_lift import (
    audit_hints as audit_hints,
)
from .evaluation.players import (
    play_all as play_all,
    player_of as player_of,
    start_of as start_of,
)
from .evaluation.success import (
    EpisodeResult as EpisodeResult,
    play_tasks as play_tasks,
)
from .evaluation.table import (
    evaluation_table as evaluation_table,
)
from .losses.entropy import (
    teacher_entropy as teacher_entropy,
)
from .models.load_student import (
    Student as Student,
    load_student as load_student,
)
from .report.audit_page import (
    audit_page as audit_page,
)
from .report.claims import (
    claims as claims,
)
from .report.run_page import (
    run_page as run_page,
)
from .report.run_report import (
    run_report as run_report,
)
from .report.run_view import (
    run_view as run_view,
)
from .report.work import (
    work_view as work_view,
)
from .rollouts.envs.env import (
    Env as Env,
    Opening as Opening,
    Reply as Reply,
)
from .rollouts.episode import (
    Rollout as Rollout,
)
from .rollouts.groups import (
    sample_groups as sample_groups,
)
from .rollouts.local_teacher import (
    LocalTeacher as LocalTeacher,
)
from .workshop.as_tools import WorkshopTools as WorkshopTools
from .workshop.record_episodes import (
    record_logs as record_logs,
)
from .rollouts.sampler import (
    Sampling as Sampling,
    sample_rollouts as sample_rollouts,
)
from .tokens.artefact import (
    load_dataset as load_dataset,
    write_dataset as write_dataset,
)
from .tokens.dataset import (
    build_examples as build_examples,
)
from .tokens.example import (
    HintView as HintView,
    PreferencePair as PreferencePair,
    TrainingExample as TrainingExample,
    TurnSpan as TurnSpan,
)
from .tokens.hf import (
    load_tokenizer as load_tokenizer,
)
from .tokens.renderer import (
    Renderer as Renderer,
)
from .training.backends.monarch_actors import (
    GeneratorActor as GeneratorActor,
    TrainerActor as TrainerActor,
)
from .training.backends.prime_rl_loss import loss_fn as loss_fn
from .training.backends.trl import (
    ComposerReplicationConfig as ComposerReplicationConfig,
    ComposerReplicationTrainer as ComposerReplicationTrainer,
)
from .training.diloco.executors.guide_executors import (
    HFJobsExecutor as HFJobsExecutor,
    LocalProcessExecutor as LocalProcessExecutor,
    ModalExecutor as ModalExecutor,
    ServerlessExecutor as ServerlessExecutor,
)
from .training.diloco.guide_allreduce import (
    ObjectStoreAllReduce as ObjectStoreAllReduce,
    make_diloco_outer_loop as make_diloco_outer_loop,
    replica_entrypoint as replica_entrypoint,
)
from .training.diloco.store_manager import (
    MockManager as MockManager,
)
from .training.on_policy.live import (
    RolloutSource as RolloutSource,
)
from .training.loop import (
    train as train,
)
from .rollouts.task_source import (
    TaskSource as TaskSource,
    open_world as open_world,
)

PUBLIC_NAMES: tuple[str, ...]
