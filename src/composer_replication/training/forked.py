"""A step's hint views from the student's own turns at the sites of imported logs (`train.fork`):
only what it got wrong is distilled.

    forked = Forked(config=config, renderer=renderer, sessions={...}, sites={...})
    spots = forked.spots(examples)                        # the imported hint views, with their contexts restored and checked
    made = forked.step(student.model, spots, step=3)
    made.examples, made.facts["fork/same"]

An imported view holds what another model wrote. Here its context stays what it is, token by token,
and its target becomes what the student writes there: an example with origin "student" where the
static check finds the site's mistake again, nothing otherwise. Other mistakes have no hint that
speaks of them, and what only a sandbox could decide is counted and left alone. Everything is a
function of (config.seed, step) and the weights. Every rank samples the same forks and takes its
share of the examples in `train_step`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError, DataError, SiteError
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
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.batch_sampler import drawn

AUTHOR = "student"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainForkPoint:
    """One imported hint view, where its message stands in the session, and the fork's own spot."""

    example: TrainingExample
    view: HintView
    message: TurnSpan
    fork: ForkPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkStep:
    """What one step's forks gave: examples of the failures, all samples, and numbers by metric
    name."""

    examples: tuple[TrainingExample, ...]
    forks: tuple[Fork, ...]
    facts: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """The producer of a run; `sessions` and `sites` by id are those that the examples were built
    from."""

    config: Config
    renderer: Renderer
    sessions: Mapping[str, Session]
    sites: Mapping[str, Site]
    author: str = AUTHOR
    meter: SamplingStats = field(default_factory=SamplingStats)

    def spots(self, examples: Sequence[TrainingExample]) -> tuple[TrainForkPoint, ...]:
        """Every hint view of imported examples, each site once; raises DataError where there is
        none, or its session or site is not there.

        Raises ConfigError where a message of rollouts.max_new_tokens below its hint would not fit
        into one forward.
        """
        tools: dict[str, ToolFacts] = {}
        found: dict[str, TrainForkPoint] = {}
        for example in examples:
            for view in example.hints if example.origin == "trace" else ():
                if view.site_id not in found:
                    found[view.site_id] = self._spot(example, view, tools)
        if not found:
            fix = "run recompose hints and build, or set train.fork = false"
            raise DataError("no imported hint view to fork at", where="train.fork", fix=fix)
        longest, name = max(
            (len(s.fork.ids) + len(s.view.hint_ids), name) for name, s in found.items()
        )
        needed, room = longest + self.config.rollouts.max_new_tokens, self.config.train.micro_tokens
        if needed > room:
            what = (
                f"a message of {self.config.rollouts.max_new_tokens} tokens at {name} needs"
                f" {needed} in one forward, it holds {room}"
            )
            raise ConfigError(
                what,
                where="train.micro_tokens",
                fix=f"set train.micro_tokens = {needed}, or lower rollouts.max_new_tokens",
            )
        return tuple(found.values())

    def num_samples(self, spots: Sequence[TrainForkPoint]) -> int:
        """How many messages a step asks for."""
        return min(self.config.train.fork_sites, len(spots)) * self.config.train.fork_samples

    def step(self, model: Any, spots: Sequence[TrainForkPoint], *, step: int) -> ForkStep:
        """Let these weights write at `train.fork_sites` sites, `train.fork_samples` times each, and
        make examples of the failures."""
        settings = self.config.train
        chosen = drawn(
            list(spots),
            stratum="fork",
            step=step,
            per_step=min(settings.fork_sites, len(spots)),
            seed=stage_seed(self.config.seed, "fork:sites"),
        )
        sampling = Sampling.of(
            self.config.rollouts, seed=stage_seed(self.config.seed, "fork:rollouts")
        )
        forks = sample_forks(
            model,
            [spot.fork for spot in chosen],
            samples=settings.fork_samples,
            renderer=self.renderer,
            settings=room_for([len(spot.fork.ids) for spot in chosen], settings=sampling),
            author=self.author,
            label=f"step-{step}:fork:",
            stats=self.meter,
        )
        each = [spot for spot in chosen for _ in range(settings.fork_samples)]
        wrong = [(s, f) for s, f in zip(each, forks, strict=True) if f.checked.outcome == "same"]
        examples = tuple(
            forked_example(s, f, name=f"step-{step}:{f.site.id}:{f.number}", author=self.author)
            for s, f in wrong
        )
        return ForkStep(
            examples=examples, forks=tuple(forks), facts=fork_facts(forks, num_sites=len(chosen))
        )

    def _spot(
        self, example: TrainingExample, view: HintView, tools: dict[str, ToolFacts]
    ) -> TrainForkPoint:
        session = self.sessions.get(example.session_id)
        site, *others = [self.sites[name] for name in view.site_ids if name in self.sites] or [None]
        if session is None or site is None or 1 + len(others) != len(view.site_ids):
            what = (
                f"the {'session' if session is None else 'site'} of {view.site_id} is not among"
                " those given"
            )
            raise DataError(what, where=example.id, fix="run again: recompose build")
        message = next(
            (span for span in example.turns if span.body[0] <= view.span[0] < span.body[1]), None
        )
        if message is None or message.turn != site.turn:
            what = (
                f"the example's target is turn {message.turn if message else '-'}, the site is turn"
                f" {site.turn}"
            )
            raise SiteError(what, where=site.id, fix="run again: recompose build")
        if session.id not in tools:
            tools[session.id] = ToolFacts.of(session)
        above = example.turns[: example.turns.index(message)]
        fork = ForkPoint(
            site=site,
            turns=tuple(session.seen(span.turn, at=site.turn) for span in above),
            tools=session.tools,
            check=SiteCheck.of(session, site, tools=tools[session.id]),
            ids=example.ids[: message.body[0]],
            others=tuple(
                SiteCheck.of(session, other, tools=tools[session.id])
                for other in others
                if other is not None
            ),
        )
        return TrainForkPoint(example=example, view=view, message=message, fork=fork)


