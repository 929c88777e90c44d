"""DiLoCo: replicas that train separately and sync in rounds (docs/replicas.md)."""
