"""The maths of the channels: pure torch, unreduced values, no trainer.

docs/math.md has every formula and its name in other libraries. From logits: divergence, entries,
topk, distances, taid, entropy, hint_loss. From log-probs: sampled, policy, surrogates,
trust_region, preference. Without an (N, V) matrix: fused. Credit and combinations: credit.
Reduction by global counts: reduction, channel, total. TAID's schedule: schedules.
"""
