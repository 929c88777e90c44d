"""Rollouts: episodes that our own student samples in an environment.

Each is a Session with `origin="student"`. sampler.py (any causal language model in any `Env`),
groups.py (groups of one task, advantages), envs/ (the protocol, environments).
"""
