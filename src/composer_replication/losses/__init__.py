"""The maths of the channels: pure torch, unreduced values, no trainer. docs/math.md has every
formula and what other libraries call it.

From logits: divergence, entries, topk, distances, taid, entropy, hint. From log-probs: sampled,
policy, surrogates, trust, preference. Credit and combinations: credit. Reduction by global counts:
reduction, channel, total. TAID's schedule: schedules.
"""
