"""Rollouts: episodes that our own student samples. Empty until the next issue.

It brings sampler.py, groups.py, fork.py, local_teacher.py and envs/; a rollout is a Session with `origin="student"`.
"""
