"""Every arm of the evidence: its description, its settings, and its number of steps.

    ARMS["hint_placebo"].flags
        ("--train.policy.weight", "0", ..., "--train.placebo", "shuffled_hints")
    steps_of("hint_placebo", scale=1.0)

The steps are chosen so that all arms take about the same CPU-seconds, which are measured and
printed beside each arm. A placebo has the steps of the arm it belongs to, whatever they cost.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from composer_replication.cli.demo_settings import (
    AFTER,
    CONTROLS,
    MORE_SFT,
    NO_RULES,
    PLACEBO,
    SETTINGS,
    STEPS,
)
from composer_replication.cli.demo_student import NUM_LOGS, SLACK

from .pairs import MAX_NULL_ROUNDS, SLIPS, TEACHERS

BEFORE = "before"
LEVELS = (1, 2)
_NO_POLICY = ("--train.policy.weight", "0")
_NO_HINT = ("--train.hint.weight", "0")
_NO_PREFERENCE = ("--train.preference.weight", "0")
_POLICY, _HINT, _PREFERENCE = (
    (*_NO_HINT, *_NO_PREFERENCE),
    (*_NO_POLICY, *_NO_PREFERENCE),
    (*_NO_POLICY, *_NO_HINT),
)
# Preference alone needs no rollouts: they would cost time and train nothing. With batch_anchors = 0
# no anchor is drawn, so the pairs are the only training data.
_NO_ROLLOUTS = (
    "--rollouts.env",
    "",
    "--train.batch_examples",
    "6",
    "--train.preference.batch_anchors",
    "0",
)
_RULES = (
    "--train.health.max_kl",
    "0.3",
    "--train.health.monitor_tasks",
    "48",
    "--train.health.monitor_every",
    "5",
)
_COLLAPSE = (*_HINT, "--train.hint.teacher", "live", "--train.learning_rate", "5e-3")
_LOGGED = (*_HINT, "--rollouts.env", "")
# A channel runs dry once the student no longer makes the mistakes that feed it, but a control is
# trained to its last step.
_MAY_STARVE = ("--train.starved_steps", "1000")
_FORK = ("--train.fork", "true", *_MAY_STARVE)
# If the hint's evidence goes into the advantages, no divergence is computed; the demo's divergence
# would be set but never read, which the settings refuse.
_CREDIT = (*_MAY_STARVE, "--train.hint.divergence", "jsd", "--train.hint.combination")
_PENALTY = ("--train.policy.behaviours.unresolvable_calls", "0.5")
_CLONE = ("--train.preference.objective", "clone", "--train.preference.anchor", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to train the student: `flags` override the demo's settings, and `like` names the arm
    whose number of steps it takes.

    Unless `stops` is set, no health rule ends it: an arm that was stopped early would not be
    compared at equal compute. An arm that needs TRL is trained by the Python of .venv-peers (make
    peers), and left out if that does not exist. `pairs` names one of the sets of pairs.py, which
    replaces the pairs that the demo's three teachers agree on.
    """

    text: str
    flags: tuple[str, ...]
    levels: tuple[int, ...] = (1,)
    like: str = ""
    stops: bool = False
    needs_trl: bool = False
    pairs: str = ""


def _pairs_arm(pairs: str, text: str) -> Arm:
    return Arm(text=text, flags=(*_PREFERENCE, *_NO_ROLLOUTS), like="preference", pairs=pairs)


def _placebo_flags(placebo: str) -> tuple[str, ...]:
    return ("--train.placebo", placebo)


