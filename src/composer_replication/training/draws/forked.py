"""A step's hint views from the student's own turns at the sites of imported logs (`train.fork`):
only what it got wrong is distilled.

    forked = ForkSource(config=config, renderer=renderer, sessions={...}, sites={...})
    fork_points = forked.fork_points(examples)   # the imported hint views, with their contexts
    fork_step = forked.collect(student.model, fork_points, step=3)
    fork_step.examples, fork_step.metrics["fork/same"]

The target of an imported view was written by another model. Here the student writes its own message
in the same context, token by token. If the static check finds the site's mistake in the message, it
becomes the target of an example with origin "student"; otherwise there is no example. Other
mistakes have no hint that fits them, and messages that only a sandbox could check are counted and
left out. Everything is a function of (config.seed, step) and the weights. Every rank samples
the same forks and takes its share of the examples in `train_step`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.root import Config
from composer_replication.core.errors import DataError, SiteError
from composer_replication.core.site import Site
from composer_replication.core.trace import Session
from composer_replication.rollouts.fork import (
    Fork,
    ForkPoint,
    outcome_counts,
    room_for,
    sample_forks,
)
from composer_replication.rollouts.sampler import Sampling
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.rollouts.static_check import SiteCheck, ToolFacts
from composer_replication.tokens.example import HintView, TrainingExample, TurnSpan
from composer_replication.tokens.forward_size import check_forward_size
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.draws.batch_sampler import draw_items

AUTHOR = "student"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainForkPoint:
    """An imported hint view, its message in the session, and the fork point before that message."""

    example: TrainingExample
    view: HintView
    message: TurnSpan
    fork: ForkPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkStep:
    """The forks of one step: examples of the failures, all samples, and metrics."""

    examples: tuple[TrainingExample, ...]
    forks: tuple[Fork, ...]
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkSource:
    """Gives each training step its forks; `sessions` and `sites`, by id, are those that the
    examples were built from."""

    config: Config
    renderer: Renderer
    sessions: Mapping[str, Session]
    sites: Mapping[str, Site]
    author: str = AUTHOR
    stats: SamplingStats = field(default_factory=SamplingStats)

    def fork_points(self, examples: Sequence[TrainingExample]) -> tuple[TrainForkPoint, ...]:
        """Every hint view of imported examples, each site once.

        Raises DataError if there is none, or if its session or site is missing, ConfigError if a
        message of rollouts.max_new_tokens below its hint would not fit into one forward.
        """
        tools: dict[str, ToolFacts] = {}
        fork_points: dict[str, TrainForkPoint] = {}
        for example in examples:
            for view in example.hints if example.origin == "trace" else ():
                if view.site_id not in fork_points:
                    fork_points[view.site_id] = self._fork_point(example, view, tools)
        if not fork_points:
            fix = "run recompose hints and build, or set train.fork = false"
            raise DataError("no imported hint view to fork at", where="train.fork", fix=fix)
        longest, name = max(
            (len(point.fork.ids) + len(point.view.hint_ids), name)
            for name, point in fork_points.items()
        )
        new_tokens = self.config.rollouts.max_new_tokens
        check_forward_size(
            f"a message of {new_tokens} tokens at {name}",
            longest + new_tokens,
            micro_tokens=self.config.train.micro_tokens,
            remedy="lower rollouts.max_new_tokens",
        )
        return tuple(fork_points.values())

    def num_samples(self, fork_points: Sequence[TrainForkPoint]) -> int:
        """The number of messages that a step samples."""
        return min(self.config.train.fork_sites, len(fork_points)) * self.config.train.fork_samples

    def collect(self, model: Any, fork_points: Sequence[TrainForkPoint], *, step: int) -> ForkStep:
        """Sample messages at `train.fork_sites` sites, `train.fork_samples` each, and make examples
        of the failures."""
        settings = self.config.train
        chosen = draw_items(
            list(fork_points),
            stratum="fork",
            step=step,
            per_step=min(settings.fork_sites, len(fork_points)),
            seed=stage_seed(self.config.seed, "fork:sites"),
        )
        sampling = Sampling.of(
            self.config.rollouts, seed=stage_seed(self.config.seed, "fork:rollouts")
        )
        forks = sample_forks(
            model,
            [point.fork for point in chosen],
            samples=settings.fork_samples,
            renderer=self.renderer,
            settings=room_for([len(point.fork.ids) for point in chosen], settings=sampling),
            author=self.author,
            label=f"step-{step}:fork:",
            stats=self.stats,
        )
        fork_point_of_sample = [point for point in chosen for _ in range(settings.fork_samples)]
        examples = tuple(
            forked_example(
                point, fork, name=f"step-{step}:{fork.site.id}:{fork.number}", author=self.author
            )
            for point, fork in zip(fork_point_of_sample, forks, strict=True)
            if fork.checked.outcome == "same"
        )
        return ForkStep(
            examples=examples,
            forks=tuple(forks),
            metrics=fork_metrics(forks, num_sites=len(chosen)),
        )

    def _fork_point(
        self, example: TrainingExample, view: HintView, tools: dict[str, ToolFacts]
    ) -> TrainForkPoint:
        session = self.sessions.get(example.session_id)
        site, *other_sites = [self.sites[name] for name in view.site_ids if name in self.sites] or [
            None
        ]
        if session is None or site is None or 1 + len(other_sites) != len(view.site_ids):
            problem = (
                f"the {'session' if session is None else 'site'} of {view.site_id} is not among"
                " those given"
            )
            raise DataError(problem, where=example.id, fix="run again: recompose build")
        message = next(
            (span for span in example.turns if span.body[0] <= view.span[0] < span.body[1]), None
        )
        if message is None or message.turn != site.turn:
            problem = (
                f"the example's target is turn {message.turn if message else '-'}, the site is turn"
                f" {site.turn}"
            )
            raise SiteError(problem, where=site.id, fix="run again: recompose build")
        if session.id not in tools:
            tools[session.id] = ToolFacts.of(session)
        context_spans = example.turns[: example.turns.index(message)]
        fork = ForkPoint(
            site=site,
            turns=tuple(session.turn_in_view(span.turn, at=site.turn) for span in context_spans),
            tools=session.tools,
            check=SiteCheck.of(session, site, tools=tools[session.id]),
            ids=example.ids[: message.body[0]],
            others=tuple(
                SiteCheck.of(session, other, tools=tools[session.id])
                for other in other_sites
                if other is not None
            ),
        )
        return TrainForkPoint(example=example, view=view, message=message, fork=fork)


def forked_example(
    fork_point: TrainForkPoint, fork: Fork, *, name: str, author: str
) -> TrainingExample:
    """The imported context followed by the student's own ids; the hint stays where it was, above
    the message."""
    prefix, begin = fork.prefix_ids, len(fork.prefix_ids)
    ids = prefix + fork.ids
    view = replace(
        fork_point.view,
        span=(begin, len(ids)),
        target_ids=fork.ids,
        parts=(),
        decisions=(),  # those of the log's message
        origin="student",
        logprobs=fork.logprobs,
    )
    context_spans = fork_point.example.turns[: fork_point.example.turns.index(fork_point.message)]
    written_span = replace(fork_point.message, end=len(ids), body=(begin, len(ids)), author=author)
    return TrainingExample(
        id=name,
        session_id=fork_point.example.session_id,
        ids=ids,
        hints=(view,),
        turns=(*context_spans, written_span),
        origin="student",
    )


def fork_metrics(forks: Sequence[Fork], *, num_sites: int) -> dict[str, float]:
    """The metrics of a step's forks; `fork/tokens` are those of the failures, which the hint
    channel trains."""
    metrics: dict[str, float] = {"fork/sites": num_sites, "fork/samples": len(forks)}
    metrics |= {f"fork/{outcome}": count for outcome, count in outcome_counts(forks).items()}
    metrics["fork/sites_same"] = len(
        {fork.site.id for fork in forks if fork.checked.outcome == "same"}
    )
    metrics["fork/sampled_tokens"] = sum(len(fork.ids) for fork in forks)
    metrics["fork/tokens"] = sum(len(fork.ids) for fork in forks if fork.checked.outcome == "same")
    return metrics


def without_views(examples: Sequence[TrainingExample]) -> list[TrainingExample]:
    """Imported examples without their hint views: in a run that forks, the student's own messages
    take their place."""
    without_hints = [
        replace(example, hints=()) if example.hints else example for example in examples
    ]
    return [
        example
        for example in without_hints
        if example.lm_spans or example.anchored or example.actions
    ]
