"""The parts of benchmarks/evidence.py: which arms there are, how they are trained, played, pooled,
and told."""
