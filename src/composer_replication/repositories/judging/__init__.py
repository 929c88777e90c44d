"""The judge of an episode, and the monitor of what it tried."""
