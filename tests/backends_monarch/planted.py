"""A trainer actor that computes its step with a fault that was planted in its own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.training.backends import monarch_actors, step_check
from composer_replication.training.backends.monarch_actors import TrainerActor, endpoint
from composer_replication.training.inputs import StepInputs

REFERENCE_STEPS = step_check.reference_steps
RANK_MICRO_BATCHES = step_check.rank_micro_batches
Change = Callable[[TrainSettings, StepInputs], tuple[TrainSettings, StepInputs]]


def hint_on_the_wrong_turn(settings: Any, inputs: Any) -> Any:
    """Each view's target is the student's message behind the one that was hinted."""

    def moved(example: Any) -> Any:
        views = tuple(
            replace(v, span=(a, b), target_ids=example.ids[a:b], at=a)
            for v in example.hints
            for a, b in [(v.span[0] - 4, v.span[1] - 4)]
        )
        return replace(example, hints=views)

    return settings, replace(inputs, examples=[moved(example) for example in inputs.examples])


def swapped_divergence(settings: Any, inputs: Any) -> Any:
    """KL(teacher || student) in place of KL(student || teacher)."""
    names = ("kl(student, teacher)", "kl(teacher, student)")
    other = names[1 - names.index(settings.hint.divergence)]
    hint = settings.hint.model_copy(update={"divergence": other})
    return settings.model_copy(update={"hint": hint}), inputs


def lost_mask(settings: Any, inputs: Any) -> Any:
    """What the environment wrote behind a message counts as the student's."""

    def widened(action: Any) -> Any:
        a, b = action.span
        return replace(action, span=(a, b + 2), logprobs=(*action.logprobs, -3.7, -3.7))

    examples = [
        replace(e, actions=tuple(widened(action) for action in e.actions)) for e in inputs.examples
    ]
    return settings, replace(inputs, examples=examples)


def pairs_split_across_ranks(trainer: Any, inputs: StepInputs) -> Any:
    """A rank sees the chosen side of one pair with the rejected side of the next."""
    pairs = inputs.pairs
    torn = [
        replace(pair, rejected_ids=pairs[(n + 1) % len(pairs)].rejected_ids)
        for n, pair in enumerate(pairs)
    ]
    return RANK_MICRO_BATCHES(trainer, replace(inputs, pairs=torn))


CHANGES: dict[str, Change] = {
    "hint_on_the_wrong_turn": hint_on_the_wrong_turn,
    "swapped_divergence": swapped_divergence,
    "lost_mask": lost_mask,
}
FAULTS = ("", *CHANGES, "pairs_split_across_ranks")


class PlantedTrainer(TrainerActor):
    """The trainer actor, with a fault from `plant` on; "" = none."""

    @endpoint
    def plant(self, name: str) -> None:
        @contextmanager
        def planted_steps(config: Any, *, student: Any) -> Iterator[Any]:
            with REFERENCE_STEPS(config, student=student) as take_step:
                change = CHANGES.get(name, lambda settings, inputs: (settings, inputs))
                yield lambda settings, inputs: take_step(*change(settings, inputs))

        monarch_actors.reference_steps = planted_steps
        torn = name == "pairs_split_across_ranks"
        step_check.rank_micro_batches = pairs_split_across_ranks if torn else RANK_MICRO_BATCHES