def forked_example(spot: TrainForkPoint, fork: Fork, *, name: str, author: str) -> TrainingExample:
    """The imported context with the student's own ids behind it; the hint stands where it stood,
    above the message."""
    prefix, begin = fork.prefix_ids, len(fork.prefix_ids)
    ids = prefix + fork.ids
    view = replace(
        spot.view,
        span=(begin, len(ids)),
        target_ids=fork.ids,
        parts=(),
        origin="student",
        logprobs=fork.logprobs,
    )
    above = spot.example.turns[: spot.example.turns.index(spot.message)]
    written = replace(spot.message, end=len(ids), body=(begin, len(ids)), author=author)
    return TrainingExample(
        id=name,
        session_id=spot.example.session_id,
        ids=ids,
        hints=(view,),
        turns=(*above, written),
        origin="student",
    )


def fork_facts(forks: Sequence[Fork], *, num_sites: int) -> dict[str, float]:
    """What a step's line says of its forks; `fork/tokens` are those of the failures, which the hint
    channel trains."""
    told: dict[str, float] = {"fork/sites": num_sites, "fork/samples": len(forks)}
    told |= {f"fork/{outcome}": count for outcome, count in outcome_counts(forks).items()}
    told["fork/sites_same"] = len(
        {fork.site.id for fork in forks if fork.checked.outcome == "same"}
    )
    told["fork/sampled_tokens"] = sum(len(fork.ids) for fork in forks)
    told["fork/tokens"] = sum(len(fork.ids) for fork in forks if fork.checked.outcome == "same")
    return told


def without_views(examples: Sequence[TrainingExample]) -> list[TrainingExample]:
    """Imported examples without their hint views: what another model wrote is not distilled where
    the student's own turn is."""
    bare = [replace(example, hints=()) if example.hints else example for example in examples]
    return [example for example in bare if example.trained or example.anchored or example.actions]
