"""What keeps a run alive: state, checkpoints, the health rules, logs."""
