"""`train.hint.focus`: only the tokens of the decision are distilled, whatever else is on."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from composer_replication.core.errors import ConfigError
from composer_replication.tokens.example import DecisionTokens, HintView, TrainingExample
from composer_replication.training.inputs import StepInputs, prepare_data
from composer_replication.training.step import with_hint_controls
from tests.models.tree_models import gap
from tests.training.small_student import make_config
from tests.training.test_hint_controls import KL_ST, examples, kl_st, moved_trainer
from tests.training.trees import outcome


def decided() -> list[TrainingExample]:
    """The first view of each example is decided at its first and its third token, by two calls; the
    second view at its only token; the fourth view's decision is not known."""
    known = []
    for number, example in enumerate(examples()):
        first, second = (dataclasses.replace(v, wrong_ids=()) for v in example.hints)
        a = first.span[0]
        other = f"{first.site_id}+"
        first = dataclasses.replace(
            first,
            others=((other, "k"),),
            decisions=(
                DecisionTokens(site_id=first.site_id, spans=((a, a + 1),), fork=a, right_ids=(2,)),
                DecisionTokens(site_id=other, spans=((a + 2, a + 3),)),
            ),
        )
        if number == 0:
            one = DecisionTokens(site_id=second.site_id, spans=(second.span,))
            second = dataclasses.replace(second, decisions=(one,))
        known.append(dataclasses.replace(example, hints=(first, second)))
    return known


POSITIONS = {0: (0, 2), 1: (0,), 2: (0, 2), 3: (0,)}
"""By view: which of its target tokens are distilled; the second of each example has only one."""


def direct(
    trainer: Any, start: Any, focused: list[TrainingExample], contrast: bool
) -> torch.Tensor:
    """The mean over views of the mean over their decision tokens, one plain forward at a time."""
    live, means = trainer.models.student.model.eval(), []
    views = [(e, v) for e in focused for v in e.hints]
    for number, (example, view) in enumerate(views):
        full = decided()[number // 2].hints[number % 2]
        a, b = full.span

        def logits(
            model: Any,
            hint: tuple[int, ...],
            example: TrainingExample = example,
            view: HintView = view,
            a: int = a,
            b: int = b,
        ) -> torch.Tensor:
            ids = example.ids[: view.at] + hint + example.ids[view.at : b]
            shift = len(hint)
            return model(input_ids=torch.tensor([ids])).logits[0, a + shift - 1 : b + shift - 1]

        rows = {"student": logits(live, ()), "teacher": logits(start, view.hint_ids).detach()}
        if contrast:
            wrong = logits(start, view.wrong_ids).detach()
            shift = rows["teacher"].log_softmax(-1) - wrong.log_softmax(-1)
            rows["teacher"] = rows["student"].detach() + shift.clamp(-5, 5)
        means.append(kl_st(rows)[list(POSITIONS[number])].mean())
    return torch.stack(means).mean()


@pytest.mark.parametrize("contrast", [False, True])
@pytest.mark.parametrize("layout", ["rows", "tree"])
def test_the_loss_is_that_of_the_decision_tokens_alone(layout: str, contrast: bool) -> None:
    hint = {"divergence": KL_ST, "focus": "decision", "contrast": contrast}
    trainer, start = moved_trainer(layout, hint)
    inputs, metrics = with_hint_controls(trainer.config, StepInputs(decided(), []), step=0)
    assert metrics == {"hint/unfocused": 1} | ({"hint/no_donor": 0} if contrast else {})
    mean = direct(trainer, start.eval(), inputs.examples, contrast)
    expected = list(torch.autograd.grad(mean, list(trainer.trainable())))
    steps, grads = outcome(trainer, (inputs.examples, []), {"hint": 1.0})
    assert steps["hint"].tokens == 2 + 1 + 2 + 1
    assert steps["hint"].loss == pytest.approx(float(mean.detach()), rel=1e-6)
    assert gap(grads, expected) <= 2e-6


def test_by_default_every_token_of_the_message_is_distilled() -> None:
    trainer, _ = moved_trainer("rows", {"divergence": KL_ST})
    inputs, metrics = with_hint_controls(trainer.config, StepInputs(decided(), []), step=0)
    assert (inputs.examples, metrics) == (decided(), {})


def test_what_belongs_to_the_tokens_goes_with_them() -> None:
    """The sampler's log-probs, if a view has them, are those of the tokens that are left."""
    for example in decided():
        view, focused = example.hints[0], example.focused().hints[0]
        assert len(focused.target_ids) == 2 and focused.parts
        assert focused.target_ids == (view.target_ids[0], view.target_ids[2])
        assert focused.logprobs == (view.logprobs[0], view.logprobs[2])
        assert focused.hint_ids == view.hint_ids and example.focused().ids == example.ids


def test_where_no_decision_can_be_known_the_run_is_refused() -> None:
    settings: dict[str, Any] = {"hint": {"weight": 1.0, "focus": "decision"}}
    plain = [
        dataclasses.replace(e, hints=tuple(dataclasses.replace(v, decisions=()) for v in e.hints))
        for e in decided()
    ]
    with pytest.raises(ConfigError) as caught:
        prepare_data(make_config(**settings), examples=plain, pairs=[], live=None, forked=None)
    assert caught.value.where == "train.hint.focus" and "recompose build" in caught.value.fix
    prepare_data(make_config(**settings), examples=decided(), pairs=[], live=None, forked=None)
    forking: Any = object()
    with pytest.raises(ConfigError) as caught:
        prepare_data(
            make_config(**settings, fork=True),
            examples=decided(),
            pairs=[],
            live=None,
            forked=forking,
        )
    assert caught.value.where == "train.hint.focus" and "fork" in caught.value.fix
