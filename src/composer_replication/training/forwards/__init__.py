"""The forward passes of a step, and the channels' losses on them."""
