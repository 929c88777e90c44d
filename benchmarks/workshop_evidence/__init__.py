"""The parts of benchmarks/evidence.py: the arms, their training, the evaluation and the page."""