ARMS: Mapping[str, Arm] = {
    "more_sft": Arm(
        text="more cross-entropy on the same careless logs; no rollouts",
        flags=CONTROLS["more_sft"],
        levels=LEVELS,
    ),
    "placebo": Arm(
        text="all three channels, all three signals nulled",
        flags=PLACEBO,
        levels=LEVELS,
        like=AFTER,
    ),
    "clone": Arm(
        text="cross-entropy on the chosen actions of the pairs, no rejected side, no anchors",
        flags=(*_PREFERENCE, *_NO_ROLLOUTS, *_CLONE),
    ),
    "policy": Arm(text="policy channel alone", flags=_POLICY, levels=LEVELS),
    "policy_placebo": Arm(
        text="policy alone, rewards permuted across groups",
        flags=(*_POLICY, *_placebo_flags("permuted_rewards")),
        like="policy",
    ),
    "trl_policy": Arm(
        text="policy alone, trained by TRL's GRPOTrainer (`--train.backend trl`)",
        flags=(*_POLICY, "--train.backend", "trl"),
        like="policy",
        needs_trl=True,
    ),
    "random_reward": Arm(
        text="policy alone, a coin in place of the reward",
        flags=(*_POLICY, *_placebo_flags("random_rewards")),
        like="policy",
    ),
    **{
        name: Arm(
            text=f"policy alone, by {name} in the place of dr_grpo",
            flags=(*_POLICY, "--train.policy.objective", name),
            like="policy",
        )
        for name in ("grpo", "dapo", "gspo", "cispo")
    },
    "hint": Arm(text="hint channel alone, frozen teacher", flags=_HINT, levels=LEVELS),
    "hint_placebo": Arm(
        text="hint alone, the hint of another site",
        flags=(*_HINT, *_placebo_flags("shuffled_hints")),
        like="hint",
    ),
    "hint_neutral": Arm(
        text="hint alone, words of the same length that say nothing",
        flags=(*_HINT, *_placebo_flags("neutral_hints")),
        like="hint",
    ),
    "wrong_site": Arm(
        text="hint alone, at the turn after the mistake",
        flags=(*_HINT, "--sites.site", "recovery"),
        like="hint",
    ),
    "hint_live": Arm(
        text="hint alone, the teacher has the current weights",
        flags=(*_HINT, "--train.hint.teacher", "live"),
        like="hint",
    ),
    "hint_ema": Arm(
        text="hint alone, the teacher is a slow average of the weights",
        flags=(*_HINT, "--train.hint.teacher", "ema"),
        like="hint",
    ),
    "hint_trust": Arm(
        text=(
            "hint alone, the teacher's logits a twentieth of the way from the frozen to the"
            " live one"
        ),
        flags=(*_HINT, "--train.hint.teacher", "trust_region"),
        like="hint",
    ),
    "hint_token_mean": Arm(
        text="hint alone, a mean over tokens in place of one over messages",
        flags=(*_HINT, "--train.hint.mean", "token"),
        like="hint",
    ),
    "hint_focus": Arm(
        text="hint alone, on the tokens of the decision only (the wrong name)",
        flags=(*_HINT, "--train.hint.focus", "decision"),
        like="hint",
    ),
    "hint_contrast": Arm(
        text="hint alone, only what its hint changes more than another site's does",
        flags=(*_HINT, "--train.hint.contrast", "true"),
        like="hint",
    ),
    "logged": Arm(
        text="hint alone, on the messages as they stand in the logs; no rollouts",
        flags=_LOGGED,
        like="hint",
    ),
    "fork": Arm(
        text="hint alone, on what the student writes at the logs' sites, where it fails again",
        flags=(*_LOGGED, *_FORK),
        like="hint",
    ),
    "fork_placebo": Arm(
        text="the same with the hint of another site",
        flags=(*_LOGGED, *_FORK, *_placebo_flags("shuffled_hints")),
        like="hint",
    ),
    "preference": Arm(
        text="preference channel alone", flags=(*_PREFERENCE, *_NO_ROLLOUTS), levels=LEVELS
    ),
    "preference_placebo": Arm(
        text="preference alone, sides swapped with p = 1/2",
        flags=(*_PREFERENCE, *_NO_ROLLOUTS, *_placebo_flags("swapped_pairs")),
        like="preference",
    ),
    "pairs_raw": _pairs_arm(
        "raw",
        "preference alone on every answer of five noisy teachers that is not what the student did",
    ),
    "pairs_filtered": _pairs_arm(
        "filtered",
        "the same pairs, of which `recompose curate` kept what its recipe has nothing against",
    ),
    "pairs_curated": _pairs_arm(
        "curated",
        "the pairs on which families of those teachers agree, with evidence, and then `recompose"
        " curate`",
    ),
    "pairs_null": _pairs_arm(
        "null",
        "as many pairs of the null test: the same agreement on answers dealt to other places",
    ),
    "hint_policy": Arm(text="hint and policy", flags=_NO_PREFERENCE),
    "hint_preference": Arm(text="hint and preference", flags=_NO_POLICY),
    "policy_preference": Arm(text="policy and preference", flags=_NO_HINT),
    "convex": Arm(
        text="all three, the policy half and the hint half of one weight",
        flags=("--train.hint.combination", "convex", "--train.hint.weight", "0.5"),
        levels=LEVELS,
        like=AFTER,
    ),
    "advantage": Arm(
        text="all three, the hint's evidence added to the advantages of the tokens",
        flags=(*_CREDIT, "advantage"),
        levels=(2,),
        like=AFTER,
    ),
    "bounded": Arm(
        text="the same, held within half a unit and never against the reward's sign",
        flags=(*_CREDIT, "bounded"),
        levels=(2,),
        like=AFTER,
    ),
    "collapse": Arm(
        text="hint alone, live teacher, ten times the learning rate, and no rule",
        flags=_COLLAPSE,
        like=AFTER,
    ),
    "collapse_stopped": Arm(
        text="the same with the rules of training/run/health.py",
        flags=(*_COLLAPSE, *_RULES),
        like=AFTER,
        stops=True,
    ),
    "policy_penalised": Arm(
        text="policy alone, each unresolvable call costs half of the reward",
        flags=(*_POLICY, *_PENALTY),
        like="policy",
    ),
    "penalised": Arm(
        text="all three, each unresolvable call costs half of the reward",
        flags=_PENALTY,
        like=AFTER,
    ),
    "trl_after": Arm(
        text="all three channels in TRL's trainer, without anchors, which it does not host",
        flags=("--train.backend", "trl", "--train.preference.anchor", "0"),
        like=AFTER,
        needs_trl=True,
    ),
    AFTER: Arm(text="all three channels, as in the demo", flags=(), levels=LEVELS),
}
"""In the order of the tables; the demo has the rows `after` and `placebo` too."""

