"""DiLoCo: replicas that train apart and meet in rounds (docs/replicas.md)."""
