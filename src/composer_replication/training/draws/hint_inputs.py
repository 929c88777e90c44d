"""The demands of train.hint's controls on the hint views: the settings that are refused before a
run, and another site's hint for a contrast. No torch: `train --dry-run` asks the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from composer_replication.core.config.hint_settings import HintSettings
from composer_replication.core.errors import ConfigError
from composer_replication.tokens.example import HintView, TrainingExample
from composer_replication.tokens.hint_donors import shuffled_views


def check_hint_settings(
    examples: Sequence[TrainingExample], settings: HintSettings, *, fork: bool
) -> None:
    """Raise ConfigError if no imported view could have what the settings ask for, or, unless the
    student forks at them, if one of them lacks it."""
    views = [view for example in examples for view in example.hints]
    rules = (
        (
            settings.focus == "decision" and fork,
            "focus",
            "the student's own message at a fork has a decision of its own, which is not known",
            'set it to "message", or train.fork = false',
        ),
        (
            settings.focus == "decision" and bool(views) and not any(v.decisions for v in views),
            "focus",
            f"the decision of none of the {len(views)} hint views is known",
            'run again: recompose hints, then recompose build; or set it to "message"',
        ),
        (
            settings.contrast and bool(views) and not views_with_donor(examples),
            "contrast",
            f"for none of the {len(views)} hint views has another session a hint of another text",
            "set it to false, or build from more sessions",
        ),
    )
    for is_broken, name, problem, fix in rules:
        if is_broken:
            raise ConfigError(problem, where=f"train.hint.{name}", fix=fix)
    if not fork:
        check_views(examples, settings)


def check_views(examples: Sequence[TrainingExample], settings: HintSettings) -> None:
    """Raise ConfigError if a control needs data that a view does not have; the error names the
    first such view."""
    for view in (view for example in examples for view in example.hints):
        rules = (
            (
                settings.estimator == "sampled_token" and view.origin != "student",
                "estimator",
                (
                    "the sampled token is an estimate on the student's own tokens, and another"
                    " model wrote this message"
                ),
                "set train.fork = true, play live rollouts, or set train.hint.estimator = full",
            ),
            (
                bool(settings.importance_clip) and not view.logprobs,
                "importance_clip",
                "the sampler's log-probs of this message are not known",
                "set train.fork = true, play live rollouts, or set train.hint.importance_clip = 0",
            ),
            (
                settings.difficulty and view.difficulty is None,
                "difficulty",
                "this message belongs to no group of rollouts with a success rate",
                "play live rollouts, or set train.hint.difficulty = false",
            ),
        )
        for is_broken, name, problem, fix in rules:
            if is_broken:
                raise ConfigError(
                    f"{problem} ({view.site_id})", where=f"train.hint.{name}", fix=fix
                )


def views_with_donor(examples: Sequence[TrainingExample]) -> int:
    """The number of hint views for which another session of the data set has a hint."""
    imported = _imported(examples)
    return sum(
        any(_fits(session_id, view, *donor) for donor in imported) for session_id, view in imported
    )


def with_wrong_hints(
    examples: Sequence[TrainingExample], *, seed: int, dataset: Sequence[TrainingExample] = ()
) -> tuple[list[TrainingExample], int]:
    """Examples whose views also carry the hint of another site, and the number of views that were
    left out because no other hint fits.

    A view of the data set (or of a fork at one) gets a hint of another session of it, of another
    kind if there is one: a step holds too few. A live rollout's gets that of another site of the
    step, of another kind and session if there is one. The hint never has the same text.
    """
    views = [view for example in examples for view in example.hints]
    session_ids = [example.session_id for example in examples for _ in example.hints]
    in_step = iter(shuffled_views(views, session_ids, seed=seed))
    imported = _imported(dataset)
    known = {view.site_id for _, view in imported}
    contrasted, num_dropped = [], 0
    for example in examples:
        with_donor: list[HintView] = []
        for view in example.hints:
            place = next(in_step)
            donor = None if place is None else views[place]
            if view.site_id in known:
                donor = _drawn_donor(example.session_id, view, imported, seed=seed)
            if donor is not None:
                with_donor.append(replace(view, wrong_ids=donor.hint_ids))
        num_dropped += len(example.hints) - len(with_donor)
        contrasted.append(replace(example, hints=tuple(with_donor)) if example.hints else example)
    return contrasted, num_dropped


def _imported(examples: Sequence[TrainingExample]) -> list[tuple[str, HintView]]:
    return [(example.session_id, view) for example in examples for view in example.hints]


def _fits(session_id: str, view: HintView, donor_session_id: str, donor: HintView) -> bool:
    """Whether the ids of a hint can stand in place of a view's: inserted in the same form."""
    return (
        donor_session_id != session_id
        and donor.hint_ids != view.hint_ids
        and (donor.position, donor.rendering) == (view.position, view.rendering)
    )


def _drawn_donor(
    session_id: str, view: HintView, imported: Sequence[tuple[str, HintView]], *, seed: int
) -> HintView | None:
    fitting = [donor for donor in imported if _fits(session_id, view, *donor)]
    other_kind = [donor for donor in fitting if donor[1].kind != view.kind]
    rng = random.Random(f"{seed}:{view.site_id}")
    return rng.choice(other_kind or fitting)[1] if fitting else None