STEPS_OF: Mapping[str, int] = {
    AFTER: STEPS,
    "more_sft": 40,
    "clone": 30,
    "policy": 23,
    "hint": 22,
    "preference": 30,
    "hint_policy": 20,
    "hint_preference": 21,
    "policy_preference": 21,
}
"""Chosen so that an arm costs about the CPU-seconds of `after`, with three exceptions: more_sft,
clone and preference need no rollouts and get fewer, because more steps would only memorise their
few logs and pairs (30 steps are three passes over the pairs). The row of an arm shows its cost."""

HEADLINE = frozenset(
    {
        BEFORE,
        AFTER,
        "placebo",
        "more_sft",
        "policy",
        "hint",
        "preference",
        "hint_policy",
        "hint_preference",
        "policy_preference",
    }
)
"""Rows that support the claims of the README and of the demo: they are trained with every seed, the
others with the first MIN_SEEDS."""
MIN_SEEDS = 3


def seeds_of(name: str, seeds: Sequence[int]) -> list[int]:
    """The seeds with which an arm is trained.

    >>> seeds_of("after", [11, 12, 13, 14, 15]), seeds_of("wrong_site", [11, 12, 13, 14, 15])
    ([11, 12, 13, 14, 15], [11, 12, 13])
    """
    return list(seeds) if name in HEADLINE else list(seeds)[:MIN_SEEDS]


def steps_of(name: str, *, scale: float = 1.0) -> int:
    """The number of steps of an arm; at least one."""
    return max(1, round(STEPS_OF[ARMS[name].like or name] * scale))


def flags_of(name: str) -> tuple[str, ...]:
    """The flags of an arm's run, which override the demo's settings."""
    arm = ARMS[name]
    return arm.flags if arm.stops else (*arm.flags, *NO_RULES)


def settings_sha256(*, without: Collection[str] = ()) -> str:
    """A hash of everything that defines the arms, except the arms in `without`: the demo's settings
    and logs, and the flags, steps and pairs of each arm."""
    hashed_arms = {name: arm for name, arm in ARMS.items() if name not in without}
    arms = {
        name: [*flags_of(name), *([arm.pairs] if arm.pairs else []), steps_of(name)]
        for name, arm in hashed_arms.items()
    }
    teachers = (
        [TEACHERS, SLIPS, MAX_NULL_ROUNDS] if any(arm.pairs for arm in hashed_arms.values()) else []
    )
    # The parsed settings, not their text: a comment of the file changes no arm.
    settings = tomllib.loads(SETTINGS.format(seed=0, student="", steps=STEPS))
    value = [settings, STEPS, NUM_LOGS, SLACK, PLACEBO, MORE_SFT, arms, *teachers]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
