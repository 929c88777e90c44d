"""The upkeep of a run: state, checkpoints, the health rules, logs."""
