"""The reference trainer: loop.py, and around it sampler, reference models, optimiser, health and
checkpoints."""
