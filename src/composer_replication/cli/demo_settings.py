"""The settings of the demo and its controls, for `recompose demo` and benchmarks/evidence.py."""

from __future__ import annotations

from collections.abc import Mapping

AFTER = "after"
NO_RULES = (
    "--train.health.max_kl",
    "1000",
    "--train.health.max_unresolvable",
    "1",
    "--train.health.monitor_tasks",
    "0",
)
"""A control is trained to the end even if it breaks a health rule: all rows of the table must have
the same number of steps."""
PLACEBO = ("--train.placebo", "shuffled_hints,permuted_rewards,swapped_pairs", *NO_RULES)
MORE_SFT = (
    "--rollouts.env",
    "",
    "--train.lm_ce.weight",
    "1",
    "--train.policy.weight",
    "0",
    "--train.hint.weight",
    "0",
    "--train.preference.weight",
    "0",
)
CONTROLS: Mapping[str, tuple[str, ...]] = {"placebo": PLACEBO, "more_sft": MORE_SFT}
"""The settings of each control of the table, on top of the demo's."""
STEPS = 20
SETTINGS = """# Settings of `recompose demo`: a student of 0.6M parameters in a small coding
# workshop, all three channels.
work_dir = "."
seed = {seed}

[student]
model = "{student}"

[ingest]
logs = ["logs"]

[build]
max_tokens = 1024

[rollouts]
env = "workshop"           # the student acts in it while it is trained
groups = 8
group_size = 6

[train]
steps = {steps}
batch_examples = 48        # read by the control "more_sft", which trains on the logs alone
learning_rate = 5e-4
warmup_steps = 4
checkpoint_every = 5
# three habits are changed on purpose: the KL of a healthy run reaches 0.3
health = {{ max_kl = 0.6, monitor_tasks = 32, monitor_every = 10 }}
grad_every = 100
policy = {{ weight = 1.0 }}
# this student is so certain that the other divergences have hardly a gradient
hint = {{ weight = 1.0, divergence = "kl(teacher, student)" }}
lm_ce = {{ weight = 0.0 }}
preference = {{ weight = 1.0, batch_pairs = 8 }}

[evaluate]
tasks = 192
workers = 2                # students that are played at the same time
"""
