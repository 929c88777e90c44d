"""The maths of the channels: pure torch, unreduced values, no trainer. See divergence, policy, preference, hint, channel, total."""
